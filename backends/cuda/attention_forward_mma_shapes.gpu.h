// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_forward_mma_shapes.gpu.h: the kernels of rung `mma`, and their shapes. Head sizes are padded to 64, 128 or 256.
//   plain: D, tiles of 16 rows a wave, waves, blocks on a multiprocessor; general: D, waves, blocks
#pragma once
#include "attention_forward_mma_plain.gpu.h"

#define MMA_KERNELS(NAME, E)                                                                                           \
    GPU_KERNEL(attention_forward_mma_##NAME##_64, attention_forward_mma_plain<E, 64, 2, 4, 2>)                         \
    GPU_KERNEL(attention_forward_mma_##NAME##_128, attention_forward_mma_plain<E, 128, 2, 4, 2>)                       \
    GPU_KERNEL(attention_forward_mma_##NAME##_256, attention_forward_mma_plain<E, 256, 1, 8, 1>)                       \
    GPU_KERNEL(attention_forward_mma_general_##NAME##_64, attention_forward_mma<E, 64, 4, 3>)                          \
    GPU_KERNEL(attention_forward_mma_general_##NAME##_128, attention_forward_mma<E, 128, 4, 2>)                        \
    GPU_KERNEL(attention_forward_mma_general_##NAME##_256, attention_forward_mma<E, 256, 8, 1>)
