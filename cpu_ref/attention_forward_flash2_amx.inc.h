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

#include "attention_amx_odd.inc.h"
#include "attention_scores.inc.h"

enum {
    AMX_TILES = 16,      /* most tiles of a task */
    AMX_SUPER = 4,       /* blocks of a super-block */
    AMX_TILES_LEAST = 4, /* and least, of the last ones */
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
    bool fresh;         /* state.o is garbage and counts as 0 */
    bool settled;       /* every lane has seen a score above -inf */
    bool begun, ended;  /* q is packed; o is written */
} amx_tile;

/* How far a KV head is. */
typedef struct amx_head {
    int64_t begun;   /* tasks */
    int64_t waiting; /* tasks that were drawn before it was packed */
    bool packed;
} amx_head;

typedef struct amx_call {
    attention_call call;
    int64_t group;               /* query heads of one KV head */
    int64_t steps_k, steps_v;    /* d and d_v in 32s, rounded up */
    int64_t tiles, tasks_a_head; /* of a task; of the longest head */
    int64_t tiles_a_head;
    bool taper;    /* tasks grow smaller in the end */
    bool owned;    /* the first task of each head packs its keys */
    bool together; /* and is the only one: packs to a place of its worker */
    float c;       /* |scale|·log2 e */
    uint16_t sign; /* of the scale: turns q */
    kiln_cpu_queue *queue;
    kiln_cpu_queue *waiting; /* tasks of all heads that wait */
    kiln_cpu_queue *gone;    /* workers that have left the loop */
    int32_t workers;
    amx_head *heads;                /* [batch·heads_k] */
    int64_t *first_block;           /* [batch·heads_k + 1]: blocks before those of each KV head */
    int64_t begin_head, end_head;   /* of this round, batch entry by batch entry */
    int64_t capacity, worker_bytes; /* blocks packed at a time */
    amx_marks *marks;               /* [capacity] */
    uint16_t *k, *v;                /* [capacity][AMX_BLOCK·steps·32] */
    char *memory;                   /* of workers */
} amx_call;

/* An item of the pipeline: a tile and the units of a block that some of its lanes see. */
typedef struct amx_item {
    amx_tile *tile;
    int64_t block;     /* of the sequence */
    int64_t unit, end; /* of the block */
} amx_item;

typedef struct amx_worker_memory {
    amx_tile *tiles;
    float *s[2];       /* scores of two units in turn, tiles of keys x lanes */
    uint32_t *p[2];    /* weights of two blocks in turn, tiles of pairs of keys x lanes */
    float *sum;        /* of the weights of a block, of each lane */
    float *again;      /* scores of a block */
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

/*
 * The same, 1024·`phase` bytes past a page. A load whose low 12 address bits are those of a store just before waits for it.
 * Tiles are quarters of a page, and where accumulators change over, S is stored just before O, P and V are loaded, and O
 * just before Q and K are: with these phases, the best of all, no load meets a store since the last product, and four meet
 * one of the three products before.
 */
enum { PHASE_S = 0, PHASE_Q = 0, PHASE_P = 2, PHASE_V = 1, PHASE_O = 2, PHASE_K = 3 };

static void *amx_take_phase(char *memory, int64_t *used, int64_t bytes, int phase)
{
    *used += (4096 + 1024 * phase - *used % 4096) % 4096;
    return amx_take(memory, used, bytes);
}

/* Lays out the memory of a worker (NULL: only counts) and returns its bytes. */
static int64_t amx_worker_place(const amx_call *f, char *memory, amx_worker_memory *w)
{
    const int64_t float_row = AMX_LANES * (int64_t)sizeof(float);
    int64_t used = 0;
    w->tiles = amx_take(memory, &used, AMX_TILES * (int64_t)sizeof(amx_tile));
    for (int i = 0; i < 2; i++)
        w->s[i] = amx_take_phase(memory, &used, 32 * float_row, PHASE_S);
    for (int i = 0; i < 2; i++)
        w->p[i] = amx_take_phase(memory, &used, AMX_BLOCK / 2 * float_row, PHASE_P);
    w->sum = amx_take(memory, &used, float_row);
    w->again = amx_take(memory, &used, AMX_BLOCK * float_row);
    w->visible = amx_take(memory, &used, AMX_BLOCK * 2 * (int64_t)sizeof(uint32_t));
    w->o = amx_take(memory, &used, f->call.p->d_v * float_row);
    w->buffer = amx_take(memory, &used, VF_LANES * buffer_stride(f->call.p->d_v) * (int64_t)sizeof(float));
    for (int i = 0; i < AMX_TILES; i++) {
        void *q = amx_take_phase(memory, &used, f->steps_k * 32 * AMX_LANES * 2, PHASE_Q);
        void *o = amx_take_phase(memory, &used, f->steps_v * 32 * float_row, PHASE_O);
        void *m = amx_take(memory, &used, float_row), *l = amx_take(memory, &used, float_row);
        void *odd_o = amx_take(memory, &used, f->steps_v * 32 * float_row);
        if (memory) {
            w->tiles[i].state = (amx_state){q, o, m, l};
            w->tiles[i].odd_o = odd_o;
        }
    }
    return (used + 4095) / 4096 * 4096;
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
    f->waiting = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    f->gone = amx_take(workspace, &used, sizeof(kiln_cpu_queue));
    f->heads = amx_take(workspace, &used, heads * (int64_t)sizeof(amx_head));
    f->first_block = amx_take(workspace, &used, (heads + 1) * (int64_t)sizeof(int64_t));
    f->marks = amx_take(workspace, &used, f->capacity * (int64_t)sizeof(amx_marks));
    f->k = amx_take_phase(workspace, &used, f->capacity * block_k, PHASE_K);
    f->v = amx_take_phase(workspace, &used, f->capacity * block_v, PHASE_V);
    f->memory = amx_take_phase(workspace, &used, workers * f->worker_bytes, 0);
    return (size_t)used;
}

/* Where the keys of a block lie in k or v; NULL past the end of the sequence. */
static void amx_key_rows(const kiln_attention_problem *p, const kiln_view *view, const kiln_sequence *seq,
                         int64_t head_k, int64_t block, const char **rows)
{
    for (int64_t r = 0, key = block * AMX_BLOCK; r < AMX_BLOCK; r++, key++)
        rows[r] = key < seq->seqlen_k ? key_row(p, view, seq, head_k, key) : NULL;
}

/* Packs block `block` of a KV head, number n of the workspace. */
static void amx_pack_block(const amx_call *f, const kiln_sequence *seq, int64_t head_k, int64_t block, int64_t n)
{
    const kiln_attention_problem *p = f->call.p;
    const char *k[AMX_BLOCK], *v[AMX_BLOCK];
    f->marks[n] = (amx_marks){{0}, {0}};
    amx_key_rows(p, &p->k, seq, head_k, block, k);
    amx_key_rows(p, &p->v, seq, head_k, block, v);
    amx_pack_keys(k, p->k.stride[3], p->d, f->k + n * AMX_BLOCK * f->steps_k * 32, f->marks[n].k);
    amx_pack_values(v, p->v.stride[3], p->d_v, f->v + n * AMX_BLOCK * f->steps_v * 32, f->marks[n].v);
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
        amx_pack_block(f, &seq, low % p->heads_k, base + n - f->first_block[low], n);
    }
}

/* Rows of q or o that a tile will need soon, prefetched a few a slot: the memory works while the tiles multiply, and tasks
 * neither begin nor end in step with those of other workers, all waiting for it. */
typedef struct amx_ahead {
    char *row[AMX_LANES];
    int64_t lanes, next; /* [next, lanes) remain */
} amx_ahead;

/* One task: some tiles of one KV head. */
typedef struct amx_task {
    const amx_call *f;
    kiln_sequence seq;
    int64_t head_k, tiles;
    int64_t first; /* block of the workspace that holds the first keys */
    amx_worker_memory *w;
    int64_t super, tile, block, end; /* where the walk stands: super-block, tile, block, end of all */
    amx_head *owned;                 /* the KV head, if the task packs its keys; else NULL */
    int64_t unpacked;                /* first block that the owner has yet to pack */
    amx_ahead q_ahead, o_ahead;
    int64_t ahead_super, ahead_line; /* keys: super-block, and how many lines (owner: rows) of it were prefetched */
    bool again;                      /* see tile_end() */
} amx_task;

static const uint16_t *amx_unit_keys(const amx_task *task, const amx_item *item, int64_t unit)
{
    return task->f->k + ((task->first + item->block) * AMX_UNITS + unit) * task->f->steps_k * 1024;
}

/* Where the rows of a tile's lanes lie in q or o. */
static void amx_tile_rows(const amx_task *task, const amx_tile *t, const kiln_view *view, char **rows)
{
    for (int lane = 0; lane < AMX_LANES; lane++)
        rows[lane] = view_row(view, task->seq.q_batch, t->lanes.head[lane], task->seq.q_row + t->lanes.query[lane]);
}

/* The rows of `t` in `view` are wanted next. (Strided ones are not worth it.) */
static void amx_ahead_begin(const amx_task *task, const amx_tile *t, const kiln_view *view, amx_ahead *ahead)
{
    ahead->next = 0;
    ahead->lanes = view->stride[3] == 1 ? t->lanes.lanes : 0;
    if (ahead->lanes > 0)
        amx_tile_rows(task, t, view, ahead->row);
}

/* A slot's share of them: `bytes` of each of two rows. */
VF_INLINE void amx_ahead_some(amx_ahead *ahead, int64_t bytes, const bool write)
{
    const int64_t stop = ahead->next + 2 < ahead->lanes ? ahead->next + 2 : ahead->lanes;
    for (; ahead->next < stop; ahead->next++)
        for (int64_t at = 0; at < bytes; at += 64)
            if (write) /* clang wants literals */
                __builtin_prefetch(ahead->row[ahead->next] + at, 1, 2);
            else
                __builtin_prefetch(ahead->row[ahead->next] + at, 0, 2);
}

/* What a tile is; amx_tile_queries() follows when its first item comes. */
static void amx_tile_begin(const amx_task *task, amx_tile *t, int64_t row)
{
    const amx_call *f = task->f;
    tile_lanes(&f->call, &t->lanes, &task->seq, 0, task->head_k * f->group, f->group, row);
    t->odd_seen = false;
    t->fresh = true;
    t->settled = false;
    t->begun = false;
    t->ended = false;
    t->lanes.o = task->w->o;
    t->lanes.m = t->state.m;
    t->lanes.l = t->state.l;
    for (int lane = 0; lane < AMX_LANES; lane++) {
        t->state.m[lane] = -INFINITY;
        t->state.l[lane] = 0;
    }
}

static void amx_tile_queries(amx_task *task, amx_tile *t)
{
    const amx_call *f = task->f;
    const kiln_attention_problem *p = f->call.p;
    char *rows[AMX_LANES];
    amx_tile_rows(task, t, &p->q, rows);
    t->odd_lanes = amx_pack_queries((const char *const *)rows, p->q.stride[3], p->d, f->sign, t->state.q);
    t->begun = true;
    if (t + 1 < task->w->tiles + task->tiles)
        amx_ahead_begin(task, t + 1, &p->q, &task->q_ahead);
}

/* Column `column` of O times `factor`, 0 for lanes not `seen`; `half` of a tile without odd values. */
VF_INLINE vf amx_tile_column(const amx_tile *t, int64_t column, int half, vf factor, vm seen)
{
    vf o = vf_add(vf_load(t->state.o + amx_at(column, half)), vf_zero()); /* every zero becomes +0 */
    return vf_keep(seen, vf_mul(o, factor));
}

/* Writes them as o. bf16 is made before columns become rows, two columns a word: NaNs have zeros below there (see
 * amx_exp_piece()), so that rounding keeps them. */
VF_INLINE void amx_tile_store(const amx_task *task, const amx_tile *t, int half, vf factor, vm seen)
{
    const kiln_attention_problem *p = task->f->call.p;
    const int64_t first = 16 * half, step = p->o.type == KILN_FLOAT32 ? 16 : 32;
    const int64_t lanes = t->lanes.lanes - first < 16 ? t->lanes.lanes - first : 16;
    char *row[AMX_LANES];
    amx_tile_rows(task, t, &p->o, row);
    for (int64_t column = 0; lanes > 0 && column < p->d_v; column += step) {
        const int n = p->d_v - column < step ? (int)(p->d_v - column) : (int)step;
        if (p->o.type == KILN_FLOAT32) {
            vf x[16];
            UNROLL for (int i = 0; i < 16; i++) x[i] = amx_tile_column(t, column + i, half, factor, seen);
            vf_transpose(x);
            for (int64_t lane = 0; lane < lanes; lane++)
                vf_store_tail((float *)(void *)row[first + lane] + column, x[lane], n);
            continue;
        }
        __m512i pair[16];
        UNROLL for (int i = 0; i < 16; i++) pair[i] =
            vf_pair_bf16_(amx_tile_column(t, column + 2 * i, half, factor, seen),
                          amx_tile_column(t, column + 2 * i + 1, half, factor, seen));
        amx_transpose(pair);
        for (int64_t lane = 0; lane < lanes; lane++) {
            char *to = row[first + lane] + column * 2;
            if (n == 32)
                _mm512_storeu_si512(to, pair[lane]);
            else
                _mm512_mask_storeu_epi16(to, (__mmask32)((1u << n) - 1), pair[lane]);
        }
    }
}

/* The one final division, as a product with the reciprocal. Returns what tile_end() does: only what odd values add can
 * leave fp32's range, so that is what is shrunk. */
static bool amx_tile_end(const amx_task *task, amx_tile *t)
{
    const attention_call *call = &task->f->call;
    t->ended = true;
    const vf one = vf_set1(1.0f);
    const bool plain = !t->odd_seen && !call->shrink && call->p->o.stride[3] == 1;
    float factor[AMX_LANES], divisor[AMX_LANES];
    for (int lane = 0; lane < AMX_LANES; lane++)
        t->state.m[lane] = (float)(t->state.m[lane] * 0x1.62e42fefa39efp-1); /* ln 2 */
    tile_sums(call, &t->lanes, &task->seq, factor, divisor);
    if (t->fresh)
        memset(t->state.o, 0, sizeof(float) * (size_t)(task->f->steps_v * 32 * AMX_LANES));
    const vf grown = vf_set1(call->shrink ? VALUE_SHRINK : 1.0f);
    vm finite[2] = {vm_first(VF_LANES), vm_first(VF_LANES)};
    for (int half = 0; half < 2; half++) {
        const vf by = vf_load(divisor + 16 * half), scale = vf_mul(vf_load(factor + 16 * half), vf_div(one, by));
        const vm seen = vm_not(vf_eq(by, vf_zero()));
        if (plain) {
            amx_tile_store(task, t, half, scale, seen);
            continue;
        }
        for (int64_t i = 0; i < call->p->d_v; i++) {
            vf o = vf_add(vf_load(t->state.o + amx_at(i, half)), vf_zero()); /* every zero becomes +0 */
            if (t->odd_seen) {
                o = vf_fma(o, grown, vf_load(t->odd_o + amx_at(i, half)));
                finite[half] = vm_and(finite[half], vf_finite(o));
            }
            vf_store(t->lanes.o + i * AMX_LANES + 16 * half, vf_keep(seen, vf_mul(o, scale)));
        }
    }
    if (plain)
        return false;
    const bool again = !call->shrink && tile_overflowed(&t->lanes, finite);
    tile_store(call, &t->lanes, &task->seq, task->w->buffer);
    return again;
}

/* Is it the last of its tile? */
static bool amx_item_is_last(const amx_item *item)
{
    return item->block + 1 == amx_blocks(item->tile->lanes.end_any);
}

/* Packs the blocks before `end` that are left, if this task is the owner, and says when all are. */
static void amx_task_pack(amx_task *task, int64_t end)
{
    const int64_t all = amx_blocks(task->seq.seqlen_k);
    if (task->owned == NULL || task->unpacked >= end)
        return;
    for (end = end < all ? end : all; task->unpacked < end; task->unpacked++)
        amx_pack_block(task->f, &task->seq, task->head_k, task->unpacked, task->first + task->unpacked);
    if (task->unpacked == all)
        __atomic_store_n(&task->owned->packed, true, __ATOMIC_SEQ_CST);
}

/* The next item: super-block by super-block, tile by tile, block by block. False at the end. */
static bool amx_task_find(amx_task *task, amx_item *item)
{
    for (; task->super < task->end; task->super += AMX_SUPER, task->tile = 0) {
        amx_task_pack(task, task->super + AMX_SUPER);
        for (; task->tile < task->tiles; task->tile++, task->block = 0) {
            amx_tile *t = &task->w->tiles[task->tile];
            int64_t begin = t->lanes.begin_any / AMX_BLOCK, end = amx_blocks(t->lanes.end_any);
            begin = begin < task->super ? task->super : begin;
            end = end > task->super + AMX_SUPER ? task->super + AMX_SUPER : end;
            begin = begin < task->block ? task->block : begin;
            if (begin < end) {
                const int64_t first = begin * AMX_BLOCK, unit = (t->lanes.begin_any - first) / 32;
                const int64_t last = (t->lanes.end_any - first + 31) / 32;
                *item = (amx_item){t, begin, unit < 0 ? 0 : unit, last > AMX_UNITS ? AMX_UNITS : last};
                task->block = begin + 1;
                return true;
            }
        }
    }
    return false;
}

/* The same, ready to be computed. */
static bool amx_task_next(amx_task *task, amx_item *item)
{
    if (!amx_task_find(task, item))
        return false;
    if (!item->tile->begun)
        amx_tile_queries(task, item->tile);
    if (amx_item_is_last(item))
        amx_ahead_begin(task, item->tile, &task->f->call.p->o, &task->o_ahead);
    return true;
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

/* Scores of a unit outside a lane's range become -inf, by selection. */
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
        for (int r = 0; r < 32; r++) {
            const __m512i key = _mm512_set1_epi32(r);
            __mmask16 before = _mm512_cmplt_epi32_mask(key, range[0]), past = _mm512_cmpge_epi32_mask(key, range[1]);
            _mm512_mask_storeu_ps(s + amx_at(r, half), (__mmask16)(before | past), vf_set1(-INFINITY));
        }
    }
}

/* What remains to do to the scores of a unit: odd numbers, hidden keys. */
static void amx_unit_modify(const amx_task *task, const amx_item *item, int64_t unit, float *s)
{
    const amx_tile *t = item->tile;
    const uint32_t odd_keys = task->f->marks[task->first + item->block].k[unit];
    const int64_t first = item->block * AMX_BLOCK + 32 * unit;
    if (t->odd_lanes || odd_keys)
        amx_odd_scores(&t->state, t->odd_lanes, amx_unit_keys(task, item, unit), odd_keys, task->f->steps_k, s);
    if (t->lanes.begin_all > first || first + 32 > t->lanes.end_all)
        amx_hide(&t->lanes, first, s);
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

/* Parts of a slot: scores of a unit, its softmax, and share [part, part + 1) / parts of the values of an item. */
static void amx_slot_scores(const amx_task *task, const amx_item *item, int64_t unit, float *s, amx_slot *slot)
{
    slot->k = amx_unit_keys(task, item, unit);
    slot->q = item->tile->state.q;
    slot->s_next = s;
}

static void amx_slot_softmax(const amx_task *task, const amx_item *item, int64_t unit, float *s, uint32_t *p,
                             amx_slot *slot)
{
    amx_tile *t = item->tile;
    if (!t->settled)
        t->settled = amx_settle(t->state.m, s, task->f->c);
    slot->m = t->state.m;
    slot->s_now = s;
    slot->p_now = p + unit * 512;
    slot->sum = task->w->sum;
}

static void amx_slot_values(const amx_task *task, const amx_item *item, int64_t part, int64_t parts, const uint32_t *p,
                            amx_slot *slot)
{
    const int64_t steps = task->f->steps_v;
    slot->v = task->f->v + (task->first + item->block) * AMX_BLOCK * steps * 32;
    slot->p_last = p;
    slot->o = item->tile->state.o;
    slot->column = steps * part / parts;
    slot->column_end = steps * (part + 1) / parts;
    slot->unit = item->unit;
    slot->unit_end = item->end;
    slot->fresh = item->tile->fresh;
}

/* A slot's share of the keys of the next super-block, which an owner is to pack: the last rows are there when the last tile
 * has done with this one. (Strided ones are not worth it.) */
static void amx_rows_ahead(amx_task *task, int64_t super)
{
    const kiln_attention_problem *p = task->f->call.p;
    const int64_t first = super * AMX_BLOCK, last = first + AMX_SUPER * AMX_BLOCK;
    const int64_t end = last < task->seq.seqlen_k ? last : task->seq.seqlen_k;
    if (p->k.stride[3] != 1 || p->v.stride[3] != 1)
        return;
    for (int64_t n = (32 + task->tiles - 1) / task->tiles; n > 0 && first + task->ahead_line < end; n--) {
        const int64_t key = first + task->ahead_line++;
        const char *k = key_row(p, &p->k, &task->seq, task->head_k, key);
        const char *v = key_row(p, &p->v, &task->seq, task->head_k, key);
        for (int64_t at = 0; at < 2 * p->d; at += 64)
            __builtin_prefetch(k + at, 0, 2);
        for (int64_t at = 0; at < 2 * p->d_v; at += 64)
            __builtin_prefetch(v + at, 0, 2);
    }
}

/* A slot's share of the packed keys of the next super-block, which the first tile would wait for: they come from a cache that
 * all share, or from memory. A line of each a group is all of them where a task has AMX_TILES tiles and d is d_v. */
static void amx_slot_keys_ahead(amx_task *task, int64_t steps, amx_slot *slot)
{
    const amx_call *f = task->f;
    const int64_t super = task->super + AMX_SUPER;
    if (super >= task->end)
        return;
    if (task->ahead_super != super) {
        task->ahead_super = super;
        task->ahead_line = 0;
    }
    if (task->owned != NULL) {
        amx_rows_ahead(task, super);
        return;
    }
    const int64_t blocks = task->end - super < AMX_SUPER ? task->end - super : AMX_SUPER;
    const int64_t lines = blocks * AMX_BLOCK * (f->steps_k < f->steps_v ? f->steps_k : f->steps_v);
    const int64_t left = lines - task->ahead_line, groups = amx_slot_groups(steps, slot);
    const int64_t key = (task->first + super) * AMX_BLOCK;
    slot->ahead[0] = (const char *)(f->k + key * f->steps_k * 32) + task->ahead_line * 64;
    slot->ahead[1] = (const char *)(f->v + key * f->steps_v * 32) + task->ahead_line * 64;
    slot->ahead_lines = left < groups ? left : groups;
    task->ahead_line += slot->ahead_lines;
}

/* Scores or softmax of a unit by themselves. */
static void amx_unit_scores(const amx_task *task, const amx_item *item, int64_t unit, float *s)
{
    amx_slot slot = {.k = NULL};
    amx_slot_scores(task, item, unit, s, &slot);
    (void)amx_slot_any(task->f->steps_k, &slot, 0);
    amx_unit_modify(task, item, unit, s);
}

/* The values of an item have joined its tile's O, once the accumulators `held` are stored. */
static void amx_item_end(amx_task *task, const amx_item *item, const uint32_t *p, float *held)
{
    if (held)
        amx_block_store(held);
    item->tile->fresh = false;
    amx_item_odd_values(task, item, p);
    if (amx_item_is_last(item)) {
        amx_flush(false);
        task->again |= amx_tile_end(task, item->tile);
        amx_flush(true);
    }
}

/* An item once more, since some lane's weights sum to too much: m moves, P and its sum are made anew. All earlier items of
 * the tile have joined O. */
static __attribute__((noinline)) void amx_item_again(const amx_task *task, const amx_item *item, uint32_t *p)
{
    const amx_call *f = task->f;
    amx_worker_memory *w = task->w;
    amx_tile *t = item->tile;
    const vf lowest = vf_set1(-INFINITY);
    vf max[2] = {lowest, lowest};
    float correction[AMX_LANES];
    for (int64_t unit = item->unit; unit < item->end; unit++) {
        amx_unit_scores(task, item, unit, w->again + unit * 32 * AMX_LANES);
        amx_maximum(w->again + unit * 32 * AMX_LANES, max);
    }
    amx_move_maximum(&t->state, max, f->c, w->sum, correction);
    if (!t->fresh)
        amx_rescale(t->state.o, f->steps_v * 32, correction);
    if (t->odd_seen) {
        amx_flush(false);
        amx_rescale(t->odd_o, f->steps_v * 32, correction);
        amx_flush(true);
    }
    memset(w->sum, 0, sizeof(float) * AMX_LANES);
    for (int64_t unit = item->unit; unit < item->end; unit++) {
        amx_slot slot = {.k = NULL};
        amx_slot_softmax(task, item, unit, w->again + unit * 32 * AMX_LANES, p, &slot);
        (void)amx_slot_any(0, &slot, f->c);
    }
}

/* The softmax of an item is done: its sum joins l. */
static void amx_item_join(const amx_task *task, const amx_item *item, uint32_t *p)
{
    float *l = item->tile->state.l, *sum = task->w->sum;
    if (amx_too_large(sum))
        amx_item_again(task, item, p);
    for (int half = 0; half < 2; half++) {
        vf_store(l + 16 * half, vf_add(vf_load(l + 16 * half), vf_load(sum + 16 * half)));
        vf_store(sum + 16 * half, vf_zero());
    }
}

/* Each slot: softmax of one unit, scores of the unit after it, and a share of the values of the item before. */
static void amx_task_items(amx_task *task)
{
    const amx_call *f = task->f;
    const int64_t bytes_q = 2 * f->call.p->d, bytes_o = kiln_type_size(f->call.p->o.type) * f->call.p->d_v;
    amx_worker_memory *w = task->w;
    amx_item last = {.tile = NULL}, now, next;
    float *held = NULL;
    int s = 0, p = 0;
    if (!amx_task_next(task, &now))
        return;
    memset(w->sum, 0, sizeof(float) * AMX_LANES);
    amx_unit_scores(task, &now, now.unit, w->s[s]);
    for (bool more = true; more; last = now, now = next, p = !p) {
        more = amx_task_next(task, &next);
        for (int64_t unit = now.unit; unit < now.end; unit++, s = !s) {
            const bool within = unit + 1 < now.end, scores = within || more;
            const amx_item *following = within ? &now : &next;
            const int64_t following_unit = within ? unit + 1 : next.unit;
            amx_slot slot = {.held = held};
            amx_ahead_some(&task->q_ahead, bytes_q, false);
            amx_ahead_some(&task->o_ahead, bytes_o, true);
            if (scores)
                amx_slot_scores(task, following, following_unit, w->s[!s], &slot);
            if (last.tile)
                amx_slot_values(task, &last, unit - now.unit, now.end - now.unit, w->p[!p], &slot);
            amx_slot_softmax(task, &now, unit, w->s[s], w->p[p], &slot);
            amx_slot_keys_ahead(task, scores ? f->steps_k : 0, &slot);
            held = amx_slot_start(scores ? f->steps_k : 0, &slot, f->c);
            if (scores)
                amx_unit_modify(task, following, following_unit, w->s[!s]);
        }
        if (last.tile)
            amx_item_end(task, &last, w->p[!p], held);
        held = NULL;
        amx_item_join(task, &now, w->p[p]);
    }
    amx_slot slot = {.k = NULL};
    amx_slot_values(task, &last, 0, 1, w->p[!p], &slot);
    held = amx_slot_any(0, &slot, 0);
    amx_item_end(task, &last, w->p[!p], held);
}

/* Tiles of a KV head, if the sequence is that long. */
typedef struct amx_part {
    int64_t tile, end;
} amx_part;

/* Computes a part; `first`: block of the workspace with the first keys of the head, which the task packs if it is the
 * `owner`. True: see tile_end(). */
static bool amx_run_task(const amx_call *f, int64_t head, amx_part part, int64_t first, bool owner,
                         amx_worker_memory *w)
{
    const kiln_attention_problem *p = f->call.p;
    amx_task task = {.f = f, .head_k = head % p->heads_k, .first = first, .w = w};
    task.seq = kiln_sequence_of(p, head / p->heads_k);
    const int64_t rows = task.seq.seqlen_q * f->group;
    task.super = INT64_MAX;
    task.owned = owner ? &f->heads[head] : NULL;
    for (; part.tile < part.end && part.tile * AMX_LANES < rows; part.tile++, task.tiles++) {
        amx_tile *t = &w->tiles[task.tiles];
        amx_tile_begin(&task, t, part.tile * AMX_LANES);
        int64_t begin = t->lanes.begin_any / AMX_BLOCK, end = amx_blocks(t->lanes.end_any);
        task.super = begin < task.super ? begin : task.super;
        task.end = end > task.end ? end : task.end;
    }
    amx_flush(true);
    amx_task_items(&task);
    amx_flush(false);
    amx_task_pack(&task, INT64_MAX);
    for (int64_t i = 0; i < task.tiles; i++)
        if (!w->tiles[i].ended) /* it sees no key */
            task.again |= amx_tile_end(&task, &w->tiles[i]);
    return task.again;
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
