/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problems.h: one small problem of every operation and of every way through the CPU backend, for tests that care about
 * what happens around a call: threads, memory, the state of the process. They compare bytes with an undisturbed run of
 * the same problem; whether those are right is for tests/op to say.
 *
 * problem_new() is for the test's main thread. problem_reset(), problem_run() and problem_equal() may be called from
 * any thread, each problem by one thread at a time.
 */
#ifndef KILN_TESTS_ABUSE_PROBLEMS_H
#define KILN_TESTS_ABUSE_PROBLEMS_H

#include "../support/gradients.h"
#include "../support/merge.h"
#include "../support/softmax.h"

enum { PROBLEM_KINDS = 11, PROBLEM_PARTS = 4 };

typedef struct problem {
    const char *name;
    kiln_op op;
    union {
        kiln_softmax_forward_args softmax_forward;
        kiln_softmax_backward_args softmax_backward;
        kiln_attention_forward_args attention_forward;
        kiln_attention_backward_args attention_backward;
        kiln_attention_merge_args attention_merge;
    } args;
    size_t args_bytes;
    const kiln_tensor *o_parts[PROBLEM_PARTS], *lse_parts[PROBLEM_PARTS];
    test_tensor *first, *end; /* its tensors: first, first->next, ... up to but not end */
} problem;

/* Problem number `kind`, 0 ... PROBLEM_KINDS-1. Two of one kind have the same data. Freed by test_release_all(). */
problem *problem_new(int kind);
/* The same from the descriptions of tests/support. */
problem *problem_forward(const char *name, const attention_case *description);
problem *problem_backward(const gradients_case *description);
problem *problem_softmax(kiln_op op, const softmax_case *description);
problem *problem_merge(const merge_case *description); /* at most PROBLEM_PARTS parts */
/* Inputs and outputs as they were before any run. */
void problem_reset(problem *p);
/* Resets, then calls with a garbage workspace. NULL if all went well, else what did not. */
const char *problem_run(problem *p, kiln_context *context);
/* Have the two the same bytes in every tensor? */
bool problem_equal(const problem *a, const problem *b);

/* problem_run() on test_context() for every kind: what the disturbed runs are compared with. */
void problem_references(problem *right[PROBLEM_KINDS]);
/* Runs every kind on the context and compares; fails the test. `what` says what was done to it. */
void problem_check_all(kiln_context *context, problem *right[PROBLEM_KINDS], const char *what);

#endif
