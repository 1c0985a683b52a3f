/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * counters.c: groups what the lanes of a wave have accessed since they last met into the instructions that a wave would have
 * issued (same source location, size and kind, in each lane's order), and counts what each costs: passes through the banks of
 * shared memory, 32-byte sectors of global memory.
 *
 * Banks: 32 of 4 bytes. The lanes of a phase are served together, a phase takes as many passes as the busiest bank has
 * different words; those beyond what its words need at least (32 a pass) are conflicts.
 * 32 lanes (NVIDIA; equal to the profiler's counts): a phase is 128 bytes of neighbouring lanes.
 * 64 lanes (AMD, amd.md §6): reads of 4 and 8 bytes 32 lanes, of 16 bytes 16 lanes; stores of 8 and 16 bytes 16 lanes.
 */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { BANKS = 32, SECTOR = 32 };

void count_record(simt_at at, uintptr_t where, int bytes, enum record_kind kind, int tensor_number)
{
    lane *me = this_lane();
    if (me->record_count == me->record_room) {
        me->record_room = me->record_room ? 2 * me->record_room : 256;
        me->records = realloc(me->records, sizeof *me->records * (size_t)me->record_room);
        if (!me->records)
            abort();
    }
    me->records[me->record_count++] = (record){at, where, (int16_t)bytes, (uint8_t)kind, (uint8_t)tensor_number};
}

void simt_shared_count(const void *p, int bytes, bool write, simt_at at)
{
    count_record(at, (uintptr_t)((const unsigned char *)p - this_machine()->arena), bytes,
                 write ? SHARED_STORE : SHARED_LOAD, 0);
}

void simt_count_exchange(void)
{
    this_machine()->count.exchanges++;
}

void simt_count_matrix_op(void)
{
    this_machine()->count.matrix_ops++;
}

static int lanes_of_phase(int wave, int bytes, bool write)
{
    if (wave == 32)
        return 128 / (bytes < 4 ? 4 : bytes);
    return bytes > 8 || (write && bytes == 8) ? 16 : 32;
}

static void add_conflicts(simt_machine *m, simt_at at, int64_t conflicts)
{
    m->count.bank_conflicts += conflicts;
    m->conflicts[location_number(m, at)] += conflicts;
}

/* The accesses of one phase: n of them, `bytes` each. */
static void count_phase(simt_machine *m, simt_at at, const uintptr_t *where, int n, int bytes)
{
    uint32_t word[BANKS][SIMT_MAX_WAVE];
    int used[BANKS] = {0}, ways = 0, words = 0;
    for (int i = 0; i < n; i++)
        for (uint32_t x = (uint32_t)(where[i] / 4); x < (where[i] + (uintptr_t)bytes + 3) / 4; x++) {
            uint32_t *bank = word[x % BANKS];
            int k = 0, full = used[x % BANKS];
            while (k < full && bank[k] != x)
                k++;
            if (k < full)
                continue;
            bank[full] = x;
            used[x % BANKS] = full + 1;
            words++;
            if (full + 1 > ways)
                ways = full + 1;
        }
    const int least = (words + BANKS - 1) / BANKS;
    m->count.shared_phases += least;
    if (ways > least)
        add_conflicts(m, at, ways - least);
}

static void count_sectors(simt_machine *m, const record *r, const uintptr_t *where, int n)
{
    uintptr_t seen[2 * SIMT_MAX_WAVE];
    int count = 0;
    for (int i = 0; i < n; i++)
        for (uintptr_t s = where[i] / SECTOR; s <= (where[i] + (uintptr_t)r->bytes - 1) / SECTOR; s++) {
            int k = count - 1; /* neighbours first */
            while (k >= 0 && seen[k] != s)
                k--;
            if (k < 0)
                seen[count++] = s;
        }
    simt_tensor_counters *t = &m->count.tensor[r->tensor];
    *(r->kind == GLOBAL_STORE ? &t->written_sectors : &t->read_sectors) += count;
}

static bool same_instruction(const record *a, const record *b)
{
    return a->at == b->at && a->bytes == b->bytes && a->kind == b->kind && a->tensor == b->tensor;
}

void count_instructions(simt_machine *m, lane *wave)
{
    int32_t next[SIMT_MAX_WAVE] = {0};
    uintptr_t where[SIMT_MAX_WAVE];
    for (int lead = 0; lead < m->wave; lead++)
        while (next[lead] < wave[lead].record_count) {
            const record *r = &wave[lead].records[next[lead]];
            const bool shared = r->kind == SHARED_LOAD || r->kind == SHARED_STORE;
            const int phase = shared ? lanes_of_phase(m->wave, r->bytes, r->kind == SHARED_STORE) : m->wave;
            m->count.shared_accesses += shared;
            for (int first = 0; first < m->wave; first += phase) {
                int n = 0;
                for (int l = first; l < first + phase; l++)
                    if (next[l] < wave[l].record_count && same_instruction(&wave[l].records[next[l]], r))
                        where[n++] = wave[l].records[next[l]++].where;
                if (n > 0 && shared)
                    count_phase(m, r->at, where, n, r->bytes);
                else if (n > 0)
                    count_sectors(m, r, where, n);
            }
        }
    for (int l = 0; l < m->wave; l++)
        wave[l].record_count = 0;
}

/* The lines with most conflicts, from the machine's table into its counters. */
void counters_lines(simt_machine *m)
{
    memset(m->count.line, 0, sizeof m->count.line);
    for (int i = 0; i < LOCATIONS; i++)
        if (m->conflicts[i] > 0)
            counters_line(&m->count, location_file(m->location[i]), location_line(m->location[i]), m->conflicts[i]);
}

/* Keeps the list in falling order; what falls off its end is lost. */
void counters_line(simt_counters *c, const char *file, unsigned line, int64_t conflicts)
{
    int i = 0;
    while (i < SIMT_LINES - 1 && c->line[i].conflicts > 0 && (c->line[i].line != line || c->line[i].file != file))
        i++;
    if (c->line[i].line == line && c->line[i].file == file)
        c->line[i].conflicts += conflicts;
    else if (conflicts > c->line[i].conflicts)
        c->line[i].file = file, c->line[i].line = line, c->line[i].conflicts = conflicts;
    for (; i > 0 && c->line[i].conflicts > c->line[i - 1].conflicts; i--) {
        __typeof__(c->line[0]) x = c->line[i];
        c->line[i] = c->line[i - 1], c->line[i - 1] = x;
    }
}

void counters_add(simt_counters *sum, const simt_counters *more)
{
    for (int t = 0; t < SIMT_TENSORS; t++) {
        simt_tensor_counters *a = &sum->tensor[t];
        const simt_tensor_counters *b = &more->tensor[t];
        a->read += b->read, a->written += b->written;
        a->distinct_read += b->distinct_read, a->distinct_written += b->distinct_written;
        a->read_sectors += b->read_sectors, a->written_sectors += b->written_sectors;
    }
    sum->shared_accesses += more->shared_accesses;
    sum->shared_phases += more->shared_phases;
    sum->bank_conflicts += more->bank_conflicts;
    sum->exchanges += more->exchanges;
    sum->matrix_ops += more->matrix_ops;
    sum->wave_barriers += more->wave_barriers;
    sum->block_barriers += more->block_barriers;
    sum->atomics += more->atomics;
    sum->switches += more->switches;
    for (int i = 0; i < SIMT_LINES; i++)
        if (more->line[i].conflicts > 0)
            counters_line(sum, more->line[i].file, more->line[i].line, more->line[i].conflicts);
}
