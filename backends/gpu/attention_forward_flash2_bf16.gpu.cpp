// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `flash2` for bf16: see attention_forward_flash2_shapes.gpu.h.
#include "attention_forward_flash2_shapes.gpu.h"

FLASH2_KERNELS(bf16, gpu_bf16)
