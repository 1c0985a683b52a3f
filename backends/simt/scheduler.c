/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * scheduler.c: runs one block. The lanes of a wave run in a seeded order, each until it reaches a wave operation, a block
 * barrier or the end; the last of a wave to reach an operation executes it for all. Waves take turns at block barriers only,
 * in a seeded order: what a kernel may not rely on changes with the seed. What not all lanes reach is reported.
 */
#include "state.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread simt_lane *simt_now __attribute__((tls_model("initial-exec"), visibility("hidden")));

enum { COLOURS = 16, COLOUR = 256 };

static void yield(void)
{
    lane *me = this_lane();
    fiber_switch(&me->stack_pointer, me->seen.machine->scheduler);
    simt_now = &me->seen;
}

void simt_fault(simt_at at, const char *format, ...)
{
    simt_machine *m = this_machine();
    int n =
        snprintf(m->fault, sizeof m->fault, "%s: block %d thread %d (wave %d lane %d) %s:%u: ", m->launch->kernel->name,
                 m->block, simt_now->thread, simt_now->thread / m->wave, simt_now->thread % m->wave, location_file(at),
                 location_line(at));
    va_list list;
    va_start(list, format);
    vsnprintf(m->fault + n, sizeof m->fault - (size_t)n, format, list);
    va_end(list);
    void *lost;
    fiber_switch(&lost, m->scheduler); /* this block never goes on */
    abort();
}

void simt_pause(simt_at at)
{
    enum { PATIENCE = 1 << 20 };
    simt_machine *m = this_machine();
    sched_yield();
    m->abandoned = __atomic_load_n(&m->launch->stop, __ATOMIC_RELAXED) != 0;
    if (m->abandoned || ++m->pauses > PATIENCE)
        simt_fault(at, "waits for what no other block writes");
}

static bool same_operation(const simt_operation *a, const simt_operation *b)
{
    return a->at == b->at && a->name == b->name && memcmp(a->same, b->same, sizeof a->same) == 0;
}

/* All lanes of the wave are at the operation of the running one: does it, and lets them go on. */
static void complete(simt_machine *m, lane *wave, int w)
{
    const simt_operation *operations[SIMT_MAX_WAVE];
    const simt_operation *mine = &this_lane()->operation;
    for (int l = 0; l < m->wave; l++)
        operations[l] = &wave[l].operation;
    count_instructions(m, wave);
    if (mine->execute)
        mine->execute(operations);
    for (int l = 0; l < m->wave; l++)
        wave[l].state = LANE_RUNS;
    m->arrived[w] = 0;
}

void simt_arrive(const simt_operation *operation)
{
    lane *me = this_lane();
    simt_machine *m = me->seen.machine;
    int w = me->seen.thread / m->wave;
    lane *wave = &m->lanes[w * m->wave];
    if (me->stored.of)
        stored_check(me);
    me->operation = *operation;
    me->state = LANE_AT_WAVE_OPERATION;
    if (++m->arrived[w] == m->wave) {
        bool same = true;
        for (int l = 0; l < m->wave && same; l++)
            same = same_operation(operation, &wave[l].operation);
        if (same) {
            complete(m, wave, w);
            return;
        }
    }
    yield();
}

static void end_of_wave_barrier(const simt_operation *const *lanes)
{
    (void)lanes;
    simt_machine *m = this_machine();
    m->wave_epoch[simt_now->thread / m->wave]++;
    m->count.wave_barriers++;
}

void simt_wave_barrier(simt_at at)
{
    simt_operation operation = {"wave barrier", at, end_of_wave_barrier, {NULL, NULL}, NULL, {0, 0, 0}};
    simt_arrive(&operation);
}

static const char item_barrier[] = "barrier between items";

bool simt_block_barrier(simt_at at, const char *name, bool any)
{
    lane *me = this_lane();
    if (me->stored.of)
        stored_check(me);
    me->operation.name = name, me->operation.at = at;
    me->any = any;
    me->state = LANE_AT_BLOCK_BARRIER;
    yield();
    return me->any_result;
}

void simt_next_item(simt_at at)
{
    simt_block_barrier(at, item_barrier, false);
}

static void lane_start(void)
{
    lane *me = this_lane();
    simt_machine *m = me->seen.machine;
    ((simt_entry)m->launch->kernel->entry)(m->launch->args, m->arena);
    if (me->stored.of)
        stored_check(me);
    if (me->copy_count > 0)
        simt_fault(me->copies[0].at, "asynchronous copy never waited for");
    me->state = LANE_DONE;
    yield();
    abort();
}

static void report_divergence(simt_machine *m, int w)
{
    const lane *wave = &m->lanes[w * m->wave];
    int first = 0;
    while (wave[first].state != LANE_AT_WAVE_OPERATION)
        first++;
    const simt_operation *operation = &wave[first].operation;
    uint64_t here = 0;
    for (int l = 0; l < m->wave; l++)
        here |= (uint64_t)(wave[l].state == LANE_AT_WAVE_OPERATION && same_operation(&wave[l].operation, operation))
                << l;
    snprintf(m->fault, sizeof m->fault, "%s: block %d wave %d %s:%u: divergent %s: only lanes %0*llx are here",
             m->launch->kernel->name, m->block, w, location_file(operation->at), location_line(operation->at),
             operation->name, m->wave / 4, (unsigned long long)here);
}

/* Until every lane of the wave is at a block barrier or done. */
static bool run_wave(simt_machine *m, int w)
{
    lane *wave = &m->lanes[w * m->wave];
    int32_t order[SIMT_MAX_WAVE];
    shuffle(order, m->wave, &m->random);
    for (bool ran = true; ran;) {
        ran = false;
        for (int i = 0; i < m->wave; i++) {
            lane *l = &wave[order[i]];
            if (l->state != LANE_RUNS)
                continue;
            ran = true;
            m->count.switches++;
            simt_now = &l->seen;
            fiber_switch(&m->scheduler, l->stack_pointer);
            if (m->fault[0])
                return false;
        }
    }
    count_instructions(m, wave);
    if (m->arrived[w] == 0)
        return true;
    report_divergence(m, w);
    return false;
}

/* All waves stand still. 1: go on; 0: the block is done; -1: not everybody reached the barrier. */
static int meet(simt_machine *m)
{
    const int threads = m->launch->kernel->threads;
    int done = 0, same = 0, first = -1;
    bool any = false;
    for (int t = 0; t < threads; t++) {
        const lane *l = &m->lanes[t];
        done += l->state == LANE_DONE;
        if (l->state != LANE_AT_BLOCK_BARRIER)
            continue;
        first = first < 0 ? t : first;
        same += l->operation.at == m->lanes[first].operation.at && l->operation.name == m->lanes[first].operation.name;
        any |= l->any;
    }
    if (done == threads)
        return 0;
    const simt_operation *operation = &m->lanes[first].operation;
    if (same != threads) {
        snprintf(m->fault, sizeof m->fault,
                 "%s: block %d %s:%u: %s reached by %d of %d threads (first: thread %d; %d have ended)",
                 m->launch->kernel->name, m->block, location_file(operation->at), location_line(operation->at),
                 operation->name, same, threads, first, done);
        return -1;
    }
    m->count.block_barriers++;
    m->block_epoch++;
    memset(m->wave_epoch, 0, sizeof m->wave_epoch);
    if (operation->name == item_barrier)
        shadow_poison(m);
    for (int t = 0; t < threads; t++)
        m->lanes[t].state = LANE_RUNS, m->lanes[t].any_result = any;
    return 1;
}

/* A stack that was too small has run over its end, and into its neighbour: nothing that happened since means anything. */
static bool stacks_sufficed(simt_machine *m)
{
    for (int t = 0; t < m->launch->kernel->threads; t++) {
        uint64_t *end = (uint64_t *)(m->stacks + (size_t)STACK * (size_t)t);
        if (*end == STACK_END)
            continue;
        *end = STACK_END;
        snprintf(m->fault, sizeof m->fault, "%s: block %d thread %d needs more than %d bytes of stack (STACK, state.h)",
                 m->launch->kernel->name, m->block, t, STACK);
        return false;
    }
    return true;
}

bool run_block(simt_machine *m, int32_t block)
{
    const int threads = m->launch->kernel->threads, waves = threads / m->wave;
    int32_t order[SIMT_MAX_THREADS / 32];
    m->block = block;
    m->fault[0] = 0;
    m->abandoned = false, m->pauses = 0;
    m->random = m->launch->seed ^ (uint64_t)block * 0xd1342543de82ef95u;
    m->block_epoch = 0;
    memset(m->wave_epoch, 0, sizeof m->wave_epoch);
    memset(m->arrived, 0, sizeof m->arrived);
    shadow_poison(m);
    for (int t = 0; t < threads; t++) {
        lane *l = &m->lanes[t];
        l->seen = (simt_lane){t, block, m->launch->blocks, m};
        l->state = LANE_RUNS;
        l->record_count = l->copy_count = l->copy_group = 0;
        l->stored.of = NULL;
        /* Stacks that begin at the same place of a page would share the same few cache lines. */
        l->stack_pointer = fiber_new(m->stacks + (size_t)STACK * (t + 1) - t % COLOURS * COLOUR, lane_start);
    }
    for (;;) {
        shuffle(order, waves, &m->random);
        for (int i = 0; i < waves; i++)
            if (!run_wave(m, order[i]))
                return stacks_sufficed(m) && false;
        int next = meet(m);
        if (next <= 0)
            return stacks_sufficed(m) && next == 0;
    }
}
