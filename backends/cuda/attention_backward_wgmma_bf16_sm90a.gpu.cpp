// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of attention backward, rung `wgmma`, for bf16.
//
// head   rows, stages   shared (ordered)   registers (launch -> producer, consumers)
//  64    128, 3         195 (227) KB       168 -> 24, 240
// 128    64, 3          194 (226) KB       168 -> 24, 240
// 256    64, 2          226 KB             168 -> 24, 240           64 keys a block, not 128
#include "attention_backward_wgmma_around.gpu.h"
#include "attention_backward_wgmma_wide.gpu.h"

GPU_KERNEL_SM90(attention_backward_wgmma_bf16_64, attention_backward_wgmma<gpu_bf16, 64, 128, 3, false>)
GPU_KERNEL_SM90(attention_backward_wgmma_bf16_128, attention_backward_wgmma<gpu_bf16, 128, 64, 3, false>)
GPU_KERNEL_SM90(attention_backward_wgmma_ordered_bf16_64, attention_backward_wgmma<gpu_bf16, 64, 128, 2, true>)
GPU_KERNEL_SM90(attention_backward_wgmma_ordered_bf16_128, attention_backward_wgmma<gpu_bf16, 128, 64, 3, true>)
GPU_KERNEL_SM90(attention_backward_wgmma_bf16_256, attention_backward_wgmma_wide<gpu_bf16, 2>)
GPU_KERNEL(attention_backward_wgmma_prepare_bf16_64, attention_backward_wgmma_prepare<gpu_bf16, 64, 128, 128>)
GPU_KERNEL(attention_backward_wgmma_prepare_bf16_128, attention_backward_wgmma_prepare<gpu_bf16, 128, 64, 128>)
GPU_KERNEL(attention_backward_wgmma_prepare_bf16_256, attention_backward_wgmma_prepare<gpu_bf16, 256, 64, 64>)
GPU_KERNEL(attention_backward_wgmma_finish_bf16_64, attention_backward_wgmma_finish<gpu_bf16, 64, 128>)
GPU_KERNEL(attention_backward_wgmma_finish_bf16_128, attention_backward_wgmma_finish<gpu_bf16, 128, 64>)
GPU_KERNEL(attention_backward_wgmma_finish_bf16_256, attention_backward_wgmma_finish<gpu_bf16, 256, 64>)
GPU_KERNEL(attention_backward_wgmma_again_bf16, attention_backward_wgmma_again<attention_backward_matrix<gpu_bf16>>)
