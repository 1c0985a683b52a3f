/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * tensor_map.h: what the copy engine of Hopper must know of a tensor, made on the host and passed to a kernel by value.
 */
#ifndef KILN_BACKENDS_CUDA_TENSOR_MAP_H
#define KILN_BACKENDS_CUDA_TENSOR_MAP_H

#include "../gpu/gpu_kernel.h"

/* The driver's CUtensorMap: 128 opaque bytes at a multiple of 128. */
typedef struct gpu_tensor_map {
    uint64_t words[16];
} __attribute__((aligned(128))) gpu_tensor_map;

#ifdef __cplusplus
extern "C"
#endif
    /* Boxes of `rows` rows and 64 columns of a tensor of 16-bit elements, coordinates (column, row, head, batch). False if the
     * engine cannot read it (an address or distance that is no multiple of 16 bytes, a distance below 0 or of 0, an older
     * driver). Neither allocates nor waits. */
    bool
    gpu_tensor_map_of(const kiln_view *view, int32_t rows, gpu_tensor_map *map);

#endif
