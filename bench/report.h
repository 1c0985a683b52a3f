/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * report.h: the documents that `kiln bench` and `kiln roofline` wrote on several machines, and the page about them.
 */
#ifndef KILN_BENCH_REPORT_H
#define KILN_BENCH_REPORT_H

#include <jansson.h>

#include "page.h"

enum { REPORT_RUNS_MAX = 26 }; /* one capital letter each */

typedef struct report_run {
    const char *file;
    char letter[2];   /* "A", "B", ... in the order of the command line */
    json_t *document; /* checked: every member that the page reads is there and of its type */
    bool model;       /* kiln-roofline-1: computed, nothing was run */
} report_run;

typedef struct report {
    report_run run[REPORT_RUNS_MAX];
    int count;
} report;

/* Reads and checks one document and adds it. False: `why` names the file and, where there is one, the key. */
bool report_load(report *r, const char *file, char *why, size_t cap);
void report_free(report *r);

/* Writes the whole page. */
void report_write(const report *r, page *p);

#endif
