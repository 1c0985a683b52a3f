// SPDX-License-Identifier: MIT OR Apache-2.0
// Shapes of rung `flash2` for 16-bit types: data of the target. A row's bits depend on the keys of a tile alone, which is
// why the general mode has the same as the plain one, but may have fewer rows a wave.
//
// NVIDIA: two tiles of rows a wave, so that K and V are read from shared memory once per 32 rows, not 16: that traffic is
// the limit. From d = 192 on the accumulators of two do not fit the registers.
// AMD: 64 KB of shared memory; Q in registers, its place then K's and V's.
#pragma once
#include "attention_forward_flash2.gpu.h"

#if GPU_WAVE == 32
using flash2_small = flash2_shape<2, 64, 4, 1, false>; // d <= 128
using flash2_large = flash2_shape<1, 32, 4, 1, false>; // d <= 256
using flash2_small_general = flash2_shape<1, 64, 4, 2, false>;
using flash2_middle = flash2_small;
using flash2_middle_general = flash2_small_general;
#else
using flash2_small = flash2_shape<1, 64, 4, 1, true>;  // d <= 64
using flash2_middle = flash2_shape<1, 32, 4, 1, true>; // d <= 128
using flash2_large = flash2_middle;
using flash2_small_general = flash2_small;
using flash2_middle_general = flash2_middle;
#endif

#define FLASH2_KERNELS(name, E)                                                                                        \
    GPU_KERNEL(attention_forward_flash2_##name##_32, attention_forward_flash2<E, 32, flash2_small, false>)             \
    GPU_KERNEL(attention_forward_flash2_##name##_64, attention_forward_flash2<E, 64, flash2_small, false>)             \
    GPU_KERNEL(attention_forward_flash2_##name##_96, attention_forward_flash2<E, 96, flash2_middle, false>)            \
    GPU_KERNEL(attention_forward_flash2_##name##_128, attention_forward_flash2<E, 128, flash2_middle, false>)          \
    GPU_KERNEL(attention_forward_flash2_##name##_192, attention_forward_flash2<E, 192, flash2_large, false>)           \
    GPU_KERNEL(attention_forward_flash2_##name##_256, attention_forward_flash2<E, 256, flash2_large, false>)           \
    GPU_KERNEL(attention_forward_flash2_general_##name##_64,                                                           \
               attention_forward_flash2<E, 64, flash2_small_general, true>)                                            \
    GPU_KERNEL(attention_forward_flash2_general_##name##_128,                                                          \
               attention_forward_flash2<E, 128, flash2_middle_general, true>)                                          \
    GPU_KERNEL(attention_forward_flash2_general_##name##_256, attention_forward_flash2<E, 256, flash2_large, true>)
