/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem_build.c: problem_spec -> tensors in host memory. Contract: problem.h.
 *
 * Shapes first, then strides (layout, padding, overrides), then one storage per home tensor that spans all that lie in it.
 * All products are checked, so that absurd numbers give a sentence, not an overflow.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/convert.h"
#include "problem_data.h"

typedef struct builder {
    problem_data *data;
    const problem_spec *spec;
    int64_t shift[SLOT_COUNT]; /* elements between a home's first element and this tensor's */
    bool overflow;
    size_t limit, total;
    char *why;
    size_t cap;
} builder;

static bool fail(builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(builder *b, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(b->why, b->cap, format, list);
    va_end(list);
    return false;
}

static int64_t mul(builder *b, int64_t x, int64_t y)
{
    int64_t z = 0;
    b->overflow |= __builtin_mul_overflow(x, y, &z);
    return z;
}

static int64_t add(builder *b, int64_t x, int64_t y)
{
    int64_t z = 0;
    b->overflow |= __builtin_add_overflow(x, y, &z);
    return z;
}

/* Axes of size 0 count as 1 in strides, as in a compact array, so that no output has stride 0. */
static int64_t at_least_one(int64_t size)
{
    return size > 0 ? size : 1;
}

static problem_tensor *declare(builder *b, problem_slot slot, int32_t type, bool output, int32_t ndim,
                               const int64_t *shape)
{
    problem_tensor *t = &b->data->tensor[slot];
    int64_t stride = 1;
    t->present = true;
    t->output = output;
    t->home = slot;
    t->type = type;
    t->ndim = ndim;
    for (int32_t axis = ndim - 1; axis >= 0; axis--) {
        t->shape[axis] = shape[axis];
        t->stride[axis] = stride;
        stride = mul(b, stride, at_least_one(shape[axis]));
    }
    return t;
}

/* Strides of a tensor ([batch,] heads, rows, columns) under the problem's layout, every row padded. */
static void lay_out(builder *b, problem_tensor *t, int32_t layout, int64_t heads)
{
    const problem_spec *s = b->spec;
    int32_t first = t->ndim - 3;
    int64_t rows = at_least_one(t->shape[first + 1]), batch = first == 1 ? at_least_one(t->shape[0]) : 1;
    int64_t row = add(b, mul(b, at_least_one(t->shape[first + 2]), s->inner), s->row_pad);
    heads = at_least_one(heads);
    t->stride[first + 2] = s->inner;
    switch (layout) {
    case LAYOUT_BHSD:
        t->stride[first + 1] = row;
        t->stride[first] = mul(b, rows, row);
        break;
    case LAYOUT_SBHD:
        t->stride[first] = row;
        t->stride[first + 1] = mul(b, mul(b, batch, heads), row);
        break;
    default:
        t->stride[first] = row;
        t->stride[first + 1] = mul(b, heads, row);
        break;
    }
    if (first == 1)
        t->stride[0] = layout == LAYOUT_SBHD ? mul(b, heads, row) : mul(b, mul(b, heads, rows), row);
}

/* A tensor of rows with columns, of q's, k's or o's kind. */
static problem_tensor *declare_rows(builder *b, problem_slot slot, int32_t type, bool output, int64_t batch,
                                    int64_t heads, int64_t rows, int64_t columns)
{
    int64_t shape[4] = {batch, heads, rows, columns};
    bool packed = batch < 0; /* no batch axis */
    problem_tensor *t = declare(b, slot, type, output, packed ? 3 : 4, packed ? shape + 1 : shape);
    lay_out(b, t, b->spec->layout, heads);
    return t;
}

static void declare_list(builder *b, problem_slot slot, const problem_list *list, int64_t extra)
{
    if (list->kind == LIST_ABSENT)
        return;
    int64_t count = add(b, problem_list_count(b->spec, list), extra);
    declare(b, slot, KILN_INT32, false, 1, &count);
}

static int32_t or_default(int32_t type, int32_t standard)
{
    return type != 0 ? type : standard;
}

/* Makes the tensors of a fused projection slices of one tensor ([batch,] rows, heads of all, columns). */
static bool fuse(builder *b)
{
    problem_tensor *t = b->data->tensor;
    const problem_spec *s = b->spec;
    problem_slot first = s->layout == LAYOUT_QKV ? SLOT_Q : SLOT_K;
    int64_t heads = 0, shift = 0;
    for (int slot = first; slot <= SLOT_V; slot++) {
        for (int axis = 0; axis < t[slot].ndim; axis++)
            if (t[slot].ndim != t[first].ndim ||
                (axis != t[slot].ndim - 3 && t[slot].shape[axis] != t[first].shape[axis]))
                return fail(b, "layout=%s: %s has another shape than %s, so they cannot be slices of one tensor",
                            s->layout == LAYOUT_QKV ? "qkv" : "kv", problem_slot_name((problem_slot)slot),
                            problem_slot_name(first));
        heads = add(b, heads, t[slot].shape[t[slot].ndim - 3]);
    }
    for (int slot = first; slot <= SLOT_V; slot++) {
        int32_t head_axis = t[slot].ndim - 3;
        lay_out(b, &t[slot], LAYOUT_BSHD, heads);
        t[slot].home = first;
        b->shift[slot] = shift;
        shift = add(b, shift, mul(b, t[slot].shape[head_axis], t[slot].stride[head_axis]));
    }
    return true;
}

static bool declare_backward(builder *b, int64_t q_batch, int64_t q_rows, int64_t k_batch, int64_t k_rows)
{
    const problem_spec *s = b->spec;
    problem_tensor *t = b->data->tensor;
    int32_t grad = or_default(s->grad, s->type);
    t[SLOT_O].output = t[SLOT_LSE].output = false;
    declare_rows(b, SLOT_DOUT, s->type, false, q_batch, s->heads, q_rows, s->d_v);
    declare_rows(b, SLOT_DQ, grad, true, q_batch, s->heads, q_rows, s->d);
    declare_rows(b, SLOT_DK, grad, true, k_batch, s->heads_k, k_rows, s->d);
    declare_rows(b, SLOT_DV, grad, true, k_batch, s->heads_k, k_rows, s->d_v);
    t[SLOT_DQ].accumulate = s->flags & KILN_FLAG_ACCUMULATE_DQ;
    t[SLOT_DK].accumulate = s->flags & KILN_FLAG_ACCUMULATE_DK;
    t[SLOT_DV].accumulate = s->flags & KILN_FLAG_ACCUMULATE_DV;
    if (s->d2 > 0) {
        declare_rows(b, SLOT_DQ2, grad, true, q_batch, s->heads, q_rows, s->d2);
        declare_rows(b, SLOT_DK2, grad, true, k_batch, s->heads_k, k_rows, s->d2);
        t[SLOT_DQ2].accumulate = t[SLOT_DQ].accumulate;
        t[SLOT_DK2].accumulate = t[SLOT_DK].accumulate;
    }
    if (s->dlse)
        declare(b, SLOT_DLSE, KILN_FLOAT32, false, t[SLOT_LSE].ndim, t[SLOT_LSE].shape);
    if (s->dbias && !t[SLOT_BIAS].present)
        return fail(b, "dbias needs a bias: write for example bias=hqk");
    if (s->dbias)
        declare(b, SLOT_DBIAS, KILN_FLOAT32, true, 4, t[SLOT_BIAS].shape);
    if (s->dsinks)
        declare(b, SLOT_DSINKS, KILN_FLOAT32, true, 1, &s->heads);
    return true;
}

static bool declare_attention(builder *b)
{
    const problem_spec *s = b->spec;
    bool packed_q = s->lens_q.kind != LIST_ABSENT, packed_k = s->lens_k.kind != LIST_ABSENT, paged = s->page_size > 0;
    int64_t q_rows = packed_q ? problem_total(s, SLOT_CU_SEQLENS_Q, &s->lens_q, s->seqlen_q) : s->seqlen_q;
    int64_t q_batch = packed_q ? -1 : s->batch, k_batch = problem_cache_batch(s), k_rows = s->seqlen_k;
    int64_t keys = s->seqlen_k, pages = problem_pages_per_sequence(s);
    if (paged) {
        int64_t table[2] = {problem_cache_batch(s), pages};
        keys = mul(b, pages, s->page_size);
        k_rows = s->page_size;
        k_batch = add(b, mul(b, table[0], pages), s->spare_pages);
        declare(b, SLOT_BLOCK_TABLE, KILN_INT32, false, 2, table);
    } else if (packed_k) {
        k_batch = -1;
        k_rows = problem_total(s, SLOT_CU_SEQLENS_K, &s->lens_k, s->seqlen_k);
    }
    if (q_rows < 0 || k_rows < 0 || s->spare_pages < 0)
        return fail(b, "the packed lengths, pack_gap and spare_pages must add up to a size that fits");

    declare_rows(b, SLOT_Q, s->type, false, q_batch, s->heads, q_rows, s->d);
    declare_rows(b, SLOT_K, s->type, false, k_batch, s->heads_k, k_rows, s->d);
    problem_tensor *v = declare_rows(b, SLOT_V, s->type, false, k_batch, s->heads_k, k_rows, s->d_v);
    declare_rows(b, SLOT_O, or_default(s->out, s->type), true, q_batch, s->heads, q_rows, s->d_v);
    if (s->d2 > 0) {
        declare_rows(b, SLOT_Q2, s->type, false, q_batch, s->heads, q_rows, s->d2);
        declare_rows(b, SLOT_K2, s->type, false, k_batch, s->heads_k, k_rows, s->d2);
    }
    if (s->alias_kv) {
        if (s->d_v > s->d)
            return fail(b, "alias_kv: v cannot lie in k, because its head size %" PRId64 " is larger than k's %" PRId64,
                        s->d_v, s->d);
        v->home = SLOT_K;
        memcpy(v->stride, b->data->tensor[SLOT_K].stride, sizeof v->stride);
    }
    if ((s->layout == LAYOUT_QKV || s->layout == LAYOUT_KV) && !s->alias_kv && !fuse(b))
        return false;
    if (s->lse || s->op == KILN_OP_ATTENTION_BACKWARD)
        declare(b, SLOT_LSE, KILN_FLOAT32, true, packed_q ? 2 : 3, b->data->tensor[SLOT_O].shape);

    int64_t size[4] = {s->batch, s->heads, s->seqlen_q, keys}, shape[4];
    if (s->bias) {
        for (int axis = 0; axis < 4; axis++)
            shape[axis] = s->bias & 1 << axis ? size[axis] : 1;
        declare(b, SLOT_BIAS, KILN_FLOAT32, false, 4, shape);
    }
    if (s->keep != KEEP_NONE) {
        for (int axis = 0; axis < 3; axis++)
            shape[axis] = s->keep_axes & 1 << axis ? size[axis] : 1;
        shape[3] = s->mask_len != 0 ? s->mask_len : s->keep == KEEP_TREE && s->seqlen_q < keys ? s->seqlen_q : keys;
        declare(b, SLOT_ATTN_MASK, KILN_UINT8, false, 4, shape);
    }
    if (s->alibi && (s->alibi & ~(AXIS_BATCH | AXES_PRESENT)) != AXIS_HEAD)
        return fail(b, "alibi has the axes h or bh");
    if (s->alibi)
        declare(b, SLOT_ALIBI, KILN_FLOAT32, false, s->alibi & AXIS_BATCH ? 2 : 1, size + !(s->alibi & AXIS_BATCH));
    if (s->sinks)
        declare(b, SLOT_SINKS, KILN_FLOAT32, false, 1, &s->heads);

    declare_list(b, SLOT_Q_STARTS, &s->q_starts, 0);
    declare_list(b, SLOT_K_STARTS, &s->k_starts, 0);
    declare_list(b, SLOT_CU_SEQLENS_Q, &s->lens_q, 1);
    declare_list(b, SLOT_CU_SEQLENS_K, &s->lens_k, 1);
    declare_list(b, SLOT_SEQUSED_Q, &s->seqused_q, 0);
    declare_list(b, SLOT_SEQUSED_K, &s->seqused_k, 0);
    declare_list(b, SLOT_LEFTPAD_K, &s->leftpad_k, 0);
    declare_list(b, SLOT_CACHE_BATCH_IDX, &s->cache_batch_idx, 0);
    int64_t one = 1, two = 2;
    if (s->dropout_ptr)
        declare(b, SLOT_DROPOUT, KILN_UINT64, false, 1, &two);
    if (s->status)
        declare(b, SLOT_STATUS, KILN_INT32, false, 1, &one);
    return s->op != KILN_OP_ATTENTION_BACKWARD || declare_backward(b, q_batch, q_rows, k_batch, k_rows);
}

static void declare_merge(builder *b)
{
    const problem_spec *s = b->spec;
    int64_t parts[5] = {s->parts, s->batch, s->heads, s->seqlen_q, s->d};
    declare(b, SLOT_O_PARTS, s->type, false, 5, parts);
    declare(b, SLOT_LSE_PARTS, KILN_FLOAT32, false, 4, parts);
    declare_rows(b, SLOT_O, or_default(s->out, s->type), true, s->batch, s->heads, s->seqlen_q, s->d);
    if (s->lse)
        declare(b, SLOT_LSE, KILN_FLOAT32, true, 3, parts + 1);
    if (s->sinks)
        declare(b, SLOT_SINKS, KILN_FLOAT32, false, 1, &s->heads);
}

/* Every row padded, the last axis spread: the softmax form of lay_out(). */
static void lay_out_softmax(builder *b, problem_slot slot)
{
    problem_tensor *t = &b->data->tensor[slot];
    int64_t stride = add(b, mul(b, at_least_one(t->shape[t->ndim - 1]), b->spec->inner), b->spec->row_pad);
    t->stride[t->ndim - 1] = b->spec->inner;
    for (int32_t axis = t->ndim - 2; axis >= 0; axis--) {
        t->stride[axis] = stride;
        stride = mul(b, stride, at_least_one(t->shape[axis]));
    }
}

static void declare_softmax(builder *b)
{
    const problem_spec *s = b->spec;
    bool backward = s->op == KILN_OP_SOFTMAX_BACKWARD;
    int64_t shape[KILN_MAX_RANK];
    int32_t rank = s->outer_rank + 1;
    memcpy(shape, s->outer, sizeof s->outer);
    shape[s->outer_rank] = s->n;
    declare(b, SLOT_X, s->type, false, rank, shape); /* backward: only to make y from */
    declare(b, SLOT_Y, or_default(s->out, s->type), !backward, rank, shape);
    lay_out_softmax(b, SLOT_X);
    lay_out_softmax(b, SLOT_Y);
    if (backward) {
        declare(b, SLOT_DY, s->type, false, rank, shape);
        declare(b, SLOT_DX, or_default(s->grad, s->type), true, rank, shape);
        lay_out_softmax(b, SLOT_DY);
        lay_out_softmax(b, SLOT_DX);
    } else if (s->lse) {
        declare(b, SLOT_LSE, KILN_FLOAT32, true, s->outer_rank, shape);
    }
}

/* Is it one of the large tensors that `offset` moves? */
static bool large(problem_slot slot)
{
    return slot <= SLOT_O || slot == SLOT_Q2 || slot == SLOT_K2 || slot >= SLOT_DOUT;
}

static bool apply_overrides(builder *b)
{
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        const problem_override *o = &b->spec->override[slot];
        problem_tensor *t = &b->data->tensor[slot];
        const char *name = problem_slot_name((problem_slot)slot);
        if (!t->present) {
            if (o->type != 0 || o->stride_count != 0 || o->offset != 0)
                return fail(b, "%s is no tensor of this problem, so it has no type, strides or offset", name);
            continue;
        }
        if (o->type != 0 && t->home != (problem_slot)slot)
            return fail(b, "%s lies in %s and has its type", name, problem_slot_name(t->home));
        if (o->type != 0)
            t->type = o->type;
        if (o->stride_count != 0 && o->stride_count != t->ndim)
            return fail(b, "%s.strides: %d numbers for %d axes", name, o->stride_count, t->ndim);
        for (int axis = 0; axis < o->stride_count; axis++)
            t->stride[axis] = o->stride[axis];
        t->offset = o->offset != 0 ? o->offset : large((problem_slot)slot) ? b->spec->offset : 0;
        if (t->offset < 0)
            return fail(b, "%s.offset is %" PRId64 ": it must not be negative", name, t->offset);
    }
    /* A slice has the type of the tensor that it lies in. */
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        b->data->tensor[slot].type = b->data->tensor[b->data->tensor[slot].home].type;
    return true;
}

/* Elements before and after the first one. */
static void extent(builder *b, const problem_tensor *t, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (int axis = 0; axis < t->ndim; axis++) {
        if (t->shape[axis] == 0) {
            *low = 0, *high = -1;
            return;
        }
        int64_t reach = mul(b, t->shape[axis] - 1, t->stride[axis]);
        *(reach < 0 ? low : high) = add(b, *(reach < 0 ? low : high), reach);
    }
}

/* Would visiting every element of the tensor end? A stride of 0 makes any number of them cost no memory. */
static bool countable(builder *b, const problem_tensor *t)
{
    int64_t count = 1;
    for (int axis = 0; axis < t->ndim; axis++) {
        if (t->shape[axis] == 0)
            return true;
        count = mul(b, count, t->shape[axis]);
    }
    return !b->overflow && (b->limit == 0 || count <= (int64_t)(b->limit / (size_t)kiln_type_size(t->type)));
}

static bool allocate(builder *b, problem_slot home)
{
    problem_tensor *tensor = b->data->tensor, *h = &tensor[home];
    int64_t before = 0, after = 0, low, high, size = kiln_type_size(h->type);
    bool fits = true;
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        problem_tensor *t = &tensor[slot];
        if (!t->present || t->home != home)
            continue;
        extent(b, t, &low, &high);
        int64_t start = add(b, low, b->shift[slot]);
        int64_t end = add(b, add(b, add(b, high, b->shift[slot]), t->offset), 1);
        before = start < -before ? mul(b, start, -1) : before;
        after = end > after ? end : after;
        fits = fits && countable(b, t);
    }
    int64_t bytes = add(b, mul(b, add(b, before, after), size), 2 * PROBLEM_GUARD + 255) & ~(int64_t)255;
    if (!fits || b->overflow || (b->limit != 0 && (uint64_t)bytes > b->limit - b->total))
        return fail(b, "the problem is too large: %s takes the tensors past %zu bytes", problem_slot_name(home),
                    b->limit != 0 ? b->limit : SIZE_MAX);
    b->total += (size_t)bytes;
    h->bytes = (size_t)bytes;
    h->storage = aligned_alloc(256, h->bytes);
    if (h->storage == NULL)
        return fail(b, "out of memory: %s needs %zu bytes", problem_slot_name(home), h->bytes);
    memset(h->storage, PROBLEM_FILL, h->bytes);
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (tensor[slot].present && tensor[slot].home == home)
            tensor[slot].origin = PROBLEM_GUARD / size + before + b->shift[slot] + tensor[slot].offset;
    return true;
}

static bool build(builder *b)
{
    const problem_spec *s = b->spec;
    problem_data *data = b->data;
    if (s->inner < 0 || s->row_pad < 0)
        return fail(b, "inner and row_pad must not be negative: write strides with NAME.strides=...");
    if (s->page_size < 0 || s->mask_len < 0 || s->cache_batch < 0 || s->pack_gap < 0)
        return fail(b, "page, mask_len, cache_batch and pack_gap must not be negative");
    if (s->op == KILN_OP_ATTENTION_MERGE && (s->parts < 1 || s->parts > PROBLEM_PARTS_MAX))
        return fail(b, "parts is %" PRId64 ": 1 to %d", s->parts, PROBLEM_PARTS_MAX);
    if (s->op == KILN_OP_ATTENTION_MERGE)
        declare_merge(b);
    else if (s->op == KILN_OP_SOFTMAX_FORWARD || s->op == KILN_OP_SOFTMAX_BACKWARD)
        declare_softmax(b);
    else if (!declare_attention(b))
        return false;
    if (!apply_overrides(b))
        return false;
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (data->tensor[slot].present && data->tensor[slot].home == (problem_slot)slot &&
            !allocate(b, (problem_slot)slot))
            return false;
    problem_fill_lengths(data);
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (data->tensor[slot].present && !data->tensor[slot].output)
            problem_fill_slot(data, (problem_slot)slot);
    problem_reset_outputs(data);
    return problem_poison(data) || fail(b, "out of memory");
}

bool problem_build(const problem_spec *spec, size_t limit, problem_data *data, char *why, size_t cap)
{
    memset(data, 0, sizeof *data);
    data->spec = *spec;
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        data->tensor[slot].home = (problem_slot)slot;
    /* A paged cache must say its lengths; the whole capacity is the plain case. */
    if (spec->page_size > 0 && spec->seqused_k.kind == LIST_ABSENT)
        data->spec.seqused_k.kind = LIST_FULL;
    builder b = {.data = data, .spec = &data->spec, .limit = limit, .why = why, .cap = cap};
    if (build(&b))
        return true;
    problem_free(data);
    return false;
}

void problem_free(problem_data *data)
{
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        free(data->tensor[slot].storage);
        data->tensor[slot].storage = NULL;
    }
}

void problem_reset_outputs(problem_data *data)
{
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        problem_tensor *t = &data->tensor[slot];
        if (!t->present || !t->output)
            continue;
        memset(t->storage, PROBLEM_FILL, t->bytes);
        if (t->accumulate)
            problem_fill_slot(data, (problem_slot)slot);
    }
}

int64_t problem_element(const problem_tensor *tensor, const int64_t *index)
{
    int64_t element = tensor->origin;
    for (int axis = 0; axis < tensor->ndim; axis++)
        element += index[axis] * tensor->stride[axis];
    return element;
}

int64_t problem_count(const problem_tensor *tensor)
{
    int64_t count = 1;
    for (int axis = 0; axis < tensor->ndim; axis++)
        count *= tensor->shape[axis];
    return count;
}

void problem_each(const problem_tensor *tensor, void (*visit)(void *user, int64_t flat, int64_t element), void *user)
{
    int64_t index[KILN_MAX_RANK] = {0}, count = problem_count(tensor);
    int32_t last = tensor->ndim - 1;
    int64_t inner = tensor->ndim > 0 ? tensor->shape[last] : 1, stride = tensor->ndim > 0 ? tensor->stride[last] : 0;
    for (int64_t flat = 0; flat < count; flat += inner) {
        int64_t element = problem_element(tensor, index);
        for (int64_t i = 0; i < inner; i++)
            visit(user, flat + i, element + i * stride);
        for (int32_t axis = last - 1; axis >= 0 && ++index[axis] == tensor->shape[axis]; axis--)
            index[axis] = 0;
    }
}

char *problem_storage(const problem_data *data, problem_slot slot)
{
    return data->tensor[data->tensor[slot].home].storage;
}
