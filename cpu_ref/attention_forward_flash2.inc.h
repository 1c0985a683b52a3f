/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_flash2.inc.h: rung `flash2` (Dao 2023, FlashAttention-2).
 *
 * Since `flash1`: queries outside, keys inside. The state (m, l, O) of a few tiles stays in the core's second-level
 * cache from the first key to the last and is divided once.
 * Contract: everything that kiln.h says about attention_forward. The keys are never split.
 * Traffic, one head, N queries and keys, e bytes an element, Br = rows of a task: 2·N·d·e (q, o) + 2·N·d·e·ceil(N/Br)
 * (k, v). FLOPs: 4·N²·d + 3·N²; half of it if causal. Workspace: workers · (a block of keys, tiles): 0.4 MB each at d =
 * 128.
 */
#include "attention_blocked.inc.h"

/* Tiles of a task: as many as the second-level cache takes beside a block of keys, fewer if workers would stand idle. */
static int64_t flash2_tiles(const kiln_cpu *cpu, const attention_call *call, int32_t workers)
{
    const kiln_attention_problem *p = call->p;
    const int64_t columns = call->columns + p->d_v, cache = cpu->l2_bytes > 0 ? cpu->l2_bytes : 1 << 20;
    const int64_t floats = cache / 4 * 6 / 10, tiles = (longest_seqlen_q(p) * (p->heads / p->heads_k)) / call->nq;
    int64_t n = (floats - KEY_BLOCK * (columns + call->nq)) / (columns * call->nq);
    int64_t spread = tiles * p->batch * p->heads_k / (4 * (int64_t)workers);
    n = n > TASK_TILES ? TASK_TILES : n;
    n = n > spread ? spread : n;
    return n < 1 ? 1 : n;
}

static size_t flash2_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    const attention_call call = call_of(p, p->heads / p->heads_k, false);
    (void)cpu;
    return blocked_bytes(&call, TASK_TILES, workers);
}

static void flash2_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    const attention_call call = call_of(p, p->heads / p->heads_k, true);
    blocked_run(cpu, &call, flash2_tiles(cpu, &call, workers), workspace, workers);
}

static const kiln_cpu_kernel attention_forward_flash2 = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "flash2",
    .name = KILN_CPU_NAME("attention_forward_flash2"),
    .supports = attention_supports,
    .workspace = flash2_workspace,
    .run = flash2_run,
    .numerics = attention_numerics,
};
