/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * context.h: what the files of the dispatch layer share, and what tests and the program may ask behind the public header.
 */
#ifndef KILN_COMMON_CONTEXT_H
#define KILN_COMMON_CONTEXT_H

#include <stdarg.h>

#include "backend.h"

#define KILN_PRINTF(at, first) __attribute__((format(printf, at, first)))

/* status.c: sets this thread's sentence, returns `status`. Cut at 511 bytes. */
kiln_status kiln_fail(kiln_status status, const char *format, ...) KILN_PRINTF(2, 3);

/* log.c: where messages of one context (or of one kiln_backend_list call) go. */
typedef struct kiln_log {
    kiln_log_callback callback; /* NULL = silent */
    void *user;
    int32_t level;
} kiln_log;
void kiln_log_write(const kiln_log *log, int32_t level, const char *format, ...) KILN_PRINTF(3, 4);
/* The form that backends get (kiln_open_options::log); log_user is a kiln_log *. */
void kiln_log_service(void *log_user, int32_t level, const char *format, ...) KILN_PRINTF(3, 4);

struct kiln_context {
    const kiln_backend *backend;
    void *state;
    kiln_device device;
    kiln_log log;
};

/* args.c: the caller's struct as this library knows it: zero-filled when shorter, refused when longer with a tail that is
 * not zero. `name` is the type, for the sentence. */
kiln_status kiln_args_copy(void *copy, size_t size, const void *args, const char *name);

/* validate_*.c: a copied argument struct -> problem. */
kiln_status kiln_validate_softmax_forward(const kiln_context *context, const void *args, bool query,
                                          kiln_problem *problem);
kiln_status kiln_validate_softmax_backward(const kiln_context *context, const void *args, bool query,
                                           kiln_problem *problem);
kiln_status kiln_validate_attention_forward(const kiln_context *context, const void *args, bool query,
                                            kiln_problem *problem);
kiln_status kiln_validate_attention_backward(const kiln_context *context, const void *args, bool query,
                                             kiln_problem *problem);
kiln_status kiln_validate_attention_merge(const kiln_context *context, const void *args, bool query,
                                          kiln_problem *problem);
/* validate_lengths.c: contents of lengths that the host can read. */
kiln_status kiln_validate_lengths(const kiln_attention_problem *problem);

/* For tests and the program. */
const kiln_backend *kiln_context_backend(const kiln_context *context);
kiln_status kiln_internal_numerics(const kiln_context *context, kiln_op op, const void *args, kiln_numerics *numerics);

#endif
