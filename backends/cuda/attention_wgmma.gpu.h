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

// My part of a row of an accumulator (gpu_wgmma) to memory; y(i, e): element e of the two that I have of columns 8·i ... Four lanes
// exchange, so that each has eight columns in a row: one 16-byte store. Is some element not below the limit?
template <class E, int COLS, class F>
GPU_FN bool wgmma_store_row(const gpu_rows<E> &out, int row, bool here, int col0, int cols, float limit, F y)
{
    bool open = false;
#pragma unroll
    for (int g = 0; g < COLS / 32; g++) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float y0 = y(4 * g + i, 0), y1 = y(4 * g + i, 1);
            open |= here && !(gpu_abs(y0) < limit && gpu_abs(y1) < limit);
            words[i] = gpu_pair<E>(y0, y1);
        }
        gpu_transpose_quad(words);
        const int col = col0 + 32 * g + gpu_lane() % 4 * 8;
        if (here && col < cols)
            gpu_put<16>(out.at(row, col), words);
    }
    return open;
}

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
