/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* problem_call.c: problem_data -> the argument structs of kiln.h. Contract: problem.h. Cost: no data is touched. */
#include <string.h>

#include "../common/convert.h"
#include "problem.h"

/* The API's 32-bit fields; what does not fit is as wrong as the nearest number that does. */
static int32_t narrow(int64_t value)
{
    return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : (int32_t)value;
}

static const kiln_tensor *given(const problem_call *call, const problem_data *data, problem_slot slot)
{
    return data->tensor[slot].present ? &call->tensor[slot] : NULL;
}

static void make_tensor(problem_call *call, const problem_data *data, problem_slot slot, kiln_device device,
                        char *const *storage)
{
    const problem_tensor *t = &data->tensor[slot];
    int64_t size = kiln_type_size(t->type);
    char *base = storage != NULL ? storage[t->home] : problem_storage(data, slot);
    kiln_tensor *out = &call->tensor[slot];
    *out = kiln_tensor_make(device, base + (t->origin - t->offset) * size, t->type, t->ndim, t->shape, t->stride);
    out->byte_offset = (uint64_t)(t->offset * size);
}

static void make_forward(problem_call *call, const problem_data *data)
{
    const problem_spec *s = &data->spec;
    kiln_attention_forward_args *a = &call->forward;
    a->struct_size = sizeof *a;
    a->q = given(call, data, SLOT_Q);
    a->k = given(call, data, SLOT_K);
    a->v = given(call, data, SLOT_V);
    a->o = given(call, data, SLOT_O);
    a->softmax_lse = given(call, data, SLOT_LSE);
    a->q2 = given(call, data, SLOT_Q2);
    a->k2 = given(call, data, SLOT_K2);
    a->softmax_scale = (float)s->scale;
    a->softcap = (float)s->softcap;
    a->bias = given(call, data, SLOT_BIAS);
    a->alibi_slopes = given(call, data, SLOT_ALIBI);
    a->sinks = given(call, data, SLOT_SINKS);
    a->mask = s->mask;
    a->num_splits = narrow(s->num_splits);
    a->window_left = s->window_left;
    a->window_right = s->window_right;
    a->attn_mask = given(call, data, SLOT_ATTN_MASK);
    a->q_start = s->q_start;
    a->q_step = s->q_step;
    a->k_start = s->k_start;
    a->k_step = s->k_step;
    a->q_starts = given(call, data, SLOT_Q_STARTS);
    a->k_starts = given(call, data, SLOT_K_STARTS);
    a->cu_seqlens_q = given(call, data, SLOT_CU_SEQLENS_Q);
    a->cu_seqlens_k = given(call, data, SLOT_CU_SEQLENS_K);
    a->max_seqlen_q = a->cu_seqlens_q != NULL ? s->seqlen_q : 0;
    a->max_seqlen_k = a->cu_seqlens_k != NULL ? s->seqlen_k : 0;
    a->seqused_q = given(call, data, SLOT_SEQUSED_Q);
    a->seqused_k = given(call, data, SLOT_SEQUSED_K);
    a->leftpad_k = given(call, data, SLOT_LEFTPAD_K);
    a->block_table = given(call, data, SLOT_BLOCK_TABLE);
    a->cache_batch_idx = given(call, data, SLOT_CACHE_BATCH_IDX);
    a->dropout_p = (float)s->dropout_p;
    a->max_sms = narrow(s->max_sms);
    a->dropout_seed = s->dropout_seed;
    a->dropout_offset = s->dropout_offset;
    if (data->tensor[SLOT_DROPOUT].present) {
        a->dropout_seed_ptr = call->tensor[SLOT_DROPOUT].data;
        a->dropout_offset_ptr = a->dropout_seed_ptr + 1;
    }
    if (data->tensor[SLOT_STATUS].present)
        a->device_status = call->tensor[SLOT_STATUS].data;
    a->flags = s->flags;
    a->algorithm = s->algorithm[0] != '\0' ? data->spec.algorithm : NULL;
}

static void make_backward(problem_call *call, const problem_data *data)
{
    const problem_spec *s = &data->spec;
    kiln_attention_backward_args *a = &call->backward;
    call->forward.algorithm = NULL;
    call->forward.flags = s->flags & KILN_FLAG_SCALE_EXPLICIT;
    a->struct_size = sizeof *a;
    a->forward = &call->forward;
    a->dout = given(call, data, SLOT_DOUT);
    a->dlse = given(call, data, SLOT_DLSE);
    a->dq = given(call, data, SLOT_DQ);
    a->dk = given(call, data, SLOT_DK);
    a->dv = given(call, data, SLOT_DV);
    a->dq2 = given(call, data, SLOT_DQ2);
    a->dk2 = given(call, data, SLOT_DK2);
    a->dbias = given(call, data, SLOT_DBIAS);
    a->dsinks = given(call, data, SLOT_DSINKS);
    a->flags = s->flags & ~(uint64_t)KILN_FLAG_SCALE_EXPLICIT;
    a->max_sms = narrow(s->max_sms);
    a->algorithm = s->algorithm[0] != '\0' ? data->spec.algorithm : NULL;
}

/* Part i is the i-th slice of the stacked tensor. */
static void make_merge(problem_call *call, const problem_data *data)
{
    const problem_spec *s = &data->spec;
    kiln_attention_merge_args *a = &call->merge;
    for (int which = 0; which < 2; which++) {
        problem_slot slot = which == 0 ? SLOT_O_PARTS : SLOT_LSE_PARTS;
        const problem_tensor *t = &data->tensor[slot];
        for (int64_t i = 0; i < s->parts; i++) {
            kiln_tensor *part = &call->part[which][i];
            *part = call->tensor[slot];
            part->data = (char *)part->data + i * t->stride[0] * kiln_type_size(t->type);
            part->ndim--;
            part->shape++;
            part->strides++;
            call->part_pointer[which][i] = part;
        }
    }
    a->struct_size = sizeof *a;
    a->o_parts = call->part_pointer[0];
    a->lse_parts = call->part_pointer[1];
    a->o = given(call, data, SLOT_O);
    a->softmax_lse = given(call, data, SLOT_LSE);
    a->sinks = given(call, data, SLOT_SINKS);
    a->num_parts = narrow(s->parts);
    a->max_sms = narrow(s->max_sms);
    a->flags = s->flags;
    a->algorithm = s->algorithm[0] != '\0' ? data->spec.algorithm : NULL;
}

static void make_softmax(problem_call *call, const problem_data *data)
{
    const problem_spec *s = &data->spec;
    const char *algorithm = s->algorithm[0] != '\0' ? data->spec.algorithm : NULL;
    kiln_softmax_forward_args *f = &call->softmax_forward;
    f->struct_size = sizeof *f;
    f->x = given(call, data, SLOT_X);
    f->y = given(call, data, SLOT_Y);
    f->lse = given(call, data, SLOT_LSE);
    f->scale = (float)s->scale;
    f->max_sms = narrow(s->max_sms);
    f->flags = s->op == KILN_OP_SOFTMAX_FORWARD ? s->flags : s->flags & KILN_FLAG_LOG;
    f->algorithm = algorithm;
    kiln_softmax_backward_args *b = &call->softmax_backward;
    b->struct_size = sizeof *b;
    b->y = given(call, data, SLOT_Y);
    b->dy = given(call, data, SLOT_DY);
    b->dx = given(call, data, SLOT_DX);
    b->scale = (float)s->scale;
    b->max_sms = narrow(s->max_sms);
    b->flags = s->flags;
    b->algorithm = algorithm;
}

void problem_call_init(problem_call *call, const problem_data *data, kiln_device device, char *const *storage)
{
    memset(call, 0, sizeof *call);
    call->op = data->spec.op;
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (data->tensor[slot].present)
            make_tensor(call, data, (problem_slot)slot, device, storage);
    switch (call->op) {
    case KILN_OP_SOFTMAX_FORWARD:
    case KILN_OP_SOFTMAX_BACKWARD: make_softmax(call, data); break;
    case KILN_OP_ATTENTION_FORWARD: make_forward(call, data); break;
    case KILN_OP_ATTENTION_BACKWARD:
        make_forward(call, data);
        make_backward(call, data);
        break;
    case KILN_OP_ATTENTION_MERGE: make_merge(call, data); break;
    case KILN_OP_COUNT: break;
    }
}

const void *problem_call_args(const problem_call *call)
{
    switch (call->op) {
    case KILN_OP_SOFTMAX_FORWARD: return &call->softmax_forward;
    case KILN_OP_SOFTMAX_BACKWARD: return &call->softmax_backward;
    case KILN_OP_ATTENTION_FORWARD: return &call->forward;
    case KILN_OP_ATTENTION_BACKWARD: return &call->backward;
    case KILN_OP_ATTENTION_MERGE: return &call->merge;
    case KILN_OP_COUNT: break;
    }
    return NULL;
}
