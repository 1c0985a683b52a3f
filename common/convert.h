/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * convert.h: fp16, bf16 and fp8 as bits, and back. Scalar, portable, exact; round to nearest, ties to even; NaN stays NaN.
 *
 * Definitions: IEEE 754-2019 binary16; bfloat16 = upper half of binary32; fp8 as in "FP8 Formats for Deep Learning"
 * (Micikevicius et al. 2022): e4m3fn has no infinity, e5m2 has. These are the ground truth that vector code is tested
 * against, so they are written to be read. Header only: every user compiles them with its own target flags, `static`, so
 * that no code for a newer processor can be linked into older code.
 */
#ifndef KILN_COMMON_CONVERT_H
#define KILN_COMMON_CONVERT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <kiln/kiln.h>

static inline uint32_t kiln_bits_of_float(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kiln_float_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float kiln_bf16_to_float(uint16_t h)
{
    return kiln_float_of_bits((uint32_t)h << 16);
}

static inline uint16_t kiln_bf16_from_float(float x)
{
    uint32_t u = kiln_bits_of_float(x);
    if (x != x)
        return (uint16_t)(u >> 16 | 0x0040); /* keep it a NaN when the payload's low half held it */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* 2^e for e in [-126, 127]. */
static inline float kiln_power_of_two(int e)
{
    return kiln_float_of_bits((uint32_t)(e + 127) << 23);
}

/* A small float with `exponent_bits` and `mantissa_bits`, no special meaning of the top exponent except as the callers
 * below give it. 2^(1-bias-mantissa_bits) is the value of the last place of a subnormal. */
static inline float kiln_small_to_float(uint32_t h, int exponent_bits, int mantissa_bits, int bias)
{
    uint32_t mantissa = h & ((1u << mantissa_bits) - 1), exponent = h >> mantissa_bits & ((1u << exponent_bits) - 1);
    float sign = h >> (exponent_bits + mantissa_bits) & 1 ? -1.0f : 1.0f;
    if (exponent == 0)
        return sign * ((float)mantissa * kiln_power_of_two(1 - bias - mantissa_bits));
    return sign * ((float)(mantissa | 1u << mantissa_bits) * kiln_power_of_two((int)exponent - bias - mantissa_bits));
}

/* Rounds a finite |x| to the grid of such a float; returns the bits without the sign, possibly past the largest finite. */
static inline uint32_t kiln_small_from_magnitude(float x, int mantissa_bits, int bias)
{
    int e;
    if (x == 0)
        return 0;
    (void)frexpf(x, &e); /* x = m·2^e, 1/2 <= m < 1 */
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    float scaled = ldexpf(x, mantissa_bits - e); /* exact: it has at most 24 significant bits */
    uint32_t q = (uint32_t)scaled;
    float rest = scaled - (float)q;
    if (rest > 0.5f || (rest == 0.5f && (q & 1)))
        q++; /* may carry into the exponent, which is what rounding up means */
    return q + ((uint32_t)(e + bias - 1) << mantissa_bits);
}

static inline float kiln_f16_to_float(uint16_t h)
{
    if ((h & 0x7c00) == 0x7c00) {
        uint32_t u = (uint32_t)(h & 0x8000) << 16 | 0x7f800000u | (uint32_t)(h & 0x3ff) << 13;
        return kiln_float_of_bits(h & 0x3ff ? u | 0x00400000u : u);
    }
    return kiln_small_to_float(h, 5, 10, 15);
}

static inline uint16_t kiln_f16_from_float(float x)
{
    uint32_t u = kiln_bits_of_float(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (x != x)
        return sign | 0x7e00;
    if (isinf(x) || fabsf(x) >= 65520.0f)
        return sign | 0x7c00;
    return (uint16_t)(sign | kiln_small_from_magnitude(fabsf(x), 10, 15));
}

static inline float kiln_e4m3fn_to_float(uint8_t h)
{
    return (h & 0x7f) == 0x7f ? NAN : kiln_small_to_float(h, 4, 3, 7);
}

/* Saturates to ±448, as the hardware's satfinite conversions do; only NaN gives NaN. */
static inline uint8_t kiln_e4m3fn_from_float(float x)
{
    uint8_t sign = (uint8_t)(kiln_bits_of_float(x) >> 24 & 0x80);
    if (x != x)
        return sign | 0x7f;
    uint32_t q = fabsf(x) > 448.0f ? 0x7e : kiln_small_from_magnitude(fabsf(x), 3, 7);
    return (uint8_t)(sign | (q > 0x7e ? 0x7e : q));
}

static inline float kiln_e5m2_to_float(uint8_t h)
{
    return kiln_f16_to_float((uint16_t)(h << 8));
}

/* Saturates to ±57344, as the hardware's satfinite conversions do; only NaN gives NaN. */
static inline uint8_t kiln_e5m2_from_float(float x)
{
    uint8_t sign = (uint8_t)(kiln_bits_of_float(x) >> 24 & 0x80);
    if (x != x)
        return sign | 0x7f;
    uint32_t q = fabsf(x) > 57344.0f ? 0x7b : kiln_small_from_magnitude(fabsf(x), 2, 15);
    return (uint8_t)(sign | (q > 0x7b ? 0x7b : q));
}

/* Bytes of one element of a type given as KILN_FLOAT32 and so on. */
static inline int64_t kiln_type_size(int32_t type)
{
    return (type % 256) / 8;
}

/* Reads element `index` of `data` as double. Unknown types read as NaN, so that no test can pass on them. */
static inline double kiln_load_double(const void *data, int32_t type, int64_t index)
{
    switch (type) {
    case KILN_FLOAT64: return ((const double *)data)[index];
    case KILN_FLOAT32: return ((const float *)data)[index];
    case KILN_FLOAT16: return kiln_f16_to_float(((const uint16_t *)data)[index]);
    case KILN_BFLOAT16: return kiln_bf16_to_float(((const uint16_t *)data)[index]);
    case KILN_FLOAT8_E4M3FN: return kiln_e4m3fn_to_float(((const uint8_t *)data)[index]);
    case KILN_FLOAT8_E5M2: return kiln_e5m2_to_float(((const uint8_t *)data)[index]);
    case KILN_INT32: return ((const int32_t *)data)[index];
    case KILN_UINT8:
    case KILN_BOOL: return ((const uint8_t *)data)[index];
    default: return NAN;
    }
}

/* Writes `value` as element `index`; to a narrower type it is first rounded to fp32 (what kernels compute in). */
static inline void kiln_store_double(void *data, int32_t type, int64_t index, double value)
{
    switch (type) {
    case KILN_FLOAT64: ((double *)data)[index] = value; break;
    case KILN_FLOAT32: ((float *)data)[index] = (float)value; break;
    case KILN_FLOAT16: ((uint16_t *)data)[index] = kiln_f16_from_float((float)value); break;
    case KILN_BFLOAT16: ((uint16_t *)data)[index] = kiln_bf16_from_float((float)value); break;
    case KILN_FLOAT8_E4M3FN: ((uint8_t *)data)[index] = kiln_e4m3fn_from_float((float)value); break;
    case KILN_FLOAT8_E5M2: ((uint8_t *)data)[index] = kiln_e5m2_from_float((float)value); break;
    case KILN_INT32: ((int32_t *)data)[index] = (int32_t)value; break;
    case KILN_UINT8:
    case KILN_BOOL: ((uint8_t *)data)[index] = (uint8_t)value; break;
    default: break;
    }
}

#endif
