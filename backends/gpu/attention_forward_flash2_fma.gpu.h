// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `flash2` on FMA units: fp32, and what the matrix units' instances do not take of 16-bit types (heads
// up to 576, the second score operand of MLA). The same algorithm as attention_forward_flash2.gpu.h, and the whole contract in
// one instance per type and head size.
//
// A block of 256 threads has BR queries (and up to DV columns of o: wider heads are several work items, which see the same
// scores) and walks over tiles of BC keys. S: each thread 4 × 4 scores, summed over chunks of
// DEPTH columns of Q and K (then q2 and k2) that pass through shared memory in fp32. Softmax: four lanes a row. O: each
// thread 4 rows × 4 columns of every chunk of 64 columns of V, in registers throughout.
// Exact to fp32: weights are not rounded. Two careful passes as there, but what is visible is summed by selection, NaN and Inf
// with it: weights of masked keys are then -1. Pass 2 scales values down instead of weights, so that no small weight becomes
// 0 beside an Inf; what a sum of finite values gives there is a mean, and finite, and all else is NaN or Inf by right.
//
// Bytes requested, N a multiple of the tiles, per head: N·d·e·(1 + ⌈N/BC⌉) (Q again for every tile of keys; it stays in the
// caches; O once) + 2·N·d·e·⌈N/BR⌉ (K, V); lse 4·N. FLOPs 4·N²·d + 3·N².
#pragma once
#include "gpu_attention.gpu.h"

template <class E, int DV> struct attention_forward_flash2_fma {
    using args = gpu_attention_args;
    static constexpr int BR = 64, BC = 64, DEPTH = 32, WIDTH = 64, LPR = 4, STEPS = BC / (4 * LPR);
    static constexpr int threads = 256, blocks = DV > 128 ? 1 : 2, tile_q = BR, tile_k = BC;
    static constexpr int CHUNKS = (DV + WIDTH - 1) / WIDTH;
    static constexpr float DOWN = 0x1p-40f; // of values in pass 2
    using matrix = gpu_array<float, BR, BC, 4>;

    struct operands {
        gpu_array<float, BR, DEPTH, 4> q;
        gpu_array<float, BC, DEPTH, 4> k;
    };
    union inputs {
        operands in;
        gpu_array<float, BC, WIDTH, 4> v;
    };
    struct shared {
        inputs x;
        matrix s; // S, and over it P
        gpu_array<float, 1, BR> scale;
        gpu_array<int32_t, 2, BR> range;    // keys that the window shows to a row: first, and past the last
        gpu_array<uint16_t, 1, BC> no_page; // keys whose page does not exist
    };
    struct work {
        const kiln_attention_problem &p;
        const gpu_scores &c;
        int64_t q0;
        int rows;
        bool modify, paged, aligned;
    };
    static GPU_FN int within(int64_t x, int most)
    {
        return x < 0 ? 0 : x > most ? most : (int)x;
    }

    // ROWS x COLS floats from column col0 on, zeros outside. All threads.
    template <int ROWS, int COLS, class SOURCE>
    static GPU_FN void fetch(gpu_array<float, ROWS, COLS, 4> &to, const SOURCE &from, int64_t row0, int rows, int col0,
                             int cols, bool aligned)
    {
#pragma unroll 1
        for (int u = gpu_thread(); u < ROWS * COLS / 8; u += threads) {
            const int r = u / (COLS / 8), c = u % (COLS / 8) * 8, col = col0 + c;
            gpu_vec<float, 4> x[2] = {};
            if (r < rows && col < cols) {
                const gpu_rows<const E> source = from.from(row0 + r);
                if (source.rows > 0) {
                    if (aligned && col + 8 <= cols) {
                        if constexpr (sizeof(E) == 4)
                            x[0] = gpu_load<4>(source, 0, col), x[1] = gpu_load<4>(source, 0, col + 4);
                        else {
                            const gpu_vec<E, 8> h = gpu_load<8>(source, 0, col);
#pragma unroll
                            for (int e = 0; e < 8; e++)
                                x[e / 4][e % 4] = gpu_to_float(h[e]);
                        }
                    } else
#pragma unroll
                        for (int e = 0; e < 8; e++)
                            x[e / 4][e % 4] = col + e < cols ? gpu_to_float(gpu_load<1>(source, 0, col + e)[0]) : 0.f;
                }
            }
            gpu_store<4>(to, r, c, x[0]);
            gpu_store<4>(to, r, c + 4, x[1]);
        }
    }
    template <int ROWS, int COLS>
    static GPU_FN void fetch_keys(gpu_array<float, ROWS, COLS, 4> &to, const work &w, const kiln_view &view, int64_t k0,
                                  int col0, int cols)
    {
        const kiln_sequence &s = w.c.s;
        const int n = within(s.seqlen_k - k0, BC);
        if (w.paged)
            fetch(to, gpu_page_rows<E>(w.c, view), k0, n, col0, cols, w.aligned);
        else
            fetch(to, gpu_run_rows<E>(view, s.k_batch, w.c.head_k(), s.k_row, s.seqlen_k), k0, n, col0, cols,
                  w.aligned);
    }

    // sum += Q·Kᵀ over the columns of one pair of operands.
    static GPU_FN void products(shared &sh, const work &w, const kiln_view &q, const kiln_view &k, int64_t k0,
                                float (&sum)[4][4])
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16, cols = (int)q.size[3];
#pragma unroll 1
        for (int c0 = 0; c0 < cols; c0 += DEPTH) {
            gpu_block_barrier(); // what was there is used up
            fetch(sh.x.in.q, gpu_run_rows<E>(q, w.c.s.q_batch, w.c.head, w.c.s.q_row, w.c.s.seqlen_q), w.q0, w.rows, c0,
                  cols, w.aligned);
            fetch_keys(sh.x.in.k, w, k, k0, c0, cols);
            gpu_block_barrier();
#pragma unroll 2
            for (int c = 0; c < DEPTH; c += 4) {
                gpu_vec<float, 4> a[4], b[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i] = gpu_load<4>(sh.x.in.q, ty + 16 * i, c), b[i] = gpu_load<4>(sh.x.in.k, tx + 16 * i, c);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            sum[i][j] = gpu_fma(a[i][e], b[j][e], sum[i][j]);
            }
        }
    }

    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p;
        const int64_t parts = (p.d_v + DV - 1) / DV; // of the columns of o, a work item each
        const gpu_item of(p, item / parts, a.q_tiles);
        const int part = (int)(item % parts), col0 = part * DV, d_v = within(p.d_v - col0, DV);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = (a.q_tiles - 1 - of.tile) * BR; // causal: the heavy ones first
        if (q0 >= s.seqlen_q)
            return;
        const gpu_scores c(p, s, of.batch, of.head, a.scale_log2);
        const work w = {p,
                        c,
                        q0,
                        within(s.seqlen_q - q0, BR),
                        !c.plain(),
                        p.page_size > 0,
                        gpu_aligned_rows(p.q, sizeof(E)) && gpu_aligned_rows(p.k, sizeof(E)) &&
                            gpu_aligned_rows(p.v, sizeof(E)) &&
                            (p.d2 == 0 || (gpu_aligned_rows(p.q2, sizeof(E)) && gpu_aligned_rows(p.k2, sizeof(E))))};
        const float mult = w.modify ? 1.f : a.scale_log2;
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16, row = gpu_thread() / LPR, sub = gpu_thread() % LPR;

        // Tiles that some row sees, and those that all rows see whole.
        const kiln_key_range first = c.window(q0), last = c.window(q0 + w.rows - 1);
        const int begin = (int)(first.begin / BC),
                  end = last.end > first.begin ? (int)((last.end + BC - 1) / BC) : begin;
        const int whole_begin = (int)((last.begin + BC - 1) / BC), whole_end = (int)(first.end / BC);
        if (gpu_thread() < BR) {
            const int u = gpu_thread(); // rows past the last see none
            const kiln_key_range seen = u < w.rows ? c.window(q0 + u) : kiln_key_range{0, 0};
            gpu_store<1>(sh.range, 0, u, gpu_vec<int32_t, 1>{(int32_t)seen.begin});
            gpu_store<1>(sh.range, 1, u, gpu_vec<int32_t, 1>{(int32_t)seen.end});
        }

#pragma unroll 1
        for (int pass = 0; pass < 3; pass++) {
            const bool careful = pass > 0;
            gpu_vec<float, 4> out[4][CHUNKS];
            float m = gpu_minus_infinity(), l = 0, lost = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < CHUNKS; n++)
                    out[i][n] = {};

#pragma unroll 1
            for (int step = begin; step < end; step++) {
                const int64_t k0 = (int64_t)step * BC;
                if (w.paged && gpu_thread() < BC) { // seen after the barriers of products()
                    const int64_t key = k0 + gpu_thread();
                    gpu_store<1>(sh.no_page, 0, gpu_thread(),
                                 gpu_vec<uint16_t, 1>{(uint16_t)(key < s.seqlen_k && c.page(key) < 0)});
                }
                {
                    float sum[4][4] = {};
                    products(sh, w, p.q, p.k, k0, sum);
                    if (p.d2 > 0)
                        products(sh, w, p.q2, p.k2, k0, sum);
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            gpu_store<1>(sh.s, ty + 16 * i, tx + 16 * j, gpu_vec<float, 1>{sum[i][j]});
                }
                gpu_block_barrier(); // S is complete
                if (step < whole_begin || step >= whole_end || w.modify || w.paged)
                    rewrite_scores(sh, w, k0);
                {
                    gpu_vec<float, 4> x[STEPS];
                    float top = m, sum = 0;
#pragma unroll
                    for (int n = 0; n < STEPS; n++) {
                        x[n] = gpu_load<4>(sh.s, row, 4 * (n * LPR + sub));
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            top = gpu_max(top, x[n][e]);
                    }
                    top = gpu_wave_max<LPR>(top);
                    // The product is rounded by itself, as the base of the weights so far was: alpha leads from it to this one.
                    const float base = gpu_finite_or_zero(gpu_fma(top, mult, 0.f));
                    const float alpha = gpu_exp2(gpu_fma(m, mult, 0.f) - base);
#pragma unroll
                    for (int n = 0; n < STEPS; n++) {
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            sum += x[n][e] = gpu_exp2(gpu_fma(x[n][e], mult, -base));
                        gpu_store<4>(sh.s, row, 4 * (n * LPR + sub), x[n]);
                    }
                    if (careful || p.dropout_threshold < 256)
                        rewrite_weights(sh, w, k0, careful);
                    gpu_add_compensated(l, lost, alpha, sum);
                    m = top;
                    if (sub == 0)
                        gpu_store<1>(sh.scale, 0, row, gpu_vec<float, 1>{alpha});
                }
                gpu_block_barrier(); // P is complete, K is free
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float alpha = gpu_load<1>(sh.scale, 0, ty + 16 * i)[0];
#pragma unroll
                    for (int n = 0; n < CHUNKS; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            out[i][n][e] *= alpha;
                }
#pragma unroll
                for (int n = 0; n < CHUNKS; n++) {
                    if (n * WIDTH >= d_v)
                        break;
                    if (n > 0)
                        gpu_block_barrier();
                    fetch_keys(sh.x.v, w, p.v, k0, col0 + n * WIDTH, (int)p.d_v);
                    gpu_block_barrier();
                    if (!careful)
                        values<false>(sh, out, n, 1.f);
                    else
                        values<true>(sh, out, n, pass == 2 ? DOWN : 1.f);
                }
                gpu_block_barrier(); // P is used up
            }

            const float sum = gpu_wave_sum<LPR>(l);
            if (sub == 0) {
                const gpu_row_end done(c, gpu_fma(m, mult, 0.f), sum, m > gpu_minus_infinity(), 0.f);
                gpu_store<1>(sh.scale, 0, row, gpu_vec<float, 1>{done.factor * gpu_keep_scale(p)});
                if (pass == 0 && part == 0 && row < w.rows)
                    done.store_lse(c, q0 + row);
            }
            gpu_block_barrier();
            if (!gpu_block_any(store_rows(sh, w, out, col0, pass)))
                break;
        }
    }

    template <bool CAREFUL>
    static GPU_FN void values(shared &sh, gpu_vec<float, 4> (&out)[4][CHUNKS], int n, float down)
    {
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16;
#pragma unroll 1
        for (int j = 0; j < BC; j += 4) {
            gpu_vec<float, 4> weight[4], v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                weight[i] = gpu_load<4>(sh.s, ty + 16 * i, j), v[i] = gpu_load<4>(sh.x.v, j + i, tx * 4);
            if (CAREFUL)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        v[i][e] *= down;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int jj = 0; jj < 4; jj++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (!CAREFUL || !(weight[i][jj] < 0))
                            out[i][n][e] = gpu_fma(weight[i][jj], v[jj][e], out[i][n][e]);
        }
    }

    // My share of my row, in shared memory.
    static GPU_FN void rewrite_scores(shared &sh, const work &w, int64_t k0)
    {
        const int row = gpu_thread() / LPR, sub = gpu_thread() % LPR;
        const int64_t first = gpu_load<1>(sh.range, 0, row)[0] - k0, past = gpu_load<1>(sh.range, 1, row)[0] - k0;
#pragma unroll 1
        for (int n = 0; n < STEPS; n++) {
            const int col = 4 * (n * LPR + sub);
            gpu_vec<float, 4> x = gpu_load<4>(sh.s, row, col);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int j = col + e;
                if (j < first || j >= past || (w.paged && gpu_load<1>(sh.no_page, 0, j)[0] != 0))
                    x[e] = gpu_minus_infinity();
                else if (w.modify)
                    x[e] = w.c.score(x[e], w.q0 + row, k0 + j);
            }
            gpu_store<4>(sh.s, row, col, x);
        }
    }
    // Dropout; and in a careful pass, of the keys without weight those that are masked.
    static GPU_FN void rewrite_weights(shared &sh, const work &w, int64_t k0, bool careful)
    {
        const int row = gpu_thread() / LPR, sub = gpu_thread() % LPR;
        const int64_t first = gpu_load<1>(sh.range, 0, row)[0] - k0, past = gpu_load<1>(sh.range, 1, row)[0] - k0,
                      i = w.q0 + row;
        const bool drops = w.p.dropout_threshold < 256;
        gpu_dropout drop;
#pragma unroll 1
        for (int n = 0; n < STEPS; n++) {
            const int col = 4 * (n * LPR + sub);
            gpu_vec<float, 4> x = gpu_load<4>(sh.s, row, col);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int j = col + e;
                const bool seen = !careful || x[e] != 0 ||
                                  (j >= first && j < past && w.c.visible(i, k0 + j) &&
                                   !(w.paged && gpu_load<1>(sh.no_page, 0, j)[0] != 0));
                if (!seen)
                    x[e] = -1;
                else if (drops && !drop.keep(w.c, i, k0 + j))
                    x[e] = 0;
            }
            gpu_store<4>(sh.s, row, col, x);
        }
    }

    static GPU_FN bool store_rows(shared &sh, const work &w, gpu_vec<float, 4> (&out)[4][CHUNKS], int col0, int pass)
    {
        const auto &p = w.p;
        const int ty = gpu_thread() / 16, tx = gpu_thread() % 16, d_v = (int)p.d_v;
        const int64_t first = w.c.s.q_row + w.q0;
        const gpu_rows<float> wide(gpu_rows<float>(p.o, w.c.s.q_batch, w.c.head).from(first));
        const float limit = gpu_overflow_of(p.o.type);
        const bool vectors = pass == 0 && p.o.type == KILN_FLOAT32 && gpu_aligned_rows(p.o, 4);
        bool open = false;
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) { // through the place of S, so that the code of an element is there once
            if (col0 + n * WIDTH >= d_v)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++)
                gpu_store<4>(sh.s, ty + 16 * i, tx * 4, out[i][n]);
            gpu_block_barrier();
#pragma unroll 1
            for (int row = ty; row < w.rows; row += threads / 16) {
                const int col = col0 + n * WIDTH + tx * 4;
                const float factor = gpu_load<1>(sh.scale, 0, row)[0];
                const gpu_vec<float, 4> sum = gpu_load<4>(sh.s, row, tx * 4);
                if (col >= d_v)
                    continue;
                if (vectors) {
                    gpu_vec<float, 4> y;
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        y[e] = gpu_mean(sum[e], factor, 1.f);
                        open |= !(gpu_abs(y[e]) < limit);
                    }
                    gpu_store<4>(wide, row, col, y);
                    continue;
                }
#pragma unroll 1
                for (int e = 0; e < 4; e++)
                    if (col + e < d_v)
                        open |= store_element(w, row, col + e,
                                              e == 0   ? sum[0]
                                              : e == 1 ? sum[1]
                                              : e == 2 ? sum[2]
                                                       : sum[3],
                                              factor, limit, pass);
            }
            gpu_block_barrier();
        }
        return open;
    }
    static GPU_FN bool store_element(const work &w, int row, int col, float sum, float factor, float limit, int pass)
    {
        const int64_t b = w.c.s.q_batch, i = w.c.s.q_row + w.q0 + row;
        if (pass > 0 && gpu_is_finite(gpu_read_float(w.p.o, b, w.c.head, i, col)))
            return false; // settled before
        float y = gpu_mean(sum, factor, 1.f, pass == 2 ? 1.f / DOWN : 1.f);
        if (pass == 2 && gpu_is_finite(sum))
            y = gpu_clamp_mean(w.p, y);
        gpu_write_float(w.p.o, b, w.c.head, i, col, y);
        return !(gpu_abs(y) < limit);
    }
};
