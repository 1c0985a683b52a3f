/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_forward_tiled.c: the methods of rung `tiled` and of its unpadded variant. Take everything. */
#include "attention_forward.h"

#define TILED(X, name)                                                                                                 \
    X(attention_forward_tiled_scores_##name)                                                                           \
    X(attention_forward_tiled_values_##name)                                                                           \
    X(attention_forward_tiled_unpadded_scores_##name)                                                                  \
    X(attention_forward_tiled_unpadded_values_##name)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
TILED(DECLARE, f32)
TILED(DECLARE, f16)
TILED(DECLARE, bf16)
DECLARE(attention_forward_naive_softmax)

static const gpu_kernel *const kernels[3][4] = {{TILED(ENTRY, f32)}, {TILED(ENTRY, f16)}, {TILED(ENTRY, bf16)}};

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

static const gpu_kernel *kernel_of(const kiln_attention_problem *p, int32_t i, bool padded)
{
    const gpu_kernel *const *k = kernels[attention_type_index(p)] + (padded ? 0 : 2);
    return i == 0 ? k[0] : i == 1 ? &GPU_INFO(attention_forward_naive_softmax) : i == 2 ? k[1] : NULL;
}

static kiln_status launch(const gpu_device *device, const kiln_attention_problem *p, void *workspace,
                          kiln_stream stream, bool padded)
{
    kiln_status status = KILN_OK;
    for (int32_t i = 0; i < 3 && status == KILN_OK; i++) {
        const gpu_kernel *k = kernel_of(p, i, padded);
        const int64_t across = i == 0   ? attention_ceil(p->seqlen_k, k->tile_k)
                               : i == 2 ? attention_ceil(p->d_v, k->tile_q)
                                        : 1;
        gpu_attention_args a = attention_args(p, k->tile_q, across); /* tiles of `values` are square in o */
        (void)place(p, &a, workspace);
        status = gpu_launch(device, k, &a, gpu_max_blocks(p->max_sms), stream);
    }
    return status;
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return kernel_of(&problem->attention, i, true);
}

static const gpu_kernel *kernel_unpadded(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return kernel_of(&problem->attention, i, false);
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    return launch(device, &problem->attention, workspace, stream, true);
}

static kiln_status run_unpadded(const gpu_device *device, const kiln_problem *problem, void *workspace,
                                kiln_stream stream)
{
    return launch(device, &problem->attention, workspace, stream, false);
}

static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const int32_t type = problem->attention.q.type;
    (void)device;
    *numerics = attention_numerics(type != KILN_FLOAT32, type, 0); /* o is one sum over all keys */
}

const gpu_method GPU_NAME(gpu_attention_forward_tiled) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "tiled",
    .name = "attention_forward_tiled",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};

const gpu_method GPU_NAME(gpu_attention_forward_tiled_unpadded) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "tiled_unpadded",
    .name = "attention_forward_tiled_unpadded",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel_unpadded,
    .run = run_unpadded,
    .numerics = numerics,
};
