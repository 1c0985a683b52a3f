// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of rung `wgmma` for fp16.
#include "attention_forward_wgmma.gpu.h"
#include "attention_forward_wgmma_shapes.gpu.h"

WGMMA_KERNELS(f16, gpu_half)
