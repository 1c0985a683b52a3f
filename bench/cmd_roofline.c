/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* cmd_roofline.c: `kiln roofline`. The formulas and the devices are in common/roofline.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "output.h"
#include "peak.h"
#include "plot.h"
#include "problem_keys.h"
#include "session.h"
#include "text.h"

enum { LENGTHS_MAX = 32 };

static const command about = {
    "roofline", "roofline [options]",
    "How fast attention could be at most, from two numbers of the device: FLOP/s and bytes/s. For each sequence length "
    "N:\n"
    "the operations (4 N^2 d + 3 N^2 per head), the bytes that go through memory when S and P are written out (naive), "
    "the\n"
    "bytes when they never leave the chip (flash with a perfect cache: Q, K, V, O once), and the least time of both. "
    "Work\n"
    "below the knee (FLOP per byte) is limited by memory, above it by arithmetic. No cache, no launch time: a lower "
    "bound.\n",
    "  kiln roofline --device a100                        the numbers that this project began with\n"
    "  kiln roofline --device this                        this machine, measured now\n"
    "  kiln roofline --device mi300x --heads 64 --d 64 --dtype bf16 --seqlen 4096,16384,65536\n"
    "  kiln roofline --device h200 --plot roofline.svg    as a plot (by gnuplot; --plot - draws it as text)\n"
    "  kiln roofline --device list                        the devices of the table\n",
    NULL};

typedef struct model {
    session session;
    const char *device, *dtype, *seqlens, *plot, *format_name;
    int64_t heads, d, block_q, block_k;
    bool causal;
    output_format format;
    int32_t type;
    int64_t length[LENGTHS_MAX];
    int lengths;
    device_peak peak;
    double flops_peak;
} model;

static kiln_ledger ledger_of(const model *m, int64_t n)
{
    int32_t e = m->type == KILN_FLOAT32 ? 4 : 2;
    bool cpu = m->peak.measured; /* a CPU computes in fp32 and keeps S and P so */
    return (kiln_ledger){m->heads, m->heads, n, n, m->d, m->d, e, cpu ? 4 : e, 4, m->block_q, m->block_k, m->causal};
}

static double least_time(const model *m, double flops, double bytes)
{
    return kiln_roofline_time(flops, bytes, m->flops_peak, m->peak.model.bandwidth);
}

static const char *bound_of(const model *m, double flops, double bytes)
{
    double knee = kiln_roofline_knee(m->flops_peak, m->peak.model.bandwidth);
    return flops / bytes < knee ? "memory" : "compute";
}

static json_t *row_of(const model *m, int64_t n)
{
    kiln_ledger ledger = ledger_of(m, n);
    double flops = kiln_ledger_flops(&ledger), naive = kiln_ledger_bytes(&ledger, KILN_RUNG_NAIVE);
    double flash = kiln_ledger_bytes(&ledger, KILN_RUNG_IDEAL);
    return json_pack("{s:I, s:f, s:f, s:f, s:s, s:f, s:f, s:f, s:s, s:f, s:f, s:f}", "seqlen", (json_int_t)n, "flops",
                     flops, "naive_bytes", naive, "naive_intensity", flops / naive, "naive_bound",
                     bound_of(m, flops, naive), "naive_s", least_time(m, flops, naive), "flash_bytes", flash,
                     "flash_intensity", flops / flash, "flash_bound", bound_of(m, flops, flash), "flash_s",
                     least_time(m, flops, flash), "lse_bytes", kiln_ledger_lse_bytes(&ledger), "speedup",
                     least_time(m, flops, naive) / least_time(m, flops, flash));
}

/* Every rung at one length. */
static json_t *rungs_of(const model *m, int64_t n)
{
    json_t *rows = json_array();
    kiln_ledger ledger = ledger_of(m, n);
    double flops = kiln_ledger_flops(&ledger);
    for (int rung = 0; rung < KILN_RUNG_COUNT; rung++) {
        double bytes = kiln_ledger_bytes(&ledger, (kiln_rung)rung);
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:s, s:f}", "rung", kiln_rung_name((kiln_rung)rung),
                                              "bytes", bytes, "intensity", flops / bytes, "bound",
                                              bound_of(m, flops, bytes), "least_s", least_time(m, flops, bytes)));
    }
    return rows;
}

/* The speed-up of the ideal over naive under three ways of counting. */
static void three_numbers(const model *m, int64_t n, double *half, double *full, double *twice)
{
    kiln_ledger ledger = ledger_of(m, n);
    double flops = kiln_ledger_flops(&ledger), flash = kiln_ledger_bytes(&ledger, KILN_RUNG_IDEAL);
    ledger.score_bytes = 2;
    double naive = kiln_ledger_bytes(&ledger, KILN_RUNG_NAIVE);
    *half = least_time(m, flops, naive) / least_time(m, flops, flash);
    *twice = least_time(m, flops, 2 * naive) / least_time(m, flops, 2 * flash);
    ledger.score_bytes = 4;
    *full = least_time(m, flops, kiln_ledger_bytes(&ledger, KILN_RUNG_NAIVE)) / least_time(m, flops, flash);
}

/* The length whose details are shown: 32768 if it is among them, else the last. */
static int64_t detail_length(const model *m)
{
    for (int i = 0; i < m->lengths; i++)
        if (m->length[i] == 32768)
            return 32768;
    return m->length[m->lengths - 1];
}

static void print_text(const model *m, const json_t *rows, const json_t *rungs)
{
    static const column columns[] = {
        {"seqlen", "N", COLUMN_NUMBER, NULL, 0},           {"flops", "FLOP", COLUMN_SI, "", 0},
        {"naive_bytes", "naive bytes", COLUMN_SI, "B", 0}, {"naive_intensity", "FLOP/B", COLUMN_NUMBER, NULL, 1},
        {"naive_bound", "bound by", COLUMN_TEXT, NULL, 0}, {"naive_s", "least time", COLUMN_SECONDS, NULL, 0},
        {"flash_bytes", "flash bytes", COLUMN_SI, "B", 0}, {"flash_intensity", "FLOP/B", COLUMN_NUMBER, NULL, 0},
        {"flash_bound", "bound by", COLUMN_TEXT, NULL, 0}, {"flash_s", "least time", COLUMN_SECONDS, NULL, 0},
        {"speedup", "speed-up", COLUMN_RATIO, NULL, 0},
    };
    static const column rung_columns[] = {
        {"rung", "rung", COLUMN_TEXT, NULL, 0},
        {"bytes", "bytes", COLUMN_SI, "B", 0},
        {"intensity", "FLOP/B", COLUMN_NUMBER, NULL, 1},
        {"bound", "bound by", COLUMN_TEXT, NULL, 0},
        {"least_s", "least time", COLUMN_SECONDS, NULL, 0},
    };
    char flops[32], bandwidth[32];
    int64_t n = detail_length(m);
    kiln_ledger ledger = ledger_of(m, n);
    text_si(m->flops_peak, "FLOP/s", flops, sizeof flops);
    text_si(m->peak.model.bandwidth, "B/s", bandwidth, sizeof bandwidth);
    printf("%s: %s in %s, %s, knee at %.1f FLOP/B\n(%s)\n"
           "%lld heads, d = %lld, %s%s; S and P of naive in %d-byte elements\n\n",
           m->peak.model.name, flops, m->peak.measured && m->flops_peak != m->peak.tile_flops ? "fp32" : m->dtype,
           bandwidth, kiln_roofline_knee(m->flops_peak, m->peak.model.bandwidth), m->peak.source, (long long)m->heads,
           (long long)m->d, m->dtype, m->causal ? ", causal" : "", ledger.score_bytes);
    output_table(stdout, columns, sizeof columns / sizeof *columns, rows);
    printf("\nThe rungs at N = %lld, key tiles of %lld rows (flash1), query tiles of %lld rows (flash2), no cache\n",
           (long long)n, (long long)m->block_k, (long long)m->block_q);
    output_table(stdout, rung_columns, sizeof rung_columns / sizeof *rung_columns, rungs);
    if (m->type != KILN_FLOAT32 && !m->peak.measured) {
        double half, full, twice;
        three_numbers(m, n, &half, &full, &twice);
        printf("\nWhat is flash worth at N = %lld? Three answers are about, from the same hardware numbers:\n"
               "  %.2f  S and P in memory as %s, like the inputs: what naive costs at least\n"
               "  %.2f  S and P in memory as fp32, the type that scores are accumulated in: what most naive code does\n"
               "  %.2f  a widely read tutorial, for fp16: it counts every 2-byte element twice, Q, K, V and O too\n",
               (long long)n, half, m->dtype, full, twice);
    }
    const json_t *last = json_array_get(rows, json_array_size(rows) - 1);
    double speedup = json_number_value(json_object_get(last, "speedup"));
    printf("\nAt N = %lld naive is bound by %s and flash by %s: ", (long long)m->length[m->lengths - 1],
           json_string_value(json_object_get(last, "naive_bound")),
           json_string_value(json_object_get(last, "flash_bound")));
    if (speedup > 1.005)
        printf("no flash kernel here can take less than its least time,\nand no naive one less than %.2f times that.\n",
               speedup);
    else
        printf("by this model flash saves memory here, and time only\nwhere naive does not reach the ceiling.\n");
}

static void print_csv(const json_t *rows)
{
    static const column columns[] = {
        {"seqlen", NULL, COLUMN_NUMBER, NULL, 0},      {"flops", NULL, COLUMN_NUMBER, NULL, 0},
        {"naive_bytes", NULL, COLUMN_NUMBER, NULL, 0}, {"naive_intensity", NULL, COLUMN_NUMBER, NULL, 0},
        {"naive_bound", NULL, COLUMN_TEXT, NULL, 0},   {"naive_s", NULL, COLUMN_NUMBER, NULL, 0},
        {"flash_bytes", NULL, COLUMN_NUMBER, NULL, 0}, {"flash_intensity", NULL, COLUMN_NUMBER, NULL, 0},
        {"flash_bound", NULL, COLUMN_TEXT, NULL, 0},   {"flash_s", NULL, COLUMN_NUMBER, NULL, 0},
        {"lse_bytes", NULL, COLUMN_NUMBER, NULL, 0},   {"speedup", NULL, COLUMN_NUMBER, NULL, 0},
    };
    output_csv(stdout, columns, sizeof columns / sizeof *columns, rows);
}

static int draw(const model *m, const json_t *rows)
{
    double x[2][LENGTHS_MAX], y[2][LENGTHS_MAX], roof_x[3], roof_y[3];
    char title[160], note[1280], flops[32];
    double bandwidth = m->peak.model.bandwidth, knee = kiln_roofline_knee(m->flops_peak, bandwidth), low = knee,
           high = knee;
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < m->lengths; i++) {
            const json_t *row = json_array_get(rows, (size_t)i);
            double at = json_number_value(json_object_get(row, which ? "flash_intensity" : "naive_intensity"));
            x[which][i] = at;
            y[which][i] = at < knee ? at * bandwidth : m->flops_peak;
            low = at < low ? at : low;
            high = at > high ? at : high;
        }
    roof_x[0] = low / 2, roof_x[1] = knee, roof_x[2] = high * 2;
    roof_y[0] = roof_x[0] * bandwidth, roof_y[1] = roof_y[2] = m->flops_peak;
    plot_series series[] = {{"roof of the device", true, '.', roof_x, roof_y, 3},
                            {"naive, every N", false, 'n', x[0], y[0], (size_t)m->lengths},
                            {"flash, every N", false, 'F', x[1], y[1], (size_t)m->lengths}};
    text_si(m->flops_peak, "FLOP/s", flops, sizeof flops);
    snprintf(title, sizeof title, "Roofline of %.48s (%s, %s), %lld heads, d = %lld", m->peak.model.name, flops,
             m->dtype, (long long)m->heads, (long long)m->d);
    plot p = {.title = title, .x_label = "FLOP per byte", .y_label = "attainable FLOP/s", .series = series, .count = 3};
    plot_result result = plot_write(&p, m->plot, note, sizeof note);
    if (note[0] != '\0')
        fprintf(stderr, "kiln roofline: %s\n", note);
    return result == PLOT_WRITTEN ? EXIT_RIGHT : result == PLOT_FAILED ? EXIT_OUTPUT : EXIT_USAGE;
}

static int list_devices(void)
{
    static const column columns[] = {
        {"key", "--device", COLUMN_TEXT, NULL, 0},         {"name", "device", COLUMN_TEXT, NULL, 0},
        {"flops16", "fp16, bf16", COLUMN_SI, "FLOP/s", 0}, {"flops32", "fp32", COLUMN_SI, "FLOP/s", 0},
        {"bandwidth", "memory", COLUMN_SI, "B/s", 0},      {"knee", "knee 16-bit", COLUMN_NUMBER, NULL, 0},
    };
    size_t count;
    const kiln_device_model *models = kiln_device_models(&count);
    json_t *rows = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "key", models[i].key, "name",
                                              models[i].name, "flops16", models[i].flops16, "flops32",
                                              models[i].flops32, "bandwidth", models[i].bandwidth, "knee",
                                              kiln_roofline_knee(models[i].flops16, models[i].bandwidth)));
    output_table(stdout, columns, sizeof columns / sizeof *columns, rows);
    json_decref(rows);
    printf("\nPeak numbers of the vendors, dense (no sparsity). `--device this` measures the machine it runs on.\n");
    return EXIT_RIGHT;
}

static int read_lengths(model *m)
{
    for (const char *at = m->seqlens;;) {
        char number[24];
        size_t n = strcspn(at, ",");
        snprintf(number, sizeof number, "%.*s", (int)(n < sizeof number ? n : sizeof number - 1), at);
        if (m->lengths == LENGTHS_MAX)
            return usage_error(&about, "--seqlen takes at most %d lengths", LENGTHS_MAX);
        if (!text_int(number, &m->length[m->lengths]) || m->length[m->lengths] < 1 ||
            m->length[m->lengths] > (int64_t)1 << 40)
            return usage_error(&about, "--seqlen: \"%s\" is no length; write for example 1024,4096,16384", number);
        m->lengths++;
        if (at[n] == '\0')
            return EXIT_RIGHT;
        at += n + 1;
    }
}

static int find_device(model *m)
{
    if (strcmp(m->device, "this") == 0) {
        int code = session_open(&m->session, &about, NULL, NULL);
        if (code != EXIT_RIGHT)
            return code;
        m->peak = device_peak_of(&m->session);
        if (!(m->peak.model.bandwidth > 0))
            return usage_error(&about, "the peaks of this device are %s", m->peak.source);
        return EXIT_RIGHT;
    }
    const kiln_device_model *found = kiln_device_model_find(m->device);
    if (found != NULL) {
        m->peak = (device_peak){.model = *found};
        snprintf(m->peak.source, sizeof m->peak.source, "the vendor's peak numbers, not measured");
        return EXIT_RIGHT;
    }
    const char *names[64] = {"this", "list"};
    size_t count, n = 2;
    const kiln_device_model *models = kiln_device_models(&count);
    for (size_t i = 0; i < count && n < 64; i++)
        names[n++] = models[i].key;
    const char *near = text_nearest(m->device, names, n);
    if (near != NULL)
        return usage_error(&about, "unknown device \"%s\": did you mean %s? `kiln roofline --device list` shows all",
                           m->device, near);
    return usage_error(&about, "unknown device \"%s\": `kiln roofline --device list` shows all", m->device);
}

static int check(model *m)
{
    m->type = problem_type_find(m->dtype);
    if (m->type != KILN_FLOAT32 && m->type != KILN_FLOAT16 && m->type != KILN_BFLOAT16)
        return usage_error(&about, "--dtype is fp16, bf16 or fp32, not \"%s\"", m->dtype);
    if (m->heads < 1 || m->heads > 1 << 30 || m->d < 1 || m->d > 1 << 20)
        return usage_error(&about, "--heads and --d must be at least 1");
    if (m->block_q < 1 || m->block_k < 1)
        return usage_error(&about, "--block-q and --block-k must be at least 1");
    if (!output_format_find(m->format_name, &m->format))
        return usage_error(&about, "--format is text, csv or json, not \"%s\"", m->format_name);
    if (m->format != OUTPUT_TEXT && m->plot != NULL && strcmp(m->plot, "-") == 0)
        return usage_error(&about,
                           "--plot - draws on standard output, where --format %s goes: write --plot FILE.txt, .svg or "
                           ".png",
                           m->format_name);
    bool list = strcmp(m->device, "list") == 0;
    if (list && (m->format != OUTPUT_TEXT || m->plot != NULL))
        return usage_error(&about, "--device list is a table for people: it takes no --format and no --plot");
    if (m->session.threads != 0 && strcmp(m->device, "this") != 0)
        return usage_error(&about, "--threads has no effect without --device this, which measures");
    return read_lengths(m);
}

int command_roofline(int argc, char **argv)
{
    static model m;
    int words, code;
    m.device = "this", m.dtype = "fp16", m.format_name = "text";
    m.seqlens = "1024,2048,4096,8192,16384,32768,65536,131072";
    m.heads = 32, m.d = 128, m.block_q = m.block_k = 128;
    const option options[] = {
        {"device", OPTION_TEXT, &m.device, "KEY",
         "a100, h100, h200, mi300x, ...; list shows them; this (default) measures"},
        {"heads", OPTION_INT, &m.heads, "N", "heads, batch included: 32"},
        {"d", OPTION_INT, &m.d, "N", "head size: 128"},
        {"dtype", OPTION_TEXT, &m.dtype, "TYPE", "fp16 (default), bf16 or fp32"},
        {"seqlen", OPTION_TEXT, &m.seqlens, "LIST", "sequence lengths, joined by commas: 1024 ... 131072"},
        {"causal", OPTION_SWITCH, &m.causal, NULL, "count half of what grows with N^2"},
        {"block-q", OPTION_INT, &m.block_q, "N", "rows of a query tile of flash2: 128"},
        {"block-k", OPTION_INT, &m.block_k, "N", "rows of a key tile of flash1: 128"},
        {"plot", OPTION_TEXT, &m.plot, "FILE", "also draw it: FILE.png, FILE.svg, FILE.txt, or - for text here"},
        {"format", OPTION_TEXT, &m.format_name, "FORMAT", "text, csv or json"},
        {"threads", OPTION_INT, &m.session.threads, "N", "--device this: threads to measure with"},
    };
    if (!options_read(&about, options, sizeof options / sizeof *options, argc, argv, &words, &code))
        return code;
    if (words > 0)
        return usage_error(&about, "it takes no arguments, only options: write --device %s", argv[0]);
    if ((code = check(&m)) != EXIT_RIGHT)
        return code;
    if (strcmp(m.device, "list") == 0)
        return list_devices();
    code = find_device(&m);
    if (code == EXIT_RIGHT) {
        m.flops_peak = device_peak_flops(&m.peak, m.type);
        json_t *rows = json_array(), *rungs = rungs_of(&m, detail_length(&m));
        for (int i = 0; i < m.lengths; i++)
            json_array_append_new(rows, row_of(&m, m.length[i]));
        if (m.format == OUTPUT_TEXT)
            print_text(&m, rows, rungs);
        else if (m.format == OUTPUT_CSV)
            print_csv(rows);
        else {
            json_t *document = json_pack("{s:s, s:s, s:o, s:s, s:I, s:I, s:b, s:O, s:O}", "schema", "kiln-roofline-1",
                                         "device", m.peak.model.name, "peak", device_peak_json(&m.peak), "dtype",
                                         m.dtype, "heads", (json_int_t)m.heads, "d", (json_int_t)m.d, "causal",
                                         m.causal, "lengths", rows, "rungs", rungs);
            output_json(stdout, document);
            json_decref(document);
        }
        if (m.plot != NULL)
            code = draw(&m, rows);
        json_decref(rows);
        json_decref(rungs);
    }
    if (m.session.context != NULL)
        session_close(&m.session);
    return code;
}
