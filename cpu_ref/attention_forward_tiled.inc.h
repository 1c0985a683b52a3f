/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_tiled.inc.h: rung `tiled`.
 *
 * Since `naive`: both products go through the register-blocked kernels of attention_tile.inc.h, a tile of queries
 * against a block of keys at a time, so that each element of K, V and P that is read serves many multiply-adds. S and P
 * are still in memory. Contract: everything that kiln.h says about attention_forward. The keys are never split.
 * Traffic, one head, N queries and keys, e bytes an element: 4·N·d·e (q, k, v, o) + 16·N² (S written, read; P written,
 * read). FLOPs: 4·N²·d + 3·N².
 */
#include "attention_matrix.inc.h"

static void tiled_pack(const attention_call *call, tile *t, const kiln_sequence *seq, const attention_scratch *scratch)
{
    tile_pack(call, t, seq, scratch->buffer);
}

static void tiled_scores(const attention_call *call, const tile *t, const float *k, int64_t ldk, int64_t rows, float *s)
{
    vf max[TILE_VECTORS];
    UNROLL for (int j = 0; j < TILE_VECTORS; j++) max[j] = vf_set1(-INFINITY);
    if (call->nv == 1)
        score_rows(1, k, ldk, t->q, s, rows, call->columns, max);
    else
        score_rows(TILE_VECTORS, k, ldk, t->q, s, rows, call->columns, max);
}

static void tiled_values(const attention_call *call, tile *t, const float *v, int64_t ldv, int64_t rows,
                         const float *weights, bool hidden, const attention_scratch *scratch)
{
    vf one[TILE_VECTORS];
    UNROLL for (int j = 0; j < TILE_VECTORS; j++) one[j] = vf_set1(1.0f);
    if (call->nv == 1)
        tile_values(1, call, t, v, ldv, weights, rows, one, hidden, scratch->scores.visible);
    else
        tile_values(TILE_VECTORS, call, t, v, ldv, weights, rows, one, hidden, scratch->scores.visible);
}

static const matrix_rung tiled_rung = {tiled_pack, tiled_scores, tiled_values};

static size_t tiled_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    matrix_call f = {.call = call_of(&problem->attention, 1, false)};
    (void)cpu;
    return matrix_place(&f, NULL, workers);
}

static void tiled_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    matrix_call f = {.call = call_of(&problem->attention, 1, true), .rung = &tiled_rung};
    matrix_run(cpu, &f, workspace, workers);
}

static const kiln_cpu_kernel attention_forward_tiled = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "tiled",
    .name = KILN_CPU_NAME("attention_forward_tiled"),
    .supports = matrix_supports,
    .workspace = tiled_workspace,
    .run = tiled_run,
    .numerics = attention_numerics,
};
