// SPDX-License-Identifier: MIT OR Apache-2.0
// The softmax kernels, once for every target; softmax.c chooses among them. Names: rung, type, threads of a row; `short`: 4 with
// few slots, `wide`: with half as many slots again, for rows a little longer than a power of two; `medium`, `long`: several chunks.
#include "softmax_online.gpu.h"
#include "softmax_split.gpu.h"
#include "softmax_three_pass.gpu.h"

// Chunks of a row that stay on the chip, and chunks ahead of the use. AMD: 64 KB of shared memory; and a copy goes through
// registers, which wait for it where it is issued, so nothing is gained by issuing it early. SPLIT: threads and slots of a
// piece, 64 elements a thread; pieces ahead, and waiting for their rows; whether tickets are asked for (measured: not by fp32). FAR,
// for rows of many blocks: two pieces that wait, for the more blocks have a row the further apart they are.
#if GPU_WAVE == 32
#define ON_CHIP(vecs, chunks, ahead) vecs, chunks, ahead
#define MEDIUM                       256, 4, 4, 2
#define SPLIT(E)                     (int)sizeof(E) == 2 ? 256 : 128, (int)sizeof(E) == 2 ? 8 : 16, 1, 1, (int)sizeof(E) == 2
#define SPLIT_FAR                    256, 7, 1, 2, true
#define SPLIT_BACKWARD               256, 4, 1, 1, false
#define SPLIT_BACKWARD_FAR           256, 3, 1, 2, false
#else
#define ON_CHIP(vecs, chunks, ahead) vecs, (chunks > 3 ? 3 : chunks), 0
#define MEDIUM                       512, 2, 3, 0 // as long
#define SPLIT(E)                     512, 2, 1, 1, false
#define SPLIT_FAR                    512, 1, 1, 2, false
#define SPLIT_BACKWARD               512, 1, 1, 1, false
#define SPLIT_BACKWARD_FAR           256, 1, 1, 2, false
#endif

#define SOFTMAX_KERNELS(NAME, E)                                                 \
    GPU_KERNEL(softmax_online_##NAME##_short, softmax_online<E, 4, ON_CHIP(2, 1, 2)>)     \
    GPU_KERNEL(softmax_online_##NAME##_4, softmax_online<E, 4, ON_CHIP(8, 1, 2)>)         \
    GPU_KERNEL(softmax_online_##NAME##_8, softmax_online<E, 8, ON_CHIP(8, 1, 2)>)         \
    GPU_KERNEL(softmax_online_##NAME##_16, softmax_online<E, 16, ON_CHIP(8, 1, 2)>)       \
    GPU_KERNEL(softmax_online_##NAME##_16_wide, softmax_online<E, 16, ON_CHIP(12, 1, 1)>) \
    GPU_KERNEL(softmax_online_##NAME##_32, softmax_online<E, 32, ON_CHIP(8, 1, 2)>)       \
    GPU_KERNEL(softmax_online_##NAME##_32_wide, softmax_online<E, 32, ON_CHIP(12, 1, 1)>) \
    GPU_KERNEL(softmax_online_##NAME##_64, softmax_online<E, 64, ON_CHIP(8, 1, 2)>)       \
    GPU_KERNEL(softmax_online_##NAME##_64_wide, softmax_online<E, 64, ON_CHIP(12, 1, 1)>) \
    GPU_KERNEL(softmax_online_##NAME##_128, softmax_online<E, 128, ON_CHIP(8, 1, 2)>)     \
    GPU_KERNEL(softmax_online_##NAME##_128_wide, softmax_online<E, 128, ON_CHIP(12, 1, 1)>) \
    GPU_KERNEL(softmax_online_##NAME##_256, softmax_online<E, 256, ON_CHIP(8, 1, 2)>)     \
    GPU_KERNEL(softmax_online_##NAME##_medium, softmax_online<E, MEDIUM>)                 \
    GPU_KERNEL(softmax_online_##NAME##_long, softmax_online<E, 512, ON_CHIP(2, 8, 4)>)    \
    GPU_KERNEL(softmax_split_##NAME, softmax_split<E, softmax_split_forward, SPLIT(E)>)           \
    GPU_KERNEL(softmax_split_##NAME##_far, softmax_split<E, softmax_split_forward, SPLIT_FAR>)           \
    GPU_KERNEL(softmax_backward_split_##NAME, softmax_split<E, softmax_split_backward, SPLIT_BACKWARD>) \
    GPU_KERNEL(softmax_backward_split_##NAME##_far, softmax_split<E, softmax_split_backward, SPLIT_BACKWARD_FAR>) \
    GPU_KERNEL(softmax_backward_##NAME##_8, softmax_backward<E, 8, 2>)           \
    GPU_KERNEL(softmax_backward_##NAME##_32, softmax_backward<E, 32, 2>)         \
    GPU_KERNEL(softmax_backward_##NAME##_128, softmax_backward<E, 128, 2>)       \
    GPU_KERNEL(softmax_backward_##NAME##_512, softmax_backward<E, 512, 2>)

SOFTMAX_KERNELS(f32, float)
SOFTMAX_KERNELS(f16, gpu_half)
SOFTMAX_KERNELS(bf16, gpu_bf16)
GPU_KERNEL(softmax_three_pass_32, softmax_three_pass<32>)
GPU_KERNEL(softmax_three_pass_256, softmax_three_pass<256>)
GPU_KERNEL(softmax_backward_mixed_256, softmax_backward_mixed<256>)
