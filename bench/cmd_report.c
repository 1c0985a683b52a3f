/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* cmd_report.c: `kiln report`. Reading is in report_load.c, what the page says in report_page.c, how it is written in page.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "report.h"
#include "text.h"

static const command about = {
    "report", "report [options] FILE...",
    "Puts what `kiln bench --format json` wrote on several machines (and `kiln roofline --format json`, as models) on "
    "one\n"
    "page. Every file keeps its letter; times are compared with naive within one run only, and what stands side by "
    "side\n"
    "from different runs is labelled \"across runs\". What only one file has is listed. Ceilings say whether they "
    "were\n"
    "measured or are the vendor's table values. HTML is one file without references; its plots need gnuplot.\n",
    "  kiln bench --format json > laptop.json                  on each machine\n"
    "  kiln report laptop.json server.json\n"
    "  kiln report -o report.html laptop.json server.json\n"
    "  kiln roofline --device h200 --format json > h200.json && kiln report server.json h200.json\n",
    NULL};

static int write_page(const report *r, bool html, const char *file)
{
    page p = {.to = stdout, .html = html};
    if (file != NULL && (p.to = fopen(file, "w")) == NULL)
        return usage_error(&about, "%s cannot be written: %s", file, strerror(errno));
    report_write(r, &p);
    if (file != NULL) { /* main() looks after standard output */
        bool bad = ferror(p.to) != 0;
        if (fclose(p.to) != 0 || bad) {
            usage_error(&about, "%s could not be written to its end", file);
            return EXIT_OUTPUT;
        }
    }
    if (html && !plot_draws_images())
        fprintf(stderr, "kiln report: the page has no plots, because gnuplot is not installed "
                        "(Debian: apt install gnuplot-nox)\n");
    return EXIT_RIGHT;
}

int command_report(int argc, char **argv)
{
    static report r;
    const char *format = NULL, *file = NULL;
    char why[768];
    int words, code;
    const option options[] = {
        {"format", OPTION_TEXT, &format, "FORMAT", "text or html; default: html for -o FILE.html, otherwise text"},
        {"-o", OPTION_TEXT, &file, "FILE", "write to FILE and not to standard output"},
    };
    if (!options_read(&about, options, sizeof options / sizeof *options, argc, argv, &words, &code))
        return code;
    bool html = format != NULL ? strcmp(format, "html") == 0 : file != NULL && text_ends_with(file, ".html");
    if (format != NULL && !html && strcmp(format, "text") != 0)
        return usage_error(&about, "--format is text or html, not \"%s\"", format);
    if (words == 0)
        return usage_error(&about, "give it files that `kiln bench --format json` wrote");
    for (int i = 0; i < words && code == EXIT_RIGHT; i++) {
        if (file != NULL && strcmp(argv[i], file) == 0)
            code = usage_error(&about, "-o %s would overwrite what is read", file);
        else if (!report_load(&r, argv[i], why, sizeof why))
            code = usage_error(&about, "%s", why);
    }
    if (code == EXIT_RIGHT)
        code = write_page(&r, html, file);
    report_free(&r);
    return code;
}
