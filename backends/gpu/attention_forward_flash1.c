/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_forward_flash1.c: the method of rung `flash1`. Takes everything. */
#include "attention_forward.h"

#define FLASH1(X, name)                                                                                                \
    X(attention_forward_flash1_##name##_128)                                                                           \
    X(attention_forward_flash1_##name##_256)                                                                           \
    X(attention_forward_flash1_##name##_0)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
FLASH1(DECLARE, f32)
FLASH1(DECLARE, f16)
FLASH1(DECLARE, bf16)

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device;
    return attention_supports_all(&problem->attention, why, cap);
}

static size_t place(const kiln_attention_problem *p, gpu_attention_args *a, char *workspace)
{
    size_t used = 0;
    a->part_o = attention_view(p, KILN_FLOAT32, p->seqlen_q, p->d_v, &workspace, &used);
    a->scores = attention_view(p, KILN_FLOAT32, p->seqlen_q, 2, &workspace, &used);
    return used;
}

static size_t workspace_bytes(const gpu_device *device, const kiln_problem *problem)
{
    gpu_attention_args a;
    (void)device;
    return place(&problem->attention, &a, NULL);
}

static const gpu_kernel *kernel_of(const kiln_attention_problem *p)
{
    static const gpu_kernel *const kernels[3][3] = {{FLASH1(ENTRY, f32)}, {FLASH1(ENTRY, f16)}, {FLASH1(ENTRY, bf16)}};
    const int64_t d = p->d > p->d_v ? p->d : p->d_v;
    return kernels[attention_type_index(p)][p->d2 > 0 || d > 256 ? 2 : d > 128 ? 1 : 0];
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return i == 0 ? kernel_of(&problem->attention) : NULL;
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const kiln_attention_problem *p = &problem->attention;
    gpu_attention_args a = attention_args(p, 1, 1);
    a.q_tiles = 1;
    a.items = p->batch * p->heads;
    (void)place(p, &a, workspace);
    return gpu_launch(device, kernel_of(p), &a, gpu_max_blocks(p->max_sms), stream);
}

static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)device;
    *numerics = attention_numerics(p->q.type != KILN_FLOAT32, p->q.type, kernel_of(p)->tile_k);
}

const gpu_method GPU_NAME(gpu_attention_forward_flash1) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "flash1",
    .name = "attention_forward_flash1",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
