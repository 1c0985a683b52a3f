/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_naive.inc.h: rung `naive`: softmax(Q·Kᵀ)·V as it is written.
 *
 * Every score is a dot product of its own, every output row a sum of its own; both are vectorised along the head,
 * nothing is shared in registers. Three passes over the matrix of scores: scores, softmax, P·V.
 * Contract: everything that kiln.h says about attention_forward. The keys are never split.
 * Traffic, one head, N queries and keys, e bytes an element: 4·N·d·e (q, k, v, o) + 16·N² (S written, read; P written,
 * read). FLOPs: 4·N²·d + 3·N².
 */
#include "attention_matrix.inc.h"

/* q stays row by row: q[lane][columns]. */
static void naive_pack(const attention_call *call, tile *t, const kiln_sequence *seq, const attention_scratch *scratch)
{
    (void)scratch;
    for (int64_t lane = 0; lane < call->nq; lane++)
        load_query(call, t, seq, lane, t->q + lane * call->columns);
}

static void naive_scores(const attention_call *call, const tile *t, const float *k, int64_t ldk, int64_t rows, float *s)
{
    const int64_t columns = call->columns, whole = columns / VF_LANES * VF_LANES;
    const int rest = (int)(columns - whole);
    for (int64_t r = 0; r < rows; r++)
        for (int lane = 0; lane < call->nq; lane++) {
            const float *a = k + r * ldk, *b = t->q + lane * columns;
            vf even = vf_zero(), odd = vf_zero();
            int64_t c = 0;
            for (; c + 2 * VF_LANES <= whole; c += 2 * VF_LANES) {
                even = vf_fma(vf_load(a + c), vf_load(b + c), even);
                odd = vf_fma(vf_load(a + c + VF_LANES), vf_load(b + c + VF_LANES), odd);
            }
            if (c < whole)
                even = vf_fma(vf_load(a + c), vf_load(b + c), even);
            if (rest > 0)
                odd = vf_fma(vf_load_tail(a + whole, rest), vf_load_tail(b + whole, rest), odd);
            s[r * call->nq + lane] = vf_hsum(vf_add(even, odd));
        }
}

static void naive_values(const attention_call *call, tile *t, const float *v, int64_t ldv, int64_t rows,
                         const float *weights, bool hidden, const attention_scratch *scratch)
{
    const int64_t d_v = call->p->d_v;
    for (int lane = 0; lane < call->nq; lane++)
        for (int64_t c = 0; c < d_v; c += VF_LANES) {
            const int n = d_v - c < VF_LANES ? (int)(d_v - c) : VF_LANES;
            vf sum = vf_zero();
            for (int64_t r = 0; r < rows; r++) {
                if (hidden && !(scratch->scores.visible[r] >> lane & 1))
                    continue;
                const float *x = v + r * ldv + c;
                vf value = n == VF_LANES ? vf_load(x) : vf_load_tail(x, n);
                sum = vf_fma(vf_set1(weights[r * call->nq + lane]), value, sum);
            }
            float out[VF_LANES];
            vf_store(out, sum);
            for (int i = 0; i < n; i++)
                t->o[(c + i) * call->nq + lane] += out[i];
        }
}

static const matrix_rung naive_rung = {naive_pack, naive_scores, naive_values};

/* One vector of lanes, whatever the shape. */
static attention_call naive_call(const kiln_attention_problem *p, bool run)
{
    attention_call call = call_of(p, 1, run);
    call.nv = 1;
    call.nq = VF_LANES;
    return call;
}

static size_t naive_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    matrix_call f = {.call = naive_call(&problem->attention, false)};
    (void)cpu;
    return matrix_place(&f, NULL, workers);
}

static void naive_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    matrix_call f = {.call = naive_call(&problem->attention, true), .rung = &naive_rung};
    matrix_run(cpu, &f, workspace, workers);
}

static const kiln_cpu_kernel attention_forward_naive = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "naive",
    .name = KILN_CPU_NAME("attention_forward_naive"),
    .supports = matrix_supports,
    .workspace = naive_workspace,
    .run = naive_run,
    .numerics = attention_numerics,
};
