/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_avx512.h: the vector vocabulary of simd_portable.h (which says what each name means) for AVX-512 F, BW, DQ, VL:
 * 16 floats, masks in mask registers.
 */
#ifndef KILN_CPU_REF_SIMD_AVX512_H
#define KILN_CPU_REF_SIMD_AVX512_H

#include <immintrin.h>

#include <stdbool.h>

#include "../common/convert.h"
#include "unroll.h"

#define VF_LANES    16
#define VF_FMA_UNIT 0x1p-24
#define VF_ISA      avx512
#define VF_INLINE   static inline __attribute__((always_inline, unused))

typedef __m512 vf;
typedef __mmask16 vm;

VF_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
VF_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
VF_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VF_INLINE void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
VF_INLINE vm vm_first(int n)
{
    return (vm)((1u << n) - 1);
}
VF_INLINE vf vf_load_tail(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}
VF_INLINE void vf_store_tail(float *p, vf x, int n)
{
    _mm512_mask_storeu_ps(p, vm_first(n), x);
}
VF_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VF_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VF_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VF_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VF_INLINE vf vf_neg(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
VF_INLINE vf vf_abs(vf a)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a);
}
VF_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
VF_INLINE vf vf_keep(vm m, vf a)
{
    return _mm512_maskz_mov_ps(m, a);
}
VF_INLINE vm vf_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
VF_INLINE vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VF_INLINE vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
VF_INLINE vm vf_not_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ);
}
VF_INLINE vm vf_finite(vf a)
{
    return (vm)~_mm512_fpclass_ps_mask(a, 0x99); /* neither NaN (quiet 01, signalling 80) nor +Inf (08), -Inf (10) */
}

VF_INLINE vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}
VF_INLINE vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}
VF_INLINE vm vm_not(vm a)
{
    return (vm)~a;
}
VF_INLINE uint32_t vm_bits(vm m)
{
    return m;
}
VF_INLINE vm vm_of_bits(uint32_t bits)
{
    return (vm)bits;
}
VF_INLINE bool vm_any(vm m)
{
    return m != 0;
}
VF_INLINE bool vm_all(vm m)
{
    return m == 0xffff;
}

VF_INLINE float vf_hsum(vf a)
{
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
VF_INLINE float vf_hmax(vf a)
{
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* Pairs, then pairs of pairs, within the 128-bit parts; then the parts, twice. */
VF_INLINE void vf_transpose(vf *r)
{
    __m512 t[16];
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Lane i = the lanes of r[i] joined by `join`: pairs and pairs of pairs within the 128-bit parts, then the parts of pairs of
 * vectors, twice. */
VF_INLINE vf vf_join_each_(const vf *r, vf (*join)(vf, vf))
{
    __m512 t[8], u[4], v[2];
    UNROLL for (int i = 0; i < 8; i++) t[i] =
        join(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    UNROLL for (int i = 0; i < 4; i++)
    {
        __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = join(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    UNROLL for (int i = 0; i < 2; i++) v[i] =
        join(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88), _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return join(_mm512_shuffle_f32x4(v[0], v[1], 0x88), _mm512_shuffle_f32x4(v[0], v[1], 0xdd));
}
VF_INLINE vf vf_hsum_each(const vf *r)
{
    return vf_join_each_(r, vf_add);
}
VF_INLINE vf vf_hmax_each(const vf *r)
{
    return vf_join_each_(r, vf_max);
}

VF_INLINE vf vf_widen_(__m256i h, int32_t type)
{
    if (type == KILN_FLOAT16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
VF_INLINE __m256i vf_narrow_(vf x, int32_t type)
{
    if (type == KILN_FLOAT16)
        return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    vm nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}
VF_INLINE vf vf_load_type(const void *p, int32_t type)
{
    if (type == KILN_FLOAT32)
        return vf_load(p);
    return vf_widen_(_mm256_loadu_si256(p), type);
}
VF_INLINE void vf_load_pairs(const void *p, vf *even, vf *odd)
{
    __m512i x = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}
VF_INLINE vf vf_load_type_tail(const void *p, int32_t type, int n)
{
    if (type == KILN_FLOAT32)
        return vf_load_tail(p, n);
    return vf_widen_(_mm256_maskz_loadu_epi16(vm_first(n), p), type);
}
VF_INLINE void vf_store_type(void *p, int32_t type, vf x)
{
    if (type == KILN_FLOAT32)
        vf_store(p, x);
    else
        _mm256_storeu_si256(p, vf_narrow_(x, type));
}
VF_INLINE void vf_store_type_tail(void *p, int32_t type, vf x, int n)
{
    if (type == KILN_FLOAT32)
        vf_store_tail(p, x, n);
    else
        _mm256_mask_storeu_epi16(p, vm_first(n), vf_narrow_(x, type));
}

VF_INLINE __m512i vf_round_bf16_(vf x)
{
    __m512i u = _mm512_castps_si512(x), r = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(r, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), r, _mm512_set1_epi32(1));
}
/* To nearest even, in pairs. NaNs must have zeros below. */
VF_INLINE __m512i vf_pair_bf16_(vf even, vf odd)
{
    __m512i low = _mm512_srli_epi32(vf_round_bf16_(even), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, vf_round_bf16_(odd));
}
VF_INLINE __m512i vf_half_up_(vf x)
{
    return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}
VF_INLINE vf vf_near_bf16(vf x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(vf_half_up_(x), _mm512_set1_epi32((int)0xffff0000)));
}
VF_INLINE void vf_store_pairs(void *p, vf even, vf odd)
{
    __m512i low = _mm512_srli_epi32(vf_half_up_(even), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaa, low, vf_half_up_(odd)));
}

typedef __m512i vw;
VF_INLINE vw vw_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
VF_INLINE vw vw_max(vw x, vw y)
{
    return _mm512_max_epi16(x, y);
}
VF_INLINE vf vw_top(vw x, int32_t type)
{
    return vf_max(vf_widen_(_mm512_castsi512_si256(x), type), vf_widen_(_mm512_extracti64x4_epi64(x, 1), type));
}
VF_INLINE vf vw_join_(vf x, vf y)
{
    return _mm512_castsi512_ps(_mm512_max_epi16(_mm512_castps_si512(x), _mm512_castps_si512(y)));
}
VF_INLINE vf vw_top_each(const vw *r, int32_t type)
{
    vf lane[16];
    UNROLL for (int i = 0; i < 16; i++) lane[i] = _mm512_castsi512_ps(r[i]);
    __m512i pair = _mm512_castps_si512(vf_join_each_(lane, vw_join_));
    return vf_widen_(_mm512_cvtepi32_epi16(_mm512_max_epi16(pair, _mm512_srli_epi32(pair, 16))), type);
}

VF_INLINE void vf_pause(void)
{
    _mm_pause();
}

#define VF_STREAMS 1
VF_INLINE void vf_stream_line(void *to, const void *from)
{
    _mm512_stream_si512(to, _mm512_loadu_si512(from));
}
VF_INLINE void vf_stream_fence(void)
{
    _mm_sfence();
}

/* p·2^n where m, else 0. */
VF_INLINE vf vf_scale2_(vm m, vf p, vf t, vf n)
{
    (void)t;
    return _mm512_maskz_scalef_ps(m, p, n);
}

#include "simd_math.inc.h"

#endif
