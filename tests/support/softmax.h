/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* softmax.h: one softmax problem, forward or backward, from a short description, judged by the oracle. */
#ifndef KILN_TESTS_SUPPORT_SOFTMAX_H
#define KILN_TESTS_SUPPORT_SOFTMAX_H

#include "fixture.h"

typedef struct softmax_case {
    int32_t rank;
    int64_t shape[KILN_MAX_RANK];
    int32_t type, out_type; /* of x (backward: y, dy) and of y (dx); 0 = fp32, and type */
    test_strides in_strides, out_strides;
    float scale;
    bool log, no_lse, no_y, in_place, invariant;
    int32_t max_sms;
    uint64_t seed;
    double spread; /* standard deviation of the input; 0 = 1 */
    bool poison;   /* rows with NaN, +Inf, -Inf and rows of -Inf only */
} softmax_case;

typedef struct test_softmax {
    softmax_case c;
    kiln_op op;
    test_tensor *in, *grad, *out, *lse; /* x, -, y, lse; backward: y, dy, dx, - */
} test_softmax;

test_softmax *test_softmax_new(kiln_op op, const softmax_case *description);
/* Runs and judges every element. KILN_OK, or the status of a refusal (test_refused()). */
kiln_status test_softmax_run(test_softmax *softmax, kiln_context *context, const char *algorithm);

#endif
