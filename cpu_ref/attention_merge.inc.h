/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_merge.inc.h: joins n partial attention results (o_i, lse_i) into one: w_i = exp(lse_i - max lse), o = Σ w_i·o_i /
 * (Σ w_i + w_sink), lse = max lse + ln(Σ w_i + w_sink).
 *
 * Contract: any types and strides; o may be the first part. A part with lse_i = -inf is neutral and its o_i is not read; if
 * one part is left and no sink (or -inf) joins, it is passed through bit for bit, up to the conversion of its type.
 * Traffic: every part that counts once, o and lse once. Weights are computed in double (a few exponentials a row), o in fp32
 * by one chain of n multiply-adds per element. A worker takes whole rows, so bits do not depend on workers.
 */
#include "rows.inc.h"

enum {
    MERGE_COLUMNS = 512, /* accumulated at a time */
    MERGE_KEPT = 64      /* exponentials of so many parts are kept; those of further parts are computed twice */
};

typedef struct merge_part {
    kiln_view o, lse;
} merge_part;

typedef struct merge_call {
    const kiln_merge_problem *p;
    const merge_part *part; /* num_parts, in the workspace */
} merge_call;

/* What the weights of one row are made of. */
typedef struct merge_row {
    int64_t b, h, i;
    double shift;   /* the largest lse; 0 if that is -inf */
    double sum;     /* Σ weights and the sink's; 0 = nothing counts */
    int32_t single; /* the only part that counts, if it is to be passed through; else -1 */
    double kept[MERGE_KEPT];
} merge_row;

static inline double merge_lse(const merge_row *row, const kiln_view *lse)
{
    return ((const float *)lse->data)[kiln_view_offset(lse, row->b, row->h, row->i, 0)];
}

static inline double merge_exp(const merge_call *call, const merge_row *row, int32_t n)
{
    double lse = merge_lse(row, &call->part[n].lse);
    return lse == -INFINITY ? 0 : exp(lse - row->shift);
}

static void merge_weigh(const merge_call *call, merge_row *row)
{
    const kiln_merge_problem *p = call->p;
    double sink = -INFINITY;
    if (kiln_view_present(&p->sinks))
        sink = kiln_load_double(p->sinks.data, p->sinks.type, row->h * p->sinks.stride[1]);
    double top = sink > -INFINITY ? sink : -INFINITY; /* a NaN is left out here and shows in the sum */
    int32_t counting = 0, last = 0;
    for (int32_t n = 0; n < p->num_parts; n++) {
        double lse = merge_lse(row, &call->part[n].lse);
        if (lse == -INFINITY)
            continue;
        top = lse > top ? lse : top;
        last = n;
        counting++;
    }
    row->shift = top == -INFINITY ? 0 : top;
    row->single = counting == 1 && sink == -INFINITY && isfinite(top) ? last : -1; /* not finite: all NaN, as any sum */
    row->sum = sink == -INFINITY ? 0 : exp(sink - row->shift);
    for (int32_t n = 0; n < p->num_parts; n++) {
        double e = merge_exp(call, row, n);
        row->sum += e;
        if (n < MERGE_KEPT)
            row->kept[n] = e;
    }
}

/* sum += weight·o[0 ... count-1]; `sum` is padded to whole vectors. `ahead` bytes on lies what comes next. */
VF_INLINE void merge_add_type(const char *o, int32_t type, int count, float weight, float *sum, int64_t ahead)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2;
    const vf w = vf_set1(weight);
    int j = 0;
    for (; j + VF_LANES <= count; j += VF_LANES) {
        __builtin_prefetch(o + j * size + ahead);
        vf_store(sum + j, vf_fma(w, vf_load_type(o + j * size, type), vf_load(sum + j)));
    }
    if (j < count)
        vf_store(sum + j, vf_fma(w, vf_load_type_tail(o + j * size, type, count - j), vf_load(sum + j)));
}

static void merge_add(const char *o, int32_t type, int count, float weight, float *sum, int64_t ahead)
{
    switch (type) {
    case KILN_FLOAT32: merge_add_type(o, KILN_FLOAT32, count, weight, sum, ahead); break;
    case KILN_FLOAT16: merge_add_type(o, KILN_FLOAT16, count, weight, sum, ahead); break;
    default: merge_add_type(o, KILN_BFLOAT16, count, weight, sum, ahead); break;
    }
}

/* Columns [first, first + count) of one row of a view. */
static inline char *merge_at(const merge_row *row, const kiln_view *view, int64_t first)
{
    return view->data + kiln_view_offset(view, row->b, row->h, row->i, first) * kiln_type_size(view->type);
}

/* The same as unit stride: in place, or copied to `scratch`. */
static const char *merge_unit(const merge_row *row, const kiln_view *o, int64_t first, int count, void *scratch)
{
    const char *at = merge_at(row, o, first);
    if (o->stride[3] == 1 || count == 1)
        return at;
    rows_gather(scratch, at, o->type, o->stride[3], count);
    return scratch;
}

static void merge_columns(const merge_call *call, const merge_row *row, int64_t first, int count)
{
    _Alignas(64) uint32_t scratch[MERGE_COLUMNS];
    _Alignas(64) float sum[MERGE_COLUMNS + VF_LANES];
    const kiln_view *out = &call->p->o;
    for (int j = 0; j < count; j += VF_LANES)
        vf_store(sum + j, vf_zero());
    if (row->single >= 0) {
        const kiln_view *in = &call->part[row->single].o;
        if (in->type == out->type) { /* bits, NaN payloads included; possibly onto themselves */
            rows_gather(scratch, merge_at(row, in, first), in->type, in->stride[3], count);
            rows_scatter(merge_at(row, out, first), scratch, out->type, out->stride[3], count);
            return;
        }
        rows_gather(sum, merge_at(row, in, first), KILN_FLOAT32, in->stride[3], count); /* parts are o's type or fp32 */
    } else {
        for (int32_t n = 0; n < call->p->num_parts; n++) {
            const kiln_view *in = &call->part[n].o;
            if (merge_lse(row, &call->part[n].lse) == -INFINITY)
                continue;
            double e = n < MERGE_KEPT ? row->kept[n] : merge_exp(call, row, n);
            merge_add(merge_unit(row, in, first, count, scratch), in->type, count, (float)(e / row->sum), sum,
                      in->stride[2] * kiln_type_size(in->type));
        }
    }
    rows_store(merge_at(row, out, first), out->type, out->stride[3], count, sum, scratch);
}

static void merge_task(void *arg, int64_t task)
{
    const merge_call *call = arg;
    const kiln_merge_problem *p = call->p;
    merge_row row;
    row.i = task % p->seqlen_q;
    row.h = task / p->seqlen_q % p->heads;
    row.b = task / p->seqlen_q / p->heads;
    merge_weigh(call, &row);
    for (int64_t first = 0; first < p->d_v; first += MERGE_COLUMNS) {
        int64_t rest = p->d_v - first;
        merge_columns(call, &row, first, (int)(rest < MERGE_COLUMNS ? rest : MERGE_COLUMNS));
    }
    if (!kiln_view_present(&p->lse))
        return;
    double lse = row.single >= 0 ? merge_lse(&row, &call->part[row.single].lse) : row.shift + log(row.sum);
    ((float *)p->lse.data)[kiln_view_offset(&p->lse, row.b, row.h, row.i, 0)] = (float)lse;
}

static bool merge_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    (void)cpu, (void)problem, (void)why, (void)cap;
    return true; /* any types, strides and sizes that validation lets through */
}

static size_t merge_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    (void)cpu, (void)workers;
    return (size_t)problem->merge.num_parts * sizeof(merge_part);
}

static void merge_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_merge_problem *p = &problem->merge;
    merge_part *part = workspace;
    for (int32_t n = 0; n < p->num_parts; n++)
        kiln_merge_part(p, n, &part[n].o, &part[n].lse);
    int64_t rows = p->batch * p->heads * p->seqlen_q;
    merge_call call = {p, part};
    rows_parallel(cpu, rows_workers(rows, p->d_v * p->num_parts, workers), rows, merge_task, &call);
}

/* Weights are exact but for their rounding to fp32; the chain is the number of parts. */
static void merge_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)problem;
    *numerics = (kiln_numerics){.unit = VF_FMA_UNIT, .exp_error = 0x1p-24, .p_floor = 0x1p-125};
}

static const kiln_cpu_kernel attention_merge = {
    .op = KILN_OP_ATTENTION_MERGE,
    .algorithm = "merge",
    .name = KILN_CPU_NAME("attention_merge"),
    .supports = merge_supports,
    .workspace = merge_workspace,
    .run = merge_run,
    .numerics = merge_numerics,
};
