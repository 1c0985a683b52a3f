/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_rows.inc.h: what the softmax kernels share: blocks of rows as fp32 in L1.
 *
 * A row of more than CHUNK elements is cut into even chunks, whatever the number of workers, and sums of chunks are added in
 * their order in double. So bits depend on the row alone, and a row may be summed by one worker or by many. Shorter rows
 * are taken several at a time, up to one a lane: their latencies overlap, and their maxima and sums are reduced together.
 * A block, which is one chunk or some short rows, passes through a buffer in L1, where its elements are unit-stride fp32
 * and each row is padded to whole vectors: types and strides are dealt with by load and store only, at the price of a
 * little L1 traffic.
 *
 * Included in kernels_<isa>.c after simd_<isa>.h, by the softmax_*.inc.h that come first.
 */
#ifndef KILN_CPU_REF_SOFTMAX_ROWS_INC_H
#define KILN_CPU_REF_SOFTMAX_ROWS_INC_H

#include <math.h>

#include "rows.inc.h"

enum {
    SOFTMAX_CHUNK = 2048,       /* the buffer, the stage of the results and what is fetched ahead share L1 */
    SOFTMAX_ROWS_PER_WORKER = 4 /* with fewer rows than this, long rows are cut among the workers */
};

typedef struct softmax_buffer {
    _Alignas(64) float element[SOFTMAX_CHUNK + VF_LANES];
} softmax_buffer;

/* Elements of one row or chunk side by side in their own type, for strided rows. */
typedef struct softmax_gather {
    _Alignas(64) uint32_t raw[SOFTMAX_CHUNK];
} softmax_gather;

/* `count` elements of each of `rows` rows of one of the tensors, `step` bytes from row to row. */
typedef struct softmax_block {
    char *at;
    int64_t step, stride;
    int32_t type, rows, count;
    int32_t pitch; /* of a row in the buffer: count, rounded up to whole vectors */
} softmax_block;

static inline int64_t softmax_chunks(const kiln_softmax_problem *p)
{
    return p->n > SOFTMAX_CHUNK ? (p->n + SOFTMAX_CHUNK - 1) / SOFTMAX_CHUNK : 1;
}

/* Elements of each chunk but the last: nearly the same for all, so that a row of a few elements more than a chunk takes no
 * longer than its share; whole lines of any type. */
static inline int64_t softmax_chunk_elements(const kiln_softmax_problem *p)
{
    const uint32_t chunks = (uint32_t)softmax_chunks(p); /* n is below 2^31 */
    return chunks == 1 ? SOFTMAX_CHUNK : (((uint32_t)p->n + chunks - 1) / chunks + 63) & ~(uint32_t)63;
}

static inline int32_t softmax_pitch(int32_t count)
{
    return (count + VF_LANES - 1) / VF_LANES * VF_LANES;
}

/* The most rows of a block. */
static inline int32_t softmax_group(const kiln_softmax_problem *p)
{
    int32_t fit = p->n >= SOFTMAX_CHUNK ? 1 : SOFTMAX_CHUNK / (softmax_pitch((int32_t)p->n) + (p->n == 0));
    return fit < VF_LANES ? fit : VF_LANES;
}

/* Rows of the block that begins at `row`: up to `group`, evenly spaced in every tensor, and not beyond `end`. */
static inline int32_t softmax_block_rows(const kiln_softmax_problem *p, int32_t group, int64_t row, int64_t end)
{
    int64_t rows = end - row;
    if (p->outer_rank > 1) {
        int64_t inner = p->outer_size[p->outer_rank - 1], left = inner - row % inner;
        rows = rows < left ? rows : left;
    }
    return rows < group ? (int32_t)rows : group;
}

static inline int64_t softmax_row_step(const kiln_softmax_problem *p, const kiln_rows *tensor)
{
    return p->outer_rank > 0 ? tensor->outer_stride[p->outer_rank - 1] : 0;
}

/* Chunk `chunk` of rows [row, row + rows); several rows only where rows have one chunk. Blocks are filled in place and
 * passed by address: a copy would wait until all stores before it have left the core. */
static inline void softmax_block_set(softmax_block *b, const kiln_softmax_problem *p, const kiln_rows *tensor,
                                     int64_t row, int32_t rows, int64_t chunk)
{
    const int64_t most = softmax_chunk_elements(p), first = chunk * most, rest = p->n - first;
    const int64_t size = kiln_type_size(tensor->type);
    b->stride = p->n > 1 ? tensor->stride : 1;
    b->at = tensor->data + (kiln_rows_offset(p, tensor, row) + first * b->stride) * size;
    b->step = softmax_row_step(p, tensor) * size;
    b->type = tensor->type;
    b->rows = rows;
    b->count = (int32_t)(rest < most ? rest : most);
    b->pitch = softmax_pitch(b->count);
}

/* Two vectors of a row: in their order, or (`paired`, bf16 only) the elements at even places and those at odd ones, which
 * takes half the work. Whoever writes the row puts them back. */
VF_INLINE void softmax_load_two(const char *x, int32_t type, bool paired, vf *s)
{
    if (paired) {
        vf_load_pairs(x, &s[0], &s[1]);
    } else {
        s[0] = vf_load_type(x, type);
        s[1] = vf_load_type(x + VF_LANES * (type == KILN_FLOAT32 ? 4 : 2), type);
    }
}

/* Unit stride: buffer = x·scale, padded to whole vectors with `padding`. Returns the maximum of each lane, without NaN. */
VF_INLINE vf softmax_load_row(const char *x, int32_t type, bool paired, int count, bool scaled, vf scale, vf padding,
                              float *buffer)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2;
    vf top[4], s[4];
    int j = 0;
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++)
        top[u] = vf_set1(-INFINITY);
    for (; j + 4 * VF_LANES <= count; j += 4 * VF_LANES) {
        softmax_load_two(x + j * size, type, paired, s);
        softmax_load_two(x + (j + 2 * VF_LANES) * size, type, paired, s + 2);
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) {
            s[u] = scaled ? vf_mul(s[u], scale) : s[u];
            vf_store(buffer + j + u * VF_LANES, s[u]);
            top[u] = vf_max(s[u], top[u]);
        }
    }
    if (j + 2 * VF_LANES <= count) {
        softmax_load_two(x + j * size, type, paired, s);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            s[u] = scaled ? vf_mul(s[u], scale) : s[u];
            vf_store(buffer + j + u * VF_LANES, s[u]);
            top[u] = vf_max(s[u], top[u]);
        }
        j += 2 * VF_LANES;
    }
    if (j + VF_LANES <= count) {
        s[2] = vf_load_type(x + j * size, type);
        s[2] = scaled ? vf_mul(s[2], scale) : s[2];
        vf_store(buffer + j, s[2]);
        top[2] = vf_max(s[2], top[2]);
        j += VF_LANES;
    }
    if (j < count) {
        s[3] = vf_load_type_tail(x + j * size, type, count - j);
        s[3] = scaled ? vf_mul(s[3], scale) : s[3];
        s[3] = vf_select(vm_first(count - j), s[3], padding);
        vf_store(buffer + j, s[3]);
        top[3] = vf_max(s[3], top[3]);
    }
    return vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3]));
}

VF_INLINE void softmax_load_rows(const softmax_block *x, int32_t type, bool paired, bool scaled, float scale,
                                 float padding, float *buffer, vf *top)
{
    softmax_gather gather;
    const char *at = x->at;
    for (int i = 0; i < x->rows; i++, at += x->step) {
        const char *from = at;
        if (x->stride != 1) {
            rows_gather(gather.raw, from, type, x->stride, x->count);
            from = (const char *)gather.raw;
        }
        top[i] = softmax_load_row(from, type, paired, x->count, scaled, vf_set1(scale), vf_set1(padding),
                                  buffer + (int64_t)i * x->pitch);
    }
}

VF_INLINE void softmax_load_type(const softmax_block *x, int32_t type, bool paired, float scale, float padding,
                                 float *buffer, vf *top)
{
    if (scale == 1)
        softmax_load_rows(x, type, paired, false, scale, padding, buffer, top);
    else
        softmax_load_rows(x, type, paired, true, scale, padding, buffer, top);
}

/* Any stride and type; lane by lane, top[i] = the maximum of row i. `paired`: see softmax_load_two(). */
static void softmax_load(const softmax_block *x, bool paired, float scale, float padding, float *buffer, vf *top)
{
    switch (x->type) {
    case KILN_FLOAT32: softmax_load_type(x, KILN_FLOAT32, false, scale, padding, buffer, top); break;
    case KILN_FLOAT16: softmax_load_type(x, KILN_FLOAT16, false, scale, padding, buffer, top); break;
    default:
        if (paired)
            softmax_load_type(x, KILN_BFLOAT16, true, scale, padding, buffer, top);
        else
            softmax_load_type(x, KILN_BFLOAT16, false, scale, padding, buffer, top);
    }
}

/*
 * The maximum of a row where it lies, lane by lane. Words of 16 bits are compared as integers, which is right unless there
 * is no number above 0 (softmax_top_type()) or a NaN, whose row is NaN whatever its maximum. The last vector overlaps the one
 * before it.
 */
VF_INLINE vw softmax_top_words(const char *x, int count)
{
    enum { WORDS = 2 * VF_LANES };
    vw top = vw_load(x + 2 * (count - WORDS)), other = top;
    int j = 0;
    for (; j + 2 * WORDS < count; j += 2 * WORDS) {
        top = vw_max(top, vw_load(x + 2 * j));
        other = vw_max(other, vw_load(x + 2 * (j + WORDS)));
    }
    if (j + WORDS < count)
        top = vw_max(top, vw_load(x + 2 * j));
    return vw_max(top, other);
}

/* The same for numbers of any sign. NaN is left out. */
VF_INLINE vf softmax_top_row(const char *x, int32_t type, int count)
{
    const vf least = vf_set1(-INFINITY);
    vf top[4] = {least, least, least, least};
    int j = 0;
    for (; j + 4 * VF_LANES <= count; j += 4 * VF_LANES)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++)
            top[u] = vf_max(vf_load_type(x + 2 * (j + u * VF_LANES), type), top[u]);
    for (; j + VF_LANES <= count; j += VF_LANES)
        top[0] = vf_max(vf_load_type(x + 2 * j, type), top[0]);
    if (j < count) {
        vf s = vf_load_type_tail(x + 2 * j, type, count - j);
        top[1] = vf_max(vf_select(vm_first(count - j), s, least), top[1]);
    }
    return vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3]));
}

/* Of each row of a block of `group` from its lanes. A block with fewer rows (the last) gives them the same bits. */
static void softmax_max_rows(vf *lane, int rows, int group, float *max)
{
    if (group == 1) {
        *max = vf_hmax(*lane);
        return;
    }
    for (int i = rows; i < VF_LANES; i++)
        lane[i] = vf_zero();
    vf_store(max, vf_hmax_each(lane));
}

VF_INLINE void softmax_top_type(const softmax_block *x, int32_t type, int group, float *max)
{
    const char *at = x->at;
    const int64_t step = x->step;
    const int rows = x->rows, count = x->count;
    bool again; /* some row of words holds no number above 0 */
    if (count < 2 * VF_LANES) {
        vf lane[VF_LANES];
        for (int i = 0; i < rows; i++, at += step)
            lane[i] = softmax_top_row(at, type, count);
        softmax_max_rows(lane, rows, group, max);
        return;
    }
    if (group == 1) {
        *max = vf_hmax(vw_top(softmax_top_words(at, count), type));
        again = !(*max > 0);
    } else {
        vw word[VF_LANES];
        word[0] = softmax_top_words(at, count);
        for (int i = 1; i < rows; i++)
            word[i] = softmax_top_words(at + i * step, count);
        for (int i = rows; i < VF_LANES; i++)
            word[i] = word[0];
        vf top = vw_top_each(word, type);
        vf_store(max, top);
        again = !vm_all(vf_lt(vf_zero(), top));
    }
    for (int i = 0; again && i < rows; i++)
        if (!(max[i] > 0))
            max[i] = vf_hmax(softmax_top_row(at + i * step, type, count));
}

/* Unit stride, 16 bits: the maximum of each row of a block of `group`. */
static void softmax_top(const softmax_block *x, int group, float *max)
{
    if (x->type == KILN_FLOAT16)
        softmax_top_type(x, KILN_FLOAT16, group, max);
    else
        softmax_top_type(x, KILN_BFLOAT16, group, max);
}

static void softmax_sum_rows(vf *lane, int rows, int group, float *sum)
{
    if (group == 1) {
        *sum = vf_hsum(*lane);
        return;
    }
    for (int i = rows; i < VF_LANES; i++)
        lane[i] = vf_zero();
    vf_store(sum, vf_hsum_each(lane));
}

/* Are rows cut among the workers? Then the workspace holds what every chunk contributes. */
static bool softmax_cut_rows(const kiln_softmax_problem *p, int32_t workers)
{
    return workers > 1 && softmax_chunks(p) > 1 && p->rows < (int64_t)SOFTMAX_ROWS_PER_WORKER * workers;
}

static bool softmax_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    (void)cpu, (void)problem, (void)why, (void)cap;
    return true; /* any types, strides and sizes that validation lets through */
}

/*
 * The longest chain of fp32 additions is that of one lane of a chunk; lanes are added as a tree, chunks in double. The bound
 * knows runs of `tile` only, depth = tile + ceil(n / tile): at least this chain, and the least of all, 2·sqrt(n), if longer.
 */
static void softmax_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    int64_t n = problem->softmax.n, chain = n < SOFTMAX_CHUNK ? n / VF_LANES + 4 : SOFTMAX_CHUNK / VF_LANES + 4;
    int64_t root = (int64_t)sqrt((double)n);
    *numerics = (kiln_numerics){.unit = VF_FMA_UNIT,
                                .exp_error = VF_EXP_ERROR,
                                .p_floor = 0x1p-125,
                                .score_extra = 2, /* times scale, minus the maximum */
                                .tile = root > chain ? root : chain};
}

#endif
