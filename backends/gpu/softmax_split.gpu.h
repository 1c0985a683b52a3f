// SPDX-License-Identifier: MIT OR Apache-2.0
// softmax, forward (rung `online`) and backward, for rows that one block cannot hold, and for few rows: several blocks share a
// row, and it still stays on the chip. Against softmax_online and softmax_backward: rows of a few MB are read from memory once.
//
// A row is cut into pieces. Blocks take them in order, by a ticket; a block has a ring of them in its shared memory: AHEAD on their
// way, one whose (m, l) or sum it finds out and publishes, HELD that wait until all pieces of their rows are published, of which
// it writes the oldest. The blocks of a row are at different points of their way; HELD is by how many pieces they may be.
// What is published is joined in one order whoever has published when, so the bits are always the same.
//
// Nothing depends on blocks that do not run yet. A block that has waited in vain for the others of a row (`patience` looks)
// forgets the piece, which makes room, and goes on. When no ticket is left, whatever it waits for is with a block that runs,
// and that publishes before it waits longer than its patience; so now what was forgotten is taken up again as if it were new.
// That is what happens to rows longer than what all blocks hold together, and where blocks run one after the other.
//
// A published (m, l) is one word that is written and read as a whole; 0 is none: m = 0 means that some score is 0 or NaN, so
// l >= 1 or NaN.
//
// Bytes per row of n elements: n read (backward 2n), n written, 8 bytes a piece and piece; n (2n) more read if forgotten.
#pragma once
#include "softmax_backward.gpu.h"

// A pass: what it reads, how that adds up, what it writes. v: slots of each input, x: an element of each.
template <class E> struct softmax_split_forward {
    using args = gpu_softmax_args;
    static constexpr int INPUTS = 1;
    static GPU_FN const kiln_view &input(const args &a, int)
    {
        return a.x;
    }
    static GPU_FN const kiln_view &output(const args &a)
    {
        return a.y;
    }
    template <int N> static GPU_FN void add(softmax_state &me, gpu_packed (&v)[1][N], const args &a)
    {
        me.add<E>(v[0], a.scale);
    }
    static GPU_FN void add(softmax_state &me, const float (&x)[1], const args &a)
    {
        me.add(x[0], a.scale);
    }
    static GPU_FN softmax_writer writer(const softmax_state &all, const args &a)
    {
        return softmax_writer(all, a.scale, a.log);
    }
    static GPU_FN gpu_vec<float, 16 / sizeof(E)> write(const softmax_writer &w, bool plain, const gpu_packed (&v)[1])
    {
        return plain ? w.plain(gpu_unpack<E>(v[0])) : w(gpu_unpack<E>(v[0]));
    }
    static GPU_FN float write(const softmax_writer &w, const float (&x)[1])
    {
        return w(x[0]);
    }
};
// A sum without a maximum: m is 1 wherever there is a column, so no word is 0.
template <class E> struct softmax_split_backward {
    using args = gpu_softmax_args;
    static constexpr int INPUTS = 2;
    static GPU_FN const kiln_view &input(const args &a, int i)
    {
        return i ? a.dy : a.y;
    }
    static GPU_FN const kiln_view &output(const args &a)
    {
        return a.dx;
    }
    template <int N> static GPU_FN void add(softmax_state &me, gpu_packed (&v)[2][N], const args &a)
    {
        me.m = 1, me.l += softmax_product<E>(v[0], v[1], a.log);
    }
    static GPU_FN void add(softmax_state &me, const float (&x)[2], const args &a)
    {
        me.m = 1, me.l += a.log ? x[1] : x[0] * x[1];
    }
    struct writer_of {
        const args &a;
        float sum;
        GPU_FN bool is_plain() const
        {
            return true;
        }
    };
    static GPU_FN writer_of writer(const softmax_state &all, const args &a)
    {
        return {a, all.l};
    }
    static GPU_FN gpu_vec<float, 16 / sizeof(E)> write(const writer_of &w, bool, const gpu_packed (&v)[2])
    {
        return softmax_gradients<E>(v[0], v[1], w.sum, w.a);
    }
    static GPU_FN float write(const writer_of &w, const float (&x)[2])
    {
        return softmax_gradient(x[0], x[1], w.sum, w.a);
    }
};

// ASK: nobody waits for a ticket before the barrier behind the piece's sum. Else the first wave waits where it asks, and all others
// for it at that barrier: a tenth of a step. Pieces of fp32 were slower all the same (../cuda/NOTES.md), so it is a choice.
template <class E, template <class> class PASS_, int T, int VECS, int AHEAD, int HELD, bool ASK> struct softmax_split {
    using args = gpu_softmax_args;
    using pass = PASS_<E>;
    static constexpr int INPUTS = pass::INPUTS, V = softmax_slots<E>::V, RING = AHEAD + 1 + HELD, WAVES = T / GPU_WAVE,
                         threads = T, tile_q = 1, tile_k = T * VECS * V; // columns of a piece
    struct shared {
        gpu_array<uint32_t, RING * INPUTS * VECS, T * 4> ring;
        gpu_array<int64_t, 1, 1> ticket;
        gpu_array<float, 2, 2 * WAVES> part;
    };
    static constexpr int blocks = 228 * 1024 / ((int)sizeof(shared) + 1024); // NVIDIA keeps 1 KB of a block for itself

    // What a ticket stands for. Slots lie as in the whole row, so the first piece has the columns before them too, and the last
    // one those after them.
    struct piece {
        int64_t row;
        int split, begin, head; // split < 0: the tickets were used up; begin: its first column in the row
        gpu_rows<const E> x[INPUTS];
        GPU_FN bool any() const
        {
            return split >= 0;
        }
        GPU_FN softmax_slots<const E> slots(int input = 0) const
        {
            return softmax_slots<const E>(x[input], head);
        }
        GPU_FN void get(int column, float (&e)[INPUTS]) const
        {
#pragma unroll
            for (int k = 0; k < INPUTS; k++)
                e[k] = gpu_to_float(slots(k).get(column));
        }
    };
    static GPU_FN piece piece_of(const args &a, int64_t ticket)
    {
        const int64_t row = gpu_divide(ticket, a.splits);
        const int split = (int)(ticket - row * a.splits);
        const bool any = row < a.rows;
        piece p = {row, any ? split : -1, 0, softmax_known_head<E>(a, row), {}};
#pragma unroll
        for (int k = 0; k < INPUTS; k++)
            p.x[k] = softmax_row<const E>(pass::input(a, k), row, any);
        if (p.head < 0) { // rows differ
            p.head = softmax_head(p.x[0], p.x[INPUTS - 1], a.invariant);
            if (kiln_view_present(&pass::output(a)) &&
                p.head != softmax_head(p.x[0], softmax_row<E>(pass::output(a), row, any), a.invariant))
                p.head = p.x[0].cols;
        }
        const bool by_elements = p.head >= p.x[0].cols;
        const uint32_t cols = (uint32_t)p.x[0].cols, first = by_elements ? 0 : (uint32_t)p.head;
        uint32_t begin = split ? first + (uint32_t)split * tile_k : 0, end = first + (uint32_t)(split + 1) * tile_k;
        begin = begin < cols ? begin : cols;
        end = end < cols && split < a.splits - 1 ? end : cols;
        p.begin = (int)begin;
#pragma unroll
        for (int k = 0; k < INPUTS; k++)
            p.x[k].data += begin, p.x[k].cols = (int)(end - begin);
        p.head = by_elements ? p.x[0].cols : split ? 0 : p.head;
        return p;
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
        gpu_unroll<INPUTS>([&](auto input) {
            const auto one = [&](const gpu_rows<const E> &mine, int i) {
                gpu_copy_piece(s.ring, (slot * INPUTS + input) * VECS + i, gpu_thread() * 4, mine, 0, i * T * V);
            };
            slots_of(
                p.slots(input),
                [&](const gpu_rows<const E> &mine) {
#pragma unroll
                    for (int i = 0; i < VECS; i++)
                        one(mine, i);
                },
                one);
        });
        gpu_copy_commit();
    }
    static GPU_FN gpu_packed fetched(shared &s, int slot, int input, int i)
    {
        return gpu_load<4>(s.ring, (slot * INPUTS + input) * VECS + i, gpu_thread() * 4);
    }

    static GPU_FN softmax_state state_of(const args &a, shared &s, const piece &p, int slot)
    { // of what this thread has
        const auto x = p.slots();
        softmax_state me;
        slots_of(
            x,
            [&](const gpu_rows<const E> &) {
                gpu_packed v[INPUTS][VECS];
#pragma unroll
                for (int k = 0; k < INPUTS; k++)
#pragma unroll
                    for (int i = 0; i < VECS; i++)
                        v[k][i] = fetched(s, slot, k, i);
                pass::add(me, v, a);
            },
            [&](const gpu_rows<const E> &, int i) {
                gpu_packed v[INPUTS][1];
#pragma unroll
                for (int k = 0; k < INPUTS; k++)
                    v[k][0] = fetched(s, slot, k, i);
                pass::add(me, v, a);
            });
#pragma unroll 1
        for (int i = gpu_thread(); i < x.edges; i += T) {
            float e[INPUTS];
            p.get(x.edge(i), e);
            pass::add(me, e, a);
        }
        return me;
    }
    static GPU_FN void publish(const args &a, const piece &p, const softmax_state &me)
    {
        gpu_atomic_store(a.partial, p.row, p.split,
                         (uint64_t) __builtin_bit_cast(uint32_t, me.l) << 32 | __builtin_bit_cast(uint32_t, me.m));
    }
    // What this thread joins of the words of the piece's row, of which it has `first`; false: some are not there yet.
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
        if (!kiln_view_present(&pass::output(a)))
            return;
        gpu_rows<E> row = softmax_row<E>(pass::output(a), p.row, true);
        row.data += p.begin, row.cols = p.x[0].cols;
        const softmax_slots<const E> x = p.slots();
        const softmax_slots<E> y(row, p.head);
        const auto writer = pass::writer(all, a);
        const auto put = [&](const gpu_rows<E> &mine, int i, bool plain, const gpu_packed(&v)[INPUTS]) {
            gpu_store_stream<V>(mine, 0, i * T * V, gpu_from_floats<E>(pass::write(writer, plain, v)));
        };
        const auto one = [&](const gpu_rows<E> &mine, int i) {
            gpu_packed v[INPUTS];
#pragma unroll
            for (int k = 0; k < INPUTS; k++)
                v[k] = fetched(s, slot, k, i);
            put(mine, i, false, v);
        };
        slots_of(
            y,
            [&](const gpu_rows<E> &mine) {
                if (writer.is_plain()) {
                    gpu_packed v[VECS][INPUTS];
#pragma unroll
                    for (int i = 0; i < VECS; i++)
#pragma unroll
                        for (int k = 0; k < INPUTS; k++)
                            v[i][k] = fetched(s, slot, k, i);
#pragma unroll
                    for (int i = 0; i < VECS; i++)
                        put(mine, i, true, v[i]);
                } else
#pragma unroll 1
                    for (int i = 0; i < VECS; i++)
                        one(mine, i);
            },
            one);
#pragma unroll 1
        for (int i = gpu_thread(); i < x.edges; i += T) {
            float e[INPUTS];
            p.get(x.edge(i), e);
            y.put(x.edge(i), pass::write(writer, e));
        }
    }

    static GPU_FN void run(const args &a, shared &s, int64_t)
    {
        piece none = {0, -1, 0, 0, {}}, ring[RING]; // in the order of their tickets: held, looked at, on their way
#pragma unroll
        for (int k = 0; k < INPUTS; k++)
            none.x[k] = softmax_row<const E>(pass::input(a, k), 0, false);
#pragma unroll
        for (int i = 0; i < RING; i++)
            ring[i] = none;
        const bool many = a.rows * a.splits > gpu_blocks(); // else one for each block, which is not to take another's
        // A row that all blocks together can hold is waited for; of a longer one only what happens to be there.
        const int patience = a.splits <= (HELD + 1) * gpu_blocks() ? 64 : 1;
        int64_t forgotten = -1; // the last one, which leads to those before
        bool more = true;       // tickets
        int slot = 0, busy = 0; // slot of ring[0], the others follow; pieces in the ring
#pragma unroll 1
        while (more || forgotten >= 0 || busy > 0) {
            const piece &held = ring[0], &now = ring[HELD];
            const int slot_now = slot + HELD < RING ? slot + HELD : slot + HELD - RING;
            bool coming = false;
#pragma unroll
            for (int i = HELD + 1; i < RING; i++)
                coming = coming || ring[i].any();
            const bool takes = more && (many || !coming);
            const bool writes = held.any() && (kiln_view_present(&pass::output(a)) || held.split == 0);
            int64_t ticket = 0;
            if (takes && gpu_thread() == 0)
                ticket = (int64_t)(ASK ? gpu_atomic_ask(a.ticket, 1) : gpu_atomic_add(a.ticket, (uint64_t)1));
            gpu_copy_wait_groups<AHEAD>();
            softmax_state all;
            bool missing = false;
            uint64_t word = 0; // mine of the row that is waited for
            int look = 0;
#pragma unroll 1
            do { // all but the words is done at the first look
                if (look > 0 && gpu_thread() == 0)
                    gpu_pause();
                if (writes && word == 0 && gpu_thread() < a.splits)
                    word = gpu_atomic_load(a.partial, held.row, gpu_thread());
                softmax_state me;
                if (look == 0 && now.any())
                    me = state_of(a, s, now, slot_now);
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
            } while (missing && ++look < patience);

            piece after = none;
            if (takes) {
                after = piece_of(a, gpu_load<1>(s.ticket, 0, 0)[0]);
                more = after.any();
            }
            if (writes && !missing)
                write(a, s, held, slot, all);
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
            fetch(s, after, slot);
            busy += (int)after.any() - (int)held.any();
#pragma unroll
            for (int i = 0; i < RING - 1; i++)
                ring[i] = ring[i + 1];
            ring[RING - 1] = after;
            slot = slot == RING - 1 ? 0 : slot + 1;
        }
        gpu_copy_wait_groups<0>();
    }
};
