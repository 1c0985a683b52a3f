/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_oracle_bounds.c: every term of the oracle's bounds on its own. Kernels that make one kind of error only, as large as
 * kiln_numerics lets them and in the worst direction: the error they reach must lie within the bound, and the bound within
 * four times that error. Tensors are fp64, so that nothing is left of the rounding of outputs.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "oracle_case.h"

enum { MAX_KEYS = 1000 };

/* One query, `keys` keys: s_j = scores[j] (NULL = 0), v_j = values[j], both in the first of d components. */
static oracle_problem *one_row(int64_t keys, int64_t d, const double *scores, const double *values)
{
    oracle_case c = {
        .batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = 1, .seqlen_k = keys, .d = d, .d_v = 1, .scale = 1};
    oracle_problem *p = oracle_problem_new(&c);
    for (int64_t e = 0; e < d; e++)
        oracle_put(p->q, e, e == 0);
    for (int64_t j = 0; j < keys; j++) {
        for (int64_t e = 0; e < d; e++)
            oracle_put(p->k, j * d + e, e == 0 && scores ? scores[j] : 0);
        oracle_put(p->v, j, values[j]);
    }
    return p;
}

typedef struct answer {
    double o, o_bound, lse, lse_bound;
} answer;

static answer ask(const oracle_problem *p, kiln_numerics numerics)
{
    answer a;
    kiln_oracle_attention out = {{&a.o, &a.o_bound}, {&a.lse, &a.lse_bound}};
    ck_assert_int_eq(kiln_oracle_attention_forward(&p->args, &numerics, &out), KILN_OK);
    return a;
}

static void within(const char *what, double error, double bound)
{
    ck_assert_msg(fabs(error) <= bound && bound <= 4 * fabs(error), "%s: error %g, bound %g", what, error, bound);
}

/* Two keys with weights off by factors a and b: the mean, and the logarithm of the sum. */
static double mean_of(const double *s, const double *v, double a, double b)
{
    return (exp(s[0]) * a * v[0] + exp(s[1]) * b * v[1]) / (exp(s[0]) * a + exp(s[1]) * b);
}

static const double two_scores[2] = {0.3, -0.2}, two_values[2] = {1, -1};

START_TEST(score_products)
{
    enum { D = 1000 };
    const double u = 0x1p-20, gamma = D * u / (1 - D * u);
    oracle_problem *p = one_row(2, D, two_scores, two_values);
    for (int64_t e = 0; e < D; e++) { /* Σ|q||k| = 2 for both keys, the sums are as before */
        oracle_put(p->q, e, e == 0 ? 1 : e % 2 ? 1 : -1);
        for (int64_t j = 0; j < 2; j++)
            oracle_put(p->k, j * D + e, e == 0 ? two_scores[j] : e > 2 ? 0 : 1 - fabs(two_scores[j]) / 2);
    }
    answer a = ask(p, (kiln_numerics){.unit = u});
    ck_assert_double_eq_tol(a.o, mean_of(two_scores, two_values, 1, 1), 1e-12);
    double d = 2 * gamma;
    within("o", mean_of(two_scores, two_values, exp(d), exp(-d)) - a.o, a.o_bound);
    within("lse", d, a.lse_bound);
}
END_TEST

START_TEST(score_roundings)
{
    enum { EXTRA = 500 };
    const double u = 0x1p-20, d = EXTRA * u / (1 - EXTRA * u);
    oracle_problem *p = one_row(2, 1, (const double[]){30, 30}, two_values); /* s and s - m have magnitude 30 */
    answer a = ask(p, (kiln_numerics){.unit = u, .score_extra = EXTRA});
    within("o", tanh(60 * d), a.o_bound);
    within("lse", 60 * d, a.lse_bound);
}
END_TEST

START_TEST(exponential)
{
    const double e = 1e-3;
    oracle_problem *p = one_row(2, 1, two_scores, two_values);
    answer a = ask(p, (kiln_numerics){.exp_error = e});
    within("o", mean_of(two_scores, two_values, 1 + e, 1 - e) - a.o, a.o_bound);
    within("lse", log(1 - e), a.lse_bound);
}
END_TEST

/* Each rise of the maximum from tile to tile is one more exponential: for the first key here there are four. */
START_TEST(rises_of_the_maximum)
{
    const double e = 1e-3, scores[4] = {0, 0.01, 0.02, 0.03}, values[4] = {1, -1, -1, -1};
    for (int backwards = 0; backwards < 2; backwards++) {
        double s[4], v[4], numerator = 0, sum = 0;
        for (int j = 0; j < 4; j++) {
            s[j] = scores[backwards ? 3 - j : j];
            v[j] = values[backwards ? 3 - j : j];
            double w = exp(scores[j]) * pow(j == 0 ? 1 + e : 1 - e, 4 - j);
            numerator += w * values[j];
            sum += w;
        }
        answer a = ask(one_row(4, 1, s, v), (kiln_numerics){.exp_error = e, .tile = 1});
        within("o", numerator / sum - a.o, a.o_bound);
    }
    /* The row's maximum comes first, but a kernel that splits the row after it still sees the others rise. */
    static const double split_scores[5] = {0.04, 0, 0.01, 0.02, 0.03}, split_values[5] = {-1, 1, -1, -1, -1};
    double numerator = 0, sum = 0;
    for (int j = 0; j < 5; j++) { /* key 1: its own exponential, three rises, the join */
        double w = exp(split_scores[j]) * pow(j == 1 ? 1 + e : 1 - e, j == 0 ? 1 : j == 1 ? 5 : 6 - j);
        numerator += w * split_values[j];
        sum += w;
    }
    answer split = ask(one_row(5, 1, split_scores, split_values), (kiln_numerics){.exp_error = e, .tile = 1});
    within("o", numerator / sum - split.o, split.o_bound);
    answer flat = ask(one_row(4, 1, NULL, values), (kiln_numerics){.exp_error = e, .tile = 1});
    ck_assert(flat.o_bound < 2.1 * e); /* no rise, no cost */
}
END_TEST

/* Sums of n positive numbers are off by gamma(n), n the depth: 1000 in one run, 20 + 50 by tiles of 20. */
START_TEST(depth_of_sums)
{
    const double u = 0x1p-20;
    double values[MAX_KEYS];
    for (int64_t j = 0; j < MAX_KEYS; j++)
        values[j] = j % 2 ? -1 : 1;
    for (int tiled = 0; tiled < 2; tiled++) {
        answer a = ask(one_row(MAX_KEYS, 1, NULL, values), (kiln_numerics){.unit = u, .tile = tiled ? 20 : 0});
        double depth = tiled ? 70 : 1000;
        within("o", depth * u, a.o_bound);
        within("lse", depth * u, a.lse_bound);
    }
    for (int64_t j = 0; j < MAX_KEYS; j++) /* where numerator and denominator err in opposite directions */
        values[j] = 1;
    answer a = ask(one_row(MAX_KEYS, 1, NULL, values), (kiln_numerics){.unit = u});
    within("o", (1 + 1000 * u) / (1 - 1000 * u) - 1, a.o_bound);
}
END_TEST

START_TEST(rounding_of_p)
{
    const double u = 0x1p-8;
    oracle_problem *p = one_row(2, 1, NULL, two_values);
    answer a = ask(p, (kiln_numerics){.p_unit = u});
    within("o", u, a.o_bound);
    ck_assert(a.lse_bound < 1e-12);                                      /* the sum is taken before */
    p = one_row(2, 1, (const double[]){0, -25}, (const double[]){0, 1}); /* below 2^-25: may be lost, and no more */
    a = ask(p, (kiln_numerics){.p_unit = 0x1p-11, .p_floor = 0x1p-25});
    within("o", a.o, a.o_bound);
    p = one_row(2, 1, (const double[]){0, -10}, (const double[]){0, 1}); /* above: an absolute error */
    a = ask(p, (kiln_numerics){.p_unit = 0, .p_floor = 0x1p-25});
    within("o", 0x1p-25 / (1 + exp(-10)), a.o_bound);
}
END_TEST

START_TEST(softcap)
{
    const double error = 1e-3;
    oracle_problem *p = one_row(2, 1, NULL, two_values);
    p->args.softcap = 5;
    answer a = ask(p, (kiln_numerics){.tanh_error = error});
    within("o", tanh(5 * error), a.o_bound);
    p = one_row(2, 1, (const double[]){500, 500}, two_values); /* saturated: errors of the product do not pass */
    p->args.softcap = 5;
    a = ask(p, (kiln_numerics){.unit = 0x1p-20});
    ck_assert(a.o_bound < 5e-6);
}
END_TEST

/* Bias and ALiBi take part in the roundings of the score. */
START_TEST(bias_and_alibi)
{
    enum { EXTRA = 500 };
    const double u = 0x1p-20, d = EXTRA * u / (1 - EXTRA * u);
    oracle_problem *p = one_row(2, 1, NULL, two_values);
    oracle_tensor *bias = oracle_tensor_new(KILN_FLOAT64, 4, (int64_t[]){1, 1, 1, 1}, false);
    oracle_put(bias, 0, 40);
    p->args.bias = &bias->tensor;
    within("bias", tanh(80 * d), ask(p, (kiln_numerics){.unit = u, .score_extra = EXTRA}).o_bound);
    p->args.bias = NULL;
    oracle_tensor *slope = oracle_tensor_new(KILN_FLOAT32, 1, (int64_t[]){1}, false);
    oracle_put(slope, 0, 1);
    p->args.alibi_slopes = &slope->tensor;
    p->args.k_start = 40;
    within("ALiBi", tanh(80 * d), ask(p, (kiln_numerics){.unit = u, .score_extra = EXTRA}).o_bound);
}
END_TEST

/* ---- backward: one query, two keys, o and lse exact ---- */

typedef struct gradient_answer {
    double dq, dq_bound, dk[2], dk_bound[2], dv[2], dv_bound[2];
    double g[2]; /* dp - D */
} gradient_answer;

static gradient_answer ask_gradients(oracle_problem *p, kiln_numerics numerics)
{
    gradient_answer a;
    answer f = ask(p, numerics);
    oracle_tensor *one = oracle_tensor_new(KILN_FLOAT64, 4, (int64_t[]){1, 1, 1, 1}, false);
    oracle_put(one, 0, 1);
    oracle_put(p->o, 0, f.o);
    oracle_put(p->lse, 0, f.lse);
    kiln_attention_backward_args args = {.struct_size = sizeof args,
                                         .forward = &p->args,
                                         .dout = &one->tensor,
                                         .dq = &p->q->tensor,
                                         .dk = &p->k->tensor,
                                         .dv = &p->v->tensor};
    kiln_oracle_gradients out = {.dq = {&a.dq, &a.dq_bound}, .dk = {a.dk, a.dk_bound}, .dv = {a.dv, a.dv_bound}};
    ck_assert_int_eq(kiln_oracle_attention_backward(&args, &numerics, &out), KILN_OK);
    for (int j = 0; j < 2; j++)
        a.g[j] = oracle_get(p->v, j) - f.o;
    return a;
}

START_TEST(gradients)
{
    const double u = 0x1p-10, e = 1e-3;
    /* p = a.dv because do = 1, and dk = ds because q = 1 */
    gradient_answer a = ask_gradients(one_row(2, 1, two_scores, two_values), (kiln_numerics){.exp_error = e});
    for (int j = 0; j < 2; j++) {
        within("dv, exp", a.dv[j] * e, a.dv_bound[j]);
        within("dk, exp", a.dk[j] * e, a.dk_bound[j]);
    }
    within("dq, exp", e * (fabs(a.dk[0] * two_scores[0]) + fabs(a.dk[1] * two_scores[1])), a.dq_bound);

    a = ask_gradients(one_row(2, 1, two_scores, two_values), (kiln_numerics){.p_unit = u});
    for (int j = 0; j < 2; j++) {
        within("dv, p", a.dv[j] * u, a.dv_bound[j]);
        within("dk, ds", a.dk[j] * u, a.dk_bound[j]);
    }
    within("dq, ds", u * (fabs(a.dk[0] * two_scores[0]) + fabs(a.dk[1] * two_scores[1])), a.dq_bound);

    /* where the 16-bit grid ends; the exponential has a floor of its own, so that only P and dS are lost */
    a = ask_gradients(one_row(2, 1, two_scores, two_values), (kiln_numerics){.p_unit = 0x1p-60, .p_floor = 1e-4});
    for (int j = 0; j < 2; j++) {
        within("dv, p floor", fmin(a.dv[j], 1e-4), a.dv_bound[j]);
        within("dk, ds floor", fmin(fabs(a.dk[j]), 1e-4), a.dk_bound[j]);
    }

    a = ask_gradients(one_row(2, 1, (const double[]){30, 30}, two_values),
                      (kiln_numerics){.unit = 0x1p-20, .score_extra = 500}); /* s and lse have magnitude 30 */
    for (int j = 0; j < 2; j++)
        within("dv, score", a.dv[j] * expm1(60 * 500 * 0x1p-20), a.dv_bound[j]);

    /* large v of one sign: dp - D cancels, and its terms' roundings remain */
    a = ask_gradients(one_row(2, 1, NULL, (const double[]){1000, 1001}), (kiln_numerics){.unit = 0x1p-20});
    for (int j = 0; j < 2; j++)
        within("dk, dp - D", 0.5 * 2000 * 2 * 0x1p-20, a.dk_bound[j]); /* product and subtraction of each */

    oracle_problem *p = one_row(2, 1, (const double[]){20, 21}, two_values);
    p->args.softcap = 5; /* saturated: only the error of 1 - tanh² is left */
    a = ask_gradients(p, (kiln_numerics){.tanh_error = 1e-3});
    for (int j = 0; j < 2; j++)
        within("dk, softcap", a.dv[j] * a.g[j] * 2e-3, a.dk_bound[j]);
}
END_TEST

/* dk and dv sum over the queries, dbias over its broadcast axes: their depth counts. */
START_TEST(depth_of_gradients)
{
    enum { QUERIES = 600 };
    oracle_case c = {.batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = QUERIES, .seqlen_k = 2, .d = 1, .scale = 1};
    for (int tiled = 0; tiled < 2; tiled++) {
        oracle_problem *p = oracle_problem_new(&c);
        oracle_tensor *one = oracle_tensor_new(KILN_FLOAT64, 4, p->o->shape, false);
        oracle_tensor *bias = oracle_tensor_new(KILN_FLOAT64, 4, (int64_t[]){1, 1, 1, 2}, false);
        for (int64_t i = 0; i < QUERIES; i++) { /* p = 1/2, D = 0, ds = ±1/2 */
            oracle_put(p->q, i, i % 2 ? 1e-9 : -1e-9);
            oracle_put(p->o, i, 0);
            oracle_put(p->lse, i, log(2));
            oracle_put(one, i, 1);
        }
        for (int64_t j = 0; j < 2; j++) {
            oracle_put(p->k, j, 0);
            oracle_put(p->v, j, j ? 1 : -1);
            oracle_put(bias, j, 0);
        }
        p->args.bias = &bias->tensor;
        kiln_attention_backward_args args = {.struct_size = sizeof args,
                                             .forward = &p->args,
                                             .dout = &one->tensor,
                                             .dq = &p->q->tensor,
                                             .dk = &p->k->tensor,
                                             .dv = &p->v->tensor,
                                             .dbias = &bias->tensor};
        kiln_oracle_gradients out = {.dk = oracle_output(2), .dv = oracle_output(2), .dbias = oracle_output(2)};
        kiln_numerics numerics = {.unit = 0x1p-20, .tile = tiled ? 20 : 0};
        ck_assert_int_eq(kiln_oracle_attention_backward(&args, &numerics, &out), KILN_OK);
        double depth = tiled ? 50 : QUERIES;
        for (int j = 0; j < 2; j++) {
            within("dv", depth * 0x1p-20 * QUERIES / 2, out.dv.bound[j]);
            within("dbias", depth * 0x1p-20 * QUERIES / 2, out.dbias.bound[j]);
            within("dk", depth * 0x1p-20 * QUERIES / 2 * 1e-9, out.dk.bound[j]); /* Σ|ds||q|, although the sum is 0 */
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle_bounds");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, NULL, oracle_release);
    tcase_add_test(tc, score_products);
    tcase_add_test(tc, score_roundings);
    tcase_add_test(tc, exponential);
    tcase_add_test(tc, rises_of_the_maximum);
    tcase_add_test(tc, depth_of_sums);
    tcase_add_test(tc, rounding_of_p);
    tcase_add_test(tc, softcap);
    tcase_add_test(tc, bias_and_alibi);
    tcase_add_test(tc, gradients);
    tcase_add_test(tc, depth_of_gradients);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
