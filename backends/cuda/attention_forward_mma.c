/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_mma.c: the method of rung `mma` (sm_80 and newer): 16-bit types, head sizes up to 256, without a second
 * score operand. The head is padded to an instance's size by zeros.
 */
#include "../gpu/attention_forward.h"

#define MMA(X, name)                                                                                                   \
    X(attention_forward_mma_##name##_64)                                                                               \
    X(attention_forward_mma_##name##_128)                                                                              \
    X(attention_forward_mma_##name##_256)                                                                              \
    X(attention_forward_mma_general_##name##_64)                                                                       \
    X(attention_forward_mma_general_##name##_128)                                                                      \
    X(attention_forward_mma_general_##name##_256)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
MMA(DECLARE, f16)
MMA(DECLARE, bf16)

static const gpu_kernel *kernel_of(const kiln_attention_problem *p, bool general)
{
    static const gpu_kernel *const f16[] = {MMA(ENTRY, f16)}, *const bf16[] = {MMA(ENTRY, bf16)};
    const int64_t d = p->d > p->d_v ? p->d : p->d_v;
    const int i = (d <= 64 ? 0 : d <= 128 ? 1 : 2) + (general ? 3 : 0);
    return p->q.type == KILN_FLOAT16 ? f16[i] : bf16[i];
}

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    if (device->architecture < 80)
        return snprintf(why, cap, "mma needs sm_80 or newer; the device is %s", device->architecture_name), false;
    return attention_supports_matrix(device, &problem->attention, "mma", kernel_of, why, cap);
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return attention_either(&problem->attention, kernel_of, attention_is_plain(&problem->attention), i);
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    (void)workspace;
    return attention_launch(device, &problem->attention, kernel_of, attention_is_plain(&problem->attention), stream);
}

/* As flash2, but weights are larger than 1 by up to 2^8, and those of fp16 by 2^7 more. */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)device;
    *numerics = attention_numerics(true, p->q.type, kernel_of(p, true)->tile_k);
    if (p->q.type == KILN_FLOAT16)
        numerics->p_floor = 0x1p-32;
}

const gpu_method GPU_NAME(gpu_attention_forward_mma) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "mma",
    .name = "attention_forward_mma",
    .supports = supports,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
