/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_forward_three_pass.inc.h: rung `three_pass`, safe softmax as in the text books: maximum, sum, write.
 *
 * Contract: any types, strides and sizes. Traffic per element: 3 reads, 1 write; a row of up to SOFTMAX_CHUNK elements is
 * read once only, and then both rungs are the same code. 2 exponentials an element (short rows: 1).
 */
#include "softmax_forward.inc.h"

static float softmax_three_pass_max(const kiln_softmax_problem *p, int64_t r, int64_t c)
{
    softmax_buffer buffer;
    softmax_block x;
    softmax_block_set(&x, p, &p->x, r, 1, c);
    return softmax_chunk_load(p, &x, buffer.element);
}

static double softmax_three_pass_sum(const kiln_softmax_problem *p, int64_t r, int64_t c, float m, softmax_output *out)
{
    softmax_buffer buffer;
    softmax_block x;
    softmax_block_set(&x, p, &p->x, r, 1, c);
    if (!softmax_is_direct(p))
        softmax_chunk_load(p, &x, buffer.element);
    return softmax_chunk_exp(p, buffer.element, &x, NULL, m, false, out);
}

static void softmax_three_pass_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, call->streams);
    for (int64_t r = begin; r < end; r++) {
        softmax_state total = {-INFINITY, 0};
        for (int64_t c = 0; c < call->chunks; c++) {
            float m = softmax_three_pass_max(p, r, c);
            total.m = m > total.m ? m : total.m;
        }
        for (int64_t c = 0; c < call->chunks; c++)
            total.l += softmax_three_pass_sum(p, r, c, total.m, &out);
        softmax_row row = softmax_close_row(p, r, total);
        for (int64_t c = 0; p->y.type && c < call->chunks; c++)
            softmax_chunk_write(call, r, c, row, NULL, NULL, &out);
    }
    softmax_output_close(&out);
}

/* The same with chunks as tasks, which workers share. */
static void softmax_three_pass_parts_max(void *arg, int64_t task)
{
    const softmax_forward_call *call = arg;
    call->part[task].m = softmax_three_pass_max(call->p, task / call->chunks, task % call->chunks);
}

/* The maximum of the row is in all of its parts. */
static void softmax_three_pass_parts_sum(void *arg, int64_t task)
{
    const softmax_forward_call *call = arg;
    softmax_output out;
    softmax_output_open(&out, false);
    call->part[task].l =
        softmax_three_pass_sum(call->p, task / call->chunks, task % call->chunks, call->part[task].m, &out);
}

static size_t softmax_forward_three_pass_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    (void)cpu;
    return softmax_cut_rows(p, workers) ? softmax_forward_cut_workspace(p) : 0;
}

static void softmax_forward_three_pass_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace,
                                           int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    int32_t useful = rows_workers(p->rows, p->n, workers);
    bool cut = softmax_cut_rows(p, workers);
    softmax_forward_call call = softmax_forward_call_of(p, workspace, cut);
    if (!cut) {
        softmax_parallel_rows(cpu, p, useful, call.streams,
                              call.chunks == 1 ? softmax_short(p) : softmax_three_pass_rows, &call);
        return;
    }
    int64_t tasks = p->rows * call.chunks;
    rows_parallel(cpu, useful, tasks, softmax_three_pass_parts_max, &call);
    for (int64_t r = 0; r < p->rows; r++) {
        softmax_state *part = call.part + r * call.chunks;
        float m = part[0].m;
        for (int64_t c = 1; c < call.chunks; c++)
            m = part[c].m > m ? part[c].m : m;
        for (int64_t c = 0; c < call.chunks; c++)
            part[c].m = m;
    }
    rows_parallel(cpu, useful, tasks, softmax_three_pass_parts_sum, &call);
    for (int64_t r = 0; r < p->rows; r++) {
        const softmax_state *part = call.part + r * call.chunks;
        softmax_state total = {part[0].m, 0};
        for (int64_t c = 0; c < call.chunks; c++)
            total.l += part[c].l;
        call.row[r] = softmax_close_row(p, r, total);
    }
    if (p->y.type)
        rows_parallel_shares(cpu, useful, tasks, softmax_share_write, &call);
}

static const kiln_cpu_kernel softmax_forward_three_pass = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "three_pass",
    .name = KILN_CPU_NAME("softmax_forward_three_pass"),
    .supports = softmax_supports,
    .workspace = softmax_forward_three_pass_workspace,
    .run = softmax_forward_three_pass_run,
    .numerics = softmax_forward_numerics,
};
