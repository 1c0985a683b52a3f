/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * test_bad_input.c: what wrong arguments get: the right status, a sentence with the argument, its value and what is allowed,
 * nothing written anywhere, and the same answer from `supported`, `workspace`, `prepare` and the call.
 *
 * Each row spoils one thing of a call that is right. A row names the words that its sentence must contain.
 */
#include <stddef.h>
#include <stdio.h>

#include "../support/attention.h"

enum { MAX_WORDS = 4 };

/* A tensor of the test that may be spoiled without harm to the image. */
typedef struct editable {
    kiln_tensor tensor;
    int64_t shape[KILN_MAX_RANK + 1], stride[KILN_MAX_RANK + 1];
} editable;

/* Replaces *argument by a copy with explicit strides, and returns the copy. */
static editable *edit(const kiln_tensor **argument)
{
    editable *e = test_alloc(sizeof *e);
    int64_t stride = 1;
    e->tensor = **argument;
    for (int i = e->tensor.ndim - 1; i >= 0; i--) {
        e->shape[i] = (*argument)->shape[i];
        e->stride[i] = (*argument)->strides ? (*argument)->strides[i] : stride;
        stride *= e->shape[i];
    }
    e->tensor.shape = e->shape;
    e->tensor.strides = e->stride;
    *argument = &e->tensor;
    return e;
}

static void set_type(const kiln_tensor **argument, int32_t type)
{
    editable *e = edit(argument);
    e->tensor.dtype.code = (uint8_t)(type / 256);
    e->tensor.dtype.bits = (uint8_t)(type % 256);
}

/* All four calls refuse with this status and these words. */
static void expect_refusal(kiln_op op, const void *args, kiln_status status, const char *const *words)
{
    char why[512] = "";
    kiln_status got = test_run(op, test_context(), args, why, sizeof why);
    TEST_REQUIRE(got == status, "%s instead of %s: %s", kiln_status_name(got), kiln_status_name(status), why);
    for (int i = 0; i < MAX_WORDS && words[i]; i++)
        TEST_REQUIRE(strstr(why, words[i]), "the sentence lacks '%s': %s", words[i], why);
}

/* ------------------------------------------------------------------------------------------------ attention */

/* What the rows start from: everything that may be there together. */
static const attention_case dense = {.batch = 2,
                                     .heads = 4,
                                     .heads_k = 2,
                                     .seqlen_q = 5,
                                     .seqlen_k = 7,
                                     .d = 8,
                                     .d_v = 6,
                                     .bias = true,
                                     .alibi = 2,
                                     .sinks = true,
                                     .mask_len = 6,
                                     .starts = true,
                                     .mask = KILN_MASK_WINDOW_TOP_LEFT,
                                     .window_left = 3,
                                     .window_right = 1};
static const attention_case second = {.batch = 2, .heads = 2, .seqlen_q = 5, .seqlen_k = 7, .d = 8, .d2 = 4};
static const attention_case shortened = {.batch = 3,
                                         .heads = 2,
                                         .seqlen_q = 5,
                                         .seqlen_k = 7,
                                         .d = 8,
                                         .used_q = true,
                                         .used_k = true,
                                         .leftpad = true,
                                         .cache_idx = true};
static const attention_case packed = {
    .batch = 3, .heads = 2, .seqlen_q = 5, .seqlen_k = 7, .d = 8, .packed_q = true, .packed_k = true, .used_k = true};
static const attention_case paged = {.batch = 3, .heads = 2, .seqlen_q = 5, .seqlen_k = 40, .d = 8, .page_size = 16};

typedef struct bad_attention {
    const char *what;
    const attention_case *base;
    void (*spoil)(test_attention *a, kiln_attention_forward_args *g);
    kiln_status status;
    const char *words[MAX_WORDS];
} bad_attention;

typedef struct bad_contents {
    bad_attention row;
    uint32_t bits; /* what *device_status says of lengths that the host cannot read; 0: refused everywhere */
} bad_contents;

#define SPOIL(name, ...)                                                                                               \
    static void name(test_attention *a, kiln_attention_forward_args *g)                                                \
    {                                                                                                                  \
        (void)a;                                                                                                       \
        (void)g;                                                                                                       \
        __VA_ARGS__;                                                                                                   \
    }
SPOIL(q_null, g->q = NULL)
SPOIL(k_null, g->k = NULL)
SPOIL(v_null, g->v = NULL)
SPOIL(o_null, g->o = NULL)
SPOIL(q_rank, edit(&g->q)->tensor.ndim = 3)
SPOIL(q_rank_huge, edit(&g->q)->tensor.ndim = 1000000)
SPOIL(lse_rank, edit(&g->softmax_lse)->tensor.ndim = 2)
SPOIL(q_shape_null, edit(&g->q)->tensor.shape = NULL)
SPOIL(q_int32, set_type(&g->q, KILN_INT32))
SPOIL(q_fp64, set_type(&g->q, KILN_FLOAT64))
SPOIL(k_fp16, set_type(&g->k, KILN_FLOAT16))
SPOIL(v_bf16, set_type(&g->v, KILN_BFLOAT16))
SPOIL(o_bf16, set_type(&g->o, KILN_BFLOAT16))
SPOIL(q_fp8, set_type(&g->q, KILN_FLOAT8_E4M3FN))
SPOIL(k_int8, set_type(&g->k, KILN_INT8))
SPOIL(lse_fp16, set_type(&g->softmax_lse, KILN_FLOAT16))
SPOIL(lanes, edit(&g->q)->tensor.dtype.lanes = 2)
SPOIL(no_lanes, edit(&g->q)->tensor.dtype.lanes = 0)
SPOIL(no_bits, edit(&g->q)->tensor.dtype.bits = 0)
SPOIL(device_type, edit(&g->k)->tensor.device.device_type = 7)
SPOIL(device_id, edit(&g->v)->tensor.device.device_id = 3)
SPOIL(k_heads, edit(&g->k)->shape[1] = 3)
SPOIL(zero_heads_k, edit(&g->k)->shape[1] = 0; edit(&g->v)->shape[1] = 0)
SPOIL(zero_heads, edit(&g->q)->shape[1] = 0; edit(&g->o)->shape[1] = 0; edit(&g->softmax_lse)->shape[1] = 0)
SPOIL(k_heads_3, edit(&g->k)->shape[1] = 3; edit(&g->v)->shape[1] = 3)
SPOIL(k_d, edit(&g->k)->shape[3] = 7)
SPOIL(k_batch, edit(&g->k)->shape[0] = 1; edit(&g->v)->shape[0] = 1)
SPOIL(v_seqlen, edit(&g->v)->shape[2] = 6)
SPOIL(v_batch, edit(&g->v)->shape[0] = 1)
SPOIL(o_d, edit(&g->o)->shape[3] = 5)
SPOIL(o_seqlen, edit(&g->o)->shape[2] = 4)
SPOIL(o_heads, edit(&g->o)->shape[1] = 2)
SPOIL(o_batch, edit(&g->o)->shape[0] = 1)
SPOIL(lse_queries, edit(&g->softmax_lse)->shape[2] = 4)
SPOIL(lse_batch, edit(&g->softmax_lse)->shape[0] = 1)
SPOIL(q_negative, edit(&g->q)->shape[2] = -5)
SPOIL(d_zero, edit(&g->q)->shape[3] = 0; edit(&g->k)->shape[3] = 0)
SPOIL(d_577, edit(&g->q)->shape[3] = 577; edit(&g->k)->shape[3] = 577)
SPOIL(dv_577, edit(&g->v)->shape[3] = 577; edit(&g->o)->shape[3] = 577)
SPOIL(o_stride_0, edit(&g->o)->stride[2] = 0)
SPOIL(lse_stride_0, edit(&g->softmax_lse)->stride[0] = 0)
SPOIL(q_stride_huge, edit(&g->q)->stride[0] = INT64_MAX)
SPOIL(q_stride_min, edit(&g->q)->stride[0] = INT64_MIN)
SPOIL(q_size_huge, edit(&g->q)->shape[2] = INT64_MAX)
SPOIL(misaligned, edit(&g->q)->tensor.byte_offset = 1)
SPOIL(offset_wraps, edit(&g->q)->tensor.byte_offset = UINT64_MAX - 63)
SPOIL(bias_query, edit(&g->bias)->shape[2] = 3)
SPOIL(bias_key, edit(&g->bias)->shape[3] = 6)
SPOIL(bias_head, edit(&g->bias)->shape[1] = 2)
SPOIL(bias_batch, edit(&g->bias)->shape[0] = 3)
SPOIL(bias_type, set_type(&g->bias, KILN_FLOAT16))
SPOIL(bias_rank, edit(&g->bias)->tensor.ndim = 2)
SPOIL(mask_type, set_type(&g->attn_mask, KILN_INT8))
SPOIL(mask_type_odd, edit(&g->attn_mask)->tensor.dtype.code = 99)
SPOIL(mask_long, edit(&g->attn_mask)->shape[3] = 8)
SPOIL(mask_head, edit(&g->attn_mask)->shape[1] = 3)
SPOIL(alibi_heads, edit(&g->alibi_slopes)->shape[1] = 2)
SPOIL(alibi_rank, edit(&g->alibi_slopes)->tensor.ndim = 3)
SPOIL(alibi_type, set_type(&g->alibi_slopes, KILN_BFLOAT16))
SPOIL(sinks_heads, edit(&g->sinks)->shape[0] = 2)
SPOIL(sinks_type, set_type(&g->sinks, KILN_BFLOAT16))
SPOIL(starts_batch, edit(&g->q_starts)->shape[0] = 1)
SPOIL(starts_type, set_type(&g->k_starts, KILN_INT64))
SPOIL(scale_nan, g->softmax_scale = NAN)
SPOIL(scale_inf, g->softmax_scale = INFINITY)
SPOIL(cap_negative, g->softcap = -1)
SPOIL(cap_inf, g->softcap = INFINITY)
SPOIL(cap_nan, g->softcap = NAN)
SPOIL(mask_5, g->mask = 5)
SPOIL(mask_negative, g->mask = -1)
SPOIL(causal_left, g->mask = KILN_MASK_CAUSAL_TOP_LEFT; g->window_right = 0)
SPOIL(causal_right, g->mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT; g->window_left = 0)
SPOIL(none_window, g->mask = KILN_MASK_NONE)
SPOIL(q_step, g->q_step = -1)
SPOIL(k_step, g->k_step = -2)
SPOIL(q_start, g->q_start = INT64_MIN)
SPOIL(k_start, g->k_start = INT64_MAX)
SPOIL(step_huge, g->q_step = INT64_MAX)
SPOIL(splits_negative, g->num_splits = -1)
SPOIL(splits_1025, g->num_splits = 1025)
SPOIL(sms_negative, g->max_sms = -1)
SPOIL(p_one, g->dropout_p = 1)
SPOIL(p_negative, g->dropout_p = -0.1f)
SPOIL(p_nan, g->dropout_p = NAN)
SPOIL(p_999, g->dropout_p = 0.9999f)
SPOIL(flag_unknown, g->flags = (uint64_t)1 << 40)
SPOIL(flag_log, g->flags = KILN_FLAG_LOG)
SPOIL(flag_accumulate, g->flags = KILN_FLAG_ACCUMULATE_DQ)
SPOIL(algorithm_unknown, g->algorithm = "flash7")
SPOIL(algorithm_elsewhere, g->algorithm = strcmp(test_backend_name(), "cuda") == 0 ? "mfma" : "wgmma")
SPOIL(algorithm_empty, g->algorithm = "")
SPOIL(descale, g->k_descale = g->sinks)
SPOIL(max_q_dense, g->max_seqlen_q = 5)
SPOIL(max_k_dense, g->max_seqlen_k = 7)
SPOIL(o_is_q, g->o = g->q; edit(&g->o)->shape[3] = 6)
SPOIL(lse_is_bias, edit(&g->softmax_lse)->tensor.data = g->bias->data)
SPOIL(data_null, edit(&g->v)->tensor.data = NULL; edit(&g->v)->tensor.byte_offset = 0)
SPOIL(k2_null, g->k2 = NULL)
SPOIL(q2_null, g->q2 = NULL)
SPOIL(k2_d, edit(&g->k2)->shape[3] = 3)
SPOIL(q2_rows, edit(&g->q2)->shape[2] = 4)
SPOIL(q2_type, set_type(&g->q2, KILN_FLOAT16))
SPOIL(d2_577, edit(&g->q2)->shape[3] = 577; edit(&g->k2)->shape[3] = 577)
SPOIL(used_batch, edit(&g->seqused_q)->shape[0] = 2)
SPOIL(used_type, set_type(&g->seqused_k, KILN_INT64))
SPOIL(used_q_negative, test_put(a->used_q, 1, -1))
SPOIL(used_q_long, test_put(a->used_q, 1, 6))
SPOIL(used_k_negative, test_put(a->used_k, 2, -1))
SPOIL(used_k_long, test_put(a->used_k, 0, 8))
SPOIL(leftpad_negative, test_put(a->leftpad, 0, -1))
SPOIL(leftpad_long, test_put(a->leftpad, 0, test_get(a->used_k, 0) + 1))
SPOIL(cache_idx_negative, test_put(a->cache_idx, 1, -1))
SPOIL(cache_idx_past, test_put(a->cache_idx, 1, 5))
SPOIL(cu_q_rank, edit(&g->cu_seqlens_q)->tensor.ndim = 2)
SPOIL(cu_q_type, set_type(&g->cu_seqlens_q, KILN_INT64))
SPOIL(cu_q_empty, edit(&g->cu_seqlens_q)->shape[0] = 0)
SPOIL(cu_k_count, edit(&g->cu_seqlens_k)->shape[0] = 3)
SPOIL(cu_q_first, test_put(a->cu_q, 0, -1))
SPOIL(cu_q_descends, test_put(a->cu_q, 2, 0))
SPOIL(cu_k_descends, test_put(a->cu_k, 2, 1))
SPOIL(cu_q_past, test_put(a->cu_q, 3, 1000))
SPOIL(cu_k_past, test_put(a->cu_k, 3, 1000))
SPOIL(max_q_small, g->max_seqlen_q = 4)
SPOIL(max_k_small, g->max_seqlen_k = 6)
SPOIL(max_q_negative, g->max_seqlen_q = -1)
SPOIL(packed_used_long, test_put(a->used_k, 1, 1))
SPOIL(packed_q_rank_4, g->cu_seqlens_q = NULL; g->max_seqlen_q = 0)
SPOIL(table_rank, edit(&g->block_table)->tensor.ndim = 1)
SPOIL(table_type, set_type(&g->block_table, KILN_INT64))
SPOIL(table_rows, edit(&g->block_table)->shape[0] = 2)
SPOIL(table_negative, test_put(a->table, 0, -1))
SPOIL(table_past, test_put(a->table, 0, 10000))
SPOIL(paged_no_used, g->seqused_k = NULL)
SPOIL(paged_long, test_put(a->used_k, 0, 65))
SPOIL(paged_v_pages, edit(&g->v)->shape[0] -= 1)
SPOIL(paged_v_size, edit(&g->v)->shape[2] = 15)

#define INVALID     KILN_INVALID_ARGUMENT
#define UNSUPPORTED KILN_UNSUPPORTED
#define CU_SEQLENS  KILN_DEVICE_STATUS_CU_SEQLENS
#define SEQUSED     KILN_DEVICE_STATUS_SEQUSED
#define BLOCK_TABLE KILN_DEVICE_STATUS_BLOCK_TABLE
#define CACHE_IDX   KILN_DEVICE_STATUS_CACHE_BATCH_IDX
/* clang-format off */
static const bad_attention attention_rows[] = {
    {"q NULL", &dense, q_null, INVALID, {"q is NULL"}}, {"k NULL", &dense, k_null, INVALID, {"k is NULL"}}, {"v NULL", &dense, v_null, INVALID, {"v is NULL"}}, {"o NULL", &dense, o_null, INVALID, {"o is NULL"}},
    {"q rank", &dense, q_rank, INVALID, {"q.ndim", "3", "4"}}, {"q rank huge", &dense, q_rank_huge, INVALID, {"q.ndim", "1000000", "4"}}, {"lse rank", &dense, lse_rank, INVALID, {"softmax_lse.ndim", "2", "3"}}, {"shape NULL", &dense, q_shape_null, INVALID, {"q.shape", "NULL"}},
    {"q int32", &dense, q_int32, INVALID, {"q.dtype", "int32", "float32"}}, {"q fp64", &dense, q_fp64, INVALID, {"q.dtype", "float64", "float32"}}, {"k fp16", &dense, k_fp16, INVALID, {"k.dtype", "float16", "float32"}}, {"v bf16", &dense, v_bf16, INVALID, {"v.dtype", "bfloat16", "float32"}},
    {"o bf16", &dense, o_bf16, INVALID, {"o.dtype", "bfloat16", "float32"}}, {"q fp8", &dense, q_fp8, UNSUPPORTED, {"q.dtype", "float8_e4m3fn"}}, {"k int8", &dense, k_int8, UNSUPPORTED, {"k.dtype", "int8"}}, {"lse fp16", &dense, lse_fp16, INVALID, {"softmax_lse.dtype", "float16", "float32"}},
    {"lanes 2", &dense, lanes, INVALID, {"q.dtype", "lanes 2"}}, {"lanes 0", &dense, no_lanes, INVALID, {"q.dtype", "lanes 0"}}, {"bits 0", &dense, no_bits, INVALID, {"q.dtype", "bits 0"}}, {"device type", &dense, device_type, INVALID, {"k.device", "7"}}, {"device id", &dense, device_id, INVALID, {"v.device", "3"}},
    {"heads_k of k", &dense, k_heads, INVALID, {"heads"}}, {"GQA-2: no KV heads", &dense, zero_heads_k, INVALID, {"heads_k", "0"}}, {"no heads", &dense, zero_heads, INVALID, {"heads", "0"}}, {"GQA-2: not divisible", &dense, k_heads_3, INVALID, {"heads is 4", "heads_k is 3", "multiple"}},
    {"k d", &dense, k_d, INVALID, {"k.shape[3]", "7", "8"}}, {"k batch", &dense, k_batch, INVALID, {"k.shape[0]", "1", "2"}}, {"v seqlen", &dense, v_seqlen, INVALID, {"v.shape[2]", "6", "7"}}, {"v batch", &dense, v_batch, INVALID, {"v.shape[0]", "1", "2"}},
    {"o d_v", &dense, o_d, INVALID, {"o.shape[3]", "5", "6"}}, {"o seqlen", &dense, o_seqlen, INVALID, {"o.shape[2]", "4", "5"}}, {"o heads", &dense, o_heads, INVALID, {"o.shape[1]", "2", "4"}}, {"o batch", &dense, o_batch, INVALID, {"o.shape[0]", "1", "2"}},
    {"lse queries", &dense, lse_queries, INVALID, {"softmax_lse.shape[2]", "4", "5"}}, {"lse batch", &dense, lse_batch, INVALID, {"softmax_lse.shape[0]", "1", "2"}}, {"negative size", &dense, q_negative, INVALID, {"q.shape[2]", "-5"}},
    {"d 0", &dense, d_zero, INVALID, {"d ", "0", "576"}}, {"ERR-1: d 577", &dense, d_577, INVALID, {"d ", "577", "576"}}, {"d_v 577", &dense, dv_577, INVALID, {"d_v", "577", "576"}},
    {"o stride 0", &dense, o_stride_0, INVALID, {"o.strides[2]", "0"}}, {"lse stride 0", &dense, lse_stride_0, INVALID, {"softmax_lse.strides[0]", "0"}}, {"stride overflow", &dense, q_stride_huge, INVALID, {"q.strides[0]", "9223372036854775807"}},
    {"stride minimum", &dense, q_stride_min, INVALID, {"q.strides[0]", "-9223372036854775808"}}, {"size overflow", &dense, q_size_huge, INVALID, {"q", "9223372036854775807"}},
    {"bias queries", &dense, bias_query, INVALID, {"bias.shape[2]", "3", "5", "1"}}, {"bias keys", &dense, bias_key, INVALID, {"bias.shape[3]", "6", "7"}}, {"bias heads", &dense, bias_head, INVALID, {"bias.shape[1]", "2", "4"}}, {"bias batch", &dense, bias_batch, INVALID, {"bias.shape[0]", "3", "2"}},
    {"bias type", &dense, bias_type, INVALID, {"bias.dtype", "float16", "float32"}}, {"bias rank", &dense, bias_rank, INVALID, {"bias.ndim", "2", "4"}}, {"ERR-2: mask type", &dense, mask_type, INVALID, {"attn_mask.dtype", "int8", "uint8", "bool"}}, {"mask type code", &dense, mask_type_odd, INVALID, {"attn_mask.dtype", "99", "bool"}},
    {"mask_len", &dense, mask_long, INVALID, {"attn_mask.shape[3]", "8", "7"}}, {"mask heads", &dense, mask_head, INVALID, {"attn_mask.shape[1]", "3", "4"}}, {"slopes", &dense, alibi_heads, INVALID, {"alibi_slopes", "2", "4"}}, {"slopes rank", &dense, alibi_rank, INVALID, {"alibi_slopes.ndim", "3"}},
    {"slopes type", &dense, alibi_type, INVALID, {"alibi_slopes.dtype", "bfloat16", "float32"}}, {"sinks", &dense, sinks_heads, INVALID, {"sinks.shape[0]", "2", "4"}}, {"sinks type", &dense, sinks_type, INVALID, {"sinks.dtype", "bfloat16"}}, {"q_starts", &dense, starts_batch, INVALID, {"q_starts.shape[0]", "1", "2"}},
    {"k_starts type", &dense, starts_type, INVALID, {"k_starts.dtype", "int64", "int32"}}, {"scale NaN", &dense, scale_nan, INVALID, {"softmax_scale", "nan"}}, {"scale Inf", &dense, scale_inf, INVALID, {"softmax_scale", "inf"}}, {"softcap -1", &dense, cap_negative, INVALID, {"softcap", "-1"}},
    {"softcap Inf", &dense, cap_inf, INVALID, {"softcap", "inf"}}, {"softcap NaN", &dense, cap_nan, INVALID, {"softcap", "nan"}}, {"mask 5", &dense, mask_5, INVALID, {"mask", "5", "4"}}, {"mask -1", &dense, mask_negative, INVALID, {"mask", "-1", "0"}},
    {"causal with window_left", &dense, causal_left, INVALID, {"window_left", "3"}}, {"causal with window_right", &dense, causal_right, INVALID, {"window_right", "1"}}, {"window without a window kind", &dense, none_window, INVALID, {"window_left", "3"}},
    {"q_step", &dense, q_step, INVALID, {"q_step", "-1"}}, {"k_step", &dense, k_step, INVALID, {"k_step", "-2"}}, {"q_start", &dense, q_start, INVALID, {"q_start", "-9223372036854775808"}}, {"k_start", &dense, k_start, INVALID, {"k_start", "9223372036854775807"}}, {"q_step huge", &dense, step_huge, INVALID, {"q_step", "9223372036854775807"}},
    {"num_splits -1", &dense, splits_negative, INVALID, {"num_splits", "-1", "1024"}}, {"num_splits 1025", &dense, splits_1025, INVALID, {"num_splits", "1025", "1024"}}, {"max_sms", &dense, sms_negative, INVALID, {"max_sms", "-1"}},
    {"dropout 1", &dense, p_one, INVALID, {"dropout_p", "1"}}, {"dropout < 0", &dense, p_negative, INVALID, {"dropout_p", "-0.1"}}, {"dropout NaN", &dense, p_nan, INVALID, {"dropout_p", "nan"}}, {"dropout keeps nothing", &dense, p_999, INVALID, {"dropout_p", "0.9999"}},
    {"unknown flag", &dense, flag_unknown, INVALID, {"flags", "0x10000000000"}}, {"LOG", &dense, flag_log, INVALID, {"flags", "0x1"}}, {"ACCUMULATE", &dense, flag_accumulate, INVALID, {"flags", "0x20"}},
    {"unknown algorithm", &dense, algorithm_unknown, INVALID, {"algorithm", "flash7", "flash2"}},
    {"algorithm of another backend", &dense, algorithm_elsewhere, UNSUPPORTED, {"algorithm is", "backend has", "flash2"}}, {"empty algorithm", &dense, algorithm_empty, INVALID, {"algorithm", "flash2"}}, {"descale", &dense, descale, UNSUPPORTED, {"k_descale"}},
    {"max_seqlen_q without packing", &dense, max_q_dense, INVALID, {"max_seqlen_q", "5", "0"}}, {"max_seqlen_k without packing", &dense, max_k_dense, INVALID, {"max_seqlen_k", "7", "0"}},
    {"k2 NULL", &second, k2_null, INVALID, {"k2", "NULL"}}, {"q2 NULL", &second, q2_null, INVALID, {"q2", "NULL"}}, {"k2 d", &second, k2_d, INVALID, {"k2.shape[3]", "3", "4"}}, {"q2 rows", &second, q2_rows, INVALID, {"q2.shape[2]", "4", "5"}}, {"q2 type", &second, q2_type, INVALID, {"q2.dtype", "float16", "float32"}},
    {"d2 577", &second, d2_577, INVALID, {"d2", "577", "576"}}, {"seqused_q batch", &shortened, used_batch, INVALID, {"seqused_q.shape[0]", "2", "3"}}, {"seqused_k type", &shortened, used_type, INVALID, {"seqused_k.dtype", "int64", "int32"}},
    {"cu_seqlens_q rank", &packed, cu_q_rank, INVALID, {"cu_seqlens_q.ndim", "2", "1"}}, {"cu_seqlens_q type", &packed, cu_q_type, INVALID, {"cu_seqlens_q.dtype", "int64", "int32"}}, {"cu_seqlens_q empty", &packed, cu_q_empty, INVALID, {"cu_seqlens_q.shape[0]", "0"}},
    {"cu_seqlens_k count", &packed, cu_k_count, INVALID, {"cu_seqlens_k.shape[0]", "3", "4"}}, {"max_seqlen_q < 0", &packed, max_q_negative, INVALID, {"max_seqlen_q", "-1"}}, {"cu_seqlens_q forgotten", &packed, packed_q_rank_4, INVALID, {"q.ndim", "3", "4"}},
    {"table rank", &paged, table_rank, INVALID, {"block_table.ndim", "1", "2"}}, {"table type", &paged, table_type, INVALID, {"block_table.dtype", "int64", "int32"}}, {"table rows", &paged, table_rows, INVALID, {"block_table.shape[0]", "2", "3"}},
    {"paged without seqused_k", &paged, paged_no_used, INVALID, {"seqused_k", "NULL", "block_table"}}, {"v pages", &paged, paged_v_pages, INVALID, {"v.shape[0]", "num_pages"}}, {"v page size", &paged, paged_v_size, INVALID, {"v.shape[2]", "15", "16"}},
};
/* What only the call sees: addresses, and contents of lengths. `supported` accepts these (or the backend lacks the feature).
 * The last row clamps to the 64 keys that the table has room for, and the last of its pages is nobody's. */
static const bad_contents content_rows[] = {
    {{"misaligned", &dense, misaligned, INVALID, {"q.data", "aligned", "4"}}, 0}, {{"offset wraps", &dense, offset_wraps, INVALID, {"q.byte_offset", "wraps"}}, 0}, {{"o is q", &dense, o_is_q, INVALID, {"o and ", "q"}}, 0}, {{"lse is bias", &dense, lse_is_bias, INVALID, {"softmax_lse", "bias"}}, 0}, {{"data NULL", &dense, data_null, INVALID, {"v.data", "NULL"}}, 0},
    {{"seqused_q < 0", &shortened, used_q_negative, INVALID, {"seqused_q[1]", "-1", "5"}}, SEQUSED}, {{"seqused_q long", &shortened, used_q_long, INVALID, {"seqused_q[1]", "6", "5"}}, SEQUSED}, {{"VAR-9: seqused_k < 0", &shortened, used_k_negative, INVALID, {"seqused_k[2]", "-1", "7"}}, SEQUSED}, {{"seqused_k long", &shortened, used_k_long, INVALID, {"seqused_k[0]", "8", "7"}}, SEQUSED},
    {{"leftpad < 0", &shortened, leftpad_negative, INVALID, {"leftpad_k[0]", "-1"}}, SEQUSED}, {{"leftpad long", &shortened, leftpad_long, INVALID, {"leftpad_k[0]"}}, SEQUSED}, {{"cache_batch_idx < 0", &shortened, cache_idx_negative, INVALID, {"cache_batch_idx[1]", "-1", "4"}}, CACHE_IDX}, {{"cache_batch_idx past", &shortened, cache_idx_past, INVALID, {"cache_batch_idx[1]", "5", "4"}}, CACHE_IDX},
    {{"cu_seqlens_q[0]", &packed, cu_q_first, INVALID, {"cu_seqlens_q[0]", "-1"}}, CU_SEQLENS}, {{"cu_seqlens_q descends", &packed, cu_q_descends, INVALID, {"cu_seqlens_q[2]", "0"}}, CU_SEQLENS}, {{"cu_seqlens_k descends", &packed, cu_k_descends, INVALID, {"cu_seqlens_k[2]", "1"}}, CU_SEQLENS}, {{"cu_seqlens_q past", &packed, cu_q_past, INVALID, {"cu_seqlens_q[3]", "1000"}}, CU_SEQLENS},
    {{"VAR-5: cu_seqlens_k past", &packed, cu_k_past, INVALID, {"cu_seqlens_k[3]", "1000"}}, CU_SEQLENS}, {{"max_seqlen_q small", &packed, max_q_small, INVALID, {"cu_seqlens_q", "5", "max_seqlen_q", "4"}}, CU_SEQLENS}, {{"max_seqlen_k small", &packed, max_k_small, INVALID, {"cu_seqlens_k", "7", "max_seqlen_k", "6"}}, CU_SEQLENS},
    {{"seqused past an empty sequence", &packed, packed_used_long, INVALID, {"seqused_k[1]", "1", "0"}}, SEQUSED}, {{"table < 0", &paged, table_negative, INVALID, {"block_table[0][0]", "-1"}}, BLOCK_TABLE}, {{"table past", &paged, table_past, INVALID, {"block_table[0][0]", "10000", "11"}}, BLOCK_TABLE}, {{"PAG-1: seqused_k past the table", &paged, paged_long, INVALID, {"seqused_k[0]", "65", "64"}}, SEQUSED | BLOCK_TABLE},
};
/* clang-format on */
enum {
    ATTENTION_ROWS = sizeof attention_rows / sizeof *attention_rows,
    CONTENT_ROWS = sizeof content_rows / sizeof *content_rows
};

/* The rows start from calls that are right, or spoiling them would show nothing. */
START_TEST(bases_are_right)
{
    static const attention_case *const bases[] = {&dense, &second, &shortened, &packed, &paged};
    (void)test_attention_ran(test_attention_new(bases[_i]), NULL);
}
END_TEST

START_TEST(attention_metadata)
{
    const bad_attention *row = &attention_rows[_i];
    test_attention *a = test_attention_new(row->base);
    row->spoil(a, &a->args);
    test_label("%s", row->what);
    expect_refusal(KILN_OP_ATTENTION_FORWARD, &a->args, row->status, row->words);
}
END_TEST

/* Lengths that only the device reads: every rung runs, stays inside the tensors, and sets these bits and no others; only that
 * a sequence which was cut may leave its seqused past the end. */
static void expect_clamped(test_attention *a, const char *what, uint32_t bits)
{
    static const uint32_t callers = 1u << 30; /* what the word holds already stays */
    test_tensor *word = test_tensor_new(KILN_INT32, 1, (const int64_t[]){1}, STRIDES_COMPACT, false);
    char why[512] = "";
    int ran = 0;
    test_put(word, 0, callers);
    word->output = true; /* from here on: what is an output from the start starts as NaN */
    for (int n = 0; n < 2 * TEST_ATTENTION_ALGORITHMS; n++) {
        const bool reported = n % 2;
        const char *algorithm = a->args.algorithm = test_attention_algorithms[n / 2];
        test_label("%s, algorithm %s, %s device_status", what, test_algorithm_name(algorithm),
                   reported ? "with" : "without");
        a->args.device_status = reported ? (uint32_t *)(void *)(word->memory + word->first) : NULL;
        kiln_status status = test_run(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, why, sizeof why);
        if (status != KILN_OK) {
            TEST_REQUIRE(test_refused(status, algorithm, why), "%s: %s", kiln_status_name(status), why);
            continue;
        }
        const uint32_t got = (uint32_t)test_result(word, 0), want = reported ? callers | bits : callers;
        const uint32_t follows = want & CU_SEQLENS ? SEQUSED : 0;
        TEST_REQUIRE((got & ~follows) == want, "*device_status is 0x%x, right is 0x%x", got, want);
        ran++;
    }
    TEST_REQUIRE(ran > 0, "no rung took it, so nothing was tested");
}

START_TEST(attention_contents)
{
    const bad_attention *row = &content_rows[_i].row;
    const uint32_t bits = content_rows[_i].bits;
    char why[512] = "";
    test_attention *a = test_attention_new(row->base);
    row->spoil(a, &a->args);
    test_label("%s", row->what);
    if (bits && !test_on_host()) {
        expect_clamped(a, row->what, bits);
        return;
    }
    kiln_status status = test_supported(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, why, sizeof why);
    TEST_REQUIRE(status == KILN_OK || test_refused(status, NULL, why), "supported looks at contents: %s", why);
    expect_refusal(KILN_OP_ATTENTION_FORWARD, &a->args, row->status, row->words);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ struct sizes */

/* A shorter struct has defaults behind its end; a longer one is accepted if its tail is zero. */
START_TEST(struct_sizes)
{
    test_attention *a = test_attention_new(&dense);
    char why[512];
    struct {
        kiln_attention_forward_args args;
        unsigned char tail[24];
    } longer = {.args = a->args};
    const size_t full = sizeof longer.args;
    longer.args.struct_size = full + sizeof longer.tail;
    ck_assert_int_eq(test_run(KILN_OP_ATTENTION_FORWARD, test_context(), &longer, why, sizeof why), KILN_OK);
    longer.tail[23] = 1;
    const char *words[MAX_WORDS] = {"kiln_attention_forward_args.struct_size", "not zero"};
    expect_refusal(KILN_OP_ATTENTION_FORWARD, &longer, KILN_VERSION_MISMATCH, words);
    longer.args.struct_size = full + 16; /* the byte is past the end now */
    ck_assert_int_eq(test_run(KILN_OP_ATTENTION_FORWARD, test_context(), &longer, why, sizeof why), KILN_OK);

    /* Cut before `mask`: what stands behind is not seen, however wrong it is. */
    longer.args.struct_size = offsetof(kiln_attention_forward_args, mask);
    longer.args.mask = 77;
    longer.args.attn_mask = (const kiln_tensor *)(uintptr_t)1;
    longer.args.flags = ~(uint64_t)0;
    longer.args.algorithm = "no such thing";
    ck_assert_int_eq(test_run(KILN_OP_ATTENTION_FORWARD, test_context(), &longer, why, sizeof why), KILN_OK);

    static const size_t wrong[] = {0, 1, 7};
    const char *size_words[MAX_WORDS] = {"kiln_attention_forward_args.struct_size", "sizeof"};
    for (int i = 0; i < 3; i++) {
        a->args.struct_size = wrong[i];
        expect_refusal(KILN_OP_ATTENTION_FORWARD, &a->args, KILN_VERSION_MISMATCH, size_words);
    }
    /* So short that even q is not there. */
    a->args.struct_size = sizeof(size_t);
    const char *q_words[MAX_WORDS] = {"q is NULL"};
    expect_refusal(KILN_OP_ATTENTION_FORWARD, &a->args, KILN_INVALID_ARGUMENT, q_words);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ the calls themselves */

/* NULL where a pointer is needed, for every operation. */
START_TEST(null_pointers)
{
    kiln_context *context = test_context();
    char why[64];
    size_t bytes = 77;
    for (kiln_op op = 0; op < KILN_OP_COUNT; op++) {
        static const size_t nothing[64] = {sizeof(size_t)};
        ck_assert_int_eq(test_supported(op, context, NULL, why, sizeof why), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_supported(op, NULL, nothing, why, sizeof why), KILN_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(why, "context"));
        ck_assert_int_eq(test_workspace(op, context, NULL, &bytes), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_workspace(op, NULL, nothing, &bytes), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_workspace(op, context, nothing, NULL), KILN_INVALID_ARGUMENT);
        ck_assert_uint_eq(bytes, 77);
        ck_assert_int_eq(test_prepare(op, context, NULL), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_prepare(op, NULL, nothing), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_call(op, context, NULL, NULL, 0), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_call(op, NULL, nothing, NULL, 0), KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(test_call(op, context, nothing, NULL, 0), KILN_INVALID_ARGUMENT);
        ck_assert_int_ne(kiln_last_error()[0], 0);
    }
}
END_TEST

/* `why` is cut with a terminator, may be NULL, and nothing is written past `cap`. */
START_TEST(why_is_cut)
{
    test_attention *a = test_attention_new(&dense);
    for (int wrong = 0; wrong < 2; wrong++) {
        a->args.max_sms = -wrong;
        kiln_status want = wrong ? KILN_INVALID_ARGUMENT : KILN_OK;
        for (size_t cap = 0; cap <= 16; cap++) {
            char why[20];
            memset(why, 'x', sizeof why);
            ck_assert_int_eq(test_supported(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, why, cap), want);
            for (size_t i = cap; i < sizeof why; i++)
                ck_assert_int_eq(why[i], 'x');
            ck_assert(cap == 0 || memchr(why, 0, cap));
        }
        ck_assert_int_eq(test_supported(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, NULL, 100), want);
    }
}
END_TEST

/* Too small by one byte, missing, or not aligned. */
START_TEST(workspaces)
{
    int needing = 0;
    for (int g = 0; g < TEST_ATTENTION_ALGORITHMS; g++) {
        test_attention *a = test_attention_new(&dense);
        size_t bytes = 0;
        void *workspace = NULL;
        a->args.algorithm = test_attention_algorithms[g];
        if (test_workspace(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, &bytes) != KILN_OK)
            continue;
        test_upload();
        if (bytes == 0) {
            ck_assert_int_eq(test_call(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, NULL, 0), KILN_OK);
            continue;
        }
        needing++;
        ck_assert_int_eq(kiln_malloc(test_context(), bytes + 256, &workspace), KILN_OK);
        ck_assert_int_eq(test_call(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, workspace, bytes - 1),
                         KILN_WORKSPACE_TOO_SMALL);
        char number[32];
        snprintf(number, sizeof number, "%zu", bytes);
        TEST_REQUIRE(strstr(kiln_last_error(), number), "the sentence lacks the size: %s", kiln_last_error());
        ck_assert_int_eq(test_call(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, workspace, 0),
                         KILN_WORKSPACE_TOO_SMALL);
        ck_assert_int_eq(test_call(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, NULL, bytes),
                         KILN_INVALID_ARGUMENT);
        ck_assert_int_eq(
            test_call(KILN_OP_ATTENTION_FORWARD, test_context(), &a->args, (char *)workspace + 64, bytes + 64),
            KILN_INVALID_ARGUMENT);
        TEST_REQUIRE(strstr(kiln_last_error(), "256"), "the sentence lacks the alignment: %s", kiln_last_error());
        test_check_untouched("workspace");
        kiln_free(test_context(), workspace);
        test_release_all();
    }
    TEST_REQUIRE(needing > 0, "no algorithm needs a workspace, so nothing was tested");
}
END_TEST

/* The CPU has no streams. */
START_TEST(stream_on_cpu)
{
    test_attention *a = test_attention_new(&dense);
    size_t bytes = 0;
    void *workspace = NULL;
    if (!test_on_cpu())
        return;
    ck_assert_int_eq(kiln_attention_forward_workspace(test_context(), &a->args, &bytes), KILN_OK);
    ck_assert_int_eq(kiln_malloc(test_context(), bytes, &workspace), KILN_OK);
    test_upload();
    ck_assert_int_eq(kiln_attention_forward(test_context(), &a->args, workspace, bytes, workspace ? workspace : a),
                     KILN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(kiln_last_error(), "stream"));
    test_check_untouched("stream");
    kiln_free(test_context(), workspace);
}
END_TEST

/* ------------------------------------------------------------------------------------------------ softmax and merge */

static void expect_softmax(const kiln_softmax_forward_args *args, kiln_status status, const char *first,
                           const char *second_word)
{
    const char *words[MAX_WORDS] = {first, second_word};
    test_label("softmax: %s %s", first, second_word ? second_word : "");
    expect_refusal(KILN_OP_SOFTMAX_FORWARD, args, status, words);
}

START_TEST(softmax)
{
    test_tensor *x = test_tensor_new(KILN_FLOAT32, 2, (const int64_t[]){3, 5}, STRIDES_PADDED, false);
    test_tensor *y = test_tensor_new(KILN_FLOAT32, 2, (const int64_t[]){3, 5}, STRIDES_PADDED, true);
    test_tensor *lse = test_tensor_new(KILN_FLOAT32, 1, (const int64_t[]){3}, STRIDES_PADDED, true);
    const kiln_softmax_forward_args right = {
        .struct_size = sizeof right, .x = test_device(x), .y = test_device(y), .lse = test_device(lse)};
    kiln_softmax_forward_args g;
    char why[512];
    test_fill(x, 1);
    ck_assert_int_eq(test_run(KILN_OP_SOFTMAX_FORWARD, test_context(), &right, why, sizeof why), KILN_OK);
#define SPOILED(...) (g = right, __VA_ARGS__, &g)
    expect_softmax(SPOILED(g.x = NULL), INVALID, "x is NULL", NULL);
    expect_softmax(SPOILED(g.y = g.lse = NULL), INVALID, "y and lse", "NULL");
    expect_softmax(SPOILED(edit(&g.x)->tensor.ndim = 0), INVALID, "x.ndim", "0");
    expect_softmax(SPOILED(edit(&g.x)->tensor.ndim = 9), INVALID, "x.ndim", "9");
    expect_softmax(SPOILED(edit(&g.y)->tensor.ndim = 1), INVALID, "y.ndim", "1");
    expect_softmax(SPOILED(set_type(&g.x, KILN_INT32)), INVALID, "x.dtype", "int32");
    expect_softmax(SPOILED(set_type(&g.y, KILN_FLOAT64)), INVALID, "y.dtype", "float64");
    expect_softmax(SPOILED(set_type(&g.lse, KILN_FLOAT16)), INVALID, "lse.dtype", "float16");
    expect_softmax(SPOILED(edit(&g.y)->shape[1] = 4), INVALID, "y.shape[1]", "4");
    expect_softmax(SPOILED(edit(&g.lse)->shape[0] = 4), INVALID, "lse.shape[0]", "4");
    expect_softmax(SPOILED(edit(&g.y)->stride[0] = 0), INVALID, "y.strides[0]", "0");
    expect_softmax(SPOILED(edit(&g.x)->shape[0] = -1), INVALID, "x.shape[0]", "-1");
    expect_softmax(SPOILED(edit(&g.x)->tensor.device.device_id = 5), INVALID, "x.device", "5");
    expect_softmax(SPOILED(g.scale = NAN), INVALID, "scale", "nan");
    expect_softmax(SPOILED(g.scale = -INFINITY), INVALID, "scale", "-inf");
    expect_softmax(SPOILED(g.max_sms = -3), INVALID, "max_sms", "-3");
    expect_softmax(SPOILED(g.flags = KILN_FLAG_SCALE_EXPLICIT), INVALID, "flags", "0x2");
    expect_softmax(SPOILED(g.algorithm = "naive"), INVALID, "algorithm", "online");
    expect_softmax(SPOILED(edit(&g.lse)->tensor.data = x->device.data), INVALID, "lse", "x");
    expect_softmax(SPOILED(edit(&g.lse)->tensor.data = y->device.data), INVALID, "lse", "y");
    expect_softmax(SPOILED(g.struct_size = 3), KILN_VERSION_MISMATCH, "kiln_softmax_forward_args.struct_size", "3");
#undef SPOILED
}
END_TEST

/* `y` that begins where x does must lie exactly on it: another type or stride is refused. */
START_TEST(softmax_in_place)
{
    test_tensor *x = test_tensor_new(KILN_FLOAT32, 2, (const int64_t[]){3, 5}, STRIDES_PADDED, true);
    kiln_softmax_forward_args g = {.struct_size = sizeof g, .x = test_device(x), .y = test_device(x)};
    test_fill(x, 1);
    edit(&g.y)->stride[0] = 5;
    expect_softmax(&g, INVALID, "y begins where x does", "strides");
    g.y = test_device(x);
    set_type(&g.y, KILN_FLOAT16);
    expect_softmax(&g, INVALID, "y begins where x does", "types");
}
END_TEST

START_TEST(softmax_too_long)
{
    static const int64_t shape[2] = {1, INT64_C(1) << 31}, strides[2] = {0, 0};
    kiln_tensor x = kiln_tensor_make(kiln_context_device(test_context()), NULL, KILN_FLOAT32, 2, shape, strides), y = x;
    kiln_softmax_forward_args g = {.struct_size = sizeof g, .x = &x, .y = &y};
    char why[256];
    y.strides = NULL;
    ck_assert_int_eq(test_supported(KILN_OP_SOFTMAX_FORWARD, test_context(), &g, why, sizeof why), INVALID);
    TEST_REQUIRE(strstr(why, "2147483648") && strstr(why, "2147483647"), "%s", why);
}
END_TEST

static void expect_merge(const kiln_attention_merge_args *args, const char *first, const char *second_word)
{
    const char *words[MAX_WORDS] = {first, second_word};
    test_label("merge: %s %s", first, second_word ? second_word : "");
    expect_refusal(KILN_OP_ATTENTION_MERGE, args, INVALID, words);
}

START_TEST(merge)
{
    static const int64_t shape[4] = {2, 2, 3, 4};
    test_tensor *o_part[2], *lse_part[2];
    const kiln_tensor *o_parts[2], *lse_parts[2];
    for (int i = 0; i < 2; i++) {
        o_part[i] = test_tensor_new(KILN_FLOAT32, 4, shape, STRIDES_PADDED, false);
        lse_part[i] = test_tensor_new(KILN_FLOAT32, 3, shape, STRIDES_PADDED, false);
        test_fill(o_part[i], 1);
        test_fill(lse_part[i], 1);
    }
    test_tensor *o = test_tensor_new(KILN_FLOAT32, 4, shape, STRIDES_PADDED, true);
    test_tensor *lse = test_tensor_new(KILN_FLOAT32, 3, shape, STRIDES_PADDED, true);
    const kiln_attention_merge_args right = {.struct_size = sizeof right,
                                             .o_parts = o_parts,
                                             .lse_parts = lse_parts,
                                             .o = test_device(o),
                                             .softmax_lse = test_device(lse),
                                             .num_parts = 2};
    kiln_attention_merge_args g;
    /* The arrays of parts are put right before each row, since rows spoil them too. */
#define SPOILED(...)                                                                                                   \
    (o_parts[0] = test_device(o_part[0]), o_parts[1] = test_device(o_part[1]),                                         \
     lse_parts[0] = test_device(lse_part[0]), lse_parts[1] = test_device(lse_part[1]), g = right, __VA_ARGS__, &g)
    expect_merge(SPOILED(g.o = NULL), "o is NULL", NULL);
    expect_merge(SPOILED(g.num_parts = 0), "num_parts", "0");
    expect_merge(SPOILED(g.num_parts = -1), "num_parts", "-1");
    expect_merge(SPOILED(g.o_parts = NULL), "o_parts", "NULL");
    expect_merge(SPOILED(g.lse_parts = NULL), "lse_parts", "NULL");
    expect_merge(SPOILED(o_parts[1] = NULL), "o_parts[1]", "NULL");
    expect_merge(SPOILED(lse_parts[0] = NULL), "lse_parts[0]", "NULL");
    expect_merge(SPOILED(edit(&o_parts[1])->shape[2] = 2), "o_parts[1].shape[2]", "3");
    expect_merge(SPOILED(edit(&lse_parts[1])->shape[2] = 2), "lse_parts[1].shape[2]", "3");
    expect_merge(SPOILED(edit(&o_parts[0])->tensor.ndim = 3), "o_parts[0].ndim", "4");
    expect_merge(SPOILED(set_type(&o_parts[1], KILN_BFLOAT16)), "o_parts[1].dtype", "bfloat16");
    expect_merge(SPOILED(set_type(&lse_parts[1], KILN_FLOAT16)), "lse_parts[1].dtype", "float16");
    expect_merge(SPOILED(edit(&o_parts[1])->tensor.device.device_type = 7), "o_parts[1].device", "7");
    expect_merge(SPOILED(edit(&g.o)->stride[3] = 0), "o.strides[3]", "0");
    expect_merge(SPOILED(set_type(&g.o, KILN_INT32)), "o.dtype", "int32");
    expect_merge(SPOILED(edit(&g.softmax_lse)->shape[1] = 1), "softmax_lse.shape[1]", "2");
    expect_merge(SPOILED(g.sinks = test_device(lse)), "sinks.ndim", "3");
    expect_merge(SPOILED(g.o = o_parts[1]), "o_parts[1]", "overlap");
    expect_merge(SPOILED(g.softmax_lse = lse_parts[1]), "lse_parts[1]", "overlap");
    expect_merge(SPOILED(g.flags = KILN_FLAG_LOG), "flags", "0x1");
    expect_merge(SPOILED(g.max_sms = -1), "max_sms", "-1");
    expect_merge(SPOILED(g.algorithm = "flash2"), "algorithm", "flash2");
#undef SPOILED
}
END_TEST

/* ------------------------------------------------------------------------------------------------ backward */

static void expect_backward(const kiln_attention_backward_args *args, const char *first, const char *second_word)
{
    const char *words[MAX_WORDS] = {first, second_word};
    test_label("backward: %s %s", first, second_word ? second_word : "");
    expect_refusal(KILN_OP_ATTENTION_BACKWARD, args, INVALID, words);
}

/* Arguments are judged before support, so this holds whether or not the backend has backward. */
START_TEST(backward)
{
    test_attention *a = test_attention_new(
        &(attention_case){.batch = 2, .heads = 4, .heads_k = 2, .seqlen_q = 5, .seqlen_k = 7, .d = 8, .d_v = 6});
    test_tensor *dout = test_tensor_new(KILN_FLOAT32, 4, a->o->shape, STRIDES_PADDED, false);
    test_tensor *dq = test_tensor_new(KILN_FLOAT32, 4, a->q->shape, STRIDES_PADDED, true);
    test_tensor *dk = test_tensor_new(KILN_FLOAT32, 4, a->k->shape, STRIDES_PADDED, true);
    test_tensor *dv = test_tensor_new(KILN_FLOAT32, 4, a->v->shape, STRIDES_PADDED, true);
    kiln_attention_forward_args f;
    const kiln_attention_backward_args right = {.struct_size = sizeof right,
                                                .forward = &f,
                                                .dout = test_device(dout),
                                                .dq = test_device(dq),
                                                .dk = test_device(dk),
                                                .dv = test_device(dv)};
    kiln_attention_backward_args g;
#define SPOILED(...) (f = a->args, g = right, __VA_ARGS__, &g)
    expect_backward(SPOILED(g.forward = NULL), "forward", "NULL");
    expect_backward(SPOILED(g.dout = NULL), "dout is NULL", NULL);
    expect_backward(SPOILED(g.dq = NULL), "dq is NULL", NULL);
    expect_backward(SPOILED(g.dk = NULL), "dk is NULL", NULL);
    expect_backward(SPOILED(g.dv = NULL), "dv is NULL", NULL);
    expect_backward(SPOILED(f.softmax_lse = NULL), "softmax_lse", "NULL");
    expect_backward(SPOILED(f.q = NULL), "q is NULL", NULL);
    expect_backward(SPOILED(edit(&g.dout)->shape[3] = 5), "dout.shape[3]", "6");
    expect_backward(SPOILED(edit(&g.dq)->shape[2] = 4), "dq.shape[2]", "5");
    expect_backward(SPOILED(edit(&g.dk)->shape[1] = 4), "dk.shape[1]", "2");
    expect_backward(SPOILED(edit(&g.dv)->shape[3] = 8), "dv.shape[3]", "6");
    expect_backward(SPOILED(set_type(&g.dq, KILN_FLOAT16)), "dq.dtype", "float16");
    expect_backward(SPOILED(edit(&g.dk)->stride[0] = 0), "dk.strides[0]", "0");
    expect_backward(SPOILED(g.flags = KILN_FLAG_LOG), "flags", "0x1");
    expect_backward(SPOILED(g.reserved = 1), "reserved", "1");
    expect_backward(SPOILED(g.max_sms = -1), "max_sms", "-1");
    expect_backward(SPOILED(f.mask = 9), "mask", "9");
    expect_backward(SPOILED(g.dq2 = g.dq), "dq2", NULL);
#undef SPOILED
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("bad_input");
    TCase *t = test_tcase(s, "attention");
    tcase_add_loop_test(t, bases_are_right, 0, 5);
    tcase_add_loop_test(t, attention_metadata, 0, ATTENTION_ROWS);
    tcase_add_loop_test(t, attention_contents, 0, CONTENT_ROWS);
    t = test_tcase(s, "calls");
    tcase_add_test(t, struct_sizes);
    tcase_add_test(t, null_pointers);
    tcase_add_test(t, why_is_cut);
    tcase_add_test(t, workspaces);
    tcase_add_test(t, stream_on_cpu);
    t = test_tcase(s, "others");
    tcase_add_test(t, softmax);
    tcase_add_test(t, softmax_in_place);
    tcase_add_test(t, softmax_too_long);
    tcase_add_test(t, merge);
    tcase_add_test(t, backward);
    return s;
}

int main(void)
{
    return test_main(suite());
}
