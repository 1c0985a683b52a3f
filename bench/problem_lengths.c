/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem_lengths.c: lengths, positions and tables of a problem, and the poison in everything that no query may read.
 * Contract: problem_data.h. What a line says is written as it stands, right or wrong; what is read here is clamped.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem_data.h"

int64_t problem_list_count(const problem_spec *spec, const problem_list *list)
{
    return list->kind == LIST_GIVEN ? list->count : spec->batch;
}

int64_t problem_list_value(const problem_spec *spec, problem_slot slot, const problem_list *list, int64_t b,
                           int64_t full)
{
    switch (list->kind) {
    case LIST_GIVEN: return b < list->count ? list->value[b] : 0;
    case LIST_RANDOM:
        return full < 0 ? 0 : (int64_t)(problem_random(spec->seed, (uint32_t)slot, (uint64_t)b) % ((uint64_t)full + 1));
    default: return full;
    }
}

int64_t problem_total(const problem_spec *spec, problem_slot slot, const problem_list *lens, int64_t longest)
{
    int64_t total = 0;
    bool overflow = __builtin_mul_overflow(spec->pack_gap, 2, &total);
    /* A sum of more sequences than fit in memory would be refused anyway; do not spend minutes to find out. */
    int64_t count = problem_list_count(spec, lens);
    if (count > (int64_t)1 << 24)
        return -1;
    for (int64_t b = 0; b < count; b++) {
        int64_t length = problem_list_value(spec, slot, lens, b, longest);
        overflow |= __builtin_add_overflow(total, length > 0 ? length : 0, &total);
    }
    return overflow ? -1 : total;
}

int64_t problem_pages_per_sequence(const problem_spec *spec)
{
    return spec->page_size > 0 ? spec->seqlen_k / spec->page_size + (spec->seqlen_k % spec->page_size != 0) : 0;
}

int64_t problem_cache_batch(const problem_spec *spec)
{
    return spec->cache_batch > 0 ? spec->cache_batch : spec->batch;
}

static void put(problem_data *data, problem_slot slot, int64_t i, int64_t value)
{
    int64_t clipped = value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value;
    int32_t word = (int32_t)clipped;
    memcpy(problem_storage(data, slot) + problem_element(&data->tensor[slot], &i) * 4, &word, 4);
}

static int64_t get(const problem_data *data, problem_slot slot, int64_t i)
{
    int32_t word;
    memcpy(&word, problem_storage(data, slot) + problem_element(&data->tensor[slot], &i) * 4, 4);
    return word;
}

/* Entry i of an optional int32 list. */
static int64_t get_or(const problem_data *data, problem_slot slot, int64_t i, int64_t absent)
{
    const problem_tensor *t = &data->tensor[slot];
    return t->present && t->type == KILN_INT32 && i < t->shape[0] ? get(data, slot, i) : absent;
}

static bool fillable(const problem_data *data, problem_slot slot)
{
    return data->tensor[slot].present && data->tensor[slot].type == KILN_INT32;
}

static void fill_list(problem_data *data, problem_slot slot, const problem_list *list, int64_t full)
{
    if (!fillable(data, slot))
        return;
    for (int64_t b = 0; b < data->tensor[slot].shape[0]; b++)
        put(data, slot, b, problem_list_value(&data->spec, slot, list, b, full));
}

static void fill_cu(problem_data *data, problem_slot slot, const problem_list *lens, int64_t longest)
{
    if (!fillable(data, slot))
        return;
    int64_t at = data->spec.pack_gap;
    for (int64_t b = 0; b < data->tensor[slot].shape[0]; b++) {
        put(data, slot, b, at);
        at += problem_list_value(&data->spec, slot, lens, b, longest);
    }
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/*
 * The pages of the pool, dealt to the sequences in turn. Shuffled: multiplication by a number without a common factor
 * permutes, and needs no memory. Entries past a sequence's length are never read, so they hold a number that would show.
 */
static void fill_table(problem_data *data)
{
    const problem_spec *s = &data->spec;
    problem_tensor *t = &data->tensor[SLOT_BLOCK_TABLE];
    if (!fillable(data, SLOT_BLOCK_TABLE))
        return;
    int64_t pool = data->tensor[SLOT_K].shape[0], step = 1;
    if (s->table == TABLE_SHUFFLED && pool > 1)
        for (step = pool / 2 + 1; common_divisor(step, pool) != 1;)
            step++;
    /* With cache_batch_idx several sequences may share a row, so every entry of it may be in use. */
    bool own_row = !data->tensor[SLOT_CACHE_BATCH_IDX].present;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t p = 0; p < t->shape[1]; p++) {
            int64_t index[2] = {b, p}, rank = b * t->shape[1] + p;
            int32_t page = (int32_t)((unsigned __int128)rank * (uint64_t)step % (uint64_t)pool);
            if (own_row && p * s->page_size >= get_or(data, SLOT_SEQUSED_K, b, INT64_MAX))
                page = INT32_MAX;
            memcpy(problem_storage(data, SLOT_BLOCK_TABLE) + problem_element(t, index) * 4, &page, 4);
        }
}

void problem_fill_lengths(problem_data *data)
{
    const problem_spec *s = &data->spec;
    int64_t caches = problem_cache_batch(s);
    fill_list(data, SLOT_Q_STARTS, &s->q_starts, s->seqlen_k);
    fill_list(data, SLOT_K_STARTS, &s->k_starts, s->seqlen_k);
    fill_cu(data, SLOT_CU_SEQLENS_Q, &s->lens_q, s->seqlen_q);
    fill_cu(data, SLOT_CU_SEQLENS_K, &s->lens_k, s->seqlen_k);
    fill_list(data, SLOT_CACHE_BATCH_IDX, &s->cache_batch_idx, caches > 0 ? caches - 1 : 0);
    /* A used length must not pass the sequence's, and padding not the used length: random ones are made to fit. */
    for (int64_t b = 0; fillable(data, SLOT_SEQUSED_Q) && b < data->tensor[SLOT_SEQUSED_Q].shape[0]; b++)
        put(data, SLOT_SEQUSED_Q, b,
            problem_list_value(s, SLOT_SEQUSED_Q, &s->seqused_q, b,
                               problem_list_value(s, SLOT_CU_SEQLENS_Q, &s->lens_q, b, s->seqlen_q)));
    for (int64_t b = 0; fillable(data, SLOT_SEQUSED_K) && b < data->tensor[SLOT_SEQUSED_K].shape[0]; b++)
        put(data, SLOT_SEQUSED_K, b,
            problem_list_value(s, SLOT_SEQUSED_K, &s->seqused_k, b,
                               problem_list_value(s, SLOT_CU_SEQLENS_K, &s->lens_k, b, s->seqlen_k)));
    for (int64_t b = 0; fillable(data, SLOT_LEFTPAD_K) && b < data->tensor[SLOT_LEFTPAD_K].shape[0]; b++)
        put(data, SLOT_LEFTPAD_K, b,
            problem_list_value(s, SLOT_LEFTPAD_K, &s->leftpad_k, b, get_or(data, SLOT_SEQUSED_K, b, s->seqlen_k)));
    fill_table(data);
}

/* One sequence as the library would read it, clamped to what is allocated. */
typedef struct sequence {
    int64_t q_batch, q_row, q_count, k_batch, k_row, k_count;
} sequence;

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static sequence sequence_of(const problem_data *data, int64_t b)
{
    const problem_spec *s = &data->spec;
    const problem_tensor *q = &data->tensor[SLOT_Q], *k = &data->tensor[SLOT_K];
    int64_t q_rows = q->shape[q->ndim - 2], k_rows = k->shape[k->ndim - 2], leftpad;
    sequence one = {b, 0, q_rows, b, 0, k_rows};
    if (q->ndim == 3) {
        one.q_batch = 0;
        one.q_row = clamp(get_or(data, SLOT_CU_SEQLENS_Q, b, 0), 0, q_rows);
        one.q_count = clamp(get_or(data, SLOT_CU_SEQLENS_Q, b + 1, 0) - one.q_row, 0, q_rows - one.q_row);
    }
    one.q_count = clamp(get_or(data, SLOT_SEQUSED_Q, b, one.q_count), 0, one.q_count);
    if (k->ndim == 3) {
        one.k_batch = 0;
        one.k_row = clamp(get_or(data, SLOT_CU_SEQLENS_K, b, 0), 0, k_rows);
        one.k_count = clamp(get_or(data, SLOT_CU_SEQLENS_K, b + 1, 0) - one.k_row, 0, k_rows - one.k_row);
    } else {
        one.k_batch = clamp(get_or(data, SLOT_CACHE_BATCH_IDX, b, b), 0, problem_cache_batch(s) - 1);
        if (s->page_size > 0)
            one.k_count = problem_pages_per_sequence(s) * s->page_size;
    }
    one.k_count = clamp(get_or(data, SLOT_SEQUSED_K, b, one.k_count), 0, one.k_count);
    leftpad = clamp(get_or(data, SLOT_LEFTPAD_K, b, 0), 0, one.k_count);
    one.k_row += leftpad;
    one.k_count -= leftpad;
    return one;
}

problem_extent problem_attention_extent(const problem_data *data)
{
    problem_extent all = {0};
    for (int64_t b = 0; b < data->spec.batch; b++) {
        sequence one = sequence_of(data, b);
        all.q_rows += one.q_count;
        all.k_rows += one.k_count;
        all.pairs += (double)one.q_count * (double)one.k_count;
    }
    return all;
}

/* Does any query of this sequence and KV head see key j, by window and attn_mask? */
static bool anyone_sees(const problem_data *data, const sequence *one, int64_t b, int64_t head_k, int64_t j)
{
    const problem_spec *s = &data->spec;
    const problem_tensor *mask = &data->tensor[SLOT_ATTN_MASK];
    bool bottom_right = s->mask != KILN_MASK_CAUSAL_TOP_LEFT && s->mask != KILN_MASK_WINDOW_TOP_LEFT;
    __int128 left = s->mask >= KILN_MASK_WINDOW_TOP_LEFT ? s->window_left : KILN_UNBOUNDED;
    __int128 right = s->mask >= KILN_MASK_WINDOW_TOP_LEFT ? s->window_right
                     : s->mask != KILN_MASK_NONE          ? 0
                                                          : KILN_UNBOUNDED;
    __int128 pos_k =
        (__int128)s->k_start + get_or(data, SLOT_K_STARTS, b, 0) + (__int128)j * (s->k_step ? s->k_step : 1);
    __int128 pos_q0 =
        (__int128)s->q_start + get_or(data, SLOT_Q_STARTS, b, 0) + (bottom_right ? one->k_count - one->q_count : 0);
    int64_t group = s->heads_k > 0 && s->heads >= s->heads_k ? s->heads / s->heads_k : 1;
    for (int64_t i = 0; i < one->q_count; i++) {
        __int128 pos_q = pos_q0 + (__int128)i * (s->q_step ? s->q_step : 1);
        if ((left != KILN_UNBOUNDED && pos_k < pos_q - left) || (right != KILN_UNBOUNDED && pos_k > pos_q + right))
            continue;
        if (!mask->present)
            return true;
        int64_t column = j - (one->k_count - mask->shape[3]);
        if (column < 0 || column >= mask->shape[3])
            return true;
        for (int64_t g = 0; g < group; g++) {
            int64_t index[4] = {b, head_k * group + g, i, column};
            for (int axis = 0; axis < 3; axis++)
                index[axis] = index[axis] < mask->shape[axis] ? index[axis] : 0;
            if (problem_storage(data, SLOT_ATTN_MASK)[problem_element(mask, index)] != 0)
                return true;
        }
    }
    return false;
}

typedef struct poison {
    const problem_tensor *tensor;
    char *storage;
    const char *seen; /* per row, or per (batch or page, head, row) */
    int64_t columns;
    double value;
} poison;

static void poison_one(void *user, int64_t flat, int64_t element)
{
    const poison *p = user;
    if (!p->seen[flat / p->columns])
        problem_store(p->storage, p->tensor->type, element, p->value);
}

static void poison_slot(problem_data *data, problem_slot slot, const char *seen, double value)
{
    const problem_tensor *t = &data->tensor[slot];
    if (!t->present)
        return;
    poison p = {t, problem_storage(data, slot), seen, slot == SLOT_DLSE ? 1 : t->shape[t->ndim - 1], value};
    if (p.columns > 0)
        problem_each(t, poison_one, &p);
}

/* Rows of a tensor: everything but the columns. */
static int64_t rows_of(const problem_tensor *t)
{
    int64_t rows = 1;
    for (int axis = 0; axis < t->ndim - 1; axis++)
        rows *= t->shape[axis];
    return rows;
}

static void mark_keys(const problem_data *data, bool hidden, char *seen)
{
    const problem_spec *s = &data->spec;
    const problem_tensor *k = &data->tensor[SLOT_K], *table = &data->tensor[SLOT_BLOCK_TABLE];
    int64_t rows = k->shape[k->ndim - 2], heads = k->shape[k->ndim - 3];
    for (int64_t b = 0; b < s->batch; b++) {
        sequence one = sequence_of(data, b);
        for (int64_t head = 0; head < heads; head++)
            for (int64_t j = 0; j < one.k_count; j++) {
                int64_t batch = one.k_batch, row = one.k_row + j;
                if (table->present) {
                    int64_t index[2] = {one.k_batch, row / s->page_size};
                    int32_t page;
                    memcpy(&page, problem_storage(data, SLOT_BLOCK_TABLE) + problem_element(table, index) * 4, 4);
                    if (table->type != KILN_INT32 || page < 0 || page >= k->shape[0])
                        continue;
                    batch = page;
                    row %= s->page_size;
                }
                if (batch < 0 || (k->ndim == 4 && batch >= k->shape[0]))
                    continue;
                char *mark = &seen[(batch * heads + head) * rows + row];
                if (!*mark)
                    *mark = !hidden || anyone_sees(data, &one, b, head, j);
            }
    }
}

static void mark_queries(const problem_data *data, char *seen)
{
    const problem_tensor *q = &data->tensor[SLOT_Q];
    int64_t rows = q->shape[q->ndim - 2], heads = q->shape[q->ndim - 3];
    for (int64_t b = 0; b < data->spec.batch; b++) {
        sequence one = sequence_of(data, b);
        for (int64_t head = 0; head < heads; head++)
            memset(seen + (one.q_batch * heads + head) * rows + one.q_row, 1, (size_t)one.q_count);
    }
}

/* A list of another length than the batch is refused by the library, so there is nothing to mark. */
static bool lists_fit(const problem_data *data)
{
    for (int slot = SLOT_Q_STARTS; slot <= SLOT_CACHE_BATCH_IDX; slot++) {
        const problem_tensor *t = &data->tensor[slot];
        bool cumulative = slot == SLOT_CU_SEQLENS_Q || slot == SLOT_CU_SEQLENS_K;
        if (t->present && slot != SLOT_BLOCK_TABLE && t->shape[0] != data->spec.batch + cumulative)
            return false;
    }
    return true;
}

bool problem_poison(problem_data *data)
{
    const problem_spec *s = &data->spec;
    const problem_tensor *q = &data->tensor[SLOT_Q], *k = &data->tensor[SLOT_K];
    bool hidden = s->data == DATA_NAN_HIDDEN || s->data == DATA_INF_HIDDEN;
    bool some_keys = hidden || k->ndim == 3 || s->page_size > 0 || data->tensor[SLOT_SEQUSED_K].present ||
                     data->tensor[SLOT_LEFTPAD_K].present || data->tensor[SLOT_CACHE_BATCH_IDX].present;
    bool some_queries = q->ndim == 3 || data->tensor[SLOT_SEQUSED_Q].present;
    if (!q->present || !lists_fit(data))
        return true;
    if (some_keys && problem_count(k) > 0) {
        char *seen = calloc((size_t)rows_of(k) + 1, 1);
        if (seen == NULL)
            return false;
        mark_keys(data, hidden, seen);
        double value = s->data == DATA_INF_HIDDEN ? INFINITY : NAN;
        poison_slot(data, SLOT_K, seen, value);
        poison_slot(data, SLOT_V, seen, value);
        poison_slot(data, SLOT_K2, seen, value);
        free(seen);
    }
    if (some_queries && problem_count(q) > 0) {
        char *seen = calloc((size_t)rows_of(q) + 1, 1);
        if (seen == NULL)
            return false;
        mark_queries(data, seen);
        poison_slot(data, SLOT_Q, seen, NAN);
        poison_slot(data, SLOT_Q2, seen, NAN);
        poison_slot(data, SLOT_DOUT, seen, NAN);
        poison_slot(data, SLOT_DLSE, seen, NAN);
        free(seen);
    }
    return true;
}
