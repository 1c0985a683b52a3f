/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * peak_cpu.c: see peak_cpu.h. The best of several short runs, since the question is what the machine can do, not what it
 * did while others used it. Twelve independent accumulators hide the latency of two multiply-add pipes (4 cycles each) and
 * fit the 16 registers of the older instruction sets.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

#include "peak_cpu.h"

enum { ACCUMULATORS = 12, ROUNDS = 7 };

typedef double (*work)(void *part, int64_t amount);

/* Where results go, so that no work is optimised away. */
static volatile double last_sink;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One round of multiply-adds on every accumulator, `amount` times. The empty asm keeps each one in a register and alive.
 * Values stay near 1: denormals would be slow, and infinities might be. */
#define KERNEL(name, attributes, vector, set1, fma, constraint)                                                        \
    attributes static double name(void *part, int64_t amount)                                                          \
    {                                                                                                                  \
        vector a[ACCUMULATORS], x = set1(0.999f), y = set1(0.001f);                                                    \
        (void)part;                                                                                                    \
        _Pragma("GCC unroll 12") for (int i = 0; i < ACCUMULATORS; i++) a[i] = set1(1.0f);                             \
        for (int64_t n = 0; n < amount; n++) {                                                                         \
            _Pragma("GCC unroll 12") for (int i = 0; i < ACCUMULATORS; i++) a[i] = fma(a[i], x, y);                    \
            _Pragma("GCC unroll 12") for (int i = 0; i < ACCUMULATORS; i++) __asm__ volatile("" : constraint(a[i]));   \
        }                                                                                                              \
        return 0;                                                                                                      \
    }

#if defined(__x86_64__)
static inline __m128 multiply_add(__m128 a, __m128 x, __m128 y)
{
    return _mm_add_ps(_mm_mul_ps(a, x), y);
}
KERNEL(flops_sse2, , __m128, _mm_set1_ps, multiply_add, "+x")
KERNEL(flops_avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_set1_ps, _mm256_fmadd_ps, "+x")
KERNEL(flops_avx512, __attribute__((target("avx512f"))), __m512, _mm512_set1_ps, _mm512_fmadd_ps, "+v")
#elif defined(__aarch64__)
#include <arm_neon.h>
static inline float32x4_t multiply_add(float32x4_t a, float32x4_t x, float32x4_t y)
{
    return vfmaq_f32(y, a, x);
}
KERNEL(flops_neon, , float32x4_t, vdupq_n_f32, multiply_add, "+w")
#else
static inline float multiply_add(float a, float x, float y)
{
    return a * x + y;
}
static inline float same(float x)
{
    return x;
}
KERNEL(flops_scalar, , float, same, multiply_add, "+m")
#endif

#if defined(__x86_64__)
/* Four accumulators hide the latency of a tile product (52 cycles, one every 16). Tiles of zeros: the time does not depend
 * on the numbers. 16 rows of 64 bytes each; configured and released here, on the thread that works. */
static double flops_tiles(void *part, int64_t amount)
{
    uint8_t config[64] __attribute__((aligned(64))) = {1};
    (void)part;
    for (int t = 0; t < 8; t++) {
        config[16 + 2 * t] = 64;
        config[48 + t] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    for (int64_t n = 0; n < amount; n++)
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
                         "tdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\n\t"
                         "tdpbf16ps %tmm7, %tmm5, %tmm3");
    __asm__ volatile("tilerelease");
    return 0;
}
enum { TILE_FLOPS = 4 * 2 * 16 * 16 * 32 };
#endif

/* The widest kernel that this processor and system run; FLOP of one call with amount 1. */
static work choose_kernel(double *flops, const char **unit)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        *flops = 2 * 16 * ACCUMULATORS;
        *unit = "AVX-512 FMA";
        return flops_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        *flops = 2 * 8 * ACCUMULATORS;
        *unit = "AVX2 FMA";
        return flops_avx2;
    }
    *flops = 2 * 4 * ACCUMULATORS;
    *unit = "SSE2 multiply and add";
    return flops_sse2;
#elif defined(__aarch64__)
    *flops = 2 * 4 * ACCUMULATORS;
    *unit = "NEON FMA";
    return flops_neon;
#else
    *flops = 2 * ACCUMULATORS;
    *unit = "scalar multiply and add";
    return flops_scalar;
#endif
}

/* Reads every byte once, eight streams of 64-bit words that the compiler turns into vectors. */
static double read_all(void *part, int64_t bytes)
{
    enum { STREAMS = 32 };
    const uint64_t *word = part;
    uint64_t sum[STREAMS] = {0};
    for (int64_t i = 0; i + STREAMS <= bytes / 8; i += STREAMS)
        for (int s = 0; s < STREAMS; s++)
            sum[s] += word[i + s];
    for (int s = 1; s < STREAMS; s++)
        sum[0] += sum[s];
    return (double)sum[0];
}

#if defined(__x86_64__)
/* The lower half of `part` to its upper half, past the caches: the ceiling of what reads a tensor once and writes one. The
 * best loop there is on a processor with AVX-512 as well: memory is the limit, not the width of its stores. */
static double copy_streaming(void *part, int64_t bytes)
{
    int64_t count = bytes / 2 / (int64_t)sizeof(__m128i) & ~(int64_t)7;
    const __m128i *from = part;
    __m128i *to = (__m128i *)part + bytes / 2 / 64 * 4;
    for (int64_t i = 0; i < count; i += 8) {
        __m128i x[8];
        _Pragma("GCC unroll 8") for (int u = 0; u < 8; u++) x[u] = _mm_load_si128(from + i + u);
        _Pragma("GCC unroll 8") for (int u = 0; u < 8; u++) _mm_stream_si128(to + i + u, x[u]);
    }
    _mm_sfence();
    return 0;
}
#endif

/* Seconds from the first start to the last end, on the threads that kernels get: OpenMP's, wherever it has bound them (one
 * thread in a build without it, like the kernels). */
static double run_once(work run, int threads, char *buffer, int64_t amount)
{
    double begin = INFINITY, end = 0, sink = 0;
    (void)threads; /* a build without OpenMP has one */
#pragma omp parallel num_threads(threads)
    {
        int number = 0;
#ifdef _OPENMP
        number = omp_get_thread_num();
#endif
        char *part = buffer ? buffer + number * amount : NULL;
        double got = 0;
        if (part != NULL)
            memset(part, 1, (size_t)amount); /* first touch by the thread that reads it */
        else
            got = run(NULL, amount / 10); /* up to the clock rate that it will have */
#pragma omp barrier
        double from = now();
        got += run(part, amount);
        double to = now();
#pragma omp critical
        {
            begin = from < begin ? from : begin;
            end = to > end ? to : end;
            sink += got;
        }
    }
    last_sink = sink;
    return end - begin;
}

/* Calls of `amount` rounds on every thread: rounds a second, all threads together. */
static double best_rate(work kernel, int threads, int64_t amount)
{
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double seconds = run_once(kernel, threads, NULL, amount);
        if (seconds > 0 && (best == 0 || seconds < best))
            best = seconds;
    }
    return best > 0 ? (double)amount * threads / best : 0;
}

/* `run` over all of `part` bytes a thread: bytes a second, all threads together. */
static double best_bandwidth(work run, int threads, char *buffer, int64_t part)
{
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double seconds = run_once(run, threads, buffer, part);
        if (seconds > 0 && (best == 0 || seconds < best))
            best = seconds;
    }
    return best > 0 ? (double)part * threads / best : 0;
}

cpu_peak cpu_peak_measure(int threads, int64_t l3_bytes, bool tiles)
{
    cpu_peak peak = {.threads = threads > 0 ? threads : 1};
#ifndef _OPENMP
    peak.threads = 1;
#endif
    double flops;
    work kernel = choose_kernel(&flops, &peak.unit);
    peak.flops = flops * best_rate(kernel, peak.threads, 3000000);
#if defined(__x86_64__)
    if (tiles)
        peak.tile_flops = TILE_FLOPS * best_rate(flops_tiles, peak.threads, 2000000);
#else
    (void)tiles;
#endif

    /* Twice the last-level cache, but some virtual machines report that of the whole host. */
    int64_t want = 2 * l3_bytes, least = (int64_t)256 << 20, most = (int64_t)1 << 30;
    want = want < least ? least : want > most ? most : want;
    int64_t part = want / peak.threads & ~(int64_t)4095;
    char *buffer = aligned_alloc(4096, (size_t)(part * peak.threads));
    if (buffer != NULL) {
        peak.buffer = (size_t)(part * peak.threads);
        peak.bandwidth = best_bandwidth(read_all, peak.threads, buffer, part);
#if defined(__x86_64__)
        peak.copy = best_bandwidth(copy_streaming, peak.threads, buffer, part);
#endif
    }
    free(buffer);
    return peak;
}
