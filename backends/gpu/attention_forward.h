/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward.h: what the methods of attention_forward share on the host: arguments of a launch, what all rungs refuse,
 * and the rounding that they have in common. Functions of the metadata only.
 */
#ifndef KILN_BACKENDS_GPU_ATTENTION_FORWARD_H
#define KILN_BACKENDS_GPU_ATTENTION_FORWARD_H

#include <stdio.h>

#include "gpu_host.h"

static inline int64_t attention_ceil(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Instances come per element type of q, k and v. */
static inline int attention_type_index(const kiln_attention_problem *p)
{
    return p->q.type == KILN_FLOAT32 ? 0 : p->q.type == KILN_FLOAT16 ? 1 : 2;
}

/* Work items of (batch, head, tile of tile_q rows), `across` of them per tile. */
static inline gpu_attention_args attention_args(const kiln_attention_problem *p, int32_t tile_q, int64_t across)
{
    gpu_attention_args a = {.p = *p, .splits = 1};
    a.scale_log2 = (float)(p->softmax_scale * 1.4426950408889634);
    a.q_tiles = attention_ceil(p->seqlen_q, tile_q);
    a.items = p->batch * p->heads * a.q_tiles * across;
    return a;
}

static inline bool attention_type_taken(int32_t type)
{
    return type == 0 || type == KILN_FLOAT32 || type == KILN_FLOAT16 || type == KILN_BFLOAT16;
}

/* num_splits is the most pieces that the keys may be cut into: any value is kept by not cutting them. */
static inline bool attention_supports_all(const kiln_attention_problem *p, char *why, size_t cap)
{
    if (kiln_view_present(&p->q_descale) || kiln_view_present(&p->k_descale) || kiln_view_present(&p->v_descale))
        return snprintf(why, cap, "q_descale, k_descale and v_descale must be NULL: no GPU kernel takes 8-bit types"),
               false;
    const kiln_view *views[] = {&p->q, &p->k, &p->v, &p->o, &p->q2, &p->k2, &p->bias};
    static const char *const names[] = {"q", "k", "v", "o", "q2", "k2", "bias"};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (!attention_type_taken(views[i]->type))
            return snprintf(why, cap, "%s has DLPack type code %d with %d bits; GPU kernels take fp32, fp16, bf16",
                            names[i], views[i]->type / 256, views[i]->type % 256),
                   false;
    if (p->k.type != p->q.type || p->v.type != p->q.type)
        return snprintf(why, cap, "k and v must have the type of q"), false;
    if (p->seqlen_q > INT32_MAX / 2 || p->seqlen_k > INT32_MAX / 2)
        return snprintf(why, cap, "seqlen_q is %lld and seqlen_k %lld; GPU kernels take sequences of up to 2^30",
                        (long long)p->seqlen_q, (long long)p->seqlen_k),
               false;
    return true;
}

/*
 * Rounding. score_extra: scale rounded to fp32, score·scale, score/softcap, softcap·tanh, bias, ALiBi's distance and its fma,
 * the difference from the maximum (whose operands may both be as large as the largest score), change of base.
 * exp_error: ex2.approx and lg2.approx (2^-22), and for fp16 weights, whose exponent is larger by 15, its rounding.
 */
static inline kiln_numerics attention_numerics(bool matrix, int32_t weight_type, int64_t tile)
{
    kiln_numerics n = {.unit = matrix ? 0x1p-23 : 0x1p-24,
                       .exp_error = 0x1p-21,
                       .tanh_error = 0x1p-21,
                       .p_floor = 0x1p-125,
                       .score_extra = 9,
                       .tile = tile};
    if (weight_type == KILN_BFLOAT16)
        n.p_unit = 0x1p-8;
    if (weight_type == KILN_FLOAT16) {
        n.exp_error = 0x1.8p-21;
        n.p_unit = 0x1p-11;
        n.p_floor = 0x1p-40;
    }
    return n;
}

/* Nothing but window, lengths, sinks and perhaps softcap. */
static inline bool attention_is_plain_or_capped(const kiln_attention_problem *p)
{
    return p->page_size == 0 && p->mask_len == 0 && p->dropout_threshold >= 256 && !kiln_view_present(&p->bias) &&
           !kiln_view_present(&p->alibi) && (float)(p->softmax_scale * 1.4426950408889634) > 0;
}
/* No softcap either: what the plain mode of a kernel does, where rows are aligned too. */
static inline bool attention_is_plain(const kiln_attention_problem *p)
{
    return attention_is_plain_or_capped(p) && p->softcap == 0;
}

static inline bool attention_has_aligned_rows(const kiln_view *v)
{
    return (((int64_t)(intptr_t)v->data) |
            (v->stride[0] | v->stride[1] | v->stride[2] | v->size[3]) * (v->type % 256 / 8)) %
               16 ==
           0;
}

/* Rows of q, k and v may be read by 16 bytes. */
static inline bool attention_is_aligned(const kiln_attention_problem *p)
{
    return attention_has_aligned_rows(&p->q) && attention_has_aligned_rows(&p->k) && attention_has_aligned_rows(&p->v);
}

/*
 * What the rungs on matrix units have in common: 16-bit types without a second score operand, heads of up to 256 columns, and two
 * kernels for a problem: one for the plain ones whose rows turn out to be aligned, one for the rest of the contract.
 */
typedef const gpu_kernel *attention_kernel_of(const kiln_attention_problem *p, bool general);

static inline bool attention_supports_matrix(const gpu_device *device, const kiln_attention_problem *p,
                                             const char *rung, attention_kernel_of *kernel_of, char *why, size_t cap)
{
    if (!attention_supports_all(p, why, cap))
        return false;
    if (p->q.type == KILN_FLOAT32 || p->d2 > 0 || p->d > 256 || p->d_v > 256)
        return snprintf(why, cap, "%s takes 16-bit q, k and v without q2, head sizes up to 256", rung), false;
    const int32_t needed = kernel_of(p, true)->shared_bytes;
    if (needed > device->shared_bytes || kernel_of(p, false)->shared_bytes > device->shared_bytes)
        return snprintf(why, cap,
                        "the device has %lld bytes of shared memory for a block; a head size of %lld needs %d",
                        (long long)device->shared_bytes, (long long)p->d, needed),
               false;
    return true;
}

/* gpu_method.kernel: both, where the metadata are plain. */
static inline const gpu_kernel *attention_either(const kiln_attention_problem *p, attention_kernel_of *kernel_of,
                                                 bool plain, int32_t i)
{
    return i == 0 ? kernel_of(p, true) : i == 1 && plain ? kernel_of(p, false) : NULL;
}

static inline kiln_status attention_launch(const gpu_device *device, const kiln_attention_problem *p,
                                           attention_kernel_of *kernel_of, bool plain, kiln_stream stream)
{
    plain = plain && attention_is_aligned(p) && attention_has_aligned_rows(&p->o) && p->o.type == p->q.type;
    const gpu_kernel *kernel = kernel_of(p, !plain);
    const gpu_attention_args a = attention_args(p, kernel->tile_q, 1);
    return gpu_launch(device, kernel, &a, gpu_max_blocks(p->max_sms), stream);
}

/* Takes `bytes` of the workspace (NULL: only counts). Pieces are aligned to 256 bytes. */
static inline char *attention_take(char **workspace, size_t *used, int64_t bytes)
{
    char *piece = *workspace ? *workspace + *used : NULL;
    *used += ((size_t)bytes + 255) / 256 * 256;
    return piece;
}

/* A compact view of (batch, heads, rows, columns) in the workspace. */
static inline kiln_view attention_view(const kiln_attention_problem *p, int32_t type, int64_t rows, int64_t columns,
                                       char **workspace, size_t *used)
{
    const int64_t count = p->batch * p->heads * rows * columns;
    kiln_view view = {.type = type,
                      .size = {p->batch, p->heads, rows, columns},
                      .stride = {p->heads * rows * columns, rows * columns, columns, 1}};
    view.data = attention_take(workspace, used, count * (type % 256 / 8));
    return view;
}

#endif
