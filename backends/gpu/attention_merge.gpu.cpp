// SPDX-License-Identifier: MIT OR Apache-2.0
// Instances of attention_merge: types are data.
#include "attention_merge.gpu.h"

GPU_KERNEL(attention_merge_add, attention_merge)
GPU_KERNEL(attention_merge_weights, attention_merge_weigh)
