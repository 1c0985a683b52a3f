/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_splitkv.inc.h: rung `splitkv` (flash-decoding): few queries, many keys.
 *
 * Since `flash2`: the keys are cut into pieces that are tasks of their own, so that one sequence fills a machine. Each
 * leaves a partial (m, l, O), and the worker that ends the last piece of a row joins them in their order: one parallel
 * region, nobody waits. A piece goes through attention_dot.inc.h, which keeps the head in lanes and streams K and V once for
 * all query heads of a group.
 * Contract: everything that kiln.h says about attention_forward, for any number of queries.
 *  - Pieces are SPLIT_KEYS keys from key 0 of the sequence on; with num_splits = n, ceil(seqlen_k / n) keys of the
 *    sequence, rounded up to KEY_BLOCK; with num_splits = 1 all keys. Never a matter of threads, batch or seqlen_q.
 *  - A piece that a row does not see at all leaves no trace in it. Sinks join at the end.
 *  - A row's bits depend on its q, the keys that it sees and the scalar arguments, with or without
 *    KILN_FLAG_BATCH_INVARIANT; with num_splits > 1 also on the number of keys of its sequence.
 * Auto takes this rung for at most SPLIT_MOST_ROWS rows a KV head (for a whole tile of them where flash2 would have few
 * tasks: it costs a tenth on one thread); beyond, flash2. That choice depends on seqlen_q, so
 * with KILN_FLAG_BATCH_INVARIANT auto is flash2 for every shape. The price: in decoding its lanes stand idle and the keys
 * are not cut. Whoever wants invariant bits from this rung names it, for prefill too.
 * Traffic, N keys: q and o once, K and V once per SPLIT_TILES·VF_LANES rows, partials written and read:
 * 8·rows·pieces·(d_v + 2). FLOPs: 2·rows·N·(d + d2 + d_v).
 * Workspace: 4·rows·pieces·(d_v rounded up to 16, + 16) bytes for partials, rows = all of q, pieces those of the longest
 * sequence possible; and workers · (a block of keys, tiles of two jobs): 0.3 MB each at d = 128.
 */
#include "attention_dot.inc.h"

enum {
    SPLIT_KEYS = 4 * KEY_BLOCK, /* of a piece: many tasks, yet small partials and long streams */
    SPLIT_TILES = 4,            /* tiles of VF_LANES rows of a task */
    SPLIT_MOST_ROWS =
        TILE_LANES * 3 / 4,           /* beyond, a whole tile of lanes pays, though some stay idle, unless one ... */
    SPLIT_FEW_HEADS = 16,             /* ... of each of so few KV heads is less than a machine has workers, ... */
    SPLIT_WORTH_KEYS = 4 * SPLIT_KEYS /* ... and there are pieces for them */
};

typedef struct split_call {
    attention_call call;    /* one vector of lanes a tile */
    int64_t group;          /* query heads of one KV head */
    int64_t chunks;         /* tasks that share a piece of keys: the rows of a KV head, SPLIT_TILES tiles each */
    int64_t pieces;         /* of the longest sequence */
    int64_t partial_floats; /* O, padded, then m and l */
    float *partials;        /* [batch, or 1 if packed][row of q][head][pieces][partial_floats] */
    float *memory;          /* of workers */
    int64_t worker_floats;
    int64_t tasks;
    int32_t workers;
    kiln_cpu_queue *queue;
    int32_t *left;    /* [batch][KV head][chunk]: pieces that are not done yet */
    bool *overflowed; /* some row: the join marks it, and it is computed once more */
} split_call;

/* Keys of a piece of a sequence; a multiple of KEY_BLOCK. */
static int64_t split_piece_keys(const kiln_attention_problem *p, int64_t seqlen_k)
{
    if (p->num_splits == 0)
        return SPLIT_KEYS;
    int64_t keys = round_up((seqlen_k + p->num_splits - 1) / p->num_splits, KEY_BLOCK);
    return keys > 0 ? keys : KEY_BLOCK;
}

/* Pieces of a sequence of at most `seqlen_k` keys. */
static int64_t split_pieces(const kiln_attention_problem *p, int64_t seqlen_k)
{
    const int64_t smallest = p->num_splits == 0 ? SPLIT_KEYS : KEY_BLOCK;
    int64_t pieces = (seqlen_k + smallest - 1) / smallest;
    pieces = p->num_splits > 0 && pieces > p->num_splits ? p->num_splits : pieces;
    return pieces > 0 ? pieces : 1;
}

/* What a worker does at a time: some pieces of the keys of one KV head against the rows of one chunk. */
typedef struct split_job {
    kiln_sequence seq;
    int64_t index; /* of the chunk, in left[] */
    int64_t head_k;
    int64_t piece, last; /* pieces [piece, last) */
    int64_t keys;        /* of a piece */
    int64_t from, to;    /* the keys of them that some row may see; from a multiple of KEY_BLOCK */
    int64_t count;
    tile *tiles;
    float *states; /* of each tile: q as dot_query() leaves it, o[VF_LANES][d_v padded to whole vectors], m, l */
} split_job;

/* Scratch of a worker: the job at hand and the next, whose keys are prefetched when those at hand run out. */
typedef struct split_scratch {
    attention_scratch shared;
    float *s; /* [VF_LANES][KEY_BLOCK] */
    split_job job[2];
    dot_keys *k, *v;
} split_scratch;

static int64_t split_state_floats(const attention_call *call)
{
    return round_up(VF_LANES * (buffer_stride(call->columns) + buffer_stride(call->p->d_v) + 2), 16);
}

static int64_t split_place(const attention_call *call, float *memory, split_scratch *scratch)
{
    int64_t used = scratch_place(call, memory, &scratch->shared);
    scratch->s = take(memory, &used, VF_LANES * KEY_BLOCK);
    for (int i = 0; i < 2; i++) {
        scratch->job[i].states = take(memory, &used, SPLIT_TILES * split_state_floats(call));
        scratch->job[i].tiles = (tile *)(void *)take(memory, &used, SPLIT_TILES * (int64_t)sizeof(tile) / 4);
    }
    scratch->k = (dot_keys *)(void *)take(memory, &used, (int64_t)sizeof(dot_keys) / 4);
    scratch->v = (dot_keys *)(void *)take(memory, &used, (int64_t)sizeof(dot_keys) / 4);
    return used;
}

/* Rows of q in memory, hence of partials: packed sequences lie behind each other. */
static int64_t split_rows(const kiln_attention_problem *p)
{
    return (kiln_view_present(&p->cu_seqlens_q) ? 1 : p->batch) * p->total_q;
}

/* Lays out the workspace and returns its bytes. Metadata only. */
static size_t split_layout(split_call *f, const kiln_attention_problem *p, char *workspace, int32_t workers)
{
    float *memory = workspace ? (float *)(void *)(workspace + sizeof(kiln_cpu_queue)) : NULL;
    split_scratch scratch;
    int64_t used = 0;
    f->call = call_of(p, p->heads / p->heads_k, workspace != NULL);
    f->call.nv = 1;
    f->call.nq = VF_LANES;
    f->group = p->heads / p->heads_k;
    f->chunks = (p->seqlen_q * f->group + SPLIT_TILES * VF_LANES - 1) / (SPLIT_TILES * VF_LANES);
    f->pieces = split_pieces(p, p->seqlen_k);
    f->partial_floats = round_up(p->d_v, 16) + 16;
    f->queue = (kiln_cpu_queue *)(void *)workspace;
    f->worker_floats = split_place(&f->call, NULL, &scratch);
    f->memory = take(memory, &used, workers * f->worker_floats);
    f->left = (int32_t *)(void *)take(memory, &used, p->batch * p->heads_k * f->chunks);
    f->partials = take(memory, &used, split_rows(p) * p->heads * f->pieces * f->partial_floats);
    return sizeof(kiln_cpu_queue) + sizeof(float) * (size_t)used;
}

static float *split_partial(const split_call *f, const kiln_sequence *seq, int64_t query, int64_t head, int64_t piece)
{
    const kiln_attention_problem *p = f->call.p;
    int64_t row = (seq->q_batch * p->total_q + seq->q_row + query) * p->heads + head;
    return f->partials + (row * f->pieces + piece) * f->partial_floats;
}

/* O of a partial is followed by its m and l; l = -1 says that the row sees no key of the piece, and O is not written. Behind
 * those of piece 0 stands whether the row overflowed: its partials, or their sum. */
static float *split_m(const split_call *f, float *partial)
{
    return partial + f->partial_floats - 16;
}

/* One row: the partials of its pieces in their order, the sink, the one final division. */
static void split_join(const split_call *f, const kiln_sequence *seq, int64_t query, int64_t head)
{
    const kiln_attention_problem *p = f->call.p;
    const int64_t keys = split_piece_keys(p, seq->seqlen_k), pieces = (seq->seqlen_k + keys - 1) / keys;
    const int64_t padded = buffer_stride(p->d_v);
    double top = -INFINITY, sink = -INFINITY, l = 0;
    float *partial = split_partial(f, seq, query, head, 0), *overflowed = split_m(f, partial) + 2;
    if (f->call.shrink && *overflowed == 0)
        return;
    for (int64_t n = 0; n < pieces; n++) {
        const float *m = split_m(f, partial + n * f->partial_floats);
        if (!(m[1] < 0) && m[0] > top) /* a NaN is left out here and shows in l */
            top = m[0];
    }
    if (kiln_view_present(&p->sinks)) {
        sink = kiln_load_double(view_row(&p->sinks, 0, head, 0), p->sinks.type, 0);
        top = sink > top ? sink : top;
    }
    const double shift = top == -INFINITY ? 0 : top;
    _Alignas(64) float o[576 + VF_LANES];
    for (int64_t c = 0; c < padded; c += VF_LANES)
        vf_store(o + c, vf_zero());
    for (int64_t n = 0; n < pieces; n++, partial += f->partial_floats) {
        const float *m = split_m(f, partial);
        if (m[1] < 0)
            continue;
        double w = exp(m[0] - shift);
        l += w * m[1];
        const vf weight = vf_set1(w < 0x1p-126 ? 0 : (float)w);
        for (int64_t c = 0; c < padded; c += VF_LANES)
            vf_store(o + c, vf_fma(weight, vf_load(partial + c), vf_load(o + c)));
    }
    if (kiln_view_present(&p->sinks))
        l += exp(sink - shift);
    if (kiln_view_present(&p->lse))
        *(float *)(void *)view_row(&p->lse, seq->q_batch, head, seq->q_row + query) =
            l == 0 ? -INFINITY : (float)(shift + log(l));
    const bool empty = l == 0; /* no visible key, or none with a score above -inf: o = 0 whatever V holds */
    const vf divisor = vf_set1((float)(l * p->dropout_threshold / 256));
    vm finite = vm_first(VF_LANES);
    for (int64_t c = 0; c < padded; c += VF_LANES) { /* +0: every zero is +0, whatever was skipped on the way */
        vf sum = empty ? vf_zero() : vf_load(o + c);
        finite = vm_and(finite, vf_finite(sum));
        vf_store(o + c, empty ? sum : vf_div(vf_add(sum, vf_zero()), divisor));
    }
    if (dot_paired(&p->v, 0))
        dot_unpair(o, p->d_v);
    char *row = view_row(&p->o, seq->q_batch, head, seq->q_row + query);
    if (f->call.shrink) {
        store_row_grown(p, row, o);
        return;
    }
    *overflowed = vm_all(finite) ? 0 : 1;
    if (*overflowed != 0)
        __atomic_store_n(f->overflowed, true, __ATOMIC_RELAXED);
    store_row(row, p->o.type, p->o.stride[3], p->d_v, o);
}

/* One block of keys, rows [range.begin, range.end), joins the state of one tile. */
static void split_step(const attention_call *call, tile *t, const kiln_sequence *seq, int64_t first, block_range range,
                       const split_scratch *scratch)
{
    const int64_t last = round_up(range.end, VF_LANES), rows = range.end - range.begin, key = first + range.begin;
    const int64_t d_v = call->p->d_v, ldo = buffer_stride(d_v);
    const score_scratch *scores = &scratch->shared.scores;
    float *s = scratch->s, *lanes = scratch->shared.s, corr[VF_LANES];
    const int64_t n = t->lanes;
    bool hidden = false;
    vf max;
    dot_scores(scratch->k, range.begin, last, t->q, n, s, call->columns);
    if (!scores_are_plain(call, t, key, key + rows)) {
        dot_to_lanes(s, range.begin, last, n, lanes);
        hidden = modify_scores(call, t, seq, key, rows, lanes, scores, &max);
        dot_of_lanes(s, range.begin, last, n, lanes);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = range.end; r < last; r++)
            s[i * KEY_BLOCK + r] = -INFINITY;
    dot_weights(s, range.begin, last, n, t->m, t->l, corr);
    if (call->p->dropout_threshold < 256) {
        dot_to_lanes(s, range.begin, last, n, lanes);
        drop_weights(call, t, seq, key, rows, lanes);
        dot_of_lanes(s, range.begin, last, n, lanes);
    }
    if (hidden && !dot_hidden_finite(scratch->v, range.begin, range.end, d_v, scores->visible))
        dot_values_select(scratch->v, range.begin, range.end, s, corr, t->o, ldo, n, d_v, scores->visible);
    else
        dot_values(scratch->v, range.begin, range.end, s, corr, t->o, ldo, n, d_v);
}

/* The rows of block `first` that a tile has to look at in the piece that ends at `end`: whole vectors at the front. */
static block_range split_range(const tile *t, int64_t first, int64_t end)
{
    block_range range = tile_block_range(t, first);
    range.begin = range.begin / VF_LANES * VF_LANES;
    range.end = range.end > end - first ? end - first : range.end;
    return range;
}

/* Gives the tile its arrays and its queries. `row` has place for one. */
static void split_query(const attention_call *call, tile *t, const kiln_sequence *seq, float *row, float *state)
{
    t->q = state;
    t->o = t->q + VF_LANES * buffer_stride(call->columns);
    t->m = t->o + VF_LANES * buffer_stride(call->p->d_v);
    t->l = t->m + VF_LANES;
    for (int64_t lane = 0; lane < t->lanes; lane++) {
        load_query(call, t, seq, lane, row);
        if (dot_paired(&call->p->k, call->p->d2))
            dot_pair(row, call->columns);
        dot_query(row, call->columns, lane, t->q);
    }
}

/* Nothing seen yet. */
static void split_clear(const attention_call *call, tile *t)
{
    memset(t->o, 0, sizeof(float) * (size_t)(t->lanes * buffer_stride(call->p->d_v)));
    vf_store(t->m, vf_set1(-INFINITY));
    vf_store(t->l, vf_zero());
}

/* Keeps the state of a tile as partials of a piece of keys [begin, end). */
static void split_keep(const split_call *f, const tile *t, const kiln_sequence *seq, int64_t piece, int64_t begin,
                       int64_t end)
{
    const int64_t ldo = buffer_stride(f->call.p->d_v);
    for (int64_t lane = 0; lane < t->lanes; lane++) {
        float *partial = split_partial(f, seq, t->query[lane], t->head[lane], piece), *m = split_m(f, partial);
        const bool sees = t->begin[lane] < end && begin < t->end[lane] && t->begin[lane] < t->end[lane];
        m[0] = t->m[lane];
        m[1] = sees ? t->l[lane] : -1;
        if (sees)
            memcpy(partial, t->o + lane * ldo, sizeof(float) * (size_t)ldo);
    }
}

/* Fills `job` with tasks [t, end), or those of the first chunk among them. Returns where the next job begins. A job of no
 * rows or no keys has count 0. */
static int64_t split_prepare(const split_call *f, int64_t t, int64_t end, const split_scratch *scratch, split_job *job)
{
    const attention_call *call = &f->call;
    const kiln_attention_problem *p = call->p;
    job->index = t / f->pieces;
    const int64_t heads = job->index / f->chunks, b = heads / p->heads_k, chunk = job->index % f->chunks;
    const int64_t first = job->index * f->pieces, stop = end - first < f->pieces ? end - first : f->pieces;
    job->seq = kiln_sequence_of(p, b);
    job->head_k = heads % p->heads_k;
    job->keys = split_piece_keys(p, job->seq.seqlen_k);
    job->piece = t - first;
    job->last = (job->seq.seqlen_k + job->keys - 1) / job->keys;
    job->last = job->last < 1 ? 1 : job->last < stop ? job->last : stop;
    job->count = 0;
    if (job->piece >= job->last)
        return first + stop;
    const int64_t rows = job->seq.seqlen_q * f->group, row = chunk * SPLIT_TILES * VF_LANES;
    int64_t from = INT64_MAX, to = 0;
    for (; job->count < SPLIT_TILES && row + job->count * VF_LANES < rows; job->count++) {
        tile *one = &job->tiles[job->count];
        tile_lanes(call, one, &job->seq, b, job->head_k * f->group, f->group, row + job->count * VF_LANES);
        split_query(call, one, &job->seq, scratch->shared.buffer, job->states + job->count * split_state_floats(call));
        from = one->begin_any < from ? one->begin_any : from;
        to = one->end_any > to ? one->end_any : to;
    }
    from = from / KEY_BLOCK * KEY_BLOCK;
    job->from = from > job->piece * job->keys ? from : job->piece * job->keys;
    job->to = to < job->last * job->keys ? to : job->last * job->keys;
    return first + stop;
}

/* Takes the tiles of a job through a block of the piece that ends at `end`. `next` (may be NULL) is the block after it. */
static void split_block(const split_call *f, const split_job *job, int64_t first, int64_t end, const dot_block *next,
                        const split_scratch *scratch)
{
    const kiln_attention_problem *p = f->call.p;
    const dot_block block = {&job->seq, job->head_k, first, job->index};
    block_range range[SPLIT_TILES], all = {KEY_BLOCK, 0};
    for (int64_t i = 0; i < job->count; i++) {
        range[i] = split_range(&job->tiles[i], first, end);
        if (range[i].begin < range[i].end) {
            all.begin = range[i].begin < all.begin ? range[i].begin : all.begin;
            all.end = range[i].end > all.end ? range[i].end : all.end;
        }
    }
    if (all.begin >= all.end)
        return;
    dot_load(p, &p->k, p->d, &p->k2, p->d2, &block, all.begin, all.end, next, false, scratch->shared.k, scratch->k);
    dot_load(p, &p->v, p->d_v, NULL, 0, &block, all.begin, all.end, next, f->call.shrink, scratch->shared.v,
             scratch->v);
    for (int64_t i = 0; i < job->count; i++)
        if (range[i].begin < range[i].end)
            split_step(&f->call, &job->tiles[i], &job->seq, first, range[i], scratch);
}

/* Does a job, and joins the pieces of its rows if it did the last of them. `next` (may be NULL) is the job after it. */
static void split_do(const split_call *f, const split_job *job, const split_job *next, const split_scratch *scratch)
{
    const kiln_sequence *seq = &job->seq;
    for (int64_t piece = job->piece; piece < job->last; piece++) {
        const int64_t begin = piece * job->keys, rest = seq->seqlen_k - begin;
        const int64_t end = rest < job->keys ? seq->seqlen_k : begin + job->keys, to = end < job->to ? end : job->to;
        for (int64_t i = 0; i < job->count; i++)
            split_clear(&f->call, &job->tiles[i]);
        for (int64_t first = begin > job->from ? begin : job->from; first < to; first += KEY_BLOCK) {
            dot_block after = {seq, job->head_k, first + KEY_BLOCK, job->index};
            bool more = after.first < job->to;
            if (!more && next && next->from < next->to) {
                after = (dot_block){&next->seq, next->head_k, next->from, next->index};
                more = true;
            }
            split_block(f, job, first, end, more ? &after : NULL, scratch);
        }
        for (int64_t i = 0; i < job->count; i++)
            split_keep(f, &job->tiles[i], seq, piece, begin, end);
    }
    const int32_t done = (int32_t)(job->last - job->piece);
    if (__atomic_sub_fetch(&f->left[job->index], done, __ATOMIC_ACQ_REL) > 0)
        return;
    for (int64_t i = 0; i < job->count; i++)
        for (int64_t lane = 0; lane < job->tiles[i].lanes; lane++)
            split_join(f, seq, job->tiles[i].query[lane], job->tiles[i].head[lane]);
}

/* Tasks [begin, end) that a worker has drawn. */
typedef struct split_tasks {
    int64_t begin, end;
} split_tasks;

/* The next job of a worker. Workers draw many tasks at first, one in the end: neighbouring pieces of a head, whose keys
 * follow each other in memory, and all workers are done at the same time. */
static bool split_draw(const split_call *f, split_tasks *drawn, const split_scratch *scratch, split_job *job)
{
    for (;;) {
        while (drawn->begin < drawn->end) {
            drawn->begin = split_prepare(f, drawn->begin, drawn->end, scratch, job);
            if (job->count > 0)
                return true;
        }
        int64_t begin = __atomic_load_n(&f->queue->next, __ATOMIC_RELAXED), count;
        do {
            if (begin >= f->tasks)
                return false;
            count = (f->tasks - begin) / (2 * f->workers);
            count = count < 1 ? 1 : count;
        } while (!__atomic_compare_exchange_n(&f->queue->next, &begin, begin + count, true, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
        *drawn = (split_tasks){begin, begin + count};
    }
}

static void split_worker(void *arg, int32_t worker)
{
    const split_call *f = arg;
    split_scratch scratch;
    split_tasks drawn = {0, 0};
    (void)split_place(&f->call, f->memory + worker * f->worker_floats, &scratch);
    dot_clear(scratch.k);
    dot_clear(scratch.v);
    int at = 0;
    for (bool more = split_draw(f, &drawn, &scratch, &scratch.job[0]), next; more; more = next, at = !at) {
        next = split_draw(f, &drawn, &scratch, &scratch.job[!at]);
        split_do(f, &scratch.job[at], next ? &scratch.job[!at] : NULL, &scratch);
    }
}

static void split_run_once(const kiln_cpu *cpu, split_call *f)
{
    const kiln_attention_problem *p = f->call.p;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t seqlen_k = kiln_sequence_of(p, b).seqlen_k, keys = split_piece_keys(p, seqlen_k);
        const int64_t pieces = seqlen_k > 0 ? (seqlen_k + keys - 1) / keys : 1;
        for (int64_t i = 0; i < p->heads_k * f->chunks; i++)
            f->left[b * p->heads_k * f->chunks + i] = (int32_t)pieces;
    }
    f->queue->next = 0;
    kiln_cpu_parallel(cpu, f->workers, split_worker, f);
}

static void split_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    split_call f;
    (void)split_layout(&f, p, workspace, workers);
    f.tasks = p->batch * p->heads_k * f.chunks * f.pieces;
    f.workers = f.tasks < workers ? (int32_t)f.tasks : workers;
    if (f.tasks == 0)
        return;
    bool overflowed = false;
    f.overflowed = &overflowed;
    split_run_once(cpu, &f);
    if (overflowed) {
        f.call = shrunk_call(&f.call);
        split_run_once(cpu, &f);
    }
}

static size_t split_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    split_call f;
    (void)cpu;
    return split_layout(&f, &problem->attention, NULL, workers);
}

static bool split_supports(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap)
{
    const kiln_attention_problem *p = &problem->attention;
    const int64_t limit = (int64_t)1 << 48; /* partials: 2^60 bytes */
    if (!attention_supports(cpu, problem, why, cap))
        return false;
    if (split_rows(p) > 0 && split_pieces(p, p->seqlen_k) > limit / split_rows(p) / p->heads)
        return snprintf(why, cap,
                        "q has %lld rows and seqlen_k is %lld; splitkv keeps a partial result of every row for every "
                        "%d keys and allows 2^48 of them",
                        (long long)split_rows(p), (long long)p->seqlen_k, (int)SPLIT_KEYS),
               false;
    return true;
}

static bool split_prefers(const kiln_problem *problem)
{
    const kiln_attention_problem *p = &problem->attention;
    const int64_t group = p->heads / p->heads_k;
    if (p->flags & KILN_FLAG_BATCH_INVARIANT)
        return false;
    return p->seqlen_q <= SPLIT_MOST_ROWS / group ||
           (p->seqlen_q <= TILE_LANES / group && p->batch * p->heads_k < SPLIT_FEW_HEADS &&
            p->seqlen_k >= SPLIT_WORTH_KEYS);
}

/* attention_numerics() covers it: with B blocks a piece and S pieces a chain is KEY_BLOCK + B - 1 + S deep, the first
 * term of each sum being exact, and B - 1 + S <= B·S, the number of tiles. The join is the one rise that the oracle
 * grants; its weights are exact but for their rounding to fp32. Dot products are shorter chains than d. */
static const kiln_cpu_kernel attention_forward_splitkv = {
    .op = KILN_OP_ATTENTION_FORWARD,
    .algorithm = "splitkv",
    .name = KILN_CPU_NAME("attention_forward_splitkv"),
    .supports = split_supports,
    .prefers = split_prefers,
    .workspace = split_workspace,
    .run = split_run,
    .numerics = attention_numerics,
};
