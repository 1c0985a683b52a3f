/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * shadow.c: every shared byte knows its last write and the reads since, so that an access can be judged: inside its array,
 * aligned, of initialised bytes, and not at the same time as another lane's. Costs 16 bytes a byte.
 *
 * A stamp says who and when. Two accesses are ordered by a block barrier between them, or by a wave barrier if both are of one
 * wave. Stamps count barriers: block epoch, and wave epoch since the last block barrier. The running lane is always the later
 * one, so an earlier access is ordered before it exactly if an epoch that covers both has changed.
 */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A stamp, from the lowest bit: location:11, wave epoch:18, block epoch:20, thread:10, pending:1, any lane:1, readers:2,
 * valid:1. */
enum { LOCATION_BITS = 11, WAVE_BITS = 18, BLOCK_BITS = 20, THREAD_BITS = 10 };
enum {
    WAVE_AT = LOCATION_BITS,
    BLOCK_AT = WAVE_AT + WAVE_BITS,
    THREAD_AT = BLOCK_AT + BLOCK_BITS,
    FLAGS_AT = THREAD_AT + THREAD_BITS
};
#define FIELD(stamp, at, bits) ((stamp) >> (at) & ((1u << (bits)) - 1))
#define PENDING                ((uint64_t)1 << FLAGS_AT)       /* belongs to an asynchronous copy */
#define ANY                    ((uint64_t)1 << (FLAGS_AT + 1)) /* a lane of the wave, which one is unknown */
#define READ_BY_LANES          ((uint64_t)1 << (FLAGS_AT + 2)) /* several of one wave */
#define READ_BY_WAVES          ((uint64_t)1 << (FLAGS_AT + 3))
#define VALID                  ((uint64_t)1 << 63)

static int thread_of(uint64_t stamp)
{
    return (int)FIELD(stamp, THREAD_AT, THREAD_BITS);
}

static bool same_block_epoch(uint64_t a, uint64_t b)
{
    return FIELD(a ^ b, BLOCK_AT, BLOCK_BITS) == 0;
}

static bool same_wave_epoch(uint64_t a, uint64_t b)
{
    return FIELD(a ^ b, WAVE_AT, WAVE_BITS) == 0;
}

uint32_t location_number(simt_machine *m, simt_at at)
{
    if (at == m->last_at)
        return m->last_location;
    uint32_t place = (uint32_t)((uintptr_t)at >> 3) * 0x9e3779b1u >> (32 - LOCATION_BITS);
    for (int tries = 0; tries < LOCATIONS; tries++, place = (place + 1) % LOCATIONS) {
        if (m->location[place] && m->location[place] != at)
            continue;
        m->location[place] = at;
        m->last_at = at, m->last_location = place;
        return place;
    }
    return 0;
}

/* "thread 3 (flash.gpu.h:94)": whose access the stamp is. */
static const char *whose(const simt_machine *m, uint64_t stamp, char text[96])
{
    simt_at at = m->location[FIELD(stamp, 0, LOCATION_BITS)];
    snprintf(text, 96, "thread %d (%.64s:%u)", thread_of(stamp), location_file(at), location_line(at));
    return text;
}

static uint64_t stamp_now(simt_machine *m, simt_at at)
{
    const int thread = simt_now->thread;
    return VALID | (uint64_t)thread << THREAD_AT | (uint64_t)(m->block_epoch & ((1u << BLOCK_BITS) - 1)) << BLOCK_AT |
           (uint64_t)(m->wave_epoch[thread / m->wave] & ((1u << WAVE_BITS) - 1)) << WAVE_AT | location_number(m, at);
}

/* Is the earlier access `s` one that could happen at the same time as the running lane's? */
static bool unordered(const simt_machine *m, uint64_t s, uint64_t me)
{
    return same_block_epoch(s, me) && (thread_of(s) / m->wave != thread_of(me) / m->wave || same_wave_epoch(s, me));
}

static bool other_lane(uint64_t s, uint64_t me)
{
    return ((s | me) & (ANY | READ_BY_LANES)) || thread_of(s) != thread_of(me);
}

void shadow_poison(simt_machine *m)
{
    const size_t bytes = (size_t)m->launch->kernel->shared_bytes;
    memset(m->arena, 0xff, bytes); /* NaN in every type */
    memset(m->shadow, 0, bytes * sizeof *m->shadow);
}

static void judge_read(simt_machine *m, shadow_cell *cell, uint64_t me, simt_at at, int row, int column)
{
    char text[96];
    if (!(cell->write & VALID))
        simt_fault(at, "load of uninitialised shared memory (row %d column %d, byte %zd)", row, column,
                   cell - m->shadow);
    if (cell->write & PENDING)
        simt_fault(at,
                   "load of row %d column %d, which belongs to an asynchronous copy of %s that was not "
                   "waited for",
                   row, column, whose(m, cell->write, text));
    if (other_lane(cell->write, me) && unordered(m, cell->write, me))
        simt_fault(at, "race: load after a write by %s, no barrier between (row %d column %d, byte %zd)",
                   whose(m, cell->write, text), row, column, cell - m->shadow);
}

static uint64_t readers(const simt_machine *m, uint64_t before, uint64_t me)
{
    if (!before || !same_block_epoch(before, me))
        return me;
    if (before & READ_BY_WAVES)
        return before;
    if (thread_of(before) / m->wave != thread_of(me) / m->wave)
        return before | READ_BY_WAVES;
    if (!same_wave_epoch(before, me))
        return me;
    return other_lane(before, me) ? before | READ_BY_LANES : before;
}

static void judge_write(simt_machine *m, const shadow_cell *cell, uint64_t me, simt_at at, int row, int column)
{
    char text[96];
    if (cell->write & PENDING)
        simt_fault(at,
                   "store to row %d column %d, which belongs to an asynchronous copy of %s that was not "
                   "waited for",
                   row, column, whose(m, cell->write, text));
    if ((cell->write & VALID) && other_lane(cell->write, me) && unordered(m, cell->write, me))
        simt_fault(at, "race: store after a write by %s, no barrier between (row %d column %d, byte %zd)",
                   whose(m, cell->write, text), row, column, cell - m->shadow);
    if (cell->read && same_block_epoch(cell->read, me) &&
        ((cell->read & READ_BY_WAVES) || (other_lane(cell->read, me) && unordered(m, cell->read, me))))
        simt_fault(at, "race: store after a read by %s, no barrier between (row %d column %d, byte %zd)",
                   whose(m, cell->read, text), row, column, cell - m->shadow);
}

void simt_shared_access(const void *p, int bytes, int align, int flags, bool inside, int row, int column, simt_at at)
{
    simt_machine *m = this_machine();
    const char *what = flags & SIMT_WRITE ? "store" : "load";
    const size_t offset = (size_t)((const unsigned char *)p - m->arena);
    if (!inside || offset + (size_t)bytes > (size_t)m->launch->kernel->shared_bytes)
        simt_fault(at, "%s of %d bytes outside a shared array, at row %d column %d", what, bytes, row, column);
    if (offset % (size_t)align)
        simt_fault(at, "misaligned shared %s of %d bytes at row %d column %d", what, align, row, column);
    const uint64_t me = stamp_now(m, at) | (flags & SIMT_ANY_LANE ? ANY : 0);
    shadow_cell before = {0, 0}, after = {0, 0}; /* neighbours mostly have the same history */
    for (shadow_cell *cell = m->shadow + offset, *end = cell + bytes; cell < end; cell++) {
        if (cell->write == before.write && cell->read == before.read && after.write) {
            *cell = after;
            continue;
        }
        before = *cell;
        if (flags & SIMT_WRITE) {
            judge_write(m, cell, me, at, row, column);
            *cell = (shadow_cell){me, 0};
        } else {
            judge_read(m, cell, me, at, row, column);
            cell->read = readers(m, cell->read, me);
        }
        after = *cell;
    }
}

static void land(const async_copy *copy)
{
    memcpy(copy->to, copy->from, (size_t)copy->valid);
    memset(copy->to + copy->valid, 0, (size_t)(copy->bytes - copy->valid));
}

void simt_copy_async(void *to, const void *from, int bytes, int valid, simt_at at)
{
    lane *me = this_lane();
    simt_machine *m = me->seen.machine;
    if (me->copy_count == me->copy_room) {
        me->copy_room = me->copy_room ? 2 * me->copy_room : 64;
        me->copies = realloc(me->copies, sizeof *me->copies * (size_t)me->copy_room);
        if (!me->copies)
            abort();
    }
    shadow_cell *cell = m->shadow + ((unsigned char *)to - m->arena); /* just written by simt_shared_access() */
    for (int i = 0; i < bytes; i++)
        cell[i].write |= PENDING;
    async_copy copy = {to, from, bytes, valid, me->copy_group, random_next(&m->random) & 1, at};
    if (copy.early) /* the hardware may take the bytes now or at the last moment */
        land(&copy);
    else
        memset(to, 0xff, (size_t)bytes);
    me->copies[me->copy_count++] = copy;
}

void simt_copy_commit(void)
{
    this_lane()->copy_group++;
}

void simt_copy_wait(int groups, simt_at at)
{
    lane *me = this_lane();
    simt_machine *m = me->seen.machine;
    const int landed = groups < 0 ? me->copy_group + 1 : me->copy_group - groups; /* groups below this number have */
    const uint64_t stamp = stamp_now(m, at);
    int left = 0;
    for (int i = 0; i < me->copy_count; i++) {
        const async_copy *copy = &me->copies[i];
        if (copy->group >= landed) {
            me->copies[left++] = *copy;
            continue;
        }
        if (!copy->early)
            land(copy);
        shadow_cell *cell = m->shadow + (copy->to - m->arena);
        for (int b = 0; b < copy->bytes; b++)
            cell[b] = (shadow_cell){stamp, 0};
    }
    me->copy_count = left;
}
