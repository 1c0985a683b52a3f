/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * standin_streams.c: streams, events and graphs of the stand-in HIP runtime. Work waits in its stream; whoever waits for the
 * stream, for an event in it or for the device runs it. See standin.h.
 */
#define _GNU_SOURCE
#include "standin_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char fault[512];

const char *fault_text(void)
{
    return fault;
}

operation *operation_new(int kind, size_t args_bytes)
{
    operation *o = calloc(1, sizeof *o + args_bytes);
    if (o)
        o->kind = kind, o->bytes = args_bytes;
    return o;
}

static void append(queue *q, operation *o)
{
    if (!q->first)
        q->last = &q->first;
    o->next = NULL;
    *q->last = o;
    q->last = &o->next;
    q->count++;
}

int enqueue(stream *s, operation *o)
{
    append(s->capture ? &s->capture->operations : &s->waiting, o);
    if (!s->capture)
        state.counts.waiting++;
    if (o->kind == RECORD && !s->capture)
        o->event->waits_in = s;
    return 0;
}

static int execute(const operation *o)
{
    struct timespec now;
    switch (o->kind) {
    case LAUNCH: return simt_launch(o->kernel, o->blocks, o->args, NULL, fault, sizeof fault) == 0 ? 0 : LAUNCH_FAILURE;
    case COPY: memmove(o->to, o->from, o->bytes); return 0;
    case FILL: memset(o->to, o->value, o->bytes); return 0;
    default:
        clock_gettime(CLOCK_MONOTONIC, &now);
        o->event->time = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
        o->event->waits_in = NULL;
        return 0;
    }
}

int run_waiting(stream *s)
{
    int error = 0;
    if (!s->waiting.first)
        return 0;
    device_works(true);
    while (s->waiting.first) {
        operation *o = s->waiting.first;
        const int failed = execute(o);
        error = error ? error : failed;
        s->waiting.first = o->next;
        s->waiting.count--, state.counts.waiting--;
        free(o);
    }
    device_works(false);
    return error;
}

int run_device(int device)
{
    int error = run_waiting(&state.defaults[device]);
    for (stream *s = state.streams; s; s = s->next)
        if (s->device == device) {
            const int failed = run_waiting(s);
            error = error ? error : failed;
        }
    return error;
}

/* ------------------------------------------------------------------------------------------------ streams */

stream *stream_of(void *handle)
{
    if (!handle)
        return &state.defaults[current_device];
    for (stream *s = state.streams; s; s = s->next)
        if (s == handle)
            return s->device == current_device ? s : NULL;
    return NULL;
}

API int hipStreamCreateWithFlags(void **handle, unsigned flags);
int hipStreamCreateWithFlags(void **handle, unsigned flags)
{
    CALL("hipStreamCreateWithFlags", {
        stream *s = flags <= 1 ? calloc(1, sizeof *s) : NULL;
        if (!s)
            error = flags <= 1 ? OUT_OF_MEMORY : INVALID_VALUE;
        else {
            s->device = current_device;
            s->next = state.streams;
            state.streams = s;
            state.counts.streams++;
            *handle = s;
        }
    });
}

API int hipStreamDestroy(void *handle);
int hipStreamDestroy(void *handle)
{
    CALL("hipStreamDestroy", {
        stream **link = &state.streams, *s;
        while (*link && *link != handle)
            link = &(*link)->next;
        s = *link;
        if (!s)
            error = INVALID_HANDLE;
        else if ((error = run_waiting(s)) == 0) {
            *link = s->next;
            free(s);
            state.counts.streams--;
        }
    });
}

API int hipStreamSynchronize(void *handle);
int hipStreamSynchronize(void *handle)
{
    CALL("hipStreamSynchronize", {
        stream *s = stream_of(handle);
        error = !s ? INVALID_HANDLE : s->capture ? CAPTURE_UNSUPPORTED : run_waiting(s);
    });
}

API int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *handle);
int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *handle)
{
    CALL("hipMemcpyAsync", {
        stream *s = stream_of(handle);
        operation *o = NULL;
        /* A piece's first byte is in it, so its others must be; what is in no piece is the host's. */
        const bool outside = (piece_of(to, 1) && !piece_of(to, bytes)) || (piece_of(from, 1) && !piece_of(from, bytes));
        if (!s)
            error = INVALID_HANDLE;
        else if (!to || !from || kind != 4 || outside)
            error = INVALID_VALUE;
        else if (!(o = operation_new(COPY, 0)))
            error = OUT_OF_MEMORY;
        else {
            o->to = to, o->from = from, o->bytes = bytes;
            error = enqueue(s, o);
        }
    });
}

API int hipMemsetAsync(void *to, int value, size_t bytes, void *handle);
int hipMemsetAsync(void *to, int value, size_t bytes, void *handle)
{
    CALL("hipMemsetAsync", {
        stream *s = stream_of(handle);
        operation *o = NULL;
        if (!s)
            error = INVALID_HANDLE;
        else if (!piece_of(to, bytes))
            error = INVALID_VALUE;
        else if (!(o = operation_new(FILL, 0)))
            error = OUT_OF_MEMORY;
        else {
            o->to = to, o->value = value, o->bytes = bytes;
            error = enqueue(s, o);
        }
    });
}

/* ------------------------------------------------------------------------------------------------ events */

static event *event_of(const void *handle)
{
    event *e = state.events;
    while (e && e != handle)
        e = e->next;
    return e;
}

API int hipEventCreate(void **handle);
int hipEventCreate(void **handle)
{
    CALL("hipEventCreate", {
        event *e = calloc(1, sizeof *e);
        if (!e)
            error = OUT_OF_MEMORY;
        else {
            e->next = state.events;
            state.events = e;
            state.counts.events++;
            *handle = e;
        }
    });
}

API int hipEventDestroy(void *handle);
int hipEventDestroy(void *handle)
{
    CALL("hipEventDestroy", {
        event **link = &state.events, *e;
        while (*link && *link != handle)
            link = &(*link)->next;
        e = *link;
        if (!e)
            error = INVALID_HANDLE;
        else if (!e->waits_in || (error = run_waiting(e->waits_in)) == 0) {
            *link = e->next;
            free(e);
            state.counts.events--;
        }
    });
}

API int hipEventRecord(void *handle, void *stream_handle);
int hipEventRecord(void *handle, void *stream_handle)
{
    CALL("hipEventRecord", {
        stream *s = stream_of(stream_handle);
        event *e = event_of(handle);
        operation *o = NULL;
        if (!s || !e)
            error = INVALID_HANDLE;
        else if (!(o = operation_new(RECORD, 0)))
            error = OUT_OF_MEMORY;
        else {
            o->event = e;
            error = enqueue(s, o);
        }
    });
}

API int hipEventSynchronize(void *handle);
int hipEventSynchronize(void *handle)
{
    CALL("hipEventSynchronize", {
        event *e = event_of(handle);
        error = !e ? INVALID_HANDLE : e->waits_in ? run_waiting(e->waits_in) : 0;
    });
}

API int hipEventElapsedTime(float *milliseconds, void *start, void *stop);
int hipEventElapsedTime(float *milliseconds, void *start, void *stop)
{
    CALL("hipEventElapsedTime", {
        const event *a = event_of(start), *b = event_of(stop);
        if (!a || !b || a->time == 0 || b->time == 0)
            error = INVALID_HANDLE;
        else
            *milliseconds = (float)(b->time - a->time);
    });
}

/* ------------------------------------------------------------------------------------------------ graphs */

API int hipStreamBeginCapture(void *handle, int mode);
int hipStreamBeginCapture(void *handle, int mode)
{
    (void)mode;
    CALL("hipStreamBeginCapture", {
        stream *s = handle ? stream_of(handle) : NULL;
        graph *g = s && !s->capture ? calloc(1, sizeof *g) : NULL;
        if (!g)
            error = s ? CAPTURE_UNMATCHED : INVALID_HANDLE;
        else {
            s->capture = g;
            state.captures++;
        }
    });
}

API int hipStreamEndCapture(void *handle, void **result);
int hipStreamEndCapture(void *handle, void **result)
{
    CALL("hipStreamEndCapture", {
        stream *s = stream_of(handle);
        if (!s || !s->capture)
            error = CAPTURE_UNMATCHED;
        else {
            s->capture->next = state.graphs;
            *result = state.graphs = s->capture;
            s->capture = NULL;
            state.captures--;
            state.counts.graphs++;
        }
    });
}

/* A graph is its own executable. */
API int hipGraphInstantiate(void **executable, void *graph_handle, void **node, char *log, size_t bytes);
int hipGraphInstantiate(void **executable, void *graph_handle, void **node, char *log, size_t bytes)
{
    (void)node, (void)log, (void)bytes;
    CALL("hipGraphInstantiate", *executable = graph_handle;);
}

API int hipGraphLaunch(void *executable, void *handle);
int hipGraphLaunch(void *executable, void *handle)
{
    CALL("hipGraphLaunch", {
        stream *s = stream_of(handle);
        const graph *g = state.graphs;
        while (g && g != executable)
            g = g->next;
        if (!s || !g)
            error = INVALID_HANDLE;
        for (const operation *o = error ? NULL : g->operations.first; o && !error; o = o->next) {
            const size_t args = o->kind == LAUNCH ? o->bytes : 0;
            operation *copy = operation_new(o->kind, args);
            if (!copy)
                error = OUT_OF_MEMORY;
            else {
                memcpy(copy, o, sizeof *o + args);
                error = enqueue(s, copy);
            }
        }
    });
}

API int hipGraphExecDestroy(void *executable);
int hipGraphExecDestroy(void *executable)
{
    (void)executable;
    return 0;
}

API int hipGraphDestroy(void *handle);
int hipGraphDestroy(void *handle)
{
    CALL("hipGraphDestroy", {
        graph **link = &state.graphs, *g;
        while (*link && *link != handle)
            link = &(*link)->next;
        g = *link;
        if (!g)
            error = INVALID_HANDLE;
        else {
            *link = g->next;
            for (operation *o = g->operations.first, *next; o; o = next)
                next = o->next, free(o);
            free(g);
            state.counts.graphs--;
        }
    });
}
