/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* page.c: see page.h. Whatever comes from outside is escaped, so that it is text and never markup. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"

enum { WIDTH = 110, TEXT_MAX = 4096 };

static const char style[] =
    "body{font:15px/1.45 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    "table{border-collapse:collapse;margin:.8em 0;display:block;overflow-x:auto}"
    "th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "th{border-bottom:2px solid #888}.t{text-align:left}h2{margin-top:2em;border-bottom:1px solid #888}"
    "h3{font-family:ui-monospace,monospace;overflow-wrap:anywhere}svg{max-width:100%;height:auto}";

static void escaped(FILE *to, const char *text)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '"': fputs("&quot;", to); break;
        default: fputc(*text, to);
        }
}

static void wrapped(FILE *to, const char *text)
{
    size_t at = 0;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (at > 0 && at + 1 + word > WIDTH) {
            fputc('\n', to);
            at = 0;
        }
        at += (size_t)fprintf(to, "%s%.*s", at > 0 ? " " : "", (int)word, text);
        text += word + strspn(text + word, " ");
    }
    fputc('\n', to);
}

void page_begin(page *p, const char *title)
{
    p->plots = 0;
    if (!p->html) {
        fprintf(p->to, "%s\n", title);
        return;
    }
    fprintf(p->to, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    escaped(p->to, title);
    fprintf(p->to, "</title>\n<style>%s</style>\n</head>\n<body>\n<h1>", style);
    escaped(p->to, title);
    fprintf(p->to, "</h1>\n");
}

void page_end(page *p)
{
    if (p->html)
        fprintf(p->to, "</body>\n</html>\n");
}

void page_heading(page *p, int level, const char *format, ...)
{
    char text[TEXT_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (p->html) {
        fprintf(p->to, "<h%d>", level + 1);
        escaped(p->to, text);
        fprintf(p->to, "</h%d>\n", level + 1);
    } else if (level == 1) {
        fprintf(p->to, "\n== %s ==\n", text);
    } else {
        fprintf(p->to, "\n%s\n", text);
    }
}

void page_text(page *p, const char *format, ...)
{
    char text[TEXT_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (p->html) {
        fprintf(p->to, "<p>");
        escaped(p->to, text);
        fprintf(p->to, "</p>\n");
    } else {
        wrapped(p->to, text);
    }
}

static void html_cell(FILE *to, const char *tag, const column *c, const char *text)
{
    fprintf(to, "<%s%s>", tag, c->kind == COLUMN_TEXT ? " class=\"t\"" : "");
    escaped(to, text);
    fprintf(to, "</%s>", tag);
}

void page_table(page *p, const column *columns, size_t count, const json_t *records)
{
    char cell[OUTPUT_CELL_MAX];
    if (!p->html) {
        output_table(p->to, columns, count, records);
        return;
    }
    fprintf(p->to, "<table>\n<tr>");
    for (size_t c = 0; c < count; c++)
        html_cell(p->to, "th", &columns[c], columns[c].title);
    fprintf(p->to, "</tr>\n");
    for (size_t row = 0; row < json_array_size(records); row++) {
        fprintf(p->to, "<tr>");
        for (size_t c = 0; c < count; c++) {
            output_cell(&columns[c], json_array_get(records, row), cell, sizeof cell);
            html_cell(p->to, "td", &columns[c], cell);
        }
        fprintf(p->to, "</tr>\n");
    }
    fprintf(p->to, "</table>\n");
}

/* Copies an <svg>, with a number before each of its ids: gnuplot uses the same ones in every plot. */
static void svg_with_own_ids(FILE *to, const char *svg, int number)
{
    static const char *const marks[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    while (*svg != '\0') {
        size_t skip = 0;
        for (size_t i = 0; i < sizeof marks / sizeof *marks && skip == 0; i++)
            if (strncmp(svg, marks[i], strlen(marks[i])) == 0)
                skip = strlen(marks[i]);
        if (skip > 0) {
            fprintf(to, "%.*splot%d-", (int)skip, svg, number);
            svg += skip;
        } else {
            fputc(*svg++, to);
        }
    }
}

void page_plot(page *p, const plot *drawing)
{
    if (!p->html || !plot_draws_images())
        return;
    char *svg = plot_svg(drawing);
    if (svg == NULL) {
        page_text(p, "The plot \"%s\" could not be drawn: gnuplot failed.", drawing->title);
        return;
    }
    fprintf(p->to, "<figure>\n");
    svg_with_own_ids(p->to, svg, ++p->plots);
    fprintf(p->to, "</figure>\n");
    free(svg);
}
