/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem.c: views of public tensors, and how the queries and keys of one sequence are found in them.
 *
 * Everything here is pure: no allocation, no error. What it relies on was checked by validate_*.c.
 */
#include "window.h"

#include <string.h>

bool kiln_is_rung(kiln_op op, const char *algorithm)
{
    static const char *const softmax[] = {"three_pass", "online", NULL};
    static const char *const attention[] = {"naive", "tiled", "tiled_unpadded", "flash1",  "flash2",
                                            "mma",   "wgmma", "mfma",           "splitkv", NULL};
    static const char *const none[] = {NULL};
    const char *const *names = none;
    if (op == KILN_OP_SOFTMAX_FORWARD)
        names = softmax;
    if (op == KILN_OP_ATTENTION_FORWARD || op == KILN_OP_ATTENTION_BACKWARD)
        names = attention;
    while (*names && strcmp(*names, algorithm) != 0)
        names++;
    return *names != NULL;
}

const char *kiln_op_name(kiln_op op)
{
    static const char *const name[KILN_OP_COUNT] = {
        [KILN_OP_SOFTMAX_FORWARD] = "softmax_forward",     [KILN_OP_SOFTMAX_BACKWARD] = "softmax_backward",
        [KILN_OP_ATTENTION_FORWARD] = "attention_forward", [KILN_OP_ATTENTION_BACKWARD] = "attention_backward",
        [KILN_OP_ATTENTION_MERGE] = "attention_merge",
    };
    return name[op];
}

const char *kiln_problem_algorithm(const kiln_problem *problem)
{
    switch (problem->op) {
    case KILN_OP_SOFTMAX_FORWARD:
    case KILN_OP_SOFTMAX_BACKWARD: return problem->softmax.algorithm;
    case KILN_OP_ATTENTION_FORWARD: return problem->attention.algorithm;
    case KILN_OP_ATTENTION_BACKWARD: return problem->backward.forward.algorithm;
    default: return problem->merge.algorithm;
    }
}

char *kiln_tensor_data(const kiln_tensor *tensor)
{
    static char nothing;
    /* As integers: tensors without elements and those of queries may carry any offset. */
    return tensor->data ? (char *)((uintptr_t)tensor->data + tensor->byte_offset) : &nothing;
}

int64_t kiln_tensor_stride(const kiln_tensor *tensor, int axis)
{
    if (tensor->shape[axis] == 1)
        return 0;
    if (tensor->strides)
        return tensor->strides[axis];
    int64_t stride = 1;
    for (int inner = tensor->ndim - 1; inner > axis; inner--)
        stride *= tensor->shape[inner];
    return stride;
}

kiln_view kiln_view_of(const kiln_tensor *tensor, int first)
{
    kiln_view view = {NULL, 0, {1, 1, 1, 1}, {0, 0, 0, 0}};
    if (!tensor)
        return view;
    view.type = tensor->dtype.code * 256 + tensor->dtype.bits;
    view.data = kiln_tensor_data(tensor);
    for (int axis = 0; axis < tensor->ndim; axis++) {
        view.size[first + axis] = tensor->shape[axis];
        view.stride[first + axis] = kiln_tensor_stride(tensor, axis);
    }
    return view;
}

void kiln_merge_part(const kiln_merge_problem *problem, int32_t i, kiln_view *o, kiln_view *lse)
{
    const kiln_tensor *tensor = problem->o_parts[i];
    *o = kiln_view_of(tensor, 4 - tensor->ndim);
    *lse = kiln_view_of(problem->lse_parts[i], 4 - tensor->ndim);
}

/* Entry b of an int32 vector, or `absent`. */
static int64_t entry(const kiln_view *view, int64_t b, int64_t absent)
{
    return kiln_view_present(view) ? ((const int32_t *)view->data)[b * view->stride[0]] : absent;
}

kiln_sequence kiln_sequence_of(const kiln_attention_problem *p, int64_t b)
{
    kiln_sequence s = {.seqlen_q = p->seqlen_q, .seqlen_k = p->seqlen_k, .q_batch = b, .k_batch = b};
    if (kiln_view_present(&p->cu_seqlens_q)) {
        s.q_batch = 0;
        s.q_row = entry(&p->cu_seqlens_q, b, 0);
        s.seqlen_q = entry(&p->cu_seqlens_q, b + 1, 0) - s.q_row;
    }
    if (kiln_view_present(&p->cu_seqlens_k)) {
        s.k_batch = 0;
        s.k_row = entry(&p->cu_seqlens_k, b, 0);
        s.seqlen_k = entry(&p->cu_seqlens_k, b + 1, 0) - s.k_row;
    } else {
        s.k_batch = entry(&p->cache_batch_idx, b, b);
    }
    s.seqlen_q = entry(&p->seqused_q, b, s.seqlen_q);
    s.seqlen_k = entry(&p->seqused_k, b, s.seqlen_k);
    int64_t leftpad = entry(&p->leftpad_k, b, 0);
    s.k_row += leftpad;
    s.seqlen_k -= leftpad;

    s.pos_q = p->q_start + entry(&p->q_starts, b, 0) + (p->bottom_right ? s.seqlen_k - s.seqlen_q : 0);
    s.pos_k = p->k_start + entry(&p->k_starts, b, 0);
    return s;
}

kiln_key_range kiln_visible_keys(const kiln_attention_problem *p, const kiln_sequence *s, int64_t i)
{
    return kiln_window_keys(p, s, i);
}
