/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* test_attention_merge.c: partial results joined, against the oracle; and split = whole through attention_forward. */
#include <stdio.h>

#include "../support/attention.h"
#include "../support/merge.h"

#define F16 KILN_FLOAT16
#define B16 KILN_BFLOAT16
#define F32 KILN_FLOAT32

/* clang-format off */
static const merge_case cases[] = {
    {1, 1, 1, 1, .parts = 1}, {1, 1, 1, 1, .parts = 2}, {2, 3, 5, 7, .parts = 1}, {2, 3, 5, 7, .parts = 2}, {2, 3, 5, 64, .parts = 3}, {1, 2, 40, 128, .parts = 8}, {1, 1, 3, 33, .parts = 70},
    {2, 3, 5, 576, .parts = 2}, {2, 3, 5, 64, .parts = 3, .type = F16}, {2, 3, 5, 64, .parts = 3, .type = B16}, {2, 3, 5, 64, .parts = 3, .type = F16, .part_type = F32}, {2, 3, 5, 33, .parts = 3, .type = B16, .part_type = F32},
    {2, 3, 5, 33, .parts = 4, .spread = 100}, {2, 3, 5, 33, .parts = 4, .spread = 1e4}, {2, 3, 5, 33, .parts = 4, .neutral = true}, {2, 3, 50, 33, .parts = 2, .neutral = true, .type = F16}, {2, 3, 50, 33, .parts = 1, .neutral = true},
    {2, 3, 5, 33, .parts = 3, .sinks = true}, {2, 3, 50, 33, .parts = 2, .sinks = true, .neutral = true}, {2, 3, 5, 33, .parts = 3, .no_lse = true}, {1, 3, 15, 33, .parts = 3, .packed = true}, {1, 3, 15, 33, .parts = 3, .packed = true, .sinks = true, .neutral = true},
    {2, 3, 5, 33, .parts = 3, .in_place = true}, {2, 3, 50, 33, .parts = 2, .in_place = true, .neutral = true}, {2, 3, 5, 33, .parts = 1, .in_place = true}, {2, 3, 5, 33, .parts = 3, .in_place = true, .type = F16, .part_strides = STRIDES_PADDED},
    {2, 3, 5, 33, .parts = 3, .part_strides = STRIDES_TRANSPOSED, .o_strides = STRIDES_REVERSED}, {2, 3, 5, 33, .parts = 3, .part_strides = STRIDES_INNER_STRIDE, .o_strides = STRIDES_TRANSPOSED}, {2, 3, 5, 33, .parts = 3, .part_strides = STRIDES_SEQ_FIRST, .o_strides = STRIDES_BYTE_OFFSET},
    {1, 1, 5, 33, .parts = 3, .part_strides = STRIDES_ODD_ONES, .o_strides = STRIDES_ODD_ONES}, {2, 3, 5, 33, .parts = 3, .part_strides = STRIDES_BROADCAST}, {2, 3, 5, 33, .parts = 3, .max_sms = 1}, {0, 3, 5, 33, .parts = 3}, {2, 3, 0, 33, .parts = 3},
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(table)
{
    (void)test_merge_run(test_merge_new(&cases[_i]), test_context());
}
END_TEST

START_TEST(equal_bits)
{
    test_merge *m = test_merge_new(&(merge_case){2, 4, 77, 64, .parts = 5});
    if (test_merge_run(m, test_context()) != KILN_OK)
        return;
    unsigned char *first = test_alloc(m->o->bytes);
    memcpy(first, m->o->got, m->o->bytes);
    for (int32_t threads = 1; threads <= 8; threads++) {
        ck_assert_int_eq(test_merge_run(m, test_context_threads(threads)), KILN_OK);
        TEST_REQUIRE(memcmp(first, m->o->got, m->o->bytes) == 0, "other bits with %d threads", threads);
    }
}
END_TEST

/* One part, and one part beside neutral ones, passes through bit for bit. */
START_TEST(pass_through)
{
    for (int32_t parts = 1; parts <= 4; parts++)
        for (int32_t keep = 0; keep < parts; keep++) {
            test_merge *m = test_merge_new(&(merge_case){1, 2, 9, 16, .parts = parts, .spread = 30});
            for (int32_t p = 0; p < parts; p++)
                if (p != keep) {
                    test_fill(m->o_part[p], NAN);
                    test_fill(m->lse_part[p], -INFINITY);
                }
            if (test_merge_run(m, test_context()) != KILN_OK)
                return;
            for (int64_t i = 0; i < m->o->count; i++)
                TEST_REQUIRE(test_result(m->o, i) == test_get(m->o_part[keep], i), "o[%lld] is not exactly part %d's",
                             (long long)i, keep);
            for (int64_t i = 0; i < m->lse->count; i++)
                TEST_REQUIRE(test_result(m->lse, i) == test_get(m->lse_part[keep], i), "lse[%lld] is not part %d's",
                             (long long)i, keep);
            test_release_all();
        }
}
END_TEST

/* Attention over halves of the keys, merged, is attention over all of them. */
START_TEST(split_is_whole)
{
    const int64_t q = 20, k = 90, cut = 37, d = 24;
    const attention_case whole_case = {.batch = 1,
                                       .heads = 2,
                                       .seqlen_q = q,
                                       .seqlen_k = k,
                                       .d = d,
                                       .mask = KILN_MASK_CAUSAL_TOP_LEFT,
                                       .q_start = 50,
                                       .seed = 4};
    test_attention *whole = test_attention_new(&whole_case);
    if (!test_attention_ran(whole, NULL))
        return;
    test_merge *m = test_merge_new(&(merge_case){1, 2, q, d, .parts = 2});
    for (int part = 0; part < 2; part++) {
        attention_case c = whole_case;
        c.seqlen_k = part ? k - cut : cut;
        c.k_start = part ? cut : 0;
        test_attention *a = test_attention_new(&c);
        for (int64_t i = 0; i < a->q->count; i++)
            test_put(a->q, i, test_get(whole->q, i));
        for (int64_t i = 0; i < a->k->count; i++) {
            int64_t head = i / (c.seqlen_k * d), from = i + (head * (k - c.seqlen_k) + c.k_start) * d;
            test_put(a->k, i, test_get(whole->k, from));
            test_put(a->v, i, test_get(whole->v, from));
        }
        ck_assert(test_attention_ran(a, NULL));
        for (int64_t i = 0; i < a->o->count; i++)
            test_put(m->o_part[part], i, test_result(a->o, i));
        for (int64_t i = 0; i < a->lse->count; i++)
            test_put(m->lse_part[part], i, test_result(a->lse, i));
    }
    if (test_merge_run(m, test_context()) != KILN_OK)
        return;
    for (int64_t i = 0; i < m->o->count; i++)
        TEST_REQUIRE(fabs(test_result(m->o, i) - whole->o_value[i]) <= 4 * whole->o_bound[i] + 1e-6,
                     "o[%lld] is %.9g merged and %.9g in one go", (long long)i, test_result(m->o, i),
                     whole->o_value[i]);
    for (int64_t i = 0; i < m->lse->count; i++)
        TEST_REQUIRE(fabs(test_result(m->lse, i) - whole->lse_value[i]) <= 4 * whole->lse_bound[i] + 1e-6,
                     "lse[%lld] is %.9g merged and %.9g in one go", (long long)i, test_result(m->lse, i),
                     whole->lse_value[i]);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("attention_merge");
    TCase *t = test_tcase(s, "merge");
    tcase_add_loop_test(t, table, 0, CASES);
    tcase_add_test(t, equal_bits);
    tcase_add_test(t, pass_through);
    tcase_add_test(t, split_is_whole);
    return s;
}

int main(void)
{
    return test_main(suite());
}
