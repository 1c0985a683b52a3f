/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_backward_flash2_amx.inc.h: rung `flash2` of attention_backward for bf16 on AMX.
 *
 * Since `attention_backward`: all five products on tile registers, P and dS rounded to bf16 for three of them; q and do packed
 * once a call, k and v once a KV head.
 * Contract: attention_backward with q, k, v, do bf16, o bf16 or fp32, gradients of any type, and what the forward kernel on
 *  AMX takes (attention_forward_flash2_amx.inc.h): no q2, bias, ALiBi, attn_mask, softcap, dropout, cache_batch_idx; rows enough.
 *  Always deterministic and independent of workers: no atomics, every sum in one order.
 * Passes: (1) delta = do·o - dlse, q and do packed, by groups of 32 queries; (2) the main one; (3) dq from its partial sums;
 *  (4) dsinks if wanted.
 * Task of the main pass = (sequence, KV head, one split of the keys), as in attention_backward.inc.h. It packs its keys, a chunk
 *  that stays in the second-level cache with its dk and dv at a time, while all queries of the group of heads pass, a tile of
 *  256 at a time. The splits follow from batch, heads_k and the sequence's own seqlen_k (BATCH_INVARIANT: not from batch).
 *  Items (32 keys x 32 queries) in which nobody sees anybody are left out.
 * Workspace: per group of 32 rows of a KV head 128·D bytes packed, D = d + d_v, both rounded up to 32, slots·128·d of dq and 1 KB;
 *  slots = min(ceil(64 / (batch·heads_k)), 16, ceil(seqlen_k / 128)); and 1 to 2 MiB a worker.
 * FLOPs: 10·N²·d a head, causal half of it plus some items on the diagonal. Traffic: k, v, dk, dv once; 4·N·(d + d_v) (packed q
 *  and do) and 8·N·d (dq) once a chunk.
 * Measured, one thread of a shared Emerald Rapids, times the kernel of AVX-512 in the same run: S = 512: 3.0 (d = 64), 3.5
 *  (d = 128), causal 2.5 and 2.7; S = 2048: 4.9 (d = 128), causal 3.7 and 4.2; S = 4096: 4.6 and 5.0.
 */
#include "attention_backward_amx_odd.inc.h"
#include "attention_backward_amx_step.inc.h"

enum {
    AMX_TILE_GROUPS = 8, /* groups of a tile of queries: dk and dv are summed over at a time */
    AMX_BLOCK_UNITS = 4, /* units that dq is summed over at a time */
    AMX_BLOCK_KEYS = 32 * AMX_BLOCK_UNITS,
    AMX_SPLIT_TASKS = 64, /* tasks wanted, if the keys suffice */
    AMX_SPLIT_MOST = 16,  /* partial sums of dq */
    AMX_CHUNK_BLOCKS = 8, /* of a chunk, where d + d_v is up to AMX_CHUNK_COLUMNS; half as many up to twice that ... */
    AMX_CHUNK_COLUMNS = 128
};

typedef struct amx_backward {
    gradient_call g; /* call.p, b, group, rows, strides, delta, queue: what passes over rows need */
    int64_t steps_k, steps_v;
    int64_t chunk;  /* units */
    int64_t units;  /* of the longest sequence */
    int64_t groups; /* most groups of all KV heads */
    int64_t packed; /* bf16 numbers of one group */
    int64_t worker_bytes;
    float c;              /* scale·log2 e */
    int64_t *first_group; /* [batch·heads_k + 1]: groups before those of each KV head */
    uint32_t *odd_keys;   /* [batch·heads_k][units]; bit = key */
    amx_queries *queries; /* [groups] */
    uint16_t *q;          /* [groups][packed]: q turned, q paired, do turned, do paired */
    float *dq;            /* [split_slots][groups][steps_k·1024]: dq / scale of one split, columns x lanes */
    char *memory;         /* of workers */
} amx_backward;

typedef struct amx_backward_memory {
    uint16_t *k, *v, *k_turned;  /* [chunk][steps·1024] */
    float *dk, *dv;              /* the same, keys x columns */
    float *odd_dk, *odd_dv;      /* [chunk·32][stride_q, stride_v], in use if `odd_seen` */
    float *s, *dp;               /* of an item */
    uint16_t *p, *ds, *ds_pairs; /* [group][1024] twice, of a unit, and [unit][group][1024], of a block */
    float *rows;                 /* of odd pairs, also of finished rows */
} amx_backward_memory;

/* ------------------------------------------------------------------------------------------------ layout */

static int64_t amx_backward_place_worker(const amx_backward *f, char *memory, amx_backward_memory *m)
{
    const int64_t block = 1024 * (int64_t)sizeof(float), half = block / 2, most_keys = f->chunk * AMX_UNIT_KEYS;
    int64_t used = 0;
    m->k = amx_take(memory, &used, f->chunk * f->steps_k * half);
    m->v = amx_take(memory, &used, f->chunk * f->steps_v * half);
    m->k_turned = amx_take(memory, &used, f->chunk * f->steps_k * half);
    m->dk = amx_take(memory, &used, f->chunk * f->steps_k * block);
    m->dv = amx_take(memory, &used, f->chunk * f->steps_v * block);
    m->s = amx_take(memory, &used, block);
    m->dp = amx_take(memory, &used, block);
    m->p = amx_take(memory, &used, AMX_TILE_GROUPS * half);
    m->ds = amx_take(memory, &used, AMX_TILE_GROUPS * half);
    m->ds_pairs = amx_take(memory, &used, AMX_BLOCK_UNITS * AMX_TILE_GROUPS * half);
    m->odd_dk = amx_take(memory, &used, most_keys * f->g.stride_q * (int64_t)sizeof(float));
    m->odd_dv = amx_take(memory, &used, most_keys * f->g.stride_v * (int64_t)sizeof(float));
    m->rows =
        amx_take(memory, &used, (amx_odd_rows_floats(&f->g) + AMX_GROUP * f->g.stride_q) * (int64_t)sizeof(float));
    return used;
}

/* What follows from metadata, and the layout of the workspace (may be NULL). Returns its bytes. */
static size_t amx_backward_layout(amx_backward *f, const kiln_attention_backward_problem *b, char *workspace,
                                  int32_t workers)
{
    const kiln_attention_problem *p = &b->forward;
    const bool invariant = p->flags & KILN_FLAG_BATCH_INVARIANT, packed = kiln_view_present(&p->cu_seqlens_q);
    const int64_t heads = p->batch * p->heads_k, group = p->heads / p->heads_k;
    *f = (amx_backward){.g = {.call = {.p = p, .nv = 2, .nq = AMX_GROUP, .columns = p->d}, .b = b, .group = group}};
    gradient_call *g = &f->g;
    f->steps_k = (p->d + 31) / 32;
    f->steps_v = (p->d_v + 31) / 32;
    g->stride_q = f->steps_k * 32;
    g->stride_v = f->steps_v * 32;
    g->rows = p->heads * p->total_q * (packed ? 1 : p->batch);
    const int64_t together = p->heads_k * (invariant || p->batch == 0 ? 1 : p->batch);
    const int64_t pieces = (p->seqlen_k + AMX_BLOCK_KEYS - 1) / AMX_BLOCK_KEYS;
    g->splits = (AMX_SPLIT_TASKS + together - 1) / together;
    g->splits = g->splits > AMX_SPLIT_MOST ? AMX_SPLIT_MOST : g->splits;
    g->split_slots = pieces < g->splits ? pieces : g->splits;
    int64_t blocks = AMX_CHUNK_BLOCKS;
    for (int64_t width = AMX_CHUNK_COLUMNS; width < p->d + p->d_v && blocks > 1; width *= 2)
        blocks /= 2;
    f->chunk = blocks * AMX_BLOCK_UNITS;
    f->units = pieces * AMX_BLOCK_UNITS;
    f->packed = 2 * (f->steps_k + f->steps_v) * 1024;
    /* packed: every sequence may end in a group of its own */
    f->groups = packed ? p->heads_k * (p->total_q * group / AMX_GROUP + p->batch)
                       : heads * ((p->seqlen_q * group + AMX_GROUP - 1) / AMX_GROUP);

    amx_backward_memory unused;
    int64_t used = 0;
    f->worker_bytes = amx_backward_place_worker(f, NULL, &unused);
    g->queue = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    g->delta = amx_take(workspace, &used, g->rows * (int64_t)sizeof(float));
    f->first_group = amx_take(workspace, &used, (heads + 1) * (int64_t)sizeof(int64_t));
    f->odd_keys = amx_take(workspace, &used, heads * f->units * (int64_t)sizeof(uint32_t));
    f->queries = amx_take(workspace, &used, f->groups * (int64_t)sizeof(amx_queries));
    f->q = amx_take(workspace, &used, f->groups * f->packed * (int64_t)sizeof(uint16_t));
    f->dq = amx_take(workspace, &used, g->split_slots * f->groups * f->steps_k * 1024 * (int64_t)sizeof(float));
    f->memory = amx_take(workspace, &used, workers * f->worker_bytes);
    return (size_t)used;
}

/* Keys of one split of a sequence. */
static int64_t amx_split_keys(const amx_backward *f, int64_t seqlen_k)
{
    return round_up((seqlen_k + f->g.splits - 1) / f->g.splits, AMX_BLOCK_KEYS);
}

/* ------------------------------------------------------------------------------------------------ queries */

static const uint16_t *amx_queries_turned(const amx_backward *f, int64_t group)
{
    return f->q + group * f->packed;
}

static const uint16_t *amx_queries_paired(const amx_backward *f, int64_t group)
{
    return amx_queries_turned(f, group) + f->steps_k * 1024;
}

static const uint16_t *amx_dout_turned(const amx_backward *f, int64_t group)
{
    return amx_queries_paired(f, group) + f->steps_k * 1024;
}

static const uint16_t *amx_dout_paired(const amx_backward *f, int64_t group)
{
    return amx_dout_turned(f, group) + f->steps_v * 1024;
}

/* The KV head, of all sequences, that a group belongs to. */
static int64_t amx_head_of_group(const amx_backward *f, int64_t group)
{
    const kiln_attention_problem *p = f->g.call.p;
    int64_t low = 0, high = p->batch * p->heads_k; /* first_group[low] <= group < first_group[high] */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(f->first_group[middle] <= group ? &low : &high) = middle;
    }
    return low;
}

/* Says what lane `lane` is and sees; its rows of q and do, NULL if it is dead or odd. */
static void amx_queries_lane(const amx_backward *f, amx_queries *x, const kiln_sequence *seq, int lane, const char **q,
                             const char **dout)
{
    const gradient_call *g = &f->g;
    const kiln_attention_problem *p = g->call.p;
    *q = *dout = NULL;
    x->shift[lane] = x->delta[lane] = 0;
    x->begin[lane] = x->end[lane] = 0;
    if (x->row + lane >= seq->seqlen_q * g->group)
        return;
    const int64_t i = amx_query_of(g, x, lane), head = amx_head_of(g, x, lane);
    delta_row(g, seq, head, i);
    const float lse = row_lse(p, seq, head, i), delta = g->delta[gradient_row(g, seq, head, i)];
    const kiln_key_range range = kiln_visible_keys(p, seq, i);
    if (lse == -INFINITY || range.begin >= range.end)
        return;
    x->begin[lane] = range.begin;
    x->end[lane] = range.end;
    x->begin_any = range.begin < x->begin_any ? range.begin : x->begin_any;
    x->end_any = range.end > x->end_any ? range.end : x->end_any;
    const char *q_row = view_row(&p->q, seq->q_batch, head, seq->q_row + i);
    const char *dout_row = view_row(&g->b->dout, seq->q_batch, head, seq->q_row + i);
    if (!(fabsf(lse) < AMX_LSE_LIMIT) || !(fabsf(delta) < AMX_DELTA_LIMIT) ||
        amx_odd_row(q_row, p->q.stride[3], p->d, AMX_LEAST_QUERY) ||
        amx_odd_row(dout_row, g->b->dout.stride[3], p->d_v, AMX_LEAST_QUERY)) {
        x->odd |= 1u << lane;
        return;
    }
    *q = q_row;
    *dout = dout_row;
    x->shift[lane] = (float)(-lse * 0x1.71547652b82fep0); /* log2 e */
    x->delta[lane] = delta;
    x->begin_all = range.begin > x->begin_all ? range.begin : x->begin_all;
    x->end_all = range.end < x->end_all ? range.end : x->end_all;
}

static void amx_queries_worker(void *arg, int32_t worker)
{
    const amx_backward *f = arg;
    const gradient_call *g = &f->g;
    const kiln_attention_problem *p = g->call.p;
    (void)worker;
    for (int64_t n; (n = kiln_cpu_next(g->queue)) < f->first_group[p->batch * p->heads_k];) {
        const int64_t head = amx_head_of_group(f, n), batch = head / p->heads_k;
        const kiln_sequence seq = kiln_sequence_of(p, batch);
        const char *q[AMX_GROUP], *dout[AMX_GROUP];
        amx_queries *x = &f->queries[n];
        x->head_k = head % p->heads_k;
        x->batch = batch;
        x->row = (n - f->first_group[head]) * AMX_GROUP;
        x->begin_any = x->end_all = INT64_MAX;
        x->end_any = x->begin_all = 0;
        x->odd = 0;
        for (int lane = 0; lane < AMX_GROUP; lane++)
            amx_queries_lane(f, x, &seq, lane, &q[lane], &dout[lane]);
        uint16_t *out = f->q + n * f->packed;
        amx_pack_turned_pairs(q, p->q.stride[3], p->d, out);
        amx_pack_pairs(q, p->q.stride[3], p->d, out + f->steps_k * 1024);
        out += 2 * f->steps_k * 1024;
        amx_pack_turned_pairs(dout, g->b->dout.stride[3], p->d_v, out);
        amx_pack_pairs(dout, g->b->dout.stride[3], p->d_v, out + f->steps_v * 1024);
    }
}

/* ------------------------------------------------------------------------------------------------ main pass */

/* One task, and where its walk stands. */
typedef struct amx_backward_task {
    const amx_backward *f;
    amx_backward_memory *m;
    kiln_sequence seq;
    int64_t head;        /* of all sequences */
    int64_t split, keys; /* number and length of the split */
    int64_t chunk, end;  /* first key of the chunk, end of its keys */
    int64_t tile;        /* first group of the tile of queries */
    int groups;          /* how many it has */
    uint32_t begun;      /* units of the chunk whose dk and dv hold something; bit = unit */
    bool odd_seen;       /* m->odd_dk and m->odd_dv are in use */
} amx_backward_task;

static uint32_t *amx_odd_keys_of(const amx_backward *f, int64_t head, int64_t key)
{
    return f->odd_keys + head * f->units + key / AMX_UNIT_KEYS;
}

static void amx_backward_pack_keys(const amx_backward_task *task)
{
    const amx_backward *f = task->f;
    const kiln_attention_problem *p = f->g.call.p;
    const int64_t head_k = task->head % p->heads_k;
    for (int64_t u = 0; task->chunk + u * AMX_UNIT_KEYS < task->end; u++) {
        const char *k[AMX_UNIT_KEYS], *v[AMX_UNIT_KEYS];
        const int64_t first = task->chunk + u * AMX_UNIT_KEYS;
        uint32_t odd = 0;
        for (int r = 0; r < AMX_UNIT_KEYS; r++) {
            k[r] = v[r] = NULL;
            if (first + r >= task->end)
                continue;
            k[r] = key_row(p, &p->k, &task->seq, head_k, first + r);
            v[r] = key_row(p, &p->v, &task->seq, head_k, first + r);
            if (amx_odd_row(k[r], p->k.stride[3], p->d, AMX_LEAST_KEY) ||
                amx_odd_row(v[r], p->v.stride[3], p->d_v, AMX_LEAST_KEY)) {
                odd |= 1u << r;
                k[r] = v[r] = NULL;
            }
        }
        *amx_odd_keys_of(f, task->head, first) = odd;
        amx_pack_plain(k, p->k.stride[3], p->d, task->m->k + u * f->steps_k * 1024);
        amx_pack_turned(k, p->k.stride[3], p->d, task->m->k_turned + u * f->steps_k * 1024);
        amx_pack_plain(v, p->v.stride[3], p->d_v, task->m->v + u * f->steps_v * 1024);
    }
}

/* An item of a tile in a chunk: unit of the chunk, group of the tile. */
typedef struct amx_backward_item {
    int32_t unit, group;
    bool masked; /* some pair is hidden, or its key is odd */
} amx_backward_item;

enum { AMX_TILE_ITEMS = AMX_CHUNK_BLOCKS * AMX_BLOCK_UNITS * AMX_TILE_GROUPS };

/* The items of the tile in the chunk, unit by unit; returns how many. */
static int amx_backward_items(const amx_backward_task *task, amx_backward_item *items)
{
    int count = 0;
    for (int u = 0; task->chunk + u * AMX_UNIT_KEYS < task->end; u++) {
        const int64_t begin = task->chunk + u * AMX_UNIT_KEYS, end = begin + AMX_UNIT_KEYS;
        for (int i = 0; i < task->groups; i++) {
            const amx_queries *x = &task->f->queries[task->tile + i];
            if (x->begin_any < end && begin < x->end_any)
                items[count++] = (amx_backward_item){u, i,
                                                     x->begin_all > begin || end > x->end_all ||
                                                         *amx_odd_keys_of(task->f, task->head, begin) != 0};
        }
    }
    return count;
}

/* The keys that 16 lanes see, counted from `first`; saturation keeps the order. */
VF_INLINE __m512i amx_from_key(const int64_t *x, int64_t first)
{
    const __m512i base = _mm512_set1_epi64(first);
    __m256i low = _mm512_cvtsepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(x), base));
    __m256i high = _mm512_cvtsepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(x + 8), base));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* P and dS of an item. */
static void amx_backward_item_weights(const amx_backward_task *task, const amx_backward_item *item)
{
    const amx_backward *f = task->f;
    const amx_backward_memory *m = task->m;
    const amx_queries *queries = &task->f->queries[task->tile + item->group];
    const int64_t first = task->chunk + item->unit * AMX_UNIT_KEYS, group = task->tile + item->group;
    amx_weights x = {.s = m->s,
                     .dp = m->dp,
                     .shift = queries->shift,
                     .delta = queries->delta,
                     .c = f->c,
                     .p = m->p + item->group * 1024,
                     .ds = m->ds + item->group * 1024,
                     .ds_pairs = m->ds_pairs + (item->unit % AMX_BLOCK_UNITS * AMX_TILE_GROUPS + item->group) * 1024};
    amx_backward_product(m->k + item->unit * f->steps_k * 1024, amx_queries_turned(f, group), f->steps_k, m->s);
    amx_backward_product(m->v + item->unit * f->steps_v * 1024, amx_dout_turned(f, group), f->steps_v, m->dp);
    if (!item->masked) {
        amx_backward_weights(&x);
        return;
    }
    for (int half = 0; half < 2; half++) {
        x.begin[half] = amx_from_key(queries->begin + 16 * half, first);
        x.end[half] = amx_from_key(queries->end + 16 * half, first);
    }
    x.keys = ~*amx_odd_keys_of(f, task->head, first);
    amx_backward_weights_masked(&x);
}

/* dv and dk of a unit from the groups in `wanted`. */
static void amx_backward_add_keys(amx_backward_task *task, int32_t unit, uint32_t wanted)
{
    const amx_backward *f = task->f;
    const amx_backward_memory *m = task->m;
    amx_gradient_sum dv = {.b_step = 1024, .wanted = wanted, .fresh = !(task->begun >> unit & 1)}, dk = dv;
    task->begun |= 1u << unit;
    for (int i = 0; i < AMX_TILE_GROUPS; i++) {
        if (!(wanted >> i & 1))
            continue;
        dv.a[i] = m->p + i * 1024;
        dv.b[i] = amx_dout_paired(f, task->tile + i);
        dk.a[i] = m->ds + i * 1024;
        dk.b[i] = amx_queries_paired(f, task->tile + i);
    }
    amx_gradient_add(&dv, f->steps_v, m->dv + unit * f->steps_v * 1024);
    amx_gradient_add(&dk, f->steps_k, m->dk + unit * f->steps_k * 1024);
}

/* Partial dq of group i of a tile from the units of block `block` of the chunk in `wanted`. The first block of the split of
 * which the group sees a unit starts the sum. */
static void amx_backward_add_queries(const amx_backward_task *task, int i, int32_t block, uint32_t wanted)
{
    const amx_backward *f = task->f;
    const amx_queries *queries = &f->queries[task->tile + i];
    const int64_t begin = task->chunk + block * AMX_BLOCK_KEYS, split = task->split * task->keys;
    const int64_t start = queries->begin_any > split ? queries->begin_any : split;
    amx_gradient_sum dq = {.a_step = 1024, .wanted = wanted, .fresh = begin <= start && start < begin + AMX_BLOCK_KEYS};
    for (int u = 0; u < AMX_BLOCK_UNITS; u++) {
        dq.a[u] = task->m->k_turned + (block * AMX_BLOCK_UNITS + u) * f->steps_k * 1024;
        dq.b[u] = task->m->ds_pairs + (u * AMX_TILE_GROUPS + i) * 1024;
    }
    amx_gradient_add(&dq, f->steps_k, f->dq + (task->split * f->groups + task->tile + i) * f->steps_k * 1024);
}

static void amx_backward_odd(amx_backward_task *task, const amx_backward_item *item)
{
    const amx_backward *f = task->f;
    const gradient_call *g = &f->g;
    const amx_queries *queries = &f->queries[task->tile + item->group];
    const int64_t first = task->chunk + item->unit * AMX_UNIT_KEYS, row = item->unit * AMX_UNIT_KEYS;
    const uint32_t keys = *amx_odd_keys_of(f, task->head, first);
    if (keys == 0 && queries->odd == 0)
        return;
    if (!task->odd_seen) {
        memset(task->m->odd_dk, 0, sizeof(float) * (size_t)(f->chunk * AMX_UNIT_KEYS * g->stride_q));
        memset(task->m->odd_dv, 0, sizeof(float) * (size_t)(f->chunk * AMX_UNIT_KEYS * g->stride_v));
        task->odd_seen = true;
    }
    const amx_odd_item x = {.g = g,
                            .seq = &task->seq,
                            .queries = queries,
                            .first = first,
                            .keys = keys,
                            .rows = task->m->rows,
                            .dk = task->m->odd_dk + row * g->stride_q,
                            .dv = task->m->odd_dv + row * g->stride_v};
    amx_flush(false);
    amx_odd_pairs(&x);
    amx_flush(true);
}

/* A tile of queries against the chunk. */
static void amx_backward_tile(amx_backward_task *task)
{
    amx_backward_item items[AMX_TILE_ITEMS];
    const int count = amx_backward_items(task, items);
    uint32_t of_unit = 0, of_group[AMX_TILE_GROUPS] = {0}; /* groups of the unit; units of the block, group by group */
    for (int n = 0; n < count; n++) {
        const amx_backward_item *now = &items[n], *next = n + 1 < count ? &items[n + 1] : NULL;
        amx_backward_item_weights(task, now);
        amx_backward_odd(task, now);
        of_unit |= 1u << now->group;
        of_group[now->group] |= 1u << now->unit % AMX_BLOCK_UNITS;
        if (next && next->unit == now->unit)
            continue;
        amx_backward_add_keys(task, now->unit, of_unit);
        of_unit = 0;
        if (next && next->unit / AMX_BLOCK_UNITS == now->unit / AMX_BLOCK_UNITS)
            continue;
        for (int i = 0; i < task->groups; i++) {
            if (of_group[i])
                amx_backward_add_queries(task, i, now->unit / AMX_BLOCK_UNITS, of_group[i]);
            of_group[i] = 0;
        }
    }
}

/* Row r of a unit of dk or dv, from tiles (NULL: zeros), and what odd pairs added to it (NULL: nothing). */
static void amx_backward_row(const float *unit, int64_t r, int64_t steps, const float *odd, float *out)
{
    for (int64_t s = 0; s < steps; s++)
        for (int half = 0; half < 2; half++) {
            const int64_t c = s * 32 + half * 16;
            vf x = unit ? vf_load(unit + s * 1024 + amx_at(r, half)) : vf_zero();
            vf_store(out + c, odd ? vf_add(x, vf_load(odd + c)) : x);
        }
}

/* Scales and writes dk and dv of the chunk. */
static void amx_backward_store_keys(const amx_backward_task *task)
{
    const amx_backward *f = task->f;
    const gradient_call *g = &f->g;
    const kiln_attention_problem *p = g->call.p;
    const amx_backward_memory *m = task->m;
    const bool add_dk = p->flags & KILN_FLAG_ACCUMULATE_DK, add_dv = p->flags & KILN_FLAG_ACCUMULATE_DV;
    const int64_t head_k = task->head % p->heads_k;
    float *row = m->rows;
    for (int64_t r = 0; task->chunk + r < task->end; r++) {
        const int64_t u = r / AMX_UNIT_KEYS, key = task->seq.k_row + task->chunk + r;
        const bool begun = task->begun >> u & 1;
        amx_backward_row(begun ? m->dk + u * f->steps_k * 1024 : NULL, r % AMX_UNIT_KEYS, f->steps_k,
                         task->odd_seen ? m->odd_dk + r * g->stride_q : NULL, row);
        finish_row(&g->b->dk, task->seq.k_batch, head_k, key, (float)p->softmax_scale, add_dk, row, p->d);
        amx_backward_row(begun ? m->dv + u * f->steps_v * 1024 : NULL, r % AMX_UNIT_KEYS, f->steps_v,
                         task->odd_seen ? m->odd_dv + r * g->stride_v : NULL, row);
        finish_row(&g->b->dv, task->seq.k_batch, head_k, key, 1, add_dv, row, p->d_v);
    }
}

static void amx_backward_run_task(const amx_backward *f, int64_t head, int64_t split, amx_backward_memory *m)
{
    const kiln_attention_problem *p = f->g.call.p;
    amx_backward_task task = {
        .f = f, .m = m, .seq = kiln_sequence_of(p, head / p->heads_k), .head = head, .split = split};
    task.keys = amx_split_keys(f, task.seq.seqlen_k);
    const int64_t last = (split + 1) * task.keys < task.seq.seqlen_k ? (split + 1) * task.keys : task.seq.seqlen_k;
    for (task.chunk = split * task.keys; task.chunk < last; task.chunk = task.end) {
        const int64_t end = task.chunk + f->chunk * AMX_UNIT_KEYS;
        task.end = end < last ? end : last;
        task.begun = 0;
        task.odd_seen = false;
        amx_backward_pack_keys(&task);
        amx_flush(true);
        for (task.tile = f->first_group[head]; task.tile < f->first_group[head + 1]; task.tile += AMX_TILE_GROUPS) {
            const int64_t groups = f->first_group[head + 1] - task.tile;
            task.groups = groups < AMX_TILE_GROUPS ? (int)groups : AMX_TILE_GROUPS;
            amx_backward_tile(&task);
        }
        amx_flush(false);
        amx_backward_store_keys(&task);
    }
}

/* Tasks with the first keys come first: under causal masks most queries see them. */
static void amx_backward_worker(void *arg, int32_t worker)
{
    const amx_backward *f = arg;
    const int64_t heads = f->g.call.p->batch * f->g.call.p->heads_k, count = heads * f->g.split_slots;
    const amx_config saved = amx_enter();
    amx_backward_memory m;
    (void)amx_backward_place_worker(f, f->memory + worker * f->worker_bytes, &m);
    for (int64_t t; (t = kiln_cpu_next(f->g.queue)) < count;)
        amx_backward_run_task(f, t % heads, t / heads, &m);
    amx_leave(saved);
}

/* ------------------------------------------------------------------------------------------------ dq */

/* What odd pairs add to dq of a group's lanes: odd[32][stride_q]. False: nothing. */
static bool amx_backward_odd_queries(const amx_backward *f, const kiln_sequence *seq, int64_t head,
                                     const amx_queries *queries, float *rows, float *odd)
{
    bool seen = false;
    for (int64_t key = queries->begin_any / AMX_UNIT_KEYS * AMX_UNIT_KEYS; key < queries->end_any;
         key += AMX_UNIT_KEYS) {
        const uint32_t keys = *amx_odd_keys_of(f, head, key);
        if (keys == 0 && queries->odd == 0)
            continue;
        if (!seen)
            memset(odd, 0, sizeof(float) * (size_t)(AMX_GROUP * f->g.stride_q));
        seen = true;
        const amx_odd_item x = {
            .g = &f->g, .seq = seq, .queries = queries, .first = key, .keys = keys, .rows = rows, .dq = odd};
        amx_odd_pairs(&x);
    }
    return seen;
}

/* dq = scale · the partial sums of the splits that the group sees, in order. */
static void amx_backward_dq(const amx_backward *f, int64_t group, float *rows)
{
    const gradient_call *g = &f->g;
    const kiln_attention_problem *p = g->call.p;
    const amx_queries *queries = &f->queries[group];
    const kiln_sequence seq = kiln_sequence_of(p, queries->batch);
    const int64_t head = queries->batch * p->heads_k + queries->head_k, keys = amx_split_keys(f, seq.seqlen_k);
    const int64_t first = queries->begin_any < queries->end_any ? queries->begin_any / keys : 0;
    const int64_t end = queries->begin_any < queries->end_any ? (queries->end_any - 1) / keys + 1 : 0;
    float *odd = rows + amx_odd_rows_floats(g), *sum = rows; /* rows of VF_LANES lanes */
    const bool odd_seen = amx_backward_odd_queries(f, &seq, head, queries, rows, odd);
    for (int half = 0; half < 2; half++) {
        for (int64_t c = 0; c < g->stride_q; c += VF_LANES) {
            vf x[VF_LANES];
            UNROLL for (int i = 0; i < VF_LANES; i++) x[i] = vf_zero();
            for (int64_t s = first; s < end; s++) {
                const float *part = f->dq + ((s * f->groups + group) * f->steps_k + c / 32) * 1024;
                UNROLL for (int i = 0; i < VF_LANES; i++) x[i] = vf_add(x[i], vf_load(part + amx_at(c % 32 + i, half)));
            }
            vf_transpose(x);
            UNROLL for (int i = 0; i < VF_LANES; i++) vf_store(sum + i * g->stride_q + c, x[i]);
        }
        for (int i = 0; i < VF_LANES && queries->row + 16 * half + i < seq.seqlen_q * g->group; i++) {
            const int lane = 16 * half + i;
            if (odd_seen)
                amx_odd_add(sum + i * g->stride_q, 1, odd + lane * g->stride_q, g->stride_q);
            finish_row(&g->b->dq, seq.q_batch, amx_head_of(g, queries, lane),
                       seq.q_row + amx_query_of(g, queries, lane), (float)p->softmax_scale,
                       p->flags & KILN_FLAG_ACCUMULATE_DQ, sum + i * g->stride_q, p->d);
        }
    }
}

static void amx_backward_dq_worker(void *arg, int32_t worker)
{
    const amx_backward *f = arg;
    const kiln_attention_problem *p = f->g.call.p;
    amx_backward_memory m;
    (void)amx_backward_place_worker(f, f->memory + worker * f->worker_bytes, &m);
    for (int64_t n; (n = kiln_cpu_next(f->g.queue)) < f->first_group[p->batch * p->heads_k];)
        amx_backward_dq(f, n, m.rows);
}

/* ------------------------------------------------------------------------------------------------ kernel */

static void backward_amx_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->backward.forward;
    const int64_t heads = p->batch * p->heads_k;
    amx_backward f;
    (void)amx_backward_layout(&f, &problem->backward, workspace, workers);
    f.c = (float)(p->softmax_scale * 0x1.71547652b82fep0); /* log2 e */
    f.first_group[0] = 0;
    for (int64_t i = 0; i < heads; i++)
        f.first_group[i + 1] =
            f.first_group[i] + (kiln_sequence_of(p, i / p->heads_k).seqlen_q * f.g.group + AMX_GROUP - 1) / AMX_GROUP;
    void (*const pass[])(void *arg, int32_t worker) = {amx_queries_worker, amx_backward_worker, amx_backward_dq_worker};
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
        f.g.queue->next = 0;
        kiln_cpu_parallel(cpu, workers, pass[i], &f);
    }
    if (kiln_view_present(&problem->backward.dsinks))
        rows_parallel(cpu, rows_workers(f.g.rows, 16, workers), p->heads, dsink_task, &f.g);
}

static size_t backward_amx_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    amx_backward f;
    (void)cpu;
    return amx_backward_layout(&f, &problem->backward, NULL, workers);
}

_Static_assert((int)AMX_TILE_GROUPS <= (int)AMX_OPERANDS && (int)AMX_BLOCK_UNITS <= (int)AMX_OPERANDS,
               "operands of one sum");
_Static_assert(AMX_CHUNK_BLOCKS *AMX_BLOCK_UNITS <= 32, "amx_backward_task.begun has a bit for every unit");
_Static_assert((int)AMX_MOST_COLUMNS <= (int)AMX_ROW_COLUMNS, "rows of odd pairs lie on the stack");

static bool backward_amx_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_backward_problem *b = &problem->backward;
    const kiln_problem forward = {.op = KILN_OP_ATTENTION_FORWARD, .attention = b->forward};
    if (b->dout.type != KILN_BFLOAT16)
        return snprintf(why, cap, "dout must be bf16 on AMX"), false;
    if (kiln_view_present(&b->forward.cache_batch_idx))
        return snprintf(why, cap, "forward->cache_batch_idx must be NULL for attention_backward"), false;
    return flash2_amx_supports(cpu, &forward, why, cap);
}

/*
 * Depth: a tile product sums 32 terms (depth 18) and joins them by one addition, which numerics.tile = 32 says. Odd pairs add 32
 * terms and a join of their own an item, and splits their joins, all in fp32 of half the unit: never deeper than that.
 * Floor: tiles flush a sum below 2^-126 to 0. What it was since the last time it was 0 came of terms w·x with |x| >= 2^-60, the
 * least number of a row that tiles see: either of one with |w| >= 2^-65, of which p_floor·|x| pays 2^-125, or of smaller
 * ones, which p_floor counts as lost altogether. The same holds for P and dS that are flushed themselves.
 */
static void backward_amx_numerics(const kiln_problem *problem, kiln_numerics *numerics)
{
    (void)problem;
    *numerics = (kiln_numerics){
        .unit = AMX_UNIT,
        .exp_error = AMX_EXP2_ERROR,
        .tanh_error = VF_TANH_ERROR,
        .p_unit = 0x1p-8,
        .p_floor = 0x1p-65,
        .score_extra = 9,
        .tile = 32,
    };
}

static const kiln_cpu_kernel attention_backward_flash2_amx = {
    .op = KILN_OP_ATTENTION_BACKWARD,
    .algorithm = "flash2",
    .name = KILN_CPU_NAME("attention_backward_flash2"),
    .supports = backward_amx_supports,
    .workspace = backward_amx_workspace,
    .run = backward_amx_run,
    .numerics = backward_amx_numerics,
};
