/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_backward.inc.h: rung `two_pass` of softmax_backward: D = Σ y·dy, then dx = scale·y·(dy - D). For log-softmax
 * D = Σ dy and dx = scale·(dy - exp(y)·D).
 *
 * Contract: any types, strides and sizes; dx may be dy. Traffic per element: y and dy read twice, the second time from
 * whatever cache holds two rows of each (rows of up to SOFTMAX_CHUNK elements: once), dx written. fp32, sums of chunks in
 * double.
 */
#include "softmax_output.inc.h"

typedef struct softmax_backward_call {
    const kiln_softmax_problem *p;
    int64_t chunks;
    bool streams;
    double *part; /* rows·chunks, then rows sums; only when rows are cut among workers */
    double *total;
} softmax_backward_call;

/* A block of both inputs, the padding 0. */
typedef struct softmax_backward_block {
    softmax_block y, dy;
    softmax_buffer y_element, dy_element;
} softmax_backward_block;

static inline bool softmax_backward_is_log(const kiln_softmax_problem *p)
{
    return (p->flags & KILN_FLAG_LOG) != 0;
}

static void softmax_backward_load(softmax_backward_block *b, const kiln_softmax_problem *p, int64_t r, int32_t rows,
                                  int64_t chunk)
{
    vf top[VF_LANES];
    softmax_block_set(&b->y, p, &p->y, r, rows, chunk);
    softmax_block_set(&b->dy, p, &p->dy, r, rows, chunk);
    softmax_load(&b->y, false, 1.0f, 0.0f, b->y_element.element, top);
    softmax_load(&b->dy, false, 1.0f, 0.0f, b->dy_element.element, top);
}

VF_INLINE vf softmax_backward_sum_row(const float *y, const float *dy, int pitch, bool log, softmax_ride *ride,
                                      softmax_ride *ride_dy)
{
    vf sum[2] = {vf_zero(), vf_zero()};
    for (int j = 0, odd = 0; j < pitch; j += VF_LANES, odd ^= 1) {
        vf g = vf_load(dy + j);
        if (j % (SOFTMAX_LINE / 4) == 0) {
            softmax_ride_line(ride, true);
            softmax_ride_line(ride_dy, true);
        }
        sum[odd] = log ? vf_add(sum[odd], g) : vf_fma(vf_load(y + j), g, sum[odd]);
    }
    return vf_add(sum[0], sum[1]);
}

/* D of each row of the block, while the next blocks of a compact tensor come and lines written before leave. */
static void softmax_backward_sum(const softmax_backward_block *b, bool log, softmax_output *out, vf *sum)
{
    const int64_t count = (int64_t)b->y.rows * b->y.count;
    const int64_t bytes = count * kiln_type_size(b->y.type), dy_bytes = count * kiln_type_size(b->dy.type);
    softmax_ride ride, ride_dy = {.read = b->dy.at + dy_bytes, .read_end = b->dy.at + 2 * dy_bytes};
    softmax_ride_begin(&ride, out, b->y.at + bytes, bytes, NULL, 0);
    for (int i = 0; i < b->y.rows; i++) {
        const float *y = b->y_element.element + (int64_t)i * b->y.pitch;
        const float *dy = b->dy_element.element + (int64_t)i * b->y.pitch;
        sum[i] = log ? softmax_backward_sum_row(y, dy, b->y.pitch, true, &ride, &ride_dy)
                     : softmax_backward_sum_row(y, dy, b->y.pitch, false, &ride, &ride_dy);
    }
    softmax_ride_end(&ride, out);
}

/* exp of what should be a log-probability, hence <= 0; vf_exp asks for <= 88. NaN stays NaN. */
static inline vf softmax_backward_exp(vf y)
{
    const vf most = vf_set1(88.0f);
    return vf_select(vf_lt(most, y), vf_set1(INFINITY), vf_exp(vf_min(most, y)));
}

/* Leaves dx of one row in the place of dy. */
static void softmax_backward_row(const float *y, float *dy, int pitch, float row_scale, float total, bool log)
{
    const vf scale = vf_set1(row_scale), sum = vf_set1(total);
    if (log)
        for (int j = 0; j < pitch; j += VF_LANES) {
            vf weight = softmax_backward_exp(vf_load(y + j));
            vf_store(dy + j, vf_mul(scale, vf_sub(vf_load(dy + j), vf_mul(weight, sum))));
        }
    else
        for (int j = 0; j < pitch; j += VF_LANES)
            vf_store(dy + j, vf_mul(vf_mul(scale, vf_load(y + j)), vf_sub(vf_load(dy + j), sum)));
}

static void softmax_backward_write(const kiln_softmax_problem *p, int64_t r, int64_t chunk, softmax_backward_block *b,
                                   const float *total, softmax_output *out)
{
    softmax_block dx;
    softmax_block_set(&dx, p, &p->dx, r, b->y.rows, chunk);
    if (out->streams)
        softmax_output_settle(out);
    char *at = dx.at;
    for (int i = 0; i < dx.rows; i++, at += dx.step) {
        float *dy = b->dy_element.element + (int64_t)i * dx.pitch;
        softmax_backward_row(b->y_element.element + (int64_t)i * dx.pitch, dy, dx.pitch, p->scale, total[i],
                             softmax_backward_is_log(p));
        if (out->streams)
            rows_store(softmax_output_place(out, at, dx.count * (int)kiln_type_size(dx.type)), dx.type, 1, dx.count, dy,
                       NULL);
        else
            rows_store(at, dx.type, dx.stride, dx.count, dy, out->stage);
    }
}

static void softmax_backward_short_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_backward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    const int32_t group = softmax_group(p);
    softmax_backward_block b;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, call->streams);
    int32_t rows = 0;
    for (int64_t r = begin; r < end; r += rows) {
        rows = softmax_block_rows(p, group, r, end);
        vf lane[VF_LANES];
        float total[VF_LANES];
        softmax_backward_load(&b, p, r, rows, 0);
        softmax_backward_sum(&b, softmax_backward_is_log(p), &out, lane);
        softmax_sum_rows(lane, rows, group, total);
        softmax_backward_write(p, r, 0, &b, total, &out);
    }
    softmax_output_close(&out);
}

static double softmax_backward_chunk_sum(softmax_backward_block *b, const kiln_softmax_problem *p, int64_t r, int64_t c,
                                         softmax_output *out)
{
    vf sum;
    softmax_backward_load(b, p, r, 1, c);
    softmax_backward_sum(b, softmax_backward_is_log(p), out, &sum);
    return vf_hsum(sum);
}

static void softmax_backward_chunk_write(softmax_backward_block *b, const kiln_softmax_problem *p, int64_t r, int64_t c,
                                         double row_total, softmax_output *out)
{
    float total = (float)row_total;
    softmax_backward_load(b, p, r, 1, c);
    softmax_backward_write(p, r, c, b, &total, out);
}

/* While chunk c of a row is summed, chunk c of the row before is written: the memory has the same work all the time. */
static void softmax_backward_long_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_backward_call *call = arg;
    softmax_backward_block b;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, call->streams);
    double total = 0, before = 0;
    for (int64_t r = begin; r <= end; r++, before = total, total = 0)
        for (int64_t c = 0; c < call->chunks; c++) {
            if (r > begin)
                softmax_backward_chunk_write(&b, call->p, r - 1, c, before, &out);
            if (r < end)
                total += softmax_backward_chunk_sum(&b, call->p, r, c, &out);
        }
    softmax_output_close(&out);
}

/* The same with chunks as tasks, which workers share. */
static void softmax_backward_parts_sum(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_backward_call *call = arg;
    softmax_backward_block b;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, false);
    for (int64_t task = begin; task < end; task++)
        call->part[task] = softmax_backward_chunk_sum(&b, call->p, task / call->chunks, task % call->chunks, &out);
}

static void softmax_backward_parts_write(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_backward_call *call = arg;
    softmax_backward_block b;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, call->streams);
    for (int64_t task = begin; task < end; task++)
        softmax_backward_chunk_write(&b, call->p, task / call->chunks, task % call->chunks,
                                     call->total[task / call->chunks], &out);
    softmax_output_close(&out);
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
    softmax_backward_call call = {.p = p, .chunks = softmax_chunks(p), .streams = softmax_streams(p, &p->dx, &p->dy)};
    int32_t useful = rows_workers(p->rows, p->n, workers);
    if (!softmax_cut_rows(p, workers)) {
        softmax_parallel_rows(cpu, p, useful, call.streams,
                              call.chunks == 1 ? softmax_backward_short_rows : softmax_backward_long_rows, &call);
        return;
    }
    call.part = workspace;
    call.total = call.part + p->rows * call.chunks;
    rows_parallel_shares(cpu, useful, p->rows * call.chunks, softmax_backward_parts_sum, &call);
    for (int64_t r = 0; r < p->rows; r++) {
        call.total[r] = 0;
        for (int64_t c = 0; c < call.chunks; c++)
            call.total[r] += call.part[r * call.chunks + c];
    }
    rows_parallel_shares(cpu, useful, p->rows * call.chunks, softmax_backward_parts_write, &call);
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
