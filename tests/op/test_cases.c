/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_cases.c: small inputs on which attention libraries have failed, with the right values in closed form.
 *
 * One function per input, named by its id; each runs at fp32, fp16 and bf16 and on every algorithm. The values are compared
 * at the tolerance of the type (inputs such as ln 3 are rounded to it), and every element is judged by the oracle besides,
 * which knows the rounded inputs. Ids that are not here: I32-3, I32-4, PAG-3, I32-1 in test_attention_offsets.c; I32-6 and
 * PERF-6's larger rows in test_softmax.c; GQA-2, VAR-5, VAR-9, PAG-1, ERR-1, ERR-2 in test_bad_input.c; the backward ones in
 * test_cases_backward.c.
 */
#include <pthread.h>
#include <stdio.h>

#include "../support/attention.h"
#include "../support/merge.h"
#include "../support/softmax.h"

/* What the running row is tried on. */
static int32_t type;
static const char *algorithm;

#define LN2 0.69314718055994531
#define LN3 1.0986122886681098

/* A problem of the row: scale and d are 1 unless it says otherwise, the rest as in attention_case. */
static test_attention *problem(attention_case c)
{
    c.type = type;
    c.scale = c.scale != 0 ? c.scale : 1;
    c.d = c.d ? c.d : 1;
    return test_attention_new(&c);
}
#define ATTENTION(...) problem((attention_case){__VA_ARGS__})

static double tolerance(double want)
{
    double unit = type == KILN_FLOAT32 ? 3e-6 : type == KILN_FLOAT16 ? 0x1p-9 : 0x1p-6;
    return unit * fmax(1, fabs(want));
}

static void expect(const test_tensor *t, const char *name, const double *want, int64_t n)
{
    ck_assert_int_eq(t->count, n);
    for (int64_t i = 0; i < n; i++) {
        double got = test_result(t, i);
        bool right = isinf(want[i]) ? got == want[i] : fabs(got - want[i]) <= tolerance(want[i]);
        TEST_REQUIRE(right, "%s: %s[%lld] is %.9g, right is %.9g", test_algorithm_name(algorithm), name, (long long)i,
                     got, want[i]);
    }
}
#define VALUES(...)        (const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double))
#define EXPECT_O(a, ...)   expect((a)->o, "o", VALUES(__VA_ARGS__))
#define EXPECT_LSE(a, ...) expect((a)->lse, "lse", VALUES(__VA_ARGS__))
#define RUN_OR_RETURN(a)                                                                                               \
    do {                                                                                                               \
        if (!test_attention_ran(a, algorithm))                                                                         \
            return;                                                                                                    \
    } while (0)

/* ------------------------------------------------------------------------------------------------ NaN and Inf */

static void nan_1(void)
{
    static const double hidden[3] = {NAN, INFINITY, -INFINITY};
    for (int what = 0; what < 3; what++)
        for (int where = 0; where < 3; where++) { /* in k and v, in k, in v */
            test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .mask_len = 2);
            TEST_SET(a->q, 1);
            TEST_SET(a->k, 0, where == 2 ? 5 : hidden[what]);
            TEST_SET(a->v, 3, where == 1 ? 5 : hidden[what]);
            TEST_SET(a->attn_mask, 1, 0);
            RUN_OR_RETURN(a);
            EXPECT_O(a, 3);
            EXPECT_LSE(a, 0);
        }
}

static void nan_2(void)
{
    const int64_t used = 1;
    test_attention *a =
        ATTENTION(.seqlen_q = 1, .seqlen_k = 3, .d = 64, .scale = 0.125f, .used_k = true, .lengths_k = &used);
    for (int64_t i = 0; i < 64; i++) {
        test_put(a->q, i, 0.5);
        test_put(a->k, i, 0.5);
        test_put(a->v, i, 0.5);
    }
    ck_assert(isnan(test_get(a->k, 64)) && isnan(test_get(a->v, 191)));
    RUN_OR_RETURN(a);
    for (int64_t i = 0; i < 64; i++)
        ck_assert_double_eq(test_result(a->o, i), 0.5);
    EXPECT_LSE(a, 2);
}

static void nan_4(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .bias = true);
    TEST_SET(a->q, 1);
    TEST_SET(a->k, 0.5, 1);
    TEST_SET(a->v, 1, 3);
    TEST_SET(a->bias, -3.4028234663852886e38, -3.4028234663852886e38);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 2);
}

static void nan_6(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .d = 64, .scale = 0.125f);
    for (int64_t i = 0; i < 64; i++) {
        test_put(a->q, i, 64);
        test_put(a->k, i, -64);
        test_put(a->k, 64 + i, -63);
        test_put(a->v, i, 7);
        test_put(a->v, 64 + i, 9);
    }
    RUN_OR_RETURN(a);
    for (int64_t i = 0; i < 64; i++)
        ck_assert_double_eq(test_result(a->o, i), 9);
    ck_assert_double_eq(test_result(a->lse, 0), -32256);
}

/* ------------------------------------------------------------------------------------------------ masks */

static void mask_1(void)
{
    for (int bottom_right = 0; bottom_right < 2; bottom_right++) {
        test_attention *a = ATTENTION(.seqlen_q = 2, .seqlen_k = 5, .values = VALUES_ZERO,
                                      .mask = bottom_right ? KILN_MASK_CAUSAL_BOTTOM_RIGHT : KILN_MASK_CAUSAL_TOP_LEFT);
        TEST_SET(a->v, 1, 2, 4, 8, 16);
        RUN_OR_RETURN(a);
        if (bottom_right) {
            EXPECT_O(a, 3.75, 6.2);
            EXPECT_LSE(a, 2 * LN2, log(5));
        } else {
            EXPECT_O(a, 1, 1.5);
            EXPECT_LSE(a, 0, LN2);
        }
    }
}

static void mask_2(void)
{
    for (int bottom_right = 0; bottom_right < 2; bottom_right++) {
        test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 4, .values = VALUES_ZERO,
                                      .mask = bottom_right ? KILN_MASK_CAUSAL_BOTTOM_RIGHT : KILN_MASK_CAUSAL_TOP_LEFT);
        TEST_SET(a->v, 1, 2, 3, 10);
        RUN_OR_RETURN(a);
        EXPECT_O(a, bottom_right ? 4 : 1);
    }
}

static void mask_4(void)
{
    for (int bottom_right = 0; bottom_right < 2; bottom_right++) { /* square: both are the same */
        test_attention *a = ATTENTION(.seqlen_q = 4, .seqlen_k = 4, .values = VALUES_ZERO, .window_left = 1,
                                      .mask = bottom_right ? KILN_MASK_WINDOW_BOTTOM_RIGHT : KILN_MASK_WINDOW_TOP_LEFT);
        TEST_SET(a->v, 1, 2, 4, 8);
        RUN_OR_RETURN(a);
        EXPECT_O(a, 1, 1.5, 3, 6);
    }
}

static void mask_7(void)
{
    test_attention *a =
        ATTENTION(.seqlen_q = 4, .seqlen_k = 4, .values = VALUES_ZERO, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT);
    TEST_SET(a->v, 1, 2, 4, 8);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 1, 1.5, 7.0 / 3, 3.75);
}

static void mask_8(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 3, .values = VALUES_ZERO, .mask_len = 3);
    TEST_SET(a->attn_mask, 1, 0, 1);
    TEST_SET(a->v, 1, 2, 4);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 2.5);
}

static void mask_10(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .values = VALUES_ZERO, .scale = 0.125f, .bias = true);
    TEST_SET(a->bias, 0, 8);
    TEST_SET(a->v, 0, 1);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 0.99966465);
    EXPECT_LSE(a, 8.00033541);
}

static void mask_11(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .values = VALUES_ZERO, .softcap = 1, .mask_len = 2);
    TEST_SET(a->attn_mask, 1, 0);
    TEST_SET(a->v, 0, 1);
    RUN_OR_RETURN(a);
    ck_assert_double_eq(test_result(a->o, 0), 0);
}

/* ------------------------------------------------------------------------------------------------ empty rows */

static void fmr_1(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 2, .seqlen_k = 2, .values = VALUES_ZERO, .mask_len = 2);
    TEST_SET(a->attn_mask, 1, 0, 0, 0);
    TEST_SET(a->v, 3, 5);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 3, 0);
    EXPECT_LSE(a, 0, -INFINITY);
    ck_assert_double_eq(test_result(a->o, 1), 0);
}

static void fmr_2(void)
{
    test_attention *a =
        ATTENTION(.seqlen_q = 5, .seqlen_k = 2, .values = VALUES_ZERO, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT);
    TEST_SET(a->v, 2, 6);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 0, 0, 0, 2, 4);
    EXPECT_LSE(a, -INFINITY, -INFINITY, -INFINITY, 0, LN2);
}

/* (o, lse) joined with (o2, lse2), both ways round. */
static void merged(double o, double lse, double o2, double lse2, double want, double want_lse, bool exact)
{
    for (int order = 0; order < 2; order++) {
        test_merge *m = test_merge_new(&(merge_case){1, 1, 1, 1, .parts = 2, .type = type});
        TEST_SET(m->o_part[order], o);
        TEST_SET(m->lse_part[order], lse);
        TEST_SET(m->o_part[!order], o2);
        TEST_SET(m->lse_part[!order], lse2);
        if (test_merge_run(m, test_context()) != KILN_OK)
            return;
        expect(m->o, "o", &want, 1);
        expect(m->lse, "lse", &want_lse, 1);
        if (exact)
            ck_assert(test_result(m->o, 0) == want && test_result(m->lse, 0) == want_lse);
    }
}

static void fmr_4(void)
{
    merged(0, -INFINITY, 0, -INFINITY, 0, -INFINITY, true);
    merged(0, -INFINITY, 2, 0.5, 2, 0.5, true);
}

static void fmr_5(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 0);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 0);
    EXPECT_LSE(a, -INFINITY);
    merged(test_result(a->o, 0), test_result(a->lse, 0), 2, 0.5, 2, 0.5, true);
}

/* ------------------------------------------------------------------------------------------------ strides, heads */

static void str_1(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 2, .seqlen_k = 2, .d = 2, .d_v = 1, .q_strides = STRIDES_INNER_STRIDE);
    TEST_SET(a->q, 1, 0, 0, 1);
    TEST_SET(a->k, 1, 0, 0, 1);
    TEST_SET(a->v, 1, 3);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 1.53788284, 2.46211716);
}

static void str_5(void)
{
    static const double values[] = {0.5, -1, 2, 0.25, 1, 3};
    double o[2][2];
    for (int odd = 0; odd < 2; odd++) {
        test_strides strides = odd ? STRIDES_ODD_ONES : STRIDES_COMPACT;
        test_attention *a =
            ATTENTION(.heads = 2, .seqlen_q = 1, .seqlen_k = 3, .q_strides = strides, .k_strides = strides,
                      .v_strides = strides, .o_strides = strides, .extra_strides = strides);
        ck_assert(!odd || (a->q->stride[0] == 999999937 && a->o->stride[3] == -7));
        test_set(a->q, values, 2);
        test_set(a->k, values, 6);
        test_set(a->v, values, 6);
        RUN_OR_RETURN(a);
        o[odd][0] = test_result(a->o, 0);
        o[odd][1] = test_result(a->o, 1);
    }
    ck_assert(o[0][0] == o[1][0] && o[0][1] == o[1][1]);
}

static void str_6(void)
{
    test_attention *a =
        ATTENTION(.seqlen_q = 1, .seqlen_k = 3, .values = VALUES_ZERO, .bias = true, .extra_strides = STRIDES_PADDED);
    TEST_SET(a->bias, 0, LN2, 0);
    TEST_SET(a->v, 1, 2, 5);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 2.5);
    EXPECT_LSE(a, 1.38629436);
}

static void gqa_1(void)
{
    test_attention *a = ATTENTION(.heads = 4, .heads_k = 2, .seqlen_q = 1, .seqlen_k = 1);
    TEST_SET(a->v, 10, 20);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 10, 10, 20, 20);
}

static void gqa_3(void)
{
    static const int64_t heads[][2] = {{28, 4}, {32, 8}, {12, 12}, {8, 1}, {71, 71}, {71, 1}};
    for (int i = 0; i < 6; i++) {
        test_attention *a = ATTENTION(.heads = heads[i][0], .heads_k = heads[i][1], .seqlen_q = 1, .seqlen_k = 1);
        for (int64_t h = 0; h < heads[i][1]; h++)
            test_put(a->v, h, (double)(h + 1));
        RUN_OR_RETURN(a);
        for (int64_t h = 0; h < heads[i][0]; h++)
            ck_assert_double_eq(test_result(a->o, h), (double)(1 + h * heads[i][1] / heads[i][0]));
    }
}

/* ------------------------------------------------------------------------------------------------ lengths */

static void var_1(void)
{
    static const int64_t q[] = {1, 1}, k[] = {3, 5};
    test_attention *a = ATTENTION(.batch = 2, .seqlen_q = 1, .seqlen_k = 5, .values = VALUES_ZERO, .packed_q = true,
                                  .packed_k = true, .lengths_q = q, .lengths_k = k);
    TEST_SET(a->v, 0, 1, 2, 3, 4, 5, 6, 7);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 1, 5);
    EXPECT_LSE(a, LN3, log(5));
}

static void var_2(void)
{
    static const int64_t q[] = {0, 2}, k[] = {3, 2};
    test_attention *a = ATTENTION(.batch = 2, .seqlen_q = 2, .seqlen_k = 3, .values = VALUES_ZERO, .packed_q = true,
                                  .packed_k = true, .lengths_q = q, .lengths_k = k);
    test_fill(a->k, 0);
    TEST_SET(a->v, 9, 9, 9, 1, 3);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 2, 2);
    EXPECT_LSE(a, LN2, LN2);
}

static void var_6(void)
{
    const int64_t used = 2;
    test_attention *a =
        ATTENTION(.seqlen_q = 1, .seqlen_k = 4, .values = VALUES_ZERO, .used_k = true, .lengths_k = &used);
    TEST_SET(a->v, 1, 3, 100, 100);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 2);
    EXPECT_LSE(a, LN2);
}

static void var_8(void)
{
    test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 65, .values = VALUES_ZERO);
    test_fill(a->v, 1);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 1);
    EXPECT_LSE(a, 4.17438727);
}

/* VAR-9: lengths [2, 0] are fine. */
static void var_9(void)
{
    static const int64_t used[] = {2, 0};
    test_attention *a =
        ATTENTION(.batch = 2, .seqlen_q = 1, .seqlen_k = 3, .values = VALUES_ZERO, .used_k = true, .lengths_k = used);
    TEST_SET(a->v, 2, 4, NAN, NAN, NAN, NAN);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 3, 0);
    EXPECT_LSE(a, LN2, -INFINITY);
}

/* Element of token j of sequence b in a pool with one head and d = 1. */
static int64_t paged(const test_attention *a, int64_t b, int64_t j)
{
    int64_t page = (int64_t)test_get(a->table, b * a->table->shape[1] + j / a->c.page_size);
    return page * a->c.page_size + j % a->c.page_size;
}

/* PAG-1: two pages of 16 hold 32 tokens. */
static void pag_1(void)
{
    const int64_t used = 32;
    test_attention *a =
        ATTENTION(.seqlen_q = 1, .seqlen_k = 32, .values = VALUES_ZERO, .page_size = 16, .lengths_k = &used);
    for (int64_t j = 0; j < 32; j++)
        test_put(a->v, paged(a, 0, j), 1);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 1);
    EXPECT_LSE(a, 5 * LN2);
}

static void pag_6(void)
{
    int64_t used = 17;
    test_attention *a =
        ATTENTION(.seqlen_q = 1, .seqlen_k = 32, .values = VALUES_ZERO, .page_size = 32, .lengths_k = &used);
    for (int64_t j = 0; j < 17; j++)
        test_put(a->v, paged(a, 0, j), (double)j);
    RUN_OR_RETURN(a);
    EXPECT_O(a, 8);
    used = 3;
    a = ATTENTION(.seqlen_q = 1, .seqlen_k = 32, .values = VALUES_ZERO, .page_size = 32, .lengths_k = &used,
                  .alibi = 1);
    TEST_SET(a->alibi, 0.5);
    for (int64_t j = 0; j < 3; j++)
        test_put(a->v, paged(a, 0, j), (double)((int64_t)1 << j));
    RUN_OR_RETURN(a);
    EXPECT_O(a, 2.82663706);
}

/* The 600 lengths are the 600 sequences of one batch; on slow backends every 20th of them. */
static void pag_8(void)
{
    enum { LONGEST = 600 };
    static const int32_t splits[] = {0, 1, 2, 3, 8};
    const bool cuts = algorithm && strcmp(algorithm, "splitkv") == 0; /* the others never cut the keys */
    const int repeats = !cuts ? 2 : (int)test_smaller(200, 3);
    const int64_t apart = test_is_slow_backend() ? 20 : 1, batch = LONGEST / apart;
    int64_t lengths[LONGEST];
    char why[512];
    if (type != KILN_FLOAT32) /* 0 ... 599 are not all numbers of the 16-bit types */
        return;
    for (int64_t b = 0; b < batch; b++)
        lengths[b] = (b + 1) * apart;
    for (int s = 0; s < 5; s++) {
        test_attention *a = ATTENTION(.batch = batch, .seqlen_q = 1, .seqlen_k = LONGEST, .values = VALUES_ZERO,
                                      .page_size = 16, .lengths_k = lengths, .num_splits = splits[s]);
        for (int64_t b = 0; b < batch; b++)
            for (int64_t j = 0; j < lengths[b]; j++)
                test_put(a->v, paged(a, b, j), (double)j);
        RUN_OR_RETURN(a);
        for (int64_t b = 0; b < batch; b++)
            TEST_REQUIRE(fabs(test_result(a->o, b) - (double)(lengths[b] - 1) / 2) <= 1e-4,
                         "length %lld, %d splits: o is %.9g", (long long)lengths[b], splits[s], test_result(a->o, b));
        unsigned char *first = memcpy(test_alloc(a->o->bytes), a->o->got, a->o->bytes);
        for (int repeat = 1; repeat < repeats; repeat++) {
            ck_assert_int_eq(test_run(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, why, sizeof why), KILN_OK);
            TEST_REQUIRE(memcmp(first, a->o->got, a->o->bytes) == 0, "%d splits, repeat %d: other bits", splits[s],
                         repeat);
        }
        test_release_all();
    }
}

/* ------------------------------------------------------------------------------------------------ precision */

static void lse_1(void)
{
    merged(0, log(2), 1, log(8), 0.8, 2.30258509, false);
}

static void lse_8(void)
{
    for (int capped = 0; capped < 2; capped++) {
        test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .softcap = capped ? 5 : 0);
        TEST_SET(a->q, 1);
        TEST_SET(a->k, 0, 10);
        TEST_SET(a->v, 0, 1);
        RUN_OR_RETURN(a);
        EXPECT_O(a, capped ? 0.99199886 : 0.99995460);
        EXPECT_LSE(a, capped ? 4.82817122 : 10.0000454);
    }
}

/* DET-3 without the flag: within tolerance for every batch size; with it the bits are equal (test_attention_forward.c). */
static void det_3(void)
{
    static const int64_t batches[] = {1, 2, 7};
    for (int i = 0; i < 3; i++)
        RUN_OR_RETURN(ATTENTION(.batch = batches[i], .seqlen_q = 1, .seqlen_k = 1000, .d = 64, .scale = 0.125f));
}

static void det_5(void)
{
    for (int64_t n = 1; n <= 12; n++)
        RUN_OR_RETURN(ATTENTION(.heads = 2, .seqlen_q = n, .seqlen_k = 200, .d = 32, .scale = 0.2f,
                                .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT));
}

static void hd_1(void)
{
    static const int64_t sizes[] = {1,   3,   8,   40,  64,  72,  80,  88, 96,
                                    112, 128, 160, 192, 256, 320, 512, 576}; /* HD-3's */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t d = sizes[i];
        test_attention *a = ATTENTION(.seqlen_q = 1, .seqlen_k = 2, .d = d, .d_v = 1);
        test_fill(a->q, 0);
        test_fill(a->k, 0);
        test_put(a->q, d - 1, 1);
        test_put(a->k, d - 1, LN3);
        TEST_SET(a->v, 1, 0);
        RUN_OR_RETURN(a);
        EXPECT_O(a, 0.75);
        EXPECT_LSE(a, 1.38629436);
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* NAN-7 and the small rows of PERF-6, on every rung of softmax. */
START_TEST(softmax_rows)
{
    static const double rows[2][5] = {{8, 18, 28, 38, 48}, {-249.87, -424.13, -460.29, 378.10, -292.61}};
    static const double right[2][5] = {{4.248161e-18, 9.357198e-14, 2.061060e-9, 4.539787e-5, 0.99995460},
                                       {0, 0, 0, 1, 0}};
    static const int64_t widths[] = {1, 31, 32, 33, 8192, 32768, 102400, 1000003};
    const char *rung = test_softmax_algorithms[_i];
    test_softmax *s = test_softmax_new(KILN_OP_SOFTMAX_FORWARD, &(softmax_case){.rank = 2, .shape = {2, 5}});
    test_set(s->in, rows[0], 10);
    if (test_softmax_run(s, test_context(), rung) != KILN_OK)
        return;
    for (int64_t i = 0; i < 10; i++)
        TEST_REQUIRE(fabs(test_result(s->out, i) - right[i / 5][i % 5]) <= 3e-6 * right[i / 5][i % 5],
                     "NAN-7: y[%lld] is %.9g", (long long)i, test_result(s->out, i));
    ck_assert_double_eq_tol(test_result(s->lse, 0), 48.0000454, 4e-6);
    for (int w = 0; w < 8; w++) {
        if (test_left_out(10 * (double)widths[w]))
            continue;
        s = test_softmax_new(KILN_OP_SOFTMAX_FORWARD, &(softmax_case){.rank = 1, .shape = {widths[w]}});
        test_fill(s->in, 0);
        ck_assert_int_eq(test_softmax_run(s, test_context(), rung), KILN_OK);
        for (int64_t i = 0; i < widths[w]; i++)
            TEST_REQUIRE(fabs(test_result(s->out, i) * (double)widths[w] - 1) <= 1e-6, "PERF-6: N=%lld y[%lld] is %.9g",
                         (long long)widths[w], (long long)i, test_result(s->out, i));
        test_release_all();
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ concurrency */

/* CON-1, CON-2 on the CPU: two threads, one context, 200 calls each, workspaces of their own; o is the thread's id. */
enum { CON_KEYS = 700, CON_D = 16 };
static void *caller(void *user)
{
    const float id = *(const float *)user;
    static const int64_t shape_q[4] = {1, 2, 1, CON_D}, shape_k[4] = {1, 2, CON_KEYS, CON_D};
    kiln_device device = kiln_context_device(test_context());
    float *q = calloc(2 * CON_D, 4), *k = malloc(2 * CON_KEYS * CON_D * 4), *o = malloc(2 * CON_D * 4);
    bool right = q && k && o;
    for (int i = 0; right && i < 2 * CON_KEYS * CON_D; i++)
        k[i] = id;
    kiln_tensor tq = kiln_tensor_make(device, q, KILN_FLOAT32, 4, shape_q, NULL), to = tq;
    kiln_tensor tk = kiln_tensor_make(device, k, KILN_FLOAT32, 4, shape_k, NULL);
    to.data = o;
    kiln_attention_forward_args args = {
        .struct_size = sizeof args, .q = &tq, .k = &tk, .v = &tk, .o = &to, .num_splits = 4, .algorithm = algorithm};
    void *workspace = NULL;
    size_t bytes = 0;
    right = right && test_workspace(KILN_OP_ATTENTION_FORWARD, test_context(), &args, &bytes) == KILN_OK &&
            kiln_malloc(test_context(), bytes, &workspace) == KILN_OK;
    for (int n = 0; right && n < 200; n++) {
        memset(o, 0xff, 2 * CON_D * 4);
        right = test_call(KILN_OP_ATTENTION_FORWARD, test_context(), &args, workspace, bytes) == KILN_OK;
        for (int i = 0; right && i < 2 * CON_D; i++)
            right = fabsf(o[i] - id) <= 1e-6f * id;
    }
    kiln_free(test_context(), workspace);
    free(q);
    free(k);
    free(o);
    return right ? user : NULL;
}

START_TEST(con_1)
{
    static float ids[2] = {3, 7};
    pthread_t threads[2];
    char why[512] = "";
    algorithm = test_attention_algorithms[_i];
    test_attention *a = test_attention_new(&(attention_case){.seqlen_q = 1, .seqlen_k = 2, .d = 2});
    a->args.algorithm = algorithm;
    if (!test_on_cpu() ||
        test_refused(test_supported(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, why, sizeof why), algorithm,
                     why))
        return;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, caller, &ids[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        TEST_REQUIRE(result == &ids[i], "caller %d: wrong result or status", i);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------------ suite */

static const struct {
    const char *id;
    void (*run)(void);
} rows[] = {
    {"NAN-1", nan_1},     {"NAN-2", nan_2},   {"NAN-4", nan_4},     {"NAN-6", nan_6},   {"MASK-1", mask_1},
    {"MASK-2", mask_2},   {"MASK-4", mask_4}, {"MASK-7", mask_7},   {"MASK-8", mask_8}, {"MASK-10", mask_10},
    {"MASK-11", mask_11}, {"FMR-1", fmr_1},   {"FMR-2", fmr_2},     {"FMR-4", fmr_4},   {"FMR-5", fmr_5},
    {"STR-1", str_1},     {"STR-5", str_5},   {"STR-6", str_6},     {"GQA-1", gqa_1},   {"GQA-3", gqa_3},
    {"VAR-1", var_1},     {"VAR-2", var_2},   {"VAR-6", var_6},     {"VAR-8", var_8},   {"VAR-9", var_9},
    {"PAG-1", pag_1},     {"PAG-6", pag_6},   {"PAG-8", pag_8},     {"LSE-1", lse_1},   {"LSE-8", lse_8},
    {"DET-3", det_3},     {"DET-5", det_5},   {"HD-1, HD-3", hd_1},
};
enum { ROWS = sizeof rows / sizeof *rows };

START_TEST(row)
{
    static const int32_t types[3] = {KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16};
    for (int t = 0; t < 3; t++) {
        type = types[t];
        algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
        printf("%s\n", rows[_i / TEST_ATTENTION_ALGORITHMS].id);
        rows[_i / TEST_ATTENTION_ALGORITHMS].run();
        test_release_all();
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cases");
    TCase *t = test_tcase(s, "rows");
    tcase_add_loop_test(t, row, 0, ROWS * TEST_ATTENTION_ALGORITHMS);
    tcase_add_loop_test(t, softmax_rows, 0, TEST_SOFTMAX_ALGORITHMS);
    tcase_add_loop_test(t, con_1, 0, TEST_ATTENTION_ALGORITHMS);
    return s;
}

int main(void)
{
    return test_main(suite());
}
