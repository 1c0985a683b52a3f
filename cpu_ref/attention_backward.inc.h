/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward.inc.h: gradients of attention by recomputing P from softmax_lse (Dao 2023, FlashAttention-2).
 *
 * Contract: everything that kiln.h says about attention_backward, but cache_batch_idx (two sequences may name one entry, whose
 * gradient would then have two owners). Always deterministic and independent of workers: no atomics, every sum in one order.
 *
 * Passes: (1) delta = do·o - dlse per row; (2) the main one; (3) dq from its partial sums; (4) dsinks, dbias if wanted.
 * Task of the main pass = (sequence, KV head, one split of the keys). It owns dk and dv of its keys and sums the whole group of query
 * heads, whose rows lie side by side in the lanes. Chunks of keys stay in the second-level cache with their dk and dv while
 * all tiles of queries pass. What a split gives to dq is added to a partial sum of its own; pass 3 adds the splits a row sees.
 * Splits follow from batch, heads_k and the sequence's own seqlen_k (BATCH_INVARIANT: not from batch), never from workers.
 *
 * FLOPs: 10·N²·d a head, causal half of it. Traffic: k, v, dk, dv once; q, do and the partial sum of dq once a chunk.
 * Workspace, linear in N: rows·(1 + slots·stride_q) floats, rows = heads·(batch·seqlen_q or total_q), stride_q = d + d2 rounded
 * up to 16, slots = min(ceil(64 / (batch·heads_k)), 16, ceil(seqlen_k / 192), max(6, ceil(seqlen_k / 384))), 64 / heads_k under
 * BATCH_INVARIANT; and about 1 MiB a worker at d = 128.
 */
#include "attention_gradient_bias.inc.h"
#include "attention_gradient_rows.inc.h"

enum {
    SPLIT_TASKS = 64,           /* tasks wanted, if the keys suffice */
    SPLIT_MOST = 16,            /* partial sums of dq */
    SPLIT_UNIT = 2 * KEY_BLOCK, /* splits are multiples of it */
    SPLIT_LONG = 1024,          /* with so many keys or more, of twice that */
    CHUNK_COLUMNS = 128,        /* d + d2 + d_v up to which a chunk has 8 blocks; 4 up to 4 times as many, else 2 */
};

/* Keys of one split of a sequence. */
static int64_t split_keys(const gradient_call *g, int64_t seqlen_k)
{
    return round_up((seqlen_k + g->splits - 1) / g->splits, seqlen_k < SPLIT_LONG ? SPLIT_UNIT : 2 * SPLIT_UNIT);
}

/* Most splits of any sequence with up to that many keys, whatever g->splits is. */
static int64_t most_splits(int64_t seqlen_k)
{
    const int64_t few = seqlen_k < SPLIT_LONG ? seqlen_k : SPLIT_LONG - 1, unit = 2 * SPLIT_UNIT;
    const int64_t of_short = (few + SPLIT_UNIT - 1) / SPLIT_UNIT, of_long = (seqlen_k + unit - 1) / unit;
    return of_short > of_long ? of_short : of_long;
}

/* Metadata only, unless `run`. */
static gradient_call gradient_call_of(const kiln_attention_backward_problem *b, bool run)
{
    const kiln_attention_problem *p = &b->forward;
    const bool invariant = p->flags & KILN_FLAG_BATCH_INVARIANT;
    gradient_call g = {.b = b, .group = p->heads / p->heads_k};
    g.call = call_of(p, g.group, run);
    if (invariant) { /* dk and dv are summed tile by tile, so a tile must not depend on the longest batch mate */
        g.call.nv = TILE_VECTORS;
        g.call.nq = g.call.nv * VF_LANES;
    }
    const int64_t heads = p->heads_k * (invariant || p->batch == 0 ? 1 : p->batch);
    const int64_t pieces = most_splits(p->seqlen_k);
    g.splits = (SPLIT_TASKS + heads - 1) / heads;
    g.splits = g.splits > SPLIT_MOST ? SPLIT_MOST : g.splits;
    g.split_slots = pieces < g.splits ? pieces : g.splits;
    const int64_t width = g.call.columns + p->d_v;
    g.chunk = (width <= CHUNK_COLUMNS ? 8 : width <= 4 * CHUNK_COLUMNS ? 4 : 2) * KEY_BLOCK;
    g.rows = p->heads * p->total_q * (kiln_view_present(&p->cu_seqlens_q) ? 1 : p->batch);
    g.stride_q = round_up(g.call.columns, 16);
    g.stride_v = round_up(p->d_v, 16);
    gradient_scratch scratch;
    g.worker_floats = gradient_scratch_place(&g, NULL, &scratch);
    return g;
}

/* dq = scale · the partial sums of the splits that the row sees, in order. */
static void dq_row(const gradient_call *g, const kiln_sequence *seq, int64_t head, int64_t i)
{
    const kiln_attention_problem *p = g->call.p;
    const bool add = p->flags & KILN_FLAG_ACCUMULATE_DQ;
    float sum[ROW_MOST];
    memset(sum, 0, sizeof(float) * (size_t)g->stride_q);
    const kiln_key_range seen = kiln_visible_keys(p, seq, i);
    if (seen.begin < seen.end && row_lse(p, seq, head, i) != -INFINITY) {
        const int64_t keys = split_keys(g, seq->seqlen_k);
        for (int64_t s = seen.begin / keys; s <= (seen.end - 1) / keys; s++) {
            const float *part = g->partial + (s * g->rows + gradient_row(g, seq, head, i)) * g->stride_q;
            for (int64_t c = 0; c < g->stride_q; c += VF_LANES)
                vf_store(sum + c, vf_add(vf_load(sum + c), vf_load(part + c)));
        }
    }
    const float scale = (float)p->softmax_scale;
    finish_row(&g->b->dq, seq->q_batch, head, seq->q_row + i, scale, add, sum, p->d);
    if (p->d2 > 0)
        finish_row(&g->b->dq2, seq->q_batch, head, seq->q_row + i, scale, add, sum + p->d, p->d2);
}

/* ------------------------------------------------------------------------------------------------ main pass */

/* Some rows of a chunk of keys with their gradients, against the tile. */
typedef struct backward_block {
    const float *k, *v;
    int64_t ldk, ldv;
    float *dk, *dv;
    int64_t first, rows; /* key of row 0; how many */
} backward_block;

static void backward_step(const gradient_call *g, const kiln_sequence *seq, const backward_block *x,
                          const gradient_scratch *scratch)
{
    const attention_call *call = &g->call;
    const gradient_tile *gt = scratch->g;
    const int64_t lanes = gt->t.lanes, d_v = call->p->d_v, nq = call->nq;
    const uint32_t *visible = gradient_weights(g, seq, x->k, x->ldk, x->v, x->ldv, x->first, x->rows, scratch, true);
    join_rows(scratch->s, nq, gt->dout, g->stride_v, x->dv, g->stride_v, x->rows, lanes, d_v, call->nv, visible);
    join_rows(scratch->dp, nq, gt->q, g->stride_q, x->dk, g->stride_q, x->rows, lanes, call->columns, call->nv,
              visible);
    add_rows(call->nv, x->k, x->ldk, scratch->dp, gt->dq, x->rows, call->columns, visible);
}

/* The tile in scratch->g against the keys [begin, end) of a chunk. */
static void backward_tile(const gradient_call *g, const kiln_sequence *seq, key_rows k, key_rows v, int64_t chunk,
                          int64_t begin, int64_t end, const gradient_scratch *scratch)
{
    for (int64_t first = chunk; first < end; first += KEY_BLOCK) {
        block_range range = tile_block_range(&scratch->g->t, first);
        range.begin = first + range.begin < begin ? begin - first : range.begin;
        range.end = first + range.end > end ? end - first : range.end;
        if (range.begin >= range.end)
            continue;
        const int64_t r = first + range.begin - chunk;
        const backward_block x = {
            k.data + r * k.stride,         v.data + r * v.stride,         k.stride,  v.stride,
            scratch->dk + r * g->stride_q, scratch->dv + r * g->stride_v, chunk + r, range.end - range.begin};
        backward_step(g, seq, &x, scratch);
    }
}

/* Adds the tile's dq to the partial sum of a split, or starts it. */
static void backward_store_dq(const gradient_call *g, const kiln_sequence *seq, int64_t split, bool add,
                              const gradient_scratch *scratch)
{
    const tile *t = &scratch->g->t;
    float *rows[TILE_LANES];
    for (int64_t lane = 0; lane < t->lanes; lane++)
        rows[lane] = g->partial + (split * g->rows + gradient_row(g, seq, t->head[lane], t->query[lane])) * g->stride_q;
    unpack_rows(scratch->g->dq, g->stride_q, g->call.nq, t->lanes, add, rows);
}

/* Scales and writes dk and dv of the keys [begin, end). */
static void backward_store_keys(const gradient_call *g, const kiln_sequence *seq, int64_t head_k, int64_t begin,
                                int64_t end, const gradient_scratch *scratch)
{
    const kiln_attention_problem *p = g->call.p;
    const bool add_dk = p->flags & KILN_FLAG_ACCUMULATE_DK, add_dv = p->flags & KILN_FLAG_ACCUMULATE_DV;
    const float scale = (float)p->softmax_scale;
    for (int64_t r = 0; r < end - begin; r++) {
        const int64_t row = seq->k_row + begin + r;
        float *dk = scratch->dk + r * g->stride_q;
        finish_row(&g->b->dk, seq->k_batch, head_k, row, scale, add_dk, dk, p->d);
        if (p->d2 > 0)
            finish_row(&g->b->dk2, seq->k_batch, head_k, row, scale, add_dk, dk + p->d, p->d2);
        finish_row(&g->b->dv, seq->k_batch, head_k, row, 1, add_dv, scratch->dv + r * g->stride_v, p->d_v);
    }
}

static void backward_task(const gradient_call *g, int64_t b, int64_t head_k, int64_t split,
                          const gradient_scratch *scratch)
{
    const attention_call *call = &g->call;
    const kiln_attention_problem *p = call->p;
    const kiln_sequence seq = kiln_sequence_of(p, b);
    const int64_t keys = split_keys(g, seq.seqlen_k), first = split * keys, rows = seq.seqlen_q * g->group;
    const int64_t last = first + keys < seq.seqlen_k ? first + keys : seq.seqlen_k;
    const tile *t = &scratch->g->t;
    for (int64_t begin = first; begin < last; begin += g->chunk) {
        const int64_t end = begin + g->chunk < last ? begin + g->chunk : last;
        const key_rows k = load_keys(p, &p->k, p->d, &p->k2, p->d2, &seq, head_k, begin, 0, end - begin, scratch->k);
        const key_rows v = load_keys(p, &p->v, p->d_v, NULL, 0, &seq, head_k, begin, 0, end - begin, scratch->v);
        memset(scratch->dk, 0, sizeof(float) * (size_t)((end - begin) * g->stride_q));
        memset(scratch->dv, 0, sizeof(float) * (size_t)((end - begin) * g->stride_v));
        for (int64_t row = 0; row < rows; row += call->nq) {
            gradient_lanes(g, scratch->g, &seq, b, head_k * g->group, g->group, row);
            if (t->begin_any >= end || t->end_any <= begin)
                continue;
            gradient_load(g, scratch->g, &seq);
            memset(scratch->g->dq, 0, sizeof(float) * (size_t)(call->columns * call->nq));
            backward_tile(g, &seq, k, v, begin, begin, end, scratch);
            /* The tile's first chunk of this split holds the first key that it sees in the split. */
            backward_store_dq(g, &seq, split, begin > first && begin > t->begin_any, scratch);
        }
        backward_store_keys(g, &seq, head_k, begin, end, scratch);
    }
}

/* Tasks with the first keys come first: under causal masks most queries see them. */
static void backward_worker(void *arg, int32_t worker)
{
    const gradient_call *g = arg;
    const kiln_attention_problem *p = g->call.p;
    const int64_t heads = p->batch * p->heads_k, count = heads * g->split_slots;
    gradient_scratch scratch;
    gradient_scratch_place(g, g->memory + worker * g->worker_floats, &scratch);
    for (int64_t t; (t = kiln_cpu_next(g->queue)) < count;)
        backward_task(g, t % heads / p->heads_k, t % heads % p->heads_k, t / heads, &scratch);
}

/* ------------------------------------------------------------------------------------------------ kernel */

static bool backward_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_backward_problem *b = &problem->backward;
    const kiln_problem forward = {.op = KILN_OP_ATTENTION_FORWARD, .attention = b->forward};
    if (kiln_view_present(&b->forward.cache_batch_idx))
        return snprintf(why, cap,
                        "forward->cache_batch_idx is given; two sequences may name one entry, whose dk and dv would "
                        "then have two owners: it must be NULL"),
               false;
    return attention_supports(cpu, &forward, why, cap);
}

/* Lays the workspace out and returns its size in floats. */
static int64_t backward_place(gradient_call *g, float *memory, int32_t workers)
{
    int64_t used = (int64_t)sizeof(kiln_cpu_queue) / 4;
    g->queue = (kiln_cpu_queue *)(void *)memory;
    g->delta = take(memory, &used, g->rows);
    g->partial = take(memory, &used, g->split_slots * g->rows * g->stride_q);
    g->memory = take(memory, &used, workers * g->worker_floats);
    return used;
}

static size_t backward_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    gradient_call g = gradient_call_of(&problem->backward, false);
    (void)cpu;
    return sizeof(float) * (size_t)backward_place(&g, NULL, workers);
}

static int32_t fewer(int32_t workers, int64_t tasks)
{
    return tasks < workers ? (int32_t)tasks : workers;
}

static void backward_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->backward.forward;
    gradient_call g = gradient_call_of(&problem->backward, true);
    backward_place(&g, workspace, workers);
    g.queue->next = 0;
    run_row_pass(cpu, workers, &g, p->d_v, delta_row);
    kiln_cpu_parallel(cpu, fewer(workers, p->batch * p->heads_k * g.split_slots), backward_worker, &g);
    run_row_pass(cpu, workers, &g, g.stride_q, dq_row);
    if (kiln_view_present(&problem->backward.dsinks))
        rows_parallel(cpu, rows_workers(g.rows, 16, workers), p->heads, dsink_task, &g);
    if (kiln_view_present(&problem->backward.dbias)) {
        g.queue->next = 0;
        kiln_cpu_parallel(cpu, workers, bias_worker, &g);
    }
}

/*
 * The bound knows one tile size for every sum, and sums of more than tile elements are that deep plus one for every further
 * tile. Keys: KEY_BLOCK, then blocks, chunks and splits, never more joins than blocks. Queries: nq lanes, then tiles; where
 * nq is small and the sequence long these are more than the tiles of KEY_BLOCK, and then the tile counts for them.
 */
static void backward_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    const gradient_call g = gradient_call_of(&problem->backward, false);
    const int64_t depth = g.call.nq + (g.call.p->seqlen_q * g.group + g.call.nq - 1) / g.call.nq;
    attention_numerics(problem, numerics);
    numerics->tile = depth > KEY_BLOCK ? depth : KEY_BLOCK;
}

static const kiln_cpu_kernel attention_backward = {
    .op = KILN_OP_ATTENTION_BACKWARD,
    .algorithm = "flash2",
    .name = KILN_CPU_NAME("attention_backward_flash2"),
    .supports = backward_supports,
    .workspace = backward_workspace,
    .run = backward_run,
    .numerics = backward_numerics,
};
