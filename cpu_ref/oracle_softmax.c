/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_softmax.c: softmax over the last axis and its gradient, in fp64, any rank and strides.
 * Cost: O(elements) time, O(row) memory.
 */
#include <math.h>
#include <stdlib.h>

#include "oracle_private.h"

/* The rows of a call: outer axes numbered in the order of a compact tensor. */
typedef struct softmax_rows {
    int axes; /* without the last */
    int64_t size[KILN_MAX_RANK];
    int64_t rows, n;
} softmax_rows;

static softmax_rows rows_of(const kiln_tensor *tensor)
{
    softmax_rows r = {.axes = tensor->ndim - 1, .rows = 1, .n = tensor->shape[tensor->ndim - 1]};
    for (int axis = 0; axis < r.axes; axis++) {
        r.size[axis] = tensor->shape[axis];
        r.rows *= r.size[axis];
    }
    return r;
}

static int64_t row_offset(const softmax_rows *r, const kiln_oracle_view *view, int64_t row)
{
    int64_t offset = 0;
    for (int axis = r->axes - 1; axis >= 0; axis--) {
        offset += row % r->size[axis] * view->stride[axis];
        row /= r->size[axis];
    }
    return offset;
}

static int32_t type_or(const kiln_tensor *tensor, int32_t absent)
{
    return tensor ? tensor->dtype.code * 256 + tensor->dtype.bits : absent;
}

typedef struct row_scratch {
    double *a, *b, *c, *d, *e; /* [n] each */
} row_scratch;

static bool scratch_init(row_scratch *s, int64_t n)
{
    s->a = kiln_oracle_alloc(n);
    s->b = kiln_oracle_alloc(n);
    s->c = kiln_oracle_alloc(n);
    s->d = kiln_oracle_alloc(n);
    s->e = kiln_oracle_alloc(n);
    return s->a && s->b && s->c && s->d && s->e;
}

static void scratch_free(row_scratch *s)
{
    free(s->a);
    free(s->b);
    free(s->c);
    free(s->d);
    free(s->e);
}

/* Error of y_j (oracle_bound.c, "lse" and "o"). */
static double forward_error(const kiln_numerics *numerics, const kiln_oracle_row *row, bool log, double s, double ds,
                            double p, double error)
{
    if (log)
        return ds + row->lse_error + kiln_oracle_gamma(numerics, 2) * (fabs(s) + fabs(row->lse));
    return kiln_oracle_mean_error(numerics, row, p, error, 1, 1);
}

kiln_status kiln_oracle_softmax_forward(const kiln_softmax_forward_args *args, const kiln_numerics *numerics,
                                        kiln_oracle_softmax *out)
{
    softmax_rows rows = rows_of(args->x);
    kiln_oracle_view x = kiln_oracle_view_of(args->x, 0);
    int32_t y_type = type_or(args->y, KILN_FLOAT32), lse_type = type_or(args->lse, KILN_FLOAT32);
    double scale = args->scale != 0 ? (double)args->scale : 1;
    double extra = kiln_oracle_gamma(numerics, (double)numerics->score_extra);
    bool log = args->flags & KILN_FLAG_LOG;
    row_scratch scratch = {0};
    if (!scratch_init(&scratch, rows.n)) {
        scratch_free(&scratch);
        return KILN_OUT_OF_MEMORY;
    }
    double *s = scratch.a, *ds = scratch.b, *p = scratch.c, *error = scratch.d;
    for (int64_t r = 0; r < rows.rows; r++) {
        kiln_oracle_load_run(&x, row_offset(&rows, &x, r), x.stride[rows.axes], rows.n, s);
        for (int64_t j = 0; j < rows.n; j++) {
            s[j] = kiln_oracle_score_range(scale * s[j]);
            ds[j] = isinf(s[j]) ? 0 : extra * fabs(s[j]);
        }
        kiln_oracle_row row;
        kiln_oracle_row_weights(numerics, rows.n, 1, s, ds, -INFINITY, p, error, scratch.e, &row);
        kiln_oracle_finish(&out->lse, r, row.lse, row.lse_error, lse_type);
        for (int64_t j = 0; j < rows.n; j++) {
            bool empty = row.max == -INFINITY;
            double y = !log ? p[j] : empty ? -INFINITY : s[j] - row.lse;
            double bound = isfinite(y) && !empty ? forward_error(numerics, &row, log, s[j], ds[j], p[j], error[j]) : 0;
            kiln_oracle_finish(&out->y, r * rows.n + j, y, bound, y_type);
        }
    }
    scratch_free(&scratch);
    return KILN_OK;
}

kiln_status kiln_oracle_softmax_backward(const kiln_softmax_backward_args *args, const kiln_numerics *numerics,
                                         kiln_oracle_output *dx)
{
    softmax_rows rows = rows_of(args->y);
    kiln_oracle_view y_view = kiln_oracle_view_of(args->y, 0), dy_view = kiln_oracle_view_of(args->dy, 0);
    int32_t type = type_or(args->dx, KILN_FLOAT32);
    double scale = args->scale != 0 ? (double)args->scale : 1;
    double depth = kiln_oracle_depth(numerics, rows.n, rows.n);
    double sum_gamma = kiln_oracle_gamma(numerics, depth), few = kiln_oracle_gamma(numerics, 4);
    double extra = kiln_oracle_gamma(numerics, (double)numerics->score_extra);
    bool log = args->flags & KILN_FLAG_LOG;
    row_scratch scratch = {0};
    if (!scratch_init(&scratch, rows.n)) {
        scratch_free(&scratch);
        return KILN_OUT_OF_MEMORY;
    }
    double *y = scratch.a, *dy = scratch.b;
    for (int64_t r = 0; r < rows.rows; r++) {
        kiln_oracle_load_run(&y_view, row_offset(&rows, &y_view, r), y_view.stride[rows.axes], rows.n, y);
        kiln_oracle_load_run(&dy_view, row_offset(&rows, &dy_view, r), dy_view.stride[rows.axes], rows.n, dy);
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < rows.n; j++) {
            double term = log ? dy[j] : y[j] * dy[j];
            sum += term;
            magnitude += fabs(term);
        }
        for (int64_t j = 0; j < rows.n; j++) {
            double value, error;
            if (log) {
                double p = kiln_oracle_exp(y[j]), d = extra * fabs(y[j]);
                double p_error = p > 0 ? kiln_oracle_exp_growth(p, y[j], d, 1e100) + p * numerics->exp_error +
                                             fmin(p, kiln_oracle_exp_floor(numerics))
                                       : 0;
                value = dy[j] - p * sum;
                error = p_error * (fabs(sum) + sum_gamma * magnitude) + p * sum_gamma * magnitude +
                        few * (fabs(dy[j]) + p * fabs(sum));
                if (isinf(sum) && p < KILN_ORACLE_WEIGHT_MIN * 2)
                    error = NAN;
            } else {
                value = y[j] * (dy[j] - sum);
                error = fabs(y[j]) * (sum_gamma * magnitude + few * (fabs(dy[j]) + fabs(sum)));
                if (isinf(sum) && fabs(y[j]) < KILN_ORACLE_WEIGHT_MIN * 2)
                    error = NAN;
            }
            kiln_oracle_finish(dx, r * rows.n + j, scale * value, fabs(scale) * error + (double)rows.n * 0x1p-149,
                               type);
        }
    }
    scratch_free(&scratch);
    return KILN_OK;
}
