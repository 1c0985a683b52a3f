// SPDX-License-Identifier: MIT OR Apache-2.0
// attention_forward_mma_wave.gpu.h: what the modes of rung `mma` share: the rows of a wave, their products on m16n8k16, what the
// window hides, and their end.
//
// A wave has ROWS = 16·MT queries; a thread has two rows of each 16, and of these four lanes share a row.
#pragma once
#include "../gpu/gpu_careful.gpu.h"
#include "../gpu/gpu_mma.h"

template <class E, int D, int MT, int WAVES> struct attention_forward_mma_wave {
    using args = gpu_attention_args;
    static constexpr int BC = 64, ROWS = 16 * MT, BR = WAVES * ROWS, threads = WAVES * 32, tile_q = BR, tile_k = BC;
    static constexpr int NO = D / 8;
    static constexpr bool HALF = __is_same(E, gpu_half);
    static constexpr float LAG = 8.f; // of a reference behind the maximum, in exponents of 2

    using keys = gpu_swizzled<E, BC, D>;
    struct stage {
        keys k, v;
    };
    using ranges = gpu_array<int32_t, 2, BR>; // keys that the window shows to a row: first, and past the last

    struct place { // of one work item
        const kiln_attention_problem &p;
        const gpu_scores &c;
        int64_t q0;
        int rows;
        bool modify, paged, aligned;
    };
    struct state {                                   // of my rows: 16·t + g + 8·h
        float o[MT][NO][4], top[MT][2], base[MT][2]; // the reference before and after scaling
        float l[MT][2], lost[MT][2];                 // the sum of my share, and what rounding has lost of it

        GPU_FN state()
        {
#pragma unroll
            for (int t = 0; t < MT; t++) {
#pragma unroll
                for (int h = 0; h < 2; h++)
                    top[t][h] = base[t][h] = gpu_minus_infinity(), l[t][h] = lost[t][h] = 0;
#pragma unroll
                for (int n = 0; n < NO; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[t][n][e] = 0;
            }
        }
        GPU_FN void rescale(int t, int h, float alpha)
        {
            l[t][h] *= alpha, lost[t][h] *= alpha;
#pragma unroll
            for (int n = 0; n < NO; n++)
                o[t][n][2 * h] *= alpha, o[t][n][2 * h + 1] *= alpha;
        }
        GPU_FN void add(int t, int h, float sum)
        {
            const float all = l[t][h] + sum; // thousands of equal terms would all be rounded the same way
            lost[t][h] += sum - (all - l[t][h]);
            l[t][h] = all;
        }
    };
    // Operands of my rows of Q: HELD in registers, or read one step before they are used.
    template <bool HELD> struct queries {
        gpu_cursor<gpu_swizzled<E, BR, D>> at;
        uint32_t a[HELD ? D / 16 : 2][MT][4];
        GPU_FN explicit queries(gpu_swizzled<E, BR, D> &q)
            : at(q, gpu_wave_id() * ROWS + gpu_lane() % 16, gpu_lane() / 16 * 8)
        {
            if constexpr (HELD)
                gpu_unroll<D / 16>([&](auto kk) { load<kk>(); });
        }
        template <int KK> GPU_FN void load()
        {
            gpu_unroll<MT>([&](auto t) { gpu_ldmatrix<false, 16 * t, 16 * KK>(a[HELD ? KK : KK % 2][t], at); });
        }
    };

    static GPU_FN int within(int64_t x, int most)
    {
        return x < 0 ? 0 : x > most ? most : (int)x;
    }
    static GPU_FN int row_of(int t, int h)
    {
        return gpu_wave_id() * ROWS + 16 * t + gpu_lane() / 4 + 8 * h;
    }
    static GPU_FN int column_of(int n, int e)
    {
        return 8 * n + gpu_lane() % 4 * 2 + e;
    }
    static GPU_FN void find_ranges(ranges &range, const gpu_scores &c, int64_t q0, int rows)
    {                                                      // a block barrier comes before they are read
        for (int u = gpu_thread(); u < BR; u += threads) { // rows past the last see none
            const kiln_key_range seen = u < rows ? c.window(q0 + u) : kiln_key_range{0, 0};
            gpu_store<1>(range, 0, u, gpu_vec<int32_t, 1>{(int32_t)seen.begin});
            gpu_store<1>(range, 1, u, gpu_vec<int32_t, 1>{(int32_t)seen.end});
        }
    }

    // S = Q·Kᵀ of my rows and 8·N keys from key FROM of the tile on. beside(i): what may run under group i of D / 16 · N / 2.
    template <int FROM, int N, bool HELD, class F>
    static GPU_FN void products(queries<HELD> &q, keys &k, float (&x)[MT][N][4], F beside)
    {
        gpu_cursor<keys> kc(k, gpu_lane() / 16 * 8 + gpu_lane() % 8, gpu_lane() / 8 % 2 * 8);
        constexpr int PAIRS = N / 2, GROUPS = D / 16 * PAIRS;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[t][n][e] = 0;
        // Operands are loaded one step before they are used: two warps on a scheduler do not hide the latency of ldmatrix.
        uint32_t b[2][4];
        if constexpr (!HELD) {
            q.at.pin();
            q.template load<0>();
        }
        gpu_ldmatrix<false, FROM, 0>(b[0], kc);
        gpu_unroll<GROUPS>([&](auto i) {
            constexpr int kk = i / PAIRS, n = i % PAIRS, next = i + 1;
            if constexpr (next < GROUPS)
                gpu_ldmatrix<false, FROM + 16 * (next % PAIRS), 16 * (next / PAIRS)>(b[next % 2], kc);
            if constexpr (!HELD && n == 0 && kk + 1 < D / 16)
                q.template load<kk + 1>();
#pragma unroll
            for (int t = 0; t < MT; t++) {
                const auto &a = q.a[HELD ? kk : kk % 2][t];
                gpu_mma<E>(x[t][2 * n], a, b[i % 2][0], b[i % 2][1]); // an operand is a pair of registers
                gpu_mma<E>(x[t][2 * n + 1], a, b[i % 2][2], b[i % 2][3]);
            }
            beside(i);
        });
    }
    // O += P·V of 8·N keys from key FROM of the tile on. beside(i): what may run under group i of N / 2 · D / 16, by 16 keys.
    template <int FROM, int N, class F>
    static GPU_FN void accumulate(keys &v, state &me, const float (&x)[MT][N][4], F beside)
    {
        gpu_cursor<keys> vc(v, gpu_lane() % 16, gpu_lane() / 16 * 8);
        constexpr int PAIRS = NO / 2, GROUPS = N / 2 * PAIRS;
        uint32_t p[MT][4], b[2][4];
        gpu_ldmatrix<true, FROM, 0>(b[0], vc);
        gpu_unroll<GROUPS>([&](auto i) {
            constexpr int kk = i / PAIRS, n = i % PAIRS, next = i + 1;
            if constexpr (next < GROUPS)
                gpu_ldmatrix<true, FROM + 16 * (next / PAIRS), 16 * (next % PAIRS)>(b[next % 2], vc);
            if constexpr (n == 0)
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        p[t][j] = gpu_pair<E>(x[t][2 * kk + j / 2][j % 2 * 2], x[t][2 * kk + j / 2][j % 2 * 2 + 1]);
#pragma unroll
            for (int t = 0; t < MT; t++) {
                gpu_mma<E>(me.o[t][2 * n], p[t], b[i % 2][0], b[i % 2][1]);
                gpu_mma<E>(me.o[t][2 * n + 1], p[t], b[i % 2][2], b[i % 2][3]);
            }
            beside(i);
        });
    }

    // What the window hides of keys from key0 on becomes -inf.
    template <int N> static GPU_FN void hide(ranges &range, float (&x)[MT][N][4], int key0)
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int first = gpu_load<1>(range, 0, row_of(t, h))[0] - key0,
                          past = gpu_load<1>(range, 1, row_of(t, h))[0] - key0;
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (column_of(n, e) < first || column_of(n, e) >= past)
                            x[t][n][2 * h + e] = gpu_minus_infinity();
            }
    }
    // The largest scores of my share.
    template <int N> static GPU_FN void highest(const float (&x)[MT][N][4], float (&most)[MT][2])
    {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                most[t][h] = x[t][0][2 * h];
#pragma unroll
                for (int n = 0; n < N; n++)
                    most[t][h] = gpu_max(most[t][h], gpu_max(x[t][n][2 * h], x[t][n][2 * h + 1]));
            }
    }

    // ---- the end: lse, and the division. Is an element not settled? seen(row, factor): what else wants to know. ----
    template <class F>
    static GPU_FN bool divide(const place &at, state &me, float shift, int pass, bool careful, F seen)
    {
        const auto &p = at.p;
        const float keep = gpu_keep_scale(p), limit = gpu_overflow_of(p.o.type);
        bool open = false, without = false;
        float factor[MT][2];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = row_of(t, h);
                const float sum = gpu_wave_sum<4>(
                    me.l[t][h] + (me.lost[t][h] - me.lost[t][h] == 0 ? me.lost[t][h] : 0.f)); // inf - inf
                const gpu_row_end done(at.c, me.base[t][h], sum, me.top[t][h] > gpu_minus_infinity(), shift);
                if (row < at.rows && !(sum < -gpu_minus_infinity()))
                    open = true;
                if (pass < 2 && row < at.rows && gpu_lane() % 4 == 0)
                    done.store_lse(at.c, at.q0 + row, careful);
                factor[t][h] = done.factor * keep, without |= factor[t][h] == 0;
                seen(row, factor[t][h]);
            }
        if (gpu_wave_any(without)) // rows without a weight are 0 whatever they met
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int n = 0; n < NO; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            if (factor[t][h] == 0)
                                me.o[t][n][2 * h + e] = 0;
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                bool bad =
                    false; // also columns past d_v: they met nothing but zeros, and are finite where the weights are
#pragma unroll
                for (int n = 0; n < NO; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &y = me.o[t][n][2 * h + e];
                        y *= factor[t][h];
                        bad |= !(gpu_abs(y) < limit);
                    }
                open |= bad && row_of(t, h) < at.rows;
            }
        return open;
    }
    // O to memory, by pieces of 16 bytes, by way of the room of Q.
    static GPU_FN void store_fast(gpu_swizzled<E, BR, D> &room, const place &at, const state &me)
    {
        const int w0 = gpu_wave_id() * ROWS;
        const gpu_rows<E> o = gpu_rows<E>(at.p.o, at.c.s.q_batch, at.c.head).from(at.c.s.q_row + at.q0);
        gpu_block_barrier(); // nobody needs what was there
        const gpu_cursor<gpu_swizzled<E, BR, D>> mine(room, row_of(0, 0), column_of(0, 0));
        gpu_unroll<MT * NO>([&](auto i) {
            constexpr int t = i / NO, n = i % NO;
            gpu_store_pair<16 * t, 8 * n>(mine, gpu_pair<E>(me.o[t][n][0], me.o[t][n][1]));
            gpu_store_pair<16 * t + 8, 8 * n>(mine, gpu_pair<E>(me.o[t][n][2], me.o[t][n][3]));
        });
        gpu_wave_barrier();
        constexpr int ACROSS = D / 8, DOWN = 32 / ACROSS; // pieces of a row, rows that the wave writes at once
        const int row0 = w0 + gpu_lane() / ACROSS, col = gpu_lane() % ACROSS * 8;
        gpu_rows<E> from = o.from(row0);
        struct {
            E *data;
            int64_t stride;
        } here = {from.data, from.stride};
        gpu_pin(here); // or each row's address is found out from the view
        from.data = here.data, from.stride = here.stride;
#pragma unroll
        for (int r = 0; r < ROWS; r += DOWN)
            if (row0 + r < at.rows && col < at.p.d_v)
                gpu_store<8>(from, r, col, gpu_load<8>(room, row0 + r, col));
    }
};
