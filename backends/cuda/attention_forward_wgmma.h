/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_forward_wgmma.h: arguments of the Hopper forward kernels, shared by their host code and themselves. */
#ifndef KILN_BACKENDS_CUDA_ATTENTION_FORWARD_WGMMA_H
#define KILN_BACKENDS_CUDA_ATTENTION_FORWARD_WGMMA_H

#include "attention_wgmma.h"

/*
 * Tiles are dealt out in rounds of one a block, in an order that keeps K and V of few heads in the L2 and long rows first: heads
 * by sections, each of `slots` items (the last may stay empty). Where lengths differ much and the work is worth it, blocks take
 * what is next from a counter; at most GPU_WGMMA_ROUNDS each.
 */
enum { GPU_WGMMA_ROUNDS = 512 };

/*
 * softcap: a score becomes tanh(score·in)·out, which is in units of log2. Where no |score| is above most_three, that is
 * score·Σ three[i]·score^2i, with an error of tanh below 2^-22 (minimax up to 0.3), and the same with five terms (up to 0.75).
 */
typedef struct gpu_wgmma_cap {
    float in, out, most_three, most_five, three[3], five[5];
} gpu_wgmma_cap;

/* A head's tiles: the first `high` of `rows` rows, then of `low`. Both are multiples of 64, at most the kernel's. */
typedef struct gpu_wgmma_tiling {
    int32_t rows, high, low;
} gpu_wgmma_tiling;

typedef struct gpu_wgmma_args {
    gpu_attention_args base; /* items: sections · slots, below 2^31 with a round more */
    gpu_wgmma_tiling tiling;
    int32_t section;         /* heads of a section */
    int32_t slots;           /* items of a section */
    int32_t group;           /* query heads of a KV head */
    int32_t alike;           /* all sequences have the same rows, none are packed */
    gpu_wgmma_window window; /* of all, then */
    gpu_wgmma_cap cap;
    uint32_t *counters; /* workspace: two, zero before and after; NULL: no counter */
    gpu_tensor_map q, k, v, o;
} gpu_wgmma_args;

#endif
