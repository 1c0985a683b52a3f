/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_forward.inc.h: the softmax forward kernels' common body; softmax_forward_<rung>.inc.h say what differs.
 *
 * s = scale·x in fp32, m = max s, e = exp(s - m), l = Σ e; y = e/l, or (s - m) - ln l for log-softmax; lse = m + ln l.
 * exp is called on differences s - m only, never on a folded fma(x, scale, -m): when s is huge that would be the rounding
 * error of s and not <= 0.
 *
 * NaN and Inf: the maximum leaves NaN out, but exp(NaN) makes l NaN and so the row; a +inf gives inf - inf, the same. For
 * a maximum of -inf the differences are taken to 0 instead, so that all e are 0; l = 0 then means "no weight".
 */
#ifndef KILN_CPU_REF_SOFTMAX_FORWARD_INC_H
#define KILN_CPU_REF_SOFTMAX_FORWARD_INC_H

#include "softmax_rows.inc.h"

/* Maximum and sum of exp(s - m) of some elements. */
typedef struct softmax_state {
    float m;
    double l;
} softmax_state;

/* What write needs of a whole row. */
typedef struct softmax_row {
    float shift;  /* m, or 0 for m = -inf */
    float factor; /* 1/l, for log-softmax ln l; 0 where l = 0 */
} softmax_row;

typedef struct softmax_forward_call {
    const kiln_softmax_problem *p;
    bool online;
    int64_t chunks;
    softmax_state *part; /* rows·chunks; only when rows are cut among workers */
    softmax_row *row;    /* rows; the same */
} softmax_forward_call;

static inline float softmax_shift(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

/*
 * What the memory should fetch while exponentials keep the core busy: the elements after this chunk, which are the next
 * chunk or the next row of a compact tensor, and the lines that will be written. Hides most of the memory time; a wrong
 * guess (strided rows) costs a few instructions.
 */
typedef struct softmax_ahead {
    const char *read, *write; /* write: NULL = nothing */
    int read_step, write_step;
} softmax_ahead;

static inline softmax_ahead softmax_ahead_of(const softmax_span *x, const softmax_span *y, int64_t chunks_ahead)
{
    softmax_ahead ahead = {.read_step = VF_LANES * (x->type == KILN_FLOAT32 ? 4 : 2)};
    ahead.read = x->data + (int64_t)x->count * (ahead.read_step / VF_LANES);
    if (y) {
        ahead.write_step = VF_LANES * (y->type == KILN_FLOAT32 ? 4 : 2);
        ahead.write = y->data + chunks_ahead * y->count * (ahead.write_step / VF_LANES);
    }
    return ahead;
}

VF_INLINE void softmax_prefetch(softmax_ahead *ahead)
{
    __builtin_prefetch(ahead->read);
    ahead->read += ahead->read_step;
    if (ahead->write) {
        __builtin_prefetch(ahead->write, 1);
        ahead->write += ahead->write_step;
    }
}

/* Σ exp(buffer - shift); with `keep` the buffer becomes the exponentials. The padding adds 0. */
VF_INLINE float softmax_exp_sum_(float *buffer, int count, float shift, bool keep, softmax_ahead ahead)
{
    const vf s = vf_set1(shift);
    vf sum = vf_zero();
    for (int j = 0; j < count; j += VF_LANES) {
        vf e = vf_exp(vf_sub(vf_load(buffer + j), s));
        softmax_prefetch(&ahead);
        if (keep)
            vf_store(buffer + j, e);
        sum = vf_add(sum, e);
    }
    return vf_hsum(sum);
}

static float softmax_exp_sum(softmax_buffer *buffer, int count, float shift, bool keep, softmax_ahead ahead)
{
    return keep ? softmax_exp_sum_(buffer->element, count, shift, true, ahead)
                : softmax_exp_sum_(buffer->element, count, shift, false, ahead);
}

/* How an element of the buffer becomes a result. */
enum softmax_step { SOFTMAX_SCALE, SOFTMAX_EXP_SCALE, SOFTMAX_LOG };

VF_INLINE vf softmax_result(vf x, enum softmax_step step, vf shift, vf factor)
{
    switch (step) {
    case SOFTMAX_SCALE: return vf_mul(x, factor);
    case SOFTMAX_EXP_SCALE: return vf_mul(vf_exp(vf_sub(x, shift)), factor);
    default: return vf_sub(vf_sub(x, shift), factor);
    }
}

VF_INLINE void softmax_write_type(char *y, int32_t type, int count, const float *buffer, softmax_row row,
                                  enum softmax_step step, softmax_ahead ahead)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2;
    const vf shift = vf_set1(row.shift), factor = vf_set1(row.factor);
    int j = 0;
    for (; j + VF_LANES <= count; j += VF_LANES) {
        if (step == SOFTMAX_EXP_SCALE)
            softmax_prefetch(&ahead);
        vf_store_type(y + j * size, type, softmax_result(vf_load(buffer + j), step, shift, factor));
    }
    if (j < count)
        vf_store_type_tail(y + j * size, type, softmax_result(vf_load(buffer + j), step, shift, factor), count - j);
}

VF_INLINE void softmax_write_step(char *y, int32_t type, int count, const float *buffer, softmax_row row,
                                  enum softmax_step step, softmax_ahead ahead)
{
    switch (type) {
    case KILN_FLOAT32: softmax_write_type(y, KILN_FLOAT32, count, buffer, row, step, ahead); break;
    case KILN_FLOAT16: softmax_write_type(y, KILN_FLOAT16, count, buffer, row, step, ahead); break;
    default: softmax_write_type(y, KILN_BFLOAT16, count, buffer, row, step, ahead); break;
    }
}

static void softmax_write(softmax_span y, const softmax_buffer *buffer, softmax_row row, enum softmax_step step,
                          softmax_ahead ahead)
{
    softmax_gather scatter;
    const float *b = buffer->element;
    char *to = y.stride == 1 ? y.data : (char *)scatter.raw;
    switch (step) {
    case SOFTMAX_SCALE: softmax_write_step(to, y.type, y.count, b, row, SOFTMAX_SCALE, ahead); break;
    case SOFTMAX_EXP_SCALE: softmax_write_step(to, y.type, y.count, b, row, SOFTMAX_EXP_SCALE, ahead); break;
    default: softmax_write_step(to, y.type, y.count, b, row, SOFTMAX_LOG, ahead); break;
    }
    if (y.stride != 1)
        rows_scatter(y.data, scatter.raw, y.type, y.stride, y.count);
}

static inline bool softmax_is_log(const kiln_softmax_problem *p)
{
    return (p->flags & KILN_FLAG_LOG) != 0;
}

/* Writes the row's lse and gives what its elements need. */
static softmax_row softmax_close_row(const kiln_softmax_problem *p, int64_t r, softmax_state total)
{
    bool take_log = softmax_is_log(p);
    softmax_row row = {softmax_shift(total.m), 0.0f};
    double log_l = p->lse.type || take_log ? log(total.l) : 0; /* -inf for 0, and m is -inf then */
    if (p->lse.type)
        ((float *)p->lse.data)[kiln_rows_offset(p, &p->lse, r)] = (float)((double)row.shift + log_l);
    if (total.l != 0)
        row.factor = take_log ? (float)log_l : (float)(1 / total.l);
    return row;
}

/* The merge of Milakov and Gimelshein, in the order of the chunks. exp(-inf) = 0 makes -inf the neutral element. */
static softmax_state softmax_merge(softmax_state a, softmax_state b)
{
    float m = a.m > b.m ? a.m : b.m;
    double shift = softmax_shift(m);
    return (softmax_state){m, a.l * exp(a.m - shift) + b.l * exp(b.m - shift)};
}

static softmax_state softmax_chunk_online(const kiln_softmax_problem *p, int64_t r, int64_t chunk)
{
    softmax_buffer buffer;
    softmax_span x = softmax_span_of(p, &p->x, r, chunk);
    float m = softmax_load(x, p->scale, &buffer);
    return (softmax_state){m,
                           softmax_exp_sum(&buffer, x.count, softmax_shift(m), false, softmax_ahead_of(&x, NULL, 0))};
}

static float softmax_chunk_max(const kiln_softmax_problem *p, int64_t r, int64_t chunk)
{
    softmax_buffer buffer;
    return softmax_load(softmax_span_of(p, &p->x, r, chunk), p->scale, &buffer);
}

static double softmax_chunk_sum(const kiln_softmax_problem *p, int64_t r, int64_t chunk, float m)
{
    softmax_buffer buffer;
    softmax_span x = softmax_span_of(p, &p->x, r, chunk);
    softmax_load(x, p->scale, &buffer);
    return softmax_exp_sum(&buffer, x.count, softmax_shift(m), false, softmax_ahead_of(&x, NULL, 0));
}

static void softmax_chunk_write(const kiln_softmax_problem *p, int64_t r, int64_t chunk, softmax_row row)
{
    softmax_buffer buffer;
    softmax_span x = softmax_span_of(p, &p->x, r, chunk), y = softmax_span_of(p, &p->y, r, chunk);
    softmax_load(x, p->scale, &buffer);
    softmax_write(y, &buffer, row, softmax_is_log(p) ? SOFTMAX_LOG : SOFTMAX_EXP_SCALE, softmax_ahead_of(&x, &y, 1));
}

/* A row of one chunk: read once, everything else happens in L1. The same on both rungs. */
static void softmax_short_row(const kiln_softmax_problem *p, int64_t r)
{
    softmax_buffer buffer;
    bool write = p->y.type != 0, log = softmax_is_log(p);
    softmax_span x = softmax_span_of(p, &p->x, r, 0), y = {0};
    if (write)
        y = softmax_span_of(p, &p->y, r, 0);
    softmax_ahead ahead = softmax_ahead_of(&x, write ? &y : NULL, 0);
    softmax_state total = {.m = softmax_load(x, p->scale, &buffer)};
    total.l = softmax_exp_sum(&buffer, x.count, softmax_shift(total.m), write && !log, ahead);
    softmax_row row = softmax_close_row(p, r, total);
    if (write)
        softmax_write(y, &buffer, row, log ? SOFTMAX_LOG : SOFTMAX_SCALE, ahead);
}

static void softmax_forward_row(void *arg, int64_t r)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    softmax_state total = {-INFINITY, 0};
    if (call->chunks == 1) {
        softmax_short_row(p, r);
        return;
    }
    if (call->online) {
        for (int64_t c = 0; c < call->chunks; c++)
            total = softmax_merge(total, softmax_chunk_online(p, r, c));
    } else {
        for (int64_t c = 0; c < call->chunks; c++) {
            float m = softmax_chunk_max(p, r, c);
            total.m = m > total.m ? m : total.m;
        }
        for (int64_t c = 0; c < call->chunks; c++)
            total.l += softmax_chunk_sum(p, r, c, total.m);
    }
    softmax_row row = softmax_close_row(p, r, total);
    for (int64_t c = 0; p->y.type && c < call->chunks; c++)
        softmax_chunk_write(p, r, c, row);
}

/* The same with chunks as tasks. */
static void softmax_task_online(void *arg, int64_t task)
{
    const softmax_forward_call *call = arg;
    call->part[task] = softmax_chunk_online(call->p, task / call->chunks, task % call->chunks);
}

static void softmax_task_max(void *arg, int64_t task)
{
    const softmax_forward_call *call = arg;
    call->part[task].m = softmax_chunk_max(call->p, task / call->chunks, task % call->chunks);
}

/* The maximum of the row is in its first part. */
static void softmax_task_sum(void *arg, int64_t task)
{
    const softmax_forward_call *call = arg;
    int64_t r = task / call->chunks, c = task % call->chunks;
    call->part[task].l = softmax_chunk_sum(call->p, r, c, call->part[r * call->chunks].m);
}

static void softmax_task_write(void *arg, int64_t task)
{
    const softmax_forward_call *call = arg;
    int64_t r = task / call->chunks;
    softmax_chunk_write(call->p, r, task % call->chunks, call->row[r]);
}

static void softmax_forward_cut(const kiln_cpu *cpu, const softmax_forward_call *call, int32_t workers)
{
    const kiln_softmax_problem *p = call->p;
    int64_t tasks = p->rows * call->chunks;
    rows_parallel(cpu, workers, tasks, call->online ? softmax_task_online : softmax_task_max, (void *)call);
    if (!call->online) {
        for (int64_t r = 0; r < p->rows; r++) {
            softmax_state *part = call->part + r * call->chunks;
            for (int64_t c = 1; c < call->chunks; c++)
                part[0].m = part[c].m > part[0].m ? part[c].m : part[0].m;
        }
        rows_parallel(cpu, workers, tasks, softmax_task_sum, (void *)call);
    }
    for (int64_t r = 0; r < p->rows; r++) {
        const softmax_state *part = call->part + r * call->chunks;
        softmax_state total = {call->online ? -INFINITY : part[0].m, 0};
        for (int64_t c = 0; c < call->chunks; c++) {
            if (call->online)
                total = softmax_merge(total, part[c]);
            else
                total.l += part[c].l;
        }
        call->row[r] = softmax_close_row(p, r, total);
    }
    if (p->y.type)
        rows_parallel(cpu, workers, tasks, softmax_task_write, (void *)call);
}

static size_t softmax_forward_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    (void)cpu;
    if (!softmax_cut_rows(p, workers))
        return 0;
    return (size_t)p->rows * ((size_t)softmax_chunks(p) * sizeof(softmax_state) + sizeof(softmax_row));
}

static void softmax_forward_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers,
                                bool online)
{
    const kiln_softmax_problem *p = &problem->softmax;
    softmax_forward_call call = {.p = p, .online = online, .chunks = softmax_chunks(p)};
    if (softmax_cut_rows(p, workers)) {
        call.part = workspace;
        call.row = (softmax_row *)(call.part + p->rows * call.chunks);
        softmax_forward_cut(cpu, &call, rows_workers(p->rows, p->n, workers));
    } else {
        rows_parallel(cpu, rows_workers(p->rows, p->n, workers), p->rows, softmax_forward_row, &call);
    }
}

#endif
