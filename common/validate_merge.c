/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* validate_merge.c: merge arguments -> kiln_merge_problem. Cost O(num_parts); the parts stay where the caller has them. */
#include "validate.h"

#include <stdio.h>

kiln_status kiln_validate_attention_merge(const kiln_context *context, const void *copied, bool query,
                                          kiln_problem *problem)
{
    const kiln_attention_merge_args *a = copied;
    kiln_merge_problem *p = &problem->merge;
    int rank = a->o && a->o->ndim == 3 ? 3 : 4;
    const char *shape = rank == 3 ? "(heads, total_q, d_v)" : "(batch, heads, seqlen_q, d_v)";
    const kiln_tensor_rule o = {"o", "(batch, heads, seqlen_q, d_v) or (heads, total_q, d_v)", kiln_types_float, rank,
                                KILN_OUTPUT};
    const kiln_tensor_rule lse = {"softmax_lse", "o's shape without d_v", kiln_types_fp32, rank - 1, KILN_OUTPUT};
    const kiln_tensor_rule sinks = {"sinks", "(heads)", kiln_types_float, 1, KILN_INPUT};
    KILN_TRY(kiln_check_tensor(context, a->o, &o, query));
    KILN_TRY(kiln_check_optional(context, a->softmax_lse, &lse, query));
    for (int axis = 0; axis < rank - 1; axis++)
        KILN_TRY(kiln_check_size(a->softmax_lse, "softmax_lse", axis, "same shape", a->o->shape[axis], "as o's"));
    KILN_TRY(kiln_check_optional(context, a->sinks, &sinks, query));
    KILN_TRY(kiln_check_type(a->sinks, "sinks", KILN_FLOAT32, kiln_tensor_type(a->o)));
    KILN_TRY(kiln_check_size(a->sinks, "sinks", 0, "heads", a->o->shape[rank - 3], "as o's"));
    KILN_TRY(kiln_check_range("num_parts", a->num_parts, 1, INT32_MAX));
    if (!a->o_parts || !a->lse_parts)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is NULL; it must point to num_parts (%d) tensors",
                         a->o_parts ? "lse_parts" : "o_parts", a->num_parts);
    for (int32_t i = 0; i < a->num_parts; i++) {
        char name[32], lse_name[32];
        snprintf(name, sizeof name, "o_parts[%d]", i);
        snprintf(lse_name, sizeof lse_name, "lse_parts[%d]", i);
        const kiln_tensor_rule part = {name, shape, kiln_types_float, rank, KILN_INPUT};
        const kiln_tensor_rule part_lse = {lse_name, "o's shape without d_v", kiln_types_fp32, rank - 1, KILN_INPUT};
        KILN_TRY(kiln_check_tensor(context, a->o_parts[i], &part, query));
        KILN_TRY(kiln_check_tensor(context, a->lse_parts[i], &part_lse, query));
        KILN_TRY(kiln_check_type(a->o_parts[i], name, KILN_FLOAT32, kiln_tensor_type(a->o)));
        KILN_TRY(
            kiln_check_type(a->o_parts[i], name, kiln_tensor_type(a->o_parts[0]), kiln_tensor_type(a->o_parts[0])));
        for (int axis = 0; axis < rank; axis++)
            KILN_TRY(kiln_check_size(a->o_parts[i], name, axis, "same shape", a->o->shape[axis], "as o's"));
        for (int axis = 0; axis < rank - 1; axis++)
            KILN_TRY(kiln_check_size(a->lse_parts[i], lse_name, axis, "same shape", a->o->shape[axis], "as o's"));
        if (query)
            continue;
        /* Only the first part may be written over: every element is read before it is written. */
        const kiln_named_tensor named[] = {{a->o, "o", KILN_OUTPUT},
                                           {a->softmax_lse, "softmax_lse", KILN_OUTPUT},
                                           {i ? a->o_parts[i] : NULL, name, KILN_INPUT},
                                           {i ? a->lse_parts[i] : NULL, lse_name, KILN_INPUT},
                                           {a->sinks, "sinks", KILN_INPUT}};
        KILN_TRY(kiln_check_overlap(named, 5));
        KILN_TRY(kiln_check_in_place(a->o, "o", a->o_parts[i], name));
        KILN_TRY(kiln_check_in_place(a->softmax_lse, "softmax_lse", a->lse_parts[i], lse_name));
    }
    KILN_TRY(kiln_check_range("max_sms", a->max_sms, 0, INT32_MAX));
    KILN_TRY(kiln_check_flags(a->flags, KILN_FLAG_WORKSPACE_ZEROED | KILN_FLAG_BATCH_INVARIANT, "attention_merge"));

    int first = 4 - rank;
    p->o = kiln_view_of(a->o, first);
    p->lse = kiln_view_of(a->softmax_lse, first);
    p->sinks = kiln_view_of(a->sinks, 1);
    p->batch = p->o.size[0], p->heads = p->o.size[1], p->seqlen_q = p->o.size[2], p->d_v = p->o.size[3];
    p->num_parts = a->num_parts;
    p->max_sms = a->max_sms;
    p->o_parts = a->o_parts;
    p->lse_parts = a->lse_parts;
    p->flags = a->flags;
    p->algorithm = a->algorithm;
    return KILN_OK;
}
