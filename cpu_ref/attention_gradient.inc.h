/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_gradient.inc.h: what both passes of attention_backward share: the call, the scratch of a worker, a tile of queries
 * with what the backward pass knows of them, and "P and dS of one tile against one block of keys".
 */
#ifndef KILN_CPU_REF_ATTENTION_GRADIENT_INC_H
#define KILN_CPU_REF_ATTENTION_GRADIENT_INC_H

#include "attention_forward.inc.h"
#include "attention_gradient_tile.inc.h"

typedef struct gradient_call {
    attention_call call;
    const kiln_attention_backward_problem *b;
    int64_t group;       /* query heads of one KV head */
    int64_t splits;      /* most pieces of a sequence's keys */
    int64_t split_slots; /* most that any sequence of this call has */
    int64_t chunk;       /* keys that meet all queries before the next ones */
    int64_t rows;        /* of q in all heads */
    int64_t stride_q;    /* of rows as long as a row of q and k, padded */
    int64_t stride_v;    /* the same for o and v */
    int64_t worker_floats;
    float *delta;   /* [rows]: D - dlse */
    float *partial; /* [split_slots][rows][stride_q]: dq / scale of one split */
    float *memory;  /* [workers][worker_floats] */
    kiln_cpu_queue *queue;
} gradient_call;

/* A tile of queries: t.q packed q·scale, t.o packed do, t.m lse, t.l delta. */
typedef struct gradient_tile {
    tile t;
    float *q, *dout; /* natural rows: [nq][stride_q], [nq][stride_v] */
    float *dq;       /* [stride_q][nq] */
} gradient_tile;

/* Scratch of one worker. */
typedef struct gradient_scratch {
    gradient_tile *g;
    float *k, *v;   /* [chunk][copied_stride]: keys that cannot be used in place */
    float *dk, *dv; /* [chunk][stride_q], [chunk][stride_v] */
    float *s, *dp;  /* [KEY_BLOCK][nq]: scores and dP, then P and dS */
    float *keep;    /* [KEY_BLOCK][nq], used if there is dropout */
    float *buffer;  /* one row of anything */
    double *sum;    /* [KEY_BLOCK][nq], used if dbias is wanted */
    score_scratch scores;
} gradient_scratch;

static int64_t gradient_scratch_place(const gradient_call *g, float *memory, gradient_scratch *scratch)
{
    const attention_call *call = &g->call;
    const kiln_attention_problem *p = call->p;
    const int64_t nq = call->nq, block = KEY_BLOCK * nq;
    int64_t used = 0, longest = g->stride_q > g->stride_v ? g->stride_q : g->stride_v;
    scratch->g = (gradient_tile *)(void *)take(memory, &used, (int64_t)sizeof(gradient_tile) / 4 + 1);
    float *state = take(memory, &used, tile_state_floats(call));
    float *q = take(memory, &used, nq * g->stride_q), *dout = take(memory, &used, nq * g->stride_v);
    float *dq = take(memory, &used, nq * g->stride_q);
    scratch->k = take(memory, &used, g->chunk * copied_stride(call->columns));
    scratch->v = take(memory, &used, g->chunk * copied_stride(p->d_v));
    scratch->dk = take(memory, &used, g->chunk * g->stride_q);
    scratch->dv = take(memory, &used, g->chunk * g->stride_v);
    scratch->s = take(memory, &used, block);
    scratch->dp = take(memory, &used, block);
    scratch->keep = take(memory, &used, p->dropout_threshold < 256 ? block : 0);
    scratch->buffer = take(memory, &used, longest > KEY_BLOCK ? longest : KEY_BLOCK);
    scratch->sum = (double *)(void *)take(memory, &used, kiln_view_present(&g->b->dbias) ? 2 * block : 0);
    scratch->scores.bias = take(memory, &used, kiln_view_present(&p->bias) ? block : 0);
    scratch->scores.distance = take(memory, &used, kiln_view_present(&p->alibi) ? block : 0);
    scratch->scores.softcap_slope = p->softcap > 0 ? take(memory, &used, block) : NULL;
    scratch->scores.visible = (uint32_t *)(void *)take(memory, &used, (int64_t)KEY_BLOCK * call->nv);
    if (memory) { /* the padding of rows is never written again */
        tile_place(call, &scratch->g->t, state);
        scratch->g->q = q;
        scratch->g->dout = dout;
        scratch->g->dq = dq;
        memset(q, 0, sizeof(float) * (size_t)(nq * g->stride_q));
        memset(dout, 0, sizeof(float) * (size_t)(nq * g->stride_v));
        memset(dq, 0, sizeof(float) * (size_t)(nq * g->stride_q));
    }
    return used;
}

/* Number of a row of q among all heads. */
static int64_t gradient_row(const gradient_call *g, const kiln_sequence *seq, int64_t head, int64_t i)
{
    return (seq->q_batch * g->call.p->heads + head) * g->call.p->total_q + seq->q_row + i;
}

static float row_lse(const kiln_attention_problem *p, const kiln_sequence *seq, int64_t head, int64_t i)
{
    return *(const float *)(const void *)view_row(&p->lse, seq->q_batch, head, seq->q_row + i);
}

/* A row with lse = -inf has no weight anywhere: it sees nothing. */
static void hide_empty_rows(tile *t, int nq)
{
    t->begin_any = INT64_MAX;
    t->end_any = 0;
    for (int lane = 0; lane < nq; lane++) {
        if (t->m[lane] == -INFINITY)
            t->begin[lane] = t->end[lane] = t->end_all = 0;
        if (t->begin[lane] < t->end[lane]) {
            t->begin_any = t->begin[lane] < t->begin_any ? t->begin[lane] : t->begin_any;
            t->end_any = t->end[lane] > t->end_any ? t->end[lane] : t->end_any;
        }
    }
}

/* Says what the lanes are (see tile_lanes) and which keys they see; cheap. */
static void gradient_lanes(const gradient_call *g, gradient_tile *gt, const kiln_sequence *seq, int64_t batch,
                           int64_t first_head, int64_t num_heads, int64_t row)
{
    tile *t = &gt->t;
    tile_lanes(&g->call, t, seq, batch, first_head, num_heads, row);
    for (int lane = 0; lane < g->call.nq; lane++) {
        t->m[lane] = row_lse(g->call.p, seq, t->head[lane], t->query[lane]);
        t->l[lane] = g->delta[gradient_row(g, seq, t->head[lane], t->query[lane])];
    }
    hide_empty_rows(t, g->call.nq);
}

/* Loads q and do of the lanes, natural and packed. */
static void gradient_load(const gradient_call *g, gradient_tile *gt, const kiln_sequence *seq)
{
    const attention_call *call = &g->call;
    const kiln_attention_problem *p = call->p;
    const kiln_view *dout = &g->b->dout;
    tile *t = &gt->t;
    for (int64_t lane = 0; lane < t->lanes; lane++) {
        const int64_t head = t->head[lane], row = seq->q_row + t->query[lane];
        float *q = gt->q + lane * g->stride_q;
        load_row(view_row(&p->q, seq->q_batch, head, row), p->q.type, p->q.stride[3], p->d, q);
        if (p->d2 > 0)
            load_row(view_row(&p->q2, seq->q_batch, head, row), p->q2.type, p->q2.stride[3], p->d2, q + p->d);
        load_row(view_row(dout, seq->q_batch, head, row), dout->type, dout->stride[3], p->d_v,
                 gt->dout + lane * g->stride_v);
    }
    pack_rows(gt->q, g->stride_q, call->columns, call->nq, (float)p->softmax_scale, t->q);
    pack_rows(gt->dout, g->stride_v, p->d_v, call->nq, 1, t->o);
}

/*
 * P (times dropout) in scratch->s and dS in scratch->dp, for rows [0, rows) of k and v, of which row 0 is key `first`. Returns
 * which pairs are visible, NULL = all. `score_gradient`: dS is wanted for the raw score, before the softcap, and not for the
 * score that bias is added to.
 */
static const uint32_t *gradient_weights(const gradient_call *g, const kiln_sequence *seq, const float *k, int64_t ldk,
                                        const float *v, int64_t ldv, int64_t first, int64_t rows,
                                        const gradient_scratch *scratch, bool score_gradient)
{
    const attention_call *call = &g->call;
    const tile *t = &scratch->g->t;
    const bool drop = call->p->dropout_threshold < 256;
    dot_rows(call->nv, k, ldk, t->q, scratch->s, rows, call->columns);
    dot_rows(call->nv, v, ldv, t->o, scratch->dp, rows, call->p->d_v);
    if (!drop && scores_are_plain(call, t, first, first + rows)) {
        weight_rows_plain(call->nv, scratch->s, scratch->dp, rows, t->m, t->l);
        return NULL;
    }
    vf max[TILE_VECTORS]; /* not needed here */
    const bool hidden = modify_scores(call, t, seq, first, rows, scratch->s, &scratch->scores, max);
    const uint32_t *visible = hidden ? scratch->scores.visible : NULL;
    if (drop) {
        const float factor = 256.0f / (float)call->p->dropout_threshold;
        for (int64_t i = 0; i < rows * call->nq; i++)
            scratch->keep[i] = factor;
        drop_weights(call, t, seq, first, rows, scratch->keep);
    }
    const weight_extras extras = {drop ? scratch->keep : NULL, score_gradient ? scratch->scores.softcap_slope : NULL,
                                  visible};
    weight_rows(call->nv, scratch->s, scratch->dp, rows, t->m, t->l, &extras);
    return visible;
}

#endif
