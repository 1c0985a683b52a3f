// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `flash1` (Dao et al. 2022): keys are the outer loop. Against `tiled`: S and P never reach memory; the
// price is that O, m and l of all queries are revisited there for every tile of keys.
//
// A work item is a head: for each tile of BC keys, K and V stay in shared memory while all tiles of SIDE queries pass by. S on
// matrix units (FMA for fp32) from chunks of Q, softmax in shared memory, then O = alpha·O + P·V for 64 columns at a time: P·V
// through shared memory, O from and to the workspace. A tile of queries begins with the first tile of keys that it sees, whose
// round reads no O, m, l, and ends with the last, whose round writes o instead of the workspace, and lse.
// Heads that are too wide to stay (D = 0), and the second score operand: K and V pass in chunks too, once per tile of queries.
//
// Non-finite numbers of V are taken out of the tile. If a tile had any, the elements of O that see them become what they make
// of a sum, in memory: NaN or Inf, which then stays. Elements that end so get a second pass with weights smaller by 2^40, in
// which sums of finite values stay finite.
//
// Bytes requested, N a multiple of the tiles, per head, T = ⌈N/BC⌉: 2·N·d·e (K, V) + T·(N·d·e (Q) + 2·N·d·e_O + 16·N (O, m, l)) less
// N·d·e_O + 8·N, which the first round does not read; e_O = 4, but e for o itself. lse 4·N. FLOPs 4·N²·d + 3·N².
// Workspace: O, fp32 (batch, heads, seqlen_q, d_v); m and l, fp32 (batch, heads, seqlen_q, 2).
#pragma once
#include "attention_forward_tiled.gpu.h"

template <class E, int D, int BC> struct attention_forward_flash1 {
    using args = gpu_attention_args;
    using tile = gpu_tile<gpu_half, 16>; // by_rows and K are the same for all types
    static constexpr bool FMA = sizeof(E) == 4, STAYS = D > 0, HALF = __is_same(E, gpu_half);
    static constexpr int SIDE = 64, DEPTH = 32, WIDTH = 64, M = 16, PAD = 16 / sizeof(E);
    static constexpr int threads = 4 * GPU_WAVE, blocks = 1, tile_q = SIDE, tile_k = BC;
    static constexpr int LPR = threads / SIDE, SHARE = BC / LPR;
    static constexpr int TX = 8, DOWN = threads / TX, TALL = SIDE / DOWN; // FMA: a thread's part of S
    static constexpr int VX = 16, VDOWN = threads / VX, VTALL = SIDE / VDOWN;
    static constexpr bool VT = !FMA && !tile::b_by_rows;
    static constexpr int KW = STAYS ? D : DEPTH, VW = STAYS ? D : WIDTH; // columns of K and V in shared memory
    static constexpr float UP = HALF ? 0x1p15f : 1.f;                    // of P: what is small keeps its digits
    static_assert(BC % M == 0 && (FMA || BC % tile::K == 0), "whole tiles");

    struct operands {
        gpu_array<E, SIDE, DEPTH, PAD> q;
        gpu_array<float, SIDE, BC, 4> s; // S, in units of log2 from weigh() on
    };
    union passing {
        operands in;
        gpu_array<float, SIDE, WIDTH, 4> o; // P·V
    };
    struct shared {
        gpu_array<E, BC, KW, PAD> k;
        gpu_array<E, VT ? VW : BC, VT ? BC : VW, PAD> v;
        gpu_array<E, SIDE, BC, PAD> p;
        passing x;
        gpu_array<uint16_t, SIDE, BC> seen; // 0 masked, 1 weighs, 2 visible with weight 0
        gpu_array<float, 2, SIDE> row;      // alpha, factor of o
        gpu_array<uint16_t, 1, BC> gone;    // keys whose page does not exist
    };
    struct place {
        const args &a;
        const gpu_scores &c;
        int64_t k0;
        int keys;
    };

    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.p;
        const gpu_item work(p, item, 1);
        const kiln_sequence s = gpu_sequence_of(p, work.batch);
        const gpu_scores c(p, s, work.batch, work.head, a.scale_log2);
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            bool open = false;
#pragma unroll 1
            for (int64_t k0 = 0; k0 == 0 || k0 < s.seqlen_k; k0 += BC) {
                const place at = {a, c, k0, tiled_within(s.seqlen_k - k0, BC)};
                gpu_block_barrier(); // the tile before is used up
                bool met = false;
                if constexpr (STAYS) {
                    tiled_fetch_keys<false>(sh.k, c, p.k, k0, at.keys, 0, false);
                    met = tiled_fetch_keys<VT>(sh.v, c, p.v, k0, at.keys, 0, true);
                }
                if (gpu_thread() < BC)
                    gpu_store<1>(sh.gone, 0, gpu_thread(),
                                 gpu_vec<uint16_t, 1>{(uint16_t)(p.page_size > 0 && gpu_thread() < at.keys &&
                                                                 c.page(k0 + gpu_thread()) < 0)});
                met = gpu_block_any(met);
#pragma unroll 1
                for (int64_t q0 = 0; q0 < s.seqlen_q; q0 += SIDE)
                    open |= round(sh, at, q0, met, pass);
            }
            if (!gpu_block_any(open))
                break;
        }
    }

    // One tile of queries meets one tile of keys. Is an element of o that was written not settled?
    static GPU_FN bool round(shared &sh, const place &at, int64_t q0, bool met, int pass)
    {
        const gpu_scores &c = at.c;
        const auto &p = c.p;
        const int rows = tiled_within(c.s.seqlen_q - q0, SIDE);
        const int64_t low = c.window(q0).begin, high = c.window(q0 + rows - 1).end;
        const int64_t begin = high > low ? low / BC : 0, end = high > low ? (high + BC - 1) / BC : 1, now = at.k0 / BC;
        if (now < begin || now >= end)
            return false;
        const bool first = now == begin, last = now == end - 1;
        scores(sh, at, q0, rows);
        weigh(sh, at, q0, rows, first, last, pass);
        bool open = false;
#pragma unroll 1
        for (int c0 = 0; c0 < p.d_v; c0 += WIDTH) {
            bool special = met;
            if constexpr (!STAYS) {
                gpu_block_barrier();
                special = tiled_fetch_keys<VT>(sh.v, c, p.v, at.k0, at.keys, c0, true);
                special = gpu_block_any(special);
            }
            gpu_block_barrier(); // P is complete; what O took before is used up
            values(sh, STAYS ? c0 : 0);
            gpu_block_barrier();
            open |= revisit(sh, at, q0, rows, c0, special, first, last, pass);
        }
        gpu_block_barrier();
        return open;
    }

    // S = Q·Kᵀ, to shared memory.
    static GPU_FN void scores(shared &sh, const place &at, int64_t q0, int rows)
    {
        const auto &p = at.c.p;
        typename gpu_tile<typename gpu_select<FMA, gpu_half, E>::type, M>::acc sum[BC / M];
        float part[TALL][BC / TX] = {};
        if constexpr (!FMA)
#pragma unroll
            for (int n = 0; n < BC / M; n++)
                gpu_tile<E, M>::zero(sum[n]);
        add(sh, at, sum, part, p.q, p.k, q0, rows);
        if constexpr (!STAYS)
            if (p.d2 > 0)
                add(sh, at, sum, part, p.q2, p.k2, q0, rows);
        if constexpr (!FMA) {
#pragma unroll
            for (int n = 0; n < BC / M; n++)
                gpu_tile<E, M>::store(sh.x.in.s, gpu_wave_id() * M, n * M, sum[n]);
        } else
#pragma unroll
            for (int i = 0; i < TALL; i++)
#pragma unroll
                for (int j = 0; j < BC / TX; j++)
                    gpu_store<1>(sh.x.in.s, gpu_thread() / TX + DOWN * i, gpu_thread() % TX + TX * j,
                                 gpu_vec<float, 1>{part[i][j]});
        gpu_block_barrier();
    }
    template <class SUM>
    static GPU_FN void add(shared &sh, const place &at, SUM &sum, float (&part)[TALL][BC / TX], const kiln_view &q,
                           const kiln_view &k, int64_t q0, int rows)
    {
        const kiln_sequence &s = at.c.s;
        const bool aligned = gpu_aligned_rows(q, sizeof(E));
#pragma unroll 1
        for (int c0 = 0; c0 < q.size[3]; c0 += DEPTH) {
            gpu_block_barrier(); // the chunk before is used up
            tiled_fetch<false>(sh.x.in.q, gpu_run_rows<E>(q, s.q_batch, at.c.head, s.q_row, s.seqlen_q), q0, rows, c0,
                               (int)q.size[3], aligned, false);
            if constexpr (!STAYS)
                tiled_fetch_keys<false>(sh.k, at.c, k, at.k0, at.keys, c0, false);
            gpu_block_barrier();
            const int kc = STAYS ? c0 : 0;
            if constexpr (!FMA) {
                using unit = gpu_tile<E, M>;
#pragma unroll
                for (int kk = 0; kk < DEPTH; kk += unit::K) {
                    typename unit::a x;
                    unit::load_a(x, sh.x.in.q, gpu_wave_id() * M, kk);
#pragma unroll
                    for (int n = 0; n < BC / M; n++) {
                        typename unit::bk y;
                        unit::load_bk(y, sh.k, n * M, kc + kk);
                        unit::mma(sum[n], x, y);
                    }
                }
            } else
#pragma unroll 2
                for (int kk = 0; kk < DEPTH; kk += 4) {
                    gpu_vec<float, 4> x[TALL], y[BC / TX];
#pragma unroll
                    for (int i = 0; i < TALL; i++)
                        x[i] = gpu_load<4>(sh.x.in.q, gpu_thread() / TX + DOWN * i, kk);
#pragma unroll
                    for (int j = 0; j < BC / TX; j++)
                        y[j] = gpu_load<4>(sh.k, gpu_thread() % TX + TX * j, kc + kk);
#pragma unroll
                    for (int i = 0; i < TALL; i++)
#pragma unroll
                        for (int j = 0; j < BC / TX; j++)
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                part[i][j] = gpu_fma(x[i][e], y[j][e], part[i][j]);
                }
        }
    }

    // My share of my row: S becomes weights, m and l move on in memory.
    static GPU_FN void weigh(shared &sh, const place &at, int64_t q0, int rows, bool first, bool last, int pass)
    {
        const gpu_scores &c = at.c;
        const auto &p = c.p;
        const int row = gpu_thread() / LPR, sub = gpu_thread() % LPR;
        const int64_t i = q0 + row;
        const kiln_key_range seen = row < rows ? c.window(i) : kiln_key_range{0, 0};
        float before = gpu_minus_infinity(), l = 0;
        if (!first && row < rows && sub == 0) { // only this lane reads and writes them
            before = gpu_read<float>(at.a.scores, c.batch, c.head, i, 0);
            l = gpu_read<float>(at.a.scores, c.batch, c.head, i, 1);
        }
        float top = before;
#pragma unroll 1
        for (int n = 0; n < SHARE; n++) {
            const int j = n * LPR + sub;
            const bool in = at.k0 + j >= seen.begin && at.k0 + j < seen.end && gpu_load<1>(sh.gone, 0, j)[0] == 0;
            const float x = in ? c.score(gpu_load<1>(sh.x.in.s, row, j)[0], i, at.k0 + j) : gpu_minus_infinity();
            top = gpu_max(top, x);
            gpu_store<1>(sh.x.in.s, row, j, gpu_vec<float, 1>{x});
        }
        top = gpu_wave_max<LPR>(top);
        const float base = gpu_finite_or_zero(top), alpha = gpu_exp2(before - base);
        const float scale = HALF ? UP : pass == 1 ? 0x1p-40f : 1.f;
        float sum = 0;
        gpu_dropout drop;
#pragma unroll 1
        for (int n = 0; n < SHARE; n++) {
            const int j = n * LPR + sub;
            const float x = gpu_load<1>(sh.x.in.s, row, j)[0];
            float weight = gpu_exp2(x - base);
            sum += weight;
            if (x == gpu_minus_infinity()) { // masked, or a score that is -inf: that one counts, with weight 0
                const bool in = at.k0 + j >= seen.begin && at.k0 + j < seen.end && gpu_load<1>(sh.gone, 0, j)[0] == 0;
                weight = in && c.visible(i, at.k0 + j) ? 0.f : -1.f;
            } else if (p.dropout_threshold < 256 && !drop.keep(c, i, at.k0 + j))
                weight = 0;
            gpu_store<1>(sh.seen, row, j, gpu_vec<uint16_t, 1>{(uint16_t)(weight < 0 ? 0 : weight == 0 ? 2 : 1)});
            gpu_store<1>(sh.p, row, j, gpu_vec<E, 1>{gpu_from_float<E>(weight < 0 ? 0.f : weight * scale)});
        }
        l = gpu_fma(l, alpha, gpu_wave_sum<LPR>(sum));
        if (sub != 0 || row >= rows)
            return;
        gpu_store<1>(sh.row, 0, row, gpu_vec<float, 1>{alpha});
        gpu_write<float>(at.a.scores, c.batch, c.head, i, 0, top);
        gpu_write<float>(at.a.scores, c.batch, c.head, i, 1, l);
        if (!last)
            return;
        const gpu_row_end done(c, base, l, top > gpu_minus_infinity(), 0.f);
        gpu_store<1>(sh.row, 1, row, gpu_vec<float, 1>{done.factor});
        if (pass == 0)
            done.store_lse(c, i);
    }

    // P·V for WIDTH columns, V's from `col` on, to shared memory.
    static GPU_FN void values(shared &sh, int col)
    {
        if constexpr (!FMA) {
            using unit = gpu_tile<E, M>;
            typename unit::acc sum[WIDTH / M];
#pragma unroll
            for (int n = 0; n < WIDTH / M; n++)
                unit::zero(sum[n]);
#pragma unroll
            for (int kk = 0; kk < BC; kk += unit::K) {
                typename unit::a x;
                unit::load_a(x, sh.p, gpu_wave_id() * M, kk);
#pragma unroll
                for (int n = 0; n < WIDTH / M; n++) {
                    typename unit::bn y;
                    if constexpr (VT)
                        unit::load_bk(y, sh.v, col + n * M, kk);
                    else
                        unit::load_bn(y, sh.v, kk, col + n * M);
                    unit::mma(sum[n], x, y);
                }
            }
#pragma unroll
            for (int n = 0; n < WIDTH / M; n++)
                unit::store(sh.x.o, gpu_wave_id() * M, n * M, sum[n]);
        } else {
            const int ty = gpu_thread() / VX, tx = gpu_thread() % VX;
            float sum[VTALL][4] = {};
#pragma unroll 4
            for (int j = 0; j < BC; j++) {
                const gpu_vec<float, 4> v = gpu_load<4>(sh.v, j, col + 4 * tx);
#pragma unroll
                for (int i = 0; i < VTALL; i++) {
                    const float weight = gpu_load<1>(sh.p, ty + VDOWN * i, j)[0];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[i][e] = gpu_fma(weight, v[e], sum[i][e]);
                }
            }
#pragma unroll
            for (int i = 0; i < VTALL; i++)
                gpu_store<4>(sh.x.o, ty + VDOWN * i, 4 * tx,
                             gpu_vec<float, 4>{{sum[i][0], sum[i][1], sum[i][2], sum[i][3]}});
        }
    }

    // O = alpha·O + P·V in memory, or o at the end. The same thread has the same elements in every round.
    static GPU_FN bool revisit(shared &sh, const place &at, int64_t q0, int rows, int c0, bool special, bool first,
                               bool last, int pass)
    {
        const gpu_scores &c = at.c;
        const auto &p = c.p;
        const float limit = gpu_overflow_of(p.o.type), keep = gpu_keep_scale(p);
        const int col = c0 + gpu_thread() % WIDTH;
        bool open = false;
        if (col >= p.d_v)
            return false;
#pragma unroll 1
        for (int r = gpu_thread() / WIDTH; r < rows; r += threads / WIDTH) {
            const int64_t i = q0 + r;
            float sum = gpu_load<1>(sh.x.o, r, col - c0)[0] * (1.f / UP);
            if (special)
                sum += what_shows(sh, at, r, col);
            if (!first) {
                const float old = gpu_read<float>(at.a.part_o, c.batch, c.head, i, col);
                sum = gpu_is_finite(old) ? gpu_fma(old, gpu_load<1>(sh.row, 0, r)[0], sum) : old + sum;
            }
            if (!last) {
                gpu_write<float>(at.a.part_o, c.batch, c.head, i, col, sum);
                continue;
            }
            const int64_t b = c.s.q_batch, row = c.s.q_row + i;
            if (pass > 0 && gpu_is_finite(gpu_read_float(p.o, b, c.head, row, col)))
                continue; // settled before
            float y = gpu_mean(sum, gpu_load<1>(sh.row, 1, r)[0], keep, pass == 1 && !HALF ? 0x1p40f : 1.f);
            if (pass == 1 && gpu_is_finite(sum))
                y = gpu_clamp_mean(p, y);
            open |= !(gpu_abs(y) < limit);
            gpu_write_float(p.o, b, c.head, row, col, y);
        }
        return open;
    }
    // What the non-finite values of this tile make of an element: 0 if it sees none.
    static GPU_FN float what_shows(shared &sh, const place &at, int r, int col)
    {
        float sum = 0;
#pragma unroll 1
        for (int j = 0; j < at.keys; j++) {
            const int seen = gpu_load<1>(sh.seen, r, j)[0];
            if (seen == 0)
                continue;
            const float v = gpu_to_float(gpu_load<1>(naive_key<E>(at.c, at.c.p.v, at.k0 + j), 0, col)[0]);
            if (!gpu_is_finite(v))
                sum += seen == 2 ? __builtin_nanf("") : v;
        }
        return sum;
    }
};
