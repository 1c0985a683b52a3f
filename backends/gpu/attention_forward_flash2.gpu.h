// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `flash2`, 16-bit types: the query block is the outer loop, (m, l, O) never leave the chip, one
// division at the end. Against `flash1`: O, m and l are not revisited in memory, and every (batch, head, query block) is a
// work item of its own.
//
// A wave has ROWS = MT·M queries and walks over the keys in tiles of BC: S = Q·Kᵀ on the matrix unit, S to shared memory of
// this wave alone, softmax there with LPR = GPU_WAVE/M lanes a row (LPR-wide butterflies), P back over S in 16 bits,
// O = diag(alpha)·O + P·V. Nobody needs to know which lane holds which element of an accumulator: rows are scaled by a tile
// that holds alpha_i in all of row i (load_rows). K(t+1) is fetched under P·V(t), V(t) under S(t): two block barriers a tile.
//
// Two modes of one text, with the same bits where both apply. plain: aligned rows, nothing but window, lengths and sinks.
// general: the rest of the contract too. There scores are rewritten in shared memory before the softmax, weights after it,
// by rolled loops that hold no registers while the matrix unit works.
//
// fp16: weights are larger by 2^15 than exp(s - m), so that the small ones keep their digits; the factor cancels.
//
// The reference of a row's weights follows its maximum with a lag: a new one is taken only when the maximum has left the old
// one behind by 2^LAG, so O is rarely rescaled. Each row decides for itself; the wave votes whether there is anything to do.
//
// fp16: weights are larger than exp(s - m) by up to 2^15, so that the small ones keep their digits; the factor cancels.
//
// What must not leak or overflow (contract 4.4) costs nothing until it happens. A NaN or Inf that came near a row, even
// with weight 0, stays in its O; an overflow is one too. So the first pass ignores the question, and only if an element
// that it wrote is not finite, the block makes two more passes for those elements. They are a function of their own, by
// blocks of one row of tiles a wave, in the general mode:
//   pass 1  the same arithmetic, but non-finite numbers of V are taken out of the tile and noted (two bits per element of
//           o) for the rows that see them. What remains is what a clean V would have given, to the bit.
//   pass 2  weights smaller by 2^40: sums of values near the end of the type stay in range, and means are finite. The notes
//           are those of pass 1, whose small weights were not 0 yet.
//
// Bytes requested, N a multiple of the tiles, per head: 2·N·d·e (Q, O) + 2·N·d·e·⌈N/BR⌉ (K, V); lse 4·N.
// FLOPs 4·N²·d + 3·N².
#pragma once
#include "gpu_attention.gpu.h"

// Shape: tiles of rows a wave, keys a tile, waves, blocks of a multiprocessor, and whether Q stays in registers.
template <int MT_, int BC_, int WAVES_, int BLOCKS_, bool Q_STAYS_> struct flash2_shape {
    static constexpr int MT = MT_, BC = BC_, WAVES = WAVES_, BLOCKS = BLOCKS_;
    static constexpr bool Q_STAYS = Q_STAYS_;
};

// All keys once. CAREFUL: passes 1 and 2.
template <class E, int D, class SHAPE, bool GENERAL, bool CAREFUL> struct flash2_sweep {
    static constexpr int M = 16, MT = SHAPE::MT, BC = SHAPE::BC, WAVES = SHAPE::WAVES;
    using tile = gpu_tile<E, M>;
    static constexpr int ROWS = MT * M, BR = WAVES * ROWS, LPR = GPU_WAVE / M, STEPS = BC / (4 * LPR);
    static constexpr int threads = WAVES * GPU_WAVE;
    static constexpr bool VT = !tile::b_by_rows; // V is staged transposed
    static constexpr bool HALF = __is_same(E, gpu_half);
    static constexpr float LAG = HALF ? 4.f : 8.f, SHIFT = HALF ? 11.f : 0.f; // fp16 holds 2^(LAG + SHIFT)
    static constexpr int NOTES = (D + 15) / 16;                               // words of two bits per column
    static_assert(4 * LPR * STEPS == BC && threads >= BC, "lanes share a row evenly");
    static_assert(GENERAL || !CAREFUL, "careful passes are rare: one mode is enough");

    struct key_tile {
        gpu_array<E, BC, D, 8> k;
        gpu_array<E, VT ? D : BC, VT ? BC : D, 8> v;
    };
    using query_tile = gpu_array<E, BR, D, 8>;
    union overlaid {
        key_tile t;
        query_tile q;
    };
    struct separate {
        key_tile t;
        query_tile q;
    };
    struct weights {
        gpu_array<E, M, BC, 8> p;
        gpu_array<uint16_t, M, BC, 8> seen; // of a careful pass: 0 masked, 1 weighs, 2 visible with weight 0
    };
    union score { // of one row of tiles: S, and over it P
        gpu_array<float, M, BC, 4 * LPR> s;
        weights w;
    };
    struct shared {
        score w[WAVES][MT];
        gpu_array<float, 1, ROWS> scale[WAVES]; // a factor per row, on its way to load_rows
        gpu_array<uint32_t, CAREFUL ? ROWS : 1, CAREFUL ? NOTES : 1>
            notes[WAVES];                      // what each element of o met. 1 Inf, 2 -Inf, 3 NaN
        gpu_array<int32_t, 2, BR> range;       // keys that the window shows to a row: first, and past the last
        gpu_array<int32_t, 1, 2> whole[WAVES]; // tiles that all rows of the wave see whole: first, and past the last
        gpu_array<uint16_t, 1, GENERAL ? BC : 1> no_page; // keys whose page does not exist
        typename gpu_select<SHAPE::Q_STAYS, overlaid, separate>::type in;
    };
    using accumulator = typename tile::acc[MT][D / M];

    struct place { // of one work item
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
    struct keys {
        int first, past;
    }; // of a row, in a tile
    static GPU_FN keys visible_keys(shared &sh, int row, int step)
    {
        return {gpu_load<1>(sh.range, 0, row)[0] - step * BC, gpu_load<1>(sh.range, 1, row)[0] - step * BC};
    }

    struct state { // of my row of each row of tiles
        float top[MT], l[MT],
            lost[MT]; // the maximum that the reference goes by, before `mult`; my share of l; l's rounding
    };

    // For the rows from q0 on. Is something that was written not settled?
    static GPU_FN bool run(const gpu_attention_args &a, shared &sh, const gpu_item &work, int64_t q0, int pass)
    {
        const auto &p = a.p;
        const kiln_sequence s = gpu_sequence_of(p, work.batch);
        if (q0 >= s.seqlen_q)
            return false;
        const gpu_scores c(p, s, work.batch, work.head, a.scale_log2);
        const int rows = within(s.seqlen_q - q0, BR), w0 = gpu_wave_id() * ROWS;
        const place at = {p,
                          c,
                          q0,
                          rows,
                          GENERAL && !c.plain(),
                          GENERAL && p.page_size > 0,
                          !GENERAL || (gpu_aligned_rows(p.q, sizeof(E)) && gpu_aligned_rows(p.k, sizeof(E)) &&
                                       gpu_aligned_rows(p.v, sizeof(E)))};
        const float mult = at.modify ? 1.f : a.scale_log2;                 // of what the softmax finds in shared memory
        const float shift = CAREFUL && pass == 2 && !HALF ? -40.f : SHIFT; // no sum of fp16 numbers overflows
        auto &w = sh.w[gpu_wave_id()];

        gpu_row_copy<E, BR, D, threads> copy_q;
        gpu_row_copy<E, BC, D, threads> copy_k;
        gpu_row_copy<E, BC, D, threads, VT> copy_v;
        copy_q.issue(sh.in.q, gpu_run_rows<E>(p.q, s.q_batch, work.head, s.q_row, s.seqlen_q), q0, rows, (int)p.d,
                     at.aligned);
        for (int u = gpu_thread(); u < BR; u += threads) { // rows past the last see none
            const kiln_key_range seen = u < rows ? c.window(q0 + u) : kiln_key_range{0, 0};
            gpu_store<1>(sh.range, 0, u, gpu_vec<int32_t, 1>{(int32_t)seen.begin});
            gpu_store<1>(sh.range, 1, u, gpu_vec<int32_t, 1>{(int32_t)seen.end});
        }
        if constexpr (CAREFUL)
            if (pass == 1)
                begin_notes(sh.notes[gpu_wave_id()]);
        copy_q.land(sh.in.q);
        gpu_block_barrier();
        typename tile::a qa[SHAPE::Q_STAYS ? D / tile::K : 1];
        if constexpr (SHAPE::Q_STAYS) {
#pragma unroll
            for (int kk = 0; kk < D / tile::K; kk++)
                tile::load_a(qa[kk], sh.in.q, w0, kk * tile::K);
            gpu_block_barrier();
        }
        // Tiles that some row of the block sees, and those that all rows of the wave see whole.
        const int low = gpu_load<1>(sh.range, 0, 0)[0], high = gpu_load<1>(sh.range, 1, rows - 1)[0],
                  last = (w0 + ROWS < rows ? w0 + ROWS : rows) - 1;
        const int begin = low / BC, end = high > low ? (high + BC - 1) / BC : begin;
        auto &whole = sh.whole[gpu_wave_id()];
        if (gpu_lane() == 0) {
            gpu_store<1>(whole, 0, 0, {w0 < rows ? (gpu_load<1>(sh.range, 0, last)[0] + BC - 1) / BC : end});
            gpu_store<1>(whole, 0, 1, {gpu_load<1>(sh.range, 1, w0)[0] / BC});
        }

        state me;
        accumulator out;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            me.top[t] = gpu_minus_infinity(), me.l[t] = me.lost[t] = 0;
#pragma unroll
            for (int n = 0; n < D / M; n++)
                tile::zero(out[t][n]);
        }
        const gpu_run_rows<E> all_k(p.k, at.paged ? 0 : s.k_batch, c.head_k(), s.k_row, s.seqlen_k),
            all_v(p.v, at.paged ? 0 : s.k_batch, c.head_k(), s.k_row, s.seqlen_k);
        gpu_rows<const E> k = start<decltype(copy_k)>(all_k, begin), v = start<decltype(copy_v)>(all_v, begin);
        if (begin < end)
            fetch_k(sh, at, copy_k, k, begin);
#pragma unroll 1
        for (int step = begin; step < end; step++) {
            copy_k.land(sh.in.t.k);
            gpu_block_barrier();
            fetch(sh.in.t.v, at, copy_v, v, p.v, step, (int)p.d_v);
            products(sh, w, qa, w0);
            gpu_wave_barrier(); // S is complete
            const bool edge = step < gpu_load<1>(whole, 0, 0)[0] || step >= gpu_load<1>(whole, 0, 1)[0];
#pragma unroll
            for (int t = 0; t < MT; t++)
                weigh(sh, at, w[t], me, out[t], t, w0, step, edge, mult, shift, pass);
            copy_v.land(sh.in.t.v);
            gpu_block_barrier(); // V and P are there, K is free
            if constexpr (CAREFUL)
                take_out(sh, w, sh.notes[gpu_wave_id()], pass);
            if (step + 1 < end)
                fetch_k(sh, at, copy_k, k, step + 1);
            accumulate(sh, w, out);
        }

        gpu_wave_barrier();
        auto &scale = sh.scale[gpu_wave_id()];
        const int r = gpu_lane() / LPR, sub = gpu_lane() % LPR;
        bool open = false;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            const float lost = me.lost[t] - me.lost[t] == 0 ? me.lost[t] : 0.f; // inf - inf
            const float sum = gpu_wave_sum<LPR>(me.l[t] + lost);
            const int row = w0 + t * M + r;
            if (sub != 0)
                continue;
            const gpu_row_end done(c, gpu_fma(me.top[t], mult, -shift), sum, me.top[t] > gpu_minus_infinity(), shift);
            gpu_store<1>(scale, 0, t * M + r, gpu_vec<float, 1>{done.factor * gpu_keep_scale(p)});
            if (pass < 2 && row < rows)
                done.store_lse(c, q0 + row);
            open |= row < rows && !(sum < -gpu_minus_infinity());
        }
        gpu_wave_barrier();
#pragma unroll
        for (int t = 0; t < MT; t++)
            open |= store_rows(sh, at, out[t], w[t].s, w0, t, pass);
        return gpu_block_any(open);
    }

    // S = Q·Kᵀ of my rows, to shared memory.
    template <class QA> static GPU_FN void products(shared &sh, score (&w)[MT], const QA &qa, int w0)
    {
        typename tile::acc sc[MT][BC / M];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < BC / M; n++)
                tile::zero(sc[t][n]);
        // Operands are loaded one step before they are used; more ahead, and registers run out.
        typename tile::a qt[2][MT];
        typename tile::bk kt[2];
        const auto load_q = [&](int kk) {
#pragma unroll
            for (int t = 0; t < MT; t++) {
                if constexpr (SHAPE::Q_STAYS)
                    qt[kk % 2][t] = qa[kk];
                else
                    tile::load_a(qt[kk % 2][t], sh.in.q, w0 + t * M, kk * tile::K);
            }
        };
        load_q(0);
        tile::load_bk(kt[0], sh.in.t.k, 0, 0);
        gpu_unroll<D / tile::K *(BC / M)>([&](auto i) {
            constexpr int N = BC / M, kk = i / N, n = i % N, next = i + 1;
            if constexpr (next < D / tile::K * N)
                tile::load_bk(kt[next % 2], sh.in.t.k, next % N * M, next / N * tile::K);
            if constexpr (n == 0 && kk + 1 < D / tile::K)
                load_q(kk + 1);
#pragma unroll
            for (int t = 0; t < MT; t++)
                tile::mma(sc[t][n], qt[kk % 2][t], kt[i % 2]);
        });
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < BC / M; n++)
                tile::store(w[t].s, 0, n * M, sc[t][n]);
    }

    // The softmax of one row of tiles: S becomes P in its place, the sums grow, and where a maximum has left the reference
    // behind, O is rescaled.
    static GPU_FN void weigh(shared &sh, const place &at, score &w, state &me, typename tile::acc (&out)[D / M], int t,
                             int w0, int step, bool edge, float mult, float shift, int pass)
    {
        const int r = gpu_lane() / LPR, sub = gpu_lane() % LPR, row = w0 + t * M + r;
        if (edge || at.modify || at.paged)
            rewrite_scores(sh, at, w.s, row, step);
        gpu_vec<float, 4> x[STEPS];
#pragma unroll
        for (int n = 0; n < STEPS; n++)
            x[n] = gpu_load<4>(w.s, r, 4 * (n * LPR + sub));
        float most = x[0][0];
#pragma unroll
        for (int n = 0; n < STEPS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                most = gpu_max(most, x[n][e]);
        most = gpu_wave_max<LPR>(most);
        const bool moves = (most - me.top[t]) * mult > LAG; // not if both are the same infinity
        if (gpu_wave_any(moves)) {
            auto &scale = sh.scale[gpu_wave_id()];
            const float before = gpu_fma(me.top[t], mult, -shift);
            me.top[t] = moves ? most : me.top[t];
            const float alpha = moves ? gpu_exp2(before - gpu_fma(me.top[t], mult, -shift)) : 1.f;
            me.l[t] *= alpha, me.lost[t] *= alpha;
            if (sub == 0)
                gpu_store<1>(scale, 0, t * M + r, gpu_vec<float, 1>{alpha});
            gpu_wave_barrier();
            typename tile::acc f;
            tile::load_rows(f, scale, 0, t * M);
#pragma unroll
            for (int n = 0; n < D / M; n++)
#pragma unroll
                for (int i = 0; i < tile::acc::n; i++)
                    out[n].x(i) *= f.x(i);
        }
        const float base = gpu_finite_or_zero(gpu_fma(me.top[t], mult, -shift));
        gpu_wave_barrier();          // everybody has read S: P may lie over it
        gpu_vec<float, 4> sums = {}; // four chains: additions wait for each other
#pragma unroll
        for (int n = 0; n < STEPS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) // apart: the product is rounded first, so no weight is above 2^(LAG + shift)
                sums[e] += x[n][e] =
                    gpu_exp2(CAREFUL && pass == 2 ? gpu_product(x[n][e], mult) - base : gpu_fma(x[n][e], mult, -base));
            gpu_store<4>(w.w.p, r, 4 * (n * LPR + sub), gpu_from_floats<E>(x[n]));
        }
        if constexpr (CAREFUL) {
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                gpu_vec<uint16_t, 4> seen;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    seen[e] = x[n][e] > 0 ? 1 : 2;
                gpu_store<4>(w.w.seen, r, 4 * (n * LPR + sub), seen);
            }
        }
        if constexpr (GENERAL)
            if (CAREFUL || at.p.dropout_threshold < 256)
                rewrite_weights(sh, at, w.w, row, step);
        gpu_add_compensated(me.l[t], me.lost[t], 1.f,
                            sums[0] + sums[1] + (sums[2] + sums[3])); // shares are added at the end
    }

    // O += P·V.
    static GPU_FN void accumulate(shared &sh, score (&w)[MT], accumulator &out)
    {
        typename tile::a pt[MT];
        typename tile::bn vt[2];
        const auto load_v = [&](int kk, int n, typename tile::bn &v) {
            if constexpr (VT)
                tile::load_bk(v, sh.in.t.v, n * M, kk * tile::K);
            else
                tile::load_bn(v, sh.in.t.v, kk * tile::K, n * M);
        };
        load_v(0, 0, vt[0]);
        gpu_unroll<BC / tile::K *(D / M)>([&](auto i) {
            constexpr int N = D / M, kk = i / N, n = i % N, next = i + 1;
            if constexpr (next < BC / tile::K * N)
                load_v(next / N, next % N, vt[next % 2]);
            if constexpr (n == 0)
#pragma unroll
                for (int t = 0; t < MT; t++)
                    tile::load_a(pt[t], w[t].w.p, 0, kk * tile::K);
#pragma unroll
            for (int t = 0; t < MT; t++)
                tile::mma(out[t][n], pt[t], vt[i % 2]);
        });
    }

    // ---- K and V ----
    // From a place that moves with the steps: `run` are the rows of the next tile; where copies are direct, my first of them on.
    template <class A, class COPY>
    static GPU_FN void fetch(A &to, const place &at, COPY &copy, gpu_rows<const E> &run, const kiln_view &view,
                             int step, int cols)
    {
        const int n = (int)at.c.s.seqlen_k - step * BC; // may be more than a tile
        if constexpr (GENERAL)
            if (at.paged)
                return copy.issue(to, gpu_page_rows<E>(at.c, view), (int64_t)step * BC, n, cols, at.aligned);
        if constexpr (!GENERAL && COPY::direct)
            copy.issue_near(to, run, n, cols);
        else
            copy.issue(to, gpu_run_rows<E>(run), 0, n, cols, at.aligned);
        run = run.from(BC);
    }
    template <class COPY> static GPU_FN gpu_rows<const E> start(const gpu_run_rows<E> &run, int begin)
    {
        return run.from((int64_t)begin * BC + (!GENERAL && COPY::direct ? COPY::row(0) : 0));
    }
    template <class COPY>
    static GPU_FN void fetch_k(shared &sh, const place &at, COPY &copy, gpu_rows<const E> &run, int step)
    {
        fetch(sh.in.t.k, at, copy, run, at.p.k, step, (int)at.p.d);
        if constexpr (GENERAL) {
            const int j = gpu_thread();
            const int64_t key = (int64_t)step * BC + j;
            if (at.paged && j < BC)
                gpu_store<1>(sh.no_page, 0, j,
                             gpu_vec<uint16_t, 1>{(uint16_t)(key < at.c.s.seqlen_k && at.c.page(key) < 0)});
        }
    }

    // ---- general: my share of row i, in shared memory ----
    static GPU_FN void rewrite_scores(shared &sh, const place &at, gpu_array<float, M, BC, 4 * LPR> &s, int row,
                                      int step)
    {
        const int r = gpu_lane() / LPR, sub = gpu_lane() % LPR;
        const int64_t k0 = (int64_t)step * BC, i = at.q0 + row;
        const keys seen = visible_keys(sh, row, step);
#pragma unroll 1
        for (int n = 0; n < STEPS; n++) {
            const int col = 4 * (n * LPR + sub);
            gpu_vec<float, 4> x = gpu_load<4>(s, r, col);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int j = col + e;
                if (j < seen.first || j >= seen.past || (at.paged && gpu_load<1>(sh.no_page, 0, j)[0] != 0))
                    x[e] = gpu_minus_infinity();
                else if (at.modify)
                    x[e] = at.c.score(x[e], i, k0 + j);
            }
            gpu_store<4>(s, r, col, x);
        }
    }
    // Dropout; and in a careful pass, of the keys without weight those that are masked.
    static GPU_FN void rewrite_weights(shared &sh, const place &at, weights &w, int row, int step)
    {
        const int r = gpu_lane() / LPR, sub = gpu_lane() % LPR;
        const int64_t k0 = (int64_t)step * BC, i = at.q0 + row;
        const bool drops = at.p.dropout_threshold < 256;
        const keys range = visible_keys(sh, row, step);
        gpu_dropout drop;
#pragma unroll 1
        for (int n = 0; n < STEPS; n++) {
            const int col = 4 * (n * LPR + sub);
            gpu_vec<E, 4> p = gpu_load<4>(w.p, r, col);
            gpu_vec<uint16_t, 4> seen = {};
            if constexpr (CAREFUL)
                seen = gpu_load<4>(w.seen, r, col);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t j = k0 + col + e;
                if (CAREFUL && seen[e] == 2) {
                    const bool in = col + e >= range.first && col + e < range.past;
                    if (!in || !at.c.visible(i, j) || (at.paged && gpu_load<1>(sh.no_page, 0, col + e)[0] != 0))
                        seen[e] = 0;
                }
                if (drops && !drop.keep(at.c, i, j)) {
                    p[e] = E{};
                    if (seen[e] == 1)
                        seen[e] = 2;
                }
            }
            if (drops)
                gpu_store<4>(w.p, r, col, p);
            if constexpr (CAREFUL)
                gpu_store<4>(w.seen, r, col, seen);
        }
    }

    // ---- careful passes ----
    static GPU_FN void begin_notes(gpu_array<uint32_t, ROWS, NOTES> &notes)
    {
        for (int u = gpu_lane(); u < ROWS * NOTES; u += GPU_WAVE)
            gpu_store<1>(notes, u / NOTES, u % NOTES, gpu_vec<uint32_t, 1>{0});
        gpu_wave_barrier();
    }
    static GPU_FN float value(shared &sh, int j, int col)
    {
        return gpu_to_float(gpu_load<1>(sh.in.t.v, VT ? col : j, VT ? j : col)[0]);
    }
    // Non-finite numbers of the tile of V: noted (in pass 1) for the rows that see them, then 0. All threads; ends with a barrier.
    static GPU_FN void take_out(shared &sh, score (&w)[MT], gpu_array<uint32_t, ROWS, NOTES> &notes, int pass)
    {
        bool any = false;
#pragma unroll 1
        for (int u = gpu_thread(); u < BC * D; u += threads)
            any |= !gpu_is_finite(value(sh, u / D, u % D));
        if (!gpu_block_any(any))
            return;
        const int todo = pass == 1 ? ROWS * NOTES : 0;
#pragma unroll 1
        for (int u = gpu_lane(); u < todo; u += GPU_WAVE) {
            const int row = u / NOTES, word = u % NOTES;
            uint32_t bits = gpu_load<1>(notes, row, word)[0];
#pragma unroll 1
            for (int j = 0; j < BC; j++) {
                const int seen = gpu_load<1>(w[row / M].w.seen, row % M, j)[0];
                if (seen == 0)
                    continue;
#pragma unroll 1
                for (int e = 0; e < 16; e++) {
                    const float x = value(sh, j, word * 16 + e);
                    if (!gpu_is_finite(x))
                        bits |= (seen == 2 || x != x ? 3u : x > 0 ? 1u : 2u) << (2 * e);
                }
            }
            gpu_store<1>(notes, row, word, gpu_vec<uint32_t, 1>{bits});
        }
        gpu_block_barrier();
#pragma unroll 1
        for (int u = gpu_thread(); u < BC * D; u += threads)
            if (!gpu_is_finite(value(sh, u / D, u % D)))
                gpu_store<1>(sh.in.t.v, VT ? u % D : u / D, VT ? u / D : u % D, gpu_vec<E, 1>{});
        gpu_block_barrier();
    }

    // ---- O leaves through the place of S, CH columns at a time. Is an element of it not settled? ----
    static GPU_FN bool store_rows(shared &sh, const place &at, typename tile::acc (&out)[D / M],
                                  gpu_array<float, M, BC, 4 * LPR> &s, int w0, int t, int pass)
    {
        constexpr int CH = BC < D ? BC : D;
        static_assert(D % CH == 0 || D % M == 0, "whole tiles");
        const auto &p = at.p;
        const int wave = gpu_wave_id(), lane = gpu_lane(), d_v = (int)p.d_v;
        const int64_t first = at.c.s.q_row + at.q0;
        const gpu_rows<E> o(gpu_rows<E>(p.o, at.c.s.q_batch, at.c.head).from(first));
        const gpu_rows<float> wide(gpu_rows<float>(p.o, at.c.s.q_batch, at.c.head).from(first));
        const bool fp32 = GENERAL && p.o.type == KILN_FLOAT32,
                   vectors = !GENERAL || (!CAREFUL && gpu_aligned_rows(p.o, fp32 ? 4 : 2));
        const float limit = gpu_overflow_of(p.o.type);
        bool open = false;
#pragma unroll
        for (int c0 = 0; c0 < D; c0 += CH) {
#pragma unroll
            for (int n = 0; n < CH / M; n++)
                if (c0 + n * M < D)
                    tile::store(s, 0, n * M, out[c0 / M + n < D / M ? c0 / M + n : 0]);
            gpu_wave_barrier();
#pragma unroll 1
            for (int u = lane; u < M * CH / 8; u += GPU_WAVE) {
                const int i = u / (CH / 8), c = u % (CH / 8) * 8, row = w0 + t * M + i, col = c0 + c;
                if (row >= at.rows || col >= d_v)
                    continue;
                const auto lo = gpu_load<4>(s, i, c), hi = gpu_load<4>(s, i, c + 4);
                const float factor = gpu_load<1>(sh.scale[wave], 0, t * M + i)[0];
                gpu_vec<float, 8> y = {{lo[0], lo[1], lo[2], lo[3], hi[0], hi[1], hi[2], hi[3]}};
                bool finite = true;
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    y[e] = factor == 0 ? 0.f : y[e] * factor;
                    finite = finite && gpu_abs(y[e]) < limit;
                }
                if (vectors) {
                    if (!fp32)
                        gpu_store<8>(o, row, col, gpu_from_floats<E>(y));
                    else {
                        gpu_store<4>(wide, row, col, gpu_vec<float, 4>{{y[0], y[1], y[2], y[3]}});
                        gpu_store<4>(wide, row, col + 4, gpu_vec<float, 4>{{y[4], y[5], y[6], y[7]}});
                    }
                    open |= !finite;
                    continue;
                }
                uint32_t bits = 0;
                if constexpr (CAREFUL)
                    bits = gpu_load<1>(sh.notes[wave], t * M + i, col / 16)[0] >> (col % 16 * 2);
#pragma unroll 1
                for (int e = 0; e < 8; e++)
                    if (col + e < d_v)
                        open |= store_element(at, row, col + e, pick(y, e), factor != factor ? 0 : bits >> (2 * e) & 3,
                                              limit, pass);
            }
            gpu_wave_barrier();
        }
        return open;
    }
    static GPU_FN float pick(const gpu_vec<float, 8> &y, int e)
    { // an index that is data would put y into memory
        float x = y[0];
#pragma unroll
        for (int i = 1; i < 8; i++)
            x = i == e ? y[i] : x;
        return x;
    }
    static GPU_FN bool store_element(const place &at, int row, int col, float y, uint32_t note, float limit, int pass)
    {
        const int64_t b = at.c.s.q_batch, i = at.c.s.q_row + at.q0 + row;
        if (pass > 0 && gpu_is_finite(gpu_read_float(at.p.o, b, at.c.head, i, col)))
            return false; // settled before
        if (note != 0)
            y = note == 1 ? -gpu_minus_infinity() : note == 2 ? gpu_minus_infinity() : __builtin_nanf("");
        else if (pass == 2)
            y = gpu_clamp_mean(at.p, y);
        gpu_write_float(at.p.o, b, at.c.head, i, col, y);
        return note == 0 && !(gpu_abs(y) < limit);
    }
};

template <class E, int D, class SHAPE, bool GENERAL> struct attention_forward_flash2 {
    using args = gpu_attention_args;
    using sweep = flash2_sweep<E, D, SHAPE, GENERAL, false>;
    using careful = flash2_sweep<E, D, flash2_shape<1, SHAPE::BC, SHAPE::WAVES, 1, SHAPE::Q_STAYS>, true, true>;
    static constexpr int threads = sweep::threads, blocks = SHAPE::BLOCKS, tile_q = sweep::BR, tile_k = sweep::BC;
    union shared {
        typename sweep::shared first;
        typename careful::shared then;
    };

    static GPU_FN bool run(const args &a, shared &sh, int64_t item)
    {
        const gpu_item work(a.p, item, a.q_tiles);
        return sweep::run(a, sh.first, work, first_row(a, work), 0);
    }
    static GPU_FN int64_t first_row(const args &a, const gpu_item &work)
    {
        return (a.q_tiles - 1 - work.tile) * tile_q; // causal: the heavy ones first
    }
    static GPU_FN void rest(const args &a, shared &sh, int64_t item)
    {
        const gpu_item work(a.p, item, a.q_tiles);
        const int64_t q0 = first_row(a, work);
#pragma unroll 1
        for (int64_t at = q0; at < q0 + tile_q; at += careful::BR)
#pragma unroll 1
            for (int pass = 1; pass < 3; pass++) {
                gpu_block_barrier();
                if (!careful::run(a, sh.then, work, at, pass))
                    break;
            }
    }
};
