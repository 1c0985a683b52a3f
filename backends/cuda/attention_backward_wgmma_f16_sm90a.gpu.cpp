// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of attention backward, rung `wgmma`, for fp16: shapes as for bf16.
#include "attention_backward_wgmma_around.gpu.h"
#include "attention_backward_wgmma_wide.gpu.h"

GPU_KERNEL_SM90(attention_backward_wgmma_f16_64, attention_backward_wgmma<gpu_half, 64, 128, 3, false>)
GPU_KERNEL_SM90(attention_backward_wgmma_f16_128, attention_backward_wgmma<gpu_half, 128, 64, 3, false>)
GPU_KERNEL_SM90(attention_backward_wgmma_ordered_f16_64, attention_backward_wgmma<gpu_half, 64, 128, 2, true>)
GPU_KERNEL_SM90(attention_backward_wgmma_ordered_f16_128, attention_backward_wgmma<gpu_half, 128, 64, 3, true>)
GPU_KERNEL_SM90(attention_backward_wgmma_f16_256, attention_backward_wgmma_wide<gpu_half, 2>)
GPU_KERNEL(attention_backward_wgmma_prepare_f16_64, attention_backward_wgmma_prepare<gpu_half, 64, 128, 128>)
GPU_KERNEL(attention_backward_wgmma_prepare_f16_128, attention_backward_wgmma_prepare<gpu_half, 128, 64, 128>)
GPU_KERNEL(attention_backward_wgmma_prepare_f16_256, attention_backward_wgmma_prepare<gpu_half, 256, 64, 64>)
GPU_KERNEL(attention_backward_wgmma_finish_f16_64, attention_backward_wgmma_finish<gpu_half, 64, 128>)
GPU_KERNEL(attention_backward_wgmma_finish_f16_128, attention_backward_wgmma_finish<gpu_half, 128, 64>)
GPU_KERNEL(attention_backward_wgmma_finish_f16_256, attention_backward_wgmma_finish<gpu_half, 256, 64>)
GPU_KERNEL(attention_backward_wgmma_again_f16, attention_backward_wgmma_again<attention_backward_fma>)
