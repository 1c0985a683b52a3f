/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_amx_emulated.h: the tile instructions of simd_amx.h on plain AVX-512, for tests of the tile kernels on machines
 * without AMX (CMake option KILN_AMX_EMULATE; never in what is shipped). Same contract, same sums in the same order; some
 * hundred times slower.
 */
#ifndef KILN_CPU_REF_SIMD_AMX_EMULATED_H
#define KILN_CPU_REF_SIMD_AMX_EMULATED_H

typedef struct amx_tile_register {
    _Alignas(64) uint32_t row[16][16];
} amx_tile_register;

static _Thread_local amx_tile_register amx_register[8];

static void amx_emulate_zero(int t)
{
    memset(&amx_register[t], 0, sizeof amx_register[t]);
}

static void amx_emulate_load(int t, const void *p, int64_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy(amx_register[t].row[r], (const char *)p + r * stride, 64);
}

static void amx_emulate_store(int t, void *p, int64_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy((char *)p + r * stride, amx_register[t].row[r], 64);
}

/* Two chains over the 16 pairs, joined and added to C; to nearest, denormals are zero on the way in and out. */
static void amx_emulate_product(int c, int a, int b)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* to nearest, FTZ, DAZ, no traps */
    for (int r = 0; r < 16; r++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int i = 0; i < 16; i++) {
            const __m512i x = _mm512_set1_epi32((int)amx_register[a].row[r][i]);
            const __m512i y = _mm512_load_si512(amx_register[b].row[i]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, upper)),
                                  _mm512_castsi512_ps(_mm512_and_si512(y, upper)), odd);
        }
        const __m512 sum = _mm512_load_ps(amx_register[c].row[r]);
        _mm512_store_ps(amx_register[c].row[r], _mm512_add_ps(sum, _mm512_add_ps(even, odd)));
    }
    _mm_setcsr(saved);
}

#define AMX_ZERO(t)             amx_emulate_zero(t)
#define AMX_LOAD(t, p, stride)  amx_emulate_load(t, p, stride)
#define AMX_STORE(t, p, stride) amx_emulate_store(t, p, stride)
#define AMX_PRODUCT(c, a, b)    amx_emulate_product(c, a, b)

typedef struct amx_config {
    char unused;
} amx_config;

/* A tile that nobody wrote must not go unnoticed: NaNs. */
VF_INLINE amx_config amx_enter(void)
{
    memset(amx_register, 0xff, sizeof amx_register);
    return (amx_config){0};
}

VF_INLINE void amx_leave(amx_config saved)
{
    (void)saved;
}

#endif
