/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_wgmma.c: the method of rung `wgmma` (sm_90): 16-bit types, head sizes up to 256, windows of step 1, lengths,
 * packing, GQA, softcap, sinks. What has more to do to a score, pages, and calls whose bits must not depend on a row's neighbours are
 * mma's; so are, when the pointers turn out so, rows that the copy engine cannot read.
 */
#include "attention_forward_wgmma.h"

#include "../gpu/attention_forward.h"

#include <math.h>

extern const gpu_method GPU_NAME(gpu_attention_forward_mma);

/* Shapes and their reasons: attention_forward_wgmma_shapes.gpu.h. */
#define WGMMA(X, name)                                                                                                 \
    X(attention_forward_wgmma_##name##_64_256x64)                                                                      \
    X(attention_forward_wgmma_##name##_64_192x128)                                                                     \
    X(attention_forward_wgmma_##name##_96_192x64)                                                                      \
    X(attention_forward_wgmma_##name##_128_192x64)                                                                     \
    X(attention_forward_wgmma_##name##_192_128_128x64)                                                                 \
    X(attention_forward_wgmma_##name##_192_128x64)                                                                     \
    X(attention_forward_wgmma_##name##_256_128x64)                                                                     \
    X(attention_forward_wgmma_##name##_64_192x128_cap)                                                                 \
    X(attention_forward_wgmma_##name##_128_192x64_cap)                                                                 \
    X(attention_forward_wgmma_##name##_256_128x64_cap)
#define DECLARE(symbol) extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)   &GPU_INFO(symbol),
WGMMA(DECLARE, f16)
WGMMA(DECLARE, bf16)

static const gpu_kernel *kernel_of(const kiln_attention_problem *p)
{
    static const gpu_kernel *const f16[] = {WGMMA(ENTRY, f16)}, *const bf16[] = {WGMMA(ENTRY, bf16)};
    const int64_t d = p->d > p->d_v ? p->d : p->d_v;
    const int i = p->softcap > 0              ? 7 + (d > 64) + (d > 128)
                  : d <= 64                   ? p->seqlen_k > 4096
                  : d <= 96                   ? 2
                  : d <= 128                  ? 3
                  : d <= 192 && p->d_v <= 128 ? 4
                  : d <= 192                  ? 5
                                              : 6;
    return p->q.type == KILN_FLOAT16 ? f16[i] : bf16[i];
}

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->attention;
    if (!GPU_NAME(gpu_attention_forward_mma).supports(device, problem, why, cap))
        return false;
    if (device->architecture != 90)
        return snprintf(why, cap, "wgmma needs sm_90; the device is %s", device->architecture_name), false;
    if (!attention_is_plain_or_capped(p) || p->q_step != 1 || p->k_step != 1)
        return snprintf(why, cap,
                        "wgmma takes windows of q_step and k_step 1, lengths, packing, softcap and sinks, a positive "
                        "softmax_scale, and no attn_mask, bias, alibi_slopes, dropout or block_table"),
               false;
    if (p->o.type != p->q.type)
        return snprintf(why, cap, "wgmma writes o in the type of q"), false;
    if (p->batch * p->heads * attention_ceil(p->seqlen_q, 64) > 1 << 29)
        return snprintf(why, cap, "wgmma takes up to 2^29 tiles of queries"), false;
    if (p->flags & KILN_FLAG_BATCH_INVARIANT)
        return snprintf(why, cap,
                        "wgmma decides for 16 rows at once: a row's bits depend on its neighbours, which "
                        "KILN_FLAG_BATCH_INVARIANT forbids"),
               false;
    return true;
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    return i == 0 ? kernel_of(&problem->attention) : GPU_NAME(gpu_attention_forward_mma).kernel(device, problem, i - 1);
}

/* Blocks of the launch: each stays for the whole of it. */
static int64_t blocks_of(const gpu_device *device, const kiln_attention_problem *p, int64_t tiles)
{
    const int64_t most = gpu_max_blocks(p->max_sms), units = most > 0 && most < device->units ? most : device->units;
    return tiles < units ? tiles : units;
}

/* All sequences have the same lengths and positions, and their keys lie in the order of the batch. */
static bool has_equal_sequences(const kiln_attention_problem *p)
{
    const kiln_view *const own[] = {&p->cu_seqlens_q, &p->cu_seqlens_k, &p->seqused_q, &p->seqused_k,
                                    &p->leftpad_k,    &p->q_starts,     &p->k_starts,  &p->cache_batch_idx};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (kiln_view_present(own[i]))
            return false;
    return true;
}

/*
 * Clocks of a tile: begin and end 5000, and a step of a whole tile and a block of K and V takes keys·(d + d_v) / 32 clocks of the
 * tensor units for 64 rows. With fewer rows it takes longer for each: 1260 for 128 rows, measured, where 192 take 1540.
 */
static double clocks_of(const kiln_attention_problem *p, int64_t rows)
{
    const gpu_kernel *k = kernel_of(p);
    const double step = (double)(k->tile_q / 64 * k->tile_k) * (double)(p->d + p->d_v) / 32;
    return 5000 + (double)attention_ceil(p->seqlen_k, k->tile_k) * step * (0.35 + 0.65 * (double)rows / k->tile_q);
}

/* When are `high` tiles of a clocks and then `low` ones of b done, if who is ready takes the next? */
static double done_at(int64_t blocks, int64_t high, double a, int64_t low, double b)
{
    const int64_t rounds = high / blocks, ahead = high % blocks; /* so many blocks do a round more */
    double early = (double)rounds * a, late = ahead ? early + a : 0;
    for (int64_t left = low; left > 0;)
        if (!ahead || early <= late)
            left -= blocks - ahead, early += b;
        else
            left -= ahead, late += b;
    return early > late ? early : late;
}

static int64_t tiles_of(const kiln_attention_problem *p, gpu_wgmma_tiling t)
{
    const int64_t left = p->seqlen_q - (int64_t)t.high * t.rows;
    return t.high + (left > 0 ? attention_ceil(left, t.low) : 0);
}

/* Is the work worth a counter from which tiles are taken? Zeroing it costs about two microseconds, which short problems do not have. */
static bool is_long(const kiln_attention_problem *p)
{
    const double work = (double)p->batch * (double)p->heads * (double)p->seqlen_q * (double)p->seqlen_k;
    return work * (double)(p->d + p->d_v) > 1.5e10;
}

/*
 * A head's rows by tiles as high as the kernel takes, and what is left. But for problems of few rounds lower tiles may fill
 * the last one better: all of them, or, where all see the same number of keys, some, which are dealt out last.
 */
static gpu_wgmma_tiling tiling_of(const gpu_device *device, const kiln_attention_problem *p)
{
    const int32_t most = kernel_of(p)->tile_q;
    const int64_t heads = p->batch * p->heads, full = p->seqlen_q / most, rest = p->seqlen_q % most;
    gpu_wgmma_tiling best = {most, (int32_t)attention_ceil(p->seqlen_q, most), most};
    const int64_t blocks = blocks_of(device, p, INT64_MAX);
    if (heads * best.high > 12 * blocks)
        return best;
    const double whole = clocks_of(p, most);
    double least = 0.985 * done_at(blocks, heads * full, whole, rest ? heads : 0, clocks_of(p, rest));
    const int64_t mixed = !p->masked && has_equal_sequences(p) && is_long(p) ? full : 0;
    for (int32_t low = most - 64; low > 0; low -= 64)
        for (int64_t high = mixed; high >= 0; high = high > 0 && high < mixed - 8 ? 0 : high - 1) {
            const gpu_wgmma_tiling t = {high > 0 ? most : low, (int32_t)high, low};
            const double clocks =
                done_at(blocks, heads * high, whole, heads * (tiles_of(p, t) - high), clocks_of(p, low));
            if (clocks < (high > 0 ? 1 : 0.965) * least) /* all of them low: the model knows less */
                best = t, least = clocks;
        }
    if (best.high == 0)
        best.high = (int32_t)tiles_of(p, best);
    return best;
}

/* A function of the metadata: it decides about the workspace. */
static bool takes_counter(const gpu_device *device, const kiln_attention_problem *p, gpu_wgmma_tiling t)
{
    const int64_t tiles = p->batch * p->heads * tiles_of(p, t);
    return is_long(p) && tiles <= (GPU_WGMMA_ROUNDS / 2) * blocks_of(device, p, tiles);
}

static size_t workspace_of(const gpu_device *device, const kiln_problem *problem)
{
    const kiln_attention_problem *p = &problem->attention;
    return takes_counter(device, p, tiling_of(device, p)) ? 2 * sizeof(uint32_t) : 0;
}

/* Sections: one head after the other where tiles are equal. Else, with a counter, heads whose K and V fill half of the L2;
 * without, two rounds of all blocks, which the order there and back again makes equally long. */
static void deal(const gpu_device *device, gpu_wgmma_args *a)
{
    const kiln_attention_problem *p = &a->base.p;
    const int64_t heads = p->batch * p->heads, tiles = a->base.q_tiles, blocks = blocks_of(device, p, heads * tiles);
    int64_t section = 1, slots = tiles;
    if (a->counters && (p->masked || !a->alike)) {
        const int64_t per_head = p->seqlen_k * (p->d + p->d_v) * 2 * p->heads_k / p->heads;
        while (section < heads && 2 * section * per_head <= device->l2_bytes / 2)
            section *= 2;
        slots = section * tiles;
    } else if (!a->counters && p->masked) {
        const int64_t most = 2 * blocks > tiles ? 2 * blocks / tiles : 1;
        section = attention_ceil(heads, attention_ceil(heads, most));
        slots = attention_ceil(section * tiles, 2 * blocks) * 2 * blocks;
    }
    a->base.items = a->counters ? heads * tiles : attention_ceil(heads, section) * slots;
    a->section = (int32_t)section, a->slots = (int32_t)slots;
}

/* c[i] = of[i]·in^(2i + 1)·out. False if the last might be lost. */
static bool terms(float *c, const double *of, int count, double in, double out)
{
    double factor = in * out;
    for (int i = 0; i < count; i++, factor *= in * in)
        c[i] = (float)(of[i] * factor);
    return fabs(c[count - 1]) > 1e-36;
}

static gpu_wgmma_cap cap_of(const kiln_attention_problem *p)
{
    static const double three[3] = {0x1.ffff7a2180326p-1, -0x1.54f758605512dp-2, 0x1.00767132bc751p-3},
                        five[5] = {0x1.ffffa2ff830d1p-1, -0x1.553a72174a3f2p-2, 0x1.0edecfe27bc76p-3,
                                   -0x1.93b498e5c78bdp-5, 0x1.93a9e21efe312p-7};
    const double in = p->softmax_scale / p->softcap, out = p->softcap * 1.4426950408889634;
    gpu_wgmma_cap c = {.in = (float)in, .out = (float)out};
    c.most_three = terms(c.three, three, 3, in, out) ? (float)(0.3 / in) : -1.0f;
    c.most_five = terms(c.five, five, 5, in, out) ? (float)(0.75 / in) : -1.0f;
    return c;
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const kiln_attention_problem *p = &problem->attention;
    const gpu_kernel *k = kernel_of(p);
    const gpu_wgmma_tiling tiling = tiling_of(device, p);
    gpu_wgmma_args a = {.base = attention_args(p, tiling.rows, 1), .tiling = tiling};
    a.base.q_tiles = tiles_of(p, tiling), a.base.items = p->batch * p->heads * a.base.q_tiles;
    if (a.base.items == 0)
        return KILN_OK;
    if (!attention_is_aligned(p) || !attention_has_aligned_rows(&p->o) || !gpu_tensor_map_of(&p->q, 64, &a.q) ||
        !gpu_tensor_map_of(&p->k, k->tile_k, &a.k) || !gpu_tensor_map_of(&p->v, k->tile_k, &a.v) ||
        !gpu_tensor_map_of(&p->o, 16, &a.o))
        return GPU_NAME(gpu_attention_forward_mma).run(device, problem, workspace, stream);
    const int64_t blocks = blocks_of(device, p, a.base.items);
    if (takes_counter(device, p, tiling)) {
        a.counters = workspace;
        if (!(p->flags & KILN_FLAG_WORKSPACE_ZEROED)) {
            const kiln_status status = gpu_fill(device, workspace, 0, 2 * sizeof(uint32_t), stream);
            if (status != KILN_OK)
                return status;
        }
    }
    a.group = (int32_t)(p->heads / p->heads_k), a.alike = has_equal_sequences(p);
    if (a.alike)
        a.window = gpu_wgmma_window_of(p, p->q_start + (p->bottom_right ? p->seqlen_k - p->seqlen_q : 0) - p->k_start);
    if (p->softcap > 0)
        a.cap = cap_of(p);
    deal(device, &a);
    return gpu_launch(device, k, &a, blocks, stream);
}

/* As mma. Where the maximum was looked for, a weight is at least 2^5 (fp16) or 2^-12 (bf16): there the exponent is larger by 12, and
 * so is its rounding. */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const kiln_attention_problem *p = &problem->attention;
    (void)device;
    *numerics = attention_numerics(true, p->q.type, kernel_of(p)->tile_k);
    if (p->q.type == KILN_FLOAT16)
        numerics->p_floor = 0x1p-30;
    else
        numerics->p_floor = 0x1p-100, numerics->exp_error = 0x1p-19;
}

const gpu_method GPU_NAME(gpu_attention_forward_wgmma) = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "wgmma",
    .name = "attention_forward_wgmma",
    .supports = supports,
    .workspace = workspace_of,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
