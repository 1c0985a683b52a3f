/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * regions.c: races in global memory. Within a launch nothing orders two blocks, so what one writes no other may touch (atomics
 * excepted: they do not come here). Lanes of one block are ordered as in shared memory (shadow.c): by a block barrier, or by
 * a wave barrier within a wave.
 *
 * All host threads share the cells. A lane publishes its access first and looks at the others' afterwards, both in one total
 * order, so of two accesses that race at least one sees the other. Costs 16 bytes a granule, in pages that are touched.
 */
#include "state.h"

/* A stamp, from the lowest bit: wave epoch:14, block epoch:16, thread:10, readers:2, block + 1:22. 0 = nobody. */
enum { WAVE_BITS = 14, BLOCK_EPOCH_BITS = 16, THREAD_BITS = 10, BLOCK_BITS = 22 };
enum {
    EPOCH_AT = WAVE_BITS,
    THREAD_AT = EPOCH_AT + BLOCK_EPOCH_BITS,
    READERS_AT = THREAD_AT + THREAD_BITS,
    BLOCK_AT = READERS_AT + 2
};
#define READ_BY_LANES  ((uint64_t)1 << READERS_AT)
#define READ_BY_WAVES  ((uint64_t)1 << (READERS_AT + 1))
#define BLOCK_MASK     (((uint64_t)1 << BLOCK_BITS) - 1)
#define READ_BY_BLOCKS (BLOCK_MASK << BLOCK_AT)
#define LOW(n)         (((uint64_t)1 << (n)) - 1)

static uint64_t block_of(uint64_t stamp)
{
    return stamp >> BLOCK_AT;
}

static int thread_of(uint64_t stamp)
{
    return (int)(stamp >> THREAD_AT & LOW(THREAD_BITS));
}

static bool same_epoch(uint64_t a, uint64_t b)
{
    return ((a ^ b) >> EPOCH_AT & LOW(BLOCK_EPOCH_BITS)) == 0;
}

static bool same_wave_epoch(uint64_t a, uint64_t b)
{
    return ((a ^ b) & LOW(WAVE_BITS)) == 0;
}

static uint64_t stamp_now(const simt_machine *m)
{
    const int thread = simt_now->thread;
    return ((uint64_t)m->block % (BLOCK_MASK - 1) + 1) << BLOCK_AT | (uint64_t)thread << THREAD_AT |
           ((uint64_t)m->block_epoch & LOW(BLOCK_EPOCH_BITS)) << EPOCH_AT |
           ((uint64_t)m->wave_epoch[thread / m->wave] & LOW(WAVE_BITS));
}

/* Both of one block: could the earlier one, `s`, be at the same time as `me`? */
static bool unordered(const simt_machine *m, uint64_t s, uint64_t me)
{
    if (!same_epoch(s, me))
        return false;
    if (thread_of(s) / m->wave != thread_of(me) / m->wave || (s & READ_BY_WAVES))
        return true;
    return same_wave_epoch(s, me) && ((s & READ_BY_LANES) || thread_of(s) != thread_of(me));
}

static bool conflicts(const simt_machine *m, uint64_t s, uint64_t me)
{
    return s != 0 && (block_of(s) != block_of(me) || unordered(m, s, me));
}

/* Who has read it, once `me` has. */
static uint64_t readers(const simt_machine *m, uint64_t before, uint64_t me)
{
    if (before == 0 || before == me)
        return me;
    if (block_of(before) != block_of(me))
        return READ_BY_BLOCKS;
    if (!same_epoch(before, me))
        return me;
    if (before & READ_BY_WAVES)
        return before;
    if (thread_of(before) / m->wave != thread_of(me) / m->wave)
        return before | READ_BY_WAVES;
    if (!same_wave_epoch(before, me))
        return me;
    return thread_of(before) != thread_of(me) ? before | READ_BY_LANES : before;
}

static void report(const simt_machine *m, const tensor *t, uintptr_t address, bool write, const char *earlier,
                   uint64_t s, simt_at at)
{
    const long long element = (long long)((address - t->begin) / (uintptr_t)t->element);
    const char *what = write ? "store" : "load";
    if (block_of(s) == BLOCK_MASK)
        simt_fault(at, "race in global memory: %s after a %s by several blocks (tensor %s, element %lld)", what,
                   earlier, t->name, element);
    if (block_of(s) != block_of(stamp_now(m)))
        simt_fault(at, "race in global memory: %s after a %s by block %lld (tensor %s, element %lld)", what, earlier,
                   (long long)block_of(s) - 1, t->name, element);
    simt_fault(at, "race in global memory: %s after a %s by thread %d, no barrier between (tensor %s, element %lld)",
               what, earlier, thread_of(s), t->name, element);
}

void region_access(simt_machine *m, const tensor *t, uintptr_t address, int bytes, bool write, simt_at at)
{
    const region *r = &m->launch->regions[t->region];
    const uint64_t me = stamp_now(m);
    region_cell *cell = r->cells + (address - r->begin) / (uintptr_t)r->granule;
    region_cell *const end =
        r->cells + (address - r->begin + (uintptr_t)bytes + (uintptr_t)r->granule - 1) / (uintptr_t)r->granule;
    for (; cell < end; cell++) {
        uint64_t reads = __atomic_load_n(&cell->read, __ATOMIC_RELAXED), writes;
        if (write) {
            writes = __atomic_exchange_n(&cell->write, me, __ATOMIC_SEQ_CST);
            reads = __atomic_load_n(&cell->read, __ATOMIC_SEQ_CST);
            if (conflicts(m, writes, me))
                report(m, t, address, true, "store", writes, at);
            if (conflicts(m, reads, me))
                report(m, t, address, true, "load", reads, at);
            continue;
        }
        for (;;) {
            const uint64_t after = readers(m, reads, me);
            if (after == reads ||
                __atomic_compare_exchange_n(&cell->read, &reads, after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
                break;
        }
        writes = __atomic_load_n(&cell->write, __ATOMIC_SEQ_CST);
        if (conflicts(m, writes, me))
            report(m, t, address, false, "store", writes, at);
    }
}

static size_t region_bytes(const region *r)
{
    return ((r->end - r->begin) / (uintptr_t)r->granule + 1) * sizeof *r->cells;
}

/* Tensors that overlap become one region. There are few, so: join whatever overlaps until nothing changes. */
bool regions_of_launch(launch *l)
{
    for (int32_t t = 0; t < l->tensor_count; t++) {
        tensor *x = &l->tensors[t];
        l->regions[t] = (region){x->begin, x->end, x->element, NULL};
        x->region = t;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t a = 0; a < l->tensor_count; a++)
            for (int32_t b = 0; b < a; b++) {
                region *x = &l->regions[l->tensors[a].region], *y = &l->regions[l->tensors[b].region];
                if (x == y || x->begin >= y->end || y->begin >= x->end)
                    continue;
                y->begin = x->begin < y->begin ? x->begin : y->begin;
                y->end = x->end > y->end ? x->end : y->end;
                y->granule = x->granule < y->granule ? x->granule : y->granule;
                const int32_t gone = l->tensors[a].region, kept = l->tensors[b].region;
                for (int32_t t = 0; t < l->tensor_count; t++)
                    if (l->tensors[t].region == gone)
                        l->tensors[t].region = kept;
                changed = true;
            }
    }
    for (int32_t t = 0; t < l->tensor_count; t++) {
        region *r = &l->regions[l->tensors[t].region];
        if (!r->cells && !(r->cells = zeroed(region_bytes(r))))
            return false;
    }
    return true;
}

void regions_free(launch *l)
{
    for (int32_t t = 0; t < l->tensor_count; t++)
        if (l->regions[t].cells)
            zeroed_free(l->regions[t].cells, region_bytes(&l->regions[t]));
}
