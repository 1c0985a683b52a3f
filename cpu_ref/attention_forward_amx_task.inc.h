/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_amx_task.inc.h: one task of attention_forward_flash2_amx.inc.h: some tiles of queries of a KV head go
 * through the keys, which the task packs if it owns the head. Items of a tile and a block of keys follow each other in a
 * pipeline of slots (attention_amx_step.inc.h).
 */
#ifndef KILN_CPU_REF_ATTENTION_FORWARD_AMX_TASK_INC_H
#define KILN_CPU_REF_ATTENTION_FORWARD_AMX_TASK_INC_H

#include "attention_forward_amx_call.inc.h"

/* An item of the pipeline: a tile and the units of a block that some of its lanes see. */
typedef struct amx_item {
    amx_tile *tile;
    int64_t block;     /* of the sequence */
    int64_t unit, end; /* of the block */
} amx_item;

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

#endif
