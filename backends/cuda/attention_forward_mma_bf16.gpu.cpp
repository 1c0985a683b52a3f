// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of rung `mma` for bf16.
#include "attention_forward_mma_shapes.gpu.h"

MMA_KERNELS(bf16, gpu_bf16)
