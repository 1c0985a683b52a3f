/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_cases_backward.c: the inputs of test_cases.c that show something in the gradients. If the backend has no
 * attention_backward the suite says "skipped" and returns 77.
 */
#include <stdio.h>

#include "../../common/context.h"
#include "../support/attention.h"

typedef struct gradients {
    test_attention *a; /* its o and lse are inputs here, as a right forward call leaves them */
    test_tensor *dout, *dq, *dk, *dv;
    kiln_attention_backward_args args, host_args;
} gradients;

static int32_t type;

static gradients *problem(attention_case c, test_strides dout_strides)
{
    gradients *g = test_alloc(sizeof *g);
    c.type = type;
    c.scale = c.scale != 0 ? c.scale : 1;
    test_attention *a = g->a = test_attention_new(&c);
    a->o->output = a->lse->output = false;
    g->dout = test_tensor_new(type, a->o->host.ndim, a->o->shape, dout_strides, false);
    g->dq = test_tensor_new(type, a->q->host.ndim, a->q->shape, STRIDES_PADDED, true);
    g->dk = test_tensor_new(type, a->k->host.ndim, a->k->shape, STRIDES_PADDED, true);
    g->dv = test_tensor_new(type, a->v->host.ndim, a->v->shape, STRIDES_PADDED, true);
    for (int64_t i = 0; i < g->dout->count; i++)
        test_put(g->dout, i, test_normal());
    g->args = (kiln_attention_backward_args){.struct_size = sizeof g->args,
                                             .forward = &a->args,
                                             .dout = test_device(g->dout),
                                             .dq = test_device(g->dq),
                                             .dk = test_device(g->dk),
                                             .dv = test_device(g->dv)};
    g->host_args = g->args;
    g->host_args.forward = &a->host_args;
    g->host_args.dout = test_host(g->dout);
    g->host_args.dq = test_host(g->dq);
    g->host_args.dk = test_host(g->dk);
    g->host_args.dv = test_host(g->dv);
    return g;
}
#define BACKWARD(...) problem((attention_case){__VA_ARGS__}, STRIDES_COMPACT)

static kiln_oracle_output output_for(test_tensor *t)
{
    t->written = t->written ? t->written : test_alloc((size_t)t->count * sizeof *t->written);
    return (kiln_oracle_output){test_alloc((size_t)t->count * sizeof(double)),
                                test_alloc((size_t)t->count * sizeof(double))};
}

static void mark(test_tensor *t, const kiln_oracle_output *right)
{
    for (int64_t i = 0; i < t->count; i++)
        t->written[i] = !kiln_oracle_untouched(right->value[i], right->bound[i]);
}

static void judge(const test_tensor *t, const char *name, const kiln_oracle_output *right)
{
    for (int64_t i = 0; i < t->count; i++) {
        double got = test_result(t, i);
        TEST_REQUIRE(!t->written[i] || kiln_oracle_accepts(got, right->value[i], right->bound[i]),
                     "%s[%lld] is %.9g; right is %.9g, at most %.3g away", name, (long long)i, got, right->value[i],
                     right->bound[i]);
    }
}

/* Fills o and lse, runs, judges all gradients. False if the backend refuses this problem (printed). */
static bool ran(gradients *g)
{
    static const kiln_numerics exact = {.unit = 0x1p-24, .p_floor = 0x1p-125};
    kiln_numerics numerics = {0};
    char why[512] = "";
    test_attention *a = g->a;
    test_attention_oracle(a, &exact);
    for (int64_t i = 0; i < a->o->count; i++)
        test_put(a->o, i, a->o_value[i]);
    for (int64_t i = 0; i < a->lse->count; i++)
        test_put(a->lse, i, a->lse_value[i]);
    kiln_status status = test_supported(KILN_OP_ATTENTION_BACKWARD, test_context(), &g->args, why, sizeof why);
    if (test_refused(status, g->args.algorithm, why))
        return false;
    TEST_REQUIRE(status == KILN_OK, "refuses a right call: %s: %s", kiln_status_name(status), why);
    TEST_REQUIRE(kiln_internal_numerics(test_context(), KILN_OP_ATTENTION_BACKWARD, &g->args, &numerics) == KILN_OK,
                 "no numerics: %s", kiln_last_error());
    kiln_oracle_gradients right = {.dq = output_for(g->dq), .dk = output_for(g->dk), .dv = output_for(g->dv)};
    status = kiln_oracle_attention_backward(&g->host_args, &numerics, &right);
    TEST_REQUIRE(status == KILN_OK, "the oracle says %s", kiln_status_name(status));
    mark(g->dq, &right.dq);
    mark(g->dk, &right.dk);
    mark(g->dv, &right.dv);
    status = test_run(KILN_OP_ATTENTION_BACKWARD, test_context(), &g->args, why, sizeof why);
    TEST_REQUIRE(status == KILN_OK, "%s: %s", kiln_status_name(status), why);
    judge(g->dq, "dq", &right.dq);
    judge(g->dk, "dk", &right.dk);
    judge(g->dv, "dv", &right.dv);
    return true;
}
#define RUN_OR_RETURN(g)                                                                                               \
    do {                                                                                                               \
        if (!ran(g))                                                                                                   \
            return;                                                                                                    \
    } while (0)

static void expect(const test_tensor *t, const char *name, const double *want, int64_t n)
{
    double unit = type == KILN_FLOAT32 ? 3e-6 : type == KILN_FLOAT16 ? 0x1p-9 : 0x1p-6;
    ck_assert_int_eq(t->count, n);
    for (int64_t i = 0; i < n; i++)
        TEST_REQUIRE(fabs(test_result(t, i) - want[i]) <= unit * fmax(1, fabs(want[i])),
                     "%s[%lld] is %.9g, right is %.9g", name, (long long)i, test_result(t, i), want[i]);
}
#define EXPECT(t, ...)                                                                                                 \
    expect(t, #t, (const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static void expect_zero(const test_tensor *t, const char *name)
{
    for (int64_t i = 0; i < t->count; i++)
        TEST_REQUIRE(test_result(t, i) == 0, "%s[%lld] is %.9g, right is 0", name, (long long)i, test_result(t, i));
}

/* S = 1 is a free oracle: dv = do (up to the rounding of lse), dq = dk = 0, whatever q and k are. */
static void i32_1(void)
{
    gradients *g = BACKWARD(.batch = 5, .heads = 3, .seqlen_q = 1, .seqlen_k = 1, .d = 32);
    for (int64_t i = 0; i < g->dout->count; i++) /* small integers, so that do·v and do·o agree exactly */
        test_put(g->dout, i, (double)(i % 7) - 3);
    for (int64_t i = 0; i < g->a->v->count; i++)
        test_put(g->a->v, i, (double)(i % 5) - 2);
    RUN_OR_RETURN(g);
    expect_zero(g->dq, "dq");
    expect_zero(g->dk, "dk");
    double *dout = test_alloc((size_t)g->dv->count * sizeof *dout);
    for (int64_t i = 0; i < g->dv->count; i++)
        dout[i] = test_get(g->dout, i);
    expect(g->dv, "dv", dout, g->dv->count);
}

static void str_3(void)
{
    gradients *g = problem((attention_case){.heads = 2, .seqlen_q = 2, .seqlen_k = 2, .d = 1, .values = VALUES_ZERO},
                           STRIDES_SEQ_FIRST);
    TEST_SET(g->dout, 1, 3, 10, 30);
    RUN_OR_RETURN(g);
    EXPECT(g->dv, 2, 2, 20, 20);
}

static void gqa_1(void)
{
    gradients *g = BACKWARD(.heads = 4, .heads_k = 2, .seqlen_q = 1, .seqlen_k = 1, .d = 1);
    TEST_SET(g->a->v, 10, 20);
    TEST_SET(g->dout, 1, 2, 3, 4);
    RUN_OR_RETURN(g);
    EXPECT(g->dv, 3, 7);
}

static void var_2(void)
{
    static const int64_t q[] = {0, 2}, k[] = {3, 2};
    gradients *g = BACKWARD(.batch = 2, .seqlen_q = 2, .seqlen_k = 3, .d = 1, .values = VALUES_ZERO, .packed_q = true,
                            .packed_k = true, .lengths_q = q, .lengths_k = k);
    test_fill(g->a->k, 0);
    TEST_SET(g->a->v, 9, 9, 9, 1, 3);
    TEST_SET(g->dout, 1, 1);
    RUN_OR_RETURN(g);
    expect_zero(g->dq, "dq");
    expect_zero(g->dk, "dk");
    EXPECT(g->dv, 0, 0, 0, 1, 1);
}

static void nan_1(void)
{
    static const double hidden[2] = {NAN, INFINITY};
    for (int what = 0; what < 2; what++) {
        gradients *g = BACKWARD(.seqlen_q = 1, .seqlen_k = 2, .d = 1, .mask_len = 2);
        TEST_SET(g->a->q, 1);
        TEST_SET(g->a->k, 0, hidden[what]);
        TEST_SET(g->a->v, 3, hidden[what]);
        TEST_SET(g->a->attn_mask, 1, 0);
        TEST_SET(g->dout, 2);
        RUN_OR_RETURN(g);
        EXPECT(g->dq, 0);
        EXPECT(g->dk, 0, 0);
        EXPECT(g->dv, 2, 0);
    }
}

static void fmr_1(void)
{
    gradients *g = BACKWARD(.seqlen_q = 2, .seqlen_k = 2, .d = 1, .values = VALUES_ZERO, .mask_len = 2);
    TEST_SET(g->a->attn_mask, 1, 0, 0, 0);
    TEST_SET(g->a->v, 3, 5);
    TEST_SET(g->dout, 1, 100);
    RUN_OR_RETURN(g);
    EXPECT(g->dq, 0, 0);
    EXPECT(g->dk, 0, 0);
    EXPECT(g->dv, 1, 0);
}

/* p = (1 - w, w), v = (0, 1), do = 1: ds = ±w(1 - w), times the slope of the cap at the second key. */
static void lse_8(void)
{
    gradients *g = BACKWARD(.seqlen_q = 1, .seqlen_k = 2, .d = 1, .softcap = 5);
    TEST_SET(g->a->q, 1);
    TEST_SET(g->a->k, 0, 10);
    TEST_SET(g->a->v, 0, 1);
    TEST_SET(g->dout, 1);
    RUN_OR_RETURN(g);
    const double w = 0.99199886, ds = w * (1 - w), slope = 0.07065082;
    EXPECT(g->dk, -ds, ds * slope);
    EXPECT(g->dq, 10 * ds * slope);
}

/* The bits of the first run in all of `runs`, for dq, dk and dv; the first is judged. On the CPU with 4 threads, however few
 * cores there are: then every run meets them in another order. */
static void same_bits(gradients *g, int runs)
{
    g->args.flags = KILN_FLAG_DETERMINISTIC;
    RUN_OR_RETURN(g);
    kiln_context *context = test_on_cpu() ? test_context_threads(4) : test_context();
    test_tensor *t[3] = {g->dq, g->dk, g->dv};
    unsigned char *first[3];
    char why[512];
    for (int i = 0; i < 3; i++)
        first[i] = memcpy(test_alloc(t[i]->bytes), t[i]->got, t[i]->bytes);
    for (int n = 1; n < runs; n++) {
        ck_assert_int_eq(test_run(KILN_OP_ATTENTION_BACKWARD, context, &g->args, why, sizeof why), KILN_OK);
        for (int i = 0; i < 3; i++)
            TEST_REQUIRE(memcmp(first[i], t[i]->got, t[i]->bytes) == 0, "run %d: other bits", n);
    }
}

static void det_1(void)
{
    const int64_t n = test_smaller(256, 96);
    same_bits(BACKWARD(.heads = 2, .seqlen_q = n, .seqlen_k = n, .d = 64, .scale = 0.125f), (int)test_smaller(30, 3));
}

/* Many queries add to the dk and dv of few keys: whoever does so in parallel must not lose a sum. */
static void con_6(void)
{
    same_bits(BACKWARD(.seqlen_q = test_smaller(2048, 128), .seqlen_k = test_smaller(128, 64),
                       .d = test_smaller(128, 32), .scale = 0.088f),
              (int)test_smaller(50, 3));
}

/* Random problems: the features of backward one after another, and together. */
static void random_problems(void)
{
    static const attention_case cases[] = {
        {.batch = 2, .heads = 4, .heads_k = 2, .seqlen_q = 33, .seqlen_k = 65, .d = 40, .d_v = 24},
        {.heads = 2, .seqlen_q = 65, .seqlen_k = 65, .d = 64, .mask = KILN_MASK_CAUSAL_TOP_LEFT},
        {.heads = 2, .seqlen_q = 30, .seqlen_k = 70, .d = 16, .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT, .window_left = 20},
        {.heads = 2, .seqlen_q = 70, .seqlen_k = 30, .d = 16, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT, .sinks = true},
        {.heads = 2, .seqlen_q = 30, .seqlen_k = 70, .d = 16, .bias = true, .alibi = 1, .softcap = 2, .mask_len = 50},
        {.batch = 3, .heads = 2, .seqlen_q = 30, .seqlen_k = 70, .d = 16, .packed_q = true, .packed_k = true},
        {.batch = 3,
         .heads = 2,
         .seqlen_q = 30,
         .seqlen_k = 70,
         .d = 16,
         .used_q = true,
         .used_k = true,
         .starts = true},
        {.heads = 2, .seqlen_q = 30, .seqlen_k = 70, .d = 16, .dropout_p = 0.25f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attention_case c = cases[i];
        c.scale = 0.25f;
        (void)ran(problem(c, STRIDES_PADDED));
        test_release_all();
    }
}

static const struct {
    const char *id;
    void (*run)(void);
} rows[] = {
    {"I32-1", i32_1}, {"STR-3", str_3}, {"GQA-1", gqa_1}, {"VAR-2", var_2}, {"NAN-1", nan_1},
    {"FMR-1", fmr_1}, {"LSE-8", lse_8}, {"DET-1", det_1}, {"CON-6", con_6}, {"random", random_problems},
};
enum { ROWS = sizeof rows / sizeof *rows };

START_TEST(row)
{
    static const int32_t types[3] = {KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16};
    for (int t = 0; t < 3; t++) {
        type = types[t];
        printf("%s\n", rows[_i].id);
        rows[_i].run();
        test_release_all();
    }
}
END_TEST

/* Does the backend have the operation at all? Asks for the plainest problem; no kernel runs. */
static bool available(void)
{
    static const int64_t shape[4] = {1, 1, 1, 1};
    kiln_context_options options = {.struct_size = sizeof options, .backend = test_backend_name()};
    kiln_context *context;
    if (kiln_context_create(&context, &options) != KILN_OK) {
        printf("skipped: %s\n", kiln_last_error());
        return false;
    }
    kiln_tensor t = kiln_tensor_make(kiln_context_device(context), NULL, KILN_FLOAT32, 4, shape, NULL);
    kiln_tensor lse = kiln_tensor_make(t.device, NULL, KILN_FLOAT32, 3, shape, NULL);
    kiln_attention_forward_args f = {.struct_size = sizeof f, .q = &t, .k = &t, .v = &t, .o = &t, .softmax_lse = &lse};
    kiln_attention_backward_args g = {.struct_size = sizeof g, .forward = &f, .dout = &t, .dq = &t, .dk = &t, .dv = &t};
    char why[256] = "";
    kiln_status status = kiln_attention_backward_supported(context, &g, why, sizeof why);
    kiln_context_destroy(context);
    if (status == KILN_UNSUPPORTED)
        printf("skipped: %s\n", why);
    return status != KILN_UNSUPPORTED;
}

int main(void)
{
    if (!available())
        return 77;
    Suite *s = suite_create("cases_backward");
    tcase_add_loop_test(test_tcase(s, "rows"), row, 0, ROWS);
    return test_main(s);
}
