/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_rows.inc.h: what the softmax kernels share: chunks of rows as fp32 in L1.
 *
 * Every row is cut into chunks of CHUNK elements, whatever the number of workers, and sums of chunks are added in their
 * order in double. So bits depend on the row alone, and a row may be summed by one worker or by many. A chunk passes
 * through a buffer in L1, where its elements are unit-stride fp32 and padded to whole vectors: types and strides are dealt
 * with by load and store only, at the price of a little L1 traffic.
 *
 * Included in kernels_<isa>.c after simd_<isa>.h, by the softmax_*.inc.h that come first.
 */
#ifndef KILN_CPU_REF_SOFTMAX_ROWS_INC_H
#define KILN_CPU_REF_SOFTMAX_ROWS_INC_H

#include <math.h>

#include "rows.inc.h"

enum {
    SOFTMAX_CHUNK = 4096,
    SOFTMAX_UNROLL = 4,
    SOFTMAX_ROWS_PER_WORKER = 4 /* with fewer rows than this, long rows are cut among the workers */
};

typedef struct softmax_buffer {
    _Alignas(64) float element[SOFTMAX_CHUNK + VF_LANES];
} softmax_buffer;

/* Elements of one chunk side by side in their own type, for strided rows. */
typedef struct softmax_gather {
    _Alignas(64) uint32_t raw[SOFTMAX_CHUNK];
} softmax_gather;

/* Elements [first, first + count) of row `row` of one of the tensors. */
typedef struct softmax_span {
    char *data;
    int64_t stride;
    int32_t type;
    int32_t count; /* <= SOFTMAX_CHUNK */
} softmax_span;

static inline int64_t softmax_chunks(const kiln_softmax_problem *p)
{
    return p->n > SOFTMAX_CHUNK ? (p->n + SOFTMAX_CHUNK - 1) / SOFTMAX_CHUNK : 1;
}

static inline softmax_span softmax_span_of(const kiln_softmax_problem *p, const kiln_rows *rows, int64_t row,
                                           int64_t chunk)
{
    int64_t first = chunk * SOFTMAX_CHUNK, rest = p->n - first;
    softmax_span span = {.stride = p->n > 1 ? rows->stride : 1, .type = rows->type};
    span.count = (int32_t)(rest < SOFTMAX_CHUNK ? rest : SOFTMAX_CHUNK);
    span.data = rows->data + (kiln_rows_offset(p, rows, row) + first * span.stride) * kiln_type_size(rows->type);
    return span;
}

/* Unit stride: buffer = x·scale, padded to whole vectors with -inf. Returns the maximum, which leaves NaN out. */
VF_INLINE float softmax_load_type(const char *x, int32_t type, int count, float scale, float *buffer)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2;
    const vf factor = vf_set1(scale), lowest = vf_set1(-INFINITY);
    vf top[SOFTMAX_UNROLL];
    int j = 0;
#pragma GCC unroll 4
    for (int u = 0; u < SOFTMAX_UNROLL; u++)
        top[u] = lowest;
    for (; j + SOFTMAX_UNROLL * VF_LANES <= count; j += SOFTMAX_UNROLL * VF_LANES) {
#pragma GCC unroll 4
        for (int u = 0; u < SOFTMAX_UNROLL; u++) {
            vf s = vf_mul(vf_load_type(x + (j + u * VF_LANES) * size, type), factor);
            vf_store(buffer + j + u * VF_LANES, s);
            top[u] = vf_max(s, top[u]);
        }
    }
    for (; j + VF_LANES <= count; j += VF_LANES) {
        vf s = vf_mul(vf_load_type(x + j * size, type), factor);
        vf_store(buffer + j, s);
        top[0] = vf_max(s, top[0]);
    }
    if (j < count) {
        vf s = vf_mul(vf_load_type_tail(x + j * size, type, count - j), factor);
        s = vf_select(vm_first(count - j), s, lowest);
        vf_store(buffer + j, s);
        top[0] = vf_max(s, top[0]);
    }
    return vf_hmax(vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3])));
}

/* Any stride and type. */
static float softmax_load(softmax_span x, float scale, softmax_buffer *buffer)
{
    softmax_gather gather;
    if (x.stride != 1) {
        rows_gather(gather.raw, x.data, x.type, x.stride, x.count);
        x.data = (char *)gather.raw;
    }
    switch (x.type) {
    case KILN_FLOAT32: return softmax_load_type(x.data, KILN_FLOAT32, x.count, scale, buffer->element);
    case KILN_FLOAT16: return softmax_load_type(x.data, KILN_FLOAT16, x.count, scale, buffer->element);
    default: return softmax_load_type(x.data, KILN_BFLOAT16, x.count, scale, buffer->element);
    }
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
