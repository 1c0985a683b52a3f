// SPDX-License-Identifier: MIT OR Apache-2.0
// A block of attention forward, rung `wgmma`, without its consumers (attention_forward_wgmma.gpu.h): shared memory, which tile is whose, the
// planner, which is a wave, and the producer, which is a thread. No tile is computed here.
#pragma once
#include "attention_forward_mma.gpu.h"
#include "attention_forward_wgmma.h"
#include "attention_wgmma.gpu.h"

// What the planner says of a tile: everything in units of this sequence. q0 < 0: there are no more.
struct wgmma_tile {
    void *o;    // its first row
    float *lse; // or NULL
    int32_t q0, rows, head;
    int32_t low, high; // row i sees the keys [i + low, i + high), cut to [0, seqlen_k)
    int32_t seqlen_k, round;
    int32_t first, past; // K/V blocks that some row sees
    // Where its queries and the sequence's first key lie.
    int32_t q_row, q_batch, k_row, k_batch, head_k;
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

// The blocks of 64 rows of a tile.
struct wgmma_part {
    int32_t first, past;          // those that some row sees
    int32_t whole_begin, watched; // those that hide no key of any row; of them, each row has seen a block before
};

// The traits are the template's arguments: D columns of Q and K, DV of V, BM = 64·NWG queries and BN keys a tile, SLOTS of K and V,
// QS stages of Q.
// What the warpgroups hold together must not exceed what the block got at launch (threads · the compiler's count of registers),
// or the taking never returns.
template <class E_, int D_, int DV_, int BN_, int NWG, int SLOTS, int QS> struct wgmma_forward_block {
    using E = E_;
    using args = gpu_wgmma_args;
    static constexpr int D = D_, DV = DV_, BN = BN_;
    static constexpr int WIDE = D > DV ? D : DV; // columns of the careful passes
    using careful = attention_forward_mma<E, WIDE <= 64 ? 64 : WIDE <= 128 ? 128 : 256, 4 * NWG, 1>;
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
    static_assert(careful::BR == BM, "a tile is a careful block");

    struct slot {
        E k[PANELS * PANEL_KV], v[PANELS_V * PANEL_KV];
    };
    static constexpr bool SENDS_Q = QS > 1; // by way of Q's memory: send()
    static constexpr int PLANS = QS + 1;    // tiles that are known: those whose Q is here, and the next
    // Blocks that are left to fetch when the next tile is looked for. Not earlier: who is ready takes.
    static constexpr int AHEAD = 4;
    struct plan {
        wgmma_tile tile;
        wgmma_part part[NWG];
    };
    struct pipeline {
        E q[QS][NWG * PANELS * PANEL_Q]; // per warpgroup: panels of 64 rows
        slot kv[SLOTS];
        uint64_t q_full[QS], q_empty[QS], kv_full[SLOTS], kv_empty[SLOTS], plan_full[PLANS], plan_empty[PLANS], wanted;
        plan plans[PLANS];
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
    // or who is ready takes the next (`counters`; for all lanes of a wave). False: there is none, and no later round has one.
    static GPU_FN bool deal(const args &a, shared &sh, int round, int &item)
    {
        const int blocks = (int)gpu_blocks(), block = (int)gpu_block();
        if (!a.counters) {
            item = round * blocks + (round % 2 ? blocks - 1 - block : block);
            return round * blocks < (int)a.base.items;
        }
        if (round == ROUNDS) // all blocks together have room for twice the items
            return false;
        if (gpu_lane() == 0)
            sh.items[round] = round == 0 ? block : blocks + (int)gpu_atomic_add(&a.counters[0], 1);
        gpu_wave_barrier();
        item = sh.items[round];
        return item < (int)a.base.items;
    }
    struct place {
        int head, batch, m; // m < 0: nothing there
    };
    // Heads go by sections, each padded to `slots` items; of a section the long rows first, so that short ones fill the gaps. Tiles
    // of two heights: head by head the high ones, then the low ones.
    static GPU_FN place place_of(const args &a, int item)
    {
        const int all = (int)(a.base.p.batch * a.base.p.heads), per_batch = (int)a.base.p.heads;
        if (a.tiling.high < (int)a.base.q_tiles) {
            const int high = a.tiling.high, first = all * high;
            const int each = item < first ? high : (int)a.base.q_tiles - high, at = item < first ? item : item - first;
            const int bh = at / each, batch = bh / per_batch;
            if (item >= (int)a.base.items)
                return {0, 0, -1};
            return {bh - batch * per_batch, batch, at - bh * each + (item < first ? 0 : high)};
        }
        const int section = item / a.slots, in = item - section * a.slots, left = all - section * a.section;
        const int heads = left < a.section ? left : a.section;
        if (item >= (int)a.base.items || heads <= 0)
            return {0, 0, -1};
        const int down = in / heads, bh = section * a.section + in - down * heads, batch = bh / per_batch;
        return {bh - batch * per_batch, batch, (int)a.base.q_tiles - 1 - down};
    }
    static GPU_FN int height_of(const args &a, int m)
    {
        return m < a.tiling.high ? a.tiling.rows : a.tiling.low;
    }
    static GPU_FN int begin_of(const args &a, int m)
    {
        return m <= a.tiling.high ? m * a.tiling.rows
                                  : a.tiling.high * a.tiling.rows + (m - a.tiling.high) * a.tiling.low;
    }
    static GPU_FN wgmma_tile tile_of(const args &a, const place &at, int round)
    {
        const auto &p = a.base.p;
        kiln_sequence s = {p.seqlen_q, p.seqlen_k, at.batch, 0, at.batch, 0, 0, 0};
        gpu_wgmma_window window = a.window;
        if (!a.alike) {
            s = gpu_sequence_of(p, at.batch, gpu_lane() == 0);
            window = gpu_wgmma_window_of(&p, s.pos_q - s.pos_k);
        }
        wgmma_tile t = {};
        t.q0 = begin_of(a, at.m), t.rows = (int)s.seqlen_q - t.q0, t.head = at.head;
        if (t.rows > height_of(a, at.m))
            t.rows = height_of(a, at.m);
        t.round = round, t.seqlen_k = (int32_t)s.seqlen_k;
        t.q_row = (int)s.q_row + t.q0, t.q_batch = (int)s.q_batch;
        t.k_row = (int)s.k_row, t.k_batch = (int)s.k_batch, t.head_k = at.head / a.group;
        t.o = gpu_rows<E>(p.o, s.q_batch, at.head).from(s.q_row + t.q0).data;
        if (kiln_view_present(&p.lse))
            t.lse = gpu_rows<float>(p.lse, s.q_batch, at.head).from(s.q_row + t.q0).data;
        t.low = window.low, t.high = window.high;
        if (t.rows > 0) {
            const int end = t.end(t.q0 + t.rows - 1);
            t.first = t.begin(t.q0) / BN;
            t.past = end > t.begin(t.q0) ? (end + BN - 1) / BN : t.first;
        }
        return t;
    }

    static GPU_FN wgmma_part part_of(const wgmma_tile &t, int wg)
    {
        const int r0 = t.q0 + wg * 64, r1 = t.q0 + (wg * 64 + 63 < t.rows ? wg * 64 + 63 : t.rows - 1);
        const int first = t.begin(r0) / BN, past = t.end(r1) > t.begin(r0) ? (t.end(r1) + BN - 1) / BN : first;
        const int whole_end = t.end(r0) / BN;
        return {first, past, (t.begin(r1) + BN - 1) / BN, past - 1 < whole_end ? whole_end : whole_end - 1};
    }

    template <class CONSUMERS> static GPU_FN void run_with(const args &a, shared &sh)
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
            for (int i = 0; i < PLANS; i++) {
                gpu_mbarrier_init(gpu_shared_address(&pipe.plan_full[i]), 1);
                gpu_mbarrier_init(gpu_shared_address(&pipe.plan_empty[i]), 4 * NWG + 1); // and the producer
            }
            gpu_mbarrier_init(gpu_shared_address(&pipe.wanted), 1);
            gpu_mbarrier_init_fence();
        }
        if (gpu_thread() == 128 * NWG)
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v), gpu_tensor_prefetch(&a.o);
        if (gpu_thread() < ROUNDS / 32)
            sh.bad[gpu_thread()] = 0;
        const bool planner = gpu_wave_id() == 4 * NWG + 1;
        wgmma_tile first;
        if (planner) // who would wait for the others else
            first = next_tile(a, sh, 0);
        gpu_block_barrier();
        const int wg = gpu_warpgroup();
        if (wg == NWG) {
            gpu_registers_give<PRODUCER>();
            if (planner)
                make_plans(a, sh, first);
            else if (gpu_wave_id() == 4 * NWG && gpu_elect())
                produce(a, pipe);
            return;
        }
        gpu_registers_take<CONSUMER>();
        CONSUMERS::consume(a, sh, wg);
        CONSUMERS::again(a, sh);
    }

    // ---- the planner: one wave ----
    // The next tile that has rows, from this round on; q0 < 0: there are no more.
    static GPU_FN wgmma_tile next_tile(const args &a, shared &sh, int round)
    {
        wgmma_tile t = {};
        int item;
#pragma unroll 1
        for (; deal(a, sh, round, item); round++) {
            const place at = place_of(a, item);
            if (at.m < 0)
                continue;
            t = tile_of(a, at, round);
            if (t.rows > 0)
                return t;
        }
        t.q0 = -1;
        return t;
    }
    static GPU_FN void make_plans(const args &a, shared &sh, wgmma_tile t)
    {
        pipeline &pipe = sh.pipe;
        wgmma_ring<PLANS> to;
        uint32_t wanted = 0;
#pragma unroll 1
        while (true) {
            gpu_mbarrier_wait(gpu_shared_address(&pipe.plan_empty[to.stage]), to.parity ^ 1);
            plan &now = pipe.plans[to.stage];
            if (gpu_lane() < NWG && gpu_lane() * 64 < t.rows)
                now.part[gpu_lane()] = part_of(t, gpu_lane());
            if (gpu_lane() == 0)
                now.tile = t;
            gpu_wave_barrier();
            if (gpu_lane() == 0) // shows them
                gpu_mbarrier_arrive(gpu_shared_address(&pipe.plan_full[to.stage]));
            if (t.q0 < 0)
                break;
            to.next();
            if (a.counters) {
                gpu_mbarrier_wait(gpu_shared_address(&pipe.wanted), wanted);
                wanted ^= 1;
            }
            t = next_tile(a, sh, t.round + 1);
        }
        if (gpu_lane() == 0 && a.counters && gpu_atomic_add(&a.counters[1], 1) == (uint32_t)gpu_blocks() - 1)
            a.counters[0] = a.counters[1] = 0; // the last block leaves them as the first has found them
    }

    // ---- the producer: one thread ----
    static GPU_FN void produce(const args &a, pipeline &pipe)
    {
        wgmma_ring<PLANS> plans;
        wgmma_ring<QS> q;
        wgmma_ring<SLOTS> kv;
#pragma unroll 1
        while (true) {
            gpu_mbarrier_wait(gpu_shared_address(&pipe.plan_full[plans.stage]), plans.parity);
            const wgmma_tile &t = pipe.plans[plans.stage].tile;
            const int first = t.first, past = t.past, head_k = t.head_k, k_row = t.k_row, k_batch = t.k_batch;
            // A slot serves one step: K of block j and V of block j + 1. The first of a tile holds only K, the last only V.
            const auto load_slot = [&](int j, bool has_k, bool has_v) {
                slot &to = pipe.kv[kv.stage];
                const uint32_t full = gpu_shared_address(&pipe.kv_full[kv.stage]);
                gpu_mbarrier_wait(gpu_shared_address(&pipe.kv_empty[kv.stage]), kv.parity ^ 1);
                gpu_mbarrier_expect(full, has_k * (uint32_t)sizeof to.k + has_v * (uint32_t)sizeof to.v);
                if (has_k)
#pragma unroll
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.k, gpu_shared_address(to.k + c * PANEL_KV), full, c * 64, k_row + j * BN,
                                        head_k, k_batch);
                if (has_v)
#pragma unroll
                    for (int c = 0; c < PANELS_V; c++)
                        gpu_tensor_load(&a.v, gpu_shared_address(to.v + c * PANEL_KV), full, c * 64,
                                        k_row + (j + 1) * BN, head_k, k_batch);
                kv.next();
            };
            if (past > first)
                load_slot(past - 1, true, false);
            const uint32_t full = gpu_shared_address(&pipe.q_full[q.stage]);
            gpu_mbarrier_wait(gpu_shared_address(&pipe.q_empty[q.stage]), q.parity ^ 1);
            if (t.q0 < 0) { // the consumers look at the plan when Q is there
                gpu_mbarrier_arrive(full);
                return;
            }
            const int parts = (t.rows + 63) / 64;
            gpu_mbarrier_expect(full, parts * (PANELS * PANEL_Q * 2));
#pragma unroll 1
            for (int w = 0; w < parts; w++)
#pragma unroll
                for (int c = 0; c < PANELS; c++)
                    gpu_tensor_load(&a.q, gpu_shared_address(pipe.q[q.stage] + (w * PANELS + c) * PANEL_Q), full,
                                    c * 64, t.q_row + 64 * w, t.head, t.q_batch);
            q.next();
            gpu_mbarrier_arrive(gpu_shared_address(&pipe.plan_empty[plans.stage]));
            plans.next();
            const int ask = first - 1 + AHEAD;
            if (past - 2 < ask)
                gpu_mbarrier_arrive(gpu_shared_address(&pipe.wanted));
#pragma unroll 1
            for (int j = past - 2; past > first && j >= first - 1; j--) {
                if (j == ask)
                    gpu_mbarrier_arrive(gpu_shared_address(&pipe.wanted));
                load_slot(j, j >= first, true);
            }
        }
    }
};
