/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_oracle_gradients.c: the oracle's attention backward against central differences of its forward (fp64 tensors, every
 * gradient of every case), against the formulas written down again in float (the bounds must hold, and not by far), and
 * in closed form; ACCUMULATE, untouched rows, hidden NaN.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_case.h"

/* A forward problem with its gradients. Tensors and outputs of absent operands are NULL. */
typedef struct backward_problem {
    oracle_problem *p;
    kiln_attention_backward_args args;
    oracle_tensor *dout, *dlse, *dq, *dk, *dv, *dq2, *dk2, *dbias, *dsinks;
    kiln_oracle_gradients out;
} backward_problem;

static oracle_tensor *gradient_of(const oracle_tensor *t, int32_t type, bool strided, kiln_oracle_output *out)
{
    if (!t)
        return NULL;
    *out = oracle_output(t->count);
    return oracle_tensor_new(type, t->tensor.ndim, t->shape, strided);
}

static oracle_tensor *random_like(const oracle_tensor *t, int32_t type, bool strided)
{
    oracle_tensor *r = oracle_tensor_new(type, t->tensor.ndim, t->shape, strided);
    for (int64_t i = 0; i < r->count; i++)
        oracle_put(r, i, oracle_random());
    return r;
}

/* o and lse as a forward call would leave them. */
static void fill_forward(oracle_problem *p)
{
    kiln_oracle_attention out = {oracle_output(p->o->count), oracle_output(p->lse->count)};
    ck_assert_int_eq(kiln_oracle_attention_forward(&p->args, &oracle_float_numerics, &out), KILN_OK);
    for (int64_t i = 0; i < p->o->count; i++)
        oracle_put(p->o, i, out.o.value[i]);
    for (int64_t i = 0; i < p->lse->count; i++)
        oracle_put(p->lse, i, out.lse.value[i]);
}

static backward_problem *backward_new(const oracle_case *c)
{
    backward_problem *b = oracle_zeroed(sizeof *b);
    oracle_problem *p = b->p = oracle_problem_new(c);
    int32_t type = p->c.type;
    bool strided = c->strided;
    fill_forward(p);
    b->dout = random_like(p->o, type, strided);
    b->dlse = c->dlse ? random_like(p->lse, type, strided) : NULL;
    b->dq = gradient_of(p->q, type, strided, &b->out.dq);
    b->dk = gradient_of(p->k, type, strided, &b->out.dk);
    b->dv = gradient_of(p->v, type, strided, &b->out.dv);
    b->dq2 = gradient_of(p->q2, type, strided, &b->out.dq2);
    b->dk2 = gradient_of(p->k2, type, strided, &b->out.dk2);
    b->dbias = gradient_of(p->bias, type, strided, &b->out.dbias);
    b->dsinks = gradient_of(p->sinks, type, false, &b->out.dsinks);
    b->args = (kiln_attention_backward_args){.struct_size = sizeof b->args,
                                             .forward = &p->args,
                                             .dout = oracle_tensor_of(b->dout),
                                             .dlse = oracle_tensor_of(b->dlse),
                                             .dq = oracle_tensor_of(b->dq),
                                             .dk = oracle_tensor_of(b->dk),
                                             .dv = oracle_tensor_of(b->dv),
                                             .dq2 = oracle_tensor_of(b->dq2),
                                             .dk2 = oracle_tensor_of(b->dk2),
                                             .dbias = oracle_tensor_of(b->dbias),
                                             .dsinks = oracle_tensor_of(b->dsinks)};
    return b;
}

static void run(backward_problem *b)
{
    ck_assert_int_eq(kiln_oracle_attention_backward(&b->args, &oracle_float_numerics, &b->out), KILN_OK);
}

/* Σ do·o + Σ dlse·lse over the rows that exist: the loss whose gradients the call gives. */
static double loss(const backward_problem *b, kiln_oracle_attention *out)
{
    const oracle_problem *p = b->p;
    double sum = 0;
    ck_assert_int_eq(kiln_oracle_attention_forward(&p->args, &oracle_float_numerics, out), KILN_OK);
    for (int64_t row = 0; row < p->lse->count; row++) {
        if (kiln_oracle_untouched(out->lse.value[row], out->lse.bound[row]) || out->lse.value[row] == -INFINITY)
            continue;
        for (int64_t e = row * p->c.d_v; e < (row + 1) * p->c.d_v; e++)
            sum += oracle_get(b->dout, e) * out->o.value[e];
        if (b->dlse)
            sum += oracle_get(b->dlse, row) * out->lse.value[row];
    }
    return sum;
}

static void check_differences(const backward_problem *b, oracle_tensor *input, const kiln_oracle_output *gradient,
                              const char *name)
{
    const double h = 1e-4;
    if (!input)
        return;
    kiln_oracle_attention out = {oracle_output(b->p->o->count), oracle_output(b->p->lse->count)};
    for (int64_t i = 0; i < input->count; i++) {
        double x = oracle_get(input, i), value = gradient->value[i];
        bool untouched = kiln_oracle_untouched(value, gradient->bound[i]);
        double slope = 0;
        if (isfinite(x)) { /* -inf in a bias stays -inf */
            oracle_put(input, i, x + h);
            double above = loss(b, &out);
            oracle_put(input, i, x - h);
            slope = (above - loss(b, &out)) / (2 * h);
            oracle_put(input, i, x);
        }
        /* No sequence owns an untouched element, so nothing depends on it. */
        ck_assert_msg(fabs(slope - (untouched ? 0 : value)) <= 1e-6 * (1 + fabs(slope)),
                      "%s: %s[%d] is %.12g, by differences %.12g", b->p->c.name, name, (int)i, value, slope);
    }
}

START_TEST(finite_differences)
{
    if (oracle_cases[_i].page_size)
        return;
    backward_problem *b = backward_new(&oracle_cases[_i]);
    run(b);
    check_differences(b, b->p->q, &b->out.dq, "dq");
    check_differences(b, b->p->k, &b->out.dk, "dk");
    check_differences(b, b->p->v, &b->out.dv, "dv");
    check_differences(b, b->p->q2, &b->out.dq2, "dq2");
    check_differences(b, b->p->k2, &b->out.dk2, "dk2");
    check_differences(b, b->p->bias, &b->out.dbias, "dbias");
    check_differences(b, b->p->sinks, &b->out.dsinks, "dsinks");
}
END_TEST

#define NEW_ARRAY(tensor, type) ((tensor) ? oracle_zeroed((size_t)(tensor)->count * sizeof(type)) : NULL)

/* The largest share of the bound that float arithmetic uses, and how large bounds are at all. */
static void compare(const char *name, const char *what, const kiln_oracle_output *right, const oracle_tensor *t,
                    const float *got, double *most)
{
    for (int64_t i = 0; t && i < t->count; i++) {
        double value = right->value[i], bound = right->bound[i];
        if (kiln_oracle_untouched(value, bound)) {
            ck_assert(got[i] == 0);
            continue;
        }
        ck_assert_msg(kiln_oracle_accepts(got[i], value, bound), "%s: %s[%d] %.9g, right %.9g, bound %g", name, what,
                      (int)i, (double)got[i], value, bound);
        ck_assert_msg(bound < 2e-4 * (1 + fabs(value)), "%s: %s[%d] has bound %g", name, what, (int)i, bound);
        double rest = bound - fabs(value) * 0x1p-24;
        *most = fmax(*most, rest > 0 ? fabs(got[i] - value) / rest : 0);
    }
}

START_TEST(bound_of_float)
{
    oracle_case c = oracle_cases[_i];
    if (c.page_size)
        return;
    c.type = KILN_FLOAT32;
    backward_problem *b = backward_new(&c);
    oracle_problem *p = b->p;
    oracle_grads_float g = {NEW_ARRAY(b->dq, float),    NEW_ARRAY(b->dk, float),  NEW_ARRAY(b->dv, float),
                            NEW_ARRAY(b->dq2, float),   NEW_ARRAY(b->dk2, float), NEW_ARRAY(b->dbias, float),
                            NEW_ARRAY(b->dsinks, float)};
    run(b);
    for (int64_t n = 0; n < c.batch; n++)
        for (int64_t h = 0; h < c.heads; h++)
            for (int64_t i = 0; i < p->len_q[n]; i++)
                oracle_back_float(p, b->dout, b->dlse, n, h, i, &g);
    double most = 0;
    compare(c.name, "dq", &b->out.dq, b->dq, g.dq, &most);
    compare(c.name, "dk", &b->out.dk, b->dk, g.dk, &most);
    compare(c.name, "dv", &b->out.dv, b->dv, g.dv, &most);
    compare(c.name, "dq2", &b->out.dq2, b->dq2, g.dq2, &most);
    compare(c.name, "dk2", &b->out.dk2, b->dk2, g.dk2, &most);
    compare(c.name, "dbias", &b->out.dbias, b->dbias, g.dbias, &most);
    compare(c.name, "dsinks", &b->out.dsinks, b->dsinks, g.dsinks, &most);
    ck_assert_msg(most > 0.02 || p->len_k[0] == 0 || p->len_q[0] == 0 || c.right == INT64_MIN || c.left == INT64_MIN,
                  "%s: only %g of the bound is used", c.name, most);
}
END_TEST

/* The same formulas in long double, for o and lse that are rounded: a function of its inputs as they are stored. */
START_TEST(long_double)
{
    oracle_case c = oracle_cases[_i];
    if (c.page_size)
        return;
    c.type = KILN_BFLOAT16;
    backward_problem *b = backward_new(&c);
    oracle_problem *p = b->p;
    oracle_grads_exact g = {NEW_ARRAY(b->dq, long double),    NEW_ARRAY(b->dk, long double),
                            NEW_ARRAY(b->dv, long double),    NEW_ARRAY(b->dq2, long double),
                            NEW_ARRAY(b->dk2, long double),   NEW_ARRAY(b->dbias, long double),
                            NEW_ARRAY(b->dsinks, long double)};
    run(b);
    for (int64_t n = 0; n < c.batch; n++)
        for (int64_t h = 0; h < c.heads; h++)
            for (int64_t i = 0; i < p->len_q[n]; i++)
                oracle_back_exact(p, b->dout, b->dlse, n, h, i, &g);
    const struct {
        const oracle_tensor *t;
        const kiln_oracle_output *out;
        const long double *right;
    } all[] = {{b->dq, &b->out.dq, g.dq},
               {b->dk, &b->out.dk, g.dk},
               {b->dv, &b->out.dv, g.dv},
               {b->dq2, &b->out.dq2, g.dq2},
               {b->dk2, &b->out.dk2, g.dk2},
               {b->dbias, &b->out.dbias, g.dbias},
               {b->dsinks, &b->out.dsinks, g.dsinks}};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        for (int64_t i = 0; all[n].t && i < all[n].t->count; i++) {
            double value = all[n].out->value[i], right = (double)all[n].right[i];
            if (!kiln_oracle_untouched(value, all[n].out->bound[i]))
                ck_assert_msg(fabs(value - right) <= 1e-13 * (1 + fabs(right)),
                              "%s: gradient %d[%d] %.17g, right %.17g", c.name, (int)n, (int)i, value, right);
        }
    }
}
END_TEST

START_TEST(accumulate)
{
    backward_problem *b = backward_new(&oracle_cases[_i]);
    if (oracle_cases[_i].page_size)
        return;
    run(b);
    kiln_oracle_gradients plain = b->out;
    oracle_tensor *tensor[5] = {b->dq, b->dk, b->dv, b->dq2, b->dk2};
    kiln_oracle_output *out[5] = {&b->out.dq, &b->out.dk, &b->out.dv, &b->out.dq2, &b->out.dk2};
    const kiln_oracle_output *before[5] = {&plain.dq, &plain.dk, &plain.dv, &plain.dq2, &plain.dk2};
    for (int n = 0; n < 5; n++) {
        for (int64_t i = 0; tensor[n] && i < tensor[n]->count; i++)
            oracle_put(tensor[n], i, 100 + (double)i);
        if (tensor[n])
            *out[n] = oracle_output(tensor[n]->count);
    }
    b->args.flags = KILN_FLAG_ACCUMULATE_DQ | KILN_FLAG_ACCUMULATE_DV; /* not dk, dk2 */
    run(b);
    for (int n = 0; n < 5; n++) {
        bool added = n == 0 || n == 2 || n == 3;
        for (int64_t i = 0; tensor[n] && i < tensor[n]->count; i++) {
            if (kiln_oracle_untouched(before[n]->value[i], before[n]->bound[i]))
                ck_assert(kiln_oracle_untouched(out[n]->value[i], out[n]->bound[i]));
            else
                ck_assert_double_eq_tol(out[n]->value[i], before[n]->value[i] + (added ? 100 + (double)i : 0), 1e-10);
        }
    }
}
END_TEST

/* GQA-1: dV of a KV head is the sum over its query heads. VAR-2: keys of a sequence without queries get exactly 0. */
START_TEST(closed_forms)
{
    oracle_case c = {.batch = 1, .heads = 4, .heads_k = 2, .seqlen_q = 1, .seqlen_k = 1, .d = 1};
    backward_problem *b = backward_new(&c);
    for (int64_t h = 0; h < 4; h++)
        oracle_put(b->dout, h, (double)(h + 1));
    run(b);
    ck_assert_double_eq_tol(b->out.dv.value[0], 3, 1e-14);
    ck_assert_double_eq_tol(b->out.dv.value[1], 7, 1e-14);
    for (int64_t h = 0; h < 4; h++)
        ck_assert_double_eq_tol(b->out.dq.value[h], 0, 1e-15);

    c = (oracle_case){
        .batch = 3, .heads = 1, .heads_k = 1, .seqlen_q = 2, .seqlen_k = 6, .d = 1, .packed_q = true, .packed_k = true};
    b = backward_new(&c);
    run(b);
    for (int64_t j = 0; j < b->p->len_k[1]; j++) { /* sequence 1 has no query */
        int64_t row = oracle_k_row(b->p, 1, 0, j);
        ck_assert(b->out.dk.value[row] == 0 && b->out.dv.value[row] == 0 && b->out.dk.bound[row] < 1e-300);
    }
    ck_assert(kiln_oracle_untouched(b->out.dk.value[0], b->out.dk.bound[0]));
}
END_TEST

/* What a mask hides may hold anything; what it does not hide shows. */
START_TEST(classes)
{
    oracle_case c = {
        .batch = 1, .heads = 2, .heads_k = 1, .seqlen_q = 3, .seqlen_k = 3, .d = 2, .mask = KILN_MASK_CAUSAL_TOP_LEFT};
    backward_problem *b = backward_new(&c);
    run(b);
    double expected = b->out.dq.value[0];
    for (int64_t e = 0; e < 2; e++) { /* key 2 is seen by query 2 only */
        oracle_put(b->p->k, 4 + e, NAN);
        oracle_put(b->p->v, 4 + e, INFINITY);
    }
    fill_forward(b->p);
    run(b);
    ck_assert(b->out.dq.value[0] == expected && isfinite(b->out.dq.value[2]) && isfinite(b->out.dq.value[3]));
    ck_assert(isnan(b->out.dq.value[4]) && isnan(b->out.dk.value[0]) && isnan(b->out.dv.value[0]));

    b = backward_new(&c); /* an infinite do of query 2 reaches every key it sees: all of them, through dv */
    oracle_put(b->dout, 4, INFINITY);
    run(b);
    ck_assert(b->out.dv.value[0] == INFINITY && b->out.dv.value[4] == INFINITY && isfinite(b->out.dv.value[1]));
    ck_assert(b->out.dv.bound[0] == 0);

    b = backward_new(&c); /* its weight on key 0 vanishes */
    for (int64_t h = 0; h < 2; h++)
        oracle_put(b->p->lse, h * 3 + 2, 5000);
    oracle_put(b->dout, 4, INFINITY);
    run(b);
    ck_assert(b->out.dv.value[0] == INFINITY && b->out.dv.bound[0] == INFINITY);
    ck_assert(isfinite(b->out.dv.value[1]) && isfinite(b->out.dv.bound[1]));

    b = backward_new(&c); /* rows that say they saw nothing get no gradient, whatever they hold */
    for (int64_t i = 0; i < b->p->lse->count; i++)
        oracle_put(b->p->lse, i, -INFINITY);
    oracle_put(b->dout, 0, NAN);
    run(b);
    for (int64_t i = 0; i < b->dq->count; i++)
        ck_assert(b->out.dq.value[i] == 0);
    for (int64_t i = 0; i < b->dk->count; i++)
        ck_assert(b->out.dk.value[i] == 0 && b->out.dv.value[i] == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle_gradients");
    TCase *tc = tcase_create("all");
    int cases = 0;
    while (oracle_cases[cases].name)
        cases++;
    tcase_add_checked_fixture(tc, NULL, oracle_release);
    tcase_add_loop_test(tc, finite_differences, 0, cases);
    tcase_add_loop_test(tc, bound_of_float, 0, cases);
    tcase_add_loop_test(tc, long_double, 0, cases);
    tcase_add_loop_test(tc, accumulate, 0, cases);
    tcase_add_test(tc, closed_forms);
    tcase_add_test(tc, classes);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
