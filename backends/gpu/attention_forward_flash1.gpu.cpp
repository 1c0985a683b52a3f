// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `flash1`: K and V of up to D columns stay in shared memory, which 64 KB must hold; 0: they pass.
#include "attention_forward_flash1.gpu.h"

GPU_KERNEL(attention_forward_flash1_f32_128, attention_forward_flash1<float, 128, 16>)
GPU_KERNEL(attention_forward_flash1_f32_256, attention_forward_flash1<float, 256, 16>)
GPU_KERNEL(attention_forward_flash1_f32_0, attention_forward_flash1<float, 0, 32>)
GPU_KERNEL(attention_forward_flash1_f16_128, attention_forward_flash1<gpu_half, 128, 32>)
GPU_KERNEL(attention_forward_flash1_f16_256, attention_forward_flash1<gpu_half, 256, 32>)
GPU_KERNEL(attention_forward_flash1_f16_0, attention_forward_flash1<gpu_half, 0, 32>)
GPU_KERNEL(attention_forward_flash1_bf16_128, attention_forward_flash1<gpu_bf16, 128, 32>)
GPU_KERNEL(attention_forward_flash1_bf16_256, attention_forward_flash1<gpu_bf16, 256, 32>)
GPU_KERNEL(attention_forward_flash1_bf16_0, attention_forward_flash1<gpu_bf16, 0, 32>)
