/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_attention_backward.c: gradients of attention in fp64, from o and softmax_lse as they are stored (kiln.h has the
 * formulas, oracle_bound.c the bounds).
 * Cost: O(seqlen_q · seqlen_k · (d + d_v)) a head; memory: twice the gradients in doubles, and O(seqlen_k) for a few rows.
 */
#include <math.h>
#include <stdlib.h>

#include "oracle_private.h"

enum { LANES = KILN_ORACLE_LANES };

/* A gradient while it grows. Both NULL when the call has none. */
typedef struct gradient {
    double *value, *error;
} gradient;

typedef struct backward_scratch {
    kiln_oracle_block block;
    gradient dk, dv, dk2, dbias, dsinks; /* whole tensors */
    gradient dq, dq2;                    /* [lane][d], [lane][d2] */
    uint8_t *key_written;                /* [kv_batch][rows_k]: some sequence owns the key */
    uint8_t *bias_written;               /* [bias element] */
    double *q, *q2;                      /* [lane][d], [lane][d2] */
    double *dout, *dout_lanes;           /* [lane][d_v] and [d_v][lane] */
    double *v, *row;                     /* one row of v; of any tensor */
    double lse[LANES], dlse[LANES];
    double d_sum[LANES], d_magnitude[LANES]; /* D = Σ do·o and Σ |do||o| */
    bool dout_infinite[LANES];
} backward_scratch;

typedef struct backward_call {
    kiln_oracle_attention_call forward;
    const kiln_attention_backward_args *args;
    kiln_oracle_view dout, dlse, dq, dk, dv, dq2, dk2, dbias, dsinks;
    int64_t bias_terms;
    bool add_dq, add_dk, add_dv;
} backward_call;

static int64_t elements(const kiln_oracle_view *view)
{
    return view->size[0] * view->size[1] * view->size[2] * view->size[3];
}

static bool gradient_init(gradient *g, bool present, int64_t count)
{
    if (!present)
        return true;
    g->value = kiln_oracle_alloc(count);
    g->error = kiln_oracle_alloc(count);
    return g->value && g->error;
}

static void gradient_free(gradient *g)
{
    free(g->value);
    free(g->error);
}

static bool scratch_init(backward_scratch *s, const backward_call *call)
{
    const kiln_oracle_attention_call *f = &call->forward;
    bool ok = kiln_oracle_block_init(&s->block, f);
    ok &= gradient_init(&s->dq, true, LANES * f->d) && gradient_init(&s->dq2, f->d2 > 0, LANES * f->d2);
    ok = ok && gradient_init(&s->dk, true, elements(&f->k)) && gradient_init(&s->dv, true, elements(&f->v));
    ok = ok && gradient_init(&s->dk2, f->d2 > 0, elements(&f->k2));
    ok = ok && gradient_init(&s->dbias, call->dbias.type != 0, elements(&f->bias));
    ok = ok && gradient_init(&s->dsinks, call->dsinks.type != 0, f->heads);
    s->key_written = calloc((size_t)(f->kv_batch * f->rows_k) + 1, 1);
    s->bias_written = calloc(call->dbias.type ? (size_t)elements(&f->bias) + 1 : 1, 1);
    s->q = kiln_oracle_alloc(LANES * f->d);
    s->q2 = kiln_oracle_alloc(LANES * f->d2);
    s->dout = kiln_oracle_alloc(LANES * f->d_v);
    s->dout_lanes = kiln_oracle_alloc(LANES * f->d_v);
    s->v = kiln_oracle_alloc(f->d_v);
    s->row = kiln_oracle_alloc(f->d_v);
    return ok && s->key_written && s->bias_written && s->q && s->q2 && s->dout && s->dout_lanes && s->v && s->row;
}

static void scratch_free(backward_scratch *s)
{
    kiln_oracle_block_free(&s->block);
    gradient *all[] = {&s->dk, &s->dv, &s->dk2, &s->dbias, &s->dsinks, &s->dq, &s->dq2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gradient_free(all[i]);
    free(s->key_written);
    free(s->bias_written);
    free(s->q);
    free(s->q2);
    free(s->dout);
    free(s->dout_lanes);
    free(s->v);
    free(s->row);
}

/* value += factor·x, error += factor_error·|x| and what a product below fp32's range may lose. */
static void add_scaled(double *value, double *error, double factor, double factor_error, const double *x, int64_t count)
{
    for (int64_t c = 0; c < count; c++) {
        value[c] += factor * x[c];
        error[c] += factor_error * fabs(x[c]) + 0x1p-149;
    }
}

/* Compact element number of head-level index (batch, head, row), column 0. */
static int64_t row_offset(const kiln_oracle_view *view, int64_t i0, int64_t i1, int64_t i2)
{
    return ((i0 * view->size[1] + i1) * view->size[2] + i2) * view->size[3];
}

static int64_t bias_offset(const kiln_oracle_view *bias, int64_t b, int64_t head, int64_t i, int64_t j)
{
    return row_offset(bias, bias->size[0] == 1 ? 0 : b, bias->size[1] == 1 ? 0 : head, bias->size[2] == 1 ? 0 : i) +
           (bias->size[3] == 1 ? 0 : j);
}

/* q, dout, lse, dlse and D of the rows of a block. */
static void load_rows(backward_scratch *s, const backward_call *call, const kiln_oracle_sequence *seq)
{
    const kiln_oracle_attention_call *f = &call->forward;
    for (int lane = 0; lane < LANES; lane++) {
        int64_t head = s->block.head, row = seq->q_row + s->block.first + lane;
        double *dout = s->dout + lane * f->d_v;
        s->lse[lane] = -INFINITY;
        s->dlse[lane] = s->d_sum[lane] = s->d_magnitude[lane] = 0;
        s->dout_infinite[lane] = false;
        for (int64_t c = 0; c < f->d_v; c++)
            s->dout_lanes[c * LANES + lane] = dout[c] = 0;
        if (lane >= s->block.lanes)
            continue;
        s->lse[lane] = kiln_oracle_load(&f->lse, seq->q_batch, head, row, 0);
        if (call->dlse.type)
            s->dlse[lane] = kiln_oracle_load(&call->dlse, seq->q_batch, head, row, 0);
        kiln_oracle_load_row(&f->q, seq->q_batch, head, row, s->q + lane * f->d);
        if (f->d2 > 0)
            kiln_oracle_load_row(&f->q2, seq->q_batch, head, row, s->q2 + lane * f->d2);
        kiln_oracle_load_row(&call->dout, seq->q_batch, head, row, dout);
        kiln_oracle_load_row(&f->o, seq->q_batch, head, row, s->row);
        for (int64_t c = 0; c < f->d_v; c++) {
            s->dout_lanes[c * LANES + lane] = dout[c];
            s->d_sum[lane] += dout[c] * s->row[c];
            s->d_magnitude[lane] += fabs(dout[c] * s->row[c]);
            s->dout_infinite[lane] |= isinf(dout[c]) != 0;
        }
    }
}

/* A number with the error of its computed counterpart. An error of NaN: see kiln_oracle_finish. */
typedef struct inexact {
    double value, error;
} inexact;

/* p = exp(s - lse), lse exact, s within ds. */
static inexact probability(const kiln_numerics *numerics, double s, double ds, double lse)
{
    double d = ds + kiln_oracle_gamma(numerics, (double)numerics->score_extra) * fabs(lse);
    double p = kiln_oracle_exp(s - lse);
    /* The limit is "anything finite": with every score at a huge finite value lse says nothing about the weights. */
    double growth = s > -INFINITY ? kiln_oracle_exp_growth(p, s - lse, d, 1e100) : 0;
    return (inexact){p, growth + p * numerics->exp_error + fmin(p, kiln_oracle_exp_floor(numerics))};
}

/* What rounding P or dS to 16 bits costs: relative, or absolute where the type's grid ends. */
static double rounded_to_16_bits(const kiln_numerics *numerics, double x)
{
    return numerics->p_unit > 0 ? numerics->p_unit * fabs(x) + fmin(fabs(x), numerics->p_floor) : 0;
}

/* The product p·G, where an infinite G that meets a vanishing p is marked. */
static inexact times_probability(const kiln_numerics *numerics, inexact p, inexact g)
{
    inexact ds = {p.value * g.value, 0};
    ds.error = p.error * (fabs(g.value) + g.error) + p.value * g.error + numerics->unit * fabs(ds.value) + 0x1p-149;
    if (isinf(g.value) && p.value < KILN_ORACLE_WEIGHT_MIN * 2)
        ds.error = NAN;
    return ds;
}

/* Row `lane` of the block and key j, which it sees: adds to every gradient. `dp` = Σ do·v with its magnitude. */
static void backward_pair(backward_scratch *s, const backward_call *call, const kiln_oracle_sequence *seq, int64_t j,
                          int lane, inexact dp, double depth_q, double depth_k)
{
    const kiln_oracle_attention_call *f = &call->forward;
    const kiln_numerics *numerics = f->numerics;
    int64_t head = s->block.head, head_k = head / f->group, i = s->block.first + lane;
    int64_t key_row = seq->k_row + j;
    double keep = kiln_oracle_keep(f, seq, head, i, j);
    inexact p = probability(numerics, s->block.s[lane], s->block.ds[lane], s->lse[lane]);

    double weight = keep * p.value;
    double weight_error =
        keep * p.error + rounded_to_16_bits(numerics, weight) + weight * kiln_oracle_gamma(numerics, depth_k + 1);
    int64_t at = row_offset(&f->v, seq->k_batch, head_k, key_row);
    add_scaled(s->dv.value + at, s->dv.error + at, weight, weight_error, s->dout + lane * f->d_v, f->d_v);
    if (s->dout_infinite[lane] && weight < KILN_ORACLE_WEIGHT_MIN * 2) {
        for (int64_t c = 0; c < f->d_v; c++)
            s->dv.error[at + c] = isinf(s->dout[lane * f->d_v + c]) ? NAN : s->dv.error[at + c];
    }

    double many = kiln_oracle_gamma(numerics, (double)(f->d_v + 4));
    inexact g = {keep * dp.value - s->d_sum[lane] + s->dlse[lane],
                 many * (keep * dp.error + s->d_magnitude[lane]) +
                     kiln_oracle_gamma(numerics, 4) * fabs(s->dlse[lane])};
    inexact ds = times_probability(numerics, p, g);
    if (s->dbias.value) {
        int64_t element = bias_offset(&f->bias, seq->b, head, i, j);
        double sum = kiln_oracle_gamma(numerics, kiln_oracle_depth(numerics, call->bias_terms, call->bias_terms));
        s->dbias.value[element] += ds.value;
        s->dbias.error[element] += ds.error + sum * fabs(ds.value);
    }
    inexact dx = ds;
    if (f->softcap > 0) {
        double t = fabs(s->block.tanh[lane]), dt = s->block.tanh_error[lane];
        double c = 1 - t * t, dc = (2 * t + dt) * dt + kiln_oracle_gamma(numerics, 2);
        dx.value = ds.value * c;
        dx.error = ds.error * (c + dc) + fabs(ds.value) * dc + numerics->unit * fabs(dx.value);
    }
    double factor = f->scale * dx.value, size = fabs(f->scale);
    double error = size * (dx.error + rounded_to_16_bits(numerics, dx.value));
    double error_q = error + kiln_oracle_gamma(numerics, depth_q) * fabs(factor);
    double error_k = error + kiln_oracle_gamma(numerics, depth_k) * fabs(factor);
    add_scaled(s->dq.value + lane * f->d, s->dq.error + lane * f->d, factor, error_q, s->block.k, f->d);
    at = row_offset(&f->k, seq->k_batch, head_k, key_row);
    add_scaled(s->dk.value + at, s->dk.error + at, factor, error_k, s->q + lane * f->d, f->d);
    if (f->d2 > 0) {
        add_scaled(s->dq2.value + lane * f->d2, s->dq2.error + lane * f->d2, factor, error_q, s->block.k2, f->d2);
        at = row_offset(&f->k2, seq->k_batch, head_k, key_row);
        add_scaled(s->dk2.value + at, s->dk2.error + at, factor, error_k, s->q2 + lane * f->d2, f->d2);
    }
}

/* dsinks of one row: exp(sink - lse)·(dlse - D). */
static void backward_sink(backward_scratch *s, const backward_call *call, int lane, double depth)
{
    const kiln_oracle_attention_call *f = &call->forward;
    const kiln_numerics *numerics = f->numerics;
    double sink = kiln_oracle_sink(f, s->block.head);
    double extra = kiln_oracle_gamma(numerics, (double)numerics->score_extra);
    inexact g = {s->dlse[lane] - s->d_sum[lane],
                 kiln_oracle_gamma(numerics, (double)(f->d_v + 4)) * s->d_magnitude[lane] +
                     kiln_oracle_gamma(numerics, 4) * fabs(s->dlse[lane])};
    inexact ds = times_probability(numerics, probability(numerics, sink, extra * fabs(sink), s->lse[lane]), g);
    s->dsinks.value[s->block.head] += ds.value;
    s->dsinks.error[s->block.head] += ds.error + kiln_oracle_gamma(numerics, depth) * fabs(ds.value);
}

/* Final value of `count` elements of a gradient: what was there (ACCUMULATE), plus the sum, as the output type holds it. */
static void finish_run(const backward_call *call, const kiln_oracle_view *tensor, int64_t tensor_offset, int64_t stride,
                       bool add, const double *value, const double *error, int64_t count, const kiln_oracle_output *out,
                       int64_t index)
{
    const kiln_numerics *numerics = call->forward.numerics;
    for (int64_t c = 0; c < count; c++) {
        double total = value[c], bound = error[c] + kiln_oracle_gamma(numerics, 2) * fabs(value[c]);
        if (add) {
            double old;
            kiln_oracle_load_run(tensor, tensor_offset + c * stride, stride, 1, &old);
            total += old;
            bound += kiln_oracle_gamma(numerics, 1) * fabs(total);
        }
        kiln_oracle_finish(out, index + c, total, bound, tensor->type);
    }
}

/* The row (i0, i1, i2) of a gradient tensor. */
static void finish_row(const backward_call *call, const kiln_oracle_view *tensor, int64_t i0, int64_t i1, int64_t i2,
                       bool add, const double *value, const double *error, const kiln_oracle_output *out)
{
    if (!tensor->type || !kiln_oracle_wanted(out))
        return;
    int64_t offset = i0 * tensor->stride[0] + i1 * tensor->stride[1] + i2 * tensor->stride[2];
    finish_run(call, tensor, offset, tensor->stride[3], add, value, error, tensor->size[3], out,
               row_offset(tensor, i0, i1, i2));
}

static void backward_block(backward_scratch *s, const backward_call *call, const kiln_oracle_sequence *seq,
                           int64_t head, int64_t first, int lanes, kiln_oracle_gradients *out)
{
    const kiln_oracle_attention_call *f = &call->forward;
    int64_t queries = f->group * seq->seqlen_q;
    double depth_k = kiln_oracle_depth(f->numerics, queries, queries);
    kiln_oracle_block_begin(&s->block, f, seq, head, first, lanes);
    load_rows(s, call, seq);
    for (int64_t c = 0; c < LANES * f->d; c++)
        s->dq.value[c] = s->dq.error[c] = 0;
    for (int64_t c = 0; c < LANES * f->d2; c++)
        s->dq2.value[c] = s->dq2.error[c] = 0;

    for (int64_t j = 0; j < seq->seqlen_k; j++) {
        if (!kiln_oracle_block_score(&s->block, f, seq, j))
            continue;
        double dp[LANES] = {0}, magnitude[LANES] = {0};
        kiln_oracle_load_key(f, seq, &f->v, head, j, s->v);
        kiln_oracle_dot_lanes(f->d_v, s->dout_lanes, s->v, dp, magnitude);
        for (int lane = 0; lane < lanes; lane++) {
            /* lse = -inf: nothing the row sees has a weight, so it gives and gets no gradient. */
            if (s->block.visible[j * LANES + lane] && s->lse[lane] != -INFINITY)
                backward_pair(s, call, seq, j, lane, (inexact){dp[lane], magnitude[lane]},
                              kiln_oracle_depth(f->numerics, s->block.seen[lane], seq->seqlen_k), depth_k);
        }
    }
    int64_t sink_terms = f->batch * f->rows_q;
    for (int lane = 0; lane < lanes; lane++) {
        int64_t row = seq->q_row + first + lane;
        if (s->dsinks.value && s->lse[lane] != -INFINITY)
            backward_sink(s, call, lane, kiln_oracle_depth(f->numerics, sink_terms, sink_terms));
        finish_row(call, &call->dq, seq->q_batch, head, row, call->add_dq, s->dq.value + lane * f->d,
                   s->dq.error + lane * f->d, &out->dq);
        if (f->d2 > 0)
            finish_row(call, &call->dq2, seq->q_batch, head, row, call->add_dq, s->dq2.value + lane * f->d2,
                       s->dq2.error + lane * f->d2, &out->dq2);
    }
}

static void untouched(const kiln_oracle_view *tensor, const kiln_oracle_output *out)
{
    if (!tensor->type)
        return;
    for (int64_t i = 0; i < elements(tensor); i++)
        kiln_oracle_put(out, i, NAN, NAN);
}

/* Keys that no sequence owns stay untouched; the others are written, with 0 where no query sees them. */
static void finish_keys(const backward_scratch *s, const backward_call *call, kiln_oracle_gradients *out)
{
    const kiln_oracle_attention_call *f = &call->forward;
    for (int64_t entry = 0; entry < f->kv_batch; entry++) {
        for (int64_t row = 0; row < f->rows_k; row++) {
            if (!s->key_written[entry * f->rows_k + row])
                continue;
            for (int64_t head = 0; head < f->heads_k; head++) {
                int64_t k = row_offset(&f->k, entry, head, row), v = row_offset(&f->v, entry, head, row);
                finish_row(call, &call->dk, entry, head, row, call->add_dk, s->dk.value + k, s->dk.error + k, &out->dk);
                finish_row(call, &call->dv, entry, head, row, call->add_dv, s->dv.value + v, s->dv.error + v, &out->dv);
                if (f->d2 > 0) {
                    k = row_offset(&f->k2, entry, head, row);
                    finish_row(call, &call->dk2, entry, head, row, call->add_dk, s->dk2.value + k, s->dk2.error + k,
                               &out->dk2);
                }
            }
        }
    }
}

static void finish_bias_and_sinks(const backward_scratch *s, const backward_call *call, kiln_oracle_gradients *out)
{
    const kiln_oracle_attention_call *f = &call->forward;
    if (s->dbias.value && kiln_oracle_wanted(&out->dbias)) {
        for (int64_t i = 0; i < elements(&f->bias); i++) {
            if (s->bias_written[i])
                finish_run(call, &call->dbias, 0, 0, false, s->dbias.value + i, s->dbias.error + i, 1, &out->dbias, i);
        }
    }
    if (s->dsinks.value && kiln_oracle_wanted(&out->dsinks))
        finish_run(call, &call->dsinks, 0, 0, false, s->dsinks.value, s->dsinks.error, f->heads, &out->dsinks, 0);
}

/* Which keys and which elements of dbias belong to some sequence. */
static void mark_written(backward_scratch *s, const backward_call *call, const kiln_oracle_sequence *seq)
{
    const kiln_oracle_attention_call *f = &call->forward;
    if (seq->k_batch < 0 || seq->k_batch >= f->kv_batch)
        return;
    for (int64_t j = 0; j < seq->seqlen_k; j++)
        s->key_written[seq->k_batch * f->rows_k + seq->k_row + j] = 1;
    for (int64_t head = 0; s->dbias.value && head < f->heads; head++) {
        for (int64_t i = 0; i < seq->seqlen_q; i++) {
            for (int64_t j = 0; j < seq->seqlen_k; j++)
                s->bias_written[bias_offset(&f->bias, seq->b, head, i, j)] = 1;
        }
    }
}

static kiln_status call_init(backward_call *call, const kiln_attention_backward_args *args,
                             const kiln_numerics *numerics)
{
    kiln_status status = kiln_oracle_call_init(&call->forward, args->forward, numerics);
    if (status != KILN_OK)
        return status;
    const kiln_oracle_attention_call *f = &call->forward;
    if (f->paged)
        return KILN_UNSUPPORTED;
    call->args = args;
    call->dout = kiln_oracle_view_of(args->dout, f->packed_q);
    call->dlse = kiln_oracle_view_of(args->dlse, f->packed_q);
    call->dq = kiln_oracle_view_of(args->dq, f->packed_q);
    call->dq2 = kiln_oracle_view_of(args->dq2, f->packed_q);
    call->dk = kiln_oracle_view_of(args->dk, f->packed_k);
    call->dk2 = kiln_oracle_view_of(args->dk2, f->packed_k);
    call->dv = kiln_oracle_view_of(args->dv, f->packed_k);
    call->dbias = kiln_oracle_view_of(f->bias.type ? args->dbias : NULL, 0);
    call->dsinks = kiln_oracle_view_of(f->sinks.type ? args->dsinks : NULL, 0);
    uint64_t flags = args->flags | args->forward->flags;
    call->add_dq = flags & KILN_FLAG_ACCUMULATE_DQ;
    call->add_dk = flags & KILN_FLAG_ACCUMULATE_DK;
    call->add_dv = flags & KILN_FLAG_ACCUMULATE_DV;
    int64_t all = f->batch * f->heads * f->rows_q * f->rows_k, own = elements(&f->bias);
    call->bias_terms = own > 0 && all > own ? all / own : 1;
    return KILN_OK;
}

kiln_status kiln_oracle_attention_backward(const kiln_attention_backward_args *args, const kiln_numerics *numerics,
                                           kiln_oracle_gradients *out)
{
    backward_call call = {0};
    kiln_status status = call_init(&call, args, numerics);
    if (status != KILN_OK)
        return status;
    backward_scratch scratch = {0};
    if (!scratch_init(&scratch, &call)) {
        scratch_free(&scratch);
        return KILN_OUT_OF_MEMORY;
    }
    untouched(&call.dq, &out->dq);
    untouched(&call.dk, &out->dk);
    untouched(&call.dv, &out->dv);
    untouched(&call.dq2, &out->dq2);
    untouched(&call.dk2, &out->dk2);
    untouched(&call.dbias, &out->dbias);

    const kiln_oracle_attention_call *f = &call.forward;
    for (int64_t b = 0; b < f->batch; b++) {
        kiln_oracle_sequence seq = kiln_oracle_sequence_of(f, b);
        mark_written(&scratch, &call, &seq);
        for (int64_t head = 0; head < f->heads; head++) {
            for (int64_t i = 0; i < seq.seqlen_q; i += LANES)
                backward_block(&scratch, &call, &seq, head, i,
                               (int)(seq.seqlen_q - i < LANES ? seq.seqlen_q - i : LANES), out);
        }
    }
    finish_keys(&scratch, &call, out);
    finish_bias_and_sinks(&scratch, &call, out);
    scratch_free(&scratch);
    return KILN_OK;
}
