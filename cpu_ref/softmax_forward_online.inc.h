/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * softmax_forward_online.inc.h: rung `online`, the online normaliser of Milakov and Gimelshein (2018): one pass over
 * (maximum, sum), then write. What changed from `three_pass`: the maximum is that of a chunk in L1 and sums are rescaled when
 * chunks are joined, so memory is read once less.
 *
 * Contract: any types, strides and sizes. Traffic per element: 1 read, 1 write for rows of up to SOFTMAX_KEEP elements, whose
 * exponentials a worker keeps until the row is closed (one row of fp32 a worker in the workspace, in its caches; where that is
 * more than its second cache, all workers share each row);
 * 2 reads, 1 write for longer ones, the second read from whatever cache holds a row. 1 exponential an element (longer
 * rows: 2) and 3 a chunk.
 *
 * While chunk c of a row passes for the first time, chunk c of the row before is written: the memory has the same work all
 * the time.
 */
#include "softmax_forward.inc.h"

static inline bool softmax_online_keeps(const kiln_softmax_problem *p)
{
    return p->n > SOFTMAX_CHUNK && p->n <= SOFTMAX_KEEP && p->y.type != 0;
}

static inline int64_t softmax_kept_floats(const kiln_softmax_problem *p)
{
    return (p->n + SOFTMAX_CHUNK - 1) / SOFTMAX_CHUNK * SOFTMAX_CHUNK + SOFTMAX_LINE / 4;
}

static softmax_state softmax_online_chunk(const kiln_softmax_problem *p, int64_t r, int64_t c, float *buffer, bool keep,
                                          softmax_output *out)
{
    softmax_block x;
    softmax_block_set(&x, p, &p->x, r, 1, c);
    float m = softmax_chunk_load(p, &x, buffer);
    return (softmax_state){m, softmax_chunk_exp(p, buffer, &x, NULL, m, keep, out)};
}

static void softmax_online_rows(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    const kiln_softmax_problem *p = call->p;
    const bool write = p->y.type != 0, keep = call->kept != NULL, parts = p->n <= SOFTMAX_KEEP;
    float *kept = keep ? call->kept + worker * softmax_kept_floats(p) : NULL;
    softmax_state part[SOFTMAX_KEEP_CHUNKS];
    softmax_row before = {0};
    softmax_buffer buffer;
    softmax_output out;
    softmax_output_open(&out, call->streams);
    for (int64_t r = begin; r < end + write; r++) {
        softmax_state total = {0}, unit = {0}, chunk;
        for (int64_t c = 0; c < call->chunks; c++) {
            float *at = keep ? kept + c * SOFTMAX_CHUNK : buffer.element;
            if (write && r > begin)
                softmax_chunk_write(call, r - 1, c, before, parts ? &part[c] : NULL, keep ? at : NULL, &out);
            if (r == end)
                continue;
            chunk = softmax_online_chunk(p, r, c, at, keep && !softmax_is_log(p), &out);
            if (parts)
                part[c] = chunk;
            if (softmax_join(&unit, chunk, c, call->chunks))
                total = c < SOFTMAX_UNIT ? unit : softmax_merge(total, unit);
        }
        if (r < end)
            before = softmax_close_row(p, r, total);
    }
    softmax_output_close(&out);
}

static void softmax_online_parts(void *arg, int32_t worker, int64_t begin, int64_t end)
{
    const softmax_forward_call *call = arg;
    softmax_buffer buffer;
    softmax_output out;
    (void)worker;
    softmax_output_open(&out, false);
    for (int64_t task = begin; task < end; task++)
        call->part[task] =
            softmax_online_chunk(call->p, task / call->chunks, task % call->chunks, buffer.element, false, &out);
}

/*
 * Rows of which a worker's second cache would not hold the exponentials: all workers share each row, every one of them the same
 * units of all rows, and come back to write theirs `lag` rows later, from their caches. Who takes in the last units of a row
 * closes it. A worker that comes to a row which is not closed yet looks again while others are at work, about a millisecond at
 * most, and then leaves; the loop over the workers begins anew where each of them stands. So nobody depends on one that does not
 * run, be it that workers run one after another.
 */
enum { SOFTMAX_LOOKS = 20000 };

typedef struct softmax_shared {
    softmax_forward_call *call; /* kept, part and row: of `lag` rows, in turn */
    softmax_state *unit;        /* lag·units */
    int64_t *closed;            /* [lag]: the row closed last, plus 1 */
    int64_t *left;              /* [lag]: workers that have yet to take in their units of the row at hand */
    int64_t *next;              /* of each worker: the row at which it stands */
    int64_t *inside;            /* workers that have not left the loop */
    int64_t lag, units;
    int32_t workers;
} softmax_shared;

static bool softmax_shared_closed(const softmax_shared *shared, int64_t r)
{
    for (int look = 0; look < SOFTMAX_LOOKS; look++) {
        const bool alone =
            __atomic_load_n(shared->inside, __ATOMIC_ACQUIRE) <= 1; /* then it has closed what it could */
        if (__atomic_load_n(&shared->closed[r % shared->lag], __ATOMIC_ACQUIRE) > r)
            return true;
        if (alone)
            return false;
        vf_pause();
    }
    return false;
}

/* Worker `worker` took in its units of row r. */
static void softmax_shared_leave(const softmax_shared *shared, int64_t r)
{
    const int64_t slot = r % shared->lag;
    if (__atomic_sub_fetch(&shared->left[slot], 1, __ATOMIC_ACQ_REL) > 0)
        return;
    softmax_state total = shared->unit[slot * shared->units];
    for (int64_t u = 1; u < shared->units; u++)
        total = softmax_merge(total, shared->unit[slot * shared->units + u]);
    shared->call->row[slot] = softmax_close_row(shared->call->p, r, total);
    shared->left[slot] = shared->workers;
    __atomic_store_n(&shared->closed[slot], r + 1, __ATOMIC_RELEASE);
}

static void softmax_shared_worker(void *arg, int32_t worker)
{
    const softmax_shared *shared = arg;
    const softmax_forward_call *call = shared->call;
    const kiln_softmax_problem *p = call->p;
    const int64_t begin = shared->units * worker / shared->workers * SOFTMAX_UNIT;
    int64_t end = shared->units * (worker + 1) / shared->workers * SOFTMAX_UNIT, r = shared->next[worker];
    end = end < call->chunks ? end : call->chunks;
    softmax_output out;
    softmax_output_open(&out, call->streams);
    __atomic_add_fetch(shared->inside, 1, __ATOMIC_ACQ_REL);
    for (; r < p->rows + shared->lag; r++) {
        const int64_t slot = r % shared->lag, before = r - shared->lag;
        const bool write = before >= 0 && before < p->rows;
        softmax_state unit = {0};
        if (write && !softmax_shared_closed(shared, before))
            break;
        for (int64_t c = begin; c < end; c++) {
            float *at = call->kept + slot * softmax_kept_floats(p) + c * SOFTMAX_CHUNK;
            softmax_state *part = &call->part[slot * call->chunks + c];
            if (write)
                softmax_chunk_write(call, before, c, call->row[slot], part, at, &out);
            if (r >= p->rows)
                continue;
            *part = softmax_online_chunk(p, r, c, at, !softmax_is_log(p), &out);
            if (softmax_join(&unit, *part, c, call->chunks))
                shared->unit[slot * shared->units + c / SOFTMAX_UNIT] = unit;
        }
        if (r < p->rows)
            softmax_shared_leave(shared, r);
    }
    shared->next[worker] = r;
    __atomic_sub_fetch(shared->inside, 1, __ATOMIC_ACQ_REL);
    softmax_output_close(&out);
}

/* Lays out the workspace (NULL: only counts) and returns its bytes. */
static size_t softmax_shared_place(softmax_shared *shared, char *workspace)
{
    softmax_forward_call *call = shared->call;
    const int64_t kept = shared->lag * softmax_kept_floats(call->p) * (int64_t)sizeof(float); /* whole lines */
    const int64_t parts = shared->lag * call->chunks * (int64_t)sizeof(softmax_state);
    const int64_t units = shared->lag * shared->units * (int64_t)sizeof(softmax_state);
    const int64_t rows = shared->lag * (int64_t)sizeof(softmax_row), words = 2 * shared->lag + shared->workers + 1;
    if (workspace) {
        call->kept = (float *)(void *)workspace;
        call->part = (softmax_state *)(void *)(workspace + kept);
        shared->unit = (softmax_state *)(void *)(workspace + kept + parts);
        call->row = (softmax_row *)(void *)(workspace + kept + parts + units);
        shared->closed = (int64_t *)(void *)(workspace + kept + parts + units + rows);
        shared->left = shared->closed + shared->lag;
        shared->next = shared->left + shared->lag;
        shared->inside = shared->next + shared->workers;
    }
    return (size_t)(kept + parts + units + rows + words * (int64_t)sizeof(int64_t));
}

/* Are rows shared? Where a worker's second cache does not hold one, but its share of two. Changes no bit. */
static bool softmax_shared_fits(const kiln_cpu *cpu, softmax_forward_call *call, int32_t workers,
                                softmax_shared *shared)
{
    const kiln_softmax_problem *p = call->p;
    const int64_t row = softmax_kept_floats(p) * (int64_t)sizeof(float), lag = cpu->l2_bytes / 4 * workers / row;
    *shared = (softmax_shared){.call = call, .units = softmax_units(call->chunks), .workers = workers};
    shared->lag = lag < 2 ? 2 : lag < p->rows ? lag : p->rows < 2 ? 2 : p->rows;
    return softmax_online_keeps(p) && row > cpu->l2_bytes / 2 && 2 * row / workers <= cpu->l2_bytes / 2;
}

static void softmax_shared_run(const kiln_cpu *cpu, softmax_shared *shared, void *workspace)
{
    (void)softmax_shared_place(shared, workspace);
    for (int64_t i = 0; i < shared->lag; i++) {
        shared->closed[i] = 0;
        shared->left[i] = shared->workers;
    }
    *shared->inside = 0;
    memset(shared->next, 0, (size_t)shared->workers * sizeof *shared->next);
    for (int64_t least = 0; least < shared->call->p->rows + shared->lag;) {
        kiln_cpu_parallel(cpu, shared->workers, softmax_shared_worker, shared);
        least = INT64_MAX;
        for (int32_t w = 0; w < shared->workers; w++)
            least = shared->next[w] < least ? shared->next[w] : least;
    }
}

static size_t softmax_forward_online_workspace(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    softmax_forward_call call = {.p = p, .chunks = softmax_chunks(p)};
    softmax_shared shared;
    if (softmax_shared_fits(cpu, &call, workers, &shared))
        return softmax_shared_place(&shared, NULL);
    if (softmax_cut_rows(p, workers))
        return softmax_forward_cut_workspace(p);
    int64_t most = p->rows < workers ? p->rows : workers;
    return softmax_online_keeps(p) ? (size_t)most * (size_t)softmax_kept_floats(p) * sizeof(float) : 0;
}

static void softmax_forward_online_run(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace,
                                       int32_t workers)
{
    const kiln_softmax_problem *p = &problem->softmax;
    int32_t useful = rows_workers(p->rows, p->n, workers);
    bool cut = softmax_cut_rows(p, workers);
    softmax_forward_call call = softmax_forward_call_of(p, workspace, cut);
    softmax_shared shared;
    if (softmax_shared_fits(cpu, &call, workers, &shared)) {
        softmax_shared_run(cpu, &shared, workspace);
        return;
    }
    if (!cut) {
        call.kept = softmax_online_keeps(p) ? workspace : NULL;
        softmax_parallel_rows(cpu, p, useful, call.streams, call.chunks == 1 ? softmax_short(p) : softmax_online_rows,
                              &call);
        return;
    }
    rows_parallel_shares(cpu, useful, p->rows * call.chunks, softmax_online_parts, &call);
    for (int64_t r = 0; r < p->rows; r++) {
        softmax_state total = {0}, unit = {0};
        for (int64_t c = 0; c < call.chunks; c++)
            if (softmax_join(&unit, call.part[r * call.chunks + c], c, call.chunks))
                total = c < SOFTMAX_UNIT ? unit : softmax_merge(total, unit);
        call.row[r] = softmax_close_row(p, r, total);
    }
    if (p->y.type)
        rows_parallel_shares(cpu, useful, p->rows * call.chunks, softmax_share_write, &call);
}

static const kiln_cpu_kernel softmax_forward_online = {
    .op = KILN_OP_SOFTMAX_FORWARD,
    .algorithm = "online",
    .name = KILN_CPU_NAME("softmax_forward_online"),
    .supports = softmax_supports,
    .workspace = softmax_forward_online_workspace,
    .run = softmax_forward_online_run,
    .numerics = softmax_forward_numerics,
};
