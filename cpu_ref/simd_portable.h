/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_portable.h: the vector vocabulary of the CPU kernels in plain C (GCC vector extension, 4 floats), for any
 * processor. vf = VF_LANES floats, vm = one truth value a lane. vf_set1 zero load store load_tail store_tail add sub
 * mul div fma(ab+c) max min abs neg eq lt le not_lt finite select(m,a,b) keep(m,a) hsum hmax,
 * transpose(r): r[i][j] <-> r[j][i] of VF_LANES vectors; hsum_each(r), hmax_each(r): lane i = the sum, the maximum of r[i];
 * vm_and or not first(n) bits of_bits any all;
 * vf_load_type(p,type) load_type_tail(p,type,n) store_type store_type_tail: fp32, fp16, bf16, rounding to nearest even;
 * load_pairs(p,&even,&odd): of 2·VF_LANES bf16 numbers those at even places and those at odd ones; store_pairs(p,even,odd)
 * puts numbers that are not NaN back, rounded as near_bf16(x) does: to nearest, halves away from zero, which is one sum;
 * vw = 2·VF_LANES words of 16 bits, for maxima of rows: vw_load, vw_max, vw_top(x,type) below, vw_top_each(r,type): lane i = the
 * maximum of r[i], its words compared as integers;
 * vf_pause: in a loop that looks at what another thread writes; vf_exp vf_exp_half vf_tanh (simd_math.inc.h);
 * vf_stream_line(to,from): 64 bytes past the caches, `to` aligned to as many, where VF_STREAMS says that there is such a store, in
 * order for other threads after vf_stream_fence(). Tails (0 <= n <= VF_LANES) touch n elements,
 * read 0 in the others. No other alignment is asked.
 *
 * max and min give their *second* operand when one is NaN. lt, le, eq are false on NaN, not_lt is true. hsum adds in
 * one fixed order. fma here is a product and a sum, each rounded (VF_FMA_UNIT says so), so that bits do not depend on
 * flags.
 */
#ifndef KILN_CPU_REF_SIMD_PORTABLE_H
#define KILN_CPU_REF_SIMD_PORTABLE_H

#include <stdbool.h>

#include "../common/convert.h"

#define VF_LANES    4
#define VF_FMA_UNIT 0x1p-23 /* unit roundoff of one vf_fma */
#define VF_ISA      portable
#define VF_INLINE   static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(4 * VF_LANES)));
typedef int32_t vm __attribute__((vector_size(4 * VF_LANES))); /* 0 or -1 in each lane */
typedef uint32_t vu_ __attribute__((vector_size(4 * VF_LANES)));
typedef uint16_t vh_ __attribute__((vector_size(2 * VF_LANES)));

VF_INLINE vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}
VF_INLINE vf vf_zero(void)
{
    return vf_set1(0.0f);
}
VF_INLINE vf vf_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
VF_INLINE void vf_store(float *p, vf x)
{
    memcpy(p, &x, sizeof x);
}
VF_INLINE vf vf_load_tail(const float *p, int n)
{
    float t[VF_LANES] = {0};
    memcpy(t, p, 4 * (size_t)n);
    return vf_load(t);
}
VF_INLINE void vf_store_tail(float *p, vf x, int n)
{
    memcpy(p, &x, 4 * (size_t)n);
}
VF_INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}
VF_INLINE vf vf_sub(vf a, vf b)
{
    return a - b;
}
VF_INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}
VF_INLINE vf vf_div(vf a, vf b)
{
    return a / b;
}
VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
VF_INLINE vf vf_neg(vf a)
{
    return -a;
}
VF_INLINE vf vf_abs(vf a)
{
    return (vf)((vm)a & 0x7fffffff);
}
VF_INLINE vf vf_select(vm m, vf a, vf b)
{
    return (vf)(((vm)a & m) | ((vm)b & ~m));
}
VF_INLINE vf vf_keep(vm m, vf a)
{
    return (vf)((vm)a & m);
}
VF_INLINE vm vf_eq(vf a, vf b)
{
    return a == b;
}
VF_INLINE vm vf_lt(vf a, vf b)
{
    return a < b;
}
VF_INLINE vm vf_le(vf a, vf b)
{
    return a <= b;
}
VF_INLINE vm vf_not_lt(vf a, vf b)
{
    return ~(a < b);
}
VF_INLINE vm vf_finite(vf a)
{
    return a - a == vf_zero();
}
VF_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(a > b, a, b);
}
VF_INLINE vf vf_min(vf a, vf b)
{
    return vf_select(a < b, a, b);
}

VF_INLINE vm vm_and(vm a, vm b)
{
    return a & b;
}
VF_INLINE vm vm_or(vm a, vm b)
{
    return a | b;
}
VF_INLINE vm vm_not(vm a)
{
    return ~a;
}
VF_INLINE vm vm_first(int n)
{
    return (vm){0, 1, 2, 3} < (vm){n, n, n, n};
}
VF_INLINE uint32_t vm_bits(vm m)
{
    uint32_t bits = 0;
    for (int i = 0; i < VF_LANES; i++)
        bits |= (uint32_t)(m[i] & 1) << i;
    return bits;
}
VF_INLINE vm vm_of_bits(uint32_t bits)
{
    const vm lane = {1, 2, 4, 8};
    int32_t b = (int32_t)bits;
    return ((vm){b, b, b, b} & lane) != 0;
}
VF_INLINE bool vm_any(vm m)
{
    return vm_bits(m) != 0;
}
VF_INLINE bool vm_all(vm m)
{
    return vm_bits(m) == (1u << VF_LANES) - 1;
}

VF_INLINE float vf_hsum(vf a)
{
    return (a[0] + a[2]) + (a[1] + a[3]);
}
VF_INLINE float vf_hmax(vf a)
{
    float m = a[0];
    for (int i = 1; i < VF_LANES; i++)
        m = m > a[i] ? m : a[i];
    return m;
}

VF_INLINE void vf_transpose(vf *r)
{
    for (int i = 1; i < VF_LANES; i++)
        for (int j = 0; j < i; j++) {
            float x = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = x;
        }
}

VF_INLINE vf vf_hsum_each(const vf *r)
{
    vf x[VF_LANES];
    memcpy(x, r, sizeof x);
    vf_transpose(x);
    return (x[0] + x[2]) + (x[1] + x[3]);
}
VF_INLINE vf vf_hmax_each(const vf *r)
{
    vf x[VF_LANES], top;
    memcpy(x, r, sizeof x);
    vf_transpose(x);
    top = x[0];
    for (int i = 1; i < VF_LANES; i++)
        top = vf_max(top, x[i]);
    return top;
}

VF_INLINE vf vf_widen_bf16_(vh_ h)
{
    return (vf)(__builtin_convertvector(h, vu_) << 16);
}
/* Shifted into place, an fp16 is 2^112 too small as an fp32; the product is exact, subnormals included. */
VF_INLINE vf vf_widen_f16_(vh_ h)
{
    vu_ u = __builtin_convertvector(h, vu_), magnitude = (u & 0x7fff) << 13;
    vu_ special = (vu_)((u & 0x7c00) == 0x7c00);
    vu_ value = (vu_)((vf)magnitude * 0x1p112f);
    return (vf)((value & ~special) | ((magnitude | 0x7f800000) & special) | (u & 0x8000) << 16);
}
VF_INLINE vh_ vf_narrow_bf16_(vf x)
{
    vu_ u = (vu_)x, nan = (vu_)(x != x);
    vu_ rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return __builtin_convertvector((rounded & ~nan) | (quiet & nan), vh_);
}
/* Below 2^-14 adding 1/2 rounds to the subnormal grid; above, the rounding carry runs into the exponent by itself. */
VF_INLINE vh_ vf_narrow_f16_(vf x)
{
    vu_ u = (vu_)x & 0x7fffffff, sign = (vu_)x >> 16 & 0x8000;
    vu_ small = (vu_)((vf)u + 0.5f) - 0x3f000000, normal = (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13;
    vu_ is_small = (vu_)(u < 0x38800000), is_large = (vu_)(u >= 0x47800000), nan = (vu_)(x != x);
    vu_ r = (small & is_small) | (normal & ~is_small);
    r = (r & ~is_large) | (0x7c00 & is_large);
    return __builtin_convertvector(r | (0x200 & nan) | sign, vh_);
}
VF_INLINE vf vf_load_type(const void *p, int32_t type)
{
    vh_ h;
    if (type == KILN_FLOAT32)
        return vf_load(p);
    memcpy(&h, p, sizeof h);
    return type == KILN_FLOAT16 ? vf_widen_f16_(h) : vf_widen_bf16_(h);
}
VF_INLINE void vf_load_pairs(const void *p, vf *even, vf *odd)
{
    uint16_t t[2 * VF_LANES];
    vh_ a = {0}, b = {0};
    memcpy(t, p, sizeof t);
    for (int i = 0; i < VF_LANES; i++) {
        a[i] = t[2 * i];
        b[i] = t[2 * i + 1];
    }
    *even = vf_widen_bf16_(a);
    *odd = vf_widen_bf16_(b);
}
VF_INLINE vf vf_load_type_tail(const void *p, int32_t type, int n)
{
    uint16_t t[VF_LANES] = {0};
    if (type == KILN_FLOAT32)
        return vf_load_tail(p, n);
    for (int i = 0; i < n; i++)
        t[i] = ((const uint16_t *)p)[i];
    return vf_load_type(t, type);
}
VF_INLINE void vf_store_type(void *p, int32_t type, vf x)
{
    vh_ h;
    if (type == KILN_FLOAT32) {
        vf_store(p, x);
        return;
    }
    h = type == KILN_FLOAT16 ? vf_narrow_f16_(x) : vf_narrow_bf16_(x);
    memcpy(p, &h, sizeof h);
}
VF_INLINE void vf_store_type_tail(void *p, int32_t type, vf x, int n)
{
    uint16_t t[VF_LANES];
    if (type == KILN_FLOAT32) {
        vf_store_tail(p, x, n);
        return;
    }
    vf_store_type(t, type, x);
    for (int i = 0; i < n; i++)
        ((uint16_t *)p)[i] = t[i];
}

VF_INLINE vf vf_near_bf16(vf x)
{
    return (vf)(((vu_)x + 0x8000) & 0xffff0000);
}
VF_INLINE void vf_store_pairs(void *p, vf even, vf odd)
{
    vh_ e = __builtin_convertvector((vu_)vf_near_bf16(even) >> 16, vh_);
    vh_ o = __builtin_convertvector((vu_)vf_near_bf16(odd) >> 16, vh_);
    uint16_t t[2 * VF_LANES];
    for (int i = 0; i < VF_LANES; i++) {
        t[2 * i] = e[i];
        t[2 * i + 1] = o[i];
    }
    memcpy(p, t, sizeof t);
}

/* The largest of words taken as int16_t, 2·VF_LANES at a time: of numbers of 16 bits without a sign that is their maximum. */
typedef struct vw {
    int16_t word[2 * VF_LANES];
} vw;
VF_INLINE vw vw_load(const void *p)
{
    vw x;
    memcpy(&x, p, sizeof x);
    return x;
}
VF_INLINE vw vw_max(vw x, vw y)
{
    for (int i = 0; i < 2 * VF_LANES; i++)
        x.word[i] = y.word[i] > x.word[i] ? y.word[i] : x.word[i];
    return x;
}
VF_INLINE vf vw_top(vw x, int32_t type)
{
    return vf_max(vf_load_type(x.word, type), vf_load_type(x.word + VF_LANES, type));
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
}

#define VF_STREAMS 0
VF_INLINE void vf_stream_line(void *to, const void *from)
{
    memcpy(to, from, 64);
}
VF_INLINE void vf_stream_fence(void)
{
}

/* p·2^n where m, else 0. t holds n + 127 in its low bits (see vf_exp). */
VF_INLINE vf vf_scale2_(vm m, vf p, vf t, vf n)
{
    (void)n;
    return vf_keep(m, p * (vf)((vu_)t << 23));
}

#include "simd_math.inc.h"

#endif
