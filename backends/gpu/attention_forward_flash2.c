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
    const kiln_attention_problem *p = &problem->attention;
    if (!attention_supports_all(p, why, cap))
        return false;
    if (p->q.type == KILN_FLOAT32 || p->d2 > 0 || p->d > 256 || p->d_v > 256)
        return snprintf(why, cap, "matrix units take 16-bit q, k and v without q2, head sizes up to 256"), false;
    const gpu_kernel *k = kernel_of(p, true);
    if (k->shared_bytes > device->shared_bytes || kernel_of(p, false)->shared_bytes > device->shared_bytes)
        return snprintf(why, cap,
                        "the device has %lld bytes of shared memory for a block; a head size of %lld needs %d",
                        (long long)device->shared_bytes, (long long)p->d, k->shared_bytes),
               false;
    return true;
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    const bool plain = attention_is_plain(&problem->attention);
    (void)device;
    return i == 0            ? kernel_of(&problem->attention, true)
           : i == 1 && plain ? kernel_of(&problem->attention, false)
                             : NULL;
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const kiln_attention_problem *p = &problem->attention;
    const bool plain =
        attention_is_plain(p) && attention_is_aligned(p) && attention_has_aligned_rows(&p->o) && p->o.type == p->q.type;
    const gpu_kernel *k = kernel_of(p, !plain);
    const gpu_attention_args a = attention_args(p, k->tile_q, 1);
    (void)workspace;
    return gpu_launch(device, k, &a, gpu_max_blocks(p->max_sms), stream);
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
