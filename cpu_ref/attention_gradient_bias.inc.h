/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_gradient_bias.inc.h: dbias = dS, summed over the axes that bias broadcasts.
 *
 * A pass of its own, because the main one meets the pairs of one element of dbias in several tasks. Task = one block of elements of
 * dbias (a tile of queries by a block of keys); it recomputes P and dS for everything that reads the element and sums in double,
 * in the order batch, head, query, key, so no memory but a block's sum is needed and bits depend on the problem alone.
 * An element that no sequence covers is not written; one that is only hidden is 0. FLOPs: 2/5 of the main pass.
 */
#ifndef KILN_CPU_REF_ATTENTION_GRADIENT_BIAS_INC_H
#define KILN_CPU_REF_ATTENTION_GRADIENT_BIAS_INC_H

#include "attention_gradient.inc.h"

/* Half-open range of one axis that shares an element: all of it where bias broadcasts. */
typedef struct bias_axis {
    int64_t begin, end;
} bias_axis;

static bias_axis bias_axis_of(const kiln_view *bias, int axis, int64_t index, int64_t size)
{
    return bias->size[axis] == 1 ? (bias_axis){0, size} : (bias_axis){index, index + 1};
}

static int64_t bias_blocks(const kiln_view *bias, int axis, int64_t size)
{
    return bias->size[axis] == 1 ? 1 : size;
}

/* Adds dS of one tile and the block of keys at `first` to the sum. */
static void bias_step(const gradient_call *g, const kiln_sequence *seq, int64_t head_k, int64_t first,
                      const gradient_scratch *scratch)
{
    const kiln_attention_problem *p = g->call.p;
    const tile *t = &scratch->g->t;
    const block_range range = tile_block_range(t, first);
    const int nq = g->call.nq;
    if (range.begin >= range.end)
        return;
    const int64_t from = first + range.begin, rows = range.end - range.begin;
    const key_rows k = load_keys(p, &p->k, p->d, &p->k2, p->d2, seq, head_k, from, 0, rows, scratch->k);
    const key_rows v = load_keys(p, &p->v, p->d_v, NULL, 0, seq, head_k, from, 0, rows, scratch->v);
    gradient_weights(g, seq, k.data, k.stride, v.data, v.stride, from, rows, scratch, false);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t lane = 0; lane < t->lanes; lane++)
            scratch->sum[(range.begin + r) * nq + lane] += scratch->dp[r * nq + lane];
}

/* Writes the block of dbias at (batch, head, query, key), summing lanes and rows first where these axes broadcast. */
static void bias_store(const gradient_call *g, bias_axis batch, int64_t head, int64_t query, int64_t key,
                       const gradient_scratch *scratch)
{
    const kiln_attention_problem *p = g->call.p;
    const kiln_view *dbias = &g->b->dbias;
    const bool one_query = p->bias.size[2] == 1, one_key = p->bias.size[3] == 1;
    const int64_t nq = g->call.nq, lanes = one_query ? 1 : nq;
    for (int64_t lane = 0; lane < lanes; lane++) {
        int64_t end = 0; /* keys of the sequences that have this query */
        for (int64_t b = batch.begin; b < batch.end; b++) {
            kiln_sequence seq = kiln_sequence_of(p, b);
            if (seq.seqlen_q > (one_query ? 0 : query + lane) && seq.seqlen_k > end)
                end = seq.seqlen_k;
        }
        int64_t count = end - key > KEY_BLOCK ? KEY_BLOCK : end - key;
        if (count <= 0)
            continue;
        double total = 0;
        for (int64_t r = 0; r < (one_key ? KEY_BLOCK : count); r++) {
            double x = 0;
            for (int64_t i = lane; i < (one_query ? nq : lane + 1); i++)
                x += scratch->sum[r * nq + i];
            total += x;
            scratch->buffer[r] = (float)(one_key ? total : x);
        }
        if (one_key) {
            scratch->buffer[0] = (float)total;
            count = 1;
        }
        char *row = view_row(dbias, batch.begin, head, query + lane);
        store_row(row + key * dbias->stride[3] * kiln_type_size(dbias->type), dbias->type, dbias->stride[3], count,
                  scratch->buffer);
    }
}

/* Everything that reads one block of bias. */
static void bias_task(const gradient_call *g, bias_axis batch, bias_axis head, int64_t tile_index, int64_t block_index,
                      const gradient_scratch *scratch)
{
    const kiln_attention_problem *p = g->call.p;
    const int64_t nq = g->call.nq;
    memset(scratch->sum, 0, sizeof(double) * (size_t)(KEY_BLOCK * nq));
    for (int64_t b = batch.begin; b < batch.end; b++) {
        const kiln_sequence seq = kiln_sequence_of(p, b);
        const bias_axis tiles = bias_axis_of(&p->bias, 2, tile_index, (seq.seqlen_q + nq - 1) / nq);
        const bias_axis blocks = bias_axis_of(&p->bias, 3, block_index, (seq.seqlen_k + KEY_BLOCK - 1) / KEY_BLOCK);
        for (int64_t h = head.begin; h < head.end; h++)
            for (int64_t i = tiles.begin; i < tiles.end && i * nq < seq.seqlen_q; i++) {
                gradient_lanes(g, scratch->g, &seq, b, h, 1, i * nq);
                gradient_load(g, scratch->g, &seq);
                for (int64_t j = blocks.begin; j < blocks.end; j++)
                    bias_step(g, &seq, h / g->group, j * KEY_BLOCK, scratch);
            }
    }
    bias_store(g, batch, head.begin, tile_index * nq, block_index * KEY_BLOCK, scratch);
}

static void bias_worker(void *arg, int32_t worker)
{
    const gradient_call *g = arg;
    const kiln_attention_problem *p = g->call.p;
    const kiln_view *bias = &p->bias;
    const int64_t nq = g->call.nq;
    const int64_t heads = bias_blocks(bias, 1, p->heads), tiles = bias_blocks(bias, 2, (p->seqlen_q + nq - 1) / nq);
    const int64_t blocks = bias_blocks(bias, 3, (p->seqlen_k + KEY_BLOCK - 1) / KEY_BLOCK);
    const int64_t count = bias_blocks(bias, 0, p->batch) * heads * tiles * blocks;
    gradient_scratch scratch;
    gradient_scratch_place(g, g->memory + worker * g->worker_floats, &scratch);
    for (int64_t t; (t = kiln_cpu_next(g->queue)) < count;) {
        const int64_t i = t / blocks;
        bias_task(g, bias_axis_of(bias, 0, i / tiles / heads, p->batch),
                  bias_axis_of(bias, 1, i / tiles % heads, p->heads), i % tiles, t % blocks, &scratch);
    }
}

#endif
