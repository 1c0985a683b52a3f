// SPDX-License-Identifier: MIT OR Apache-2.0
// attention backward, rung `wgmma` (Hopper, sm_90a), 16-bit types. Against flash2 (two passes that recompute S and dP twice):
//   one pass. A block owns 128 keys of one KV head, dK and dV stay in registers while Q and dO stream past in tiles of BM rows;
//   scores are computed transposed (keys x queries), so that P and dS are at once the register operands of dV += P·dO and
//   dK += dS·Q; dS also goes through shared memory, for dQ = dSᵀ·K needs the keys of both warpgroups: each makes half of
//   dQ and adds it to an fp32 sum in memory, in whatever order: bits of dq differ from run to run.
//
//   ORDERED, they do not. A block adds to a tile of dQ after the block of the 128 keys before, which tells it so by a counter of
//   the tile. All start at the last queries, so that with a causal mask each is as far as the one before it, less what handing
//   over takes; and a spare warp waits and adds, while the others are at the next step. No block waits for a later one: they
//   number themselves when they start.
//
// fp16: P and dS are larger by 2^LIFT, which the scales of dv, dk and dq take back. What rounds to 0 in fp16 is then below
// 2^-(25 + LIFT), and dS may reach 2^(16 - LIFT): what is beyond becomes infinite, and is done again by fp32 arithmetic.
//
//   prepare  D = Σ do·o - dlse, -lse·log2(e) (+ LIFT), zeroes dQ; writes down what each block of `main` works on
//   main     dK, dV, dQ                                          finish   dQ scaled and rounded
//   again    what is not finite, by the kernels of flash2: `main` and `finish` list such tiles
//
// Accepts what the method (attention_backward_wgmma.c) calls plain. What a hidden row holds has no influence: 0·NaN makes a
// gradient NaN here, and `again` does its tile with hidden pairs left out.
//
// FLOPs: 10·N²·d a head, causal half of it. Bytes requested per KV head: 2·N·d·e (K, V, and dK, dV) + ⌈N/128⌉·group·(2·N·d·e + 4·N·d).
#pragma once
#include "../gpu/attention_backward_flash2.gpu.h"
#include "attention_backward_wgmma.h"
#include "attention_wgmma.gpu.h"

// Where the number of query c of a tile is kept: what one thread needs of two groups of 8 queries lies together.
GPU_FN int wgmma_row_slot(int c)
{
    return (c & ~15) | (c & 6) << 1 | (c >> 3 & 1) << 1 | (c & 1);
}

template <class E> GPU_FN constexpr int wgmma_lift()
{
    return __is_same(E, gpu_half) ? GPU_WGMMA_LIFT : 0;
}
template <class E> GPU_FN float wgmma_lowered(float scale)
{
    return scale / (1 << wgmma_lift<E>());
}

template <class E, int D, int BM, int STAGES, bool ORDERED> struct attention_backward_wgmma {
    using args = gpu_wgmma_backward_args;
    using work = gpu_wgmma_backward_work;
    static constexpr int BN = GPU_WGMMA_KEYS, threads = 384, blocks = 1, tile_q = BM, tile_k = BN;
    static constexpr int PRODUCER = 24, CONSUMER = 240, PANELS = D / 64, PANEL_Q = BM * 64, PANEL_K = BN * 64;
    // A warpgroup's half of dQ: its own 64 rows of 128, or its own columns of 64 rows. TILE: floats of a tile.
    static constexpr int COLS = BM * D / 128, PIECES = COLS / 8, TILE = BM * D; // pieces of 16 bytes: a thread's share
    static constexpr int LAST = INT32_MIN;    // with the number of a tile in the workspace: the last step
    static constexpr bool DS_HELD = BM == 64; // dS stays in registers as the operand of dK, else there is no room

    struct alignas(1024) shared {
        E k[BN * D], v[BN * D], q[STAGES][BM * D], dout[STAGES][BM * D];
        E ds[2][BN * BM];
        float dq[ORDERED ? TILE : 4], lse[STAGES][BM], delta[STAGES][BM];
        uint64_t q_full[STAGES], q_empty[STAGES], do_full[STAGES], do_empty[STAGES], k_full, v_full, dq_full, dq_empty;
        int32_t step[STAGES][2]; // what is in a stage: see LAST; m, or -1 if nothing is hidden
        work mine;
    };
    static_assert(sizeof(shared) <= 232448, "shared memory of a block");
    // Dynamic shared memory begins here where there is no static one. As constants, addresses need no registers.
    static constexpr uint32_t SHARED = 1024;
    static constexpr uint32_t K = SHARED + offsetof(shared, k), V = SHARED + offsetof(shared, v),
                              Q = SHARED + offsetof(shared, q), DO = SHARED + offsetof(shared, dout),
                              DS = SHARED + offsetof(shared, ds), DQ = SHARED + offsetof(shared, dq),
                              LSE = SHARED + offsetof(shared, lse), DELTA = SHARED + offsetof(shared, delta),
                              Q_FULL = SHARED + offsetof(shared, q_full), Q_EMPTY = SHARED + offsetof(shared, q_empty),
                              DO_FULL = SHARED + offsetof(shared, do_full),
                              DO_EMPTY = SHARED + offsetof(shared, do_empty), STEP = SHARED + offsetof(shared, step),
                              K_FULL = SHARED + offsetof(shared, k_full), V_FULL = SHARED + offsetof(shared, v_full),
                              DQ_FULL = SHARED + offsetof(shared, dq_full),
                              DQ_EMPTY = SHARED + offsetof(shared, dq_empty);
    static constexpr uint32_t Q_BYTES = BM * D * 2, DS_BYTES = BN * BM * 2;

    static GPU_FN void run(const args &a, shared &sh)
    {
        if (gpu_shared_address(&sh) != SHARED)
            gpu_trap();
        const int thread = gpu_thread();
        if (thread < GPU_WAVE) {
            int number = gpu_block();
            if constexpr (ORDERED) {
                if (thread == 0)
                    number = (int)gpu_atomic_add(&a.open[2], 1);
                number = gpu_uniform(number);
            }
            if (thread < (int)sizeof(work) / 4)
                ((uint32_t *)&sh.mine)[thread] = ((const uint32_t *)&a.work[number])[thread];
        }
        if (thread == 32) {
            for (int i = 0; i < STAGES; i++) {
                gpu_mbarrier_init(Q_FULL + 8 * i, 1), gpu_mbarrier_init(Q_EMPTY + 8 * i, 8);
                gpu_mbarrier_init(DO_FULL + 8 * i, 1), gpu_mbarrier_init(DO_EMPTY + 8 * i, 8);
            }
            gpu_mbarrier_init(K_FULL, 1), gpu_mbarrier_init(V_FULL, 1);
            gpu_mbarrier_init(DQ_FULL, 8), gpu_mbarrier_init(DQ_EMPTY, 1);
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v),
                gpu_tensor_prefetch(&a.dout);
        }
        gpu_block_barrier();
        const work &w = sh.mine;
        if (w.keys == 0)
            return;
        const int wg = gpu_warpgroup();
        if (wg == 2) {
            gpu_registers_give<PRODUCER>();
            if (gpu_thread() == 256)
                produce(a, sh);
            if (ORDERED && gpu_thread() == 288)
                send(a, sh.mine);
            return;
        }
        gpu_registers_take<CONSUMER>();
        consume(a, w, wg);
    }

    static GPU_FN void produce(const args &a, shared &sh)
    {
        const work &w = sh.mine;
        wgmma_ring<STAGES> ring;
        const int m_first = w.m_first, m_past = w.m_past, clear_first = w.clear_first, clear_past = w.clear_past,
                  q_row = w.q_row, q_batch = w.q_batch, first = w.head_k * (int)a.group, past = first + (int)a.group;
        int64_t head_tile = w.q_tile;
#pragma unroll 1
        for (int head = first; head < past; head++, head_tile += a.q_room)
#pragma unroll 1
            for (int i = m_first; i < m_past; i++) {
                const int m = ORDERED ? m_first + m_past - 1 - i : i;
                uint32_t full = Q_FULL + 8 * ring.stage;
                gpu_mbarrier_wait(Q_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                sh.step[ring.stage][0] = ((int)head_tile + m) | (i == m_past - 1 && head == past - 1 ? LAST : 0);
                sh.step[ring.stage][1] = m < clear_first || m >= clear_past ? m : -1;
                gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll
                for (int c = 0; c < PANELS; c++)
                    gpu_tensor_load(&a.q, Q + ring.stage * Q_BYTES + c * PANEL_Q * 2, full, c * 64, q_row + m * BM,
                                    head, q_batch);
                gpu_bulk_load(LSE + ring.stage * BM * 4, a.lse + (head_tile + m) * BM, BM * 4, full);
                if (i == m_first && head == first) {
                    gpu_mbarrier_expect(K_FULL, sizeof(shared::k));
#pragma unroll
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.k, K + c * PANEL_K * 2, K_FULL, c * 64, w.k_row, w.head_k, w.k_batch);
                    gpu_mbarrier_expect(V_FULL, sizeof(shared::v));
#pragma unroll
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.v, V + c * PANEL_K * 2, V_FULL, c * 64, w.k_row, w.head_k, w.k_batch);
                }
                full = DO_FULL + 8 * ring.stage;
                gpu_mbarrier_wait(DO_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll
                for (int c = 0; c < PANELS; c++)
                    gpu_tensor_load(&a.dout, DO + ring.stage * Q_BYTES + c * PANEL_Q * 2, full, c * 64, q_row + m * BM,
                                    head, q_batch);
                gpu_bulk_load(DELTA + ring.stage * BM * 4, a.delta + (head_tile + m) * BM, BM * 4, full);
                ring.next();
            }
    }

    // ORDERED: adds what the consumers leave, when it is this block's turn.
    static GPU_FN void send(const args &a, const work &w)
    {
        const int m_first = w.m_first, m_past = w.m_past;
        const uint32_t turn = w.turn;
        int64_t head_tile = w.q_tile;
        uint32_t parity = 0;
#pragma unroll 1
        for (int head = 0; head < (int)a.group; head++, head_tile += a.q_room)
#pragma unroll 1
            for (int m = m_past - 1; m >= m_first; m--, parity ^= 1) {
                uint32_t *whose = a.turn + head_tile + m;
                gpu_mbarrier_wait(DQ_FULL, parity);
                while (gpu_load_acquire(whose) != turn) {
                }
                gpu_async_fence_all();
                gpu_bulk_add(a.dq + (head_tile + m) * TILE, DQ, TILE * 4);
                gpu_bulk_wait_read();
                gpu_mbarrier_arrive(DQ_EMPTY);
                gpu_bulk_wait();
                gpu_async_fence_all();
                gpu_store_release(whose, turn + 1);
            }
    }

    static GPU_FN void consume(const args &a, const work &w, int wg)
    {
        const auto &p = a.base.p.forward;
        const int warp = gpu_wave_id() % 4, lane = gpu_lane(), quad = lane % 4;
        const float scale = a.base.scale_log2;
        // A thread holds keys g and g + 8 of its warp's 16 (g = lane / 4) and of every 8 queries the two at 2·quad: element
        // 4·i + 2·h + c is key g + 8·h, query 8·i + 2·quad + c.
        const int key0 = wg * 64 + warp * 16 + lane / 4;
        float dk[D / 2], dv[D / 2], x[BM / 2], dp[BM / 2], dq[COLS / 2];
        uint32_t weights[BM / 4], ds[BM / 4];
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            dk[i] = dv[i] = 0;

        // 64 keys x BM queries: the keys at `own`, the tile of queries at `tile`.
        const auto issue_scores = [&](float(&to)[BM / 2], uint32_t own, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile, 16), k = gpu_wgmma_matrix(own + wg * 8192, 16);
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
                gpu_wgmma<E, BM>::kk(to, gpu_wgmma_descriptor(k + kk / 4 * (PANEL_K * 2 >> 4) + kk % 4 * 2, 1024),
                                     gpu_wgmma_descriptor(b + kk / 4 * (PANEL_Q * 2 >> 4) + kk % 4 * 2, 1024), kk != 0);
            gpu_wgmma_commit();
        };
        // 64 keys x D: += weights·rows of the tile.
        const auto issue_rows = [&](float(&to)[D / 2], const uint32_t *by, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile, PANEL_Q * 2);
#pragma unroll
            for (int kk = 0; kk < BM / 16; kk++)
                gpu_wgmma<E, D>::rs(to, by + 4 * kk, gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            gpu_wgmma_commit();
        };
        // 64 keys x D: += dS·rows of the tile, dS from shared memory.
        const auto issue_dk = [&](int buffer, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile, PANEL_Q * 2),
                           own = gpu_wgmma_matrix(DS + buffer * DS_BYTES + wg * 8192, 16);
#pragma unroll
            for (int kk = 0; kk < BM / 16; kk++)
                gpu_wgmma<E, D>::kn(dk, gpu_wgmma_descriptor(own + kk / 4 * (PANEL_K * 2 >> 4) + kk % 4 * 2, 1024),
                                    gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            gpu_wgmma_commit();
        };
        // 64 queries x COLS: dSᵀ·K over the block's keys.
        const auto issue_dq = [&](int buffer) {
            const uint32_t b = gpu_wgmma_matrix(DS + buffer * DS_BYTES + (BM == 128 ? wg * PANEL_K * 2 : 0), 16),
                           k = gpu_wgmma_matrix(K + (BM == 128 ? 0 : wg * (D == 128 ? PANEL_K * 2 : 64)), 16);
#pragma unroll
            for (int kk = 0; kk < BN / 16; kk++)
                gpu_wgmma<E, COLS>::mn(dq, gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024),
                                       gpu_wgmma_descriptor(k + kk * (2048 >> 4), 1024), kk != 0);
            gpu_wgmma_commit();
        };
        const auto hide = [&](int m) {
            const int key0 = gpu_again(gpu_thread()) / 32 * 16 + lane / 4;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int key = key0 + 8 * h, shift = m * BM + 2 * quad; // i = shift + ... sees it if first <= i < past
                int first = key - w.high + 1 - shift, past = key - w.low + 1 - shift;
                if (key >= w.keys)
                    past = first = BM;
#pragma unroll
                for (int i = 0; i < BM / 8; i++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        if (8 * i + c < first || 8 * i + c >= past)
                            x[4 * i + 2 * h + c] = gpu_minus_infinity();
            }
        };
        // Downwards, here and in gradients(): upwards ptxas puts the first weights where it wants the operands, and spills.
        const auto weigh = [&](int stage) {
            const uint32_t at = LSE + stage * (BM * 4) + 16 * quad;
#pragma unroll
            for (int i = BM / 8 - 2; i >= 0; i -= 2) {
                const gpu_vec<float, 4> l = gpu_load4_at(at + 32 * i);
#pragma unroll
                for (int h = 0; h < 4; h++) { // h % 2: key; h / 2: group of 8 queries
                    const int e = 4 * i + 2 * h;
                    x[e] = gpu_exp2(gpu_fma(x[e], scale, l[h / 2 * 2]));
                    x[e + 1] = gpu_exp2(gpu_fma(x[e + 1], scale, l[h / 2 * 2 + 1]));
                    weights[e / 2] = gpu_pair<E>(x[e], x[e + 1]);
                }
            }
        };
        const auto gradients = [&](int stage) {
            const uint32_t at = DELTA + stage * (BM * 4) + 16 * quad;
#pragma unroll
            for (int i = BM / 8 - 2; i >= 0; i -= 2) {
                const gpu_vec<float, 4> l = gpu_load4_at(at + 32 * i);
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    const int e = 4 * i + 2 * h;
                    ds[e / 2] = gpu_pair<E>(x[e] * (dp[e] - l[h / 2 * 2]), x[e + 1] * (dp[e + 1] - l[h / 2 * 2 + 1]));
                }
            }
        };
        const uint32_t ds_at = DS + (wg * 64 + warp * 16 + lane % 16) * 128 + (((lane / 16) ^ lane % 8) << 4);
        // [key][query]: 64 queries are a row of 128 bytes; after all keys the next 64.
        const auto store_ds = [&](int buffer) {
#pragma unroll
            for (int i = 0; i < BM / 8; i += 2)
                gpu_stmatrix_at(((ds_at + buffer * DS_BYTES) ^ (i % 8 << 4)) + i / 8 * (PANEL_K * 2), ds + 2 * i);
        };
        const auto dq_out = [&](int tile) {
            const int thread = gpu_again(gpu_thread()), mine = thread / 32 * (TILE / 8) + thread % 32 * 4;
            if constexpr (ORDERED) {
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    gpu_store4_at(DQ + (mine + i * 128) * 4, dq + 4 * i);
                gpu_async_fence();
                gpu_wave_barrier();
                if (thread % 32 == 0)
                    gpu_mbarrier_arrive(DQ_FULL);
            } else {
                float *to = a.dq + (int64_t)tile * TILE + mine;
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    gpu_add4(to + i * 128, dq + 4 * i);
            }
        };

        if (w.m_past > w.m_first) {
            wgmma_ring<STAGES> ring;
            gpu_mbarrier_wait(K_FULL, 0);
            gpu_mbarrier_wait(V_FULL, 0);
            gpu_mbarrier_wait(Q_FULL, 0);
            gpu_wgmma_fence();
            issue_scores(x, K, Q);
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(x);
            bool last = false;
#pragma unroll 1
            for (int j = 0; !last; j++) { // under way at this point: dK of step j - 1
                const int stage = ring.stage;
                gpu_mbarrier_wait(DO_FULL + 8 * stage, ring.parity);
                const int m = gpu_load_at(STEP + 8 * stage + 4);
                gpu_wgmma_fence();
                issue_scores(dp, V, DO + stage * Q_BYTES);
                if (m >= 0)
                    hide(m);
                weigh(stage);
                gpu_wgmma_fence();
                issue_rows(dv, weights, DO + stage * Q_BYTES);
                gpu_wgmma_wait<1>();
                gpu_wgmma_settle(dp);
                if constexpr (DS_HELD)
                    gpu_wgmma_settle(ds);
                if (lane == 0 && j > 0)
                    gpu_mbarrier_arrive(Q_EMPTY + 8 * (stage == 0 ? STAGES - 1 : stage - 1));
                gradients(stage);
                store_ds(j & 1);
                gpu_async_fence();
                const int tile = gpu_uniform(gpu_load_at(STEP + 8 * stage));
                last = tile < 0;
                gpu_wgmma_wait<0>(); // dV: beside the next scores the compiler runs out of registers
                gpu_wgmma_settle(dv);
                gpu_wgmma_settle(weights);
                if (lane == 0)
                    gpu_mbarrier_arrive(DO_EMPTY + 8 * stage);
                ring.next();
                if constexpr (ORDERED)
                    gpu_mbarrier_wait(DQ_EMPTY, (j & 1) ^ 1);
                if (!last)
                    gpu_mbarrier_wait(Q_FULL + 8 * ring.stage, ring.parity);
                gpu_wgmma_fence();
                issue_scores(x, K, Q + ring.stage * Q_BYTES); // after the last step of stale data: as many under way
                // Both halves of dS are there. One barrier a step is enough with two buffers: who passes it has done with the
                // buffer that the other is about to write.
                gpu_named_barrier(1, 256);
                gpu_wgmma_fence();
                issue_dq(j & 1);
                if constexpr (DS_HELD)
                    issue_rows(dk, ds, Q + stage * Q_BYTES);
                else
                    issue_dk(j & 1, Q + stage * Q_BYTES);
                gpu_wgmma_wait<1>();
                gpu_wgmma_settle(x);
                gpu_wgmma_settle(dq);
                dq_out(tile & ~LAST);
            }
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(dk);
            gpu_wgmma_settle(dv);
            gpu_wgmma_settle(x);
        }
        bool open = write(a.base.p.dv, w, key0, dv, wgmma_lowered<E>(1));
        open |= write(a.base.p.dk, w, key0, dk, wgmma_lowered<E>((float)p.softmax_scale));
        if (gpu_group_any(2 + wg, open) && warp == 0 && lane == 0)
            a.open_k[gpu_atomic_add(&a.open[0], 1)] = w.again + wg;
    }
    // My rows to memory. Is something not finite?
    static GPU_FN bool write(const kiln_view &view, const work &w, int key0, const float (&sum)[D / 2], float scale)
    {
        const gpu_rows<E> out(gpu_rows<E>(view, w.k_batch, w.head_k).from(w.k_row));
        const float limit = gpu_overflow_of(view.type);
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++)
            open |= wgmma_store_row<E, D>(out, key0 + 8 * h, key0 + 8 * h < w.keys, 0, (int)view.size[3], limit,
                                          [&](int i, int e) { return sum[4 * i + 2 * h + e] * scale; });
        return open;
    }
};

// A tile of queries of one head: item = (batch, head, tile).
template <class E, int D, int ROWS> struct attention_backward_wgmma_tiles {
    using args = gpu_wgmma_backward_args;
    static constexpr int BM = ROWS, TILE = BM * D, threads = 256, blocks = 2, tile_q = BM, tile_k = 0;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static GPU_FN int64_t slot(const args &a, const kiln_sequence &s, const gpu_item &of)
    {
        return of.head * a.q_room +
               gpu_wgmma_tile_of(kiln_view_present(&a.base.p.forward.cu_seqlens_q), of.batch, s.q_row, BM, a.m_tiles) +
               of.tile;
    }
};

template <class E, int D, int ROWS>
struct attention_backward_wgmma_prepare : attention_backward_wgmma_tiles<E, D, ROWS> {
    using base = attention_backward_wgmma_tiles<E, D, ROWS>;
    using typename base::args, typename base::shared;
    using work = gpu_wgmma_backward_work;
    static constexpr int BM = base::BM, BN = GPU_WGMMA_KEYS, threads = base::threads;

    static GPU_FN int64_t first_tile(const kiln_attention_problem &p, int64_t b) // of packed keys, of KV head 0
    {
        const int64_t row = gpu_read<int32_t>(p.cu_seqlens_k, b);
        return gpu_wgmma_tile_of(true, b, row < 0 ? 0 : row < p.total_k ? row : p.total_k, BN, 0);
    }
    static GPU_FN work work_of(const args &a, int64_t block)
    {
        const auto &p = a.base.p.forward;
        const int64_t tiles = a.n_tiles, heads = p.batch * p.heads_k;
        int64_t batch = 0, head_k, n;
        if (kiln_view_present(&p.cu_seqlens_k)) { // tile by tile, all heads: of the last b that does not begin after it
            const int64_t tile = gpu_divide(block, p.heads_k);
            int64_t past = p.batch;
#pragma unroll 1
            while (past - batch > 1) {
                const int64_t b = (batch + past) / 2;
                if (first_tile(p, b) <= tile)
                    batch = b;
                else
                    past = b;
            }
            head_k = block - tile * p.heads_k, n = tile - first_tile(p, batch); // < 0: before all
        } else {
            int64_t bh;
            if (p.masked) { // within a section of heads the tiles with the most queries (of a causal mask) first
                const int64_t section = gpu_divide(block, a.section * tiles), in = block - section * a.section * tiles;
                const int64_t rest = heads - section * a.section, here = rest < a.section ? rest : a.section;
                n = gpu_divide(in, here), bh = section * a.section + in - n * here;
            } else
                bh = gpu_divide(block, tiles), n = block - bh * tiles;
            batch = gpu_divide(bh, p.heads_k), head_k = bh - batch * p.heads_k;
        }
        const int64_t n0 = n * BN;
        const kiln_sequence s = gpu_sequence_of(p, batch);
        const wgmma_window window(p, s);
        const int64_t left = s.seqlen_k - n0, keys = n < 0 || left < 0 ? 0 : left < BN ? left : BN, most = 1 << 30;
        const int64_t low = window.low - n0 < -most ? -most : window.low - n0,
                      high = window.high - n0 < -most ? -most : window.high - n0;
        work w;
        w.q_row = (int32_t)s.q_row, w.q_batch = (int32_t)s.q_batch;
        w.k_row = (int32_t)(s.k_row + n0), w.k_batch = (int32_t)s.k_batch;
        w.head_k = (int32_t)head_k, w.keys = (int32_t)keys, w.low = (int32_t)low, w.high = (int32_t)high;
        // My key j is seen by the queries j - high < i <= j - low; all of them by BN - high <= i <= -low.
        const auto within = [](int64_t x, int64_t least, int64_t past) {
            return x < least ? least : x < past ? x : past;
        };
        const int64_t begin = within(1 - high, 0, s.seqlen_q), end = within(keys - low, begin, s.seqlen_q);
        w.m_first = (int32_t)(begin / BM);
        w.m_past = keys == 0 || end == begin ? w.m_first : (int32_t)((end + BM - 1) / BM);
        w.clear_first = high >= BN ? 0 : (int32_t)((BN - high + BM - 1) / BM);
        w.clear_past = keys < BN || 1 - low < BM ? 0 : (int32_t)((1 - low) / BM);
        const bool packed = kiln_view_present(&p.cu_seqlens_q);
        w.q_tile = (int32_t)(head_k * a.group * a.q_room + gpu_wgmma_tile_of(packed, batch, s.q_row, BM, a.m_tiles));
        w.turn = (int32_t)n;
        w.again = (batch * p.heads_k + head_k) * a.base.k_tiles + n * (BN / GPU_WGMMA_ROWS);
        return w;
    }

    // Each block also makes as many records for `main` as it has threads.
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        constexpr int PER_ROW = D / 8, STEP = threads / PER_ROW, STEPS = BM / STEP;
        const auto &p = a.base.p.forward;
        const int64_t at = item * threads + gpu_thread();
        if (at < a.works)
            a.work[at] = work_of(a, at);
        if (at < 3)
            a.open[at] = 0;
        if (item >= p.batch * p.heads * a.m_tiles)
            return;
        const gpu_item of(p, item, a.m_tiles);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = of.tile * BM, tile = base::slot(a, s, of);
        if (q0 >= s.seqlen_q)
            return;
        const int col = gpu_thread() % PER_ROW * 8, r0 = gpu_thread() / PER_ROW;
        const gpu_rows<const E> o(gpu_rows<const E>(p.o, s.q_batch, of.head).from(s.q_row + q0)),
            dout(gpu_rows<const E>(a.base.p.dout, s.q_batch, of.head).from(s.q_row + q0));
        gpu_vec<E, 8> x[STEPS] = {}, y[STEPS] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (q0 + r0 + i * STEP < s.seqlen_q && col < p.d_v)
                x[i] = gpu_load<8>(o, r0 + i * STEP, col), y[i] = gpu_load<8>(dout, r0 + i * STEP, col);
        if (a.turn && gpu_thread() == 0) { // the first whose keys my first query may see
            const int64_t key = q0 + wgmma_window(p, s).low;
            a.turn[tile] = key < 0 ? 0 : (uint32_t)(key / BN);
        }
        float *sums = a.dq + tile * base::TILE;
        const gpu_vec<float, 4> zero = {};
#pragma unroll
        for (int i = 0; i < base::TILE / 4 / threads; i++)
            gpu_put<16>(sums + (gpu_thread() + threads * i) * 4, &zero);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = gpu_fma(gpu_to_float(x[i][e]), gpu_to_float(y[i][e]), sum);
            sum = gpu_wave_sum<PER_ROW>(sum);
            if (gpu_thread() % PER_ROW != 0)
                continue;
            const int r = r0 + i * STEP;
            const int64_t row = s.q_row + q0 + r;
            float lse = gpu_minus_infinity(); // past the last: no weight
            if (q0 + r < s.seqlen_q) {
                const float l = gpu_read<float>(p.lse, s.q_batch, of.head, row);
                lse = l == gpu_minus_infinity() ? l : gpu_fma(l, -1.44269504089f, (float)wgmma_lift<E>());
                if (kiln_view_present(&a.base.p.dlse))
                    sum -= gpu_read<float>(a.base.p.dlse, s.q_batch, of.head, row);
            }
            a.lse[tile * BM + wgmma_row_slot(r)] = lse;
            a.delta[tile * BM + wgmma_row_slot(r)] = sum;
            if (q0 + r < s.seqlen_q) // for `again`
                gpu_write<float>(a.base.delta, s.q_batch, of.head, row, 0, sum);
        }
    }
};

template <class E, int D, int ROWS>
struct attention_backward_wgmma_finish : attention_backward_wgmma_tiles<E, D, ROWS> {
    using base = attention_backward_wgmma_tiles<E, D, ROWS>;
    using typename base::args, typename base::shared;
    static constexpr int BM = base::BM, COLS = BM * D / 128, PIECES = COLS / 8;
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.base.p.forward;
        const gpu_item of(p, item, a.m_tiles);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = of.tile * BM, tile = base::slot(a, s, of);
        if (q0 >= s.seqlen_q)
            return;
        const int wave = gpu_wave_id(), lane = gpu_lane();
        const float *sums = a.dq + tile * base::TILE + wave * (base::TILE / 8) + lane * 4;
        gpu_vec<float, 4> x[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            gpu_move<16>(&x[i], sums + 128 * i);
        const auto &view = a.base.p.dq;
        const gpu_rows<E> out(gpu_rows<E>(view, s.q_batch, of.head).from(s.q_row + q0));
        const float scale = wgmma_lowered<E>((float)p.softmax_scale), limit = gpu_overflow_of(view.type);
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = wave % (BM / 16) * 16 + lane / 4 + 8 * h;
            open |= wgmma_store_row<E, COLS>(out, r, q0 + r < s.seqlen_q, wave / (BM / 16) * COLS, (int)view.size[3],
                                             limit, [&](int i, int e) { return x[i][2 * h + e] * scale; });
        }
        if (gpu_block_any(open) && gpu_thread() == 0)
            for (int64_t row = q0; row < q0 + BM && row < s.seqlen_q; row += GPU_WGMMA_ROWS) // `again` counts downwards
                a.open_q[gpu_atomic_add(&a.open[1], 1)] =
                    (of.batch * p.heads + of.head) * a.base.q_tiles + a.base.q_tiles - 1 - row / GPU_WGMMA_ROWS;
    }
};

// Tiles whose gradient is not finite, by the kernels of flash2: item = block, each takes its share of the lists.
template <class TILES> struct attention_backward_wgmma_again {
    using args = gpu_wgmma_backward_args;
    using keys = attention_backward_keys<TILES>;
    using queries = attention_backward_queries<TILES>;
    using shared = typename keys::shared;
    static constexpr int threads = keys::threads, blocks = 1, tile_q = keys::tile_q, tile_k = keys::tile_k;
    static_assert(tile_q == GPU_WGMMA_ROWS && tile_k == GPU_WGMMA_ROWS, "tiles are counted alike");
    static GPU_FN void run(const args &a, shared &sh, int64_t item)
    {
        const int64_t of_keys = 2 * (int64_t)a.open[0], all = of_keys + a.open[1]; // dk and dv are an item each
#pragma unroll 1
        for (int64_t i = item; i < all; i += a.items) {
            if (i != item)
                gpu_next_item();
            if (i < of_keys)
                keys::run(a.base, sh, 2 * a.open_k[i / 2] + i % 2);
            else
                queries::run(a.base, sh, a.open_q[i - of_keys]);
        }
    }
};
