/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_blocked.inc.h: online softmax over blocks of keys, for `flash1` and `flash2`, which differ in one number:
 * how many tiles of queries a task takes through each block of keys before it goes on to the next.
 *
 * Task: that many tiles of one sequence and KV head (the query heads of a group lie side by side in the lanes). Each
 * block of keys is made fp32 once a task. Long tasks (late rows, under a causal mask) are started first. The number of
 * tiles and of workers is scheduling: neither changes a bit.
 */
#ifndef KILN_CPU_REF_ATTENTION_BLOCKED_INC_H
#define KILN_CPU_REF_ATTENTION_BLOCKED_INC_H

#include "attention_forward.inc.h"

typedef struct blocked_call {
    attention_call call;
    int64_t group;        /* query heads of one KV head */
    int64_t tiles;        /* of a task */
    int64_t tasks_a_head; /* for the longest sequence */
    int64_t worker_floats;
    float *memory;
    kiln_cpu_queue *queue;
} blocked_call;

static int64_t blocked_state_floats(const attention_call *call)
{
    return round_up(tile_state_floats(call), 16);
}

static int64_t blocked_worker_floats(const attention_call *call, int64_t tiles)
{
    attention_scratch scratch;
    return scratch_place(call, NULL, &scratch) + tiles * blocked_state_floats(call) +
           round_up((int64_t)sizeof(tile) * tiles, 64) / 4;
}

/* Most tiles of a task of narrow ones. */
enum { BLOCKED_NARROW_TILES = 2 };

/* Packed sequences may be far shorter than their bound says: narrow tiles do for them, and give the same bits. */
static attention_call blocked_narrowed(const attention_call *call)
{
    attention_call narrow = *call;
    narrow.nv = 1;
    narrow.nq = VF_LANES;
    return narrow;
}

/* Do narrow tiles end sooner, since so few wide ones leave workers idle? Row for row they take some 5/4 of the time. */
static bool blocked_spreads(const attention_call *call, int64_t rows, int64_t heads, int32_t workers)
{
    const int64_t wide = (rows + call->nq - 1) / call->nq * heads, narrow = (rows + VF_LANES - 1) / VF_LANES * heads;
    return wide < 4 * (int64_t)workers &&
           (narrow + workers - 1) / workers * 5 < (wide + workers - 1) / workers * 4 * call->nv;
}

/* Workspace for `tiles` tiles a task, or narrow ones. */
static size_t blocked_bytes(const attention_call *call, int64_t tiles, int32_t workers)
{
    const attention_call narrow = blocked_narrowed(call);
    int64_t floats = blocked_worker_floats(call, tiles), other = blocked_worker_floats(&narrow, BLOCKED_NARROW_TILES);
    return sizeof(kiln_cpu_queue) + sizeof(float) * (size_t)(workers * (floats > other ? floats : other));
}

/* Takes n tiles through all keys that they may see. */
static void blocked_sum(const attention_call *call, const kiln_sequence *seq, int64_t head_k,
                        const attention_scratch *scratch, tile *tiles, int64_t n)
{
    int64_t begin = INT64_MAX, end = 0;
    for (int64_t i = 0; i < n; i++) {
        tile_clear(call, &tiles[i]);
        begin = tiles[i].begin_any < begin ? tiles[i].begin_any : begin;
        end = tiles[i].end_any > end ? tiles[i].end_any : end;
    }
    for (int64_t first = begin / KEY_BLOCK * KEY_BLOCK; first < end; first += KEY_BLOCK) {
        block_range all = {KEY_BLOCK, 0};
        for (int64_t i = 0; i < n; i++) {
            block_range range = tile_block_range(&tiles[i], first);
            if (range.begin < range.end) {
                all.begin = range.begin < all.begin ? range.begin : all.begin;
                all.end = range.end > all.end ? range.end : all.end;
            }
        }
        key_block block = block_load(call, scratch, seq, head_k, first, all.begin, all.end);
        for (int64_t i = 0; i < n; i++) {
            block_range range = tile_block_range(&tiles[i], first);
            if (range.begin < range.end)
                tile_step(call, &tiles[i], seq, &block, range, scratch);
        }
    }
}

static void blocked_task(const blocked_call *f, int64_t b, int64_t head_k, int64_t index,
                         const attention_scratch *scratch, tile *tiles, float *states)
{
    const attention_call *call = &f->call;
    const kiln_sequence seq = kiln_sequence_of(call->p, b);
    const int64_t rows = seq.seqlen_q * f->group, row = index * f->tiles * call->nq;
    int64_t n = 0;
    for (; n < f->tiles && row + n * call->nq < rows; n++) {
        tile *t = &tiles[n];
        tile_place(call, t, states + n * blocked_state_floats(call));
        tile_lanes(call, t, &seq, b, head_k * f->group, f->group, row + n * call->nq);
        tile_pack(call, t, &seq, scratch->buffer);
    }
    blocked_sum(call, &seq, head_k, scratch, tiles, n);
    for (int64_t i = 0; i < n; i++)
        if (tile_end(call, &tiles[i], &seq, scratch->buffer)) {
            const attention_call shrunk = shrunk_call(call);
            blocked_sum(&shrunk, &seq, head_k, scratch, &tiles[i], 1);
            (void)tile_end(&shrunk, &tiles[i], &seq, scratch->buffer);
        }
}

static void blocked_worker(void *arg, int32_t worker)
{
    const blocked_call *f = arg;
    const kiln_attention_problem *p = f->call.p;
    const int64_t heads = p->batch * p->heads_k, count = heads * f->tasks_a_head;
    float *memory = f->memory + worker * f->worker_floats;
    attention_scratch scratch;
    int64_t used = scratch_place(&f->call, memory, &scratch);
    tile *tiles = (tile *)(void *)take(memory, &used, round_up((int64_t)sizeof(tile) * f->tiles, 64) / 4);
    float *states = memory + used;
    for (int64_t t; (t = kiln_cpu_next(f->queue)) < count;)
        blocked_task(f, t % heads / p->heads_k, t % heads % p->heads_k, f->tasks_a_head - 1 - t / heads, &scratch,
                     tiles, states);
}

/* Runs with at most `tiles` tiles a task; the workspace has blocked_bytes(call, at least that many, workers). */
static void blocked_run(const kiln_cpu *cpu, const attention_call *call, int64_t tiles, void *workspace,
                        int32_t workers)
{
    const kiln_attention_problem *p = call->p;
    blocked_call f = {.call = *call, .group = p->heads / p->heads_k, .tiles = tiles, .queue = workspace};
    const int64_t rows = longest_seqlen_q(p) * f.group, heads = p->batch * p->heads_k;
    if (rows <= BLOCKED_NARROW_TILES * VF_LANES || blocked_spreads(call, rows, heads, workers)) {
        f.call = blocked_narrowed(call);
        f.tiles = heads < workers ? 1 : BLOCKED_NARROW_TILES;
    }
    f.tasks_a_head = (rows + f.tiles * f.call.nq - 1) / (f.tiles * f.call.nq);
    f.worker_floats = blocked_worker_floats(&f.call, f.tiles);
    f.memory = (float *)(void *)((char *)workspace + sizeof(kiln_cpu_queue));
    f.queue->next = 0;
    kiln_cpu_parallel(cpu, workers, blocked_worker, &f);
}

#endif
