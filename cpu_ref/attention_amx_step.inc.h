/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_amx_step.inc.h: the arithmetic of one item, a tile of 32 queries against a block of 128 keys, on AMX.
 *
 * Queries lie in the columns of every tile, so nothing is summed across lanes:
 *   scores    St[key][lane] = K·Qt           A = K as it is,  B = Q in pairs of columns
 *   softmax   P = exp2(St·c - m), l += Σ P   P rounded to bf16, in pairs of keys; l from the values before rounding
 *   values    Ot[column][lane] += Vt·P       A = V transposed, B = P
 * The maximum is lazy: a lane's m moves only when a block's maximum is more than AMX_LAZY above it (in powers of two), so
 * that O, which lies in memory, is hardly ever rescaled. A matter of each lane alone: its bits do not depend on others.
 *
 * Software pipeline: amx_step() interleaves, tile product by tile product, the scores of item i + 1 and the values of item
 * i - 1 with the softmax of item i and the maximum of item i + 1. The out-of-order window is far shorter than one of these
 * phases, so this must be in the program text.
 * Cost of an item: 16 products of 16·16·32 multiply-adds per 32 columns of k and of v, with one tile load each; O loaded and
 * stored once; 10 vector operations per 16 scores.
 */
#ifndef KILN_CPU_REF_ATTENTION_AMX_STEP_INC_H
#define KILN_CPU_REF_ATTENTION_AMX_STEP_INC_H

#include "attention_amx_pack.inc.h"

#define AMX_LAZY 8.0f /* weights are at most 2^8 */

enum { AMX_QUADS = AMX_BLOCK / 8 }; /* vector work is dealt in pieces of 4 pairs of keys */

/* One tile of queries. m is in powers of two: the largest score times c, or lower by at most AMX_LAZY. */
typedef struct amx_state {
    uint16_t *q; /* packed */
    float *o;    /* tiles of columns of v (padded) x lanes: amx_at() */
    float *m, *l;
} amx_state;

/* Where lanes 16·half ... of row `row` lie in S and O, whose tiles lie one after another: rows 0-15 and lanes 0-15, rows 0-15
 * and lanes 16-31, rows 16-31 ... Every tile in memory is 1 KiB of consecutive cache lines. */
VF_INLINE int64_t amx_at(int64_t row, int64_t half)
{
    return (row / 16 * 2 + half) * 256 + row % 16 * 16;
}

/* 2x2 blocks: C = tiles 0 1 (rows 0-15) and 2 3, A = 4 5, B = 6 7. */
VF_INLINE void amx_block_product(const uint16_t *a, const void *b)
{
    AMX_LOAD(4, a, 64);
    AMX_LOAD(6, b, 64);
    AMX_LOAD(7, (const char *)b + 1024, 64);
    AMX_LOAD(5, a + 512, 64);
    AMX_PRODUCT(0, 4, 6);
    AMX_PRODUCT(1, 4, 7);
    AMX_PRODUCT(2, 5, 6);
    AMX_PRODUCT(3, 5, 7);
}

VF_INLINE void amx_block_zero(void)
{
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
}

VF_INLINE void amx_block_load(const float *c)
{
    AMX_LOAD(0, c, 64);
    AMX_LOAD(1, c + 256, 64);
    AMX_LOAD(2, c + 512, 64);
    AMX_LOAD(3, c + 768, 64);
}

VF_INLINE void amx_block_store(float *c)
{
    AMX_STORE(0, c, 64);
    AMX_STORE(1, c + 256, 64);
    AMX_STORE(2, c + 512, 64);
    AMX_STORE(3, c + 768, 64);
}

/* Softmax of one vector of lanes, while it goes through a block: l is the block's own sum. */
typedef struct amx_column {
    vf c, minus_m, l;
} amx_column;

/* -m, or 0 where nothing has been seen yet (-inf - -inf is NaN). */
VF_INLINE amx_column amx_column_begin(const amx_state *t, int half, float c)
{
    vf m = vf_load(t->m + 16 * half);
    vf shift = vf_select(vf_eq(m, vf_set1(-INFINITY)), vf_zero(), vf_neg(m));
    return (amx_column){vf_set1(c), shift, vf_zero()};
}

VF_INLINE void amx_column_end(amx_state *t, int half, const amx_column *x)
{
    float *l = t->l + 16 * half;
    vf_store(l, vf_add(vf_load(l), x->l));
}

/*
 * Piece `quad` of a column: 8 keys. Rounding to bf16 is to nearest, ties away: one addition. (A NaN survives it: NaNs that
 * come of bf16 numbers and of arithmetic have zeros below.) The empty assembly pins the sum: gcc 12 would delay all sums of
 * an unrolled loop and spill every weight.
 */
VF_INLINE void amx_exp_quad(const float *s, uint32_t *p, int half, int64_t quad, amx_column *x)
{
    const __m512i half_ulp = _mm512_set1_epi32(0x8000);
    s += amx_at(8 * quad, half);
    p += quad / 4 * 512 + half * 256 + quad % 4 * 64;
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf even = amx_exp2(vf_fma(vf_load(s + 2 * i * 16), x->c, x->minus_m));
        vf odd = amx_exp2(vf_fma(vf_load(s + (2 * i + 1) * 16), x->c, x->minus_m));
        x->l = vf_add(x->l, vf_add(even, odd));
        __asm__ __volatile__("" : "+v"(x->l));
        __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half_ulp), 16);
        __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half_ulp);
        _mm512_storeu_si512(p + i * 16, _mm512_mask_blend_epi16(0xaaaaaaaau, low, high));
    }
}

/* Maxima of 8 keys join max[half][chain]. */
VF_INLINE void amx_max_quad(const float *s, int64_t quad, vf (*max)[2])
{
    s += amx_at(8 * quad, 0);
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int half = 0; half < 2; half++) max[half][i & 1] =
        vf_max(max[half][i & 1], vf_load(s + amx_at(i, half)));
}

/* The block's maxima move m where they must, and l with it. Returns whether O must be multiplied by `correction`. */
static bool amx_move_maximum(amx_state *t, const vf (*max)[2], float c, float *correction)
{
    bool due = false;
    for (int half = 0; half < 2; half++) {
        float *m = t->m + 16 * half, *l = t->l + 16 * half;
        vf old = vf_load(m), seen = vf_mul(vf_max(max[half][0], max[half][1]), vf_set1(c));
        vm move = vf_lt(vf_add(old, vf_set1(AMX_LAZY)), seen);
        vf factor = vf_set1(1.0f);
        if (vm_any(move)) {
            factor = vf_select(move, amx_exp2(vf_sub(old, seen)), factor);
            vf_store(m, vf_select(move, seen, old));
            vf_store(l, vf_mul(vf_load(l), factor));
            due |= vm_any(vm_and(move, vm_not(vf_eq(old, vf_set1(-INFINITY))))); /* else O is still 0 */
        }
        vf_store(correction + 16 * half, factor);
    }
    return due;
}

static void amx_rescale(float *o, int64_t columns, const float *correction)
{
    for (int64_t i = 0; i < columns; i++)
        for (int half = 0; half < 2; half++) {
            float *x = o + amx_at(i, half);
            vf_store(x, vf_mul(vf_load(x), vf_load(correction + 16 * half)));
        }
}

/* The phases one by one, for the ends of the pipeline. */
static void amx_scores(const amx_state *t, const uint16_t *k, int64_t steps, float *s)
{
    for (int u = 0; u < AMX_UNITS; u++) {
        amx_block_zero();
        for (int64_t i = 0; i < steps; i++)
            amx_block_product(k + (u * steps + i) * 1024, t->q + i * 1024);
        amx_block_store(s + u * 32 * AMX_LANES);
    }
}

static void amx_maximum(const float *s, vf (*max)[2])
{
    for (int quad = 0; quad < AMX_QUADS; quad++)
        amx_max_quad(s, quad, max);
}

static void amx_softmax(amx_state *t, float c, const float *s, uint32_t *p)
{
    for (int half = 0; half < 2; half++) {
        amx_column x = amx_column_begin(t, half, c);
        for (int quad = 0; quad < AMX_QUADS; quad++)
            amx_exp_quad(s, p, half, quad, &x);
        amx_column_end(t, half, &x);
    }
}

static void amx_values(amx_state *t, const uint16_t *v, int64_t steps, const uint32_t *p)
{
    for (int64_t i = 0; i < steps; i++) {
        amx_block_load(t->o + i * 32 * AMX_LANES);
        for (int u = 0; u < AMX_UNITS; u++)
            amx_block_product(v + (i * AMX_UNITS + u) * 1024, p + u * 512);
        amx_block_store(t->o + i * 32 * AMX_LANES);
    }
}

/* What a step works on: the next, the present and the last item. */
typedef struct amx_step_items {
    amx_state *next, *now, *last;
    const uint16_t *k, *v; /* of the next and of the last item */
    float *s_next;
    const float *s_now;
    uint32_t *p_now;
    const uint32_t *p_last;
} amx_step_items;

/* Scores of the next item, softmax of the present one, lanes 0-15. (Copies of `x` and of the maxima: nothing that has an
 * address stays in a register across the assembly.) */
VF_INLINE void amx_step_scores(const int64_t steps, const amx_step_items *x, float c)
{
    const amx_step_items y = *x;
    amx_column column = amx_column_begin(y.now, 0, c);
    for (int64_t u = 0; u < AMX_UNITS; u++) {
        amx_block_zero();
        for (int64_t i = 0; i < steps; i++) {
            amx_block_product(y.k + (u * steps + i) * 1024, y.next->q + i * 1024);
            for (int64_t quad = 4 * u + 4 * i / steps; quad < 4 * u + 4 * (i + 1) / steps; quad++)
                amx_exp_quad(y.s_now, y.p_now, 0, quad, &column);
        }
        amx_block_store(y.s_next + u * 32 * AMX_LANES);
    }
    amx_column_end(y.now, 0, &column);
}

/* Values of the last item, softmax of the present one, lanes 16-31, and maximum of the next. */
VF_INLINE void amx_step_values(const int64_t steps, const amx_step_items *x, float c, vf (*max)[2])
{
    const amx_step_items y = *x;
    amx_column column = amx_column_begin(y.now, 1, c);
    vf top[2][2] = {{max[0][0], max[0][1]}, {max[1][0], max[1][1]}};
    for (int64_t i = 0; i < steps; i++) {
        float *o = y.last->o + i * 32 * AMX_LANES;
        amx_block_load(o);
        for (int64_t u = 0; u < AMX_UNITS; u++) {
            const int64_t n = i * AMX_UNITS + u;
            amx_block_product(y.v + n * 1024, y.p_last + u * 512);
            for (int64_t quad = 4 * n / steps; quad < 4 * (n + 1) / steps; quad++) {
                amx_exp_quad(y.s_now, y.p_now, 1, quad, &column);
                amx_max_quad(y.s_next, quad, top);
            }
        }
        amx_block_store(o);
    }
    amx_column_end(y.now, 1, &column);
    for (int half = 0; half < 2; half++)
        for (int chain = 0; chain < 2; chain++)
            max[half][chain] = top[half][chain];
}

#define AMX_NOINLINE static __attribute__((noinline))

AMX_NOINLINE void amx_step_scores_64(const amx_step_items *x, float c)
{
    amx_step_scores(2, x, c);
}
AMX_NOINLINE void amx_step_scores_128(const amx_step_items *x, float c)
{
    amx_step_scores(4, x, c);
}
AMX_NOINLINE void amx_step_scores_any(int64_t steps, const amx_step_items *x, float c)
{
    amx_step_scores(steps, x, c);
}
AMX_NOINLINE void amx_step_values_64(const amx_step_items *x, float c, vf (*max)[2])
{
    amx_step_values(2, x, c, max);
}
AMX_NOINLINE void amx_step_values_128(const amx_step_items *x, float c, vf (*max)[2])
{
    amx_step_values(4, x, c, max);
}
AMX_NOINLINE void amx_step_values_any(int64_t steps, const amx_step_items *x, float c, vf (*max)[2])
{
    amx_step_values(steps, x, c, max);
}

#endif
