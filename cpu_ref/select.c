/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * select.c: the one place of the CPU backend that chooses a kernel: the first of the instruction set's ordered list whose
 * operation and rung match, which takes the problem and, where no rung is named, prefers it. Pure and cheap; the same
 * problem always gets the same kernel.
 */
#include "../common/convert.h"
#include "cpu.h"

#include <stdio.h>
#include <string.h>

/* One worker is done with it before others have started: some microseconds of arithmetic and of reading k and v. */
static bool is_tiny(const kiln_attention_problem *p)
{
    const double columns = (double)(p->d + p->d2 + p->d_v), keys = (double)p->batch * (double)p->seqlen_k;
    return keys * (double)p->heads * (double)p->seqlen_q * columns < 0x1p18 &&
           keys * (double)p->heads_k * columns * (double)kiln_type_size(p->k.type) < 0x1p17;
}

int32_t kiln_cpu_workers(const kiln_cpu *cpu, const kiln_problem *problem)
{
    int32_t limit;
    if (problem->op == KILN_OP_ATTENTION_FORWARD && is_tiny(&problem->attention))
        return 1;
    switch (problem->op) {
    case KILN_OP_SOFTMAX_FORWARD:
    case KILN_OP_SOFTMAX_BACKWARD: limit = problem->softmax.max_sms; break;
    case KILN_OP_ATTENTION_FORWARD: limit = problem->attention.max_sms; break;
    case KILN_OP_ATTENTION_BACKWARD: limit = problem->backward.forward.max_sms; break;
    default: limit = problem->merge.max_sms; break;
    }
    return limit > 0 && limit < cpu->threads ? limit : cpu->threads;
}

/* The kernels of an instruction set, then those of the one it builds on: `for (walk w = {isa, 0}; (k = next(&w));)`. */
typedef struct walk {
    const kiln_cpu_isa *isa;
    size_t index;
} walk;

static const kiln_cpu_kernel *next(walk *w)
{
    while (w->isa && !w->isa->kernels[w->index])
        *w = (walk){w->isa->base, 0};
    return w->isa ? w->isa->kernels[w->index++] : NULL;
}

/* Was this rung already met among the kernels of the operation before `end`? (One rung may have several kernels.) */
static bool listed_before(const kiln_cpu_isa *isa, const kiln_cpu_kernel *end)
{
    const kiln_cpu_kernel *k;
    for (walk w = {isa, 0}; (k = next(&w)) && k != end;)
        if (k->op == end->op && strcmp(k->algorithm, end->algorithm) == 0)
            return true;
    return false;
}

/* "algorithm is "x"; the cpu backend has three_pass, online for softmax_forward". Says so too when it has none. */
static void explain_unknown(const kiln_cpu_isa *isa, kiln_op op, const char *algorithm, char *why, size_t cap)
{
    char names[256] = "";
    size_t used = 0;
    const kiln_cpu_kernel *k;
    for (walk w = {isa, 0}; (k = next(&w));)
        if (k->op == op && !listed_before(isa, k) && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", k->algorithm);
    snprintf(why, cap, "algorithm is \"%.40s\"; the cpu backend has %s for %s", algorithm, names, kiln_op_name(op));
}

const kiln_cpu_kernel *kiln_cpu_select(const kiln_cpu *cpu, const kiln_problem *problem, bool *unknown, char *why,
                                       size_t cap)
{
    const char *algorithm = kiln_problem_algorithm(problem);
    bool any_operation = false, any_algorithm = false;
    const kiln_cpu_kernel *kernel;
    for (walk w = {cpu->isa, 0}; (kernel = next(&w));) {
        if (kernel->op != problem->op)
            continue;
        any_operation = true;
        if (algorithm && strcmp(algorithm, kernel->algorithm) != 0)
            continue;
        any_algorithm = true;
        if (!algorithm && kernel->prefers && !kernel->prefers(problem))
            continue;
        if (kernel->supports(cpu, problem, why, cap)) /* else `why` keeps the sentence of the most general one */
            return kernel;
    }
    *unknown = any_operation && !any_algorithm && !kiln_is_rung(problem->op, algorithm);
    if (!any_operation)
        snprintf(why, cap, "the cpu backend has no %s", kiln_op_name(problem->op));
    else if (!any_algorithm)
        explain_unknown(cpu->isa, problem->op, algorithm, why, cap);
    return NULL;
}
