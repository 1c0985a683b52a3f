/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_forward_splitkv.inc.h: rung `splitkv` (flash-decoding): few queries, many keys.
 *
 * Since `flash2`: the keys are cut into pieces that are tasks of their own, so that one sequence fills a machine; each
 * leaves a partial (m, l, O) and a second parallel pass joins them in their order. A piece goes through
 * attention_dot.inc.h, which keeps the head in lanes and streams K and V once for all query heads of a group.
 * Contract: everything that kiln.h says about attention_forward, for any number of queries.
 *  - Pieces are SPLIT_KEYS keys from key 0 of the sequence on; with num_splits = n, ceil(seqlen_k / n) keys of the
 *    sequence, rounded up to KEY_BLOCK; with num_splits = 1 all keys. Never a matter of threads, batch or seqlen_q.
 *  - A piece that a row does not see at all leaves no trace in it. Sinks join at the end.
 *  - A row's bits depend on its q, the keys that it sees and the scalar arguments, with or without
 *    KILN_FLAG_BATCH_INVARIANT; with num_splits > 1 also on the number of keys of its sequence.
 * Auto takes this rung for at most SPLIT_MOST_ROWS rows a KV head; beyond, flash2. That choice depends on seqlen_q, so
 * with KILN_FLAG_BATCH_INVARIANT auto is flash2 for every shape. The price: in decoding its lanes stand idle and the keys
 * are not cut. Whoever wants invariant bits from this rung names it, for prefill too.
 * Traffic, N keys: q and o once, K and V once per SPLIT_TILES·VF_LANES rows, partials written and read:
 * 8·rows·pieces·(d_v + 2). FLOPs: 2·rows·N·(d + d2 + d_v).
 * Workspace: 4·rows·pieces·(d_v rounded up to 16, + 16) bytes for partials, rows = all of q, pieces those of the longest
 * sequence possible; and workers · (a block of keys, tiles): 0.25 MB each at d = 128.
 */
#include "attention_dot.inc.h"

enum {
    SPLIT_KEYS = 4 * KEY_BLOCK,          /* of a piece: many tasks, yet small partials and long streams */
    SPLIT_TILES = 4,                     /* tiles of VF_LANES rows of a task */
    SPLIT_MOST_ROWS = TILE_LANES * 3 / 4 /* from here on a whole tile of lanes pays, though some stay idle */
};

typedef struct split_call {
    attention_call call; /* one vector of lanes a tile */
    int64_t group;       /* query heads of one KV head */
    int64_t chunks;      /* tasks that share a piece of keys: the rows of a KV head, SPLIT_TILES tiles each */
    int64_t pieces;      /* of the longest sequence */
    int64_t longest_q;
    int64_t partial_floats; /* O, padded, then m and l */
    float *partials;        /* [batch, or 1 if packed][row of q][head][pieces][partial_floats] */
    float *memory;          /* of workers */
    int64_t worker_floats;
    kiln_cpu_queue *queue;
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

/* Scratch of a worker. Rows of a tile's q and o are padded to whole vectors: q[VF_LANES][...], o[VF_LANES][...]. */
typedef struct split_scratch {
    attention_scratch shared;
    float *s; /* [VF_LANES][KEY_BLOCK] */
    float *states;
    tile *tiles;
    dot_keys *k, *v;
} split_scratch;

static int64_t split_state_floats(const attention_call *call)
{
    return VF_LANES * (buffer_stride(call->columns) + buffer_stride(call->p->d_v) + 2);
}

static int64_t split_place(const attention_call *call, float *memory, split_scratch *scratch)
{
    int64_t used = scratch_place(call, memory, &scratch->shared);
    scratch->s = take(memory, &used, VF_LANES * KEY_BLOCK);
    scratch->states = take(memory, &used, SPLIT_TILES * round_up(split_state_floats(call), 16));
    scratch->tiles = (tile *)(void *)take(memory, &used, SPLIT_TILES * (int64_t)sizeof(tile) / 4);
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
    f->pieces = split_pieces(p, p->seqlen_k);
    f->partial_floats = round_up(p->d_v, 16) + 16;
    f->queue = (kiln_cpu_queue *)(void *)workspace;
    f->worker_floats = split_place(&f->call, NULL, &scratch);
    f->memory = take(memory, &used, workers * f->worker_floats);
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
    const int64_t n = dot_padded(t->lanes);
    bool hidden = false;
    vf max;
    dot_scores(scratch->k, range.begin, last, t->q, buffer_stride(call->columns), n, s, call->columns);
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

static void split_begin(const attention_call *call, tile *t, const kiln_sequence *seq, float *state)
{
    const int64_t ldq = buffer_stride(call->columns);
    t->q = state;
    t->o = t->q + VF_LANES * ldq;
    t->m = t->o + VF_LANES * buffer_stride(call->p->d_v);
    t->l = t->m + VF_LANES;
    memset(t->q, 0, sizeof(float) * (size_t)(dot_padded(t->lanes) * ldq));
    for (int64_t lane = 0; lane < t->lanes; lane++)
        load_query(call, t, seq, lane, t->q + lane * ldq);
    memset(t->o, 0, sizeof(float) * (size_t)(VF_LANES * buffer_stride(call->p->d_v)));
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

/* One piece of the keys of one KV head against the rows of one chunk. */
static void split_task(const split_call *f, int64_t b, int64_t head_k, int64_t chunk, int64_t piece,
                       const split_scratch *scratch)
{
    const attention_call *call = &f->call;
    const kiln_attention_problem *p = call->p;
    const kiln_sequence seq = kiln_sequence_of(p, b);
    const int64_t rows = seq.seqlen_q * f->group, row = chunk * SPLIT_TILES * VF_LANES;
    const int64_t keys = split_piece_keys(p, seq.seqlen_k), begin = piece * keys;
    const int64_t end = seq.seqlen_k - begin < keys ? seq.seqlen_k : begin + keys;
    if (row >= rows || (begin >= end && piece > 0))
        return;
    tile *tiles = scratch->tiles;
    int64_t n = 0, from = INT64_MAX, to = 0;
    for (; n < SPLIT_TILES && row + n * VF_LANES < rows; n++) {
        tile *t = &tiles[n];
        tile_lanes(call, t, &seq, b, head_k * f->group, f->group, row + n * VF_LANES);
        split_begin(call, t, &seq, scratch->states + n * round_up(split_state_floats(call), 16));
        from = t->begin_any < from ? t->begin_any : from;
        to = t->end_any > to ? t->end_any : to;
    }
    from = from > begin ? from : begin;
    to = to < end ? to : end;
    for (int64_t first = from / KEY_BLOCK * KEY_BLOCK; first < to; first += KEY_BLOCK) {
        block_range all = {KEY_BLOCK, 0};
        for (int64_t i = 0; i < n; i++) {
            block_range range = split_range(&tiles[i], first, end);
            if (range.begin < range.end) {
                all.begin = range.begin < all.begin ? range.begin : all.begin;
                all.end = range.end > all.end ? range.end : all.end;
            }
        }
        if (all.begin >= all.end)
            continue;
        dot_load(p, &p->k, p->d, &p->k2, p->d2, &seq, head_k, first, all.begin, all.end, false, scratch->shared.k,
                 scratch->k);
        dot_load(p, &p->v, p->d_v, NULL, 0, &seq, head_k, first, all.begin, all.end, call->shrink, scratch->shared.v,
                 scratch->v);
        for (int64_t i = 0; i < n; i++) {
            block_range range = split_range(&tiles[i], first, end);
            if (range.begin < range.end)
                split_step(call, &tiles[i], &seq, first, range, scratch);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const tile *t = &tiles[i];
        split_keep(f, t, &seq, piece, begin, end);
        for (int64_t lane = 0; lane < t->lanes && f->pieces == 1; lane++)
            split_join(f, &seq, t->query[lane], t->head[lane]);
    }
}

/* Pieces of a head follow each other, so that workers stream neighbouring memory. */
static void split_worker(void *arg, int32_t worker)
{
    const split_call *f = arg;
    const kiln_attention_problem *p = f->call.p;
    const int64_t count = p->batch * p->heads_k * f->chunks * f->pieces;
    split_scratch scratch;
    (void)split_place(&f->call, f->memory + worker * f->worker_floats, &scratch);
    for (int64_t t; (t = kiln_cpu_next(f->queue)) < count;) {
        int64_t rest = t / f->pieces, piece = t % f->pieces, chunk = rest % f->chunks;
        rest /= f->chunks;
        split_task(f, rest / p->heads_k, rest % p->heads_k, chunk, piece, &scratch);
    }
}

static void split_join_task(void *arg, int64_t task)
{
    const split_call *f = arg;
    const int64_t head = task % f->call.p->heads, rest = task / f->call.p->heads, query = rest % f->longest_q;
    const kiln_sequence seq = kiln_sequence_of(f->call.p, rest / f->longest_q);
    if (query < seq.seqlen_q)
        split_join(f, &seq, query, head);
}

static void split_run_once(const kiln_cpu *cpu, split_call *f, int64_t rows, int32_t workers)
{
    f->queue->next = 0;
    kiln_cpu_parallel(cpu, workers, split_worker, f);
    if (f->pieces > 1)
        rows_parallel(cpu, rows_workers(rows, f->pieces * f->call.p->d_v, workers), rows, split_join_task, f);
}

static void split_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers)
{
    const kiln_attention_problem *p = &problem->attention;
    split_call f;
    (void)split_layout(&f, p, workspace, workers);
    f.longest_q = longest_seqlen_q(p);
    const int64_t rows = p->batch * p->heads * f.longest_q, chunk = SPLIT_TILES * VF_LANES;
    if (rows == 0)
        return;
    f.chunks = (f.longest_q * f.group + chunk - 1) / chunk;
    bool overflowed = false;
    f.overflowed = &overflowed;
    split_run_once(cpu, &f, rows, workers);
    if (overflowed) {
        f.call = shrunk_call(&f.call);
        split_run_once(cpu, &f, rows, workers);
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
    return !(p->flags & KILN_FLAG_BATCH_INVARIANT) && p->seqlen_q <= SPLIT_MOST_ROWS / group;
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
