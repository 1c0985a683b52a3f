/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_amx_odd.inc.h: the numbers that tiles cannot treat (attention_amx_pack.inc.h says which), one by one, in fp32
 * with denormals. Rare, so written plainly; a block without such numbers costs one test.
 *
 *  - Scores of which a factor is odd are computed again by multiply-adds.
 *  - Odd values are zeros in the packed V, so the product adds exact zeros for them. What they add to O is summed apart, in
 *    `odd_o`, 32 keys at a time, for the lanes that see them only: a hidden NaN, or a hidden denormal, leaves no trace.
 *    Only this sum can leave fp32's range; the task is then computed once more with odd values shrunk (see tile_end).
 */
#ifndef KILN_CPU_REF_ATTENTION_AMX_ODD_INC_H
#define KILN_CPU_REF_ATTENTION_AMX_ODD_INC_H

#include "attention_amx_step.inc.h"

/* Scores St[key][lane] of a unit where the key or the lane is marked; bit = key of the unit. */
static void amx_odd_scores(const amx_state *t, uint32_t lanes, const uint16_t *k, uint32_t keys, int64_t steps,
                           float *s)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    amx_flush(false);
    for (int r = 0; r < 32; r++) {
        const uint32_t wanted = keys >> r & 1 ? UINT32_MAX : lanes;
        if (wanted == 0)
            continue;
        vf sum[2] = {vf_zero(), vf_zero()};
        for (int64_t pair = 0; pair < 16 * steps; pair++) {
            const uint16_t *row = k + pair / 16 * 1024 + r * 32;
            const vf first = vf_set1(kiln_bf16_to_float(row[2 * (pair % 16)]));
            const vf second = vf_set1(kiln_bf16_to_float(row[2 * (pair % 16) + 1]));
            for (int half = 0; half < 2; half++) {
                __m512i q = _mm512_loadu_si512(t->q + ((pair / 16 * 2 + half) * 16 + pair % 16) * 32);
                sum[half] = vf_fma(first, _mm512_castsi512_ps(_mm512_slli_epi32(q, 16)), sum[half]);
                sum[half] = vf_fma(second, _mm512_castsi512_ps(_mm512_and_si512(q, upper)), sum[half]);
            }
        }
        for (int half = 0; half < 2; half++) {
            float *to = s + amx_at(r, half);
            vf_store(to, vf_select(vm_of_bits(wanted >> 16 * half & 0xffff), sum[half], vf_load(to)));
        }
    }
    amx_flush(true);
}

/* odd_o += `factor` times what the odd values of marked keys add. `rows`: the block's keys in v, NULL past the last. */
static void amx_odd_values_add(const char *const *rows, int64_t stride, int64_t d_v, const uint32_t *keys,
                               const uint32_t *p, const uint32_t *visible, float factor, float *odd_o)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    amx_flush(false);
    for (int u = 0; u < AMX_UNITS; u++)
        for (int64_t column = 0; keys[u] != 0 && column < d_v; column++) {
            vf sum[2] = {vf_zero(), vf_zero()};
            for (int r = 32 * u; r < 32 * u + 32; r++) {
                uint16_t bits = 0;
                if (keys[u] >> r % 32 & 1)
                    memcpy(&bits, rows[r] + 2 * column * stride, sizeof bits);
                if (!amx_is_odd_value(bits))
                    continue;
                for (int half = 0; half < 2; half++) {
                    __m512i pair = _mm512_loadu_si512(p + (2 * u + half) * 256 + r % 32 / 2 * 16);
                    __m512i weight = r & 1 ? _mm512_and_si512(pair, upper) : _mm512_slli_epi32(pair, 16);
                    vf next =
                        vf_fma(vf_set1(kiln_bf16_to_float(bits) * factor), _mm512_castsi512_ps(weight), sum[half]);
                    sum[half] = vf_select(vm_of_bits(visible[2 * r + half]), next, sum[half]);
                }
            }
            for (int half = 0; half < 2; half++) {
                float *o = odd_o + amx_at(column, half);
                vf_store(o, vf_add(vf_load(o), sum[half]));
            }
        }
    amx_flush(true);
}

#endif
