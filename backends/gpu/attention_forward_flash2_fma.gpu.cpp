// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `flash2` on FMA units: by type and columns of o in a work item. 16-bit types come here only for what the matrix units'
// instances do not take.
#include "attention_forward_flash2_fma.gpu.h"

GPU_KERNEL(attention_forward_flash2_fma_f32_64, attention_forward_flash2_fma<float, 64>)
GPU_KERNEL(attention_forward_flash2_fma_f32_128, attention_forward_flash2_fma<float, 128>)
GPU_KERNEL(attention_forward_flash2_fma_f32_256, attention_forward_flash2_fma<float, 256>)
GPU_KERNEL(attention_forward_flash2_fma_f16_256, attention_forward_flash2_fma<gpu_half, 256>)
GPU_KERNEL(attention_forward_flash2_fma_bf16_256, attention_forward_flash2_fma<gpu_bf16, 256>)
