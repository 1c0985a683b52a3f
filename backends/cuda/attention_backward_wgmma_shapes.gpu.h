// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_backward_wgmma_shapes.gpu.h: the kernels of attention backward, rung `wgmma`, and their shapes.
//
// head   rows, stages   shared (sent)      registers (launch -> producer, consumers)
//  64    128, 3         195 (226) KB       168 -> 24, 240           sent: 2 stages, 2 tiles of dQ
// 128    64, 3          194 (226) KB       168 -> 24, 240
// 256    64, 2          226 KB             168 -> 24, 240           64 keys
// 256, dQ               225 KB             168 -> 24, 240           128 queries, tiles of 64 keys: two of K, one of V
#include "attention_backward_wgmma.gpu.h"
#include "attention_backward_wgmma_around.gpu.h"
#include "attention_backward_wgmma_wide.gpu.h"

// AGAIN: the tiles of flash2 that do again what is not finite.
#define WGMMA_BACKWARD(NAME) attention_backward_wgmma_##NAME
#define WGMMA_BACKWARD_KERNELS(NAME, E, AGAIN)                                                                         \
    GPU_KERNEL_SM90(WGMMA_BACKWARD(NAME##_64), attention_backward_wgmma<E, 64, 128, 3, false>)                         \
    GPU_KERNEL_SM90(WGMMA_BACKWARD(NAME##_128), attention_backward_wgmma<E, 128, 64, 3, false>)                        \
    GPU_KERNEL_SM90(WGMMA_BACKWARD(sent_##NAME##_64), attention_backward_wgmma<E, 64, 128, 2, true>)                   \
    GPU_KERNEL_SM90(WGMMA_BACKWARD(sent_##NAME##_128), attention_backward_wgmma<E, 128, 64, 3, true>)                  \
    GPU_KERNEL_SM90(WGMMA_BACKWARD(NAME##_256), attention_backward_wgmma_keys<E>)                                      \
    GPU_KERNEL_SM90(WGMMA_BACKWARD(queries_##NAME##_256), attention_backward_wgmma_queries<E>)                         \
    GPU_KERNEL(WGMMA_BACKWARD(prepare_##NAME##_64), attention_backward_wgmma_prepare<E, 64, 128, 128>)                 \
    GPU_KERNEL(WGMMA_BACKWARD(prepare_##NAME##_128), attention_backward_wgmma_prepare<E, 128, 64, 128>)                \
    GPU_KERNEL(WGMMA_BACKWARD(prepare_##NAME##_256), attention_backward_wgmma_prepare<E, 256, 64, 64>)                 \
    GPU_KERNEL(WGMMA_BACKWARD(finish_##NAME##_64), attention_backward_wgmma_finish<E, 64, 128>)                        \
    GPU_KERNEL(WGMMA_BACKWARD(finish_##NAME##_128), attention_backward_wgmma_finish<E, 128, 64>)                       \
    GPU_KERNEL(WGMMA_BACKWARD(finish_##NAME##_256), attention_backward_wgmma_finish<E, 256, 64>)                       \
    GPU_KERNEL(WGMMA_BACKWARD(again_##NAME), attention_backward_wgmma_again<AGAIN>)
