// SPDX-License-Identifier: MIT OR Apache-2.0
// What the main kernels of attention backward, rung `wgmma`, share (hiding, weights, dS, what a stage says, the next item), and a block of
// that of head sizes up to 128 without its consumers (attention_backward_wgmma.gpu.h): shared memory, the producer, who adds to dQ.
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
    return __is_same(E, gpu_half) ? GPU_WGMMA_LIFT_F16 : GPU_WGMMA_LIFT_BF16;
}
template <class E> GPU_FN float wgmma_lowered(float scale)
{
    return scale / (1 << wgmma_lift<E>());
}

// What the window hides of scores becomes -inf. Element 4·i + 2·h + c of x is key key0 + 8·h of the item, query0 + 8·i + 2·(lane % 4) + c
// of the tile; step: where the stage says what is hidden; keys: of the item.
template <int N> GPU_FN void wgmma_hide(float (&x)[N], uint32_t step, int keys, int key0, int query0)
{
    const int low = gpu_load_at(step + 8), high = gpu_load_at(step + 12);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = key0 + 8 * h,
                  shift = query0 + gpu_lane() % 4 * 2; // shift + ... sees it if first <= ... < past
        int first = key - high + 1 - shift, past = key - low + 1 - shift;
        if (key >= keys)
            past = first = 2 * N;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (8 * i + c < first || 8 * i + c >= past)
                    x[4 * i + 2 * h + c] = gpu_minus_infinity();
    }
}

// Scores of the queries 8·i ... 8·i + 15 become weights; l: what wgmma_row_slot keeps of these together, -lse in exponents of 2.
template <int N> GPU_FN void wgmma_exponentials(float (&x)[N], int i, const gpu_vec<float, 4> &l, float scale)
{
#pragma unroll
    for (int h = 0; h < 4; h++) { // h % 2: key; h / 2: group of 8 queries
        const int e = 4 * i + 2 * h;
        x[e] = gpu_exp2(gpu_fma(x[e], scale, l[h / 2 * 2]));
        x[e + 1] = gpu_exp2(gpu_fma(x[e + 1], scale, l[h / 2 * 2 + 1]));
    }
}
// Scores become weights, also in pairs of 16 bits. The last queries
// first, here and below: upwards ptxas puts the first weights where it wants the operands, and spills.
template <class E, int N> GPU_FN void wgmma_weigh(float (&x)[N], uint32_t (&pairs)[N / 2], uint32_t at, float scale)
{
#pragma unroll
    for (int i = N / 4 - 2; i >= 0; i -= 2) {
        wgmma_exponentials(x, i, gpu_load4_at(at + gpu_lane() % 4 * 16 + 32 * i), scale);
#pragma unroll
        for (int e = 4 * i; e < 4 * i + 8; e += 2)
            pairs[e / 2] = gpu_pair<E>(x[e], x[e + 1]);
    }
}
// dS of weights x and dP, in pairs; at: D of the queries.
template <class E, int N>
GPU_FN void wgmma_gradients(const float (&x)[N], const float (&dp)[N], uint32_t (&pairs)[N / 2], uint32_t at)
{
#pragma unroll
    for (int i = N / 4 - 2; i >= 0; i -= 2) {
        const gpu_vec<float, 4> l = gpu_load4_at(at + gpu_lane() % 4 * 16 + 32 * i);
#pragma unroll
        for (int h = 0; h < 4; h++) {
            const int e = 4 * i + 2 * h;
            pairs[e / 2] = gpu_pair<E>(x[e] * (dp[e] - l[h / 2 * 2]), x[e + 1] * (dp[e + 1] - l[h / 2 * 2 + 1]));
        }
    }
}

// A consumer's rows of dK or dV, COLUMNS of them from col0 on, to memory. Is something not finite?
template <class E, int COLUMNS>
GPU_FN bool wgmma_put_keys(const kiln_view &view, const gpu_wgmma_backward_work &w, int key0, int col0,
                           const float (&sum)[COLUMNS / 2], float scale)
{
    const gpu_rows<E> out(gpu_rows<E>(view, w.k_batch, w.head_k).from(w.k_row));
    bool open = false;
#pragma unroll
    for (int h = 0; h < 2; h++)
        open |= wgmma_store_row<E, COLUMNS>(out.at(key0 + 8 * h, col0), key0 + 8 * h < w.keys, (int)view.size[3] - col0,
                                            [&](int i, int e) { return sum[4 * i + 2 * h + e] * scale; })
                    .template overflows<E>();
    return open;
}
// Where a consumer's part of them is kept, by pieces of 128 floats a wave; which: 0 dV, 1 dK; WAVES: that have one of them.
template <int COLUMNS, int WAVES> GPU_FN float *wgmma_part(const gpu_wgmma_backward_args &a, int64_t number, int which)
{
    return a.part + ((2 * number + which) * WAVES + gpu_wave_id() % WAVES) * (16 * COLUMNS) + gpu_lane() * 4;
}
template <int COLUMNS, int WAVES>
GPU_FN void wgmma_put_part(const gpu_wgmma_backward_args &a, int64_t number, int which, const float (&sum)[COLUMNS / 2])
{
    float *to = wgmma_part<COLUMNS, WAVES>(a, number, which);
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++)
        gpu_put<16>(to + i * 128, sum + 4 * i);
}

// A consumer's wave has done with what `bar` guards: all lanes of it, not just the one that says so.
GPU_FN void wgmma_leave(uint32_t bar, bool also = true)
{
    gpu_wave_barrier();
    if (gpu_lane() == 0 && also)
        gpu_mbarrier_arrive(bar);
}

// What a stage says of the tile of queries in it, m of the head whose m = 0 is `tile` in the workspace: its number there, with WGMMA_LAST in
// the last step, and WGMMA_PUT if dQ is put there, not added; the item's keys, ~keys if nothing is hidden; query r of the tile sees keys
// [r + low, r + high).
constexpr int WGMMA_LAST = INT32_MIN, WGMMA_PUT = 1 << 30;
// In order: with whose turn it is, nobody has been there.
constexpr uint32_t WGMMA_FIRST = 1u << 31;
template <int BM>
GPU_FN void wgmma_say(int32_t (&step)[4], const gpu_wgmma_backward_work &w, int tile, int m, bool last)
{
    step[0] = tile + m | (last ? WGMMA_LAST : 0);
    step[1] = m < w.clear_first || m >= w.clear_past ? w.keys : ~w.keys;
    step[2] = w.low + m * BM, step[3] = w.high + m * BM;
}
// The next of `items` items that has something, or the end: `size`, of what it has, is below 0.
template <class WORK>
GPU_FN bool wgmma_fetch(uint32_t *given, int64_t items, const WORK *list, int32_t WORK::*size, WORK &to)
{
    for (;;) {
        const int64_t number = gpu_atomic_add(given, 1);
        if (number >= items)
            return to.*size = -1, false;
        to = list[number];
        if (to.*size > 0)
            return true;
    }
}

// The block's item, when its producer has found it.
template <class WORK> GPU_FN WORK &wgmma_item(WORK (&mine)[2], uint32_t full, uint32_t item)
{
    gpu_mbarrier_wait(full + item % 2 * 8, item / 2 % 2);
    return mine[item % 2];
}

// An item's K and V to the L2, while the one before it is worked on.
template <int PANELS> GPU_FN void wgmma_fetch_keys(const gpu_wgmma_backward_args &a, const gpu_wgmma_backward_work &w)
{
#pragma unroll
    for (int c = 0; c < PANELS; c++) {
        gpu_tensor_fetch(&a.k, c * 64, w.k_row, w.head_k, w.k_batch);
        gpu_tensor_fetch(&a.v, c * 64, w.k_row, w.head_k, w.k_batch);
    }
}

// The steps of an item: heads of its group, tiles of queries of each. rows_outside: all heads of a tile, from the last tile down, so that
// blocks of a KV head that began together are at the same rows, whatever their keys. Else head after head, from its first tile on,
// which `in order` needs: there an item is to begin at its diagonal.
struct wgmma_steps {
    int outer_past, inner_past, m_first, m_past;
    bool rows;
    GPU_FN wgmma_steps(const gpu_wgmma_backward_args &a, const gpu_wgmma_backward_work &w)
        : m_first(w.m_first), m_past(w.m_past), rows(a.rows_outside)
    {
        outer_past = rows ? m_past - m_first : (int)a.group, inner_past = rows ? (int)a.group : m_past - m_first;
    }
    GPU_FN int head(int outer, int inner) const
    {
        return rows ? inner : outer;
    }
    GPU_FN int m(int outer, int inner) const
    {
        return rows ? m_past - 1 - outer : m_first + inner;
    }
};

// A block without its consumers: shared memory, the producer, and who adds to dQ in order.
template <class E_, int D_, int BM_, int BN_, int STAGES_, bool SENT_> struct wgmma_backward_block {
    using E = E_;
    using args = gpu_wgmma_backward_args;
    using work = gpu_wgmma_backward_work;
    static constexpr int D = D_, BM = BM_, BN = BN_, STAGES = STAGES_;
    static constexpr bool SENT = SENT_;
    static constexpr int threads = 384, blocks = 1, tile_q = BM, tile_k = BN;
    static constexpr int PRODUCER = 24, CONSUMER = 240, PANELS = D / 64, PANEL_Q = BM * 64, PANEL_K = BN * 64;
    // A warpgroup's half of dQ: its own 64 rows of 128, or its own columns of 64 rows. TILE: floats of a tile.
    static constexpr int COLS = BM * D / 128, PIECES = COLS / 8, TILE = BM * D; // pieces of 16 bytes: a thread's share
    static constexpr int SENDERS = SENT ? 2 : 0;        // waves, of which each adds the dQ of every second step
    static constexpr int DQS = SENT && D == 64 ? 2 : 1; // tiles of dQ on their way
    // Short items gain by a producer that is told to be one thread, and by K and V in the L2; at d = 128 they lose.
    static constexpr bool EAGER = D == 64;

    struct alignas(1024) shared {
        E k[BN * D], v[BN * D], q[STAGES][BM * D], dout[STAGES][BM * D];
        E ds[2][BN * BM];
        float dq[DQS][SENT ? TILE : 4], lse[STAGES][BM], delta[STAGES][BM];
        uint64_t q_full[STAGES], q_empty[STAGES], do_full[STAGES], do_empty[STAGES], k_full, v_full, k_empty, v_empty,
            dq_full[2], dq_empty[2], work_full[2], work_empty[2], dq_ready[2], dq_done; // dq_...: of even and odd steps
        int32_t step[STAGES][4]; // what is in a stage: see wgmma_say
        int32_t before[STAGES];  // its tile in the step before; below 0: an item's first
        work mine[2];            // this item, and what the producer is at already; keys < 0: there is no more
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
                              DQ_READY = SHARED + offsetof(shared, dq_ready),
                              DQ_DONE = SHARED + offsetof(shared, dq_done), BEFORE = SHARED + offsetof(shared, before),
                              K_FULL = SHARED + offsetof(shared, k_full), V_FULL = SHARED + offsetof(shared, v_full),
                              DQ_FULL = SHARED + offsetof(shared, dq_full),
                              DQ_EMPTY = SHARED + offsetof(shared, dq_empty),
                              K_EMPTY = SHARED + offsetof(shared, k_empty),
                              V_EMPTY = SHARED + offsetof(shared, v_empty),
                              WORK_FULL = SHARED + offsetof(shared, work_full),
                              WORK_EMPTY = SHARED + offsetof(shared, work_empty);
    static constexpr uint32_t Q_BYTES = BM * D * 2, DS_BYTES = BN * BM * 2;

    template <class CONSUMERS> static GPU_FN void run_with(const args &a, shared &sh)
    {
        if (gpu_shared_address(&sh) != SHARED)
            gpu_trap();
        if (gpu_thread() == 0) {
            for (int i = 0; i < STAGES; i++) {
                gpu_mbarrier_init(Q_FULL + 8 * i, 1), gpu_mbarrier_init(Q_EMPTY + 8 * i, 8);
                gpu_mbarrier_init(DO_FULL + 8 * i, 1), gpu_mbarrier_init(DO_EMPTY + 8 * i, 8);
            }
            for (int i = 0; i < 2; i++)
                gpu_mbarrier_init(WORK_FULL + 8 * i, 1),
                    gpu_mbarrier_init(WORK_EMPTY + 8 * i, 8 + (SENT ? SENDERS : 1)),
                    gpu_mbarrier_init(DQ_READY + 8 * i, 1);
            gpu_mbarrier_init(DQ_DONE, 8);
            for (int i = 0; i < SENDERS; i++)
                gpu_mbarrier_init(DQ_FULL + 8 * i, 8), gpu_mbarrier_init(DQ_EMPTY + 8 * i, 1);
            gpu_mbarrier_init(K_FULL, 1), gpu_mbarrier_init(V_FULL, 1), gpu_mbarrier_init(K_EMPTY, 8),
                gpu_mbarrier_init(V_EMPTY, 8);
            gpu_mbarrier_init_fence();
            gpu_tensor_prefetch(&a.q), gpu_tensor_prefetch(&a.k), gpu_tensor_prefetch(&a.v),
                gpu_tensor_prefetch(&a.dout);
        }
        gpu_block_barrier();
        gpu_chain_go();
        gpu_chain_wait();
        const int wg = gpu_warpgroup();
        if (wg == 2) {
            gpu_registers_give<PRODUCER>();
            const int wave = gpu_uniform(gpu_wave_id());
            if (wave == 8 && (EAGER ? gpu_elect() : gpu_lane() == 0))
                produce(a, sh);
            if (SENT && wave >= 10)
                send(a, sh, wave - 10);
            if (!SENT && wave == 10 && gpu_lane() == 0)
                order(a, sh);
            return;
        }
        gpu_registers_take<CONSUMER>();
        CONSUMERS::consume(a, sh, wg);
    }

    static GPU_FN void produce(const args &a, shared &sh)
    {
        wgmma_ring<STAGES> ring;
        uint32_t loaded = 0; // K and V so often
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            work &w = sh.mine[item % 2];
            gpu_mbarrier_wait(WORK_EMPTY + item % 2 * 8, item / 2 % 2 ^ 1);
            const bool more = wgmma_fetch(&a.open[2], a.works, a.work, &work::keys, w);
            gpu_mbarrier_arrive(WORK_FULL + item % 2 * 8);
            if (!more)
                return;
            if constexpr (EAGER)
                wgmma_fetch_keys<PANELS>(a, w);
            const wgmma_steps steps(a, w);
            int before = -1;
#pragma unroll 1
            for (int outer = 0; outer < steps.outer_past; outer++)
#pragma unroll 1
                for (int inner = 0; inner < steps.inner_past; inner++) {
                    const int head = steps.head(outer, inner), m = steps.m(outer, inner),
                              tile = w.q_tile + head * (int)a.q_room,
                              put = !SENT && w.dq == GPU_WGMMA_PUTS ? WGMMA_PUT : 0;
                    const bool first = outer + inner == 0,
                               last = outer + 1 == steps.outer_past && inner + 1 == steps.inner_past;
                    const int row = w.q_row + m * BM, of = w.head + head;
                    uint32_t full = Q_FULL + 8 * ring.stage;
                    gpu_mbarrier_wait(Q_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                    wgmma_say<BM>(sh.step[ring.stage], w, tile | put, m, last);
                    sh.before[ring.stage] = before, before = (tile | put) + m;
                    gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.q, Q + ring.stage * Q_BYTES + c * PANEL_Q * 2, full, c * 64, row, of,
                                        w.q_batch);
                    gpu_bulk_load(LSE + ring.stage * BM * 4, a.lse + (int64_t)(tile + m) * BM, BM * 4, full);
                    if (first) {
                        gpu_mbarrier_wait(K_EMPTY, loaded % 2 ^ 1);
                        gpu_mbarrier_expect(K_FULL, sizeof(shared::k));
#pragma unroll
                        for (int c = 0; c < PANELS; c++)
                            gpu_tensor_load(&a.k, K + c * PANEL_K * 2, K_FULL, c * 64, w.k_row, w.head_k, w.k_batch);
                    }
                    full = DO_FULL + 8 * ring.stage;
                    gpu_mbarrier_wait(DO_EMPTY + 8 * ring.stage, ring.parity ^ 1);
                    gpu_mbarrier_expect(full, Q_BYTES + BM * 4);
#pragma unroll
                    for (int c = 0; c < PANELS; c++)
                        gpu_tensor_load(&a.dout, DO + ring.stage * Q_BYTES + c * PANEL_Q * 2, full, c * 64, row, of,
                                        w.q_batch);
                    gpu_bulk_load(DELTA + ring.stage * BM * 4, a.delta + (int64_t)(tile + m) * BM, BM * 4, full);
                    if (first) {
                        gpu_mbarrier_wait(V_EMPTY, loaded++ % 2 ^ 1);
                        gpu_mbarrier_expect(V_FULL, sizeof(shared::v));
#pragma unroll
                        for (int c = 0; c < PANELS; c++)
                            gpu_tensor_load(&a.v, V + c * PANEL_K * 2, V_FULL, c * 64, w.k_row, w.head_k, w.k_batch);
                    }
                    ring.next();
                }
        }
    }

    // Packed sequences come one after the other? Where they do not (which is reported), an item could wait for one that is not there.
    static GPU_FN bool ascends(const kiln_view &starts, int64_t batch)
    {
        bool falls = false;
        if (kiln_view_present(&starts))
#pragma unroll 1
            for (int64_t b = gpu_lane(); b < batch; b += GPU_WAVE)
                falls = falls || gpu_read<int32_t>(starts, b) > gpu_read<int32_t>(starts, b + 1);
        return !gpu_wave_any(falls);
    }
    // SENT: adds what the consumers leave; in order: when it is this item's turn, the first puts it there. A wave for even and one for
    // odd steps: until what is added has arrived and the next item may add takes longer than a step.
    static GPU_FN void send(const args &a, const shared &sh, uint32_t odd)
    {
        const auto &p = a.base.p.forward;
        const bool waits = a.turn && ascends(p.cu_seqlens_q, p.batch) && ascends(p.cu_seqlens_k, p.batch);
        if (gpu_lane() > 0)
            return;
        const uint32_t from = DQ + odd % DQS * (TILE * 4);
        uint32_t step = 0;
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (w.keys < 0)
                break;
            const wgmma_steps steps(a, w);
            const uint32_t turn = w.turn;
#pragma unroll 1
            for (int outer = 0; outer < steps.outer_past; outer++)
#pragma unroll 1
                for (int inner = 0; inner < steps.inner_past; inner++, step++) {
                    if (step % 2 != odd)
                        continue;
                    const int tile = w.q_tile + steps.head(outer, inner) * (int)a.q_room, m = steps.m(outer, inner);
                    uint32_t *whose = a.turn + tile + m;
                    uint32_t now = turn;
                    if (a.turn)
                        do
                            now = gpu_load_acquire(whose);
                        while (waits && (now & ~WGMMA_FIRST) != turn);
                    gpu_async_fence_global();
                    gpu_mbarrier_wait(DQ_FULL + 8 * odd, step / 2 % 2);
                    float *to = a.dq + (int64_t)(tile + m) * TILE;
                    if (now & WGMMA_FIRST)
                        gpu_bulk_store(to, from, TILE * 4);
                    else
                        gpu_bulk_add(to, from, TILE * 4);
                    gpu_bulk_wait_read<0>();
                    gpu_mbarrier_arrive(DQ_EMPTY + 8 * odd);
                    if (a.turn) {
                        gpu_bulk_wait();
                        gpu_async_fence_global();
                        gpu_store_release(whose, turn - 1);
                    }
                }
            gpu_mbarrier_arrive(WORK_EMPTY + item % 2 * 8);
        }
        gpu_bulk_wait();
    }

    // Not SENT: when an item may give its dQ away, and that those who wait for it may.
    static GPU_FN void order(const args &a, const shared &sh)
    {
        uint32_t loaded = 0; // items that have steps
#pragma unroll 1
        for (uint32_t item = 0;; item++) {
            const work &w = wgmma_item(sh.mine, WORK_FULL, item);
            if (w.keys < 0)
                return;
            const bool any = w.m_past > w.m_first;
            const int what = w.dq;
            uint32_t *put = a.put + w.q_tile;
            gpu_mbarrier_arrive(WORK_EMPTY + item % 2 * 8);
            if (any) {
                while (what == GPU_WGMMA_WAITS && gpu_load_acquire(put) == 0) {
                }
                gpu_mbarrier_arrive(DQ_READY + loaded % 2 * 8);
                gpu_mbarrier_wait(DQ_DONE, loaded++ % 2);
            }
            if (what == GPU_WGMMA_PUTS)
                gpu_store_release(put, 1);
        }
    }

    // What the item has of dV and dK, `COLUMNS` from col0 on of rows key0 and key0 + 8, to memory. Is something not finite?
    template <int COLUMNS>
    static GPU_FN bool put(const args &a, const work &w, int key0, int col0, const float (&dv)[COLUMNS / 2],
                           const float (&dk)[COLUMNS / 2])
    {
        if (a.parts > 1) {
            wgmma_put_part<COLUMNS, 8>(a, w.number, 0, dv);
            wgmma_put_part<COLUMNS, 8>(a, w.number, 1, dk);
            return false;
        }
        const auto &p = a.base.p;
        const bool open = wgmma_put_keys<E, COLUMNS>(p.dv, w, key0, col0, dv, wgmma_lowered<E>(1));
        return wgmma_put_keys<E, COLUMNS>(p.dk, w, key0, col0, dk, wgmma_lowered<E>((float)p.forward.softmax_scale)) ||
               open;
    }
    // SENT: what was where the dQ of this step is to be has left.
    static GPU_FN void dq_room(uint32_t step)
    {
        const uint32_t before = step - DQS;
        gpu_mbarrier_wait(DQ_EMPTY + before % 2 * 8, before / 2 % 2);
    }
    // My part of the tile of dQ of a step, on its way if `also`.
    static GPU_FN void dq_out(const args &a, int tile, uint32_t step, const float (&dq)[COLS / 2], bool also)
    {
        const uint32_t thread = gpu_again(gpu_thread()), mine = thread / 32 * (TILE / 8) + thread % 32 * 4;
        if constexpr (SENT) {
            const uint32_t to = DQ + step % DQS * (TILE * 4) + mine * 4;
            if (also)
                dq_room(step);
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                gpu_store4_at(to + i * 512, dq + 4 * i, also);
            gpu_async_fence();
            gpu_wave_barrier();
            if (thread % 32 == 0 && also)
                gpu_mbarrier_arrive(DQ_FULL + step % 2 * 8);
        } else {
            const bool put = tile & WGMMA_PUT;
            float *to = a.dq + (int64_t)(tile & ~WGMMA_PUT) * TILE + mine;
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                gpu_put_or_add4(to + i * 128, dq + 4 * i, also && put, also && !put);
        }
    }
};
