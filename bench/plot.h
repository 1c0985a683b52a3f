/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * plot.h: log-log plots, or points over a row of names. By gnuplot when it is installed (PNG or SVG by the file's ending),
 * as plain text otherwise.
 */
#ifndef KILN_BENCH_PLOT_H
#define KILN_BENCH_PLOT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct plot_series {
    const char *name;
    bool line; /* joined by lines, else points */
    char mark; /* its letter in a text plot */
    const double *x, *y;
    size_t count;
} plot_series;

typedef struct plot {
    const char *title, *x_label, *y_label;
    const plot_series *series;
    size_t count;
    const char *const
        *x_names; /* NULL, or the names of x = 1, 2, ...: then that axis is not logarithmic (images only) */
    size_t x_count;
} plot;

/*
 * Writes the plot to `file` ("-" = text on standard output). An image that cannot be drawn because gnuplot is not installed
 * becomes text in a file of that name with .txt added. `note` receives one sentence: what was written where, or why nothing
 * was: because `file` is not acceptable, or because writing failed.
 */
typedef enum plot_result { PLOT_WRITTEN, PLOT_REFUSED, PLOT_FAILED } plot_result;
plot_result plot_write(const plot *p, const char *file, char *note, size_t cap);

/* Can images be drawn here? */
bool plot_draws_images(void);
/* The plot as one <svg> element, from malloc; NULL if it could not be drawn. Uses a file in $TMPDIR or /tmp for a moment. */
char *plot_svg(const plot *p);

#endif
