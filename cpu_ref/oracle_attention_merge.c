/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_attention_merge.c: joins partial attention results in fp64. A row of partial lse is a row of scores, and the
 * partial outputs are its values, so the weights and bounds are those of attention (oracle_bound.c).
 * Cost: O(parts · elements) time, O(parts · (d_v + 1)) memory.
 */
#include <math.h>
#include <stdlib.h>

#include "oracle_private.h"

typedef struct merge_scratch {
    kiln_oracle_view *o, *lse;            /* [part] */
    double *s, *ds, *p, *error, *scratch; /* [part] */
    double *part;                         /* [part][d_v] */
} merge_scratch;

static bool scratch_init(merge_scratch *m, int64_t parts, int64_t d_v)
{
    m->o = calloc((size_t)parts, sizeof *m->o);
    m->lse = calloc((size_t)parts, sizeof *m->lse);
    m->s = kiln_oracle_alloc(parts);
    m->ds = kiln_oracle_alloc(parts);
    m->p = kiln_oracle_alloc(parts);
    m->error = kiln_oracle_alloc(parts);
    m->scratch = kiln_oracle_alloc(parts);
    m->part = kiln_oracle_alloc(parts * d_v);
    return m->o && m->lse && m->s && m->ds && m->p && m->error && m->scratch && m->part;
}

static void scratch_free(merge_scratch *m)
{
    free(m->o);
    free(m->lse);
    free(m->s);
    free(m->ds);
    free(m->p);
    free(m->error);
    free(m->scratch);
    free(m->part);
}

/* The only part that is not neutral, or -1 when there is another number of them. */
static int64_t only_part(const merge_scratch *m, int64_t parts)
{
    int64_t only = -1;
    for (int64_t i = 0; i < parts; i++) {
        if (m->s[i] == -INFINITY)
            continue;
        if (only >= 0)
            return -1;
        only = i;
    }
    return only;
}

/* One column: Σ p_i·o_i over the parts that are not neutral. */
static void merge_column(const merge_scratch *m, const kiln_numerics *numerics, const kiln_oracle_row *row,
                         int64_t parts, int64_t d_v, int64_t c, const kiln_oracle_output *out, int64_t index,
                         int32_t type)
{
    double value = 0, error = 0, largest = 0, relative = kiln_oracle_gamma(numerics, row->depth);
    bool vanishes = false;
    for (int64_t i = 0; i < parts; i++) {
        if (m->s[i] == -INFINITY)
            continue;
        double o = m->part[i * d_v + c];
        value += m->p[i] * o;
        error += (m->error[i] + m->p[i] * relative) * fabs(o);
        largest = fmax(largest, fabs(o));
        vanishes |= isinf(o) && m->p[i] < KILN_ORACLE_WEIGHT_MIN * (1 + 2 * fmin(row->sum_error, 1));
    }
    if (isnan(row->max))
        value = NAN;
    if (isfinite(value))
        error = row->max > -INFINITY ? kiln_oracle_mean_error(numerics, row, value, error, largest, parts) : 0;
    else
        error = vanishes ? NAN : 0;
    kiln_oracle_finish(out, index, value, error, type);
}

kiln_status kiln_oracle_attention_merge(const kiln_attention_merge_args *args, const kiln_numerics *numerics,
                                        kiln_oracle_attention *out)
{
    int64_t parts = args->num_parts;
    int first = args->o->ndim == 3;
    kiln_oracle_view o = kiln_oracle_view_of(args->o, first), lse = kiln_oracle_view_of(args->softmax_lse, first);
    kiln_oracle_view sinks = kiln_oracle_view_of(args->sinks, 0);
    int64_t d_v = o.size[3];
    merge_scratch m = {0};
    if (!scratch_init(&m, parts, d_v)) {
        scratch_free(&m);
        return KILN_OUT_OF_MEMORY;
    }
    for (int64_t i = 0; i < parts; i++) {
        m.o[i] = kiln_oracle_view_of(args->o_parts[i], first);
        m.lse[i] = kiln_oracle_view_of(args->lse_parts[i], first);
    }
    double extra = kiln_oracle_gamma(numerics, (double)numerics->score_extra);
    int64_t rows = o.size[0] * o.size[1] * o.size[2];
    for (int64_t r = 0; r < rows; r++) {
        int64_t i2 = r % o.size[2], i1 = r / o.size[2] % o.size[1], i0 = r / o.size[2] / o.size[1];
        for (int64_t i = 0; i < parts; i++) {
            m.s[i] = kiln_oracle_load(&m.lse[i], i0, i1, i2, 0);
            m.ds[i] = isinf(m.s[i]) ? 0 : extra * fabs(m.s[i]);
            if (m.s[i] != -INFINITY)
                kiln_oracle_load_row(&m.o[i], i0, i1, i2, m.part + i * d_v);
        }
        double sink = sinks.type ? kiln_oracle_load(&sinks, i1, 0, 0, 0) : -INFINITY;
        int64_t only = sink == -INFINITY ? only_part(&m, parts) : -1;
        kiln_oracle_row row;
        kiln_oracle_row_weights(numerics, parts, 1, m.s, m.ds, sink, m.p, m.error, m.scratch, &row);
        if (only >= 0 && !isnan(row.max)) {
            kiln_oracle_finish_exact(&out->lse, r, m.s[only], lse.type);
            for (int64_t c = 0; c < d_v; c++)
                kiln_oracle_finish_exact(&out->o, r * d_v + c, m.part[only * d_v + c], o.type);
            continue;
        }
        kiln_oracle_finish(&out->lse, r, row.lse, row.lse_error, lse.type);
        for (int64_t c = 0; c < d_v; c++)
            merge_column(&m, numerics, &row, parts, d_v, c, &out->o, r * d_v + c, o.type);
    }
    scratch_free(&m);
    return KILN_OK;
}
