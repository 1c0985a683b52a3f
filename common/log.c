/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* log.c: formats messages for the caller's callback. Nothing is ever printed. */
#include <stdio.h>

#include "context.h"

static void write_message(const kiln_log *log, int32_t level, const char *format, va_list list)
{
    if (!log || !log->callback || level > log->level)
        return;
    char text[512];
    vsnprintf(text, sizeof text, format, list);
    log->callback(log->user, level, text);
}

void kiln_log_write(const kiln_log *log, int32_t level, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_message(log, level, format, list);
    va_end(list);
}

void kiln_log_service(void *log_user, int32_t level, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_message(log_user, level, format, list);
    va_end(list);
}
