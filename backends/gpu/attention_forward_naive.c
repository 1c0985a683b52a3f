/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_forward_naive.c: the method of rung `naive`: three launches that meet in the workspace. Takes everything. */
#include "attention_forward.h"

extern const gpu_kernel GPU_INFO(attention_forward_naive_scores_f32), GPU_INFO(attention_forward_naive_scores_f16),
    GPU_INFO(attention_forward_naive_scores_bf16), GPU_INFO(attention_forward_naive_softmax),
    GPU_INFO(attention_forward_naive_values_f32), GPU_INFO(attention_forward_naive_values_f16),
    GPU_INFO(attention_forward_naive_values_bf16);

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device;
    return attention_supports_all(&problem->attention, why, cap);
}

static size_t place(const kiln_attention_problem *p, gpu_attention_args *a, char *workspace)
{
    size_t used = 0;
    a->scores = attention_view(p, KILN_FLOAT32, p->seqlen_q, p->seqlen_k, &workspace, &used);
    a->part_lse = attention_view(p, KILN_FLOAT32, p->seqlen_q, 1, &workspace, &used);
    return used;
}

static size_t workspace_bytes(const gpu_device *device, const kiln_problem *problem)
{
    gpu_attention_args a;
    (void)device;
    return place(&problem->attention, &a, NULL);
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    static const gpu_kernel *const scores[] = {&GPU_INFO(attention_forward_naive_scores_f32),
                                               &GPU_INFO(attention_forward_naive_scores_f16),
                                               &GPU_INFO(attention_forward_naive_scores_bf16)};
    static const gpu_kernel *const values[] = {&GPU_INFO(attention_forward_naive_values_f32),
                                               &GPU_INFO(attention_forward_naive_values_f16),
                                               &GPU_INFO(attention_forward_naive_values_bf16)};
    const int type = attention_type_index(&problem->attention);
    (void)device;
    return i == 0 ? scores[type] : i == 1 ? &GPU_INFO(attention_forward_naive_softmax) : i == 2 ? values[type] : NULL;
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    enum { COLUMNS = 32 }; /* of o, in a work item of `values` */
    const kiln_attention_problem *p = &problem->attention;
    kiln_status status = KILN_OK;
    for (int32_t i = 0; i < 3 && status == KILN_OK; i++) {
        const gpu_kernel *k = kernel(device, problem, i);
        const int64_t across = i == 0   ? attention_ceil(p->seqlen_k, k->tile_k)
                               : i == 2 ? attention_ceil(p->d_v, COLUMNS)
                                        : 1;
        gpu_attention_args a = attention_args(p, k->tile_q, across);
        (void)place(p, &a, workspace);
        status = gpu_launch(device, k, &a, gpu_max_blocks(p->max_sms), stream);
    }
    return status;
}

static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device, (void)problem;
    *numerics = attention_numerics(false, KILN_FLOAT32, 0); /* o is one sum over all keys */
}

const gpu_method GPU_NAME(gpu_attention_forward_naive) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "naive",
    .name = "attention_forward_naive",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
