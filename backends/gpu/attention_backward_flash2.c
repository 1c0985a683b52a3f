/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward_flash2.c: the methods of attention_backward, rung `flash2`, three to five launches: on matrix units for
 * bf16, on FMA units for everything. Both take all but caches, whose entries two sequences may share, and are always
 * deterministic and independent of batch mates.
 */
#include "attention_forward.h"

extern const gpu_kernel GPU_INFO(attention_backward_flash2_fma_delta), GPU_INFO(attention_backward_flash2_fma_keys),
    GPU_INFO(attention_backward_flash2_fma_queries), GPU_INFO(attention_backward_flash2_fma_bias),
    GPU_INFO(attention_backward_flash2_fma_sinks), GPU_INFO(attention_backward_flash2_keys_bf16),
    GPU_INFO(attention_backward_flash2_queries_bf16);

enum { PART = 128 }; /* columns of a gradient in a work item */

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->backward.forward;
    (void)device;
    if (kiln_view_present(&p->cache_batch_idx))
        return snprintf(why, cap,
                        "forward->cache_batch_idx is given; two sequences may name one entry, whose dk and dv would "
                        "then have two owners: it must be NULL"),
               false;
    if (p->page_size > 0)
        return snprintf(why, cap, "forward->block_table is given; attention_backward takes no pages: it must be NULL"),
               false;
    return attention_supports_all(p, why, cap);
}

static size_t place(const kiln_attention_problem *p, gpu_backward_args *a, char *workspace)
{
    size_t used = 0;
    const int64_t batch = kiln_view_present(&p->cu_seqlens_q) ? 1 : p->batch, head = p->total_q;
    a->delta = (kiln_view){
        .type = KILN_FLOAT32, .size = {batch, p->heads, p->total_q, 1}, .stride = {p->heads * head, head, 1, 0}};
    a->delta.data = attention_take(&workspace, &used, batch * p->heads * head * 4);
    return used;
}

static size_t workspace_bytes(const gpu_device *device, const kiln_problem *problem)
{
    gpu_backward_args a;
    (void)device;
    return place(&problem->backward.forward, &a, NULL);
}

static int64_t tiles(int64_t rows, int32_t tile)
{
    return tile > 0 ? attention_ceil(rows, tile) : 1;
}

/* The i-th launch, and how many items it has. */
static const gpu_kernel *launch(const kiln_problem *problem, bool matrix, int32_t i, gpu_backward_args *a)
{
    const kiln_attention_backward_problem *b = &problem->backward;
    const kiln_attention_problem *p = &b->forward;
    const bool wants_bias = kiln_view_present(&b->dbias), wants_sinks = kiln_view_present(&b->dsinks);
    const gpu_kernel *const list[] = {
        &GPU_INFO(attention_backward_flash2_fma_delta),
        matrix ? &GPU_INFO(attention_backward_flash2_keys_bf16) : &GPU_INFO(attention_backward_flash2_fma_keys),
        matrix ? &GPU_INFO(attention_backward_flash2_queries_bf16) : &GPU_INFO(attention_backward_flash2_fma_queries),
        wants_bias ? &GPU_INFO(attention_backward_flash2_fma_bias) : NULL,
        wants_sinks ? &GPU_INFO(attention_backward_flash2_fma_sinks) : NULL};
    if (i > 2 && !wants_bias)
        i++;
    const gpu_kernel *k = i < 5 ? list[i] : NULL;
    if (!k || !a)
        return k;
    const int64_t of_q = attention_ceil(p->d, PART) + attention_ceil(p->d2, PART);
    a->p = *b;
    a->scale_log2 = (float)(p->softmax_scale * 1.4426950408889634);
    a->q_tiles = tiles(p->seqlen_q, k->tile_q);
    a->k_tiles = tiles(p->seqlen_k, k->tile_k);
    switch (i) {
    case 0: a->items = p->batch * p->heads * a->q_tiles; break;
    case 1: a->items = p->batch * p->heads_k * a->k_tiles * (of_q + attention_ceil(p->d_v, PART)); break;
    case 2: a->items = p->batch * p->heads * a->q_tiles * of_q; break;
    case 3: {
        const int64_t *size = p->bias.size; /* 0 where the problem has no batch, query or key */
        a->items =
            (p->batch == 0 ? 0 : size[0]) * size[1] * (size[2] == 1 ? 1 : a->q_tiles) * (size[3] == 1 ? 1 : a->k_tiles);
        break;
    }
    default: a->items = p->heads;
    }
    return k;
}

static kiln_status launch_all(const gpu_device *device, const kiln_problem *problem, bool matrix, void *workspace,
                              kiln_stream stream)
{
    kiln_status status = KILN_OK;
    const gpu_kernel *k;
    gpu_backward_args a = {0};
    (void)place(&problem->backward.forward, &a, workspace);
    for (int32_t i = 0; status == KILN_OK && (k = launch(problem, matrix, i, &a)); i++)
        status = gpu_launch(device, k, &a, gpu_max_blocks(problem->backward.forward.max_sms), stream);
    return status;
}

/*
 * Sums are as deep as one tile plus their number. The bound counts the tiles of one long sum; dk and dv start a new tile for
 * every head of the group.
 */
static int64_t depth_tile(const kiln_attention_problem *p)
{
    const int32_t tile = GPU_INFO(attention_backward_flash2_fma_keys).tile_q;
    const int64_t group = p->heads / p->heads_k;
    return group > 1 ? tile + group * attention_ceil(p->seqlen_q, tile) : tile;
}

/* ------------------------------------------------------------------------------------------------ matrix units */

static bool supports_matrix(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_backward_problem *b = &problem->backward;
    if (b->forward.q.type != KILN_BFLOAT16 || b->dout.type != KILN_BFLOAT16)
        return snprintf(why, cap, "q and dout must be bf16 for the matrix units"), false;
    return supports(device, problem, why, cap);
}

static const gpu_kernel *kernel_matrix(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return launch(problem, true, i, NULL);
}

static kiln_status run_matrix(const gpu_device *device, const kiln_problem *problem, void *workspace,
                              kiln_stream stream)
{
    return launch_all(device, problem, true, workspace, stream);
}

static void numerics_matrix(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device;
    *numerics = attention_numerics(true, KILN_BFLOAT16, depth_tile(&problem->backward.forward));
}

const gpu_method GPU_NAME(gpu_attention_backward_flash2) = {
    .op = KILN_OP_ATTENTION_BACKWARD,
    .algorithm = "flash2",
    .name = "attention_backward_flash2",
    .supports = supports_matrix,
    .workspace = workspace_bytes,
    .kernel = kernel_matrix,
    .run = run_matrix,
    .numerics = numerics_matrix,
};

/* ------------------------------------------------------------------------------------------------ FMA units */

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return launch(problem, false, i, NULL);
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    return launch_all(device, problem, false, workspace, stream);
}

static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device;
    *numerics = attention_numerics(false, KILN_FLOAT32, depth_tile(&problem->backward.forward));
}

const gpu_method GPU_NAME(gpu_attention_backward_flash2_fma) = {
    .op = KILN_OP_ATTENTION_BACKWARD,
    .algorithm = "flash2",
    .name = "attention_backward_flash2_fma",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
