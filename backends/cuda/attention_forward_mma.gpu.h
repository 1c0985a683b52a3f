// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `mma`, 16-bit types: flash2 with the published layout of m16n8k16 (sm_80 and newer). Against flash2:
//   S and P stay in registers: a tile of S, rounded, is an operand of P·V as it lies, so shared memory carries Q, K and V only;
//   rows of shared memory are permuted instead of padded, and are read by ldmatrix without conflicts;
//   several stages of K and V: a tile has a whole step to arrive, and a step has one block barrier;
//   the reference of a row's weights follows its maximum with a lag of up to 2^8, so O is rarely rescaled.
//
// Two modes as in flash2: plain (aligned rows, o of q's type; attention_forward_mma_plain.gpu.h), and this, the general one (the
// rest of the contract), where what is rare goes through shared memory in rolled loops. Careful passes, for both:
// gpu_careful.gpu.h, with one stage: the other holds their book.
//
// Bytes requested, N a multiple of the tiles, per head: 2·N·d·e (Q, O) + 2·N·d·e·⌈N/BR⌉ (K, V); lse 4·N.
// FLOPs 4·N²·d + 3·N².
#pragma once
#include "attention_forward_mma_wave.gpu.h"

template <class E, int D, int WAVES, int BLOCKS>
struct attention_forward_mma : attention_forward_mma_wave<E, D, 1, WAVES> {
    using wave = attention_forward_mma_wave<E, D, 1, WAVES>;
    using typename wave::args;
    using typename wave::keys;
    using typename wave::place;
    using typename wave::stage;
    using typename wave::state;
    using wave::BC;
    using wave::BR;
    using wave::column_of;
    using wave::HALF;
    using wave::LAG;
    using wave::row_of;
    using wave::ROWS;
    using wave::threads;
    using wave::within;
    static constexpr int blocks = BLOCKS, NS = BC / 8, PART = 32; // PART: columns of the scratch
    using scores = float[1][NS][4];
    using careful = attention_forward_mma<E, D, WAVES, 1>; // one copy of its passes for all

    using notebook = gpu_careful_book<BR, BC, D>;
    union second {
        stage kv;
        notebook careful;
    };
    struct shared {
        gpu_swizzled<E, BR, D> q; // O on its way out
        stage first;
        second other;
        gpu_array<float, 16, PART, 4> scratch[WAVES];
        typename wave::ranges range;
        gpu_array<uint32_t, BR, 2> kept;   // of a tile: keys that dropout keeps
        gpu_array<uint32_t, 1, 2> no_page; // of a tile: keys whose page does not exist
    };

    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const gpu_item work(a.p, item, a.q_tiles);
        const int64_t q0 = (a.q_tiles - 1 - work.tile) * BR; // causal: the heavy ones first
        if (sweep<false>(a, sh, work, q0, 0))
            careful::again(a, *(typename careful::shared *)&sh, work, q0, BR);
    }
    // The careful passes of `most` rows from q0 on, whatever the mode was: BR at a time, in one block's room. Not inlined: what is
    // hardly ever needed must not cost the others registers.
    static GPU_CALL void again(const args &a, shared &room, const gpu_item &work, int64_t q0, int most)
    {
#pragma unroll 1
        for (int64_t at = q0; at < q0 + most; at += BR)
#pragma unroll 1
            for (int pass = 1; pass < 3; pass++) {
                gpu_block_barrier();
                if (!sweep<true>(a, room, work, at, pass, within(q0 + most - at, BR)))
                    break;
            }
    }

    // All keys once, for `most` rows from q0 on. Is something that was written not settled?
    template <bool CAREFUL>
    static GPU_FN bool sweep(const args &a, shared &sh, const gpu_item &work, int64_t q0, int pass, int most = BR)
    {
        const auto &p = a.p;
        const kiln_sequence s = gpu_sequence_of(p, work.batch);
        if (q0 >= s.seqlen_q)
            return false;
        const gpu_scores c(p, s, work.batch, work.head, a.scale_log2);
        const int rows = within(s.seqlen_q - q0, most), w0 = gpu_wave_id() * ROWS;
        const place at = {p,
                          c,
                          q0,
                          rows,
                          !c.plain(),
                          p.page_size > 0,
                          gpu_aligned_rows(p.q, sizeof(E)) && gpu_aligned_rows(p.k, sizeof(E)) &&
                              gpu_aligned_rows(p.v, sizeof(E))};
        const float mult = at.modify ? 1.f : a.scale_log2; // from what S holds to exponents of 2
        // fp16: 2^LAG·2^7 is in range, and so are sums of its values.
        const float shift = HALF ? 7.f : CAREFUL && pass == 2 ? -40.f : 0.f;

        wave::find_ranges(sh.range, c, q0, rows);
        gpu_block_barrier();
        // Tiles that some row of the block sees, and those that all rows of the wave see whole.
        const int low = gpu_load<1>(sh.range, 0, 0)[0], high = gpu_load<1>(sh.range, 1, rows - 1)[0],
                  last = (w0 + ROWS < rows ? w0 + ROWS : rows) - 1;
        const int begin = low / BC, end = high > low ? (high + BC - 1) / BC : begin;
        const int whole_begin = w0 < rows ? (gpu_load<1>(sh.range, 0, last)[0] + BC - 1) / BC : end;
        const int whole_end = gpu_load<1>(sh.range, 1, w0)[0] / BC;
        const gpu_run_rows<E> q(p.q, s.q_batch, work.head, s.q_row, s.seqlen_q);
        const gpu_run_rows<E> k(p.k, at.paged ? 0 : s.k_batch, c.head_k(), at.paged ? 0 : s.k_row,
                                at.paged ? 0 : s.seqlen_k);
        const gpu_run_rows<E> v(p.v, at.paged ? 0 : s.k_batch, c.head_k(), at.paged ? 0 : s.k_row,
                                at.paged ? 0 : s.seqlen_k);

        gpu_row_copy<E, BR, D, threads> copy_q;
        copy_q.issue(sh.q, q, q0, rows, (int)p.d, at.aligned);
        typename wave::template queries<false> mine(sh.q);
        state me;
        if constexpr (CAREFUL)
            gpu_forget<threads>(sh.other.careful);
        if (begin < end)
            fetch(sh.first, at, k, v, begin);
        gpu_copy_commit();
#pragma unroll 1
        for (int step = begin; step < end; step++) {
            stage &now = CAREFUL || (step - begin) % 2 == 0 ? sh.first : sh.other.kv;
            gpu_copy_wait_groups<0>();
            gpu_block_barrier(); // this stage is there, and nobody needs the other one
            if (!CAREFUL && step + 1 < end)
                fetch((step - begin) % 2 == 0 ? sh.other.kv : sh.first, at, k, v, step + 1);
            gpu_copy_commit();

            scores x;
            wave::template products<0>(mine, now.k, x, [](auto) {});
            const bool edge = step < whole_begin || step >= whole_end;
            bool rewritten = false;
            if (at.modify || at.paged)
                rewrite_scores(sh, at, x, step), rewritten = true;
            if (edge && !rewritten)
                wave::hide(sh.range, x, step * BC);
            follow(me, x, mult, shift);
            weigh(me, x, mult, CAREFUL && pass == 2);
            if (CAREFUL || p.dropout_threshold < 256)
                rewrite_weights<CAREFUL>(sh, at, x, step);
            if constexpr (CAREFUL)
                gpu_take_out<threads>(sh.other.careful, reader{now.v}, [](bool found) { return gpu_block_any(found); });
            wave::template accumulate<0>(now.v, me, x, [](auto) {});
            if constexpr (CAREFUL) {
                gpu_block_barrier();
                if (step + 1 < end)
                    fetch(sh.first, at, k, v, step + 1);
                gpu_copy_commit(); // or the next step's wait would not know of it
            }
        }
        gpu_copy_wait_groups<0>(); // Q of a row without keys
        return gpu_block_any(finish<CAREFUL>(sh, at, me, shift, pass));
    }

    static GPU_FN void fetch(stage &to, const place &at, const gpu_run_rows<E> &k, const gpu_run_rows<E> &v, int step)
    {
        const int64_t k0 = (int64_t)step * BC;
        const int n = within(at.c.s.seqlen_k - k0, BC);
        gpu_row_copy<E, BC, D, threads> copy;
        if (at.paged) {
            copy.issue(to.k, gpu_page_rows<E>(at.c, at.p.k), k0, n, (int)at.p.d, at.aligned);
            copy.issue(to.v, gpu_page_rows<E>(at.c, at.p.v), k0, n, (int)at.p.d_v, at.aligned);
            return;
        }
        copy.issue(to.k, k, k0, n, (int)at.p.d, at.aligned);
        copy.issue(to.v, v, k0, n, (int)at.p.d_v, at.aligned);
    }

    // Moves the references of rows whose maximum has left them behind. Every row decides for itself: its bits do not depend on
    // its neighbours.
    static GPU_FN void follow(state &me, const scores &x, float mult, float shift)
    {
        float top[1][2]; // of my share: the row's only where some row needs it
        wave::highest(x, top);
        const float lag = LAG / mult;
        if (!gpu_wave_any(top[0][0] > me.top[0][0] + lag || top[0][1] > me.top[0][1] + lag))
            return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[0][h] = gpu_wave_max<4>(top[0][h]);
            if (!(top[0][h] > me.top[0][h] + lag))
                top[0][h] = me.top[0][h];
            const float base = gpu_fma(top[0][h], mult, -shift);
            const float alpha = base == me.base[0][h] ? 1.f : gpu_exp2(me.base[0][h] - base);
            me.top[0][h] = top[0][h], me.base[0][h] = base;
            me.rescale(0, h, alpha);
        }
    }

    // Scores become weights, and join the sums. Apart: the product is rounded before the difference, which then is no more
    // than 2^LAG whatever the scores.
    static GPU_FN void weigh(state &me, scores &x, float mult, bool apart)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float base = gpu_finite_or_zero(me.base[0][h]);
            float sum = 0;
#pragma unroll
            for (int n = 0; n < NS; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &y = x[0][n][2 * h + e];
                    y = gpu_exp2(apart ? gpu_product(y, mult) - base : gpu_fma(y, mult, -base));
                    sum += y;
                }
            me.add(0, h, sum);
        }
    }

    // ---- my wave's rows, by rolled loops ----
    static GPU_FN bool is_lost(shared &sh, int j)
    {
        return gpu_load<1>(sh.no_page, 0, j / 32)[0] >> (j % 32) & 1;
    }
    static GPU_FN void find_pages(shared &sh, const place &at, int step)
    { // ends with a block barrier
        if (gpu_thread() < 2) {
            uint32_t bits = 0;
#pragma unroll 1
            for (int j = 0; j < 32; j++) {
                const int64_t key = (int64_t)step * BC + gpu_thread() * 32 + j;
                if (key < at.c.s.seqlen_k && at.c.page(key) < 0)
                    bits |= 1u << j;
            }
            gpu_store<1>(sh.no_page, 0, gpu_thread(), gpu_vec<uint32_t, 1>{bits});
        }
        gpu_block_barrier();
    }
    static GPU_FN void rewrite_scores(shared &sh, const place &at, scores &x, int step)
    {
        auto &s = sh.scratch[gpu_wave_id()];
        const int64_t k0 = (int64_t)step * BC;
        const int w0 = gpu_wave_id() * ROWS;
        if (at.paged)
            find_pages(sh, at, step);
#pragma unroll
        for (int part = 0; part < BC / PART; part++) {
            exchange<true>(s, x, part);
            gpu_wave_barrier();
#pragma unroll 1
            for (int u = gpu_lane(); u < ROWS * PART; u += 32) {
                const int row = u / PART, j = PART * part + u % PART;
                float y = gpu_load<1>(s, row, u % PART)[0];
                if (k0 + j < gpu_load<1>(sh.range, 0, w0 + row)[0] || k0 + j >= gpu_load<1>(sh.range, 1, w0 + row)[0] ||
                    (at.paged && is_lost(sh, j)))
                    y = gpu_minus_infinity();
                else if (at.modify)
                    y = at.c.score(y, at.q0 + w0 + row, k0 + j);
                gpu_store<1>(s, row, u % PART, gpu_vec<float, 1>{y});
            }
            gpu_wave_barrier();
            exchange<false>(s, x, part);
            gpu_wave_barrier();
        }
    }
    template <bool OUT, class A> static GPU_FN void exchange(A &s, scores &x, int part)
    { // registers and the scratch
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float &lo = x[0][PART / 8 * part + n][2 * h], &hi = x[0][PART / 8 * part + n][2 * h + 1];
                if constexpr (OUT)
                    gpu_store<2>(s, gpu_lane() / 4 + 8 * h, column_of(n, 0), gpu_vec<float, 2>{{lo, hi}});
                else {
                    const auto y = gpu_load<2>(s, gpu_lane() / 4 + 8 * h, column_of(n, 0));
                    lo = y[0], hi = y[1];
                }
            }
    }

    // Dropout; and in a careful pass, which keys weigh and which are visible.
    template <bool CAREFUL> static GPU_FN void rewrite_weights(shared &sh, const place &at, scores &x, int step)
    {
        const int w0 = gpu_wave_id() * ROWS;
        const int64_t k0 = (int64_t)step * BC;
        const bool drops = at.p.dropout_threshold < 256;
        auto &seen = sh.other.careful.seen;
        if (drops) {
#pragma unroll 1
            for (int u = gpu_lane(); u < 2 * ROWS; u += 32) { // half a row each
                const int row = w0 + u / 2, half = u % 2;
                uint32_t bits = 0;
                gpu_dropout drop;
#pragma unroll 1
                for (int j = 0; j < 32; j++)
                    if (drop.keep(at.c, at.q0 + row, k0 + 32 * half + j))
                        bits |= 1u << j;
                gpu_store<1>(sh.kept, row, half, gpu_vec<uint32_t, 1>{bits});
            }
            gpu_wave_barrier();
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row_of(0, h);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t weighs = 0;
                const uint32_t kept = drops ? gpu_load<1>(sh.kept, row, half)[0] : ~0u;
#pragma unroll
                for (int n = 0; n < NS / 2; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &y = x[0][NS / 2 * half + n][2 * h + e];
                        if (!(kept >> column_of(n, e) & 1))
                            y = 0;
                        if (!(y <= 0))
                            weighs |= 1u << column_of(n, e); // NaN does
                    }
                if constexpr (CAREFUL) {
                    weighs = gpu_or_quad(weighs);
                    if (gpu_lane() % 4 == 0)
                        gpu_store<1>(seen, row, half, gpu_vec<uint32_t, 1>{weighs});
                }
            }
        }
        if constexpr (!CAREFUL)
            return;
        gpu_wave_barrier();
#pragma unroll 1
        for (int u = gpu_lane(); u < 2 * ROWS; u += 32) {
            const int row = w0 + u / 2, half = u % 2;
            uint32_t bits = 0;
#pragma unroll 1
            for (int j = 32 * half; j < 32 * half + 32; j++) {
                bool visible = k0 + j >= gpu_load<1>(sh.range, 0, row)[0] && k0 + j < gpu_load<1>(sh.range, 1, row)[0];
                visible = visible && at.c.visible(at.q0 + row, k0 + j) && !(at.paged && is_lost(sh, j));
                bits |= (uint32_t)visible << (j % 32);
            }
            gpu_store<1>(seen, row, 2 + half, gpu_vec<uint32_t, 1>{bits});
        }
        gpu_wave_barrier();
    }
    static GPU_FN uint32_t gpu_or_quad(uint32_t x)
    {
        x |= __builtin_bit_cast(uint32_t, gpu_shfl_xor<1>(__builtin_bit_cast(float, x)));
        return x | __builtin_bit_cast(uint32_t, gpu_shfl_xor<2>(__builtin_bit_cast(float, x)));
    }

    struct reader { // of a tile of V
        keys &v;
        GPU_FN float read(int key, int column) const
        {
            return gpu_to_float(gpu_load<1>(v, key, column)[0]);
        }
        GPU_FN void clear(int key, int column) const
        {
            gpu_store<1>(v, key, column, gpu_vec<E, 1>{});
        }
    };

    // ---- the end: lse, the division, O to memory. Is an element of it not settled? ----
    template <bool CAREFUL> static GPU_FN bool finish(shared &sh, const place &at, state &me, float shift, int pass)
    {
        // A row whose own weights are NaN is NaN, and one without a weight 0, whatever they met in V.
        const bool open = wave::divide(at, me, shift, pass, CAREFUL, [&](int row, float factor) {
            if constexpr (CAREFUL)
                if (gpu_lane() % 4 == 0)
                    gpu_store<1>(sh.other.careful.seen, row, 0,
                                 gpu_vec<uint32_t, 1>{factor != factor ? 1u
                                                      : factor == 0    ? 2u
                                                                       : 0u});
        });
        if (CAREFUL || at.p.o.type == KILN_FLOAT32 || !gpu_aligned_rows(at.p.o, sizeof(E))) {
            const bool elements = store_elements<CAREFUL>(sh, at, me, gpu_overflow_of(at.p.o.type), pass);
            return CAREFUL ? elements : open || elements;
        }
        wave::store_fast(sh.q, at, me);
        return open;
    }
    template <bool CAREFUL>
    static GPU_FN bool store_elements(shared &sh, const place &at, const state &me, float limit, int pass)
    {
        auto &s = sh.scratch[gpu_wave_id()];
        const int w0 = gpu_wave_id() * ROWS;
        bool open = false;
        gpu_wave_barrier();
        constexpr int CH = PART;
#pragma unroll
        for (int c0 = 0; c0 < D; c0 += CH) {
#pragma unroll
            for (int n = 0; n < CH / 8; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    gpu_store<2>(s, gpu_lane() / 4 + 8 * h, column_of(n, 0),
                                 gpu_vec<float, 2>{{me.o[0][c0 / 8 + n][2 * h], me.o[0][c0 / 8 + n][2 * h + 1]}});
            gpu_wave_barrier();
#pragma unroll 1
            for (int u = gpu_lane(); u < ROWS * CH; u += 32) {
                const int row = u / CH, col = c0 + u % CH;
                if (w0 + row >= at.rows || col >= at.p.d_v)
                    continue;
                uint32_t note = 0;
                if constexpr (CAREFUL) {
                    const uint32_t whole = gpu_load<1>(sh.other.careful.seen, w0 + row, 0)[0];
                    note = whole ? (whole == 1 ? 3u : 0u)
                                 : gpu_load<1>(sh.other.careful.notes, w0 + row, col / 16)[0] >> (col % 16 * 2) & 3;
                }
                open |=
                    gpu_store_unsettled(at.c, at.q0 + w0 + row, col, gpu_load<1>(s, row, u % CH)[0], limit, note, pass);
            }
            gpu_wave_barrier();
        }
        return open;
    }
};
