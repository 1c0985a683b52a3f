/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_neon.h: the vector vocabulary of simd_portable.h (which says what each name means) for AArch64's Advanced SIMD, as
 * far as every AArch64 processor has it (Armv8-A): 4 floats. fp16 is converted by instruction, which the base has, and
 * computed in as fp32; bf16 by shifts and integer sums, since its instructions came with Armv8.6-A.
 *
 * FMAX and FMAXNM give neither operand's NaN the place that vf_max asks for: a comparison and a selection do.
 */
#ifndef KILN_CPU_REF_SIMD_NEON_H
#define KILN_CPU_REF_SIMD_NEON_H

#include <arm_neon.h>

#include <stdbool.h>

#include "../common/convert.h"

#define VF_LANES    4
#define VF_FMA_UNIT 0x1p-24
#define VF_ISA      neon
#define VF_INLINE   static inline __attribute__((always_inline, unused))

typedef float32x4_t vf;
typedef uint32x4_t vm; /* all bits of a lane */

VF_INLINE vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
VF_INLINE vf vf_zero(void)
{
    return vdupq_n_f32(0.0f);
}
VF_INLINE vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
VF_INLINE void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
VF_INLINE vf vf_load_tail(const float *p, int n)
{
    vf x = vf_zero();
    if (n >= VF_LANES)
        return vf_load(p);
    if (n & 2) {
        x = vcombine_f32(vld1_f32(p), vdup_n_f32(0.0f));
        return n & 1 ? vld1q_lane_f32(p + 2, x, 2) : x;
    }
    return n & 1 ? vld1q_lane_f32(p, x, 0) : x;
}
VF_INLINE void vf_store_tail(float *p, vf x, int n)
{
    if (n >= VF_LANES) {
        vf_store(p, x);
    } else if (n & 2) {
        vst1_f32(p, vget_low_f32(x));
        if (n & 1)
            vst1q_lane_f32(p + 2, x, 2);
    } else if (n & 1) {
        vst1q_lane_f32(p, x, 0);
    }
}
VF_INLINE vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
VF_INLINE vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
VF_INLINE vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
VF_INLINE vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
/* a[lane]·b + c, for kernels that test VF_FMA_LANE: one load of `a` serves four of these. */
#define VF_FMA_LANE 1
VF_INLINE vf vf_fma_lane(vf a, const int lane, vf b, vf c)
{
    switch (lane) { /* the instruction holds the number, so every case is its own */
    case 0: return vfmaq_laneq_f32(c, b, a, 0);
    case 1: return vfmaq_laneq_f32(c, b, a, 1);
    case 2: return vfmaq_laneq_f32(c, b, a, 2);
    default: return vfmaq_laneq_f32(c, b, a, 3);
    }
}
VF_INLINE vf vf_neg(vf a)
{
    return vnegq_f32(a);
}
VF_INLINE vf vf_abs(vf a)
{
    return vabsq_f32(a);
}
VF_INLINE vf vf_select(vm m, vf a, vf b)
{
    return vbslq_f32(m, a, b);
}
VF_INLINE vf vf_keep(vm m, vf a)
{
    return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(a)));
}
VF_INLINE vm vf_eq(vf a, vf b)
{
    return vceqq_f32(a, b);
}
VF_INLINE vm vf_lt(vf a, vf b)
{
    return vcltq_f32(a, b);
}
VF_INLINE vm vf_le(vf a, vf b)
{
    return vcleq_f32(a, b);
}
VF_INLINE vm vf_not_lt(vf a, vf b)
{
    return vmvnq_u32(vcltq_f32(a, b));
}
VF_INLINE vm vf_finite(vf a)
{
    return vcaltq_f32(a, vdupq_n_f32(INFINITY)); /* |a| < infinity */
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(vcgtq_f32(a, b), a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return vf_select(vcltq_f32(a, b), a, b);
}

VF_INLINE vm vm_and(vm a, vm b)
{
    return vandq_u32(a, b);
}
VF_INLINE vm vm_or(vm a, vm b)
{
    return vorrq_u32(a, b);
}
VF_INLINE vm vm_not(vm a)
{
    return vmvnq_u32(a);
}
VF_INLINE vm vm_first(int n)
{
    const int32x4_t lane = {0, 1, 2, 3};
    return vcltq_s32(lane, vdupq_n_s32(n));
}
VF_INLINE uint32_t vm_bits(vm m)
{
    const uint32x4_t lane = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, lane));
}
VF_INLINE vm vm_of_bits(uint32_t bits)
{
    const uint32x4_t lane = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits), lane);
}
VF_INLINE bool vm_any(vm m)
{
    return vmaxvq_u32(m) != 0;
}
VF_INLINE bool vm_all(vm m)
{
    return vminvq_u32(m) != 0;
}

/* Neighbours, then pairs of them: lane by lane what vf_hsum_each does. */
VF_INLINE float vf_hsum(vf a)
{
    return vaddvq_f32(a);
}
VF_INLINE float vf_hmax(vf a)
{
    vf m = vf_max(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(vf_max(m, vextq_f32(m, m, 1)), 0);
}
VF_INLINE vf vf_hsum_each(const vf *r)
{
    return vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3]));
}
VF_INLINE vf vf_hmax_each(const vf *r)
{
    return vpmaxq_f32(vpmaxq_f32(r[0], r[1]), vpmaxq_f32(r[2], r[3])); /* of maxima, which are not NaN */
}

/* Squares of 2x2, then the square of them. */
VF_INLINE void vf_transpose(vf *r)
{
    float32x4x2_t low = vtrnq_f32(r[0], r[1]), high = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
    r[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
    r[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
    r[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

VF_INLINE vf vf_widen_(uint16x4_t h, int32_t type)
{
    if (type == KILN_FLOAT16)
        return vcvt_f32_f16(vreinterpret_f16_u16(h));
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}
/* The bf16 in the upper halves: half of the last place less a bit is added, and the bit if the last place is odd; the carry
 * does the rest. */
VF_INLINE uint32x4_t vf_round_bf16_(vf x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
}
/* A NaN, whose payload may lie in the lower half, is cut and made quiet instead. */
VF_INLINE uint16x4_t vf_narrow_(vf x, int32_t type)
{
    if (type == KILN_FLOAT16)
        return vreinterpret_u16_f16(vcvt_f16_f32(x));
    uint16x4_t quiet = vorr_u16(vshrn_n_u32(vreinterpretq_u32_f32(x), 16), vdup_n_u16(0x40));
    return vbsl_u16(vmovn_u32(vceqq_f32(x, x)), vshrn_n_u32(vf_round_bf16_(x), 16), quiet);
}
VF_INLINE uint16x4_t vh_load_tail_(const uint16_t *p, int n)
{
    uint16x4_t h = vdup_n_u16(0);
    if (n >= VF_LANES)
        return vld1_u16(p);
    if (n > 0)
        h = vld1_lane_u16(p, h, 0);
    if (n > 1)
        h = vld1_lane_u16(p + 1, h, 1);
    if (n > 2)
        h = vld1_lane_u16(p + 2, h, 2);
    return h;
}
VF_INLINE void vh_store_tail_(uint16_t *p, uint16x4_t h, int n)
{
    if (n >= VF_LANES) {
        vst1_u16(p, h);
        return;
    }
    if (n > 0)
        vst1_lane_u16(p, h, 0);
    if (n > 1)
        vst1_lane_u16(p + 1, h, 1);
    if (n > 2)
        vst1_lane_u16(p + 2, h, 2);
}
VF_INLINE vf vf_load_type(const void *p, int32_t type)
{
    if (type == KILN_FLOAT32)
        return vf_load(p);
    return vf_widen_(vld1_u16(p), type);
}
VF_INLINE void vf_load_pairs(const void *p, vf *even, vf *odd)
{
    uint32x4_t x = vreinterpretq_u32_u16(vld1q_u16(p));
    *even = vreinterpretq_f32_u32(vshlq_n_u32(x, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000)));
}
VF_INLINE uint32x4_t vf_half_up_(vf x)
{
    return vaddq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x8000));
}
VF_INLINE vf vf_near_bf16(vf x)
{
    return vreinterpretq_f32_u32(vandq_u32(vf_half_up_(x), vdupq_n_u32(0xffff0000)));
}
VF_INLINE void vf_store_pairs(void *p, vf even, vf odd)
{
    vst1q_u16(p, vreinterpretq_u16_u32(vsriq_n_u32(vf_half_up_(odd), vf_half_up_(even), 16)));
}
VF_INLINE vf vf_load_type_tail(const void *p, int32_t type, int n)
{
    if (type == KILN_FLOAT32)
        return vf_load_tail(p, n);
    return vf_widen_(vh_load_tail_(p, n), type);
}
VF_INLINE void vf_store_type(void *p, int32_t type, vf x)
{
    if (type == KILN_FLOAT32)
        vf_store(p, x);
    else
        vst1_u16(p, vf_narrow_(x, type));
}
VF_INLINE void vf_store_type_tail(void *p, int32_t type, vf x, int n)
{
    if (type == KILN_FLOAT32)
        vf_store_tail(p, x, n);
    else
        vh_store_tail_(p, vf_narrow_(x, type), n);
}

typedef int16x8_t vw;
VF_INLINE vw vw_load(const void *p)
{
    return vld1q_s16(p);
}
VF_INLINE vw vw_max(vw x, vw y)
{
    return vmaxq_s16(x, y);
}
VF_INLINE vf vw_top(vw x, int32_t type)
{
    uint16x8_t u = vreinterpretq_u16_s16(x);
    return vf_max(vf_widen_(vget_low_u16(u), type), vf_widen_(vget_high_u16(u), type));
}
VF_INLINE vf vw_top_each(const vw *r, int32_t type)
{
    vf lane[VF_LANES];
    for (int i = 0; i < VF_LANES; i++)
        lane[i] = vw_top(r[i], type);
    return vf_hmax_each(lane);
}

VF_INLINE void vf_pause(void)
{
    __asm__ __volatile__("yield");
}

#define VF_STREAMS 0 /* STNP is a hint only, and no compiler has it in C */
VF_INLINE void vf_stream_line(void *to, const void *from)
{
    memcpy(to, from, 64);
}
VF_INLINE void vf_stream_fence(void)
{
}

/* p·2^n where m, else 0. t holds n + 127 in its low bits (see vf_exp). A product, so that NaN in p stays NaN. */
VF_INLINE vf vf_scale2_(vm m, vf p, vf t, vf n)
{
    (void)n;
    return vf_keep(m, vf_mul(p, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(t), 23))));
}

#include "simd_math.inc.h"

#endif
