/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_backward.inc.h: rung `two_pass` of softmax_backward: D = Σ y·dy, then dx = scale·y·(dy - D). For log-softmax
 * D = Σ dy and dx = scale·(dy - exp(y)·D).
 *
 * Contract: any types, strides and sizes; dx may be dy. Traffic per element: y and dy read twice (rows of up to
 * SOFTMAX_CHUNK elements: once), dx written. fp32, sums of chunks in double.
 */
#include "softmax_rows.inc.h"

typedef struct softmax_backward_call {
    const kiln_softmax_problem *p;
    int64_t chunks;
    double *part; /* rows·chunks, then rows sums; only when rows are cut among workers */
    double *total;
} softmax_backward_call;

typedef struct softmax_backward_buffers {
    softmax_buffer y, dy;
} softmax_backward_buffers;

static inline bool softmax_backward_is_log(const kiln_softmax_problem *p)
{
    return (p->flags & KILN_FLAG_LOG) != 0;
}

static int softmax_backward_load(const kiln_softmax_problem *p, int64_t r, int64_t chunk, softmax_backward_buffers *b)
{
    softmax_span y = softmax_span_of(p, &p->y, r, chunk);
    softmax_load(y, 1.0f, &b->y);
    softmax_load(softmax_span_of(p, &p->dy, r, chunk), 1.0f, &b->dy);
    /* The padding of softmax_load is meant for maxima; here it must add nothing. */
    int end = (y.count + VF_LANES - 1) / VF_LANES * VF_LANES;
    for (int j = y.count; j < end; j++)
        b->y.element[j] = b->dy.element[j] = 0.0f;
    return y.count;
}

static float softmax_backward_sum(const softmax_backward_buffers *b, int count, bool log)
{
    const float *y = b->y.element, *dy = b->dy.element;
    vf sum[2] = {vf_zero(), vf_zero()};
    for (int j = 0, odd = 0; j < count; j += VF_LANES, odd ^= 1) {
        vf g = vf_load(dy + j);
        sum[odd] = log ? vf_add(sum[odd], g) : vf_fma(vf_load(y + j), g, sum[odd]);
    }
    return vf_hsum(vf_add(sum[0], sum[1]));
}

/* exp of what should be a log-probability, hence <= 0; vf_exp asks for <= 88. NaN stays NaN. */
static inline vf softmax_backward_exp(vf y)
{
    const vf most = vf_set1(88.0f);
    return vf_select(vf_lt(most, y), vf_set1(INFINITY), vf_exp(vf_min(most, y)));
}

static void softmax_backward_write(const kiln_softmax_problem *p, int64_t r, int64_t chunk, softmax_backward_buffers *b,
                                   double total)
{
    const vf scale = vf_set1(p->scale), sum = vf_set1((float)total);
    float *y = b->y.element, *dy = b->dy.element;
    softmax_gather scatter;
    softmax_span dx = softmax_span_of(p, &p->dx, r, chunk);
    if (softmax_backward_is_log(p))
        for (int j = 0; j < dx.count; j += VF_LANES) {
            vf weight = softmax_backward_exp(vf_load(y + j));
            vf_store(dy + j, vf_mul(scale, vf_sub(vf_load(dy + j), vf_mul(weight, sum))));
        }
    else
        for (int j = 0; j < dx.count; j += VF_LANES)
            vf_store(dy + j, vf_mul(vf_mul(scale, vf_load(y + j)), vf_sub(vf_load(dy + j), sum)));
    rows_store(dx.data, dx.type, dx.stride, dx.count, dy, scatter.raw);
}

static void softmax_backward_row(void *arg, int64_t r)
{
    const softmax_backward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    bool log = softmax_backward_is_log(p);
    softmax_backward_buffers b;
    double total = 0;
    for (int64_t c = 0; c < call->chunks; c++)
        total += softmax_backward_sum(&b, softmax_backward_load(p, r, c, &b), log);
    for (int64_t c = 0; c < call->chunks; c++) {
        if (call->chunks > 1)
            softmax_backward_load(p, r, c, &b);
        softmax_backward_write(p, r, c, &b, total);
    }
}

static void softmax_backward_task_sum(void *arg, int64_t task)
{
    const softmax_backward_call *call = arg;
    softmax_backward_buffers b;
    int count = softmax_backward_load(call->p, task / call->chunks, task % call->chunks, &b);
    call->part[task] = softmax_backward_sum(&b, count, softmax_backward_is_log(call->p));
}

static void softmax_backward_task_write(void *arg, int64_t task)
{
    const softmax_backward_call *call = arg;
    int64_t r = task / call->chunks, c = task % call->chunks;
    softmax_backward_buffers b;
    softmax_backward_load(call->p, r, c, &b);
    softmax_backward_write(call->p, r, c, &b, call->total[r]);
}

static size_t softmax_backward_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    (void)cpu;
    return softmax_cut_rows(p, workers) ? (size_t)p->rows * ((size_t)softmax_chunks(p) + 1) * sizeof(double) : 0;
}

static void softmax_backward_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    softmax_backward_call call = {.p = p, .chunks = softmax_chunks(p)};
    int32_t useful = rows_workers(p->rows, p->n, workers);
    if (!softmax_cut_rows(p, workers)) {
        rows_parallel(cpu, useful, p->rows, softmax_backward_row, &call);
        return;
    }
    call.part = workspace;
    call.total = call.part + p->rows * call.chunks;
    rows_parallel(cpu, useful, p->rows * call.chunks, softmax_backward_task_sum, &call);
    for (int64_t r = 0; r < p->rows; r++) {
        call.total[r] = 0;
        for (int64_t c = 0; c < call.chunks; c++)
            call.total[r] += call.part[r * call.chunks + c];
    }
    rows_parallel(cpu, useful, p->rows * call.chunks, softmax_backward_task_write, &call);
}

static const kiln_cpu_kernel softmax_backward = {
    .op = KILN_OP_SOFTMAX_BACKWARD,
    .algorithm = "two_pass",
    .name = KILN_CPU_NAME("softmax_backward_two_pass"),
    .supports = softmax_supports,
    .workspace = softmax_backward_workspace,
    .run = softmax_backward_run,
    .numerics = softmax_numerics,
};
