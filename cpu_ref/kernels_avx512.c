/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kernels_avx512.c: the kernels in AVX-512 F, BW, DQ and VL. Only static functions besides the list, so
 * that no code of this file can be linked into another one's callers.
 */
#include "cpu.h"
#include "simd_avx512.h"

/* Attention tiles: 24 accumulators of 32 registers. */
#define TILE_ROWS    6
#define TILE_VECTORS 4
#define NARROW_ROWS  14
#define TILE_UNROLL  _Pragma("GCC unroll 2")
#define TASK_TILES   4 /* most tiles that share a block of keys */

#include "kernels.inc.h"

const kiln_cpu_isa kiln_cpu_isa_avx512 = {KILN_CPU_STRING(VF_ISA), kernels, NULL};
