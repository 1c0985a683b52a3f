/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * output.h: tables for people (aligned, with units), CSV and JSON for programs, from the same records.
 */
#ifndef KILN_BENCH_OUTPUT_H
#define KILN_BENCH_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum output_format { OUTPUT_TEXT, OUTPUT_CSV, OUTPUT_JSON } output_format;
/* False if there is no such format. */
bool output_format_find(const char *name, output_format *format);

typedef enum column_kind {
    COLUMN_TEXT,
    COLUMN_NUMBER,  /* as it is, `decimals` digits after the point */
    COLUMN_SI,      /* 312 T, with the unit */
    COLUMN_BYTES,   /* 1.50 MiB */
    COLUMN_SECONDS, /* 3.20 ms */
    COLUMN_RATIO    /* 8.13 x */
} column_kind;

/* One column. Records are JSON objects; a column shows their member `key`, "-" where it is missing or null. */
typedef struct column {
    const char *key;   /* in CSV and JSON; names the unit where there is one: "median_s" */
    const char *title; /* in text; NULL = not shown there */
    column_kind kind;
    const char *unit; /* COLUMN_SI */
    int decimals;     /* COLUMN_NUMBER */
} column;

/* What the column shows of one record. */
void output_cell(const column *c, const json_t *record, char *text, size_t cap);
enum { OUTPUT_CELL_MAX = 512 };

/* An aligned text table of an array of records. */
void output_table(FILE *to, const column *columns, size_t count, const json_t *records);
/* CSV with one header line; text is quoted where it must be. */
void output_csv(FILE *to, const column *columns, size_t count, const json_t *records);
/* The whole document, indented, with a final newline. */
void output_json(FILE *to, const json_t *document);

/* A number, or null when it is not finite: JSON has no NaN. */
json_t *output_number(double value);

/*
 * Progress on stderr. On a terminal one line that is overwritten; elsewhere one line every few seconds, after the first few.
 * progress_done() clears it.
 */
void progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_done(void);

#endif
