// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `mfma`, 16-bit types, for CDNA: flash2 with the published layout of MFMA. Against flash2:
//   Sᵀ = K·Qᵀ: a lane has one query, and its registers run over keys, so that maximum, sum and rescaling are its own; rounded
//   to 16 bits the registers are the B operand of Oᵀ = Vᵀ·Pᵀ as they lie: S and P never leave them;
//   Q stays in registers, shared memory carries K and V only: swizzled, V transposed, both read by 16 bytes without conflicts;
//   the scores of the next tile are computed while the weights of this one are: matrix unit and vector unit work at once;
//   the reference of a row's weights follows its maximum with a lag of up to 2^8, and only when a tile's weights add up to more
//   is the maximum looked for at all, by the lanes of a row together: O is rarely rescaled;
//   tiles are loaded through buffer descriptors, whose bounds the hardware keeps: no comparisons.
//
// A wave has M queries, a lane M / 64 of the keys of one: 4·(lane / M) + (256 / M)·i + 0...3. Two modes as in flash2: plain
// (aligned rows, o of q's type), and general (the rest of the contract), where what is rare goes through shared memory in rolled
// loops. Careful passes: gpu_careful.gpu.h.
//
// M 32: the least traffic of shared memory for a product. M 16: half the products where a wave has 16 queries or fewer; waves
// without queries only help to load.
//
// STAGES 2: K and V twice, a barrier a step. STAGES 1: once, and two barriers; the next tile waits in registers.
//
// Bytes requested, N a multiple of the tiles, per head: 2·N·d·e (Q, O) + 2·N·d·e·⌈N/BR⌉ (K, V); lse 4·N.
// FLOPs 4·N²·d + 3·N².
#pragma once
#include "../gpu/gpu_careful.gpu.h"
#include "../gpu/gpu_mfma.h"

// V in shared memory: [column][key], keys in the order of a B operand that was made of scores.
template <class E, int D, int BC, class MFMA> struct mfma_columns : gpu_swizzled<E, D, BC> {
    GPU_FN E *at(int column, int key)
    {
        return gpu_swizzled<E, D, BC>::at(column, MFMA::place(key));
    }
};
template <int N, class E, int D, int BC, class MFMA>
GPU_FN void gpu_store(mfma_columns<E, D, BC, MFMA> &m, int column, int key, const gpu_vec<E, N> &v GPU_AT)
{
    static_assert(N <= 4, "four keys stay together");
    gpu_store<N>((gpu_swizzled<E, D, BC> &)m, column, MFMA::place(key), v GPU_LINE);
}

// A tile of K on its way through registers.
template <class E, int BC, int D, int THREADS> struct mfma_copy_k {
    static constexpr int ACROSS = D / 8, DOWN = THREADS / ACROSS, STEPS = BC / DOWN;
    static_assert(STEPS * DOWN == BC, "pieces share out evenly");
    const int thread;
    gpu_packed held[STEPS];
    GPU_FN mfma_copy_k(int thread_) : thread(thread_)
    {
    }
    GPU_FN void issue(const gpu_bounded<const E> &from)
    {
        gpu_offset at = from.place(thread / ACROSS, thread % ACROSS * 8);
        gpu_keep(at.offset); // or every step's place has a register
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            held[s] = gpu_load_bounded<8>(from, at, s * DOWN);
    }
    template <class A> GPU_FN void land(A &to)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            gpu_store<8>(to, thread / ACROSS + s * DOWN, thread % ACROSS * 8,
                         __builtin_bit_cast(gpu_vec<E, 8>, held[s]));
    }
};
// The same for V, which is transposed: a piece is four keys of two columns. The lanes of a phase of stores write both halves of
// their 16 bytes, and alternate between even and odd columns: all banks once.
template <class E, int BC, int D, int THREADS, class MFMA> struct mfma_copy_v {
    static constexpr int PAIRS = D / 2, ACROSS = 32, G = MFMA::GROUPS;
    static constexpr int WIDE = PAIRS / ACROSS, DOWN = THREADS / 2 / ACROSS, TALL = BC / 8 / DOWN;
    static_assert(WIDE * ACROSS == PAIRS && TALL * DOWN * 8 == BC, "pieces share out evenly");
    const int thread;
    gpu_vec<uint32_t, 1> held[TALL][WIDE][4];
    GPU_FN mfma_copy_v(int thread_) : thread(thread_)
    {
    }
    GPU_FN int pair() const
    {
        return thread / 2 % ACROSS;
    }
    GPU_FN int key(int s) const
    {
        const int u = thread / 2 / ACROSS + s * DOWN;
        return 4 * (u / G * 2 * G + thread % 2 * G + u % G);
    }
    GPU_FN void issue(const gpu_bounded<const E> &from)
    {
#pragma unroll
        for (int x = 0; x < WIDE; x++) {
            gpu_offset at = from.place(key(0), 2 * (pair() + x * ACROSS));
            gpu_keep(at.offset);
#pragma unroll
            for (int s = 0; s < TALL; s++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    held[s][x][e] = gpu_load_bounded<2>(from, at, key_step(s) + e);
        }
    }
    // key(s) - key(0)
    static GPU_FN constexpr int key_step(int s)
    {
        static_assert(TALL == 1 || DOWN % G == 0, "the same in all threads");
        return 8 * DOWN * s;
    }
    template <class A> GPU_FN void land(A &to)
    {
        const bool odd = pair() / 4 % 2;
#pragma unroll
        for (int s = 0; s < TALL; s++)
#pragma unroll
            for (int x = 0; x < WIDE; x++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const bool upper = odd != (i == 1);
                    const auto &four = held[s][x];
                    const gpu_vec<uint32_t, 2> keys = {
                        {gpu_pick(four[0][0], four[1][0], upper), gpu_pick(four[2][0], four[3][0], upper)}};
                    gpu_store<4>(to, 2 * (pair() + x * ACROSS) + upper, key(s),
                                 __builtin_bit_cast(gpu_vec<E, 4>, keys));
                }
    }
};

// Shared memory.
struct mfma_nothing {
};
template <class E, int M, int D, int BC, int STAGES> struct mfma_tiles {
    gpu_swizzled<E, BC, D> k[STAGES];
    mfma_columns<E, D, BC, gpu_mfma<E, M>> v[STAGES];
};
template <class E, int M, int D, int BC, int WAVES, int STAGES, bool GENERAL, bool CAREFUL>
struct mfma_room : mfma_tiles<E, M, D, BC, STAGES> {
};
template <class E, int M, int D, int BC, int WAVES, int STAGES, bool CAREFUL>
struct mfma_room<E, M, D, BC, WAVES, STAGES, true, CAREFUL> : mfma_tiles<E, M, D, BC, STAGES> {
    // A lane's own numbers: registers that a loop can index.
    gpu_array<float, gpu_mfma<E, M>::n / (CAREFUL ? 2 : 1), WAVES * GPU_WAVE> slots;
    gpu_array<uint32_t, 1, WAVES> votes;
    typename gpu_select<CAREFUL, gpu_careful_book<M * WAVES, BC, D>, mfma_nothing>::type book;
};

template <class E, int M, int D, int BC_, int WAVES, int BLOCKS, int STAGES, bool GENERAL, bool CAREFUL = false>
struct attention_forward_mfma {
    using args = gpu_attention_args;
    using mfma = gpu_mfma<E, M>;
    using acc = typename mfma::acc;
    static constexpr int BC = BC_, ROWS = M, BR = WAVES * ROWS, threads = WAVES * GPU_WAVE, blocks = BLOCKS,
                         tile_q = BR, tile_k = BC;
    static constexpr int NT = BC / M, ND = D / M, DEPTH = mfma::K, R = mfma::n;
    static constexpr int SLOTS = R / (CAREFUL ? 2 : 1); // numbers of a lane that go through shared memory at a time
    // A step loads its own tiles: careful passes, and where the registers of two steps are too many.
    static constexpr bool SIMPLE = CAREFUL || (GENERAL && M == 32 && D > 128);
    static constexpr bool WOVEN = !GENERAL && mfma::fast;
    static constexpr bool HALF = __is_same(E, gpu_half);
    static constexpr float LAG = 8.f;
    using careful = attention_forward_mfma<E, M, D, BC, WAVES, 1, 1, true, true>;

    using tile_of_k = gpu_swizzled<E, BC, D>;
    using tile_of_v = mfma_columns<E, D, BC, mfma>;
    using room = mfma_room<E, M, D, BC, WAVES, STAGES, GENERAL, CAREFUL>;
    union shared { // what careful passes need lies where the tiles were
        room now;
        typename careful::room again;
    };

    struct place { // of one work item
        const kiln_attention_problem &p;
        const gpu_scores &c;
        int64_t q0;
        int rows, mine;  // of the block; my row in it
        int first, past; // keys that my row sees
        bool modify, paged, aligned;
        int thread;
        GPU_FN int column() const
        {
            return thread % M;
        }
        GPU_FN int group() const
        {
            return thread % GPU_WAVE / M;
        }
    };
    struct state { // of my row; of o and l my lane's share
        acc o[ND];
        float top, base; // the reference before and after scaling
        float l, lost;   // the sum, and what rounding has lost of it
        float most;      // that the weights of a tile may add up to; -1 before there is a reference
    };
    using scores = acc[NT];

    static GPU_FN int within(int64_t x, int most)
    {
        return x < 0 ? 0 : x > most ? most : (int)x;
    }
    static GPU_FN int key_of(const place &at, int n, int r)
    {
        return M * n + mfma::row(r) + 4 * at.group();
    }
    static GPU_FN int column_of(const place &at, int u, int r)
    {
        return M * u + mfma::row(r) + 4 * at.group();
    }

    static GPU_FN void run(const args &given, shared &sh, int64_t item)
    {
        const args &a = gpu_reload(given); // or it is kept from item to item
        const gpu_item work(a.p, item, a.q_tiles);
        const int64_t q0 = (a.q_tiles - 1 - work.tile) * BR; // causal: the heavy ones first
        if (!sweep(a, sh.now, work, q0, 0))
            return;
#pragma unroll 1
        for (int pass = 1; pass < 3; pass++) {
            gpu_block_barrier();
            if (!careful::sweep(gpu_reload(a), sh.again, work, q0, pass))
                break;
        }
    }

    // Whether it holds for any thread; a block barrier. (gpu_block_any has shared memory of its own, and two blocks leave none.)
    template <class VOTES> static GPU_FN bool any_of(VOTES &votes, bool x)
    {
        x = gpu_wave_any(x);
        if (gpu_lane() == 0)
            gpu_store<1>(votes, 0, gpu_wave_id(), gpu_vec<uint32_t, 1>{(uint32_t)x});
        gpu_block_barrier();
        uint32_t any = 0;
#pragma unroll
        for (int w = 0; w < WAVES; w++)
            any |= gpu_load<1>(votes, 0, w)[0];
        gpu_block_barrier();
        return any;
    }

    // ---- K and V ----
    using copy_k = typename gpu_select<GENERAL, gpu_row_copy<E, BC, D, threads>, mfma_copy_k<E, BC, D, threads>>::type;
    using copy_v =
        typename gpu_select<GENERAL, gpu_row_copy<E, BC, D, threads, true>, mfma_copy_v<E, BC, D, threads, mfma>>::type;
    template <class COPY> static GPU_FN COPY copy_of(int thread)
    {
        if constexpr (GENERAL)
            return COPY();
        else
            return COPY(thread);
    }
    // Starts the load of a tile: keys from `limit` on are zeros.
    template <class COPY, class TO>
    static GPU_FN void issue(COPY &copy, TO &to, const place &at, const gpu_run_rows<E> &from, const kiln_view &view,
                             int cols, int k0, int limit)
    {
        const int left = limit - k0, n = left < BC ? left : BC;
        if constexpr (!GENERAL)
            copy.issue(gpu_bounded<const E>(from.from(n > 0 ? k0 : 0), n));
        else if (at.paged)
            copy.issue(to, gpu_page_rows<E>(at.c, view), k0, n, cols, at.aligned);
        else
            copy.issue(to, from, k0, n, cols, at.aligned);
    }

    // Where registers are short: a piece at a time, nothing on its way.
    template <class PUT>
    static GPU_FN void fetch(const place &at, const gpu_run_rows<E> &from, const kiln_view &view, int cols, int k0,
                             int limit, PUT put)
    {
#pragma unroll 1
        for (int u = at.thread; u < BC * D / 8; u += threads) {
            const int key = k0 + u / (D / 8), column = u % (D / 8) * 8;
            gpu_vec<E, 8> piece = {};
            if (key < limit && column < cols) {
                const gpu_rows<const E> source = at.paged ? gpu_page_rows<E>(at.c, view).from(key) : from.from(key);
                if (source.rows > 0) {
                    if (at.aligned)
                        piece = gpu_load<8>(source, 0, column);
                    else
                        piece = gpu_row_copy<E, BC, D, threads>::pick(source, 0, column, cols);
                }
            }
            put(u / (D / 8), column, piece);
        }
    }

    // All keys once, for the rows from q0 on. Is something that was written not settled?
    static GPU_FN bool sweep(const args &a, room &sh, const gpu_item &work, int64_t q0, int pass)
    {
        const auto &p = a.p;
        const kiln_sequence s = gpu_sequence_of(p, work.batch);
        if (q0 >= s.seqlen_q)
            return false;
        const gpu_scores c(p, s, work.batch, work.head, a.scale_log2);
        const int rows = within(s.seqlen_q - q0, BR), w0 = gpu_wave_id() * ROWS, thread = gpu_own(gpu_thread()),
                  mine = w0 + thread % M;
        const kiln_key_range seen = mine < rows ? c.window(q0 + mine) : kiln_key_range{0, 0};
        const place at = {p,
                          c,
                          q0,
                          rows,
                          mine,
                          (int)seen.begin,
                          (int)seen.end,
                          GENERAL && !c.plain(),
                          GENERAL && p.page_size > 0,
                          !GENERAL || (gpu_aligned_rows(p.q, sizeof(E)) && gpu_aligned_rows(p.k, sizeof(E)) &&
                                       gpu_aligned_rows(p.v, sizeof(E))),
                          thread};
        const float mult = at.modify ? 1.f : a.scale_log2; // from what S holds to exponents of 2
        // fp16: 2^LAG·2^7 is in range, and so are sums of its values.
        const float shift = HALF ? 7.f : CAREFUL && pass == 2 ? -40.f : 0.f;

        // Tiles that some row of the block sees, and those that all rows of the wave see whole.
        const int low = (int)c.window(q0).begin, high = (int)c.window(q0 + rows - 1).end;
        const int begin = low / BC, end = high > low ? (high + BC - 1) / BC : begin;
        const int last = (w0 + ROWS < rows ? w0 + ROWS : rows) - 1;
        const int whole_begin = w0 < rows ? (gpu_of_lane((int)seen.begin, last - w0) + BC - 1) / BC : end;
        const int whole_end = w0 < rows ? gpu_of_lane((int)seen.end, 0) / BC : begin;
        gpu_run_rows<E> k(p.k, at.paged ? 0 : s.k_batch, c.head_k(), at.paged ? 0 : s.k_row, at.paged ? 0 : s.seqlen_k);
        gpu_run_rows<E> v(p.v, at.paged ? 0 : s.k_batch, c.head_k(), at.paged ? 0 : s.k_row, at.paged ? 0 : s.seqlen_k);
        if constexpr (!GENERAL)
            k.data = gpu_uniform(k.data), k.stride = gpu_uniform(k.stride), v.data = gpu_uniform(v.data),
            v.stride = gpu_uniform(v.stride);
        const int limit = high; // no key from here on is seen

        state me;
        me.top = me.base = gpu_minus_infinity(), me.l = me.lost = 0, me.most = -1;
#pragma unroll
        for (int u = 0; u < ND; u++)
            mfma::zero(me.o[u]);
        gpu_packed q[D / DEPTH];
        load_q(q, at);
        if constexpr (CAREFUL)
            gpu_forget<threads>(sh.book);

        const auto is_edge = [&](int step) { return step < whole_begin || step >= whole_end; };
        // What lies between scores and weights.
        const auto settle = [&](scores &x, int step) {
            bool rewritten = false;
            if constexpr (GENERAL)
                if (at.modify || at.paged) {
                    const uint64_t no_page = at.paged ? lost_keys(at, step) : 0;
                    if (at.modify || no_page)
                        rewrite_scores(sh, at, x, step, no_page), rewritten = true;
                }
            if (is_edge(step) && !rewritten)
                hide(at, x, step);
        };

        if constexpr (SIMPLE) {
#pragma unroll 1
            for (int step = begin; step < end; step++) {
                gpu_block_barrier();
                fetch(at, k, p.k, (int)p.d, step * BC, limit, [&](int key, int column, const gpu_vec<E, 8> &piece) {
                    gpu_store<8>(sh.k[0], key, column, piece);
                });
                fetch(at, v, p.v, (int)p.d_v, step * BC, limit, [&](int key, int column, const gpu_vec<E, 8> &piece) {
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        gpu_store<1>(sh.v[0], column + e, key, gpu_vec<E, 1>{piece[e]});
                });
                gpu_block_barrier();
                scores x;
                products(at, sh.k[0], q, x);
                settle(x, step);
                scores y;
                weigh(me, x, y, mult, shift, pass == 2);
                if (CAREFUL || p.dropout_threshold < 256)
                    rewrite_weights(sh, at, y, step);
                if constexpr (CAREFUL)
                    gpu_take_out<threads>(sh.book, reader{sh.v[0]},
                                          [&](bool found) { return any_of(sh.votes, found); });
                accumulate(at, sh.v[0], me, y);
            }
        } else if (begin < end) {
            auto next_k = copy_of<copy_k>(thread);
            auto next_v = copy_of<copy_v>(thread);
            const auto load_k = [&](copy_k &copy, int step) {
                issue(copy, sh.k[0], at, k, p.k, (int)p.d, step * BC, limit);
            };
            const auto load_v = [&](copy_v &copy, int step) {
                issue(copy, sh.v[0], at, v, p.v, (int)p.d_v, step * BC, limit);
            };
            const bool works = M == 32 || gpu_uniform(w0) < rows; // or the wave only helps to load
            // Step j: scores of tile j + 1 and weights of tile j, then o += weights·v of tile j.
            const auto step_of = [&](scores &now, scores &next, int step, tile_of_k &k_next, tile_of_v &v_now,
                                     tile_of_k &k_free, tile_of_v &v_free) {
                gpu_block_barrier();      // k_next and, with two stages, v_now are there; nobody needs what is free
                const auto change = [&] { // one stage: between the products of K and of V
                    if constexpr (STAGES == 1) {
                        gpu_block_barrier();
                        next_k.land(k_free);
                        load_k(next_k, step + 3);
                    }
                };
                if constexpr (STAGES == 1)
                    next_v.land(v_now);
                load_v(next_v, step + 1);
                if constexpr (STAGES == 2)
                    load_k(next_k, step + 2);
                if constexpr (!WOVEN) {
                    scores weights;
                    if (works) {
                        products(at, k_next, q, next);
                        weigh(me, now, weights, mult, shift, false);
                        if constexpr (GENERAL)
                            if (p.dropout_threshold < 256)
                                rewrite_weights(sh, at, weights, step);
                    }
                    if constexpr (STAGES == 1)
                        change();
                    if (works)
                        accumulate(at, v_now, me, weights);
                    if constexpr (STAGES == 2)
                        next_k.land(k_free), next_v.land(v_free);
                } else {
                    const auto land = [&] {
                        if constexpr (STAGES == 2)
                            next_k.land(k_free), next_v.land(v_free);
                    };
                    if constexpr (M == 32)
                        woven(at, k_next, v_now, q, me, now, next, mult, shift, change, land);
                    else { // loads land after it: common to both sides of a branch, they would be waited for before it
                        static_assert(STAGES == 2, "no barrier inside");
                        if (works)
                            woven(at, k_next, v_now, q, me, now, next, mult, shift, change, [] {});
                        land();
                    }
                }
                if (works)
                    settle(next, step + 1);
            };
            scores x, y;
            load_k(next_k, begin);
            load_v(next_v, begin);
            next_k.land(sh.k[0]);
            if constexpr (STAGES == 2)
                next_v.land(sh.v[0]);
            load_k(next_k, begin + 1);
            gpu_block_barrier();
            if (works) {
                products(at, sh.k[0], q, x);
                settle(x, begin);
            }
            if constexpr (STAGES == 1) {
                gpu_block_barrier();
                next_k.land(sh.k[0]);
                load_k(next_k, begin + 2);
            } else
                next_k.land(sh.k[STAGES - 1]);
            constexpr int B = STAGES - 1;
            int step = begin;
            bool odd = false; // whether the last tile lies in the second stage
            if (begin + 1 < end)
#pragma unroll 1
                for (;;) {
                    step_of(x, y, step, sh.k[B], sh.v[0], sh.k[0], sh.v[B]);
                    if (++step + 1 == end) {
                        odd = true;
#pragma unroll
                        for (int n = 0; n < NT; n++)
                            x[n] = y[n];
                        break;
                    }
                    step_of(y, x, step, sh.k[0], sh.v[B], sh.k[B], sh.v[0]);
                    if (++step + 1 == end)
                        break;
                }
            gpu_block_barrier();
            if constexpr (STAGES == 1) {
                next_v.land(sh.v[0]);
                gpu_block_barrier();
            }
            if (works) {
                weigh(me, x, y, mult, shift, false);
                if constexpr (GENERAL)
                    if (p.dropout_threshold < 256)
                        rewrite_weights(sh, at, y, step);
                accumulate(at, sh.v[odd ? B : 0], me, y);
            }
        }
        const args &b = gpu_reload(a);
        const gpu_scores d(b.p, s, work.batch, work.head, b.scale_log2);
        const bool open =
            finish(sh, place{b.p, d, q0, rows, mine, at.first, at.past, at.modify, at.paged, at.aligned, thread}, me,
                   shift, pass);
        if constexpr (GENERAL)
            return any_of(sh.votes, open);
        else {
            gpu_block_barrier(); // the votes lie where the tiles are
            return any_of(((shared &)sh).again.votes, open);
        }
    }

    static GPU_FN void load_q(gpu_packed (&q)[D / DEPTH], const place &at)
    {
        const auto &s = at.c.s;
        const gpu_run_rows<E> rows(at.p.q, s.q_batch, at.c.head, s.q_row + at.q0, at.rows);
        if constexpr (!GENERAL) {
            const gpu_bounded<const E> from(rows, at.rows);
#pragma unroll
            for (int i = 0; i < D / DEPTH; i++)
                q[i] = gpu_load_bounded<8>(from, from.place(at.mine, DEPTH * i + 8 * at.group()), 0);
        } else
#pragma unroll
            for (int i = 0; i < D / DEPTH; i++) {
                const int col = DEPTH * i + 8 * at.group(), d = (int)at.p.d;
                gpu_vec<E, 8> x = {};
                if (at.mine < at.rows && col < d)
                    x = at.aligned ? gpu_load<8>(rows, at.mine, col)
                                   : gpu_row_copy<E, BC, D, threads>::pick(rows, at.mine, col, d);
                q[i] = __builtin_bit_cast(gpu_packed, x);
            }
    }

    // Products of K, weights, and products of V, woven by hand: in every slot an operand is read AHEAD slots
    // before it is needed, a product is started, and the vector unit has as much to do as the product takes. Compilers left
    // alone put the exponentials after the products and every read before its use. The same arithmetic as products(), weigh()
    // and accumulate(), in the same order for every number.
    template <class CHANGE, class LAND>
    static GPU_FN void woven(const place &at, tile_of_k &k, tile_of_v &v, const gpu_packed (&q)[D / DEPTH], state &me,
                             const scores &now, scores &next, float mult, float shift, CHANGE change, LAND land)
    {
        constexpr int NK = NT * (D / DEPTH), S = BC / DEPTH, NV = S * ND, N = NK + NV, AHEAD = M == 16 ? 6 : 2,
                      P = mfma::PARTS;
        constexpr int PAIRS = NT * R / 2, WEIGH = P * NK;
        float base = gpu_finite_or_zero(me.base);
        gpu_packed ring[AHEAD + 1], w[S];
        float first = 0, second = 0; // sums; apart, packed arithmetic does not run beside MFMA
        const auto weigh_pair = [&](auto pair) {
            const gpu_two y = weight(now[pair * 2 / R], pair * 2 % R, mult, base);
            first += y[0], second += y[1];
            gpu_keep(first), gpu_keep(second);
            w[pair / 4][pair % 4] = gpu_weights<E>(y);
        };
        const auto read = [&](auto i) {
            if constexpr (i < NK)
                ring[i % (AHEAD + 1)] = read_k(at, k, i / NT, i % NT);
            else if constexpr (i < N)
                ring[i % (AHEAD + 1)] = read_v(at, v, (i - NK) / ND, (i - NK) % ND);
        };
        gpu_unroll<AHEAD>(read);
#pragma unroll
        for (int n = 0; n < NT; n++)
            mfma::zero(next[n]);
        gpu_unroll<N * P>([&](auto slot) {
            constexpr int i = slot / P, part = slot % P;
            if constexpr (slot == WEIGH) {
                if (gpu_wave_any(is_off(me, first + second))) {
                    move(me, now, first + second, mult, shift);
                    base = gpu_finite_or_zero(me.base), first = second = 0;
                    gpu_unroll<PAIRS>(weigh_pair);
                }
                add(me, first + second);
            }
            if constexpr (slot == (NK - AHEAD) * P) // V is read from here on, K no more
                change();
            if constexpr (part == 0)
                read(gpu_constant<i + AHEAD>());
            const gpu_packed &a = ring[i % (AHEAD + 1)];
            if constexpr (i < NK)
                mfma::template mma_part<part>(next[i % NT], a, q[i / NT]);
            else
                mfma::template mma_part<part>(me.o[(i - NK) % ND], a, w[(i - NK) / ND]);
            gpu_unroll<PAIRS>([&](auto pair) {
                if constexpr (pair * WEIGH / PAIRS == slot)
                    weigh_pair(pair);
            });
            if constexpr (slot == N * P - 2 * P)
                land();
            gpu_fence();
        });
    }
    static GPU_FN gpu_packed read_k(const place &at, tile_of_k &k, int i, int n)
    {
        return __builtin_bit_cast(gpu_packed, gpu_load<8>(k, M * n + at.column(), DEPTH * i + 8 * at.group()));
    }
    static GPU_FN gpu_packed read_v(const place &at, tile_of_v &v, int i, int u)
    {
        return __builtin_bit_cast(
            gpu_packed, gpu_load<8>((gpu_swizzled<E, D, BC> &)v, M * u + at.column(), DEPTH * i + 8 * at.group()));
    }

    // Sᵀ = K·Qᵀ of my column.
    static GPU_FN void products(const place &at, tile_of_k &k, const gpu_packed (&q)[D / DEPTH], scores &x)
    {
#pragma unroll
        for (int n = 0; n < NT; n++)
            mfma::zero(x[n]);
#pragma unroll
        for (int i = 0; i < D / DEPTH; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                mfma::mma(x[n], read_k(at, k, i, n), q[i]);
    }

    // Oᵀ += Vᵀ·Pᵀ.
    static GPU_FN void accumulate(const place &at, tile_of_v &v, state &me, const scores &x)
    {
#pragma unroll
        for (int i = 0; i < BC / DEPTH; i++) {
            gpu_packed w;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int n = (8 * i + 2 * j) / R, r = (8 * i + 2 * j) % R;
                w[j] = gpu_weights<E>(gpu_two{x[n].v[r], x[n].v[r + 1]});
            }
#pragma unroll
            for (int u = 0; u < ND; u++)
                mfma::mma(me.o[u], read_v(at, v, i, u), w);
        }
    }

    // What the window hides becomes -inf.
    static GPU_FN void hide(const place &at, scores &x, int step)
    {
        const int first = at.first - step * BC - 4 * at.group(), past = at.past - step * BC - 4 * at.group();
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r = 0; r < R; r++)
                if (M * n + mfma::row(r) < first || M * n + mfma::row(r) >= past)
                    x[n].v[r] = gpu_minus_infinity();
    }

    static GPU_FN float most_of(const scores &x)
    {
        float most = gpu_minus_infinity();
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r = 0; r < R; r += 2)
                most = gpu_most(most, x[n].v[r], x[n].v[r + 1]);
        return most;
    }
    // What the lanes of a row have together, in all of them.
    template <class OP> static GPU_FN float of_row(float x, OP op)
    {
        x = op(x, gpu_shfl_xor<32>(x));
        if constexpr (M == 16)
            x = op(x, gpu_shfl_xor<16>(x));
        return x;
    }
    // Has the maximum left the reference behind? Judged by the sum of the weights, which is there anyway; NaN has.
    static GPU_FN bool is_off(const state &me, float sum)
    {
        return !(sum <= me.most);
    }
    // Moves the references of such rows to their maximum. Every row decides for itself: its bits do not depend on its
    // neighbours.
    static GPU_FN void move(state &me, const scores &x, float sum, float mult, float shift)
    {
        const float other = gpu_shfl_xor<32>(sum); // by all lanes
        bool off = is_off(me, sum) || is_off(me, other);
        if constexpr (M == 16)
            off |= gpu_shfl_xor<16>(off ? 1.f : 0.f) > 0;
        float top = of_row(most_of(x), [](float a, float b) { return gpu_max(a, b); });
        if (!off || !(top > me.top))
            top = me.top;
        const float base = gpu_fma(top, mult, -shift);
        const float alpha = base == me.base ? 1.f : gpu_exp2(me.base - base);
        me.top = top, me.base = base;
        me.most = top > gpu_minus_infinity() ? gpu_exp2(LAG + shift) : -1.f;
        me.l *= alpha, me.lost *= alpha;
#pragma unroll
        for (int u = 0; u < ND; u++)
#pragma unroll
            for (int r = 0; r < R; r++)
                me.o[u].v[r] *= alpha;
    }

    // Scores become weights, and join the sum. Apart: the product is rounded before the difference, which then is no more than
    // 2^LAG whatever the scores.
    static GPU_FN void weigh(state &me, const scores &x, scores &y, float mult, float shift, bool apart)
    {
        float sum = weights_of(me, x, y, mult, apart);
        if (gpu_wave_any(is_off(me, sum))) {
            move(me, x, sum, mult, shift);
            sum = weights_of(me, x, y, mult, apart);
        }
        add(me, sum);
    }
    static GPU_FN float weights_of(const state &me, const scores &x, scores &y, float mult, bool apart)
    {
        const float base = gpu_finite_or_zero(me.base);
        gpu_two sum = {0, 0};
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r = 0; r < R; r += 2) {
                const gpu_two w = CAREFUL && apart ? weight_apart(x[n], r, mult, base) : weight(x[n], r, mult, base);
                sum += w;
                y[n].v[r] = w[0], y[n].v[r + 1] = w[1];
            }
        return sum[0] + sum[1];
    }
    static GPU_FN gpu_two weight(const acc &x, int r, float mult, float base)
    {
        return gpu_two{gpu_exp2(gpu_fma(x.v[r], mult, -base)), gpu_exp2(gpu_fma(x.v[r + 1], mult, -base))};
    }
    static GPU_FN gpu_two weight_apart(const acc &x, int r, float mult, float base)
    {
        return gpu_two{gpu_exp2(gpu_product(x.v[r], mult) - base), gpu_exp2(gpu_product(x.v[r + 1], mult) - base)};
    }
    static GPU_FN void add(state &me, float all)
    {
        const float l = me.l + all; // thousands of equal terms would all be rounded the same way
        me.lost += all - (l - me.l);
        me.l = l;
    }

    // ---- general, and careful: a lane's own numbers, by rolled loops ----
    // Keys of a tile whose page does not exist, a bit each.
    static GPU_FN uint64_t lost_keys(const place &at, int step)
    {
        const int lane = at.thread % GPU_WAVE;
        const int64_t key = (int64_t)step * BC + lane;
        return gpu_wave_ballot(lane < BC && key < at.c.s.seqlen_k && at.c.page(key) < 0);
    }
    static GPU_FN bool in_window(const place &at, int64_t key)
    {
        return key >= at.first && key < at.past;
    }
    static GPU_FN void rewrite_scores(room &sh, const place &at, scores &x, int step, uint64_t no_page)
    {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r0 = 0; r0 < R; r0 += SLOTS) {
                put(at, sh, x[n], r0);
#pragma unroll 1
                for (int i = 0; i < SLOTS; i++) {
                    const int j = key_of(at, n, r0 + i);
                    const int64_t key = (int64_t)step * BC + j;
                    float y = gpu_load<1>(sh.slots, i, at.thread)[0];
                    if (!in_window(at, key) || no_page >> j & 1)
                        y = gpu_minus_infinity();
                    else if (at.modify)
                        y = at.c.score(y, at.q0 + at.mine, key);
                    gpu_store<1>(sh.slots, i, at.thread, gpu_vec<float, 1>{y});
                }
#pragma unroll
                for (int i = 0; i < SLOTS; i++)
                    x[n].v[r0 + i] = gpu_load<1>(sh.slots, i, at.thread)[0];
            }
    }
    static GPU_FN void put(const place &at, room &sh, const acc &x, int r0)
    {
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            gpu_store<1>(sh.slots, i, at.thread, gpu_vec<float, 1>{x.v[r0 + i]});
    }

    // Dropout; and in a careful pass, which keys weigh and which are visible.
    static GPU_FN void rewrite_weights(room &sh, const place &at, scores &x, int step)
    {
        const int64_t k0 = (int64_t)step * BC;
        const bool exists = at.mine < at.rows;
        if (at.p.dropout_threshold < 256) {
            uint32_t kept = 0;
            gpu_dropout drop;
#pragma unroll 1
            for (int i = 0; i < NT * R; i++)
                if (exists && drop.keep(at.c, at.q0 + at.mine, k0 + key_of(at, i / R, i % R)))
                    kept |= 1u << i;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int r = 0; r < R; r++)
                    if (!(kept >> (n * R + r) & 1))
                        x[n].v[r] = 0;
        }
        if constexpr (CAREFUL) {
            const uint64_t no_page = at.paged ? lost_keys(at, step) : 0;
            constexpr int WORDS = BC / 32, OF_WORD = NT / WORDS * R; // a lane's keys of a word
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                uint32_t weighs = 0, visible = 0;
#pragma unroll
                for (int i = 0; i < OF_WORD; i++)
                    if (!(x[w * OF_WORD / R + i / R].v[i % R] <= 0)) // NaN does
                        weighs |= 1u << (M * (i / R) + mfma::row(i % R));
#pragma unroll 1
                for (int i = 0; i < OF_WORD; i++) {
                    const int j = key_of(at, w * OF_WORD / R + i / R, i % R);
                    if (in_window(at, k0 + j) && !(no_page >> j & 1) && at.c.visible(at.q0 + at.mine, k0 + j))
                        visible |= 1u << (M * (i / R) + mfma::row(i % R));
                }
                weighs = bits_of_row(weighs << 4 * at.group()), visible = bits_of_row(visible << 4 * at.group());
                if (at.group() == 0) {
                    gpu_store<1>(sh.book.seen, at.mine, w, gpu_vec<uint32_t, 1>{weighs});
                    gpu_store<1>(sh.book.seen, at.mine, WORDS + w, gpu_vec<uint32_t, 1>{visible});
                }
            }
        }
    }
    static GPU_FN uint32_t bits_of_row(uint32_t x)
    {
        return __builtin_bit_cast(uint32_t, of_row(__builtin_bit_cast(float, x), [](float a, float b) {
                                      return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, a) |
                                                                           __builtin_bit_cast(uint32_t, b));
                                  }));
    }
    struct reader {
        tile_of_v &v;
        GPU_FN float read(int key, int column) const
        {
            return gpu_to_float(gpu_load<1>((gpu_swizzled<E, D, BC> &)v, column, mfma::place(key))[0]);
        }
        GPU_FN void clear(int key, int column) const
        {
            gpu_store<1>(v, column, key, gpu_vec<E, 1>{});
        }
    };

    // ---- the end: lse, the division, O to memory. Is an element of it not settled? ----
    static GPU_FN bool finish(room &sh, const place &at, state &me, float shift, int pass)
    {
        const auto &p = at.p;
        const float keep = gpu_keep_scale(p), limit = gpu_overflow_of(p.o.type);
        const bool exists = at.mine < at.rows;
        float sum = me.l + (me.lost - me.lost == 0 ? me.lost : 0.f); // inf - inf
        sum = of_row(sum, [](float a, float b) { return a + b; });
        const gpu_row_end done(at.c, me.base, sum, me.top > gpu_minus_infinity(), shift);
        bool open = exists && !(sum < -gpu_minus_infinity());
        if (pass < 2 && exists && at.group() == 0)
            done.store_lse(at.c, at.q0 + at.mine);
        const float factor = done.factor * keep;
#pragma unroll
        for (int u = 0; u < ND; u++)
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float y = factor == 0 ? 0.f : me.o[u].v[r] * factor;
                me.o[u].v[r] = y;
                if (exists) // columns past the last are 0
                    open |= !(gpu_abs(y) < limit);
            }
        if constexpr (GENERAL)
            if (CAREFUL || p.o.type == KILN_FLOAT32 || !gpu_aligned_rows(p.o, sizeof(E))) {
                const bool elements = store_elements(sh, at, me, limit, factor != factor, pass);
                return CAREFUL ? elements : open || elements;
            }
        store_fast(at, me);
        return open;
    }
    static GPU_FN void store_fast(const place &at, const state &me)
    {
        const gpu_rows<E> o(gpu_rows<E>(at.p.o, at.c.s.q_batch, at.c.head).from(at.c.s.q_row + at.q0));
        if (at.mine >= at.rows)
            return;
        const gpu_rows<E> mine = o.from(at.mine);
        int first = column_of(at, 0, 0);
        gpu_keep(first); // or 64-bit offsets of it are, from item to item
#pragma unroll
        for (int u = 0; u < ND; u++)
#pragma unroll
            for (int r = 0; r < R; r += 4) {
                const gpu_vec<float, 4> y = {{me.o[u].v[r], me.o[u].v[r + 1], me.o[u].v[r + 2], me.o[u].v[r + 3]}};
                const int col = first + M * u + mfma::row(r);
                if (col < at.p.d_v)
                    gpu_store<4>(mine, 0, col, gpu_from_floats<E>(y));
            }
    }
    // A row whose own weights are NaN is NaN, whatever it met in V.
    static GPU_FN bool store_elements(room &sh, const place &at, const state &me, float limit, bool is_nan, int pass)
    {
        bool open = false;
#pragma unroll
        for (int u = 0; u < ND; u++)
#pragma unroll
            for (int r0 = 0; r0 < R; r0 += SLOTS) {
                put(at, sh, me.o[u], r0);
#pragma unroll 1
                for (int i = 0; i < SLOTS; i++) {
                    const int col = column_of(at, u, r0 + i);
                    if (at.mine >= at.rows || col >= at.p.d_v)
                        continue;
                    uint32_t note = 0;
                    if constexpr (CAREFUL)
                        note = is_nan ? 3u : gpu_load<1>(sh.book.notes, at.mine, col / 16)[0] >> (col % 16 * 2) & 3;
                    open |= gpu_store_unsettled(at.c, at.q0 + at.mine, col, gpu_load<1>(sh.slots, i, at.thread)[0],
                                                limit, note, pass);
                }
            }
        return open;
    }
};
