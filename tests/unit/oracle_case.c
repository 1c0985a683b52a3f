/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* oracle_case.c: see oracle_case.h. */
#include "oracle_case.h"

#include <math.h>
#include <stdlib.h>

#include "../../common/convert.h"
#include "../../common/philox.h"

/* ---- memory and random numbers ---- */

static struct {
    void **pointer;
    size_t count;
} pool;
static uint64_t state = 1;

void *oracle_zeroed(size_t bytes)
{
    pool.pointer = realloc(pool.pointer, (pool.count + 1) * sizeof *pool.pointer);
    void *memory = calloc(bytes + 1, 1);
    if (!pool.pointer || !memory)
        abort();
    return pool.pointer[pool.count++] = memory;
}

void oracle_release(void)
{
    while (pool.count > 0)
        free(pool.pointer[--pool.count]);
    free(pool.pointer);
    pool.pointer = NULL;
}

void oracle_seed(uint64_t seed)
{
    state = seed * 0x9E3779B97F4A7C15u + 1;
}

static uint32_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

double oracle_random(void)
{
    return (random_bits() / 0x1p31 - 0.5) * sqrt(12);
}

kiln_oracle_output oracle_output(int64_t count)
{
    return (kiln_oracle_output){oracle_zeroed((size_t)count * sizeof(double)),
                                oracle_zeroed((size_t)count * sizeof(double))};
}

/* ---- tensors ---- */

oracle_tensor *oracle_tensor_new(int32_t type, int32_t ndim, const int64_t *shape, bool strided)
{
    oracle_tensor *t = oracle_zeroed(sizeof *t);
    int64_t order[KILN_MAX_RANK], step = strided ? 2 : 1;
    for (int32_t i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        order[i] = i;
    }
    if (strided && ndim >= 3) {
        order[ndim - 3] = ndim - 2;
        order[ndim - 2] = ndim - 3;
    }
    t->count = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t->stride[order[i]] = step;
        step = step * shape[order[i]] + (strided ? 3 : 0);
        t->count *= shape[i];
    }
    int64_t size = kiln_type_size(type), offset = strided ? 5 : 0;
    char *data = oracle_zeroed((size_t)((step + offset) * size));
    for (int64_t i = 0; i < step + offset; i++)
        kiln_store_double(data, type, i, type == KILN_INT32 ? INT32_MIN : type == KILN_UINT8 ? 1 : NAN);
    t->type = type;
    t->tensor =
        kiln_tensor_make((kiln_device){KILN_DEVICE_CPU, 0}, data, type, ndim, t->shape, strided ? t->stride : NULL);
    t->tensor.byte_offset = (uint64_t)(offset * size);
    return t;
}

static int64_t element_offset(const oracle_tensor *t, int64_t i)
{
    int64_t offset = 0;
    for (int32_t axis = t->tensor.ndim - 1; axis >= 0; axis--) {
        offset += i % t->shape[axis] * t->stride[axis];
        i /= t->shape[axis];
    }
    return offset;
}

double oracle_get(const oracle_tensor *t, int64_t i)
{
    return kiln_load_double((char *)t->tensor.data + t->tensor.byte_offset, t->type, element_offset(t, i));
}

void oracle_put(oracle_tensor *t, int64_t i, double value)
{
    kiln_store_double((char *)t->tensor.data + t->tensor.byte_offset, t->type, element_offset(t, i), value);
}

const kiln_tensor *oracle_tensor_of(const oracle_tensor *tensor)
{
    return tensor ? &tensor->tensor : NULL;
}

/* ---- problems ---- */

static oracle_tensor *vector(int64_t n)
{
    return oracle_tensor_new(KILN_INT32, 1, &n, false);
}

static oracle_tensor *random_tensor(int32_t type, int32_t ndim, const int64_t *shape, bool strided)
{
    oracle_tensor *t = oracle_tensor_new(type, ndim, shape, strided);
    for (int64_t i = 0; i < t->count; i++)
        oracle_put(t, i, oracle_random());
    return t;
}

/* Lengths of the sequences: row axis, offsets, what is used. */
static void choose_lengths(oracle_problem *p)
{
    const oracle_case *c = &p->c;
    int64_t at_q = 1, at_k = 1; /* packed: the first row of all and the last two belong to nobody */
    p->cu_q = c->packed_q ? vector(c->batch + 1) : NULL;
    p->cu_k = c->packed_k ? vector(c->batch + 1) : NULL;
    p->used_q = c->used_q ? vector(c->batch) : NULL;
    p->used_k = c->used_k || c->page_size ? vector(c->batch) : NULL;
    p->leftpad = c->leftpad ? vector(c->batch) : NULL;
    for (int64_t b = 0; b < c->batch; b++) {
        int64_t full_q = c->packed_q ? (b == 1 ? 0 : c->seqlen_q - b) : c->seqlen_q;
        int64_t full_k = c->packed_k ? (b == 2 ? 0 : c->seqlen_k - 2 * b) : c->seqlen_k;
        int64_t left = c->leftpad ? 1 + b : 0;
        p->first_q[b] = c->packed_q ? at_q : 0;
        p->first_k[b] = c->packed_k ? at_k : left;
        at_q += full_q;
        at_k += full_k;
        p->len_q[b] = p->used_q && full_q > 0 ? full_q - 1 : full_q;
        int64_t used = p->used_k && full_k > 1 ? full_k - 1 - b : full_k;
        p->len_k[b] = used - left;
        if (p->cu_q)
            oracle_put(p->cu_q, b, (double)p->first_q[b]);
        if (p->cu_k)
            oracle_put(p->cu_k, b, (double)p->first_k[b]);
        if (p->used_q)
            oracle_put(p->used_q, b, (double)p->len_q[b]);
        if (p->used_k)
            oracle_put(p->used_k, b, (double)used);
        if (p->leftpad)
            oracle_put(p->leftpad, b, (double)left);
    }
    if (p->cu_q)
        oracle_put(p->cu_q, c->batch, (double)at_q);
    if (p->cu_k)
        oracle_put(p->cu_k, c->batch, (double)at_k);
    p->rows_q = c->packed_q ? at_q + 2 : c->seqlen_q;
    p->rows_k = c->page_size ? c->page_size : c->packed_k ? at_k + 2 : c->seqlen_k;
}

/* Block table: pages in reverse order, the first pages of the pool unused, entries past the length out of range. */
static int64_t choose_pages(oracle_problem *p)
{
    const oracle_case *c = &p->c;
    int64_t entries = c->batch + (c->cache_idx ? 1 : 0);
    p->cache_idx = c->cache_idx ? vector(c->batch) : NULL;
    for (int64_t b = 0; p->cache_idx && b < c->batch; b++)
        oracle_put(p->cache_idx, b, (double)(c->batch - b));
    if (!c->page_size)
        return entries;
    int64_t per_row = (c->seqlen_k - 1) / c->page_size + 1, pages = entries * per_row + 2;
    p->table = oracle_tensor_new(KILN_INT32, 2, (int64_t[]){entries, per_row + 1}, c->strided);
    for (int64_t e = 0; e < entries; e++) {
        for (int64_t n = 0; n <= per_row; n++)
            oracle_put(p->table, e * (per_row + 1) + n, n < per_row ? (double)(pages - 1 - e * per_row - n) : 1e9);
    }
    return pages;
}

oracle_problem *oracle_problem_new(const oracle_case *description)
{
    oracle_problem *p = oracle_zeroed(sizeof *p);
    oracle_case *c = &p->c;
    *c = *description;
    c->type = c->type ? c->type : KILN_FLOAT64;
    c->d_v = c->d_v ? c->d_v : c->d;
    oracle_seed((uint64_t)(c->seqlen_q * 31 + c->seqlen_k * 7 + c->d));
    choose_lengths(p);
    int64_t entries = choose_pages(p);

    int32_t out_type = c->type == KILN_FLOAT64 ? KILN_FLOAT64 : KILN_FLOAT32;
    int64_t q[4] = {c->batch, c->heads, p->rows_q, c->d}, k[4] = {entries, c->heads_k, p->rows_k, c->d};
    p->q = random_tensor(c->type, 4 - c->packed_q, q + c->packed_q, c->strided);
    p->k = random_tensor(c->type, 4 - c->packed_k, k + c->packed_k, c->strided);
    q[3] = k[3] = c->d2;
    p->q2 = c->d2 ? random_tensor(c->type, 4 - c->packed_q, q + c->packed_q, c->strided) : NULL;
    p->k2 = c->d2 ? random_tensor(c->type, 4 - c->packed_k, k + c->packed_k, c->strided) : NULL;
    q[3] = k[3] = c->d_v;
    p->v = random_tensor(c->type, 4 - c->packed_k, k + c->packed_k, c->strided);
    p->o = oracle_tensor_new(c->type, 4 - c->packed_q, q + c->packed_q, c->strided);
    p->lse = oracle_tensor_new(out_type, 3 - c->packed_q, q + c->packed_q, c->strided);

    int64_t columns = c->seqlen_k + (c->page_size ? (2 * c->page_size - 1 - (c->seqlen_k - 1) % c->page_size) : 0);
    int64_t bias[4] = {c->bias_broadcast ? 1 : c->batch, c->heads, c->bias_broadcast ? 1 : c->seqlen_q, columns};
    p->bias = c->bias ? random_tensor(out_type, 4, bias, c->strided) : NULL;
    for (int64_t i = 0; p->bias && i < p->bias->count; i += 5)
        oracle_put(p->bias, i, -INFINITY);
    int64_t mask[4] = {1, c->heads, c->seqlen_q, c->mask_len};
    p->mask = c->mask_len ? oracle_tensor_new(KILN_UINT8, 4, mask, c->strided) : NULL;
    for (int64_t i = 0; p->mask && i < p->mask->count; i++)
        oracle_put(p->mask, i, random_bits() % 3 ? 1 + random_bits() % 255 : 0);
    int64_t heads[2] = {c->batch, c->heads};
    p->alibi = c->alibi ? random_tensor(KILN_FLOAT32, c->alibi, heads + 2 - c->alibi, false) : NULL;
    p->sinks = c->sinks ? random_tensor(out_type, 1, heads + 1, false) : NULL;
    p->q_starts = c->starts ? vector(c->batch) : NULL;
    p->k_starts = c->starts ? vector(c->batch) : NULL;
    for (int64_t b = 0; c->starts && b < c->batch; b++) {
        oracle_put(p->q_starts, b, (double)(2 - b));
        oracle_put(p->k_starts, b, (double)(b - 1));
    }
    p->args = (kiln_attention_forward_args){
        .struct_size = sizeof p->args,
        .q = oracle_tensor_of(p->q),
        .k = oracle_tensor_of(p->k),
        .v = oracle_tensor_of(p->v),
        .o = oracle_tensor_of(p->o),
        .softmax_lse = oracle_tensor_of(p->lse),
        .q2 = oracle_tensor_of(p->q2),
        .k2 = oracle_tensor_of(p->k2),
        .softmax_scale = c->scale,
        .softcap = c->softcap,
        .bias = oracle_tensor_of(p->bias),
        .alibi_slopes = oracle_tensor_of(p->alibi),
        .sinks = oracle_tensor_of(p->sinks),
        .mask = c->mask,
        .window_left = c->left,
        .window_right = c->right,
        .attn_mask = oracle_tensor_of(p->mask),
        .q_start = c->q_start,
        .q_step = c->q_step,
        .k_start = c->k_start,
        .k_step = c->k_step,
        .q_starts = oracle_tensor_of(p->q_starts),
        .k_starts = oracle_tensor_of(p->k_starts),
        .cu_seqlens_q = oracle_tensor_of(p->cu_q),
        .cu_seqlens_k = oracle_tensor_of(p->cu_k),
        .seqused_q = oracle_tensor_of(p->used_q),
        .seqused_k = oracle_tensor_of(p->used_k),
        .leftpad_k = oracle_tensor_of(p->leftpad),
        .block_table = oracle_tensor_of(p->table),
        .cache_batch_idx = oracle_tensor_of(p->cache_idx),
        .dropout_p = c->dropout_p,
        .dropout_seed = 0x0123456789abcdefu,
        .dropout_offset = 0xfedcba9876543210u,
    };
    return p;
}

int64_t oracle_q_row(const oracle_problem *p, int64_t b, int64_t h, int64_t i)
{
    return p->c.packed_q ? h * p->rows_q + p->first_q[b] + i : (b * p->c.heads + h) * p->rows_q + i;
}

int64_t oracle_k_row(const oracle_problem *p, int64_t b, int64_t h_k, int64_t j)
{
    int64_t slot = p->first_k[b] + j, entry = p->cache_idx ? (int64_t)oracle_get(p->cache_idx, b) : b;
    if (p->c.packed_k)
        return h_k * p->rows_k + slot;
    if (p->table) {
        entry = (int64_t)oracle_get(p->table, entry * p->table->shape[1] + slot / p->c.page_size);
        slot %= p->c.page_size;
    }
    return (entry * p->c.heads_k + h_k) * p->rows_k + slot;
}

int64_t oracle_pos_q(const oracle_problem *p, int64_t b, int64_t i)
{
    int64_t step = p->c.q_step ? p->c.q_step : 1, start = p->c.starts ? (int64_t)oracle_get(p->q_starts, b) : 0;
    int64_t base = p->len_k[b] - p->len_q[b];
    if (p->c.mask == KILN_MASK_CAUSAL_TOP_LEFT || p->c.mask == KILN_MASK_WINDOW_TOP_LEFT)
        base = 0;
    return base + start + p->c.q_start + i * step;
}

int64_t oracle_pos_k(const oracle_problem *p, int64_t b, int64_t j)
{
    int64_t step = p->c.k_step ? p->c.k_step : 1, start = p->c.starts ? (int64_t)oracle_get(p->k_starts, b) : 0;
    return start + p->c.k_start + j * step;
}

int64_t oracle_bias_index(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t *shape = p->bias->shape;
    int64_t row = p->c.bias_broadcast ? h : (b * shape[1] + h) * shape[2] + i;
    return row * shape[3] + j;
}

bool oracle_sees(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    long double difference = (long double)oracle_pos_k(p, b, j) - (long double)oracle_pos_q(p, b, i);
    int32_t mask = p->c.mask;
    if ((mask == KILN_MASK_CAUSAL_TOP_LEFT || mask == KILN_MASK_CAUSAL_BOTTOM_RIGHT) && difference > 0)
        return false;
    if (mask == KILN_MASK_WINDOW_TOP_LEFT || mask == KILN_MASK_WINDOW_BOTTOM_RIGHT) {
        if (p->c.left != KILN_UNBOUNDED && difference < -(long double)p->c.left)
            return false;
        if (p->c.right != KILN_UNBOUNDED && difference > (long double)p->c.right)
            return false;
    }
    if (p->mask) {
        int64_t from_end = p->len_k[b] - j; /* 1 = the last key */
        int64_t row = h * p->c.seqlen_q + i;
        if (from_end <= p->c.mask_len && oracle_get(p->mask, (row + 1) * p->c.mask_len - from_end) == 0)
            return false;
    }
    return !p->bias || oracle_get(p->bias, oracle_bias_index(p, b, h, i, j)) != -INFINITY;
}

double oracle_keeps(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (p->c.dropout_p == 0)
        return 1;
    uint32_t t = (uint32_t)floor(256 * (1 - (double)p->c.dropout_p) + 0.5);
    int64_t block = (int64_t)floor((double)oracle_pos_k(p, b, j) / 16), byte = oracle_pos_k(p, b, j) - 16 * block;
    kiln_philox_words w = kiln_philox4x32_10((kiln_philox_words){{(uint32_t)block, (uint32_t)oracle_pos_q(p, b, i),
                                                                  (uint32_t)(b * p->c.heads + h), 0x76543210u}},
                                             0x89abcdefu, 0x01234567u ^ 0xfedcba98u);
    unsigned char bytes[16];
    for (int n = 0; n < 16; n++)
        bytes[n] = (unsigned char)(w.word[n / 4] >> (n % 4 * 8));
    return bytes[byte] < t ? 256.0 / t : 0;
}

/* ---- attention written down again ---- */

#define REAL    long double
#define NAME(x) x##_exact
#define GRADS   oracle_grads_exact
#define EXP     expl
#define LOG     logl
#define TANH    tanhl
#include "oracle_naive.inc.h"
#undef REAL
#undef NAME
#undef GRADS
#undef EXP
#undef LOG
#undef TANH

#define REAL    float
#define NAME(x) x##_float
#define GRADS   oracle_grads_float
#define EXP     expf
#define LOG     logf
#define TANH    tanhf
#include "oracle_naive.inc.h"

const kiln_numerics oracle_float_numerics = {
    .unit = 0x1p-24,
    .exp_error = 1.1 * 0x1p-24,
    .tanh_error = 0x1p-23,
    .p_floor = 0x1p-125,
    .score_extra = 8, /* scale and itself, softcap twice, bias, ALiBi twice, subtraction */
};

/* ---- cases ---- */

#define SMALL .batch = 2, .heads = 2, .heads_k = 2, .seqlen_q = 4, .seqlen_k = 5, .d = 3
#define GROUP .batch = 2, .heads = 4, .heads_k = 2, .seqlen_q = 3, .seqlen_k = 6, .d = 2, .d_v = 3
#define THREE .batch = 3, .heads = 2, .heads_k = 1, .seqlen_q = 5, .seqlen_k = 8, .d = 2

const oracle_case oracle_cases[] = {
    {.name = "plain", SMALL},
    {.name = "GQA, d_v", GROUP},
    {.name = "scale", SMALL, .scale = 0.25f},
    {.name = "negative scale", SMALL, .scale = -1.5f},
    {.name = "strides", GROUP, .strided = true},
    {.name = "many rows", .batch = 1, .heads = 2, .heads_k = 1, .seqlen_q = 19, .seqlen_k = 21, .d = 5, .dlse = true},
    {.name = "no queries", .batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = 0, .seqlen_k = 2, .d = 2},
    {.name = "no keys", .batch = 1, .heads = 1, .heads_k = 1, .seqlen_q = 2, .seqlen_k = 0, .d = 2, .dlse = true},
    {.name = "no keys, sinks",
     .batch = 1,
     .heads = 2,
     .heads_k = 1,
     .seqlen_q = 2,
     .seqlen_k = 0,
     .d = 2,
     .sinks = true,
     .dlse = true},
    {.name = "causal top-left", SMALL, .mask = KILN_MASK_CAUSAL_TOP_LEFT},
    {.name = "causal bottom-right", SMALL, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
    {.name = "causal, more queries than keys",
     .batch = 1,
     .heads = 2,
     .heads_k = 1,
     .seqlen_q = 7,
     .seqlen_k = 3,
     .d = 2,
     .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT,
     .dlse = true},
    {.name = "window top-left", SMALL, .mask = KILN_MASK_WINDOW_TOP_LEFT, .left = 1, .right = 1},
    {.name = "window bottom-right", SMALL, .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT, .left = 2, .right = -1},
    {.name = "window unbounded left", SMALL, .mask = KILN_MASK_WINDOW_TOP_LEFT, .left = KILN_UNBOUNDED, .right = 0},
    {.name = "window unbounded right", SMALL, .mask = KILN_MASK_WINDOW_TOP_LEFT, .left = 0, .right = KILN_UNBOUNDED},
    {.name = "window huge",
     SMALL,
     .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT,
     .left = INT64_MAX - 1,
     .right = INT64_MAX - 1},
    {.name = "window far left", SMALL, .mask = KILN_MASK_WINDOW_TOP_LEFT, .left = INT64_MIN, .right = KILN_UNBOUNDED},
    {.name = "window far right",
     SMALL,
     .mask = KILN_MASK_WINDOW_TOP_LEFT,
     .left = 3,
     .right = INT64_MIN,
     .sinks = true},
    {.name = "attn_mask", SMALL, .mask_len = 3},
    {.name = "attn_mask, shortened keys", SMALL, .mask_len = 5, .used_k = true},
    {.name = "attn_mask of one key, causal", SMALL, .mask_len = 1, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
    {.name = "bias", SMALL, .bias = true},
    {.name = "bias broadcast", GROUP, .bias = true, .bias_broadcast = true, .dlse = true},
    {.name = "ALiBi", SMALL, .alibi = 1},
    {.name = "ALiBi of a batch, positions", GROUP, .alibi = 2, .starts = true, .q_step = 3, .k_step = 2},
    {.name = "softcap", SMALL, .softcap = 1.5f},
    {.name = "sinks", GROUP, .sinks = true, .dlse = true},
    {.name = "dlse", SMALL, .dlse = true},
    {.name = "dropout", GROUP, .dropout_p = 0.4f, .dlse = true},
    {.name = "dropout, ring positions", SMALL, .dropout_p = 0.7f, .q_start = -40, .k_start = -37, .k_step = 9},
    {.name = "q2, k2", GROUP, .d2 = 2, .dlse = true},
    {.name = "positions of a ring shard",
     SMALL,
     .mask = KILN_MASK_CAUSAL_TOP_LEFT,
     .q_start = 1,
     .q_step = 2,
     .k_step = 2},
    {.name = "packed", THREE, .packed_q = true, .packed_k = true, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT, .dlse = true},
    {.name = "packed queries, dense keys", THREE, .packed_q = true, .used_k = true, .sinks = true},
    {.name = "dense queries, packed keys", THREE, .packed_k = true, .used_q = true, .alibi = 1},
    {.name = "packed, shortened, strided",
     THREE,
     .packed_q = true,
     .packed_k = true,
     .used_q = true,
     .used_k = true,
     .strided = true,
     .d2 = 3},
    {.name = "shortened", THREE, .used_q = true, .used_k = true, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
    {.name = "leftpad", THREE, .used_k = true, .leftpad = true, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT, .alibi = 1},
    {.name = "cache_batch_idx", THREE, .used_k = true, .cache_idx = true},
    {.name = "paged", THREE, .page_size = 3, .mask = KILN_MASK_CAUSAL_BOTTOM_RIGHT},
    {.name = "paged, page of one key, bias", THREE, .page_size = 1, .bias = true},
    {.name = "paged, everything",
     THREE,
     .page_size = 4,
     .leftpad = true,
     .cache_idx = true,
     .strided = true,
     .d2 = 2,
     .packed_q = true,
     .sinks = true,
     .softcap = 2},
    {.name = "everything",
     .batch = 2,
     .heads = 4,
     .heads_k = 2,
     .seqlen_q = 5,
     .seqlen_k = 7,
     .d = 3,
     .d_v = 2,
     .d2 = 2,
     .scale = 0.7f,
     .softcap = 2.5f,
     .dropout_p = 0.25f,
     .mask = KILN_MASK_WINDOW_BOTTOM_RIGHT,
     .left = 3,
     .right = 1,
     .mask_len = 4,
     .bias = true,
     .alibi = 2,
     .sinks = true,
     .dlse = true,
     .starts = true,
     .used_q = true,
     .used_k = true,
     .leftpad = true,
     .cache_idx = true,
     .strided = true},
    {.name = NULL},
};
