/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * gradients.h: one attention backward problem: a forward description (attention.h), what is asked of the gradients, and the
 * judgement. o and softmax_lse are inputs here, filled from the oracle as a right forward call would have left them.
 */
#ifndef KILN_TESTS_SUPPORT_GRADIENTS_H
#define KILN_TESTS_SUPPORT_GRADIENTS_H

#include "attention.h"

typedef struct gradients_case {
    attention_case forward;         /* no_lse must be false */
    int32_t type;                   /* of every gradient; 0 = that of its input */
    int32_t dout_type;              /* 0 = q's */
    test_strides strides;           /* of dout, dq, dk, dv, dbias, dlse, dsinks */
    bool dlse, no_dbias, no_dsinks; /* dbias and dsinks are asked for wherever the forward call has bias and sinks */
    uint64_t flags;
} gradients_case;

enum { GRADIENTS = 7 };
extern const char *const gradients_name[GRADIENTS]; /* dq, dk, dv, dq2, dk2, dbias, dsinks */

typedef struct test_gradients {
    gradients_case c;
    test_attention *forward;
    test_tensor *dout, *dlse;
    test_tensor *out[GRADIENTS]; /* in the order of gradients_name; NULL = not there */
    kiln_attention_backward_args args, host_args;
    kiln_oracle_output right[GRADIENTS];
    kiln_numerics numerics;
    bool judged;
} test_gradients;

test_gradients *test_gradients_new(const gradients_case *description);
/* Fills o and softmax_lse, and what was judged, anew: after a change of the data. */
void test_gradients_refresh(test_gradients *gradients);

/* Runs and judges every element. Returns KILN_OK, or the status of a refusal (test_refused()) with `why`;
 * KILN_UNSUPPORTED too if it is left out on a slow backend (test_left_out()). */
kiln_status test_gradients_run(test_gradients *gradients, kiln_context *context, char *why, size_t cap);

#endif
