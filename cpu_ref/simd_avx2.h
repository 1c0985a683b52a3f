/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_avx2.h: the vector vocabulary of simd_portable.h (which says what each name means) for AVX2, FMA and F16C: 8
 * floats.
 */
#ifndef KILN_CPU_REF_SIMD_AVX2_H
#define KILN_CPU_REF_SIMD_AVX2_H

#include <immintrin.h>

#include <stdbool.h>

#include "../common/convert.h"
#include "unroll.h"

#define VF_LANES    8
#define VF_FMA_UNIT 0x1p-24
#define VF_ISA      avx2
#define VF_INLINE   static inline __attribute__((always_inline, unused))

typedef __m256 vf;
typedef __m256 vm; /* all bits of a lane */

VF_INLINE vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
VF_INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
VF_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VF_INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
VF_INLINE __m256i vm_first_i_(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VF_INLINE vf vf_load_tail(const float *p, int n)
{
    return _mm256_maskload_ps(p, vm_first_i_(n));
}
VF_INLINE void vf_store_tail(float *p, vf x, int n)
{
    _mm256_maskstore_ps(p, vm_first_i_(n), x);
}
VF_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VF_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
VF_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VF_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VF_INLINE vf vf_neg(vf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
VF_INLINE vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
VF_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}
VF_INLINE vf vf_keep(vm m, vf a)
{
    return _mm256_and_ps(m, a);
}
VF_INLINE vm vf_eq(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
VF_INLINE vm vf_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VF_INLINE vm vf_le(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
VF_INLINE vm vf_not_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_NLT_UQ);
}
VF_INLINE vm vf_finite(vf a)
{
    return vf_eq(vf_sub(a, a), vf_zero());
}

VF_INLINE vm vm_and(vm a, vm b)
{
    return _mm256_and_ps(a, b);
}
VF_INLINE vm vm_or(vm a, vm b)
{
    return _mm256_or_ps(a, b);
}
VF_INLINE vm vm_not(vm a)
{
    return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
}
VF_INLINE vm vm_first(int n)
{
    return _mm256_castsi256_ps(vm_first_i_(n));
}
VF_INLINE uint32_t vm_bits(vm m)
{
    return (uint32_t)_mm256_movemask_ps(m);
}
VF_INLINE vm vm_of_bits(uint32_t bits)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)bits), lane), lane));
}
VF_INLINE bool vm_any(vm m)
{
    return vm_bits(m) != 0;
}
VF_INLINE bool vm_all(vm m)
{
    return vm_bits(m) == 0xff;
}

VF_INLINE float vf_hsum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
VF_INLINE float vf_hmax(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* Pairs, then pairs of pairs, within the 128-bit halves; then the halves. */
VF_INLINE void vf_transpose(vf *r)
{
    __m256 t[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        __m256 low = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
        r[i] = low;
    }
}

/* Pairs and pairs of pairs within the 128-bit halves, then the halves. */
VF_INLINE vf vf_join_each_(const vf *r, vf (*join)(vf, vf))
{
    __m256 t[4], u[2];
    UNROLL for (int i = 0; i < 4; i++) t[i] =
        join(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    UNROLL for (int i = 0; i < 2; i++) u[i] =
        join(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44), _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    return join(_mm256_permute2f128_ps(u[0], u[1], 0x20), _mm256_permute2f128_ps(u[0], u[1], 0x31));
}
VF_INLINE vf vf_hsum_each(const vf *r)
{
    return vf_join_each_(r, vf_add);
}
VF_INLINE vf vf_hmax_each(const vf *r)
{
    return vf_join_each_(r, vf_max);
}

VF_INLINE vf vf_widen_(__m128i h, int32_t type)
{
    if (type == KILN_FLOAT16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
VF_INLINE __m128i vf_narrow_(vf x, int32_t type)
{
    if (type == KILN_FLOAT16)
        return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
VF_INLINE vf vf_load_type(const void *p, int32_t type)
{
    if (type == KILN_FLOAT32)
        return vf_load(p);
    return vf_widen_(_mm_loadu_si128(p), type);
}
VF_INLINE void vf_load_pairs(const void *p, vf *even, vf *odd)
{
    __m256i x = _mm256_loadu_si256(p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}
VF_INLINE vf vf_load_type_tail(const void *p, int32_t type, int n)
{
    uint16_t t[VF_LANES] = {0};
    if (type == KILN_FLOAT32)
        return vf_load_tail(p, n);
    for (int i = 0; i < n; i++)
        t[i] = ((const uint16_t *)p)[i];
    return vf_widen_(_mm_loadu_si128((const __m128i *)t), type);
}
VF_INLINE void vf_store_type(void *p, int32_t type, vf x)
{
    if (type == KILN_FLOAT32)
        vf_store(p, x);
    else
        _mm_storeu_si128(p, vf_narrow_(x, type));
}
VF_INLINE void vf_store_type_tail(void *p, int32_t type, vf x, int n)
{
    uint16_t t[VF_LANES];
    if (type == KILN_FLOAT32) {
        vf_store_tail(p, x, n);
        return;
    }
    _mm_storeu_si128((__m128i *)t, vf_narrow_(x, type));
    for (int i = 0; i < n; i++)
        ((uint16_t *)p)[i] = t[i];
}

VF_INLINE __m256i vf_round_bf16_(vf x)
{
    return _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
}
VF_INLINE vf vf_near_bf16(vf x)
{
    return _mm256_castsi256_ps(_mm256_and_si256(vf_round_bf16_(x), _mm256_set1_epi32((int)0xffff0000)));
}
VF_INLINE void vf_store_pairs(void *p, vf even, vf odd)
{
    __m256i low = _mm256_srli_epi32(vf_round_bf16_(even), 16);
    _mm256_storeu_si256(p, _mm256_blend_epi16(low, vf_round_bf16_(odd), 0xaa));
}

typedef __m256i vw;
VF_INLINE vw vw_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
VF_INLINE vw vw_max(vw x, vw y)
{
    return _mm256_max_epi16(x, y);
}
VF_INLINE vf vw_top(vw x, int32_t type)
{
    return vf_max(vf_widen_(_mm256_castsi256_si128(x), type), vf_widen_(_mm256_extracti128_si256(x, 1), type));
}
VF_INLINE vf vw_join_(vf x, vf y)
{
    return _mm256_castsi256_ps(_mm256_max_epi16(_mm256_castps_si256(x), _mm256_castps_si256(y)));
}
VF_INLINE vf vw_top_each(const vw *r, int32_t type)
{
    vf lane[8];
    UNROLL for (int i = 0; i < 8; i++) lane[i] = _mm256_castsi256_ps(r[i]);
    __m256i pair = _mm256_castps_si256(vf_join_each_(lane, vw_join_));
    __m256i top = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_max_epi16(pair, _mm256_srli_epi32(pair, 16)), 16), 16);
    top = _mm256_permute4x64_epi64(_mm256_packs_epi32(top, top), 0x08);
    return vf_widen_(_mm256_castsi256_si128(top), type);
}

VF_INLINE void vf_pause(void)
{
    _mm_pause();
}

#define VF_STREAMS 1
VF_INLINE void vf_stream_line(void *to, const void *from)
{
    __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256((const __m256i *)from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256((__m256i *)to + 1, high);
}
VF_INLINE void vf_stream_fence(void)
{
    _mm_sfence();
}

/* p·2^n where m, else 0. t holds n + 127 in its low bits (see vf_exp). A product, so that NaN in p stays NaN. */
VF_INLINE vf vf_scale2_(vm m, vf p, vf t, vf n)
{
    (void)n;
    return vf_keep(m, vf_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23))));
}

#include "simd_math.inc.h"

#endif
