// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of rung `mfma` for bf16. Head sizes are padded to 64, 128 or 256.
#include "attention_forward_mfma_shapes.gpu.h"

MFMA_KERNELS(bf16, gpu_bf16)
