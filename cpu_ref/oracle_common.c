/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_common.c: strided tensors as the oracle reads them, and the judgement of one element.
 */
#include <math.h>
#include <stdlib.h>

#include "../common/convert.h"
#include "oracle_private.h"

kiln_oracle_view kiln_oracle_view_of(const kiln_tensor *tensor, int first)
{
    kiln_oracle_view view = {0};
    for (int axis = 0; axis < KILN_MAX_RANK; axis++)
        view.size[axis] = 1;
    if (!tensor)
        return view;
    view.type = tensor->dtype.code * 256 + tensor->dtype.bits;
    if (tensor->data)
        view.data = (char *)((uintptr_t)tensor->data + tensor->byte_offset);
    int64_t compact = 1;
    for (int axis = tensor->ndim - 1; axis >= 0; axis--) {
        int64_t size = tensor->shape[axis];
        view.size[first + axis] = size;
        view.stride[first + axis] = size == 1 ? 0 : tensor->strides ? tensor->strides[axis] : compact;
        compact *= size;
    }
    return view;
}

double kiln_oracle_load(const kiln_oracle_view *view, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return kiln_load_double(view->data, view->type,
                            i0 * view->stride[0] + i1 * view->stride[1] + i2 * view->stride[2] + i3 * view->stride[3]);
}

void kiln_oracle_load_run(const kiln_oracle_view *view, int64_t offset, int64_t stride, int64_t count, double *out)
{
    /* The type is a constant in each loop, so that the conversion is inlined. */
    switch (view->type) {
    case KILN_FLOAT64:
        for (int64_t i = 0; i < count; i++)
            out[i] = kiln_load_double(view->data, KILN_FLOAT64, offset + i * stride);
        break;
    case KILN_FLOAT32:
        for (int64_t i = 0; i < count; i++)
            out[i] = kiln_load_double(view->data, KILN_FLOAT32, offset + i * stride);
        break;
    case KILN_BFLOAT16:
        for (int64_t i = 0; i < count; i++)
            out[i] = kiln_load_double(view->data, KILN_BFLOAT16, offset + i * stride);
        break;
    default:
        for (int64_t i = 0; i < count; i++)
            out[i] = kiln_load_double(view->data, view->type, offset + i * stride);
    }
}

void kiln_oracle_load_row(const kiln_oracle_view *view, int64_t i0, int64_t i1, int64_t i2, double *out)
{
    kiln_oracle_load_run(view, i0 * view->stride[0] + i1 * view->stride[1] + i2 * view->stride[2], view->stride[3],
                         view->size[3], out);
}

double *kiln_oracle_alloc(int64_t count)
{
    return calloc(count > 0 ? (size_t)count : 1, sizeof(double));
}

bool kiln_oracle_accepts(double got, double value, double bound)
{
    if (isnan(bound))
        return false; /* an element that must not be touched has no right value */
    if (isnan(value))
        return isnan(got);
    if (isinf(value))
        return got == value || (isnan(got) && isinf(bound));
    if (isinf(got)) /* rounding may have carried it out of the output type's range */
        return bound < 0 && (signbit(got) == signbit(value) || -bound > fabs(value));
    return fabs(got - value) <= fabs(bound);
}

bool kiln_oracle_untouched(double value, double bound)
{
    return isnan(value) && isnan(bound);
}
