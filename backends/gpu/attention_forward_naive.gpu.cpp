// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of rung `naive`.
#include "attention_forward_naive.gpu.h"

GPU_KERNEL(attention_forward_naive_softmax, attention_forward_naive_rows)
GPU_KERNEL(attention_forward_naive_scores_f32, attention_forward_naive_scores<float>)
GPU_KERNEL(attention_forward_naive_scores_f16, attention_forward_naive_scores<gpu_half>)
GPU_KERNEL(attention_forward_naive_scores_bf16, attention_forward_naive_scores<gpu_bf16>)
GPU_KERNEL(attention_forward_naive_values_f32, attention_forward_naive_values<float>)
GPU_KERNEL(attention_forward_naive_values_f16, attention_forward_naive_values<gpu_half>)
GPU_KERNEL(attention_forward_naive_values_bf16, attention_forward_naive_values<gpu_bf16>)
