/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_backward_wgmma.h: arguments of the Hopper backward kernels, shared by their host code and themselves. */
#ifndef KILN_BACKENDS_CUDA_ATTENTION_BACKWARD_WGMMA_H
#define KILN_BACKENDS_CUDA_ATTENTION_BACKWARD_WGMMA_H

#include "tensor_map.h"

enum { GPU_WGMMA_ROWS = 64 }; /* of a tile of queries, and keys of a warpgroup */

/*
 * Workspace by tiles of GPU_WGMMA_ROWS rows. A head has q_room tiles of queries, of all sequences (gpu_wgmma_tile_of() says where
 * one begins), a KV head k_room tiles of keys.
 */
typedef struct gpu_wgmma_backward_args {
    union {
        int64_t items; /* base.items */
        gpu_backward_args base;
    };
    int64_t q_room, k_room;
    int64_t section;           /* masked: KV heads whose Q, dO and dQ are meant to share the L2 */
    float *dq;                 /* tiles of rows x D fp32 sums, in the order of the registers */
    float *lse, *delta;        /* tiles of rows: -lse·log2(e), and D - dlse; in the order of the registers */
    uint32_t *open_q, *open_k; /* a tile's gradient is not finite: to be done again */
    gpu_tensor_map q, k, v, dout;
} gpu_wgmma_backward_args;

/* The first tile of sequence b, whose first row of a packed tensor is `row`: sequences never share one. */
KILN_INLINE int64_t gpu_wgmma_tile_of(bool packed, int64_t b, int64_t row, int64_t tiles_of_sequence)
{
    return packed ? row / GPU_WGMMA_ROWS + b : b * tiles_of_sequence;
}

#endif
