// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of rung `wgmma` for bf16.
#include "attention_forward_wgmma.gpu.h"
#include "attention_forward_wgmma_shapes.gpu.h"

WGMMA_KERNELS(bf16, gpu_bf16)
