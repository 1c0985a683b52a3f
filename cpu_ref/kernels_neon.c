/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kernels_neon.c: the kernels in AArch64's Advanced SIMD (Armv8-A). Only static functions besides the list, so that no
 * code of this file can be linked into another one's callers.
 */
#include "cpu.h"
#include "simd_neon.h"

/* Attention tiles: 24 accumulators, 6 vectors of keys whose lanes are multiplied one by one, and 2 registers that queries
 * stream through: all 32. 6 and 12 divide KEY_BLOCK, so no block of keys ends in a narrow rest. */
#define TILE_ROWS    6
#define TILE_VECTORS 4
#define NARROW_ROWS  12
#define TASK_TILES   4 /* most tiles that share a block of keys */

#include "kernels.inc.h"

const kiln_cpu_isa kiln_cpu_isa_neon = {KILN_CPU_STRING(VF_ISA), kernels, NULL};
