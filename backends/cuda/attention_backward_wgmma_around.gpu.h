// SPDX-License-Identifier: MIT OR Apache-2.0
// What stands around the main kernel of attention backward, rung `wgmma`: prepare, finish, again (attention_backward_wgmma.gpu.h).
// Bytes: prepare reads o and do and writes 4·d a row, finish reads these and writes dq.
#pragma once
#include "attention_backward_wgmma_block.gpu.h"

// Packed rows by tiles of `rows` rows (gpu_wgmma_tile_of): where sequence b begins, and the last that does not begin after `tile`.
GPU_FN int64_t wgmma_first_tile(const kiln_view &starts, int64_t total, int64_t rows, int64_t b)
{
    const int64_t row = gpu_read<int32_t>(starts, b);
    return gpu_wgmma_tile_of(true, b, row < 0 ? 0 : row < total ? row : total, rows, 0);
}
GPU_FN int64_t wgmma_sequence_at(const kiln_view &starts, int64_t total, int64_t rows, int64_t batch, int64_t tile)
{
    int64_t b = 0;
#pragma unroll 1
    while (batch - b > 1) {
        const int64_t middle = (b + batch) / 2;
        if (wgmma_first_tile(starts, total, rows, middle) <= tile)
            b = middle;
        else
            batch = middle;
    }
    return b;
}

// A tile of queries of one head. Items go backwards over the sequences: `prepare` ends where the main kernel begins and `finish` begins
// where that ends, in what the L2 still has.
template <class E, int D, int ROWS> struct attention_backward_wgmma_tiles {
    using args = gpu_wgmma_backward_args;
    static constexpr int BM = ROWS, TILE = BM * D, threads = 256, blocks = D > 128 ? 2 : 3, tile_q = BM, tile_k = 0;
    struct shared {
        gpu_array<float, 1, 1> none;
    };
    static GPU_FN int64_t items(const args &a)
    {
        return a.base.p.forward.heads * a.q_room;
    }
    struct place {
        int64_t batch, head, tile, slot; // slot: in the workspace; tile < 0: nobody's
        GPU_FN place(const args &a, int64_t item)
        {
            const auto &p = a.base.p.forward;
            const int64_t back = items(a) - 1 - item, at = gpu_divide(back, p.heads);
            head = back - at * p.heads, slot = head * a.q_room + at;
            if (kiln_view_present(&p.cu_seqlens_q)) {
                batch = wgmma_sequence_at(p.cu_seqlens_q, p.total_q, BM, p.batch, at);
                tile = at - wgmma_first_tile(p.cu_seqlens_q, p.total_q, BM, batch);
            } else
                batch = gpu_divide(at, a.m_tiles), tile = at - batch * a.m_tiles;
        }
    };
};

// KEYS: of an item of the main kernel.
template <class E, int D, int ROWS, int KEYS>
struct attention_backward_wgmma_prepare : attention_backward_wgmma_tiles<E, D, ROWS> {
    using base = attention_backward_wgmma_tiles<E, D, ROWS>;
    using typename base::args, typename base::shared, typename base::place;
    using work = gpu_wgmma_backward_work;
    static constexpr int BM = base::BM, BN = KEYS, threads = base::threads, blocks = D > 128 ? 2 : 4;

    // The queries that see some of `keys` keys from n0 on: key j of them is seen by j - high < i <= j - low, all of them by
    // BN - high <= i <= -low.
    struct extent {
        int64_t low, high, m_first, m_past; // m: tiles of them
        GPU_FN extent(const gpu_wgmma_window &window, int64_t n0, int64_t keys, int64_t seqlen_q)
        {
            const auto within = [](int64_t x, int64_t least, int64_t past) {
                return x < least ? least : x < past ? x : past;
            };
            const int64_t most = 1 << 30;
            low = window.low - n0 < -most ? -most : window.low - n0;
            high = window.high - n0 < -most ? -most : window.high - n0;
            const int64_t begin = within(1 - high, 0, seqlen_q), end = within(keys - low, begin, seqlen_q);
            m_first = begin / BM;
            m_past = keys == 0 || end == begin || high <= low ? m_first : (end + BM - 1) / BM;
        }
    };
    // Whether the item of a KV head's first keys puts its part of dQ where the others add. The first section is spared the waiting.
    static GPU_FN bool puts(const args &a, int64_t batch, int64_t head_k)
    {
        return a.put && batch * a.base.p.forward.heads_k + head_k >= a.section;
    }
    // Of an item its KV head, of all sequences, and its tile n of keys, where items wait for that of the first keys: those of a section
    // are given out before the other items of the section before it.
    static GPU_FN int64_t head_of(const args &a, int64_t item, int64_t heads, int64_t &n)
    {
        const int64_t section = a.section, others = section * (a.n_tiles - 1), whole = gpu_divide(heads, section),
                      rest = heads - whole * section;
        n = 0;
        if (item < section)
            return item;
        item -= section;
        int64_t at = 1 + gpu_divide(item, section + others);
        at = at < whole ? at : whole;
        item -= (at - 1) * (section + others);
        const int64_t firsts = at < whole ? section : rest;
        if (item < firsts)
            return at * section + item;
        item -= firsts;
        const bool last = item >= others;
        if (last)
            item -= others;
        else
            at--;
        const int64_t here = last ? rest : section;
        n = gpu_divide(item, here);
        item -= n++ * here;
        return at * section + item;
    }

    // Called: its registers are not those of the loop below.
    static GPU_CALL void write_down(const args &a, int64_t number)
    {
        const auto &p = a.base.p.forward;
        const int64_t tiles = a.n_tiles, heads = p.batch * p.heads_k;
        const int64_t item = gpu_divide(number, a.parts), part = number - item * a.parts;
        int64_t batch, head_k, n;
        if (kiln_view_present(&p.cu_seqlens_k)) { // tile by tile, all heads; in order: from the last tile on
            int64_t tile = gpu_divide(item, p.heads_k);
            head_k = item - tile * p.heads_k;
            if (a.turn)
                tile = gpu_divide(p.total_k, BN) + p.batch - 1 - tile;
            batch = wgmma_sequence_at(p.cu_seqlens_k, p.total_k, BN, p.batch, tile);
            n = tile - wgmma_first_tile(p.cu_seqlens_k, p.total_k, BN, batch); // < 0: nobody's
        } else {
            int64_t bh;
            if (a.put)
                bh = head_of(a, item, heads, n);
            else if (p.masked || a.turn) {
                // Within a section of heads the tiles with the most queries (of a causal mask) first.
                const int64_t section = gpu_divide(item, a.section * tiles), in = item - section * a.section * tiles;
                const int64_t rest = heads - section * a.section, here = rest < a.section ? rest : a.section;
                n = gpu_divide(in, here), bh = section * a.section + in - n * here;
                if (a.turn) // in order: the last first
                    n = tiles - 1 - n;
            } else
                bh = gpu_divide(item, tiles), n = item - bh * tiles;
            batch = gpu_divide(bh, p.heads_k), head_k = bh - batch * p.heads_k;
        }
        const int64_t n0 = n * BN;
        const kiln_sequence s = gpu_sequence_of(p, batch);
        const gpu_wgmma_window window = gpu_wgmma_window_of(&p, s.pos_q - s.pos_k);
        const int64_t left = s.seqlen_k - n0, keys = n < 0 || left < 0 ? 0 : left < BN ? left : BN;
        const extent seen(window, n0, keys, s.seqlen_q);
        const int64_t low = seen.low, high = seen.high;
        work &w = a.work[number];
        w.q_row = (int32_t)s.q_row, w.q_batch = (int32_t)s.q_batch;
        w.k_row = (int32_t)(s.k_row + n0), w.k_batch = (int32_t)s.k_batch;
        w.head_k = (int32_t)head_k, w.keys = (int32_t)keys, w.low = (int32_t)low, w.high = (int32_t)high;
        w.m_first = (int32_t)seen.m_first, w.m_past = (int32_t)seen.m_past;
        w.clear_first = high >= BN ? 0 : (int32_t)((BN - high + BM - 1) / BM);
        w.clear_past = keys < BN || 1 - low < BM ? 0 : (int32_t)((1 - low) / BM);
        const bool packed = kiln_view_present(&p.cu_seqlens_q);
        w.head = (int32_t)((head_k * a.parts + part) * a.group), w.votes = 0, w.number = number;
        w.q_tile = (int32_t)(w.head * a.q_room + gpu_wgmma_tile_of(packed, batch, s.q_row, BM, a.m_tiles));
        w.turn = (int32_t)n;
        w.dq = !puts(a, batch, head_k) ? GPU_WGMMA_ADDS : n == 0 ? GPU_WGMMA_PUTS : GPU_WGMMA_WAITS;
        w.again = (batch * p.heads_k + head_k) * a.base.k_tiles + n * (BN / GPU_WGMMA_ROWS);
    }

    // Of dQ's items.
    static GPU_CALL void write_down_rows(const args &a, int64_t number)
    {
        constexpr int MINE = 2 * GPU_WGMMA_ROWS;
        const auto &p = a.base.p.forward;
        int64_t batch, head, n;
        if (kiln_view_present(&p.cu_seqlens_q)) { // tile by tile, all heads
            const int64_t tile = gpu_divide(number, p.heads);
            head = number - tile * p.heads;
            batch = wgmma_sequence_at(p.cu_seqlens_q, p.total_q, MINE, p.batch, tile);
            n = tile - wgmma_first_tile(p.cu_seqlens_q, p.total_q, MINE, batch); // < 0: nobody's
        } else { // a section of heads after the other; in it, masked: the last tiles, which see the most keys of a causal mask, first
            const int64_t tiles = (a.m_tiles + 1) / 2, heads = p.batch * p.heads, most = p.masked ? a.rows_section : 1;
            const int64_t section = gpu_divide(number, most * tiles), in = number - section * most * tiles;
            const int64_t rest = heads - section * most, here = rest < most ? rest : most;
            n = gpu_divide(in, here);
            const int64_t bh = section * most + in - n * here;
            if (p.masked)
                n = tiles - 1 - n;
            batch = gpu_divide(bh, p.heads), head = bh - batch * p.heads;
        }
        const int64_t q0 = n * MINE;
        const kiln_sequence s = gpu_sequence_of(p, batch);
        const gpu_wgmma_window window = gpu_wgmma_window_of(&p, s.pos_q - s.pos_k);
        const int64_t left = s.seqlen_q - q0, rows = n < 0 || left < 0 ? 0 : left < MINE ? left : MINE, most = 1 << 30;
        const int64_t low = window.low + q0 < most ? window.low + q0 : most,
                      high = window.high + q0 < most ? window.high + q0 : most;
        gpu_wgmma_backward_rows &w = a.rows_work[number];
        w.q_row = (int32_t)(s.q_row + q0), w.q_batch = (int32_t)s.q_batch;
        w.k_row = (int32_t)s.k_row, w.k_batch = (int32_t)s.k_batch;
        w.head = (int32_t)head, w.head_k = (int32_t)gpu_divide(head, p.heads / p.heads_k);
        w.rows = (int32_t)rows, w.keys = (int32_t)s.seqlen_k, w.low = (int32_t)low, w.high = (int32_t)high;
        const int64_t begin = low < 0 ? 0 : low, some = high + rows - 1, end = some < s.seqlen_k ? some : s.seqlen_k;
        const bool none = rows == 0 || end <= begin || high <= low;
        w.n_first = none ? 0 : (int32_t)(begin / GPU_WGMMA_ROWS);
        w.n_past = none ? 0 : (int32_t)((end + GPU_WGMMA_ROWS - 1) / GPU_WGMMA_ROWS);
        // All see the keys from the last one's first to the first one's last.
        const int64_t first = low + MINE - 1, past = high < s.seqlen_k ? high : s.seqlen_k;
        w.clear_first = first <= 0 ? 0 : (int32_t)((first + GPU_WGMMA_ROWS - 1) / GPU_WGMMA_ROWS);
        w.clear_past = past <= 0 ? 0 : (int32_t)(past / GPU_WGMMA_ROWS);
        w.q_tile =
            (int32_t)(head * a.q_room +
                      gpu_wgmma_tile_of(kiln_view_present(&p.cu_seqlens_q), batch, s.q_row, GPU_WGMMA_ROWS, a.m_tiles) +
                      2 * n);
        w.unused = 0;
        w.again = (batch * p.heads + head) * a.base.q_tiles + a.base.q_tiles - 1 - 2 * n;
    }

    // Each block also writes as many items down as it has threads.
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        constexpr int PER_ROW = D / 8, STEP = threads / PER_ROW, STEPS = 4; // rows side by side; at a time
        const auto &p = a.base.p.forward;
        gpu_chain_go();
        const int64_t at = item * threads + gpu_thread();
        if (at < a.works)
            write_down(a, at);
        else if (D > 128 && at - a.works < a.rows_works)
            write_down_rows(a, at - a.works);
        if (at < 4)
            a.open[at] = 0;
        if (item < p.batch)
            (void)gpu_sequence_of(p, item); // reports what is wrong with any, also if it has no tile then
        if (item >= base::items(a))
            return;
        const place of(a, item);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = of.tile * BM;
        if (q0 < 0 || q0 >= s.seqlen_q)
            return;
        constexpr bool ADDED = D <= 128; // dQ
        // Not where an item puts the first there: in order that of the last keys which my last query may see, else of the first keys.
        bool zeroes = true;
        if (ADDED && (a.turn || a.put)) {
            const gpu_wgmma_window window = gpu_wgmma_window_of(&p, s.pos_q - s.pos_k);
            const int64_t past = q0 + BM < s.seqlen_q ? q0 + BM : s.seqlen_q, key = past + window.high - 2,
                          last = key < 0 ? 0 : (key < s.seqlen_k ? key : s.seqlen_k - 1) / BN, n = a.turn ? last : 0,
                          left = s.seqlen_k - n * BN, m = q0 / BM;
            const extent first(window, n * BN, left < BN ? left : BN, s.seqlen_q);
            zeroes =
                m < first.m_first || m >= first.m_past || (a.put && !puts(a, of.batch, gpu_divide(of.head, a.group)));
            if (gpu_thread() == 0 && a.turn)
                a.turn[of.slot] = (uint32_t)n | (zeroes ? 0 : WGMMA_FIRST);
            if (gpu_thread() == 0 && a.put)
                a.put[of.slot] = 0;
        }
        float *sums = a.dq + of.slot * base::TILE;
        const gpu_vec<float, 4> zero = {};
        const int part = gpu_thread() % PER_ROW, col = part * 8;
        const gpu_rows<const E> o(gpu_rows<const E>(p.o, s.q_batch, of.head).from(s.q_row + q0)),
            dout(gpu_rows<const E>(a.base.p.dout, s.q_batch, of.head).from(s.q_row + q0));
#pragma unroll 1
        for (int r0 = gpu_thread() / PER_ROW; r0 < BM; r0 += STEPS * STEP) {
            gpu_packed x[STEPS] = {}, y[STEPS] = {}; // all on their way before the first is asked for
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                if (q0 + r0 + i * STEP < s.seqlen_q && col < p.d_v) {
                    x[i] = gpu_load_packed<false>(o, r0 + i * STEP, col);
                    y[i] = gpu_load_packed<false>(dout, r0 + i * STEP, col);
                }
            // Of the threads of a row the first STEPS finish one each.
            const int r = r0 + part * STEP;
            const bool mine = part < STEPS && q0 + r < s.seqlen_q;
            const int64_t row = s.q_row + q0 + r;
            float lse = gpu_minus_infinity(), delta = 0; // past the last: no weight
            if (mine)
                lse = gpu_read<float>(p.lse, s.q_batch, of.head, row);
            if (mine && kiln_view_present(&a.base.p.dlse))
                delta = -gpu_read<float>(a.base.p.dlse, s.q_batch, of.head, row);
#pragma unroll
            for (int i = 0; i < (ADDED ? 2 * STEPS : 0); i++, sums += threads * 4)
                if (zeroes)
                    gpu_put<16>(sums + gpu_thread() * 4, &zero);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                gpu_pin(x[i]), gpu_pin(y[i]);
                const gpu_vec<float, 8> f = gpu_unpack<E>(x[i]), g = gpu_unpack<E>(y[i]);
                float sum = 0;
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum = gpu_fma(f[e], g[e], sum);
                sum = gpu_wave_sum<PER_ROW>(sum);
                if (part == i)
                    delta += sum;
            }
            if (part < STEPS) {
                const int64_t at = of.slot * BM + wgmma_row_slot(r);
                a.lse[at] = lse == gpu_minus_infinity() ? lse : gpu_fma(lse, -1.44269504089f, (float)wgmma_lift<E>());
                a.delta[at] = delta;
            }
            if (mine) // for `again`
                gpu_write<float>(a.base.delta, s.q_batch, of.head, row, 0, delta);
        }
    }
};

// Items past those of queries are the keys of a KV head where parts share them; head sizes beyond 128 have no others.
template <class E, int D, int ROWS>
struct attention_backward_wgmma_finish : attention_backward_wgmma_tiles<E, D, ROWS> {
    using base = attention_backward_wgmma_tiles<E, D, ROWS>;
    using typename base::args, typename base::shared, typename base::place;
    static constexpr int BM = base::BM, COLS = BM * D / 128, PIECES = COLS / 8;
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const auto &p = a.base.p.forward;
        gpu_chain_go();
        gpu_chain_wait();
        if constexpr (D > 128)
            return join(a, item * a.parts);
        if (item >= base::items(a))
            return join(a, (item - base::items(a)) * a.parts);
        const place of(a, item);
        const kiln_sequence s = gpu_sequence_of(p, of.batch);
        const int64_t q0 = of.tile * BM;
        if (q0 < 0 || q0 >= s.seqlen_q)
            return;
        const int wave = gpu_wave_id(), lane = gpu_lane();
        const float *sums = a.dq + of.slot * base::TILE + wave * (base::TILE / 8) + lane * 4;
        gpu_vec<float, 4> x[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            gpu_move<16>(&x[i], sums + 128 * i);
        const auto &view = a.base.p.dq;
        const gpu_rows<E> out(gpu_rows<E>(view, s.q_batch, of.head).from(s.q_row + q0));
        const float scale = wgmma_lowered<E>((float)p.softmax_scale);
        bool open = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = wave % (BM / 16) * 16 + lane / 4 + 8 * h, col0 = wave / (BM / 16) * COLS;
            open |= wgmma_store_row<E, COLS>(out.at(r, col0), q0 + r < s.seqlen_q, (int)view.size[3] - col0,
                                             [&](int i, int e) { return x[i][2 * h + e] * scale; })
                        .template overflows<E>();
        }
        if (gpu_block_any(open) && gpu_thread() == 0)
            for (int64_t row = q0; row < q0 + BM && row < s.seqlen_q; row += GPU_WGMMA_ROWS) // `again` counts downwards
                a.open_q[gpu_atomic_add(&a.open[1], 1)] =
                    (of.batch * p.heads + of.head) * a.base.q_tiles + a.base.q_tiles - 1 - row / GPU_WGMMA_ROWS;
    }
    // dV and dK of the records from `number` on. Eight waves have 16 keys each; beyond 128 four of them dV and four dK, and half of
    // the columns at a time.
    static GPU_CALL void join(const args &a, int64_t number)
    {
        constexpr bool WIDE = D > 128;
        constexpr int COLUMNS = WIDE ? D / 2 : D, WAVES = WIDE ? 4 : 8;
        const gpu_wgmma_backward_work &w = a.work[number];
        if (w.keys == 0)
            return;
        const int wave = gpu_wave_id(), key0 = wave % WAVES * 16 + gpu_lane() / 4;
        bool open = false;
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) {
            const int which = WIDE ? wave / 4 : turn, col0 = WIDE ? turn * COLUMNS : 0;
            float sum[COLUMNS / 2] = {};
#pragma unroll 1
            for (int64_t part = 0; part < a.parts; part++) {
                const float *from = wgmma_part<D, WAVES>(a, number + part, which) + col0 * 16;
#pragma unroll
                for (int i = 0; i < COLUMNS / 8; i++) {
                    gpu_vec<float, 4> x;
                    gpu_move<16>(&x, from + i * 128);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[4 * i + e] += x[e];
                }
            }
            open |= wgmma_put_keys<E, COLUMNS>(which ? a.base.p.dk : a.base.p.dv, w, key0, col0, sum,
                                               wgmma_lowered<E>(which ? (float)a.base.p.forward.softmax_scale : 1.f));
        }
        if (gpu_block_any(open) && gpu_thread() == 0)
            for (int key = 0; key < w.keys; key += GPU_WGMMA_ROWS)
                a.open_k[gpu_atomic_add(&a.open[0], 1)] = w.again + key / GPU_WGMMA_ROWS;
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
        gpu_chain_wait();
        const int of_q = keys::ceil_parts(a.base.p.forward.d), of_k = of_q + keys::ceil_parts(a.base.p.forward.d_v);
        const int64_t first = of_k * (int64_t)a.open[0], all = first + of_q * (int64_t)a.open[1];
#pragma unroll 1
        for (int64_t i = item; i < all; i += a.items) {
            if (i != item)
                gpu_next_item();
            if (i < first)
                keys::run(a.base, sh, a.open_k[i / of_k] * of_k + i % of_k);
            else
                queries::run(a.base, sh, a.open_q[(i - first) / of_q] * of_q + (i - first) % of_q);
        }
    }
};
