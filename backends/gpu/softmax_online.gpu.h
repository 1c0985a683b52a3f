// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax forward, rung `online`: one pass over the row keeps (m, l), and the row stays on the chip, from where it is written.
// Against three_pass: the row is read from memory once instead of three times.
//
// T threads have a row: a part of a wave or a wave for short rows (butterflies only), the block for longer ones. Few threads
// with many slots keep more rows under way than many with few, and share a row's overhead among more elements. They walk
// over it in chunks of VECS slots of 16 bytes each, at most CHUNKS, all of which stay. What keeps the memory busy is the ring in
// shared memory: AHEAD chunks are always on their way, of this row or of the block's next ones (an item is a few rows, one after
// the other; softmax.c says how many), each thread fetching what it will use itself, so that nobody waits for anybody. The
// columns before and after the slots are fetched one row ahead into registers. Rows that do not fit into CHUNKS are softmax_split's.
//
// One chunk (CHUNKS = 1): its weights stay in registers, so an element costs one exponential: the maximum of the wave's part
// first, then weights and their sum, (m, l) of all waves joined, then a product. More: chunks join (m, l) one by one, and weights
// are computed again when written.
// Bytes per row of n elements, at most tile_k: n read, n written.
#pragma once
#include "softmax.gpu.h"

template <class E, int T, int VECS, int CHUNKS, int AHEAD> struct softmax_online {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int V = softmax_slots<E>::V, ROWS = T <= GPU_WAVE ? 128 / T : 1; // rows of a block
    static constexpr int threads = T * ROWS, RING = CHUNKS + AHEAD;
    // Of the edges of a row a thread keeps in registers: all but the last two of 14 where 4 threads have a row.
    static constexpr int EDGES = T > 2 * V ? 1 : 2 * V / T < 4 ? 2 * V / T : 3;
    // Nothing but the ring where a wave has the row: four blocks of 16 KB fit into an AMD compute unit, of 32 bytes more three.
    struct nothing {
    };
    struct shared : gpu_select<(group::WAVES > 1), typename group::shared, nothing>::type {
        gpu_array<uint32_t, RING * VECS, threads * 4> ring;
    };
    // Threads of a multiprocessor: what stays in registers decides. Blocks beyond a few would only take shared memory.
    static constexpr int weights = CHUNKS == 1 ? VECS * V : 0; // that a thread keeps
    static constexpr int hold = weights > 64 ? 384 : VECS > 2 ? 512 : CHUNKS == 1 ? 768 : 1024;
    static constexpr int fit = 220 * 1024 / (int)sizeof(shared), most = hold / threads;
    static constexpr int blocks = fit < 1 ? 1 : fit < most ? fit : most;
    static constexpr int tile_q = ROWS, tile_k = T * VECS * CHUNKS * V;

    // The rows of a work item: from where, and before which.
    struct range {
        int64_t begin, end;
    };
    static GPU_FN range rows_of(const args &a, int64_t item)
    {
        const int64_t begin = item * a.spread, end = begin + a.run;
        return {begin, end < a.rows ? end : a.rows};
    }
    // One row, and where my block's rows go on.
    struct place {
        softmax_slots<const E> x;
        int head, chunks; // columns before the slots; chunks that stay
    };
    static GPU_FN place place_of(const args &a, int64_t r, int64_t end)
    {
        const bool live = r < end;
        const gpu_rows<const E> row = softmax_row<const E>(a.x, r, live);
        int head = softmax_known_head<E>(a, r);
        if (head < 0)
            head = kiln_view_present(&a.y) ? softmax_head(row, softmax_row<const E>(a.y, r, live), a.invariant)
                                           : softmax_head(row, row, a.invariant);
        place p = {softmax_slots<const E>(row, head), head, 1};
        if constexpr (CHUNKS > 1) {
            p.chunks = (p.x.body + T * VECS - 1) / (T * VECS);
            p.chunks = p.chunks < 1 ? 1 : p.chunks;
        }
        return p;
    }
    static GPU_FN gpu_packed held(shared &s, int chunk, int i)
    {
        const auto v = gpu_load<4>(s.ring, chunk % RING * VECS + i, gpu_thread() * 4);
        return v;
    }
    static GPU_FN void fetch_edges(const args &a, const place &p, E (&edge)[EDGES])
    {
#pragma unroll
        for (int i = 0; i < EDGES; i++) {
            const int e = gpu_thread() % T + i * T;
            edge[i] = gpu_from_float<E>(softmax_lowest_element(a.scale));
            if (e < p.x.edges)
                edge[i] = p.x.get(p.x.edge(e));
        }
    }

    // A row from slot k on: its other slots are at constant distances then.
    template <class X> static GPU_FN gpu_rows<X> from_slot(const softmax_slots<X> &x, int k)
    {
        gpu_rows<X> row = x.row;
        row.data += x.head + k * V, row.cols -= x.head + k * V;
        return row;
    }
    // Rows that stay in registers. The next row's edges are asked for under it.
    static GPU_FN void fetch_row(const args &a, shared &s, int64_t r, int64_t end, int turn)
    {
        const place p = place_of(a, r, end); // without slots past the last row
        const gpu_rows<const E> mine = from_slot(p.x, gpu_thread() % T);
#pragma unroll
        for (int i = 0; i < VECS; i++)
            gpu_copy_piece(s.ring, turn % RING * VECS + i, gpu_thread() * 4, mine, 0, i * T * V,
                           i * T + gpu_thread() % T < p.x.body);
        gpu_copy_commit();
    }
    static GPU_FN void whole_rows(const args &a, shared &s, int64_t item)
    {
        const range all = rows_of(a, item);
        int64_t row = all.begin + gpu_thread() / T;
#pragma unroll 1
        for (int i = 0; i < AHEAD; i++)
            fetch_row(a, s, row + i * a.step, all.end, i);
        E edge[EDGES];
        const place first = place_of(a, row, all.end);
        fetch_edges(a, first, edge);
        int head = first.head;
        for (int turn = 0; row - gpu_thread() / T < all.end; row += a.step, turn++) { // rows of a block end together
            fetch_row(a, s, row + AHEAD * a.step, all.end, turn + AHEAD);
            gpu_copy_wait_groups<AHEAD>();
            whole_row(a, s, row, all.end, turn, head, edge);
        }
        gpu_copy_wait_groups<0>();
    }
    // head and edge: of this row, then of the next.
    static GPU_FN void whole_row(const args &a, shared &s, int64_t row, int64_t end, int turn, int &head,
                                 E (&edge)[EDGES])
    {
        const int t = gpu_thread() % T;
        const bool live = row < end;
        const softmax_slots<const E> in(softmax_row<const E>(a.x, row, live), head);
        const gpu_packed lowest = softmax_lowest<E>(a.scale);
        gpu_packed x[VECS];
#pragma unroll
        for (int i = 0; i < VECS; i++)
            x[i] = i * T + t < in.body ? held(s, turn, i) : lowest;
        float top = softmax_top<E>(x, a.scale);
        softmax_state me; // first of what is not in registers
        if (in.edges > 0)
#pragma unroll
            for (int i = 0; i < EDGES; i++)
                top = gpu_max(top, gpu_to_float(edge[i]) * a.scale);
#pragma unroll 1
        for (int i = t + EDGES * T; i < in.edges; i += T)
            me.add(gpu_to_float(in.get(in.edge(i))), a.scale);
        const place after = place_of(a, row + a.step, end);
        E edge_next[EDGES];
        fetch_edges(a, after, edge_next);

        me.rebase(gpu_wave_max<group::LANES>(gpu_max(me.m, top))); // weights are against the maximum of a wave
        const softmax_weight weight(a.scale, me.m);
        float w[VECS][V], sums[2] = {};
        const auto weigh_all = [&](const auto &one) {
            weigh<0, HALF>(x, w, sums, true, one);
            weigh<HALF, MOST>(x, w, sums, HALF * T + t < in.body, one);
            weigh<MOST, VECS>(x, w, sums, MOST * T + t < in.body, one);
            if (in.edges > 0)
#pragma unroll
                for (int i = 0; i < EDGES; i++)
                    sums[i % 2] += one(gpu_to_float(edge[i]));
        };
        if (!weight.far)
            weigh_all([&](float y) { return weight.near(y); });
        else
            weigh_all(weight);
        me.l += sums[0] + sums[1];
        const float own = me.template gather<group>(s, turn);

        if (t == 0 && live && kiln_view_present(&a.lse))
            softmax_slots<float>(softmax_row<float>(a.lse, row, live), 0).put(0, me.lse());
        if (kiln_view_present(&a.y)) {
            const softmax_writer write(me, a.scale, a.log);
            const float factor = own * write.factor;
            const softmax_slots<E> y(softmax_row<E>(a.y, row, live), head);
            if (!a.log) {
                const gpu_rows<E> mine = from_slot(y, t);
#pragma unroll
                for (int i = 0; i < VECS; i++) {
                    gpu_vec<float, V> out;
#pragma unroll
                    for (int e = 0; e < V; e++)
                        out[e] = w[i][e] * factor;
                    if (i * T + t < in.body)
                        gpu_store_stream<V>(mine, 0, i * T * V, gpu_from_floats<E>(out));
                }
            } else
#pragma unroll 1
                for (int i = 0; i < VECS; i++)
                    if (i * T + t < in.body)
                        y.store(i * T + t, write(gpu_unpack<E>(held(s, turn, i))));
#pragma unroll
            for (int i = 0; i < EDGES; i++)
                if (t + i * T < in.edges)
                    y.put(in.edge(t + i * T), write(gpu_to_float(edge[i])));
#pragma unroll 1
            for (int i = t + EDGES * T; i < in.edges; i += T)
                y.put(in.edge(i), write(gpu_to_float(in.get(in.edge(i)))));
        }
        head = after.head;
#pragma unroll
        for (int i = 0; i < EDGES; i++)
            edge[i] = edge_next[i];
    }
    // The weights of slots, and their sums by place. A wave goes by slots from HALF and from MOST on that it has none of: one
    // test for all of them, because within one piece of code the exponentials of many slots are under way together.
    static constexpr int HALF = VECS / 2, MOST = VECS - VECS / 4;
    template <int FROM, int TO, class W>
    static GPU_FN void weigh(gpu_packed (&x)[VECS], float (&w)[VECS][V], float (&sums)[2], bool any, const W &weight)
    {
#pragma unroll
        for (int i = FROM; i < TO; i++)
#pragma unroll
            for (int e = 0; e < V; e++)
                w[i][e] = 0;
        if (!any)
            return;
#pragma unroll
        for (int i = FROM; i < TO; i++) {
            gpu_pin(x[i]);
            const auto s = gpu_unpack<E>(x[i]);
#pragma unroll
            for (int e = 0; e < V; e++)
                sums[e % 2] += w[i][e] = weight(s[e]);
        }
    }

    // Rows of several chunks. The fetch runs AHEAD chunks before the use; both count chunks through the rows.
    static GPU_FN void rows_of_chunks(const args &a, shared &s, int64_t item)
    {
        static_assert(ROWS == 1, "all threads have one row");
        const int t = gpu_thread();
        const range all = rows_of(a, item);
        const gpu_packed lowest = softmax_lowest<E>(a.scale);

        int64_t row = all.begin, next_row = row;
        place now = place_of(a, row, all.end), next = now;
        int next_chunk = 0, fetched = 0, used = 0;
        const auto fetch = [&] {
            if (next_row < all.end)
#pragma unroll
                for (int i = 0; i < VECS; i++) {
                    const int k = (next_chunk * VECS + i) * T + t;
                    if (k < next.x.body)
                        gpu_copy_piece(s.ring, fetched % RING * VECS + i, t * 4, next.x.row, 0, next.x.head + k * V);
                }
            gpu_copy_commit();
            fetched++;
            if (++next_chunk == next.chunks) {
                next_chunk = 0, next_row += a.step;
                if (next_row < all.end)
                    next = place_of(a, next_row, all.end);
            }
        };
#pragma unroll 1
        for (int i = 0; i < AHEAD; i++)
            fetch();
        E edge[EDGES], edge_next[EDGES];
        fetch_edges(a, now, edge);

        for (int turn = 0; row < all.end; row += a.step, turn++) {
            softmax_state me;
#pragma unroll 1
            for (int c = 0; c < now.chunks; c++) {
                fetch();
                gpu_copy_wait_groups<AHEAD>();
                gpu_packed x[VECS];
#pragma unroll
                for (int i = 0; i < VECS; i++)
                    x[i] = (c * VECS + i) * T + t < now.x.body ? held(s, used + c, i) : lowest;
                me.add<E>(x, a.scale);
            }
            // Edges of this row, then those of the next on their way.
#pragma unroll
            for (int i = 0; i < EDGES; i++)
                if (t + i * T < now.x.edges)
                    me.add(gpu_to_float(edge[i]), a.scale);
#pragma unroll 1
            for (int i = t + EDGES * T; i < now.x.edges; i += T)
                me.add(gpu_to_float(now.x.get(now.x.edge(i))), a.scale);
            const place after = place_of(a, row + a.step, all.end);
            fetch_edges(a, after, edge_next);

            me.rebase(gpu_wave_max<group::LANES>(me.m));
            me.template gather<group>(s, turn);
            if (t == 0 && kiln_view_present(&a.lse))
                softmax_slots<float>(softmax_row<float>(a.lse, row, true), 0).put(0, me.lse());
            if (kiln_view_present(&a.y)) {
                const softmax_writer write(me, a.scale, a.log);
                const softmax_slots<E> y(softmax_row<E>(a.y, row, true), now.head);
#pragma unroll 1
                for (int c = 0; c < now.chunks; c++)
#pragma unroll
                    for (int i = 0; i < VECS; i++) {
                        const int k = (c * VECS + i) * T + t;
                        if (k < now.x.body)
                            y.store(k, write(gpu_unpack<E>(held(s, used + c, i))));
                    }
#pragma unroll
                for (int i = 0; i < EDGES; i++)
                    if (t + i * T < now.x.edges)
                        y.put(now.x.edge(t + i * T), write(gpu_to_float(edge[i])));
#pragma unroll 1
                for (int i = t + EDGES * T; i < now.x.edges; i += T)
                    y.put(now.x.edge(i), write(gpu_to_float(now.x.get(now.x.edge(i)))));
            }
            used += now.chunks;
            now = after;
#pragma unroll
            for (int i = 0; i < EDGES; i++)
                edge[i] = edge_next[i];
        }
        gpu_copy_wait_groups<0>();
    }

    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        if constexpr (CHUNKS == 1)
            whole_rows(a, s, item);
        else
            rows_of_chunks(a, s, item);
    }
};
