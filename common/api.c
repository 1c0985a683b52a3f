/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * api.c: the four public calls of every operation. Each is: copy the arguments, validate, hand the problem to the backend.
 *
 * Cost on top of the kernel: under a microsecond, no allocation.
 */
#include <stdio.h>
#include <string.h>

#include "fp_env.h"
#include "validate.h"

typedef kiln_status (*validate_fn)(const kiln_context *context, const void *args, bool query, kiln_problem *problem);

/* What differs between the operations, by kiln_op. */
static const struct {
    size_t args_size;
    const char *args_name;
    validate_fn validate;
} operations[KILN_OP_COUNT] = {
    [KILN_OP_SOFTMAX_FORWARD] = {sizeof(kiln_softmax_forward_args), "kiln_softmax_forward_args",
                                 kiln_validate_softmax_forward},
    [KILN_OP_SOFTMAX_BACKWARD] = {sizeof(kiln_softmax_backward_args), "kiln_softmax_backward_args",
                                  kiln_validate_softmax_backward},
    [KILN_OP_ATTENTION_FORWARD] = {sizeof(kiln_attention_forward_args), "kiln_attention_forward_args",
                                   kiln_validate_attention_forward},
    [KILN_OP_ATTENTION_BACKWARD] = {sizeof(kiln_attention_backward_args), "kiln_attention_backward_args",
                                    kiln_validate_attention_backward},
    [KILN_OP_ATTENTION_MERGE] = {sizeof(kiln_attention_merge_args), "kiln_attention_merge_args",
                                 kiln_validate_attention_merge},
};

static const kiln_attention_problem *attention_of(const kiln_problem *problem)
{
    return problem->op == KILN_OP_ATTENTION_FORWARD    ? &problem->attention
           : problem->op == KILN_OP_ATTENTION_BACKWARD ? &problem->backward.forward
                                                       : NULL;
}

static kiln_status make_problem(const kiln_context *context, kiln_op op, const void *args, bool query,
                                kiln_problem *problem)
{
    union {
        kiln_softmax_forward_args softmax_forward;
        kiln_softmax_backward_args softmax_backward;
        kiln_attention_forward_args attention_forward;
        kiln_attention_backward_args attention_backward;
        kiln_attention_merge_args attention_merge;
    } copy;
    if (!context)
        return kiln_fail(KILN_INVALID_ARGUMENT, "context is NULL; make one with kiln_context_create");
    KILN_TRY(kiln_args_copy(&copy, operations[op].args_size, args, operations[op].args_name));
    memset(problem, 0, sizeof *problem);
    problem->op = op;
    kiln_fp_env saved =
        kiln_fp_env_enter(); /* the default scale is computed: not with the caller's rounding or traps */
    kiln_status status = operations[op].validate(context, &copy, query, problem);
    kiln_fp_env_leave(saved);
    KILN_TRY(status);
    if (!query && context->backend->host_readable && attention_of(problem))
        KILN_TRY(kiln_validate_lengths(attention_of(problem)));
    return KILN_OK;
}

static kiln_status supports(const kiln_context *context, const kiln_problem *problem, char *why, size_t cap)
{
    char unused[256];
    return context->backend->supports(context->state, problem, why ? why : unused, why ? cap : sizeof unused);
}

static kiln_status op_supported(const kiln_context *context, kiln_op op, const void *args, char *why, size_t cap)
{
    kiln_problem problem;
    if (cap == 0)
        why = NULL;
    kiln_status status = make_problem(context, op, args, true, &problem);
    if (status == KILN_OK)
        status = supports(context, &problem, why, cap);
    if (status != KILN_OK && why)
        snprintf(why, cap, "%s", kiln_last_error());
    return status;
}

static kiln_status op_workspace(const kiln_context *context, kiln_op op, const void *args, size_t *bytes)
{
    kiln_problem problem;
    if (!bytes)
        return kiln_fail(KILN_INVALID_ARGUMENT, "bytes is NULL; pass the address of a size_t");
    KILN_TRY(make_problem(context, op, args, true, &problem));
    KILN_TRY(supports(context, &problem, NULL, 0));
    return context->backend->workspace(context->state, &problem, bytes);
}

static kiln_status op_prepare(kiln_context *context, kiln_op op, const void *args)
{
    kiln_problem problem;
    KILN_TRY(make_problem(context, op, args, true, &problem));
    KILN_TRY(supports(context, &problem, NULL, 0));
    return context->backend->prepare ? context->backend->prepare(context->state, &problem) : KILN_OK;
}

static kiln_status op_run(kiln_context *context, kiln_op op, const void *args, void *workspace, size_t bytes,
                          kiln_stream stream)
{
    kiln_problem problem;
    size_t needed = 0;
    KILN_TRY(make_problem(context, op, args, false, &problem));
    KILN_TRY(supports(context, &problem, NULL, 0));
    KILN_TRY(context->backend->workspace(context->state, &problem, &needed));
    if (bytes < needed)
        return kiln_fail(KILN_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; this call needs %zu", bytes, needed);
    if (needed && !workspace)
        return kiln_fail(KILN_INVALID_ARGUMENT, "workspace is NULL; this call needs %zu bytes", needed);
    if (needed && (uintptr_t)workspace % 256)
        return kiln_fail(KILN_INVALID_ARGUMENT, "workspace is %p; it must be aligned to 256 bytes", workspace);
    return context->backend->run(context->state, &problem, workspace, bytes, stream);
}

kiln_status kiln_internal_numerics(const kiln_context *context, kiln_op op, const void *args, kiln_numerics *numerics)
{
    kiln_problem problem;
    KILN_TRY(make_problem(context, op, args, true, &problem));
    KILN_TRY(supports(context, &problem, NULL, 0));
    return context->backend->numerics(context->state, &problem, numerics);
}

#define DEFINE_OPERATION(name, op)                                                                                     \
    kiln_status kiln_##name##_supported(const kiln_context *context, const kiln_##name##_args *args, char *why,        \
                                        size_t cap)                                                                    \
    {                                                                                                                  \
        return op_supported(context, op, args, why, cap);                                                              \
    }                                                                                                                  \
    kiln_status kiln_##name##_workspace(const kiln_context *context, const kiln_##name##_args *args, size_t *bytes)    \
    {                                                                                                                  \
        return op_workspace(context, op, args, bytes);                                                                 \
    }                                                                                                                  \
    kiln_status kiln_##name##_prepare(kiln_context *context, const kiln_##name##_args *args)                           \
    {                                                                                                                  \
        return op_prepare(context, op, args);                                                                          \
    }                                                                                                                  \
    kiln_status kiln_##name(kiln_context *context, const kiln_##name##_args *args, void *workspace,                    \
                            size_t workspace_bytes, kiln_stream stream)                                                \
    {                                                                                                                  \
        return op_run(context, op, args, workspace, workspace_bytes, stream);                                          \
    }

DEFINE_OPERATION(softmax_forward, KILN_OP_SOFTMAX_FORWARD)
DEFINE_OPERATION(softmax_backward, KILN_OP_SOFTMAX_BACKWARD)
DEFINE_OPERATION(attention_forward, KILN_OP_ATTENTION_FORWARD)
DEFINE_OPERATION(attention_backward, KILN_OP_ATTENTION_BACKWARD)
DEFINE_OPERATION(attention_merge, KILN_OP_ATTENTION_MERGE)
