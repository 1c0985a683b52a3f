/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem_fill.c: the values of a problem's tensors. Contract: problem.h. Cost: one Philox block per element.
 *
 * Numbers come from the counter (seed, tensor, logical index), and a normal deviate is a sum of twelve uniform bytes, so
 * that every machine and every layout gets the same bits. What the kinds of data are for:
 *   normal, uniform   the common case
 *   outlier           one element in 64 is 10 times as large; -inf in one bias in 16: probabilities that are not flat
 *   negative          q >= 0 and k <= 0: every score negative, so that a maximum that starts at 0 shows
 *   huge, tiny        scores far beyond what exp() can hold; products that are denormal
 *   zeros             q = 0: equal weights
 *   ones              everything 1: o = 1, lse = scale·d + ln(count)
 *   index             q = 0 and v = row number: o = (count-1)/2, and one key too many or too few shows
 *   needle            q = 0 and v = 0 but for one key: a loose bound would miss it
 *   nan, inf          one element of k and v in 200 is NaN or ±Inf, seen or masked as it happens
 *   nan_hidden, ...   every key that no query sees is NaN or Inf: none may leak
 */
#include <math.h>
#include <string.h>

#include "../common/convert.h"
#include "../common/philox.h"
#include "problem_data.h"

uint32_t problem_random(uint64_t seed, uint32_t stream, uint64_t index)
{
    kiln_philox_words counter = {{(uint32_t)index, (uint32_t)(index >> 32), stream, 0}};
    return kiln_philox4x32_10(counter, (uint32_t)seed, (uint32_t)(seed >> 32)).word[0];
}

/* Twelve bytes less their mean, in units of their deviation: exact in double, so equal everywhere. */
static double normal(kiln_philox_words w)
{
    int32_t sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (int32_t)kiln_dropout_byte(w, i);
    return (sum - 12 * 127.5) / 256.0;
}

/* [-1, 1) */
static double uniform(kiln_philox_words w)
{
    return (int32_t)w.word[0] / 2147483648.0;
}

typedef struct filler {
    problem_data *data;
    problem_slot slot;
    const problem_tensor *tensor;
    char *storage;
    int64_t columns, rows, needle;
} filler;

/* q, k, v, q2, k2. */
static double operand(const filler *f, int64_t flat, kiln_philox_words w)
{
    bool query = f->slot == SLOT_Q || f->slot == SLOT_Q2, value = f->slot == SLOT_V;
    double x = normal(w);
    int64_t row = flat / f->columns % f->rows;
    switch (f->data->spec.data) {
    case DATA_UNIFORM: return uniform(w);
    case DATA_OUTLIER: return w.word[3] % 64 == 0 ? 10 * x : x;
    case DATA_NEGATIVE: return query ? fabs(x) : value ? x : -fabs(x);
    case DATA_HUGE: return value ? x : 30 * x;
    case DATA_TINY: return value ? x * 0x1p-127 : x * 0x1p-66;
    case DATA_ZEROS: return query ? 0 : x;
    case DATA_ONES: return 1;
    case DATA_INDEX: return query ? 0 : value ? (double)row : x;
    case DATA_NEEDLE: return query ? 0 : value ? row == f->needle : x;
    case DATA_NAN: return !query && w.word[3] % 200 == 0 ? NAN : x;
    case DATA_INF: return !query && w.word[3] % 200 == 0 ? copysign(INFINITY, x) : x;
    default: return x;
    }
}

/* x of softmax: rows as they come out of a product, so about three times as wide. */
static double logit(const filler *f, int64_t flat, kiln_philox_words w)
{
    double x = 3 * normal(w);
    switch (f->data->spec.data) {
    case DATA_UNIFORM: return uniform(w);
    case DATA_OUTLIER: return w.word[3] % 64 == 0 ? 10 * x : x;
    case DATA_NEGATIVE: return -100 - 10 * fabs(x);
    case DATA_HUGE: return 300 * x;
    case DATA_TINY: return x * 0x1p-127;
    case DATA_ZEROS: return 0;
    case DATA_ONES: return 1;
    case DATA_INDEX: return (double)(flat % f->columns) / 16;
    case DATA_NEEDLE: return flat % f->columns == f->needle ? 0 : -20;
    case DATA_NAN: return w.word[3] % 2000 == 0 ? NAN : x;
    case DATA_INF: return w.word[3] % 20 == 0 ? -INFINITY : w.word[3] % 2000 == 1 ? INFINITY : x;
    default: return x;
    }
}

/* lse of a part; one in eight is empty. */
static double part_lse(uint64_t seed, int64_t flat)
{
    kiln_philox_words w = {{(uint32_t)flat, (uint32_t)(flat >> 32), SLOT_LSE_PARTS, 0}};
    w = kiln_philox4x32_10(w, (uint32_t)seed, (uint32_t)(seed >> 32));
    return w.word[3] % 8 == 0 ? -INFINITY : 4 * normal(w);
}

/* 1 visible, 0 not. A tree: node i hangs below node (i-1)/2, and sees its ancestors and itself. */
static double keep(const filler *f, int64_t flat, kiln_philox_words w)
{
    const problem_spec *s = &f->data->spec;
    int64_t column = flat % f->columns, row = flat / f->columns % f->rows;
    int64_t keys = s->page_size > 0 ? problem_pages_per_sequence(s) * s->page_size : s->seqlen_k;
    switch (s->keep) {
    case KEEP_TREE:
        for (int64_t node = row; node >= 0; node = node > 0 ? (node - 1) / 2 : -1)
            if (node == column)
                return 1;
        return 0;
    case KEEP_DIAGONAL: return keys - f->columns + column == row;
    default: return w.word[0] / 4294967296.0 < s->keep_density ? 1 : 0;
    }
}

static double value_of(const filler *f, int64_t flat)
{
    const problem_spec *s = &f->data->spec;
    kiln_philox_words w = {{(uint32_t)flat, (uint32_t)(flat >> 32), (uint32_t)f->slot, 0}};
    w = kiln_philox4x32_10(w, (uint32_t)s->seed, (uint32_t)(s->seed >> 32));
    switch (f->slot) {
    case SLOT_Q:
    case SLOT_K:
    case SLOT_V:
    case SLOT_Q2:
    case SLOT_K2: return operand(f, flat, w);
    case SLOT_X: return logit(f, flat, w);
    case SLOT_ATTN_MASK: return keep(f, flat, w);
    case SLOT_BIAS: return s->data == DATA_OUTLIER && w.word[3] % 16 == 0 ? -INFINITY : normal(w);
    case SLOT_ALIBI: return ldexp(1, -(int)(1 + flat % 8));
    case SLOT_LSE_PARTS: return part_lse(s->seed, flat);
    case SLOT_O_PARTS:
        return isinf(part_lse(s->seed, flat / f->columns)) ? NAN : normal(w); /* an empty part is not read */
    case SLOT_STATUS: return 0;
    default: return normal(w);
    }
}

void problem_store(char *storage, int32_t type, int64_t element, double value)
{
    bool integer = type == KILN_UINT8 || type == KILN_BOOL || type == KILN_INT32;
    kiln_store_double(storage, type, element, integer && !(value >= 0 && value < 256) ? 0 : value);
}

static void fill_one(void *user, int64_t flat, int64_t element)
{
    const filler *f = user;
    problem_store(f->storage, f->tensor->type, element, value_of(f, flat));
}

void problem_fill_slot(problem_data *data, problem_slot slot)
{
    problem_tensor *t = &data->tensor[slot];
    filler f = {.data = data, .slot = slot, .tensor = t, .storage = problem_storage(data, slot)};
    if (slot == SLOT_DROPOUT) {
        uint64_t words[2] = {data->spec.dropout_seed, data->spec.dropout_offset};
        for (int64_t i = 0; i < 2; i++)
            memcpy(f.storage + problem_element(t, &i) * 8, &words[i], 8);
        return;
    }
    if (t->type == KILN_INT32 && slot != SLOT_STATUS)
        return; /* lengths and tables: problem_fill_lengths() */
    f.columns = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    f.rows = t->ndim > 1 ? t->shape[t->ndim - 2] : 1;
    int64_t among = slot == SLOT_X ? f.columns : f.rows;
    f.needle = among > 0 ? (int64_t)(problem_random(data->spec.seed, SLOT_COUNT, 0) % (uint64_t)among) : 0;
    problem_each(t, fill_one, &f);
}
