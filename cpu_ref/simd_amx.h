/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_amx.h: the vocabulary of simd_avx512.h, and the eight tile registers of Intel AMX with the product of bf16 tiles.
 *
 * Every tile here is 16 rows of 64 bytes. tdpbf16ps adds to C (16x16 fp32) the product of A (16x32 bf16) and B (16 pairs of
 * rows x 16, bf16, the two rows of a pair side by side). One instruction sums its 32 products in two chains of 16, joins
 * them and adds the sum to C: depth 18, round to nearest, and whatever MXCSR says, denormals count as zero on the way in
 * and out.
 *
 * The wrappers are assembly with a "memory" clobber, not the compilers' built-ins: gcc 12's tile load has none, so that the
 * store of a tile's contents may sink below the load that reads it.
 */
#ifndef KILN_CPU_REF_SIMD_AMX_H
#define KILN_CPU_REF_SIMD_AMX_H

#include "simd_avx512.h"

#undef VF_ISA
#define VF_ISA amx

/* Unit roundoff of what is summed in tiles: the bound's for matrix units. */
#define AMX_UNIT 0x1p-23

#ifdef KILN_AMX_EMULATE
#include "simd_amx_emulated.h"
#else

/* `t`: a literal 0...7. `stride`: bytes from row to row. */
#define AMX_ZERO(t) __asm__ __volatile__("tilezero %%tmm" #t : : : "memory")
#define AMX_LOAD(t, p, stride)                                                                                         \
    __asm__ __volatile__("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_STORE(t, p, stride)                                                                                        \
    __asm__ __volatile__("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_PRODUCT(c, a, b) __asm__ __volatile__("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory")

/* A thread's tile configuration: palette, then bytes a row (16 x 16 bits at 16) and rows (at 48). */
typedef struct amx_config {
    _Alignas(64) uint8_t bytes[64];
} amx_config;

/* Configures this thread's tiles and returns the caller's configuration. Tile contents are nobody's across calls. */
VF_INLINE amx_config amx_enter(void)
{
    amx_config saved, own = {{1}};
    for (int t = 0; t < 8; t++) {
        own.bytes[16 + 2 * t] = 64;
        own.bytes[48 + t] = 16;
    }
    __asm__ __volatile__("sttilecfg %0" : "=m"(saved));
    __asm__ __volatile__("ldtilecfg %0" : : "m"(own));
    return saved;
}

/* Puts a caller's configuration back; with none, the tiles are released, so that the system need not save them. */
VF_INLINE void amx_leave(amx_config saved)
{
    if (saved.bytes[0])
        __asm__ __volatile__("ldtilecfg %0" : : "m"(saved));
    else
        __asm__ __volatile__("tilerelease");
}

#endif

/*
 * exp2, x <= 8, under amx_flush(true): vreduceps gives x - floor(x), vscalefps floors its exponent itself, so there is
 * neither a magic number nor a compare. Minimax polynomial of degree 5 on [0, 1] with p(0) = 1: exp2(0) is exactly 1.
 *   relative error <= AMX_EXP2_ERROR, found by trying every float of [-126, 8] down to 2^-31 (nearer to 0 the result is
 *   p(0) or p(1)/2): 1.83e-7;
 *   results below 2^-126, -inf included, give exactly 0; NaN stays NaN.
 */
#define AMX_EXP2_ERROR 2.1e-7

VF_INLINE vf amx_exp2(vf x)
{
    vf f = _mm512_reduce_ps(x, 0x09); /* no bits of fraction, round down, no exceptions */
    vf p = vf_set1(0x1.e974fap-10f);
    p = vf_fma(p, f, vf_set1(0x1.277856p-7f));
    p = vf_fma(p, f, vf_set1(0x1.c91ce6p-5f));
    p = vf_fma(p, f, vf_set1(0x1.ebdb56p-3f));
    p = vf_fma(p, f, vf_set1(0x1.62e4bap-1f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return _mm512_scalef_ps(p, x);
}

/* FTZ on or off. A denormal result of amx_exp2() would cost some 80 ns. Operands are never taken for zero. */
VF_INLINE void amx_flush(bool on)
{
    uint32_t control = _mm_getcsr();
    _mm_setcsr(on ? control | 0x8000 : control & ~0x8000u);
}

#endif
