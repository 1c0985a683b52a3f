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
    static constexpr int V = softmax_slots<E>::V, RING = 3, WAVES = T / GPU_WAVE, threads = T, tile_q = 1,
                         tile_k = T * VECS * V; // columns of a piece
    struct shared {
        gpu_array<uint32_t, RING * VECS, T * 4> ring;
        gpu_array<int64_t, 1, 1> ticket;
        gpu_array<float, 2, 2 * WAVES> part;
    };
    static constexpr int blocks = 220 * 1024 / (int)sizeof(shared);

    // What a ticket stands for. Slots lie as in the whole row, so the first piece has the columns before them too, and the last
    // one those after them.
    struct piece {
        int64_t row;
        int split, begin, head; // split < 0: the tickets were used up; begin: its first column in the row
        gpu_rows<const E> x;
        GPU_FN bool any() const
        {
            return split >= 0;
        }
        GPU_FN softmax_slots<const E> slots() const
        {
            return softmax_slots<const E>(x, head);
        }
    };
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
        const uint32_t cols = (uint32_t)x.cols, first = head < x.cols ? (uint32_t)head : 0; // else by elements
        uint32_t begin = split ? first + (uint32_t)split * tile_k : 0, end = first + (uint32_t)(split + 1) * tile_k;
        begin = begin < cols ? begin : cols;
        end = end < cols && split < a.splits - 1 ? end : cols;
        x.data += begin, x.cols = (int)(end - begin);
        return {row, any ? split : -1, (int)begin, head < (int)cols ? split ? 0 : head : x.cols, x};
    }

    // Calls full(mine), where I have all VECS slots, else each(mine, i) for those that I have. mine: the row from my first
    // slot on; slot i is at its column i·T·V.
    template <class X, class FULL, class EACH>
    static GPU_FN void slots_of(const softmax_slots<X> &slots, FULL full, EACH each)
    {
        const int left = slots.body - gpu_thread();
        gpu_rows<X> mine = slots.row;
        mine.data += slots.head + gpu_thread() * V, mine.cols -= slots.head + gpu_thread() * V;
        if (left > (VECS - 1) * T)
            full(mine);
        else
#pragma unroll 1
            for (int i = 0; i * T < left; i++)
                each(mine, i);
    }
    static GPU_FN void fetch(shared &s, const piece &p, int slot)
    {
        const auto one = [&](const gpu_rows<const E> &mine, int i) {
            gpu_copy_piece(s.ring, slot * VECS + i, gpu_thread() * 4, mine, 0, i * T * V);
        };
        slots_of(
            p.slots(),
            [&](const gpu_rows<const E> &mine) {
#pragma unroll
                for (int i = 0; i < VECS; i++)
                    one(mine, i);
            },
            one);
        gpu_copy_commit();
    }
    static GPU_FN gpu_packed fetched(shared &s, int slot, int i)
    {
        return gpu_load<4>(s.ring, slot * VECS + i, gpu_thread() * 4);
    }

    static GPU_FN softmax_state state_of(const args &a, shared &s, const piece &p, int slot)
    { // of what this thread has
        const auto x = p.slots();
        softmax_state me;
        slots_of(
            x,
            [&](const gpu_rows<const E> &) {
                gpu_packed v[VECS];
#pragma unroll
                for (int i = 0; i < VECS; i++)
                    v[i] = fetched(s, slot, i);
                me.add<E>(v, a.scale);
            },
            [&](const gpu_rows<const E> &, int i) {
                gpu_packed v[1] = {fetched(s, slot, i)};
                me.add<E>(v, a.scale);
            });
#pragma unroll 1
        for (int i = gpu_thread(); i < x.edges; i += T)
            me.add(gpu_to_float(x.get(x.edge(i))), a.scale);
        return me;
    }
    static GPU_FN void publish(const args &a, const piece &p, const softmax_state &me)
    {
        gpu_atomic_store(a.partial, p.row, p.split,
                         (uint64_t) __builtin_bit_cast(uint32_t, me.l) << 32 | __builtin_bit_cast(uint32_t, me.m));
    }
    // What this thread joins of the words of the piece's row, of which it has loaded `first`; false: some are not there yet.
    static GPU_FN bool join(const args &a, const piece &p, uint64_t first, softmax_state &all)
    {
        bool there = true;
#pragma unroll 1
        for (int i = gpu_thread(); i < a.splits; i += T) {
            const uint64_t word = i < T ? first : gpu_atomic_load(a.partial, p.row, i);
            there = there && word != 0;
            softmax_state one;
            one.m = __builtin_bit_cast(float, (uint32_t)word);
            one.l = __builtin_bit_cast(float, (uint32_t)(word >> 32));
            const float top = gpu_max(all.m, one.m);
            all.rebase(top), one.rebase(top);
            all.l += one.l;
        }
        return there;
    }
    // Both over all threads, by one exchange for both; and whether `any` holds for one of them.
    static GPU_FN bool gather(shared &s, softmax_state &me, softmax_state &all, bool any)
    {
        float x[2] = {gpu_wave_max<GPU_WAVE>(me.m), gpu_wave_max<GPU_WAVE>(all.m)};
        if (gpu_lane() == 0)
            gpu_store<2>(s.part, 0, 2 * gpu_wave_id(), gpu_vec<float, 2>{x[0], x[1]});
        any = gpu_block_any(any);
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
            const auto other = gpu_load<2>(s.part, 0, 2 * w);
            x[0] = gpu_max(x[0], other[0]), x[1] = gpu_max(x[1], other[1]);
        }
        me.rebase(x[0]), all.rebase(x[1]);
        me.l = gpu_wave_sum<GPU_WAVE>(me.l), all.l = gpu_wave_sum<GPU_WAVE>(all.l);
        if (gpu_lane() == 0)
            gpu_store<2>(s.part, 1, 2 * gpu_wave_id(), gpu_vec<float, 2>{me.l, all.l});
        gpu_block_barrier();
        me.l = all.l = 0;
#pragma unroll
        for (int w = 0; w < WAVES; w++) {
            const auto other = gpu_load<2>(s.part, 1, 2 * w);
            me.l += other[0], all.l += other[1];
        }
        return any;
    }
    static GPU_FN void write(const args &a, shared &s, const piece &p, int slot, const softmax_state &all)
    {
        if (gpu_thread() == 0 && p.split == 0 && kiln_view_present(&a.lse))
            softmax_slots<float>(softmax_row<float>(a.lse, p.row, true), 0).put(0, all.lse());
        if (!kiln_view_present(&a.y))
            return;
        gpu_rows<E> row = softmax_row<E>(a.y, p.row, true);
        row.data += p.begin, row.cols = p.x.cols;
        const softmax_slots<const E> x = p.slots();
        const softmax_slots<E> y(row, p.head);
        const softmax_writer writer(all, a.scale, a.log);
        const auto one = [&](const gpu_rows<E> &mine, int i) {
            gpu_store_stream<V>(mine, 0, i * T * V, gpu_from_floats<E>(writer(gpu_unpack<E>(fetched(s, slot, i)))));
        };
        slots_of(
            y,
            [&](const gpu_rows<E> &mine) {
                if (writer.is_plain()) {
                    gpu_packed v[VECS];
#pragma unroll
                    for (int i = 0; i < VECS; i++)
                        v[i] = fetched(s, slot, i);
#pragma unroll
                    for (int i = 0; i < VECS; i++)
                        gpu_store_stream<V>(mine, 0, i * T * V, gpu_from_floats<E>(writer.plain(gpu_unpack<E>(v[i]))));
                } else
#pragma unroll 1
                    for (int i = 0; i < VECS; i++)
                        one(mine, i);
            },
            one);
#pragma unroll 1
        for (int i = gpu_thread(); i < x.edges; i += T)
            y.put(x.edge(i), writer(gpu_to_float(x.get(x.edge(i)))));
    }

    static GPU_FN void run(const args &a, shared &s, int64_t)
    {
        piece none = {0, -1, 0, 0, gpu_rows<const E>(a.x, 0, 0)};
        none.x.cols = 0;
        const bool many = a.rows * a.splits > gpu_blocks(); // else one for each block, which is not to take another's
        piece held = none, now = none, next = none;
        int64_t forgotten = -1; // the last one, which leads to those before
        bool more = true;       // tickets
        int slot = 0;           // of `now`; that of `next` follows, then that of `held`
#pragma unroll 1
        while (more || forgotten >= 0 || held.any() || now.any() || next.any()) {
            const bool takes = more && (many || now.any() || !next.any());
            const bool writes = held.any() && (kiln_view_present(&a.y) || held.split == 0);
            int64_t ticket = 0;
            if (takes && gpu_thread() == 0)
                ticket = (int64_t)gpu_atomic_add(a.ticket, (uint64_t)1);
            gpu_copy_wait_groups<1>();
            softmax_state all;
            bool missing = false;
            int look = 0;
#pragma unroll 1
            do { // all but the words is done at the first look
                if (look > 0 && gpu_thread() == 0)
                    gpu_pause();
                uint64_t word = 0;
                if (writes && gpu_thread() < a.splits)
                    word = gpu_atomic_load(a.partial, held.row, gpu_thread());
                softmax_state me;
                if (look == 0 && now.any())
                    me = state_of(a, s, now, slot);
                if (look == 0 && gpu_thread() == 0)
                    gpu_store<1>(s.ticket, 0, 0, gpu_vec<int64_t, 1>{ticket});
                all = softmax_state();
                missing = writes && !join(a, held, word, all);
                if (look > 0)
                    missing = gpu_block_any(missing);
                if (look == 0 || !missing)
                    missing = gather(s, me, all, missing);
                if (look == 0 && now.any() && gpu_thread() == 0)
                    publish(a, now, me);
            } while (missing && ++look < a.patience);

            piece after = none;
            if (takes) {
                after = piece_of(a, gpu_load<1>(s.ticket, 0, 0)[0]);
                more = after.any();
            }
            const int slot_held = slot == 0 ? RING - 1 : slot - 1;
            if (writes && !missing)
                write(a, s, held, slot_held, all);
            if (missing) {
                const int64_t index = held.row * a.splits + held.split;
                if (gpu_thread() == 0)
                    gpu_write<int64_t>(a.forgotten, 0, 0, 0, index, forgotten);
                forgotten = index;
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
