/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * judge.h: is what a call computed right? Every element against the fp64 oracle within its bound, and everything around.
 *
 * A call is right when every output element is accepted by kiln_oracle_accepts(), elements outside every sequence and all
 * bytes between and around the tensors are as they were, inputs are unchanged, the workspace's guards are intact, and a
 * second run with other garbage in the workspace gives the same bits.
 */
#ifndef KILN_BENCH_JUDGE_H
#define KILN_BENCH_JUDGE_H

#include "runner.h"

typedef enum judge_verdict {
    JUDGE_RIGHT,
    JUDGE_WRONG,
    JUDGE_REFUSED, /* by the library, with status and sentence */
    JUDGE_UNKNOWN  /* it could not be judged: out of memory, or the oracle does not do it; the sentence says why */
} judge_verdict;

typedef struct judge_options {
    bool full; /* compare every row however long it takes; otherwise long forward problems are sampled */
} judge_options;

typedef struct judge_report {
    judge_verdict verdict;
    kiln_status status;
    char sentence[512]; /* why refused, wrong (when not by an element) or unknown */
    char kernel[256];
    size_t workspace_bytes;
    int64_t checked, total, wrong; /* elements of all outputs */

    /* The element that is worst in units of its bound. */
    char output[24];
    int32_t ndim;
    int64_t index[KILN_MAX_RANK];
    double ratio; /* error / bound: right up to 1; NaN or Inf when the class is wrong */
    double got, want, error, bound;
} judge_report;

/*
 * Asks whether the library takes the call; then fills what the operation reads from an earlier one (backward's o and
 * softmax_lse, softmax_backward's y) from the oracle. JUDGE_RIGHT to go on, otherwise the report says why not. Call it once
 * after problem_build(). Where the contents of lengths are wrong nothing is filled: the oracle would read outside its
 * tensors, and it is for the call to refuse them.
 */
judge_verdict judge_prepare(kiln_context *context, problem_data *data, judge_report *report);

/* Runs the call of an open runner twice and judges it. */
judge_verdict judge_run(runner *r, const judge_options *options, judge_report *report);

/* All of it: build, prepare, open, judge, free. */
judge_verdict judge_problem(kiln_context *context, const problem_spec *spec, const judge_options *options,
                            judge_report *report);

#endif
