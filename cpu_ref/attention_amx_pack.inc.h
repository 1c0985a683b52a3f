/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_amx_pack.inc.h: q, k and v as AMX tiles, from any strides and pages.
 *
 * K and V once per KV head, a block of keys at a time, in the order in which the tiles are read: one ascending stream of
 * whole cache lines each. Columns are padded to 32, keys to AMX_BLOCK, with zeros.
 *   k: for each 32 keys, each 32 columns: A tiles of keys 0-15 and 16-31, rows of 32 columns
 *   v: for each 32 columns, each 32 keys: A tiles of columns 0-15 and 16-31, rows of 32 keys (V transposed)
 *   q: for each 32 columns: 16 pairs of columns x 32 lanes (B tiles of lanes 0-15 and 16-31, row stride 128 bytes)
 *
 * Odd numbers. Tiles take denormals for zero and flush results below 2^-126, 0 times NaN is NaN, and a sum of values with
 * weights above 1 (see AMX_SUM) may leave fp32's range though their mean does not. So numbers with which that could show
 * are marked here and treated one by one in attention_amx_odd.inc.h; a lane's bits then depend on nothing but what the lane
 * sees.
 *   q, k: not 0, but below 2^-50. All other products are multiples of 2^-114: nothing is ever flushed.
 *   v:    not 0, but below 2^-60; 2^94 and more (2^15 a block times 2^17 blocks times that is finite); Inf, NaN. They are zeros in the
 *         packed V.
 * Reads each element once (v twice, from the first-level cache). Memory-bound; 1-2 % of a call with 4096 queries.
 */
#ifndef KILN_CPU_REF_ATTENTION_AMX_PACK_INC_H
#define KILN_CPU_REF_ATTENTION_AMX_PACK_INC_H

#include "attention_load.inc.h"

enum {
    AMX_LANES = 32,  /* queries of a tile of queries */
    AMX_BLOCK = 128, /* keys of a block; multiple of 32; it decides rounding */
    AMX_UNITS = AMX_BLOCK / 32
};

/* Exponents as they stand in a bf16. */
#define AMX_BF16_EXPONENT(e) ((127 + (e)) << 7)

/* Which rows of a block hold odd numbers; bit = key. */
typedef struct amx_marks {
    uint32_t k[AMX_UNITS], v[AMX_UNITS];
} amx_marks;

static bool amx_any_odd(const uint32_t *marks)
{
    uint32_t any = 0;
    for (int u = 0; u < AMX_UNITS; u++)
        any |= marks[u];
    return any != 0;
}

VF_INLINE __mmask32 amx_odd_factors(__m512i x)
{
    const __m512i one = _mm512_set1_epi16(1), least = _mm512_set1_epi16(AMX_BF16_EXPONENT(-50));
    x = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    return _mm512_cmplt_epu16_mask(_mm512_sub_epi16(x, one), _mm512_sub_epi16(least, one)); /* 0 - 1 is the largest */
}

VF_INLINE __mmask32 amx_odd_values(__m512i x)
{
    const __m512i least = _mm512_set1_epi16(AMX_BF16_EXPONENT(-60));
    const __m512i range = _mm512_set1_epi16(AMX_BF16_EXPONENT(94) - AMX_BF16_EXPONENT(-60));
    x = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(x, x), _mm512_sub_epi16(x, least), range);
}

static bool amx_is_odd_value(uint16_t x)
{
    x &= 0x7fff;
    return x != 0 && (x < AMX_BF16_EXPONENT(-60) || x >= AMX_BF16_EXPONENT(94));
}

/* Elements [column, column + 32) of a row of `columns` bf16; zeros past its end, and where the row is NULL. */
VF_INLINE __m512i amx_load_row(const char *row, int64_t stride, int64_t column, int64_t columns)
{
    const int64_t left = columns - column;
    if (row == NULL)
        return _mm512_setzero_si512();
    if (stride == 1 && left >= 32)
        return _mm512_loadu_si512(row + 2 * column);
    const int n = left < 32 ? (int)left : 32;
    if (stride == 1)
        return _mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << n) - 1), row + 2 * column);
    uint16_t gathered[32] = {0};
    rows_gather(gathered, row + 2 * column * stride, KILN_BFLOAT16, stride, n);
    return _mm512_loadu_si512(gathered);
}

/* 16 vectors of 16 pairs of bf16, transposed. Only moves bits. */
VF_INLINE void amx_transpose(__m512i *x)
{
    vf r[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] = _mm512_castsi512_ps(x[i]);
    vf_transpose(r);
    UNROLL for (int i = 0; i < 16; i++) x[i] = _mm512_castps_si512(r[i]);
}

/* `rows`: AMX_BLOCK keys, NULL past the last. */
static void amx_pack_keys(const char *const *rows, int64_t stride, int64_t d, uint16_t *out, uint32_t *marks)
{
    const int64_t steps = (d + 31) / 32;
    for (int r = 0; r < AMX_BLOCK; r++) {
        uint16_t *to = out + (r / 32 * steps * 32 + r % 32) * 32;
        uint32_t odd = 0;
        for (int64_t s = 0; s < steps; s++) {
            __m512i x = amx_load_row(rows[r], stride, 32 * s, d);
            odd |= amx_odd_factors(x);
            _mm512_storeu_si512(to + s * 1024, x);
        }
        marks[r / 32] |= (uint32_t)(odd != 0) << r % 32;
    }
}

/* Rows 2i and 2i + 1 of 32 keys, columns [column, column + 32), become pairs in vectors i of `low` and `high`: of
 * every 8 columns the first 4 lie in `low`, the others in `high`. */
VF_INLINE void amx_pair_values(const char *const *rows, int64_t stride, int64_t column, int64_t d_v, bool odd,
                               __m512i *low, __m512i *high)
{
    UNROLL for (int i = 0; i < 16; i++)
    {
        __m512i x[2];
        UNROLL for (int j = 0; j < 2; j++)
        {
            x[j] = amx_load_row(rows[2 * i + j], stride, column, d_v);
            if (odd)
                x[j] = _mm512_maskz_mov_epi16((__mmask32)~amx_odd_values(x[j]), x[j]);
        }
        low[i] = _mm512_unpacklo_epi16(x[0], x[1]); /* within each 128 bits */
        high[i] = _mm512_unpackhi_epi16(x[0], x[1]);
    }
}

static void amx_pack_values(const char *const *rows, int64_t stride, int64_t d_v, uint16_t *out, uint32_t *marks)
{
    const int64_t steps = (d_v + 31) / 32;
    for (int r = 0; r < AMX_BLOCK; r++) {
        uint32_t odd = 0;
        for (int64_t s = 0; s < steps; s++)
            odd |= amx_odd_values(amx_load_row(rows[r], stride, 32 * s, d_v));
        marks[r / 32] |= (uint32_t)(odd != 0) << r % 32;
    }
    for (int64_t s = 0; s < steps; s++)
        for (int u = 0; u < AMX_UNITS; u++) {
            __m512i half[2][16];
            if (marks[u])
                amx_pair_values(rows + 32 * u, stride, 32 * s, d_v, true, half[0], half[1]);
            else
                amx_pair_values(rows + 32 * u, stride, 32 * s, d_v, false, half[0], half[1]);
            uint16_t *to = out + (s * AMX_UNITS + u) * 1024;
            for (int h = 0; h < 2; h++) { /* of 8 columns each 4 in turn */
                amx_transpose(half[h]);
                UNROLL for (int i = 0; i < 16; i++)
                    _mm512_storeu_si512(to + (i / 4 * 8 + h * 4 + i % 4) * 32, half[h][i]);
            }
        }
}

/* `rows`: AMX_LANES queries. `sign`: 0x8000 turns their signs. Returns the lanes that hold odd numbers. */
static uint32_t amx_pack_queries(const char *const *rows, int64_t stride, int64_t d, uint16_t sign, uint16_t *out)
{
    const __m512i turn = _mm512_set1_epi16((short)sign);
    uint32_t marks = 0;
    for (int64_t s = 0; 32 * s < d; s++)
        for (int half = 0; half < 2; half++) {
            __m512i x[16];
            for (int i = 0; i < 16; i++) {
                x[i] = amx_load_row(rows[16 * half + i], stride, 32 * s, d);
                marks |= (uint32_t)(amx_odd_factors(x[i]) != 0) << (16 * half + i);
                x[i] = _mm512_xor_si512(x[i], turn);
            }
            amx_transpose(x);
            for (int i = 0; i < 16; i++)
                _mm512_storeu_si512(out + ((s * 2 + half) * 16 + i) * 32, x[i]);
        }
    return marks;
}

#endif
