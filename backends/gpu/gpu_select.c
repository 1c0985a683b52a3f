/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * gpu_select.c: which method of a backend's ordered list a problem gets: the first whose operation and rung match, which
 * takes the problem and, where no rung is named, prefers it. Refuses first what no GPU kernel takes. Pure and cheap; the same
 * problem on the same device model always gets the same method.
 */
#include "gpu_host.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- strides (contract, "Objects") */

/* A tensor that kernels read or write along its last axis. Sizes of one have stride 0 (problem.h). */
typedef struct along_rows {
    const char *name;
    int64_t size, stride;
} along_rows;

static bool refuses(const along_rows *tensor, char *why, size_t cap)
{
    if (tensor->size <= 1 || tensor->stride == 1)
        return false;
    snprintf(why, cap, "%s has stride %" PRId64 " along its last axis; GPU kernels need 1", tensor->name,
             tensor->stride);
    return true;
}

static bool refuses_any(const along_rows *tensors, size_t count, char *why, size_t cap)
{
    for (size_t i = 0; i < count; i++)
        if (refuses(&tensors[i], why, cap))
            return true;
    return false;
}

static along_rows view(const char *name, const kiln_view *v)
{
    return (along_rows){name, kiln_view_present(v) ? v->size[3] : 0, v->stride[3]};
}

static along_rows softmax_rows(const char *name, const kiln_rows *rows, int64_t n)
{
    return (along_rows){name, rows->type ? n : 0, rows->stride};
}

#define REFUSES_ANY(list, why, cap) refuses_any(list, sizeof(list) / sizeof *(list), why, cap)

static bool refuses_attention(const kiln_attention_problem *p, char *why, size_t cap)
{
    const along_rows list[] = {view("q", &p->q), view("k", &p->k),   view("v", &p->v),
                               view("o", &p->o), view("q2", &p->q2), view("k2", &p->k2)};
    return REFUSES_ANY(list, why, cap);
}

static bool refuses_merge(const kiln_merge_problem *p, char *why, size_t cap)
{
    const along_rows o = view("o", &p->o);
    if (refuses(&o, why, cap))
        return true;
    for (int32_t i = 0; i < p->num_parts; i++) {
        kiln_view part, lse;
        kiln_merge_part(p, i, &part, &lse);
        const along_rows row = view("an entry of o_parts", &part);
        if (refuses(&row, why, cap))
            return true;
    }
    return false;
}

/* True, with the sentence in `why`, if a tensor has no unit stride along its rows. What kernels read one by one (lse, bias,
 * masks, lengths) may have any strides. */
static bool refuses_strides(const kiln_problem *problem, char *why, size_t cap)
{
    switch (problem->op) {
    case KILN_OP_SOFTMAX_FORWARD:
    case KILN_OP_SOFTMAX_BACKWARD: {
        const kiln_softmax_problem *p = &problem->softmax;
        const along_rows list[] = {softmax_rows("x", &p->x, p->n), softmax_rows("y", &p->y, p->n),
                                   softmax_rows("dy", &p->dy, p->n), softmax_rows("dx", &p->dx, p->n)};
        return REFUSES_ANY(list, why, cap);
    }
    case KILN_OP_ATTENTION_FORWARD: return refuses_attention(&problem->attention, why, cap);
    case KILN_OP_ATTENTION_BACKWARD: {
        const kiln_attention_backward_problem *p = &problem->backward;
        const along_rows list[] = {view("dout", &p->dout), view("dq", &p->dq),   view("dk", &p->dk),
                                   view("dv", &p->dv),     view("dq2", &p->dq2), view("dk2", &p->dk2)};
        return refuses_attention(&p->forward, why, cap) || REFUSES_ANY(list, why, cap);
    }
    default: return refuses_merge(&problem->merge, why, cap);
    }
}

/* ---------------------------------------------------------------------------------------------------- the choice */

/* Was this rung already met among the methods of the operation before `end`? (One rung may have several methods.) */
static bool listed_before(const gpu_method *const *methods, const gpu_method *const *end)
{
    for (; methods != end; methods++)
        if ((*methods)->op == (*end)->op && strcmp((*methods)->algorithm, (*end)->algorithm) == 0)
            return true;
    return false;
}

/* "algorithm is "x"; the cuda backend has three_pass, online for softmax_forward". Says so too when it has none. */
static void explain_unknown(const gpu_device *device, kiln_op op, const char *algorithm, char *why, size_t cap)
{
    char names[256] = "";
    size_t used = 0;
    for (const gpu_method *const *m = device->methods; *m; m++)
        if ((*m)->op == op && !listed_before(device->methods, m) && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", (*m)->algorithm);
    snprintf(why, cap, "algorithm is \"%.40s\"; the %s backend has %s for %s", algorithm, device->runtime->name, names,
             kiln_op_name(op));
}

const gpu_method *gpu_select(const gpu_device *device, const kiln_problem *problem, bool *unknown, char *why,
                             size_t cap)
{
    const char *algorithm = kiln_problem_algorithm(problem);
    bool any_operation = false, any_algorithm = false;
    for (const gpu_method *const *m = device->methods; *m; m++) {
        const gpu_method *method = *m;
        if (method->op != problem->op)
            continue;
        any_operation = true;
        if (algorithm && strcmp(algorithm, method->algorithm) != 0)
            continue;
        if (!any_algorithm && refuses_strides(problem, why, cap))
            return NULL;
        any_algorithm = true;
        if (!algorithm && method->prefers && !method->prefers(device, problem))
            continue;
        if (method->supports(device, problem, why, cap)) /* else `why` keeps the sentence of the most general one */
            return method;
    }
    *unknown = any_operation && !any_algorithm && !kiln_is_rung(problem->op, algorithm);
    if (!any_operation)
        snprintf(why, cap, "the %s backend has no %s", device->runtime->name, kiln_op_name(problem->op));
    else if (!any_algorithm)
        explain_unknown(device, problem->op, algorithm, why, cap);
    return NULL;
}
