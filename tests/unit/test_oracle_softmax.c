/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_oracle_softmax.c: the oracle's softmax, its gradient, and merge: against long double, closed forms and central
 * differences; bounds against float arithmetic (two passes, and online by tiles with a rising maximum).
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "oracle_case.h"

enum { ROWS = 6, N = 17 };

typedef struct softmax_problem {
    oracle_tensor *x, *y, *lse;
    kiln_softmax_forward_args args;
    kiln_oracle_softmax out;
} softmax_problem;

static softmax_problem *softmax_new(int32_t type, int64_t n, bool log, float scale, bool strided)
{
    softmax_problem *p = oracle_zeroed(sizeof *p);
    int64_t shape[3] = {2, 3, n};
    oracle_seed((uint64_t)n);
    p->x = oracle_tensor_new(type, 3, shape, strided);
    p->y = oracle_tensor_new(type, 3, shape, strided);
    p->lse = oracle_tensor_new(type, 2, shape, false);
    for (int64_t i = 0; i < p->x->count; i++)
        oracle_put(p->x, i, 4 * oracle_random());
    p->args = (kiln_softmax_forward_args){.struct_size = sizeof p->args,
                                          .x = &p->x->tensor,
                                          .y = &p->y->tensor,
                                          .lse = &p->lse->tensor,
                                          .scale = scale,
                                          .flags = log ? KILN_FLAG_LOG : 0};
    p->out = (kiln_oracle_softmax){oracle_output(p->x->count), oracle_output(p->lse->count)};
    return p;
}

static void run(softmax_problem *p, const kiln_numerics *numerics)
{
    ck_assert_int_eq(kiln_oracle_softmax_forward(&p->args, numerics, &p->out), KILN_OK);
}

/* Bits of _i: log, scale, strides. */
START_TEST(forward_long_double)
{
    float scale = _i & 2 ? -0.75f : 0;
    softmax_problem *p = softmax_new(KILN_FLOAT64, N, _i & 1, scale, _i & 4);
    long double factor = scale != 0 ? (long double)scale : 1;
    run(p, &oracle_float_numerics);
    for (int64_t r = 0; r < ROWS; r++) {
        long double sum = 0;
        for (int64_t j = 0; j < N; j++)
            sum += expl(factor * oracle_get(p->x, r * N + j));
        ck_assert_double_eq_tol(p->out.lse.value[r], (double)logl(sum), 1e-13);
        for (int64_t j = 0; j < N; j++) {
            long double s = factor * oracle_get(p->x, r * N + j);
            ck_assert_double_eq_tol(p->out.y.value[r * N + j], (double)(_i & 1 ? s - logl(sum) : expl(s) / sum), 1e-13);
        }
    }
}
END_TEST

START_TEST(forward_bound_of_float)
{
    bool log = _i & 1;
    softmax_problem *p = softmax_new(KILN_FLOAT32, N, log, 0.3f, false);
    double most = 0;
    run(p, &oracle_float_numerics);
    for (int64_t r = 0; r < ROWS; r++) {
        float max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < N; j++)
            max = fmaxf(max, 0.3f * (float)oracle_get(p->x, r * N + j));
        for (int64_t j = 0; j < N; j++)
            sum += expf(0.3f * (float)oracle_get(p->x, r * N + j) - max);
        float lse = max + logf(sum);
        ck_assert(kiln_oracle_accepts(lse, p->out.lse.value[r], p->out.lse.bound[r]));
        for (int64_t j = 0; j < N; j++) {
            int64_t i = r * N + j;
            float s = 0.3f * (float)oracle_get(p->x, i), y = log ? s - lse : expf(s - max) / sum;
            ck_assert(kiln_oracle_accepts(y, p->out.y.value[i], p->out.y.bound[i]));
            ck_assert(p->out.y.bound[i] < 1e-5 * fabs(p->out.y.value[i]));
            most = fmax(most, fabs(y - p->out.y.value[i]) / p->out.y.bound[i]);
        }
    }
    ck_assert_msg(most > 0.05, "only %g of the bound is used", most);
}
END_TEST

/* (m, l) online, tile by tile, over a row that rises from tile to tile: each rise is one more exponential. */
START_TEST(rising_rows)
{
    enum { LENGTH = 1024, TILE = 4 };
    kiln_numerics numerics = oracle_float_numerics;
    numerics.tile = TILE;
    softmax_problem *p = softmax_new(KILN_FLOAT32, LENGTH, false, 0, false);
    for (int64_t i = 0; i < p->x->count; i++)
        oracle_put(p->x, i, (double)(i % LENGTH) * (_i ? -0.003 : 0.003));
    run(p, &numerics);
    float m = -INFINITY, l = 0;
    for (int64_t t = 0; t < LENGTH; t += TILE) {
        float before = m, part = 0;
        for (int64_t j = t; j < t + TILE; j++)
            m = fmaxf(m, (float)oracle_get(p->x, j));
        for (int64_t j = t; j < t + TILE; j++)
            part += expf((float)oracle_get(p->x, j) - m);
        l = l * (before == -INFINITY ? 0 : expf(before - m)) + part;
    }
    ck_assert(kiln_oracle_accepts(m + logf(l), p->out.lse.value[0], p->out.lse.bound[0]));
    ck_assert(p->out.lse.bound[0] < 1e-4);
    for (int64_t j = 0; j < LENGTH; j++)
        ck_assert(kiln_oracle_accepts(expf((float)oracle_get(p->x, j) - m) / l, p->out.y.value[j], p->out.y.bound[j]));
}
END_TEST

static void set_row(softmax_problem *p, const double *x)
{
    for (int64_t j = 0; j < p->x->shape[2]; j++)
        oracle_put(p->x, j, x[j]);
}

START_TEST(forward_closed_forms)
{
    softmax_problem *p = softmax_new(KILN_FLOAT32, 5, false, 0, false);
    set_row(p, (const double[]){8, 18, 28, 38, 48});
    run(p, &oracle_float_numerics);
    static const double right[5] = {4.248161e-18, 9.357198e-14, 2.061060e-9, 4.539787e-5, 0.99995460};
    for (int j = 0; j < 5; j++)
        ck_assert_double_eq_tol(p->out.y.value[j], right[j], right[j] * 1e-6);
    ck_assert_double_eq_tol(p->out.lse.value[0], 48.0000454, 1e-7);
    set_row(p, (const double[]){-249.87, -424.13, -460.29, 378.10, -292.61});
    run(p, &oracle_float_numerics);
    ck_assert(p->out.y.value[3] == 1 && kiln_oracle_accepts(0, p->out.y.value[0], p->out.y.bound[0]));

    for (int log = 0; log < 2; log++) {
        p->args.flags = log ? KILN_FLAG_LOG : 0;
        set_row(p, (const double[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY});
        run(p, &oracle_float_numerics);
        ck_assert(p->out.y.value[2] == (log ? -INFINITY : 0) && p->out.lse.value[0] == -INFINITY);
        set_row(p, (const double[]){0, -INFINITY, 0, -INFINITY, -INFINITY});
        run(p, &oracle_float_numerics);
        ck_assert_double_eq_tol(p->out.y.value[0], log ? -log2(2) * 0.69314718055994531 : 0.5, 1e-15);
        ck_assert(p->out.y.value[1] == (log ? -INFINITY : 0) && isfinite(p->out.y.bound[0]));
        for (int bad = 0; bad < 2; bad++) {
            set_row(p, (const double[]){0, bad ? NAN : INFINITY, 0, 0, -INFINITY});
            run(p, &oracle_float_numerics);
            ck_assert(isnan(p->out.y.value[0]) && isnan(p->out.y.value[4]) && isnan(p->out.lse.value[0]));
            ck_assert(isfinite(p->out.y.value[5])); /* the next row */
        }
    }
    p = softmax_new(KILN_FLOAT32, 0, false, 0, false);
    run(p, &oracle_float_numerics);
    ck_assert(p->out.lse.value[0] == -INFINITY);
    p = softmax_new(KILN_FLOAT32, 1000003, false, 0, false);
    for (int64_t j = 0; j < 1000003; j++)
        oracle_put(p->x, j, 0);
    p->args.x = &(kiln_tensor){.data = p->x->tensor.data,
                               .device = p->x->tensor.device,
                               .ndim = 1,
                               .dtype = p->x->tensor.dtype,
                               .shape = &p->x->shape[2]};
    run(p, &oracle_float_numerics);
    ck_assert_double_eq_tol(p->out.y.value[1000002], 1 / 1000003.0, 1e-18);
}
END_TEST

static double loss(softmax_problem *p, const oracle_tensor *dy)
{
    double sum = 0;
    run(p, &oracle_float_numerics);
    for (int64_t i = 0; i < dy->count; i++)
        sum += oracle_get(dy, i) * p->out.y.value[i];
    return sum;
}

START_TEST(backward_differences)
{
    const double h = 1e-4;
    float scale = _i & 2 ? -0.75f : 0;
    softmax_problem *p = softmax_new(KILN_FLOAT64, N, _i & 1, scale, _i & 4);
    oracle_tensor *dy = oracle_tensor_new(KILN_FLOAT64, 3, p->x->shape, _i & 4);
    oracle_tensor *dx = oracle_tensor_new(KILN_FLOAT64, 3, p->x->shape, _i & 4);
    kiln_oracle_output out = oracle_output(dx->count);
    for (int64_t i = 0; i < dy->count; i++)
        oracle_put(dy, i, oracle_random());
    run(p, &oracle_float_numerics);
    for (int64_t i = 0; i < dy->count; i++)
        oracle_put(p->y, i, p->out.y.value[i]);
    kiln_softmax_backward_args args = {.struct_size = sizeof args,
                                       .y = &p->y->tensor,
                                       .dy = &dy->tensor,
                                       .dx = &dx->tensor,
                                       .scale = scale,
                                       .flags = p->args.flags};
    ck_assert_int_eq(kiln_oracle_softmax_backward(&args, &oracle_float_numerics, &out), KILN_OK);
    for (int64_t i = 0; i < dx->count; i++) {
        double x = oracle_get(p->x, i);
        oracle_put(p->x, i, x + h);
        double above = loss(p, dy);
        oracle_put(p->x, i, x - h);
        double slope = (above - loss(p, dy)) / (2 * h);
        oracle_put(p->x, i, x);
        ck_assert_msg(fabs(slope - out.value[i]) < 1e-6, "dx[%d] %.12g, by differences %.12g", (int)i, out.value[i],
                      slope);
    }
}
END_TEST

START_TEST(backward_bound_of_float)
{
    bool log = _i & 1;
    softmax_problem *p = softmax_new(KILN_FLOAT32, N, log, 0, false);
    oracle_tensor *dy = oracle_tensor_new(KILN_FLOAT32, 3, p->x->shape, false);
    run(p, &oracle_float_numerics);
    for (int64_t i = 0; i < dy->count; i++) {
        oracle_put(dy, i, oracle_random());
        oracle_put(p->y, i, p->out.y.value[i]);
    }
    kiln_softmax_backward_args args = {.struct_size = sizeof args,
                                       .y = &p->y->tensor,
                                       .dy = &dy->tensor,
                                       .dx = &dy->tensor,
                                       .scale = 0.7f,
                                       .flags = p->args.flags};
    kiln_oracle_output out = oracle_output(dy->count);
    ck_assert_int_eq(kiln_oracle_softmax_backward(&args, &oracle_float_numerics, &out), KILN_OK);
    double most = 0;
    for (int64_t r = 0; r < ROWS; r++) {
        float sum = 0;
        for (int64_t i = r * N; i < (r + 1) * N; i++)
            sum += (log ? 1 : (float)oracle_get(p->y, i)) * (float)oracle_get(dy, i);
        for (int64_t i = r * N; i < (r + 1) * N; i++) {
            float y = (float)oracle_get(p->y, i), g = (float)oracle_get(dy, i);
            float dx = log ? 0.7f * (g - expf(y) * sum) : 0.7f * (y * (g - sum));
            ck_assert(kiln_oracle_accepts(dx, out.value[i], out.bound[i]));
            ck_assert(out.bound[i] < 5e-5);
            most = fmax(most, fabs(dx - out.value[i]) / out.bound[i]);
        }
    }
    ck_assert_msg(most > 0.05, "only %g of the bound is used", most);
}
END_TEST

/* ---- merge ---- */

typedef struct merge_problem {
    oracle_tensor *o[3], *lse[3], *out, *sinks;
    const kiln_tensor *o_parts[3], *lse_parts[3];
    kiln_attention_merge_args args;
    kiln_oracle_attention result;
} merge_problem;

static merge_problem *merge_new(int32_t type, int64_t rows, int64_t d_v, int32_t parts, bool packed)
{
    merge_problem *m = oracle_zeroed(sizeof *m);
    int64_t shape[4] = {1, 2, rows, d_v};
    oracle_seed((uint64_t)rows);
    for (int32_t i = 0; i < parts; i++) {
        m->o[i] = oracle_tensor_new(type, 4 - packed, shape + packed, i == 1);
        m->lse[i] = oracle_tensor_new(KILN_FLOAT32, 3 - packed, shape + packed, i == 2);
        for (int64_t n = 0; n < m->o[i]->count; n++)
            oracle_put(m->o[i], n, oracle_random());
        for (int64_t n = 0; n < m->lse[i]->count; n++)
            oracle_put(m->lse[i], n, oracle_random());
        m->o_parts[i] = &m->o[i]->tensor;
        m->lse_parts[i] = &m->lse[i]->tensor;
    }
    m->out = oracle_tensor_new(type, 4 - packed, shape + packed, false);
    m->args = (kiln_attention_merge_args){.struct_size = sizeof m->args,
                                          .o_parts = m->o_parts,
                                          .lse_parts = m->lse_parts,
                                          .o = &m->out->tensor,
                                          .num_parts = parts};
    m->result = (kiln_oracle_attention){oracle_output(2 * rows * d_v), oracle_output(2 * rows)};
    return m;
}

static void merge(merge_problem *m)
{
    ck_assert_int_eq(kiln_oracle_attention_merge(&m->args, &oracle_float_numerics, &m->result), KILN_OK);
}

START_TEST(merge_closed_forms)
{
    merge_problem *m = merge_new(KILN_FLOAT32, 1, 1, 2, false);
    oracle_put(m->o[0], 0, 0);
    oracle_put(m->lse[0], 0, log(2));
    oracle_put(m->o[1], 0, 1);
    oracle_put(m->lse[1], 0, log(8));
    merge(m);
    ck_assert_double_eq_tol(m->result.o.value[0], 0.8, 1e-7);
    ck_assert_double_eq_tol(m->result.lse.value[0], 2.30258509, 1e-7);

    for (int neutral = 0; neutral < 2; neutral++) { /* passed through exactly, whatever the neutral part holds */
        oracle_put(m->o[neutral], 0, NAN);
        oracle_put(m->lse[neutral], 0, -INFINITY);
        oracle_put(m->o[1 - neutral], 0, 2);
        oracle_put(m->lse[1 - neutral], 0, 0.5);
        merge(m);
        ck_assert(m->result.o.value[0] == 2 && m->result.o.bound[0] == 0);
        ck_assert(m->result.lse.value[0] == 0.5 && m->result.lse.bound[0] == 0);
    }
    oracle_put(m->lse[0], 0, -INFINITY);
    oracle_put(m->lse[1], 0, -INFINITY);
    merge(m);
    ck_assert(m->result.o.value[0] == 0 && m->result.lse.value[0] == -INFINITY);

    m->sinks = oracle_tensor_new(KILN_FLOAT32, 1, (int64_t[]){2}, false);
    oracle_put(m->sinks, 0, 0.25);
    oracle_put(m->sinks, 1, 0);
    m->args.sinks = &m->sinks->tensor;
    merge(m);
    ck_assert(m->result.o.value[0] == 0 && m->result.lse.value[0] == 0.25);
    oracle_put(m->o[1], 0, 6);
    oracle_put(m->lse[1], 0, 0.25);
    merge(m);
    ck_assert_double_eq_tol(m->result.o.value[0], 3, 1e-14);
}
END_TEST

START_TEST(merge_bound_of_float)
{
    merge_problem *m = merge_new(KILN_FLOAT32, 50, 3, 3, _i);
    double most = 0;
    merge(m);
    for (int64_t r = 0; r < 100; r++) {
        long double total = 0;
        float max = -INFINITY, sum = 0;
        for (int i = 0; i < 3; i++) {
            max = fmaxf(max, (float)oracle_get(m->lse[i], r));
            total += expl(oracle_get(m->lse[i], r));
        }
        for (int i = 0; i < 3; i++)
            sum += expf((float)oracle_get(m->lse[i], r) - max);
        ck_assert_double_eq_tol(m->result.lse.value[r], (double)logl(total), 1e-14);
        ck_assert(kiln_oracle_accepts(max + logf(sum), m->result.lse.value[r], m->result.lse.bound[r]));
        for (int64_t c = 3 * r; c < 3 * r + 3; c++) {
            long double exact = 0;
            float o = 0;
            for (int i = 0; i < 3; i++) {
                exact += expl(oracle_get(m->lse[i], r)) / total * oracle_get(m->o[i], c);
                o += expf((float)oracle_get(m->lse[i], r) - max) * (float)oracle_get(m->o[i], c);
            }
            o /= sum;
            ck_assert_double_eq_tol(m->result.o.value[c], (double)exact, 1e-14);
            ck_assert(kiln_oracle_accepts(o, m->result.o.value[c], m->result.o.bound[c]));
            ck_assert(m->result.o.bound[c] < 1e-5);
            most = fmax(most, fabs(o - m->result.o.value[c]) / m->result.o.bound[c]);
        }
    }
    ck_assert_msg(most > 0.05, "only %g of the bound is used", most);
}
END_TEST

START_TEST(merge_classes)
{
    static const struct {
        double lse[2], o[2], right, right_lse;
        bool may_be_nan;
    } row[] = {
        {{NAN, 0}, {1, 2}, NAN, NAN, false},
        {{INFINITY, 0}, {1, 2}, NAN, NAN, false},
        {{0, 0}, {1, NAN}, NAN, 0.69314718055994531, false},
        {{0, 0}, {1, -INFINITY}, -INFINITY, 0.69314718055994531, false},
        {{0, 200}, {INFINITY, 1}, INFINITY, 200, true},
        {{NAN, -INFINITY}, {1, 2}, NAN, NAN, false},
    };
    for (size_t n = 0; n < sizeof row / sizeof *row; n++) {
        merge_problem *m = merge_new(KILN_FLOAT32, 1, 1, 2, false);
        for (int i = 0; i < 2; i++) {
            oracle_put(m->lse[i], 0, row[n].lse[i]);
            oracle_put(m->o[i], 0, row[n].o[i]);
        }
        merge(m);
        double o = m->result.o.value[0], lse = m->result.lse.value[0];
        ck_assert(isnan(row[n].right) ? isnan(o) : o == row[n].right);
        ck_assert(isnan(row[n].right_lse) ? isnan(lse) : fabs(lse - row[n].right_lse) < 1e-14);
        ck_assert_int_eq(isinf(m->result.o.bound[0]) != 0, row[n].may_be_nan);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle_softmax");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, NULL, oracle_release);
    tcase_add_loop_test(tc, forward_long_double, 0, 8);
    tcase_add_loop_test(tc, forward_bound_of_float, 0, 2);
    tcase_add_loop_test(tc, rising_rows, 0, 2);
    tcase_add_test(tc, forward_closed_forms);
    tcase_add_loop_test(tc, backward_differences, 0, 8);
    tcase_add_loop_test(tc, backward_bound_of_float, 0, 2);
    tcase_add_test(tc, merge_closed_forms);
    tcase_add_loop_test(tc, merge_bound_of_float, 0, 2);
    tcase_add_test(tc, merge_classes);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
