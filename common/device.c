/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* device.c: memory, streams and events, handed to the backend after a look at the pointers. */
#include "validate.h"

static kiln_status check_context(const kiln_context *context)
{
    return context ? KILN_OK : kiln_fail(KILN_INVALID_ARGUMENT, "context is NULL; make one with kiln_context_create");
}

static kiln_status check_pointer(const void *pointer, const char *name)
{
    return pointer ? KILN_OK : kiln_fail(KILN_INVALID_ARGUMENT, "%s is NULL", name);
}

kiln_status kiln_malloc(kiln_context *context, size_t bytes, void **pointer)
{
    KILN_TRY(check_context(context));
    KILN_TRY(check_pointer(pointer, "pointer"));
    *pointer = NULL;
    return bytes ? context->backend->malloc(context->state, bytes, pointer) : KILN_OK;
}

kiln_status kiln_free(kiln_context *context, void *pointer)
{
    KILN_TRY(check_context(context));
    return pointer ? context->backend->free(context->state, pointer) : KILN_OK;
}

kiln_status kiln_copy(kiln_context *context, void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    KILN_TRY(check_context(context));
    if (bytes == 0)
        return KILN_OK;
    KILN_TRY(check_pointer(destination, "destination"));
    KILN_TRY(check_pointer(source, "source"));
    return context->backend->copy(context->state, destination, source, bytes, stream);
}

kiln_status kiln_fill(kiln_context *context, void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    KILN_TRY(check_context(context));
    if (bytes == 0)
        return KILN_OK;
    KILN_TRY(check_pointer(destination, "destination"));
    return context->backend->fill(context->state, destination, value, bytes, stream);
}

kiln_status kiln_stream_create(kiln_context *context, kiln_stream *stream)
{
    KILN_TRY(check_context(context));
    KILN_TRY(check_pointer(stream, "stream"));
    *stream = NULL;
    return context->backend->stream_create(context->state, stream);
}

kiln_status kiln_stream_destroy(kiln_context *context, kiln_stream stream)
{
    KILN_TRY(check_context(context));
    return context->backend->stream_destroy(context->state, stream);
}

kiln_status kiln_stream_synchronize(kiln_context *context, kiln_stream stream)
{
    KILN_TRY(check_context(context));
    return context->backend->stream_synchronize(context->state, stream);
}

/* A kiln_event is whatever the backend made of it. */

kiln_status kiln_event_create(kiln_context *context, kiln_event **event)
{
    KILN_TRY(check_context(context));
    KILN_TRY(check_pointer(event, "event"));
    void *made = NULL;
    kiln_status status = context->backend->event_create(context->state, &made);
    *event = made;
    return status;
}

kiln_status kiln_event_destroy(kiln_context *context, kiln_event *event)
{
    KILN_TRY(check_context(context));
    return event ? context->backend->event_destroy(context->state, event) : KILN_OK;
}

kiln_status kiln_event_record(kiln_context *context, kiln_event *event, kiln_stream stream)
{
    KILN_TRY(check_context(context));
    KILN_TRY(check_pointer(event, "event"));
    return context->backend->event_record(context->state, event, stream);
}

kiln_status kiln_event_elapsed(kiln_context *context, kiln_event *start, kiln_event *end, double *milliseconds)
{
    KILN_TRY(check_context(context));
    KILN_TRY(check_pointer(start, "start"));
    KILN_TRY(check_pointer(end, "end"));
    KILN_TRY(check_pointer(milliseconds, "milliseconds"));
    return context->backend->event_elapsed(context->state, start, end, milliseconds);
}
