/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* status.c: names of statuses, and the error sentence of each thread. */
#include <stdio.h>
#include <string.h>

#include "context.h"

static _Thread_local char last_error[512];

kiln_status kiln_fail(kiln_status status, const char *format, ...)
{
    /* Formatted aside first: the arguments may be parts of the old sentence. */
    char text[sizeof last_error];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    memcpy(last_error, text, sizeof text);
    return status;
}

const char *kiln_last_error(void)
{
    return last_error;
}

const char *kiln_status_name(kiln_status status)
{
    switch (status) {
    case KILN_OK: return "KILN_OK";
    case KILN_INVALID_ARGUMENT: return "KILN_INVALID_ARGUMENT";
    case KILN_UNSUPPORTED: return "KILN_UNSUPPORTED";
    case KILN_UNAVAILABLE: return "KILN_UNAVAILABLE";
    case KILN_OUT_OF_MEMORY: return "KILN_OUT_OF_MEMORY";
    case KILN_WORKSPACE_TOO_SMALL: return "KILN_WORKSPACE_TOO_SMALL";
    case KILN_VERSION_MISMATCH: return "KILN_VERSION_MISMATCH";
    case KILN_DEVICE_ERROR: return "KILN_DEVICE_ERROR";
    case KILN_INTERNAL: return "KILN_INTERNAL";
    default: return "KILN_UNKNOWN_STATUS";
    }
}
