/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * select_cuda.c: the methods of the CUDA backend, in order of preference per operation, the most general last. The emulated
 * device simt-cuda compiles this list too (GPU_EMULATED), without the methods whose kernels are not emulated.
 */
#include "../gpu/gpu_host.h"

extern const gpu_method GPU_NAME(gpu_softmax_online), GPU_NAME(gpu_softmax_three_pass), GPU_NAME(gpu_softmax_backward);
extern const gpu_method GPU_NAME(gpu_attention_forward_wgmma), GPU_NAME(gpu_attention_forward_mma);
extern const gpu_method GPU_NAME(gpu_attention_forward_flash2), GPU_NAME(gpu_attention_forward_naive);
extern const gpu_method GPU_NAME(gpu_attention_forward_flash2_fma);
extern const gpu_method GPU_NAME(gpu_attention_forward_flash1);
extern const gpu_method GPU_NAME(gpu_attention_forward_tiled), GPU_NAME(gpu_attention_forward_tiled_unpadded);
extern const gpu_method GPU_NAME(gpu_attention_forward_splitkv), GPU_NAME(gpu_attention_merge);
extern const gpu_method GPU_NAME(gpu_attention_backward_wgmma);
extern const gpu_method GPU_NAME(gpu_attention_backward_flash2), GPU_NAME(gpu_attention_backward_flash2_fma);

/* clang-format off */
const gpu_method *const GPU_NAME(gpu_methods)[] = {
    &GPU_NAME(gpu_softmax_online),
    &GPU_NAME(gpu_softmax_three_pass),
    &GPU_NAME(gpu_softmax_backward),
    &GPU_NAME(gpu_attention_forward_splitkv),
#ifndef GPU_EMULATED
    &GPU_NAME(gpu_attention_forward_wgmma),
#endif
    &GPU_NAME(gpu_attention_forward_mma),
    &GPU_NAME(gpu_attention_forward_flash2),
    &GPU_NAME(gpu_attention_forward_flash2_fma),
    &GPU_NAME(gpu_attention_forward_flash1),
    &GPU_NAME(gpu_attention_forward_tiled),
    &GPU_NAME(gpu_attention_forward_tiled_unpadded),
    &GPU_NAME(gpu_attention_forward_naive),
    &GPU_NAME(gpu_attention_merge),
#ifndef GPU_EMULATED
    &GPU_NAME(gpu_attention_backward_wgmma),
#endif
    &GPU_NAME(gpu_attention_backward_flash2),
    &GPU_NAME(gpu_attention_backward_flash2_fma),
    NULL,
};
/* clang-format on */
