// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_wgmma.gpu.h: what the Hopper kernels of both passes share.
#pragma once
#include "../gpu/gpu_attention.gpu.h"
#include "attention_wgmma.h"
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

template <bool VALUE> struct wgmma_bool {
    static constexpr bool value = VALUE;
};

// The largest magnitude of what was written, and the least but 0: bits of a 16-bit type, two at a time.
struct wgmma_extent {
    uint32_t most = 0, least = 0x7fff7fff; // signed: 1 is -2^15, 0 is 2^15 - 1
    GPU_FN void add(uint32_t pair)
    {
        pair &= 0x7fff7fff;
        most = gpu_max_u16x2(most, pair);
        least = gpu_min_s16x2(least, pair + 0x7fff7fff);
    }
    GPU_FN void add(const wgmma_extent &x)
    {
        most = gpu_max_u16x2(most, x.most), least = gpu_min_s16x2(least, x.least);
    }
    // Inf or NaN: sums that left the range, or rounded to its outside.
    template <class E> GPU_FN bool overflows() const
    {
        const uint32_t inf = __is_same(E, gpu_half) ? 0x7c00 : 0x7f80;
        return (most & 0xffff) >= inf || most >> 16 >= inf;
    }
    // Something but 0 whose bits are below those.
    GPU_FN bool faint(int bits) const
    {
        return (int16_t)least < bits - 0x8001 || (int16_t)(least >> 16) < bits - 0x8001;
    }
};

// My part of a row of an accumulator (gpu_wgmma) to memory, from `to` on; y(i, e): element e of the two that I have of columns
// 8·i ... Four lanes exchange, so that each has eight columns in a row: one 16-byte store. cols: a multiple of 8.
template <class E, int COLS, class F> GPU_FN wgmma_extent wgmma_store_row(E *to, bool here, int cols, F y)
{
    wgmma_extent seen;
    to += gpu_lane() % 4 * 8;
    gpu_keep(to);
    const auto store = [&](auto all) {
#pragma unroll
        for (int g = 0; g < COLS / 32; g++) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                words[i] = gpu_pair<E>(y(4 * g + i, 0), y(4 * g + i, 1));
                seen.add(words[i]);
            }
            gpu_transpose_quad(words);
            if (here && (all.value || 32 * g + gpu_lane() % 4 * 8 < cols))
                gpu_put<16>(to + 32 * g, words);
        }
    };
    if (cols >= COLS)
        store(wgmma_bool<true>());
    else
        store(wgmma_bool<false>());
    return here ? seen : wgmma_extent();
}

// My wave's 16 rows of an accumulator, times scale, to a tensor by way of shared memory: 2048 bytes at `at`, and as many APART bytes
// further on for each further 64 columns. Boxes of 16 rows, from column 0 on, are sent if `also`; what was sent from here before
// must have left.
template <class E, int COLS, int APART>
GPU_FN wgmma_extent wgmma_send(uint32_t at, const float (&sum)[COLS / 2], float scale, const gpu_tensor_map *map,
                               bool also, int row, int head, int batch)
{
    wgmma_extent seen;
    const int lane = gpu_lane();
    const uint32_t mine = at + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int i = 0; i < COLS / 8; i += 2) {
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            words[e] = gpu_pair<E>(sum[4 * i + 2 * e] * scale, sum[4 * i + 2 * e + 1] * scale);
            seen.add(words[e]);
        }
        gpu_stmatrix_at((mine ^ i % 8 * 16) + i / 8 * APART, words);
    }
    gpu_async_fence();
    gpu_wave_barrier();
    if (lane == 0 && also)
#pragma unroll
        for (int c = 0; c < COLS / 64; c++)
            gpu_tensor_store(map, at + c * APART, c * 64, row, head, batch);
    return seen;
}
