/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward_amx_pack.inc.h: q, do, k and v as AMX tiles for the backward pass, from any strides.
 *
 * Queries go in groups of 32 lanes, keys in units of 32 rows; columns are padded to 32 with zeros, d in steps of 32. Every
 * product reads one ascending stream of tiles, the two of a 32-wide operand one after another. Per step of columns:
 *   S = K·Qt, dP = V·dOt     A: keys x columns as they are;  B: pairs of columns x lanes          (turned)
 *   dV = P·dO, dK = dS·Q     B: pairs of lanes x columns, pair l = lanes l and l + 16            (paired)
 *   dQt = Kt·dS              A: columns x keys                                                   (turned)
 *
 * Odd rows. Tiles take denormals for zero and flush results below 2^-126, and 0 times NaN is NaN; dS is rounded to bf16,
 * whose largest number lies below fp32's. A row is odd when it holds a number, not 0, with which that could show:
 *   q, do  below 2^-60, 2^58 or more, Inf, NaN; also the lanes whose lse or delta is out of the range named below
 *   k, v   below 2^-50, 2^58 or more, Inf, NaN
 * All other products are multiples of 2^-124, so that no flush touches S or dP, and S, dP and dS are below 2^126 (with weights
 * up to 1). Odd rows are packed as zeros; their pairs are left to attention_backward_amx_odd.inc.h. So no bit of what does not
 * see such a row depends on it.
 */
#ifndef KILN_CPU_REF_ATTENTION_BACKWARD_AMX_PACK_INC_H
#define KILN_CPU_REF_ATTENTION_BACKWARD_AMX_PACK_INC_H

#include "attention_amx_pack.inc.h"

enum {
    AMX_GROUP = 32,       /* lanes of an item */
    AMX_UNIT_KEYS = 32,   /* keys of an item */
    AMX_ROW_COLUMNS = 256 /* most of a row */
};

#define AMX_LEAST_QUERY AMX_BF16_EXPONENT(-60)
#define AMX_LEAST_KEY   AMX_BF16_EXPONENT(-50)
#define AMX_ROW_LIMIT   AMX_BF16_EXPONENT(58)

/* Largest |lse| and |delta| of a lane in tiles. (Beyond 2^20, see weight_rows.) */
#define AMX_LSE_LIMIT   0x1p20f
#define AMX_DELTA_LIMIT 0x1p124f

static bool amx_odd_row(const char *row, int64_t stride, int64_t columns, int least)
{
    const __m512i low = _mm512_set1_epi16((short)least), range = _mm512_set1_epi16((short)(AMX_ROW_LIMIT - least));
    __mmask32 odd = 0;
    for (int64_t c = 0; c < columns; c += 32) {
        __m512i x = _mm512_and_si512(amx_load_row(row, stride, c, columns), _mm512_set1_epi16(0x7fff));
        odd |= _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(x, x), _mm512_sub_epi16(x, low), range);
    }
    return odd != 0;
}

/* 32 rows (NULL: zeros) as they are: tiles of rows 0-15 and 16-31 of every step. */
static void amx_pack_plain(const char *const *rows, int64_t stride, int64_t columns, uint16_t *out)
{
    for (int r = 0; r < 32; r++)
        for (int64_t s = 0; 32 * s < columns; s++)
            _mm512_storeu_si512(out + s * 1024 + r * 32, amx_load_row(rows[r], stride, 32 * s, columns));
}

/* Pairs of columns x rows: tiles with rows 0-15 and 16-31 side by side. */
static void amx_pack_turned_pairs(const char *const *rows, int64_t stride, int64_t columns, uint16_t *out)
{
    for (int64_t s = 0; 32 * s < columns; s++)
        for (int half = 0; half < 2; half++) {
            __m512i x[16];
            for (int i = 0; i < 16; i++)
                x[i] = amx_load_row(rows[16 * half + i], stride, 32 * s, columns);
            amx_transpose(x);
            for (int i = 0; i < 16; i++)
                _mm512_storeu_si512(out + s * 1024 + half * 512 + i * 32, x[i]);
        }
}

/* Words of `low` and `high` in turns: words 0-15 of both, then 16-31. */
VF_INLINE void amx_interleave(__m512i low, __m512i high, __m512i *out)
{
    UNROLL for (int half = 0; half < 2; half++)
    {
        __m256i a = half ? _mm512_extracti64x4_epi64(low, 1) : _mm512_castsi512_si256(low);
        __m256i b = half ? _mm512_extracti64x4_epi64(high, 1) : _mm512_castsi512_si256(high);
        out[half] = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
    }
}

/* Pairs of rows l, l + 16 x columns: tiles of columns 0-15 and 16-31 of every step. */
static void amx_pack_pairs(const char *const *rows, int64_t stride, int64_t columns, uint16_t *out)
{
    for (int64_t s = 0; 32 * s < columns; s++)
        for (int l = 0; l < 16; l++) {
            __m512i x[2];
            amx_interleave(amx_load_row(rows[l], stride, 32 * s, columns),
                           amx_load_row(rows[l + 16], stride, 32 * s, columns), x);
            UNROLL for (int half = 0; half < 2; half++)
                _mm512_storeu_si512(out + s * 1024 + half * 512 + l * 32, x[half]);
        }
}

/* Columns x rows in their order: tiles of columns 0-15 and 16-31 of every step. */
static void amx_pack_turned(const char *const *rows, int64_t stride, int64_t columns, uint16_t *out)
{
    for (int64_t s = 0; 32 * s < columns; s++) {
        __m512i half[2][16];
        for (int i = 0; i < 16; i++) {
            __m512i x[2];
            amx_interleave(amx_load_row(rows[2 * i], stride, 32 * s, columns),
                           amx_load_row(rows[2 * i + 1], stride, 32 * s, columns), x);
            half[0][i] = x[0];
            half[1][i] = x[1];
        }
        for (int h = 0; h < 2; h++) {
            amx_transpose(half[h]);
            for (int i = 0; i < 16; i++)
                _mm512_storeu_si512(out + s * 1024 + h * 512 + i * 32, half[h][i]);
        }
    }
}

#endif
