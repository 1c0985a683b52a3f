/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_flash2_amx.inc.h: rung `flash2` for bf16 on AMX.
 *
 * Since `flash2`: both products on tile registers, K and V packed once per KV head, softmax and products interleaved.
 * Contract: attention_forward with q, k, v bf16, o bf16 or fp32, d and d_v up to 256, any strides, lengths, pages, masks
 *  by position, sinks; no q2, bias, ALiBi, attn_mask, softcap, dropout, and not so few queries that packing the keys does
 *  not pay (AMX_LEAST_ROWS a KV head; with KILN_FLAG_BATCH_INVARIANT any number, since then the kernel must not depend on
 *  seqlen_q). The keys are not split. The scale is applied to fp32 scores: q is never rounded again.
 *  Scores beyond 2^127 count as infinite.
 * A row's bits depend on its q and the keys it sees only.
 * Rounds: as many KV heads at a time as AMX_PACKED_BYTES take (never less than one). Tasks of some tiles of queries go
 *  through the keys, a super-block that fits the second-level cache at a time. The keys of all heads are packed first; or,
 *  where each worker gets a head or more and heads are alike, by the first task of each head, a super-block when it comes to
 *  it: some workers load memory while others multiply. A task that is drawn before its head is packed is left to wait there,
 *  and whoever asks for a task later takes it; nobody waits. A worker that finds none leaves, and where too few are left for
 *  those that wait, all begin anew. Where a head has one task, its keys are packed to a place of its worker.
 * Workspace: keys·(d + d_v)·2 of those heads, keys a multiple of AMX_BLOCK and d, d_v of 32; 32·batch·heads_k; and 0.7 MB a
 *  worker at d = 128 (amx_worker_bytes).
 * Traffic, one head, N queries and keys, Br = rows of a task: 2·N·d·e (q, o) + 8·N·d (packing) + 4·N·d·ceil(N/Br).
 * FLOPs: 4·N²·d + 3·N²; half of it if causal, plus half a unit of 32 keys a tile.
 */
#include <stdio.h>

#include "attention_forward_amx_task.inc.h"

enum {
    AMX_TILES_LEAST = 4, /* of a task, of the last ones */
    AMX_LEAST_ROWS = 64, /* of a KV head */
    AMX_MOST_COLUMNS = 256
};
#define AMX_MOST_KEYS ((int64_t)1 << 24)

/* Packs one block after another; `first_block` says whose it is. */
static void amx_pack_worker(void *arg, int32_t worker)
{
    const amx_call *f = arg;
    const kiln_attention_problem *p = f->call.p;
    const int64_t base = f->first_block[f->begin_head], count = f->first_block[f->end_head] - base;
    (void)worker;
    for (int64_t n; (n = kiln_cpu_next(f->queue)) < count;) {
        int64_t low = f->begin_head, high = f->end_head; /* first_block[low] <= base + n < first_block[high] */
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            *(f->first_block[middle] <= base + n ? &low : &high) = middle;
        }
        const kiln_sequence seq = kiln_sequence_of(p, low / p->heads_k);
        amx_pack_block(f, &seq, low % p->heads_k, base + n - f->first_block[low], n);
    }
}

/* Tiles of a task when `left` of its head are: fewer in the end, so that workers end together. */
static int64_t amx_task_tiles(const amx_call *f, int64_t left)
{
    int64_t n = f->tiles;
    if (f->taper && left <= 2 * f->tiles)
        n = left > f->tiles ? n / 2 : n / 4;
    n = n < AMX_TILES_LEAST && n < f->tiles ? AMX_TILES_LEAST : n;
    return n < left ? n : left;
}

/* Task `index` of a head, whose last rows come first: they are the longest ones under a causal mask. */
static amx_part amx_task_part(const amx_call *f, int64_t index)
{
    int64_t end = f->tiles_a_head;
    for (; index > 0; index--)
        end -= amx_task_tiles(f, end);
    return (amx_part){end - amx_task_tiles(f, end), end};
}

/* A head that is packed and has a task that waits, or -1. */
static int64_t amx_draw_waiting(const amx_call *f)
{
    if (__atomic_load_n(&f->waiting->next, __ATOMIC_SEQ_CST) == 0)
        return -1;
    for (int64_t i = f->begin_head; i < f->end_head; i++) {
        amx_head *head = &f->heads[i];
        if (!__atomic_load_n(&head->packed, __ATOMIC_SEQ_CST))
            continue;
        int64_t n = __atomic_load_n(&head->waiting, __ATOMIC_SEQ_CST);
        while (n > 0)
            if (__atomic_compare_exchange_n(&head->waiting, &n, n - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
                __atomic_sub_fetch(&f->waiting->next, 1, __ATOMIC_SEQ_CST);
                return i;
            }
    }
    return -1;
}

/* Do more tasks wait than the workers that are left should run? An owner that was held up finds all the others gone. (The
 * first one leaves when all tasks were drawn, so every head is packed when the loop ends.) */
static bool amx_deserted(const amx_call *f)
{
    const int64_t gone = __atomic_load_n(&f->gone->next, __ATOMIC_SEQ_CST);
    return gone > 0 && __atomic_load_n(&f->waiting->next, __ATOMIC_SEQ_CST) > 2 * (f->workers - gone);
}

/* The head of the next task that may run, or -1: no more for this worker. First one of each head, the owners, then the others.
 * Who left a task to wait, and who packs the head, both ask again after that. */
static int64_t amx_draw(const amx_call *f, bool *owner)
{
    const int64_t heads = f->end_head - f->begin_head, count = heads * f->tasks_a_head;
    while (!amx_deserted(f)) {
        int64_t i = amx_draw_waiting(f);
        *owner = false;
        if (i >= 0)
            return i;
        const int64_t t = kiln_cpu_next(f->queue);
        if (t >= count)
            return -1;
        i = f->begin_head + t % heads;
        *owner = f->owned && t < heads;
        if (*owner || __atomic_load_n(&f->heads[i].packed, __ATOMIC_SEQ_CST))
            return i;
        __atomic_add_fetch(&f->heads[i].waiting, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&f->waiting->next, 1, __ATOMIC_SEQ_CST);
    }
    return -1;
}

static void amx_worker(void *arg, int32_t worker)
{
    const amx_call *f = arg;
    const amx_config saved = amx_enter();
    amx_worker_memory w;
    (void)amx_worker_place(f, f->memory + worker * f->worker_bytes, &w);
    bool owner;
    for (int64_t head; (head = amx_draw(f, &owner)) >= 0;) {
        const amx_part part =
            amx_task_part(f, __atomic_fetch_add(&f->heads[head].begun, 1, __ATOMIC_RELAXED)); /* the owner's: 0 */
        const int64_t first = f->together ? worker * amx_blocks(f->call.p->seqlen_k)
                                          : f->first_block[head] - f->first_block[f->begin_head];
        if (amx_run_task(f, head, part, first, owner, &w)) {
            amx_call shrunk = *f;
            shrunk.call = shrunk_call(&f->call);
            (void)amx_run_task(&shrunk, head, part, first, false, &w);
        }
    }
    __atomic_add_fetch(&f->gone->next, 1, __ATOMIC_SEQ_CST);
    amx_leave(saved);
}

/* The tasks of a round. */
static void amx_run_tasks(const kiln_cpu *cpu, amx_call *f)
{
    f->queue->next = 0;
    f->waiting->next = 0;
    for (int64_t head = f->begin_head; head < f->end_head; head++)
        f->heads[head] = (amx_head){.packed = !f->owned};
    do {
        f->gone->next = 0;
        kiln_cpu_parallel(cpu, f->workers, amx_worker, f);
    } while (f->waiting->next > 0);
}

static int64_t amx_longest_rows(const amx_call *f)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < f->call.p->batch; b++) {
        int64_t rows = kiln_sequence_of(f->call.p, b).seqlen_q * f->group;
        longest = rows > longest ? rows : longest;
    }
    return longest;
}

/* Are all sequences about equally long? Then no worker is done with all it may have while another packs a long one. */
static bool amx_sequences_alike(const kiln_attention_problem *p)
{
    int64_t least_q = INT64_MAX, least_k = INT64_MAX, most_q = 0, most_k = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const kiln_sequence seq = kiln_sequence_of(p, b);
        least_q = seq.seqlen_q < least_q ? seq.seqlen_q : least_q;
        least_k = seq.seqlen_k < least_k ? seq.seqlen_k : least_k;
        most_q = seq.seqlen_q > most_q ? seq.seqlen_q : most_q;
        most_k = seq.seqlen_k > most_k ? seq.seqlen_k : most_k;
    }
    return least_q >= most_q - most_q / 8 && least_k >= most_k - most_k / 8;
}

/* Do the first rows take as long as the last? */
static bool amx_rows_alike(const kiln_attention_problem *p)
{
    const kiln_sequence seq = kiln_sequence_of(p, 0);
    if (seq.seqlen_q == 0)
        return false;
    const kiln_key_range low = kiln_visible_keys(p, &seq, 0), high = kiln_visible_keys(p, &seq, seq.seqlen_q - 1);
    return 2 * (low.end - low.begin) > high.end - high.begin;
}

static void flash2_amx_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    const int64_t heads = p->batch * p->heads_k;
    amx_call f;
    (void)amx_layout(&f, p, workspace, workers);
    f.workers = workers;
    f.c = (float)(fabs(p->softmax_scale) * 0x1.71547652b82fep0); /* log2 e */
    f.sign = p->softmax_scale < 0 ? 0x8000 : 0;
    f.first_block[0] = 0;
    for (int64_t i = 0; i < heads; i++)
        f.first_block[i + 1] = f.first_block[i] + amx_blocks(kiln_sequence_of(p, i / p->heads_k).seqlen_k);

    const int64_t tiles = (amx_longest_rows(&f) + AMX_LANES - 1) / AMX_LANES;
    f.tiles_a_head = tiles;
    const int64_t spread = tiles * heads / (4 * (int64_t)workers); /* then nobody waits long for the last one */
    /* few tiles a head, several heads for every worker: packed keys stay near */
    f.together = tiles <= AMX_TILES && workers * amx_blocks(p->seqlen_k) <= f.capacity &&
                 (workers == 1 || heads >= 4 * (int64_t)workers);
    f.tiles = f.together || spread > AMX_TILES ? AMX_TILES : spread < 1 ? 1 : spread;
    f.taper = !f.together && workers > 1 && f.tiles >= 2 * AMX_TILES_LEAST && amx_rows_alike(p);
    for (int64_t left = tiles; left > 0; left -= amx_task_tiles(&f, left))
        f.tasks_a_head++;
    const bool alike = workers == 1 || amx_sequences_alike(p);
    while (f.end_head < heads) {
        f.begin_head = f.end_head;
        while (f.end_head < heads && f.first_block[f.end_head + 1] - f.first_block[f.begin_head] <= f.capacity)
            f.end_head++;
        f.queue->next = 0;
        f.owned = f.together || (alike && f.end_head - f.begin_head >= workers);
        if (!f.owned)
            kiln_cpu_parallel(cpu, workers, amx_pack_worker, &f);
        amx_run_tasks(cpu, &f);
    }
}

static size_t flash2_amx_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    amx_call f;
    (void)cpu;
    return amx_layout(&f, &problem->attention, NULL, workers);
}

static bool flash2_amx_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->attention;
    const int64_t group = p->heads_k > 0 ? p->heads / p->heads_k : 0;
    const double scale = fabs(p->softmax_scale);
    (void)cpu;
    if (p->q.type != KILN_BFLOAT16 || p->k.type != KILN_BFLOAT16 || p->v.type != KILN_BFLOAT16)
        return snprintf(why, cap, "q, k and v must be bf16 on AMX"), false;
    if (p->o.type != KILN_BFLOAT16 && p->o.type != KILN_FLOAT32)
        return snprintf(why, cap, "o must be bf16 or fp32 on AMX"), false;
    if (p->d > AMX_MOST_COLUMNS || p->d_v > AMX_MOST_COLUMNS)
        return snprintf(why, cap, "d is %lld and d_v %lld; AMX takes up to %d", (long long)p->d, (long long)p->d_v,
                        AMX_MOST_COLUMNS),
               false;
    if (p->d2 > 0 || p->mask_len > 0 || p->softcap > 0 || p->dropout_threshold < 256 || kiln_view_present(&p->bias) ||
        kiln_view_present(&p->alibi) || kiln_view_present(&p->q_descale) || kiln_view_present(&p->k_descale) ||
        kiln_view_present(&p->v_descale))
        return snprintf(why, cap,
                        "q2, bias, alibi_slopes, attn_mask, softcap, dropout_p and descales must be absent on AMX"),
               false;
    if (!(scale >= 0x1p-60 && scale <= 0x1p60))
        return snprintf(why, cap, "softmax_scale is %g; AMX takes magnitudes from 2^-60 to 2^60", p->softmax_scale),
               false;
    if (p->seqlen_k > AMX_MOST_KEYS)
        return snprintf(why, cap, "seqlen_k is %lld; AMX takes up to 2^24, since it packs the keys",
                        (long long)p->seqlen_k),
               false;
    if (!(p->flags & KILN_FLAG_BATCH_INVARIANT) && p->seqlen_q < (AMX_LEAST_ROWS + group - 1) / (group > 0 ? group : 1))
        return snprintf(why, cap, "seqlen_q is %lld with %lld query heads a KV head; AMX wants a product of %d",
                        (long long)p->seqlen_q, (long long)group, AMX_LEAST_ROWS),
               false;
    return true;
}

static void flash2_amx_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)problem;
    *numerics = (kiln_numerics){
        .unit = AMX_UNIT,
        /* the exponent may be positive, up to 15 (AMX_SUM): half an ulp there */
        .exp_error = AMX_WEIGHT_ERROR + 0x1p-21,
        .tanh_error = VF_TANH_ERROR,
        .p_unit = 0x1p-8,
        /* a result below 2^-126 is flushed: no more than a weight of 2^-65 with the smallest |v| that tiles see, 2^-60 */
        .p_floor = 0x1p-65,
        .score_extra = 9,
        .tile = 32, /* a tile product sums 32 of a row (depth 18), and joins them by one addition */
    };
}

static const kiln_cpu_kernel attention_forward_flash2_amx = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "flash2",
    .name = KILN_CPU_NAME("attention_forward_flash2"),
    .supports = flash2_amx_supports,
    .workspace = flash2_amx_workspace,
    .run = flash2_amx_run,
    .numerics = flash2_amx_numerics,
};
