// SPDX-License-Identifier: MIT OR Apache-2.0
#include "attention_backward_wgmma_shapes.gpu.h"

WGMMA_BACKWARD_KERNELS(f16, gpu_half, attention_backward_fma)
