/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_convert.c: fp16, bf16 and fp8 against tables that are built by counting up, last place by last place, not by taking
 * bits apart. Every value of each type; and for every neighbouring pair the midpoint (ties to even) and its neighbours.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "../../common/convert.h"

typedef struct format {
    const char *name;
    int mantissa_bits;
    int first_place;  /* the last place of a subnormal is 2^first_place */
    uint32_t largest; /* bits of the largest finite value */
    uint32_t past;    /* bits of what lies beyond it: infinity, or `largest` itself where conversion saturates */
    uint32_t sign;    /* sign bit */
    float (*decode)(uint32_t bits);
    uint32_t (*encode)(float x);
} format;

static float decode_f16(uint32_t bits)
{
    return kiln_f16_to_float((uint16_t)bits);
}
static uint32_t encode_f16(float x)
{
    return kiln_f16_from_float(x);
}
static float decode_bf16(uint32_t bits)
{
    return kiln_bf16_to_float((uint16_t)bits);
}
static uint32_t encode_bf16(float x)
{
    return kiln_bf16_from_float(x);
}
static float decode_e4m3fn(uint32_t bits)
{
    return kiln_e4m3fn_to_float((uint8_t)bits);
}
static uint32_t encode_e4m3fn(float x)
{
    return kiln_e4m3fn_from_float(x);
}
static float decode_e5m2(uint32_t bits)
{
    return kiln_e5m2_to_float((uint8_t)bits);
}
static uint32_t encode_e5m2(float x)
{
    return kiln_e5m2_from_float(x);
}

static const format formats[] = {
    {"fp16", 10, -24, 0x7bff, 0x7c00, 0x8000, decode_f16, encode_f16},
    {"bf16", 7, -133, 0x7f7f, 0x7f80, 0x8000, decode_bf16, encode_bf16},
    {"e4m3fn", 3, -9, 0x7e, 0x7e, 0x80, decode_e4m3fn, encode_e4m3fn},
    {"e5m2", 2, -16, 0x7b, 0x7b, 0x80, decode_e5m2, encode_e5m2},
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* The non-negative finite values in order of their bits: each is the one before plus the last place there. */
static double *build_table(const format *f)
{
    double *table = malloc((f->largest + 2) * sizeof *table), place = ldexp(1, f->first_place);
    ck_assert_ptr_nonnull(table);
    table[0] = 0;
    for (uint32_t bits = 1; bits <= f->largest + 1; bits++) { /* one past the largest: where it would go on */
        uint32_t before = bits - 1, binade = UINT32_C(1) << f->mantissa_bits;
        if (before >= 2 * binade && before % binade == 0)
            place *= 2;
        table[bits] = table[before] + place;
    }
    return table;
}

START_TEST(decode_everything)
{
    const format *f = &formats[_i];
    double *table = build_table(f);
    for (uint32_t bits = 0; bits < 2 * f->sign; bits++) {
        uint32_t magnitude = bits & (f->sign - 1);
        double got = (double)f->decode(bits), sign = bits & f->sign ? -1 : 1;
        if (magnitude <= f->largest)
            ck_assert_msg(got == sign * table[magnitude] && !signbit(got) == !(bits & f->sign),
                          "%s %#x is %g, right is %g", f->name, bits, got, sign * table[magnitude]);
        else if ((f->mantissa_bits == 10 || f->mantissa_bits == 7 || f->mantissa_bits == 2) &&
                 magnitude == f->largest + 1)
            ck_assert_msg(got == sign * INFINITY, "%s %#x is %g", f->name, bits, got);
        else
            ck_assert_msg(isnan(got), "%s %#x is %g, not NaN", f->name, bits, got);
    }
    free(table);
}
END_TEST

START_TEST(encode_everything)
{
    const format *f = &formats[_i];
    double *table = build_table(f);
    for (uint32_t negative = 0; negative < 2; negative++) {
        uint32_t sign = negative * f->sign;
        float s = negative ? -1 : 1;
        for (uint32_t bits = 0; bits <= f->largest; bits++) {
            float low = (float)table[bits], middle = (float)((table[bits] + table[bits + 1]) / 2);
            uint32_t next = bits < f->largest ? bits + 1 : f->past, even = bits % 2 ? next : bits;
            /* Saturating formats have nothing to tie with past the end. */
            if (bits == f->largest && f->past == f->largest)
                even = f->largest;
            ck_assert_msg(f->encode(s * low) == (sign | bits), "%s: %.9g encodes to %#x, not %#x", f->name,
                          (double)(s * low), f->encode(s * low), sign | bits);
            if (!isfinite(middle))
                continue;
            ck_assert_msg(f->encode(s * middle) == (sign | even), "%s: tie %.9g encodes to %#x, not %#x", f->name,
                          (double)(s * middle), f->encode(s * middle), sign | even);
            ck_assert_msg(f->encode(s * nextafterf(middle, 0)) == (sign | bits), "%s: below the tie %.9g", f->name,
                          (double)(s * middle));
            ck_assert_msg(f->encode(s * nextafterf(middle, INFINITY)) == (sign | next), "%s: above the tie %.9g",
                          f->name, (double)(s * middle));
        }
        ck_assert_uint_eq(f->encode(s * INFINITY), sign | f->past);
        ck_assert_uint_eq(f->encode(s * 3.4028234663852886e38f), sign | f->past);
        ck_assert_uint_eq(f->encode(s * 1e-45f), sign);
        ck_assert_uint_eq(f->encode(s * 0.0f), sign);
    }
    free(table);
}
END_TEST

/* Every NaN stays one, also one whose payload lies in the bits that are cut off. */
START_TEST(nan_stays)
{
    const format *f = &formats[_i];
    for (int bit = 0; bit < 23; bit++)
        for (uint32_t sign = 0; sign < 2; sign++)
            ck_assert_msg(isnan(f->decode(f->encode(kiln_float_of_bits(sign << 31 | 0x7f800000u | 1u << bit)))),
                          "%s: NaN with payload bit %d is lost", f->name, bit);
}
END_TEST

START_TEST(load_and_store)
{
    static const int32_t types[] = {KILN_FLOAT64,     KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16, KILN_FLOAT8_E4M3FN,
                                    KILN_FLOAT8_E5M2, KILN_INT32,   KILN_UINT8,   KILN_BOOL};
    double room[4];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int64_t i = 0; i < 3; i++) {
            kiln_store_double(room, types[t], i, (double)(i + 1));
            ck_assert_double_eq(kiln_load_double(room, types[t], i), (double)(i + 1));
        }
    ck_assert(isnan(kiln_load_double(room, KILN_FLOAT8_E4M3FNUZ, 0)));
    ck_assert_int_eq(kiln_type_size(KILN_FLOAT64), 8);
    ck_assert_int_eq(kiln_type_size(KILN_BFLOAT16), 2);
    ck_assert_int_eq(kiln_type_size(KILN_BOOL), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("convert");
    TCase *t = tcase_create("convert");
    tcase_add_loop_test(t, decode_everything, 0, FORMATS);
    tcase_add_loop_test(t, encode_everything, 0, FORMATS);
    tcase_add_loop_test(t, nan_stays, 0, FORMATS);
    tcase_add_test(t, load_and_store);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
