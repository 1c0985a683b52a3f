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
 * Rounds: as many KV heads at a time as AMX_PACKED_BYTES take (never less than one); first their keys are packed, then
 *  tasks of some tiles of queries go through the keys, a super-block that fits the second-level cache at a time.
 * Workspace: keys·(d + d_v)·2 of those heads, keys a multiple of AMX_BLOCK and d, d_v of 32; 8·batch·heads_k; and 0.7 MB a
 *  worker at d = 128 (amx_worker_bytes).
 * Traffic, one head, N queries and keys, Br = rows of a task: 2·N·d·e (q, o) + 8·N·d (packing) + 4·N·d·ceil(N/Br).
 * FLOPs: 4·N²·d + 3·N²; half of it if causal, plus half a block a tile.
 */
#include <stdio.h>

#include "attention_amx_odd.inc.h"
#include "attention_scores.inc.h"

enum {
    AMX_TILES = 16,      /* most tiles of a task */
    AMX_SUPER = 4,       /* blocks of a super-block */
    AMX_LEAST_ROWS = 64, /* of a KV head */
    AMX_MOST_COLUMNS = 256
};
#define AMX_MOST_KEYS    ((int64_t)1 << 24)
#define AMX_PACKED_BYTES ((int64_t)256 << 20)

typedef struct amx_tile {
    tile lanes;
    amx_state state;
    float *odd_o;       /* as state.o, see `odd_seen` */
    uint32_t odd_lanes; /* whose q holds odd numbers */
    bool odd_seen;      /* odd_o is in use, else garbage */
} amx_tile;

typedef struct amx_call {
    attention_call call;
    int64_t group;            /* query heads of one KV head */
    int64_t steps_k, steps_v; /* d and d_v in 32s, rounded up */
    int64_t tiles, tasks_a_head;
    float c;       /* |scale|·log2 e */
    uint16_t sign; /* of the scale: turns q */
    kiln_cpu_queue *queue;
    int64_t *first_block;           /* [batch·heads_k + 1]: blocks before those of each KV head */
    int64_t begin_head, end_head;   /* of this round, batch entry by batch entry */
    int64_t capacity, worker_bytes; /* blocks packed at a time */
    amx_marks *marks;               /* [capacity] */
    uint16_t *k, *v;                /* [capacity][AMX_BLOCK·steps·32] */
    char *memory;                   /* of workers */
} amx_call;

/* An item of the pipeline: tile and block. */
typedef struct amx_item {
    amx_tile *tile;
    int64_t block; /* of the sequence */
    bool due;      /* correction: O of the tile must be multiplied before the values of this item join */
    float correction[AMX_LANES];
} amx_item;

typedef struct amx_worker_memory {
    amx_tile *tiles;
    float *s[2];       /* tiles of keys x lanes, of two items in turn */
    uint32_t *p[2];    /* tiles of pairs of keys x lanes, the same */
    uint32_t *visible; /* [AMX_BLOCK][2]: bit = lane */
    float *o;          /* [d_v][AMX_LANES] */
    float *buffer;     /* VF_LANES rows of o */
} amx_worker_memory;

static void *amx_take(char *memory, int64_t *used, int64_t bytes)
{
    void *x = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return x;
}

/* Lays out the memory of a worker (NULL: only counts) and returns its bytes. */
static int64_t amx_worker_place(const amx_call *f, char *memory, amx_worker_memory *w)
{
    const int64_t float_row = AMX_LANES * (int64_t)sizeof(float);
    int64_t used = 0;
    w->tiles = amx_take(memory, &used, AMX_TILES * (int64_t)sizeof(amx_tile));
    for (int i = 0; i < 2; i++) {
        w->s[i] = amx_take(memory, &used, AMX_BLOCK * float_row);
        w->p[i] = amx_take(memory, &used, AMX_BLOCK / 2 * float_row);
    }
    w->visible = amx_take(memory, &used, AMX_BLOCK * 2 * (int64_t)sizeof(uint32_t));
    w->o = amx_take(memory, &used, f->call.p->d_v * float_row);
    w->buffer = amx_take(memory, &used, VF_LANES * buffer_stride(f->call.p->d_v) * (int64_t)sizeof(float));
    for (int i = 0; i < AMX_TILES; i++) {
        void *q = amx_take(memory, &used, f->steps_k * 32 * AMX_LANES * 2), *m = amx_take(memory, &used, float_row);
        void *l = amx_take(memory, &used, float_row), *o = amx_take(memory, &used, f->steps_v * 32 * float_row);
        void *odd_o = amx_take(memory, &used, f->steps_v * 32 * float_row);
        if (memory) {
            w->tiles[i].state = (amx_state){q, o, m, l};
            w->tiles[i].odd_o = odd_o;
        }
    }
    return used;
}

static int64_t amx_blocks(int64_t keys)
{
    return (keys + AMX_BLOCK - 1) / AMX_BLOCK;
}

/* What follows from metadata, and the layout of the workspace (may be NULL). Returns its bytes. */
static size_t amx_layout(amx_call *f, const kiln_attention_problem *p, char *workspace, int32_t workers)
{
    const int64_t heads = p->batch * p->heads_k, longest = amx_blocks(p->seqlen_k);
    *f = (amx_call){.call = {.p = p, .nv = 2, .nq = AMX_LANES, .columns = p->d}, .group = p->heads / p->heads_k};
    f->steps_k = (p->d + 31) / 32;
    f->steps_v = (p->d_v + 31) / 32;
    const int64_t block_k = AMX_BLOCK * f->steps_k * 64, block_v = AMX_BLOCK * f->steps_v * 64;
    int64_t most = AMX_PACKED_BYTES / (block_k + block_v);
    most = most < longest ? longest : most;
    /* all there are: every sequence ends in a block of its own */
    const bool packed = kiln_view_present(&p->cu_seqlens_k);
    const int64_t all = packed ? p->heads_k * (amx_blocks(p->total_k) + p->batch) : heads * longest;
    f->capacity = most < all ? most : all;

    amx_worker_memory unused;
    int64_t used = 0;
    f->worker_bytes = amx_worker_place(f, NULL, &unused);
    f->queue = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    f->first_block = amx_take(workspace, &used, (heads + 1) * (int64_t)sizeof(int64_t));
    f->marks = amx_take(workspace, &used, f->capacity * (int64_t)sizeof(amx_marks));
    f->k = amx_take(workspace, &used, f->capacity * block_k);
    f->v = amx_take(workspace, &used, f->capacity * block_v);
    f->memory = amx_take(workspace, &used, workers * f->worker_bytes);
    return (size_t)used;
}

/* Where the keys of a block lie in k or v; NULL past the end of the sequence. */
static void amx_key_rows(const kiln_attention_problem *p, const kiln_view *view, const kiln_sequence *seq,
                         int64_t head_k, int64_t block, const char **rows)
{
    for (int64_t r = 0, key = block * AMX_BLOCK; r < AMX_BLOCK; r++, key++)
        rows[r] = key < seq->seqlen_k ? key_row(p, view, seq, head_k, key) : NULL;
}

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
        const int64_t block = base + n - f->first_block[low];
        const char *rows[AMX_BLOCK];
        f->marks[n] = (amx_marks){{0}, {0}};
        amx_key_rows(p, &p->k, &seq, low % p->heads_k, block, rows);
        amx_pack_keys(rows, p->k.stride[3], p->d, f->k + n * AMX_BLOCK * f->steps_k * 32, f->marks[n].k);
        amx_key_rows(p, &p->v, &seq, low % p->heads_k, block, rows);
        amx_pack_values(rows, p->v.stride[3], p->d_v, f->v + n * AMX_BLOCK * f->steps_v * 32, f->marks[n].v);
    }
}

/* One task: some tiles of one KV head. */
typedef struct amx_task {
    const amx_call *f;
    kiln_sequence seq;
    int64_t head_k, tiles;
    int64_t first; /* block of the workspace that holds the first keys */
    amx_worker_memory *w;
    int64_t super, tile, block, end; /* where the walk stands: super-block, tile, block, end of all */
} amx_task;

static const uint16_t *amx_task_keys(const amx_task *task, int64_t block)
{
    return task->f->k + (task->first + block) * AMX_BLOCK * task->f->steps_k * 32;
}

static const uint16_t *amx_task_values(const amx_task *task, int64_t block)
{
    return task->f->v + (task->first + block) * AMX_BLOCK * task->f->steps_v * 32;
}

static void amx_tile_begin(const amx_task *task, amx_tile *t, int64_t row)
{
    const amx_call *f = task->f;
    const kiln_attention_problem *p = f->call.p;
    const char *rows[AMX_LANES];
    tile_lanes(&f->call, &t->lanes, &task->seq, 0, task->head_k * f->group, f->group, row);
    for (int lane = 0; lane < AMX_LANES; lane++)
        rows[lane] = view_row(&p->q, task->seq.q_batch, t->lanes.head[lane], task->seq.q_row + t->lanes.query[lane]);
    t->odd_lanes = amx_pack_queries(rows, p->q.stride[3], p->d, f->sign, t->state.q);
    t->odd_seen = false;
    t->lanes.o = task->w->o;
    t->lanes.m = t->state.m;
    t->lanes.l = t->state.l;
    memset(t->state.o, 0, sizeof(float) * (size_t)(f->steps_v * 32 * AMX_LANES));
    for (int lane = 0; lane < AMX_LANES; lane++) {
        t->state.m[lane] = -INFINITY;
        t->state.l[lane] = 0;
    }
}

/* The one final division, as a product with the reciprocal. Returns what tile_end() does: only what odd values add can
 * leave fp32's range, so that is what is shrunk. */
static bool amx_tile_end(const amx_task *task, amx_tile *t)
{
    const attention_call *call = &task->f->call;
    const vf one = vf_set1(1.0f);
    float factor[AMX_LANES], divisor[AMX_LANES];
    for (int lane = 0; lane < AMX_LANES; lane++)
        t->state.m[lane] = (float)(t->state.m[lane] * 0x1.62e42fefa39efp-1); /* ln 2 */
    tile_sums(call, &t->lanes, &task->seq, factor, divisor);
    const vf grown = vf_set1(call->shrink ? VALUE_SHRINK : 1.0f);
    vm finite[2] = {vm_first(VF_LANES), vm_first(VF_LANES)};
    for (int half = 0; half < 2; half++) {
        const vf by = vf_load(divisor + 16 * half), scale = vf_mul(vf_load(factor + 16 * half), vf_div(one, by));
        const vm seen = vm_not(vf_eq(by, vf_zero()));
        for (int64_t i = 0; i < call->p->d_v; i++) {
            vf o = vf_add(vf_load(t->state.o + amx_at(i, half)), vf_zero()); /* every zero becomes +0 */
            if (t->odd_seen) {
                o = vf_fma(o, grown, vf_load(t->odd_o + amx_at(i, half)));
                finite[half] = vm_and(finite[half], vf_finite(o));
            }
            vf_store(t->lanes.o + i * AMX_LANES + 16 * half, vf_keep(seen, vf_mul(o, scale)));
        }
    }
    const bool again = !call->shrink && tile_overflowed(&t->lanes, finite);
    tile_store(call, &t->lanes, &task->seq, task->w->buffer);
    return again;
}

/* The next item: super-block by super-block, tile by tile, block by block. False at the end. */
static bool amx_task_next(amx_task *task, amx_item *item)
{
    for (; task->super < task->end; task->super += AMX_SUPER, task->tile = 0)
        for (; task->tile < task->tiles; task->tile++, task->block = 0) {
            amx_tile *t = &task->w->tiles[task->tile];
            int64_t begin = t->lanes.begin_any / AMX_BLOCK, end = amx_blocks(t->lanes.end_any);
            begin = begin < task->super ? task->super : begin;
            end = end > task->super + AMX_SUPER ? task->super + AMX_SUPER : end;
            begin = begin < task->block ? task->block : begin;
            if (begin < end) {
                *item = (amx_item){.tile = t, .block = begin};
                task->block = begin + 1;
                return true;
            }
        }
    return false;
}

/* Which lanes see which keys of an item. */
static void amx_item_visible(const amx_task *task, const amx_item *item)
{
    uint32_t *visible = task->w->visible;
    const score_scratch scratch = {.visible = visible};
    if (!find_hidden(&task->f->call, &item->tile->lanes, &task->seq, item->block * AMX_BLOCK, AMX_BLOCK, &scratch))
        for (int i = 0; i < 2 * AMX_BLOCK; i++)
            visible[i] = 0xffff;
}

/* Scores of keys outside a lane's range become -inf, by selection. */
static void amx_hide(const tile *t, int64_t first, float *s)
{
    const __m512i base = _mm512_set1_epi64(first);
    for (int half = 0; half < 2; half++) {
        __m512i range[2]; /* relative to `first`; saturation keeps the order */
        for (int i = 0; i < 2; i++) {
            const int64_t *x = (i == 0 ? t->begin : t->end) + 16 * half;
            __m256i low = _mm512_cvtsepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(x), base));
            __m256i high = _mm512_cvtsepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(x + 8), base));
            range[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        }
        for (int r = 0; r < AMX_BLOCK; r++) {
            const __m512i key = _mm512_set1_epi32(r);
            __mmask16 before = _mm512_cmplt_epi32_mask(key, range[0]), past = _mm512_cmpge_epi32_mask(key, range[1]);
            _mm512_mask_storeu_ps(s + amx_at(r, half), (__mmask16)(before | past), vf_set1(-INFINITY));
        }
    }
}

/* What remains to do to the scores of an item: odd numbers, hidden keys. */
static void amx_item_scores(const amx_task *task, const amx_item *item, float *s)
{
    const amx_tile *t = item->tile;
    const amx_marks *marks = &task->f->marks[task->first + item->block];
    const int64_t first = item->block * AMX_BLOCK;
    if (t->odd_lanes || amx_any_odd(marks->k))
        amx_odd_scores(&t->state, t->odd_lanes, amx_task_keys(task, item->block), marks->k, task->f->steps_k, s);
    if (t->lanes.begin_all > first || first + AMX_BLOCK > t->lanes.end_all)
        amx_hide(&t->lanes, first, s);
}

static void amx_item_maximum(const amx_task *task, amx_item *item, const vf (*max)[2])
{
    item->due = amx_move_maximum(&item->tile->state, max, task->f->c, item->correction);
}

/* Before the values of an item join: every earlier item of the tile has joined. */
static void amx_item_rescale(const amx_task *task, const amx_item *item)
{
    if (!item->due)
        return;
    amx_rescale(item->tile->state.o, task->f->steps_v * 32, item->correction);
    if (item->tile->odd_seen) {
        amx_flush(false);
        amx_rescale(item->tile->odd_o, task->f->steps_v * 32, item->correction);
        amx_flush(true);
    }
}

static void amx_item_odd_values(const amx_task *task, const amx_item *item, const uint32_t *p)
{
    const kiln_attention_problem *problem = task->f->call.p;
    const amx_marks *marks = &task->f->marks[task->first + item->block];
    amx_tile *t = item->tile;
    if (!amx_any_odd(marks->v))
        return;
    const char *rows[AMX_BLOCK];
    amx_key_rows(problem, &problem->v, &task->seq, task->head_k, item->block, rows);
    amx_item_visible(task, item);
    if (!t->odd_seen)
        memset(t->odd_o, 0, sizeof(float) * (size_t)(task->f->steps_v * 32 * AMX_LANES));
    t->odd_seen = true;
    amx_odd_values_add(rows, problem->v.stride[3], problem->d_v, marks->v, p, task->w->visible,
                       task->f->call.shrink ? VALUE_SHRINK : 1.0f, t->odd_o);
}

/* The three phases of one step, interleaved: `next` (scores and maximum), `now` (softmax), `last` (values). */
static void amx_step(const amx_task *task, int turn, amx_item *next, const amx_item *now, const amx_item *last)
{
    const amx_call *f = task->f;
    const vf lowest = vf_set1(-INFINITY);
    vf max[2][2] = {{lowest, lowest}, {lowest, lowest}};
    amx_worker_memory *w = task->w;
    const amx_step_items x = {.next = &next->tile->state,
                              .now = &now->tile->state,
                              .last = &last->tile->state,
                              .k = amx_task_keys(task, next->block),
                              .v = amx_task_values(task, last->block),
                              .s_next = w->s[!turn],
                              .s_now = w->s[turn],
                              .p_now = w->p[turn],
                              .p_last = w->p[!turn]};
    switch (f->steps_k) {
    case 2: amx_step_scores_64(&x, f->c); break;
    case 4: amx_step_scores_128(&x, f->c); break;
    default: amx_step_scores_any(f->steps_k, &x, f->c);
    }
    amx_item_scores(task, next, w->s[!turn]);
    switch (f->steps_v) {
    case 2: amx_step_values_64(&x, f->c, max); break;
    case 4: amx_step_values_128(&x, f->c, max); break;
    default: amx_step_values_any(f->steps_v, &x, f->c, max);
    }
    amx_item_odd_values(task, last, w->p[!turn]);
    amx_item_rescale(task, now);
    amx_item_maximum(task, next, (const vf(*)[2])max);
}

/* The phases one by one, for the ends of the pipeline. */
static void amx_item_begin(const amx_task *task, amx_item *item, float *s)
{
    const vf lowest = vf_set1(-INFINITY);
    vf max[2][2] = {{lowest, lowest}, {lowest, lowest}};
    amx_scores(&item->tile->state, amx_task_keys(task, item->block), task->f->steps_k, s);
    amx_item_scores(task, item, s);
    amx_maximum(s, max);
    amx_item_maximum(task, item, (const vf(*)[2])max);
}

static void amx_item_end(const amx_task *task, const amx_item *item, const uint32_t *p)
{
    amx_values(&item->tile->state, amx_task_values(task, item->block), task->f->steps_v, p);
    amx_item_odd_values(task, item, p);
}

static void amx_task_items(amx_task *task)
{
    const float c = task->f->c;
    amx_worker_memory *w = task->w;
    amx_item items[3], *last = NULL, *now = &items[0], *next = &items[1];
    int turn = 0;
    if (!amx_task_next(task, now))
        return;
    amx_item_begin(task, now, w->s[turn]);
    for (; amx_task_next(task, next); turn = !turn) {
        if (last) {
            amx_step(task, turn, next, now, last);
        } else {
            amx_softmax(&now->tile->state, c, w->s[turn], w->p[turn]);
            amx_item_begin(task, next, w->s[!turn]);
        }
        amx_item *unused = last ? last : &items[2];
        last = now;
        now = next;
        next = unused;
    }
    amx_softmax(&now->tile->state, c, w->s[turn], w->p[turn]);
    if (last)
        amx_item_end(task, last, w->p[!turn]);
    amx_item_rescale(task, now);
    amx_item_end(task, now, w->p[turn]);
}

/* Tiles [index·tiles, ...) of a KV head, if the sequence is that long. True: see tile_end(). */
static bool amx_run_task(const amx_call *f, int64_t head, int64_t index, amx_worker_memory *w)
{
    const kiln_attention_problem *p = f->call.p;
    amx_task task = {.f = f, .seq = kiln_sequence_of(p, head / p->heads_k), .head_k = head % p->heads_k, .w = w};
    const int64_t rows = task.seq.seqlen_q * f->group, row = index * f->tiles * AMX_LANES;
    task.first = f->first_block[head] - f->first_block[f->begin_head];
    task.super = INT64_MAX;
    for (; task.tiles < f->tiles && row + task.tiles * AMX_LANES < rows; task.tiles++) {
        amx_tile *t = &w->tiles[task.tiles];
        amx_tile_begin(&task, t, row + task.tiles * AMX_LANES);
        int64_t begin = t->lanes.begin_any / AMX_BLOCK, end = amx_blocks(t->lanes.end_any);
        task.super = begin < task.super ? begin : task.super;
        task.end = end > task.end ? end : task.end;
    }
    amx_flush(true);
    amx_task_items(&task);
    amx_flush(false);
    bool again = false;
    for (int64_t i = 0; i < task.tiles; i++)
        again |= amx_tile_end(&task, &w->tiles[i]);
    return again;
}

static void amx_worker(void *arg, int32_t worker)
{
    const amx_call *f = arg;
    const int64_t heads = f->end_head - f->begin_head, count = heads * f->tasks_a_head;
    const amx_config saved = amx_enter();
    amx_worker_memory w;
    (void)amx_worker_place(f, f->memory + worker * f->worker_bytes, &w);
    for (int64_t t; (t = kiln_cpu_next(f->queue)) < count;) { /* long tasks (late rows, under a causal mask) first */
        const int64_t head = f->begin_head + t % heads, index = f->tasks_a_head - 1 - t / heads;
        if (amx_run_task(f, head, index, &w)) {
            amx_call shrunk = *f;
            shrunk.call = shrunk_call(&f->call);
            (void)amx_run_task(&shrunk, head, index, &w);
        }
    }
    amx_leave(saved);
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

static void flash2_amx_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    const int64_t heads = p->batch * p->heads_k;
    amx_call f;
    (void)amx_layout(&f, p, workspace, workers);
    f.c = (float)(fabs(p->softmax_scale) * 0x1.71547652b82fep0); /* log2 e */
    f.sign = p->softmax_scale < 0 ? 0x8000 : 0;
    f.first_block[0] = 0;
    for (int64_t i = 0; i < heads; i++)
        f.first_block[i + 1] = f.first_block[i] + amx_blocks(kiln_sequence_of(p, i / p->heads_k).seqlen_k);

    const int64_t tiles = (amx_longest_rows(&f) + AMX_LANES - 1) / AMX_LANES;
    const int64_t spread = tiles * heads / (4 * (int64_t)workers); /* then nobody waits long for the last one */
    f.tiles = spread < 1 ? 1 : spread > AMX_TILES ? AMX_TILES : spread;
    f.tasks_a_head = (tiles + f.tiles - 1) / f.tiles;
    while (f.end_head < heads) {
        f.begin_head = f.end_head;
        while (f.end_head < heads && f.first_block[f.end_head + 1] - f.first_block[f.begin_head] <= f.capacity)
            f.end_head++;
        f.queue->next = 0;
        kiln_cpu_parallel(cpu, workers, amx_pack_worker, &f);
        f.queue->next = 0;
        kiln_cpu_parallel(cpu, workers, amx_worker, &f);
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
        /* a lazy maximum lets the exponent be positive, up to 8: half an ulp there */
        .exp_error = AMX_EXP2_ERROR + 0x1p-22,
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
