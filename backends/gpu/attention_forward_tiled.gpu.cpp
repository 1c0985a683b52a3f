// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `tiled`, padded and not.
#include "attention_forward_tiled.gpu.h"

#define TILED(name, E)                                                                                                 \
    GPU_KERNEL(attention_forward_tiled_scores_##name, attention_forward_tiled_scores<E, true>)                         \
    GPU_KERNEL(attention_forward_tiled_values_##name, attention_forward_tiled_values<E, true>)                         \
    GPU_KERNEL(attention_forward_tiled_unpadded_scores_##name, attention_forward_tiled_scores<E, false>)               \
    GPU_KERNEL(attention_forward_tiled_unpadded_values_##name, attention_forward_tiled_values<E, false>)
TILED(f32, float)
TILED(f16, gpu_half)
TILED(bf16, gpu_bf16)
