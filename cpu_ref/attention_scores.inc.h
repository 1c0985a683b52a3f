/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_scores.inc.h: what happens to a score between the dot product and P·V, in the order of the contract:
 * softcap, bias, ALiBi, masks, and (after the softmax) dropout. The one place for it, used by every rung.
 *
 * Everything works on rows [0, rows) of a block of scores St[row][lane]; row r is key first + r.
 * Cost: bias, attn_mask and dropout are gathered lane by lane (a few cycles a score); the rest is vectorised.
 */
#ifndef KILN_CPU_REF_ATTENTION_SCORES_INC_H
#define KILN_CPU_REF_ATTENTION_SCORES_INC_H

#include "../common/philox.h"
#include "attention_lanes.inc.h"

/* Scratch of one block. */
typedef struct score_scratch {
    float *bias;          /* [KEY_BLOCK][nq], used if there is a bias */
    float *distance;      /* [KEY_BLOCK][nq], used if there are ALiBi slopes */
    float *softcap_slope; /* [KEY_BLOCK][nq]: d capped / d score, wanted by the backward pass; NULL = not wanted */
    uint32_t *visible;    /* [KEY_BLOCK][nv], bit = lane of the vector */
} score_scratch;

/* Does every lane see every key of [begin, end), with nothing else to do to the scores? */
static bool scores_are_plain(const attention_call *call, const tile *t, int64_t begin, int64_t end)
{
    const kiln_attention_problem *p = call->p;
    return t->begin_all <= begin && end <= t->end_all && p->softcap == 0 && p->mask_len == 0 &&
           !kiln_view_present(&p->bias) && !kiln_view_present(&p->alibi);
}

static void gather_bias(const attention_call *call, const tile *t, int64_t first, int64_t rows, float *out)
{
    const kiln_view *bias = &call->p->bias;
    const int64_t step = bias->stride[3] * kiln_type_size(bias->type);
    const int nq = call->nq;
    for (int lane = 0; lane < nq; lane++) {
        const char *x = t->bias[lane] + first * step;
        if (bias->type == KILN_FLOAT32)
            for (int64_t r = 0; r < rows; r++)
                out[r * nq + lane] = *(const float *)(const void *)(x + r * step);
        else
            for (int64_t r = 0; r < rows; r++) {
                uint16_t h;
                memcpy(&h, x + r * step, sizeof h);
                out[r * nq + lane] = bias->type == KILN_FLOAT16 ? kiln_f16_to_float(h) : kiln_bf16_to_float(h);
            }
    }
}

/* |pos_q - pos_k|, rounded once from the exact difference. */
static void fill_distance(const attention_call *call, const tile *t, const kiln_sequence *seq, int64_t first,
                          int64_t rows, float *out)
{
    const int64_t step = call->p->k_step, pos_k = seq->pos_k + first * step;
    const int nq = call->nq;
    for (int lane = 0; lane < nq; lane++) {
        int64_t difference = t->pos_q[lane] - pos_k;
        for (int64_t r = 0; r < rows; r++, difference -= step)
            out[r * nq + lane] = (float)(difference < 0 ? -difference : difference);
    }
}

/* Which keys each lane sees through window, attn_mask and bias. False if all lanes see all rows; then nothing is written.
 * Leaves the gathered bias in scratch. */
static bool find_hidden(const attention_call *call, const tile *t, const kiln_sequence *seq, int64_t first,
                        int64_t rows, const score_scratch *scratch)
{
    const kiln_attention_problem *p = call->p;
    const int nv = call->nv, nq = call->nq;
    const bool has_bias = kiln_view_present(&p->bias);
    if (has_bias)
        gather_bias(call, t, first, rows, scratch->bias);
    if (!has_bias && p->mask_len == 0 && t->begin_all <= first && first + rows <= t->end_all)
        return false;

    for (int j = 0; j < nv; j++) {
        float begin[VF_LANES], end[VF_LANES]; /* relative to `first`, small whole numbers */
        for (int i = 0; i < VF_LANES; i++) {
            int64_t b = t->begin[j * VF_LANES + i] - first, e = t->end[j * VF_LANES + i] - first;
            begin[i] = (float)(b < 0 ? 0 : b > rows ? rows : b);
            end[i] = (float)(e < 0 ? 0 : e > rows ? rows : e);
        }
        const vf b = vf_load(begin), e = vf_load(end), hide = vf_set1(-INFINITY);
        for (int64_t r = 0; r < rows; r++) {
            vf at = vf_set1((float)r);
            vm see = vm_and(vf_le(b, at), vf_lt(at, e));
            if (has_bias)
                see = vm_and(see, vm_not(vf_eq(vf_load(scratch->bias + r * nq + j * VF_LANES), hide)));
            scratch->visible[r * nv + j] = vm_bits(see);
        }
    }
    if (p->mask_len > 0) { /* it covers the last mask_len keys of the sequence */
        const int64_t shift = p->mask_len - seq->seqlen_k, step = p->attn_mask.stride[3];
        for (int lane = 0; lane < nq; lane++) {
            uint32_t *visible = scratch->visible + lane / VF_LANES;
            const uint32_t bit = 1u << lane % VF_LANES;
            for (int64_t r = first + shift < 0 ? -(first + shift) : 0; r < rows; r++)
                if (t->mask[lane][(first + r + shift) * step] == 0)
                    visible[r * nv] &= ~bit;
        }
    }
    return true;
}

/* Softcap, bias, ALiBi and masks on a block of raw scores; `max` becomes the maximum of each lane. Returns whether some
 * pair is hidden; then scratch->visible says which. */
static bool modify_scores(const attention_call *call, const tile *t, const kiln_sequence *seq, int64_t first,
                          int64_t rows, float *s, const score_scratch *scratch, vf *max)
{
    const kiln_attention_problem *p = call->p;
    const int nv = call->nv, nq = call->nq;
    const bool has_bias = kiln_view_present(&p->bias), has_alibi = kiln_view_present(&p->alibi);
    const bool hidden = find_hidden(call, t, seq, first, rows, scratch);
    const vf cap = vf_set1(p->softcap), lowest = vf_set1(-INFINITY);
    if (has_alibi)
        fill_distance(call, t, seq, first, rows, scratch->distance);
    for (int j = 0; j < nv; j++) {
        const vf slope = vf_neg(vf_load(t->slope + j * VF_LANES));
        vf top = lowest;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = r * nq + j * VF_LANES;
            vf x = vf_load(s + at);
            if (p->softcap > 0) {
                vf capped = vf_tanh(vf_div(x, cap));
                if (scratch->softcap_slope)
                    vf_store(scratch->softcap_slope + at, vf_fma(vf_neg(capped), capped, vf_set1(1.0f)));
                x = vf_mul(cap, capped);
            }
            if (has_bias)
                x = vf_add(x, vf_load(scratch->bias + at));
            if (has_alibi)
                x = vf_fma(slope, vf_load(scratch->distance + at), x);
            if (hidden)
                x = vf_select(vm_of_bits(scratch->visible[r * nv + j]), x, lowest);
            vf_store(s + at, x);
            top = vf_max(top, x);
        }
        max[j] = top;
    }
    return hidden;
}

/* Zeroes the weights that dropout drops; 256/threshold joins the final division. */
static void drop_weights(const attention_call *call, const tile *t, const kiln_sequence *seq, int64_t first,
                         int64_t rows, float *weights)
{
    const kiln_attention_problem *p = call->p;
    for (int lane = 0; lane < call->nq; lane++) {
        const int64_t batch_head = t->batch * p->heads + t->head[lane];
        int64_t pos_k = seq->pos_k + first * p->k_step, block = 0; /* >> 4 is floor(/ 16) */
        kiln_philox_words words = {{0}};
        for (int64_t r = 0; r < rows; r++, pos_k += p->k_step) {
            if (r == 0 || pos_k >> 4 != block) {
                block = pos_k >> 4;
                words = kiln_dropout_words(call->seed, call->offset, batch_head, t->pos_q[lane], block);
            }
            if (kiln_dropout_byte(words, (int)(pos_k & 15)) >= p->dropout_threshold)
                weights[r * call->nq + lane] = 0;
        }
    }
}

#endif
