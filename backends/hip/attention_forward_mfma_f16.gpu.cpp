// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernels of rung `mfma` for fp16. Head sizes are padded to 64, 128 or 256.
#include "attention_forward_mfma_shapes.gpu.h"

MFMA_KERNELS(f16, gpu_half)
