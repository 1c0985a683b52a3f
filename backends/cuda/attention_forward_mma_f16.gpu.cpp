// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of rung `mma` for fp16. Head sizes are padded to 64, 128 or 256.
#include "attention_forward_mma_plain.gpu.h"

GPU_KERNEL(attention_forward_mma_f16_64, attention_forward_mma_plain<gpu_half, 64, 2, 4, 2>)
GPU_KERNEL(attention_forward_mma_f16_128, attention_forward_mma_plain<gpu_half, 128, 2, 4, 2>)
GPU_KERNEL(attention_forward_mma_f16_256, attention_forward_mma_plain<gpu_half, 256, 1, 8, 1>)
GPU_KERNEL(attention_forward_mma_general_f16_64, attention_forward_mma<gpu_half, 64, 4, 3>)
GPU_KERNEL(attention_forward_mma_general_f16_128, attention_forward_mma<gpu_half, 128, 4, 2>)
GPU_KERNEL(attention_forward_mma_general_f16_256, attention_forward_mma<gpu_half, 256, 8, 1>)
