/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * page.h: one description of a page, written as text for a terminal or as one self-contained HTML file.
 */
#ifndef KILN_BENCH_PAGE_H
#define KILN_BENCH_PAGE_H

#include "output.h"
#include "plot.h"

typedef struct page {
    FILE *to;
    bool html;
    int plots; /* drawn so far; their ids must differ within one HTML file */
} page;

/* Before and after everything else. */
void page_begin(page *p, const char *title);
void page_end(page *p);

/* Level 1 is below the title. */
void page_heading(page *p, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* One paragraph; text is broken at words. */
void page_text(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void page_table(page *p, const column *columns, size_t count, const json_t *records);
/* HTML only, and only where plot_draws_images(); otherwise nothing. */
void page_plot(page *p, const plot *drawing);

#endif
