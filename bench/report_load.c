/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * report_load.c: a file -> a document that the page may trust. Files come from other machines and perhaps other hands: every
 * member that the page reads is checked for its type and its range, so that nothing foreign ends as a figure.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "problem.h"
#include "report.h"

/* Where a check is: the file, and the key as a reader of the file would write it ("results[3].median_s"). */
typedef struct checker {
    const char *file;
    char *why;
    size_t cap;
} checker;

static bool fail(const checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(const checker *c, const char *format, ...)
{
    char sentence[640];
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    snprintf(c->why, c->cap, "%s: %s", c->file, sentence);
    return false;
}

typedef enum want {
    WANT_TEXT,
    WANT_BOOL,
    WANT_COUNT,    /* an integer, 0 or more */
    WANT_NUMBER,   /* 0 or more */
    WANT_POSITIVE, /* more than 0 */
    WANT_OBJECT,
    WANT_ARRAY
} want;

typedef struct member {
    const char *key;
    want want;
    bool optional; /* may be missing or null */
} member;

/* Text goes to a terminal and into a page; control characters have no business there. */
static bool is_plain(const char *text)
{
    for (; *text != '\0'; text++)
        if (iscntrl((unsigned char)*text))
            return false;
    return true;
}

static const char *mismatch(const json_t *value, want w)
{
    switch (w) {
    case WANT_TEXT:
        return !json_is_string(value)                ? "must be text"
               : !is_plain(json_string_value(value)) ? "has a control character"
                                                     : NULL;
    case WANT_BOOL: return json_is_boolean(value) ? NULL : "must be true or false";
    case WANT_COUNT:
        return json_is_integer(value) && json_integer_value(value) >= 0 ? NULL : "must be a whole number, 0 or more";
    case WANT_NUMBER:
        return json_is_number(value) && json_number_value(value) >= 0 ? NULL : "must be a number, 0 or more";
    case WANT_POSITIVE:
        return json_is_number(value) && json_number_value(value) > 0 ? NULL : "must be a number above 0";
    case WANT_OBJECT: return json_is_object(value) ? NULL : "must be an object";
    case WANT_ARRAY: return json_is_array(value) ? NULL : "must be an array";
    }
    return "is of an unknown kind";
}

/* `path`: what to write before the key, "" or "environment." */
static bool check(const checker *c, const json_t *object, const char *path, const member *members, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, members[i].key);
        if (members[i].optional && (value == NULL || json_is_null(value)))
            continue;
        if (value == NULL)
            return fail(c, "the key \"%s%s\" is missing", path, members[i].key);
        const char *wrong = mismatch(value, members[i].want);
        if (wrong != NULL)
            return fail(c, "the key \"%s%s\" %s", path, members[i].key, wrong);
    }
    return true;
}
#define CHECK(c, object, path, members) check(c, object, path, members, sizeof(members) / sizeof *(members))

static bool check_peak(const checker *c, const json_t *document)
{
    static const member top[] = {{"peak", WANT_OBJECT, false}};
    static const member members[] = {
        {"measured", WANT_BOOL, false},        {"source", WANT_TEXT, false},
        {"flops16_per_s", WANT_NUMBER, false}, {"flops32_per_s", WANT_NUMBER, false},
        {"bytes_per_s", WANT_NUMBER, false},
    };
    return CHECK(c, document, "", top) && CHECK(c, json_object_get(document, "peak"), "peak.", members);
}

static bool check_result(const checker *c, const json_t *result, size_t index)
{
    static const member members[] = {
        {"problem", WANT_TEXT, false}, {"algorithm", WANT_TEXT, false},         {"kernel", WANT_TEXT, false},
        {"verdict", WANT_TEXT, false}, {"error_over_bound", WANT_NUMBER, true}, {"workspace_bytes", WANT_COUNT, true},
    };
    static const member timed[] = {
        {"median_s", WANT_POSITIVE, false},     {"p25_s", WANT_POSITIVE, false},
        {"p75_s", WANT_POSITIVE, false},        {"samples", WANT_COUNT, false},
        {"flops", WANT_NUMBER, true},           {"flops_per_s", WANT_NUMBER, true},
        {"ledger_bytes", WANT_NUMBER, true},    {"ledger_bytes_per_s", WANT_NUMBER, true},
        {"percent_of_peak", WANT_NUMBER, true},
    };
    char path[48];
    problem_spec spec;
    problem_error error;
    snprintf(path, sizeof path, "results[%zu].", index);
    if (!json_is_object(result))
        return fail(c, "the key \"results[%zu]\" must be an object", index);
    if (!CHECK(c, result, path, members))
        return false;
    const char *problem = json_string_value(json_object_get(result, "problem"));
    if (!problem_parse(problem, KILN_OP_ATTENTION_FORWARD, &spec, &error))
        return fail(c, "the key \"%sproblem\" is \"%.64s\", which is no problem: %s", path, problem, error.message);
    const char *verdict = json_string_value(json_object_get(result, "verdict"));
    if (strcmp(verdict, "right") != 0 && strcmp(verdict, "wrong") != 0)
        return fail(c, "the key \"%sverdict\" is \"%.64s\"; it must be \"right\" or \"wrong\"", path, verdict);
    if (json_object_get(result, "median_s") == NULL)
        return true; /* not timed, because not right */
    if (strcmp(verdict, "right") != 0)
        return fail(c, "the key \"%smedian_s\" times a result whose verdict is \"wrong\"", path);
    return CHECK(c, result, path, timed);
}

static bool check_bench(const checker *c, const json_t *document)
{
    static const member top[] = {
        {"environment", WANT_OBJECT, false}, {"cold_cache", WANT_BOOL, false}, {"results", WANT_ARRAY, false}};
    static const member environment[] = {
        {"kiln_version", WANT_TEXT, false}, {"compiler", WANT_TEXT, false},  {"date_utc", WANT_TEXT, false},
        {"system", WANT_TEXT, false},       {"backend", WANT_TEXT, false},   {"device", WANT_TEXT, false},
        {"architecture", WANT_TEXT, false}, {"units", WANT_COUNT, false},    {"memory_bytes", WANT_COUNT, false},
        {"l1_bytes", WANT_COUNT, false},    {"l2_bytes", WANT_COUNT, false}, {"l3_bytes", WANT_COUNT, false},
    };
    if (!CHECK(c, document, "", top) || !check_peak(c, document) ||
        !CHECK(c, json_object_get(document, "environment"), "environment.", environment))
        return false;
    size_t index;
    const json_t *result, *results = json_object_get(document, "results");
    json_array_foreach((json_t *)results, index, result)
    {
        if (!check_result(c, result, index))
            return false;
    }
    return index > 0 || fail(c, "the key \"results\" is empty: nothing was run");
}

static bool check_roofline(const checker *c, const json_t *document)
{
    static const member top[] = {
        {"device", WANT_TEXT, false}, {"dtype", WANT_TEXT, false},  {"heads", WANT_COUNT, false},
        {"d", WANT_COUNT, false},     {"causal", WANT_BOOL, false}, {"lengths", WANT_ARRAY, false},
    };
    static const member length[] = {
        {"seqlen", WANT_COUNT, false},     {"flops", WANT_POSITIVE, false},   {"naive_s", WANT_POSITIVE, false},
        {"flash_s", WANT_POSITIVE, false}, {"naive_bound", WANT_TEXT, false}, {"flash_bound", WANT_TEXT, false},
        {"speedup", WANT_POSITIVE, false},
    };
    if (!CHECK(c, document, "", top) || !check_peak(c, document))
        return false;
    size_t index;
    const json_t *row, *rows = json_object_get(document, "lengths");
    json_array_foreach((json_t *)rows, index, row)
    {
        char path[48];
        snprintf(path, sizeof path, "lengths[%zu].", index);
        if (!json_is_object(row))
            return fail(c, "the key \"lengths[%zu]\" must be an object", index);
        if (!CHECK(c, row, path, length))
            return false;
    }
    return true;
}

static bool check_document(const checker *c, const json_t *document, bool *model)
{
    const json_t *schema = json_object_get(document, "schema");
    const char *name = json_string_value(schema);
    if (!json_is_object(document) || schema == NULL)
        return fail(c, "the key \"schema\" is missing: this is no document of `kiln bench --format json`");
    if (name == NULL)
        return fail(c, "the key \"schema\" must be text");
    *model = strcmp(name, "kiln-roofline-1") == 0;
    if (*model)
        return check_roofline(c, document);
    if (strcmp(name, "kiln-bench-1") == 0)
        return check_bench(c, document);
    return fail(c, "the key \"schema\" is \"%.64s\"; this program reads kiln-bench-1 and kiln-roofline-1",
                is_plain(name) ? name : "?");
}

bool report_load(report *r, const char *file, char *why, size_t cap)
{
    const checker c = {file, why, cap};
    report_run *run = &r->run[r->count];
    json_error_t error;
    if (r->count == REPORT_RUNS_MAX)
        return fail(&c, "at most %d files fit on one page", REPORT_RUNS_MAX);
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->run[i].file, file) == 0)
            return fail(&c, "it is given twice");
    FILE *from = fopen(file, "r");
    if (from == NULL)
        return fail(&c, "it cannot be opened");
    json_t *document = json_loadf(from, JSON_REJECT_DUPLICATES, &error);
    fclose(from);
    if (document == NULL)
        return fail(&c, "it is no JSON: %s (line %d, column %d)", is_plain(error.text) ? error.text : "bad text",
                    error.line, error.column);
    if (!check_document(&c, document, &run->model)) {
        json_decref(document);
        return false;
    }
    run->file = file;
    run->document = document;
    run->letter[0] = (char)('A' + r->count++);
    run->letter[1] = '\0';
    return true;
}

void report_free(report *r)
{
    for (int i = 0; i < r->count; i++)
        json_decref(r->run[i].document);
    r->count = 0;
}
