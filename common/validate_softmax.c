/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* validate_softmax.c: softmax arguments -> kiln_softmax_problem, with the outer axes merged as far as all tensors allow. */
#include "validate.h"

#include <stdio.h>
#include <string.h>

/* The tensors of a call: all have x's shape, but those with `row_value` lack the last axis. */
typedef struct operand {
    const kiln_tensor *tensor; /* NULL = absent */
    kiln_rows *rows;
    bool row_value;
} operand;

/* Two neighbouring axes can be one if in every tensor the outer stride is the inner size times the inner stride. */
static bool mergeable(const operand *operands, int count, int outer_axis, int64_t inner_size, int inner_axis)
{
    for (int i = 0; i < count; i++) {
        const kiln_tensor *t = operands[i].tensor;
        if (t && kiln_tensor_stride(t, outer_axis) != inner_size * kiln_tensor_stride(t, inner_axis))
            return false;
    }
    return true;
}

static void build(const operand *operands, int count, const kiln_tensor *shape_of, kiln_softmax_problem *p)
{
    int last = shape_of->ndim - 1;
    p->n = shape_of->shape[last];
    p->rows = 1;
    int axis_of[KILN_SOFTMAX_OUTER]; /* innermost source axis of each merged axis */
    for (int axis = 0; axis < last; axis++) {
        int64_t size = shape_of->shape[axis];
        p->rows *= size;
        if (size == 1)
            continue;
        int top = p->outer_rank - 1;
        /* The merged axis keeps the stride of its innermost source axis. */
        if (p->outer_rank > 0 && mergeable(operands, count, axis_of[top], size, axis)) {
            p->outer_size[top] *= size;
            axis_of[top] = axis;
        } else {
            p->outer_size[p->outer_rank] = size;
            axis_of[p->outer_rank++] = axis;
        }
    }
    for (int i = 0; i < count; i++) {
        const kiln_tensor *t = operands[i].tensor;
        kiln_rows *rows = operands[i].rows;
        if (!t)
            continue;
        rows->type = kiln_tensor_type(t);
        rows->data = kiln_tensor_data(t);
        for (int k = 0; k < p->outer_rank; k++)
            rows->outer_stride[k] = kiln_tensor_stride(t, axis_of[k]);
        rows->stride = operands[i].row_value ? 0 : kiln_tensor_stride(t, last);
    }
}

static kiln_status check_same_shape(const kiln_tensor *t, const char *name, const kiln_tensor *like,
                                    const char *like_name, int axes)
{
    char reason[48] = "as in ";
    strcat(reason, like_name);
    for (int axis = 0; t && axis < axes; axis++)
        KILN_TRY(kiln_check_size(t, name, axis, "same shape", like->shape[axis], reason));
    return KILN_OK;
}

static kiln_status check_row_length(const char *name, int64_t n)
{
    char text[32];
    snprintf(text, sizeof text, "%s's last size", name);
    return kiln_check_range(text, n, 0, INT32_MAX);
}

kiln_status kiln_validate_softmax_forward(const kiln_context *context, const void *copied, bool query,
                                          kiln_problem *problem)
{
    const kiln_softmax_forward_args *a = copied;
    kiln_softmax_problem *p = &problem->softmax;
    const kiln_tensor_rule x = {"x", "(..., n)", kiln_types_float, 0, KILN_INPUT};
    KILN_TRY(kiln_check_tensor(context, a->x, &x, query));
    int rank = a->x->ndim;
    if (!a->y && !a->lse)
        return kiln_fail(KILN_INVALID_ARGUMENT, "y and lse are both NULL; at least one output is required");
    const kiln_tensor_rule y = {"y", "the shape of x", kiln_types_float, rank, KILN_OUTPUT};
    KILN_TRY(kiln_check_optional(context, a->y, &y, query));
    KILN_TRY(check_same_shape(a->y, "y", a->x, "x", rank));
    if (a->lse && rank == 1) {
        /* a scalar: rank 0, or 1 with one element for callers without rank 0 */
        if (a->lse->ndim != 0 && !(a->lse->ndim == 1 && a->lse->shape && a->lse->shape[0] == 1))
            return kiln_fail(KILN_INVALID_ARGUMENT, "lse.ndim is %d; for one row it must be 0, or 1 with size 1",
                             a->lse->ndim);
    }
    kiln_tensor lse_tensor;
    const kiln_tensor *lse_arg = a->lse;
    static const int64_t one = 1;
    if (lse_arg && lse_arg->ndim == 0) {
        lse_tensor = *lse_arg;
        lse_tensor.ndim = 1;
        lse_tensor.shape = &one;
        lse_tensor.strides = NULL;
        lse_arg = &lse_tensor;
    }
    const kiln_tensor_rule lse = {"lse", "the shape of x without its last axis", kiln_types_fp32,
                                  rank > 1 ? rank - 1 : 1, KILN_OUTPUT};
    KILN_TRY(kiln_check_optional(context, lse_arg, &lse, query));
    if (rank > 1)
        KILN_TRY(check_same_shape(lse_arg, "lse", a->x, "x", rank - 1));
    KILN_TRY(check_row_length("x", a->x->shape[rank - 1]));
    KILN_TRY(kiln_check_finite("scale", a->scale));
    KILN_TRY(kiln_check_range("max_sms", a->max_sms, 0, INT32_MAX));
    KILN_TRY(kiln_check_flags(a->flags, KILN_FLAG_LOG | KILN_FLAG_WORKSPACE_ZEROED | KILN_FLAG_BATCH_INVARIANT,
                              "softmax_forward"));
    if (!query) {
        KILN_TRY(kiln_check_in_place(a->y, "y", a->x, "x"));
        const kiln_named_tensor named[] = {
            {lse_arg, "lse", KILN_OUTPUT}, {a->x, "x", KILN_INPUT}, {a->y, "y", KILN_INPUT}};
        KILN_TRY(kiln_check_overlap(named, 3));
    }
    p->scale = a->scale == 0 ? 1.0f : a->scale;
    p->flags = a->flags;
    p->max_sms = a->max_sms;
    p->algorithm = a->algorithm;
    const operand operands[] = {{a->x, &p->x, false}, {a->y, &p->y, false}, {lse_arg, &p->lse, true}};
    build(operands, 3, a->x, p);
    return KILN_OK;
}

kiln_status kiln_validate_softmax_backward(const kiln_context *context, const void *copied, bool query,
                                           kiln_problem *problem)
{
    const kiln_softmax_backward_args *a = copied;
    kiln_softmax_problem *p = &problem->softmax;
    const kiln_tensor_rule y = {"y", "(..., n)", kiln_types_float, 0, KILN_INPUT};
    KILN_TRY(kiln_check_tensor(context, a->y, &y, query));
    int rank = a->y->ndim;
    const kiln_tensor_rule dy = {"dy", "the shape of y", kiln_types_float, rank, KILN_INPUT};
    const kiln_tensor_rule dx = {"dx", "the shape of y", kiln_types_float, rank, KILN_OUTPUT};
    KILN_TRY(kiln_check_tensor(context, a->dy, &dy, query));
    KILN_TRY(kiln_check_tensor(context, a->dx, &dx, query));
    KILN_TRY(check_same_shape(a->dy, "dy", a->y, "y", rank));
    KILN_TRY(check_same_shape(a->dx, "dx", a->y, "y", rank));
    KILN_TRY(check_row_length("y", a->y->shape[rank - 1]));
    KILN_TRY(kiln_check_finite("scale", a->scale));
    KILN_TRY(kiln_check_range("max_sms", a->max_sms, 0, INT32_MAX));
    KILN_TRY(kiln_check_flags(
        a->flags, KILN_FLAG_LOG | KILN_FLAG_DETERMINISTIC | KILN_FLAG_WORKSPACE_ZEROED | KILN_FLAG_BATCH_INVARIANT,
        "softmax_backward"));
    if (!query) {
        KILN_TRY(kiln_check_in_place(a->dx, "dx", a->dy, "dy"));
        const kiln_named_tensor named[] = {{a->dx, "dx", KILN_OUTPUT}, {a->y, "y", KILN_INPUT}};
        KILN_TRY(kiln_check_overlap(named, 2));
    }
    p->scale = a->scale == 0 ? 1.0f : a->scale;
    p->flags = a->flags;
    p->max_sms = a->max_sms;
    p->algorithm = a->algorithm;
    const operand operands[] = {{a->y, &p->y, false}, {a->dy, &p->dy, false}, {a->dx, &p->dx, false}};
    build(operands, 3, a->y, p);
    return KILN_OK;
}
