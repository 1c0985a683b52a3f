/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_wgmma.h: what the host code and the kernels of both Hopper passes share. */
#ifndef KILN_BACKENDS_CUDA_ATTENTION_WGMMA_H
#define KILN_BACKENDS_CUDA_ATTENTION_WGMMA_H

#include "../../common/window.h"
#include "tensor_map.h"

/* A window of step 1: query i sees the keys [i + low, i + high), cut to [0, seqlen_k). Sequences have up to 2^30 rows. */
typedef struct gpu_wgmma_window {
    int32_t low, high;
} gpu_wgmma_window;

KILN_INLINE int32_t gpu_wgmma_near(int64_t x)
{
    const int64_t most = 1 << 30;
    return (int32_t)(x < -most ? -most : x > most ? most : x);
}

/* apart: the position of the first query less that of the first key. */
KILN_INLINE gpu_wgmma_window gpu_wgmma_window_of(const kiln_attention_problem *p, int64_t apart)
{
    gpu_wgmma_window w = {-(1 << 30), 1 << 30};
    if (p->masked && p->window_left != KILN_UNBOUNDED)
        w.low = gpu_wgmma_near(kiln_subtract_saturating(apart, p->window_left));
    if (p->masked && p->window_right != KILN_UNBOUNDED)
        w.high = gpu_wgmma_near(kiln_add_saturating(kiln_add_saturating(apart, p->window_right), 1));
    return w;
}

#endif
