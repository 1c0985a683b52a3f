/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_attention_overflow.c: attention over values at the end of their type. A mean of finite values is finite, but the sum
 * of weights times values that it is made from leaves fp32's range after two keys. Also that visible infinities stay what
 * they are, and that a row which overflows changes no bit of the others, nor a tiny column next to a huge one.
 */
#include "../support/attention.h"

/* How the values of one column go along the keys. */
typedef enum column {
    COLUMN_POSITIVE,
    COLUMN_NEGATIVE,
    COLUMN_ALTERNATING,
    COLUMN_HALVES, /* sums overflow, then come back */
    COLUMN_RANDOM,
    COLUMN_TINY,     /* 2^-100 times normal (fp16: normal): small numbers keep their digits beside huge ones */
    COLUMN_INFINITE, /* one +Inf among the most negative */
    COLUMN_NAN,      /* one NaN among the largest */
    COLUMNS
} column;

static double largest(int32_t type)
{
    return type == KILN_FLOAT16 ? 65504 : type == KILN_BFLOAT16 ? 0x1.fep127 : 0x1.fffffep127;
}

static double value(column c, int32_t type, int64_t key, int64_t keys)
{
    const double most = largest(type);
    switch (c) {
    case COLUMN_POSITIVE: return most;
    case COLUMN_NEGATIVE: return -most;
    case COLUMN_ALTERNATING: return key % 2 ? -most : most;
    case COLUMN_HALVES: return key < keys / 2 ? most : -most;
    case COLUMN_RANDOM: return test_integer(2) ? most : -most;
    case COLUMN_INFINITE: return key == keys / 2 ? INFINITY : -most;
    case COLUMN_NAN: return key == keys / 2 ? NAN : most;
    default: return type == KILN_FLOAT16 ? test_normal() : ldexp(test_normal(), -100);
    }
}

/* The first `columns` kinds of column, in turn. */
static void fill_values(const test_attention *a, int columns)
{
    const int64_t d_v = a->v->shape[a->v->device.ndim - 1], keys = a->v->shape[a->v->device.ndim - 2];
    for (int64_t i = 0; i < a->v->count; i++)
        test_put(a->v, i, value((column)(i % d_v % columns), a->v->type, i / d_v % keys, keys));
}

#define SHAPE(b, h, hk, q, k, size)                                                                                    \
    .batch = (b), .heads = (h), .heads_k = (hk), .seqlen_q = (q), .seqlen_k = (k), .d = (size)
#define CAUSAL .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT

/* clang-format off */
static const attention_case cases[] = {
    {SHAPE(1, 1, 1, 1, 1, 16)}, {SHAPE(1, 1, 1, 1, 2, 16)}, {SHAPE(1, 1, 1, 1, 2, 16), .values = VALUES_ZERO},
    {SHAPE(1, 1, 1, 3, 400, 16), .values = VALUES_ZERO}, {SHAPE(2, 1, 1, 70, 400, 40)}, {SHAPE(1, 1, 1, 200, 400, 32), CAUSAL},
    {SHAPE(1, 4, 1, 70, 400, 64), CAUSAL}, {SHAPE(2, 6, 2, 3, 400, 33), CAUSAL}, {SHAPE(1, 4, 1, 16, 4097, 8)},
    {SHAPE(1, 4, 2, 1, 4097, 32)}, {SHAPE(1, 4, 2, 1, 4097, 16), .num_splits = 3}, {SHAPE(1, 1, 1, 5, 4097, 8), .num_splits = 1},
    {SHAPE(1, 1, 1, 5, 4097, 8), .num_splits = 40, CAUSAL, .values = VALUES_ZERO}, {SHAPE(1, 4, 1, 17, 4097, 8), .values = VALUES_ZERO, CAUSAL},
    {SHAPE(1, 2, 2, 70, 300, 16), .values = VALUES_OUTLIERS}, {SHAPE(1, 2, 2, 70, 300, 24), .sinks = true}, {SHAPE(1, 1, 1, 100, 300, 160), .d_v = 136},
    {SHAPE(1, 2, 1, 70, 300, 24), .q_strides = STRIDES_TRANSPOSED, .k_strides = STRIDES_TRANSPOSED, .v_strides = STRIDES_TRANSPOSED, .o_strides = STRIDES_TRANSPOSED},
    {SHAPE(3, 2, 2, 70, 300, 24), .page_size = 16, CAUSAL}, {SHAPE(3, 2, 2, 2, 900, 24), .page_size = 16, CAUSAL}, {SHAPE(3, 2, 2, 70, 300, 24), .packed_q = true, .packed_k = true},
    {SHAPE(1, 2, 2, 70, 300, 24), .mask_len = 200}, {SHAPE(1, 2, 2, 5, 300, 24), .bias = true},
};
/* clang-format on */
enum { CASES = sizeof cases / sizeof *cases, TYPES = 4 };

/* Slow backends take every third of (case, type, rung), so that each case meets each rung with some type. */
static bool left_out(int test)
{
    const int case_and_type = test / TEST_ATTENTION_ALGORITHMS % CASES + test / TEST_ATTENTION_ALGORITHMS / CASES;
    return (case_and_type + test % TEST_ATTENTION_ALGORITHMS) % 3 != 0 && test_left_out(INFINITY);
}

/* Type, and fp32 output of bf16. */
static attention_case typed(const attention_case *c, int type)
{
    static const int32_t types[TYPES] = {KILN_FLOAT32, KILN_BFLOAT16, KILN_BFLOAT16, KILN_FLOAT16};
    attention_case one = *c;
    one.type = types[type];
    one.seqlen_q = test_smaller(one.seqlen_q, 17);
    one.seqlen_k = test_smaller(one.seqlen_k, 150);
    one.mask_len = one.mask_len < one.seqlen_k ? one.mask_len : one.seqlen_k;
    one.o_type = type == 2 ? KILN_FLOAT32 : 0;
    return one;
}

/* Not only within the bound: finite, whatever rounding says. */
START_TEST(means)
{
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    const attention_case c =
        typed(&cases[_i / TEST_ATTENTION_ALGORITHMS % CASES], _i / TEST_ATTENTION_ALGORITHMS / CASES);
    if (left_out(_i))
        return;
    test_attention *a = test_attention_new(&c);
    fill_values(a, COLUMN_INFINITE);
    if (!test_attention_ran(a, algorithm))
        return;
    for (int64_t i = 0; i < a->o->count; i++)
        TEST_REQUIRE(isnan(a->o_value[i]) || isfinite(test_result(a->o, i)), "%s: o[%lld] is %g, exactly %g",
                     test_algorithm_name(algorithm), (long long)i, test_result(a->o, i), a->o_value[i]);
}
END_TEST

/* Visible Inf and NaN beside columns that overflow; and dropout, whose factor may leave the range in earnest. */
START_TEST(classes)
{
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    const int type = _i / TEST_ATTENTION_ALGORITHMS / CASES;
    attention_case c = typed(&cases[_i / TEST_ATTENTION_ALGORITHMS % CASES], type % TYPES);
    c.dropout_p = type < TYPES ? 0 : 0.3f;
    if (left_out(_i))
        return;
    test_attention *a = test_attention_new(&c);
    fill_values(a, COLUMNS);
    (void)test_attention_ran(a, algorithm);
}
END_TEST

/* Only the last row sees a second huge key, and overflows. The others have the bits that they have without it. */
START_TEST(neighbours)
{
    enum { HEADS = 2, D = 24 };
    const int64_t rows = test_smaller(70, 17), keys = test_smaller(500, 150);
    const char *algorithm = test_attention_algorithms[_i % TEST_ATTENTION_ALGORITHMS];
    const attention_case plain = {SHAPE(1, HEADS, 1, rows, keys, D), CAUSAL, .scale = 0.01f};
    const attention_case c = typed(&plain, _i / TEST_ATTENTION_ALGORITHMS);
    double *o = test_alloc((size_t)(HEADS * rows * D) * sizeof *o),
           *lse = test_alloc((size_t)(HEADS * rows) * sizeof *lse);
    for (int huge = 0; huge < 2; huge++) {
        test_attention *a = test_attention_new(&c);
        for (int64_t j = 0; j < D; j++) {
            test_put(a->v, (keys - 2) * D + j, largest(c.type));
            if (huge)
                test_put(a->v, (keys - 1) * D + j, largest(c.type));
        }
        if (!test_attention_ran(a, algorithm))
            return;
        for (int64_t i = 0; i < a->lse->count; i++) {
            bool equal = lse[i] == test_result(a->lse, i);
            lse[i] = test_result(a->lse, i);
            for (int64_t j = i * D; j < i * D + D; j++) {
                equal = equal && o[j] == test_result(a->o, j);
                o[j] = test_result(a->o, j);
            }
            TEST_REQUIRE(equal || !huge || i % rows == rows - 1, "%s: row %lld has other bits when another overflows",
                         test_algorithm_name(algorithm), (long long)i);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("attention_overflow");
    TCase *t = test_tcase(s, "means");
    tcase_add_loop_test(t, means, 0, TYPES * CASES * TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "classes");
    tcase_add_loop_test(t, classes, 0, (TYPES + 1) * CASES * TEST_ATTENTION_ALGORITHMS);
    t = test_tcase(s, "neighbours");
    tcase_add_loop_test(t, neighbours, 0, TYPES * TEST_ATTENTION_ALGORITHMS);
    return s;
}

int main(void)
{
    return test_main(suite());
}
