/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_oracle_common.c: what the oracle stands on: the random generator and the dropout mask against published numbers,
 * the judgement of an element, and how bounds end (half an ulp, overflow).
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "../../common/philox.h"
#include "oracle_case.h"

/* Known answers of Random123 (kat_vectors, philox4x32-10). */
START_TEST(philox_known_answers)
{
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int n = 0; n < 3; n++) {
        const uint32_t *k = kat[n];
        kiln_philox_words w = kiln_philox4x32_10((kiln_philox_words){{k[0], k[1], k[2], k[3]}}, k[4], k[5]);
        for (int i = 0; i < 4; i++)
            ck_assert_uint_eq(w.word[i], k[6 + i]);
    }
}
END_TEST

/* The same answers through Kiln's scheme: each field of the counter and the key stands where kiln.h says. */
START_TEST(dropout_layout)
{
    uint64_t offset = 0x03707344, seed = (uint64_t)0x299f31d0 << 32 | 0xa4093822;
    kiln_philox_words w = kiln_dropout_words(seed, offset, 0x13198a2e, 0x85a308d3, 0x243f6a88);
    ck_assert_uint_eq(w.word[0], 0xd16cfe09);
    ck_assert_uint_eq(kiln_dropout_byte(w, 0), 0x09);
    ck_assert_uint_eq(kiln_dropout_byte(w, 3), 0xd1);
    ck_assert_uint_eq(kiln_dropout_byte(w, 4), 0xeb);
    ck_assert_uint_eq(kiln_dropout_byte(w, 15), 0x24);
    /* the offset's upper half goes into the key */
    uint64_t high = (uint64_t)0x1234 << 32;
    kiln_philox_words a = kiln_dropout_words(seed, offset | high, 1, 2, 3),
                      b = kiln_dropout_words(seed ^ high, offset, 1, 2, 3);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(a.word[i], b.word[i]);
    ck_assert_uint_eq(kiln_dropout_threshold(0), 256);
    ck_assert_uint_eq(kiln_dropout_threshold(0.5f), 128);
    ck_assert_uint_eq(kiln_dropout_threshold(0.1f), 230);
    ck_assert_uint_eq(kiln_dropout_threshold(0.999f), 0);
}
END_TEST

/*
 * The test vector of Kiln's dropout: seed 0x0123456789abcdef, offset 42, p = 0.5, batch 0 of 1, head 1 of 2, causal
 * top-left positions, queries 0...3 against keys 0...31. '1' = kept. Taken through attention: q = 0, v = one-hot.
 */
START_TEST(dropout_mask_vector)
{
    static const char *const mask[4] = {"00110101101101111000000011000011", "11100101110000010111101110001011",
                                        "00100011101110000111010001111001", "10101100010000010011001000110111"};
    oracle_case c = {.batch = 1,
                     .heads = 2,
                     .heads_k = 1,
                     .seqlen_q = 4,
                     .seqlen_k = 32,
                     .d = 1,
                     .d_v = 32,
                     .dropout_p = 0.5f,
                     .mask = KILN_MASK_WINDOW_TOP_LEFT,
                     .left = KILN_UNBOUNDED,
                     .right = KILN_UNBOUNDED};
    oracle_problem *p = oracle_problem_new(&c);
    uint64_t seed = 0x0123456789abcdefu, offset = 42;
    p->args.dropout_seed_ptr = &seed;
    p->args.dropout_offset_ptr = &offset;
    for (int64_t i = 0; i < p->q->count; i++)
        oracle_put(p->q, i, 0);
    for (int64_t i = 0; i < p->v->count; i++)
        oracle_put(p->v, i, i / 32 == i % 32);
    kiln_oracle_attention out = {oracle_output(p->o->count), oracle_output(p->lse->count)};
    ck_assert_int_eq(kiln_oracle_attention_forward(&p->args, &oracle_float_numerics, &out), KILN_OK);
    for (int i = 0; i < 4; i++) {
        char got[33] = {0};
        for (int j = 0; j < 32; j++) {
            double o = out.o.value[(4 + i) * 32 + j];
            ck_assert(o == 0 || fabs(o - 2.0 / 32) < 1e-12);
            got[j] = o > 0 ? '1' : '0';
        }
        ck_assert_str_eq(got, mask[i]);
    }
}
END_TEST

START_TEST(acceptance)
{
    ck_assert(kiln_oracle_accepts(1.5, 1, 0.5));
    ck_assert(!kiln_oracle_accepts(1.5000001, 1, 0.5));
    ck_assert(!kiln_oracle_accepts(NAN, 1, 0.5));
    ck_assert(!kiln_oracle_accepts(NAN, 1, INFINITY));
    ck_assert(!kiln_oracle_accepts(INFINITY, 1, 0.5));
    ck_assert(!kiln_oracle_accepts(INFINITY, 1, INFINITY));
    ck_assert(kiln_oracle_accepts(1e30, 1, INFINITY));
    ck_assert(kiln_oracle_accepts(NAN, NAN, 0));
    ck_assert(!kiln_oracle_accepts(0, NAN, 0));
    ck_assert(!kiln_oracle_accepts(INFINITY, NAN, 0));
    ck_assert(kiln_oracle_accepts(-INFINITY, -INFINITY, 0));
    ck_assert(!kiln_oracle_accepts(INFINITY, -INFINITY, 0));
    ck_assert(!kiln_oracle_accepts(-3e38, -INFINITY, 0));
    ck_assert(!kiln_oracle_accepts(NAN, INFINITY, 0));
    ck_assert(kiln_oracle_accepts(NAN, INFINITY, INFINITY));
    ck_assert(kiln_oracle_accepts(INFINITY, INFINITY, INFINITY));
    ck_assert(!kiln_oracle_accepts(-INFINITY, INFINITY, INFINITY));
    /* a negative bound: also the infinity nearby */
    ck_assert(kiln_oracle_accepts(INFINITY, 65519, -20));
    ck_assert(kiln_oracle_accepts(65504, 65519, -20));
    ck_assert(!kiln_oracle_accepts(65472, 65519, -20));
    ck_assert(!kiln_oracle_accepts(-INFINITY, 65519, -20));
    ck_assert(!kiln_oracle_accepts(NAN, 65519, -20));
    /* untouched elements have no right value */
    ck_assert(!kiln_oracle_accepts(NAN, NAN, NAN));
    ck_assert(!kiln_oracle_accepts(1, NAN, NAN));
    ck_assert(kiln_oracle_untouched(NAN, NAN));
    ck_assert(!kiln_oracle_untouched(NAN, 0));
    ck_assert(!kiln_oracle_untouched(0, 0));
}
END_TEST

/* One key: o = v. With numerics that make no error what is left of the bound is the rounding of the output. */
static void one_value(int32_t type, double v, kiln_numerics numerics, double *value, double *bound)
{
    int64_t shape[4] = {1, 1, 1, 1};
    oracle_tensor *zero = oracle_tensor_new(KILN_FLOAT64, 4, shape, false);
    oracle_tensor *v_tensor = oracle_tensor_new(KILN_FLOAT64, 4, shape, false),
                  *o = oracle_tensor_new(type, 4, shape, false);
    oracle_put(zero, 0, 0);
    oracle_put(v_tensor, 0, v);
    kiln_attention_forward_args args = {
        .struct_size = sizeof args, .q = &zero->tensor, .k = &zero->tensor, .v = &v_tensor->tensor, .o = &o->tensor};
    kiln_oracle_attention out = {{value, bound}, {NULL, NULL}};
    ck_assert_int_eq(kiln_oracle_attention_forward(&args, &numerics, &out), KILN_OK);
}

START_TEST(half_an_ulp)
{
    static const struct {
        int32_t type;
        double v, half;
    } row[] = {
        {KILN_FLOAT32, 1, 0x1p-24},         {KILN_FLOAT32, 1.99, 0x1p-24},    {KILN_FLOAT32, 2, 0x1p-23},
        {KILN_FLOAT32, 0x1p-140, 0x1p-150}, {KILN_FLOAT32, 0, 0x1p-150},      {KILN_FLOAT16, 1, 0x1p-11},
        {KILN_FLOAT16, 1000, 0.25},         {KILN_FLOAT16, 0x1p-20, 0x1p-25}, {KILN_FLOAT16, 0, 0x1p-25},
        {KILN_BFLOAT16, -1, 0x1p-8},        {KILN_BFLOAT16, 300, 1},          {KILN_BFLOAT16, 0x1p-130, 0x1p-134},
        {KILN_FLOAT64, 1, 0x1p-53},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        double value, bound;
        one_value(row[i].type, row[i].v, (kiln_numerics){.unit = 0}, &value, &bound);
        ck_assert_double_eq(value, row[i].v);
        ck_assert_double_eq_tol(bound, row[i].half, row[i].half * 1e-6 + 0x1p-149);
    }
}
END_TEST

START_TEST(overflow_of_the_output)
{
    kiln_numerics exact = {.unit = 0}, coarse = {.unit = 0x1p-20};
    double value, bound;
    one_value(KILN_FLOAT16, 65519.9, exact, &value, &bound);
    ck_assert(value == 65519.9 && bound > 0 && kiln_oracle_accepts(65504, value, bound));
    one_value(KILN_FLOAT16, -65520, exact, &value, &bound);
    ck_assert(value == -INFINITY && bound == 0);
    one_value(KILN_FLOAT16, 65519.99, coarse, &value, &bound);
    ck_assert(value == 65519.99 && bound < 0);
    ck_assert(kiln_oracle_accepts(INFINITY, value, bound) && kiln_oracle_accepts(65504, value, bound));
    ck_assert(!kiln_oracle_accepts(-INFINITY, value, bound) && !kiln_oracle_accepts(65000, value, bound));
    one_value(KILN_FLOAT16, 70000, coarse, &value, &bound);
    ck_assert(value == INFINITY && bound == 0);
    one_value(KILN_BFLOAT16, 0x1.ffp127, exact, &value, &bound);
    ck_assert(value == INFINITY);
    one_value(KILN_BFLOAT16, 0x1.fep127, exact, &value, &bound);
    ck_assert(isfinite(value) && bound > 0);
    one_value(KILN_FLOAT32, 0x1.fffffep127, exact, &value, &bound);
    ck_assert(isfinite(value) && bound > 0);
    one_value(KILN_FLOAT32, -0x1p128, exact, &value, &bound);
    ck_assert(value == -INFINITY);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle_common");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, NULL, oracle_release);
    tcase_add_test(tc, philox_known_answers);
    tcase_add_test(tc, dropout_layout);
    tcase_add_test(tc, dropout_mask_vector);
    tcase_add_test(tc, acceptance);
    tcase_add_test(tc, half_an_ulp);
    tcase_add_test(tc, overflow_of_the_output);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
