// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels of attention backward, rung `flash2` on matrix units, bf16.
#include "attention_backward_flash2.gpu.h"

GPU_KERNEL(attention_backward_flash2_keys_bf16, attention_backward_keys<attention_backward_matrix<gpu_bf16>>)
GPU_KERNEL(attention_backward_flash2_queries_bf16, attention_backward_queries<attention_backward_matrix<gpu_bf16>>)
