// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels of attention backward, rung `flash2` on FMA units. Types are data: one instance each.
#include "attention_backward_flash2_fma.gpu.h"

GPU_KERNEL(attention_backward_flash2_fma_delta, attention_backward_delta)
GPU_KERNEL(attention_backward_flash2_fma_keys, attention_backward_keys<attention_backward_fma>)
GPU_KERNEL(attention_backward_flash2_fma_queries, attention_backward_queries<attention_backward_fma>)
GPU_KERNEL(attention_backward_flash2_fma_bias, attention_backward_bias)
GPU_KERNEL(attention_backward_flash2_fma_sinks, attention_backward_sinks)
