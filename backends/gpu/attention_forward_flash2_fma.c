/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention_forward_flash2_fma.c: the method of rung `flash2` on FMA units: fp32, head sizes up to 576, q2 and k2. Takes
 * everything. */
#include "attention_forward.h"

extern const gpu_kernel GPU_INFO(attention_forward_flash2_fma_f32_64), GPU_INFO(attention_forward_flash2_fma_f32_128),
    GPU_INFO(attention_forward_flash2_fma_f32_256), GPU_INFO(attention_forward_flash2_fma_f16_256),
    GPU_INFO(attention_forward_flash2_fma_bf16_256);

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    (void)device;
    return attention_supports_all(&problem->attention, why, cap);
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)device;
    if (i > 0)
        return NULL;
    if (p->q.type == KILN_FLOAT16)
        return &GPU_INFO(attention_forward_flash2_fma_f16_256);
    if (p->q.type == KILN_BFLOAT16)
        return &GPU_INFO(attention_forward_flash2_fma_bf16_256);
    return p->d_v <= 64    ? &GPU_INFO(attention_forward_flash2_fma_f32_64)
           : p->d_v <= 128 ? &GPU_INFO(attention_forward_flash2_fma_f32_128)
                           : &GPU_INFO(attention_forward_flash2_fma_f32_256);
}

/* Columns of o in a work item: what the name of the instance says. */
static int64_t parts_of(const kiln_attention_problem *p)
{
    return p->q.type == KILN_FLOAT32 && p->d_v <= 128 ? 1 : attention_ceil(p->d_v, 256);
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const gpu_kernel *k = kernel(device, problem, 0);
    const gpu_attention_args a = attention_args(&problem->attention, k->tile_q, parts_of(&problem->attention));
    (void)workspace;
    return gpu_launch(device, k, &a, gpu_max_blocks(problem->attention.max_sms), stream);
}

static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    *numerics = attention_numerics(false, KILN_FLOAT32, kernel(device, problem, 0)->tile_k);
}

const gpu_method GPU_NAME(gpu_attention_forward_flash2_fma) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "flash2",
    .name = "attention_forward_flash2_fma",
    .supports = supports,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
