// SPDX-License-Identifier: MIT OR Apache-2.0
// attention forward, rung `wgmma` (Hopper, sm_90a), 16-bit types. Against mma:
//   products of a whole warpgroup, operands straight from shared memory (P from registers), asynchronous: Q·Kᵀ of a block runs
//   beside P·V of the block before it, and the latter under the softmax;
//   one thread of a producer warpgroup drives the copy engine; K and V stream through a ring of slots, the consumers never
//   compute an address; registers go from the producer to the consumers;
//   a block stays for many tiles (BM queries each) and takes the next one's Q while it works;
//   the guard: the row maximum is looked for in the first blocks only. bf16 has the exponents of fp32, so weights far above 1
//   lose nothing; the block's row sum, which is needed anyway, tells when they exceed 2^40, and that block is done again.
//   fp16 ends at 2^16, so there the maximum weighs 2^5 and the limit is 2^15.
//
// Accepts: what the method (attention_forward_wgmma.c) calls plain: windows of step 1, lengths, packing, GQA, sinks; aligned rows.
// Tiles whose result is not finite are done again at the end by mma's careful passes, so hidden NaN and Inf never count.
//
// Bytes requested and FLOPs: as flash2, with BM for BR.
#pragma once
#include "attention_forward_mma.gpu.h"
#include "attention_forward_wgmma.h"
#include "attention_wgmma.gpu.h"

// What the producer tells the consumers of a tile: everything in units of this sequence. q0 < 0: there are no more.
struct wgmma_tile {
    int32_t q0, rows, head, batch;
    int32_t low, high; // row i sees the keys [i + low, i + high), cut to [0, seqlen_k)
    int32_t seqlen_k, round;
    int32_t first, past; // K/V blocks that some row sees
    int32_t unused[2];
    GPU_FN int begin(int i) const
    {
        return cut(i + low);
    }
    GPU_FN int end(int i) const
    {
        return cut(i + high);
    }

  private:
    GPU_FN int cut(int key) const
    {
        return key < 0 ? 0 : key > seqlen_k ? seqlen_k : key;
    }
};

// The traits are the template's arguments: D columns of Q and K, DV of V, BM = 64·NWG queries and BN keys a tile, SLOTS of K and V,
// QS stages of Q.
// What the warpgroups hold together must not exceed what the block got at launch (threads · the compiler's count of registers),
// or the taking never returns.
template <class E, int D, int DV, int BN, int NWG, int SLOTS, int QS> struct attention_forward_wgmma {
    using args = gpu_wgmma_args;
    static constexpr int WIDE = D > DV ? D : DV; // columns of the careful passes
    using careful = attention_forward_mma<E, WIDE <= 64 ? 64 : WIDE <= 128 ? 128 : 256, 1, 4 * NWG, 1, true>;
    static constexpr int BM = 64 * NWG, threads = 128 * (NWG + 1), blocks = 1, tile_q = BM, tile_k = BN;
    static constexpr int PRODUCER = NWG == 2   ? 40
                                    : NWG == 3 ? 32
                                               : 24,
                         CONSUMER = NWG == 2   ? 232
                                    : NWG == 3 ? 160
                                               : 112;
    // Shared memory holds panels of 64 columns, which are 128 bytes.
    static constexpr int PANELS = (D + 63) / 64, PANELS_V = (DV + 63) / 64, PANEL_Q = 64 * 64, PANEL_KV = BN * 64;
    static constexpr int ROUNDS = GPU_WGMMA_ROUNDS; // that are told apart
    static constexpr bool HALF = __is_same(E, gpu_half);
    static constexpr float LAG = 8.f, SHIFT = HALF ? 5.f : 0.f, LIMIT = HALF ? 0x1p15f : 0x1p40f;
    static_assert(careful::BR == BM, "a tile is a careful block");

    struct slot {
        E k[PANELS * PANEL_KV], v[PANELS_V * PANEL_KV];
    };
    struct pipeline {
        E q[QS][NWG * PANELS * PANEL_Q]; // per warpgroup: panels of 64 rows
        slot kv[SLOTS];
        uint64_t q_full[QS], q_empty[QS], kv_full[SLOTS], kv_empty[SLOTS];
        wgmma_tile tile[QS];
    };
    struct alignas(1024) shared {
        union {
            pipeline pipe;
            typename careful::shared careful_room;
        };
        uint32_t bad[ROUNDS / 32]; // rounds to do again; the last bit: all from there on
        int32_t items[ROUNDS];     // who is ready takes: of my rounds
    };
    static_assert(sizeof(shared) <= 232448, "shared memory of a block");

    // The item of this block's round: dealt out there and back again, so that a block with a long tile gets a short one next;
    // or who is ready takes the next (`counters`). False: there is none, and no later round has one.
    static GPU_FN bool deal(const args &a, shared &sh, int round, int64_t &item)
    {
        if (!a.counters) {
            item = (int64_t)round * gpu_blocks() + (round % 2 ? gpu_blocks() - 1 - gpu_block() : gpu_block());
            return (int64_t)round * gpu_blocks() < a.base.items;
        }
        if (round == ROUNDS) // all blocks together have room for twice the items
            return false;
        item = round == 0 ? gpu_block() : gpu_blocks() + (int64_t)gpu_atomic_add(&a.counters[0], 1);
        sh.items[round] = (int32_t)item;
        return item < a.base.items;
    }
    struct place {
        int head, batch;
        int64_t m; // < 0: nothing there
    };
    // Heads go by sections, each padded to `slots` items; of a section the long rows first, so that short ones fill the gaps.
    static GPU_FN place place_of(const args &a, int64_t item)
    {
        const auto &p = a.base.p;
        const int64_t section = gpu_divide(item, a.slots), in = item - section * a.slots;
        const int64_t rest = p.batch * p.heads - section * a.section, heads = rest < a.section ? rest : a.section;
        if (item >= a.base.items || heads <= 0)
            return {0, 0, -1};
        const int64_t down = gpu_divide(in, heads), bh = section * a.section + in - down * heads;
        const int64_t batch = gpu_divide(bh, p.heads);
        return {(int)(bh - batch * p.heads), (int)batch, a.base.q_tiles - 1 - down};
    }
    static GPU_FN wgmma_tile tile_of(const args &a, const kiln_sequence &s, const place &at, int round)
    {
        const auto &p = a.base.p;
        wgmma_tile t = {};
        const int64_t rows = s.seqlen_q - at.m * BM;
        t.q0 = (int32_t)(at.m * BM), t.rows = (int32_t)(rows < BM ? rows : BM), t.head = at.head, t.batch = at.batch;
        t.round = round, t.seqlen_k = (int32_t)s.seqlen_k;
        const wgmma_window window(p, s);
        t.low = window.low, t.high = window.high;
        if (t.rows > 0) {
            const int end = t.end(t.q0 + t.rows - 1);
            t.first = t.begin(t.q0) / BN;
            t.past = end > t.begin(t.q0) ? (end + BN - 1) / BN : t.first;
        }
        return t;
    }

    static GPU_FN void run(const args &a, shared &sh)
    {
        pipeline &pipe = sh.pipe;
        if (gpu_thread() == 0) {
            for (int i = 0; i < QS; i++) {
                gpu_mbarrier_init(gpu_shared_address(&pipe.q_full[i]), 1);
                gpu_mbarrier_init(gpu_shared_address(&pipe.q_empty[i]), 4 * NWG); // the consumers' warps
            }
            for (int i = 0; i < SLOTS; i++) {
                gpu_mbarrier_init(gpu_shared_address(&pipe.kv_full[i]), 1);
                gpu_mbarrier_init(gpu_shared_address(&pipe.kv_empty[i]), 4 * NWG);
            }
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v);
        }
        if (gpu_thread() < ROUNDS / 32)
            sh.bad[gpu_thread()] = 0;
        gpu_block_barrier();
        const int wg = gpu_warpgroup();
        if (wg == NWG) {
            gpu_registers_give<PRODUCER>();
            if (gpu_thread() == 128 * NWG)
                produce(a, sh);
            return;
        }
        gpu_registers_take<CONSUMER>();
        consume(a, sh, wg);
        again(a, sh);
    }

    // ---- the producer: one thread ----
    static GPU_FN void produce(const args &a, shared &sh)
    {
        const auto &p = a.base.p;
        pipeline &pipe = sh.pipe;
        wgmma_ring<QS> q;
        wgmma_ring<SLOTS> kv;
        int64_t item;
        for (int round = 0; deal(a, sh, round, item); round++) {
            const place at = place_of(a, item);
            if (at.m < 0)
                continue;
            const kiln_sequence s = gpu_sequence_of(p, at.batch);
            const wgmma_tile t = tile_of(a, s, at, round);
            if (t.rows <= 0)
                continue;
            const int head_k = (int)((int64_t)t.head * p.heads_k / p.heads);
            // A slot serves one step: K of block j and V of block j + 1. The first of a tile holds only K, the last only V.
            const auto load_slot = [&](int j, bool has_k, bool has_v) {
                slot &to = pipe.kv[kv.stage];
                const uint32_t full = gpu_shared_address(&pipe.kv_full[kv.stage]);
                gpu_mbarrier_wait(gpu_shared_address(&pipe.kv_empty[kv.stage]), kv.parity ^ 1);
                gpu_mbarrier_expect(full, has_k * (uint32_t)sizeof to.k + has_v * (uint32_t)sizeof to.v);
                if (has_k)
#pragma unroll
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.k, gpu_shared_address(to.k + c * PANEL_KV), full, c * 64,
                                        (int)s.k_row + j * BN, head_k, (int)s.k_batch);
                if (has_v)
#pragma unroll
                    for (int c = 0; c < PANELS_V; c++)
                        gpu_tensor_load(&a.v, gpu_shared_address(to.v + c * PANEL_KV), full, c * 64,
                                        (int)s.k_row + (j + 1) * BN, head_k, (int)s.k_batch);
                kv.next();
            };
            if (t.past > t.first)
                load_slot(t.past - 1, true, false);
            const uint32_t full = gpu_shared_address(&pipe.q_full[q.stage]);
            gpu_mbarrier_wait(gpu_shared_address(&pipe.q_empty[q.stage]), q.parity ^ 1);
            pipe.tile[q.stage] = t; // shown by the arrival
            gpu_mbarrier_expect(full, sizeof pipe.q[0]);
#pragma unroll
            for (int w = 0; w < NWG; w++)
#pragma unroll
                for (int c = 0; c < PANELS; c++)
                    gpu_tensor_load(&a.q, gpu_shared_address(pipe.q[q.stage] + (w * PANELS + c) * PANEL_Q), full,
                                    c * 64, (int)s.q_row + t.q0 + 64 * w, t.head, (int)s.q_batch);
            q.next();
            for (int j = t.past - 2; t.past > t.first && j >= t.first - 1; j--)
                load_slot(j, j >= t.first, true);
        }
        gpu_mbarrier_wait(gpu_shared_address(&pipe.q_empty[q.stage]), q.parity ^ 1);
        pipe.tile[q.stage].q0 = -1;
        gpu_mbarrier_arrive(gpu_shared_address(&pipe.q_full[q.stage]));
        if (a.counters && gpu_atomic_add(&a.counters[1], 1) == (uint32_t)gpu_blocks() - 1)
            a.counters[0] = a.counters[1] = 0; // the last block leaves them as the first has found them
    }

    // ---- a consumer warpgroup: 64 queries of every tile ----
    struct state {
        float s[BN / 2], o[DV / 2];
        uint32_t p[BN / 4];                      // weights, rounded: the operand of P·V
        float top[2], sum[2], lost[2], alpha[2]; // of my rows l / 4 + 8·h; sums are my share of four
        uint32_t q_matrix, k_matrix, v_matrix;   // of stage and slot 0
        wgmma_ring<QS> q;
        wgmma_ring<SLOTS> kv;
    };

    static GPU_FN void await(const pipeline &pipe, const state &me)
    {
        gpu_mbarrier_wait(gpu_shared_address(&pipe.kv_full[me.kv.stage]), me.kv.parity);
    }
    static GPU_FN void release(pipeline &pipe, state &me)
    {
        if (gpu_lane() == 0)
            gpu_mbarrier_arrive(gpu_shared_address(&pipe.kv_empty[me.kv.stage]));
        me.kv.next();
    }
    static GPU_FN void release_q(pipeline &pipe, state &me)
    {
        if (gpu_lane() == 0)
            gpu_mbarrier_arrive(gpu_shared_address(&pipe.q_empty[me.q.stage]));
        me.q.next();
    }
    static GPU_FN void skip(pipeline &pipe, state &me, int slots)
    { // in step with the other warpgroups
#pragma unroll 1
        for (; slots > 0; slots--)
            await(pipe, me), release(pipe, me);
    }

    static GPU_FN void issue_scores(state &me)
    {
        const uint32_t q = me.q_matrix + me.q.stage * (uint32_t)(sizeof(pipeline::q[0]) >> 4),
                       k = me.k_matrix + me.kv.stage * (uint32_t)(sizeof(slot) >> 4);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            gpu_wgmma<E, BN>::ss(me.s, gpu_wgmma_descriptor(q + kk / 4 * (PANEL_Q * 2 >> 4) + kk % 4 * 2, 1024),
                                 gpu_wgmma_descriptor(k + kk / 4 * (PANEL_KV * 2 >> 4) + kk % 4 * 2, 1024), kk != 0);
        gpu_wgmma_commit();
    }
    static GPU_FN void issue_values(state &me)
    {
        const uint32_t v = me.v_matrix + me.kv.stage * (uint32_t)(sizeof(slot) >> 4);
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++)
            gpu_wgmma<E, DV>::rs(me.o, me.p + 4 * kk, gpu_wgmma_descriptor(v + kk * (2048 >> 4), 1024));
        gpu_wgmma_commit();
    }

    // What the window hides becomes -inf.
    static GPU_FN void hide(state &me, const wgmma_tile &t, int row, int j)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int shift = j * BN + gpu_lane() % 4 * 2, begin = t.begin(t.q0 + row + 8 * h) - shift,
                      end = t.end(t.q0 + row + 8 * h) - shift;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * i + c < begin || 8 * i + c >= end)
                        me.s[4 * i + 2 * h + c] = gpu_minus_infinity();
        }
    }
    // Raises the maxima to what s holds; alpha: what older sums and O must be multiplied by. Is that needed? Lazy: a maximum
    // stays until it is exceeded by 2^LAG, so that O is seldom rescaled.
    template <bool LAZY> static GPU_FN bool follow(state &me, float scale)
    {
        bool changed = !LAZY;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m0 = me.s[2 * h], m1 = me.s[2 * h + 1];
#pragma unroll
            for (int i = 1; i < BN / 8; i++)
                m0 = gpu_max(m0, me.s[4 * i + 2 * h]), m1 = gpu_max(m1, me.s[4 * i + 2 * h + 1]);
            m0 = gpu_max(gpu_wave_max<4>(gpu_max(m0, m1)), me.top[h]);
            if constexpr (LAZY) {
                const bool grow = (m0 - me.top[h]) * scale > LAG;
                if (!grow)
                    m0 = me.top[h];
                changed |= grow;
            }
            me.alpha[h] = gpu_exp2((me.top[h] - gpu_finite_or_zero(m0)) * scale);
            me.top[h] = m0;
        }
        return LAZY ? gpu_wave_any(changed) : changed;
    }
    // s becomes the weights, sum this block's share. MASKED: there may be rows without a key so far.
    template <bool MASKED> static GPU_FN void weigh(state &me, float scale, float (&sum)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float base = gpu_fma(me.top[h], scale, -SHIFT);
            if constexpr (MASKED)
                base = gpu_finite_or_zero(base);
            float sum0 = 0, sum1 = 0;
#pragma unroll
            for (int i = 0; i < BN / 8; i++) {
                float &x0 = me.s[4 * i + 2 * h], &x1 = me.s[4 * i + 2 * h + 1];
                x0 = gpu_exp2(gpu_fma(x0, scale, -base)), x1 = gpu_exp2(gpu_fma(x1, scale, -base));
                sum0 += x0, sum1 += x1;
            }
            sum[h] = sum0 + sum1;
        }
    }
    static GPU_FN void round_weights(state &me)
    {
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            me.p[i] = gpu_pair<E>(me.s[2 * i], me.s[2 * i + 1]);
    }
    static GPU_FN void rescale(state &me)
    {
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            me.o[i] *= me.alpha[i / 2 % 2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            me.sum[h] *= me.alpha[h], me.lost[h] *= me.alpha[h];
    }
    // The block in the current slot once more with its own maximum, for the 16 rows of a warp: by mma, for in a wgmma the others
    // of the group would have to take part.
    static GPU_FN void redo(const pipeline &pipe, state &me, int wg, float scale, float (&sum)[2])
    {
        const int lane = gpu_lane(), warp = gpu_wave_id() % 4;
        const uint32_t qa =
            gpu_shared_address(pipe.q[me.q.stage] + wg * PANELS * PANEL_Q) + (warp * 16 + lane % 16) * 128;
        const uint32_t ka = gpu_shared_address(pipe.kv[me.kv.stage].k) + (lane / 16 * 8 + lane % 8) * 128;
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            me.s[i] = 0;
#pragma unroll 1
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t a[4], b[4];
            gpu_ldmatrix_at(a, qa + kk / 4 * (PANEL_Q * 2) + ((2 * (kk % 4) + lane / 16) ^ lane % 8) * 16);
            const uint32_t kb = ka + kk / 4 * (PANEL_KV * 2) + ((2 * (kk % 4) + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
            for (int n = 0; n < BN / 16; n++) {
                gpu_ldmatrix_at(b, kb + n * 2048);
                gpu_mma<E>(*(float(*)[4])(me.s + 8 * n), a, b[0], b[1]);
                gpu_mma<E>(*(float(*)[4])(me.s + 8 * n + 4), a, b[2], b[3]);
            }
        }
        follow<false>(me, scale);
        rescale(me);
        weigh<false>(me, scale, sum);
    }

    // One block: Q·Kᵀ of block j beside P·V of block j + 1, the latter under the softmax of block j.
    template <bool MASKED>
    static GPU_FN void step(pipeline &pipe, state &me, const wgmma_tile &t, int wg, int row, int j, float scale)
    {
        constexpr bool WATCH = !MASKED;
        float sum[2];
        bool changed = false;
        await(pipe, me);
        gpu_wgmma_fence();
        issue_scores(me);
        issue_values(me);
        gpu_wgmma_wait<1>();
        gpu_wgmma_settle(me.s);
        if constexpr (MASKED)
            hide(me, t, row, j);
        if constexpr (!WATCH)
            changed = follow<true>(me, scale);
        weigh<MASKED>(me, scale, sum);
        // The branch stands before the wait for P·V, which also keeps the compiler from moving the exponentials below that wait.
        if constexpr (WATCH) {
            if (gpu_wave_any(sum[0] > LIMIT || sum[1] > LIMIT)) {
                gpu_wgmma_wait<0>();
                gpu_wgmma_settle(me.o);
                gpu_wgmma_settle(me.p);
                redo(pipe, me, wg, scale, sum);
            }
        }
        gpu_wgmma_wait<0>();
        gpu_wgmma_settle(me.o);
        gpu_wgmma_settle(me.p);
        release(pipe, me);
        round_weights(me);
        if (changed)
            rescale(me);
#pragma unroll
        for (int h = 0; h < 2; h++) { // thousands of equal terms would all be rounded the same way
            const float l = me.sum[h] + sum[h];
            me.lost[h] += sum[h] - (l - me.sum[h]);
            me.sum[h] = l;
        }
    }

    static GPU_FN void consume(const args &a, shared &sh, int wg)
    {
        pipeline &pipe = sh.pipe;
        const float scale = a.base.scale_log2;
        const int row = wg * 64 + gpu_wave_id() % 4 * 16 + gpu_lane() / 4; // of the tile; and row + 8
        state me;
        me.q_matrix = gpu_wgmma_matrix(gpu_shared_address(pipe.q[0] + wg * PANELS * PANEL_Q), 16);
        me.k_matrix = gpu_wgmma_matrix(gpu_shared_address(pipe.kv[0].k), 16);
        me.v_matrix = gpu_wgmma_matrix(gpu_shared_address(pipe.kv[0].v), PANEL_KV * 2);
#pragma unroll 1
        while (true) {
            gpu_mbarrier_wait(gpu_shared_address(&pipe.q_full[me.q.stage]), me.q.parity);
            const wgmma_tile &t = pipe.tile[me.q.stage];
            if (t.q0 < 0)
                break;
            const int slots = t.past > t.first ? t.past - t.first + 1 : 0;
            if (wg * 64 >= t.rows) {
                skip(pipe, me, slots);
                release_q(pipe, me);
                continue;
            }
            const int r0 = t.q0 + wg * 64, r1 = t.q0 + (wg * 64 + 63 < t.rows ? wg * 64 + 63 : t.rows - 1);
            const int first = t.begin(r0) / BN, past = t.end(r1) > t.begin(r0) ? (t.end(r1) + BN - 1) / BN : first;
            // Blocks [whole_begin, whole_end) hide no key of any row. From `watched` on downwards every row has seen a key.
            const int whole_begin = (t.begin(r1) + BN - 1) / BN, whole_end = t.end(r0) / BN;
            const int watched = past - 1 < whole_end || t.end(r0) > whole_end * BN ? whole_end : whole_end - 1;
#pragma unroll
            for (int i = 0; i < DV / 2; i++)
                me.o[i] = 0;
#pragma unroll
            for (int h = 0; h < 2; h++)
                me.top[h] = gpu_minus_infinity(), me.sum[h] = me.lost[h] = 0;
            if (past <= first) { // no row sees a key
                finish<false>(a, sh, me, row);
                skip(pipe, me, slots);
                continue;
            }
            skip(pipe, me, t.past - past);
            await(pipe, me);
            gpu_wgmma_fence();
            issue_scores(me);
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(me.s);
            int j = past - 1;
            if (j >= whole_end || j < whole_begin)
                hide(me, t, row, j);
            release(pipe, me);
            follow<false>(me, scale);
            weigh<true>(me, scale, me.sum);
            round_weights(me);
            j--;
            int stop = watched > first ? watched : first;
#pragma unroll 1
            while (true) {
#pragma unroll 1
                for (; j >= stop; j--)
                    step<true>(pipe, me, t, wg, row, j, scale);
                if (j < first)
                    break;
#pragma unroll 1
                for (; j >= whole_begin; j--)
                    step<false>(pipe, me, t, wg, row, j, scale);
                stop = first;
            }
            const int left = first - t.first;
            finish<true>(a, sh, me, row);
            skip(pipe, me, left);
        }
    }

    // The end of a tile: the last P·V, lse, O straight from registers. Q goes as soon as its last product is done.
    template <bool ANY> static GPU_FN void finish(const args &a, shared &sh, state &me, int row)
    {
        const auto &p = a.base.p;
        const wgmma_tile t = sh.pipe.tile[me.q.stage]; // read again, rather than kept in registers through the loop
        release_q(sh.pipe, me);
        if constexpr (ANY) {
            await(sh.pipe, me);
            gpu_wgmma_fence();
            issue_values(me);
        }
        const kiln_sequence s = gpu_sequence_of(p, t.batch);
        const gpu_scores c(p, s, t.batch, t.head, a.base.scale_log2);
        float factor[2];
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool here = row + 8 * h < t.rows;
            const float lost = me.lost[h] - me.lost[h] == 0 ? me.lost[h] : 0.f; // inf - inf
            const float sum = gpu_wave_sum<4>(me.sum[h] + lost);
            const gpu_row_end done(c, gpu_fma(me.top[h], a.base.scale_log2, -SHIFT), sum,
                                   me.top[h] > gpu_minus_infinity(), SHIFT);
            if (here && gpu_lane() % 4 == 0)
                done.store_lse(c, t.q0 + row + 8 * h);
            open |= here && !(sum < -gpu_minus_infinity());
            factor[h] = done.factor;
        }
        if constexpr (ANY) {
            gpu_wgmma_wait<0>();
            gpu_wgmma_settle(me.o);
            gpu_wgmma_settle(me.p);
            release(sh.pipe, me);
        }
        const gpu_rows<E> o(gpu_rows<E>(p.o, s.q_batch, t.head).from(s.q_row + t.q0));
        const float limit = gpu_overflow_of(p.o.type);
#pragma unroll
        for (int h = 0; h < 2; h++)
            open |=
                wgmma_store_row<E, DV>(o, row + 8 * h, row + 8 * h < t.rows, 0, (int)p.d_v, limit, [&](int i, int e) {
                    return factor[h] == 0 ? 0.f : me.o[4 * i + 2 * h + e] * factor[h];
                });
        if (gpu_wave_any(open) && gpu_lane() == 0) {
            const int bit = t.round < ROUNDS - 1 ? t.round : ROUNDS - 1;
            gpu_shared_or(&sh.bad[bit / 32], 1u << bit % 32);
        }
    }

    // What was not finite, by mma's careful passes, when all else is done.
    static GPU_FN void again(const args &a, shared &sh)
    {
        gpu_named_barrier(1, 128 * NWG); // all have noted, and need the slots no longer
        bool any = false;
        for (int i = 0; i < ROUNDS / 32; i++)
            any |= sh.bad[i] != 0;
        if (!any)
            return;
#pragma unroll 1
        for (int round = 0;; round++) {
            const int bit = round < ROUNDS - 1 ? round : ROUNDS - 1;
            int64_t item;
            if (a.counters) {
                if (round == ROUNDS)
                    return;
                item = sh.items[round];
            } else if (!deal(a, sh, round, item))
                return;
            if (!(sh.bad[bit / 32] >> bit % 32 & 1))
                continue;
            const place at = place_of(a, item);
            if (at.m < 0)
                continue;
            const gpu_item work(a.base.p, (at.batch * a.base.p.heads + at.head) * a.base.q_tiles + at.m,
                                a.base.q_tiles);
            careful::again(a.base, sh.careful_room, work, at.m * BM);
        }
    }
};
