/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward_amx_odd.inc.h: pairs of which a row is odd (attention_backward_amx_pack.inc.h says what that is), in
 * fp32 with denormals, by the formulas of the general kernel and without any rounding to bf16. Rare, so written plainly; an
 * item without odd rows costs one test.
 *
 * What odd pairs add is summed apart from the tiles, item by item: sums of 32 terms, then joins. Only pairs that see each
 * other take part, so that nothing leaks.
 */
#ifndef KILN_CPU_REF_ATTENTION_BACKWARD_AMX_ODD_INC_H
#define KILN_CPU_REF_ATTENTION_BACKWARD_AMX_ODD_INC_H

#include "attention_backward_amx_pack.inc.h"
#include "attention_gradient_rows.inc.h"

/* What the kernel knows of a group of queries. Dead lanes (past the last row, lse = -inf, no key to see) see nothing. */
typedef struct amx_queries {
    _Alignas(64) float shift[AMX_GROUP]; /* -lse·log2 e; 0 in dead and odd lanes, as q, do and delta are */
    float delta[AMX_GROUP];
    int64_t begin[AMX_GROUP], end[AMX_GROUP]; /* keys that the lane sees */
    int64_t begin_any, end_any;               /* keys that at least one lane may see lie in here */
    int64_t begin_all, end_all;               /* and these all lanes see that are neither dead nor odd */
    int64_t head_k, row; /* of lane 0: row r is query r / group of head head_k·group + r % group */
    int64_t batch;
    uint32_t odd; /* lanes that are not dead and odd */
} amx_queries;

typedef struct amx_odd_item {
    const gradient_call *g;
    const kiln_sequence *seq;
    const amx_queries *queries;
    int64_t first; /* key of row 0 */
    uint32_t keys; /* odd ones; bit = row */
    float *rows;   /* scratch: AMX_GROUP rows of q, then of do, then of dq */
    /* Sums to add to, NULL = not wanted. */
    float *dk, *dv; /* of the unit's keys: [32][stride_q], [32][stride_v] */
    float *dq;      /* of the group's lanes: [32][stride_q] */
} amx_odd_item;

static int64_t amx_query_of(const gradient_call *g, const amx_queries *queries, int lane)
{
    return (queries->row + lane) / g->group;
}

static int64_t amx_head_of(const gradient_call *g, const amx_queries *queries, int lane)
{
    return queries->head_k * g->group + (queries->row + lane) % g->group;
}

/* Lanes whose pair with a key is odd and visible. */
static uint32_t amx_odd_lanes(const amx_odd_item *x, int r)
{
    uint32_t lanes = 0;
    for (int lane = 0; lane < AMX_GROUP; lane++)
        if (x->queries->begin[lane] <= x->first + r && x->first + r < x->queries->end[lane])
            lanes |= 1u << lane;
    return x->keys >> r & 1 ? lanes : lanes & x->queries->odd;
}

static float amx_odd_dot(const float *a, const float *b, float factor, int64_t columns)
{
    vf sum = vf_zero();
    for (int64_t c = 0; c < columns; c += VF_LANES)
        sum = vf_fma(vf_mul(vf_load(a + c), vf_set1(factor)), vf_load(b + c), sum);
    return vf_hsum(sum);
}

static void amx_odd_add(float *sum, float factor, const float *x, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += VF_LANES)
        vf_store(sum + c, vf_fma(vf_set1(factor), vf_load(x + c), vf_load(sum + c)));
}

static void amx_odd_load(const char *row, int64_t stride, int64_t columns, int64_t padded, float *out)
{
    load_row(row, KILN_BFLOAT16, stride, columns, out);
    for (int64_t c = columns; c < padded; c++)
        out[c] = 0;
}

/* The pairs of row r with `lanes`; dq: where the lanes' sums of this item lie. */
static void amx_odd_key(const amx_odd_item *x, int r, uint32_t lanes, const float *q, const float *dout, float *dq)
{
    const gradient_call *g = x->g;
    const kiln_attention_problem *p = g->call.p;
    const float scale = (float)p->softmax_scale;
    float k[AMX_ROW_COLUMNS], v[AMX_ROW_COLUMNS], dk[AMX_ROW_COLUMNS] = {0}, dv[AMX_ROW_COLUMNS] = {0};
    float s[AMX_GROUP] = {0}, dp[AMX_GROUP] = {0}, lse[AMX_GROUP] = {0}, delta[AMX_GROUP] = {0};
    amx_odd_load(key_row(p, &p->k, x->seq, x->queries->head_k, x->first + r), p->k.stride[3], p->d, g->stride_q, k);
    amx_odd_load(key_row(p, &p->v, x->seq, x->queries->head_k, x->first + r), p->v.stride[3], p->d_v, g->stride_v, v);
    for (int lane = 0; lane < AMX_GROUP; lane++) {
        if (!(lanes >> lane & 1))
            continue;
        const int64_t head = amx_head_of(g, x->queries, lane), i = amx_query_of(g, x->queries, lane);
        s[lane] = amx_odd_dot(q + lane * g->stride_q, k, scale, g->stride_q);
        dp[lane] = amx_odd_dot(dout + lane * g->stride_v, v, 1, g->stride_v);
        lse[lane] = row_lse(p, x->seq, head, i);
        delta[lane] = g->delta[gradient_row(g, x->seq, head, i)];
    }
    weight_rows_plain(AMX_GROUP / VF_LANES, s, dp, 1, lse, delta);
    for (int lane = 0; lane < AMX_GROUP; lane++) {
        if (!(lanes >> lane & 1))
            continue;
        amx_odd_add(dv, s[lane], dout + lane * g->stride_v, g->stride_v);
        amx_odd_add(dk, dp[lane], q + lane * g->stride_q, g->stride_q);
        amx_odd_add(dq + lane * g->stride_q, dp[lane], k, g->stride_q);
    }
    if (x->dk) {
        amx_odd_add(x->dk + r * g->stride_q, 1, dk, g->stride_q);
        amx_odd_add(x->dv + r * g->stride_v, 1, dv, g->stride_v);
    }
}

static int64_t amx_odd_rows_floats(const gradient_call *g)
{
    return AMX_GROUP * (2 * g->stride_q + g->stride_v);
}

/* Under amx_flush(false). */
static void amx_odd_pairs(const amx_odd_item *x)
{
    const gradient_call *g = x->g;
    const kiln_attention_problem *p = g->call.p;
    const kiln_view *dout = &g->b->dout;
    float *q = x->rows, *o = q + AMX_GROUP * g->stride_q, *dq = o + AMX_GROUP * g->stride_v;
    uint32_t lanes[AMX_UNIT_KEYS], any = 0;
    for (int r = 0; r < AMX_UNIT_KEYS; r++)
        any |= lanes[r] = amx_odd_lanes(x, r);
    if (any == 0)
        return;
    memset(dq, 0, sizeof(float) * (size_t)(AMX_GROUP * g->stride_q));
    for (int lane = 0; lane < AMX_GROUP; lane++) {
        if (!(any >> lane & 1))
            continue;
        const int64_t head = amx_head_of(g, x->queries, lane);
        const int64_t row = x->seq->q_row + amx_query_of(g, x->queries, lane);
        amx_odd_load(view_row(&p->q, x->seq->q_batch, head, row), p->q.stride[3], p->d, g->stride_q,
                     q + lane * g->stride_q);
        amx_odd_load(view_row(dout, x->seq->q_batch, head, row), dout->stride[3], p->d_v, g->stride_v,
                     o + lane * g->stride_v);
    }
    for (int r = 0; r < AMX_UNIT_KEYS; r++)
        if (lanes[r])
            amx_odd_key(x, r, lanes[r], q, o, dq);
    for (int lane = 0; x->dq && lane < AMX_GROUP; lane++)
        if (any >> lane & 1)
            amx_odd_add(x->dq + lane * g->stride_q, 1, dq + lane * g->stride_q, g->stride_q);
}

#endif
