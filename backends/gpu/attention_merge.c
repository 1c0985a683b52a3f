/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_merge.c: the method of attention_merge: one launch for up to GPU_MERGE_PARTS parts. More parts: weights of all
 * parts first, then the sums, GPU_MERGE_PARTS parts a launch.
 */
#include "attention_forward.h"

extern const gpu_kernel GPU_INFO(attention_merge_add), GPU_INFO(attention_merge_weights);

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_merge_problem *p = &problem->merge;
    (void)device;
    if (p->d_v > INT32_MAX / 2)
        return snprintf(why, cap, "o has %lld columns; GPU kernels take up to 2^30", (long long)p->d_v), false;
    return true;
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return i == 0                                                 ? &GPU_INFO(attention_merge_add)
           : i == 1 && problem->merge.num_parts > GPU_MERGE_PARTS ? &GPU_INFO(attention_merge_weights)
                                                                  : NULL;
}

/* A compact fp32 view of (batch, heads, rows, columns). */
static kiln_view state(const kiln_merge_problem *p, int64_t columns, char **workspace, size_t *used)
{
    kiln_view view = {.type = KILN_FLOAT32,
                      .size = {p->batch, p->heads, p->seqlen_q, columns},
                      .stride = {p->heads * p->seqlen_q * columns, p->seqlen_q * columns, columns, 1}};
    view.data = attention_take(workspace, used, p->batch * p->heads * p->seqlen_q * columns * 4);
    return view;
}

static size_t lay_out(const kiln_merge_problem *p, char *workspace, gpu_merge_args *a)
{
    size_t used = 0;
    if (p->num_parts <= GPU_MERGE_PARTS)
        return 0;
    a->weight = state(p, 2, &workspace, &used);
    a->sum = state(p, p->d_v, &workspace, &used);
    return used;
}

static size_t workspace_bytes(const gpu_device *device, const kiln_problem *problem)
{
    gpu_merge_args a;
    (void)device;
    return lay_out(&problem->merge, NULL, &a);
}

/* All parts through a kernel, GPU_MERGE_PARTS a launch. */
static kiln_status launches(const gpu_device *device, const gpu_kernel *kernel, const kiln_merge_problem *p,
                            gpu_merge_args *a, kiln_stream stream)
{
    kiln_status status = KILN_OK;
    for (int32_t first = 0; first < p->num_parts && status == KILN_OK; first += GPU_MERGE_PARTS) {
        const int32_t rest = p->num_parts - first;
        a->parts = rest < GPU_MERGE_PARTS ? rest : GPU_MERGE_PARTS;
        a->step = (first == 0 ? GPU_MERGE_FIRST : 0) | (rest <= GPU_MERGE_PARTS ? GPU_MERGE_LAST : 0);
        for (int32_t i = 0; i < GPU_MERGE_PARTS; i++)
            if (i < a->parts)
                kiln_merge_part(p, first + i, &a->o_part[i], &a->lse_part[i]);
            else
                a->o_part[i] = a->lse_part[i] = (kiln_view){0};
        status = gpu_launch(device, kernel, a, gpu_max_blocks(p->max_sms), stream);
    }
    return status;
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const kiln_merge_problem *p = &problem->merge;
    gpu_merge_args a = {.o = p->o, .lse = p->lse, .sinks = p->sinks};
    const int64_t rows = p->batch * p->heads * p->seqlen_q;
    if (lay_out(p, workspace, &a) > 0) {
        a.items = attention_ceil(rows, GPU_MERGE_THREADS);
        const kiln_status status = launches(device, &GPU_INFO(attention_merge_weights), p, &a, stream);
        if (status != KILN_OK)
            return status;
    }
    a.items = attention_ceil(rows, gpu_merge_rows(p->d_v));
    return launches(device, &GPU_INFO(attention_merge_add), p, &a, stream);
}

/* score_extra: the change of base of each lse, the difference, the unit. exp_error as in attention_numerics(). */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device, (void)problem;
    *numerics = (kiln_numerics){
        .unit = 0x1p-24, .exp_error = 0x1p-21, .p_floor = 0x1p-125, .score_extra = 3, .tile = GPU_MERGE_PARTS};
}

const gpu_method GPU_NAME(gpu_attention_merge) = {
    .op = KILN_OP_ATTENTION_MERGE,
    .algorithm = "merge",
    .name = "attention_merge",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
