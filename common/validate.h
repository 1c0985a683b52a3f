/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * validate.h: the checks that all operations share. Each sets a sentence that names the argument, its value and what is
 * allowed, and returns a status. `query` = data pointers are not looked at.
 */
#ifndef KILN_COMMON_VALIDATE_H
#define KILN_COMMON_VALIDATE_H

#include "context.h"

#define KILN_TRY(call)                                                                                                 \
    do {                                                                                                               \
        kiln_status try_status_ = (call);                                                                              \
        if (try_status_ != KILN_OK)                                                                                    \
            return try_status_;                                                                                        \
    } while (0)

typedef enum kiln_role { KILN_INPUT, KILN_OUTPUT } kiln_role;

/* One tensor argument of a call. `types`: a 0-terminated list; `shape`: its axes in words, "(batch, heads, seqlen_q, d)". */
typedef struct kiln_tensor_rule {
    const char *name;
    const char *shape;
    const int32_t *types;
    int rank; /* 0 = 1 ... KILN_MAX_RANK */
    kiln_role role;
} kiln_tensor_rule;

extern const int32_t kiln_types_float[]; /* fp32, fp16, bf16 */
extern const int32_t kiln_types_fp32[];
extern const int32_t kiln_types_int32[];
extern const int32_t kiln_types_mask[]; /* uint8, bool */

int32_t kiln_tensor_type(const kiln_tensor *tensor);
const char *kiln_type_name(int32_t type);

/* A required tensor by itself: present, rank, sizes, type, device, strides, alignment, range of addresses. */
kiln_status kiln_check_tensor(const kiln_context *context, const kiln_tensor *tensor, const kiln_tensor_rule *rule,
                              bool query);
/* Same, for one that may be absent. */
kiln_status kiln_check_optional(const kiln_context *context, const kiln_tensor *tensor, const kiln_tensor_rule *rule,
                                bool query);
/* shape[axis] must be `expected`. `axis_name` and `reason` make the sentence: "k.shape[0] (batch) is 3, must be 2, as q's". */
kiln_status kiln_check_size(const kiln_tensor *tensor, const char *name, int axis, const char *axis_name,
                            int64_t expected, const char *reason);
/* shape[axis] must be `full` or 1. */
kiln_status kiln_check_broadcast(const kiln_tensor *tensor, const char *name, int axis, const char *axis_name,
                                 int64_t full);
/* The tensor's type must be `one` or `other`. */
kiln_status kiln_check_type(const kiln_tensor *tensor, const char *name, int32_t one, int32_t other);
/* value must lie in [low, high]. */
kiln_status kiln_check_range(const char *name, int64_t value, int64_t low, int64_t high);
/* value must be finite. */
kiln_status kiln_check_finite(const char *name, float value);
kiln_status kiln_check_flags(uint64_t flags, uint64_t allowed, const char *operation);

/* Where `out` begins at `in`, it must lie element on element: same type and strides. Either may be NULL. */
kiln_status kiln_check_in_place(const kiln_tensor *out, const char *out_name, const kiln_tensor *in,
                                const char *in_name);

/* Named tensors of a call, for the check that no output begins where another tensor does. */
typedef struct kiln_named_tensor {
    const kiln_tensor *tensor; /* NULL = absent */
    const char *name;
    kiln_role role;
} kiln_named_tensor;
kiln_status kiln_check_overlap(const kiln_named_tensor *tensors, int count);

#endif
