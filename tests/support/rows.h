/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rows.h: a softmax whose result is known: rows of N equal values become 1/N each, with lse = value + ln N. What the
 * tests of the host side run; whether kernels are right is judged by tests/op. Nothing here needs a running Check test: what
 * does not work comes back as a status.
 */
#ifndef KILN_TESTS_SUPPORT_ROWS_H
#define KILN_TESTS_SUPPORT_ROWS_H

#include <stdbool.h>

#include <kiln/kiln.h>

enum { ROWS = 37, ROWS_N = 640, ROWS_LONG = 40000 };

typedef struct known_rows {
    kiln_context *context;
    void *x, *y, *lse, *workspace;
    size_t bytes;
    int64_t shape[2], shape_lse[1];
    kiln_tensor tx, ty, tlse;
    kiln_softmax_forward_args args;
} known_rows;

/* Device memory of one problem, fp32: ROWS rows of ROWS_N, or one of ROWS_LONG, which GPUs split: it takes a workspace, whose
 * counters the call clears. After a failure too, rows_free() frees what there is. */
kiln_status rows_new(known_rows *r, kiln_context *context);
kiln_status rows_new_long(known_rows *r, kiln_context *context);
kiln_status rows_free(known_rows *r);
/* x = value, y = NaN, in stream order. */
kiln_status rows_set(known_rows *r, float value, kiln_stream stream);
kiln_status rows_run(known_rows *r, kiln_stream stream);
/* Waits for the stream and compares with what `value` gives; false as well if that cannot be read. */
bool rows_right(known_rows *r, float value, kiln_stream stream);

/*
 * Threads that never heard of the vendor's runtime use a context made by another, each on a stream of its own, every other one
 * for the long row. How many of them got a wrong result, or found `unchanged` false, before or after: it says whether what the
 * runtime calls current is what it is in a new thread. -1: not all could be started.
 */
int rows_wrong_threads(kiln_context *context, bool (*unchanged)(void));

/* A context of the tested backend on this device; NULL if there is none. */
kiln_context *rows_context(int32_t device);

#endif
