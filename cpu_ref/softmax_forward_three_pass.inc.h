/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_forward_three_pass.inc.h: rung `three_pass`, safe softmax as in the text books: maximum, sum, write.
 *
 * Contract: any types, strides and sizes. Traffic per element: 3 reads, 1 write; a row of up to SOFTMAX_CHUNK elements is
 * read once only, and then both rungs are the same code. 2 exponentials an element (short rows: 1).
 */
#include "softmax_forward.inc.h"

static void softmax_forward_three_pass_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace,
                                           int32_t workers)
{
    softmax_forward_run(cpu, problem, workspace, workers, false);
}

static const kiln_cpu_kernel softmax_forward_three_pass = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "three_pass",
    .name = KILN_CPU_NAME("softmax_forward_three_pass"),
    .supports = softmax_supports,
    .workspace = softmax_forward_workspace,
    .run = softmax_forward_three_pass_run,
    .numerics = softmax_numerics,
};
