/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward.inc.h: what the rungs of attention_forward share: what they accept, how they round, the scratch of
 * a worker and the step "one tile against one block of keys".
 */
#ifndef KILN_CPU_REF_ATTENTION_FORWARD_INC_H
#define KILN_CPU_REF_ATTENTION_FORWARD_INC_H

#include <stdio.h>

#include "attention_scores.inc.h"

/* Scratch of one worker; every array starts on a cache line. */
typedef struct attention_scratch {
    float *k, *v;  /* [KEY_BLOCK][copied_stride]: keys that cannot be used in place */
    float *s;      /* [KEY_BLOCK][nq]: scores, then weights */
    float *buffer; /* VF_LANES rows of q or o */
    score_scratch scores;
} attention_scratch;

static int64_t round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

/* Hands out `floats` of `memory`, a cache line at a time. With memory NULL only counts. */
static float *take(float *memory, int64_t *used, int64_t floats)
{
    float *x = memory ? memory + *used : NULL;
    *used += round_up(floats, 16);
    return x;
}

/* Lays the scratch out at `memory` (may be NULL) and returns its size in floats. */
static int64_t scratch_place(const attention_call *call, float *memory, attention_scratch *scratch)
{
    const kiln_attention_problem *p = call->p;
    int64_t used = 0, block = (int64_t)KEY_BLOCK * call->nq, longest = call->columns > p->d_v ? call->columns : p->d_v;
    scratch->k = take(memory, &used, KEY_BLOCK * copied_stride(call->columns));
    scratch->v = take(memory, &used, KEY_BLOCK * copied_stride(p->d_v));
    scratch->s = take(memory, &used, block);
    scratch->buffer = take(memory, &used, VF_LANES * buffer_stride(longest));
    scratch->scores.bias = take(memory, &used, kiln_view_present(&p->bias) ? block : 0);
    scratch->scores.distance = take(memory, &used, kiln_view_present(&p->alibi) ? block : 0);
    scratch->scores.softcap_slope = NULL;
    scratch->scores.visible = (uint32_t *)(void *)take(memory, &used, (int64_t)KEY_BLOCK * call->nv);
    return used;
}

/* `heads_together`: query heads whose rows share a tile. Metadata only, unless `run`. */
static attention_call call_of(const kiln_attention_problem *p, int64_t heads_together, bool run)
{
    attention_call call = {.p = p, .nv = TILE_VECTORS, .columns = p->d + p->d2};
    if (p->seqlen_q <= 2 * VF_LANES / heads_together)
        call.nv = 1;
    call.nq = call.nv * VF_LANES;
    if (run && p->dropout_threshold < 256) {
        call.seed = p->dropout_seed_ptr ? *p->dropout_seed_ptr : p->dropout_seed;
        call.offset = p->dropout_offset_ptr ? *p->dropout_offset_ptr : p->dropout_offset;
    }
    return call;
}

/* load_keys() of v, shrunk if the call says so. */
static key_rows load_values(const attention_call *call, const kiln_sequence *seq, int64_t head_k, int64_t first,
                            int64_t begin, int64_t end, float *copy)
{
    const kiln_attention_problem *p = call->p;
    if (!call->shrink)
        return load_keys(p, &p->v, p->d_v, NULL, 0, seq, head_k, first, begin, end, copy);
    const key_rows rows = {copy, copied_stride(p->d_v)};
    for (int64_t r = begin; r < end; r++) {
        float *out = copy + r * rows.stride;
        load_row(key_row(p, &p->v, seq, head_k, first + r), p->v.type, p->v.stride[3], p->d_v, out);
        shrink_row(out, p->d_v);
    }
    return rows;
}

/* One block of keys as fp32 rows, row r = key first + r, of which [begin, end) may be read. */
typedef struct key_block {
    key_rows k, v;
    int64_t first;
} key_block;

static key_block block_load(const attention_call *call, const attention_scratch *scratch, const kiln_sequence *seq,
                            int64_t head_k, int64_t first, int64_t begin, int64_t end)
{
    const kiln_attention_problem *p = call->p;
    return (key_block){load_keys(p, &p->k, p->d, &p->k2, p->d2, seq, head_k, first, begin, end, scratch->k),
                       load_values(call, seq, head_k, first, begin, end, scratch->v), first};
}

/* The rows of block `first` that a tile has to look at. It begins at an even row (see softmax_rows). */
typedef struct block_range {
    int64_t begin, end;
} block_range;

static block_range tile_block_range(const tile *t, int64_t first)
{
    block_range range = {t->begin_any - first, t->end_any - first};
    range.begin = range.begin < 0 ? 0 : range.begin / 2 * 2;
    range.end = range.end > KEY_BLOCK ? KEY_BLOCK : range.end;
    return range;
}

/* O += P·V over rows [0, rows) of v, hidden pairs without influence. */
VF_INLINE void tile_values(const int nv, const attention_call *call, tile *t, const float *v, int64_t ldv,
                           const float *weights, int64_t rows, const vf *corr, bool hidden, const uint32_t *visible)
{
    const int64_t d_v = call->p->d_v;
    if (hidden && !hidden_rows_finite(nv, v, ldv, rows, d_v, visible))
        value_rows_select(nv, v, ldv, weights, t->o, rows, d_v, corr, visible);
    else
        value_rows(nv, v, ldv, weights, t->o, rows, d_v, corr);
}

/* One step of online softmax: rows [range.begin, range.end) of a block join the state of a tile. */
VF_INLINE void tile_step_nv(const int nv, const attention_call *call, tile *t, const kiln_sequence *seq,
                            const key_block *block, block_range range, const attention_scratch *scratch)
{
    const int64_t rows = range.end - range.begin, first = block->first + range.begin;
    const float *k = block->k.data + range.begin * block->k.stride, *v = block->v.data + range.begin * block->v.stride;
    vf max[TILE_VECTORS], corr[TILE_VECTORS];
    bool hidden = false;
    UNROLL for (int j = 0; j < nv; j++) max[j] = vf_set1(-INFINITY);
    score_rows(nv, k, block->k.stride, t->q, scratch->s, rows, call->columns, max);
    if (!scores_are_plain(call, t, first, first + rows))
        hidden = modify_scores(call, t, seq, first, rows, scratch->s, &scratch->scores, max);
    softmax_rows(nv, scratch->s, rows, t->m, t->l, max, corr);
    if (call->p->dropout_threshold < 256)
        drop_weights(call, t, seq, first, rows, scratch->s);
    tile_values(nv, call, t, v, block->v.stride, scratch->s, rows, corr, hidden, scratch->scores.visible);
}

static __attribute__((noinline)) void tile_step_wide(const attention_call *call, tile *t, const kiln_sequence *seq,
                                                     const key_block *block, block_range range,
                                                     const attention_scratch *scratch)
{
    tile_step_nv(TILE_VECTORS, call, t, seq, block, range, scratch);
}

static __attribute__((noinline)) void tile_step_narrow(const attention_call *call, tile *t, const kiln_sequence *seq,
                                                       const key_block *block, block_range range,
                                                       const attention_scratch *scratch)
{
    tile_step_nv(1, call, t, seq, block, range, scratch);
}

static void tile_step(const attention_call *call, tile *t, const kiln_sequence *seq, const key_block *block,
                      block_range range, const attention_scratch *scratch)
{
    (call->nv == 1 ? tile_step_narrow : tile_step_wide)(call, t, seq, block, range, scratch);
}

/* The longest query sequence. Reads lengths, so only while running. */
static int64_t longest_seqlen_q(const kiln_attention_problem *p)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t n = kiln_sequence_of(p, b).seqlen_q;
        longest = n > longest ? n : longest;
    }
    return longest;
}

static bool is_computed_type(const kiln_view *view)
{
    return !kiln_view_present(view) || view->type == KILN_FLOAT32 || view->type == KILN_FLOAT16 ||
           view->type == KILN_BFLOAT16;
}

/* num_splits is the most pieces that the keys may be cut into: any value is kept by not cutting them. */
static bool attention_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)cpu;
    if (kiln_view_present(&p->q_descale) || kiln_view_present(&p->k_descale) || kiln_view_present(&p->v_descale))
        return snprintf(why, cap,
                        "q_descale, k_descale and v_descale must be NULL: the CPU backend has no 8-bit types"),
               false;
    const kiln_view *views[] = {&p->q, &p->k, &p->v, &p->o, &p->q2, &p->k2, &p->bias};
    const char *names[] = {"q", "k", "v", "o", "q2", "k2", "bias"};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (!is_computed_type(views[i]))
            return snprintf(why, cap, "%s has DLPack type code %d with %d bits; the CPU backend takes fp32, fp16, bf16",
                            names[i], views[i]->type / 256, views[i]->type % 256),
                   false;
    return true;
}

static void attention_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)problem;
    /* score_extra: scale rounded to fp32, scale·q, scores/softcap, softcap·tanh, + bias, ALiBi's distance and its fma,
     * and the subtraction of the maximum, whose operands may both be as large as the largest score. */
    *numerics = (kiln_numerics){.unit = VF_FMA_UNIT,
                                .exp_error = VF_EXP_ERROR,
                                .tanh_error = VF_TANH_ERROR,
                                .p_unit = 0,
                                .p_floor = 0x1p-125,
                                .score_extra = 9,
                                .tile = KEY_BLOCK};
}

#endif
