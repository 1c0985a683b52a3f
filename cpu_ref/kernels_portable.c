/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kernels_portable.c: the kernels in plain C, for any processor. Only static functions besides the list, so
 * that no code of this file can be linked into another one's callers.
 */
#include "cpu.h"
#include "simd_portable.h"

/* Attention tiles: 8 accumulators and 4 operands: 16 registers of 4 floats are everywhere. */
#define TILE_ROWS    2
#define TILE_VECTORS 4
#define NARROW_ROWS  4
#define TASK_TILES   4 /* most tiles that share a block of keys */

#include "kernels.inc.h"

const kiln_cpu_isa kiln_cpu_isa_portable = {KILN_CPU_STRING(VF_ISA), kernels, NULL};
