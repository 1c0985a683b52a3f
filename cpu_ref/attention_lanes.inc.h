/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_lanes.inc.h: a tile of queries: what each lane is, its state (m, l, O), how it begins and how it ends.
 *
 * Row r of a tile's heads is query r / num_heads of head first_head + r % num_heads: the heads of a group lie beside
 * each other, share K and V and see the same keys. Lanes past the last row repeat it, so that they hide nothing, and
 * are not written. Cost: O(nq·(d + d_v)), once per tile.
 */
#ifndef KILN_CPU_REF_ATTENTION_LANES_INC_H
#define KILN_CPU_REF_ATTENTION_LANES_INC_H

#include <math.h>

#include "attention_load.inc.h"
#include "attention_tile.inc.h"

/* One call: the problem and what follows from it. */
typedef struct attention_call {
    const kiln_attention_problem *p;
    int nv, nq;            /* vectors and lanes of a tile */
    int64_t columns;       /* d + d2: the length of a dot product */
    uint64_t seed, offset; /* dropout */
    bool shrink;           /* second computation, of what overflowed: see VALUE_SHRINK, tile_end */
} attention_call;

typedef struct tile {
    float *q, *o, *m, *l; /* [columns][nq], [d_v][nq], [nq], [nq] */
    int64_t lanes;        /* that are written */
    int64_t batch;
    int64_t begin_any, end_any; /* keys that at least one lane may see lie in here */
    int64_t begin_all, end_all; /* and these all lanes see (through the window) */
    int64_t begin[TILE_LANES], end[TILE_LANES];
    int64_t query[TILE_LANES], head[TILE_LANES], pos_q[TILE_LANES];
    const char *bias[TILE_LANES], *mask[TILE_LANES]; /* column 0 of the lane's row */
    float slope[TILE_LANES];
    uint64_t overflowed; /* bit = lane that is written and whose O was not finite in the end */
} tile;

_Static_assert(TILE_LANES <= 64, "tile.overflowed has a bit for every lane");

static int64_t tile_state_floats(const attention_call *call)
{
    return (call->columns + call->p->d_v + 2) * call->nq;
}

/* Gives the tile its arrays. */
static void tile_place(const attention_call *call, tile *t, float *memory)
{
    t->q = memory;
    t->o = t->q + call->columns * call->nq;
    t->m = t->o + call->p->d_v * call->nq;
    t->l = t->m + call->nq;
}

/* Rows [row, row + nq) of `num_heads` heads of sequence `seq`: says what each lane is and may see. */
static void tile_lanes(const attention_call *call, tile *t, const kiln_sequence *seq, int64_t batch, int64_t first_head,
                       int64_t num_heads, int64_t row)
{
    const kiln_attention_problem *p = call->p;
    const int64_t rows = seq->seqlen_q * num_heads;
    t->lanes = rows - row < call->nq ? rows - row : call->nq;
    t->batch = batch;
    t->begin_any = INT64_MAX;
    t->end_any = 0;
    t->begin_all = 0;
    t->end_all = INT64_MAX;
    int64_t i = row / num_heads, head = first_head + row % num_heads;
    for (int64_t lane = 0; lane < call->nq; lane++) {
        if (lane > 0 && lane < t->lanes && ++head == first_head + num_heads) {
            head = first_head;
            i++;
        }
        t->query[lane] = i;
        t->head[lane] = head;
        t->pos_q[lane] = seq->pos_q + i * p->q_step;
        t->slope[lane] = 0;
        if (kiln_view_present(&p->alibi))
            t->slope[lane] = *(const float *)(const void *)view_row(&p->alibi, batch, head, 0);
        if (kiln_view_present(&p->bias))
            t->bias[lane] = view_row(&p->bias, batch, head, i);
        if (kiln_view_present(&p->attn_mask))
            t->mask[lane] = view_row(&p->attn_mask, batch, head, i);

        kiln_key_range range = kiln_visible_keys(p, seq, i);
        t->begin[lane] = range.begin;
        t->end[lane] = range.end;
        if (range.begin < range.end) {
            t->begin_any = range.begin < t->begin_any ? range.begin : t->begin_any;
            t->end_any = range.end > t->end_any ? range.end : t->end_any;
        }
        t->begin_all = range.begin > t->begin_all ? range.begin : t->begin_all;
        t->end_all = range.end < t->end_all ? range.end : t->end_all;
    }
}

/* scale·q of one lane, q2 after q. */
static void load_query(const attention_call *call, const tile *t, const kiln_sequence *seq, int64_t lane, float *out)
{
    const kiln_attention_problem *p = call->p;
    const int64_t head = t->head[lane], row = seq->q_row + t->query[lane];
    const float scale = (float)p->softmax_scale;
    load_row(view_row(&p->q, seq->q_batch, head, row), p->q.type, p->q.stride[3], p->d, out);
    if (p->d2 > 0)
        load_row(view_row(&p->q2, seq->q_batch, head, row), p->q2.type, p->q2.stride[3], p->d2, out + p->d);
    for (int64_t c = 0; c < call->columns; c++)
        out[c] *= scale;
}

/* Floats of one row of q or o in a buffer of VF_LANES rows: whole vectors. */
static int64_t buffer_stride(int64_t columns)
{
    return (columns + VF_LANES - 1) / VF_LANES * VF_LANES;
}

/* Packs q, a square of VF_LANES lanes and columns at a time. `buffer` holds VF_LANES rows. */
static void tile_pack(const attention_call *call, tile *t, const kiln_sequence *seq, float *buffer)
{
    const int64_t ld = buffer_stride(call->columns);
    for (int64_t first = 0; first < call->nq; first += VF_LANES) {
        for (int lane = 0; lane < VF_LANES; lane++)
            load_query(call, t, seq, first + lane, buffer + lane * ld);
        for (int64_t c = 0; c < call->columns; c += VF_LANES) {
            const int n = call->columns - c < VF_LANES ? (int)(call->columns - c) : VF_LANES;
            vf x[VF_LANES];
            for (int lane = 0; lane < VF_LANES; lane++)
                x[lane] = vf_load_tail(buffer + lane * ld + c, n);
            vf_transpose(x);
            for (int i = 0; i < n; i++)
                vf_store(t->q + (c + i) * call->nq + first, x[i]);
        }
    }
}

/* Nothing seen yet. */
static void tile_clear(const attention_call *call, tile *t)
{
    memset(t->o, 0, sizeof(float) * (size_t)(call->p->d_v * call->nq));
    for (int lane = 0; lane < call->nq; lane++) {
        t->m[lane] = -INFINITY;
        t->l[lane] = 0;
    }
}

/* What o is multiplied by and then divided by, for each lane (divisor 0: the row is empty, o = 0 whatever V holds); writes
 * lse = m + ln l. The sink joins here. */
static void tile_sums(const attention_call *call, const tile *t, const kiln_sequence *seq, float *factor,
                      float *divisor)
{
    const kiln_attention_problem *p = call->p;
    for (int lane = 0; lane < call->nq; lane++) {
        double m = t->m[lane], l = t->l[lane], rescale = 1;
        bool empty = l == 0; /* no visible key, or none with a score above -inf */
        if (kiln_view_present(&p->sinks)) {
            const char *x = view_row(&p->sinks, 0, t->head[lane], 0);
            double sink = kiln_load_double(x, p->sinks.type, 0);
            double top = empty || !(m >= sink) ? sink : m; /* a NaN on either side reaches l below */
            if (top != -INFINITY) {
                rescale = empty ? 0 : exp(m - top);
                l = l * rescale + exp(sink - top);
                m = top;
            }
        }
        if (kiln_view_present(&p->lse) && lane < t->lanes) {
            float *lse = (float *)(void *)view_row(&p->lse, seq->q_batch, t->head[lane], seq->q_row + t->query[lane]);
            *lse = l == 0 ? -INFINITY : (float)(m + log(l));
        }
        factor[lane] = (float)rescale;
        divisor[lane] = (float)(l * p->dropout_threshold / 256);
    }
}

/* Keeps which lanes overflowed: those of vector j of TILE_VECTORS that are not `finite`. Returns whether any did. */
static bool tile_overflowed(tile *t, const vm *finite)
{
    t->overflowed = 0;
    for (int j = 0; j < TILE_VECTORS; j++)
        t->overflowed |= (uint64_t)vm_bits(vm_not(finite[j])) << j * VF_LANES;
    if (t->lanes < 64)
        t->overflowed &= ((uint64_t)1 << t->lanes) - 1;
    return t->overflowed != 0;
}

/* The call for the second computation. */
static attention_call shrunk_call(const attention_call *call)
{
    attention_call shrunk = *call;
    shrunk.shrink = true;
    return shrunk;
}

/* Writes o, which lies in t->o[d_v][nq]. `buffer` holds VF_LANES rows of o. */
static void tile_store(const attention_call *call, const tile *t, const kiln_sequence *seq, float *buffer)
{
    const kiln_attention_problem *p = call->p;
    const int64_t ld = buffer_stride(p->d_v);
    for (int64_t first = 0; first < t->lanes; first += VF_LANES) {
        for (int64_t c = 0; c < p->d_v; c += VF_LANES) {
            vf x[VF_LANES];
            for (int i = 0; i < VF_LANES; i++)
                x[i] = c + i < p->d_v ? vf_load(t->o + (c + i) * call->nq + first) : vf_zero();
            vf_transpose(x);
            for (int lane = 0; lane < VF_LANES; lane++)
                vf_store(buffer + lane * ld + c, x[lane]);
        }
        for (int64_t lane = first; lane < t->lanes && lane < first + VF_LANES; lane++) {
            char *row = view_row(&p->o, seq->q_batch, t->head[lane], seq->q_row + t->query[lane]);
            if (!call->shrink && p->o.stride[3] == 1)
                rows_store(row, p->o.type, 1, (int)p->d_v, buffer + (lane - first) * ld, NULL);
            else if (!call->shrink)
                store_row(row, p->o.type, p->o.stride[3], p->d_v, buffer + (lane - first) * ld);
            else if (t->overflowed >> lane & 1)
                store_row_grown(p, row, buffer + (lane - first) * ld);
        }
    }
}

/* The one final division: o = O / l and lse = m + ln l, the sink joined. `buffer` holds VF_LANES rows of o. True: O of
 * some lane is not finite, so compute O once more with shrunk_call() and end the tile with that; it replaces what is not
 * finite in the rows of those lanes (a NaN or Inf of V itself comes out again). */
static bool tile_end(const attention_call *call, tile *t, const kiln_sequence *seq, float *buffer)
{
    float factor[TILE_LANES], divisor[TILE_LANES];
    vm finite[TILE_VECTORS];
    for (int j = 0; j < TILE_VECTORS; j++)
        finite[j] = vm_first(VF_LANES);
    tile_sums(call, t, seq, factor, divisor);
    for (int64_t c = 0; c < call->p->d_v; c++)
        for (int j = 0; j < call->nq; j += VF_LANES) {
            /* adding +0 makes every zero +0, whatever was skipped on the way */
            float *x = t->o + c * call->nq + j;
            vf sum = vf_load(x), y = vf_mul(vf_add(sum, vf_zero()), vf_load(factor + j)), by = vf_load(divisor + j);
            finite[j / VF_LANES] = vm_and(finite[j / VF_LANES], vf_finite(sum));
            vf_store(x, vf_keep(vm_not(vf_eq(by, vf_zero())), vf_div(y, by)));
        }
    const bool again = !call->shrink && tile_overflowed(t, finite);
    tile_store(call, t, seq, buffer);
    return again;
}

#endif
