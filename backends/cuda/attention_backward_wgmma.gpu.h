// SPDX-License-Identifier: MIT OR Apache-2.0
// attention backward, rung `wgmma` (Hopper, sm_90a), 16-bit types. Against flash2 (two passes that recompute S and dP twice):
//   one pass. A block owns 128 keys of one KV head, dK and dV stay in registers while Q and dO stream past in tiles of 64 rows;
//   scores are computed transposed (keys x queries), so that P and dS are at once the register operands of dV += P·dO and
//   dK += dS·Q; only dS also goes through shared memory, for dQ = dSᵀ·K needs the keys of both warpgroups: each makes half of
//   dQ's columns and adds them to an fp32 sum in memory. In whatever order: bits of dq differ from run to run.
//
//   prepare  D = Σ do·o - dlse, -lse·log2(e), zeroes dQ          finish   dQ scaled and rounded
//   main     dK, dV, dQ                                          again    what is not finite, by the kernels of flash2
//
// Accepts what the method (attention_backward_wgmma.c) calls plain. What a hidden row holds has no influence: 0·NaN makes a
// gradient NaN here, and `again` does its tile with hidden pairs left out.
//
// FLOPs: 10·N²·d a head, causal half of it. Bytes requested per KV head: 2·N·d·e (K, V, and dK, dV) + ⌈N/128⌉·group·(2·N·d·e + 4·N·d).
#pragma once
#include "../gpu/attention_backward_flash2.gpu.h"
#include "attention_backward_wgmma.h"
#include "attention_wgmma.gpu.h"

// Where the number of query c of 64 is kept: what one thread needs of two groups of 8 queries lies together.
GPU_FN int wgmma_row_slot(int c)
{
    return (c & 48) | (c & 6) << 1 | (c >> 3 & 1) << 1 | (c & 1);
}

// BULK: dQ leaves through shared memory and one bulk addition per warp, else straight from registers. HOLD: K and V stay in
// registers as operands (D = 64 only: there is room).
template <class E, int D, int STAGES, bool BULK, bool HOLD> struct attention_backward_wgmma {
    using args = gpu_wgmma_backward_args;
    static constexpr int BM = GPU_WGMMA_ROWS, BN = 2 * GPU_WGMMA_ROWS, threads = 384, blocks = 1, tile_q = BM,
                         tile_k = BN;
    static constexpr int PRODUCER = 24, CONSUMER = 240, PANELS = D / 64, PANEL_Q = BM * 64, PANEL_K = BN * 64;
    static constexpr int PIECES = D / 16; // of 16 bytes: a thread's share of dQ

    // The block's keys, and the queries that see some of them: tiles [m_first, m_past), of each head of the group.
    struct work {
        int head_k, batch, n0, m_first, m_past, group, low, high, seqlen_k;
        int64_t q_tile; // of head head_k·group, in the workspace
        GPU_FN int steps() const
        {
            return m_past > m_first ? (m_past - m_first) * group : 0;
        }
    };
    struct alignas(1024) shared {
        E k[BN * D], v[BN * D], q[STAGES][BM * D], dout[STAGES][BM * D];
        E ds[2][BN * BM];
        float dq[BULK ? BM * D : 4], lse[STAGES][BM], delta[STAGES][BM];
        uint64_t q_full[STAGES], q_empty[STAGES], do_full[STAGES], do_empty[STAGES], k_full, v_full;
        work mine; // here rather than in registers, which are what this kernel is short of
        kiln_sequence sequence;
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
                              DO_EMPTY = SHARED + offsetof(shared, do_empty),
                              K_FULL = SHARED + offsetof(shared, k_full), V_FULL = SHARED + offsetof(shared, v_full);
    static constexpr uint32_t Q_BYTES = BM * D * 2, DS_BYTES = BN * BM * 2;

    static GPU_FN void begin(const args &a, shared &sh, int64_t item)
    {
        const auto &p = a.base.p.forward;
        const int64_t tiles = a.base.k_tiles, heads = p.batch * p.heads_k;
        int64_t n, bh;
        if (p.masked) { // within a section of heads the tiles with the most queries (of a causal mask) first
            const int64_t section = gpu_divide(item, a.section * tiles), in = item - section * a.section * tiles;
            const int64_t rest = heads - section * a.section, here = rest < a.section ? rest : a.section;
            n = gpu_divide(in, here), bh = section * a.section + in - n * here;
        } else
            bh = gpu_divide(item, tiles), n = item - bh * tiles;
        work w;
        w.batch = (int)gpu_divide(bh, p.heads_k), w.head_k = (int)(bh - (int64_t)w.batch * p.heads_k),
        w.n0 = (int)(n * BN);
        const kiln_sequence s = gpu_sequence_of(p, w.batch);
        const wgmma_window window(p, s);
        w.group = (int)(p.heads / p.heads_k), w.low = window.low, w.high = window.high, w.seqlen_k = (int)s.seqlen_k;
        // Query i sees the keys [i + low, i + high): key j is seen by j - high < i <= j - low.
        const int last = (w.n0 + BN < w.seqlen_k ? w.n0 + BN : w.seqlen_k) - 1;
        const int64_t first = (int64_t)w.n0 - w.high + 1, past = (int64_t)last - w.low + 1;
        const int begin = first < 0 ? 0 : (int)(first < s.seqlen_q ? first : s.seqlen_q);
        const int end = past < begin ? begin : (int)(past < s.seqlen_q ? past : s.seqlen_q);
        w.m_first = begin / BM, w.m_past = w.n0 >= w.seqlen_k || end <= begin ? w.m_first : (end + BM - 1) / BM;
        const bool packed = kiln_view_present(&p.cu_seqlens_q);
        w.q_tile = (int64_t)w.head_k * w.group * a.q_room + gpu_wgmma_tile_of(packed, w.batch, s.q_row, a.base.q_tiles);
        sh.mine = w, sh.sequence = s;
    }

    static GPU_FN void run(const args &a, shared &sh)
    {
        if (gpu_shared_address(&sh) != SHARED)
            gpu_trap();
        if (gpu_thread() == 0) {
            for (int i = 0; i < STAGES; i++) {
                gpu_mbarrier_init(Q_FULL + 8 * i, 1), gpu_mbarrier_init(Q_EMPTY + 8 * i, 8);
                gpu_mbarrier_init(DO_FULL + 8 * i, 1), gpu_mbarrier_init(DO_EMPTY + 8 * i, 8);
            }
            gpu_mbarrier_init(K_FULL, 1), gpu_mbarrier_init(V_FULL, 1);
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v),
                gpu_tensor_prefetch(&a.dout);
            begin(a, sh, gpu_block());
        }
        gpu_block_barrier();
        const work &w = sh.mine;
        if (w.n0 >= w.seqlen_k)
            return;
        const int wg = gpu_warpgroup();
        if (wg == 2) {
            gpu_registers_give<PRODUCER>();
            if (gpu_thread() == 256 && w.steps() > 0)
                produce(a, sh.sequence, w);
            return;
        }
        gpu_registers_take<CONSUMER>();
        consume(a, sh.sequence, w, wg);
    }

    static GPU_FN void produce(const args &a, const kiln_sequence &s, const work &w)
    {
        wgmma_ring<STAGES> ring;
        const int steps = w.steps(), q_row = (int)s.q_row, q_batch = (int)s.q_batch, k_row = (int)s.k_row + w.n0,
                  k_batch = (int)s.k_batch;
        const float *lse = a.lse + (w.q_tile + w.m_first) * BM, *delta = a.delta + (w.q_tile + w.m_first) * BM;
        int m = w.m_first, head = w.head_k * w.group;
#pragma unroll 1
        for (int j = 0; j < steps; j++) {
            uint32_t full = Q_FULL + 8 * ring.stage;
            gpu_mbarrier_wait(Q_EMPTY + 8 * ring.stage, ring.parity ^ 1);
            gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll
            for (int c = 0; c < PANELS; c++)
                gpu_tensor_load(&a.q, Q + ring.stage * Q_BYTES + c * PANEL_Q * 2, full, c * 64, q_row + m * BM, head,
                                q_batch);
            gpu_bulk_load(LSE + ring.stage * BM * 4, lse, BM * 4, full);
            if (j == 0) {
                gpu_mbarrier_expect(K_FULL, sizeof(shared::k));
#pragma unroll
                for (int c = 0; c < PANELS; c++)
                    gpu_tensor_load(&a.k, K + c * PANEL_K * 2, K_FULL, c * 64, k_row, w.head_k, k_batch);
                gpu_mbarrier_expect(V_FULL, sizeof(shared::v));
#pragma unroll
                for (int c = 0; c < PANELS; c++)
                    gpu_tensor_load(&a.v, V + c * PANEL_K * 2, V_FULL, c * 64, k_row, w.head_k, k_batch);
            }
            full = DO_FULL + 8 * ring.stage;
            gpu_mbarrier_wait(DO_EMPTY + 8 * ring.stage, ring.parity ^ 1);
            gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll
            for (int c = 0; c < PANELS; c++)
                gpu_tensor_load(&a.dout, DO + ring.stage * Q_BYTES + c * PANEL_Q * 2, full, c * 64, q_row + m * BM,
                                head, q_batch);
            gpu_bulk_load(DELTA + ring.stage * BM * 4, delta, BM * 4, full);
            ring.next();
            lse += BM, delta += BM;
            if (++m == w.m_past) {
                const int64_t skip = (a.q_room - (w.m_past - w.m_first)) * BM;
                m = w.m_first, head++;
                lse += skip, delta += skip;
            }
        }
    }

    static GPU_FN void consume(const args &a, const kiln_sequence &s, const work &w, int wg)
    {
        const auto &p = a.base.p.forward;
        const int warp = gpu_wave_id() % 4, lane = gpu_lane(), quad = lane % 4;
        const float scale = a.base.scale_log2;
        // A thread holds keys g and g + 8 of its warp's 16 (g = lane / 4) and of every 8 queries the two at 2·quad: element
        // 4·i + 2·h + c is key g + 8·h, query 8·i + 2·quad + c.
        const int key0 = w.n0 + wg * 64 + warp * 16 + lane / 4;
        float dk[D / 2], dv[D / 2], x[BM / 2], dp[BM / 2], dq[D / 4];
        uint32_t weights[BM / 4], ds[BM / 4], held_k[HOLD ? D / 4 : 4], held_v[HOLD ? D / 4 : 4];
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            dk[i] = dv[i] = 0;

        const auto hold = [&](uint32_t(&to)[HOLD ? D / 4 : 4], uint32_t from) {
            const uint32_t row = from + (wg * 64 + warp * 16 + lane % 16) * 128;
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t t[4];
                gpu_ldmatrix_at(t, row + ((2 * kk + lane / 16) ^ lane % 8) * 16);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    to[4 * kk + i] = t[i];
            }
        };
        // 64 keys x 64 queries: keys from `held`, or from shared memory at `own`; the tile of queries at `tile`.
        const auto issue_scores = [&](float(&to)[BM / 2], const uint32_t *held, uint32_t own, uint32_t tile) {
            const uint32_t b = gpu_wgmma_matrix(tile, 16), k = gpu_wgmma_matrix(own + wg * 8192, 16);
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                const uint64_t queries = gpu_wgmma_descriptor(b + kk / 4 * (PANEL_Q * 2 >> 4) + kk % 4 * 2, 1024);
                if constexpr (HOLD)
                    gpu_wgmma<E, BM>::rk(to, held + 4 * kk, queries, kk != 0);
                else
                    gpu_wgmma<E, BM>::kk(to, gpu_wgmma_descriptor(k + kk / 4 * (PANEL_K * 2 >> 4) + kk % 4 * 2, 1024),
                                         queries, kk != 0);
            }
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
        // 64 queries x D / 2: dSᵀ·K over the block's keys.
        const auto issue_dq = [&](int buffer) {
            const uint32_t b = gpu_wgmma_matrix(DS + buffer * DS_BYTES, 16),
                           k = gpu_wgmma_matrix(K + (D == 128 ? wg * PANEL_K * 2 : wg * 64), 16);
#pragma unroll
            for (int kk = 0; kk < BN / 16; kk++)
                gpu_wgmma<E, D / 2>::mn(dq, gpu_wgmma_descriptor(b + kk * (2048 >> 4), 1024),
                                        gpu_wgmma_descriptor(k + kk * (2048 >> 4), 1024), kk != 0);
            gpu_wgmma_commit();
        };
        const auto hide = [&](int m) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int key = key0 + 8 * h, shift = m * BM + 2 * quad; // i = shift + ... sees it if first <= i < past
                int first = key - w.high + 1 - shift, past = key - w.low + 1 - shift;
                if (key >= w.seqlen_k)
                    past = first = BM;
#pragma unroll
                for (int i = 0; i < BM / 8; i++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        if (8 * i + c < first || 8 * i + c >= past)
                            x[4 * i + 2 * h + c] = gpu_minus_infinity();
            }
        };
        const auto weigh = [&](int stage) {
            const uint32_t at = LSE + stage * (BM * 4) + 16 * quad;
#pragma unroll
            for (int i = 0; i < BM / 8; i += 2) {
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
            for (int i = 0; i < BM / 8; i += 2) {
                const gpu_vec<float, 4> l = gpu_load4_at(at + 32 * i);
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    const int e = 4 * i + 2 * h;
                    ds[e / 2] = gpu_pair<E>(x[e] * (dp[e] - l[h / 2 * 2]), x[e + 1] * (dp[e + 1] - l[h / 2 * 2 + 1]));
                }
            }
        };
        const uint32_t ds_at = DS + (wg * 64 + warp * 16 + lane % 16) * 128 + (((lane / 16) ^ lane % 8) << 4);
        const auto store_ds = [&](int buffer) { // [key][query]: 64 queries are a row of 128 bytes
#pragma unroll
            for (int i = 0; i < BM / 8; i += 2)
                gpu_stmatrix_at((ds_at + buffer * DS_BYTES) ^ (i << 4), ds + 2 * i);
        };
        const auto dq_out = [&](int tile) { // from the first of the first head on
            float *to = a.dq + (w.q_tile + tile) * (BM * D) + (wg * 4 + warp) * (8 * D);
            if constexpr (BULK) {
                const uint32_t from = DQ + (wg * 4 + warp) * (PIECES * 512);
                if (lane == 0)
                    gpu_bulk_wait_read();
                gpu_wave_barrier();
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    gpu_store4_at(from + i * 512 + lane * 16, dq + 4 * i);
                gpu_async_fence();
                gpu_wave_barrier();
                if (lane == 0)
                    gpu_bulk_add(to, from, PIECES * 512);
            } else
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    gpu_add4(to + lane * 4 + i * 128, dq + 4 * i);
        };

        if (w.steps() > 0) {
            wgmma_ring<STAGES> ring;
            int m = w.m_first, head = 0; // offset of the head's tiles in the workspace
            gpu_mbarrier_wait(K_FULL, 0);
            gpu_mbarrier_wait(V_FULL, 0);
            if constexpr (HOLD)
                hold(held_k, K), hold(held_v, V);
            gpu_mbarrier_wait(Q_FULL, 0);
            gpu_wgmma_fence();
            issue_scores(x, held_k, K, Q);
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(x);
#pragma unroll 1
            for (int j = 0; j < w.steps(); j++) { // under way at this point: dK of step j - 1
                const int stage = ring.stage;
                gpu_mbarrier_wait(DO_FULL + 8 * stage, ring.parity);
                gpu_wgmma_fence();
                issue_scores(dp, held_v, V, DO + stage * Q_BYTES);
                const int i0 = m * BM;
                if (w.n0 + BN > w.seqlen_k || w.n0 + BN > i0 + w.high || w.n0 < i0 + BM - 1 + w.low)
                    hide(m);
                weigh(stage);
                gpu_wgmma_fence();
                issue_rows(dv, weights, DO + stage * Q_BYTES);
                gpu_wgmma_wait<1>();
                gpu_wgmma_settle(dp);
                gpu_wgmma_settle(ds);
                if (lane == 0 && j > 0)
                    gpu_mbarrier_arrive(Q_EMPTY + 8 * (stage == 0 ? STAGES - 1 : stage - 1));
                gradients(stage);
                store_ds(j & 1);
                gpu_async_fence();
                gpu_wgmma_wait<0>(); // dV: beside the next scores the compiler runs out of registers
                gpu_wgmma_settle(dv);
                gpu_wgmma_settle(weights);
                if (lane == 0)
                    gpu_mbarrier_arrive(DO_EMPTY + 8 * stage);
                ring.next();
                if (j + 1 < w.steps())
                    gpu_mbarrier_wait(Q_FULL + 8 * ring.stage, ring.parity);
                gpu_wgmma_fence();
                issue_scores(x, held_k, K,
                             Q + ring.stage * Q_BYTES); // after the last step of stale data: as many under way
                // Both halves of dS are there. One barrier a step is enough with two buffers: who passes it has done with the
                // buffer that the other is about to write.
                gpu_named_barrier(1, 256);
                gpu_wgmma_fence();
                issue_dq(j & 1);
                issue_rows(dk, ds, Q + stage * Q_BYTES);
                gpu_wgmma_wait<1>();
                gpu_wgmma_settle(x);
                gpu_wgmma_settle(dq);
                dq_out(head + m);
                if (++m == w.m_past)
                    m = w.m_first, head += (int)a.q_room;
            }
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(dk);
            gpu_wgmma_settle(dv);
            gpu_wgmma_settle(x);
        }
        bool open = write(a.base.p.dv, s, w, key0, dv, 1.f);
        open |= write(a.base.p.dk, s, w, key0, dk, (float)p.softmax_scale);
        if (BULK && lane == 0)
            gpu_bulk_wait();
        const int any = gpu_group_any(2 + wg, open);
        if (warp == 0 && lane == 0 && w.n0 + wg * 64 < w.seqlen_k) {
            const bool packed = kiln_view_present(&p.cu_seqlens_k);
            const int64_t tiles = (p.seqlen_k + GPU_WGMMA_ROWS - 1) / GPU_WGMMA_ROWS;
            a.open_k[w.head_k * a.k_room + gpu_wgmma_tile_of(packed, w.batch, s.k_row, tiles) + w.n0 / GPU_WGMMA_ROWS +
                     wg] = any;
        }
    }
    // My rows to memory. Is something not finite?
    static GPU_FN bool write(const kiln_view &view, const kiln_sequence &s, const work &w, int key0,
                             const float (&sum)[D / 2], float scale)
    {
        const gpu_rows<E> out(gpu_rows<E>(view, s.k_batch, w.head_k).from(s.k_row));
        const float limit = gpu_overflow_of(view.type);
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++)
            open |= wgmma_store_row<E, D>(out, key0 + 8 * h, key0 + 8 * h < w.seqlen_k, 0, (int)view.size[3], limit,
                                          [&](int i, int e) { return sum[4 * i + 2 * h + e] * scale; });
        return open;
    }
};

// A tile of queries of one head: item = (batch, head, tile).
template <class E, int D> struct attention_backward_wgmma_tiles {
    using args = gpu_wgmma_backward_args;
    static constexpr int BM = GPU_WGMMA_ROWS, threads = 256, blocks = 2, tile_q = BM, tile_k = 0;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static GPU_FN int64_t slot(const args &a, const kiln_sequence &s, const gpu_item &of)
    {
        return of.head * a.q_room +
               gpu_wgmma_tile_of(kiln_view_present(&a.base.p.forward.cu_seqlens_q), of.batch, s.q_row, a.base.q_tiles) +
               of.tile;
    }
};

template <class E, int D> struct attention_backward_wgmma_prepare : attention_backward_wgmma_tiles<E, D> {
    using base = attention_backward_wgmma_tiles<E, D>;
    using typename base::args, typename base::shared;
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        constexpr int PER_ROW = D / 8, ROWS = base::threads / PER_ROW, STEPS = base::BM / ROWS;
        const auto &p = a.base.p.forward;
        const gpu_item of(p, item, a.base.q_tiles);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = of.tile * base::BM, tile = base::slot(a, s, of);
        if (q0 >= s.seqlen_q)
            return;
        const int col = gpu_thread() % PER_ROW * 8, r0 = gpu_thread() / PER_ROW;
        const gpu_rows<const E> o(gpu_rows<const E>(p.o, s.q_batch, of.head).from(s.q_row + q0)),
            dout(gpu_rows<const E>(a.base.p.dout, s.q_batch, of.head).from(s.q_row + q0));
        gpu_vec<E, 8> x[STEPS] = {}, y[STEPS] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (q0 + r0 + i * ROWS < s.seqlen_q && col < p.d_v)
                x[i] = gpu_load<8>(o, r0 + i * ROWS, col), y[i] = gpu_load<8>(dout, r0 + i * ROWS, col);
        float *sums = a.dq + tile * (base::BM * D);
        const gpu_vec<float, 4> zero = {};
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            gpu_put<16>(sums + (gpu_thread() + 256 * i) * 4, &zero);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = gpu_fma(gpu_to_float(x[i][e]), gpu_to_float(y[i][e]), sum);
            sum = gpu_wave_sum<PER_ROW>(sum);
            if (gpu_thread() % PER_ROW != 0)
                continue;
            const int r = r0 + i * ROWS;
            const int64_t row = s.q_row + q0 + r;
            float lse = gpu_minus_infinity(); // past the last: no weight
            if (q0 + r < s.seqlen_q) {
                const float l = gpu_read<float>(p.lse, s.q_batch, of.head, row);
                lse = l == gpu_minus_infinity() ? l : l * -1.44269504089f;
                if (kiln_view_present(&a.base.p.dlse))
                    sum -= gpu_read<float>(a.base.p.dlse, s.q_batch, of.head, row);
            }
            a.lse[tile * base::BM + wgmma_row_slot(r)] = lse;
            a.delta[tile * base::BM + wgmma_row_slot(r)] = sum;
            if (q0 + r < s.seqlen_q) // for `again`
                gpu_write<float>(a.base.delta, s.q_batch, of.head, row, 0, sum);
        }
    }
};

template <class E, int D> struct attention_backward_wgmma_finish : attention_backward_wgmma_tiles<E, D> {
    using base = attention_backward_wgmma_tiles<E, D>;
    using typename base::args, typename base::shared;
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.base.p.forward;
        const gpu_item of(p, item, a.base.q_tiles);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = of.tile * base::BM, tile = base::slot(a, s, of);
        if (q0 >= s.seqlen_q)
            return;
        const int wave = gpu_wave_id(), lane = gpu_lane();
        const float *sums = a.dq + tile * (base::BM * D) + wave * (8 * D) + lane * 4;
        gpu_vec<float, 4> x[D / 16];
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            gpu_move<16>(&x[i], sums + 128 * i);
        const auto &view = a.base.p.dq;
        const gpu_rows<E> out(gpu_rows<E>(view, s.q_batch, of.head).from(s.q_row + q0));
        const float scale = (float)p.softmax_scale, limit = gpu_overflow_of(view.type);
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = wave % 4 * 16 + lane / 4 + 8 * h;
            open |= wgmma_store_row<E, D / 2>(out, r, q0 + r < s.seqlen_q, wave / 4 * (D / 2), (int)view.size[3], limit,
                                              [&](int i, int e) { return x[i][2 * h + e] * scale; });
        }
        open = gpu_block_any(open);
        if (gpu_thread() == 0)
            a.open_q[tile] = open;
    }
};

// Tiles whose gradient is not finite, by the kernels of flash2 (the same tiles: 64 queries, 64 keys).
template <class E> struct attention_backward_wgmma_again_keys : attention_backward_keys<attention_backward_matrix<E>> {
    using args = gpu_wgmma_backward_args;
    using base = attention_backward_keys<attention_backward_matrix<E>>;
    static GPU_FN void run(const args &a, typename base::shared &sh, int64_t item)
    {
        const auto &p = a.base.p.forward;
        const int64_t parts = base::ceil_parts(p.d) + base::ceil_parts(p.d_v), tiles = a.base.k_tiles,
                      at = item / parts / tiles;
        const int64_t batch = at / p.heads_k, tile = item / parts % tiles;
        const kiln_sequence s = gpu_sequence_of(p, batch);
        const bool packed = kiln_view_present(&p.cu_seqlens_k);
        if (tile * GPU_WGMMA_ROWS < s.seqlen_k &&
            a.open_k[at % p.heads_k * a.k_room + gpu_wgmma_tile_of(packed, batch, s.k_row, tiles) + tile])
            base::run(a.base, sh, item);
    }
};
template <class E>
struct attention_backward_wgmma_again_queries : attention_backward_queries<attention_backward_matrix<E>> {
    using args = gpu_wgmma_backward_args;
    using base = attention_backward_queries<attention_backward_matrix<E>>;
    static GPU_FN void run(const args &a, typename base::shared &sh, int64_t item)
    {
        const auto &p = a.base.p.forward;
        gpu_item of(p, item / base::ceil_parts(p.d), a.base.q_tiles);
        of.tile = a.base.q_tiles - 1 - of.tile; // as base::run() counts them
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        if (of.tile * GPU_WGMMA_ROWS < s.seqlen_q && a.open_q[attention_backward_wgmma_tiles<E, 64>::slot(a, s, of)])
            base::run(a.base, sh, item);
    }
};
