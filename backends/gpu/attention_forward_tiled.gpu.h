// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `tiled`: the two matrix products as tiles through shared memory, S and P still in memory. Against
// `naive`: every element of Q, K, P and V that is fetched serves 64 products, on matrix units for 16-bit types.
//
//   scores   64 × 64 scores an item: Q·Kᵀ in chunks of DEPTH columns, then scale, softcap, bias, ALiBi, masks
//   softmax  that of `naive`
//   values   64 rows × 64 columns of o an item: P·V in chunks of DEPTH keys; P rounded to the type of V, fp16 by 2^15 larger
// Rows in shared memory are padded (operands by 16 bytes, results as the unit that stores them wants it), and pieces of a tile
// go to lanes in an order that suits them: no access has a bank conflict, on 32 lanes and on 64 (tests/simt/test_counters.c).
// The unpadded variant (algorithm "tiled_unpadded") stays to show what that saves. Same arithmetic, same bits.
//
// Non-finite numbers of V are taken out of the tiles. If there were any, or if o overflowed, each element of o asks the plain
// sum of `naive` for its class, and keeps its own value unless that is NaN or Inf by right.
//
// Bytes, one head: 4·N·d·e (q, k, v, o) + 16·N² (S written, read; P written, read; fp32). FLOPs 4·N²·d + 3·N².
// Workspace: as `naive`.
#pragma once
#include "attention_forward_naive.gpu.h"

// A 64 x 64 product by all threads of a block of four waves: 16 rows a wave on matrix units, or FMA on fp32.
template <class E, int PAD> struct tiled_product {
    static constexpr int SIDE = 64, DEPTH = 32, M = 16, threads = 4 * GPU_WAVE;
    using tile = gpu_tile<E, M>;
    static constexpr bool by_rows = tile::b_by_rows; // V as it lies; else transposed
    using left = gpu_array<E, SIDE, DEPTH, PAD>;     // a[row][k]
    using right = gpu_array<E, SIDE, DEPTH, PAD>;    // b[column][k]
    using right_by_rows = gpu_array<E, by_rows ? DEPTH : SIDE, by_rows ? SIDE : DEPTH, PAD>;
    // WMMA stores 4 rows of 8 numbers at once, MFMA 2 rows of 16 that lie 4 apart.
    using result = gpu_array<float, SIDE, SIDE, PAD == 0 ? 0 : GPU_WAVE == 32 ? 8 : 4>;
    typename tile::acc sum[SIDE / M];
    GPU_FN tiled_product()
    {
#pragma unroll
        for (int n = 0; n < SIDE / M; n++)
            tile::zero(sum[n]);
    }
    GPU_FN void add(left &a, right &b)
    {
#pragma unroll
        for (int k = 0; k < DEPTH; k += tile::K) {
            typename tile::a x;
            tile::load_a(x, a, gpu_wave_id() * M, k);
#pragma unroll
            for (int n = 0; n < SIDE / M; n++) {
                typename tile::bk y;
                tile::load_bk(y, b, n * M, k);
                tile::mma(sum[n], x, y);
            }
        }
    }
    GPU_FN void add_values(left &a, right_by_rows &b)
    {
        if constexpr (!by_rows)
            add(a, b);
        else
#pragma unroll
            for (int k = 0; k < DEPTH; k += tile::K) {
                typename tile::a x;
                tile::load_a(x, a, gpu_wave_id() * M, k);
#pragma unroll
                for (int n = 0; n < SIDE / M; n++) {
                    typename tile::bn y;
                    tile::load_bn(y, b, k, n * M);
                    tile::mma(sum[n], x, y);
                }
            }
    }
    GPU_FN void store(result &to)
    {
#pragma unroll
        for (int n = 0; n < SIDE / M; n++)
            tile::store(to, gpu_wave_id() * M, n * M, sum[n]);
    }
};
template <int PAD> struct tiled_product<float, PAD> {
    static constexpr int SIDE = 64, DEPTH = 32, threads = 4 * GPU_WAVE, DOWN = threads / 16, ROWS = SIDE / DOWN;
    static constexpr bool by_rows = true;
    using left = gpu_array<float, SIDE, DEPTH, PAD>;
    using right = gpu_array<float, SIDE, DEPTH, PAD>;
    using right_by_rows = gpu_array<float, DEPTH, SIDE, PAD>;
    using result = gpu_array<float, SIDE, SIDE, PAD == 0 ? 0 : 16>; // 2 rows of 16 numbers are stored at once
    float sum[ROWS][4] = {};
    GPU_FN tiled_product()
    {
    }
    GPU_FN void add(left &a, right &b)
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll 2
        for (int k = 0; k < DEPTH; k += 4) {
            gpu_vec<float, 4> x[ROWS], y[4];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                x[i] = gpu_load<4>(a, ty + DOWN * i, k);
#pragma unroll
            for (int j = 0; j < 4; j++)
                y[j] = gpu_load<4>(b, tx + 16 * j, k);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[i][j] = gpu_fma(x[i][e], y[j][e], sum[i][j]);
        }
    }
    GPU_FN void add_values(left &a, right_by_rows &b)
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll 2
        for (int k = 0; k < DEPTH; k += 4) {
            gpu_vec<float, 4> x[ROWS];
            float y[4][4];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                x[i] = gpu_load<4>(a, ty + DOWN * i, k);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    y[e][j] = gpu_load<1>(b, k + e, tx + 16 * j)[0];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[i][j] = gpu_fma(x[i][e], y[e][j], sum[i][j]);
        }
    }
    GPU_FN void store(result &to)
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                gpu_store<1>(to, ty + DOWN * i, tx + 16 * j, gpu_vec<float, 1>{sum[i][j]});
    }
};

// Rows row0 ... and columns col0 ... of `from` into a tile (transposed if asked), zeros where there are none. Returns whether a
// non-finite number was met; with `clean` they become zeros.
// Banks, with 16 bytes of padding: 4 pieces make a row of 64 bytes, so 8 lanes store two of them, which must lie 4 rows apart.
// Transposed, lane k of a row stores its numbers in the order e ^ k: rows 8 apart lie in the same bank, rows 8k + (e ^ k) do not.
template <bool TRANSPOSE, class E, int R, int C, int P, class SOURCE>
GPU_FN bool tiled_fetch(gpu_array<E, R, C, P> &to, const SOURCE &from, int64_t row0, int rows, int col0, int cols,
                        bool aligned, bool clean)
{
    constexpr int V = 16 / sizeof(E), ROWS = TRANSPOSE ? C : R, COLS = TRANSPOSE ? R : C;
    bool met = false;
#pragma unroll 1
    for (int u = gpu_thread(); u < ROWS * COLS / V; u += 4 * GPU_WAVE) {
        const int n = u / (COLS / V), k = u % (COLS / V), c = k * V, col = col0 + c;
        const int r = !TRANSPOSE && P > 0 && COLS / V == 4 ? (n & ~5) | (n & 1) << 2 | (n >> 2 & 1) : n;
        gpu_vec<E, V> x = {};
        if (r < rows && col < cols) {
            const gpu_rows<const E> source = from.from(row0 + r);
            if (source.rows > 0) {
                if (aligned)
                    x = gpu_load<V>(source, 0, col);
                else
#pragma unroll
                    for (int e = 0; e < V; e++)
                        if (col + e < cols)
                            x[e] = gpu_load<1>(source, 0, col + e)[0];
            }
        }
        if (clean)
#pragma unroll
            for (int e = 0; e < V; e++)
                if (!gpu_is_finite(gpu_to_float(x[e])))
                    met = true, x[e] = E{};
        if constexpr (!TRANSPOSE)
            gpu_store<V>(to, r, c, x);
        else {
#pragma unroll
            for (int bit = 1; bit < V; bit *= 2) { // x[e] becomes x[e ^ k]: by value, or x would lie in memory
                const bool swap = k & bit;
#pragma unroll
                for (int e = 0; e < V; e++) {
                    if (e & bit)
                        continue;
                    const E low = x[e], high = x[e ^ bit];
                    x[e] = swap ? E(high) : E(low), x[e ^ bit] = swap ? E(low) : E(high);
                }
            }
#pragma unroll
            for (int e = 0; e < V; e++)
                gpu_store<1>(to, c + (e ^ k % V), r, gpu_vec<E, 1>{x[e]});
        }
    }
    return met;
}
template <bool TRANSPOSE, class E, int R, int C, int P>
GPU_FN bool tiled_fetch_keys(gpu_array<E, R, C, P> &to, const gpu_scores &c, const kiln_view &view, int64_t k0,
                             int rows, int col0, bool clean)
{
    const bool aligned = gpu_aligned_rows(view, sizeof(E));
    const int cols = (int)view.size[3];
    if (c.p.page_size > 0)
        return tiled_fetch<TRANSPOSE>(to, gpu_page_rows<E>(c, view), k0, rows, col0, cols, aligned, clean);
    return tiled_fetch<TRANSPOSE>(to, gpu_run_rows<E>(view, c.s.k_batch, c.head_k(), c.s.k_row, c.s.seqlen_k), k0, rows,
                                  col0, cols, aligned, clean);
}
GPU_FN int tiled_within(int64_t x, int most)
{
    return x < 0 ? 0 : x > most ? most : (int)x;
}

template <class E, bool PADDED> struct attention_forward_tiled_scores {
    using args = gpu_attention_args;
    using product = tiled_product<E, PADDED ? 16 / sizeof(E) : 0>;
    struct operands {
        typename product::left q;
        typename product::right k;
    };
    union shared {
        operands in;
        typename product::result s;
    };
    static constexpr int SIDE = product::SIDE, threads = product::threads, blocks = 1, tile_q = SIDE, tile_k = SIDE;

    static GPU_FN void add(const gpu_scores &c, shared &sh, product &sum, const kiln_view &q, const kiln_view &k,
                           int64_t q0, int64_t k0)
    {
        const kiln_sequence &s = c.s;
        const bool aligned = gpu_aligned_rows(q, sizeof(E));
#pragma unroll 1
        for (int c0 = 0; c0 < q.size[3]; c0 += product::DEPTH) {
            gpu_block_barrier(); // the chunk before is used up
            tiled_fetch<false>(sh.in.q, gpu_run_rows<E>(q, s.q_batch, c.head, s.q_row, s.seqlen_q), q0,
                               tiled_within(s.seqlen_q - q0, SIDE), c0, (int)q.size[3], aligned, false);
            tiled_fetch_keys<false>(sh.in.k, c, k, k0, tiled_within(s.seqlen_k - k0, SIDE), c0, false);
            gpu_block_barrier();
            sum.add(sh.in.q, sh.in.k);
        }
    }
    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p;
        const int64_t across = (p.seqlen_k + SIDE - 1) / SIDE;
        const gpu_item w(p, item, a.q_tiles * across);
        const kiln_sequence s = gpu_sequence_of(p, w.batch);
        const int64_t q0 = w.tile / across * SIDE, k0 = w.tile % across * SIDE;
        if (q0 >= s.seqlen_q || k0 >= s.seqlen_k)
            return;
        const gpu_scores c(p, s, w.batch, w.head, a.scale_log2);
        product sum;
        add(c, sh, sum, p.q, p.k, q0, k0);
        if (p.d2 > 0)
            add(c, sh, sum, p.q2, p.k2, q0, k0);
        gpu_block_barrier();
        sum.store(sh.s);
        gpu_block_barrier();
        const int rows = tiled_within(s.seqlen_q - q0, SIDE), j = gpu_thread() % SIDE;
        if (k0 + j >= s.seqlen_k)
            return;
        const bool exists = p.page_size == 0 || c.page(k0 + j) >= 0;
#pragma unroll 1
        for (int r = gpu_thread() / SIDE; r < rows; r += threads / SIDE) {
            const kiln_key_range seen = c.window(q0 + r);
            const float x = exists && k0 + j >= seen.begin && k0 + j < seen.end
                                ? c.score(gpu_load<1>(sh.s, r, j)[0], q0 + r, k0 + j)
                                : gpu_minus_infinity();
            gpu_write<float>(a.scores, w.batch, w.head, q0 + r, k0 + j, x);
        }
    }
};

template <class E, bool PADDED> struct attention_forward_tiled_values {
    using args = gpu_attention_args;
    using product = tiled_product<E, PADDED ? 16 / sizeof(E) : 0>;
    struct operands {
        typename product::left p;
        typename product::right_by_rows v;
    };
    union shared {
        operands in;
        typename product::result o;
    };
    static constexpr int SIDE = product::SIDE, DEPTH = product::DEPTH, threads = product::threads, blocks = 1,
                         tile_q = SIDE, tile_k = DEPTH;
    static constexpr float UP = __is_same(E, gpu_half) ? 0x1p15f : 1.f;

    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p;
        const int64_t across = (p.d_v + SIDE - 1) / SIDE;
        const gpu_item w(p, item, a.q_tiles * across);
        const kiln_sequence s = gpu_sequence_of(p, w.batch);
        const int64_t q0 = w.tile / across * SIDE;
        const int col0 = (int)(w.tile % across) * SIDE, d_v = (int)p.d_v;
        if (q0 >= s.seqlen_q)
            return;
        const gpu_scores c(p, s, w.batch, w.head, a.scale_log2);
        const int rows = tiled_within(s.seqlen_q - q0, SIDE);
        const int64_t low = c.window(q0).begin / DEPTH * DEPTH, high = c.window(q0 + rows - 1).end;
        const gpu_rows<float> weights = gpu_rows<float>(a.scores, w.batch, w.head).from(q0);
        product sum;
        bool met = false;
#pragma unroll 1
        for (int64_t k0 = low; k0 < high; k0 += DEPTH) {
            const int keys = tiled_within(s.seqlen_k - k0, DEPTH);
            gpu_block_barrier(); // the chunk before is used up
#pragma unroll 1
            for (int u = gpu_thread(); u < SIDE * DEPTH; u += threads) {
                const int r = u / DEPTH, j = u % DEPTH;
                const float x = r < rows && j < keys ? gpu_load<1>(weights, r, (int)k0 + j)[0] : 0.f;
                gpu_store<1>(sh.in.p, r, j, gpu_vec<E, 1>{gpu_from_float<E>(x < 0 ? 0.f : x * UP)});
            }
            met |= tiled_fetch_keys<!product::by_rows>(sh.in.v, c, p.v, k0, keys, col0, true);
            gpu_block_barrier();
            sum.add_values(sh.in.p, sh.in.v);
        }
        gpu_block_barrier();
        sum.store(sh.o);
        const bool careful = gpu_block_any(met);
        const float keep = gpu_keep_scale(p), limit = gpu_overflow_of(p.o.type);
        const int col = col0 + gpu_thread() % SIDE;
        if (col >= d_v)
            return;
#pragma unroll 1
        for (int r = gpu_thread() / SIDE; r < rows; r += threads / SIDE) {
            const int64_t i = q0 + r;
            const float factor = gpu_read<float>(a.part_lse, w.batch, w.head, i);
            float y = gpu_mean(gpu_load<1>(sh.o, r, col - col0)[0], factor, keep, 1.f / UP);
            if (careful || !(gpu_abs(y) < limit)) {
                bool special;
                const float plain = naive_value<E>(c, a.scores, i, col, factor, keep, special);
                if (special || !(gpu_abs(y) < limit))
                    y = plain;
            }
            gpu_write_float(p.o, s.q_batch, w.head, s.q_row + i, col, y);
        }
    }
};
