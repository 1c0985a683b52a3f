/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * runner.h: one problem on one device: device copies of its tensors, a workspace, and the call, for any operation.
 */
#ifndef KILN_BENCH_RUNNER_H
#define KILN_BENCH_RUNNER_H

#include "problem.h"

typedef struct runner {
    kiln_context *context;
    problem_data *data;
    const struct runner *owner; /* whose device copies are used; NULL = its own */
    char algorithm[PROBLEM_NAME_MAX];
    problem_call call;         /* on the device */
    char *storage[SLOT_COUNT]; /* device memory of every home tensor */
    char *workspace;           /* with a guard at each end */
    size_t workspace_bytes;    /* without the guards */
    char kernel[256];          /* what `supported` said would run */
} runner;

/*
 * Asks `supported` and `workspace`, allocates, and copies everything to the device. `data` must stay. On failure nothing is
 * left allocated, the status is the library's, and kiln_last_error() has its sentence.
 * The runner must not be moved: the call points into it.
 */
kiln_status runner_open(runner *r, kiln_context *context, problem_data *data);
void runner_close(runner *r);

/* The same tensors with another algorithm ("" = auto), in the device memory of `owner`, which must outlive it. */
kiln_status runner_share(runner *r, const runner *owner, const char *algorithm);

/* Copies the outputs' host storage (and the inputs', if `all`) to the device; fills the workspace with `garbage`, or with
 * zeros when the problem vouches for that. */
kiln_status runner_reset(runner *r, bool all, uint8_t garbage);
/* Enqueues the call on the default stream. */
kiln_status runner_run(runner *r);
/* Copies one home tensor's storage to `host`, which has room for its bytes; waits. */
kiln_status runner_fetch(runner *r, problem_slot home, char *host);
/* Copies the workspace's two guards, PROBLEM_GUARD bytes each, to `host`. */
kiln_status runner_fetch_guards(runner *r, char *host);

/* The rungs of the ladder that this context's backend has for an operation, in the ladder's order; "" (auto) alone where the
 * operation has no ladder. Fills names[] (RUNGS_MAX) and returns how many. */
enum { RUNGS_MAX = 16 };
int runner_rungs(const kiln_context *context, kiln_op op, const char **names);

/* The five operations by one name. */
kiln_status runner_supported(const kiln_context *context, const problem_call *call, char *why, size_t cap);

#endif
