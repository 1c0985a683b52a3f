/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* attention.c: see attention.h. Cost: the oracle's, batch·heads·seqlen_q·seqlen_k·(d + d_v) multiply-adds in fp64. */
#include "attention.h"

#include "../../common/context.h"

#if KILN_TEST_HAVE_PROBLEM
#include "verify_line.h"
#endif

#include <stdio.h>

const char *const attention_values_name[VALUES_COUNT] = {"normal", "outliers", "negative", "huge",
                                                         "zero",   "small",    "poison"};

static int64_t size_or(int64_t size, int64_t otherwise)
{
    return size == ABSENT_SIZE ? 0 : size == 0 ? otherwise : size;
}

static void resolve(attention_case *c)
{
    c->batch = size_or(c->batch, 1);
    c->heads = size_or(c->heads, 1);
    c->heads_k = size_or(c->heads_k, c->heads);
    c->seqlen_q = size_or(c->seqlen_q, 0);
    c->seqlen_k = size_or(c->seqlen_k, 0);
    c->d_v = size_or(c->d_v, c->d);
    c->type = c->type ? c->type : KILN_FLOAT32;
    c->o_type = c->o_type ? c->o_type : c->type;
    c->mask_type = c->mask_type ? c->mask_type : KILN_UINT8;
    c->bias_type = c->bias_type ? c->bias_type : KILN_FLOAT32;
    c->sinks_type = c->sinks_type ? c->sinks_type : KILN_FLOAT32;
}

static const char *type_name(int32_t type)
{
    return type == KILN_FLOAT32 ? "fp32" : type == KILN_FLOAT16 ? "fp16" : type == KILN_BFLOAT16 ? "bf16" : "?";
}

/* One line with everything that is not the default. */
static void describe(const attention_case *c, char *text, size_t cap)
{
    int n = snprintf(text, cap, "b%lldh%lldk%lldq%lldk%lldd%lld %s", (long long)c->batch, (long long)c->heads,
                     (long long)c->heads_k, (long long)c->seqlen_q, (long long)c->seqlen_k, (long long)c->d,
                     type_name(c->type));
#define SAY(condition, ...)                                                                                            \
    if ((condition) && n >= 0 && (size_t)n < cap)                                                                      \
    n += snprintf(text + n, cap - (size_t)n, __VA_ARGS__)
    SAY(c->d_v != c->d, " d_v=%lld", (long long)c->d_v);
    SAY(c->d2, " d2=%lld", (long long)c->d2);
    SAY(c->o_type != c->type, " o=%s", type_name(c->o_type));
    SAY(c->q_strides, " q_strides=%s", test_strides_name[c->q_strides]);
    SAY(c->k_strides, " k_strides=%s", test_strides_name[c->k_strides]);
    SAY(c->v_strides, " v_strides=%s", test_strides_name[c->v_strides]);
    SAY(c->o_strides, " o_strides=%s", test_strides_name[c->o_strides]);
    SAY(c->values, " values=%s", attention_values_name[c->values]);
    SAY(c->scale != 0, " scale=%g", (double)c->scale);
    SAY(c->softcap != 0, " softcap=%g", (double)c->softcap);
    SAY(c->mask, " mask=%d", c->mask);
    SAY(c->mask >= KILN_MASK_WINDOW_TOP_LEFT, " window=%lld,%lld", (long long)c->window_left,
        (long long)c->window_right);
    SAY(c->q_start || c->q_step || c->k_start || c->k_step, " positions=q%lld+%lld,k%lld+%lld", (long long)c->q_start,
        (long long)c->q_step, (long long)c->k_start, (long long)c->k_step);
    SAY(c->starts, " starts");
    SAY(c->mask_len, " attn_mask=%lld/%d", (long long)c->mask_len, c->mask_broadcast);
    SAY(c->bias, " bias=%s/%d", type_name(c->bias_type), c->bias_broadcast);
    SAY(c->extra_strides, " extra_strides=%s", test_strides_name[c->extra_strides]);
    SAY(c->alibi, " alibi=%d", c->alibi);
    SAY(c->sinks, " sinks=%s", type_name(c->sinks_type));
    SAY(c->no_lse, " no_lse");
    SAY(c->v_is_k, " v_is_k");
    SAY(c->packed_q, " packed_q");
    SAY(c->packed_k, " packed_k");
    SAY(c->page_size, " page=%lld", (long long)c->page_size);
    SAY(c->used_q, " seqused_q");
    SAY(c->used_k, " seqused_k");
    SAY(c->leftpad, " leftpad");
    SAY(c->cache_idx, " cache_batch_idx");
    SAY(c->dropout_p != 0, " dropout=%g seed=%llu offset=%llu", (double)c->dropout_p,
        (unsigned long long)c->dropout_seed, (unsigned long long)c->dropout_offset);
    SAY(c->dropout_pointers, " by pointer");
    SAY(c->num_splits, " splits=%d", c->num_splits);
    SAY(c->max_sms, " max_sms=%d", c->max_sms);
    SAY(c->flags, " flags=%llu", (unsigned long long)c->flags);
    SAY(c->seed, " seed=%llu", (unsigned long long)c->seed);
#undef SAY
}

/* ------------------------------------------------------------------------------------------------ lengths */

static test_tensor *int32_vector(int64_t n)
{
    return test_tensor_new(KILN_INT32, 1, (const int64_t[]){n}, STRIDES_PADDED, false);
}

/* Length of sequence b, at most `longest`: the full one first, then an empty one, then others. */
static int64_t varied_length(int64_t b, int64_t longest)
{
    return b == 0 ? longest : b == 1 ? 0 : test_integer(longest + 1);
}

/* Offsets of packed sequences: of the given lengths from row 0 on, or varied ones between rows that belong to nobody. */
static test_tensor *cumulative(int64_t batch, int64_t longest, const int64_t *lengths, int64_t *total)
{
    test_tensor *t = int32_vector(batch + 1);
    int64_t row = lengths ? 0 : 1;
    for (int64_t b = 0; b <= batch; b++) {
        test_put(t, b, (double)row);
        if (b < batch)
            row += lengths ? lengths[b] : varied_length(b, longest);
    }
    *total = lengths ? row : row + 2;
    return t;
}

/* How much of sequence b's `length` is used. */
static test_tensor *used(int64_t batch, const test_tensor *cu, int64_t length, const int64_t *lengths)
{
    test_tensor *t = int32_vector(batch);
    for (int64_t b = 0; b < batch; b++) {
        int64_t all = cu ? (int64_t)(test_get(cu, b + 1) - test_get(cu, b)) : length;
        test_put(t, b, (double)(lengths ? lengths[b] : all - test_integer(all / 2 + 1)));
    }
    return t;
}

static void make_lengths(test_attention *a, int64_t *total_q, int64_t *total_k, int64_t *entries)
{
    const attention_case *c = &a->c;
    if (c->packed_q)
        a->cu_q = cumulative(c->batch, c->seqlen_q, c->lengths_q, total_q);
    if (c->packed_k)
        a->cu_k = cumulative(c->batch, c->seqlen_k, c->lengths_k, total_k);
    if (c->used_q)
        a->used_q = used(c->batch, a->cu_q, c->seqlen_q, c->packed_q ? NULL : c->lengths_q);
    if (c->used_k || c->page_size || c->leftpad)
        a->used_k = used(c->batch, a->cu_k, c->seqlen_k, c->packed_k ? NULL : c->lengths_k);
    if (c->leftpad) {
        a->leftpad = int32_vector(c->batch);
        for (int64_t b = 0; b < c->batch; b++)
            test_put(a->leftpad, b, (double)test_integer((int64_t)test_get(a->used_k, b) / 2 + 1));
    }
    if (c->cache_idx) {
        *entries = c->batch + 2;
        a->cache_idx = int32_vector(c->batch);
        for (int64_t b = 0; b < c->batch; b++) /* a permutation with gaps, so that no two share an entry */
            test_put(a->cache_idx, b, (double)(*entries - 1 - b));
    }
    if (c->page_size) {
        int64_t per = (c->seqlen_k + c->page_size - 1) / c->page_size, row = per + 1;
        a->table = test_tensor_new(KILN_INT32, 2, (const int64_t[]){*entries, row}, STRIDES_PADDED, false);
        for (int64_t i = 0; i < *entries * row; i++) /* never read: past the length, or of another entry */
            test_put(a->table, i, i % 2 ? -1 : 2147483647);
        for (int64_t b = 0; b < c->batch; b++) {
            int64_t entry = a->cache_idx ? (int64_t)test_get(a->cache_idx, b) : b;
            int64_t pages = ((int64_t)test_get(a->used_k, b) + c->page_size - 1) / c->page_size;
            for (int64_t p = 0; p < pages; p++) /* scattered: neighbours are far apart */
                test_put(a->table, entry * row + p, (double)(1 + p * c->batch + (c->batch - 1 - b)));
        }
    }
}

static int64_t at(const test_tensor *t, int64_t i, int64_t otherwise)
{
    return t ? (int64_t)test_get(t, i) : otherwise;
}

/* One flag per (outer index, row) of k: does a sequence use it? */
static bool *keys_in_use(const test_attention *a, int64_t outer, int64_t rows)
{
    const attention_case *c = &a->c;
    bool *used_rows = test_alloc((size_t)(outer * rows));
    for (int64_t b = 0; b < c->batch; b++) {
        int64_t entry = at(a->cache_idx, b, b), first = at(a->cu_k, b, 0);
        int64_t end = at(a->used_k, b, a->cu_k ? at(a->cu_k, b + 1, 0) - first : c->seqlen_k);
        for (int64_t j = at(a->leftpad, b, 0); j < end; j++)
            if (a->table)
                used_rows[at(a->table, entry * a->table->shape[1] + j / rows, 0) * rows + j % rows] = true;
            else
                used_rows[(a->cu_k ? 0 : entry * rows) + first + j] = true;
    }
    return used_rows;
}

/* The same for q. */
static bool *queries_in_use(const test_attention *a, int64_t outer, int64_t rows)
{
    const attention_case *c = &a->c;
    bool *used_rows = test_alloc((size_t)(outer * rows));
    for (int64_t b = 0; b < c->batch; b++) {
        int64_t first = at(a->cu_q, b, 0);
        int64_t n = at(a->used_q, b, a->cu_q ? at(a->cu_q, b + 1, 0) - first : c->seqlen_q);
        for (int64_t i = 0; i < n; i++)
            used_rows[(a->cu_q ? 0 : b * rows) + first + i] = true;
    }
    return used_rows;
}

/* ------------------------------------------------------------------------------------------------ data */

/* A number for q (part 0), k (1) or v (2). */
static double draw(attention_values values, int part, bool special_row)
{
    double x = test_normal();
    switch (values) {
    case VALUES_OUTLIERS: return special_row && part < 2 ? 12 * x : x;
    case VALUES_NEGATIVE: return part == 0 ? 3 + fabs(x) : part == 1 ? -3 - fabs(x) : x;
    case VALUES_HUGE: return part < 2 ? 25 * x : x;
    case VALUES_ZERO: return part == 0 ? 0 : x;
    case VALUES_SMALL: return part < 2 ? x : x * 1e-7;
    case VALUES_POISON:
        if (special_row && test_integer(4) == 0) {
            static const double poison[3] = {NAN, INFINITY, -INFINITY};
            return poison[test_integer(3)];
        }
        return x;
    default: return x;
    }
}

/* Fills a tensor (outer, head, row, column) or (head, row, column); rows outside every sequence stay poison. The numbers
 * depend on the seed, the part and the place only, so that problems that differ in one argument share them. */
static void fill(const test_attention *a, test_tensor *t, int part)
{
    test_seed(16 * a->c.seed + 2 + (uint64_t)part);
    int rank = t->host.ndim;
    int64_t columns = t->shape[rank - 1], rows = t->shape[rank - 2], heads = t->shape[rank - 3];
    int64_t outer_size = rank == 4 ? t->shape[0] : 1;
    const bool *in_use = part == 0 ? queries_in_use(a, outer_size, rows) : keys_in_use(a, outer_size, rows);
    int64_t broadcast = t->stride[0] == 0 && t->shape[0] > 1 ? t->count / t->shape[0] : t->count;
    for (int64_t i = 0; i < broadcast; i += columns) {
        int64_t row = i / columns % rows, outer = rank == 4 ? i / columns / rows / heads : 0;
        bool special = test_integer(8) == 0;
        bool live = in_use[outer * rows + row];
        for (int64_t j = 0; j < columns; j++) {
            double x = draw(a->c.values, part, special);
            test_put(t, i + j, live ? x : NAN);
        }
    }
}

static void make_modifiers(test_attention *a)
{
    const attention_case *c = &a->c;
    test_seed(16 * c->seed + 9);
    if (c->mask_len) {
        int m = c->mask_broadcast;
        a->attn_mask =
            test_tensor_new(c->mask_type, 4,
                            (const int64_t[]){m & BROADCAST_BATCH ? 1 : c->batch, m & BROADCAST_HEAD ? 1 : c->heads,
                                              m & BROADCAST_QUERY ? 1 : c->seqlen_q, c->mask_len},
                            c->extra_strides, false);
        for (int64_t i = 0; i < a->attn_mask->count; i++)
            test_put(a->attn_mask, i, test_integer(10) < 7 ? (c->mask_type == KILN_UINT8 ? 128 : 1) : 0);
    }
    if (c->bias) {
        int m = c->bias_broadcast;
        int64_t keys = a->table ? a->table->shape[1] * c->page_size : c->seqlen_k;
        a->bias =
            test_tensor_new(c->bias_type, 4,
                            (const int64_t[]){m & BROADCAST_BATCH ? 1 : c->batch, m & BROADCAST_HEAD ? 1 : c->heads,
                                              m & BROADCAST_QUERY ? 1 : c->seqlen_q, m & BROADCAST_KEY ? 1 : keys},
                            c->extra_strides, false);
        for (int64_t i = 0; i < a->bias->count; i++)
            test_put(a->bias, i, test_integer(20) == 0 && !(m & BROADCAST_KEY) ? -INFINITY : test_normal());
    }
    if (c->alibi) {
        a->alibi = test_tensor_new(KILN_FLOAT32, c->alibi,
                                   c->alibi == 2 ? (const int64_t[]){c->batch, c->heads} : (const int64_t[]){c->heads},
                                   c->extra_strides, false);
        for (int64_t i = 0; i < a->alibi->count; i++)
            test_put(a->alibi, i, exp2(-(double)(i % 8) - 1));
    }
    if (c->sinks) {
        a->sinks = test_tensor_new(c->sinks_type, 1, (const int64_t[]){c->heads}, c->extra_strides, false);
        for (int64_t i = 0; i < a->sinks->count; i++)
            test_put(a->sinks, i, test_normal());
    }
    if (c->starts) {
        a->q_starts = int32_vector(c->batch);
        a->k_starts = int32_vector(c->batch);
        for (int64_t b = 0; b < c->batch; b++) {
            test_put(a->q_starts, b, (double)(test_integer(9) - 4));
            test_put(a->k_starts, b, (double)(test_integer(9) - 4));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ arguments */

static kiln_attention_forward_args arguments(const test_attention *a, const kiln_tensor *(*of)(const test_tensor *))
{
    const attention_case *c = &a->c;
    kiln_attention_forward_args args = {
        .struct_size = sizeof args,
        .q = of(a->q),
        .k = of(a->k),
        .v = of(a->v),
        .o = of(a->o),
        .softmax_lse = of(a->lse),
        .q2 = of(a->q2),
        .k2 = of(a->k2),
        .softmax_scale = c->scale,
        .softcap = c->softcap,
        .bias = of(a->bias),
        .alibi_slopes = of(a->alibi),
        .sinks = of(a->sinks),
        .mask = c->mask,
        .num_splits = c->num_splits,
        .window_left = c->window_left,
        .window_right = c->window_right,
        .attn_mask = of(a->attn_mask),
        .q_start = c->q_start,
        .q_step = c->q_step,
        .k_start = c->k_start,
        .k_step = c->k_step,
        .q_starts = of(a->q_starts),
        .k_starts = of(a->k_starts),
        .cu_seqlens_q = of(a->cu_q),
        .cu_seqlens_k = of(a->cu_k),
        .max_seqlen_q = c->packed_q ? c->seqlen_q : 0,
        .max_seqlen_k = c->packed_k ? c->seqlen_k : 0,
        .seqused_q = of(a->used_q),
        .seqused_k = of(a->used_k),
        .leftpad_k = of(a->leftpad),
        .block_table = of(a->table),
        .cache_batch_idx = of(a->cache_idx),
        .dropout_p = c->dropout_p,
        .max_sms = c->max_sms,
        .dropout_seed = c->dropout_seed,
        .dropout_offset = c->dropout_offset,
        .flags = c->flags,
    };
    if (a->dropout) {
        const char *words = of == test_device ? (const char *)a->dropout->memory : (const char *)a->dropout->image;
        args.dropout_seed_ptr = (const uint64_t *)(const void *)(words + a->dropout->first);
        args.dropout_offset_ptr = args.dropout_seed_ptr + 1;
        args.dropout_seed = args.dropout_offset = 99; /* must be ignored */
    }
    return args;
}

test_attention *test_attention_new(const attention_case *description)
{
    test_attention *a = test_alloc(sizeof *a);
    char text[512];
    a->c = *description;
    attention_case *c = &a->c;
    resolve(c);
    describe(c, text, sizeof text);
    test_label("%s", text);
    test_seed(16 * c->seed + 1);

    int64_t total_q = c->seqlen_q, total_k = c->seqlen_k, entries = c->batch;
    make_lengths(a, &total_q, &total_k, &entries);
    int q_rank = c->packed_q ? 3 : 4, k_rank = c->packed_k ? 3 : 4;
    int64_t outer_k = c->page_size ? 1 + c->batch * ((c->seqlen_k + c->page_size - 1) / c->page_size) + 2 : entries;
    int64_t rows_k = c->page_size ? c->page_size : total_k;
#define Q_SHAPE(columns) (const int64_t[]){c->batch, c->heads, total_q, (columns)} + (4 - q_rank)
#define K_SHAPE(columns) (const int64_t[]){outer_k, c->heads_k, rows_k, (columns)} + (4 - k_rank)
    a->q = test_tensor_new(c->type, q_rank, Q_SHAPE(c->d), c->q_strides, false);
    a->k = test_tensor_new(c->type, k_rank, K_SHAPE(c->d), c->k_strides, false);
    a->v = c->v_is_k ? a->k : test_tensor_new(c->type, k_rank, K_SHAPE(c->d_v), c->v_strides, false);
    if (c->d2) {
        a->q2 = test_tensor_new(c->type, q_rank, Q_SHAPE(c->d2), c->q_strides, false);
        a->k2 = test_tensor_new(c->type, k_rank, K_SHAPE(c->d2), c->k_strides, false);
    }
    a->o = test_tensor_new(c->o_type, q_rank, Q_SHAPE(c->d_v), c->o_strides, true);
    if (!c->no_lse)
        a->lse = test_tensor_new(KILN_FLOAT32, q_rank - 1, Q_SHAPE(0), c->extra_strides, true);
#undef Q_SHAPE
#undef K_SHAPE
    fill(a, a->q, 0);
    fill(a, a->k, 1);
    if (a->v != a->k)
        fill(a, a->v, 2);
    if (c->d2) {
        fill(a, a->q2, 0);
        fill(a, a->k2, 1);
    }
    make_modifiers(a);
    if (c->dropout_pointers) {
        a->dropout = test_tensor_new(KILN_UINT64, 1, (const int64_t[]){2}, STRIDES_COMPACT, false);
        memcpy(a->dropout->image + a->dropout->first, (const uint64_t[]){c->dropout_seed, c->dropout_offset}, 16);
    }
    a->args = arguments(a, test_device);
    a->host_args = arguments(a, test_host);
    return a;
}

/* ------------------------------------------------------------------------------------------------ judgement */

/* The label of a run: the description and, where the program is built, the line that `kiln verify` takes. */
static void label_run(const test_attention *a, const char *algorithm)
{
    char text[512], line[512] = "";
    describe(&a->c, text, sizeof text);
#if KILN_TEST_HAVE_PROBLEM
    test_verify_line(a, algorithm, line, sizeof line);
#endif
    test_label("%s, algorithm %s%s%s%s", text, test_algorithm_name(algorithm), line[0] ? "\n    kiln verify '" : "",
               line, line[0] ? "'" : "");
}

void test_attention_oracle(test_attention *a, const kiln_numerics *numerics)
{
    if (a->judged && memcmp(&a->numerics, numerics, sizeof *numerics) == 0)
        return;
    if (!a->o_value) {
        int64_t rows = 1;
        for (int i = 0; i + 1 < a->o->host.ndim; i++)
            rows *= a->o->shape[i];
        a->o_value = test_alloc((size_t)a->o->count * sizeof(double));
        a->o_bound = test_alloc((size_t)a->o->count * sizeof(double));
        a->lse_value = test_alloc((size_t)rows * sizeof(double));
        a->lse_bound = test_alloc((size_t)rows * sizeof(double));
    }
    kiln_oracle_attention out = {{a->o_value, a->o_bound}, {a->lse_value, a->lse_bound}};
    kiln_status status = kiln_oracle_attention_forward(&a->host_args, numerics, &out);
    TEST_REQUIRE(status == KILN_OK, "the oracle says %s", kiln_status_name(status));
    a->numerics = *numerics;
    a->judged = true;
}

static void mark_written(test_tensor *t, const double *value, const double *bound)
{
    if (!t)
        return;
    if (!t->written)
        t->written = test_alloc((size_t)t->count * sizeof *t->written);
    for (int64_t i = 0; i < t->count; i++)
        t->written[i] = !kiln_oracle_untouched(value[i], bound[i]);
}

static void judge(const test_tensor *t, const char *name, const char *algorithm, const double *value,
                  const double *bound)
{
    if (!t)
        return;
    for (int64_t i = 0; i < t->count; i++) {
        double got = test_result(t, i);
        TEST_REQUIRE(!t->written[i] || kiln_oracle_accepts(got, value[i], bound[i]),
                     "%s: %s[%lld] is %.9g; right is %.9g, at most %.3g away (it is %.3g away)", algorithm, name,
                     (long long)i, got, value[i], bound[i], fabs(got - value[i]));
    }
}

double test_attention_cost(const test_attention *a)
{
    const attention_case *c = &a->c;
    double blocks = (double)(c->batch * c->heads * ((c->seqlen_q + 63) / 64));
    return (double)(c->batch * c->heads) * (double)(c->seqlen_q * c->seqlen_k) * (double)(c->d + c->d2 + c->d_v) +
           4e4 * blocks;
}

static kiln_status run_once(test_attention *a, kiln_context *context, const char *algorithm, char *why, size_t cap)
{
    kiln_numerics numerics = {0};
    label_run(a, algorithm);
    kiln_status status = test_supported(KILN_OP_ATTENTION_FORWARD, context, &a->args, why, cap);
    if (status == KILN_OK) {
        status = kiln_internal_numerics(context, KILN_OP_ATTENTION_FORWARD, &a->args, &numerics);
        TEST_REQUIRE(status == KILN_OK, "supported, but no numerics: %s", kiln_last_error());
        test_attention_oracle(a, &numerics);
        mark_written(a->o, a->o_value, a->o_bound);
        mark_written(a->lse, a->lse_value, a->lse_bound);
    }
    status = test_run(KILN_OP_ATTENTION_FORWARD, context, &a->args, why, cap);
    TEST_REQUIRE(status == KILN_OK || test_refused(status, algorithm, why), "%s refuses a right call: %s: %s",
                 test_algorithm_name(algorithm), kiln_status_name(status), why);
    if (status == KILN_OK) {
        judge(a->o, "o", test_algorithm_name(algorithm), a->o_value, a->o_bound);
        judge(a->lse, "lse", test_algorithm_name(algorithm), a->lse_value, a->lse_bound);
    }
    return status;
}

/* mfma has instances for few queries, and with BATCH_INVARIANT does without them: both are judged, else small cases never see
 * the others. What is left in the outputs is what was asked for. */
kiln_status test_attention_run(test_attention *a, kiln_context *context, const char *algorithm, char *why, size_t cap)
{
    if (test_left_out((algorithm ? 1 : 4) * test_attention_cost(a))) {
        snprintf(why, cap, "left to the real device");
        return KILN_UNSUPPORTED;
    }
    a->args.algorithm = algorithm;
    const uint64_t asked = a->args.flags;
    if (algorithm && strcmp(algorithm, "mfma") == 0 && !(asked & KILN_FLAG_BATCH_INVARIANT)) {
        a->args.flags |= KILN_FLAG_BATCH_INVARIANT;
        kiln_status status = run_once(a, context, algorithm, why, cap);
        a->args.flags = asked;
        if (status != KILN_OK)
            return status;
    }
    return run_once(a, context, algorithm, why, cap);
}

bool test_attention_ran(test_attention *a, const char *algorithm)
{
    char why[512] = "";
    return test_attention_run(a, test_context(), algorithm, why, sizeof why) == KILN_OK;
}
