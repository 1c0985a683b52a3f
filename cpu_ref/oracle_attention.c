/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_attention.c: an attention call as the oracle sees it: where every row lies, what it may see, and its scores.
 * Cost: d + d2 multiply-adds for a (row, key) pair that is visible, O(1) for one that is not.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/convert.h"
#include "../common/philox.h"
#include "oracle_private.h"

static int64_t load_int(const kiln_oracle_view *view, int64_t i0, int64_t i1, int64_t absent)
{
    return view->type ? (int64_t)kiln_oracle_load(view, i0, i1, 0, 0) : absent;
}

static int64_t saturating_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

static int64_t saturating_sub(int64_t a, int64_t b)
{
    int64_t difference;
    return __builtin_sub_overflow(a, b, &difference) ? (b < 0 ? INT64_MAX : INT64_MIN) : difference;
}

kiln_status kiln_oracle_call_init(kiln_oracle_attention_call *call, const kiln_attention_forward_args *args,
                                  const kiln_numerics *numerics)
{
    if (args->q_descale || args->k_descale || args->v_descale)
        return KILN_UNSUPPORTED;
    *call = (kiln_oracle_attention_call){.args = args, .numerics = numerics};
    call->packed_q = args->cu_seqlens_q != NULL;
    call->packed_k = args->cu_seqlens_k != NULL;
    call->paged = args->block_table != NULL;
    call->q = kiln_oracle_view_of(args->q, call->packed_q);
    call->q2 = kiln_oracle_view_of(args->q2, call->packed_q);
    call->o = kiln_oracle_view_of(args->o, call->packed_q);
    call->lse = kiln_oracle_view_of(args->softmax_lse, call->packed_q);
    call->k = kiln_oracle_view_of(args->k, call->packed_k);
    call->k2 = kiln_oracle_view_of(args->k2, call->packed_k);
    call->v = kiln_oracle_view_of(args->v, call->packed_k);
    call->bias = kiln_oracle_view_of(args->bias, 0);
    call->mask = kiln_oracle_view_of(args->attn_mask, 0);
    call->alibi = kiln_oracle_view_of(args->alibi_slopes, args->alibi_slopes && args->alibi_slopes->ndim == 1);
    call->sinks = kiln_oracle_view_of(args->sinks, 1);
    call->q_starts = kiln_oracle_view_of(args->q_starts, 0);
    call->k_starts = kiln_oracle_view_of(args->k_starts, 0);
    call->cu_q = kiln_oracle_view_of(args->cu_seqlens_q, 0);
    call->cu_k = kiln_oracle_view_of(args->cu_seqlens_k, 0);
    call->used_q = kiln_oracle_view_of(args->seqused_q, 0);
    call->used_k = kiln_oracle_view_of(args->seqused_k, 0);
    call->leftpad = kiln_oracle_view_of(args->leftpad_k, 0);
    call->table = kiln_oracle_view_of(args->block_table, 0);
    call->cache_idx = kiln_oracle_view_of(args->cache_batch_idx, 0);

    call->batch = call->packed_q ? call->cu_q.size[0] - 1 : call->q.size[0];
    call->heads = call->q.size[1];
    call->heads_k = call->k.size[1];
    call->group = call->heads_k > 0 ? call->heads / call->heads_k : 1;
    call->rows_q = call->q.size[2];
    call->rows_k = call->k.size[2];
    call->kv_batch = call->k.size[0];
    call->d = call->q.size[3];
    call->d2 = call->q2.type ? call->q2.size[3] : 0;
    call->d_v = call->v.size[3];

    bool explicit_scale = args->softmax_scale != 0 || (args->flags & KILN_FLAG_SCALE_EXPLICIT);
    call->scale = explicit_scale ? (double)args->softmax_scale : 1 / sqrt((double)(call->d + call->d2));
    call->softcap = args->softcap;
    call->q_step = args->q_step ? args->q_step : 1;
    call->k_step = args->k_step ? args->k_step : 1;
    call->dropout_threshold = kiln_dropout_threshold(args->dropout_p);
    call->keep_scale = call->dropout_threshold > 0 ? 256.0 / call->dropout_threshold : 0;
    call->dropout_seed = args->dropout_seed_ptr ? *args->dropout_seed_ptr : args->dropout_seed;
    call->dropout_offset = args->dropout_offset_ptr ? *args->dropout_offset_ptr : args->dropout_offset;
    for (int64_t b = 0; b < call->batch; b++) {
        int64_t n = kiln_oracle_sequence_of(call, b).seqlen_k;
        call->max_seqlen_k = n > call->max_seqlen_k ? n : call->max_seqlen_k;
    }
    return KILN_OK;
}

kiln_oracle_sequence kiln_oracle_sequence_of(const kiln_oracle_attention_call *call, int64_t b)
{
    const kiln_attention_forward_args *args = call->args;
    kiln_oracle_sequence seq = {.b = b, .q_batch = b, .k_batch = b};
    int64_t capacity_q = call->rows_q, capacity_k = call->rows_k;
    if (call->packed_q) {
        seq.q_batch = 0;
        seq.q_row = load_int(&call->cu_q, b, 0, 0);
        capacity_q = load_int(&call->cu_q, b + 1, 0, 0) - seq.q_row;
    }
    if (call->packed_k) {
        seq.k_batch = 0;
        seq.k_row = load_int(&call->cu_k, b, 0, 0);
        capacity_k = load_int(&call->cu_k, b + 1, 0, 0) - seq.k_row;
    } else {
        seq.k_batch = load_int(&call->cache_idx, b, 0, b);
        seq.k_row = load_int(&call->leftpad, b, 0, 0);
    }
    seq.seqlen_q = load_int(&call->used_q, b, 0, capacity_q);
    seq.seqlen_k = load_int(&call->used_k, b, 0, capacity_k) - (call->packed_k ? 0 : seq.k_row);
    if (seq.seqlen_k < 0)
        seq.seqlen_k = 0;

    bool top_left = args->mask == KILN_MASK_CAUSAL_TOP_LEFT || args->mask == KILN_MASK_WINDOW_TOP_LEFT;
    int64_t base = top_left ? 0 : seq.seqlen_k - seq.seqlen_q;
    seq.pos_q = base + args->q_start + load_int(&call->q_starts, b, 0, 0);
    seq.pos_k = args->k_start + load_int(&call->k_starts, b, 0, 0);
    return seq;
}

int64_t kiln_oracle_row_number(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t head,
                               int64_t i)
{
    return (seq->q_batch * call->heads + head) * call->rows_q + seq->q_row + i;
}

double kiln_oracle_sink(const kiln_oracle_attention_call *call, int64_t head)
{
    return call->sinks.type ? kiln_oracle_load(&call->sinks, 0, head, 0, 0) : -INFINITY;
}

static int64_t pos_q(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t i)
{
    return seq->pos_q + i * call->q_step;
}

static int64_t pos_k(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t j)
{
    return seq->pos_k + j * call->k_step;
}

double kiln_oracle_keep(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t head,
                        int64_t i, int64_t j)
{
    if (call->dropout_threshold >= 256)
        return 1;
    int64_t position = pos_k(call, seq, j), byte = position & 15;
    kiln_philox_words words =
        kiln_dropout_words(call->dropout_seed, call->dropout_offset, seq->b * call->heads + head, pos_q(call, seq, i),
                           (position - byte) / 16); /* rounds down, also before position 0 */
    return kiln_dropout_byte(words, (int)byte) < call->dropout_threshold ? call->keep_scale : 0;
}

/* Page of key j, or -1 where the table names none; not paged: the batch entry. */
static int64_t key_batch(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t j)
{
    int64_t entries = call->paged ? call->table.size[0] : call->kv_batch;
    if (!call->packed_k && (seq->k_batch < 0 || seq->k_batch >= entries))
        return -1;
    if (!call->paged)
        return seq->k_batch;
    int64_t page = load_int(&call->table, seq->k_batch, (seq->k_row + j) / call->rows_k, -1);
    return page < call->kv_batch ? page : -1;
}

void kiln_oracle_load_key(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq,
                          const kiln_oracle_view *view, int64_t head, int64_t j, double *out)
{
    int64_t row = seq->k_row + j;
    kiln_oracle_load_row(view, key_batch(call, seq, j), head / call->group, call->paged ? row % call->rows_k : row,
                         out);
}

static bool in_window(const kiln_attention_forward_args *args, int64_t p, int64_t t)
{
    switch (args->mask) {
    case KILN_MASK_NONE: return true;
    case KILN_MASK_CAUSAL_TOP_LEFT:
    case KILN_MASK_CAUSAL_BOTTOM_RIGHT: return t <= p;
    default:
        return (args->window_left == KILN_UNBOUNDED || t >= saturating_sub(p, args->window_left)) &&
               (args->window_right == KILN_UNBOUNDED || t <= saturating_add(p, args->window_right));
    }
}

static bool is_visible(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t head, int64_t i,
                       int64_t j)
{
    if (!in_window(call->args, pos_q(call, seq, i), pos_k(call, seq, j)))
        return false;
    if (call->mask.type) {
        int64_t column = j - seq->seqlen_k + call->mask.size[3]; /* the last mask_len keys */
        if (column >= 0 && kiln_oracle_load(&call->mask, seq->b, head, i, column) == 0)
            return false;
    }
    return !call->bias.type || kiln_oracle_load(&call->bias, seq->b, head, i, j) != -INFINITY;
}

bool kiln_oracle_block_init(kiln_oracle_block *block, const kiln_oracle_attention_call *call)
{
    memset(block, 0, sizeof *block);
    block->q = kiln_oracle_alloc(call->d * KILN_ORACLE_LANES);
    block->q2 = kiln_oracle_alloc(call->d2 * KILN_ORACLE_LANES);
    block->k = kiln_oracle_alloc(call->d);
    block->k2 = kiln_oracle_alloc(call->d2);
    block->visible = calloc((size_t)call->max_seqlen_k + 1, KILN_ORACLE_LANES);
    return block->q && block->q2 && block->k && block->k2 && block->visible;
}

void kiln_oracle_block_free(kiln_oracle_block *block)
{
    free(block->q);
    free(block->q2);
    free(block->k);
    free(block->k2);
    free(block->visible);
}

/* Rows into lanes: out[c][lane]. Lanes without a row hold 0. `scratch` is one row. */
static void load_queries(const kiln_oracle_block *block, const kiln_oracle_sequence *seq, const kiln_oracle_view *view,
                         int64_t d, double *scratch, double *out)
{
    for (int lane = 0; lane < KILN_ORACLE_LANES; lane++) {
        if (lane < block->lanes)
            kiln_oracle_load_row(view, seq->q_batch, block->head, seq->q_row + block->first + lane, scratch);
        for (int64_t c = 0; c < d; c++)
            out[c * KILN_ORACLE_LANES + lane] = lane < block->lanes ? scratch[c] : 0;
    }
}

void kiln_oracle_block_begin(kiln_oracle_block *block, const kiln_oracle_attention_call *call,
                             const kiln_oracle_sequence *seq, int64_t head, int64_t first, int lanes)
{
    block->head = head;
    block->first = first;
    block->lanes = lanes;
    load_queries(block, seq, &call->q, call->d, block->k, block->q);
    if (call->d2 > 0)
        load_queries(block, seq, &call->q2, call->d2, block->k2, block->q2);
    memset(block->seen, 0, sizeof block->seen);
    for (int64_t j = 0; j < seq->seqlen_k; j++) {
        bool exists = key_batch(call, seq, j) >= 0;
        for (int lane = 0; lane < KILN_ORACLE_LANES; lane++) {
            bool visible = exists && lane < lanes && is_visible(call, seq, head, first + lane, j);
            block->visible[j * KILN_ORACLE_LANES + lane] = visible;
            block->seen[lane] += visible;
        }
    }
}

void kiln_oracle_dot_lanes(int64_t d, const double *q, const double *k, double *dot, double *magnitude)
{
    for (int64_t c = 0; c < d; c++) {
        for (int lane = 0; lane < KILN_ORACLE_LANES; lane++) {
            double product = q[c * KILN_ORACLE_LANES + lane] * k[c];
            dot[lane] += product;
            magnitude[lane] += fabs(product);
        }
    }
}

/* Scale, softcap, bias, ALiBi, in this order, and the error of each (oracle_bound.c, "Score"). */
static void finish_score(kiln_oracle_block *block, const kiln_oracle_attention_call *call,
                         const kiln_oracle_sequence *seq, int64_t j, int lane, double dot, double magnitude)
{
    const kiln_numerics *numerics = call->numerics;
    int64_t i = block->first + lane, products = call->d + call->d2;
    double all = kiln_oracle_gamma(numerics, (double)(products + numerics->score_extra));
    double s = kiln_oracle_score_range(call->scale * dot), error = all * fabs(call->scale) * magnitude;
    if (call->softcap > 0) {
        double cap = call->softcap, t = tanh(s / cap);
        double dt = isfinite(s) ? fabs(t) - tanh((fabs(s) - error) / cap) + numerics->tanh_error : numerics->tanh_error;
        block->tanh[lane] = t;
        block->tanh_error[lane] = dt;
        s = cap * t;
        error = cap * dt + kiln_oracle_gamma(numerics, (double)numerics->score_extra) * fabs(s);
    }
    if (call->bias.type) {
        double bias = kiln_oracle_load(&call->bias, seq->b, block->head, i, j);
        s += bias;
        error += all * fabs(bias);
    }
    if (call->alibi.type) {
        double slope = kiln_oracle_load(&call->alibi, seq->b, block->head, 0, 0);
        double penalty = slope * fabs((double)(pos_q(call, seq, i) - pos_k(call, seq, j)));
        s -= penalty;
        error += all * fabs(penalty);
    }
    block->s[lane] = kiln_oracle_score_range(s);
    block->ds[lane] = error + (double)(products + 2) * KILN_ORACLE_WEIGHT_MIN;
}

bool kiln_oracle_block_score(kiln_oracle_block *block, const kiln_oracle_attention_call *call,
                             const kiln_oracle_sequence *seq, int64_t j)
{
    const uint8_t *visible = block->visible + j * KILN_ORACLE_LANES;
    double dot[KILN_ORACLE_LANES] = {0}, magnitude[KILN_ORACLE_LANES] = {0};
    bool any = false;
    for (int lane = 0; lane < KILN_ORACLE_LANES; lane++) {
        any |= visible[lane] != 0;
        block->s[lane] = -INFINITY;
        block->ds[lane] = block->tanh[lane] = block->tanh_error[lane] = 0;
    }
    if (!any)
        return false;
    kiln_oracle_load_key(call, seq, &call->k, block->head, j, block->k);
    kiln_oracle_dot_lanes(call->d, block->q, block->k, dot, magnitude);
    if (call->d2 > 0) {
        kiln_oracle_load_key(call, seq, &call->k2, block->head, j, block->k2);
        kiln_oracle_dot_lanes(call->d2, block->q2, block->k2, dot, magnitude);
    }
    for (int lane = 0; lane < KILN_ORACLE_LANES; lane++) {
        if (visible[lane])
            finish_score(block, call, seq, j, lane, dot[lane], magnitude[lane]);
    }
    return true;
}
