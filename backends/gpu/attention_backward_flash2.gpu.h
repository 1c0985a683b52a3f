// SPDX-License-Identifier: MIT OR Apache-2.0
// attention backward, rung `flash2`, on matrix units: bf16. The kernels `keys` and `queries` of
// attention_backward_flash2_fma.gpu.h, and the whole contract, with other products: tiles stay in 16 bits, S, dP and the sums
// of a tile come out of the matrix unit in fp32, P and dS are rounded to the type before they meet the other side's rows.
//
// S lies in shared memory with the work item's own side as rows, so nothing is transposed but by the choice of operands. The
// sums of a tile pass through shared memory too: nobody needs to know which lane holds what of an accumulator.
//
// Hidden pairs have weight 0, and 0·NaN is NaN. So where a tile has hidden pairs and the other side's rows hold a number that
// is not finite, those numbers are taken out of the tile, and what they give to the pairs that see them is added by
// selection. What does not see them keeps its bits.
//
// FLOPs: 16·N²·d a head, d <= PART, causal half of it.
#pragma once
#include "attention_backward_flash2_fma.gpu.h"

template <class E> struct attention_backward_matrix : attention_backward_fma {
    static constexpr int M = 16, WAVES = threads / GPU_WAVE, ACROSS = 16 / WAVES; // tiles of a wave, side by side
    using tile = gpu_tile<E, M>;
    using operand = gpu_array<E, 64, WIDTH, 8>;

    struct operands {
        operand a, b;
    };
    union inputs {
        operands in;
        matrix dp;
        operand other;
    };
    struct shared {
        inputs x;
        matrix s;                           // S, then sums of a tile
        operand p;                          // P or dS: [own side][other side]
        gpu_array<uint16_t, 64, 64> hidden; // the same places
        gpu_array<int32_t, 2, BR> range;    // as in attention_backward_fma
        gpu_array<float, 2, BR> row;
    };

    // 64 columns from col0 on, zeros outside. All threads.
    static GPU_FN void fetch(operand &to, const rows &from, int col0)
    {
        const gpu_rows<const E> all = gpu_rows<const E>(from.view, from.batch, from.head).from(from.first);
        const bool aligned = gpu_aligned_rows(from.view, sizeof(E));
#pragma unroll 1
        for (int u = gpu_thread(); u < 64 * WIDTH / 8; u += threads) {
            const int r = u / (WIDTH / 8), c = u % (WIDTH / 8) * 8, col = col0 + c;
            gpu_vec<E, 8> x = {};
            if (r < from.count) {
                if (aligned && col + 8 <= all.cols)
                    x = gpu_load<8>(all, r, col);
                else
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        if (col + e < all.cols)
                            x[e] = gpu_load<1>(all, r, col + e)[0];
            }
            gpu_store<8>(to, r, c, x);
        }
    }
    static GPU_FN int tile_row()
    {
        return gpu_wave_id() % 4 * M;
    }
    static GPU_FN int tile_col(int n)
    {
        return (gpu_wave_id() / 4 * ACROSS + n) * M;
    }
    using accumulators = typename tile::acc[ACROSS];
    static GPU_FN void clear(accumulators &sum)
    {
#pragma unroll
        for (int n = 0; n < ACROSS; n++)
            tile::zero(sum[n]);
    }
    static GPU_FN void put(matrix &to, const accumulators &sum)
    {
#pragma unroll
        for (int n = 0; n < ACROSS; n++)
            tile::store(to, tile_row(), tile_col(n), sum[n]);
    }

    // sum += a·bᵀ. Ends without a barrier.
    static GPU_FN void products(shared &sh, const rows &a, const rows &b, accumulators &sum)
    {
        const int cols = (int)a.view.size[3];
#pragma unroll 1
        for (int c0 = 0; c0 < cols; c0 += WIDTH) {
            gpu_block_barrier(); // what was there is used up
            fetch(sh.x.in.a, a, c0);
            fetch(sh.x.in.b, b, c0);
            gpu_block_barrier();
#pragma unroll
            for (int c = 0; c < WIDTH; c += tile::K) {
                typename tile::a x;
                tile::load_a(x, sh.x.in.a, tile_row(), c);
#pragma unroll
                for (int n = 0; n < ACROSS; n++) {
                    typename tile::bk y;
                    tile::load_bk(y, sh.x.in.b, tile_col(n), c);
                    tile::mma(sum[n], x, y);
                }
            }
        }
    }

    // P or dS of the tile to sh.p; true (for all threads) if a pair is hidden. KEYS: keys are the own side. Ends with a barrier.
    template <bool KEYS> static GPU_FN bool pairs(shared &sh, const work &w, want what)
    {
        const auto &p = w.c.p;
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
        accumulators sum;
        clear(sum);
#pragma unroll 1
        for (int second = 0; second < (p.d2 > 0 ? 2 : 1); second++) {
            const rows q = w.of_q(second ? p.q2 : p.q), k = w.of_k(second ? p.k2 : p.k);
            products(sh, KEYS ? k : q, KEYS ? q : k, sum);
        }
        put(sh.s, sum);
        if (what != WEIGHTS) {
            const rows dout = w.of_q(w.a.p.dout), v = w.of_k(p.v);
            clear(sum);
            products(sh, KEYS ? v : dout, KEYS ? dout : v, sum);
            gpu_block_barrier();
            put(sh.x.dp, sum);
        }
        gpu_block_barrier();
        const float keep = gpu_keep_scale(p);
        bool hides = false;
#pragma unroll 1
        for (int u = 0; u < 16; u++) {
            const int r = ty + u / 4 * 16, c = tx + u % 4 * 16, i = KEYS ? c : r, j = KEYS ? r : c;
            const int64_t key = w.k0 + j;
            bool seen = key >= gpu_load<1>(sh.range, 0, i)[0] && key < gpu_load<1>(sh.range, 1, i)[0];
            float y = 0;
            if (seen)
                y = pair(w, what, w.q0 + i, key, gpu_load<1>(sh.s, r, c)[0],
                         what == WEIGHTS ? 0.f : gpu_load<1>(sh.x.dp, r, c)[0], gpu_load<1>(sh.row, 0, i)[0],
                         gpu_load<1>(sh.row, 1, i)[0], keep, seen);
            gpu_store<1>(sh.p, r, c, gpu_vec<E, 1>{gpu_from_float<E>(y)});
            gpu_store<1>(sh.hidden, r, c, gpu_vec<uint16_t, 1>{(uint16_t)!seen});
            hides = hides || !seen;
        }
        return gpu_block_any(hides);
    }

    static GPU_FN float number(operand &m, int r, int c)
    {
        return gpu_to_float(gpu_load<1>(m, r, c)[0]);
    }
    // Numbers of the other side's rows that are not finite: what they give to my elements, then 0. Ends with a barrier.
    static GPU_FN void take_out(shared &sh, gpu_vec<float, 4> (&given)[4])
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll 1
        for (int j = 0; j < 64; j++) {
            gpu_vec<float, 4> y;
            bool finite = true;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                y[e] = number(sh.x.other, j, 4 * tx + e);
                finite = finite && gpu_is_finite(y[e]);
            }
            if (finite)
                continue;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!gpu_is_finite(y[e]) && gpu_load<1>(sh.hidden, ty + 16 * i, j)[0] == 0)
                        given[i][e] = gpu_fma(number(sh.p, ty + 16 * i, j), y[e], given[i][e]);
        }
        gpu_block_barrier();
#pragma unroll 1
        for (int u = gpu_thread(); u < 64 * WIDTH; u += threads)
            if (!gpu_is_finite(number(sh.x.other, u / WIDTH, u % WIDTH)))
                gpu_store<1>(sh.x.other, u / WIDTH, u % WIDTH, gpu_vec<E, 1>{});
        gpu_block_barrier();
    }

    static GPU_FN void join_all(shared &sh, const rows &other, int col0, bool select, result &out)
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            if (col0 + n * WIDTH >= other.view.size[3])
                break;
            if (n > 0)
                gpu_block_barrier();
            fetch(sh.x.other, other, col0 + n * WIDTH);
            gpu_block_barrier();
            gpu_vec<float, 4> given[4] = {};
            if (select) {
                bool special = false;
#pragma unroll 1
                for (int u = gpu_thread(); u < 64 * WIDTH; u += threads)
                    special = special || !gpu_is_finite(number(sh.x.other, u / WIDTH, u % WIDTH));
                if (gpu_block_any(special))
                    take_out(sh, given);
            }
            accumulators sum;
            clear(sum);
#pragma unroll
            for (int c = 0; c < 64; c += tile::K) {
                typename tile::a x;
                tile::load_a(x, sh.p, tile_row(), c);
#pragma unroll
                for (int m = 0; m < ACROSS; m++) {
                    typename tile::bn y;
                    tile::load_bn(y, sh.x.other, c, tile_col(m));
                    tile::mma(sum[m], x, y);
                }
            }
            put(sh.s, sum);
            gpu_block_barrier();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const gpu_vec<float, 4> x = gpu_load<4>(sh.s, ty + 16 * i, 4 * tx);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[n][i][e] += x[e] + given[i][e];
            }
        }
    }
};
