// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax forward, rung `online`, for rows that one block cannot hold, and for few rows: several blocks share a row, and it
// still stays on the chip. Against softmax_online: rows of up to a few MB are read from memory once.
//
// A row is cut into pieces. Blocks take them in order, by a ticket; a block has three at a time in the ring of its shared
// memory: one on its way, one whose (m, l) it finds out and publishes, one that it writes as soon as all pieces of that row
// are published. These it joins in one order whoever has published when, so the bits are always the same.
//
// Nothing depends on blocks that do not run yet. A block that has waited in vain for the others of a row (`patience` looks)
// forgets the piece, which makes room, and goes on. When no ticket is left, whatever it waits for is with a block that runs,
// and that publishes before it waits longer than its patience; so now what was forgotten is taken up again as if it were new.
// That is what happens to rows longer than what all blocks hold together, and where blocks run one after the other.
//
// A published (m, l) is one word that is written and read as a whole; 0 is none: m = 0 means that some score is 0 or NaN, so
// l >= 1 or NaN.
//
// Bytes per row of n elements: n read, n written, 8 bytes a piece and piece; n more read if forgotten.
#pragma once
#include "softmax.gpu.h"

template <class E, int T, int VECS> struct softmax_split {
    using args = gpu_softmax_args;
    using group = softmax_group<T>;
    static constexpr int V = softmax_slots<E>::V, RING = 3, threads = T, tile_q = 1,
                         tile_k = T * VECS * V; // columns of a piece
    struct shared {
        gpu_array<uint32_t, RING * VECS, T * 4> ring;
        gpu_array<int64_t, 1, 1> ticket;
        typename group::shared group;
    };
    static constexpr int blocks = 220 * 1024 / (int)sizeof(shared);

    // What a ticket stands for; without columns if the tickets are used up. Found out once, for all that is done with it.
    struct piece {
        int64_t row;
        int split, begin; // begin: its first column; split < 0: there is none
        softmax_slots<const E> x;
        gpu_rows<const E> mine; // from my first slot on
        GPU_FN bool any() const
        {
            return split >= 0;
        }
        GPU_FN bool has(int i) const // whether slot i·T + my number is in it
        {
            return i * T + gpu_thread() < x.body;
        }
    };
    // Slots lie as in the whole row, so the first piece has the columns before them too, and the last one those after them.
    static GPU_FN piece piece_of(const args &a, int64_t ticket)
    {
        int64_t row = 0;
        int split = 0;
        if (ticket >> 32 == 0) // 64-bit division is a subroutine
            row = (uint32_t)ticket / (uint32_t)a.splits, split = (int)((uint32_t)ticket % (uint32_t)a.splits);
        else
            row = ticket / a.splits, split = (int)(ticket % a.splits);
        const bool any = row < a.rows;
        gpu_rows<const E> x = softmax_row<const E>(a.x, row, any);
        int head = a.head; // of all rows
        if (head < 0)
            head = kiln_view_present(&a.y) ? softmax_head(x, softmax_row<E>(a.y, row, any), a.invariant)
                                           : softmax_head(x, x, a.invariant);
        const bool by_elements = head >= x.cols;
        const int64_t first = by_elements ? 0 : head;
        int64_t begin = split ? first + (int64_t)split * tile_k : 0,
                end = split == a.splits - 1 ? x.cols : first + (int64_t)(split + 1) * tile_k;
        begin = begin < x.cols ? begin : x.cols, end = end < x.cols ? end : x.cols;
        x.data += begin, x.cols = (int)(end - begin);
        piece p = {row, any ? split : -1, (int)begin,
                   softmax_slots<const E>(x, by_elements ? x.cols
                                             : split     ? 0
                                                         : head),
                   x};
        p.mine.data += p.x.head + gpu_thread() * V, p.mine.cols -= p.x.head + gpu_thread() * V;
        return p;
    }

    static GPU_FN void fetch(shared &s, const piece &p, int slot)
    {
#pragma unroll
        for (int i = 0; i < VECS; i++)
            if (p.has(i))
                gpu_copy_piece(s.ring, slot * VECS + i, gpu_thread() * 4, p.mine, 0, i * T * V);
        gpu_copy_commit();
    }
    static GPU_FN gpu_packed fetched(shared &s, int slot, int i)
    {
        return gpu_load<4>(s.ring, slot * VECS + i, gpu_thread() * 4);
    }

    static GPU_FN softmax_state state_of(const args &a, shared &s, const piece &p, int slot)
    { // of what this thread has
        const gpu_packed lowest = softmax_lowest<E>(a.scale);
        softmax_state me;
        gpu_packed v[VECS];
#pragma unroll
        for (int i = 0; i < VECS; i++)
            v[i] = p.has(i) ? fetched(s, slot, i) : lowest;
        me.add<E>(v, a.scale);
#pragma unroll 1
        for (int i = gpu_thread(); i < p.x.edges; i += T)
            me.add(gpu_to_float(p.x.get(p.x.edge(i))), a.scale);
        return me;
    }
    static GPU_FN void publish(const args &a, const piece &p, const softmax_state &me)
    {
        gpu_atomic_store(a.partial, p.row, p.split,
                         (uint64_t) __builtin_bit_cast(uint32_t, me.l) << 32 | __builtin_bit_cast(uint32_t, me.m));
    }
    // The state of the piece's row, once all pieces are published; false: not within a.patience looks.
    static GPU_FN bool join(const args &a, shared &s, const piece &p, softmax_state &all)
    {
#pragma unroll 1
        for (int look = 0; look < a.patience; look++) {
            bool missing = false;
            all = softmax_state();
#pragma unroll 1
            for (int i = gpu_thread(); i < a.splits; i += T) {
                const uint64_t word = gpu_atomic_load(a.partial, p.row, i);
                missing = missing || word == 0;
                softmax_state one;
                one.m = __builtin_bit_cast(float, (uint32_t)word);
                one.l = __builtin_bit_cast(float, (uint32_t)(word >> 32));
                const float top = gpu_max(all.m, one.m);
                all.rebase(top), one.rebase(top);
                all.l += one.l;
            }
            if (!gpu_block_any(missing)) {
                all.template gather<group>(s.group);
                return true;
            }
            if (gpu_thread() == 0)
                gpu_pause();
        }
        return false;
    }
    static GPU_FN void write(const args &a, shared &s, const piece &p, int slot, const softmax_state &all)
    {
        if (gpu_thread() == 0 && p.split == 0 && kiln_view_present(&a.lse))
            softmax_slots<float>(softmax_row<float>(a.lse, p.row, true), 0).put(0, all.lse());
        if (!kiln_view_present(&a.y))
            return;
        gpu_rows<E> row = softmax_row<E>(a.y, p.row, true);
        row.data += p.begin, row.cols -= p.begin;
        const softmax_slots<E> y(row, p.x.head);
        row.data += p.x.head + gpu_thread() * V, row.cols -= p.x.head + gpu_thread() * V; // from my first slot on
        const softmax_writer writer(all, a.scale, a.log);
        if (writer.is_plain()) {
            gpu_packed v[VECS];
#pragma unroll
            for (int i = 0; i < VECS; i++)
                if (p.has(i))
                    v[i] = fetched(s, slot, i);
#pragma unroll
            for (int i = 0; i < VECS; i++)
                if (p.has(i))
                    gpu_store_stream<V>(row, 0, i * T * V, gpu_from_floats<E>(writer.plain(gpu_unpack<E>(v[i]))));
        } else
#pragma unroll 1
            for (int i = 0; i < VECS; i++)
                if (p.has(i))
                    gpu_store_stream<V>(row, 0, i * T * V,
                                        gpu_from_floats<E>(writer(gpu_unpack<E>(fetched(s, slot, i)))));
#pragma unroll 1
        for (int i = gpu_thread(); i < p.x.edges; i += T)
            y.put(p.x.edge(i), writer(gpu_to_float(p.x.get(p.x.edge(i)))));
    }

    static GPU_FN void run(const args &a, shared &s, int64_t)
    {
        const piece none = piece_of(a, INT64_MAX);
        const bool many = a.rows * a.splits > gpu_blocks(); // else one for each block, which is not to take another's
        piece held = none, now = none, next = none;
        int64_t forgotten = -1; // the last one, which leads to those before
        bool more = true;       // tickets
        int slot = 0;           // of `now`; that of `next` follows, then that of `held`
#pragma unroll 1
        while (more || forgotten >= 0 || held.any() || now.any() || next.any()) {
            const bool takes = more && (many || now.any() || !next.any());
            int64_t ticket = 0;
            if (takes && gpu_thread() == 0)
                ticket = (int64_t)gpu_atomic_add(a.ticket, (uint64_t)1);
            gpu_copy_wait_groups<1>();
            softmax_state me;
            if (now.any())
                me = state_of(a, s, now, slot);
            if (gpu_thread() == 0)
                gpu_store<1>(s.ticket, 0, 0, gpu_vec<int64_t, 1>{ticket});
            me.template gather<group>(s.group);
            piece after = none;
            if (takes) {
                after = piece_of(a, gpu_load<1>(s.ticket, 0, 0)[0]);
                more = after.any();
            }
            if (gpu_thread() == 0 && now.any())
                publish(a, now, me);
            const int slot_held = slot == 0 ? RING - 1 : slot - 1;
            if (held.any() && (kiln_view_present(&a.y) || held.split == 0)) {
                softmax_state all;
                if (join(a, s, held, all))
                    write(a, s, held, slot_held, all);
                else {
                    const int64_t index = held.row * a.splits + held.split;
                    if (gpu_thread() == 0)
                        gpu_write<int64_t>(a.forgotten, 0, 0, 0, index, forgotten);
                    forgotten = index;
                }
            }
            gpu_block_barrier(); // the ticket is read, what is forgotten is written down
            if (!more && forgotten >= 0) {
                after = piece_of(a, forgotten);
                forgotten = gpu_read<int64_t>(a.forgotten, 0, 0, 0, forgotten);
            }
            fetch(s, after, slot_held);
            held = now, now = next, next = after;
            slot = slot == RING - 1 ? 0 : slot + 1;
        }
        gpu_copy_wait_groups<0>();
    }
};
