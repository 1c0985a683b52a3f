// SPDX-License-Identifier: MIT OR Apache-2.0
// attention backward, rung `wgmma` (Hopper, sm_90a), 16-bit types. Against flash2 (two passes that recompute S and dP twice):
//   one pass. An item is 128 keys of one KV head: dK and dV stay in registers while Q and dO stream past in tiles of BM rows;
//   scores are computed transposed (keys x queries), so that P and dS are at once the register operands of dV += P·dO and
//   dK += dS·Q; dS also goes through shared memory, for dQ = dSᵀ·K needs the keys of both warpgroups: each makes half of
//   dQ and adds it to an fp32 sum in memory, in whatever order: bits of dq differ from run to run. SENT: by way of shared memory,
//   from where two spare waves have it added in turns, while the others are at the next step.
//
// The two warpgroups are a quarter to half a step apart, so that one's products fill the time in which the other makes weights or dS.
// They need each other for dQ alone, which is therefore made one step later: then dS of the other has long been there, whoever is
// ahead. dK and dV leave by way of V's memory and the copy engine: 16 keys a wave, if it has all of them.
//
// A block stays on its multiprocessor and takes items from a counter. Its producer reads the next one and loads its first tiles while
// the consumers are still at the last steps of this one and at its dK and dV.
//
// dQ need not begin as zeros: the items of the first keys put their part there, and the others add to it. So that nobody has to wait,
// the heads are taken in sections, and the first keys of a section come before the other keys of the section before it; a spare wave
// tells and hears that a head's first item is done. `prepare` zeroes what no first keys are seen from, the first section, and all of dQ
// where that order is not to be had: packed, few heads, or SENT. In order the last keys are the first.
//
// In order (DETERMINISTIC, SENT): same bits. An item adds to a tile of dQ after the item of the 128 keys behind its own, which tells it
// so by a counter of the tile; the last keys are given out first. With a causal mask each item begins at its diagonal, where it is
// the first to add, and comes to the next tiles when those behind it have left: begun together, no two want the same tile. Items
// that begin at the same tile (no mask) belong to different heads, as far as the L2 holds their Q, dO and dQ.
//
// No item waits for one that is given out later.
//
// Where there are few keys for many query heads, or more of their rows than the L2 holds, several items share a KV head's keys, each for
// a part of its heads; their dK and dV go to memory in fp32, and `finish` adds them up.
//
// P and dS are larger by 2^LIFT, which the scales of dv, dk and dq take back. fp16: what rounds to 0 is then below 2^-(25 + LIFT),
// and dS may reach 2^(16 - LIFT): what is beyond becomes infinite, and is done again by fp32 arithmetic. bf16: additions to memory
// take what is below 2^-126 for 0, which is 2^-(126 + LIFT) of dq.
//
//   prepare  D = Σ do·o - dlse, -lse·log2(e) (+ LIFT), zeros of dQ; writes the items down
//   main     dK, dV, dQ                                          finish   dQ scaled and rounded; parts of dK and dV joined
//   again    what is not finite, by the kernels of flash2: `main` and `finish` list such tiles
// Each may begin while the one before it ends.
//
// Accepts what the method (attention_backward_wgmma.c) calls plain. What a hidden row holds has no influence: 0·NaN makes a
// gradient NaN here, and `again` does its tile with hidden pairs left out.
//
// FLOPs: 10·N²·d a head, causal half of it. Bytes requested per KV head: 2·N·d·e (K, V, and dK, dV) + ⌈N/128⌉·group·(2·N·d·e + 4·N·d).
#pragma once
#include "attention_backward_wgmma_block.gpu.h"

template <class E, int D, int BM, int STAGES, bool SENT>
struct attention_backward_wgmma : wgmma_backward_block<E, D, BM, GPU_WGMMA_KEYS, STAGES, SENT> {
    using base = wgmma_backward_block<E, D, BM, GPU_WGMMA_KEYS, STAGES, SENT>;
    using base::BN, base::PANEL_K, base::PANEL_Q, base::COLS, base::Q_BYTES, base::DS_BYTES, base::K, base::V, base::Q,
        base::DO, base::DS, base::LSE, base::DELTA, base::Q_FULL, base::Q_EMPTY, base::DO_FULL, base::DO_EMPTY,
        base::STEP, base::BEFORE, base::K_FULL, base::V_FULL, base::K_EMPTY, base::V_EMPTY, base::WORK_FULL,
        base::WORK_EMPTY;
    using typename base::args, typename base::shared, typename base::work;
    static constexpr bool DS_HELD = BM == 64; // dS stays in registers as the operand of dK, else there is no room
    // d = 64: dQ and dK are issued before the next scores, or there is no room; nothing of its own is under way then while a warpgroup
    // makes weights, so the second one is kept half a step behind the first, whose products fill that time. d = 128: they fall out of step
    // by themselves, and weights are made under dQ and dK: those from READY on before the wait for dQ, the others under dK; none if
    // dQ is then added to memory from registers, which must not come last.
    static constexpr bool SCORES_LAST = D == 64;
    static constexpr int READY = SENT ? 0 : 16;

    static GPU_FN void run(const args &a, shared &sh)
    {
        base::template run_with<attention_backward_wgmma>(a, sh);
    }
    // Two warpgroups, 64 keys each.
    static GPU_FN void consume(const args &a, const shared &sh, int wg)
    {
        const int warp = gpu_wave_id() % 4, lane = gpu_lane();
        const float scale = a.base.scale_log2;
        // A thread holds keys g and g + 8 of its warp's 16 (g = lane / 4) and of every 8 queries the two at 2·(lane % 4): element
        // 4·i + 2·h + c is key g + 8·h, query 8·i + 2·(lane % 4) + c.
        const int warp0 = wg * 64 + warp * 16, key0 = warp0 + lane / 4;
        float dk[D / 2], dv[D / 2], x[BM / 2], dp[BM / 2], dq[COLS / 2];
        uint32_t weights[BM / 4], ds[BM / 4];

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
        // 64 keys x D: += dS·rows of the tile, dS from registers or shared memory.
        const auto issue_dk = [&](int buffer, uint32_t tile) {
            if constexpr (DS_HELD)
                return issue_rows(dk, ds, tile);
            const uint32_t b = gpu_wgmma_matrix(tile, PANEL_Q * 2),
                           own = gpu_wgmma_matrix(DS + buffer * DS_BYTES + wg * 8192, 16);
#pragma unroll
            for (int kk = 0; kk < BM / 16; kk++)
                gpu_wgmma<E, D>::kn(dk, gpu_wgmma_descriptor(own + kk / 4 * (PANEL_K * 2 >> 4) + kk % 4 * 2, 1024),
                                    gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024));
            gpu_wgmma_commit();
        };
        // The group's dS are in shared memory, for dK.
        const auto group_barrier = [&] {
            if constexpr (!DS_HELD) {
                gpu_named_barrier(2 + wg, 128);
                gpu_wgmma_fence();
            }
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
        const auto hide = [&](int keys, int stage) {
            wgmma_hide(x, STEP + 16 * stage, keys, (int)((uint32_t)gpu_again(gpu_thread()) / 32 * 16) + lane / 4, 0);
        };
        const auto weigh = [&](int stage) { wgmma_weigh<E>(x, weights, LSE + stage * (BM * 4), scale); };
        const auto gradients = [&](int stage) { wgmma_gradients<E>(x, dp, ds, DELTA + stage * (BM * 4)); };
        // [key][query]: 64 queries are a row of 128 bytes; after all keys the next 64.
        const auto store_ds = [&](int buffer) {
            const uint32_t thread =
                DS_HELD ? gpu_again(gpu_thread()) : gpu_thread(); // there is no room for the address
            const uint32_t ds_at = DS + (thread / 32 * 16 + thread % 16) * 128 + (thread / 16 % 2 ^ thread % 8) * 16;
#pragma unroll
            for (int i = 0; i < BM / 8; i += 2)
                gpu_stmatrix_at(((ds_at + buffer * DS_BYTES) ^ (i % 8 << 4)) + i / 8 * (PANEL_K * 2), ds + 2 * i);
        };

        wgmma_ring<STAGES> ring;
        uint32_t loaded = 0; // K and V so often: items that have steps
        int j = 0;           // step
        // A warpgroup says t when it has written dS of step t - 1 and no longer reads that of step t - 2 (an item counts as one step
        // more), and hears the same of the other, once each: what it hears, the other may have said long ago. SCORES_LAST: the second
        // one hears t + 1, which keeps it behind the first. What is said last nobody hears.
        const auto say = [&](uint32_t t) { gpu_named_barrier_arrive(4 + 2 * wg + t % 2, 256); };
        const auto hear = [&](uint32_t t) { gpu_named_barrier(4 + 2 * (wg ^ 1) + (t + (SCORES_LAST && wg)) % 2, 256); };
        // dQ of the step before, which has none if this one is an item's first.
        const auto dq_out = [&](int stage) {
            gpu_wgmma_settle(dq);
            say(j + loaded);
            const int tile = gpu_load_at(BEFORE + 4 * stage);
            if constexpr (!SENT)
                if (tile < 0) // from the next step on the item gives its dQ away
                    gpu_mbarrier_wait(base::DQ_READY + (loaded - 1) % 2 * 8, (loaded - 1) / 2 % 2);
            base::dq_out(a, tile, j - 1, dq, tile >= 0);
        };
        if (!SCORES_LAST || wg)
            say(0);
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (gpu_uniform(w.keys) < 0)
                break;
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                dk[i] = dv[i] = 0;
            wgmma_extent seen;
            // dV and dK of my wave's keys leave by way of V's memory: these keys of it, which only this wave's products read.
            const bool any = gpu_uniform(w.m_past - w.m_first) > 0;
            const bool whole = gpu_uniform(any && a.sent_keys && warp0 + 16 <= w.keys);
            const auto send = [&](const float(&sum)[D / 2], const gpu_tensor_map *map, float scale) {
                seen.add(wgmma_send<E, D, PANEL_K * 2>(V + warp0 * 128, sum, scale, map, whole, w.k_row + warp0,
                                                       w.head_k, w.k_batch));
            };
            if (any) {
                gpu_mbarrier_wait(K_FULL, loaded % 2);
                gpu_mbarrier_wait(Q_FULL + 8 * ring.stage, ring.parity);
                gpu_wgmma_fence();
                issue_scores(x, K, Q + ring.stage * Q_BYTES);
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(x);
                // Whether or not something is to be hidden: a branch here costs the loop registers.
                const int begin = gpu_load_at(STEP + 16 * ring.stage + 4);
                hide(begin < 0 ? ~begin : begin, ring.stage);
                weigh(ring.stage);
                gpu_mbarrier_wait(V_FULL, loaded++ % 2);
#pragma unroll 1
                for (;; j++) { // here: P of step j; dQ of step j - 1 is to be made
                    const int stage = ring.stage;
                    gpu_mbarrier_wait(DO_FULL + 8 * stage, ring.parity);
                    gpu_wgmma_fence();
                    issue_scores(dp, V, DO + stage * Q_BYTES);
                    issue_rows(dv, weights, DO + stage * Q_BYTES);
                    gpu_wgmma_wait<1>();
                    gpu_wgmma_settle(dp);
                    gradients(stage);
                    hear(j + loaded - 1);
                    store_ds(j & 1);
                    gpu_async_fence();
                    gpu_wgmma_wait<0>(); // dV: beside the next scores the compiler runs out of registers
                    gpu_wgmma_settle(dv);
                    gpu_wgmma_settle(weights);
                    wgmma_leave(DO_EMPTY + 8 * stage);
                    // Here nothing is under way: elsewhere a branch would serialise all products.
                    if (gpu_uniform(gpu_load_at(STEP + 16 * stage)) < 0)
                        break;
                    ring.next();
                    const int next = ring.stage;
                    gpu_mbarrier_wait(Q_FULL + 8 * next, ring.parity);
                    gpu_wgmma_fence();
                    if constexpr (SCORES_LAST) {
                        issue_dq((j - 1) & 1);
                        group_barrier();
                        issue_dk(j & 1, Q + stage * Q_BYTES);
                        issue_scores(x, K, Q + next * Q_BYTES);
                        wg = gpu_uniform(gpu_again(wg)); // or all that follows from it is kept, and there is no room
                        gpu_wgmma_wait<2>();
                        dq_out(stage);
                        gpu_wgmma_wait<1>();
                        gpu_wgmma_settle(dk);
                        wgmma_leave(Q_EMPTY + 8 * stage);
                        gpu_wgmma_wait<0>();
                    } else {
                        issue_scores(x, K, Q + next * Q_BYTES);
                        issue_dq((j - 1) & 1);
                        issue_dk(j & 1, Q + stage * Q_BYTES);
                        wg = gpu_uniform(gpu_again(wg));
                        gpu_wgmma_wait<2>();
                    }
                    gpu_wgmma_settle(x);
                    const int keys = gpu_load_at(STEP + 16 * next + 4);
                    if (keys >= 0)
                        hide(keys, next);
                    weigh(next);
                    if constexpr (!SCORES_LAST) {
                        gpu_wgmma_ready<READY>(weights);
                        gpu_wgmma_wait<1>();
                        dq_out(stage);
                        gpu_wgmma_wait<0>();
                        gpu_wgmma_settle(dk);
                        gpu_wgmma_settle(ds);
                        wgmma_leave(Q_EMPTY + 8 * stage);
                    }
                }
                const int stage = ring.stage;
                gpu_wgmma_fence();
                group_barrier();
                issue_dq((j - 1) & 1);
                issue_dk(j & 1, Q + stage * Q_BYTES);
                send(dv, &a.dv, wgmma_lowered<E>(1));
                gpu_wgmma_wait<1>();
                dq_out(stage);
                hear(j + loaded);
                gpu_wgmma_fence();
                issue_dq(j & 1);
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(dk);
                gpu_wgmma_settle(ds);
                wgmma_leave(K_EMPTY);
                gpu_wgmma_settle(dq);
                say(j + loaded + 1);
                base::dq_out(a, gpu_load_at(STEP + 16 * stage) & ~WGMMA_LAST, j, dq, true);
                if constexpr (!SENT)
                    wgmma_leave(base::DQ_DONE);
                wgmma_leave(Q_EMPTY + 8 * stage);
                ring.next(), j++;
            }
            bool open;
            if (whole) {
                if (lane == 0)
                    gpu_bulk_wait_read<0>();
                gpu_wave_barrier();
                send(dk, &a.dk, wgmma_lowered<E>((float)a.base.p.forward.softmax_scale));
                open = seen.template overflows<E>();
                if (lane == 0)
                    gpu_bulk_wait_read<0>();
            } else
                open = base::template put<D>(a, w, key0, 0, dv, dk);
            wgmma_leave(V_EMPTY, any);
            if (gpu_group_any(2 + wg, 128, open) && gpu_thread() % 128 == 0)
                a.open_k[gpu_atomic_add(&a.open[0], 1)] = w.again + wg;
            wgmma_leave(WORK_EMPTY + item % 2 * 8);
        }
        if (lane == 0)
            gpu_bulk_wait();
    }
};
