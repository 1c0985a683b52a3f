/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* plot.c: see plot.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plot.h"
#include "text.h"

enum { COLUMNS = 76, ROWS = 22 };

static bool installed(const char *program)
{
    const char *path = getenv("PATH");
    char file[1024];
    for (; path != NULL && *path != '\0';) {
        size_t n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)n, path, program);
        if (n > 0 && access(file, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

/* A string of gnuplot: in single quotes only the quote itself is special. */
static void quoted(FILE *to, const char *text)
{
    fputc('\'', to);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputc('\'', to);
        fputc(*text, to);
    }
    fputc('\'', to);
}

static void script(const plot *p, const char *file, FILE *to)
{
    fprintf(to, "set terminal %s size 1000,700\nset output ", text_ends_with(file, ".svg") ? "svg" : "png");
    quoted(to, file);
    fprintf(to, "\nset logscale %s\nset grid\nset key %s noenhanced\n", p->x_names != NULL ? "y" : "xy",
            p->x_names != NULL ? "below" : "bottom right");
    for (size_t i = 0; i < p->x_count; i++) {
        fprintf(to, i == 0 ? "set xrange [0.5:%zu.5]\nset xtics noenhanced (" : ", ", p->x_count);
        quoted(to, p->x_names[i]);
        fprintf(to, " %zu%s", i + 1, i + 1 == p->x_count ? ")\n" : "");
    }
    fprintf(to, "set title ");
    quoted(to, p->title);
    fprintf(to, " noenhanced\nset xlabel ");
    quoted(to, p->x_label);
    fprintf(to, " noenhanced\nset ylabel ");
    quoted(to, p->y_label);
    fprintf(to, " noenhanced\nplot ");
    for (size_t i = 0; i < p->count; i++) {
        fprintf(to, "%s'-' using 1:2 with %s title ", i > 0 ? ", " : "",
                p->series[i].line ? "lines linewidth 2" : "points pointsize 1.5 pointtype 7");
        quoted(to, p->series[i].name);
    }
    fprintf(to, "\n");
    for (size_t i = 0; i < p->count; i++) {
        for (size_t k = 0; k < p->series[i].count; k++)
            fprintf(to, "%.9g %.9g\n", p->series[i].x[k], p->series[i].y[k]);
        fprintf(to, "e\n");
    }
}

typedef struct range {
    double low, high; /* logarithms */
} range;

static void widen(range *r, double value)
{
    double log = log10(value);
    r->low = log < r->low ? log : r->low;
    r->high = log > r->high ? log : r->high;
}

static int cell(range r, double value, int count)
{
    double at = (log10(value) - r.low) / (r.high - r.low) * (count - 1);
    return at < 0 ? 0 : at > count - 1 ? count - 1 : (int)(at + 0.5);
}

static void draw_text(const plot *p, FILE *to)
{
    char canvas[ROWS][COLUMNS + 1];
    range x = {INFINITY, -INFINITY}, y = {INFINITY, -INFINITY};
    for (int r = 0; r < ROWS; r++) {
        memset(canvas[r], ' ', COLUMNS);
        canvas[r][COLUMNS] = '\0';
    }
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->series[i].count; k++) {
            widen(&x, p->series[i].x[k]);
            widen(&y, p->series[i].y[k]);
        }
    x.high = x.high > x.low ? x.high : x.low + 1;
    y.high = y.high > y.low ? y.high : y.low + 1;
    for (size_t i = 0; i < p->count; i++) {
        const plot_series *s = &p->series[i];
        for (size_t k = 0; k < s->count; k++) {
            /* lines are straight between logarithms */
            int steps = s->line && k + 1 < s->count ? COLUMNS : 1;
            for (int step = 0; step < steps; step++) {
                double f = (double)step / steps, next = s->line && k + 1 < s->count;
                double px = s->x[k] * (next ? pow(s->x[k + 1] / s->x[k], f) : 1);
                double py = s->y[k] * (next ? pow(s->y[k + 1] / s->y[k], f) : 1);
                canvas[ROWS - 1 - cell(y, py, ROWS)][cell(x, px, COLUMNS)] = s->mark;
            }
        }
    }
    char label[32];
    fprintf(to, "%s\n%s\n", p->title, p->y_label);
    for (int r = 0; r < ROWS; r++) {
        label[0] = '\0';
        if (r % 7 == 0)
            text_si(pow(10, y.high - (y.high - y.low) * r / (ROWS - 1)), "", label, sizeof label);
        size_t end = COLUMNS;
        while (end > 0 && canvas[r][end - 1] == ' ')
            end--;
        fprintf(to, "%9s |%.*s\n", label, (int)end, canvas[r]);
    }
    fprintf(to, "%9s +", "");
    for (int c = 0; c < COLUMNS; c++)
        fputc('-', to);
    char right[32];
    text_si(pow(10, x.low), "", label, sizeof label);
    text_si(pow(10, x.high), "", right, sizeof right);
    fprintf(to, "\n%11s%-*s%s\n%11s%s (both axes logarithmic)\n", "", COLUMNS - (int)strlen(right), label, right, "",
            p->x_label);
    for (size_t i = 0; i < p->count; i++)
        fprintf(to, "%11s%c  %s\n", "", p->series[i].mark, p->series[i].name);
}

static bool close_file(FILE *to, bool is_pipe)
{
    bool bad = ferror(to) != 0;
    return (is_pipe ? pclose(to) : fclose(to)) == 0 && !bad;
}

bool plot_draws_images(void)
{
    return installed("gnuplot");
}

plot_result plot_write(const plot *p, const char *file, char *note, size_t cap)
{
    char path[1024];
    bool image = text_ends_with(file, ".png") || text_ends_with(file, ".svg"), gnuplot = image && plot_draws_images();
    note[0] = '\0';
    if (strcmp(file, "-") == 0) {
        draw_text(p, stdout);
        return PLOT_WRITTEN;
    }
    if ((!image && !text_ends_with(file, ".txt")) || strlen(file) + 5 > sizeof path) {
        snprintf(note, cap,
                 "a plot is written to a file that ends in .png, .svg or .txt, or to - for text here, not to \"%s\"",
                 file);
        return PLOT_REFUSED;
    }
    snprintf(path, sizeof path, "%s%s", file, image && !gnuplot ? ".txt" : "");
    /* gnuplot answers a file that it cannot open with a page of its own; ours is one sentence */
    FILE *to = fopen(path, "w");
    if (to == NULL) {
        snprintf(note, cap, "%s cannot be written", path);
        return PLOT_REFUSED;
    }
    bool good;
    if (gnuplot) {
        good = fclose(to) == 0 && (to = popen("gnuplot", "w")) != NULL;
        if (good) {
            script(p, path, to);
            good = close_file(to, true);
        }
    } else {
        draw_text(p, to);
        good = close_file(to, false);
    }
    snprintf(note, cap,
             !good               ? "%s could not be written%s"
             : image && !gnuplot ? "wrote %s as plain text, because gnuplot is not installed%s"
                                 : "wrote %s%s",
             path,
             !good && gnuplot    ? ": gnuplot failed"
             : image && !gnuplot ? " (Debian: apt install gnuplot-nox)"
                                 : "");
    return good ? PLOT_WRITTEN : PLOT_FAILED;
}

/* The rest of a file from the first <svg on. */
static char *read_svg(FILE *from)
{
    char *text = NULL;
    if (fseek(from, 0, SEEK_END) == 0) {
        long size = ftell(from);
        rewind(from);
        text = size > 0 ? calloc((size_t)size + 1, 1) : NULL;
        if (text != NULL && fread(text, 1, (size_t)size, from) != (size_t)size)
            text[0] = '\0';
    }
    char *begin = text != NULL ? strstr(text, "<svg") : NULL;
    if (begin == NULL) {
        free(text);
        return NULL;
    }
    memmove(text, begin, strlen(begin) + 1);
    return text;
}

char *plot_svg(const plot *p)
{
    char path[1024], note[1280];
    const char *folder = getenv("TMPDIR");
    char *svg = NULL;
    if (!plot_draws_images())
        return NULL;
    int length = snprintf(path, sizeof path, "%s/kiln-XXXXXX.svg", folder != NULL ? folder : "/tmp");
    int file = length < (int)sizeof path ? mkstemps(path, 4) : -1;
    if (file < 0)
        return NULL;
    FILE *from = fdopen(file, "r");
    if (from != NULL) {
        if (plot_write(p, path, note, sizeof note) == PLOT_WRITTEN)
            svg = read_svg(from);
        fclose(from);
    } else {
        close(file);
    }
    unlink(path);
    return svg;
}
