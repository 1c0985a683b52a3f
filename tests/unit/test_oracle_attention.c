/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_oracle_attention.c: the oracle's attention forward against a second writing of the formulas in long double, closed
 * forms, invariants and the classes of NaN and Inf; its bounds against the same formulas in float: they must hold for
 * every element, and not by far.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_case.h"

static kiln_oracle_attention forward(const oracle_problem *p, const kiln_numerics *numerics)
{
    kiln_oracle_attention out = {oracle_output(p->o->count), oracle_output(p->lse->count)};
    ck_assert_int_eq(kiln_oracle_attention_forward(&p->args, numerics, &out), KILN_OK);
    return out;
}

/* Rows of some sequence; the others must be marked untouched. */
static bool *owned_rows(const oracle_problem *p)
{
    bool *owned = oracle_zeroed((size_t)p->lse->count);
    for (int64_t b = 0; b < p->c.batch; b++)
        for (int64_t h = 0; h < p->c.heads; h++)
            for (int64_t i = 0; i < p->len_q[b]; i++)
                owned[oracle_q_row(p, b, h, i)] = true;
    return owned;
}

static void expect_close(const char *name, double got, double right)
{
    if (isinf(right) || isinf(got))
        ck_assert_msg(got == right, "%s: %g, right %g", name, got, right);
    else
        ck_assert_msg(fabs(got - right) <= 1e-13 * (1 + fabs(right)), "%s: %.17g, right %.17g", name, got, right);
}

START_TEST(long_double)
{
    oracle_problem *p = oracle_problem_new(&oracle_cases[_i]);
    kiln_oracle_attention out = forward(p, &oracle_float_numerics);
    bool *owned = owned_rows(p);
    long double o[8], lse;
    for (int64_t b = 0; b < p->c.batch; b++) {
        for (int64_t h = 0; h < p->c.heads; h++) {
            for (int64_t i = 0; i < p->len_q[b]; i++) {
                int64_t row = oracle_q_row(p, b, h, i);
                oracle_row_exact(p, b, h, i, o, &lse);
                expect_close(p->c.name, out.lse.value[row], (double)lse);
                for (int64_t e = 0; e < p->c.d_v; e++)
                    expect_close(p->c.name, out.o.value[row * p->c.d_v + e], (double)o[e]);
            }
        }
    }
    for (int64_t row = 0; row < p->lse->count; row++) {
        ck_assert_int_eq(kiln_oracle_untouched(out.lse.value[row], out.lse.bound[row]), !owned[row]);
        for (int64_t e = 0; e < p->c.d_v; e++) {
            int64_t n = row * p->c.d_v + e;
            ck_assert_int_eq(kiln_oracle_untouched(out.o.value[n], out.o.bound[n]), !owned[row]);
        }
    }
}
END_TEST

/* Largest error over bound, the rounding of the output left out: |float - exact| / (bound - half an ulp). */
static double used_share(double got, double value, double bound)
{
    double rest = bound - fabs(got) * 0x1p-24;
    return rest > 0 ? fabs(got - value) / rest : 0;
}

START_TEST(bound_of_float)
{
    oracle_case c = oracle_cases[_i];
    c.type = KILN_FLOAT32;
    oracle_problem *p = oracle_problem_new(&c);
    kiln_oracle_attention out = forward(p, &oracle_float_numerics);
    double most = 0, loosest = 0;
    float o[8], lse;
    for (int64_t b = 0; b < c.batch; b++) {
        for (int64_t h = 0; h < c.heads; h++) {
            for (int64_t i = 0; i < p->len_q[b]; i++) {
                int64_t row = oracle_q_row(p, b, h, i);
                oracle_row_float(p, b, h, i, o, &lse);
                ck_assert_msg(kiln_oracle_accepts(lse, out.lse.value[row], out.lse.bound[row]),
                              "%s: lse %.9g, right %.9g, bound %g", c.name, (double)lse, out.lse.value[row],
                              out.lse.bound[row]);
                for (int64_t e = 0; e < p->c.d_v; e++) {
                    int64_t n = row * p->c.d_v + e;
                    ck_assert_msg(kiln_oracle_accepts(o[e], out.o.value[n], out.o.bound[n]),
                                  "%s: o %.9g, right %.9g, bound %g", c.name, (double)o[e], out.o.value[n],
                                  out.o.bound[n]);
                    most = fmax(most, used_share(o[e], out.o.value[n], out.o.bound[n]));
                    loosest = fmax(loosest, out.o.bound[n]);
                }
            }
        }
    }
    /* Values of order 1 and rows of at most 21 keys: a bound that is loose by an order would show. */
    ck_assert_msg(loosest < 4e-5, "%s: bound %g", c.name, loosest);
    ck_assert_msg(most > 0.02 || p->len_k[0] == 0 || loosest < 1e-40, "%s: only %g of the bound is used", c.name, most);
}
END_TEST

/* ---- closed forms ---- */

/* One head of fp64: q = 0 unless given, scale 1. */
typedef struct closed_form {
    kiln_attention_forward_args args;
    oracle_tensor *q, *k, *v, *o, *lse;
    double o_value[512], o_bound[512], lse_value[64], lse_bound[64];
} closed_form;

static closed_form *closed(int64_t seqlen_q, int64_t seqlen_k, const double *q, const double *k, const double *v)
{
    closed_form *f = oracle_zeroed(sizeof *f);
    int64_t q_shape[4] = {1, 1, seqlen_q, 1}, k_shape[4] = {1, 1, seqlen_k, 1};
    f->q = oracle_tensor_new(KILN_FLOAT64, 4, q_shape, false);
    f->k = oracle_tensor_new(KILN_FLOAT64, 4, k_shape, false);
    f->v = oracle_tensor_new(KILN_FLOAT64, 4, k_shape, false);
    f->o = oracle_tensor_new(KILN_FLOAT32, 4, q_shape, false);
    for (int64_t i = 0; i < seqlen_q; i++)
        oracle_put(f->q, i, q ? q[i] : 0);
    for (int64_t j = 0; j < seqlen_k; j++) {
        oracle_put(f->k, j, k ? k[j] : 1);
        oracle_put(f->v, j, v ? v[j] : 1);
    }
    f->args = (kiln_attention_forward_args){.struct_size = sizeof f->args,
                                            .q = &f->q->tensor,
                                            .k = &f->k->tensor,
                                            .v = &f->v->tensor,
                                            .o = &f->o->tensor,
                                            .softmax_scale = 1};
    return f;
}

static void run(closed_form *f)
{
    kiln_oracle_attention out = {{f->o_value, f->o_bound}, {f->lse_value, f->lse_bound}};
    ck_assert_int_eq(kiln_oracle_attention_forward(&f->args, &oracle_float_numerics, &out), KILN_OK);
}

static void expect(const double *got, int64_t n, const double *right, double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        bool same = isnan(right[i]) ? isnan(got[i]) : got[i] == right[i];
        ck_assert_msg(same || fabs(got[i] - right[i]) <= tolerance, "[%d] is %.17g, right %.17g", (int)i, got[i],
                      right[i]);
    }
}

#define LIST(...)           ((const double[]){__VA_ARGS__})
#define EXPECT_O(f, n, ...) expect((f)->o_value, n, LIST(__VA_ARGS__), 6e-8)
#define EXPECT_L(f, n, ...) expect((f)->lse_value, n, LIST(__VA_ARGS__), 6e-7)

static void keep(closed_form *f, int64_t rows, int64_t columns, const double *visible)
{
    oracle_tensor *mask = oracle_tensor_new(KILN_UINT8, 4, (int64_t[]){1, 1, rows, columns}, false);
    for (int64_t i = 0; i < rows * columns; i++)
        oracle_put(mask, i, visible[i]);
    f->args.attn_mask = &mask->tensor;
}

static void add_bias(closed_form *f, int64_t columns, const double *values)
{
    oracle_tensor *bias = oracle_tensor_new(KILN_FLOAT32, 4, (int64_t[]){1, 1, 1, columns}, false);
    for (int64_t i = 0; i < columns; i++)
        oracle_put(bias, i, values[i]);
    f->args.bias = &bias->tensor;
}

static void add_sink(closed_form *f, double value)
{
    oracle_tensor *sinks = oracle_tensor_new(KILN_FLOAT32, 1, (int64_t[]){1}, false);
    oracle_put(sinks, 0, value);
    f->args.sinks = &sinks->tensor;
}

START_TEST(mask_alignment)
{
    closed_form *f = closed(2, 5, NULL, NULL, LIST(1, 2, 4, 8, 16));
    f->args.mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT;
    run(f);
    EXPECT_O(f, 2, 3.75, 6.2);
    EXPECT_L(f, 2, 1.386294, 1.609438);
    f->args.mask = KILN_MASK_CAUSAL_TOP_LEFT;
    run(f);
    EXPECT_O(f, 2, 1, 1.5);
    EXPECT_L(f, 2, 0, 0.693147);

    f = closed(4, 4, NULL, NULL, LIST(1, 2, 4, 8));
    f->args.mask = KILN_MASK_WINDOW_TOP_LEFT;
    f->args.window_left = 1;
    run(f);
    EXPECT_O(f, 4, 1, 1.5, 3, 6);
    f->args.mask = KILN_MASK_WINDOW_BOTTOM_RIGHT;
    f->args.window_left = KILN_UNBOUNDED;
    f->args.window_right = -1;
    run(f);
    EXPECT_O(f, 4, 0, 1, 1.5, 7.0 / 3);
    EXPECT_L(f, 1, -INFINITY);

    f = closed(5, 2, NULL, NULL, LIST(2, 6));
    f->args.mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT;
    run(f);
    EXPECT_O(f, 5, 0, 0, 0, 2, 4);
    EXPECT_L(f, 5, -INFINITY, -INFINITY, -INFINITY, 0, 0.693147);
    ck_assert(f->o_bound[0] <= 0x1p-150 && f->lse_bound[0] == 0);

    f = closed(1, 3, NULL, NULL, LIST(1, 2, 4));
    keep(f, 1, 3, LIST(1, 0, 1));
    run(f);
    EXPECT_O(f, 1, 2.5);
    f = closed(2, 2, NULL, NULL, LIST(3, 5));
    keep(f, 2, 2, LIST(1, 0, 0, 0));
    run(f);
    EXPECT_O(f, 2, 3, 0);
    EXPECT_L(f, 2, 0, -INFINITY);
    f = closed(1, 4, NULL, NULL, LIST(1, 2, 4, 8)); /* covers the last two keys only */
    keep(f, 1, 2, LIST(0, 1));
    run(f);
    EXPECT_O(f, 1, 11.0 / 3);
}
END_TEST

START_TEST(scores_in_closed_form)
{
    closed_form *f = closed(1, 2, NULL, NULL, LIST(0, 1));
    f->args.softmax_scale = 0.125f;
    add_bias(f, 2, LIST(0, 8));
    run(f);
    EXPECT_O(f, 1, 0.99966465);
    EXPECT_L(f, 1, 8.00033541);

    f = closed(1, 2, LIST(1), LIST(0, 10), LIST(0, 1));
    f->args.softcap = 5;
    run(f);
    EXPECT_O(f, 1, 0.99199886);
    EXPECT_L(f, 1, 4.82817122);

    f = closed(1, 2, NULL, NULL, LIST(0, 1));
    f->args.softcap = 1;
    keep(f, 1, 2, LIST(1, 0));
    run(f);
    EXPECT_O(f, 1, 0);

    f = closed(1, 3, NULL, NULL, LIST(1, 2, 4)); /* query at position 2 */
    oracle_tensor *slope = oracle_tensor_new(KILN_FLOAT32, 1, (int64_t[]){1}, false);
    oracle_put(slope, 0, 0.5);
    f->args.alibi_slopes = &slope->tensor;
    run(f);
    EXPECT_O(f, 1, 2.82663706);

    f = closed(1, 2, NULL, NULL, LIST(1, 3)); /* the mask value swallows nothing here: equal scores */
    add_bias(f, 2, LIST(-3.4028234663852886e38, -3.4028234663852886e38));
    run(f);
    EXPECT_O(f, 1, 2);
    ck_assert(f->o_bound[0] < 6); /* a mean cannot leave the range of v, however little is known of the weights */

    f = closed(1, 3, NULL, NULL, LIST(1, 3, 100)); /* a finite "minus infinity" costs the others no accuracy */
    add_bias(f, 3, LIST(0, 0, -1e30));
    run(f);
    EXPECT_O(f, 1, 2);
    ck_assert(f->o_bound[0] < 3e-6);

    f = closed(1, 5, LIST(1), LIST(8, 18, 28, 38, 48), NULL);
    run(f);
    EXPECT_L(f, 1, 48.0000454);

    f = closed(1, 2, NULL, NULL, LIST(4, 8));
    add_sink(f, log(2));
    run(f);
    EXPECT_O(f, 1, 3);
    EXPECT_L(f, 1, log(4));
    f->args.mask = KILN_MASK_WINDOW_TOP_LEFT; /* nothing visible: the sink alone */
    f->args.window_right = -1;
    run(f);
    EXPECT_O(f, 1, 0);
    EXPECT_L(f, 1, log(2));

    f = closed(1, 0, NULL, NULL, NULL);
    run(f);
    EXPECT_O(f, 1, 0);
    EXPECT_L(f, 1, -INFINITY);

    f = closed(1, 2, LIST(1), LIST(2, 2), LIST(5, 7)); /* an explicit scale of 0 is 0 */
    f->args.softmax_scale = 0;
    f->args.flags = KILN_FLAG_SCALE_EXPLICIT;
    run(f);
    EXPECT_L(f, 1, log(2));
}
END_TEST

START_TEST(tails)
{
    for (int64_t n = 1; n <= 260; n++) {
        closed_form *f = closed(1, n, NULL, NULL, NULL);
        run(f);
        EXPECT_O(f, 1, 1);
        EXPECT_L(f, 1, log((double)n));
    }
}
END_TEST

/* ---- classes ---- */

START_TEST(hidden_keys_have_no_influence)
{
    static const double poison[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        closed_form *f = closed(1, 2, LIST(1), LIST(0, poison[i]), LIST(3, poison[i]));
        keep(f, 1, 2, LIST(1, 0));
        run(f);
        EXPECT_O(f, 1, 3);
        EXPECT_L(f, 1, 0);
        ck_assert(f->o_bound[0] < 1e-5);
        f->args.attn_mask = NULL;
        add_bias(f, 2, LIST(0, -INFINITY)); /* so does -inf in the bias */
        run(f);
        EXPECT_O(f, 1, 3);
        f->args.bias = NULL;
        f->args.mask = KILN_MASK_CAUSAL_TOP_LEFT;
        run(f);
        EXPECT_O(f, 1, 3);
    }
}
END_TEST

START_TEST(visible_nan_and_inf)
{
    static const struct {
        double q, k[2], v[2], o, lse;
        bool may_be_nan;
    } row[] = {
        {1, {0, NAN}, {3, 4}, NAN, NAN, false},
        {1, {0, INFINITY}, {3, 4}, NAN, NAN, false},  /* exp(inf - inf) */
        {1, {0, -INFINITY}, {3, 4}, 3, 0, false},     /* a score of -inf has weight 0 */
        {1, {0, -INFINITY}, {3, NAN}, NAN, 0, false}, /* but 0·NaN is NaN */
        {1, {-INFINITY, -INFINITY}, {3, 4}, 0, -INFINITY, false},
        {1, {0, 0}, {3, NAN}, NAN, 0.693147, false},
        {1, {0, 0}, {3, INFINITY}, INFINITY, 0.693147, false},
        {1, {0, 0}, {-INFINITY, INFINITY}, NAN, 0.693147, false},
        {1, {0, -87}, {3, -INFINITY}, -INFINITY, 0, false}, /* e^-87 > 2^-126 */
        {1, {0, -88}, {3, -INFINITY}, -INFINITY, 0, true},
        {1, {0, -5000}, {3, INFINITY}, INFINITY, 0, true}, /* positive in exact arithmetic, 0 in fp64 */
        {1e30, {1e10, 0}, {3, 4}, NAN, NAN, false},        /* a product beyond fp32 */
        {1e30, {-1e10, 0}, {3, 4}, 4, 0, false},
        {NAN, {1, 2}, {3, 4}, NAN, NAN, false},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        closed_form *f = closed(1, 2, &row[i].q, row[i].k, row[i].v);
        run(f);
        EXPECT_O(f, 1, row[i].o);
        EXPECT_L(f, 1, row[i].lse);
        ck_assert_int_eq(isinf(f->o_bound[0]) != 0, row[i].may_be_nan);
    }
    closed_form *f = closed(1, 2, NULL, NULL, LIST(3, 4));
    add_sink(f, NAN);
    run(f);
    EXPECT_O(f, 1, NAN);
    add_sink(f, -INFINITY);
    run(f);
    EXPECT_O(f, 1, 3.5);
}
END_TEST

/* A dropped key stays visible: its NaN shows. */
START_TEST(dropped_keys_stay_visible)
{
    closed_form *f = closed(1, 64, NULL, NULL, NULL);
    f->args.dropout_p = 0.999f; /* everything is dropped */
    run(f);
    EXPECT_O(f, 1, 0);
    EXPECT_L(f, 1, log(64));
    oracle_put(f->v, 3, NAN);
    run(f);
    EXPECT_O(f, 1, NAN);
}
END_TEST

/* ---- invariants ---- */

/* V constant: O is that constant, whatever the scores. */
START_TEST(constant_values)
{
    oracle_case c = oracle_cases[_i];
    if (c.dropout_p > 0 || c.sinks)
        return;
    oracle_problem *p = oracle_problem_new(&c);
    for (int64_t i = 0; i < p->v->count; i++)
        oracle_put(p->v, i, 2.5);
    kiln_oracle_attention out = forward(p, &oracle_float_numerics);
    for (int64_t i = 0; i < p->o->count; i++) {
        if (!kiln_oracle_untouched(out.o.value[i], out.o.bound[i]))
            ck_assert_double_eq_tol(out.o.value[i], out.lse.value[i / p->c.d_v] == -INFINITY ? 0 : 2.5, 1e-14);
    }
}
END_TEST

static void swap_rows(oracle_tensor *t, int64_t width, int64_t a, int64_t b)
{
    for (int64_t c = 0; c < width; c++) {
        double x = oracle_get(t, a * width + c);
        oracle_put(t, a * width + c, oracle_get(t, b * width + c));
        oracle_put(t, b * width + c, x);
    }
}

START_TEST(permuted_keys)
{
    oracle_case c = {.batch = 2, .heads = 4, .heads_k = 2, .seqlen_q = 5, .seqlen_k = 9, .d = 3, .softcap = 3};
    oracle_problem *p = oracle_problem_new(&c);
    kiln_oracle_attention before = forward(p, &oracle_float_numerics);
    for (int64_t row = 0; row < 4; row++) {
        for (int64_t j = 0; j < 4; j++) {
            swap_rows(p->k, c.d, row * 9 + j, row * 9 + 8 - j);
            swap_rows(p->v, c.d, row * 9 + j, row * 9 + 8 - j);
        }
    }
    kiln_oracle_attention after = forward(p, &oracle_float_numerics);
    for (int64_t i = 0; i < p->o->count; i++)
        ck_assert_double_eq_tol(before.o.value[i], after.o.value[i], 1e-14);
    for (int64_t i = 0; i < p->lse->count; i++)
        ck_assert_double_eq_tol(before.lse.value[i], after.lse.value[i], 1e-14);
}
END_TEST

/* Keys cut in three, with positions so that each shard knows where it is; merged: the whole. The sink joins at the merge. */
START_TEST(split_is_merge_of_parts)
{
    oracle_case c = {.batch = 1,
                     .heads = 2,
                     .heads_k = 1,
                     .seqlen_q = 10,
                     .seqlen_k = 10,
                     .d = 2,
                     .sinks = true,
                     .alibi = 1,
                     .mask = KILN_MASK_CAUSAL_TOP_LEFT};
    oracle_problem *p = oracle_problem_new(&c);
    kiln_oracle_attention whole = forward(p, &oracle_float_numerics);
    static const int64_t cut[4] = {0, 3, 4, 10};
    oracle_tensor *o[3], *lse[3];
    const kiln_tensor *o_parts[3], *lse_parts[3];
    for (int s = 0; s < 3; s++) {
        int64_t keys[4] = {1, 1, cut[s + 1] - cut[s], c.d}, strides[4] = {0, 0, c.d, 1};
        kiln_tensor k = kiln_tensor_make(p->k->tensor.device, (double *)p->k->tensor.data + cut[s] * c.d, KILN_FLOAT64,
                                         4, keys, strides);
        kiln_tensor v = kiln_tensor_make(p->v->tensor.device, (double *)p->v->tensor.data + cut[s] * c.d, KILN_FLOAT64,
                                         4, keys, strides);
        kiln_attention_forward_args args = p->args;
        args.k = &k;
        args.v = &v;
        args.sinks = NULL;
        args.k_start = cut[s];
        kiln_oracle_attention out = {oracle_output(p->o->count), oracle_output(p->lse->count)};
        ck_assert_int_eq(kiln_oracle_attention_forward(&args, &oracle_float_numerics, &out), KILN_OK);
        o[s] = oracle_tensor_new(KILN_FLOAT64, 4, p->o->shape, s == 1);
        lse[s] = oracle_tensor_new(KILN_FLOAT64, 3, p->lse->shape, s == 2);
        for (int64_t i = 0; i < p->o->count; i++)
            oracle_put(o[s], i, out.o.value[i]);
        for (int64_t i = 0; i < p->lse->count; i++)
            oracle_put(lse[s], i, out.lse.value[i]);
        o_parts[s] = &o[s]->tensor;
        lse_parts[s] = &lse[s]->tensor;
    }
    kiln_attention_merge_args args = {.struct_size = sizeof args,
                                      .o_parts = o_parts,
                                      .lse_parts = lse_parts,
                                      .o = &p->o->tensor,
                                      .softmax_lse = &p->lse->tensor,
                                      .sinks = &p->sinks->tensor,
                                      .num_parts = 3};
    kiln_oracle_attention merged = {oracle_output(p->o->count), oracle_output(p->lse->count)};
    ck_assert_int_eq(kiln_oracle_attention_merge(&args, &oracle_float_numerics, &merged), KILN_OK);
    for (int64_t i = 0; i < p->o->count; i++)
        ck_assert_double_eq_tol(whole.o.value[i], merged.o.value[i], 1e-14);
    for (int64_t i = 0; i < p->lse->count; i++)
        ck_assert_double_eq_tol(whole.lse.value[i], merged.lse.value[i], 1e-14);
}
END_TEST

/* Any range of rows gives what the whole call gives there, and leaves the rest alone. */
START_TEST(row_ranges)
{
    oracle_problem *p = oracle_problem_new(&oracle_cases[_i]);
    kiln_oracle_attention whole = forward(p, &oracle_float_numerics);
    for (int64_t begin = 0; begin < p->lse->count; begin += 3) {
        int64_t end = begin + 5 < p->lse->count ? begin + 5 : p->lse->count, d_v = p->c.d_v;
        kiln_oracle_attention part = {oracle_output(p->o->count), oracle_output(p->lse->count)};
        ck_assert_int_eq(kiln_oracle_attention_forward_rows(&p->args, &oracle_float_numerics, begin, end, &part),
                         KILN_OK);
        for (int64_t row = 0; row < p->lse->count; row++) {
            static const double zero[8];
            bool inside = row >= begin && row < end;
            ck_assert_mem_eq(&part.lse.value[row], inside ? &whole.lse.value[row] : zero, sizeof(double));
            ck_assert_mem_eq(&part.lse.bound[row], inside ? &whole.lse.bound[row] : zero, sizeof(double));
            ck_assert_mem_eq(&part.o.value[row * d_v], inside ? &whole.o.value[row * d_v] : zero,
                             (size_t)d_v * sizeof(double));
        }
    }
}
END_TEST

START_TEST(deferred_features_are_refused)
{
    oracle_problem *p = oracle_problem_new(&oracle_cases[0]);
    p->args.k_descale = &p->lse->tensor;
    kiln_oracle_attention out = {{NULL, NULL}, {NULL, NULL}};
    ck_assert_int_eq(kiln_oracle_attention_forward(&p->args, &oracle_float_numerics, &out), KILN_UNSUPPORTED);
}
END_TEST

/* One key of many carries the value; the bound must stay far below what losing the key would change. */
START_TEST(needle)
{
    int64_t n = 131072;
    int64_t q[4] = {1, 1, 1, 1}, k[4] = {1, 1, n, 1};
    oracle_tensor *q_tensor = oracle_tensor_new(KILN_FLOAT32, 4, q, false),
                  *k_tensor = oracle_tensor_new(KILN_FLOAT32, 4, k, false);
    oracle_tensor *v_tensor = oracle_tensor_new(KILN_FLOAT32, 4, k, false);
    oracle_put(q_tensor, 0, 0);
    for (int64_t j = 0; j < n; j++) {
        oracle_put(k_tensor, j, 1);
        oracle_put(v_tensor, j, j == 77777);
    }
    kiln_attention_forward_args args = {.struct_size = sizeof args,
                                        .q = &q_tensor->tensor,
                                        .k = &k_tensor->tensor,
                                        .v = &v_tensor->tensor,
                                        .o = &q_tensor->tensor};
    kiln_numerics numerics = oracle_float_numerics;
    numerics.tile = 64;
    double value, bound;
    kiln_oracle_attention out = {{&value, &bound}, {NULL, NULL}};
    ck_assert_int_eq(kiln_oracle_attention_forward(&args, &numerics, &out), KILN_OK);
    ck_assert_double_eq_tol(value, 1.0 / (double)n, 1e-18);
    ck_assert(bound < 3e-4 * value);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle_attention");
    TCase *tc = tcase_create("all");
    int cases = 0;
    while (oracle_cases[cases].name)
        cases++;
    tcase_add_checked_fixture(tc, NULL, oracle_release);
    tcase_add_loop_test(tc, long_double, 0, cases);
    tcase_add_loop_test(tc, bound_of_float, 0, cases);
    tcase_add_test(tc, mask_alignment);
    tcase_add_test(tc, scores_in_closed_form);
    tcase_add_test(tc, tails);
    tcase_add_test(tc, hidden_keys_have_no_influence);
    tcase_add_test(tc, visible_nan_and_inf);
    tcase_add_test(tc, dropped_keys_stay_visible);
    tcase_add_loop_test(tc, constant_values, 0, cases);
    tcase_add_test(tc, permuted_keys);
    tcase_add_test(tc, split_is_merge_of_parts);
    tcase_add_loop_test(tc, row_ranges, 0, cases);
    tcase_add_test(tc, deferred_features_are_refused);
    tcase_add_test(tc, needle);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
