/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* output.c: see output.h. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "output.h"
#include "text.h"

bool output_format_find(const char *name, output_format *format)
{
    static const char *const names[] = {"text", "csv", "json"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *format = (output_format)i;
            return true;
        }
    return false;
}

void output_cell(const column *c, const json_t *record, char *text, size_t cap)
{
    const json_t *value = json_object_get(record, c->key);
    snprintf(text, cap, "-");
    if (json_is_string(value)) {
        snprintf(text, cap, "%s", json_string_value(value));
        return;
    }
    if (!json_is_number(value))
        return;
    double number = json_number_value(value);
    switch (c->kind) {
    case COLUMN_TEXT:
    case COLUMN_NUMBER: snprintf(text, cap, "%.*f", c->decimals, number); break;
    case COLUMN_SI: text_si(number, c->unit, text, cap); break;
    case COLUMN_BYTES: text_bytes(number, text, cap); break;
    case COLUMN_SECONDS: text_seconds(number, text, cap); break;
    case COLUMN_RATIO: snprintf(text, cap, "%.2f x", number); break;
    }
}

void output_table(FILE *to, const column *columns, size_t count, const json_t *records)
{
    char cell[OUTPUT_CELL_MAX];
    size_t index;
    json_t *record;
    size_t *width = calloc(count, sizeof *width);
    if (width == NULL)
        return;
    for (size_t c = 0; c < count; c++) {
        if (columns[c].title == NULL)
            continue;
        width[c] = strlen(columns[c].title);
        json_array_foreach(records, index, record)
        {
            output_cell(&columns[c], record, cell, sizeof cell);
            width[c] = strlen(cell) > width[c] ? strlen(cell) : width[c];
        }
    }
    for (size_t row = 0; row <= json_array_size(records); row++) {
        size_t pending = 0; /* spaces are written only before the next cell, so that no line ends in one */
        for (size_t c = 0; c < count; c++) {
            if (columns[c].title == NULL)
                continue;
            if (row == 0)
                snprintf(cell, sizeof cell, "%s", columns[c].title);
            else
                output_cell(&columns[c], json_array_get(records, row - 1), cell, sizeof cell);
            size_t space = width[c] - strlen(cell);
            bool left = columns[c].kind == COLUMN_TEXT;
            fprintf(to, "%*s%s", (int)(pending + (left ? 0 : space)), "", cell);
            pending = 2 + (left ? space : 0);
        }
        fprintf(to, "\n");
    }
    free(width);
}

static void csv_text(FILE *to, const char *text)
{
    if (strpbrk(text, ",\"\n") == NULL) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

void output_csv(FILE *to, const column *columns, size_t count, const json_t *records)
{
    size_t index;
    json_t *record;
    for (size_t c = 0; c < count; c++)
        fprintf(to, "%s%s", c > 0 ? "," : "", columns[c].key);
    fprintf(to, "\n");
    json_array_foreach(records, index, record)
    {
        for (size_t c = 0; c < count; c++) {
            const json_t *value = json_object_get(record, columns[c].key);
            if (c > 0)
                fputc(',', to);
            if (json_is_string(value))
                csv_text(to, json_string_value(value));
            else if (json_is_integer(value))
                fprintf(to, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
            else if (json_is_real(value))
                fprintf(to, "%.9g", json_real_value(value));
            else if (json_is_boolean(value))
                fputs(json_is_true(value) ? "true" : "false", to);
        }
        fprintf(to, "\n");
    }
}

void output_json(FILE *to, const json_t *document)
{
    json_dumpf(document, to, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    fputc('\n', to);
}

json_t *output_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool line_is_open;

void progress(const char *format, ...)
{
    enum { QUIET_SECONDS = 5, EVERY_SECONDS = 10 };
    static double started, last;
    va_list list;
    bool terminal = isatty(STDERR_FILENO);
    double time = now();
    if (started == 0)
        started = last = time;
    if (!terminal && (time - started < QUIET_SECONDS || time - last < EVERY_SECONDS))
        return;
    last = time;
    fprintf(stderr, terminal ? "\r\033[K" : "kiln: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, terminal ? "" : "\n");
    line_is_open = terminal;
}

void progress_done(void)
{
    if (line_is_open)
        fprintf(stderr, "\r\033[K");
    line_is_open = false;
}
