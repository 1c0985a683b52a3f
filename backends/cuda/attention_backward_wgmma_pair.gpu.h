// SPDX-License-Identifier: MIT OR Apache-2.0
// The main kernel of attention backward, rung `wgmma`, for head sizes of 129 to 256: a pair of blocks (a cluster) has 128 keys, each block 64 of
// them, because dK and dV of 128 would fill all registers of one. Additions to dQ are what bounds 64 keys by themselves: 64 KB a
// step. So the two exchange dS, 8 KB, and each adds its half of the columns of dQ, over 128 keys: 32 KB a step.
//
// In a block the warpgroups share the keys: each computes the scores of its half of the queries, and its half of the columns of dV and
// dK, its quarter of those of dQ; so P too goes through shared memory. A step, P being there:
//
//   issue dP; dQ of the step before to memory; wait for dP; dS; issue S of the next step; barrier; a spare wave sends dS; issue dV,
//   dK; P of the next step under them; wait for the other's dS; issue dQ; wait for dV: dO may be replaced; for dK: Q; for all.
//
// The two are in step with each other: who has the other's dS of step j knows that it was done with step j - 1, so buffers need no
// word that they are free. One dO only: it is free when dV is done, and dK and dQ hide what comes in.
//
// Shared memory, at 128 bytes a cycle: 1536 of S and dP (of 64 x 32 scores each a third more than they compute), 768 of dV and dK, 512 of
// dQ, 640 of what comes in, 128 of dS, 3600 with P and dS; products 2560.
#pragma once
#include "attention_backward_wgmma.gpu.h"

template <class E> struct attention_backward_wgmma_pair {
    using args = gpu_wgmma_backward_args;
    using work = gpu_wgmma_backward_work;
    static constexpr int D = 256, BM = 64, KEYS = 64, BN = 2 * KEYS, STAGES = 2; // stages of Q
    static constexpr int threads = 384, blocks = 1, tile_q = BM, tile_k = BN;
    static constexpr int PRODUCER = 24, CONSUMER = 240, PANELS = D / 64,
                         PANEL = 64 * 64; // elements: 64 rows of 64 columns
    static constexpr int HALF = D / 2, QUERIES = BM / 2, TILE = BM * D;
    static constexpr uint32_t Q_BYTES = BM * D * 2, DS_BYTES = KEYS * BM * 2, PANEL_BYTES = PANEL * 2;

    struct alignas(1024) shared {
        E k[KEYS * D], v[KEYS * D], other[KEYS * HALF]; // other: the other block's K, my columns of dQ
        E q[STAGES][BM * D], dout[BM * D];
        E ds[2][KEYS * BM], p[2][KEYS * BM], far[2][KEYS * BM]; // far: the other block's dS
        float lse[STAGES][BM], delta[BM];
        uint64_t q_full[STAGES], q_empty[STAGES], do_full, do_empty, k_full, kv_empty, ds_full[2], far_full[2],
            work_full[2], work_empty[2], pass_full[2], pass_empty[2];
        int32_t step[STAGES][4]; // what is in a stage: see wgmma_say
        int32_t pass[2];         // numbers of items, from the first block to the second
        work mine[2];            // this item, and what the producer is at already; keys < 0: there is no more
    };
    static_assert(sizeof(shared) <= 232448, "shared memory of a block");
    // Of my own shared memory, as the matrix unit takes them; all other instructions want `here` added, which says whose it is.
#define WGMMA_PAIR_AT(NAME, field)                                                                                     \
    static constexpr uint32_t NAME = 1024 + offsetof(shared, field) // see wgmma_backward_block
    WGMMA_PAIR_AT(K, k);
    WGMMA_PAIR_AT(V, v);
    WGMMA_PAIR_AT(OTHER, other);
    WGMMA_PAIR_AT(Q, q);
    WGMMA_PAIR_AT(DO, dout);
    WGMMA_PAIR_AT(DS, ds);
    WGMMA_PAIR_AT(P, p);
    WGMMA_PAIR_AT(FAR, far);
    WGMMA_PAIR_AT(LSE, lse);
    WGMMA_PAIR_AT(DELTA, delta);
    WGMMA_PAIR_AT(Q_FULL, q_full);
    WGMMA_PAIR_AT(Q_EMPTY, q_empty);
    WGMMA_PAIR_AT(DO_FULL, do_full);
    WGMMA_PAIR_AT(DO_EMPTY, do_empty);
    WGMMA_PAIR_AT(K_FULL, k_full);
    WGMMA_PAIR_AT(KV_EMPTY, kv_empty);
    WGMMA_PAIR_AT(DS_FULL, ds_full);
    WGMMA_PAIR_AT(FAR_FULL, far_full);
    WGMMA_PAIR_AT(WORK_FULL, work_full);
    WGMMA_PAIR_AT(WORK_EMPTY, work_empty);
    WGMMA_PAIR_AT(PASS_FULL, pass_full);
    WGMMA_PAIR_AT(PASS_EMPTY, pass_empty);
    WGMMA_PAIR_AT(STEP, step);
    WGMMA_PAIR_AT(PASS, pass);
#undef WGMMA_PAIR_AT

    static GPU_FN void run(const args &a, shared &sh)
    {
        const uint32_t here = gpu_shared_address(&sh) - 1024;
        if (here << 8 != 0)
            gpu_trap();
        if (gpu_thread() == 0) {
            for (int i = 0; i < 2; i++) {
                gpu_mbarrier_init(here + Q_FULL + 8 * i, 1), gpu_mbarrier_init(here + Q_EMPTY + 8 * i, 8);
                gpu_mbarrier_init(here + DS_FULL + 8 * i, 1), gpu_mbarrier_init(here + FAR_FULL + 8 * i, 1);
                gpu_mbarrier_init(here + WORK_FULL + 8 * i, 1), gpu_mbarrier_init(here + WORK_EMPTY + 8 * i, 9);
                gpu_mbarrier_init(here + PASS_FULL + 8 * i, 1), gpu_mbarrier_init(here + PASS_EMPTY + 8 * i, 1);
            }
            gpu_mbarrier_init(here + DO_FULL, 1), gpu_mbarrier_init(here + DO_EMPTY, 8);
            gpu_mbarrier_init(here + K_FULL, 1), gpu_mbarrier_init(here + KV_EMPTY, 8);
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v),
                gpu_tensor_prefetch(&a.dout);
        }
        gpu_pair_barrier(); // neither speaks to the other before its barriers are there
        gpu_chain_go();
        gpu_chain_wait();
        const int wg = gpu_warpgroup(), rank = gpu_uniform(gpu_pair_rank());
        if (wg == 2) {
            gpu_registers_give<PRODUCER>();
            if (gpu_thread() == 256)
                produce(a, sh, here, rank);
            if (gpu_thread() == 288)
                send(a, sh, here, rank);
            gpu_pair_barrier(); // nor after it has gone
            return;
        }
        gpu_registers_take<CONSUMER>();
        consume(a, sh, here, wg, rank);
        gpu_pair_barrier();
    }

    static GPU_FN void produce(const args &a, shared &sh, uint32_t here, int rank)
    {
        wgmma_ring<STAGES> ring;
        uint32_t loaded = 0, step = 0; // K and V so often
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const uint32_t slot = item % 2, parity = item / 2 % 2;
            work &w = sh.mine[slot];
            gpu_mbarrier_wait(here + WORK_EMPTY + slot * 8, parity ^ 1);
            if (rank == 0) {
                const int number = wgmma_fetch(a, w) ? (int)w.number : -1;
                gpu_mbarrier_wait(here + PASS_EMPTY + slot * 8, parity ^ 1);
                gpu_pair_store(gpu_pair_address(here + PASS + slot * 4, 1), number,
                               gpu_pair_address(here + PASS_FULL + slot * 8, 1));
            } else {
                gpu_mbarrier_expect(here + PASS_FULL + slot * 8, 4);
                gpu_mbarrier_wait(here + PASS_FULL + slot * 8, parity);
                const int number = gpu_load_at(here + PASS + slot * 4);
                gpu_pair_arrive(gpu_pair_address(here + PASS_EMPTY + slot * 8, 0));
                if (number < 0)
                    w.keys = -1;
                else
                    w = a.work[number];
            }
            gpu_mbarrier_arrive(here + WORK_FULL + slot * 8);
            if (w.keys < 0)
                return;
            const int m_first = w.m_first, m_past = w.m_past, group = (int)a.group;
            int tile = w.q_tile; // m = 0 of the head
#pragma unroll 1
            for (int head = 0; head < group; head++, tile += (int)a.q_room)
#pragma unroll 1
                for (int m = m_first; m < m_past; m++, step++) {
                    const int row = w.q_row + m * BM, of = w.head + head;
                    const uint32_t full = here + Q_FULL + 8 * ring.stage;
                    gpu_mbarrier_wait(here + Q_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                    wgmma_say<BM>(sh.step[ring.stage], w, tile, m, m == m_past - 1 && head == group - 1);
                    gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll 1
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.q, here + Q + ring.stage * Q_BYTES + c * PANEL_BYTES, full, c * 64, row, of,
                                        w.q_batch);
                    gpu_bulk_load(here + LSE + ring.stage * BM * 4, a.lse + (int64_t)(tile + m) * BM, BM * 4, full);
                    if (m == m_first && head == 0) {
                        gpu_mbarrier_wait(here + KV_EMPTY, loaded++ % 2 ^ 1);
                        gpu_mbarrier_expect(here + K_FULL,
                                            sizeof(shared::k) + sizeof(shared::v) + sizeof(shared::other));
                        const int k_row = w.k_row + rank * KEYS, far_row = w.k_row + (rank ^ 1) * KEYS;
#pragma unroll 1
                        for (int c = 0; c < PANELS; c++) {
                            gpu_tensor_load(&a.k, here + K + c * PANEL_BYTES, here + K_FULL, c * 64, k_row, w.head_k,
                                            w.k_batch);
                            gpu_tensor_load(&a.v, here + V + c * PANEL_BYTES, here + K_FULL, c * 64, k_row, w.head_k,
                                            w.k_batch);
                        }
#pragma unroll 1
                        for (int c = 0; c < PANELS / 2; c++)
                            gpu_tensor_load(&a.k, here + OTHER + c * PANEL_BYTES, here + K_FULL, rank * HALF + c * 64,
                                            far_row, w.head_k, w.k_batch);
                    }
                    gpu_mbarrier_wait(here + DO_EMPTY, step % 2 ^ 1);
                    gpu_mbarrier_expect(here + DO_FULL, Q_BYTES + BM * 4);
#pragma unroll 1
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.dout, here + DO + c * PANEL_BYTES, here + DO_FULL, c * 64, row, of,
                                        w.q_batch);
                    gpu_bulk_load(here + DELTA, a.delta + (int64_t)(tile + m) * BM, BM * 4, here + DO_FULL);
                    ring.next();
                }
        }
    }
    // Sends dS to the other block. One thread.
    static GPU_FN void send(const args &a, const shared &sh, uint32_t here, int rank)
    {
        uint32_t step = 0;
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = sh.mine[item % 2];
            gpu_mbarrier_wait(here + WORK_FULL + item % 2 * 8, item / 2 % 2);
            if (w.keys < 0)
                return;
            const uint32_t past = step + (uint32_t)(w.m_past - w.m_first) * (uint32_t)a.group;
#pragma unroll 1
            for (; step != past; step++) {
                const uint32_t buffer = step % 2, full = here + FAR_FULL + buffer * 8;
                gpu_mbarrier_wait(here + DS_FULL + buffer * 8, step / 2 % 2);
                gpu_mbarrier_expect(full, DS_BYTES); // what the other sends me; it may be there already
                gpu_pair_copy(gpu_pair_address(here + FAR + buffer * DS_BYTES, rank ^ 1), here + DS + buffer * DS_BYTES,
                              DS_BYTES, gpu_pair_address(full, rank ^ 1));
            }
            gpu_mbarrier_arrive(here + WORK_EMPTY + item % 2 * 8);
        }
    }

    static GPU_FN void consume(const args &a, const shared &sh, uint32_t here, int wg, int rank)
    {
        const int warp = gpu_wave_id() % 4, lane = gpu_lane();
        const float scale = a.base.scale_log2;
        // Element 4·i + 2·h + c of x and dp is key g + 8·h of the warp's 16 (g = lane / 4), query 8·i + 2·(lane % 4) + c of my 32.
        const int key0 = rank * KEYS + warp * 16 + lane / 4; // of the pair's
        float dk[HALF / 2], dv[HALF / 2], dq[HALF / 4], x[QUERIES / 2], dp[QUERIES / 2];
        uint32_t pairs[QUERIES / 4];

        // 64 keys x my queries: the keys at `own`, the tile of queries at `tile`.
        const auto issue_scores = [&](float(&to)[QUERIES / 2], uint32_t own, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile + wg * (QUERIES * 128), 16), k = gpu_wgmma_matrix(own, 16);
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
                gpu_wgmma<E, QUERIES>::kk(to, gpu_wgmma_descriptor(k + kk / 4 * (PANEL_BYTES >> 4) + kk % 4 * 2, 1024),
                                          gpu_wgmma_descriptor(b + kk / 4 * (PANEL_BYTES >> 4) + kk % 4 * 2, 1024),
                                          kk != 0);
            gpu_wgmma_commit();
        };
        // 64 keys x my columns: += P or dS, at `by`, times the rows of the tile.
        const auto issue_rows = [&](float(&to)[HALF / 2], uint32_t by, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile + wg * (HALF / 64 * PANEL_BYTES), PANEL_BYTES),
                           k = gpu_wgmma_matrix(by, 16);
#pragma unroll
            for (int kk = 0; kk < BM / 16; kk++)
                gpu_wgmma<E, HALF>::kn(to, gpu_wgmma_descriptor(k + kk * 2, 1024),
                                       gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            gpu_wgmma_commit();
        };
        // 64 queries x my 64 columns: dSᵀ·K over the keys of both blocks.
        const auto issue_dq = [&](int buffer) {
            const uint32_t own = gpu_wgmma_matrix(DS + buffer * DS_BYTES, 16),
                           k = gpu_wgmma_matrix(K + (rank * 2 + wg) * PANEL_BYTES, 16),
                           far = gpu_wgmma_matrix(FAR + buffer * DS_BYTES, 16),
                           other = gpu_wgmma_matrix(OTHER + wg * PANEL_BYTES, 16);
#pragma unroll
            for (int kk = 0; kk < KEYS / 16; kk++)
                gpu_wgmma<E, HALF / 2>::mn(dq, gpu_wgmma_descriptor(own + kk * (2048 >> 4), 1024),
                                           gpu_wgmma_descriptor(k + kk * (2048 >> 4), 1024), kk != 0);
#pragma unroll
            for (int kk = 0; kk < KEYS / 16; kk++)
                gpu_wgmma<E, HALF / 2>::mn(dq, gpu_wgmma_descriptor(far + kk * (2048 >> 4), 1024),
                                           gpu_wgmma_descriptor(other + kk * (2048 >> 4), 1024), true);
            gpu_wgmma_commit();
        };
        const uint32_t mine = here + (warp * 16 + lane % 16) * 128 + (((wg * 4 + lane / 16) ^ lane % 8) << 4);
        const auto store = [&](uint32_t to) { // [key][query]
#pragma unroll
            for (int i = 0; i < QUERIES / 8; i += 2)
                gpu_stmatrix_at((to + mine) ^ (i << 4), pairs + 2 * i);
        };
        const auto weigh = [&](int stage, uint32_t to) {
            const int keys = gpu_load_at(here + STEP + 16 * stage + 4);
            if (keys >= 0)
                wgmma_hide(x, here + STEP + 16 * stage, keys, key0, wg * QUERIES);
            wgmma_weigh<E>(x, pairs, here + LSE + stage * (BM * 4) + wg * (QUERIES * 4), scale);
            store(to);
        };
        const auto gradients = [&](uint32_t to) {
            wgmma_gradients<E>(x, dp, pairs, here + DELTA + wg * (QUERIES * 4));
            store(to);
        };
        // Of the tile in registers' order (attention_backward_wgmma_finish) the block's half of the columns, the warpgroup's half of these.
        const int share = (rank * 4 + warp) * (TILE / 8) + wg * (TILE / 16) + lane * 4;
        const auto dq_out = [&](int tile) {
            float *to = a.dq + (int64_t)tile * TILE + share;
#pragma unroll
            for (int i = 0; i < HALF / 16; i++)
                gpu_add4(to + i * 128, dq + 4 * i);
        };

        wgmma_ring<STAGES> ring;
        uint32_t loaded = 0; // K and V so often
        int j = 0;           // step
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = sh.mine[item % 2];
            gpu_mbarrier_wait(here + WORK_FULL + item % 2 * 8, item / 2 % 2);
            if (gpu_uniform(w.keys) < 0)
                break;
#pragma unroll
            for (int i = 0; i < HALF / 2; i++)
                dk[i] = dv[i] = 0;
            if (gpu_uniform(w.m_past - w.m_first) > 0) {
                gpu_mbarrier_wait(here + K_FULL, loaded++ % 2);
                gpu_mbarrier_wait(here + Q_FULL + 8 * ring.stage, ring.parity);
                gpu_wgmma_fence();
                issue_scores(x, K, Q + ring.stage * Q_BYTES);
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(x);
                weigh(ring.stage, P + (j & 1) * DS_BYTES);
                bool last = false;
                int before = -1; // the tile of the step before, whose dQ is in registers
#pragma unroll 1
                for (; !last; j++) { // here: P of step j, in registers and in shared memory; nothing is under way
                    const int stage = ring.stage;
                    gpu_mbarrier_wait(here + DO_FULL, j & 1);
                    gpu_wgmma_fence();
                    issue_scores(dp, V, DO);
                    if (before >= 0)
                        dq_out(before);
                    const int tile = gpu_uniform(gpu_load_at(here + STEP + 16 * stage));
                    last = tile < 0, before = tile & ~WGMMA_LAST;
                    gpu_wgmma_wait<0>();
                    gpu_wgmma_settle(dp);
                    gradients(DS + (j & 1) * DS_BYTES);
                    gpu_async_fence();
                    ring.next();
                    if (!last)
                        gpu_mbarrier_wait(here + Q_FULL + 8 * ring.stage, ring.parity);
                    const int next = last ? stage : ring.stage; // see attention_backward_wgmma
                    gpu_wgmma_fence();
                    issue_scores(x, K, Q + next * Q_BYTES);
                    // P and dS of step j are there, and whoever passes has done with all products of step j - 1.
                    gpu_named_barrier(1, 256);
                    if (gpu_thread() == 0)
                        gpu_mbarrier_arrive(here + DS_FULL + (j & 1) * 8);
                    gpu_wgmma_fence();
                    issue_rows(dv, P + (j & 1) * DS_BYTES, DO);
                    issue_rows(dk, DS + (j & 1) * DS_BYTES, Q + stage * Q_BYTES);
                    gpu_wgmma_wait<2>();
                    gpu_wgmma_settle(x);
                    weigh(next, P + (~j & 1) * DS_BYTES);
                    gpu_mbarrier_wait(here + FAR_FULL + (j & 1) * 8, j >> 1 & 1);
                    gpu_wgmma_fence();
                    issue_dq(j & 1);
                    gpu_wgmma_wait<2>();
                    gpu_wgmma_settle(dv);
                    wgmma_leave(here + DO_EMPTY);
                    gpu_wgmma_wait<1>();
                    gpu_wgmma_settle(dk);
                    wgmma_leave(here + Q_EMPTY + 8 * stage);
                    gpu_wgmma_wait<0>();
                    gpu_wgmma_settle(dq);
                }
                wgmma_leave(here + KV_EMPTY);
                dq_out(before);
            }
            bool open = false;
            if (a.parts > 1) {
                wgmma_put_part<HALF>(a, 2 * w.number + rank, 0, dv);
                wgmma_put_part<HALF>(a, 2 * w.number + rank, 1, dk);
            } else {
                const auto &p = a.base.p;
                open = wgmma_put_keys<E, HALF>(p.dv, w, key0, wg * HALF, dv, wgmma_lowered<E>(1));
                open = wgmma_put_keys<E, HALF>(p.dk, w, key0, wg * HALF, dk,
                                               wgmma_lowered<E>((float)p.forward.softmax_scale)) ||
                       open;
            }
            if (gpu_group_any(2, 256, open) && gpu_thread() == 0)
                a.open_k[gpu_atomic_add(&a.open[0], 1)] = w.again + rank;
            wgmma_leave(here + WORK_EMPTY + item % 2 * 8);
        }
    }
};
