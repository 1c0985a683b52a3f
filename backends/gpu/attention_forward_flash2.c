/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_flash2.c: the method of rung `flash2` for 16-bit types on matrix units: head sizes up to 256, without a
 * second score operand. The head is padded to an instance's size by zeros. attention_forward_flash2_fma.c takes the rest.
 */
#include "attention_forward.h"

#define FLASH2(X, name)                                                                                                \
    X(attention_forward_flash2_##name##_32)                                                                            \
    X(attention_forward_flash2_##name##_64)                                                                            \
    X(attention_forward_flash2_##name##_96)                                                                            \
    X(attention_forward_flash2_##name##_128)                                                                           \
    X(attention_forward_flash2_##name##_192)                                                                           \
    X(attention_forward_flash2_##name##_256)                                                                           \
    X(attention_forward_flash2_general_##name##_64)                                                                    \
    X(attention_forward_flash2_general_##name##_128)                                                                   \
    X(attention_forward_flash2_general_##name##_256)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
FLASH2(DECLARE, f16)
FLASH2(DECLARE, bf16)

enum { PLAIN = 6, GENERAL = 3 };
typedef struct instance {
    int32_t d;
    bool general;
} instance;
static const instance instances[PLAIN + GENERAL] = {{32, false},  {64, false}, {96, false}, {128, false}, {192, false},
                                                    {256, false}, {64, true},  {128, true}, {256, true}};

static const gpu_kernel *kernel_of(const kiln_attention_problem *p, bool general)
{
    static const gpu_kernel *const f16[] = {FLASH2(ENTRY, f16)}, *const bf16[] = {FLASH2(ENTRY, bf16)};
    const int64_t d = p->d > p->d_v ? p->d : p->d_v;
    int i = general ? PLAIN : 0;
    while (instances[i].d < d)
        i++;
    return p->q.type == KILN_FLOAT16 ? f16[i] : bf16[i];
}

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    return attention_supports_matrix(device, &problem->attention, "flash2 on matrix units", kernel_of, why, cap);
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

/* The largest weight of an fp16 row is at least 2^11, not 2^15, so its smallest ones lie 2^36 below. */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)device;
    *numerics = attention_numerics(true, p->q.type, kernel_of(p, true)->tile_k);
    if (p->q.type == KILN_FLOAT16)
        numerics->p_floor = 0x1p-36;
}

const gpu_method GPU_NAME(gpu_attention_forward_flash2) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "flash2",
    .name = "attention_forward_flash2",
    .supports = supports,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
