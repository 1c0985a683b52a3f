/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_args_spoil.c: changes of a call, each a few bytes of the input. What a caller must vouch for stays true: pointers
 * lead to metadata of the promised length, and a tensor with data lies in its storage. Everything else may be nonsense.
 */
#include <stddef.h>
#include <string.h>

#include "fuzz_args.h"

enum { CHANGES_MAX = 5, ELEMENTS_MAX = 1 << 14, STRUCT_MAX = 2048 };
#define WORK_MAX (1 << 19)

/* One member of an argument struct. */
typedef struct field {
    size_t offset, size;
    bool tensor; /* a const kiln_tensor *; otherwise a number */
} field;
#define TENSOR(type, name)                                                                                             \
    {                                                                                                                  \
        offsetof(type, name), sizeof(((type *)0)->name), true                                                          \
    }
#define NUMBER(type, name)                                                                                             \
    {                                                                                                                  \
        offsetof(type, name), sizeof(((type *)0)->name), false                                                         \
    }

#define F kiln_softmax_forward_args
static const field softmax_forward[] = {TENSOR(F, x),     TENSOR(F, y),       TENSOR(F, lse),
                                        NUMBER(F, scale), NUMBER(F, max_sms), NUMBER(F, flags)};
#undef F
#define F kiln_softmax_backward_args
static const field softmax_backward[] = {TENSOR(F, y),     TENSOR(F, dy),      TENSOR(F, dx),
                                         NUMBER(F, scale), NUMBER(F, max_sms), NUMBER(F, flags)};
#undef F
#define F kiln_attention_forward_args
static const field attention_forward[] = {TENSOR(F, q),
                                          TENSOR(F, k),
                                          TENSOR(F, v),
                                          TENSOR(F, o),
                                          TENSOR(F, softmax_lse),
                                          TENSOR(F, q2),
                                          TENSOR(F, k2),
                                          TENSOR(F, q_descale),
                                          TENSOR(F, k_descale),
                                          TENSOR(F, v_descale),
                                          TENSOR(F, bias),
                                          TENSOR(F, alibi_slopes),
                                          TENSOR(F, sinks),
                                          TENSOR(F, attn_mask),
                                          TENSOR(F, q_starts),
                                          TENSOR(F, k_starts),
                                          TENSOR(F, cu_seqlens_q),
                                          TENSOR(F, cu_seqlens_k),
                                          TENSOR(F, seqused_q),
                                          TENSOR(F, seqused_k),
                                          TENSOR(F, leftpad_k),
                                          TENSOR(F, block_table),
                                          TENSOR(F, cache_batch_idx),
                                          NUMBER(F, softmax_scale),
                                          NUMBER(F, softcap),
                                          NUMBER(F, mask),
                                          NUMBER(F, num_splits),
                                          NUMBER(F, window_left),
                                          NUMBER(F, window_right),
                                          NUMBER(F, q_start),
                                          NUMBER(F, q_step),
                                          NUMBER(F, k_start),
                                          NUMBER(F, k_step),
                                          NUMBER(F, max_seqlen_q),
                                          NUMBER(F, max_seqlen_k),
                                          NUMBER(F, dropout_p),
                                          NUMBER(F, max_sms),
                                          NUMBER(F, dropout_seed),
                                          NUMBER(F, dropout_offset),
                                          NUMBER(F, flags)};
#undef F
#define F kiln_attention_backward_args
static const field attention_backward[] = {
    TENSOR(F, dout), TENSOR(F, dlse),  TENSOR(F, dq),     TENSOR(F, dk),    TENSOR(F, dv),      TENSOR(F, dq2),
    TENSOR(F, dk2),  TENSOR(F, dbias), TENSOR(F, dsinks), NUMBER(F, flags), NUMBER(F, max_sms), NUMBER(F, reserved)};
#undef F
#define F kiln_attention_merge_args
static const field attention_merge[] = {TENSOR(F, o),         TENSOR(F, softmax_lse), TENSOR(F, sinks),
                                        NUMBER(F, num_parts), NUMBER(F, max_sms),     NUMBER(F, flags)};
#undef F

static const struct {
    const field *fields;
    size_t count, size;
} structs[KILN_OP_COUNT] = {
#define STRUCT(name)                                                                                                   \
    {                                                                                                                  \
        name, sizeof name / sizeof *name, sizeof(kiln_##name##_args)                                                   \
    }
    [KILN_OP_SOFTMAX_FORWARD] = STRUCT(softmax_forward),     [KILN_OP_SOFTMAX_BACKWARD] = STRUCT(softmax_backward),
    [KILN_OP_ATTENTION_FORWARD] = STRUCT(attention_forward), [KILN_OP_ATTENTION_BACKWARD] = STRUCT(attention_backward),
    [KILN_OP_ATTENTION_MERGE] = STRUCT(attention_merge),
};

/* A tensor that is there, or SLOT_COUNT. */
static problem_slot choose_slot(input *in, const problem_data *data)
{
    size_t first = input_below(in, SLOT_COUNT);
    for (size_t i = 0; i < SLOT_COUNT; i++) {
        problem_slot slot = (problem_slot)((first + i) % SLOT_COUNT);
        if (data->tensor[slot].present && slot != SLOT_DROPOUT && slot != SLOT_STATUS)
            return slot;
    }
    return SLOT_COUNT;
}

static void change_tensor(call_args *a, input *in, problem_slot slot)
{
    kiln_tensor *t = &a->tensor[slot];
    size_t axis = input_below(in, KILN_MAX_RANK);
    if (t->ndim > 0 && t->ndim <= KILN_MAX_RANK)
        axis %= (size_t)t->ndim;
    switch (input_below(in, 10)) {
    case 0: a->shape[slot][axis] = input_number(in); break;
    case 1: a->stride[slot][axis] = input_number(in); break;
    case 2: t->ndim = (int32_t)input_number(in); break;
    case 3: t->dtype.bits = (uint8_t)(8 << input_below(in, 4)); break;
    case 4: t->dtype = (kiln_dtype){input_byte(in), input_byte(in), input_byte(in)}; break;
    case 5: t->device.device_type = (int32_t)input_number(in); break;
    case 6: t->device.device_id = (int32_t)input_number(in); break;
    case 7: t->byte_offset = (uint64_t)input_number(in); break;
    case 8: t->data = NULL; break;
    case 9: t->strides = NULL; break;
    }
}

static void change_field(call_args *a, input *in, char *args, kiln_op op, const problem_data *data)
{
    const field *f = &structs[op].fields[input_below(in, structs[op].count)];
    if (f->tensor) {
        problem_slot slot = choose_slot(in, data);
        const kiln_tensor *other = input_below(in, 2) && slot != SLOT_COUNT ? &a->tensor[slot] : NULL;
        memcpy(args + f->offset, &other, sizeof other);
        return;
    }
    int64_t number = input_number(in);
    /* The caller vouches for the arrays of parts, which hold PROBLEM_PARTS_MAX pointers. */
    if (op == KILN_OP_ATTENTION_MERGE && f->offset == offsetof(kiln_attention_merge_args, num_parts))
        number = number > PROBLEM_PARTS_MAX ? PROBLEM_PARTS_MAX : number;
    for (size_t i = 0; i < f->size; i++) /* as floats these are denormal, huge or NaN */
        args[f->offset + i] = (char)(number >> 8 * i);
    if (f->size == 4 && input_below(in, 4) == 3)
        memcpy(args + f->offset, &(float){(float)number}, 4);
}

/* One entry of a tensor of lengths. */
static void change_contents(input *in, problem_data *data)
{
    size_t first = input_below(in, SLOT_COUNT);
    for (size_t i = 0; i < SLOT_COUNT; i++) {
        problem_slot slot = (problem_slot)((first + i) % SLOT_COUNT);
        problem_tensor *t = &data->tensor[slot];
        if (slot < SLOT_Q_STARTS || slot > SLOT_CACHE_BATCH_IDX || !t->present || problem_count(t) == 0)
            continue;
        int64_t element = t->origin + (int64_t)input_below(in, (size_t)problem_count(t)) * t->stride[t->ndim - 1];
        int32_t value = (int32_t)input_number(in);
        if (problem_storage(data, slot) != NULL && (uint64_t)(element + 1) * 4 <= data->tensor[t->home].bytes)
            memcpy(problem_storage(data, slot) + element * 4, &value, 4);
        return;
    }
}

static double count_of(const kiln_tensor *t)
{
    double count = 1;
    for (int i = 0; t != NULL && i < t->ndim && i < KILN_MAX_RANK; i++)
        count *= t->shape[i] > 0 ? (double)t->shape[i] : 0;
    return t != NULL ? count : 0;
}

/* Do all elements lie in the storage? Metadata that no element follows from is fine. */
static bool fits(const kiln_tensor *t, const char *storage, size_t bytes)
{
    __int128 low = (__int128)t->byte_offset + ((char *)t->data - storage), high = low, compact = t->dtype.bits / 8;
    if (t->ndim < 0 || t->ndim > KILN_MAX_RANK || t->dtype.bits % 8 != 0)
        return false;
    for (int axis = t->ndim - 1; axis >= 0; axis--) {
        if (t->shape[axis] <= 0)
            return true;
        __int128 stride = t->strides != NULL ? (__int128)t->strides[axis] * (t->dtype.bits / 8) : compact;
        __int128 reach = (t->shape[axis] - 1) * stride;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        compact *= t->shape[axis];
        if (compact > INT64_MAX)
            return false;
    }
    return low >= 0 && high + t->dtype.bits / 8 <= (__int128)bytes;
}

static void take_unsafe_data(call_args *a, const problem_data *data)
{
    a->complete = true;
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        kiln_tensor *t = &a->tensor[slot];
        const problem_tensor *p = &data->tensor[slot];
        if (!p->present)
            continue;
        if (t->data != NULL && (count_of(t) > ELEMENTS_MAX ||
                                !fits(t, problem_storage(data, (problem_slot)slot), data->tensor[p->home].bytes)))
            t->data = NULL;
        if (t->data == NULL)
            a->complete = false;
    }
    /* Scores: at most every row of q with every row of k. */
    const kiln_tensor *table = data->tensor[SLOT_BLOCK_TABLE].present ? &a->tensor[SLOT_BLOCK_TABLE] : NULL;
    const kiln_tensor *k = &a->tensor[SLOT_K];
    double keys = count_of(data->tensor[SLOT_K].present ? k : NULL), queries = count_of(&a->tensor[SLOT_Q]);
    if (table != NULL && k->ndim > 1 && k->ndim <= KILN_MAX_RANK)
        keys += count_of(table) * (double)k->shape[k->ndim - 2] * (double)k->shape[k->ndim - 1];
    if (data->tensor[SLOT_Q].present && queries * keys > WORK_MAX) {
        a->tensor[SLOT_Q].data = NULL;
        a->complete = false;
    }
}

/* The struct in memory of its own, with the pointers to tensors leading to our copies. */
static void *copy_struct(call_args *a, input *in, const void *from, kiln_op op, const problem_call *call, bool change)
{
    size_t size = structs[op].size, told = size;
    if (change && input_below(in, 8) == 7)
        told = input_below(in, 2) ? (size_t)input_byte(in) * 8 : (size_t)input_byte(in);
    told -= told > 8 ? told % 8 : 0; /* no version of a struct ends within a pointer */
    size_t room = told > size ? told : size;
    char whole[STRUCT_MAX + 8] = {0};
    FUZZ_REQUIRE(room <= sizeof whole, "a larger struct");
    memcpy(whole, from, size);
    for (size_t i = 0; i < structs[op].count; i++) {
        const kiln_tensor *old;
        if (!structs[op].fields[i].tensor)
            continue;
        memcpy(&old, whole + structs[op].fields[i].offset, sizeof old);
        if (old != NULL) {
            const kiln_tensor *now = &a->tensor[old - call->tensor];
            memcpy(whole + structs[op].fields[i].offset, &now, sizeof now);
        }
    }
    if (told > size && input_below(in, 4) == 3)
        whole[told - 1] = 1; /* a field that this library does not know */
    memcpy(whole, &told, sizeof told);
    /* struct_size itself must be readable. */
    size_t given = told > sizeof told ? told : sizeof told;
    char *exact = malloc(given);
    FUZZ_REQUIRE(exact != NULL, "out of memory");
    memcpy(exact, whole, given);
    a->spoiled |= told != size;
    return exact;
}

void call_args_make(call_args *a, input *in, problem_call *call, problem_data *data)
{
    memset(a, 0, sizeof *a);
    a->op = call->op;
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        const problem_tensor *t = &data->tensor[slot];
        a->tensor[slot] = call->tensor[slot];
        memcpy(a->shape[slot], t->shape, sizeof t->shape);
        memcpy(a->stride[slot], t->stride, sizeof t->stride);
        a->tensor[slot].shape = a->shape[slot];
        a->tensor[slot].strides = a->stride[slot];
    }
    size_t changes = input_below(in, CHANGES_MAX);
    a->args = copy_struct(a, in, problem_call_args(call), call->op, call, changes > 0);
    bool backward = call->op == KILN_OP_ATTENTION_BACKWARD;
    if (backward) {
        a->forward = copy_struct(a, in, &call->forward, KILN_OP_ATTENTION_FORWARD, call, changes > 0);
        if (*(size_t *)a->args >= offsetof(kiln_attention_backward_args, forward) + sizeof(void *))
            memcpy((char *)a->args + offsetof(kiln_attention_backward_args, forward), &a->forward, sizeof(void *));
    }
    bool whole = !a->spoiled; /* members are changed in structs of the full size only */
    for (size_t i = 0; i < changes; i++) {
        problem_slot slot = choose_slot(in, data);
        a->spoiled = true;
        switch (input_below(in, 4)) {
        case 0:
        case 1:
            a->moved = true;
            if (slot != SLOT_COUNT)
                change_tensor(a, in, slot);
            break;
        case 2:
            if (whole && backward && input_below(in, 2))
                change_field(a, in, a->forward, KILN_OP_ATTENTION_FORWARD, data);
            else if (whole)
                change_field(a, in, a->args, call->op, data);
            break;
        case 3: change_contents(in, data); break;
        }
    }
    take_unsafe_data(a, data);
}

void call_args_free(call_args *a)
{
    free(a->args);
    free(a->forward);
}
