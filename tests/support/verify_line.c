/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * verify_line.c: an attention problem of these tests as the problem string of `kiln verify`, for failure messages. Shape,
 * features, lengths and strides are the same; the numbers come from the program's own generator, so data faults that need
 * these very numbers show in the test only. Needs kiln_problem (built with the program).
 */
#include "verify_line.h"

#include "../../bench/problem.h"

static int32_t axes(bool present, int broadcast, bool keys)
{
    return !present
               ? 0
               : AXES_PRESENT | (broadcast & BROADCAST_BATCH ? 0 : AXIS_BATCH) |
                     (broadcast & BROADCAST_HEAD ? 0 : AXIS_HEAD) | (broadcast & BROADCAST_QUERY ? 0 : AXIS_QUERY) |
                     (!keys || broadcast & BROADCAST_KEY ? 0 : AXIS_KEY);
}

static problem_list list_of(const test_tensor *t, bool differences)
{
    problem_list list = {LIST_ABSENT, 0, {0}};
    if (!t)
        return list;
    int64_t n = t->count - differences;
    list.kind = n < 1 || n > PROBLEM_LIST_MAX ? LIST_RANDOM : LIST_GIVEN;
    for (int64_t b = 0; list.kind == LIST_GIVEN && b < n; b++)
        list.value[list.count++] = (int64_t)test_get(t, b + differences) - (differences ? (int64_t)test_get(t, b) : 0);
    return list;
}

static void override(problem_spec *s, problem_slot slot, const test_tensor *t)
{
    if (!t)
        return;
    problem_override *o = &s->override[slot];
    o->offset = (int64_t)t->host.byte_offset / kiln_type_size(t->type);
    if (!t->host.strides)
        return;
    o->stride_count = t->host.ndim;
    for (int i = 0; i < t->host.ndim; i++)
        o->stride[i] = t->stride[i];
}

void test_verify_line(const test_attention *a, const char *algorithm, char *text, size_t cap)
{
    static const int32_t data[VALUES_COUNT] = {DATA_NORMAL, DATA_OUTLIER, DATA_NEGATIVE, DATA_HUGE,
                                               DATA_ZEROS,  DATA_TINY,    DATA_NAN};
    const attention_case *c = &a->c;
    problem_spec s = problem_default(KILN_OP_ATTENTION_FORWARD);
    s.type = c->type;
    s.batch = c->batch, s.heads = c->heads, s.heads_k = c->heads_k;
    s.seqlen_q = c->seqlen_q, s.seqlen_k = c->seqlen_k, s.d = c->d, s.d_v = c->d_v, s.d2 = c->d2;
    s.mask = c->mask, s.window_left = c->window_left, s.window_right = c->window_right;
    s.out = c->o_type == c->type ? 0 : c->o_type;
    s.alias_kv = c->v_is_k;
    s.keep = c->mask_len ? KEEP_RANDOM : KEEP_NONE;
    s.mask_len = c->mask_len == c->seqlen_k ? 0 : c->mask_len;
    if (c->mask_len)
        s.keep_axes = axes(true, c->mask_broadcast, false);
    s.bias = axes(c->bias, c->bias_broadcast, true);
    s.alibi = c->alibi ? AXES_PRESENT | AXIS_HEAD | (c->alibi == 2 ? AXIS_BATCH : 0) : 0;
    s.softcap = (double)c->softcap, s.scale = (double)c->scale, s.sinks = c->sinks;
    s.q_start = c->q_start, s.k_start = c->k_start;
    s.q_step = c->q_step, s.k_step = c->k_step;
    s.q_starts = list_of(a->q_starts, false), s.k_starts = list_of(a->k_starts, false);
    s.lens_q = list_of(a->cu_q, true), s.lens_k = list_of(a->cu_k, true);
    s.seqused_q = list_of(a->used_q, false), s.seqused_k = list_of(a->used_k, false);
    s.leftpad_k = list_of(a->leftpad, false), s.cache_batch_idx = list_of(a->cache_idx, false);
    s.cache_batch = c->cache_idx ? c->batch + 2 : 0;
    s.page_size = c->page_size;
    s.dropout_p = (double)c->dropout_p, s.dropout_ptr = c->dropout_pointers;
    s.dropout_seed = c->dropout_seed, s.dropout_offset = c->dropout_offset;
    s.lse = !c->no_lse;
    s.data = data[c->values];
    s.flags = c->flags, s.num_splits = c->num_splits, s.max_sms = c->max_sms;
    if (algorithm)
        strncpy(s.algorithm, algorithm, sizeof s.algorithm - 1);
    if (!c->packed_q && !c->packed_k && !c->page_size) { /* else sizes, and so strides, are the builder's own */
        override(&s, SLOT_Q, a->q);
        override(&s, SLOT_K, a->k);
        override(&s, SLOT_V, a->v);
        override(&s, SLOT_O, a->o);
        override(&s, SLOT_LSE, a->lse);
        override(&s, SLOT_BIAS, a->bias);
        override(&s, SLOT_ATTN_MASK, a->attn_mask);
    }
    if (a->bias && c->bias_type != KILN_FLOAT32)
        s.override[SLOT_BIAS].type = c->bias_type;
    if (a->sinks && c->sinks_type != KILN_FLOAT32)
        s.override[SLOT_SINKS].type = c->sinks_type;
    problem_print(&s, text, cap);
}
