/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_splitkv.c: the method of rung `splitkv`: how many pieces the keys are cut into, and two launches, the
 * pieces and their join. Takes everything that fits shared memory: d and d2 up to 576, d_v up to 1024.
 *
 * Pieces of a call without num_splits: SPLIT_KEYS keys, fewer while work items would leave units idle, more while there are
 * plenty (partial results cost traffic): by the shape and the device model, never by what lengths hold. With
 * KILN_FLAG_BATCH_INVARIANT always SPLIT_KEYS. With num_splits = n: ceil(seqlen_k / n) keys of each sequence, rounded up to a tile.
 */
#include "attention_forward.h"

#define SPLITKV(X, name)                                                                                               \
    X(attention_forward_splitkv_##name##_128)                                                                          \
    X(attention_forward_splitkv_##name##_256)                                                                          \
    X(attention_forward_splitkv_##name##_1024)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
SPLITKV(DECLARE, f32)
SPLITKV(DECLARE, f16)
SPLITKV(DECLARE, bf16)
extern const gpu_kernel GPU_INFO(attention_forward_splitkv_join);

enum {
    SPLIT_KEYS = 512,
    SPLIT_FEWEST_KEYS = 128,
    SPLIT_MOST_KEYS = 4096,
    SPLIT_MOST_ROWS = 16 /* of a KV head, that auto gives to this rung */
};

/* Columns of q and k that the kernel keeps: whole steps of 64. */
static int64_t padded_depth(const kiln_attention_problem *p)
{
    return (attention_ceil(p->d, 64) + attention_ceil(p->d2, 64)) * 64;
}

static const gpu_kernel *kernel_of(const kiln_attention_problem *p)
{
    static const gpu_kernel *const all[3][3] = {{SPLITKV(ENTRY, f32)}, {SPLITKV(ENTRY, f16)}, {SPLITKV(ENTRY, bf16)}};
    const int64_t d = padded_depth(p) > p->d_v ? padded_depth(p) : p->d_v;
    return all[attention_type_index(p)][d <= 128 ? 0 : d <= 256 ? 1 : 2];
}

/* Rows that share a KV head, and work items per piece. */
static int64_t rows_of(const kiln_attention_problem *p)
{
    return p->seqlen_q * (p->heads / p->heads_k);
}
static int64_t blocks_of(const kiln_attention_problem *p)
{
    return p->batch * p->heads_k * attention_ceil(rows_of(p), kernel_of(p)->tile_q);
}

/* Keys of a piece; 0 where num_splits cuts each sequence. */
static int64_t piece_of(const gpu_device *device, const kiln_attention_problem *p)
{
    int64_t keys = SPLIT_KEYS;
    if (p->num_splits > 0)
        return 0;
    if (p->flags & KILN_FLAG_BATCH_INVARIANT)
        return keys;
    while (keys > SPLIT_FEWEST_KEYS && blocks_of(p) * attention_ceil(p->seqlen_k, keys) < 2 * (int64_t)device->units)
        keys /= 2;
    while (keys < SPLIT_MOST_KEYS && blocks_of(p) * attention_ceil(p->seqlen_k, 2 * keys) >= 8 * (int64_t)device->units)
        keys *= 2;
    return keys;
}

static int64_t pieces_of(const gpu_device *device, const kiln_attention_problem *p)
{
    const int64_t keys = piece_of(device, p), tile = kernel_of(p)->tile_k;
    int64_t pieces = attention_ceil(p->seqlen_k, keys > 0 ? keys : tile);
    pieces = keys == 0 && pieces > p->num_splits ? p->num_splits : pieces;
    return pieces > 0 ? pieces : 1;
}

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->attention;
    if (!attention_supports_all(p, why, cap))
        return false;
    if (p->d > 576 || p->d2 > 576 || p->d_v > 1024)
        return snprintf(why, cap, "splitkv takes head sizes up to 576 and v up to 1024; d is %lld, d2 %lld, d_v %lld",
                        (long long)p->d, (long long)p->d2, (long long)p->d_v),
               false;
    const int64_t limit = (int64_t)1 << 46; /* floats of partial results */
    const int64_t rows = p->heads * p->seqlen_q, floats = pieces_of(device, p) * (p->d_v + 2);
    if (p->batch > 0 && rows > 0 && floats > limit / p->batch / rows)
        return snprintf(why, cap,
                        "splitkv keeps a partial result of every row and piece: %lld pieces of %lld rows are too many",
                        (long long)pieces_of(device, p), (long long)rows),
               false;
    return true;
}

/* Few rows, more keys than a piece, and too few work items of (batch, head) to fill the device. With
 * KILN_FLAG_BATCH_INVARIANT the choice must not depend on the number of queries. */
static bool prefers(const gpu_device *device, const kiln_problem *problem)
{
    const kiln_attention_problem *p = &problem->attention;
    if (p->flags & KILN_FLAG_BATCH_INVARIANT)
        return false;
    return rows_of(p) <= SPLIT_MOST_ROWS && p->seqlen_k > SPLIT_KEYS &&
           p->batch * p->heads < 2 * (int64_t)device->units;
}

static size_t lay_out(const gpu_device *device, const kiln_attention_problem *p, char *workspace, gpu_attention_args *a)
{
    size_t used = 0;
    const int64_t rows = p->seqlen_q * pieces_of(device, p);
    a->part_o = attention_view(p, KILN_FLOAT32, rows, p->d_v, &workspace, &used);
    a->part_lse = attention_view(p, KILN_FLOAT32, rows, 2, &workspace, &used);
    return used;
}

static size_t workspace_bytes(const gpu_device *device, const kiln_problem *problem)
{
    gpu_attention_args a;
    return lay_out(device, &problem->attention, NULL, &a);
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    (void)device;
    return i == 0 ? kernel_of(&problem->attention) : i == 1 ? &GPU_INFO(attention_forward_splitkv_join) : NULL;
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const kiln_attention_problem *p = &problem->attention;
    const gpu_kernel *k = kernel_of(p);
    gpu_attention_args a = attention_args(p, 1, 1);
    (void)lay_out(device, p, workspace, &a);
    a.splits = (int32_t)pieces_of(device, p);
    a.piece = piece_of(device, p);
    a.q_tiles = attention_ceil(rows_of(p), k->tile_q);
    a.items = p->batch * p->heads_k * a.q_tiles * a.splits;
    const kiln_status status = gpu_launch(device, k, &a, gpu_max_blocks(p->max_sms), stream);
    if (status != KILN_OK)
        return status;
    a.items = attention_ceil(p->batch * p->heads * p->seqlen_q, gpu_merge_rows(p->d_v));
    return gpu_launch(device, &GPU_INFO(attention_forward_splitkv_join), &a, gpu_max_blocks(p->max_sms), stream);
}

/* Sums of a tile are added as one, pieces in the end: tile and number of tiles cover the depth. score_extra: the join weighs
 * maxima that are rounded, once more. */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)device;
    *numerics = attention_numerics(false, KILN_FLOAT32, kernel_of(&problem->attention)->tile_k);
    numerics->score_extra += 1;
}

const gpu_method GPU_NAME(gpu_attention_forward_splitkv) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "splitkv",
    .name = "attention_forward_splitkv",
    .supports = supports,
    .prefers = prefers,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
