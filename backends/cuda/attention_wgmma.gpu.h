// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_wgmma.gpu.h: what the Hopper kernels of both passes share.
#pragma once
#include "../gpu/gpu_attention.gpu.h"
#include "gpu_intrin_wgmma.h"

// A place in a ring of N stages; the parity flips at each round.
template <int N> struct wgmma_ring {
    int stage = 0;
    uint32_t parity = 0;
    GPU_FN void next()
    {
        if (++stage == N)
            stage = 0, parity ^= 1;
    }
};

// A window of step 1: query i sees the keys [i + low, i + high), cut to [0, seqlen_k). Sequences have up to 2^30 rows.
struct wgmma_window {
    int32_t low, high;
    GPU_FN wgmma_window(const kiln_attention_problem &p, const kiln_sequence &s) : low(-(1 << 30)), high(1 << 30)
    {
        const int64_t apart = s.pos_q - s.pos_k;
        if (p.masked && p.window_left != KILN_UNBOUNDED)
            low = near(kiln_subtract_saturating(apart, p.window_left));
        if (p.masked && p.window_right != KILN_UNBOUNDED)
            high = near(kiln_add_saturating(kiln_add_saturating(apart, p.window_right), 1));
    }

  private:
    static GPU_FN int32_t near(int64_t x)
    {
        const int64_t most = 1 << 30;
        return (int32_t)(x < -most ? -most : x > most ? most : x);
    }
};
