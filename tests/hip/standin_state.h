/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* standin_state.h: what the files of the stand-in HIP runtime share. See standin.h. All under one lock. */
#ifndef KILN_TESTS_HIP_STANDIN_STATE_H
#define KILN_TESTS_HIP_STANDIN_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../backends/simt/simt.h"
#include "standin.h"

#define API __attribute__((visibility("default")))
enum { DEVICES = 8, ARGS = 4096 };

enum { /* hipError_t */
       INVALID_VALUE = 1,
       OUT_OF_MEMORY = 2,
       INVALID_CONFIGURATION = 9,
       INVALID_DEVICE_FUNCTION = 98,
       NO_DEVICE = 100,
       INVALID_DEVICE = 101,
       INVALID_IMAGE = 200,
       NO_BINARY_FOR_GPU = 209,
       INVALID_HANDLE = 400,
       NOT_FOUND = 500,
       LAUNCH_FAILURE = 719,
       CAPTURE_UNSUPPORTED = 900,
       CAPTURE_UNMATCHED = 903
};

/* An allocation of device memory: whole pages, which the host can touch only while the device works. */
typedef struct piece {
    struct piece *next;
    unsigned char *begin;
    size_t bytes, pages;
    int device;
} piece;

typedef struct module {
    struct module *next;
    const unsigned char *image;
    struct function *functions;
    int device;
} module;

typedef struct function {
    struct function *next;
    const module *of;
    const gpu_kernel *kernel;
} function;

typedef struct event {
    struct event *next;
    double time;
    struct stream *waits_in; /* where it was recorded and has not been reached */
} event;

typedef struct operation {
    struct operation *next;
    enum { LAUNCH, COPY, FILL, RECORD } kind;
    const gpu_kernel *kernel;
    int32_t blocks;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    event *event;
    unsigned char args[];
} operation;

typedef struct queue {
    operation *first, **last;
    int count;
} queue;

typedef struct stream {
    struct stream *next;
    int device;
    queue waiting;
    struct graph *capture;
} stream;

typedef struct graph {
    struct graph *next;
    queue operations;
} graph;

typedef struct standin {
    int device_count;
    int32_t architecture[DEVICES];
    bool rocm5;
    piece *pieces;
    module *modules;
    stream *streams, defaults[DEVICES];
    event *events;
    graph *graphs;
    int captures; /* streams that are being captured */
    standin_counts counts;
} standin;

extern standin state;
extern _Thread_local int current_device;

/* Begins a call: takes the lock, counts; false: it is the one that must fail, and *error says how. end() gives the lock back
 * and keeps the error. */
bool begin(const char *name, int *error);
int end(int error);

#define CALL(name, ...)                                                                                                \
    do {                                                                                                               \
        int error = 0;                                                                                                 \
        if (begin(name, &error)) {                                                                                     \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
        return end(error);                                                                                             \
    } while (0)

/* Device memory that holds these bytes; NULL if none does. */
piece *piece_of(const void *pointer, size_t bytes);
void device_works(bool works); /* opens all device memory, or closes it */

/* streams.c: the stream of a handle, NULL if it is none of the current device. */
stream *stream_of(void *handle);
int enqueue(stream *s, operation *o); /* or records it, while the stream is captured */
int run_waiting(stream *s);           /* all that waits in it */
int run_device(int device);
operation *operation_new(int kind, size_t args_bytes);

const char *fault_text(void); /* of the last kernel that failed */

#endif
