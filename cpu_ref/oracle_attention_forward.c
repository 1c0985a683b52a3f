/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_attention_forward.c: attention forward in fp64: all scores of a row, exact maximum, weights, then P·V.
 * Cost: O(rows · seqlen_k · (d + d_v)) time, O(seqlen_k + d + d_v) memory.
 */
#include <math.h>
#include <stdlib.h>

#include "oracle_private.h"

enum { LANES = KILN_ORACLE_LANES };

/* Arrays of one call. */
typedef struct forward_scratch {
    kiln_oracle_block block;
    double *scratch;           /* [key] */
    double *p, *error;         /* [key][lane]: scores and their errors, then weights and theirs */
    double *v;                 /* [d_v] */
    double *value, *error_sum; /* [lane][d_v] */
    double largest[LANES];     /* of |v| over the visible keys */
} forward_scratch;

static bool scratch_init(forward_scratch *s, const kiln_oracle_attention_call *call)
{
    bool ok = kiln_oracle_block_init(&s->block, call);
    s->p = kiln_oracle_alloc(call->max_seqlen_k * LANES);
    s->error = kiln_oracle_alloc(call->max_seqlen_k * LANES);
    s->v = kiln_oracle_alloc(call->d_v);
    s->value = kiln_oracle_alloc(call->d_v * LANES);
    s->error_sum = kiln_oracle_alloc(call->d_v * LANES);
    s->scratch = kiln_oracle_alloc(call->max_seqlen_k);
    return ok && s->scratch && s->p && s->error && s->v && s->value && s->error_sum;
}

static void scratch_free(forward_scratch *s)
{
    kiln_oracle_block_free(&s->block);
    free(s->scratch);
    free(s->p);
    free(s->error);
    free(s->v);
    free(s->value);
    free(s->error_sum);
}

/* Adds weight·v of every visible key to the lanes. Hidden keys are not multiplied, only passed over. */
static void multiply_values(forward_scratch *s, const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq,
                            const kiln_oracle_row *rows)
{
    const kiln_numerics *numerics = call->numerics;
    double relative[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        s->largest[lane] = 0;
        relative[lane] =
            lane < s->block.lanes
                ? kiln_oracle_gamma(numerics, rows[lane].depth + (call->keep_scale != 1)) + numerics->p_unit
                : 0;
    }
    for (int64_t c = 0; c < call->d_v * LANES; c++)
        s->value[c] = s->error_sum[c] = 0;
    for (int64_t j = 0; j < seq->seqlen_k; j++) {
        const uint8_t *visible = s->block.visible + j * LANES;
        bool loaded = false;
        double largest = 0;
        for (int lane = 0; lane < s->block.lanes; lane++) {
            if (!visible[lane])
                continue;
            if (!loaded) {
                kiln_oracle_load_key(call, seq, &call->v, s->block.head, j, s->v);
                for (int64_t c = 0; c < call->d_v; c++)
                    largest = fmax(largest, fabs(s->v[c]));
                loaded = true;
            }
            double keep = kiln_oracle_keep(call, seq, s->block.head, s->block.first + lane, j);
            double p = keep * s->p[j * LANES + lane];
            double e = keep * s->error[j * LANES + lane] + p * relative[lane];
            double *value = s->value + lane * call->d_v, *error = s->error_sum + lane * call->d_v;
            s->largest[lane] = fmax(s->largest[lane], largest);
            for (int64_t c = 0; c < call->d_v; c++) {
                value[c] += p * s->v[c];
                error[c] += e * fabs(s->v[c]);
            }
        }
    }
}

/* Does an infinite v of column c meet a weight below what kernels must tell from 0? */
static bool weight_may_vanish(forward_scratch *s, const kiln_oracle_attention_call *call,
                              const kiln_oracle_sequence *seq, int lane, int64_t c, double sum_error)
{
    for (int64_t j = 0; j < seq->seqlen_k; j++) {
        if (!s->block.visible[j * LANES + lane] ||
            !(s->p[j * LANES + lane] < KILN_ORACLE_WEIGHT_MIN * (1 + 2 * fmin(sum_error, 1))))
            continue;
        kiln_oracle_load_key(call, seq, &call->v, s->block.head, j, s->v);
        if (isinf(s->v[c]))
            return true;
    }
    return false;
}

static void store_row(forward_scratch *s, const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq,
                      int lane, const kiln_oracle_row *row, kiln_oracle_attention *out)
{
    int64_t number = kiln_oracle_row_number(call, seq, s->block.head, s->block.first + lane);
    kiln_oracle_finish(&out->lse, number, row->lse, row->lse_error, call->lse.type);
    for (int64_t c = 0; c < call->d_v; c++) {
        /* Without a visible weight (all scores -inf, no sink) the row is 0 whatever v holds. */
        double value = row->max == -INFINITY ? 0 : isnan(row->max) ? NAN : s->value[lane * call->d_v + c];
        double error = 0;
        if (isfinite(value) && row->max > -INFINITY)
            error = kiln_oracle_mean_error(call->numerics, row, value, s->error_sum[lane * call->d_v + c],
                                           call->keep_scale * s->largest[lane], s->block.seen[lane]);
        else if (isinf(value) && weight_may_vanish(s, call, seq, lane, c, row->sum_error))
            error = NAN;
        kiln_oracle_finish(&out->o, number * call->d_v + c, value, error, call->o.type);
    }
}

static void forward_block(forward_scratch *s, const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq,
                          int64_t head, int64_t first, int lanes, kiln_oracle_attention *out)
{
    kiln_oracle_row rows[LANES];
    kiln_oracle_block_begin(&s->block, call, seq, head, first, lanes);
    for (int64_t j = 0; j < seq->seqlen_k; j++) {
        (void)kiln_oracle_block_score(&s->block, call, seq, j);
        for (int lane = 0; lane < LANES; lane++) {
            s->p[j * LANES + lane] = s->block.s[lane];
            s->error[j * LANES + lane] = s->block.ds[lane];
        }
    }
    for (int lane = 0; lane < lanes; lane++)
        kiln_oracle_row_weights(call->numerics, seq->seqlen_k, LANES, s->p + lane, s->error + lane,
                                kiln_oracle_sink(call, head), s->p + lane, s->error + lane, s->scratch, &rows[lane]);
    if (kiln_oracle_wanted(&out->o))
        multiply_values(s, call, seq, rows);
    for (int lane = 0; lane < lanes; lane++)
        store_row(s, call, seq, lane, &rows[lane], out);
}

kiln_status kiln_oracle_attention_forward_rows(const kiln_attention_forward_args *args, const kiln_numerics *numerics,
                                               int64_t begin, int64_t end, kiln_oracle_attention *out)
{
    kiln_oracle_attention_call call;
    kiln_status status = kiln_oracle_call_init(&call, args, numerics);
    if (status != KILN_OK)
        return status;
    forward_scratch scratch = {0};
    if (!scratch_init(&scratch, &call)) {
        scratch_free(&scratch);
        return KILN_OUT_OF_MEMORY;
    }
    for (int64_t row = begin; row < end; row++) {
        kiln_oracle_put(&out->lse, row, NAN, NAN);
        for (int64_t c = 0; c < call.d_v; c++)
            kiln_oracle_put(&out->o, row * call.d_v + c, NAN, NAN);
    }
    for (int64_t b = 0; b < call.batch; b++) {
        kiln_oracle_sequence seq = kiln_oracle_sequence_of(&call, b);
        for (int64_t head = 0; head < call.heads; head++) {
            int64_t number = kiln_oracle_row_number(&call, &seq, head, 0);
            int64_t i = begin > number ? begin - number : 0;
            int64_t stop = end - number < seq.seqlen_q ? end - number : seq.seqlen_q;
            for (; i < stop; i += LANES)
                forward_block(&scratch, &call, &seq, head, i, (int)(stop - i < LANES ? stop - i : LANES), out);
        }
    }
    scratch_free(&scratch);
    return KILN_OK;
}

kiln_status kiln_oracle_attention_forward(const kiln_attention_forward_args *args, const kiln_numerics *numerics,
                                          kiln_oracle_attention *out)
{
    const int64_t *shape = args->q->shape; /* one axis less when packed: the rest is the same */
    int64_t rows = 1;
    for (int32_t axis = 0; axis + 1 < args->q->ndim; axis++)
        rows *= shape[axis];
    return kiln_oracle_attention_forward_rows(args, numerics, 0, rows, out);
}
