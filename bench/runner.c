/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* runner.c: see runner.h. Costs one device copy of every tensor. */
#include <stdio.h>
#include <string.h>

#include "runner.h"

/* Returns what the operation's entry point with this suffix says. */
#define KILN_CALL(op_suffix, context, call, ...)                                                                       \
    switch ((call)->op) {                                                                                              \
    case KILN_OP_SOFTMAX_FORWARD:                                                                                      \
        return kiln_softmax_forward##op_suffix(context, &(call)->softmax_forward, __VA_ARGS__);                        \
    case KILN_OP_SOFTMAX_BACKWARD:                                                                                     \
        return kiln_softmax_backward##op_suffix(context, &(call)->softmax_backward, __VA_ARGS__);                      \
    case KILN_OP_ATTENTION_FORWARD: return kiln_attention_forward##op_suffix(context, &(call)->forward, __VA_ARGS__);  \
    case KILN_OP_ATTENTION_BACKWARD:                                                                                   \
        return kiln_attention_backward##op_suffix(context, &(call)->backward, __VA_ARGS__);                            \
    case KILN_OP_ATTENTION_MERGE: return kiln_attention_merge##op_suffix(context, &(call)->merge, __VA_ARGS__);        \
    case KILN_OP_COUNT: break;                                                                                         \
    }                                                                                                                  \
    return KILN_INTERNAL

kiln_status runner_supported(const kiln_context *context, const problem_call *call, char *why, size_t cap)
{
    KILN_CALL(_supported, context, call, why, cap);
}

static kiln_status ask_workspace(const kiln_context *context, const problem_call *call, size_t *bytes)
{
    KILN_CALL(_workspace, context, call, bytes);
}

static kiln_status run(kiln_context *context, const problem_call *call, void *workspace, size_t bytes)
{
    KILN_CALL(, context, call, workspace, bytes, NULL);
}

static bool is_home(const problem_data *data, int slot)
{
    return data->tensor[slot].present && data->tensor[slot].home == (problem_slot)slot;
}

/* Puts the runner's own algorithm where the problem's is; the problem may be shared. */
static void set_algorithm(runner *r)
{
    const char *name = r->algorithm[0] != '\0' ? r->algorithm : NULL;
    r->call.softmax_forward.algorithm = r->call.softmax_backward.algorithm = name;
    r->call.backward.algorithm = r->call.merge.algorithm = name;
    if (r->call.op == KILN_OP_ATTENTION_FORWARD)
        r->call.forward.algorithm = name;
}

/* Everything after the tensors are there. */
static kiln_status finish_open(runner *r, const char *algorithm)
{
    kiln_status status;
    snprintf(r->algorithm, sizeof r->algorithm, "%s", algorithm);
    problem_call_init(&r->call, r->data, kiln_context_device(r->context), r->storage);
    set_algorithm(r);
    if ((status = runner_supported(r->context, &r->call, r->kernel, sizeof r->kernel)) != KILN_OK)
        return status;
    if ((status = ask_workspace(r->context, &r->call, &r->workspace_bytes)) != KILN_OK)
        return status;
    return kiln_malloc(r->context, r->workspace_bytes + 2 * PROBLEM_GUARD, (void **)&r->workspace);
}

kiln_status runner_open(runner *r, kiln_context *context, problem_data *data)
{
    memset(r, 0, sizeof *r);
    r->context = context;
    r->data = data;
    kiln_status status = KILN_OK;
    for (int slot = 0; slot < SLOT_COUNT && status == KILN_OK; slot++)
        if (is_home(data, slot))
            status = kiln_malloc(context, data->tensor[slot].bytes, (void **)&r->storage[slot]);
    if (status == KILN_OK)
        status = finish_open(r, data->spec.algorithm);
    if (status == KILN_OK)
        status = runner_reset(r, true, PROBLEM_FILL);
    if (status != KILN_OK)
        runner_close(r);
    return status;
}

kiln_status runner_share(runner *r, const runner *owner, const char *algorithm)
{
    memset(r, 0, sizeof *r);
    r->owner = owner;
    r->context = owner->context;
    r->data = owner->data;
    memcpy(r->storage, owner->storage, sizeof r->storage);
    kiln_status status = finish_open(r, algorithm);
    if (status != KILN_OK)
        runner_close(r);
    return status;
}

void runner_close(runner *r)
{
    for (int slot = 0; slot < SLOT_COUNT && r->owner == NULL; slot++)
        kiln_free(r->context, r->storage[slot]);
    kiln_free(r->context, r->workspace);
    memset(r->storage, 0, sizeof r->storage);
    r->workspace = NULL;
}

kiln_status runner_reset(runner *r, bool all, uint8_t garbage)
{
    kiln_status status = KILN_OK;
    for (int slot = 0; slot < SLOT_COUNT && status == KILN_OK; slot++) {
        const problem_tensor *t = &r->data->tensor[slot];
        if (is_home(r->data, slot) && (all || t->output))
            status = kiln_copy(r->context, r->storage[slot], t->storage, t->bytes, NULL);
    }
    if (status == KILN_OK)
        status = kiln_fill(r->context, r->workspace, PROBLEM_FILL, r->workspace_bytes + 2 * PROBLEM_GUARD, NULL);
    if (status == KILN_OK && r->data->spec.flags & KILN_FLAG_WORKSPACE_ZEROED)
        garbage = 0;
    if (status == KILN_OK && r->workspace_bytes > 0 && garbage != PROBLEM_FILL)
        status = kiln_fill(r->context, r->workspace + PROBLEM_GUARD, garbage, r->workspace_bytes, NULL);
    return status;
}

kiln_status runner_run(runner *r)
{
    return run(r->context, &r->call, r->workspace + PROBLEM_GUARD, r->workspace_bytes);
}

kiln_status runner_fetch(runner *r, problem_slot home, char *host)
{
    return kiln_copy(r->context, host, r->storage[home], r->data->tensor[home].bytes, NULL);
}

kiln_status runner_fetch_guards(runner *r, char *host)
{
    kiln_status status = kiln_copy(r->context, host, r->workspace, PROBLEM_GUARD, NULL);
    if (status == KILN_OK)
        status = kiln_copy(r->context, host + PROBLEM_GUARD, r->workspace + PROBLEM_GUARD + r->workspace_bytes,
                           PROBLEM_GUARD, NULL);
    return status;
}

/* Does the backend know this name? A name that it does not is an invalid argument of even the plainest problem; one that
 * it knows may still be unsupported for it. */
static bool knows(const kiln_context *context, kiln_op op, const char *algorithm)
{
    problem_spec spec = problem_default(op);
    problem_data data;
    problem_call call;
    char why[256];
    spec.type = KILN_FLOAT16;
    spec.n = spec.d = spec.d_v = 64;
    snprintf(spec.algorithm, sizeof spec.algorithm, "%s", algorithm);
    if (!problem_build(&spec, 0, &data, why, sizeof why))
        return false;
    problem_call_init(&call, &data, kiln_context_device(context), NULL);
    kiln_status status = runner_supported(context, &call, why, sizeof why);
    problem_free(&data);
    return status == KILN_OK || status == KILN_UNSUPPORTED;
}

int runner_rungs(const kiln_context *context, kiln_op op, const char **names)
{
    static const char *const softmax[] = {"three_pass", "online", NULL};
    static const char *const attention[] = {"naive", "tiled", "tiled_unpadded", "flash1",  "flash2",
                                            "mma",   "wgmma", "mfma",           "splitkv", NULL};
    static const char *const automatic[] = {"", NULL};
    const char *const *ladder = op == KILN_OP_SOFTMAX_FORWARD     ? softmax
                                : op == KILN_OP_ATTENTION_FORWARD ? attention
                                                                  : automatic;
    int count = 0;
    for (; *ladder != NULL; ladder++)
        if (**ladder == '\0' || knows(context, op, *ladder))
            names[count++] = *ladder;
    return count;
}
