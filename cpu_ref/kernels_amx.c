/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kernels_amx.c: the kernels on tile registers (AMX-TILE, AMX-BF16). What they refuse goes to those of AVX-512. Only
 * static functions besides the list, so that no code of this file can be linked into another one's callers.
 */
#include "cpu.h"
#include "simd_amx.h"

/* A tile of queries has two vectors of lanes. Register blocks of multiply-adds are not used here. */
#define TILE_ROWS    1
#define TILE_VECTORS 2
#define NARROW_ROWS  1

/* Parts of the shared headers serve other kernels only. */
#pragma GCC diagnostic ignored "-Wunused-function"

#include "attention_forward_flash2_amx.inc.h"

/* Takes what that one takes. */
#include "attention_backward_flash2_amx.inc.h"

static const kiln_cpu_kernel *const kernels[] = {&attention_forward_flash2_amx, &attention_backward_flash2_amx, NULL};

const kiln_cpu_isa kiln_cpu_isa_amx = {KILN_CPU_STRING(VF_ISA), kernels, &kiln_cpu_isa_avx512};
