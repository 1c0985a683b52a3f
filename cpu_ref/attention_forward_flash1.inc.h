/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_flash1.inc.h: rung `flash1` (Dao et al. 2022, FlashAttention).
 *
 * Since `tiled`: scores never reach memory. Keys outside, queries inside: each block of keys is read once and every
 * query tile passes by, so that the state (m, l, O) and q are revisited in memory for each block. O is kept
 * unnormalised and divided at the end, unlike the paper's, which divides at every visit.
 * Contract: everything that kiln.h says about attention_forward. The keys are never split.
 * Traffic, one head, N queries and keys, T = ceil(N/96): 2·N·d·e (k, v) + T·(N·d·4 (q) + 2·N·d·4 (O) + 16·N (m, l))
 * less the first round's reads; with fewer heads than workers the queries of a head are dealt out and each piece reads
 * k and v. FLOPs: 4·N²·d + 3·N². Workspace: workers · queries of a piece · (d + d2 + d_v + 2) floats.
 */
#include "attention_blocked.inc.h"

/* Tiles of a task: all of a head, or of a piece where there are not two heads for each worker. Metadata only. */
static int64_t flash1_tiles(const attention_call *call, int32_t workers)
{
    const kiln_attention_problem *p = call->p;
    const int64_t heads = p->batch * p->heads_k, rows = p->seqlen_q * (p->heads / p->heads_k);
    const int64_t tiles = (rows + call->nq - 1) / call->nq;
    const int64_t pieces = heads > 0 ? (2 * (int64_t)workers + heads - 1) / heads : 1;
    return tiles > pieces ? (tiles + pieces - 1) / pieces : 1;
}

static size_t flash1_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    const attention_call call = call_of(p, p->heads / p->heads_k, false);
    (void)cpu;
    return blocked_bytes(&call, flash1_tiles(&call, workers), workers);
}

static void flash1_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    const attention_call call = call_of(p, p->heads / p->heads_k, true);
    blocked_run(cpu, &call, flash1_tiles(&call, workers), workspace, workers);
}

static const kiln_cpu_kernel attention_forward_flash1 = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "flash1",
    .name = KILN_CPU_NAME("attention_forward_flash1"),
    .supports = attention_supports,
    .workspace = flash1_workspace,
    .run = flash1_run,
    .numerics = attention_numerics,
};
