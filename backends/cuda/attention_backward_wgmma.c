/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward_wgmma.c: the method of attention_backward, rung `wgmma` (sm_90): 16-bit types, windows of step 1, lengths,
 * packing, GQA, dlse, head sizes up to 256, DETERMINISTIC. Four or five launches. The rest of the contract is flash2's; so are, when the
 * pointers turn out so, rows that the copy engine cannot read.
 */
#include "attention_backward_wgmma.h"

#include "../gpu/attention_forward.h"

extern const gpu_method GPU_NAME(gpu_attention_backward_flash2), GPU_NAME(gpu_attention_backward_flash2_fma);

#define WGMMA(X, type, d)                                                                                              \
    X(attention_backward_wgmma_prepare_##type##_##d)                                                                   \
    X(attention_backward_wgmma_##type##_##d)                                                                           \
    X(attention_backward_wgmma_finish_##type##_##d)                                                                    \
    X(attention_backward_wgmma_again_##type)
#define DECLARE(symbol)  extern const gpu_kernel GPU_INFO(symbol);
#define ENTRY(symbol)    &GPU_INFO(symbol),
#define SENT(X, type, d) X(attention_backward_wgmma_sent_##type##_##d)
#define ALL(X, type)                                                                                                   \
    WGMMA(X, type, 64)                                                                                                 \
    SENT(X, type, 64)                                                                                                  \
    WGMMA(X, type, 128) SENT(X, type, 128) WGMMA(X, type, 256) X(attention_backward_wgmma_queries_##type##_256)
ALL(DECLARE, bf16)
ALL(DECLARE, f16)
/* Up to a head size of 128 MAIN is the fifth where dQ is sent; beyond, the fifth is QUERIES, for dQ. */
enum { PREPARE, MAIN, FINISH, AGAIN, MAIN_SENT, QUERIES = MAIN_SENT, KERNELS };

static int64_t head_size(const kiln_attention_problem *p)
{
    const int64_t most = p->d > p->d_v ? p->d : p->d_v;
    return most <= 64 ? 64 : most <= 128 ? 128 : 256;
}

/* Whether dQ leaves by way of shared memory, from where it can be added in order. Items of many steps are faster so where shared memory
 * has room for it, which at d = 64 costs a stage; short ones are not, for the last dQ leaves later. */
static bool is_sent(const kiln_attention_problem *p)
{
    return p->flags & KILN_FLAG_DETERMINISTIC || (head_size(p) == 128 && p->heads / p->heads_k * p->seqlen_q >= 8192);
}

/* Above a head size of 128 dQ is a pass of its own. */
static bool is_wide(const kiln_attention_problem *p)
{
    return head_size(p) > 128;
}

/* Bytes of a row that the L2 is to hold: Q, dO and, in fp32, the sums of dQ; where that is a pass of its own Q and dO, or K and V. */
static int64_t row_bytes(const kiln_attention_problem *p)
{
    return head_size(p) * (is_wide(p) ? 4 : 8);
}

/* Whether the items of the first keys put their part of dQ there, for the others to add to, so that nobody writes zeros and memory is not
 * read for the first sum. Packed items come in another order. */
static bool is_put(const kiln_attention_problem *p)
{
    return !is_wide(p) && !is_sent(p) && !kiln_view_present(&p->cu_seqlens_q) && !kiln_view_present(&p->cu_seqlens_k);
}

static const gpu_kernel *launch(const kiln_attention_problem *p, int i)
{
    static const gpu_kernel *const of_f16[] = {ALL(ENTRY, f16)}, *const of_bf16[] = {ALL(ENTRY, bf16)};
    const gpu_kernel *const *of = p->q.type == KILN_BFLOAT16 ? of_bf16 : of_f16;
    if (i == MAIN && !is_wide(p) && is_sent(p))
        i = MAIN_SENT;
    return of[(head_size(p) == 64 ? 0 : head_size(p) == 128 ? KERNELS : 2 * KERNELS) + i];
}

/* What takes the rest of the contract. */
static const gpu_method *other(const kiln_problem *problem)
{
    return problem->backward.forward.q.type == KILN_BFLOAT16 ? &GPU_NAME(gpu_attention_backward_flash2)
                                                             : &GPU_NAME(gpu_attention_backward_flash2_fma);
}

static bool supports(const gpu_device *device, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_backward_problem *b = &problem->backward;
    const kiln_attention_problem *p = &b->forward;
    const int32_t type = p->q.type;
    if (!other(problem)->supports(device, problem, why, cap))
        return false;
    if (device->architecture != 90)
        return snprintf(why, cap, "wgmma needs sm_90; the device is %s", device->architecture_name), false;
    if (!attention_is_plain(p) || p->q_step != 1 || p->k_step != 1 || p->d2 > 0 || kiln_view_present(&b->dsinks))
        return snprintf(
                   why, cap,
                   "wgmma takes windows of q_step and k_step 1, lengths, packing, sinks without dsinks, a positive "
                   "softmax_scale, and no q2, softcap, attn_mask, bias, alibi_slopes or dropout"),
               false;
    if (p->d > 256 || p->d_v > 256)
        return snprintf(why, cap, "wgmma takes head sizes up to 256; q has %lld, v %lld", (long long)p->d,
                        (long long)p->d_v),
               false;
    if (type == KILN_FLOAT32 || p->o.type != type || b->dout.type != type || b->dq.type != type || b->dk.type != type ||
        b->dv.type != type)
        return snprintf(why, cap, "wgmma takes 16-bit tensors; o, dout, dq, dk and dv must have the type of q"), false;
    if (p->flags &
        (KILN_FLAG_BATCH_INVARIANT | KILN_FLAG_ACCUMULATE_DQ | KILN_FLAG_ACCUMULATE_DK | KILN_FLAG_ACCUMULATE_DV))
        return snprintf(why, cap, "wgmma takes no KILN_FLAG_BATCH_INVARIANT or KILN_FLAG_ACCUMULATE_..."), false;
    if (p->max_sms > 0)
        return snprintf(why, cap, "wgmma takes all multiprocessors; max_sms is %d", p->max_sms), false;
    return true;
}

/* The sizes of the problem in the kernels' tiles, and what lies where in the workspace; its size. */
static size_t place(const gpu_device *device, const kiln_attention_problem *p, gpu_wgmma_backward_args *a,
                    char *workspace)
{
    const bool packed_q = kiln_view_present(&p->cu_seqlens_q), packed_k = kiln_view_present(&p->cu_seqlens_k);
    const int64_t rows = launch(p, MAIN)->tile_q, keys = launch(p, MAIN)->tile_k, batch = packed_q ? 1 : p->batch;
    size_t used = 0;
    a->base.q_tiles = attention_ceil(p->seqlen_q, GPU_WGMMA_ROWS);
    a->base.k_tiles = attention_ceil(p->seqlen_k, GPU_WGMMA_ROWS);
    a->m_tiles = attention_ceil(p->seqlen_q, rows);
    a->n_tiles = attention_ceil(p->seqlen_k, keys);
    a->group = p->heads / p->heads_k, a->parts = 1;
    a->works = p->heads_k * (packed_k ? p->total_k / keys + p->batch : p->batch * a->n_tiles);
    /* Few items, and with a mask of unlike lengths; or a KV head's queries are more than the L2 holds: at the diagonal its blocks are at
     * different rows, and those of a part at fewer. In order they would wait for each other. */
    const bool far = p->masked && (p->window_left == KILN_UNBOUNDED || p->window_right == KILN_UNBOUNDED) &&
                     !is_wide(p) && !(p->flags & KILN_FLAG_DETERMINISTIC);
    while (a->group % 2 == 0 && (2 * a->works < 3 * device->units ||
                                 (far && a->parts < 4 && p->seqlen_q * a->group * row_bytes(p) > device->l2_bytes)))
        a->group /= 2, a->parts *= 2, a->works *= 2;
    a->q_room = packed_q ? p->total_q / rows + p->batch : p->batch * a->m_tiles;
    const int64_t of_q = p->heads * a->q_room * rows;
    const int64_t open_q = packed_q ? p->total_q / GPU_WGMMA_ROWS + p->batch : p->batch * a->base.q_tiles;
    const int64_t open_k = packed_k ? p->total_k / GPU_WGMMA_ROWS + p->batch : p->batch * a->base.k_tiles;
    if (!is_wide(p))
        a->dq = (float *)(void *)attention_take(&workspace, &used, of_q * head_size(p) * 4);
    a->lse = (float *)(void *)attention_take(&workspace, &used, of_q * 4);
    a->delta = (float *)(void *)attention_take(&workspace, &used, of_q * 4);
    a->work = (gpu_wgmma_backward_work *)(void *)attention_take(&workspace, &used, a->works * (int64_t)sizeof *a->work);
    if (is_wide(p)) {
        const int64_t of_item = launch(p, QUERIES)->tile_q;
        a->rows_works =
            p->heads * (packed_q ? p->total_q / of_item + p->batch : p->batch * attention_ceil(p->seqlen_q, of_item));
        a->rows_work = (gpu_wgmma_backward_rows *)(void *)attention_take(&workspace, &used,
                                                                         a->rows_works * (int64_t)sizeof *a->rows_work);
    }
    a->open_q = (int64_t *)(void *)attention_take(&workspace, &used, p->heads * open_q * 8);
    a->open_k = (int64_t *)(void *)attention_take(&workspace, &used, p->heads_k * open_k * 8);
    a->open = (uint32_t *)(void *)attention_take(&workspace, &used, 4 * 4);
    if (a->parts > 1)
        a->part = (float *)(void *)attention_take(&workspace, &used, a->works * 2 * keys * head_size(p) * 4);
    if (is_put(p))
        a->put = (uint32_t *)(void *)attention_take(&workspace, &used, p->heads * a->q_room * 4);
    if (p->flags & KILN_FLAG_DETERMINISTIC && !is_wide(p))
        a->turn = (uint32_t *)(void *)attention_take(&workspace, &used, p->heads * a->q_room * 4);
    a->base.delta = (kiln_view){.type = KILN_FLOAT32,
                                .size = {batch, p->heads, p->total_q, 1},
                                .stride = {p->heads * p->total_q, p->total_q, 1, 0}};
    a->base.delta.data = attention_take(&workspace, &used, batch * p->heads * p->total_q * 4);
    return used;
}

static size_t workspace_bytes(const gpu_device *device, const kiln_problem *problem)
{
    gpu_wgmma_backward_args a = {0};
    const size_t mine = place(device, &problem->backward.forward, &a, NULL),
                 others = other(problem)->workspace(device, problem);
    return mine > others ? mine : others;
}

static const gpu_kernel *kernel(const gpu_device *device, const kiln_problem *problem, int32_t i)
{
    return i < KERNELS ? launch(&problem->backward.forward, i) : other(problem)->kernel(device, problem, i - KERNELS);
}

static bool can_be_read(const kiln_attention_backward_problem *b, gpu_wgmma_backward_args *a)
{
    const kiln_attention_problem *p = &b->forward;
    const int32_t rows = launch(p, MAIN)->tile_q, keys = launch(p, MAIN)->tile_k;
    const int64_t most = 1 << 30; /* coordinates have 32 bits */
    return p->total_q <= most && p->total_k <= most && attention_is_aligned(p) && attention_has_aligned_rows(&p->o) &&
           attention_has_aligned_rows(&b->dout) && attention_has_aligned_rows(&b->dq) &&
           attention_has_aligned_rows(&b->dk) && attention_has_aligned_rows(&b->dv) &&
           gpu_tensor_map_of(&p->q, rows, &a->q) && gpu_tensor_map_of(&b->dout, rows, &a->dout) &&
           gpu_tensor_map_of(&p->k, keys, &a->k) && gpu_tensor_map_of(&p->v, keys, &a->v);
}

static kiln_status run(const gpu_device *device, const kiln_problem *problem, void *workspace, kiln_stream stream)
{
    const kiln_attention_backward_problem *b = &problem->backward;
    const kiln_attention_problem *p = &b->forward;
    gpu_wgmma_backward_args a = {.base = {.p = *b, .scale_log2 = (float)(p->softmax_scale * 1.4426950408889634)}};
    if (p->total_q == 0 || p->total_k == 0 || p->batch == 0 || !can_be_read(b, &a))
        return other(problem)->run(device, problem, workspace, stream);
    (void)place(device, p, &a, workspace);
    const bool wide = is_wide(p);
    a.sent_keys = a.parts == 1 && gpu_tensor_map_of(&b->dk, 16, &a.dk) && gpu_tensor_map_of(&b->dv, 16, &a.dv);
    /* Q, dO and the sums of dQ of the heads that are worked on together should stay in the L2. But a section's items are to keep the
     * device busy, else the long items of the next one begin when others have little left; more so where one KV head's queries
     * are too many anyway: fewer blocks a head are less far apart. In order they would wait for each other. Wide, K, V and what is
     * written pass through the L2 at the same time. */
    const int64_t group = p->heads / p->heads_k, per_head = p->seqlen_q * row_bytes(p) * group;
    const int64_t room = device->l2_bytes * (wide ? 1 : 2) / 3;
    const int64_t busy = a.turn ? 0 : device->units * (per_head > 2 * device->l2_bytes ? 4 : 1);
    const int64_t items_of_head = a.n_tiles * a.parts;
    /* Heads of a group row by row where it takes many of them to fill the L2, else one after the other. */
    a.rows_outside = !wide && a.group > 1 && !a.turn && p->seqlen_q * row_bytes(p) <= device->l2_bytes / 5;
    for (a.section = 1;
         a.section < p->batch * p->heads_k && (2 * a.section * per_head <= room || a.section * items_of_head < busy);)
        a.section *= 2;
    /* Those who add are given out section · (n_tiles + 1) items after the one that they wait for: as many as are under way while it lasts,
     * which with a causal mask is the longest of them. */
    const int64_t n = a.n_tiles + 1, apart = attention_ceil(device->units * (p->masked ? 2 * a.n_tiles : n), n * n);
    if (a.n_tiles == 1 || a.parts > 1 || 3 * apart > p->batch * p->heads_k)
        a.put = NULL;
    if (a.put)
        a.section = apart;
    /* Likewise K and V, which the heads of a group share. */
    for (a.rows_section = group;
         a.rows_section < p->batch * p->heads && (2 * a.rows_section / group * p->seqlen_k * row_bytes(p) <= room ||
                                                  a.rows_section * ((a.m_tiles + 1) / 2) < device->units);)
        a.rows_section *= 2;
    const int64_t of_q = p->heads * a.q_room,
                  records = attention_ceil(a.works + a.rows_works, launch(p, PREPARE)->threads),
                  joins = a.parts > 1 ? a.works / a.parts : 0;
    const struct {
        int kernel;
        int64_t items, most_blocks;
    } launches[] = {{PREPARE, of_q > records ? of_q : records, 0},
                    {MAIN, a.works, device->units},
                    {QUERIES, a.rows_works, device->units}, /* none up to a head size of 128 */
                    {FINISH, (wide ? 0 : of_q) + joins, 0},
                    {AGAIN, device->units, 0}};
    kiln_status status = KILN_OK;
    for (size_t i = 0; i < sizeof launches / sizeof *launches && status == KILN_OK; i++) {
        a.base.items = launches[i].items;
        status = (i == 0 ? gpu_launch : gpu_launch_chained)(device, launch(p, launches[i].kernel), &a,
                                                            launches[i].most_blocks, stream);
    }
    return status;
}

/*
 * dk and dv are summed in one chain over the group's queries, 16 at a time; dq over 64 keys or more, then over blocks, or in one chain
 * over the keys where it is a pass of its own: the bound's tiles and their number together. fp16: half of the smallest number of the
 * type, less the lift.
 */
static void numerics(const gpu_device *device, const kiln_problem *problem, kiln_numerics *numerics)
{
    const kiln_attention_problem *p = &problem->backward.forward;
    const int64_t of_k = p->heads / p->heads_k * attention_ceil(p->seqlen_q, 16),
                  of_q = attention_ceil(p->seqlen_k, is_wide(p) ? 16 : 64);
    (void)device;
    *numerics = attention_numerics(true, p->q.type, 24 + (of_k > of_q ? of_k : of_q));
    if (p->q.type == KILN_FLOAT16)
        numerics->p_floor = 0x1p-25 / (1 << GPU_WGMMA_LIFT_F16);
    else
        numerics->exp_error = 0x1p-19; /* the exponent is larger by LIFT, and so is its rounding */
}

const gpu_method GPU_NAME(gpu_attention_backward_wgmma) = {
    .op = KILN_OP_ATTENTION_BACKWARD,
    .algorithm = "wgmma",
    .name = "attention_backward_wgmma",
    .supports = supports,
    .workspace = workspace_bytes,
    .kernel = kernel,
    .run = run,
    .numerics = numerics,
};
