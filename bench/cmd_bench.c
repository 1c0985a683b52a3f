/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cmd_bench.c: `kiln bench`. For each problem: build once, judge every rung, then time those that passed against each other.
 * The JSON document ("kiln-bench-1") holds everything that the text shows, with raw numbers in SI units.
 */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/context.h"
#include "commands.h"
#include "counters.h"
#include "judge.h"
#include "ladder.h"
#include "lines.h"
#include "measure.h"
#include "output.h"
#include "peak.h"
#include "session.h"
#include "text.h"

static const command about = {
    "bench", "bench [options] [PROBLEM]...",
    "Runs every rung of the ladder (or those of --algorithm) on each problem, side by side. A rung is timed only after "
    "its\n"
    "result passed the check of `kiln verify` in the same run. Rungs take turns, so that other load on the machine "
    "falls on\n"
    "all of them; the median counts, and p25..p75 is the half of the samples around it.\n"
    "FLOP/s by the usual rule: 4 x batch x heads x seqlen_q x seqlen_k x d, half of it for square causal problems, 2.5 "
    "times\n"
    "it for backward. GB/s: bytes of the traffic ledger divided by time (naive, tiled, flash1: their own traffic; "
    "others:\n"
    "every tensor once). \"of peak\": share of the ceiling named below the table.\n"
    "With --counters an emulated device prints what one call of each rung did, instead of times, and the ledger's "
    "bytes "
    "for\n"
    "it: distinct bytes of each launch for naive and tiled, bytes requested for others; lse and 1/l on their own.\n",
    "  kiln bench                                              the ladder at a size that takes about a minute\n"
    "  kiln bench b1h1q8192d128:fp32                           another problem\n"
    "  kiln bench --algorithm naive,flash2 b1h8q2048d64:bf16:causal_br\n"
    "  kiln bench --op softmax_forward r4096n4096:fp32\n"
    "  kiln bench --format json > this-machine.json\n"
    "  kiln bench --backend simt-cuda --counters --algorithm tiled,tiled_unpadded b1h1q256d64:bf16\n",
    "Problems are written as `kiln verify --help` explains.\n"};

static const column columns[] = {
    {"problem", NULL, COLUMN_TEXT, NULL, 0},
    {"algorithm", "algorithm", COLUMN_TEXT, NULL, 0},
    {"kernel", NULL, COLUMN_TEXT, NULL, 0},
    {"verdict", NULL, COLUMN_TEXT, NULL, 0},
    {"median_s", "median", COLUMN_SECONDS, NULL, 0},
    {"min_s", "min", COLUMN_SECONDS, NULL, 0},
    {"p25_s", "p25", COLUMN_SECONDS, NULL, 0},
    {"p75_s", "p75", COLUMN_SECONDS, NULL, 0},
    {"max_s", NULL, COLUMN_SECONDS, NULL, 0},
    {"samples", "n", COLUMN_NUMBER, NULL, 0},
    {"repeats", NULL, COLUMN_NUMBER, NULL, 0},
    {"flops", NULL, COLUMN_NUMBER, NULL, 0},
    {"flops_per_s", "FLOP/s", COLUMN_SI, "", 0},
    {"percent_of_peak", "of peak %", COLUMN_NUMBER, NULL, 1},
    {"percent_of_copy", NULL, COLUMN_NUMBER, NULL, 1},
    {"ledger_bytes", NULL, COLUMN_NUMBER, NULL, 0},
    {"ledger_bytes_per_s", "ledger B/s", COLUMN_SI, "", 0},
    {"least_s", NULL, COLUMN_SECONDS, NULL, 0},
    {"speedup", "speed-up", COLUMN_RATIO, NULL, 0},
    {"workspace_bytes", "workspace", COLUMN_BYTES, NULL, 0},
    {"error_over_bound", "error/bound", COLUMN_NUMBER, NULL, 3},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

typedef struct benchmark {
    session session;
    const char *op, *algorithms, *format_name;
    double seconds;
    int64_t samples;
    bool cold, counters;
    output_format format;
    device_peak peak;
    json_t *problems;
    int wrong;
} benchmark;

/* One rung that was accepted, with its result. */
typedef struct rival {
    char name[PROBLEM_NAME_MAX];
    runner runner;
    judge_report report;
    timing timing;
    ladder_cost cost;
    json_t *launches; /* what the device counted; NULL without --counters */
} rival;

static int default_problems(const benchmark *b, kiln_op op, const char **texts)
{
    bool cpu = b->session.info.device.device_type == KILN_DEVICE_CPU;
    char why[128];
    if (counters_available(&b->session.info, why, sizeof why)) /* an emulated device: a thousand times slower */
        switch (op) {
        case KILN_OP_SOFTMAX_FORWARD: texts[0] = "softmax_forward:r64n4096:bf16"; return 1;
        case KILN_OP_SOFTMAX_BACKWARD: texts[0] = "softmax_backward:r64n4096:bf16"; return 1;
        case KILN_OP_ATTENTION_MERGE: texts[0] = "attention_merge:b1h2q128d64:bf16:parts=4"; return 1;
        case KILN_OP_ATTENTION_BACKWARD: texts[0] = "attention_backward:b1h1q128d64:bf16"; return 1;
        default: texts[0] = "b1h1q256d64:bf16", texts[1] = "b1h1q256d128:bf16"; return 2;
        }
    switch (op) {
    case KILN_OP_SOFTMAX_FORWARD:
        texts[0] = cpu ? "softmax_forward:r4096n8192:fp32" : "softmax_forward:r65536n8192:fp16";
        return 1;
    case KILN_OP_SOFTMAX_BACKWARD:
        texts[0] = cpu ? "softmax_backward:r4096n8192:fp32" : "softmax_backward:r65536n8192:fp16";
        return 1;
    case KILN_OP_ATTENTION_MERGE:
        texts[0] = cpu ? "attention_merge:b1h8q4096d128:fp32:parts=4" : "attention_merge:b8h32q4096d128:fp32:parts=4";
        return 1;
    case KILN_OP_ATTENTION_BACKWARD:
        texts[0] = cpu ? "attention_backward:b1h1q1024d128:fp32" : "attention_backward:b1h2q2048d128:fp16";
        return 1;
    default:
        texts[0] = cpu ? "b1h2q4096d128:fp32" : "b2h32q4096d128:fp16";
        texts[1] = cpu ? "b1h2q4096d128:bf16:causal_br" : "b2h32q4096d128:bf16:causal_br";
        return 2;
    }
}

/* The names to try: those asked for, or the whole ladder. Returns how many. */
static int list_rungs(const benchmark *b, kiln_op op, char (*names)[PROBLEM_NAME_MAX])
{
    int count = 0;
    if (b->algorithms == NULL) {
        const char *found[RUNGS_MAX];
        count = runner_rungs(b->session.context, op, found);
        for (int i = 0; i < count; i++)
            snprintf(names[i], PROBLEM_NAME_MAX, "%s", found[i]);
        return count;
    }
    for (const char *at = b->algorithms; count < RUNGS_MAX;) {
        size_t n = strcspn(at, ",");
        snprintf(names[count++], PROBLEM_NAME_MAX, "%.*s", (int)(n < PROBLEM_NAME_MAX ? n : PROBLEM_NAME_MAX - 1), at);
        if (at[n] == '\0')
            break;
        at += n + 1;
    }
    return count;
}

static const char *shown_name(const char *algorithm)
{
    return algorithm[0] != '\0' ? algorithm : "auto";
}

/* FLOP/s of the units that a rung works on: `naive` multiplies in fp32 whatever the type is. */
static double ceiling_of(const benchmark *b, const rival *r)
{
    int32_t type = strcmp(r->name, "naive") == 0 ? KILN_FLOAT32 : r->runner.data->spec.type;
    return device_peak_flops(&b->peak, type);
}

static json_t *result_of(const benchmark *b, const rival *r, const char *line, const rival *first)
{
    const timing *t = &r->timing;
    json_t *result = json_object();
    json_object_set_new(result, "problem", json_string(line));
    json_object_set_new(result, "algorithm", json_string(shown_name(r->name)));
    json_object_set_new(result, "kernel", json_string(r->report.kernel));
    json_object_set_new(result, "verdict", json_string(r->report.verdict == JUDGE_RIGHT ? "right" : "wrong"));
    json_object_set_new(result, "error_over_bound", output_number(r->report.ratio));
    json_object_set_new(result, "elements_checked", json_integer(r->report.checked));
    json_object_set_new(result, "elements", json_integer(r->report.total));
    json_object_set_new(result, "workspace_bytes", json_integer((json_int_t)r->report.workspace_bytes));
    if (r->launches != NULL)
        counters_record(result, r->launches, r->runner.data, r->name);
    if (r->report.verdict != JUDGE_RIGHT || t->samples == 0)
        return result; /* no timing of what is not right */
    double peak = ceiling_of(b, r), bandwidth = b->peak.model.bandwidth;
    double flop_rate = r->cost.flops / t->median, byte_rate = r->cost.bytes / t->median;
    json_object_set_new(result, "median_s", json_real(t->median));
    json_object_set_new(result, "min_s", json_real(t->minimum));
    json_object_set_new(result, "p25_s", json_real(t->p25));
    json_object_set_new(result, "p75_s", json_real(t->p75));
    json_object_set_new(result, "max_s", json_real(t->maximum));
    json_object_set_new(result, "samples", json_integer(t->samples));
    json_object_set_new(result, "repeats", json_integer(t->repeats));
    json_object_set_new(result, "flops", json_real(r->cost.flops));
    json_object_set_new(result, "ledger_bytes", json_real(r->cost.bytes));
    json_object_set_new(result, "ledger_bytes_per_s", json_real(byte_rate));
    if (r->cost.flops > 0)
        json_object_set_new(result, "flops_per_s", json_real(flop_rate));
    double share = r->cost.flops > 0 ? flop_rate / peak : byte_rate / bandwidth;
    json_object_set_new(result, "percent_of_peak", output_number(100 * share));
    if (r->cost.once > 0 && b->peak.copy > 0)
        json_object_set_new(result, "percent_of_copy", json_real(100 * r->cost.once / t->median / b->peak.copy));
    json_object_set_new(result, "least_s",
                        output_number(kiln_roofline_time(r->cost.flops, r->cost.bytes, peak, bandwidth)));
    if (first->timing.samples > 0)
        json_object_set_new(result, "speedup", json_real(first->timing.median / t->median));
    return result;
}

static void report_wrong(const benchmark *b, const rival *r, const char *line)
{
    progress_done();
    fprintf(stderr,
            "kiln bench: %s is WRONG and was not timed: %s\n            again: kiln verify --backend %s --algorithm %s "
            "'%s'\n",
            shown_name(r->name), r->report.sentence, b->session.info.backend, shown_name(r->name), line);
}

/* Opens and judges the rungs. Returns how many were accepted by the library; *code tells why none was. */
static int admit(benchmark *b, runner *owner, const char *line, rival *rivals, int *code)
{
    static char names[RUNGS_MAX][PROBLEM_NAME_MAX];
    judge_options options = {false};
    int count = list_rungs(b, owner->data->spec.op, names), admitted = 0;
    for (int i = 0; i < count; i++) {
        rival *r = &rivals[admitted];
        memset(r, 0, sizeof *r);
        memcpy(r->name, names[i], sizeof r->name);
        if (runner_share(&r->runner, owner, names[i]) != KILN_OK) {
            if (b->algorithms == NULL)
                continue; /* the ladder has rungs that this backend, or this problem, does not */
            *code = usage_error(&about, "%s: %s", line, kiln_last_error());
            continue;
        }
        admitted++;
        progress("checking %s", r->runner.kernel);
        judge_verdict verdict = judge_run(&r->runner, &options, &r->report);
        if (verdict == JUDGE_WRONG) {
            b->wrong++;
            report_wrong(b, r, line);
        } else if (verdict != JUDGE_RIGHT) { /* the same for every rung */
            *code = usage_error(&about, "%s: %s", line, r->report.sentence);
            break;
        }
        kiln_numerics numerics = {0};
        kiln_internal_numerics(b->session.context, r->runner.call.op, problem_call_args(&r->runner.call), &numerics);
        r->cost = ladder_cost_of(owner->data, r->name, numerics.tile);
    }
    if (admitted == 0 && *code == EXIT_RIGHT)
        *code = usage_error(&about, "%s: no rung of %s does this problem on %s: %s", line,
                            problem_op_name(owner->data->spec.op), b->session.info.backend, kiln_last_error());
    return admitted;
}

static int time_right_ones(benchmark *b, rival *rivals, int count)
{
    runner *runners[RUNGS_MAX];
    timing timings[RUNGS_MAX] = {{0}};
    int right = 0, index[RUNGS_MAX];
    const kiln_device_info *info = &b->session.info;
    measure_options options = {b->seconds, (int)b->samples, b->cold,
                               info->l3_bytes > info->l2_bytes ? info->l3_bytes : info->l2_bytes};
    for (int i = 0; i < count; i++)
        if (rivals[i].report.verdict == JUDGE_RIGHT) {
            index[right] = i;
            runners[right++] = &rivals[i].runner;
        }
    if (measure(runners, right, &options, timings) != KILN_OK)
        return usage_error(&about, "%s", kiln_last_error());
    for (int i = 0; i < right; i++)
        rivals[index[i]].timing = timings[i];
    return EXIT_RIGHT;
}

/* Also what is wrong is counted: the numbers may tell why. */
static int count_all(rival *rivals, int count)
{
    char why[256];
    for (int i = 0; i < count; i++) {
        progress("counting %s", rivals[i].runner.kernel);
        rivals[i].launches = counters_run(&rivals[i].runner, why, sizeof why);
        if (rivals[i].launches == NULL)
            return usage_error(&about, "%s", why);
    }
    return EXIT_RIGHT;
}

static void print_problem(const benchmark *b, const json_t *results, const char *line, const rival *rivals, int count)
{
    const rival *best = NULL;
    printf("\n%s%s\n", line, b->cold ? "   (caches flushed before every call)" : "");
    output_table(stdout, columns, COLUMNS, results);
    for (int i = 0; i < count; i++)
        if (rivals[i].timing.samples > 0 && (best == NULL || rivals[i].timing.median < best->timing.median))
            best = &rivals[i];
    if (best == NULL) {
        printf("Nothing was timed, because nothing was right.\n");
        return;
    }
    double share = best->cost.flops > 0 ? best->cost.flops / best->timing.median / ceiling_of(b, best)
                                        : best->cost.bytes / best->timing.median / b->peak.model.bandwidth;
    printf("%s is the fastest", shown_name(best->name));
    if (best != &rivals[0] && rivals[0].timing.samples > 0)
        printf(": %.2f times as fast as %s", rivals[0].timing.median / best->timing.median, shown_name(rivals[0].name));
    if (share > 0 && share < 1e9)
        printf(", at %.0f %% of the %s ceiling", 100 * share, best->cost.flops > 0 ? "arithmetic" : "memory");
    if (share > 1 && best->cost.flops == 0)
        printf(" (more than 100 %%: the ledger counts every pass, and the caches served some)");
    if (best->cost.once > 0 && b->peak.copy > 0)
        printf("; every tensor once at %.0f %% of the rate of a non-temporal copy",
               100 * best->cost.once / best->timing.median / b->peak.copy);
    printf(".\n");
}

static int bench_one(benchmark *b, const problem_spec *spec)
{
    char line[PROBLEM_TEXT_MAX], why[256];
    problem_data data;
    problem_spec plain = *spec;
    runner owner;
    judge_report report;
    int code = EXIT_RIGHT;
    plain.algorithm[0] = '\0';
    if (spec->algorithm[0] != '\0')
        b->algorithms = spec->algorithm;
    problem_print(&plain, line, sizeof line);
    progress("building %s", line);
    if (!problem_build(&plain, 0, &data, why, sizeof why))
        return usage_error(&about, "%s: %s", line, why);
    if (judge_prepare(b->session.context, &data, &report) != JUDGE_RIGHT)
        code = usage_error(&about, "%s: %s", line, report.sentence);
    else if (runner_open(&owner, b->session.context, &data) != KILN_OK)
        code = usage_error(&about, "%s: %s", line, kiln_last_error());
    if (code == EXIT_RIGHT) {
        rival *rivals = calloc(RUNGS_MAX, sizeof *rivals);
        int count = rivals != NULL ? admit(b, &owner, line, rivals, &code) : 0;
        json_t *results = json_array();
        if (code == EXIT_RIGHT)
            code = b->counters ? count_all(rivals, count) : time_right_ones(b, rivals, count);
        for (int i = 0; i < count; i++)
            json_array_append_new(results, result_of(b, &rivals[i], line, &rivals[0]));
        if (code == EXIT_RIGHT && b->format == OUTPUT_TEXT && b->counters) {
            printf("\n%s\n", line);
            counters_print(stdout, results);
        } else if (code == EXIT_RIGHT && b->format == OUTPUT_TEXT) {
            print_problem(b, results, line, rivals, count);
        }
        for (int i = 0; i < count; i++) {
            json_decref(rivals[i].launches);
            runner_close(&rivals[i].runner);
        }
        json_array_extend(b->problems, results);
        json_decref(results);
        free(rivals);
        runner_close(&owner);
    }
    problem_free(&data);
    return code;
}

static void print_header(const benchmark *b)
{
    char flops[32], bandwidth[32];
    text_si(b->peak.model.flops32, "FLOP/s", flops, sizeof flops);
    text_si(b->peak.model.bandwidth, "B/s", bandwidth, sizeof bandwidth);
    session_print(&b->session);
    if (b->counters) {
        fflush(stdout);
        return;
    }
    if (b->peak.model.flops16 != b->peak.model.flops32) {
        char flops16[32];
        text_si(b->peak.model.flops16, "FLOP/s", flops16, sizeof flops16);
        printf("ceilings: %s in fp32, %s in 16 bits, %s; %s\n", flops, flops16, bandwidth, b->peak.source);
    } else if (b->peak.model.bandwidth > 0) {
        printf("ceilings: %s, %s; %s\n", flops, bandwidth, b->peak.source);
    } else {
        printf("ceilings: %s\n", b->peak.source);
    }
    fflush(stdout);
}

static void print_end(const benchmark *b, json_t *environment)
{
    const char *key;
    json_t *value;
    switch (b->format) {
    case OUTPUT_TEXT:
        if (b->counters)
            printf("\nEvery result was checked against the fp64 oracle in this run. \"bytes\" says which are counted: "
                   "each "
                   "launch's\ndifferent ones, or all that were requested. \"formula\": the rung of the traffic ledger, "
                   "with "
                   "the tiles of the kernel;\n- every tensor once, or the passes of softmax. lse and 1/l (naive, "
                   "tiled) are not "
                   "in it.\n");
        else
            printf(
                "\nEvery timed result was checked against the fp64 oracle in this run; \"speed-up\" is over the first "
                "line of its "
                "table.\n");
        break;
    case OUTPUT_CSV:
        json_object_foreach(environment, key, value)
        {
            char *text = json_dumps(value, JSON_ENCODE_ANY);
            printf("# %s: %s\n", key, text != NULL ? text : "");
            free(text);
        }
        if (b->counters)
            counters_csv(stdout, b->problems);
        else
            output_csv(stdout, columns, COLUMNS, b->problems);
        break;
    case OUTPUT_JSON: {
        json_t *document =
            b->counters ? json_pack("{s:s, s:O, s:O}", "schema", "kiln-counters-1", "environment", environment,
                                    "results", b->problems)
                        : json_pack("{s:s, s:O, s:o, s:b, s:O}", "schema", "kiln-bench-1", "environment", environment,
                                    "peak", device_peak_json(&b->peak), "cold_cache", b->cold, "results", b->problems);
        output_json(stdout, document);
        json_decref(document);
        break;
    }
    }
}

static int bench_all(benchmark *b, kiln_op op, const char *const *texts, int count)
{
    int code = EXIT_RIGHT;
    problem_spec spec;
    const char *algorithms = b->algorithms;
    for (int i = 0; i < count && code == EXIT_RIGHT; i++)
        code = line_problem(&about, texts[i], op, algorithms, &spec);
    if (code != EXIT_RIGHT)
        return code;
    if (!b->counters)
        b->peak = device_peak_of(&b->session);
    if (b->format == OUTPUT_TEXT)
        print_header(b);
    for (int i = 0; i < count && code == EXIT_RIGHT; i++) {
        b->algorithms = algorithms;
        code = line_problem(&about, texts[i], op, algorithms, &spec);
        if (code == EXIT_RIGHT)
            code = bench_one(b, &spec);
    }
    return code;
}

int command_bench(int argc, char **argv)
{
    static benchmark b;
    const char *defaults[2];
    const double no_seconds = -DBL_MAX;
    const int64_t no_samples = INT64_MIN;
    char why[256];
    int words, code;
    b.seconds = no_seconds;
    b.samples = no_samples;
    b.format_name = "text";
    const option options[] = {
        {"op", OPTION_TEXT, &b.op, "NAME", "operation of problems that name none: attention_forward"},
        SESSION_OPTIONS(b.session),
        {"algorithm", OPTION_TEXT, &b.algorithms, "NAMES",
         "rungs to compare, joined by commas; default: all there are"},
        {"seconds", OPTION_DOUBLE, &b.seconds, "S", "about how long to time each rung: 2"},
        {"samples", OPTION_INT, &b.samples, "N", "at least so many samples of each: 5"},
        {"cold-cache", OPTION_SWITCH, &b.cold, NULL, "overwrite the caches before every call"},
        {"counters", OPTION_SWITCH, &b.counters, NULL,
         "emulated devices: what one call does, and the ledger's bytes; no times"},
        {"format", OPTION_TEXT, &b.format_name, "FORMAT", "text, csv or json"},
    };
    if (!options_read(&about, options, sizeof options / sizeof *options, argc, argv, &words, &code))
        return code;
    kiln_op op;
    if ((code = line_op(&about, b.op, &op)) != EXIT_RIGHT ||
        (code = line_algorithms(&about, b.algorithms, RUNGS_MAX)) != EXIT_RIGHT)
        return code;
    if (!output_format_find(b.format_name, &b.format))
        return usage_error(&about, "--format is text, csv or json, not \"%s\"", b.format_name);
    if (b.counters && (b.seconds != no_seconds || b.samples != no_samples || b.cold))
        return usage_error(&about, "--counters times nothing: --seconds, --samples and --cold-cache have no effect");
    if (b.seconds == no_seconds)
        b.seconds = 2;
    if (b.samples == no_samples)
        b.samples = 5;
    if (!(b.seconds >= 0 && b.seconds <= 3600) || b.samples < 1 || b.samples > 200)
        return usage_error(&about, "--seconds is 0 to 3600, --samples 1 to 200");
    if ((code = session_open(&b.session, &about, NULL, NULL)) != EXIT_RIGHT)
        return code;
    if (b.counters && !counters_available(&b.session.info, why, sizeof why)) {
        session_close(&b.session);
        return usage_error(&about, "--counters: %s", why);
    }
    int count = words > 0 ? words : default_problems(&b, op, defaults);
    b.problems = json_array();
    code = bench_all(&b, op, words > 0 ? (const char *const *)argv : defaults, count);
    progress_done();
    if (code == EXIT_RIGHT) {
        json_t *environment = session_environment(&b.session);
        print_end(&b, environment);
        json_decref(environment);
        code = b.wrong > 0 ? EXIT_WRONG : EXIT_RIGHT;
    }
    json_decref(b.problems);
    session_close(&b.session);
    return code;
}
