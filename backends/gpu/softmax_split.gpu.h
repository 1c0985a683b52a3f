// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax forward, rung `online`, for few long rows: several blocks share a row. Two launches: `reduce` writes (m, l) of every
// piece to the workspace, `write` joins the pieces of its row (all of them, in order, so that every block gets the same bits)
// and writes its own. Against softmax_online: the row is read twice, but one row keeps the whole device busy.
// Bytes per row of n elements: 2n read, n written, 8 bytes a piece and piece.
#pragma once
#include "softmax.gpu.h"

template <class E> struct softmax_piece { // columns [begin, begin + chunk) of row r
    int64_t r;
    int split, begin, n;
    GPU_FN softmax_piece(const gpu_softmax_args &a, int64_t item) : r(item / a.splits), split((int)(item % a.splits))
    {
        begin = (int)(split * a.chunk);
        n = a.x.size[3] - begin < a.chunk ? (int)(a.x.size[3] - begin) : (int)a.chunk;
    }
    GPU_FN int head(const gpu_softmax_args &a, const gpu_rows<const E> &x) const
    { // the same in both launches
        return kiln_view_present(&a.y) ? softmax_head(x, of<E>(a.y), a.invariant) : softmax_head(x, x, a.invariant);
    }
    template <class T> GPU_FN gpu_rows<T> of(const kiln_view &v) const
    {
        gpu_rows<T> row = softmax_row<T>(v, r, true);
        row.data += begin, row.cols = n;
        return row;
    }
};

template <class E, int T, int VECS> struct softmax_split_reduce {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int V = softmax_slots<E>::V, threads = T, blocks = 1024 / T, tile_q = 1, tile_k = T * VECS * V;
    using shared = typename group::shared;
    static GPU_FN void run(const args &a, shared &s, int64_t item)
    {
        const softmax_piece<E> piece(a, item);
        const auto row = piece.template of<const E>(a.x);
        const softmax_slots<const E> x(row, piece.head(a, row));
        const gpu_packed lowest = softmax_lowest<E>(a.scale);
        const int t = gpu_thread();
        softmax_state me;
#pragma unroll 1
        for (int k = t; k < x.body; k += T * VECS) {
            gpu_packed v[VECS];
            x.template load<false>(v, k, T, lowest);
            me.add<E>(v, a.scale);
        }
#pragma unroll 1
        for (int i = t; i < x.edges; i += T)
            me.add(gpu_to_float(x.get(x.edge(i))), a.scale);
        me.template gather<group>(s);
        if (t == 0)
            gpu_write(a.partial, piece.r, piece.split, 0, 0, me.m),
                gpu_write(a.partial, piece.r, piece.split, 1, 0, me.l);
    }
};

template <class E, int T, int VECS> struct softmax_split_write {
    using args = gpu_softmax_args;
    static constexpr int threads = T, blocks = 1024 / T, tile_q = 1, tile_k = 0;
    struct shared {
    };
    static GPU_FN void run(const args &a, shared &, int64_t item)
    {
        const softmax_piece<E> piece(a, item);
        softmax_state all;
        for (int i = 0; i < a.splits; i++)
            all.m = gpu_max(all.m, gpu_read<float>(a.partial, piece.r, i, 0));
        for (int i = 0; i < a.splits; i++) {
            softmax_state piece_state;
            piece_state.m = gpu_read<float>(a.partial, piece.r, i, 0),
            piece_state.l = gpu_read<float>(a.partial, piece.r, i, 1);
            piece_state.rebase(all.m);
            all.l += piece_state.l;
        }
        if (gpu_thread() == 0 && piece.split == 0 && kiln_view_present(&a.lse))
            softmax_slots<float>(softmax_row<float>(a.lse, piece.r, true), 0).put(0, all.lse());
        if (!kiln_view_present(&a.y))
            return;
        const softmax_writer write(all, a.scale, a.log);
        const auto row = piece.template of<const E>(a.x);
        const softmax_slots<const E> x(row, piece.head(a, row));
        const softmax_slots<E> y(piece.template of<E>(a.y), x.head);
#pragma unroll 1
        for (int i = gpu_thread(); i < x.edges; i += T)
            y.put(x.edge(i), write(gpu_to_float(x.get(x.edge(i)))));
#pragma unroll 1
        for (int k = gpu_thread(); k < x.body; k += T * VECS) {
            gpu_packed v[VECS];
            x.template load<true>(v, k, T, softmax_lowest<E>(a.scale));
#pragma unroll
            for (int i = 0; i < VECS; i++)
                if (k + i * T < x.body)
                    y.store(k + i * T, write(gpu_unpack<E>(v[i])));
        }
    }
};
