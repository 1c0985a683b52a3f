/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* merge.h: one attention_merge problem from a short description, judged by the oracle. */
#ifndef KILN_TESTS_SUPPORT_MERGE_H
#define KILN_TESTS_SUPPORT_MERGE_H

#include "fixture.h"

enum { MERGE_MAX_PARTS = 70 };

typedef struct merge_case {
    int64_t batch, heads, seqlen_q, d_v;
    int32_t parts;
    int32_t type, part_type; /* of o and of o_parts; 0 = fp32, and type */
    test_strides part_strides, o_strides;
    bool packed; /* (heads, seqlen_q, d_v) */
    bool sinks;  /* fp32 */
    bool no_lse;
    bool in_place; /* o is o_parts[0] and softmax_lse is lse_parts[0] */
    bool neutral;  /* some lse_i are -inf and the o_i beside them NaN, which nobody may read */
    double spread; /* of the lse; 0 = 1 */
    int32_t max_sms;
} merge_case;

typedef struct test_merge {
    merge_case c;
    int64_t rows; /* batch·heads·seqlen_q */
    test_tensor *o_part[MERGE_MAX_PARTS], *lse_part[MERGE_MAX_PARTS], *o, *lse, *sinks;
} test_merge;

test_merge *test_merge_new(const merge_case *description);
/* Runs and judges every element. KILN_OK, or the status of a refusal (test_refused()). */
kiln_status test_merge_run(test_merge *merge, kiln_context *context);

#endif
