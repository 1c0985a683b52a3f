/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * validate_attention.c: attention arguments -> kiln_attention_problem, forward and backward.
 *
 * One function per group of fields of kiln_attention_forward_args, in the order of the header; each checks its fields and
 * fills its part of the problem. Backward validates its `forward` by the same functions (o and softmax_lse are inputs then)
 * and adds the gradients.
 */
#include "validate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "philox.h"

enum { MAX_HEAD_DIM = 576, MAX_SPLITS = 1024 };
/* Positions stay far from the ends of int64, so that sums of a few of them cannot overflow. */
static const int64_t max_position = INT64_C(1) << 60;

/* What the groups share. */
typedef struct job {
    const kiln_context *context;
    const kiln_attention_forward_args *a;
    kiln_attention_problem *p;
    bool query, backward;
    bool packed_q, packed_k, paged;
} job;

static kiln_status check(const job *j, const kiln_tensor *tensor, bool required, const char *name, const char *shape,
                         int rank, const int32_t *types, kiln_role role)
{
    const kiln_tensor_rule rule = {name, shape, types, rank, role};
    return required ? kiln_check_tensor(j->context, tensor, &rule, j->query)
                    : kiln_check_optional(j->context, tensor, &rule, j->query);
}

static kiln_status check_int32(const job *j, const kiln_tensor *tensor, const char *name, int64_t count,
                               const char *shape)
{
    KILN_TRY(check(j, tensor, false, name, shape, 1, kiln_types_int32, KILN_INPUT));
    return kiln_check_size(tensor, name, 0, "batch", count, "one entry per sequence");
}

/* K and V may be of an 8-bit type one day; today that is a clear refusal, not a wrong argument. */
static kiln_status check_cache_type(const kiln_tensor *t, const char *name)
{
    if (t && t->dtype.bits == 8 && t->dtype.code != 1 && t->dtype.code != 6)
        return kiln_fail(KILN_UNSUPPORTED,
                         "%s.dtype is %s; 8-bit keys and values are not built yet, float32, float16 and "
                         "bfloat16 are",
                         name, kiln_type_name(kiln_tensor_type(t)));
    return KILN_OK;
}

/* q, k, v, o, softmax_lse, q2, k2, descales. */
static kiln_status main_tensors(job *j)
{
    const kiln_attention_forward_args *a = j->a;
    kiln_attention_problem *p = j->p;
    int rank_q = j->packed_q ? 3 : 4, rank_k = j->packed_k ? 3 : 4, first_q = 4 - rank_q, first_k = 4 - rank_k;
    const char *shape_q = j->packed_q ? "(heads, total_q, d)" : "(batch, heads, seqlen_q, d)";
    const char *shape_o = j->packed_q ? "(heads, total_q, d_v)" : "(batch, heads, seqlen_q, d_v)";
    const char *shape_k = j->paged      ? "(num_pages, heads_k, page_size, d)"
                          : j->packed_k ? "(heads_k, total_k, d)"
                                        : "(batch, heads_k, seqlen_k, d)";
    const char *shape_v = j->paged      ? "(num_pages, heads_k, page_size, d_v)"
                          : j->packed_k ? "(heads_k, total_k, d_v)"
                                        : "(batch, heads_k, seqlen_k, d_v)";
    kiln_role output = j->backward ? KILN_INPUT : KILN_OUTPUT;
    KILN_TRY(check_cache_type(a->q, "q"));
    KILN_TRY(check_cache_type(a->k, "k"));
    KILN_TRY(check_cache_type(a->v, "v"));
    KILN_TRY(check(j, a->q, true, "q", shape_q, rank_q, kiln_types_float, KILN_INPUT));
    KILN_TRY(check(j, a->k, true, "k", shape_k, rank_k, kiln_types_float, KILN_INPUT));
    KILN_TRY(check(j, a->v, true, "v", shape_v, rank_k, kiln_types_float, KILN_INPUT));
    KILN_TRY(check(j, a->o, true, "o", shape_o, rank_q, kiln_types_float, output));
    KILN_TRY(check(j, a->softmax_lse, j->backward, "softmax_lse",
                   j->packed_q ? "(heads, total_q)" : "(batch, heads, seqlen_q)", rank_q - 1, kiln_types_fp32, output));
    int32_t type = kiln_tensor_type(a->q);
    KILN_TRY(kiln_check_type(a->k, "k", type, type));
    KILN_TRY(kiln_check_type(a->v, "v", type, type));
    KILN_TRY(kiln_check_type(a->o, "o", type, KILN_FLOAT32));

    const int64_t *q = a->q->shape + (rank_q - 3), *k = a->k->shape + (rank_k - 3), *v = a->v->shape + (rank_k - 3);
    p->heads = q[0], p->heads_k = k[0], p->d = q[2], p->d_v = v[2];
    KILN_TRY(kiln_check_range("heads (q's head axis)", p->heads, 1, INT32_MAX));
    KILN_TRY(kiln_check_range("heads_k (k's head axis)", p->heads_k, 1, INT32_MAX));
    if (p->heads % p->heads_k)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "heads is %" PRId64 " and heads_k is %" PRId64 "; heads must be a multiple of heads_k",
                         p->heads, p->heads_k);
    KILN_TRY(kiln_check_range("d (q's last size)", p->d, 1, MAX_HEAD_DIM));
    KILN_TRY(kiln_check_range("d_v (v's last size)", p->d_v, 1, MAX_HEAD_DIM));
    KILN_TRY(kiln_check_size(a->k, "k", rank_k - 1, "d", p->d, "as q's"));
    KILN_TRY(kiln_check_size(a->v, "v", rank_k - 3, "heads_k", p->heads_k, "as k's"));
    KILN_TRY(kiln_check_size(a->v, "v", rank_k - 2, j->paged ? "page_size" : "seqlen_k", k[1], "as k's"));
    KILN_TRY(kiln_check_size(a->o, "o", rank_q - 3, "heads", p->heads, "as q's"));
    KILN_TRY(kiln_check_size(a->o, "o", rank_q - 2, j->packed_q ? "total_q" : "seqlen_q", q[1], "as q's"));
    KILN_TRY(kiln_check_size(a->o, "o", rank_q - 1, "d_v", p->d_v, "as v's"));
    KILN_TRY(kiln_check_size(a->softmax_lse, "softmax_lse", rank_q - 3, "heads", p->heads, "as q's"));
    KILN_TRY(kiln_check_size(a->softmax_lse, "softmax_lse", rank_q - 2, "queries", q[1], "as q's"));
    if (rank_k == 4 && rank_q == 4 && !j->paged && !a->cache_batch_idx)
        KILN_TRY(
            kiln_check_size(a->k, "k", 0, "batch", a->q->shape[0], "as q's (only cache_batch_idx allows another)"));
    if (rank_k == 4)
        KILN_TRY(kiln_check_size(a->v, "v", 0, j->paged ? "num_pages" : "batch", a->k->shape[0], "as k's"));
    if (rank_q == 4) {
        KILN_TRY(kiln_check_size(a->o, "o", 0, "batch", a->q->shape[0], "as q's"));
        KILN_TRY(kiln_check_size(a->softmax_lse, "softmax_lse", 0, "batch", a->q->shape[0], "as q's"));
    }

    if (!a->q2 != !a->k2)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is NULL but %s is given; q2 and k2 come together",
                         a->q2 ? "k2" : "q2", a->q2 ? "q2" : "k2");
    if (a->q2) {
        KILN_TRY(check(j, a->q2, true, "q2", "q's shape with d2 last", rank_q, kiln_types_float, KILN_INPUT));
        KILN_TRY(check(j, a->k2, true, "k2", "k's shape with d2 last", rank_k, kiln_types_float, KILN_INPUT));
        KILN_TRY(kiln_check_type(a->q2, "q2", type, type));
        KILN_TRY(kiln_check_type(a->k2, "k2", type, type));
        p->d2 = a->q2->shape[rank_q - 1];
        KILN_TRY(kiln_check_range("d2 (q2's last size)", p->d2, 1, MAX_HEAD_DIM));
        KILN_TRY(kiln_check_size(a->k2, "k2", rank_k - 1, "d2", p->d2, "as q2's"));
        for (int axis = 0; axis < rank_q - 1; axis++)
            KILN_TRY(kiln_check_size(a->q2, "q2", axis, "same shape", a->q->shape[axis], "as q's"));
        for (int axis = 0; axis < rank_k - 1; axis++)
            KILN_TRY(kiln_check_size(a->k2, "k2", axis, "same shape", a->k->shape[axis], "as k's"));
    }
    if (a->q_descale || a->k_descale || a->v_descale)
        return kiln_fail(KILN_UNSUPPORTED, "%s is given; scales of 8-bit types are not built yet",
                         a->q_descale   ? "q_descale"
                         : a->k_descale ? "k_descale"
                                        : "v_descale");

    p->q = kiln_view_of(a->q, first_q);
    p->k = kiln_view_of(a->k, first_k);
    p->v = kiln_view_of(a->v, first_k);
    p->o = kiln_view_of(a->o, first_q);
    p->lse = kiln_view_of(a->softmax_lse, first_q);
    p->q2 = kiln_view_of(a->q2, first_q);
    p->k2 = kiln_view_of(a->k2, first_k);
    return KILN_OK;
}

/* Batch size, packed, shortened and paged sequences. */
static kiln_status lengths(job *j)
{
    const kiln_attention_forward_args *a = j->a;
    kiln_attention_problem *p = j->p;
    KILN_TRY(check(j, a->cu_seqlens_q, false, "cu_seqlens_q", "(batch + 1)", 1, kiln_types_int32, KILN_INPUT));
    KILN_TRY(check(j, a->cu_seqlens_k, false, "cu_seqlens_k", "(batch + 1)", 1, kiln_types_int32, KILN_INPUT));
    KILN_TRY(check(j, a->block_table, false, "block_table", "(batch, max_pages)", 2, kiln_types_int32, KILN_INPUT));
    if (j->packed_q)
        KILN_TRY(kiln_check_range("cu_seqlens_q.shape[0] (batch + 1)", a->cu_seqlens_q->shape[0], 1, INT32_MAX));
    p->batch = j->packed_q ? a->cu_seqlens_q->shape[0] - 1 : a->q->shape[0];
    KILN_TRY(kiln_check_range("batch", p->batch, 0, INT32_MAX));
    KILN_TRY(kiln_check_size(a->cu_seqlens_k, "cu_seqlens_k", 0, "batch + 1", p->batch + 1,
                             "one more than q has sequences"));
    if (j->paged && !a->seqused_k)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "seqused_k is NULL; with block_table it is required and gives the lengths");

    p->total_q = p->seqlen_q = a->q->shape[a->q->ndim - 2];
    p->total_k = p->seqlen_k = a->k->shape[a->k->ndim - 2];
    if (j->paged) {
        p->page_size = p->seqlen_k;
        KILN_TRY(kiln_check_range("page_size (k.shape[2])", p->page_size, 1, INT32_MAX));
        if (__builtin_mul_overflow(p->page_size, a->block_table->shape[1], &p->seqlen_k) || p->seqlen_k > max_position)
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "block_table.shape[1] (max_pages) is %" PRId64 " with page_size %" PRId64
                             "; their product must not exceed 2^60",
                             a->block_table->shape[1], p->page_size);
        p->total_k = p->seqlen_k;
    }
    KILN_TRY(kiln_check_range("seqlen_q", p->seqlen_q, 0, max_position));
    KILN_TRY(kiln_check_range("seqlen_k", p->seqlen_k, 0, max_position));

    if (a->cache_batch_idx && j->packed_k)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "cache_batch_idx is given with cu_seqlens_k; packed keys have no batch axis to "
                         "index");
    if (a->leftpad_k && j->packed_k)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "leftpad_k is given with cu_seqlens_k; for packed keys move cu_seqlens_k "
                         "instead");
    KILN_TRY(check_int32(j, a->cache_batch_idx, "cache_batch_idx", p->batch, "(batch)"));
    p->kv_batch = j->paged ? a->block_table->shape[0] : j->packed_k ? p->batch : a->k->shape[0];
    if (!a->cache_batch_idx && p->kv_batch != p->batch)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "%s.shape[0] (batch) is %" PRId64 "; it must be %" PRId64
                         ", as q's (only cache_batch_idx allows another)",
                         j->paged ? "block_table" : "k", p->kv_batch, p->batch);
    KILN_TRY(check_int32(j, a->seqused_q, "seqused_q", p->batch, "(batch)"));
    KILN_TRY(check_int32(j, a->seqused_k, "seqused_k", p->batch, "(batch)"));
    KILN_TRY(check_int32(j, a->leftpad_k, "leftpad_k", p->batch, "(batch)"));

    if (a->max_seqlen_q && !j->packed_q)
        return kiln_fail(KILN_INVALID_ARGUMENT, "max_seqlen_q is %" PRId64 "; without cu_seqlens_q it must be 0",
                         a->max_seqlen_q);
    if (a->max_seqlen_k && !j->packed_k)
        return kiln_fail(KILN_INVALID_ARGUMENT, "max_seqlen_k is %" PRId64 "; without cu_seqlens_k it must be 0",
                         a->max_seqlen_k);
    KILN_TRY(kiln_check_range("max_seqlen_q", a->max_seqlen_q, 0, INT64_MAX));
    KILN_TRY(kiln_check_range("max_seqlen_k", a->max_seqlen_k, 0, INT64_MAX));
    if (a->max_seqlen_q && a->max_seqlen_q < p->seqlen_q)
        p->seqlen_q = a->max_seqlen_q;
    if (a->max_seqlen_k && a->max_seqlen_k < p->seqlen_k)
        p->seqlen_k = a->max_seqlen_k;

    p->cu_seqlens_q = kiln_view_of(a->cu_seqlens_q, 0);
    p->cu_seqlens_k = kiln_view_of(a->cu_seqlens_k, 0);
    p->seqused_q = kiln_view_of(a->seqused_q, 0);
    p->seqused_k = kiln_view_of(a->seqused_k, 0);
    p->leftpad_k = kiln_view_of(a->leftpad_k, 0);
    p->block_table = kiln_view_of(a->block_table, 0);
    p->cache_batch_idx = kiln_view_of(a->cache_batch_idx, 0);
    return KILN_OK;
}

/* A (batch, heads, seqlen_q, keys) operand whose axes may be 1. */
static kiln_status check_score_operand(const job *j, const kiln_tensor *t, const char *name)
{
    const kiln_attention_problem *p = j->p;
    if (t && (j->packed_q || j->packed_k))
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is given with %s; it is defined for dense queries and keys only",
                         name, j->packed_q ? "cu_seqlens_q" : "cu_seqlens_k");
    KILN_TRY(kiln_check_broadcast(t, name, 0, "batch", p->batch));
    KILN_TRY(kiln_check_broadcast(t, name, 1, "heads", p->heads));
    return kiln_check_broadcast(t, name, 2, "seqlen_q", p->seqlen_q);
}

static kiln_status scores(job *j)
{
    const kiln_attention_forward_args *a = j->a;
    kiln_attention_problem *p = j->p;
    KILN_TRY(kiln_check_finite("softmax_scale", a->softmax_scale));
    bool by_default = a->softmax_scale == 0 && !(a->flags & KILN_FLAG_SCALE_EXPLICIT);
    p->softmax_scale = by_default ? 1.0 / sqrt((double)(p->d + p->d2)) : (double)a->softmax_scale;
    KILN_TRY(kiln_check_finite("softcap", a->softcap));
    if (a->softcap < 0)
        return kiln_fail(KILN_INVALID_ARGUMENT, "softcap is %g; 0 (none) or a positive number is allowed",
                         (double)a->softcap);
    p->softcap = a->softcap;

    int32_t type = kiln_tensor_type(a->q);
    KILN_TRY(check(j, a->bias, false, "bias", "(batch, heads, seqlen_q, seqlen_k)", 4, kiln_types_float, KILN_INPUT));
    KILN_TRY(kiln_check_type(a->bias, "bias", KILN_FLOAT32, type));
    KILN_TRY(check_score_operand(j, a->bias, "bias"));
    KILN_TRY(kiln_check_broadcast(a->bias, "bias", 3, j->paged ? "max_pages * page_size" : "seqlen_k", p->seqlen_k));
    p->bias = kiln_view_of(a->bias, 0);

    int alibi_rank = a->alibi_slopes && a->alibi_slopes->ndim == 1 ? 1 : 2;
    KILN_TRY(check(j, a->alibi_slopes, false, "alibi_slopes", "(heads) or (batch, heads)", alibi_rank, kiln_types_fp32,
                   KILN_INPUT));
    KILN_TRY(kiln_check_size(a->alibi_slopes, "alibi_slopes", alibi_rank - 1, "heads", p->heads, "as q's"));
    if (alibi_rank == 2)
        KILN_TRY(kiln_check_size(a->alibi_slopes, "alibi_slopes", 0, "batch", p->batch, "as q's"));
    p->alibi = kiln_view_of(a->alibi_slopes, 2 - alibi_rank);

    KILN_TRY(check(j, a->sinks, false, "sinks", "(heads)", 1, kiln_types_float, KILN_INPUT));
    KILN_TRY(kiln_check_type(a->sinks, "sinks", KILN_FLOAT32, type));
    KILN_TRY(kiln_check_size(a->sinks, "sinks", 0, "heads", p->heads, "as q's"));
    p->sinks = kiln_view_of(a->sinks, 1);
    return KILN_OK;
}

static kiln_status masks(job *j)
{
    const kiln_attention_forward_args *a = j->a;
    kiln_attention_problem *p = j->p;
    KILN_TRY(kiln_check_range("mask", a->mask, KILN_MASK_NONE, KILN_MASK_WINDOW_BOTTOM_RIGHT));
    bool window = a->mask == KILN_MASK_WINDOW_TOP_LEFT || a->mask == KILN_MASK_WINDOW_BOTTOM_RIGHT;
    if (!window && (a->window_left || a->window_right))
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "window_%s is %" PRId64 " with mask %d (%s); windows need mask "
                         "KILN_MASK_WINDOW_TOP_LEFT or KILN_MASK_WINDOW_BOTTOM_RIGHT, otherwise both must be 0",
                         a->window_left ? "left" : "right", a->window_left ? a->window_left : a->window_right, a->mask,
                         a->mask == KILN_MASK_NONE ? "none" : "causal");
    p->bottom_right = a->mask != KILN_MASK_CAUSAL_TOP_LEFT && a->mask != KILN_MASK_WINDOW_TOP_LEFT;
    p->window_left = window ? a->window_left : KILN_UNBOUNDED;
    p->window_right = window ? a->window_right : a->mask == KILN_MASK_NONE ? KILN_UNBOUNDED : 0;
    p->masked = p->window_left != KILN_UNBOUNDED || p->window_right != KILN_UNBOUNDED;

    KILN_TRY(check(j, a->attn_mask, false, "attn_mask", "(batch, heads, seqlen_q, mask_len)", 4, kiln_types_mask,
                   KILN_INPUT));
    KILN_TRY(check_score_operand(j, a->attn_mask, "attn_mask"));
    if (a->attn_mask) {
        p->mask_len = a->attn_mask->shape[3];
        KILN_TRY(kiln_check_range("attn_mask.shape[3] (mask_len)", p->mask_len, 0, p->seqlen_k));
    }
    p->attn_mask = kiln_view_of(a->attn_mask, 0);
    return KILN_OK;
}

static kiln_status check_step(const char *name, int64_t step, int64_t length, int64_t *result)
{
    KILN_TRY(kiln_check_range(name, step, 0, max_position / (length > 0 ? length : 1)));
    *result = step ? step : 1;
    return KILN_OK;
}

static kiln_status positions(job *j)
{
    const kiln_attention_forward_args *a = j->a;
    kiln_attention_problem *p = j->p;
    KILN_TRY(kiln_check_range("q_start", a->q_start, -max_position, max_position));
    KILN_TRY(kiln_check_range("k_start", a->k_start, -max_position, max_position));
    KILN_TRY(check_step("q_step", a->q_step, p->seqlen_q, &p->q_step));
    KILN_TRY(check_step("k_step", a->k_step, p->seqlen_k, &p->k_step));
    p->q_start = a->q_start;
    p->k_start = a->k_start;
    KILN_TRY(check_int32(j, a->q_starts, "q_starts", p->batch, "(batch)"));
    KILN_TRY(check_int32(j, a->k_starts, "k_starts", p->batch, "(batch)"));
    p->q_starts = kiln_view_of(a->q_starts, 0);
    p->k_starts = kiln_view_of(a->k_starts, 0);
    return KILN_OK;
}

static kiln_status dropout_and_running(job *j)
{
    const kiln_attention_forward_args *a = j->a;
    kiln_attention_problem *p = j->p;
    if (!(a->dropout_p >= 0 && a->dropout_p < 1) || kiln_dropout_threshold(a->dropout_p) == 0)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "dropout_p is %g; 0 to 1 - 1/512 is allowed (weights are kept in steps of "
                         "1/256, at least one of them)",
                         (double)a->dropout_p);
    p->dropout_threshold = kiln_dropout_threshold(a->dropout_p);
    p->dropout_seed = a->dropout_seed;
    p->dropout_offset = a->dropout_offset;
    p->dropout_seed_ptr = a->dropout_seed_ptr;
    p->dropout_offset_ptr = a->dropout_offset_ptr;
    KILN_TRY(kiln_check_range("num_splits", a->num_splits, 0, MAX_SPLITS));
    KILN_TRY(kiln_check_range("max_sms", a->max_sms, 0, INT32_MAX));
    KILN_TRY(kiln_check_flags(a->flags,
                              KILN_FLAG_SCALE_EXPLICIT | KILN_FLAG_DETERMINISTIC | KILN_FLAG_BATCH_INVARIANT |
                                  KILN_FLAG_WORKSPACE_ZEROED,
                              "attention_forward"));
    p->num_splits = a->num_splits;
    p->max_sms = a->max_sms;
    p->flags = a->flags;
    p->device_status = a->device_status;
    p->algorithm = a->algorithm;
    return KILN_OK;
}

static kiln_status describe(job *j)
{
    j->packed_q = j->a->cu_seqlens_q != NULL;
    j->packed_k = j->a->cu_seqlens_k != NULL;
    j->paged = j->a->block_table != NULL;
    if (j->paged && j->packed_k)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "block_table and cu_seqlens_k are both given; keys are paged or packed, not both");
    KILN_TRY(main_tensors(j));
    KILN_TRY(lengths(j));
    KILN_TRY(scores(j));
    KILN_TRY(masks(j));
    KILN_TRY(positions(j));
    return dropout_and_running(j);
}

/* The inputs of the forward description, for the overlap check; returns how many. */
static int name_inputs(const kiln_attention_forward_args *a, kiln_named_tensor *named)
{
    const kiln_named_tensor inputs[] = {
        {a->q, "q", KILN_INPUT},
        {a->k, "k", KILN_INPUT},
        {a->v, "v", KILN_INPUT},
        {a->q2, "q2", KILN_INPUT},
        {a->k2, "k2", KILN_INPUT},
        {a->bias, "bias", KILN_INPUT},
        {a->alibi_slopes, "alibi_slopes", KILN_INPUT},
        {a->sinks, "sinks", KILN_INPUT},
        {a->attn_mask, "attn_mask", KILN_INPUT},
    };
    memcpy(named, inputs, sizeof inputs);
    return (int)(sizeof inputs / sizeof *inputs);
}

kiln_status kiln_validate_attention_forward(const kiln_context *context, const void *copied, bool query,
                                            kiln_problem *problem)
{
    job j = {.context = context, .a = copied, .p = &problem->attention, .query = query};
    KILN_TRY(describe(&j));
    if (query)
        return KILN_OK;
    kiln_named_tensor named[16];
    int count = name_inputs(j.a, named);
    named[count++] = (kiln_named_tensor){j.a->o, "o", KILN_OUTPUT};
    named[count++] = (kiln_named_tensor){j.a->softmax_lse, "softmax_lse", KILN_OUTPUT};
    return kiln_check_overlap(named, count);
}

/* A gradient with the shape of `like`, of its type or fp32. */
static kiln_status check_gradient(const job *j, const kiln_tensor *t, const char *name, const kiln_tensor *like,
                                  const char *like_name, kiln_role role, bool required)
{
    char shape[64], reason[32];
    snprintf(shape, sizeof shape, "the shape of %s", like_name);
    snprintf(reason, sizeof reason, "as %s's", like_name);
    KILN_TRY(check(j, t, required, name, shape, like->ndim, kiln_types_float, role));
    KILN_TRY(kiln_check_type(t, name, kiln_tensor_type(like), KILN_FLOAT32));
    for (int axis = 0; axis < like->ndim; axis++)
        KILN_TRY(kiln_check_size(t, name, axis, "same shape", like->shape[axis], reason));
    return KILN_OK;
}

/* A gradient of something that is not there makes no sense. */
static kiln_status check_needs(const kiln_tensor *t, const char *name, const kiln_tensor *of, const char *of_name)
{
    if (t && !of)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is given but forward->%s is NULL", name, of_name);
    return KILN_OK;
}

kiln_status kiln_validate_attention_backward(const kiln_context *context, const void *copied, bool query,
                                             kiln_problem *problem)
{
    const kiln_attention_backward_args *a = copied;
    kiln_attention_backward_problem *p = &problem->backward;
    kiln_attention_forward_args f;
    KILN_TRY(kiln_args_copy(&f, sizeof f, a->forward, "kiln_attention_forward_args (attention_backward's forward)"));
    job j = {.context = context, .a = &f, .p = &p->forward, .query = query, .backward = true};
    KILN_TRY(describe(&j));
    if (j.paged)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "forward->block_table is given; gradients of paged keys are not defined, "
                         "gather them first");

    kiln_tensor as_o = *f.o; /* dout may have q's type whatever o's is */
    as_o.dtype = f.q->dtype;
    KILN_TRY(check_gradient(&j, a->dout, "dout", &as_o, "o", KILN_INPUT, true));
    KILN_TRY(check_gradient(&j, a->dlse, "dlse", f.softmax_lse, "softmax_lse", KILN_INPUT, false));
    KILN_TRY(check_gradient(&j, a->dq, "dq", f.q, "q", KILN_OUTPUT, true));
    KILN_TRY(check_gradient(&j, a->dk, "dk", f.k, "k", KILN_OUTPUT, true));
    KILN_TRY(check_gradient(&j, a->dv, "dv", f.v, "v", KILN_OUTPUT, true));
    KILN_TRY(check_needs(a->dq2, "dq2", f.q2, "q2"));
    KILN_TRY(check_needs(a->dk2, "dk2", f.k2, "k2"));
    KILN_TRY(check_needs(a->dbias, "dbias", f.bias, "bias"));
    KILN_TRY(check_needs(a->dsinks, "dsinks", f.sinks, "sinks"));
    if (f.q2) {
        KILN_TRY(check_gradient(&j, a->dq2, "dq2", f.q2, "q2", KILN_OUTPUT, true));
        KILN_TRY(check_gradient(&j, a->dk2, "dk2", f.k2, "k2", KILN_OUTPUT, true));
    }
    if (a->dbias)
        KILN_TRY(check_gradient(&j, a->dbias, "dbias", f.bias, "bias", KILN_OUTPUT, true));
    if (a->dsinks) {
        kiln_tensor as_sinks = *f.sinks;
        as_sinks.dtype = f.softmax_lse->dtype; /* fp32 only */
        KILN_TRY(check_gradient(&j, a->dsinks, "dsinks", &as_sinks, "sinks", KILN_OUTPUT, true));
    }
    KILN_TRY(kiln_check_range("max_sms", a->max_sms, 0, INT32_MAX));
    KILN_TRY(kiln_check_range("reserved", a->reserved, 0, 0));
    KILN_TRY(kiln_check_flags(a->flags,
                              KILN_FLAG_DETERMINISTIC | KILN_FLAG_BATCH_INVARIANT | KILN_FLAG_WORKSPACE_ZEROED |
                                  KILN_FLAG_ACCUMULATE_DQ | KILN_FLAG_ACCUMULATE_DK | KILN_FLAG_ACCUMULATE_DV,
                              "attention_backward"));
    p->forward.flags |= a->flags;
    p->forward.algorithm = a->algorithm;
    p->forward.max_sms = a->max_sms;
    p->forward.num_splits = 0;

    int first = 4 - f.q->ndim, first_k = 4 - f.k->ndim;
    p->dout = kiln_view_of(a->dout, first);
    p->dlse = kiln_view_of(a->dlse, first);
    p->dq = kiln_view_of(a->dq, first);
    p->dk = kiln_view_of(a->dk, first_k);
    p->dv = kiln_view_of(a->dv, first_k);
    p->dq2 = kiln_view_of(a->dq2, first);
    p->dk2 = kiln_view_of(a->dk2, first_k);
    p->dbias = kiln_view_of(a->dbias, 0);
    p->dsinks = kiln_view_of(a->dsinks, 1);
    if (query)
        return KILN_OK;
    kiln_named_tensor named[24];
    int count = name_inputs(&f, named);
    const kiln_named_tensor more[] = {
        {f.o, "o", KILN_INPUT},
        {f.softmax_lse, "softmax_lse", KILN_INPUT},
        {a->dout, "dout", KILN_INPUT},
        {a->dlse, "dlse", KILN_INPUT},
        {a->dq, "dq", KILN_OUTPUT},
        {a->dk, "dk", KILN_OUTPUT},
        {a->dv, "dv", KILN_OUTPUT},
        {a->dq2, "dq2", KILN_OUTPUT},
        {a->dk2, "dk2", KILN_OUTPUT},
        {a->dbias, "dbias", KILN_OUTPUT},
        {a->dsinks, "dsinks", KILN_OUTPUT},
    };
    memcpy(named + count, more, sizeof more);
    return kiln_check_overlap(named, count + (int)(sizeof more / sizeof *more));
}
