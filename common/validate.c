/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* validate.c: the checks that all operations share (validate.h). */
#include "validate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const int32_t kiln_types_float[] = {KILN_FLOAT32, KILN_FLOAT16, KILN_BFLOAT16, 0};
const int32_t kiln_types_fp32[] = {KILN_FLOAT32, 0};
const int32_t kiln_types_int32[] = {KILN_INT32, 0};
const int32_t kiln_types_mask[] = {KILN_UINT8, KILN_BOOL, 0};

int32_t kiln_tensor_type(const kiln_tensor *tensor)
{
    return tensor->dtype.code * 256 + tensor->dtype.bits;
}

const char *kiln_type_name(int32_t type)
{
    switch (type) {
    case KILN_INT8: return "int8";
    case KILN_INT32: return "int32";
    case KILN_INT64: return "int64";
    case KILN_UINT8: return "uint8";
    case KILN_UINT32: return "uint32";
    case KILN_UINT64: return "uint64";
    case KILN_FLOAT16: return "float16";
    case KILN_FLOAT32: return "float32";
    case KILN_FLOAT64: return "float64";
    case KILN_BFLOAT16: return "bfloat16";
    case KILN_BOOL: return "bool";
    case KILN_FLOAT8_E4M3FN: return "float8_e4m3fn";
    case KILN_FLOAT8_E4M3FNUZ: return "float8_e4m3fnuz";
    case KILN_FLOAT8_E5M2: return "float8_e5m2";
    case KILN_FLOAT8_E5M2FNUZ: return "float8_e5m2fnuz";
    default: return "a type unknown to this library";
    }
}

/* "float32, float16 or bfloat16" */
static const char *list_types(const int32_t *types, char *text, size_t cap)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; types[i] && used < cap; i++) {
        const char *before = i == 0 ? "" : types[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(text + used, cap - used, "%s%s", before, kiln_type_name(types[i]));
    }
    return text;
}

static kiln_status check_type(const kiln_tensor *t, const char *name, const int32_t *types)
{
    char allowed[128];
    for (int i = 0; types[i]; i++)
        if (types[i] == kiln_tensor_type(t) && t->dtype.lanes == 1)
            return KILN_OK;
    return kiln_fail(KILN_INVALID_ARGUMENT, "%s.dtype is {code %d, bits %d, lanes %d} (%s); allowed is %s with 1 lane",
                     name, t->dtype.code, t->dtype.bits, t->dtype.lanes, kiln_type_name(kiln_tensor_type(t)),
                     list_types(types, allowed, sizeof allowed));
}

static bool has_elements(const kiln_tensor *t)
{
    for (int axis = 0; axis < t->ndim; axis++)
        if (t->shape[axis] == 0)
            return false;
    return true;
}

/* Sizes and strides: counts and byte distances must fit in 62 bits, so that kernels never overflow. */
static kiln_status check_extent(const kiln_tensor *t, const char *name, kiln_role role)
{
    const int64_t limit = INT64_C(1) << 62;
    int64_t count = 1, reach = 0, bytes = t->dtype.bits / 8;
    for (int axis = 0; axis < t->ndim; axis++) {
        int64_t size = t->shape[axis];
        if (size < 0)
            return kiln_fail(KILN_INVALID_ARGUMENT, "%s.shape[%d] is %" PRId64 "; sizes are 0 or more", name, axis,
                             size);
        if (__builtin_mul_overflow(count, size > 0 ? size : 1, &count) || count > limit / bytes)
            return kiln_fail(KILN_INVALID_ARGUMENT, "%s has more than 2^62 bytes (shape[%d] is %" PRId64 ")", name,
                             axis, size);
    }
    /* The strides of a tensor without elements say nothing. */
    for (int axis = 0; t->strides && has_elements(t) && axis < t->ndim; axis++) {
        int64_t size = t->shape[axis], stride = t->strides[axis], far;
        if (size <= 1)
            continue;
        if (role == KILN_OUTPUT && stride == 0)
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "%s.strides[%d] is 0 for an axis of size %" PRId64 "; an output must not broadcast", name,
                             axis, size);
        if (stride == INT64_MIN || __builtin_mul_overflow(size - 1, stride < 0 ? -stride : stride, &far) ||
            __builtin_add_overflow(reach, far, &reach) || reach > limit / bytes)
            return kiln_fail(KILN_INVALID_ARGUMENT,
                             "%s.strides[%d] is %" PRId64 ": with size %" PRId64 " the tensor reaches past 2^62 bytes",
                             name, axis, stride, size);
    }
    return KILN_OK;
}

kiln_status kiln_check_optional(const kiln_context *context, const kiln_tensor *t, const kiln_tensor_rule *rule,
                                bool query)
{
    const char *name = rule->name;
    if (!t)
        return KILN_OK;
    if (rule->rank ? t->ndim != rule->rank : t->ndim < 1 || t->ndim > KILN_MAX_RANK) {
        if (rule->rank)
            return kiln_fail(KILN_INVALID_ARGUMENT, "%s.ndim is %d; it must be %d: %s", name, t->ndim, rule->rank,
                             rule->shape);
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s.ndim is %d; 1 to %d axes are allowed", name, t->ndim,
                         KILN_MAX_RANK);
    }
    if (!t->shape)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s.shape is NULL; it must point to %d sizes: %s", name, t->ndim,
                         rule->shape);
    KILN_TRY(check_type(t, name, rule->types));
    if (t->device.device_type != context->device.device_type || t->device.device_id != context->device.device_id)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "%s.device is {type %d, id %d}, but the context runs on backend %s with {type %d, id %d}",
                         name, t->device.device_type, t->device.device_id, context->backend->name,
                         context->device.device_type, context->device.device_id);
    KILN_TRY(check_extent(t, name, rule->role));
    if (query || !has_elements(t))
        return KILN_OK;
    if (!t->data)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s.data is NULL; only queries may leave it out", name);
    uintptr_t first = (uintptr_t)t->data + t->byte_offset, align = (uintptr_t)t->dtype.bits / 8;
    if (first < (uintptr_t)t->data)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s.byte_offset is %" PRIu64 ": data + byte_offset wraps around", name,
                         t->byte_offset);
    if (first % align)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "%s.data + byte_offset is %#" PRIxPTR ", not aligned to the element size of %d bytes", name,
                         first, (int)align);
    return KILN_OK;
}

kiln_status kiln_check_tensor(const kiln_context *context, const kiln_tensor *t, const kiln_tensor_rule *rule,
                              bool query)
{
    if (!t)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is NULL; the tensor %s is required", rule->name, rule->shape);
    return kiln_check_optional(context, t, rule, query);
}

kiln_status kiln_check_size(const kiln_tensor *t, const char *name, int axis, const char *axis_name, int64_t expected,
                            const char *reason)
{
    if (t && t->shape[axis] != expected)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s.shape[%d] (%s) is %" PRId64 "; it must be %" PRId64 ", %s", name,
                         axis, axis_name, t->shape[axis], expected, reason);
    return KILN_OK;
}

kiln_status kiln_check_broadcast(const kiln_tensor *t, const char *name, int axis, const char *axis_name, int64_t full)
{
    if (t && t->shape[axis] != full && t->shape[axis] != 1)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "%s.shape[%d] (%s) is %" PRId64 "; it must be %" PRId64 ", or 1 to broadcast", name, axis,
                         axis_name, t->shape[axis], full);
    return KILN_OK;
}

kiln_status kiln_check_type(const kiln_tensor *t, const char *name, int32_t one, int32_t other)
{
    const int32_t types[] = {one, other == one ? 0 : other, 0};
    return t ? check_type(t, name, types) : KILN_OK;
}

kiln_status kiln_check_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value < low || value > high)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is %" PRId64 "; %" PRId64 " to %" PRId64 " is allowed", name, value,
                         low, high);
    return KILN_OK;
}

kiln_status kiln_check_finite(const char *name, float value)
{
    if (!isfinite(value))
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is %g; it must be finite", name, (double)value);
    return KILN_OK;
}

kiln_status kiln_check_flags(uint64_t flags, uint64_t allowed, const char *operation)
{
    if (flags & ~allowed)
        return kiln_fail(KILN_INVALID_ARGUMENT, "flags is %#" PRIx64 "; %s takes only flags in %#" PRIx64, flags,
                         operation, allowed);
    return KILN_OK;
}

static bool same_start(const kiln_tensor *a, const kiln_tensor *b)
{
    return has_elements(a) && has_elements(b) && kiln_tensor_data(a) == kiln_tensor_data(b);
}

kiln_status kiln_check_in_place(const kiln_tensor *out, const char *out_name, const kiln_tensor *in,
                                const char *in_name)
{
    if (!out || !in || !same_start(out, in))
        return KILN_OK;
    bool same = kiln_tensor_type(out) == kiln_tensor_type(in);
    for (int axis = 0; axis < in->ndim; axis++)
        same &= kiln_tensor_stride(out, axis) == kiln_tensor_stride(in, axis);
    if (!same)
        return kiln_fail(KILN_INVALID_ARGUMENT,
                         "%s begins where %s does, but their types or strides differ; in place they must be the same",
                         out_name, in_name);
    return KILN_OK;
}

kiln_status kiln_check_overlap(const kiln_named_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        const kiln_named_tensor *out = &tensors[i];
        for (int j = 0; out->tensor && out->role == KILN_OUTPUT && j < count; j++) {
            const kiln_named_tensor *other = &tensors[j];
            if (j != i && other->tensor && same_start(out->tensor, other->tensor))
                return kiln_fail(KILN_INVALID_ARGUMENT, "%s and %s begin at the same address; outputs must not overlap",
                                 out->name, other->name);
        }
    }
    return KILN_OK;
}
