// SPDX-License-Identifier: MIT OR Apache-2.0
// attention backward, rung `flash2` on FMA units: fp32 arithmetic on any type, and the whole contract. P is recomputed from
// softmax_lse tile by tile (Dao 2023, FlashAttention-2), so memory stays linear in N; no atomics: every element of a gradient
// is summed by one block in one order, whatever the grid.
//
//   delta    a wave per row: D - dlse = do·o - dlse, to the workspace
//   keys     work item = tile of keys of one KV head × up to PART columns of dk, dk2 or dv; walks over the group's queries
//   queries  work item = tile of queries of one head × up to PART columns of dq or dq2; walks over the keys
//   bias     (dbias wanted) work item = tile of dbias; recomputes dS of all that reads it, sums in fp64
//   sinks    (dsinks wanted) work item = head; fp64
//
// A block of 256 threads: S and dP as 4 × 4 scores a thread, summed over chunks of DEPTH columns that pass through shared memory
// in fp32; P or dS then lies in shared memory, transposed for `keys`, and multiplies the rows of the other side, 4 × 4
// elements a thread per WIDTH columns. Each tile is summed from 0 and then joined: the depth of a sum is BR plus tiles.
// Hidden pairs are marked, and where a tile has one, the products select: what a hidden row holds has no influence.
//
// FLOPs: 16·N²·d a head, d <= PART (S for dk, dv and dq, dP for dk and dq), causal half of it. Bytes requested: as two passes of
// attention_forward_flash2_fma over q, do and over k, v. Workspace: 4 bytes a row of q.
#pragma once
#include "gpu_attention.gpu.h"

struct attention_backward_fma {
    using args = gpu_backward_args;
    static constexpr int BR = 64, BC = 64, DEPTH = 32, WIDTH = 64, PART = 128, CHUNKS = PART / WIDTH;
    static constexpr int threads = 256, blocks = 1, tile_q = BR, tile_k = BC;
    using matrix = gpu_array<float, 64, WIDTH, 4>;
    using result = gpu_vec<float, 4>[CHUNKS][4];

    struct operands {
        gpu_array<float, 64, DEPTH, 4> a, b;
    };
    union inputs {
        operands in;
        matrix dp, other;
    };
    struct shared {
        inputs x;
        matrix s;                           // S, and over it P or dS; [query][key], or transposed
        gpu_array<uint16_t, 64, 64> hidden; // the same places
        gpu_array<int32_t, 2, BR> range;    // keys that a row sees through the window: first, and past the last
        gpu_array<float, 2, BR> row;        // lse in units of log2, and delta
    };
    // `count` rows of one head of a tensor from `first` on.
    struct rows {
        const kiln_view &view;
        int64_t batch, head, first;
        int count;
    };
    // A tile of queries and one of keys.
    struct work {
        const args &a;
        const gpu_scores &c;
        int64_t q0, k0;
        int queries, keys;
        GPU_FN rows of_q(const kiln_view &v) const
        {
            return {v, c.s.q_batch, c.head, c.s.q_row + q0, queries};
        }
        GPU_FN rows of_k(const kiln_view &v) const
        {
            return {v, c.s.k_batch, c.head_k(), c.s.k_row + k0, keys};
        }
    };
    enum want { WEIGHTS, OF_SCORES, OF_BIAS }; // P with dropout, dS before the softcap, dS after it

    static GPU_FN int within(int64_t x, int most)
    {
        return x > most ? most : (int)x;
    }
    static GPU_FN int ceil_parts(int64_t columns)
    {
        return (int)((columns + PART - 1) / PART);
    }

    // ---- tiles ----
    // Floats from column col0 on, zeros outside. All threads.
    template <class T, int COLS>
    static GPU_FN void fetch_as(gpu_array<float, 64, COLS, 4> &to, const rows &from, int col0)
    {
        const gpu_rows<const T> all = gpu_rows<const T>(from.view, from.batch, from.head).from(from.first);
        const bool aligned = gpu_aligned_rows(from.view, sizeof(T));
#pragma unroll 1
        for (int u = gpu_thread(); u < 64 * COLS / 4; u += threads) {
            const int r = u / (COLS / 4), c = u % (COLS / 4) * 4, col = col0 + c;
            gpu_vec<float, 4> x = {};
            if (r < from.count) {
                if (aligned && col + 4 <= all.cols) {
                    const gpu_vec<T, 4> t = gpu_load<4>(all, r, col);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[e] = gpu_to_float(t[e]);
                } else
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (col + e < all.cols)
                            x[e] = gpu_to_float(gpu_load<1>(all, r, col + e)[0]);
            }
            gpu_store<4>(to, r, c, x);
        }
    }
    template <int COLS> static GPU_FN void fetch(gpu_array<float, 64, COLS, 4> &to, const rows &from, int col0)
    {
        if (from.view.type == KILN_FLOAT32)
            fetch_as<float>(to, from, col0);
        else if (from.view.type == KILN_FLOAT16)
            fetch_as<gpu_half>(to, from, col0);
        else
            fetch_as<gpu_bf16>(to, from, col0);
    }

    // sum[i][j] += Σ_c a[ty + 16·i][c]·b[tx + 16·j][c]. Ends without a barrier.
    static GPU_FN void products(shared &sh, const rows &a, const rows &b, float (&sum)[4][4])
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16, cols = (int)a.view.size[3];
#pragma unroll 1
        for (int c0 = 0; c0 < cols; c0 += DEPTH) {
            gpu_block_barrier(); // what was there is used up
            fetch(sh.x.in.a, a, c0);
            fetch(sh.x.in.b, b, c0);
            gpu_block_barrier();
#pragma unroll 2
            for (int c = 0; c < DEPTH; c += 4) {
                gpu_vec<float, 4> x[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[i] = gpu_load<4>(sh.x.in.a, ty + 16 * i, c);
                    y[i] = gpu_load<4>(sh.x.in.b, tx + 16 * i, c);
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            sum[i][j] = gpu_fma(x[i][e], y[j][e], sum[i][j]);
            }
        }
    }
    // Mine of a tile: TRANSPOSED, queries are columns.
    template <bool TRANSPOSED> static GPU_FN void put_pairs(matrix &to, const float (&sum)[4][4])
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                gpu_store<1>(to, TRANSPOSED ? tx + 16 * j : ty + 16 * i, TRANSPOSED ? ty + 16 * i : tx + 16 * j,
                             gpu_vec<float, 1>{sum[i][j]});
    }

    // Does some query of the tile see some key of it through the window? (Ranges move with the query.)
    static GPU_FN bool meets(const work &w)
    {
        return w.c.window(w.q0).begin < w.k0 + w.keys && w.c.window(w.q0 + w.queries - 1).end > w.k0;
    }
    // What is known of the queries. A row with lse = -inf has no weight anywhere: it sees nothing. A barrier must follow, and
    // none of the readers of the last tile may be on its way.
    template <class SHARED> static GPU_FN void fetch_row_state(SHARED &sh, const work &w)
    {
        const int u = gpu_thread();
        if (u >= BR)
            return;
        kiln_key_range seen = {0, 0};
        float lse = 0, delta = 0;
        if (u < w.queries) {
            const int64_t row = w.c.s.q_row + w.q0 + u;
            lse = gpu_read<float>(w.c.p.lse, w.c.s.q_batch, w.c.head, row);
            delta = gpu_read<float>(w.a.delta, w.c.s.q_batch, w.c.head, row);
            if (lse != gpu_minus_infinity())
                seen = w.c.window(w.q0 + u);
        }
        gpu_store<1>(sh.range, 0, u, gpu_vec<int32_t, 1>{(int32_t)seen.begin});
        gpu_store<1>(sh.range, 1, u, gpu_vec<int32_t, 1>{(int32_t)seen.end});
        gpu_store<1>(sh.row, 0, u, gpu_vec<float, 1>{lse * 1.44269504089f});
        gpu_store<1>(sh.row, 1, u, gpu_vec<float, 1>{delta});
    }

    // One pair that the window shows: P with dropout, or dS. seen = false if mask or bias hides it.
    // P <= 1 if lse is that of the scores. From 2^20 on its own rounding may let exp(S - lse) overflow: there P is cut off at 1,
    // so that gradients are finite. Below, an lse of other scores gives what it says.
    static GPU_FN float pair(const work &w, want what, int64_t i, int64_t j, float product, float dp, float lse,
                             float delta, float keep, bool &seen)
    {
        const auto &p = w.c.p;
        float slope;
        const float x = w.c.score(product, i, j, &slope);
        if (x == gpu_minus_infinity() && !w.c.visible(i, j)) { // else the score is -inf, which counts
            seen = false;
            return 0;
        }
        const float t = x - lse, most = gpu_abs(lse) < 1.44269504089f * 0x1p20f ? 128.f : 0.f;
        const float weight = gpu_exp2(t > most ? most : t);
        if (p.dropout_threshold < 256 && !gpu_dropout().keep(w.c, i, j)) // neighbours are another thread's
            keep = 0;
        if (what == WEIGHTS)
            return weight * keep;
        const float ds = weight * gpu_fma(dp, keep, -delta);
        return what == OF_SCORES && p.softcap > 0 ? ds * slope : ds;
    }
    // P or dS of the tile to sh.s; true (for all threads) if a pair is hidden. Ends with a barrier.
    template <bool TRANSPOSED> static GPU_FN bool pairs(shared &sh, const work &w, want what)
    {
        const auto &p = w.c.p;
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
        {
            float sum[4][4] = {};
#pragma unroll 1
            for (int second = 0; second < (p.d2 > 0 ? 2 : 1); second++)
                products(sh, w.of_q(second ? p.q2 : p.q), w.of_k(second ? p.k2 : p.k), sum);
            put_pairs<TRANSPOSED>(sh.s, sum);
        }
        if (what != WEIGHTS) {
            float sum[4][4] = {};
            products(sh, w.of_q(w.a.p.dout), w.of_k(p.v), sum);
            gpu_block_barrier();
            put_pairs<TRANSPOSED>(sh.x.dp, sum);
        }
        const float keep = gpu_keep_scale(p);
        bool hides = false;
#pragma unroll 1
        for (int u = 0; u < 16; u++) { // each thread its own, so that the code of a pair is there once
            const int i = ty + u / 4 * 16, j = tx + u % 4 * 16, r = TRANSPOSED ? j : i, c = TRANSPOSED ? i : j;
            const int64_t key = w.k0 + j;
            bool seen = key >= gpu_load<1>(sh.range, 0, i)[0] && key < gpu_load<1>(sh.range, 1, i)[0];
            float y = 0;
            if (seen)
                y = pair(w, what, w.q0 + i, key, gpu_load<1>(sh.s, r, c)[0],
                         what == WEIGHTS ? 0.f : gpu_load<1>(sh.x.dp, r, c)[0], gpu_load<1>(sh.row, 0, i)[0],
                         gpu_load<1>(sh.row, 1, i)[0], keep, seen);
            gpu_store<1>(sh.s, r, c, gpu_vec<float, 1>{y});
            gpu_store<1>(sh.hidden, r, c, gpu_vec<uint16_t, 1>{(uint16_t)!seen});
            hides = hides || !seen;
        }
        return gpu_block_any(hides);
    }

    // out[i] += Σ_j s[ty + 16·i][j]·other[j][4·tx ...], of hidden pairs nothing if SELECT.
    template <bool SELECT> static GPU_FN void join(shared &sh, gpu_vec<float, 4> (&out)[4])
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
        gpu_vec<float, 4> sum[4] = {};
#pragma unroll 1
        for (int j = 0; j < 64; j += 4) {
            gpu_vec<float, 4> x[4], y[4];
            gpu_vec<uint16_t, 4> hidden[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = gpu_load<4>(sh.s, ty + 16 * i, j), y[i] = gpu_load<4>(sh.x.other, j + i, tx * 4);
                if constexpr (SELECT)
                    hidden[i] = gpu_load<4>(sh.hidden, ty + 16 * i, j);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int jj = 0; jj < 4; jj++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (!SELECT || hidden[i][jj] == 0)
                            sum[i][e] = gpu_fma(x[i][jj], y[jj][e], sum[i][e]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[i][e] += sum[i][e];
    }
    // The same for all my columns [col0, col0 + PART) of the other side's rows.
    static GPU_FN void join_all(shared &sh, const rows &other, int col0, bool select, result &out)
    {
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            if (col0 + n * WIDTH >= other.view.size[3])
                break;
            if (n > 0)
                gpu_block_barrier();
            fetch(sh.x.other, other, col0 + n * WIDTH);
            gpu_block_barrier();
            if (select)
                join<true>(sh, out[n]);
            else
                join<false>(sh, out[n]);
        }
    }
    // gradient = scale·out (+ what it holds). Adding 0 makes every zero +0, whatever was skipped.
    template <class SHARED>
    static GPU_FN void store(SHARED &sh, const rows &gradient, int col0, float scale, bool add, const result &out)
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16, cols = (int)gradient.view.size[3];
        gpu_block_barrier(); // sh.s is used up
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            if (col0 + n * WIDTH >= cols)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                gpu_store<4>(sh.s, ty + 16 * i, 4 * tx, out[n][i]);
#pragma unroll 1
            for (int u = 0; u < 16; u++) { // each thread its own
                const int r = ty + u / 4 * 16, c = 4 * tx + u % 4, col = col0 + n * WIDTH + c;
                if (r >= gradient.count || col >= cols)
                    continue;
                const float was =
                    add ? gpu_read_float(gradient.view, gradient.batch, gradient.head, gradient.first + r, col) : 0.f;
                gpu_write_float(gradient.view, gradient.batch, gradient.head, gradient.first + r, col,
                                gpu_fma(gpu_load<1>(sh.s, r, c)[0], scale, was));
            }
        }
    }
};

// D - dlse of every row.
struct attention_backward_delta {
    using args = gpu_backward_args;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static constexpr int threads = 256, blocks = 1, tile_q = threads / GPU_WAVE, tile_k = 0;

    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.p.forward;
        const gpu_item of(p, item, a.q_tiles);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t i = of.tile * tile_q + gpu_wave_id(), row = s.q_row + i;
        if (i >= s.seqlen_q) // the whole wave
            return;
        float sum = 0;
#pragma unroll 1
        for (int64_t c = gpu_lane(); c < p.d_v; c += GPU_WAVE)
            sum = gpu_fma(gpu_read_float(a.p.dout, s.q_batch, of.head, row, c),
                          gpu_read_float(p.o, s.q_batch, of.head, row, c), sum);
        sum = gpu_wave_sum<GPU_WAVE>(sum);
        if (gpu_lane() > 0)
            return;
        if (kiln_view_present(&a.p.dlse))
            sum -= gpu_read<float>(a.p.dlse, s.q_batch, of.head, row);
        gpu_write<float>(a.delta, s.q_batch, of.head, row, 0, sum);
    }
};

// TILES: what does the products, pairs() and join_all(): attention_backward_fma or that of matrix units.
template <class TILES> struct attention_backward_keys : attention_backward_fma {
    using shared = typename TILES::shared;
    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p.forward;
        const int of_k = ceil_parts(p.d), of_k2 = ceil_parts(p.d2), parts = of_k + of_k2 + ceil_parts(p.d_v);
        const int part = (int)(item % parts);
        const int64_t tile = item / parts, head_k = tile / a.k_tiles % p.heads_k, batch = tile / a.k_tiles / p.heads_k;
        const kiln_sequence s = gpu_sequence_of(p, batch);
        const int64_t k0 = tile % a.k_tiles * BC, group = p.heads / p.heads_k;
        if (k0 >= s.seqlen_k)
            return;
        const int keys = within(s.seqlen_k - k0, BC);
        const bool of_v = part >= of_k + of_k2, second = !of_v && part >= of_k;
        const int col0 = (of_v ? part - of_k - of_k2 : second ? part - of_k : part) * PART;
        result out = {};
#pragma unroll 1
        for (int64_t g = 0; g < group; g++) {
            const gpu_scores c(p, s, batch, head_k * group + g, a.scale_log2);
#pragma unroll 1
            for (int64_t q0 = 0; q0 < s.seqlen_q; q0 += BR) {
                const work w = {a, c, q0, k0, within(s.seqlen_q - q0, BR), keys};
                if (!meets(w))
                    continue;
                fetch_row_state(sh, w);
                const bool select = TILES::template pairs<true>(sh, w, of_v ? WEIGHTS : OF_SCORES);
                TILES::join_all(sh, w.of_q(of_v ? a.p.dout : second ? p.q2 : p.q), col0, select, out);
            }
        }
        const rows gradient = {of_v ? a.p.dv : second ? a.p.dk2 : a.p.dk, s.k_batch, head_k, s.k_row + k0, keys};
        store(sh, gradient, col0, of_v ? 1.f : (float)p.softmax_scale,
              (p.flags & (of_v ? KILN_FLAG_ACCUMULATE_DV : KILN_FLAG_ACCUMULATE_DK)) != 0, out);
    }
};

template <class TILES> struct attention_backward_queries : attention_backward_fma {
    using shared = typename TILES::shared;
    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p.forward;
        const int of_q = ceil_parts(p.d), parts = of_q + ceil_parts(p.d2), part = (int)(item % parts);
        const gpu_item of(p, item / parts, a.q_tiles);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = (a.q_tiles - 1 - of.tile) * BR; // causal: the heavy ones first
        if (q0 >= s.seqlen_q)
            return;
        const bool second = part >= of_q;
        const int col0 = (second ? part - of_q : part) * PART;
        const gpu_scores c(p, s, of.batch, of.head, a.scale_log2);
        work w = {a, c, q0, 0, within(s.seqlen_q - q0, BR), 0};
        fetch_row_state(sh, w);
        result out = {};
#pragma unroll 1
        for (; w.k0 < s.seqlen_k; w.k0 += BC) {
            w.keys = within(s.seqlen_k - w.k0, BC);
            if (!meets(w))
                continue;
            const bool select = TILES::template pairs<false>(sh, w, OF_SCORES);
            TILES::join_all(sh, w.of_k(second ? p.k2 : p.k), col0, select, out);
        }
        store(sh, w.of_q(second ? a.p.dq2 : a.p.dq), col0, (float)p.softmax_scale,
              (p.flags & KILN_FLAG_ACCUMULATE_DQ) != 0, out);
    }
};

// Elements that no sequence covers are not written; those that are only hidden are 0.
struct attention_backward_bias : attention_backward_fma {
    struct shared : attention_backward_fma::shared {
        gpu_array<double, 64, 16> sum;
    };
    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p.forward;
        const auto *size = p.bias.size;
        const bool one_query = size[2] == 1, one_key = size[3] == 1;
        const int64_t q_tiles = one_query ? 1 : a.q_tiles, k_tiles = one_key ? 1 : a.k_tiles;
        const int64_t k0 = item % k_tiles * BC, q0 = item / k_tiles % q_tiles * BR,
                      head = item / k_tiles / q_tiles % size[1], batch = item / k_tiles / q_tiles / size[1];
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
        double sum[4][4] = {};
        int64_t end[4] = {}; // keys of the sequences that have my queries
#pragma unroll 1
        for (int64_t b = batch; b < (size[0] == 1 ? p.batch : batch + 1); b++) {
            const kiln_sequence s = gpu_sequence_of(p, b);
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (s.seqlen_q > (one_query ? 0 : q0 + ty + 16 * i) && s.seqlen_k > end[i])
                    end[i] = s.seqlen_k;
#pragma unroll 1
            for (int64_t h = head; h < (size[1] == 1 ? p.heads : head + 1); h++) {
                const gpu_scores c(p, s, b, h, a.scale_log2);
#pragma unroll 1
                for (int64_t q = q0; q < s.seqlen_q && (one_query || q == q0); q += BR) {
                    work w = {a, c, q, k0, within(s.seqlen_q - q, BR), 0};
                    gpu_block_barrier(); // the last tile's rows are used up
                    fetch_row_state(sh, w);
#pragma unroll 1
                    for (; w.k0 < s.seqlen_k && (one_key || w.k0 == k0); w.k0 += BC) {
                        w.keys = within(s.seqlen_k - w.k0, BC);
                        if (!meets(w))
                            continue;
                        (void)pairs<false>(sh, w, OF_BIAS); // hidden ones are 0
#pragma unroll
                        for (int i = 0; i < 4; i++)
#pragma unroll
                            for (int j = 0; j < 4; j++)
                                sum[i][j] += gpu_load<1>(sh.s, ty + 16 * i, tx + 16 * j)[0];
                    }
                }
            }
        }
        if (!one_query && !one_key) {
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (k0 + tx + 16 * j < end[i])
                        gpu_write_float(a.p.dbias, batch, head, q0 + ty + 16 * i, k0 + tx + 16 * j, (float)sum[i][j]);
            return;
        }
        // Along the axis that is one element: a thread's four, then the sixteen threads that share it. The rows' ends go where
        // the writer finds them.
        gpu_block_barrier();
#pragma unroll
        for (int u = 0; u < 4; u++) {
            double x = 0;
#pragma unroll
            for (int v = 0; v < 4; v++)
                x += one_query ? sum[v][u] : sum[u][v];
            gpu_store<1>(sh.sum, one_query ? tx + 16 * u : ty + 16 * u, one_query ? ty : tx, gpu_vec<double, 1>{x});
            if (tx == 0)
                gpu_store<1>(sh.range, 0, ty + 16 * u, gpu_vec<int32_t, 1>{(int32_t)end[u]});
        }
        gpu_block_barrier();
        const int u = gpu_thread();
        double x = 0;
        if (u < 64)
#pragma unroll 1
            for (int v = 0; v < 16; v++)
                x += gpu_load<1>(sh.sum, u, v)[0];
        if (one_query && one_key) {
            if (u < 64)
                gpu_store<1>(sh.sum, u, 0, gpu_vec<double, 1>{x});
            gpu_block_barrier();
            if (u > 0)
                return;
            x = 0;
#pragma unroll 1
            for (int v = 0; v < 64; v++)
                x += gpu_load<1>(sh.sum, v, 0)[0];
        }
        if (u >= 64)
            return;
        const int64_t i = one_query ? 0 : q0 + u, j = one_key ? 0 : k0 + u, covered = gpu_load<1>(sh.range, 0, u)[0];
        if (j < covered)
            gpu_write_float(a.p.dbias, batch, head, i, j, (float)x);
    }
};

// dsink = -Σ exp(sink - lse)·delta.
struct attention_backward_sinks {
    using args = gpu_backward_args;
    static constexpr int threads = 256, blocks = 1, tile_q = 0, tile_k = 0;
    struct shared {
        gpu_array<double, 1, threads> sum;
    };
    static GPU_FN void run(const args &a, shared &sh, int64_t head)
    {
        const auto &p = a.p.forward;
        const float sink = gpu_read_float(p.sinks, 0, head, 0, 0) * 1.44269504089f;
        double sum = 0;
#pragma unroll 1
        for (int64_t b = 0; b < p.batch; b++) {
            const kiln_sequence s = gpu_sequence_of(p, b);
#pragma unroll 1
            for (int64_t i = gpu_thread(); i < s.seqlen_q; i += threads) {
                const float lse = gpu_read<float>(p.lse, s.q_batch, head, s.q_row + i);
                if (lse != gpu_minus_infinity())
                    sum -=
                        gpu_exp2(sink - lse * 1.44269504089f) * gpu_read<float>(a.delta, s.q_batch, head, s.q_row + i);
            }
        }
        gpu_store<1>(sh.sum, 0, gpu_thread(), gpu_vec<double, 1>{sum});
        gpu_block_barrier();
        if (gpu_thread() > 0)
            return;
        sum = 0;
#pragma unroll 1
        for (int u = 0; u < threads; u++)
            sum += gpu_load<1>(sh.sum, 0, u)[0];
        gpu_write<float>(a.p.dsinks, 0, head, 0, 0, (float)sum);
    }
};
