/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_dot.inc.h: a few rows of queries against one block of keys, with the head in SIMD lanes: what
 * attention_tile.inc.h is for many queries. No lane is wasted on queries that are not there, and keys are read where
 * they lie, in their type, a row at a time with the rows to come prefetched.
 *
 *   dot_scores   s[row][key] = Σ_c K[key][c]·Q[row][c]: VF_LANES sums at a time, made from as many vectors
 *   dot_weights  m, corr = exp(m_old - m), P = exp(s - m) in place, l = l·corr + Σ P: keys in lanes
 *   dot_values   O[row][c] = O[row][c]·corr[row] + Σ_key V[key][c]·P[row][key]
 * A row's bits depend on its own q and keys alone: not on the number of rows, on the other rows, or on whether keys
 * that are hidden from it are skipped. A key's lane is its number modulo VF_LANES; every dot product and every output
 * element is one chain in a fixed order, whatever block of registers it is computed in.
 *
 * Cost: 2 FLOPs a row, key and column. Bound by memory up to about DOT_ROWS rows; K and V are read and widened once for
 * so many rows, from the first-level or second-level cache after the first time.
 */
#ifndef KILN_CPU_REF_ATTENTION_DOT_INC_H
#define KILN_CPU_REF_ATTENTION_DOT_INC_H

#include "attention_forward.inc.h"

enum {
    DOT_ROWS = VF_LANES >= 16 ? 5 : 2,      /* most rows of a register block */
    DOT_KEYS = 4,                           /* keys of one of scores (twice as many if it has one row) */
    DOT_PAIRS = 4,                          /* pairs of vectors of columns of one of values, for so many rows: */
    DOT_WIDE_ROWS = VF_LANES >= 16 ? 3 : 1, /* with more, half as many */
};
/*
 * Prefetching, into the second-level cache: a block ahead, and the first is needed for what is being read. Where rows lie
 * behind each other, every fourth line is in addition touched a page further on: the processor's own prefetcher, which
 * stops at pages, then runs there already when the others come (measured: 15 % off the time of a stream with arithmetic).
 */
#define DOT_LOCALITY 2
enum { DOT_PAGE = 4096, DOT_TOUCH = 256 };

/* A block of keys: key 0 of it is key `first` of the sequence. `index` >= 0 is the same only for one sequence and head. */
typedef struct dot_block {
    const kiln_sequence *seq;
    int64_t head_k, first, index;
} dot_block;

/* Rows of one block, wherever they lie, in unit stride. Entries past the block's last row are rows too, so that whole
 * groups may be read. Reading row r is the time to prefetch fetch[r], of the block to come. */
typedef struct dot_keys {
    int32_t type;
    int64_t fetch_size; /* bytes of an element of fetch[] */
    const char *const *row, *const *fetch;
    const char *found[2][KEY_BLOCK], *copied[KEY_BLOCK]; /* found: of two blocks, */
    int64_t index[2], first[2];                          /* namely these; index -1 = none */
} dot_keys;

static void dot_clear(dot_keys *keys)
{
    keys->index[0] = keys->index[1] = -1;
}

/* row[r] = where key r of the block lies; past the sequence, its last key. */
static void dot_find(const kiln_attention_problem *p, const kiln_view *view, const dot_block *block, const char **row)
{
    const int64_t step = view->stride[2] * kiln_type_size(view->type), rest = block->seq->seqlen_k - block->first;
    const int64_t limit = rest < KEY_BLOCK ? rest : KEY_BLOCK;
    int64_t r = 0;
    while (r < limit) {
        const char *at = key_row(p, view, block->seq, block->head_k, block->first + r);
        int64_t run = p->page_size > 0 ? p->page_size - (block->seq->k_row + block->first + r) % p->page_size : limit;
        run = run < limit - r ? run : limit - r;
        for (; run > 0; run--, at += step)
            row[r++] = at;
    }
    for (const char *last = row[limit - 1]; r < KEY_BLOCK; r++)
        row[r] = last;
}

/*
 * Does a tensor's row lie in pairs? A vector of bf16 words holds VF_LANES pairs of neighbours, which shifting and masking
 * make fp32 in half the steps of unpacking. So where whole pairs of vectors of bf16 are multiplied, lane i of the first
 * is column 2·i and of the second column 2·i + 1; what meets them (q, o, copied rows) is kept in that order: dot_pair(),
 * dot_unpair(). Columns that fill no pair of vectors, and every other type, keep their order.
 */
static bool dot_paired(const kiln_view *view, int64_t second_columns)
{
    return view->type == KILN_BFLOAT16 && second_columns == 0;
}

static void dot_pair(float *row, int64_t columns)
{
    for (; columns >= 2 * VF_LANES; columns -= 2 * VF_LANES, row += 2 * VF_LANES) {
        float in[2 * VF_LANES];
        memcpy(in, row, sizeof in);
        for (int i = 0; i < VF_LANES; i++) {
            row[i] = in[2 * i];
            row[VF_LANES + i] = in[2 * i + 1];
        }
    }
}

static void dot_unpair(float *row, int64_t columns)
{
    for (; columns >= 2 * VF_LANES; columns -= 2 * VF_LANES, row += 2 * VF_LANES) {
        float in[2 * VF_LANES];
        memcpy(in, row, sizeof in);
        for (int i = 0; i < VF_LANES; i++) {
            row[2 * i] = in[i];
            row[2 * i + 1] = in[VF_LANES + i];
        }
    }
}

/* Puts a row of q into place `row` of VF_LANES: q[column / VF_LANES][row][column % VF_LANES], zeros behind the last. */
static void dot_query(const float *in, int64_t columns, int64_t row, float *q)
{
    for (int64_t c = 0; c < columns; c += VF_LANES) {
        const int n = columns - c < VF_LANES ? (int)(columns - c) : VF_LANES;
        vf_store(q + c * VF_LANES + row * VF_LANES, vf_load_tail(in + c, n));
    }
}

/* Columns c ... c + 2·VF_LANES - 1 of a row in its order. */
VF_INLINE void dot_load_pair(const char *x, const int32_t type, vf *a, vf *b)
{
    if (type == KILN_BFLOAT16) {
        vf_load_pairs(x, a, b);
    } else {
        *a = vf_load_type(x, type);
        *b = vf_load_type(x + VF_LANES * (type == KILN_FLOAT32 ? 4 : 2), type);
    }
}

/* Which of the two found[] has the rows of the block: the one that has, else `at` from now on. */
static int dot_found(const kiln_attention_problem *p, const kiln_view *view, const dot_block *block, dot_keys *keys,
                     int at)
{
    for (int i = 0; i < 2; i++)
        if (keys->index[i] == block->index && keys->first[i] == block->first)
            return i;
    dot_find(p, view, block, keys->found[at]);
    keys->index[at] = block->index;
    keys->first[at] = block->first;
    return at;
}

/* Rows [begin, end) of a block: where they lie, or, if their stride is not 1 or `second` (may be absent) is appended to
 * each, or they are to be shrunk, as fp32 in `copy`. `next` (may be NULL) is what will be loaded after it. */
static void dot_load(const kiln_attention_problem *p, const kiln_view *view, int64_t columns, const kiln_view *second,
                     int64_t second_columns, const dot_block *block, int64_t begin, int64_t end, const dot_block *next,
                     bool shrink, float *copy, dot_keys *keys)
{
    const int64_t size = kiln_type_size(view->type), stride = copied_stride(columns + second_columns);
    const bool copied = shrink || second_columns > 0 || (view->stride[3] != 1 && columns > 1);
    const int at = dot_found(p, view, block, keys, 0), ahead = next ? dot_found(p, view, next, keys, !at) : at;
    keys->type = copied ? KILN_FLOAT32 : view->type;
    keys->fetch_size = size;
    keys->row = copied ? keys->copied : keys->found[at];
    keys->fetch = keys->found[ahead];
    if (!copied)
        return;
    for (int64_t r = begin; r < end; r++) {
        float *out = copy + r * stride;
        load_row(keys->found[at][r], view->type, view->stride[3], columns, out);
        if (shrink)
            shrink_row(out, columns);
        if (dot_paired(view, second_columns))
            dot_pair(out, columns);
        if (second_columns > 0)
            load_row(key_row(p, second, block->seq, block->head_k, block->first + r), second->type, second->stride[3],
                     second_columns, out + columns);
    }
    for (int64_t r = begin; r < KEY_BLOCK; r++)
        keys->copied[r] = (const char *)(copy + (r < end ? r : end - 1) * stride);
}

/*
 * sum[row][key] = K·Q in lanes, for `rows` rows and `keys` keys. q is in the order of dot_query(). `fetch` (may be NULL)
 * are the rows to prefetch meanwhile: evenly and in the order of memory if they lie behind each other, so that the
 * processor's own prefetcher follows.
 */
VF_INLINE void dot_scores_block(const int rows, const int keys, const int32_t type, const char *const *key,
                                const char *const *fetch, int64_t fetch_size, const float *q, int64_t columns,
                                vf (*sum)[VF_LANES])
{
    const int size = type == KILN_FLOAT32 ? 4 : 2, pair = 2 * VF_LANES, bytes = keys * pair * size;
    vf acc[DOT_ROWS][2 * DOT_KEYS];
    const char *ahead = key[0];
    int64_t c = 0;
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < keys; j++) acc[i][j] = vf_zero();
    if (fetch && fetch_size == size && fetch[keys - 1] - fetch[0] == (keys - 1) * columns * size)
        ahead = fetch[0];
    else if (fetch)
        for (int j = 0; j < keys; j++)
            for (int64_t at = 0; at < columns * fetch_size; at += 64)
                __builtin_prefetch(fetch[j] + at, 0, DOT_LOCALITY);
    for (; c + pair <= columns; c += pair, ahead += bytes) {
        vf x[DOT_ROWS], y[DOT_ROWS];
        if (fetch) {
            UNROLL for (int at = 0; at < bytes; at += DOT_TOUCH)
                __builtin_prefetch(ahead + at + DOT_PAGE, 0, DOT_LOCALITY);
            UNROLL for (int at = 0; at < bytes; at += 64) __builtin_prefetch(ahead + at, 0, DOT_LOCALITY);
        }
        UNROLL for (int i = 0; i < rows; i++)
        {
            x[i] = vf_load(q + c * VF_LANES + i * VF_LANES);
            y[i] = vf_load(q + (c + VF_LANES) * VF_LANES + i * VF_LANES);
        }
        UNROLL for (int j = 0; j < keys; j++)
        {
            vf a, b;
            dot_load_pair(key[j] + c * size, type, &a, &b);
            UNROLL for (int i = 0; i < rows; i++) acc[i][j] = vf_fma(a, x[i], acc[i][j]);
            UNROLL for (int i = 0; i < rows; i++) acc[i][j] = vf_fma(b, y[i], acc[i][j]);
        }
    }
    for (; c < columns; c += VF_LANES)
        UNROLL for (int j = 0; j < keys; j++)
        {
            const char *at = key[j] + c * size;
            vf a = columns - c < VF_LANES ? vf_load_type_tail(at, type, (int)(columns - c)) : vf_load_type(at, type);
            UNROLL for (int i = 0; i < rows; i++) acc[i][j] =
                vf_fma(a, vf_load(q + c * VF_LANES + i * VF_LANES), acc[i][j]);
        }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < keys; j++) sum[i][j] = acc[i][j];
}

/* Whose turn it is to prefetch: every `every`th time, beginning with time `first`. */
typedef struct dot_turn {
    int64_t first, every;
} dot_turn;

/* VF_LANES keys, from row r of the block on, against `rows` rows. */
VF_INLINE void dot_scores_rows(const int rows, const int32_t type, const dot_keys *keys, int64_t r, dot_turn turn,
                               const float *q, float *s, int64_t columns)
{
    const int together = rows == 1 && VF_LANES >= 2 * DOT_KEYS ? 2 * DOT_KEYS : DOT_KEYS;
    vf sum[DOT_ROWS][VF_LANES];
    for (int j = 0; j < VF_LANES; j += together) {
        const bool fetch = (r + j) / (2 * DOT_KEYS) % turn.every == turn.first;
        dot_scores_block(rows, together, type, keys->row + r + j, fetch ? keys->fetch + r + j : NULL, keys->fetch_size,
                         q, columns, (vf(*)[VF_LANES]) & sum[0][j]);
    }
    UNROLL for (int i = 0; i < rows; i++) vf_store(s + i * KEY_BLOCK, vf_hsum_each(sum[i]));
}

/* Rows of the next register block of `rows` rows: blocks of nearly one size, so that one row more is never dear. */
static inline int dot_block_rows(int64_t rows)
{
    const int64_t blocks = (rows + DOT_ROWS - 1) / DOT_ROWS;
    return (int)((rows + blocks - 1) / blocks);
}

/* Keys outside, rows inside: a few keys stay in the first-level cache for all rows. Blocks of rows prefetch in turns. */
VF_INLINE void dot_scores_type(const int32_t type, const dot_keys *keys, int64_t begin, int64_t end, const float *q,
                               int64_t rows, float *s, int64_t columns)
{
    const int64_t blocks = (rows + DOT_ROWS - 1) / DOT_ROWS;
    for (int64_t r = begin; r < end; r += VF_LANES) {
        dot_turn turn = {0, blocks};
        for (int64_t i = 0, n; i < rows; i += n, turn.first++) {
            const float *x = q + i * VF_LANES;
            float *y = s + i * KEY_BLOCK + r;
            n = dot_block_rows(rows - i);
            switch (n) {
            case 1: dot_scores_rows(1, type, keys, r, turn, x, y, columns); break;
            case 2: dot_scores_rows(2, type, keys, r, turn, x, y, columns); break;
#if VF_LANES >= 16
            case 3: dot_scores_rows(3, type, keys, r, turn, x, y, columns); break;
            case 4: dot_scores_rows(4, type, keys, r, turn, x, y, columns); break;
            default: dot_scores_rows(5, type, keys, r, turn, x, y, columns); break;
#endif
            }
        }
    }
}

/* Scores of rows [begin, end) of a block, both multiples of VF_LANES. */
static void dot_scores(const dot_keys *keys, int64_t begin, int64_t end, const float *q, int64_t rows, float *s,
                       int64_t columns)
{
    switch (keys->type) {
    case KILN_FLOAT32: dot_scores_type(KILN_FLOAT32, keys, begin, end, q, rows, s, columns); break;
    case KILN_FLOAT16: dot_scores_type(KILN_FLOAT16, keys, begin, end, q, rows, s, columns); break;
    default: dot_scores_type(KILN_BFLOAT16, keys, begin, end, q, rows, s, columns); break;
    }
}

/* Joins keys [begin, end) of a block, multiples of VF_LANES, to the state (m, l) of VF_LANES rows, of which `rows` are
 * there. Scores that nobody may see are -inf. */
static void dot_weights(float *s, int64_t begin, int64_t end, int64_t rows, float *m, float *l, float *corr)
{
    float top[VF_LANES], shift[VF_LANES], sum[VF_LANES];
    vf_store(top, vf_set1(-INFINITY));
    vf_store(sum, vf_zero());
    for (int64_t i = 0; i < rows; i++) {
        vf max = vf_set1(-INFINITY);
        for (int64_t r = begin; r < end; r += VF_LANES)
            max = vf_max(max, vf_load(s + i * KEY_BLOCK + r));
        top[i] = vf_hmax(max);
    }
    const vf old = vf_load(m), now = vf_max(old, vf_load(top)), change = vf_exp(vf_sub(old, score_shift(now)));
    vf_store(m, now);
    vf_store(shift, score_shift(now));
    vf_store(corr, change);
    for (int64_t i = 0; i < rows; i++) {
        const vf subtracted = vf_set1(shift[i]);
        vf total = vf_zero();
        for (int64_t r = begin; r < end; r += VF_LANES) {
            vf p = vf_exp(vf_sub(vf_load(s + i * KEY_BLOCK + r), subtracted));
            vf_store(s + i * KEY_BLOCK + r, p);
            total = vf_add(total, p);
        }
        sum[i] = vf_hsum(total);
    }
    vf_store(l, vf_fma(vf_load(l), change, vf_load(sum)));
}

/* What to prefetch while rows [begin, end) of a block of values are read, a part of their columns at a time. */
typedef struct dot_ahead {
    const char *dense;       /* where those to come begin, if they lie behind each other */
    const char *const *rows; /* where each lies */
    int64_t size;            /* bytes of an element */
    dot_turn turn;
} dot_ahead;

/* `bytes` bytes of dense rows from `offset` on. */
VF_INLINE void dot_prefetch_dense(const char *dense, int64_t offset, const int bytes)
{
    UNROLL for (int at = 0; at < bytes; at += 64)
    {
        if (bytes >= DOT_TOUCH ? at % DOT_TOUCH == 0 : at == 0 && offset % DOT_TOUCH < bytes)
            __builtin_prefetch(dense + offset + at + DOT_PAGE, 0, DOT_LOCALITY);
        __builtin_prefetch(dense + offset + at, 0, DOT_LOCALITY);
    }
}

/* `pairs` pairs of vectors of output of `rows` rows, from column c on; 0 pairs: n columns, at most a vector. */
VF_INLINE void dot_values_block(const int rows, const int pairs, const int32_t type, const dot_keys *keys,
                                int64_t begin, int64_t end, const float *p, const float *corr, float *o, int64_t ldo,
                                int64_t c, int64_t n, const dot_ahead *ahead)
{
    const int size = type == KILN_FLOAT32 ? 4 : 2, vectors = pairs > 0 ? 2 * pairs : 1,
              bytes = vectors * VF_LANES * size;
    const char *dense = ahead->dense ? ahead->dense + c * size * (end - begin) : NULL;
    int64_t turn = begin + ahead->turn.first;
    vf acc[DOT_ROWS][2 * DOT_PAIRS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = vf_zero();
    for (int64_t r = begin; r < end; r++) {
        const char *x = keys->row[r] + c * size;
        vf weight[DOT_ROWS];
        if (r == turn && dense)
            dot_prefetch_dense(dense, (r - begin) * bytes, bytes);
        else if (r == turn)
            UNROLL for (int j = 0; j < vectors * VF_LANES; j += 64 / size)
                __builtin_prefetch(ahead->rows[r] + (c + j) * ahead->size, 0, DOT_LOCALITY);
        turn += r == turn ? ahead->turn.every : 0;
        UNROLL for (int i = 0; i < rows; i++) weight[i] = vf_set1(p[i * KEY_BLOCK + r]);
        UNROLL for (int j = 0; j < 2 * pairs; j += 2)
        {
            vf a, b;
            dot_load_pair(x + j * VF_LANES * size, type, &a, &b);
            UNROLL for (int i = 0; i < rows; i++) acc[i][j] = vf_fma(weight[i], a, acc[i][j]);
            UNROLL for (int i = 0; i < rows; i++) acc[i][j + 1] = vf_fma(weight[i], b, acc[i][j + 1]);
        }
        if (pairs == 0) {
            vf a = n < VF_LANES ? vf_load_type_tail(x, type, (int)n) : vf_load_type(x, type);
            UNROLL for (int i = 0; i < rows; i++) acc[i][0] = vf_fma(weight[i], a, acc[i][0]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++)
    {
        float *y = o + i * ldo + c + j * VF_LANES;
        vf_store(y, vf_fma(vf_load(y), vf_set1(corr[i]), acc[i][j]));
    }
}

/* All columns of `rows` rows, or those of one slab: [c, last). */
VF_INLINE void dot_values_slab(const int rows, const int32_t type, const dot_keys *keys, int64_t begin, int64_t end,
                               const float *p, const float *corr, float *o, int64_t ldo, int64_t c, int64_t last,
                               const dot_ahead *ahead)
{
    const int most = rows <= DOT_WIDE_ROWS ? DOT_PAIRS : DOT_PAIRS / 2;
    for (; c + most * 2 * VF_LANES <= last; c += most * 2 * VF_LANES)
        dot_values_block(rows, most, type, keys, begin, end, p, corr, o, ldo, c, 0, ahead);
    for (; c + 2 * VF_LANES <= last; c += 2 * VF_LANES)
        dot_values_block(rows, 1, type, keys, begin, end, p, corr, o, ldo, c, 0, ahead);
    for (; c < last; c += VF_LANES)
        dot_values_block(rows, 0, type, keys, begin, end, p, corr, o, ldo, c, last - c < VF_LANES ? last - c : VF_LANES,
                         ahead);
}

VF_INLINE void dot_values_type(const int32_t type, const dot_keys *keys, int64_t begin, int64_t end, const float *p,
                               const float *corr, float *o, int64_t ldo, int64_t rows, int64_t columns)
{
    const int64_t size = keys->fetch_size;
    const bool dense = size == (type == KILN_FLOAT32 ? 4 : 2) &&
                       keys->fetch[end - 1] - keys->fetch[begin] == (end - 1 - begin) * columns * size;
    const int64_t blocks = (rows + DOT_ROWS - 1) / DOT_ROWS;
    const int64_t slab = 2 * DOT_PAIRS * VF_LANES; /* of V: stays in the first-level cache for all rows */
    for (int64_t c = 0; c < columns; c += slab) {
        const int64_t last = columns - c < slab ? columns : c + slab;
        dot_ahead fetched = {dense ? keys->fetch[begin] : NULL, keys->fetch, size, {0, blocks}}, *ahead = &fetched;
        for (int64_t i = 0, n; i < rows; i += n, fetched.turn.first++) {
            const float *w = p + i * KEY_BLOCK, *by = corr + i;
            float *y = o + i * ldo;
            n = dot_block_rows(rows - i);
            switch (n) {
            case 1: dot_values_slab(1, type, keys, begin, end, w, by, y, ldo, c, last, ahead); break;
            case 2: dot_values_slab(2, type, keys, begin, end, w, by, y, ldo, c, last, ahead); break;
#if VF_LANES >= 16
            case 3: dot_values_slab(3, type, keys, begin, end, w, by, y, ldo, c, last, ahead); break;
            case 4: dot_values_slab(4, type, keys, begin, end, w, by, y, ldo, c, last, ahead); break;
            default: dot_values_slab(5, type, keys, begin, end, w, by, y, ldo, c, last, ahead); break;
#endif
            }
        }
    }
}

static void dot_values(const dot_keys *keys, int64_t begin, int64_t end, const float *p, const float *corr, float *o,
                       int64_t ldo, int64_t rows, int64_t columns)
{
    switch (keys->type) {
    case KILN_FLOAT32: dot_values_type(KILN_FLOAT32, keys, begin, end, p, corr, o, ldo, rows, columns); break;
    case KILN_FLOAT16: dot_values_type(KILN_FLOAT16, keys, begin, end, p, corr, o, ldo, rows, columns); break;
    default: dot_values_type(KILN_BFLOAT16, keys, begin, end, p, corr, o, ldo, rows, columns); break;
    }
}

/* One vector of a row, in the row's order; c is a multiple of VF_LANES. */
static vf dot_value(const dot_keys *keys, int64_t r, int64_t c, int64_t columns)
{
    const char *row = keys->row[r];
    const int64_t size = kiln_type_size(keys->type), pair = c / (2 * VF_LANES) * (2 * VF_LANES);
    vf a, b;
    if (columns - c < VF_LANES)
        return vf_load_type_tail(row + c * size, keys->type, (int)(columns - c));
    if (keys->type != KILN_BFLOAT16 || columns - pair < 2 * VF_LANES)
        return vf_load_type(row + c * size, keys->type);
    vf_load_pairs(row + pair * size, &a, &b);
    return c == pair ? a : b;
}

/* The same sums where a hidden key meets a V that is not finite (0·NaN is NaN): hidden pairs are left out. Row
 * `begin` has word 0 of `visible`, bit = row of queries. Rare, so written plainly. */
static void dot_values_select(const dot_keys *keys, int64_t begin, int64_t end, const float *p, const float *corr,
                              float *o, int64_t ldo, int64_t rows, int64_t columns, const uint32_t *visible)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c += VF_LANES) {
            float *y = o + i * ldo + c;
            vf acc = vf_zero();
            for (int64_t r = begin; r < end; r++)
                if (visible[r - begin] >> i & 1)
                    acc = vf_fma(vf_set1(p[i * KEY_BLOCK + r]), dot_value(keys, r, c, columns), acc);
            vf_store(y, vf_fma(vf_load(y), vf_set1(corr[i]), acc));
        }
}

/* Is every V row that is hidden from one of the rows finite? Then zeros in P are enough. */
static bool dot_hidden_finite(const dot_keys *keys, int64_t begin, int64_t end, int64_t columns,
                              const uint32_t *visible)
{
    vm finite = vm_first(VF_LANES);
    for (int64_t r = begin; r < end; r++)
        if (visible[r - begin] != (1u << VF_LANES) - 1)
            for (int64_t c = 0; c < columns; c += VF_LANES)
                finite = vm_and(finite, vf_finite(dot_value(keys, r, c, columns)));
    return vm_all(finite);
}

/* s[row][key] -> st[key][lane] and back, for keys [begin, end) of a block, multiples of VF_LANES. Key `begin` is row 0
 * of st; the lanes past the last row are 0. For what attention_scores.inc.h does. */
static void dot_to_lanes(const float *s, int64_t begin, int64_t end, int64_t rows, float *st)
{
    for (int64_t r = begin; r < end; r += VF_LANES) {
        vf x[VF_LANES];
        for (int64_t i = 0; i < VF_LANES; i++)
            x[i] = i < rows ? vf_load(s + i * KEY_BLOCK + r) : vf_zero();
        vf_transpose(x);
        for (int64_t i = 0; i < VF_LANES; i++)
            vf_store(st + (r - begin + i) * VF_LANES, x[i]);
    }
}

static void dot_of_lanes(float *s, int64_t begin, int64_t end, int64_t rows, const float *st)
{
    for (int64_t r = begin; r < end; r += VF_LANES) {
        vf x[VF_LANES];
        for (int64_t i = 0; i < VF_LANES; i++)
            x[i] = vf_load(st + (r - begin + i) * VF_LANES);
        vf_transpose(x);
        for (int64_t i = 0; i < rows; i++)
            vf_store(s + i * KEY_BLOCK + r, x[i]);
    }
}

#endif
