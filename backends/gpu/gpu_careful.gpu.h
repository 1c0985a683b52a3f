// SPDX-License-Identifier: MIT OR Apache-2.0
// gpu_careful.gpu.h: careful passes, which settle results that were not finite (contract §4.4), where P stays in registers.
// A first pass keeps book of what each element of o has met in V that is not finite, and computes with zeros in its place; a
// second one has smaller weights, for sums that left the range. Rare: rolled loops, slow.
#pragma once
#include "gpu_attention.gpu.h"

template <int BR, int BC, int D> struct gpu_careful_book {
    static constexpr int words = BC / 32;
    gpu_array<uint32_t, BR, 2 * words>
        seen; // of a tile, a bit a key: `words` of keys that weigh, then of keys that are visible
    gpu_array<uint32_t, BR, D / 16> notes; // two bits per element of o: what it met. 1 Inf, 2 -Inf, 3 NaN
};

template <int THREADS, int BR, int BC, int D> GPU_FN void gpu_forget(gpu_careful_book<BR, BC, D> &book)
{
    for (int u = gpu_thread(); u < BR * (D / 16); u += THREADS)
        gpu_store<1>(book.notes, u / (D / 16), u % (D / 16), gpu_vec<uint32_t, 1>{0});
    gpu_block_barrier();
}

// Non-finite numbers of the tile of V: noted for the rows that see them, then 0. All threads. V is v.read(key, column) and
// v.clear(key, column); any(bool): whether it holds for any thread, and a block barrier.
template <int THREADS, int BR, int BC, int D, class TILE, class ANY>
GPU_FN void gpu_take_out(gpu_careful_book<BR, BC, D> &book, TILE v, ANY any)
{
    bool found = false;
#pragma unroll 1
    for (int u = gpu_thread(); u < BC * D; u += THREADS)
        found |= !gpu_is_finite(v.read(u / D, u % D));
    if (!any(found))
        return;
#pragma unroll 1
    for (int u = gpu_thread(); u < BR * (D / 16); u += THREADS) {
        const int row = u / (D / 16), word = u % (D / 16);
        uint32_t bits = gpu_load<1>(book.notes, row, word)[0];
#pragma unroll 1
        for (int j = 0; j < BC; j++) {
            if (!(gpu_load<1>(book.seen, row, BC / 32 + j / 32)[0] >> (j % 32) & 1))
                continue;
            const bool weighs = gpu_load<1>(book.seen, row, j / 32)[0] >> (j % 32) & 1;
#pragma unroll 1
            for (int e = 0; e < 16; e++) {
                const float y = v.read(j, 16 * word + e);
                if (!gpu_is_finite(y))
                    bits |= (!weighs || y != y ? 3u : y > 0 ? 1u : 2u) << (2 * e);
            }
        }
        gpu_store<1>(book.notes, row, word, gpu_vec<uint32_t, 1>{bits});
    }
    gpu_block_barrier();
#pragma unroll 1
    for (int u = gpu_thread(); u < BC * D; u += THREADS)
        if (!gpu_is_finite(v.read(u / D, u % D)))
            v.clear(u / D, u % D);
    gpu_block_barrier();
}

// One element of o, unless an earlier pass has settled it: row i of the sequence, what it has met (`note`). Is it open still?
GPU_FN bool gpu_store_unsettled(const gpu_scores &c, int64_t i, int col, float y, float limit, uint32_t note, int pass)
{
    const int64_t b = c.s.q_batch, row = c.s.q_row + i;
    if (pass > 0 && gpu_is_finite(gpu_read_float(c.p.o, b, c.head, row, col)))
        return false;
    if (note != 0)
        y = note == 1 ? -gpu_minus_infinity() : note == 2 ? gpu_minus_infinity() : __builtin_nanf("");
    else if (pass == 2)
        y = gpu_clamp_mean(c.p, y);
    gpu_write_float(c.p.o, b, c.head, row, col, y);
    return note == 0 && !(gpu_abs(y) < limit);
}
