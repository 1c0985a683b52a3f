/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_dot.inc.h: a few rows of queries against one block of keys, with the head in SIMD lanes: what
 * attention_tile.inc.h is for many queries. No lane is wasted on queries that are not there, and keys are read where
 * they lie, in their type, a row at a time with the rows to come prefetched.
 *
 *   dot_scores   s[row][key] = Σ_c K[key][c]·Q[row][c]: VF_LANES sums at a time, made from as many accumulators
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
    DOT_ROWS = VF_LANES >= 16 ? 4 : 2,          /* rows of a register block */
    DOT_ACCUMULATORS = VF_LANES >= 16 ? 16 : 8, /* of values: rows · vectors */
    DOT_VECTORS = 8,                            /* most vectors of a value row at a time */
    DOT_AHEAD_BYTES = 8192,                     /* how far in front of the reads rows are prefetched */
    DOT_AHEAD = 32                              /* the same, most rows */
};
/* Into the second-level cache: so far ahead, the first is needed for what is being read. */
#define DOT_LOCALITY 2

/* Rows of one block of keys, wherever they lie, in unit stride: row r is key first + r. Entries past the block's last
 * row repeat it, so that whole groups may be read. Reading row r is the time to prefetch fetch[r]: a row to come. */
typedef struct dot_keys {
    int32_t type;
    int64_t fetch_size; /* bytes of an element of fetch[] */
    const char *row[KEY_BLOCK], *fetch[KEY_BLOCK];
} dot_keys;

/* row[0 ... count-1] = where keys first, first + 1, ... lie; past the sequence, its last one. */
static void dot_find(const kiln_attention_problem *p, const kiln_view *view, const kiln_sequence *seq, int64_t head_k,
                     int64_t first, int64_t count, const char **row)
{
    const int64_t step = view->stride[2] * kiln_type_size(view->type), rest = seq->seqlen_k - first;
    const int64_t limit = rest < count ? rest : count;
    int64_t r = 0;
    while (r < limit) {
        const char *at = key_row(p, view, seq, head_k, first + r);
        int64_t run = p->page_size > 0 ? p->page_size - (seq->k_row + first + r) % p->page_size : limit;
        for (; run > 0 && r < limit; run--, r++, at += step)
            row[r] = at;
    }
    for (; r < count; r++)
        row[r] = row[limit - 1];
}

/* Rows [begin, end) of a block: where they lie, or, if their stride is not 1 or `second` (may be absent) is appended to
 * each, or they are to be shrunk, as fp32 in `copy`. While a copy is computed with, the rows of the next block are fetched. */
static void dot_load(const kiln_attention_problem *p, const kiln_view *view, int64_t columns, const kiln_view *second,
                     int64_t second_columns, const kiln_sequence *seq, int64_t head_k, int64_t first, int64_t begin,
                     int64_t end, bool shrink, float *copy, dot_keys *keys)
{
    const int64_t size = kiln_type_size(view->type), stride = copied_stride(columns + second_columns);
    const bool copied = shrink || second_columns > 0 || (view->stride[3] != 1 && columns > 1);
    const int64_t fitting = DOT_AHEAD_BYTES / (columns * size);
    const int64_t ahead = copied ? KEY_BLOCK : fitting > DOT_AHEAD ? DOT_AHEAD : fitting < 4 ? 4 : fitting;
    const char *found[2 * KEY_BLOCK];
    dot_find(p, view, seq, head_k, first + begin, KEY_BLOCK - begin + ahead, found + begin);
    keys->type = copied ? KILN_FLOAT32 : view->type;
    keys->fetch_size = size;
    for (int64_t r = begin; r < end && copied; r++) {
        float *out = copy + r * stride;
        load_row(found[r], view->type, view->stride[3], columns, out);
        if (shrink)
            shrink_row(out, columns);
        if (second_columns > 0)
            load_row(key_row(p, second, seq, head_k, first + r), second->type, second->stride[3], second_columns,
                     out + columns);
    }
    for (int64_t r = begin; r < KEY_BLOCK; r++) {
        const int64_t at = r < end ? r : end - 1;
        keys->row[r] = copied ? (const char *)(copy + at * stride) : found[at];
        keys->fetch[r] = found[r + ahead];
    }
}

/* acc[row][key] += K·Q over one vector of columns, of which n are there. Rows of q are padded with zeros. */
VF_INLINE void dot_scores_step(const int rows, const int keys, const int32_t type, const char *const *key,
                               int64_t offset, const float *q, int64_t ldq, int64_t n, vf (*acc)[4])
{
    vf x[4];
    UNROLL for (int j = 0; j < keys; j++) x[j] =
        n < VF_LANES ? vf_load_type_tail(key[j] + offset, type, (int)n) : vf_load_type(key[j] + offset, type);
    UNROLL for (int i = 0; i < rows; i++)
    {
        vf y = vf_load(q + i * ldq);
        UNROLL for (int j = 0; j < keys; j++) acc[i][j] = vf_fma(x[j], y, acc[i][j]);
    }
}

/* VF_LANES scores: `rows` rows against VF_LANES / rows keys. `fetch` are the rows to prefetch meanwhile. */
VF_INLINE void dot_scores_block(const int rows, const int32_t type, const char *const *key, const char *const *fetch,
                                int64_t fetch_size, const float *q, int64_t ldq, float *s, int64_t columns)
{
    const int keys = VF_LANES / rows, together = keys < 4 ? keys : 4, size = type == KILN_FLOAT32 ? 4 : 2;
    const int line = 64 / size > VF_LANES ? 64 / size : VF_LANES; /* columns of a cache line */
    vf sum[VF_LANES];
    UNROLL for (int g = 0; g < keys; g += together)
    {
        vf acc[DOT_ROWS][4];
        const char *from[4], *ahead[4];
        int64_t c = 0;
        UNROLL for (int j = 0; j < together; j++) from[j] = key[g + j];
        UNROLL for (int j = 0; j < together; j++) ahead[j] = fetch[g + j];
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < together; j++) acc[i][j] = vf_zero();
        for (; c + line <= columns; c += line) {
            UNROLL for (int j = 0; j < together; j++) __builtin_prefetch(ahead[j] + c * fetch_size, 0, DOT_LOCALITY);
            UNROLL for (int at = 0; at < line; at += VF_LANES)
                dot_scores_step(rows, together, type, from, (c + at) * size, q + c + at, ldq, VF_LANES, acc);
        }
        for (; c + VF_LANES <= columns; c += VF_LANES)
            dot_scores_step(rows, together, type, from, c * size, q + c, ldq, VF_LANES, acc);
        if (c < columns)
            dot_scores_step(rows, together, type, from, c * size, q + c, ldq, columns - c, acc);
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < together; j++) sum[i * keys + g + j] =
            acc[i][j];
    }
    float out[VF_LANES];
    vf_store(out, vf_hsum_each(sum));
    UNROLL for (int i = 0; i < rows; i++) memcpy(s + i * KEY_BLOCK, out + i * keys, sizeof(float) * (size_t)keys);
}

/* Rows to compute for `rows` rows: three cost as much as four. The one too many has q = 0 and is not used. */
static int64_t dot_padded(int64_t rows)
{
    return DOT_ROWS == 4 && rows % 4 == 3 ? rows + 1 : rows;
}

/* Keys outside, rows inside: a few keys stay in the first-level cache for all rows. Later rows fetch nothing. */
VF_INLINE void dot_scores_type(const int32_t type, const dot_keys *keys, int64_t begin, int64_t end, const float *q,
                               int64_t ldq, int64_t rows, float *s, int64_t columns)
{
    for (int64_t r = begin; r < end; r += VF_LANES)
        for (int64_t i = 0; i < rows;) {
            const int n = DOT_ROWS >= 4 && rows - i >= 4 ? 4 : rows - i >= 2 ? 2 : 1;
            for (int64_t key = r; key < r + VF_LANES; key += VF_LANES / n) {
                const char *const *row = keys->row + key;
                const char *const *fetch = i == 0 ? keys->fetch + key : row; /* later rows: nothing new */
                const int64_t fetch_size = i == 0 ? keys->fetch_size : kiln_type_size(type);
                const float *x = q + i * ldq;
                float *y = s + i * KEY_BLOCK + key;
                if (n == 4)
                    dot_scores_block(4, type, row, fetch, fetch_size, x, ldq, y, columns);
                else if (n == 2)
                    dot_scores_block(2, type, row, fetch, fetch_size, x, ldq, y, columns);
                else
                    dot_scores_block(1, type, row, fetch, fetch_size, x, ldq, y, columns);
            }
            i += n;
        }
}

/* Scores of rows [begin, end) of a block, both multiples of VF_LANES. */
static void dot_scores(const dot_keys *keys, int64_t begin, int64_t end, const float *q, int64_t ldq, int64_t rows,
                       float *s, int64_t columns)
{
    switch (keys->type) {
    case KILN_FLOAT32: dot_scores_type(KILN_FLOAT32, keys, begin, end, q, ldq, rows, s, columns); break;
    case KILN_FLOAT16: dot_scores_type(KILN_FLOAT16, keys, begin, end, q, ldq, rows, s, columns); break;
    default: dot_scores_type(KILN_BFLOAT16, keys, begin, end, q, ldq, rows, s, columns); break;
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

/* `vectors` vectors of output of `rows` rows, from column c on; n columns if fewer than a vector. */
VF_INLINE void dot_values_block(const int rows, const int vectors, const int32_t type, const dot_keys *keys,
                                int64_t begin, int64_t end, const float *p, const float *corr, float *o, int64_t ldo,
                                int64_t c, int64_t n, bool fetch)
{
    const int64_t size = type == KILN_FLOAT32 ? 4 : 2;
    vf acc[DOT_ROWS][DOT_VECTORS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = vf_zero();
    for (int64_t r = begin; r < end; r++) {
        const char *x = keys->row[r] + c * size;
        vf v[DOT_VECTORS];
        if (fetch)
            UNROLL for (int j = 0; j < vectors * VF_LANES; j += 64 / (int)size)
                __builtin_prefetch(keys->fetch[r] + (c + j) * keys->fetch_size, 0, DOT_LOCALITY);
        UNROLL for (int j = 0; j < vectors; j++) v[j] =
            n < VF_LANES ? vf_load_type_tail(x, type, (int)n) : vf_load_type(x + j * VF_LANES * size, type);
        UNROLL for (int i = 0; i < rows; i++)
        {
            vf weight = vf_set1(p[i * KEY_BLOCK + r]);
            UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = vf_fma(weight, v[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++)
    {
        float *y = o + i * ldo + c + j * VF_LANES;
        vf_store(y, vf_fma(vf_load(y), vf_set1(corr[i]), acc[i][j]));
    }
}

/* All columns of `rows` rows, or those of one slab: [c, c + most·VF_LANES). */
VF_INLINE void dot_values_slab(const int rows, const int32_t type, const dot_keys *keys, int64_t begin, int64_t end,
                               const float *p, const float *corr, float *o, int64_t ldo, int64_t c, int64_t last,
                               bool fetch)
{
    const int most = DOT_ACCUMULATORS / rows < DOT_VECTORS ? DOT_ACCUMULATORS / rows : DOT_VECTORS;
    if (most >= 8)
        for (; c + 8 * VF_LANES <= last; c += 8 * VF_LANES)
            dot_values_block(rows, 8, type, keys, begin, end, p, corr, o, ldo, c, VF_LANES, fetch);
    if (most >= 4)
        for (; c + 4 * VF_LANES <= last; c += 4 * VF_LANES)
            dot_values_block(rows, 4, type, keys, begin, end, p, corr, o, ldo, c, VF_LANES, fetch);
    for (; c + 2 * VF_LANES <= last; c += 2 * VF_LANES)
        dot_values_block(rows, 2, type, keys, begin, end, p, corr, o, ldo, c, VF_LANES, fetch);
    for (; c + VF_LANES <= last; c += VF_LANES)
        dot_values_block(rows, 1, type, keys, begin, end, p, corr, o, ldo, c, VF_LANES, fetch);
    if (c < last)
        dot_values_block(rows, 1, type, keys, begin, end, p, corr, o, ldo, c, last - c, fetch);
}

VF_INLINE void dot_values_type(const int32_t type, const dot_keys *keys, int64_t begin, int64_t end, const float *p,
                               const float *corr, float *o, int64_t ldo, int64_t rows, int64_t columns)
{
    const int64_t slab = DOT_VECTORS * VF_LANES; /* of V: stays in the first-level cache for all rows */
    for (int64_t c = 0; c < columns; c += slab) {
        const int64_t last = columns - c < slab ? columns : c + slab;
        for (int64_t i = 0; i < rows;) {
            const int n = DOT_ROWS >= 4 && rows - i >= 4 ? 4 : rows - i >= 2 ? 2 : 1;
            const float *weights = p + i * KEY_BLOCK;
            if (n == 4)
                dot_values_slab(4, type, keys, begin, end, weights, corr + i, o + i * ldo, ldo, c, last, i == 0);
            else if (n == 2)
                dot_values_slab(2, type, keys, begin, end, weights, corr + i, o + i * ldo, ldo, c, last, i == 0);
            else
                dot_values_slab(1, type, keys, begin, end, weights, corr + i, o + i * ldo, ldo, c, last, i == 0);
            i += n;
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

static vf dot_value(const dot_keys *keys, int64_t r, int64_t c, int64_t columns)
{
    const char *x = keys->row[r] + c * kiln_type_size(keys->type);
    return columns - c < VF_LANES ? vf_load_type_tail(x, keys->type, (int)(columns - c)) : vf_load_type(x, keys->type);
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
