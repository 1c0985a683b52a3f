// SPDX-License-Identifier: MIT OR Apache-2.0
// Shapes of rung `mfma`: data of the target. A row's bits depend on the keys of a tile and on the matrix instruction alone, which
// is why the general mode has the same as the plain one.
//
// 64 KB of shared memory on gfx90a and gfx942: two stages of 32 KB in all leave room for two blocks, which is two waves a SIMD
// with 256 registers each. d = 256 has one wave a SIMD, whose accumulators need more; so has fp16 on gfx90a, where fp32 copies
// of operands do, and the matrix unit is busy for long enough.
//
// few: calls whose queries fit in one tile of 64 (attention_forward_mfma.c).
#pragma once
#include "attention_forward_mfma.gpu.h"

#define MFMA_BLOCKS(E) (gpu_mfma_fast<E>() ? 2 : 1)
template <class E, int D, int BC, bool GENERAL>
using mfma_few = attention_forward_mfma<E, 16, D, BC, 4, GENERAL || (D > 128) ? 1 : 2, GENERAL ? 1 : 2, GENERAL>;
#define MFMA_KERNELS(name, E)                                                                                          \
    GPU_KERNEL(attention_forward_mfma_##name##_64, attention_forward_mfma<E, 32, 64, 64, 4, MFMA_BLOCKS(E), 2, false>) \
    GPU_KERNEL(attention_forward_mfma_##name##_128,                                                                    \
               attention_forward_mfma<E, 32, 128, 32, 4, MFMA_BLOCKS(E), 2, false>)                                    \
    GPU_KERNEL(attention_forward_mfma_##name##_256, attention_forward_mfma<E, 32, 256, 32, 4, 1, 1, false>)            \
    GPU_KERNEL(attention_forward_mfma_general_##name##_64, attention_forward_mfma<E, 32, 64, 64, 4, 1, 2, true>)       \
    GPU_KERNEL(attention_forward_mfma_general_##name##_128, attention_forward_mfma<E, 32, 128, 32, 4, 1, 2, true>)     \
    GPU_KERNEL(attention_forward_mfma_general_##name##_256, attention_forward_mfma<E, 32, 256, 32, 4, 1, 1, true>)     \
    GPU_KERNEL(attention_forward_mfma_few_##name##_64, mfma_few<E, 64, 64, false>)                                     \
    GPU_KERNEL(attention_forward_mfma_few_##name##_128, mfma_few<E, 128, 32, false>)                                   \
    GPU_KERNEL(attention_forward_mfma_few_##name##_256, mfma_few<E, 256, 32, false>)                                   \
    GPU_KERNEL(attention_forward_mfma_few_general_##name##_64, mfma_few<E, 64, 64, true>)                              \
    GPU_KERNEL(attention_forward_mfma_few_general_##name##_128, mfma_few<E, 128, 32, true>)                            \
    GPU_KERNEL(attention_forward_mfma_few_general_##name##_256, mfma_few<E, 256, 32, true>)
