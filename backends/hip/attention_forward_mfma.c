/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_mfma.c: the method of rung `mfma` (CDNA): 16-bit types, head sizes up to 256, without a second score
 * operand. The head is padded to an instance's size by zeros.
 */
#include "../gpu/attention_forward.h"

#define SIZES(X, name, type) X(name##_##type##_64) X(name##_##type##_128) X(name##_##type##_256)
#define MFMA(X, type)                                                                                                  \
    SIZES(X, attention_forward_mfma, type)                                                                             \
    SIZES(X, attention_forward_mfma_general, type)                                                                     \
    SIZES(X, attention_forward_mfma_few, type)                                                                         \
    SIZES(X, attention_forward_mfma_few_general, type)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
MFMA(DECLARE, f16)
MFMA(DECLARE, bf16)

enum {
    BOUNDED_STRIDE = 1 << 22, /* GPU_BOUNDED_STRIDE: what a kernel's 32-bit offsets reach */
    FEW = 6                   /* the first instance for few queries */
};

/*
 * Do all queries of a sequence fit in one tile of `few`, 64? Its waves have 16 each, not 32: half the matrix work and half the
 * weights where a wave of the others would have no more than that, and twice the waves at work where it would have more. With a
 * second tile K and V were read twice. The two differ in bits, so that with KILN_FLAG_BATCH_INVARIANT the choice must not
 * depend on the number of queries.
 */
static bool has_few_queries(const kiln_attention_problem *p, const gpu_kernel *few)
{
    return !(p->flags & KILN_FLAG_BATCH_INVARIANT) && p->seqlen_q <= few->tile_q;
}

static const gpu_kernel *kernel_of(const kiln_attention_problem *p, bool general)
{
    static const gpu_kernel *const f16[] = {MFMA(ENTRY, f16)}, *const bf16[] = {MFMA(ENTRY, bf16)};
    const int64_t d = p->d > p->d_v ? p->d : p->d_v;
    const gpu_kernel *const *kernels = p->q.type == KILN_FLOAT16 ? f16 : bf16;
    const int i = (d <= 64 ? 0 : d <= 128 ? 1 : 2) + (general ? 3 : 0);
    return kernels[has_few_queries(p, kernels[FEW + i]) ? FEW + i : i];
}

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    return attention_supports_matrix(device, &problem->attention, "mfma", kernel_of, why, cap);
}

/* Do the rows from one to the next lie as far apart as the plain kernels' buffer descriptors want it? A tensor's only row,
 * which has stride 0, will: one_row(). */
static bool has_bounded_rows(const kiln_view *v)
{
    return v->size[2] == 1 || (v->stride[2] >= v->size[3] && v->stride[2] < BOUNDED_STRIDE);
}
static void one_row(kiln_view *v)
{
    if (v->size[2] == 1)
        v->stride[2] = v->size[3];
}
static bool is_plain(const kiln_attention_problem *p)
{
    return attention_is_plain(p) && has_bounded_rows(&p->q) && has_bounded_rows(&p->k) && has_bounded_rows(&p->v);
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return attention_either(&problem->attention, kernel_of, is_plain(&problem->attention), i);
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    kiln_attention_problem p = problem->attention;
    (void)workspace;
    one_row(&p.q), one_row(&p.k), one_row(&p.v);
    return attention_launch(device, &p, kernel_of, is_plain(&p), stream);
}

/* As `mma`: weights are larger than 1 by up to 2^8, and those of fp16 by 2^7 more. */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)device;
    *numerics = attention_numerics(true, p->q.type, kernel_of(p, true)->tile_k);
    if (p->q.type == KILN_FLOAT16)
        numerics->p_floor = 0x1p-32;
}

const gpu_method GPU_NAME(gpu_attention_forward_mfma) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "mfma",
    .name = "attention_forward_mfma",
    .supports = supports,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
