// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `splitkv`, bf16: by width of v.
#include "attention_forward_splitkv.gpu.h"

GPU_KERNEL(attention_forward_splitkv_bf16_128, attention_forward_splitkv<gpu_bf16, 128, 128>)
GPU_KERNEL(attention_forward_splitkv_bf16_256, attention_forward_splitkv<gpu_bf16, 256, 256>)
GPU_KERNEL(attention_forward_splitkv_bf16_1024, attention_forward_splitkv<gpu_bf16, 1152, 1024>)
