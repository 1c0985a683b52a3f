// SPDX-License-Identifier: MIT OR Apache-2.0
// The main kernels of attention backward, rung `wgmma`, for head sizes of 129 to 256. dK and dV of 64 keys fill half of a
// multiprocessor's registers, so an item of the kernel of head sizes up to 128 would add 64 KB to dQ for 64 keys, and that is what
// it would wait for. Here dQ is a pass of its own, which works S and dP out once more: 7 products instead of 5, and nothing is added
// to memory, so the order of sums is fixed (DETERMINISTIC), and dQ needs no fp32 copy.
//
// Both have the loop of the forward pass: an operand stays, two stream past, and what is summed up (128 registers a thread) is issued
// beside the next scores.
//
//   keys     64 keys an item. Warpgroup 0: S, P, dV += P·dO; warpgroup 1: dP, dS = P∘(dP - D), dK += dS·Q. P goes from each thread of the
//            one to the same thread of the other, in fp32, for both have the same accumulators; as operands P and dS stay where they
//            are. 0 issues the next S before dV, and works its P out under dV; 1 issues dK before the next dP, which frees Q, and works
//            dS out under what 0 has issued. Q and dO wait for both, so three stages of Q and two of dO are what keeps them from
//            waiting for memory; room for the third: a quarter of K and V is in registers, and one P.
//   queries  128 queries an item, 64 a warpgroup: S, dP, dQ += dS·K; P under dP, the second half of dS under the first half of dQ. The
//            second warpgroup has dP before S, or both would work P and dS out at the same time. Each passes by the tiles of keys that
//            only the other's rows see.
//
// The items of `queries` need nothing of `keys`: a block begins with them when there is none of those left.
//
// FLOPs: 8·N²·d and 6·N²·d a head, causal half of it. Shared memory, at 128 bytes a cycle, for 64 keys x 64 queries: keys 896 of S and
// dP, 512 of dV and dK, 256 of P, 512 of what comes in, 2176 beside 2048 of products; queries 1024, 256, 256: 1536 beside 1536.
// Bytes requested per KV head: ⌈N/64⌉·group·2·N·d·e and group·⌈N/128⌉·2·N·d·e.
#pragma once
#include "attention_backward_wgmma_block.gpu.h"

// Addresses of shared memory as constants: see wgmma_backward_block.
#define WGMMA_AT(field) (1024 + offsetof(shared, field))

// Who does what in both kernels: two warpgroups of consumers, and two producers of one thread each. Am I of the producers' warpgroup?
template <class KERNEL> GPU_FN bool wgmma_roles(const typename KERNEL::args &a, typename KERNEL::shared &sh)
{
    const int wg = gpu_warpgroup();
    if (wg == 2) {
        gpu_registers_give<KERNEL::PRODUCER>();
        const int wave = gpu_uniform(gpu_wave_id());
        if (wave < 10 && gpu_elect()) {
            if (wave == 8)
                KERNEL::produce(a, sh);
            else
                KERNEL::produce_dout(a, sh);
        }
        return true;
    }
    gpu_registers_take<KERNEL::CONSUMER>();
    if (wg == 0)
        KERNEL::template consume<0>(a, sh);
    else
        KERNEL::template consume<1>(a, sh);
    return false;
}

template <class E> struct attention_backward_wgmma_keys {
    using args = gpu_wgmma_backward_args;
    using work = gpu_wgmma_backward_work;
    static constexpr int D = 256, BM = 64, BN = 64, Q_STAGES = 3, DO_STAGES = 2;
    static constexpr int threads = 384, blocks = 1, tile_q = BM, tile_k = BN;
    static constexpr int PRODUCER = 24, CONSUMER = 240, PANELS = D / 64,
                         HELD = 1;                                         // of K and V HELD panels are in registers
    static constexpr uint32_t PANEL = 64 * 64 * 2, BYTES = PANELS * PANEL; // of 64 columns, of all

    struct alignas(1024) shared {
        E k[(PANELS - HELD) * BN * 64], v[(PANELS - HELD) * BN * 64], q[Q_STAGES][BM * D], dout[DO_STAGES][BM * D];
        float p[BN * BM]; // and where the other panels of K and V come in
        float lse[Q_STAGES][BM], delta[DO_STAGES][BM];
        uint64_t q_full[Q_STAGES], q_empty[Q_STAGES], do_full[DO_STAGES], do_empty[DO_STAGES], k_full, v_full, kv_empty,
            p_full, p_empty, work_full[2], work_empty[2];
        int32_t step[Q_STAGES][4]; // what is in a stage: see wgmma_say
        work mine[2];              // this item, and what the producer is at already; keys < 0: there is no more
    };
    static_assert(sizeof(shared) <= 232448, "shared memory of a block");
    static_assert(2 * HELD * PANEL <= sizeof(shared::p), "they come in where P is");
    static constexpr uint32_t K = WGMMA_AT(k), V = WGMMA_AT(v), Q = WGMMA_AT(q), DO = WGMMA_AT(dout), P = WGMMA_AT(p),
                              LSE = WGMMA_AT(lse), DELTA = WGMMA_AT(delta), Q_FULL = WGMMA_AT(q_full),
                              Q_EMPTY = WGMMA_AT(q_empty), DO_FULL = WGMMA_AT(do_full), DO_EMPTY = WGMMA_AT(do_empty),
                              K_FULL = WGMMA_AT(k_full), V_FULL = WGMMA_AT(v_full), KV_EMPTY = WGMMA_AT(kv_empty),
                              P_FULL = WGMMA_AT(p_full), P_EMPTY = WGMMA_AT(p_empty), WORK_FULL = WGMMA_AT(work_full),
                              WORK_EMPTY = WGMMA_AT(work_empty), STEP = WGMMA_AT(step);

    static GPU_FN void run(const args &a, shared &sh)
    {
        if (gpu_shared_address(&sh) != 1024)
            gpu_trap();
        if (gpu_thread() == 0) {
            for (int i = 0; i < Q_STAGES; i++)
                gpu_mbarrier_init(Q_FULL + 8 * i, 2), gpu_mbarrier_init(Q_EMPTY + 8 * i, 8);
            for (int i = 0; i < DO_STAGES; i++)
                gpu_mbarrier_init(DO_FULL + 8 * i, 1), gpu_mbarrier_init(DO_EMPTY + 8 * i, 8);
            for (int i = 0; i < 2; i++)
                gpu_mbarrier_init(WORK_FULL + 8 * i, 1), gpu_mbarrier_init(WORK_EMPTY + 8 * i, 9);
            gpu_mbarrier_init(K_FULL, 1), gpu_mbarrier_init(V_FULL, 1), gpu_mbarrier_init(KV_EMPTY, 8);
            gpu_mbarrier_init(P_FULL, 4), gpu_mbarrier_init(P_EMPTY, 4);
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v),
                gpu_tensor_prefetch(&a.dout);
        }
        gpu_block_barrier();
        gpu_chain_wait();
        gpu_chain_go(); // not earlier: `queries` does not wait for what is there by now
        wgmma_roles<attention_backward_wgmma_keys>(a, sh);
    }

    // Two producers, of one thread each: neither waits for what the other loads. Q, K and V, and the items:
    static GPU_FN void produce(const args &a, shared &sh)
    {
        wgmma_ring<Q_STAGES> ring;
        uint32_t loaded = 0; // K and V so often
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            work &w = sh.mine[item % 2];
            gpu_mbarrier_wait(WORK_EMPTY + item % 2 * 8, item / 2 % 2 ^ 1);
            const bool more = wgmma_fetch(&a.open[2], a.works, a.work, &work::keys, w);
            gpu_mbarrier_arrive(WORK_FULL + item % 2 * 8);
            if (!more)
                return;
            const int m_first = w.m_first, m_past = w.m_past, group = (int)a.group, batch = w.q_batch;
            wgmma_fetch_keys<PANELS>(a, w);
            int tile = w.q_tile; // m = 0 of the head
#pragma unroll 1
            for (int head = 0; head < group; head++, tile += (int)a.q_room)
#pragma unroll 1
                for (int m = m_first; m < m_past; m++, ring.next()) {
                    const uint32_t full = Q_FULL + 8 * ring.stage;
                    gpu_mbarrier_wait(Q_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                    gpu_mbarrier_expect(full, BYTES + BM * 4);
                    load(&a.q, Q + ring.stage * BYTES, full, w.q_row + m * BM, w.head + head, batch);
                    gpu_bulk_load(LSE + ring.stage * BM * 4, a.lse + (int64_t)(tile + m) * BM, BM * 4, full);
                    wgmma_say<BM>(sh.step[ring.stage], w, tile, m, m == m_past - 1 && head == group - 1);
                    gpu_mbarrier_arrive(full);
                    if (m == m_first && head == 0) {
                        const int k_row = w.k_row, head_k = w.head_k, k_batch = w.k_batch;
                        gpu_mbarrier_wait(KV_EMPTY, loaded++ % 2 ^ 1);
                        gpu_mbarrier_expect(K_FULL, BYTES), gpu_mbarrier_expect(V_FULL, BYTES);
#pragma unroll
                        for (int c = 0; c < PANELS; c++) {
                            const bool held = c >= PANELS - HELD;
                            const uint32_t at = held ? P + (c - (PANELS - HELD)) * PANEL : c * PANEL;
                            gpu_tensor_load(&a.k, held ? at : K + at, K_FULL, c * 64, k_row, head_k, k_batch);
                            gpu_tensor_load(&a.v, held ? at + HELD * PANEL : V + at, V_FULL, c * 64, k_row, head_k,
                                            k_batch);
                        }
                    }
                }
        }
    }
    static GPU_FN void produce_dout(const args &a, const shared &sh)
    {
        wgmma_ring<DO_STAGES> ring;
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (w.keys < 0)
                return;
            const int m_first = w.m_first, m_past = w.m_past, group = (int)a.group, batch = w.q_batch, row = w.q_row,
                      first = w.head;
            int tile = w.q_tile; // m = 0 of the head
            gpu_mbarrier_arrive(WORK_EMPTY + item % 2 * 8);
#pragma unroll 1
            for (int head = 0; head < group; head++, tile += (int)a.q_room)
#pragma unroll 1
                for (int m = m_first; m < m_past; m++, ring.next()) {
                    const uint32_t full = DO_FULL + 8 * ring.stage;
                    gpu_mbarrier_wait(DO_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                    gpu_mbarrier_expect(full, BYTES + BM * 4);
                    load(&a.dout, DO + ring.stage * BYTES, full, row + m * BM, first + head, batch);
                    gpu_bulk_load(DELTA + ring.stage * BM * 4, a.delta + (int64_t)(tile + m) * BM, BM * 4, full);
                }
        }
    }
    static GPU_FN void load(const gpu_tensor_map *map, uint32_t to, uint32_t full, int row, int head, int batch)
    {
#pragma unroll
        for (int c = 0; c < PANELS; c++)
            gpu_tensor_load(map, to + c * PANEL, full, c * 64, row, head, batch);
    }

    // Warpgroup 0 has K; for each tile of queries scores Q·Kᵀ, of which it makes P, and sums of dO. 1 has V, dO·Vᵀ, dS, and sums of Q.
    template <int WG> static GPU_FN void consume(const args &a, shared &sh)
    {
        constexpr uint32_t OWN = WG == 0 ? K : V, OWN_FULL = WG == 0 ? K_FULL : V_FULL,
                           OWN_HELD = P + WG * (HELD * PANEL);
        constexpr uint32_t FIRST = WG == 0 ? Q : DO, FIRST_FULL = WG == 0 ? Q_FULL : DO_FULL,
                           FIRST_EMPTY = WG == 0 ? Q_EMPTY : DO_EMPTY; // what the scores are made of
        constexpr uint32_t SECOND = WG == 0 ? DO : Q, SECOND_FULL = WG == 0 ? DO_FULL : Q_FULL,
                           SECOND_EMPTY = WG == 0 ? DO_EMPTY : Q_EMPTY; // what is summed up
        const auto &p = a.base.p;
        const int lane = gpu_lane(), warp = gpu_wave_id() % 4;
        // Element 4·i + 2·h + c of x is key g + 8·h of the warp's 16 (g = lane / 4), query 8·i + 2·(lane % 4) + c.
        const int key0 = warp * 16 + lane / 4;
        const uint32_t mine = P + gpu_thread() % 128 * 16;
        const float scale = a.base.scale_log2;
        float sum[D / 2], x[BM / 2];
        uint32_t held[HELD * 16], pairs[BM / 4], step = 0, loaded = 0; // K and V so often
        wgmma_ring<WG == 0 ? Q_STAGES : DO_STAGES> first;
        wgmma_ring<WG == 0 ? DO_STAGES : Q_STAGES> second;

        // 64 keys x 64 queries: mine times those of stage `first`.
        const auto issue_scores = [&]() {
            const uint32_t b = gpu_wgmma_matrix(FIRST + first.stage * BYTES, 16), k = gpu_wgmma_matrix(OWN, 16);
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                const uint64_t tile = gpu_wgmma_descriptor(b + kk / 4 * (PANEL >> 4) + kk % 4 * 2, 1024);
                if (kk < (PANELS - HELD) * 4)
                    gpu_wgmma<E, BM>::kk(x, gpu_wgmma_descriptor(k + kk / 4 * (PANEL >> 4) + kk % 4 * 2, 1024), tile,
                                         kk != 0);
                else
                    gpu_wgmma<E, BM>::rk(x, held + 4 * (kk - (PANELS - HELD) * 4), tile, true);
            }
            gpu_wgmma_commit();
        };
        // 64 keys x D: += P or dS, times the rows of stage `second`.
        const auto issue_sums = [&]() {
            const uint32_t b = gpu_wgmma_matrix(SECOND + second.stage * BYTES, PANEL);
#pragma unroll
            for (int kk = 0; kk < BM / 16; kk++)
                gpu_wgmma<E, D>::rs(sum, pairs + 4 * kk, gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            gpu_wgmma_commit();
        };
        // Scores become P, or dS.
        const auto work_out = [&]() {
            const int stage = first.stage;
            gpu_vec<float, 4> rows[BM / 16]; // -lse in exponents of 2, or D
#pragma unroll
            for (int i = 0; i < BM / 16; i++)
                rows[i] = gpu_load4_at((WG == 0 ? LSE : DELTA) + stage * (BM * 4) + lane % 4 * 16 + 64 * i);
            if constexpr (WG == 0) {
                const int keys = gpu_load_at(STEP + 16 * stage + 4);
                if (keys >= 0)
                    wgmma_hide(x, STEP + 16 * stage, keys, key0, 0);
            }
            gpu_mbarrier_wait(WG == 0 ? P_EMPTY : P_FULL, step++ % 2);
#pragma unroll
            for (int i = 0; i < BM / 8; i += 2) {
                if constexpr (WG == 0) {
                    wgmma_exponentials(x, i, rows[i / 2], scale);
                    gpu_store4_at(mine + i * 2048, x + 4 * i), gpu_store4_at(mine + i * 2048 + 2048, x + 4 * i + 4);
                } else {
#pragma unroll
                    for (int k = i; k < i + 2; k++) {
                        const gpu_vec<float, 4> weights = gpu_load4_at(mine + k * 2048);
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            x[4 * k + e] = weights[e] * (x[4 * k + e] - rows[i / 2][k % 2 * 2 + e % 2]);
                    }
                }
            }
        };
        const auto round = [&]() {
#pragma unroll
            for (int i = 0; i < BM / 4; i++)
                pairs[i] = gpu_pair<E>(x[2 * i], x[2 * i + 1]);
        };
        const auto settle_sums = [&]() {
            gpu_wgmma_settle(sum);
            gpu_wgmma_settle(pairs);
        };
        const auto leave_second = [&]() {
            wgmma_leave(SECOND_EMPTY + 8 * second.stage);
            second.next();
        };

#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (gpu_uniform(w.keys) < 0)
                break;
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                sum[i] = 0;
            int left = gpu_uniform((w.m_past - w.m_first) * (int)a.group);
            const bool any = left > 0;
            if (any) {
                gpu_mbarrier_wait(OWN_FULL, loaded++ % 2);
#pragma unroll
                for (int kk = 0; kk < HELD * 4; kk++)
                    gpu_ldmatrix_at(*(uint32_t(*)[4])(held + 4 * kk), OWN_HELD + kk / 4 * PANEL +
                                                                          (warp * 16 + lane % 16) * 128 +
                                                                          ((2 * (kk % 4) + lane / 16) ^ lane % 8) * 16);
                if constexpr (WG == 1) // P may come
                    wgmma_leave(P_EMPTY);
                else // what my other warps have yet to read of K, P must not overwrite
                    gpu_named_barrier(2 + WG, 128);
                gpu_mbarrier_wait(FIRST_FULL + 8 * first.stage, first.parity);
                gpu_wgmma_fence();
                issue_scores();
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(x);
                gpu_wgmma_settle(held);
                work_out();
                // What follows P: P is full, or empty but for the last of an item, after which K and V come in.
                if constexpr (WG == 0)
                    wgmma_leave(P_FULL);
                else if (left > 1)
                    wgmma_leave(P_EMPTY);
                wgmma_leave(FIRST_EMPTY + 8 * first.stage);
                round();
#pragma unroll 1
                while (true) { // here: pairs of stage `second`; nothing is under way
                    gpu_mbarrier_wait(SECOND_FULL + 8 * second.stage, second.parity);
                    first.next();
                    if (--left == 0)
                        break;
                    if constexpr (WG == 0) {
                        gpu_mbarrier_wait(FIRST_FULL + 8 * first.stage, first.parity);
                        gpu_wgmma_fence();
                        issue_scores();
                        issue_sums();
                        gpu_wgmma_wait<1>();
                        gpu_wgmma_settle(x);
                        gpu_wgmma_settle(held);
                        work_out(); // under the sums
                        wgmma_leave(P_FULL);
                        wgmma_leave(FIRST_EMPTY + 8 * first.stage);
                        gpu_wgmma_wait<0>();
                        settle_sums(), leave_second();
                    } else {
                        gpu_wgmma_fence();
                        issue_sums();
                        gpu_mbarrier_wait(FIRST_FULL + 8 * first.stage, first.parity);
                        gpu_wgmma_fence();
                        issue_scores();
                        gpu_wgmma_wait<1>();
                        settle_sums(), leave_second();
                        gpu_wgmma_wait<0>();
                        gpu_wgmma_settle(x);
                        gpu_wgmma_settle(held);
                        work_out(); // under the other's sums and next scores
                        if (left > 1)
                            wgmma_leave(P_EMPTY);
                        wgmma_leave(FIRST_EMPTY + 8 * first.stage);
                    }
                    round();
                }
                gpu_async_fence(); // what copies bring next is to come after what was written here
                wgmma_leave(KV_EMPTY);
                gpu_wgmma_fence();
                issue_sums();
                if constexpr (WG == 1) // dP is made of the last dO
                    gpu_named_barrier_arrive(4, 256);
                gpu_wgmma_wait<0>();
                settle_sums();
                // What was summed up leaves by way of the stage of the last that was; nobody is to need that any more.
                if constexpr (WG == 0)
                    gpu_named_barrier(4, 256);
                else
                    gpu_named_barrier(2 + WG, 128);
            }
            const bool whole = gpu_uniform(any && a.sent_keys && warp * 16 + 16 <= w.keys);
            const float factor = wgmma_lowered<E>(WG == 0 ? 1.f : (float)p.forward.softmax_scale);
            bool open = false;
            if (whole) {
                open = wgmma_send<E, D, PANEL>(SECOND + second.stage * BYTES + warp * 2048, sum, factor,
                                               WG == 0 ? &a.dv : &a.dk, true, w.k_row + warp * 16, w.head_k, w.k_batch)
                           .template overflows<E>();
                if (lane == 0)
                    gpu_bulk_wait_read<0>();
            } else if (a.parts > 1)
                wgmma_put_part<D, 4>(a, w.number, WG, sum);
            else
                open = wgmma_put_keys<E, D>(WG == 0 ? p.dv : p.dk, w, key0, 0, sum, factor);
            if (any)
                leave_second();
            open = gpu_group_any(2 + WG, 128, open);
            if (gpu_thread() % 128 == 0) { // who comes second tells of both
                const uint32_t votes = gpu_atomic_add(&w.votes, open ? 0x101 : 1);
                if (votes % 256 == 1 && (open || votes / 256))
                    a.open_k[gpu_atomic_add(&a.open[0], 1)] = w.again;
            }
            wgmma_leave(WORK_EMPTY + item % 2 * 8);
        }
        if (lane == 0)
            gpu_bulk_wait();
    }
};

template <class E> struct attention_backward_wgmma_queries {
    using args = gpu_wgmma_backward_args;
    using work = gpu_wgmma_backward_rows;
    static constexpr int D = 256, BN = 64, ROWS = 64, STAGES = 2; // ROWS: of a warpgroup; STAGES: of K, there is one V
    static constexpr int threads = 384, blocks = 1, tile_q = 2 * ROWS, tile_k = BN;
    static constexpr int PRODUCER = 24, CONSUMER = 240, PANELS = D / 64;
    static constexpr uint32_t PANEL = 64 * 64 * 2, BYTES = PANELS * PANEL; // of 64 columns, of all

    struct alignas(1024) shared {
        E q[2][ROWS * D], dout[2][ROWS * D], k[STAGES][BN * D], v[BN * D]; // each warpgroup's q and dout
        uint64_t q_full[2], do_full[2], q_empty[2], k_full[STAGES], k_empty[STAGES], v_full, v_empty, work_full[2],
            work_empty[2];
        work mine[2]; // this item, and what the producer is at already; rows < 0: there is no more
    };
    static_assert(sizeof(shared) <= 232448, "shared memory of a block");
    static constexpr uint32_t Q = WGMMA_AT(q), DO = WGMMA_AT(dout), K = WGMMA_AT(k), V = WGMMA_AT(v),
                              Q_FULL = WGMMA_AT(q_full), DO_FULL = WGMMA_AT(do_full), Q_EMPTY = WGMMA_AT(q_empty),
                              K_FULL = WGMMA_AT(k_full), K_EMPTY = WGMMA_AT(k_empty), V_FULL = WGMMA_AT(v_full),
                              V_EMPTY = WGMMA_AT(v_empty), WORK_FULL = WGMMA_AT(work_full),
                              WORK_EMPTY = WGMMA_AT(work_empty);

    static GPU_FN void run(const args &a, shared &sh)
    {
        if (gpu_shared_address(&sh) != 1024)
            gpu_trap();
        if (gpu_thread() == 0) {
            gpu_mbarrier_init(V_FULL, 1), gpu_mbarrier_init(V_EMPTY, 8);
            for (int i = 0; i < 2; i++) {
                gpu_mbarrier_init(Q_FULL + 8 * i, 1), gpu_mbarrier_init(DO_FULL + 8 * i, 1);
                gpu_mbarrier_init(Q_EMPTY + 8 * i, 4);
                gpu_mbarrier_init(K_FULL + 8 * i, 1), gpu_mbarrier_init(K_EMPTY + 8 * i, 8);
                gpu_mbarrier_init(WORK_FULL + 8 * i, 1), gpu_mbarrier_init(WORK_EMPTY + 8 * i, 9);
            }
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v),
                gpu_tensor_prefetch(&a.dout);
        }
        gpu_block_barrier();
        gpu_chain_go();
        // Not at the begin: what is needed was written before `keys` let this one begin. Whoever waits for this one waits for both.
        if (wgmma_roles<attention_backward_wgmma_queries>(a, sh)) {
            gpu_wave_barrier(); // or a lane that produces waits as soon as the others of its wave do
            gpu_chain_wait();
        }
    }

    // Two producers, of one thread each. What warpgroup 0 needs for its first step comes first. Q and K, and the items:
    static GPU_FN void produce(const args &a, shared &sh)
    {
        wgmma_ring<STAGES> ring;
        uint32_t loaded = 0; // Q so often
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            work &w = sh.mine[item % 2];
            gpu_mbarrier_wait(WORK_EMPTY + item % 2 * 8, item / 2 % 2 ^ 1);
            const bool more = wgmma_fetch(&a.open[3], a.rows_works, a.rows_work, &work::rows, w);
            gpu_mbarrier_arrive(WORK_FULL + item % 2 * 8);
            if (!more)
                return;
            const int n_first = w.n_first, n_past = w.n_past, row = w.k_row, head = w.head_k, batch = w.k_batch;
#pragma unroll 1
            for (int wg = 0; wg < 2; wg++)
#pragma unroll
                for (int c = 0; c < PANELS; c++) {
                    gpu_tensor_fetch(&a.q, c * 64, w.q_row + wg * ROWS, w.head, w.q_batch);
                    gpu_tensor_fetch(&a.dout, c * 64, w.q_row + wg * ROWS, w.head, w.q_batch);
                }
#pragma unroll 1
            for (int n = n_first; n < n_past; n++, ring.next()) {
                gpu_mbarrier_wait(K_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                load(&a.k, K + ring.stage * BYTES, K_FULL + 8 * ring.stage, row + n * BN, head, batch);
                if (n == n_first) {
#pragma unroll 1
                    for (int wg = 0; wg < 2; wg++) {
                        gpu_mbarrier_wait(Q_EMPTY + 8 * wg, loaded % 2 ^ 1);
                        load(&a.q, Q + wg * BYTES, Q_FULL + 8 * wg, w.q_row + wg * ROWS, w.head, w.q_batch);
                    }
                    loaded++;
                }
            }
        }
    }
    static GPU_FN void produce_dout(const args &a, const shared &sh) // and V
    {
        uint32_t steps = 0, loaded = 0; // dO so often
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (w.rows < 0)
                return;
            const int n_first = w.n_first, n_past = w.n_past, row = w.k_row, head = w.head_k, batch = w.k_batch;
            const auto load_dout = [&](int wg) {
                gpu_mbarrier_wait(Q_EMPTY + 8 * wg, loaded % 2 ^ 1);
                load(&a.dout, DO + wg * BYTES, DO_FULL + 8 * wg, w.q_row + wg * ROWS, w.head, w.q_batch);
            };
            if (n_first < n_past)
                load_dout(0);
#pragma unroll 1
            for (int n = n_first; n < n_past; n++, steps++) {
                gpu_mbarrier_wait(V_EMPTY, steps % 2 ^ 1);
                load(&a.v, V, V_FULL, row + n * BN, head, batch);
                if (n == n_first)
                    load_dout(1);
            }
            loaded += n_first < n_past;
            gpu_mbarrier_arrive(WORK_EMPTY + item % 2 * 8);
        }
    }
    static GPU_FN void load(const gpu_tensor_map *map, uint32_t to, uint32_t full, int row, int head, int batch)
    {
        gpu_mbarrier_expect(full, BYTES);
#pragma unroll
        for (int c = 0; c < PANELS; c++)
            gpu_tensor_load(map, to + c * PANEL, full, c * 64, row, head, batch);
    }

    // Two warpgroups, 64 queries each.
    template <int WG> static GPU_FN void consume(const args &a, const shared &sh)
    {
        const auto &p = a.base.p;
        const int lane = gpu_lane(), warp = gpu_wave_id() % 4;
        const float scale = a.base.scale_log2;
        // Element 4·i + 2·h + c of x and dp is query row + 8·h, key 8·i + 2·(lane % 4) + c.
        const int row = WG * ROWS + warp * 16 + lane / 4;
        float dq[D / 2], x[BN / 2], dp[BN / 2], lse[2], delta[2];
        uint32_t pairs[BN / 4], steps = 0, loaded = 0;
        wgmma_ring<STAGES> ring;

        // My queries x 64 keys: += rows at `own` times those at `tile`.
        const auto issue_scores = [&](float(&to)[BN / 2], uint32_t own, uint32_t tile) {
            const uint32_t q = gpu_wgmma_matrix(own + WG * BYTES, 16), b = gpu_wgmma_matrix(tile, 16);
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
                gpu_wgmma<E, BN>::kk(to, gpu_wgmma_descriptor(q + kk / 4 * (PANEL >> 4) + kk % 4 * 2, 1024),
                                     gpu_wgmma_descriptor(b + kk / 4 * (PANEL >> 4) + kk % 4 * 2, 1024), kk != 0);
            gpu_wgmma_commit();
        };
        // dQ of x and dp, a half of the keys after the other: the products of the one are under way while the other is worked out.
        const auto issue_dq = [&](uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile, PANEL);
#pragma unroll
            for (int kk = 0; kk < BN / 16; kk++) {
                if (kk % 2 == 0) {
#pragma unroll
                    for (int i = 4 * kk; i < 4 * kk + 8; i++)
                        pairs[i] = gpu_pair<E>(x[2 * i] * (dp[2 * i] - delta[i % 2]),
                                               x[2 * i + 1] * (dp[2 * i + 1] - delta[i % 2]));
                    gpu_wgmma_fence();
                }
                gpu_wgmma<E, D>::rs(dq, pairs + 4 * kk, gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            }
            gpu_wgmma_commit();
        };

#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (gpu_uniform(w.rows) < 0)
                break;
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                dq[i] = 0;
            int n = gpu_uniform(w.n_first);
            const int n_past = gpu_uniform(w.n_past);
            if (n < n_past) {
                // Of the item's tiles of keys those with some that my rows see.
                const int rows = gpu_uniform(w.rows) - WG * ROWS, low = gpu_uniform(w.low) + WG * ROWS,
                          end = gpu_uniform(w.high) + WG * ROWS + (rows < ROWS ? rows : ROWS) - 1;
                const int begin = low < n * BN        ? n
                                  : low < n_past * BN ? low / BN
                                                      : n_past,
                          past = rows <= 0 || end <= begin * BN ? begin
                                 : end >= n_past * BN           ? n_past
                                                                : (end + BN - 1) / BN;
#pragma unroll
                for (int h = 0; h < 2; h++) { // rows that are not there do not matter
                    const int64_t at =
                        (int64_t)w.q_tile * ROWS +
                        (row + 8 * h < w.rows ? row / ROWS * ROWS + wgmma_row_slot(row % ROWS + 8 * h) : 0);
                    lse[h] = a.lse[at], delta[h] = a.delta[at];
                }
                const auto issue_s = [&]() {
                    gpu_mbarrier_wait(K_FULL + 8 * ring.stage, ring.parity);
                    gpu_wgmma_fence();
                    issue_scores(x, Q, K + ring.stage * BYTES);
                };
                const auto issue_dp = [&]() {
                    gpu_mbarrier_wait(V_FULL, steps++ % 2);
                    gpu_wgmma_fence();
                    issue_scores(dp, DO, V);
                };
                // 0 asks for S first, 1 for dP: so what one works out lies under products of the other.
                const auto issue_first = [&]() {
                    if constexpr (WG == 0)
                        issue_s();
                    else
                        issue_dp();
                };
                const auto issue_second = [&]() {
                    if constexpr (WG == 0)
                        issue_dp();
                    else
                        issue_s();
                };
                // P in x, and dP, of key tile n, both under way.
                const auto work_out = [&]() {
                    gpu_wgmma_wait<1>();
                    if constexpr (WG == 1) {
                        gpu_wgmma_settle(dp);
                        wgmma_leave(V_EMPTY);
                        gpu_wgmma_wait<0>();
                    }
                    gpu_wgmma_settle(x);
                    if (n < gpu_uniform(w.clear_first) || n >= gpu_uniform(w.clear_past))
                        hide(x, w, row, n);
#pragma unroll
                    for (int i = 0; i < BN / 2; i++)
                        x[i] = gpu_exp2(gpu_fma(x[i], scale, lse[i / 2 % 2]));
                    if constexpr (WG == 0) {
                        gpu_wgmma_ready<0>(x); // under dP
                        gpu_wgmma_wait<0>();
                        gpu_wgmma_settle(dp);
                        wgmma_leave(V_EMPTY);
                    }
                };
                // By tiles that only the other warpgroup's rows see.
                const auto pass = [&](int to) {
#pragma unroll 1
                    for (; n < to; n++, ring.next()) {
                        gpu_mbarrier_wait(K_FULL + 8 * ring.stage, ring.parity);
                        gpu_mbarrier_wait(V_FULL, steps++ % 2);
                        wgmma_leave(K_EMPTY + 8 * ring.stage), wgmma_leave(V_EMPTY);
                    }
                };
                gpu_mbarrier_wait(Q_FULL + 8 * WG, loaded % 2);
                gpu_mbarrier_wait(DO_FULL + 8 * WG, loaded++ % 2);
                pass(begin);
                if (n < past) {
                    issue_first(), issue_second();
                    work_out();
#pragma unroll 1
                    while (true) {
                        const int stage = ring.stage;
                        ring.next();
                        if (++n == past)
                            break;
                        issue_dq(K + stage * BYTES);
                        issue_first();
                        gpu_wgmma_wait<1>();
                        gpu_wgmma_settle(dq);
                        gpu_wgmma_settle(pairs);
                        wgmma_leave(K_EMPTY + 8 * stage);
                        issue_second();
                        work_out();
                    }
                    wgmma_leave(Q_EMPTY + 8 * WG);
                    issue_dq(K + (ring.stage ^ 1) * BYTES);
                    gpu_wgmma_wait<0>();
                    gpu_wgmma_settle(dq);
                    gpu_wgmma_settle(pairs);
                    wgmma_leave(K_EMPTY + 8 * (ring.stage ^ 1));
                } else
                    wgmma_leave(Q_EMPTY + 8 * WG);
                pass(n_past);
            }
            const gpu_rows<E> out(gpu_rows<E>(p.dq, w.q_batch, w.head).from(w.q_row));
            const float factor = wgmma_lowered<E>((float)p.forward.softmax_scale);
            bool open = false;
#pragma unroll
            for (int h = 0; h < 2; h++)
                open |= wgmma_store_row<E, D>(out.at(row + 8 * h, 0), row + 8 * h < w.rows, (int)p.dq.size[3],
                                              [&](int i, int e) { return dq[4 * i + 2 * h + e] * factor; })
                            .template overflows<E>();
            if (gpu_group_any(2 + WG, 128, open) && gpu_thread() % 128 == 0) // `again` counts downwards
                a.open_q[gpu_atomic_add(&a.open[1], 1)] = w.again - WG;
            wgmma_leave(WORK_EMPTY + item % 2 * 8);
        }
    }
    // What the window hides of the scores of key tile n becomes -inf.
    static GPU_FN void hide(float (&x)[BN / 2], const work &w, int row, int n)
    {
        const int low = w.low, high = w.high, keys = w.keys, shift = n * BN + gpu_lane() % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = row + 8 * h, first = r + low - shift, past = (r + high < keys ? r + high : keys) - shift;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * i + c < first || 8 * i + c >= past)
                        x[4 * i + 2 * h + c] = gpu_minus_infinity();
        }
    }
};
