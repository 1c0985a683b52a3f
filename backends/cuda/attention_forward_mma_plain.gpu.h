// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `mma`, plain mode: aligned rows, o of q's type, a window and nothing else that changes scores.
// Against the general mode: 32 queries a wave where the accumulators of D columns leave room for them, so what ldmatrix reads of K
// and V serves twice as many; and the products run under the exponentials:
//   D = 64: a wave works by units of 32 keys. Q·Kᵀ of one unit, the weights and P·V of the unit before it, and the maxima of the
//   new scores have no order among them and make one stretch of code without a branch. Q stays in registers, and its room is the
//   third stage of K and V;
//   larger D: O leaves no room for scores of two units. Weights of 16 keys are found under P·V of the 16 before.
// A wave leaves out keys that none of its rows sees. It still copies its part of them, and waits at the barriers.
// Bytes and FLOPs: attention_forward_mma.gpu.h.
#pragma once
#include "attention_forward_mma.gpu.h"

template <class E, int D, int MT, int WAVES, int BLOCKS>
struct attention_forward_mma_plain : attention_forward_mma_wave<E, D, MT, WAVES> {
    using wave = attention_forward_mma_wave<E, D, MT, WAVES>;
    using typename wave::args;
    using typename wave::place;
    using typename wave::stage;
    using typename wave::state;
    using wave::BC;
    using wave::BR;
    using wave::ROWS;
    static constexpr int blocks = BLOCKS;
    static constexpr bool AHEAD = D <= 64; // scores are a unit ahead of the weights
    static constexpr int U = AHEAD ? 32 : BC, N = U / 8, SLOTS = AHEAD ? 3 : 2;
    static_assert(BC == U || BC == 2 * U, "a stage is one unit or two");
    static constexpr int WEIGHTS = MT * N * 4; // of a unit, in a thread
    using scores = float[MT][N][4];
    using careful = attention_forward_mma<E, D, WAVES, 1>;
    using copy_keys = gpu_row_copy<E, BC, D, wave::threads>;

    struct apart {
        gpu_swizzled<E, BR, D> q;
        stage ring[SLOTS];
    };
    struct shared {
        union {
            gpu_swizzled<E, BR, D> q; // and O on its way out
            apart both;
            stage over[SLOTS]; // Q's room is the first
            typename careful::shared careful_room;
        };
        typename wave::ranges range;
        GPU_FN stage &slot(int i)
        {
            return AHEAD ? over[i] : both.ring[i];
        }
    };
    static_assert(!AHEAD || sizeof(gpu_swizzled<E, BR, D>) <= sizeof(stage), "Q has the room of one stage");

    struct weighing {       // of my rows
        float from[MT][2];  // the reference after scaling, and finite
        float limit[MT][2]; // scores above it need another reference; -inf: there was none
        float sum[MT][2];   // of weights that have not joined the state's sums yet
        float mult, shift, lag;
        GPU_FN explicit weighing(float scale_log2)
            : mult(scale_log2), shift(wave::HALF ? 7.f : 0.f), lag(wave::LAG / scale_log2)
        { // fp16: 2^LAG·2^7 is in range, and so are sums of its values
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    limit[t][h] = gpu_minus_infinity(), from[t][h] = sum[t][h] = 0;
        }
        // Weight number J of a unit, by columns first.
        template <int J> GPU_FN void weigh(scores &x)
        {
            constexpr int n = J / (MT * 4), t = J % (MT * 4) / 4, e = J % 4;
            float &y = x[t][n][e];
            y = gpu_exp2(gpu_fma(y, mult, -from[t][e / 2]));
            sum[t][e / 2] += y;
        }
        template <int FIRST, int COUNT> GPU_FN void weigh_some(scores &x)
        {
            gpu_unroll<COUNT>([&](auto j) {
                if constexpr (FIRST + j < WEIGHTS)
                    weigh<FIRST + j>(x);
            });
        }
    };
    struct units {                  // of keys, of my wave
        int at, end;                // that some row sees
        int whole_begin, whole_end; // of which no key is hidden from any row
    };

    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const gpu_item work(a.p, item, a.q_tiles);
        const int64_t q0 = (a.q_tiles - 1 - work.tile) * BR; // causal: the heavy ones first
        if (sweep(a, sh, work, q0))
            careful::again(a, sh.careful_room, work, q0, BR);
    }

    // All keys once. Is something that was written not settled?
    static GPU_FN bool sweep(const args &a, shared &sh, const gpu_item &work, int64_t q0)
    {
        const auto &p = a.p;
        const kiln_sequence s = gpu_sequence_of(p, work.batch);
        if (q0 >= s.seqlen_q)
            return false;
        const gpu_scores c(p, s, work.batch, work.head, a.scale_log2);
        const int rows = wave::within(s.seqlen_q - q0, BR), w0 = gpu_wave_id() * ROWS;
        const place at = {p, c, q0, rows, false, false, true};
        // What comes first is on its way before anything else is found out: Q, and the first stage that a row of the block sees.
        gpu_row_copy<E, BR, D, wave::threads> copy_q;
        copy_q.issue(sh.q, gpu_run_rows<E>(p.q, s.q_batch, work.head, s.q_row, s.seqlen_q), q0, rows, (int)p.d, true);
        const int begin = (int)(c.window(q0).begin / BC);
        const int64_t first = (int64_t)begin * BC;
        gpu_rows<const E> k = run_of(at, p.k).from(first + copy_keys::row(0)), // mine of the stage that is fetched next
            v = run_of(at, p.v).from(first + copy_keys::row(0));
        int left = wave::within(s.seqlen_k - first, 0x7fffffff); // keys from that stage on
        const auto fetch = [&](stage &to) {
            copy_keys::issue_near(to.k, k, left, (int)p.d);
            copy_keys::issue_near(to.v, v, left, (int)p.d_v);
            k = k.from(BC), v = v.from(BC), left = left > BC ? left - BC : 0;
        };
        int step = begin, slot = SLOTS - 2;
        fetch(sh.slot(slot));
        gpu_copy_commit();

        wave::find_ranges(sh.range, c, q0, rows);
        gpu_block_barrier();
        const int high = gpu_load<1>(sh.range, 1, rows - 1)[0], last = (w0 + ROWS < rows ? w0 + ROWS : rows) - 1;
        const int end = high > first ? (high + BC - 1) / BC : begin; // of the stages
        units mine = {begin * (BC / U), 0, 0, 0};
        if (w0 < rows && begin < end)
            mine.end = (gpu_load<1>(sh.range, 1, last)[0] + U - 1) / U,
            mine.whole_begin = (gpu_load<1>(sh.range, 0, last)[0] + U - 1) / U,
            mine.whole_end = gpu_load<1>(sh.range, 1, w0)[0] / U;
        // Two stages are on their way, or one of them in use. AHEAD: of a third one V is.
        if (step + 1 < end)
            fetch(sh.slot(slot + 1));
        gpu_copy_commit();
        const auto advance = [&]() { // to the next stage
            gpu_copy_wait_groups<0>();
            // It is there, and nobody needs the one before it (AHEAD: the one before that).
            gpu_block_barrier_apart<wave::threads>();
            const int next = slot == SLOTS - 1 ? 0 : slot + 1;
            if (step + 2 < end)
                fetch(sh.slot(next == SLOTS - 1 ? 0 : next + 1));
            gpu_copy_commit();
            slot = next, step++;
        };

        state me;
        weighing w(a.scale_log2);
        gpu_copy_wait_groups<1>();
        gpu_block_barrier();
        typename wave::template queries<AHEAD> q(sh.q);
        if (mine.at < mine.end) {
            if constexpr (AHEAD) {
                scores x, y;
                wave::template products<0>(q, sh.slot(slot).k, x, [](auto) {});
                settle(sh, me, w, x, mine);
#pragma unroll 1
                for (;;) { // the scores of unit mine.at, a stage's first, are in x
                    stage &now = sh.slot(slot);
                    if (mine.at + 1 >= mine.end) {
                        finish_unit<0>(now, me, w, x);
                        break;
                    }
                    one_unit<U, 0>(q, now, now, me, w, y, x, mine);
                    settle(sh, me, w, y, mine);
                    if (mine.at + 1 >= mine.end) {
                        finish_unit<U>(now, me, w, y);
                        break;
                    }
                    advance();
                    one_unit<0, U>(q, sh.slot(slot), now, me, w, x, y, mine);
                    join(me, w);
                    settle(sh, me, w, x, mine);
                }
            } else {
                scores x;
#pragma unroll 1
                for (;;) {
                    wave::template products<0>(q, sh.slot(slot).k, x, [](auto) {});
                    settle(sh, me, w, x, mine);
                    finish_unit<0>(sh.slot(slot), me, w, x);
                    if (++mine.at >= mine.end)
                        break;
                    join(me, w);
                    advance();
                }
            }
            join(me, w);
        }
#pragma unroll 1
        while (step + 1 < end)
            advance();
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                me.top[t][h] = w.limit[t][h],
                me.base[t][h] = w.limit[t][h] > gpu_minus_infinity() ? w.from[t][h] : gpu_minus_infinity();
        const bool open = wave::divide(at, me, w.shift, 0, false, [](int, float) {});
        wave::store_fast(sh.q, at, me);
        return gpu_block_any(open);
    }
    static GPU_FN gpu_rows<const E> run_of(const place &at, const kiln_view &view)
    {
        const kiln_sequence &s = at.c.s;
        return gpu_run_rows<E>(view, s.k_batch, at.c.head_k(), s.k_row, s.seqlen_k);
    }

    // The scores y of the next unit, keys NEXT of `ks`; the weights of this one, x, and what they add to O, keys THIS of `vs`.
    template <int NEXT, int THIS>
    static GPU_FN void one_unit(typename wave::template queries<AHEAD> &q, stage &ks, stage &vs, state &me, weighing &w,
                                scores &y, scores &x, units &mine)
    {
        // Three quarters of the weights under Q·Kᵀ, the others under P·V of the first 16 keys.
        constexpr int GROUPS = D / 16 * (N / 2), E1 = (WEIGHTS * 3 / 4 + GROUPS - 1) / GROUPS, DONE = E1 * GROUPS,
                      PAIRS = D / 16, E2 = (WEIGHTS - DONE + PAIRS - 1) / PAIRS;
        static_assert(DONE >= WEIGHTS / 2 && DONE <= WEIGHTS, "the weights of the first 16 keys are there");
        wave::template products<NEXT>(q, ks.k, y, [&](auto i) { w.template weigh_some<i * E1, E1>(x); });
        wave::template accumulate<THIS>(vs.v, me, x, [&](auto i) {
            if constexpr (i < PAIRS)
                w.template weigh_some<DONE + i * E2, E2>(x);
        });
        mine.at++;
    }
    // The weights of this unit, and what they add to O.
    template <int THIS> static GPU_FN void finish_unit(stage &vs, state &me, weighing &w, scores &x)
    {
        constexpr int PAIRS = D / 16, PART = MT * 8, E1 = (PART + PAIRS - 1) / PAIRS; // PART: weights of 16 keys
        w.template weigh_some<0, PART>(x);
        wave::template accumulate<THIS>(vs.v, me, x, [&](auto i) {
            constexpr int kk = i / PAIRS, n = i % PAIRS, from = n * E1, count = from + E1 < PART ? E1 : PART - from;
            if constexpr (count > 0)
                w.template weigh_some<(kk + 1) * PART + from, count>(x);
        });
    }
    static GPU_FN void join(state &me, weighing &w)
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                me.add(t, h, w.sum[t][h]), w.sum[t][h] = 0;
    }

    // New scores, of unit mine.at: what the window hides of them, and the references of rows whose maximum has left them behind.
    // Every row decides for itself: its bits do not depend on its neighbours.
    static GPU_FN void settle(shared &sh, state &me, weighing &w, scores &x, const units &mine)
    {
        float most[MT][2];      // my share: the row's only where some row needs it
        wave::highest(x, most); // also at the edges: ahead of the branch, so that it runs beside the products
        if (mine.at < mine.whole_begin || mine.at >= mine.whole_end) {
            wave::hide(sh.range, x, mine.at * U);
            wave::highest(x, most);
        }
        bool any = false;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                any |= most[t][h] > w.limit[t][h];
        if (!gpu_wave_any(any))
            return;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float top = gpu_wave_max<4>(most[t][h]);
                float alpha = 1;
                if (top > w.limit[t][h]) {
                    const float from = gpu_finite_or_zero(gpu_fma(top, w.mult, -w.shift));
                    alpha = w.limit[t][h] > gpu_minus_infinity() ? gpu_exp2(w.from[t][h] - from) : 0.f;
                    w.limit[t][h] = top + w.lag, w.from[t][h] = from;
                }
                me.rescale(t, h, alpha), w.sum[t][h] *= alpha;
            }
    }
};
