/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * select_hip.c: the methods of the HIP backend, in order of preference per operation, the most general last. So far only the
 * emulated device simt-hip has it.
 */
#include "../gpu/gpu_host.h"

extern const gpu_method GPU_NAME(gpu_softmax_online), GPU_NAME(gpu_softmax_three_pass), GPU_NAME(gpu_softmax_backward);
extern const gpu_method GPU_NAME(gpu_attention_forward_mfma);
extern const gpu_method GPU_NAME(gpu_attention_forward_flash2), GPU_NAME(gpu_attention_forward_naive);
extern const gpu_method GPU_NAME(gpu_attention_forward_flash2_fma);
extern const gpu_method GPU_NAME(gpu_attention_forward_flash1);
extern const gpu_method GPU_NAME(gpu_attention_forward_tiled), GPU_NAME(gpu_attention_forward_tiled_unpadded);
extern const gpu_method GPU_NAME(gpu_attention_forward_splitkv), GPU_NAME(gpu_attention_merge);
extern const gpu_method GPU_NAME(gpu_attention_backward_flash2), GPU_NAME(gpu_attention_backward_flash2_fma);

/* clang-format off */
const gpu_method *const GPU_NAME(gpu_methods)[] = {
    &GPU_NAME(gpu_softmax_online),
    &GPU_NAME(gpu_softmax_three_pass),
    &GPU_NAME(gpu_softmax_backward),
    &GPU_NAME(gpu_attention_forward_splitkv),
    &GPU_NAME(gpu_attention_forward_mfma),
    &GPU_NAME(gpu_attention_forward_flash2),
    &GPU_NAME(gpu_attention_forward_flash2_fma),
    &GPU_NAME(gpu_attention_forward_flash1),
    &GPU_NAME(gpu_attention_forward_tiled),
    &GPU_NAME(gpu_attention_forward_tiled_unpadded),
    &GPU_NAME(gpu_attention_forward_naive),
    &GPU_NAME(gpu_attention_merge),
    &GPU_NAME(gpu_attention_backward_flash2),
    &GPU_NAME(gpu_attention_backward_flash2_fma),
    NULL,
};
/* clang-format on */
