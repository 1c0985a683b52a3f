// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax forward, rung `online`: one pass over the row keeps (m, l), and the row stays on the chip, from where it is written.
// Against three_pass: the row is read from memory once instead of three times.
//
// T threads have a row: a part of a wave or a wave for short rows (butterflies only), the block for longer ones. They walk
// over it in chunks of VECS slots of 16 bytes each, at most CHUNKS, all of which stay. What keeps the memory busy is the ring in
// shared memory: AHEAD chunks are always on their way, of this row or of the block's next ones (a block takes one row after
// the other), each thread fetching what it will use itself, so that nobody waits for anybody. The columns before and after
// the slots are fetched one row ahead into registers. Rows that do not fit into CHUNKS are softmax_split's.
//
// One chunk (CHUNKS = 1): its weights stay in registers, so an element costs one exponential: the maximum of the row first, then
// weights and their sum, then a product. More: chunks join (m, l) one by one, and weights are computed again when written.
// Bytes per row of n elements, at most tile_k: n read, n written.
#pragma once
#include "softmax.gpu.h"

template <class E, int T, int VECS, int CHUNKS, int AHEAD> struct softmax_online {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int V = softmax_slots<E>::V, ROWS = T < 128 ? 128 / T : 1; // rows of a block
    static constexpr int threads = T * ROWS, RING = CHUNKS + AHEAD, EDGES = T < 16 ? 2 : 1;
    struct shared {
        gpu_array<uint32_t, RING * VECS, threads * 4> ring;
        typename group::shared group;
    };
    // Threads of a multiprocessor: what stays in registers decides. Blocks beyond a few would only take shared memory.
    static constexpr int hold = CHUNKS == 1 ? 512 : 1024;
    static constexpr int fit = 220 * 1024 / (int)sizeof(shared), most = hold / threads;
    static constexpr int blocks = fit < 1 ? 1 : fit < most ? fit : most;
    static constexpr int tile_q = ROWS, tile_k = T * VECS * CHUNKS * V;

    // One row, and where my block's rows go on.
    struct place {
        softmax_slots<const E> x;
        int head, chunks; // columns before the slots; chunks that stay
    };
    static GPU_FN place place_of(const args &a, int64_t r)
    {
        const bool live = r < a.rows;
        const gpu_rows<const E> row = softmax_row<const E>(a.x, r, live);
        int head = a.head; // of all rows
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
    static GPU_FN void fetch_edges(const place &p, E (&edge)[EDGES])
    {
#pragma unroll
        for (int i = 0; i < EDGES; i++) {
            const int e = gpu_thread() % T + i * T;
            if (e < p.x.edges)
                edge[i] = p.x.get(p.x.edge(e));
        }
    }

    // A row that stays in registers. The next row's place and edges are looked up under it.
    static GPU_FN place whole_row(const args &a, shared &s, int64_t row, int64_t step, const place &now,
                                  const E (&edge)[EDGES], E (&edge_next)[EDGES], int used)
    {
        const int t = gpu_thread() % T;
        const gpu_packed lowest = softmax_lowest<E>(a.scale);
        gpu_packed x[VECS];
#pragma unroll
        for (int i = 0; i < VECS; i++)
            x[i] = i * T + t < now.x.body ? held(s, used, i) : lowest;
        float top = softmax_top<E>(x, a.scale);
        softmax_state me; // first of what is not in registers
#pragma unroll
        for (int i = 0; i < EDGES; i++)
            if (t + i * T < now.x.edges)
                top = gpu_max(top, gpu_to_float(edge[i]) * a.scale);
#pragma unroll 1
        for (int i = t + EDGES * T; i < now.x.edges; i += T)
            me.add(gpu_to_float(now.x.get(now.x.edge(i))), a.scale);
        const place after = place_of(a, row + step);
        if (row + step < a.rows)
            fetch_edges(after, edge_next);

        me.rebase(group::max(gpu_max(me.m, top), s.group, 0));
        const softmax_weight weight(a.scale, me.m);
        float w[VECS][V], we[EDGES], sums[2] = {};
        if (!weight.far) {
#pragma unroll
            for (int i = 0; i < VECS; i++)
                weigh(x[i], w[i], sums, i * T < now.x.body, [&](float y) { return weight.near(y); });
        } else {
#pragma unroll
            for (int i = 0; i < VECS; i++)
                weigh(x[i], w[i], sums, i * T < now.x.body, weight);
        }
#pragma unroll
        for (int i = 0; i < EDGES; i++) {
            we[i] = t + i * T < now.x.edges ? weight(gpu_to_float(edge[i])) : 0.f;
            me.l += we[i];
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            me.l += sums[e];
        me.l = group::sum(me.l, s.group, 1);

        const bool live = row < a.rows;
        if (t == 0 && live && kiln_view_present(&a.lse))
            softmax_slots<float>(softmax_row<float>(a.lse, row, live), 0).put(0, me.lse());
        if (!kiln_view_present(&a.y))
            return after;
        const softmax_writer write(me, a.scale, a.log);
        const softmax_slots<E> y(softmax_row<E>(a.y, row, live), now.head);
        if (!a.log) {
#pragma unroll
            for (int i = 0; i < VECS; i++)
                if (i * T + t < now.x.body) {
                    gpu_vec<float, V> out;
#pragma unroll
                    for (int e = 0; e < V; e++)
                        out[e] = w[i][e] * write.factor;
                    y.store(i * T + t, out);
                }
        } else
#pragma unroll 1
            for (int i = 0; i < VECS; i++)
                if (i * T + t < now.x.body)
                    y.store(i * T + t, write(gpu_unpack<E>(held(s, used, i))));
#pragma unroll
        for (int i = 0; i < EDGES; i++)
            if (t + i * T < now.x.edges)
                y.put(now.x.edge(t + i * T), a.log ? write(gpu_to_float(edge[i])) : we[i] * write.factor);
#pragma unroll 1
        for (int i = t + EDGES * T; i < now.x.edges; i += T)
            y.put(now.x.edge(i), write(gpu_to_float(now.x.get(now.x.edge(i)))));
        return after;
    }
    // One slot's weights, and their sums by place; none if the row ends before it.
    template <class W>
    static GPU_FN void weigh(gpu_packed &x, float (&w)[V], float (&sums)[2], bool any, const W &weight)
    {
#pragma unroll
        for (int e = 0; e < V; e++)
            w[e] = 0;
        if (!any)
            return;
        gpu_pin(x);
        const auto s = gpu_unpack<E>(x);
#pragma unroll
        for (int e = 0; e < V; e++)
            sums[e % 2] += w[e] = weight(s[e]);
    }

    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        const int t = gpu_thread() % T;
        const int64_t step = a.items * ROWS, last = a.rows + ROWS - 1; // rows of a block end together
        const gpu_packed lowest = softmax_lowest<E>(a.scale);

        // The fetch runs AHEAD chunks before the use; both count chunks through the rows.
        int64_t row = item * ROWS + gpu_thread() / T, next_row = row;
        place now = place_of(a, row), next = now;
        int next_chunk = 0, fetched = 0, used = 0;
        const auto fetch = [&] {
            if (next_row < last)
#pragma unroll
                for (int i = 0; i < VECS; i++) {
                    const int k = (next_chunk * VECS + i) * T + t;
                    if (k < next.x.body)
                        gpu_copy_piece(s.ring, fetched % RING * VECS + i, gpu_thread() * 4, next.x.row, 0,
                                       next.x.head + k * V);
                }
            gpu_copy_commit();
            fetched++;
            if (++next_chunk == next.chunks) {
                next_chunk = 0, next_row += step;
                if (next_row < last)
                    next = place_of(a, next_row);
            }
        };
#pragma unroll 1
        for (int i = 0; i < AHEAD; i++)
            fetch();
        E edge[EDGES], edge_next[EDGES];
        fetch_edges(now, edge);

        for (; row - gpu_thread() / T < a.rows; row += step) {
            place after = now;
            if constexpr (CHUNKS == 1) {
                fetch();
                gpu_copy_wait_groups<AHEAD>();
                after = whole_row(a, s, row, step, now, edge, edge_next, fetched - AHEAD - 1);
            } else {
                softmax_state me;
#pragma unroll 1
                for (int c = 0; c < now.chunks; c++) {
                    fetch();
                    gpu_copy_wait_groups<AHEAD>();
                    gpu_packed x[VECS];
#pragma unroll
                    for (int i = 0; i < VECS; i++)
                        x[i] = ((c * VECS + i) * T + t < now.x.body) ? held(s, used + c, i) : lowest;
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
                after = place_of(a, row + step);
                if (row + step < a.rows)
                    fetch_edges(after, edge_next);

                me.template gather<group>(s.group);
                const bool live = row < a.rows;
                if (t == 0 && live && kiln_view_present(&a.lse))
                    softmax_slots<float>(softmax_row<float>(a.lse, row, live), 0).put(0, me.lse());
                if (kiln_view_present(&a.y)) {
                    const softmax_writer write(me, a.scale, a.log);
                    const softmax_slots<E> y(softmax_row<E>(a.y, row, live), now.head);
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
            }
            used += now.chunks;
            now = after;
#pragma unroll
            for (int i = 0; i < EDGES; i++)
                edge[i] = edge_next[i];
        }
        gpu_copy_wait_groups<0>();
    }
};
