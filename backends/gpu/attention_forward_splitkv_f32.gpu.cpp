// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `splitkv`, f32: by width of v; and the kernel that joins the pieces, of every type.
#include "attention_forward_splitkv.gpu.h"

GPU_KERNEL(attention_forward_splitkv_f32_128, attention_forward_splitkv<float, 128, 128>)
GPU_KERNEL(attention_forward_splitkv_f32_256, attention_forward_splitkv<float, 256, 256>)
GPU_KERNEL(attention_forward_splitkv_f32_1024, attention_forward_splitkv<float, 1152, 1024>)
GPU_KERNEL(attention_forward_splitkv_join, attention_forward_splitkv_merge)
