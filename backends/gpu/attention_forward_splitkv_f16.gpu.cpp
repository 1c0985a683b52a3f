// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `splitkv`, f16: by width of v.
#include "attention_forward_splitkv.gpu.h"

GPU_KERNEL(attention_forward_splitkv_f16_128, attention_forward_splitkv<gpu_half, 128, 128>)
GPU_KERNEL(attention_forward_splitkv_f16_256, attention_forward_splitkv<gpu_half, 256, 256>)
GPU_KERNEL(attention_forward_splitkv_f16_1024, attention_forward_splitkv<gpu_half, 1152, 1024>)
