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

#include <float.h>

#include "softmax_output.inc.h"

/* Maximum and sum of exp(s - m) of some elements. */
typedef struct softmax_state {
    float m;
    double l;
} softmax_state;

/* What an element needs to become a result. */
typedef struct softmax_row {
    float shift;  /* m, or 0 for m = -inf */
    float factor; /* 1/l, for log-softmax ln l; 0 where l = 0 */
} softmax_row;

/* The same of the rows of a block. */
typedef struct softmax_lanes {
    float max[VF_LANES], sum[VF_LANES], shift[VF_LANES], factor[VF_LANES];
} softmax_lanes;

typedef struct softmax_forward_call {
    const kiln_softmax_problem *p;
    int64_t chunks;
    bool streams;
    float *kept;         /* of each worker n floats, in whole lines; NULL = chunks are loaded twice */
    softmax_state *part; /* rows·chunks; only when rows are cut among workers */
    softmax_row *row;    /* rows; the same */
} softmax_forward_call;

static inline float softmax_shift(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

static inline bool softmax_is_log(const kiln_softmax_problem *p)
{
    return (p->flags & KILN_FLAG_LOG) != 0;
}

static inline bool softmax_paired(const kiln_softmax_problem *p)
{
    return p->x.type == KILN_BFLOAT16 && p->y.type == KILN_BFLOAT16;
}

/* Is y of 16 bits all that comes out? Then a short exponential does. */
static inline bool softmax_is_half(const kiln_softmax_problem *p)
{
    return p->y.type != 0 && p->y.type != KILN_FLOAT32 && p->lse.type == 0;
}

/* Do exponentials come straight from the rows, without a copy in the buffer? A matter of the problem, not of its data. */
static inline bool softmax_is_direct(const kiln_softmax_problem *p)
{
    return p->x.type != KILN_FLOAT32 && p->y.type == p->x.type && !softmax_is_log(p) && p->scale == 1 &&
           (p->x.stride == 1 || p->n == 1);
}

/* Σ exp(row - shift), one sum a lane; with `keep` the row becomes the exponentials. The padding adds 0. */
VF_INLINE vf softmax_exp_row(float *row, int pitch, vf shift, bool keep, int lines, softmax_ride *ride)
{
    enum { STEP = 2 * SOFTMAX_LINE / 4 };
    vf sum[2] = {vf_zero(), vf_zero()};
    int j = 0;
    for (; j + STEP <= pitch; j += STEP) {
        for (int line = 0; line < lines; line++)
            softmax_ride_line(ride, lines == 2);
#pragma GCC unroll 8
        for (int u = 0; u < STEP / VF_LANES; u++) {
            vf e = vf_exp(vf_sub(vf_load(row + j + u * VF_LANES), shift));
            if (keep)
                vf_store(row + j + u * VF_LANES, e);
            sum[u % 2] = vf_add(sum[u % 2], e);
        }
    }
    for (; j < pitch; j += VF_LANES) {
        vf e = vf_exp(vf_sub(vf_load(row + j), shift));
        softmax_ride_line(ride, lines == 2);
        if (keep)
            vf_store(row + j, e);
        sum[0] = vf_add(sum[0], e);
    }
    return vf_add(sum[0], sum[1]);
}

/*
 * The same straight from rows of 16 bits with unit stride, not scaled, that give the same type: then the buffer holds nothing before the
 * exponentials, which is a load and a store less for each vector. `half`: 16 bits of y are all that comes out. `paired`: see
 * softmax_load_two().
 */
VF_INLINE vf softmax_direct_row(const char *x, int32_t type, bool paired, bool half, int count, vf shift, float *buffer,
                                bool keep, softmax_ride *ride)
{
    enum { STEP = SOFTMAX_LINE / 2 }; /* elements of a line */
    vf sum[2] = {vf_zero(), vf_zero()};
    int j = 0;
    for (; j + 2 * VF_LANES <= count; j += 2 * VF_LANES) {
        vf s[2];
        if (j % STEP == 0)
            softmax_ride_line(ride, false);
        softmax_load_two(x + 2 * j, type, paired, s);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            vf e = half ? vf_exp_half(vf_sub(s[u], shift)) : vf_exp(vf_sub(s[u], shift));
            if (keep)
                vf_store(buffer + j + u * VF_LANES, e);
            sum[u] = vf_add(sum[u], e);
        }
    }
    for (; j < count; j += VF_LANES) {
        const int n = count - j < VF_LANES ? count - j : VF_LANES;
        vf s = n < VF_LANES ? vf_load_type_tail(x + 2 * j, type, n) : vf_load_type(x + 2 * j, type);
        vf e = half ? vf_exp_half(vf_sub(s, shift)) : vf_exp(vf_sub(s, shift));
        softmax_ride_line(ride, false);
        e = vf_keep(vm_first(n), e);
        if (keep)
            vf_store(buffer + j, e);
        sum[0] = vf_add(sum[0], e);
    }
    return vf_add(sum[0], sum[1]);
}

VF_INLINE void softmax_direct_rows(const softmax_block *x, int32_t type, bool paired, bool half, const float *shift,
                                   float *buffer, bool keep, softmax_ride *ride, vf *sum)
{
    const char *at = x->at;
    const int64_t step = x->step;
    const int rows = x->rows, count = x->count, pitch = keep ? x->pitch : 0;
    softmax_ride local = *ride; /* in registers, as the others */
    if (keep)
        for (int i = 0; i < rows; i++, at += step, buffer += pitch)
            sum[i] = softmax_direct_row(at, type, paired, half, count, vf_set1(shift[i]), buffer, true, &local);
    else
        for (int i = 0; i < rows; i++, at += step)
            sum[i] = softmax_direct_row(at, type, paired, half, count, vf_set1(shift[i]), NULL, false, &local);
    *ride = local;
}

/* Bytes that follow this block and are read next. */
static inline int64_t softmax_next_bytes(const kiln_softmax_problem *p, const softmax_block *x)
{
    const int64_t elements = p->n > SOFTMAX_CHUNK ? softmax_chunk_elements(p) : (int64_t)x->count * x->rows;
    return elements * kiln_type_size(x->type);
}

static void softmax_exp_direct(const kiln_softmax_problem *p, float *buffer, const softmax_block *x, char *y,
                               const float *shift, bool keep, softmax_output *out, vf *sum)
{
    const int32_t y_type = p->y.type;
    const int64_t bytes = (int64_t)x->count * kiln_type_size(x->type);
    const bool half = softmax_is_half(p);
    softmax_ride ride;
    softmax_ride_begin(&ride, out, x->at + (x->rows - 1) * x->step + bytes, softmax_next_bytes(p, x), y,
                       (int64_t)x->count * x->rows * kiln_type_size(y_type));
    if (softmax_paired(p) && half)
        softmax_direct_rows(x, KILN_BFLOAT16, true, true, shift, buffer, keep, &ride, sum);
    else if (softmax_paired(p))
        softmax_direct_rows(x, KILN_BFLOAT16, true, false, shift, buffer, keep, &ride, sum);
    else if (half)
        softmax_direct_rows(x, KILN_FLOAT16, false, true, shift, buffer, keep, &ride, sum);
    else
        softmax_direct_rows(x, KILN_FLOAT16, false, false, shift, buffer, keep, &ride, sum);
    softmax_ride_end(&ride, out);
}

VF_INLINE void softmax_exp_rows(const kiln_softmax_problem *p, float *buffer, const softmax_block *x, char *y,
                                int32_t y_type, const float *shift, bool keep, int lines, softmax_output *out, vf *sum)
{
    const int64_t bytes = (int64_t)x->count * kiln_type_size(x->type);
    softmax_ride ride; /* in registers */
    softmax_ride_begin(&ride, out, x->at + (x->rows - 1) * x->step + bytes, softmax_next_bytes(p, x), y,
                       (int64_t)x->count * x->rows * kiln_type_size(y_type));
    const int rows = x->rows, pitch = x->pitch;
    for (int i = 0; i < rows; i++, buffer += pitch)
        sum[i] = softmax_exp_row(buffer, pitch, vf_set1(shift[i]), keep, lines, &ride);
    softmax_ride_end(&ride, out);
}

/* The same for all rows of a block, with the memory traffic that rides along. `y`: where the block's results go next, if
 * that is known. */
static void softmax_exp(const kiln_softmax_problem *p, float *buffer, const softmax_block *x, char *y,
                        const float *shift, bool keep, softmax_output *out, vf *sum)
{
    const int32_t y_type = p->y.type;
    if (softmax_is_direct(p)) {
        softmax_exp_direct(p, buffer, x, y, shift, keep, out, sum);
        return;
    }
    bool wide = x->type == KILN_FLOAT32 || y_type == KILN_FLOAT32;
    if (keep && wide)
        softmax_exp_rows(p, buffer, x, y, y_type, shift, true, 2, out, sum);
    else if (keep)
        softmax_exp_rows(p, buffer, x, y, y_type, shift, true, 1, out, sum);
    else
        softmax_exp_rows(p, buffer, x, y, y_type, shift, false, 2, out, sum);
}

/* How an element of the buffer becomes a result. */
enum softmax_step { SOFTMAX_SCALE, SOFTMAX_LOG };

VF_INLINE vf softmax_result(const float *buffer, vf shift, vf factor, enum softmax_step step)
{
    vf v = vf_load(buffer);
    return step == SOFTMAX_SCALE ? vf_mul(v, factor) : vf_sub(vf_sub(v, shift), factor);
}

/* What is left of a row after its pairs, rounded as they are. `near`: not for NaN. */
VF_INLINE vf softmax_rest(const float *buffer, vf shift, vf factor, enum softmax_step step, bool near)
{
    vf v = softmax_result(buffer, shift, factor, step);
    return near ? vf_near_bf16(v) : v;
}

/* `whole`: up to a vector may be written beyond the end. A factor of NaN makes all results NaN, which vf_store_pairs()
 * does not take. */
VF_INLINE void softmax_write_row(char *y, int32_t type, bool paired, int count, const float *buffer, float row_shift,
                                 float row_factor, enum softmax_step step, bool whole)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2;
    const vf shift = vf_set1(row_shift), factor = vf_set1(row_factor);
    const bool near = paired && row_factor == row_factor;
    int j = 0, full = whole ? count : count - VF_LANES + 1;
    if (near)
        for (; j + 2 * VF_LANES <= count; j += 2 * VF_LANES)
            vf_store_pairs(y + j * size, softmax_result(buffer + j, shift, factor, step),
                           softmax_result(buffer + j + VF_LANES, shift, factor, step));
    for (; j < full; j += VF_LANES)
        vf_store_type(y + j * size, type, softmax_rest(buffer + j, shift, factor, step, near));
    if (j < count)
        vf_store_type_tail(y + j * size, type, softmax_rest(buffer + j, shift, factor, step, near), count - j);
}

VF_INLINE void softmax_write_type(const softmax_block *y, int32_t type, bool paired, const float *buffer,
                                  const float *shift, const float *factor, enum softmax_step step, softmax_output *out)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2, rows = y->rows, count = y->count, pitch = y->pitch;
    const int64_t apart = y->step;
    char *at = y->at;
    if (out->streams && (rows == 1 || apart == count * size)) { /* all rows at once */
        char *to = softmax_output_place(out, at, rows * count * size);
        for (int i = 0; i < rows; i++, to += count * size, buffer += pitch)
            softmax_write_row(to, type, paired, count, buffer, shift[i], factor[i], step, true);
        return;
    }
    const bool staged = out->streams || y->stride != 1;
    for (int i = 0; i < rows; i++, at += apart, buffer += pitch) {
        char *to = out->streams ? softmax_output_place(out, at, count * size) : y->stride == 1 ? at : out->stage;
        softmax_write_row(to, type, paired, count, buffer, shift[i], factor[i], step, staged);
        if (y->stride != 1)
            rows_scatter(at, to, type, y->stride, count);
    }
}

VF_INLINE void softmax_write_step(const softmax_block *y, bool paired, const float *buffer, const float *shift,
                                  const float *factor, enum softmax_step step, softmax_output *out)
{
    switch (y->type) {
    case KILN_FLOAT32: softmax_write_type(y, KILN_FLOAT32, false, buffer, shift, factor, step, out); break;
    case KILN_FLOAT16: softmax_write_type(y, KILN_FLOAT16, false, buffer, shift, factor, step, out); break;
    default:
        if (paired)
            softmax_write_type(y, KILN_BFLOAT16, true, buffer, shift, factor, step, out);
        else
            softmax_write_type(y, KILN_BFLOAT16, false, buffer, shift, factor, step, out);
    }
}

static void softmax_write(const kiln_softmax_problem *p, const softmax_block *y, const float *buffer,
                          const float *shift, const float *factor, softmax_output *out)
{
    if (out->streams)
        softmax_output_settle(out);
    if (softmax_is_log(p))
        softmax_write_step(y, softmax_paired(p), buffer, shift, factor, SOFTMAX_LOG, out);
    else
        softmax_write_step(y, softmax_paired(p), buffer, shift, factor, SOFTMAX_SCALE, out);
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

/* The same for the rows of a block, from their maxima and sums: first shift, */
static void softmax_shift_rows(softmax_lanes *row, int rows)
{
    for (int i = 0; i < rows; i++)
        row->shift[i] = softmax_shift(row->max[i]);
}

/* then lse and factor. Dividing in double and rounding gives the bits of dividing in fp32 (53 >= 2·24 + 2). */
static void softmax_close_rows(const kiln_softmax_problem *p, int64_t r, int rows, softmax_lanes *row)
{
    if (p->lse.type || softmax_is_log(p) || rows == 1) {
        for (int i = 0; i < rows; i++)
            row->factor[i] = softmax_close_row(p, r + i, (softmax_state){row->max[i], (double)row->sum[i]}).factor;
        return;
    }
    for (int i = 0; i < rows; i++) /* as a vector */
        row->factor[i] = row->sum[i] != 0 ? 1 / row->sum[i] : 0;
}

/* The maxima of a block's rows; the buffer holds them then, unless exponentials come straight from them. */
static void softmax_maxima(const kiln_softmax_problem *p, const softmax_block *x, int group, float *buffer, float *max)
{
    if (softmax_is_direct(p)) {
        softmax_top(x, group, max);
        return;
    }
    vf lane[VF_LANES];
    softmax_load(x, softmax_paired(p), p->scale, -INFINITY, buffer, lane);
    softmax_max_rows(lane, x->rows, group, max);
}

/*
 * Rows of one chunk, a block at a time: read once, everything else happens in L1. The same on both rungs.
 */
static void softmax_short_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    const int32_t group = softmax_group(p);
    bool write = p->y.type != 0, log = softmax_is_log(p);
    softmax_buffer buffer;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, call->streams);
    int32_t rows;
    for (int64_t r = begin; r < end; r += rows) {
        vf lane[VF_LANES];
        softmax_lanes row;
        rows = softmax_block_rows(p, group, r, end);
        softmax_block x, y;
        softmax_block_set(&x, p, &p->x, r, rows, 0);
        softmax_maxima(p, &x, group, buffer.element, row.max);
        softmax_shift_rows(&row, rows);
        if (write)
            softmax_block_set(&y, p, &p->y, r, rows, 0);
        softmax_exp(p, buffer.element, &x, write ? y.at : NULL, row.shift, write && !log, &out, lane);
        softmax_sum_rows(lane, rows, group, row.sum);
        softmax_close_rows(p, r, rows, &row);
        if (write)
            softmax_write(p, &y, buffer.element, row.shift, row.factor, &out);
    }
    softmax_output_close(&out);
}

/*
 * Rows of one element that lie one after another: a vector of rows at a time, by the same formulas. The maximum is the element
 * (-FLT_MAX stands for -inf), so s - m is 0, or -inf, or NaN where s is NaN or +inf; e = l, so y = e; lse = s + (s - m).
 */
static bool softmax_is_single(const kiln_softmax_problem *p)
{
    const kiln_rows *const tensors[] = {&p->x, &p->y, &p->lse};
    for (int i = 0; i < 3; i++)
        if (tensors[i]->type && (p->outer_rank != 1 || tensors[i]->outer_stride[0] != 1))
            return false;
    return p->n == 1;
}

VF_INLINE void softmax_single_store(const kiln_rows *to, int64_t r, vf value, int count)
{
    char *at = to->data + r * kiln_type_size(to->type);
    if (count < VF_LANES)
        vf_store_type_tail(at, to->type, value, count);
    else
        vf_store_type(at, to->type, value);
}

static void softmax_single_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    const vf scale = vf_set1(p->scale), least = vf_set1(-FLT_MAX);
    const bool log = softmax_is_log(p);
    (void)worker;
    for (int64_t r = begin; r < end; r += VF_LANES) {
        const char *x = p->x.data + r * kiln_type_size(p->x.type);
        const int count = end - r < VF_LANES ? (int)(end - r) : VF_LANES;
        vf s = vf_mul(count < VF_LANES ? vf_load_type_tail(x, p->x.type, count) : vf_load_type(x, p->x.type), scale);
        vf difference = vf_sub(s, vf_max(s, least)); /* -inf - -FLT_MAX is -inf */
        if (p->y.type)
            softmax_single_store(&p->y, r, log ? difference : vf_exp(difference), count);
        if (p->lse.type)
            softmax_single_store(&p->lse, r, vf_add(s, difference), count);
    }
}

/* Rows of one chunk. */
static void (*softmax_short(const kiln_softmax_problem *p))(void *, int32_t, int64_t, int64_t)
{
    return softmax_is_single(p) ? softmax_single_rows : softmax_short_rows;
}

/* A chunk of a long row in the buffer; returns its maximum. */
static float softmax_chunk_load(const kiln_softmax_problem *p, const softmax_block *x, float *buffer)
{
    float max;
    softmax_maxima(p, x, 1, buffer, &max);
    return max;
}

static float softmax_chunk_exp(const kiln_softmax_problem *p, float *buffer, const softmax_block *x, char *y, float m,
                               bool keep, softmax_output *out)
{
    vf sum;
    float shift = softmax_shift(m);
    softmax_exp(p, buffer, x, y, &shift, keep, out, &sum);
    return vf_hsum(sum);
}

/* exp(m - shift), which is often 1. */
static inline double softmax_weight(float m, float shift)
{
    return m == shift ? 1 : exp((double)m - (double)shift);
}

/* The merge of Milakov and Gimelshein, in the order of the chunks. exp(-inf) = 0 makes -inf the neutral element. */
static softmax_state softmax_merge(softmax_state a, softmax_state b)
{
    float m = a.m > b.m ? a.m : b.m, shift = softmax_shift(m);
    return (softmax_state){m, a.l * softmax_weight(a.m, shift) + b.l * softmax_weight(b.m, shift)};
}

/* Chunks are joined a unit of them at a time, and units to the row: the same for one worker and for many. */
enum { SOFTMAX_UNIT = 8 };

static inline int64_t softmax_units(int64_t chunks)
{
    return (chunks + SOFTMAX_UNIT - 1) / SOFTMAX_UNIT;
}

/* Chunk c of a row joins its unit. True: it was its last one. A sum is its first term, without a neutral element: that saves an
 * exponential. */
static inline bool softmax_join(softmax_state *unit, softmax_state chunk, int64_t c, int64_t chunks)
{
    *unit = c % SOFTMAX_UNIT == 0 ? chunk : softmax_merge(*unit, chunk);
    return c % SOFTMAX_UNIT == SOFTMAX_UNIT - 1 || c == chunks - 1;
}

/* The most elements of a row whose chunks keep their own maxima. What is kept of rows up to a quarter of it stays in a
 * core's second cache, of longer ones in the third. */
enum { SOFTMAX_KEEP = 1 << 20, SOFTMAX_KEEP_CHUNKS = SOFTMAX_KEEP / SOFTMAX_CHUNK + 1 };

/*
 * y of one chunk. `part`, which short enough rows have, is the chunk's own maximum: exp(s - part.m) times a factor for the
 * chunk, so that exponentials can be kept from the first pass. Where that factor is tiny, products would be denormal and
 * slow, so the chunk is done anew like those without a part. `kept`: those exponentials (log-softmax: s), or NULL; no bit
 * depends on which.
 */
static void softmax_chunk_write(const softmax_forward_call *call, int64_t r, int64_t c, softmax_row row,
                                const softmax_state *part, const float *kept, softmax_output *out)
{
    const kiln_softmax_problem *p = call->p;
    const bool log = softmax_is_log(p);
    softmax_buffer buffer;
    softmax_block y;
    softmax_block_set(&y, p, &p->y, r, 1, c);
    if (!log && part != NULL) {
        double weight = softmax_weight(part->m, row.shift);
        if (weight < 0x1p-30)
            kept = NULL;
        else
            row = (softmax_row){softmax_shift(part->m), (float)(weight * (double)row.factor)};
    }
    if (kept == NULL) {
        softmax_block x;
        softmax_block_set(&x, p, &p->x, r, 1, c);
        if (!softmax_is_direct(p))
            softmax_chunk_load(p, &x, buffer.element);
        if (!log)
            softmax_chunk_exp(p, buffer.element, &x, y.at, row.shift, true, out);
        kept = buffer.element;
    }
    softmax_write(p, &y, kept, &row.shift, &row.factor, out);
}

/* The same with chunks as tasks, which workers share; y is written when all rows are closed. */
static void softmax_share_write(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, call->streams);
    for (int64_t task = begin; task < end; task++) {
        int64_t r = task / call->chunks;
        softmax_chunk_write(call, r, task % call->chunks, call->row[r], p->n <= SOFTMAX_KEEP ? &call->part[task] : NULL,
                            NULL, &out);
    }
    softmax_output_close(&out);
}

static void softmax_forward_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    softmax_numerics(problem, numerics);
    if (softmax_is_half(&problem->softmax))
        numerics->exp_error = VF_EXP_HALF_ERROR;
}

static size_t softmax_forward_cut_workspace(const kiln_softmax_problem *p)
{
    return (size_t)p->rows * ((size_t)softmax_chunks(p) * sizeof(softmax_state) + sizeof(softmax_row));
}

static softmax_forward_call softmax_forward_call_of(const kiln_softmax_problem *p, void *workspace, bool cut)
{
    softmax_forward_call call = {.p = p, .chunks = softmax_chunks(p)};
    call.streams = p->y.type != 0 && softmax_streams(p, &p->y, &p->x);
    if (cut) {
        call.part = workspace;
        call.row = (softmax_row *)(call.part + p->rows * call.chunks);
    }
    return call;
}

#endif
