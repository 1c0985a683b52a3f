/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* test_softmax.c: softmax, log-softmax and log-sum-exp, forward and backward, against the oracle and in closed form. */
#include <stdio.h>

#include "../support/softmax.h"

#define F16 KILN_FLOAT16
#define B16 KILN_BFLOAT16
#define F32 KILN_FLOAT32

/* clang-format off */
static const softmax_case cases[] = {
    {.rank = 1, .shape = {1}}, {.rank = 1, .shape = {5}}, {.rank = 1, .shape = {1000}}, {.rank = 2, .shape = {3, 7}}, {.rank = 2, .shape = {5, 15}},
    {.rank = 2, .shape = {5, 16}}, {.rank = 2, .shape = {5, 17}}, {.rank = 2, .shape = {5, 64}}, {.rank = 2, .shape = {5, 127}}, {.rank = 2, .shape = {5, 1025}},
    {.rank = 2, .shape = {2, 8192}}, {.rank = 2, .shape = {2, 40001}}, {.rank = 2, .shape = {700, 3}}, {.rank = 2, .shape = {300, 1}},
    {.rank = 3, .shape = {3, 4, 33}}, {.rank = 4, .shape = {2, 3, 4, 33}}, {.rank = 8, .shape = {2, 1, 3, 1, 2, 2, 1, 9}},
    {.rank = 2, .shape = {9, 70}, .type = F16}, {.rank = 2, .shape = {9, 70}, .type = B16}, {.rank = 2, .shape = {9, 70}, .type = F16, .out_type = F32},
    {.rank = 2, .shape = {9, 70}, .type = F32, .out_type = B16}, {.rank = 2, .shape = {9, 70}, .type = B16, .out_type = F16}, {.rank = 2, .shape = {3, 5000}, .type = F16}, {.rank = 2, .shape = {3, 5000}, .type = B16},
    {.rank = 2, .shape = {9, 70}, .log = true}, {.rank = 2, .shape = {9, 70}, .log = true, .type = F16}, {.rank = 2, .shape = {9, 70}, .log = true, .type = B16, .scale = 3},
    {.rank = 2, .shape = {9, 70}, .scale = 0.25f}, {.rank = 2, .shape = {9, 70}, .scale = -2}, {.rank = 2, .shape = {9, 70}, .spread = 60}, {.rank = 2, .shape = {9, 70}, .spread = 60, .log = true},
    {.rank = 2, .shape = {9, 70}, .spread = 1e4}, {.rank = 2, .shape = {9, 700}, .spread = 1e-4}, {.rank = 2, .shape = {9, 70}, .spread = 1e4, .type = B16}, {.rank = 2, .shape = {9, 70}, .no_lse = true}, {.rank = 2, .shape = {9, 70}, .no_y = true},
    {.rank = 2, .shape = {9, 70}, .in_place = true}, {.rank = 2, .shape = {9, 70}, .in_place = true, .type = F16, .in_strides = STRIDES_PADDED}, {.rank = 2, .shape = {9, 70}, .in_place = true, .log = true, .in_strides = STRIDES_INNER_STRIDE},
    {.rank = 2, .shape = {12, 70}, .poison = true}, {.rank = 2, .shape = {12, 70}, .poison = true, .log = true}, {.rank = 2, .shape = {12, 7}, .poison = true, .type = F16}, {.rank = 2, .shape = {12, 1}, .poison = true}, {.rank = 2, .shape = {12, 333}, .poison = true, .type = B16, .log = true},
    {.rank = 3, .shape = {3, 4, 33}, .in_strides = STRIDES_PADDED, .out_strides = STRIDES_PADDED}, {.rank = 3, .shape = {3, 4, 33}, .in_strides = STRIDES_TRANSPOSED}, {.rank = 3, .shape = {3, 4, 33}, .out_strides = STRIDES_TRANSPOSED},
    {.rank = 3, .shape = {3, 4, 33}, .in_strides = STRIDES_REVERSED, .out_strides = STRIDES_INNER_STRIDE}, {.rank = 3, .shape = {3, 4, 33}, .in_strides = STRIDES_INNER_STRIDE, .out_strides = STRIDES_REVERSED}, {.rank = 3, .shape = {3, 4, 33}, .in_strides = STRIDES_BROADCAST, .out_strides = STRIDES_SEQ_FIRST},
    {.rank = 4, .shape = {2, 3, 4, 33}, .in_strides = STRIDES_SEQ_FIRST, .out_strides = STRIDES_BYTE_OFFSET}, {.rank = 4, .shape = {1, 3, 1, 33}, .in_strides = STRIDES_ODD_ONES, .out_strides = STRIDES_ODD_ONES}, {.rank = 2, .shape = {9, 70}, .in_strides = STRIDES_TRANSPOSED, .type = F16},
    {.rank = 2, .shape = {1, 1}, .in_strides = STRIDES_ODD_ONES, .out_strides = STRIDES_ODD_ONES}, {.rank = 2, .shape = {9, 70}, .max_sms = 1},
    {.rank = 2, .shape = {37, 5000}, .spread = 60}, {.rank = 2, .shape = {37, 5000}, .spread = 1e4, .type = B16}, {.rank = 2, .shape = {37, 5000}, .poison = true}, {.rank = 2, .shape = {37, 5000}, .poison = true, .type = B16},
    {.rank = 2, .shape = {37, 5000}, .poison = true, .log = true}, {.rank = 2, .shape = {37, 5000}, .in_place = true, .type = F16}, {.rank = 2, .shape = {37, 5000}, .spread = 60, .out_type = B16}, {.rank = 3, .shape = {3, 13, 2500}, .in_strides = STRIDES_INNER_STRIDE, .out_strides = STRIDES_SEQ_FIRST},
    {.rank = 2, .shape = {40, 70}, .poison = true, .type = B16}, {.rank = 2, .shape = {40, 64}, .type = B16, .spread = 60}, {.rank = 2, .shape = {40, 64}, .no_y = true}, {.rank = 3, .shape = {7, 5, 48}, .in_strides = STRIDES_SEQ_FIRST, .type = B16},
    {.rank = 2, .shape = {61, 1}, .poison = true, .log = true}, {.rank = 2, .shape = {61, 1}, .poison = true, .type = B16, .scale = -2}, {.rank = 2, .shape = {61, 1}, .type = F16, .in_place = true}, {.rank = 2, .shape = {61, 1}, .log = true, .no_y = true, .out_type = F32},
    /* Around the longest rows of 4, 8, ... 256 threads, with heads that move on from row to row, or differ between input and output. */
    {.rank = 2, .shape = {37, 129}}, {.rank = 2, .shape = {37, 255}, .type = B16, .log = true}, {.rank = 2, .shape = {19, 513}, .type = F16}, {.rank = 2, .shape = {9, 1023}, .in_strides = STRIDES_PADDED, .out_strides = STRIDES_PADDED},
    {.rank = 2, .shape = {9, 2047}, .type = B16}, {.rank = 2, .shape = {9, 2049}, .poison = true}, {.rank = 2, .shape = {9, 4097}, .log = true, .poison = true}, {.rank = 2, .shape = {9, 4096}, .type = B16, .spread = 60}, {.rank = 2, .shape = {5, 4095}, .in_strides = STRIDES_PADDED},
    {.rank = 2, .shape = {9, 8191}, .spread = 1e4}, {.rank = 2, .shape = {5, 8193}, .type = F16, .in_strides = STRIDES_PADDED, .out_strides = STRIDES_PADDED}, {.rank = 2, .shape = {9, 16383}, .type = B16, .poison = true}, {.rank = 2, .shape = {9, 1025}, .invariant = true}, {.rank = 2, .shape = {9, 2049}, .scale = -2},
    {.rank = 3, .shape = {3, 5, 1027}, .in_strides = STRIDES_BYTE_OFFSET, .out_strides = STRIDES_BYTE_OFFSET}, {.rank = 3, .shape = {3, 5, 2051}, .in_strides = STRIDES_SEQ_FIRST, .type = B16}, {.rank = 2, .shape = {9, 3001}, .spread = 60}, {.rank = 2, .shape = {9, 6001}, .spread = 60, .type = B16},
    /* Rows that several blocks share: around the borders of their pieces (of 4096, 8192 or 16384 columns). */
    {.rank = 2, .shape = {1, 40959}}, {.rank = 1, .shape = {40960}}, {.rank = 2, .shape = {2, 40961}, .in_strides = STRIDES_PADDED}, {.rank = 2, .shape = {2, 81919}, .type = B16}, {.rank = 2, .shape = {2, 81920}, .type = F16}, {.rank = 2, .shape = {3, 81921}, .type = B16},
    {.rank = 2, .shape = {3, 81923}, .type = B16, .in_strides = STRIDES_PADDED, .out_strides = STRIDES_PADDED}, {.rank = 2, .shape = {3, 40961}, .in_strides = STRIDES_PADDED, .out_strides = STRIDES_BYTE_OFFSET}, {.rank = 3, .shape = {2, 2, 40962}, .in_strides = STRIDES_SEQ_FIRST, .out_strides = STRIDES_BROADCAST}, {.rank = 3, .shape = {2, 2, 40962}, .in_strides = STRIDES_BROADCAST},
    {.rank = 6, .shape = {2, 1, 2, 1, 2, 40001}}, {.rank = 2, .shape = {6, 40961}, .poison = true}, {.rank = 2, .shape = {6, 40961}, .poison = true, .log = true}, {.rank = 2, .shape = {6, 81921}, .poison = true, .type = B16, .scale = -2}, {.rank = 2, .shape = {3, 40963}, .in_place = true}, {.rank = 2, .shape = {3, 81927}, .in_place = true, .type = F16, .log = true, .in_strides = STRIDES_PADDED},
    {.rank = 2, .shape = {3, 40961}, .no_y = true}, {.rank = 2, .shape = {3, 40961}, .no_lse = true, .spread = 1e4}, {.rank = 2, .shape = {3, 81921}, .spread = 60, .type = F16}, {.rank = 2, .shape = {3, 40961}, .max_sms = 1}, {.rank = 2, .shape = {3, 40961}, .max_sms = 3, .scale = 0.25f}, {.rank = 2, .shape = {2, 40961}, .invariant = true}, {.rank = 2, .shape = {1, 300001}, .spread = 60},
    {.rank = 2, .shape = {20, 8193}}, {.rank = 2, .shape = {9, 16385}, .type = B16}, {.rank = 2, .shape = {5, 20000}, .type = F16, .invariant = true},
    /* 16 bits in and out, no lse: the way straight from the words */
    {.rank = 2, .shape = {37, 95}, .type = B16, .no_lse = true}, {.rank = 2, .shape = {37, 95}, .type = F16, .no_lse = true, .spread = 60}, {.rank = 2, .shape = {40, 64}, .type = B16, .no_lse = true, .spread = 60},
    {.rank = 2, .shape = {40, 333}, .type = B16, .no_lse = true, .poison = true}, {.rank = 2, .shape = {40, 333}, .type = F16, .no_lse = true, .poison = true}, {.rank = 2, .shape = {40, 9}, .type = B16, .no_lse = true, .poison = true},
    {.rank = 2, .shape = {37, 5000}, .type = B16, .no_lse = true, .poison = true}, {.rank = 2, .shape = {3, 5000}, .type = F16, .no_lse = true, .spread = 1e3}, {.rank = 2, .shape = {37, 2049}, .type = F16, .no_lse = true, .in_place = true},
    {.rank = 2, .shape = {37, 2049}, .type = B16, .in_place = true, .in_strides = STRIDES_PADDED}, {.rank = 3, .shape = {7, 5, 48}, .in_strides = STRIDES_SEQ_FIRST, .out_strides = STRIDES_REVERSED, .type = B16, .no_lse = true},
    {.rank = 2, .shape = {61, 1}, .type = B16, .no_lse = true, .poison = true}, {.rank = 2, .shape = {9, 70}, .type = F16, .no_lse = true, .scale = 3}, {.rank = 2, .shape = {9, 70}, .type = F32, .out_type = B16, .no_lse = true},
    {.rank = 2, .shape = {0, 70}}, {.rank = 2, .shape = {9, 0}}, {.rank = 3, .shape = {3, 0, 0}}, {.rank = 1, .shape = {0}}, {.rank = 2, .shape = {9, 0}, .log = true, .no_y = true},
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(forward)
{
    test_softmax *s = test_softmax_new(KILN_OP_SOFTMAX_FORWARD, &cases[_i % CASES]);
    const char *algorithm = test_softmax_algorithms[_i / CASES];
    /* Slow backends: what is not small on every second rung, in turn; each feature has neighbours in the table. */
    if ((_i % CASES + _i / CASES) % 2 && test_left_out(20. * (double)s->in->count))
        return;
    kiln_status status = test_softmax_run(s, test_context(), algorithm);
    TEST_REQUIRE(status == KILN_OK || algorithm || !test_on_cpu(), "auto refuses a plain softmax");
}
END_TEST

START_TEST(backward)
{
    const softmax_case *c = &cases[_i];
    if (c->no_y || c->poison) /* forward's only */
        return;
    (void)test_softmax_run(test_softmax_new(KILN_OP_SOFTMAX_BACKWARD, c), test_context(), NULL);
}
END_TEST

/* Every width around every vector: equal inputs give 1/n and lse = x + ln n. */
START_TEST(widths)
{
    static const int32_t types[3] = {F32, F16, B16};
    const char *algorithm = test_softmax_algorithms[_i % TEST_SOFTMAX_ALGORITHMS];
    for (int64_t n = 1; n <= 300; n++) {
        test_softmax *s = test_softmax_new(
            KILN_OP_SOFTMAX_FORWARD,
            &(softmax_case){.rank = 2, .shape = {3, n}, .type = types[_i / TEST_SOFTMAX_ALGORITHMS], .out_type = F32});
        test_fill(s->in, -2);
        if (test_softmax_run(s, test_context(), algorithm) != KILN_OK)
            return;
        for (int64_t i = 0; i < s->out->count; i++)
            ck_assert_double_eq_tol(test_result(s->out, i), 1 / (double)n, 3e-7 / (double)n);
        for (int64_t i = 0; i < 3; i++)
            ck_assert_double_eq_tol(test_result(s->lse, i), -2 + log((double)n), 1e-6);
        test_release_all();
    }
}
END_TEST

/* Maxima of rows of 16 bits are found on their words: of either sign, a zero of either sign, -inf beside it, at any place. */
START_TEST(words)
{
    static const double top[] = {3, 1e-40, 0.0, -0.0, -1e-40, -2, -60000}, rest[] = {-0.0, -3, -65000, -INFINITY};
    const char *algorithm = test_softmax_algorithms[_i % TEST_SOFTMAX_ALGORITHMS];
    const int64_t tops = sizeof top / sizeof *top, kinds = tops * (int64_t)(sizeof rest / sizeof *rest);
    for (int64_t n = 1; n <= 2200; n += n < 70 ? 1 : 531) {
        test_softmax *s = test_softmax_new(KILN_OP_SOFTMAX_FORWARD,
                                           &(softmax_case){.rank = 2,
                                                           .shape = {kinds, n},
                                                           .type = _i / TEST_SOFTMAX_ALGORITHMS % 2 ? B16 : F16,
                                                           .no_lse = _i / TEST_SOFTMAX_ALGORITHMS / 2 != 0});
        for (int64_t r = 0; r < kinds; r++)
            for (int64_t j = 0; j < n; j++)
                test_put(s->in, r * n + j, j == (7 * r + n / 2) % n ? top[r % tops] : rest[r / tops]);
        if (test_softmax_run(s, test_context(), algorithm) != KILN_OK)
            return;
        test_release_all();
    }
}
END_TEST

START_TEST(equal_bits)
{
    static const softmax_case shapes[] = {{.rank = 2, .shape = {37, 999}},
                                          {.rank = 2, .shape = {37, 999}, .type = B16, .no_lse = true},
                                          {.rank = 2, .shape = {5, 300001}, .type = B16, .no_lse = true},
                                          {.rank = 2, .shape = {3, 100003}, .type = F16},
                                          {.rank = 3, .shape = {3, 5, 77}, .in_strides = STRIDES_TRANSPOSED}};
    const char *algorithm = test_softmax_algorithms[_i % TEST_SOFTMAX_ALGORITHMS];
    test_softmax *s = test_softmax_new(KILN_OP_SOFTMAX_FORWARD, &shapes[_i / TEST_SOFTMAX_ALGORITHMS]);
    if (test_softmax_run(s, test_context(), algorithm) != KILN_OK)
        return;
    unsigned char *first = test_alloc(s->out->bytes);
    memcpy(first, s->out->got, s->out->bytes);
    const int64_t most = test_smaller(8, 1); /* emulated devices have no threads */
    for (int32_t threads = 1; threads <= most; threads++) {
        ck_assert_int_eq(test_softmax_run(s, test_context_threads(threads), algorithm), KILN_OK);
        TEST_REQUIRE(memcmp(first, s->out->got, s->out->bytes) == 0, "other bits with %d threads", threads);
    }
}
END_TEST

/* scale, LOG and lse are not ignored: forward and backward differ from the plain call. */
START_TEST(every_argument)
{
    double plain[2] = {NAN, NAN};
    for (int variant = 0; variant < 3; variant++) {
        softmax_case c = {.rank = 2, .shape = {1, 9}, .scale = variant == 1 ? 2 : 0, .log = variant == 2};
        for (int pass = 0; pass < 2; pass++) {
            test_softmax *s = test_softmax_new(pass ? KILN_OP_SOFTMAX_BACKWARD : KILN_OP_SOFTMAX_FORWARD, &c);
            if (test_softmax_run(s, test_context(), NULL) != KILN_OK)
                continue;
            double first = test_result(s->out, 0);
            if (variant == 0)
                plain[pass] = first;
            ck_assert(variant == 0 || fabs(first - plain[pass]) > 1e-4);
        }
    }
}
END_TEST

/* I32-6: 65537 rows of 65536 zeros, 8.6 GB of output: every value is 2^-16 exactly. */
START_TEST(offsets_beyond_32_bits)
{
    const int64_t rows = 65537, n = 65536;
    void *y = NULL, *workspace = NULL;
    size_t bytes = 0;
    uint16_t zero = 0, last[2];
    kiln_tensor x = kiln_tensor_make(kiln_context_device(test_context()), NULL, F16, 2, (const int64_t[]){rows, n},
                                     (const int64_t[]){0, 0});
    kiln_tensor out = kiln_tensor_make(x.device, NULL, F16, 2, x.shape, NULL);
    if (!test_has_memory((size_t)(rows * n) * 2))
        return;
    TEST_REQUIRE(kiln_malloc(test_context(), (size_t)(rows * n) * 2, &y) == KILN_OK, "%s", kiln_last_error());
    ck_assert_int_eq(kiln_malloc(test_context(), 256, &x.data), KILN_OK);
    ck_assert_int_eq(kiln_copy(test_context(), x.data, &zero, 2, NULL), KILN_OK);
    out.data = y;
    kiln_softmax_forward_args args = {.struct_size = sizeof args, .x = &x, .y = &out};
    ck_assert_int_eq(test_workspace(KILN_OP_SOFTMAX_FORWARD, test_context(), &args, &bytes), KILN_OK);
    ck_assert_int_eq(kiln_malloc(test_context(), bytes, &workspace), KILN_OK);
    TEST_REQUIRE(test_call(KILN_OP_SOFTMAX_FORWARD, test_context(), &args, workspace, bytes) == KILN_OK, "%s",
                 kiln_last_error());
    for (int64_t row = 0; row < rows; row += row < rows - 64 ? 63 : 1) {
        ck_assert_int_eq(kiln_copy(test_context(), &last[0], (char *)y + 2 * row * n, 2, NULL), KILN_OK);
        ck_assert_int_eq(kiln_copy(test_context(), &last[1], (char *)y + 2 * (row * n + n - 1), 2, NULL), KILN_OK);
        ck_assert(kiln_f16_to_float(last[0]) == 0x1p-16f && kiln_f16_to_float(last[1]) == 0x1p-16f);
    }
    kiln_free(test_context(), workspace);
    kiln_free(test_context(), y);
    kiln_free(test_context(), x.data);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("softmax");
    TCase *t = test_tcase(s, "forward");
    tcase_add_loop_test(t, forward, 0, CASES * TEST_SOFTMAX_ALGORITHMS);
    tcase_add_loop_test(t, equal_bits, 0, 5 * TEST_SOFTMAX_ALGORITHMS);
    t = test_tcase(s, "widths");
    tcase_add_loop_test(t, widths, 0, 3 * TEST_SOFTMAX_ALGORITHMS);
    tcase_add_loop_test(t, words, 0, 4 * TEST_SOFTMAX_ALGORITHMS);
    t = test_tcase(s, "backward");
    tcase_add_loop_test(t, backward, 0, CASES);
    tcase_add_test(t, every_argument);
    if (test_slow()) {
        t = test_tcase(s, "slow");
        tcase_add_test(t, offsets_beyond_32_bits);
    }
    return s;
}

int main(void)
{
    return test_main(suite());
}
