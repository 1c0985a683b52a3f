/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * peak_cpu.h: what this processor can do at most, measured now: fp32 multiply-adds and products of bf16 tiles from
 * registers, reading of memory, and copying with stores that pass the caches (non-temporal ones).
 */
#ifndef KILN_BENCH_PEAK_CPU_H
#define KILN_BENCH_PEAK_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cpu_peak {
    double flops;      /* fp32 FLOP/s of all threads together; one multiply-add counts two */
    const char *unit;  /* what was timed: "AVX-512 FMA", "SSE2 multiply and add", ... */
    double tile_flops; /* bf16 FLOP/s of products of AMX tiles that are loaded once; 0 = not asked for */
    double bandwidth;  /* bytes/s read from memory by all threads together */
    double copy;   /* bytes/s read and written by a non-temporal copy, all threads together; 0 where there is none */
    size_t buffer; /* bytes read, all threads together; the copy is from one half to the other */
    int threads;
} cpu_peak;

/* Takes about a second, on `threads` of OpenMP's threads. `tiles`: measure AMX too, which the process has asked the system
 * for. The buffer is larger than the caches when memory allows, which `l3_bytes` (0 = unknown) helps to choose.
 * bandwidth and copy are 0 if there was no memory for it. */
cpu_peak cpu_peak_measure(int threads, int64_t l3_bytes, bool tiles);

#endif
