/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_forward_online.inc.h: rung `online`, the online normaliser of Milakov and Gimelshein (2018): one pass over
 * (maximum, sum), then write. What changed from `three_pass`: the maximum is that of a chunk in L1 and sums are rescaled when
 * chunks are joined, so memory is read once less.
 *
 * Contract: any types, strides and sizes. Traffic per element: 1 read, 1 write for rows of up to SOFTMAX_KEEP elements, whose
 * exponentials a worker keeps until the row is closed (one row of fp32 a worker in the workspace, in its caches);
 * 2 reads, 1 write for longer ones, the second read from whatever cache holds a row. 1 exponential an element (longer
 * rows: 2) and 3 a chunk.
 *
 * While chunk c of a row passes for the first time, chunk c of the row before is written: the memory has the same work all
 * the time.
 */
#include "softmax_forward.inc.h"

static inline bool softmax_online_keeps(const kiln_softmax_problem *p)
{
    return p->n > SOFTMAX_CHUNK && p->n <= SOFTMAX_KEEP && p->y.type != 0;
}

static inline int64_t softmax_kept_floats(const kiln_softmax_problem *p)
{
    return (p->n + SOFTMAX_CHUNK - 1) / SOFTMAX_CHUNK * SOFTMAX_CHUNK + SOFTMAX_LINE / 4;
}

static softmax_state softmax_online_chunk(const kiln_softmax_problem *p, int64_t r, int64_t c, float *buffer, bool keep,
                                          softmax_output *out)
{
    softmax_block x;
    softmax_block_set(&x, p, &p->x, r, 1, c);
    float m = softmax_chunk_load(p, &x, buffer);
    return (softmax_state){m, softmax_chunk_exp(p, buffer, &x, NULL, m, keep, out)};
}

static void softmax_online_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    const bool write = p->y.type != 0, keep = call->kept != NULL, parts = p->n <= SOFTMAX_KEEP;
    float *kept = keep ? call->kept + worker * softmax_kept_floats(p) : NULL;
    softmax_state part[SOFTMAX_KEEP_CHUNKS];
    softmax_row before = {0};
    softmax_buffer buffer;
    softmax_output out;
    softmax_output_open(&out, call->streams);
    for (int64_t r = begin; r < end + write; r++) {
        softmax_state total = {-INFINITY, 0}, chunk;
        for (int64_t c = 0; c < call->chunks; c++) {
            float *at = keep ? kept + c * SOFTMAX_CHUNK : buffer.element;
            if (write && r > begin)
                softmax_chunk_write(call, r - 1, c, before, parts ? &part[c] : NULL, keep ? at : NULL, &out);
            if (r == end)
                continue;
            chunk = softmax_online_chunk(p, r, c, at, keep && !softmax_is_log(p), &out);
            if (parts)
                part[c] = chunk;
            total = softmax_merge(total, chunk);
        }
        if (r < end)
            before = softmax_close_row(p, r, total);
    }
    softmax_output_close(&out);
}

static void softmax_online_parts(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    softmax_buffer buffer;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, false);
    for (int64_t task = begin; task < end; task++)
        call->part[task] =
            softmax_online_chunk(call->p, task / call->chunks, task % call->chunks, buffer.element, false, &out);
}

static size_t softmax_forward_online_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    (void)cpu;
    if (softmax_cut_rows(p, workers))
        return softmax_forward_cut_workspace(p);
    int64_t most = p->rows < workers ? p->rows : workers;
    return softmax_online_keeps(p) ? (size_t)most * (size_t)softmax_kept_floats(p) * sizeof(float) : 0;
}

static void softmax_forward_online_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace,
                                       int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    int32_t useful = rows_workers(p->rows, p->n, workers);
    bool cut = softmax_cut_rows(p, workers);
    softmax_forward_call call = softmax_forward_call_of(p, workspace, cut);
    if (!cut) {
        call.kept = softmax_online_keeps(p) ? workspace : NULL;
        rows_parallel_shares(cpu, useful, p->rows, call.chunks == 1 ? softmax_short(p) : softmax_online_rows, &call);
        return;
    }
    rows_parallel_shares(cpu, useful, p->rows * call.chunks, softmax_online_parts, &call);
    for (int64_t r = 0; r < p->rows; r++) {
        softmax_state total = {-INFINITY, 0};
        for (int64_t c = 0; c < call.chunks; c++)
            total = softmax_merge(total, call.part[r * call.chunks + c]);
        call.row[r] = softmax_close_row(p, r, total);
    }
    if (p->y.type)
        rows_parallel_shares(cpu, useful, p->rows * call.chunks, softmax_share_write, &call);
}

static const kiln_cpu_kernel softmax_forward_online = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "online",
    .name = KILN_CPU_NAME("softmax_forward_online"),
    .supports = softmax_supports,
    .workspace = softmax_forward_online_workspace,
    .run = softmax_forward_online_run,
    .numerics = softmax_forward_numerics,
};
