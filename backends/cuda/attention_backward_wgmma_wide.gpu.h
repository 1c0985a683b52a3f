// SPDX-License-Identifier: MIT OR Apache-2.0
// The main kernel of attention backward, rung `wgmma`, for head sizes of 129 to 256: an item has 64 keys, because dK and dV of 128
// would fill all registers. The warpgroups share the keys: each computes the scores of its half of the queries, and
// its half of the columns of dV, dK and dQ; so P too goes through shared memory. A step is one barrier as for the smaller ones:
//
//   issue dP; P; wait for it and for dV of the step before; dS; issue S of the next step; barrier; issue dK, dQ, dV; wait for all
//   but dV, dQ to memory.
//
// Shared memory, at 128 bytes a cycle: 1536 of S and dP (of 64 x 32 scores each a third more than they compute), 1152 of dV, dK
// and dQ, 640 of what comes in, 3300 with P and dS; products 2560. dQ is twice as many additions for a product as at 128 keys.
#pragma once
#include "attention_backward_wgmma.gpu.h"

template <class E, int STAGES>
struct attention_backward_wgmma_wide : wgmma_backward_block<E, 256, 64, 64, STAGES, false> {
    using base = wgmma_backward_block<E, 256, 64, 64, STAGES, false>;
    using base::D, base::BM, base::BN, base::PANEL_K, base::PANEL_Q, base::COLS, base::LAST, base::Q_BYTES,
        base::DS_BYTES, base::K, base::V, base::Q, base::DO, base::DS, base::LSE, base::DELTA, base::Q_FULL,
        base::Q_EMPTY, base::DO_FULL, base::DO_EMPTY, base::STEP, base::K_FULL, base::V_FULL, base::KV_EMPTY,
        base::WORK_FULL, base::WORK_EMPTY;
    using typename base::args, typename base::shared, typename base::work;
    static constexpr int HALF = D / 2, QUERIES = BM / 2; // of a warpgroup
    static constexpr uint32_t P = DS + 2 * DS_BYTES;

    static GPU_FN void run(const args &a, shared &sh)
    {
        base::template run_with<attention_backward_wgmma_wide>(a, sh);
    }
    static GPU_FN void consume(const args &a, const shared &sh, int wg)
    {
        const int warp = gpu_wave_id() % 4, lane = gpu_lane(), quad = lane % 4;
        const float scale = a.base.scale_log2;
        // Element 4·i + 2·h + c of x and dp is key g + 8·h of the warp's 16 (g = lane / 4), query 8·i + 2·quad + c of my 32.
        const int key0 = warp * 16 + lane / 4;
        float dk[HALF / 2], dv[HALF / 2], dq[COLS / 2], x[QUERIES / 2], dp[QUERIES / 2];
        uint32_t pairs[QUERIES / 4];

        // 64 keys x my queries: the keys at `own`, the tile of queries at `tile`.
        const auto issue_scores = [&](float(&to)[QUERIES / 2], uint32_t own, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile + wg * (QUERIES * 128), 16), k = gpu_wgmma_matrix(own, 16);
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
                gpu_wgmma<E, QUERIES>::kk(to, gpu_wgmma_descriptor(k + kk / 4 * (PANEL_K * 2 >> 4) + kk % 4 * 2, 1024),
                                          gpu_wgmma_descriptor(b + kk / 4 * (PANEL_Q * 2 >> 4) + kk % 4 * 2, 1024),
                                          kk != 0);
            gpu_wgmma_commit();
        };
        // 64 keys x my columns: += P or dS, at `by`, times the rows of the tile.
        const auto issue_rows = [&](float(&to)[HALF / 2], uint32_t by, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile + wg * (HALF / 64 * PANEL_Q * 2), PANEL_Q * 2),
                           k = gpu_wgmma_matrix(by, 16);
#pragma unroll
            for (int kk = 0; kk < BM / 16; kk++)
                gpu_wgmma<E, HALF>::kn(to, gpu_wgmma_descriptor(k + kk * 2, 1024),
                                       gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            gpu_wgmma_commit();
        };
        // 64 queries x my columns: dSᵀ·K.
        const auto issue_dq = [&](int buffer) {
            const uint32_t b = gpu_wgmma_matrix(DS + buffer * DS_BYTES, 16),
                           k = gpu_wgmma_matrix(K + wg * (HALF / 64 * PANEL_K * 2), PANEL_K * 2);
#pragma unroll
            for (int kk = 0; kk < BN / 16; kk++)
                gpu_wgmma<E, COLS>::mn(dq, gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024),
                                       gpu_wgmma_descriptor(k + kk * (2048 >> 4), 1024), kk != 0);
            gpu_wgmma_commit();
        };
        const auto hide = [&](int keys, int stage) { wgmma_hide(x, STEP + 16 * stage, keys, key0, wg * QUERIES); };
        const auto weigh = [&](int stage) {
            const uint32_t at = LSE + stage * (BM * 4) + wg * (QUERIES * 4) + 16 * quad;
#pragma unroll
            for (int i = 0; i < QUERIES / 8; i += 2) {
                const gpu_vec<float, 4> l = gpu_load4_at(at + 32 * i);
#pragma unroll
                for (int h = 0; h < 4; h++) { // h % 2: key; h / 2: group of 8 queries
                    const int e = 4 * i + 2 * h;
                    x[e] = gpu_exp2(gpu_fma(x[e], scale, l[h / 2 * 2]));
                    x[e + 1] = gpu_exp2(gpu_fma(x[e + 1], scale, l[h / 2 * 2 + 1]));
                    pairs[e / 2] = gpu_pair<E>(x[e], x[e + 1]);
                }
            }
        };
        const auto gradients = [&](int stage) {
            const uint32_t at = DELTA + stage * (BM * 4) + wg * (QUERIES * 4) + 16 * quad;
#pragma unroll
            for (int i = 0; i < QUERIES / 8; i += 2) {
                const gpu_vec<float, 4> l = gpu_load4_at(at + 32 * i);
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    const int e = 4 * i + 2 * h;
                    pairs[e / 2] =
                        gpu_pair<E>(x[e] * (dp[e] - l[h / 2 * 2]), x[e + 1] * (dp[e + 1] - l[h / 2 * 2 + 1]));
                }
            }
        };
        const uint32_t mine = (warp * 16 + lane % 16) * 128 + (((wg * 4 + lane / 16) ^ lane % 8) << 4);
        const auto store = [&](uint32_t to) { // [key][query]
#pragma unroll
            for (int i = 0; i < QUERIES / 8; i += 2)
                gpu_stmatrix_at((to + mine) ^ (i << 4), pairs + 2 * i);
        };

        wgmma_ring<STAGES> ring;
        uint32_t loaded = 0; // K and V so often
        int j = 0;           // step
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = sh.mine[item % 2];
            gpu_mbarrier_wait(WORK_FULL + item % 2 * 8, item / 2 % 2);
            if (w.keys < 0)
                break;
#pragma unroll
            for (int i = 0; i < HALF / 2; i++)
                dk[i] = dv[i] = 0;
            if (w.m_past > w.m_first) {
                gpu_mbarrier_wait(K_FULL, loaded % 2);
                gpu_mbarrier_wait(V_FULL, loaded++ % 2);
                gpu_mbarrier_wait(Q_FULL + 8 * ring.stage, ring.parity);
                gpu_wgmma_fence();
                issue_scores(x, K, Q + ring.stage * Q_BYTES);
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(x);
                bool last = false;
#pragma unroll 1
                for (; !last; j++) { // under way at this point: dV of step j - 1
                    const int stage = ring.stage;
                    gpu_mbarrier_wait(DO_FULL + 8 * stage, ring.parity);
                    const int keys = gpu_load_at(STEP + 16 * stage + 4);
                    gpu_wgmma_fence();
                    issue_scores(dp, V, DO + stage * Q_BYTES);
                    if (keys >= 0)
                        hide(keys, stage);
                    weigh(stage);
                    store(P + (j & 1) * DS_BYTES);
                    gpu_wgmma_wait<0>();
                    gpu_wgmma_settle(dp);
                    gpu_wgmma_settle(dv);
                    base::leave(DO_EMPTY + 8 * (stage == 0 ? STAGES - 1 : stage - 1), j > 0);
                    gradients(stage);
                    store(DS + (j & 1) * DS_BYTES);
                    gpu_async_fence();
                    const int tile = gpu_uniform(gpu_load_at(STEP + 16 * stage));
                    last = tile < 0;
                    ring.next();
                    if (!last)
                        gpu_mbarrier_wait(Q_FULL + 8 * ring.stage, ring.parity);
                    gpu_wgmma_fence();
                    issue_scores(x, K, Q + (last ? stage : ring.stage) * Q_BYTES); // as attention_backward_wgmma
                    gpu_named_barrier(1, 256); // P and dS are there; two buffers of each, see attention_backward_wgmma
                    gpu_wgmma_fence();
                    issue_rows(dk, DS + (j & 1) * DS_BYTES, Q + stage * Q_BYTES);
                    issue_dq(j & 1);
                    issue_rows(dv, P + (j & 1) * DS_BYTES, DO + stage * Q_BYTES);
                    gpu_wgmma_wait<1>();
                    gpu_wgmma_settle(x);
                    gpu_wgmma_settle(dk);
                    gpu_wgmma_settle(dq);
                    base::leave(Q_EMPTY + 8 * stage);
                    base::dq_out(a, tile & ~LAST, j, dq);
                }
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(dv);
                base::leave(KV_EMPTY);
            }
            const bool open = base::template put<HALF>(a, w, key0, wg * HALF, dv, dk);
            if (gpu_group_any(2, 256, open) && gpu_thread() == 0)
                a.open_k[gpu_atomic_add(&a.open[0], 1)] = w.again;
            base::leave(WORK_EMPTY + item % 2 * 8);
        }
    }
};
