// SPDX-License-Identifier: MIT OR Apache-2.0
// Shapes of rung `mfma`: data of the target. A row's bits depend on the keys of a tile alone, which is why the general mode has
// the same as the plain one.
//
// 64 KB of shared memory on gfx90a and gfx942: two stages of 32 KB in all leave room for two blocks, which is two waves a SIMD
// with 256 registers each. d = 256 has one wave a SIMD, whose accumulators need more; so has fp16 on gfx90a, where fp32 copies
// of operands do, and the matrix unit is busy for long enough.
#pragma once
#include "attention_forward_mfma.gpu.h"

#define MFMA_BLOCKS(E) (gpu_mfma_fast<E>() ? 2 : 1)
#define MFMA_KERNELS(name, E)                                                                                          \
    GPU_KERNEL(attention_forward_mfma_##name##_64, attention_forward_mfma<E, 64, 64, 4, MFMA_BLOCKS(E), 2, false>)     \
    GPU_KERNEL(attention_forward_mfma_##name##_128, attention_forward_mfma<E, 128, 32, 4, MFMA_BLOCKS(E), 2, false>)   \
    GPU_KERNEL(attention_forward_mfma_##name##_256, attention_forward_mfma<E, 256, 32, 4, 1, 1, false>)                \
    GPU_KERNEL(attention_forward_mfma_general_##name##_64, attention_forward_mfma<E, 64, 64, 4, 1, 2, true>)           \
    GPU_KERNEL(attention_forward_mfma_general_##name##_128, attention_forward_mfma<E, 128, 32, 4, 1, 2, true>)         \
    GPU_KERNEL(attention_forward_mfma_general_##name##_256, attention_forward_mfma<E, 256, 32, 4, 1, 1, true>)
