/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * backend.h: the one interface between the dispatch layer and a backend, linked in or loaded as a plug-in.
 *
 * A plug-in exports one symbol, `kiln_backend_entry`, of type kiln_backend_entry_fn. It gets no symbol of libkiln: services
 * come by pointer (so that a host may load libkiln with RTLD_LOCAL). Every slot must be filled unless it says optional.
 * Change KILN_BACKEND_ABI whenever this file or problem.h changes; a plug-in with another number is refused and listed.
 */
#ifndef KILN_COMMON_BACKEND_H
#define KILN_COMMON_BACKEND_H

#include "numerics.h"
#include "problem.h"

#define KILN_BACKEND_ABI   1
#define KILN_BACKEND_ENTRY "kiln_backend_entry"

/* What the dispatch layer offers to a backend. Valid for the life of the process. */
typedef struct kiln_services {
    uint32_t abi;
    /* Sets this thread's error sentence and returns `status`. */
    kiln_status (*fail)(kiln_status status, const char *format, ...)
#ifdef __GNUC__
        __attribute__((format(printf, 2, 3)))
#endif
        ;
} kiln_services;

/* One open device, as the backend sees the options of the context. */
typedef struct kiln_open_options {
    int32_t device;
    int32_t max_threads; /* 0 = default */
    kiln_parallel_for parallel_for;
    void *parallel_for_user;
    void (*log)(void *log_user, int32_t level, const char *format, ...); /* never NULL */
    void *log_user;
} kiln_open_options;

typedef struct kiln_backend {
    uint32_t abi;         /* KILN_BACKEND_ABI */
    uint32_t struct_size; /* sizeof(kiln_backend) */
    const char *name;     /* "cpu", "cuda", ... */

    /* Can it work on this machine? Returns the score for `auto` (0 = only by name) or -1 with `reason` filled: one
     * sentence. Must not fault, print, or start a device's context. Called once per process. */
    int32_t (*probe)(char *reason, size_t cap);
    int32_t (*device_count)(void);
    kiln_status (*open)(const kiln_open_options *options, void **state);
    void (*close)(void *state);
    /* Fills everything but struct_size and backend. Strings live as long as the state. */
    kiln_status (*info)(void *state, kiln_device_info *info);

    /* Would run() take it? On KILN_OK `why` says which algorithm and kernel; else calls services->fail. No data access. */
    kiln_status (*supports)(void *state, const kiln_problem *problem, char *why, size_t cap);
    kiln_status (*workspace)(void *state, const kiln_problem *problem, size_t *bytes);
    kiln_status (*prepare)(void *state, const kiln_problem *problem); /* optional */
    /* Called only with problems that supports() took and a workspace that is large enough and aligned to 256 bytes. */
    kiln_status (*run)(void *state, const kiln_problem *problem, void *workspace, size_t bytes, kiln_stream stream);
    /* The rounding of the kernel that run() would use (numerics.h). No data access. */
    kiln_status (*numerics)(void *state, const kiln_problem *problem, kiln_numerics *numerics);

    /* Lengths lie where the host can read them: the dispatch layer checks their contents before run(). */
    bool host_readable;

    kiln_status (*malloc)(void *state, size_t bytes, void **pointer);
    kiln_status (*free)(void *state, void *pointer);
    kiln_status (*copy)(void *state, void *destination, const void *source, size_t bytes, kiln_stream stream);
    kiln_status (*fill)(void *state, void *destination, uint8_t value, size_t bytes, kiln_stream stream);
    kiln_status (*stream_create)(void *state, kiln_stream *stream);
    kiln_status (*stream_destroy)(void *state, kiln_stream stream);
    kiln_status (*stream_synchronize)(void *state, kiln_stream stream);
    kiln_status (*event_create)(void *state, void **event);
    kiln_status (*event_destroy)(void *state, void *event);
    kiln_status (*event_record)(void *state, void *event, kiln_stream stream);
    kiln_status (*event_elapsed)(void *state, void *start, void *end, double *milliseconds);
} kiln_backend;

/* Backend number `index` of the plug-in (one file may hold several, as simt does), NULL past the last. */
typedef const kiln_backend *(*kiln_backend_entry_fn)(const kiln_services *services, uint32_t index);

#endif
