/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_matrix.inc.h: attention with S and P in memory, for `naive` and `tiled`, which differ in how two products
 * are formed.
 *
 * One query head at a time, three parallel loops over its tiles of queries: scores, softmax in place, P·V. The matrix
 * is stored tile by tile, key by key, lane by lane: S[tile][key][lane]. Keys that no query of a tile may see are left
 * out. Workspace: seqlen_q (rounded up to a tile) · seqlen_k floats and O(workers · d).
 */
#ifndef KILN_CPU_REF_ATTENTION_MATRIX_INC_H
#define KILN_CPU_REF_ATTENTION_MATRIX_INC_H

#include "attention_forward.inc.h"

/* The two products, for rows [range.begin, range.end) of a block. `weights` is row range.begin of the matrix. */
typedef struct matrix_rung {
    void (*pack)(const attention_call *call, tile *t, const kiln_sequence *seq, const attention_scratch *scratch);
    void (*scores)(const attention_call *call, const tile *t, const float *k, int64_t ldk, int64_t rows, float *s);
    void (*values)(const attention_call *call, tile *t, const float *v, int64_t ldv, int64_t rows, const float *weights,
                   bool hidden, const attention_scratch *scratch);
} matrix_rung;

typedef struct matrix_call {
    attention_call call;
    const matrix_rung *rung;
    kiln_sequence seq;
    int64_t batch, head; /* being worked on */
    int64_t tiles;
    int phase;
    float *matrix, *state; /* [tiles][seqlen_k][nq], [tiles][2][nq]: m and l */
    float *memory;
    int64_t worker_floats;
    kiln_cpu_queue *queue;
} matrix_call;

static int64_t matrix_worker_floats(const attention_call *call)
{
    attention_scratch scratch;
    return scratch_place(call, NULL, &scratch) + round_up(tile_state_floats(call), 16) +
           round_up((int64_t)sizeof(tile), 64) / 4;
}

/* Raw scores, then what the contract does to a score. */
static void matrix_scores(const matrix_call *f, tile *t, float *matrix, const attention_scratch *scratch)
{
    const attention_call *call = &f->call;
    const kiln_attention_problem *p = call->p;
    const int64_t head_k = f->head / (p->heads / p->heads_k);
    vf max[TILE_VECTORS];
    f->rung->pack(call, t, &f->seq, scratch);
    for (int64_t first = t->begin_any / KEY_BLOCK * KEY_BLOCK; first < t->end_any; first += KEY_BLOCK) {
        block_range range = tile_block_range(t, first);
        key_rows k =
            load_keys(p, &p->k, p->d, &p->k2, p->d2, &f->seq, head_k, first, range.begin, range.end, scratch->k);
        const int64_t key = first + range.begin, rows = range.end - range.begin;
        float *s = matrix + key * call->nq;
        f->rung->scores(call, t, k.data + range.begin * k.stride, k.stride, rows, s);
        if (!scores_are_plain(call, t, key, key + rows))
            (void)modify_scores(call, t, &f->seq, key, rows, s, &scratch->scores, max);
    }
}

/* Maximum, then weights and their sum, then dropout. */
static void matrix_softmax(const matrix_call *f, tile *t, float *matrix)
{
    const attention_call *call = &f->call;
    const int nq = call->nq;
    const int64_t begin = t->begin_any / 2 * 2; /* where tile_block_range() begins */
    for (int j = 0; j < nq; j += VF_LANES) {
        vf top = vf_set1(-INFINITY), l = vf_zero();
        for (int64_t key = begin; key < t->end_any; key++)
            top = vf_max(top, vf_load(matrix + key * nq + j));
        for (int64_t first = begin / KEY_BLOCK * KEY_BLOCK; first < t->end_any; first += KEY_BLOCK) {
            block_range range = tile_block_range(t, first);
            vf sum[2] = {vf_zero(), vf_zero()};
            exp_rows(call->nv, matrix + (first + range.begin) * nq + j, range.end - range.begin, score_shift(top), sum);
            l = vf_add(l, vf_add(sum[0], sum[1]));
        }
        vf_store(t->m + j, top);
        vf_store(t->l + j, l);
    }
    if (call->p->dropout_threshold < 256)
        drop_weights(call, t, &f->seq, begin, t->end_any - begin, matrix + begin * nq);
}

static void matrix_sum(const matrix_call *f, const attention_call *call, tile *t, const float *matrix,
                       const attention_scratch *scratch)
{
    const int64_t head_k = f->head / (call->p->heads / call->p->heads_k);
    for (int64_t first = t->begin_any / KEY_BLOCK * KEY_BLOCK; first < t->end_any; first += KEY_BLOCK) {
        block_range range = tile_block_range(t, first);
        key_rows v = load_values(call, &f->seq, head_k, first, range.begin, range.end, scratch->v);
        const int64_t key = first + range.begin, rows = range.end - range.begin;
        bool hidden = find_hidden(call, t, &f->seq, key, rows, &scratch->scores);
        f->rung->values(call, t, v.data + range.begin * v.stride, v.stride, rows, matrix + key * call->nq, hidden,
                        scratch);
    }
}

static void matrix_values(const matrix_call *f, tile *t, const float *matrix, const attention_scratch *scratch)
{
    matrix_sum(f, &f->call, t, matrix, scratch);
    if (tile_end(&f->call, t, &f->seq, scratch->buffer)) {
        const attention_call shrunk = shrunk_call(&f->call);
        memset(t->o, 0, sizeof(float) * (size_t)(shrunk.p->d_v * shrunk.nq));
        matrix_sum(f, &shrunk, t, matrix, scratch);
        (void)tile_end(&shrunk, t, &f->seq, scratch->buffer);
    }
}

static void matrix_worker(void *arg, int32_t worker)
{
    const matrix_call *f = arg;
    const attention_call *call = &f->call;
    const int nq = call->nq;
    float *memory = f->memory + worker * f->worker_floats;
    attention_scratch scratch;
    int64_t used = scratch_place(call, memory, &scratch);
    tile *t = (tile *)(void *)take(memory, &used, round_up((int64_t)sizeof(tile), 64) / 4);
    tile_place(call, t, memory + used);
    for (int64_t n; (n = kiln_cpu_next(f->queue)) < f->tiles;) {
        float *matrix = f->matrix + n * f->seq.seqlen_k * nq, *state = f->state + n * 2 * nq;
        tile_lanes(call, t, &f->seq, f->batch, f->head, 1, n * nq);
        tile_clear(call, t);
        if (t->end_any == 0) /* no key is visible: begin_any is no key */
            t->begin_any = 0;
        switch (f->phase) {
        case 0: matrix_scores(f, t, matrix, &scratch); break;
        case 1:
            matrix_softmax(f, t, matrix);
            memcpy(state, t->m, sizeof(float) * (size_t)nq);
            memcpy(state + nq, t->l, sizeof(float) * (size_t)nq);
            break;
        default:
            memcpy(t->m, state, sizeof(float) * (size_t)nq);
            memcpy(t->l, state + nq, sizeof(float) * (size_t)nq);
            matrix_values(f, t, matrix, &scratch);
        }
    }
}

/* Lays out the workspace and returns its bytes. `f->call` is set. */
static size_t matrix_place(matrix_call *f, char *workspace, int32_t workers)
{
    const attention_call *call = &f->call;
    const int64_t tiles = (call->p->seqlen_q + call->nq - 1) / call->nq;
    float *memory = workspace ? (float *)(void *)(workspace + sizeof(kiln_cpu_queue)) : NULL;
    int64_t used = 0;
    f->queue = (kiln_cpu_queue *)(void *)workspace;
    f->worker_floats = matrix_worker_floats(call);
    f->memory = take(memory, &used, workers * f->worker_floats);
    f->state = take(memory, &used, tiles * 2 * call->nq);
    f->matrix = take(memory, &used, tiles * call->nq * call->p->seqlen_k);
    return sizeof(kiln_cpu_queue) + sizeof(float) * (size_t)used;
}

static bool matrix_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->attention;
    const int64_t limit = (int64_t)1 << 58; /* floats */
    if (!attention_supports(cpu, problem, why, cap))
        return false;
    if (p->seqlen_k > 0 && p->seqlen_q > limit / p->seqlen_k - TILE_LANES)
        return snprintf(
                   why, cap,
                   "seqlen_q is %lld and seqlen_k %lld; an algorithm that keeps all scores allows a product of 2^58",
                   (long long)p->seqlen_q, (long long)p->seqlen_k),
               false;
    return true;
}

static void matrix_run(const kiln_cpu *cpu, matrix_call *f, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = f->call.p;
    (void)matrix_place(f, workspace, workers);
    for (f->batch = 0; f->batch < p->batch; f->batch++) {
        f->seq = kiln_sequence_of(p, f->batch);
        f->tiles = (f->seq.seqlen_q + f->call.nq - 1) / f->call.nq;
        for (f->head = 0; f->head < p->heads; f->head++)
            for (f->phase = 0; f->phase < 3; f->phase++) {
                f->queue->next = 0;
                kiln_cpu_parallel(cpu, f->tiles < workers ? (int32_t)f->tiles : workers, matrix_worker, f);
            }
    }
}

#endif
