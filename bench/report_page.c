/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * report_page.c: what the page of `kiln report` says. Rules: every figure stands beside the letter of its run; a ratio to
 * naive is taken within one run only; whatever compares runs is headed "across runs"; a ceiling carries m (measured) or
 * v (the vendor's); nothing that a file holds is left out because others lack it. Cost: quadratic in the results, which are few.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "text.h"

enum { NAMES_MAX = 32, POINTS_MAX = 64 };

static const json_t *member(const json_t *object, const char *key)
{
    return json_object_get(object, key);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(member(object, key));
    return text != NULL ? text : "-";
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(member(object, key)); /* 0 when it is missing or null */
}

static const json_t *results_of(const report_run *run)
{
    return run->model ? NULL : member(run->document, "results");
}

static const json_t *peak_of(const report_run *run)
{
    return member(run->document, "peak");
}

static bool peak_is_measured(const report_run *run)
{
    return json_is_true(member(peak_of(run), "measured"));
}

/* ------------------------------------------------------------------------------------------------ where */

static void copy(json_t *to, const char *key, const json_t *from, const char *from_key)
{
    json_object_set(to, key, json_object_get(from, from_key));
}

static void write_runs(const report *r, page *p)
{
    static const column where[] = {
        {"run", "run", COLUMN_TEXT, NULL, 0},
        {"file", "file", COLUMN_TEXT, NULL, 0},
        {"date", "date (UTC)", COLUMN_TEXT, NULL, 0},
        {"device", "device", COLUMN_TEXT, NULL, 0},
        {"backend", "backend", COLUMN_TEXT, NULL, 0},
        {"architecture", "kernels for", COLUMN_TEXT, NULL, 0},
        {"units", "threads, units", COLUMN_NUMBER, NULL, 0},
        {"caches", "caches", COLUMN_TEXT, NULL, 0},
    };
    static const column built[] = {
        {"run", "run", COLUMN_TEXT, NULL, 0},
        {"version", "kiln", COLUMN_TEXT, NULL, 0},
        {"compiler", "compiler", COLUMN_TEXT, NULL, 0},
        {"system", "system", COLUMN_TEXT, NULL, 0},
        {"memory", "memory", COLUMN_BYTES, NULL, 0},
        {"l1", "L1", COLUMN_BYTES, NULL, 0},
        {"l2", "L2", COLUMN_BYTES, NULL, 0},
        {"l3", "L3", COLUMN_BYTES, NULL, 0},
    };
    static const char *const from[][2] = {
        {"date", "date_utc"},       {"device", "device"},
        {"backend", "backend"},     {"architecture", "architecture"},
        {"units", "units"},         {"version", "kiln_version"},
        {"compiler", "compiler"},   {"system", "system"},
        {"memory", "memory_bytes"}, {"l1", "l1_bytes"},
        {"l2", "l2_bytes"},         {"l3", "l3_bytes"},
    };
    json_t *rows = json_array();
    for (int i = 0; i < r->count; i++) {
        const report_run *run = &r->run[i];
        if (run->model)
            continue;
        json_t *row = json_pack("{s:s, s:s, s:s}", "run", run->letter, "file", run->file, "caches",
                                json_is_true(member(run->document, "cold_cache")) ? "flushed" : "as they come");
        for (size_t k = 0; k < sizeof from / sizeof *from; k++)
            copy(row, from[k][0], member(run->document, "environment"), from[k][1]);
        json_array_append_new(rows, row);
    }
    if (json_array_size(rows) > 0) {
        page_heading(p, 1, "Where it was measured");
        page_table(p, where, sizeof where / sizeof *where, rows);
        page_table(p, built, sizeof built / sizeof *built, rows);
    }
    json_decref(rows);
}

static void write_ceilings(const report *r, page *p)
{
    static const column columns[] = {
        {"run", "run", COLUMN_TEXT, NULL, 0},
        {"kind", "kind", COLUMN_TEXT, NULL, 0},
        {"flops32_per_s", "fp32", COLUMN_SI, "FLOP/s", 0},
        {"flops16_per_s", "16 bits", COLUMN_SI, "FLOP/s", 0},
        {"bytes_per_s", "memory", COLUMN_SI, "B/s", 0},
        {"source", "source, as the file says", COLUMN_TEXT, NULL, 0},
    };
    json_t *rows = json_array();
    for (int i = 0; i < r->count; i++) {
        json_t *row = json_pack("{s:s, s:s}", "run", r->run[i].letter, "kind",
                                peak_is_measured(&r->run[i]) ? "measured" : "not measured");
        json_object_update(row, json_object_get(r->run[i].document, "peak"));
        json_array_append_new(rows, row);
    }
    page_heading(p, 1, "Ceilings");
    page_table(p, columns, sizeof columns / sizeof *columns, rows);
    json_decref(rows);
}

/* ------------------------------------------------------------------------------------------------ one problem */

static bool is_of(const json_t *result, const char *problem)
{
    return strcmp(text_of(result, "problem"), problem) == 0;
}

/* How many results of the run are of this problem. */
static int count_of(const report_run *run, const char *problem)
{
    int count = 0;
    size_t i;
    const json_t *result, *results = results_of(run);
    json_array_foreach((json_t *)results, i, result)
    {
        count += is_of(result, problem);
    }
    return count;
}

/* Median of the run's rung that others are compared with: naive, or three_pass for softmax. 0 if this run has none. When a
 * run holds the problem twice, the one of the same block counts: the last at or before `index`, else the next. */
static double base_median(const json_t *results, size_t index, const char *problem)
{
    double after = 0;
    for (size_t step = json_array_size(results); step-- > 0;) {
        const json_t *other = json_array_get(results, step);
        const char *name = text_of(other, "algorithm");
        if (!is_of(other, problem) || (strcmp(name, "naive") != 0 && strcmp(name, "three_pass") != 0))
            continue;
        if (step <= index)
            return number_of(other, "median_s");
        after = number_of(other, "median_s");
    }
    return after;
}

static const json_t *fastest(const report_run *run, const char *problem)
{
    size_t i;
    const json_t *result, *best = NULL, *results = results_of(run);
    json_array_foreach((json_t *)results, i, result)
    {
        double median = number_of(result, "median_s");
        if (is_of(result, problem) && median > 0 && (best == NULL || median < number_of(best, "median_s")))
            best = result;
    }
    return best;
}

static void write_results(const report *r, page *p, const char *problem)
{
    static const column columns[] = {
        {"run", "run", COLUMN_TEXT, NULL, 0},
        {"algorithm", "algorithm", COLUMN_TEXT, NULL, 0},
        {"verdict", "verdict", COLUMN_TEXT, NULL, 0},
        {"median_s", "median", COLUMN_SECONDS, NULL, 0},
        {"p25_s", "p25", COLUMN_SECONDS, NULL, 0},
        {"p75_s", "p75", COLUMN_SECONDS, NULL, 0},
        {"samples", "n", COLUMN_NUMBER, NULL, 0},
        {"speedup_in_run", "speed-up in run", COLUMN_RATIO, NULL, 0},
        {"flops_per_s", "FLOP/s", COLUMN_SI, "", 0},
        {"ledger_bytes_per_s", "ledger B/s", COLUMN_SI, "", 0},
        {"share", "of ceiling", COLUMN_TEXT, NULL, 0},
        {"workspace_bytes", "workspace", COLUMN_BYTES, NULL, 0},
        {"error_over_bound", "error/bound", COLUMN_NUMBER, NULL, 3},
        {"kernel", "kernel", COLUMN_TEXT, NULL, 0},
    };
    json_t *rows = json_array();
    for (int i = 0; i < r->count; i++) {
        size_t index;
        json_t *result, *results = (json_t *)results_of(&r->run[i]);
        json_array_foreach(results, index, result)
        {
            if (!is_of(result, problem))
                continue;
            json_t *row = json_copy(result);
            double base = base_median(results, index, problem), median = number_of(result, "median_s");
            char share[32];
            json_object_set_new(row, "run", json_string(r->run[i].letter));
            if (median <= 0)
                json_object_set_new(row, "verdict",
                                    json_string(strcmp(text_of(result, "verdict"), "right") == 0 ? "right, not timed"
                                                                                                 : "WRONG, not timed"));
            if (median > 0 && base > 0)
                json_object_set_new(row, "speedup_in_run", json_real(base / median));
            snprintf(share, sizeof share, "%.1f %% %s", number_of(result, "percent_of_peak"),
                     peak_is_measured(&r->run[i]) ? "m" : "v");
            if (number_of(result, "percent_of_peak") > 0)
                json_object_set_new(row, "share", json_string(share));
            json_array_append_new(rows, row);
        }
    }
    page_table(p, columns, sizeof columns / sizeof *columns, rows);
    json_decref(rows);
}

/* The fastest rung of every run side by side, where more than one run timed the problem. */
static void write_across(const report *r, page *p, const char *problem)
{
    static const column columns[] = {
        {"run", "run", COLUMN_TEXT, NULL, 0},
        {"device", "device", COLUMN_TEXT, NULL, 0},
        {"architecture", "kernels for", COLUMN_TEXT, NULL, 0},
        {"units", "threads, units", COLUMN_NUMBER, NULL, 0},
        {"algorithm", "its fastest", COLUMN_TEXT, NULL, 0},
        {"median_s", "median", COLUMN_SECONDS, NULL, 0},
        {"across", "across runs: time / the least time", COLUMN_RATIO, NULL, 0},
    };
    double least = 0;
    json_t *rows = json_array();
    for (int i = 0; i < r->count; i++) {
        const json_t *best = fastest(&r->run[i], problem);
        double median = number_of(best, "median_s");
        least = median > 0 && (least == 0 || median < least) ? median : least;
    }
    for (int i = 0; i < r->count; i++) {
        const json_t *best = fastest(&r->run[i], problem), *environment = member(r->run[i].document, "environment");
        if (best == NULL)
            continue;
        json_t *row = json_pack("{s:s, s:f}", "run", r->run[i].letter, "across", number_of(best, "median_s") / least);
        copy(row, "device", environment, "device");
        copy(row, "architecture", environment, "architecture");
        copy(row, "units", environment, "units");
        copy(row, "algorithm", best, "algorithm");
        copy(row, "median_s", best, "median_s");
        json_array_append_new(rows, row);
    }
    if (json_array_size(rows) > 1) {
        page_text(p, "Across runs (different machines, settings or times; not measured against each other):");
        page_table(p, columns, sizeof columns / sizeof *columns, rows);
    }
    json_decref(rows);
}

/* ------------------------------------------------------------------------------------------------ plots */

static int find_name(const char **names, int *count, const char *name)
{
    int i = 0;
    while (i < *count && strcmp(names[i], name) != 0)
        i++;
    if (i == *count && *count < NAMES_MAX)
        names[(*count)++] = name;
    return i < NAMES_MAX ? i : NAMES_MAX - 1;
}

/* What a run is called in a legend. Static, one per run. */
static const char *legend_of(const report_run *run)
{
    static char legend[REPORT_RUNS_MAX][96];
    char *text = legend[run->letter[0] - 'A'];
    const json_t *e = member(run->document, "environment");
    snprintf(text, sizeof legend[0], "%s: %.40s, %.16s, %.0f %s", run->letter, text_of(e, "device"),
             text_of(e, "architecture"), number_of(e, "units"),
             strcmp(text_of(e, "backend"), "cpu") == 0 ? "threads" : "units");
    return text;
}

/* Median time of every rung, one series per run. */
static void plot_times(const report *r, page *p, const char *problem)
{
    static double x[REPORT_RUNS_MAX][POINTS_MAX], y[REPORT_RUNS_MAX][POINTS_MAX];
    plot_series series[REPORT_RUNS_MAX];
    const char *names[NAMES_MAX];
    int name_count = 0;
    size_t count = 0;
    for (int i = 0; i < r->count; i++) {
        size_t index, points = 0;
        const json_t *result, *results = results_of(&r->run[i]);
        json_array_foreach((json_t *)results, index, result)
        {
            if (!is_of(result, problem) || number_of(result, "median_s") <= 0 || points == POINTS_MAX)
                continue;
            x[count][points] = 1 + find_name(names, &name_count, text_of(result, "algorithm"));
            y[count][points++] = number_of(result, "median_s");
        }
        if (points > 0) {
            series[count] =
                (plot_series){legend_of(&r->run[i]), false, r->run[i].letter[0], x[count], y[count], points};
            count++;
        }
    }
    plot drawing = {.title = problem,
                    .x_label = "algorithm",
                    .y_label = "median seconds (logarithmic)",
                    .series = series,
                    .count = count,
                    .x_names = names,
                    .x_count = (size_t)name_count};
    if (count > 0)
        page_plot(p, &drawing);
}

/* The ceilings of one run as lines from `low` to `high`: one line where the types share it. Returns how many. */
static int make_roofs(const report_run *run, double low, double high, double x[2][3], double y[2][3],
                      plot_series *series)
{
    static const char *const names[2][3] = {
        {"roof: vendor's numbers, fp32", "roof: vendor's numbers, 16 bits", "roof: vendor's numbers"},
        {"roof: measured, fp32", "roof: measured, 16 bits", "roof: measured"}};
    double bandwidth = number_of(peak_of(run), "bytes_per_s");
    double flops[2] = {number_of(peak_of(run), "flops32_per_s"), number_of(peak_of(run), "flops16_per_s")};
    int count = flops[0] == flops[1] ? 1 : 2;
    if (!(bandwidth > 0 && flops[0] > 0 && flops[1] > 0))
        return 0;
    for (int k = 0; k < count; k++) {
        double knee = flops[k] / bandwidth;
        low = knee < low ? knee : low;
        high = knee > high ? knee : high;
    }
    for (int k = 0; k < count; k++) {
        x[k][0] = low / 2, x[k][1] = flops[k] / bandwidth, x[k][2] = high * 2;
        y[k][0] = x[k][0] * bandwidth, y[k][1] = y[k][2] = flops[k];
        series[k] = (plot_series){names[peak_is_measured(run)][count == 1 ? 2 : k], true, '.', x[k], y[k], 3};
    }
    return count;
}

/* What the rungs of one run reached under its roof. */
static void plot_roof(const report_run *run, page *p)
{
    static double x[NAMES_MAX][POINTS_MAX], y[NAMES_MAX][POINTS_MAX];
    double roof_x[2][3], roof_y[2][3], low = 1e300, high = 0;
    const char *names[NAMES_MAX];
    size_t points[NAMES_MAX] = {0}, index;
    plot_series series[NAMES_MAX + 2];
    char title[160];
    int count = 0;
    const json_t *result, *results = results_of(run);
    json_array_foreach((json_t *)results, index, result)
    {
        double bytes = number_of(result, "ledger_bytes"), rate = number_of(result, "flops_per_s");
        if (rate <= 0 || bytes <= 0)
            continue;
        int i = find_name(names, &count, text_of(result, "algorithm"));
        if (points[i] == POINTS_MAX)
            continue;
        double at = x[i][points[i]] = number_of(result, "flops") / bytes;
        y[i][points[i]++] = rate;
        low = at < low ? at : low;
        high = at > high ? at : high;
    }
    for (int i = 0; i < count; i++)
        series[i] = (plot_series){names[i], false, names[i][0], x[i], y[i], points[i]};
    int roofs = count > 0 ? make_roofs(run, low, high, roof_x, roof_y, series + count) : 0;
    snprintf(title, sizeof title, "Run %s", legend_of(run));
    plot drawing = {.title = title,
                    .x_label = "FLOP per byte of the traffic ledger",
                    .y_label = "FLOP/s",
                    .series = series,
                    .count = (size_t)(count + roofs)};
    if (roofs > 0)
        page_plot(p, &drawing);
}

/* ------------------------------------------------------------------------------------------------ all problems */

/* Calls visit for every different problem, in the order in which the files have them. */
static void each_problem(const report *r, page *p, void (*visit)(const report *r, page *p, const char *problem))
{
    for (int i = 0; i < r->count; i++) {
        size_t index;
        const json_t *result, *results = results_of(&r->run[i]);
        json_array_foreach((json_t *)results, index, result)
        {
            const char *problem = text_of(result, "problem");
            bool seen = false;
            for (int before = 0; before < i && !seen; before++)
                seen = count_of(&r->run[before], problem) > 0;
            for (size_t before = 0; before < index && !seen; before++)
                seen = is_of(json_array_get(results, before), problem);
            if (!seen)
                visit(r, p, problem);
        }
    }
}

static int runs_with(const report *r, const char *problem, int *last)
{
    int runs = 0;
    for (int i = 0; i < r->count; i++)
        if (count_of(&r->run[i], problem) > 0) {
            runs++;
            *last = i;
        }
    return runs;
}

static void write_problem(const report *r, page *p, const char *problem)
{
    page_heading(p, 2, "%s", problem);
    write_results(r, p, problem);
    write_across(r, p, problem);
    plot_times(r, p, problem);
}

static void write_if_single(const report *r, page *p, const char *problem)
{
    int last = 0;
    if (runs_with(r, problem, &last) == 1)
        page_text(p, "%s: only in run %s (%s)", problem, r->run[last].letter, r->run[last].file);
}

static void write_measured(const report *r, page *p, int runs)
{
    page_heading(p, 1, "Problems");
    page_text(
        p, "Measured: times (the median counts, p25 to p75 is the half of the samples around it) and error/bound, "
           "each on the machine of its run, each rung checked against the fp64 oracle before it was timed. "
           "Counted by rule and divided by those times: FLOP/s and ledger B/s. \"Speed-up in run\" is over naive "
           "(softmax: three_pass) of the same run and problem, and \"-\" where that run has none. \"Of ceiling\" is of "
           "arithmetic where FLOP are counted, else of memory (above 100 %% caches served some of the bytes): "
           "m = the ceiling was measured in that run, v = the vendor's table value. Problems appear in the "
           "order of the files.");
    each_problem(r, p, write_problem);
    if (runs > 1) {
        page_heading(p, 1, "Problems that only one run has");
        page_text(p,
                  "Nothing can be said across runs about these; a problem that is not listed is in two runs or more.");
        each_problem(r, p, write_if_single);
    }
    if (p->html && plot_draws_images()) {
        page_heading(p, 1, "Roofs");
        page_text(p, "One plot per run: what its rungs reached, below the ceilings of that run. The bytes are those of "
                     "the traffic ledger, a model, so a point above its roof means that caches served some of them.");
        for (int i = 0; i < r->count; i++)
            plot_roof(&r->run[i], p);
    }
}

static void write_models(const report *r, page *p)
{
    static const column columns[] = {
        {"seqlen", "N", COLUMN_NUMBER, NULL, 0},
        {"flops", "FLOP", COLUMN_SI, "", 0},
        {"naive_s", "naive, least", COLUMN_SECONDS, NULL, 0},
        {"naive_bound", "bound by", COLUMN_TEXT, NULL, 0},
        {"flash_s", "flash, least", COLUMN_SECONDS, NULL, 0},
        {"flash_bound", "bound by", COLUMN_TEXT, NULL, 0},
        {"speedup", "ratio of the bounds", COLUMN_RATIO, NULL, 0},
    };
    page_heading(p, 1, "Models");
    page_text(p, "Nothing on this list was run: least times computed from two numbers of the device (see Ceilings), no "
                 "cache, no launch time. They are lower bounds and must not be read beside measured times as if they "
                 "were some.");
    for (int i = 0; i < r->count; i++) {
        const json_t *d = r->run[i].document;
        if (!r->run[i].model)
            continue;
        page_heading(p, 2, "%s (%s): %s, %s, %.0f heads, d = %.0f%s", r->run[i].letter, r->run[i].file,
                     text_of(d, "device"), text_of(d, "dtype"), number_of(d, "heads"), number_of(d, "d"),
                     json_is_true(member(d, "causal")) ? ", causal" : "");
        page_table(p, columns, sizeof columns / sizeof *columns, member(d, "lengths"));
    }
}

void report_write(const report *r, page *p)
{
    int models = 0;
    for (int i = 0; i < r->count; i++)
        models += r->run[i].model;
    int runs = r->count - models;
    page_begin(p, "Kiln report");
    page_text(
        p,
        "%d run%s of kiln bench and %d model%s of kiln roofline, one letter each. Runs were made on their own, so "
        "no two of them share the load of one machine: a ratio between runs is not a measurement, and is "
        "labelled \"across runs\".",
        runs, runs == 1 ? "" : "s", models, models == 1 ? "" : "s");
    if (p->html && !plot_draws_images())
        page_text(p, "This page has no plots, because gnuplot was not installed where it was made.");
    write_runs(r, p);
    write_ceilings(r, p);
    if (runs > 0)
        write_measured(r, p, runs);
    if (models > 0)
        write_models(r, p);
    page_end(p);
}
