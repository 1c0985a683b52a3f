/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_forward_online.inc.h: rung `online`, the online normaliser of Milakov and Gimelshein (2018): one pass over
 * (maximum, sum), then write. What changed from `three_pass`: the maximum is that of a chunk in L1 and sums are rescaled when
 * chunks are joined, so memory is read once less.
 *
 * Contract: any types, strides and sizes. Traffic per element: 2 reads, 1 write; a row of up to SOFTMAX_CHUNK elements is
 * read once only. 2 exponentials an element (short rows: 1) and 2 a chunk.
 */
#include "softmax_forward.inc.h"

static void softmax_forward_online_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace,
                                       int32_t workers)
{
    softmax_forward_run(cpu, problem, workspace, workers, true);
}

static const kiln_cpu_kernel softmax_forward_online = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "online",
    .name = KILN_CPU_NAME("softmax_forward_online"),
    .supports = softmax_supports,
    .workspace = softmax_forward_workspace,
    .run = softmax_forward_online_run,
    .numerics = softmax_numerics,
};
