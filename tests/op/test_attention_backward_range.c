/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_backward_range.c: bf16 and fp16 gradients over the whole range of the type: denormals, tiny gradients, numbers
 * near the end. Matrix units flush denormals and round P and dS to 16 bits, so this is where a bound breaks first. Also that
 * hidden rows leave no trace in the bits, whatever they hold, and that a caller's tile configuration survives a call.
 */
#include "../support/gradients.h"

typedef enum range_data {
    TINY_SOME,   /* one number in ten of every input is tiny: 2^-133 ... 2^-40 (fp16: 2^-24 ... 2^-12) */
    TINY_DOUT,   /* all of do is around 2^-58 (2^-16): dS lies where results are flushed */
    TINY_ROWS,   /* one row in five of every input is denormal throughout */
    DENORMAL_K,  /* all of k is, with q around 2^124 (2^12): scores of ordinary size */
    HUGE_V,      /* one number in three of v is 2^40 ... 2^70 (2^6 ... 2^15: dS is beyond fp16) */
    HUGE_DOUT,   /* the same of do */
    HUGE_SCORES, /* lse beyond 2^20 in some rows */
    RANGE_DATA
} range_data;

enum { QUERIES, KEYS, VALUES, DOUT };

static double power(int64_t least, int64_t most)
{
    return ldexp(test_integer(2) ? 1 : -1, (int)(least + test_integer(most - least + 1)));
}

static double draw(range_data data, int part, int64_t row, bool half)
{
    const double x = test_normal();
    switch (data) {
    case TINY_SOME: return test_integer(10) > 0 ? x : half ? power(-24, -12) : power(-133, -40);
    case TINY_DOUT: return part == DOUT ? ldexp(x, half ? -16 : -58) : 4 * x;
    case TINY_ROWS: return row % 5 == 2 ? ldexp(x, half ? -18 : -128) : x;
    case DENORMAL_K:
        return part == QUERIES ? ldexp(x, half ? 12 : 124) : part == KEYS ? ldexp(x, half ? -16 : -125) : x;
    case HUGE_V: return part != VALUES || test_integer(3) > 0 ? x : half ? power(6, 15) : power(40, 70);
    case HUGE_DOUT: return part != DOUT || test_integer(3) > 0 ? x : half ? power(6, 15) : power(40, 70);
    default: return part <= KEYS && row % 3 == 0 ? 2048 * x : x;
    }
}

static void fill(test_tensor *t, range_data data, int part)
{
    const int64_t columns = t->shape[3], rows = t->shape[2];
    for (int64_t i = 0; i < t->count; i++)
        test_put(t, i, draw(data, part, i / columns % rows, t->type == KILN_FLOAT16));
}

static bool ran(test_gradients *g)
{
    char why[512] = "";
    return test_gradients_run(g, test_context(), why, sizeof why) == KILN_OK;
}

static test_gradients *build(range_data data, int variant, int32_t type)
{
    gradients_case c = {.forward = {.heads = 2, .heads_k = 1, .d = 64}};
    c.forward.seqlen_q = test_smaller(70, 20);
    c.forward.seqlen_k = test_smaller(300, 150);
    c.forward.type = type;
    c.forward.mask = variant & 1 ? KILN_MASK_CAUSAL_BOTTOM_RIGHT : KILN_MASK_NONE;
    c.forward.d_v = variant & 1 ? 40 : 64;
    c.type = variant & 2 ? KILN_FLOAT32 : 0;
    test_gradients *g = test_gradients_new(&c);
    fill(g->forward->q, data, QUERIES);
    fill(g->forward->k, data, KEYS);
    fill(g->forward->v, data, VALUES);
    fill(g->dout, data, DOUT);
    test_gradients_refresh(g);
    return g;
}

START_TEST(range)
{
    test_seed((uint64_t)_i);
    (void)ran(build((range_data)(_i / 4 % RANGE_DATA), _i % 4, _i / 4 < RANGE_DATA ? KILN_BFLOAT16 : KILN_FLOAT16));
}
END_TEST

static double *kept(const test_tensor *t)
{
    double *x = test_alloc((size_t)t->count * sizeof *x);
    for (int64_t i = 0; i < t->count; i++)
        x[i] = test_result(t, i);
    return x;
}

/*
 * Top-left causal: keys from `first` on are hidden from the queries before it, and these see no key past it. So when keys
 * from `first` on hold anything at all, dq of the rows before it has the same bits; when queries before it do, dk and
 * dv of the keys from `first` on have.
 */
START_TEST(hidden_leave_no_trace)
{
    enum { D = 64 };
    const int64_t first = test_smaller(150, 40), s = test_smaller(300, 80);
    static const double wild[] = {NAN, INFINITY, -INFINITY, 0x1p-130, -0x1p-133, 0x1p127, 0x1p-70, 0x1p101};
    const gradients_case c = {.forward = {.heads = 2,
                                          .heads_k = 1,
                                          .seqlen_q = s,
                                          .seqlen_k = s,
                                          .d = D,
                                          .type = KILN_BFLOAT16,
                                          .mask = KILN_MASK_CAUSAL_TOP_LEFT},
                              .type = KILN_FLOAT32};
    const bool keys = _i == 0;
    test_gradients *g = test_gradients_new(&c);
    if (!ran(g))
        return;
    double *clean[3];
    for (int t = 0; t < 3; t++)
        clean[t] = kept(g->out[t]);
    test_tensor *spoiled[] = {keys ? g->forward->k : g->forward->q, keys ? g->forward->v : g->dout};
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0; i < spoiled[t]->count; i++)
            if ((i / D % s >= first) == keys && test_integer(4) == 0)
                test_put(spoiled[t], i, wild[test_integer(8)]);
    test_gradients_refresh(g);
    ck_assert(ran(g));
    for (int t = 0; t < 3; t++)
        for (int64_t i = 0; i < g->out[t]->count; i++)
            TEST_REQUIRE((t == 0) != keys || (i / D % s < first) != keys || test_result(g->out[t], i) == clean[t][i],
                         "%s[%lld] has other bits when rows that it does not see change", gradients_name[t],
                         (long long)i);
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
    test_gradients *g = build(TINY_SOME, 0, KILN_BFLOAT16);
    ck_assert(ran(g)); /* whatever a first call sets up */
    __asm__ __volatile__("ldtilecfg %0" : : "m"(own));
    (void)ran(g);
    __asm__ __volatile__("sttilecfg %0" : "=m"(after));
    __asm__ __volatile__("tilerelease");
    ck_assert_mem_eq(own, after, sizeof own);
    (void)ran(g);
    __asm__ __volatile__("sttilecfg %0" : "=m"(after));
    ck_assert_int_eq(after[0], 0);
}
END_TEST
#endif

static Suite *suite(void)
{
    Suite *s = suite_create("attention_backward_range");
    TCase *t = test_tcase(s, "range");
    tcase_add_loop_test(t, range, 0, 2 * RANGE_DATA * 4);
    t = test_tcase(s, "hidden");
    tcase_add_loop_test(t, hidden_leave_no_trace, 0, 2);
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
