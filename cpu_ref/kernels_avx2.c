/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kernels_avx2.c: the kernels in AVX2, FMA and F16C. Only static functions besides the list, so
 * that no code of this file can be linked into another one's callers.
 */
#include "cpu.h"
#include "simd_avx2.h"

/* Attention tiles: 12 accumulators of 16 registers. */
#define TILE_ROWS    3
#define TILE_VECTORS 4
#define NARROW_ROWS  10
#define TASK_TILES   8 /* most tiles that share a block of keys */

#include "kernels.inc.h"

const kiln_cpu_isa kiln_cpu_isa_avx2 = {KILN_CPU_STRING(VF_ISA), kernels, NULL};
