/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward_amx_step.inc.h: the arithmetic of the backward pass on AMX. An item is a group of 32 queries (lanes)
 * against a unit of 32 keys:
 *   S = K·Qt and dP = V·dOt                 keys x lanes, fp32, in the first-level cache
 *   P = exp2(c·S - shift), dS = P·(dP - delta), both rounded to bf16 (to nearest, ties away)
 *   dV += P·dO and dK += dS·Q               once a unit, over the groups of a tile of queries
 *   dQt += Kt·dS                            once a block, over its units: columns x lanes
 * bf16 P and dS stand as A operands, keys x lanes with lanes l and l + 16 side by side; dS as B operand too, pairs of keys x
 * lanes. Sums are 2x2 blocks of tiles as attention_amx_step.inc.h has them: amx_at() says where an element lies.
 *
 * Cost of an item: 4·(3·steps_k + 2·steps_v) products of 16·16·32 and some 17 vector operations per 16 pairs. The sums dv, dk
 * and dq are bound by what moves between the first two cache levels, their own fp32 tiles above all: hence so many groups and
 * units at a time. Products and exponentials follow one another: interleaving them in the program text, as the forward kernel
 * does, was slower here.
 */
#ifndef KILN_CPU_REF_ATTENTION_BACKWARD_AMX_STEP_INC_H
#define KILN_CPU_REF_ATTENTION_BACKWARD_AMX_STEP_INC_H

#include "attention_amx_step.inc.h"
#include "attention_backward_amx_pack.inc.h"

/* One item. The arrays hold 1024 elements, a 2x2 block of tiles. */
typedef struct amx_weights {
    const float *s, *dp;
    const float *shift, *delta; /* of the lanes */
    float c;                    /* scale·log2 e */
    uint16_t *p, *ds, *ds_pairs;
    __m512i begin[2], end[2]; /* masked items: the keys that lanes 0-15 and 16-31 see, counted from the unit's first */
    uint32_t keys;            /* and those that take part at all */
} amx_weights;

/* What it needs in registers. */
typedef struct amx_weight_lanes {
    vf c, shift[2], delta[2];
} amx_weight_lanes;

VF_INLINE amx_weight_lanes amx_weights_begin(const amx_weights *x)
{
    return (amx_weight_lanes){
        vf_set1(x->c), {vf_load(x->shift), vf_load(x->shift + 16)}, {vf_load(x->delta), vf_load(x->delta + 16)}};
}

VF_INLINE __mmask16 amx_weights_seen(const amx_weights *x, int key, int half)
{
    const __m512i at = _mm512_set1_epi32(key);
    const __mmask16 see =
        (__mmask16)(_mm512_cmple_epi32_mask(x->begin[half], at) & _mm512_cmplt_epi32_mask(at, x->end[half]));
    return x->keys >> key & 1 ? see : 0;
}

/* Keys 2·i and 2·i + 1 of an item. Rounding is one addition, as in amx_exp_piece(). */
VF_INLINE void amx_weights_pair(const bool masked, int i, const amx_weights *x, const amx_weight_lanes *lanes)
{
    const __m512i half_ulp = _mm512_set1_epi32(0x8000);
    const __mmask32 odd_words = 0xaaaaaaaau;
    __m512i p[2][2], ds[2][2]; /* [key][half] */
    UNROLL for (int k = 0; k < 2; k++) UNROLL for (int half = 0; half < 2; half++)
    {
        const int64_t at = amx_at(2 * i + k, half);
        vf w = amx_exp2(vf_fma(vf_load(x->s + at), lanes->c, lanes->shift[half]));
        vf g = vf_mul(w, vf_sub(vf_load(x->dp + at), lanes->delta[half]));
        if (masked) {
            const __mmask16 see = amx_weights_seen(x, 2 * i + k, half);
            w = vf_keep(see, w);
            g = vf_keep(see, g);
        }
        p[k][half] = _mm512_add_epi32(_mm512_castps_si512(w), half_ulp);
        ds[k][half] = _mm512_add_epi32(_mm512_castps_si512(g), half_ulp);
    }
    UNROLL for (int k = 0; k < 2; k++)
    {
        const __m512i low = _mm512_srli_epi32(ds[k][0], 16);
        _mm512_store_si512(x->p + (2 * i + k) * 32,
                           _mm512_mask_blend_epi16(odd_words, _mm512_srli_epi32(p[k][0], 16), p[k][1]));
        _mm512_store_si512(x->ds + (2 * i + k) * 32, _mm512_mask_blend_epi16(odd_words, low, ds[k][1]));
    }
    UNROLL for (int half = 0; half < 2; half++)
        _mm512_store_si512(x->ds_pairs + half * 512 + i * 32,
                           _mm512_mask_blend_epi16(odd_words, _mm512_srli_epi32(ds[0][half], 16), ds[1][half]));
}

/* c = a·b over `steps`, 2x2 tiles. */
static void amx_backward_product(const uint16_t *a, const uint16_t *b, int64_t steps, float *c)
{
    amx_block_zero();
    for (int64_t i = 0; i < steps; i++)
        amx_block_product(a + i * 1024, b + i * 1024);
    amx_block_store(c);
}

/* Functions of their own, so that each keeps its constants in registers. */
AMX_NOINLINE void amx_backward_weights(const amx_weights *x)
{
    const amx_weights y = *x;
    const amx_weight_lanes lanes = amx_weights_begin(&y);
    for (int i = 0; i < 16; i++)
        amx_weights_pair(false, i, &y, &lanes);
}

AMX_NOINLINE void amx_backward_weights_masked(const amx_weights *x)
{
    const amx_weights y = *x;
    const amx_weight_lanes lanes = amx_weights_begin(&y);
    for (int i = 0; i < 16; i++)
        amx_weights_pair(true, i, &y, &lanes);
}

enum { AMX_OPERANDS = 8 }; /* most of one sum */

/* One sum: c[step] += Σ a[n]·b[n][step] over the operands n in `wanted`, each a 2x2 block of tiles. */
typedef struct amx_gradient_sum {
    const uint16_t *a[AMX_OPERANDS], *b[AMX_OPERANDS];
    int64_t a_step, b_step; /* elements from one step of columns to the next; 0: the operand has no columns */
    uint32_t wanted;
    bool fresh; /* c holds nothing yet */
} amx_gradient_sum;

static void amx_gradient_add(const amx_gradient_sum *x, int64_t steps, float *c)
{
    for (int64_t i = 0; i < steps; i++) {
        if (x->fresh)
            amx_block_zero();
        else
            amx_block_load(c + i * 1024);
        for (int n = 0; n < AMX_OPERANDS; n++)
            if (x->wanted >> n & 1)
                amx_block_product(x->a[n] + i * x->a_step, x->b[n] + i * x->b_step);
        amx_block_store(c + i * 1024);
    }
}

#endif
