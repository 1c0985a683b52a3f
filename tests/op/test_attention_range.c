/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_range.c: bf16 attention over the whole range of the type: denormals, numbers near fp32's end, maxima that
 * keep growing. Matrix units flush denormals and kernels let maxima lag, so this is where a bound breaks first. Also that
 * hidden keys leave no trace in the bits, whatever they hold, and that a caller's tile configuration survives a call.
 */
#include "../support/attention.h"

typedef enum range_data {
    DENORMAL_SOME,  /* one number in ten of q, k and v is tiny: 2^-133 ... 2^-40 */
    DENORMAL_V,     /* all of v is */
    DENORMAL_K,     /* all of k is, with q around 2^124: scores of ordinary size */
    DENORMAL_Q,     /* the reverse */
    HUGE_V,         /* one number in three of v is 2^85 ... 2^127, maxima grow slowly */
    GROWING,        /* scores grow along the keys, far past any lag of the maximum */
    SMALL_PRODUCTS, /* |v| around 2^-58 under weights that vary by e^80 */
    RANGE_DATA
} range_data;

static double power(int64_t least, int64_t most)
{
    return ldexp(test_integer(2) ? 1 : -1, (int)(least + test_integer(most - least + 1)));
}

/* Part: 0 q, 1 k, 2 v. */
static double draw(range_data data, int part, int64_t row)
{
    const double x = test_normal();
    switch (data) {
    case DENORMAL_SOME: return test_integer(10) == 0 ? power(-133, -40) : x;
    case DENORMAL_V: return part == 2 ? power(-133, -126) : x;
    case DENORMAL_K: return part == 0 ? ldexp(x, 124) : part == 1 ? ldexp(x, -125) : x;
    case DENORMAL_Q: return part == 0 ? ldexp(x, -125) : part == 1 ? ldexp(x, 124) : x;
    case HUGE_V:
        return part == 2 && test_integer(3) == 0 ? power(85, 127) : part == 1 ? x * (1 + (double)row / 100) : x;
    case GROWING: return part == 1 ? x * (1 + (double)row / 8) : x;
    default: return part == 2 ? ldexp(x, -58) : 4 * x;
    }
}

static void fill(test_tensor *t, range_data data, int part)
{
    const int64_t columns = t->shape[3], rows = t->shape[2];
    for (int64_t i = 0; i < t->count; i++)
        test_put(t, i, draw(data, part, i / columns % rows));
}

static test_attention *build(range_data data, int variant)
{
    attention_case c = {.batch = 1, .heads = 2, .heads_k = 1, .d = 64, .d_v = 64};
    c.seqlen_q = test_smaller(70, 20);
    c.seqlen_k = test_smaller(300, 150);
    c.type = KILN_BFLOAT16;
    c.o_type = variant & 1 ? KILN_FLOAT32 : 0;
    c.mask = variant & 2 ? KILN_MASK_CAUSAL_BOTTOM_RIGHT : KILN_MASK_NONE;
    c.d_v = variant & 2 ? 40 : 64;
    test_attention *a = test_attention_new(&c);
    fill(a->q, data, 0);
    fill(a->k, data, 1);
    fill(a->v, data, 2);
    return a;
}

START_TEST(range)
{
    const int test = _i / TEST_ATTENTION_ALGORITHMS;
    test_seed((uint64_t)test);
    test_attention *a = build((range_data)(test / 4), test % 4);
    (void)test_attention_ran(a, test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS]);
}
END_TEST

static const double *kept(const test_tensor *t)
{
    double *x = test_alloc((size_t)t->count * sizeof *x);
    for (int64_t i = 0; i < t->count; i++)
        x[i] = test_result(t, i);
    return x;
}

/* Rows that do not see the keys from `first` on have the same bits when those hold anything at all. */
START_TEST(hidden_leave_no_trace)
{
    enum { D = 64 };
    const int64_t first = test_smaller(150, 40), rows = test_smaller(200, 50), keys = test_smaller(300, 70);
    const char *algorithm = test_attention_algorithms[_i];
    const attention_case c = {.batch = 1,
                              .heads = 2,
                              .heads_k = 1,
                              .seqlen_q = rows,
                              .seqlen_k = keys,
                              .d = D,
                              .d_v = D,
                              .type = KILN_BFLOAT16,
                              .o_type = KILN_FLOAT32,
                              .mask = KILN_MASK_CAUSAL_TOP_LEFT};
    static const double wild[] = {NAN, INFINITY, -INFINITY, 0x1p-130, -0x1p-133, 0x1p127, 0x1p-70, 0x1p101};
    test_attention *a = test_attention_new(&c);
    if (!test_attention_ran(a, algorithm))
        return;
    const double *o = kept(a->o), *lse = kept(a->lse);
    test_attention *b = test_attention_new(&c);
    for (int64_t i = 0; i < b->k->count; i++) {
        const bool hidden = i / D % keys >= first;
        test_put(b->k, i, hidden ? wild[test_integer(8)] : test_get(a->k, i));
        test_put(b->v, i, hidden ? wild[test_integer(8)] : test_get(a->v, i));
    }
    ck_assert(test_attention_ran(b, algorithm));
    for (int64_t i = 0; i < a->lse->count; i++) {
        if (i % rows >= first)
            continue;
        bool equal = lse[i] == test_result(b->lse, i);
        for (int64_t j = 0; j < D; j++)
            equal = equal && o[i * D + j] == test_result(b->o, i * D + j);
        TEST_REQUIRE(equal, "%s: row %lld has other bits when keys that it does not see change",
                     test_algorithm_name(algorithm), (long long)i);
    }
}
END_TEST

/* Every visible score is -inf: such a row counts as empty, o = 0 whatever v holds, on every rung (0·Inf is NaN). */
START_TEST(all_scores_lowest)
{
    const attention_case c = {.batch = 1,
                              .heads = 2,
                              .heads_k = 1,
                              .seqlen_q = _i % 2 ? test_smaller(70, 33) : 1,
                              .seqlen_k = test_smaller(500, 100),
                              .d = 64,
                              .d_v = 64,
                              .type = _i % 4 < 2 ? KILN_FLOAT32 : KILN_BFLOAT16,
                              .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT};
    test_attention *a = test_attention_new(&c);
    for (int64_t i = 0; i < a->q->count; i++)
        test_put(a->q, i, 1);
    for (int64_t i = 0; i < a->k->count; i++) {
        test_put(a->k, i, -INFINITY);
        test_put(a->v, i, i % 3 ? INFINITY : NAN);
    }
    if (test_attention_ran(a, test_attention_algorithms[_i / 4]))
        ck_assert(test_result(a->o, 0) == 0 && test_result(a->lse, 0) == -INFINITY);
}
END_TEST

#if defined(__x86_64__) && defined(__linux__) && !defined(KILN_AMX_EMULATE)
/* A caller in the middle of its own tile work. */
START_TEST(tile_configuration)
{
    _Alignas(64) uint8_t own[64] = {1}, after[64];
    kiln_device_info info = {.struct_size = sizeof info};
    ck_assert_int_eq(kiln_context_info(test_context(), &info), KILN_OK);
    if (strcmp(info.architecture, "amx") != 0)
        return;
    own[16] = 32; /* tile 0: 5 rows of 32 bytes */
    own[48] = 5;
    test_attention *a = build(DENORMAL_SOME, 0);
    __asm__ __volatile__("ldtilecfg %0" : : "m"(own));
    (void)test_attention_ran(a, "flash2");
    __asm__ __volatile__("sttilecfg %0" : "=m"(after));
    __asm__ __volatile__("tilerelease");
    ck_assert_mem_eq(own, after, sizeof own);
    (void)test_attention_ran(a, "flash2");
    __asm__ __volatile__("sttilecfg %0" : "=m"(after));
    ck_assert_int_eq(after[0], 0);
}
END_TEST
#endif

static Suite *suite(void)
{
    Suite *s = suite_create("attention_range");
    TCase *t = test_tcase(s, "range");
    tcase_add_loop_test(t, range, 0, RANGE_DATA * 4 * TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "hidden");
    tcase_add_loop_test(t, hidden_leave_no_trace, 0, TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "lowest");
    tcase_add_loop_test(t, all_scores_lowest, 0, 4 * TEST_ATTENTION_ALGORITHMS);
#if defined(__x86_64__) && defined(__linux__) && !defined(KILN_AMX_EMULATE)
    t = test_tcase(s, "tiles");
    tcase_add_test(t, tile_configuration);
#endif
    return s;
}

int main(void)
{
    return test_main(suite());
}
