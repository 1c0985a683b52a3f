// SPDX-License-Identifier: MIT OR Apache-2.0
#include "attention_backward_wgmma_shapes.gpu.h"

WGMMA_BACKWARD_KERNELS(bf16, gpu_bf16, attention_backward_matrix<gpu_bf16>)
