/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * judge.c: see judge.h. Cost: the oracle is serial fp64, so a full check costs about 10 ns a product; forward problems of
 * more than SAMPLE_WORK products are judged on rows spread over the whole, first and last included.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/context.h"
#include "../common/convert.h"
#include "../cpu_ref/oracle.h"
#include "judge.h"

/* Products that are checked in full, and about how many a sampled check takes. */
#define SAMPLE_WORK 1e8
enum { SAMPLE_LEAST = 16, OUTPUTS_MAX = 8 };

/* One output with what it should be. */
typedef struct expected {
    problem_slot slot;
    kiln_oracle_output exact;
} expected;

typedef struct judge {
    runner *r;
    judge_report *report;
    expected output[OUTPUTS_MAX];
    int count;
    char *sampled; /* per row of o; NULL = all */
    int64_t row_columns;
} judge;

static judge_verdict conclude(judge_report *report, judge_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static judge_verdict conclude(judge_report *report, judge_verdict verdict, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(report->sentence, sizeof report->sentence, format, list);
    va_end(list);
    return report->verdict = verdict;
}

static judge_verdict refused(judge_report *report, kiln_status status)
{
    report->status = status;
    return conclude(report, JUDGE_REFUSED, "%s: %s", kiln_status_name(status), kiln_last_error());
}

static const kiln_device host_device = {KILN_DEVICE_CPU, 0};

/* Are the contents of the lengths (cu_seqlens, seqused, block_table, ...) of a call on host tensors such that the oracle may
 * trust them? Answers KILN_OK, or the library's status with its sentence in kiln_last_error(). */
static kiln_status check_lengths(const problem_call *call)
{
    const kiln_context host = {.device = host_device};
    kiln_problem problem;
    memset(&problem, 0, sizeof problem);
    if (call->op != KILN_OP_ATTENTION_FORWARD && call->op != KILN_OP_ATTENTION_BACKWARD)
        return KILN_OK;
    bool backward = call->op == KILN_OP_ATTENTION_BACKWARD;
    kiln_status status = backward ? kiln_validate_attention_backward(&host, &call->backward, false, &problem)
                                  : kiln_validate_attention_forward(&host, &call->forward, false, &problem);
    if (status != KILN_OK)
        return status;
    return kiln_validate_lengths(backward ? &problem.backward.forward : &problem.attention);
}

/* Room for one output's exact values, if the call has it. False: out of memory. */
static bool expect(judge *j, problem_slot slot, kiln_oracle_output *exact)
{
    const problem_tensor *t = &j->r->data->tensor[slot];
    exact->value = exact->bound = NULL;
    if (!t->present)
        return true;
    size_t count = (size_t)problem_count(t) + 1;
    exact->value = calloc(count, sizeof(double));
    exact->bound = calloc(count, sizeof(double));
    j->output[j->count++] = (expected){slot, *exact};
    return exact->value != NULL && exact->bound != NULL;
}

static void forget(judge *j)
{
    for (int i = 0; i < j->count; i++) {
        free(j->output[i].exact.value);
        free(j->output[i].exact.bound);
    }
    free(j->sampled);
}

/* Forward rows to judge: all, or as many as the budget allows, evenly spread. */
static kiln_status consult_forward(judge *j, const problem_call *call, const kiln_numerics *numerics, bool full,
                                   kiln_oracle_attention *out)
{
    const problem_spec *s = &j->r->data->spec;
    const problem_tensor *o = &j->r->data->tensor[SLOT_O];
    int64_t columns = o->shape[o->ndim - 1], rows = 1;
    for (int axis = 0; axis < o->ndim - 1; axis++)
        rows *= o->shape[axis];
    double row_work = (double)s->seqlen_k * (double)(s->d + s->d2 + s->d_v) + 1;
    int64_t most = (int64_t)(SAMPLE_WORK / row_work);
    most = most < SAMPLE_LEAST ? SAMPLE_LEAST : most;
    if (full || rows <= most)
        return kiln_oracle_attention_forward(&call->forward, numerics, out);
    j->row_columns = columns;
    if ((j->sampled = calloc((size_t)rows, 1)) == NULL)
        return KILN_OUT_OF_MEMORY;
    for (int64_t i = 0; i < most; i++) {
        /* evenly, and not on the same column of every tile */
        int64_t row = (int64_t)((double)i / (double)(most - 1) * (double)(rows - 1));
        if (i > 0 && i < most - 1)
            row -= row * 7 % 13 < row - j->row_columns ? row * 7 % 13 : 0;
        if (j->sampled[row])
            continue;
        j->sampled[row] = 1;
        kiln_status status = kiln_oracle_attention_forward_rows(&call->forward, numerics, row, row + 1, out);
        if (status != KILN_OK)
            return status;
    }
    return KILN_OK;
}

/* Asks the oracle for every output of the call. */
static kiln_status consult(judge *j, const problem_call *call, const kiln_numerics *numerics, bool full)
{
    bool room = true;
    switch (call->op) {
    case KILN_OP_SOFTMAX_FORWARD: {
        kiln_oracle_softmax out;
        room = expect(j, SLOT_Y, &out.y) && expect(j, SLOT_LSE, &out.lse);
        return room ? kiln_oracle_softmax_forward(&call->softmax_forward, numerics, &out) : KILN_OUT_OF_MEMORY;
    }
    case KILN_OP_SOFTMAX_BACKWARD: {
        kiln_oracle_output dx;
        room = expect(j, SLOT_DX, &dx);
        return room ? kiln_oracle_softmax_backward(&call->softmax_backward, numerics, &dx) : KILN_OUT_OF_MEMORY;
    }
    case KILN_OP_ATTENTION_FORWARD: {
        kiln_oracle_attention out;
        room = expect(j, SLOT_O, &out.o) && expect(j, SLOT_LSE, &out.lse);
        return room ? consult_forward(j, call, numerics, full, &out) : KILN_OUT_OF_MEMORY;
    }
    case KILN_OP_ATTENTION_MERGE: {
        kiln_oracle_attention out;
        room = expect(j, SLOT_O, &out.o) && expect(j, SLOT_LSE, &out.lse);
        return room ? kiln_oracle_attention_merge(&call->merge, numerics, &out) : KILN_OUT_OF_MEMORY;
    }
    case KILN_OP_ATTENTION_BACKWARD: {
        kiln_oracle_gradients out;
        room = expect(j, SLOT_DQ, &out.dq) && expect(j, SLOT_DK, &out.dk) && expect(j, SLOT_DV, &out.dv) &&
               expect(j, SLOT_DQ2, &out.dq2) && expect(j, SLOT_DK2, &out.dk2) && expect(j, SLOT_DBIAS, &out.dbias) &&
               expect(j, SLOT_DSINKS, &out.dsinks);
        return room ? kiln_oracle_attention_backward(&call->backward, numerics, &out) : KILN_OUT_OF_MEMORY;
    }
    case KILN_OP_COUNT: break;
    }
    return KILN_INTERNAL;
}

/* What the comparison of one output carries from element to element. */
typedef struct comparison {
    judge *j;
    const expected *e;
    const problem_tensor *tensor;
    char *after;
    const char *before;
    int64_t size, columns;
} comparison;

static void unravel(const problem_tensor *t, int64_t flat, int64_t *index)
{
    for (int axis = t->ndim - 1; axis >= 0; axis--) {
        index[axis] = flat % t->shape[axis];
        flat /= t->shape[axis];
    }
}

/* A wrong class has no ratio, and outranks everything. */
static double ratio_of(double got, double want, double bound, bool right)
{
    double error = fabs(got - want);
    if (right && !(error <= bound))
        return 0; /* equal infinities or NaN where it belongs */
    if (error == 0)
        return right ? 0 : INFINITY;
    return error <= INFINITY ? error / bound : INFINITY;
}

static void compare_one(void *user, int64_t flat, int64_t element)
{
    const comparison *c = user;
    judge_report *report = c->j->report;
    char *now = c->after + element * c->size;
    const char *was = c->before + element * c->size;
    double value = c->e->exact.value[flat], bound = c->e->exact.bound[flat];
    report->total++;
    if (c->j->sampled != NULL && !c->j->sampled[flat / c->columns]) {
        memcpy(now, was, (size_t)c->size);
        return;
    }
    report->checked++;
    if (kiln_oracle_untouched(value, bound))
        return; /* left as it is in `after`, so that a change shows in the comparison of all bytes */
    double got = kiln_load_double(c->after, c->tensor->type, element);
    bool right = kiln_oracle_accepts(got, value, bound);
    double ratio = ratio_of(got, value, bound, right);
    report->wrong += !right;
    if (report->ndim == 0 || ratio > report->ratio || (!right && report->wrong == 1)) {
        report->ratio = ratio;
        report->got = got;
        report->want = value;
        report->error = fabs(got - value);
        report->bound = bound;
        report->ndim = c->tensor->ndim;
        unravel(c->tensor, flat, report->index);
        snprintf(report->output, sizeof report->output, "%s", problem_slot_name(c->e->slot));
    }
    memcpy(now, was, (size_t)c->size);
}

static char *fetch(runner *r, problem_slot slot, kiln_status *status)
{
    char *host = malloc(r->data->tensor[slot].bytes);
    *status = host != NULL ? runner_fetch(r, slot, host) : KILN_OUT_OF_MEMORY;
    return host;
}

/* Elements of every output, then every other byte of its storage. */
static judge_verdict compare_output(judge *j, const expected *e, char *after)
{
    const problem_data *data = j->r->data;
    const problem_tensor *t = &data->tensor[e->slot];
    comparison c = {j, e, t, after, t->storage, kiln_type_size(t->type), 1};
    if (e->slot != SLOT_LSE && t->ndim > 0 && t->shape[t->ndim - 1] > 0)
        c.columns = t->shape[t->ndim - 1];
    problem_each(t, compare_one, &c);
    if (memcmp(after, t->storage, t->bytes) != 0)
        return conclude(j->report, JUDGE_WRONG,
                        "%s: bytes outside its elements, or rows outside every sequence, were written",
                        problem_slot_name(e->slot));
    return JUDGE_RIGHT;
}

/* Is every tensor of this kind on the device as the host has it? */
static judge_verdict unchanged(judge *j, bool outputs, const char *sentence)
{
    const problem_data *data = j->r->data;
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        const problem_tensor *t = &data->tensor[slot];
        if (t->storage == NULL || t->output != outputs)
            continue;
        kiln_status status;
        char *now = fetch(j->r, (problem_slot)slot, &status);
        bool same = status == KILN_OK && memcmp(now, t->storage, t->bytes) == 0;
        free(now);
        if (status != KILN_OK)
            return conclude(j->report, JUDGE_UNKNOWN, "%s could not be read back",
                            problem_slot_name((problem_slot)slot));
        if (!same)
            return conclude(j->report, JUDGE_WRONG, sentence, problem_slot_name((problem_slot)slot));
    }
    return JUDGE_RIGHT;
}

static judge_verdict check_guards(judge *j)
{
    char guards[2 * PROBLEM_GUARD];
    if (runner_fetch_guards(j->r, guards) != KILN_OK)
        return conclude(j->report, JUDGE_UNKNOWN, "the workspace could not be read back");
    for (size_t i = 0; i < sizeof guards; i++)
        if ((uint8_t)guards[i] != PROBLEM_FILL)
            return conclude(j->report, JUDGE_WRONG, "bytes %s the workspace of %zu bytes were written",
                            i < PROBLEM_GUARD ? "before" : "after", j->r->workspace_bytes);
    return JUDGE_RIGHT;
}

/* Runs again with other garbage, and compares bits with the first run's. */
static judge_verdict check_repeat(judge *j, char *const *first)
{
    kiln_status status = runner_reset(j->r, false, 0x5A);
    if (status == KILN_OK)
        status = runner_run(j->r);
    if (status != KILN_OK)
        return conclude(j->report, JUDGE_WRONG, "the second call failed, the first did not: %s", kiln_last_error());
    for (int i = 0; i < j->count; i++) {
        problem_slot slot = j->output[i].slot;
        char *second = fetch(j->r, slot, &status);
        bool same = status == KILN_OK && memcmp(second, first[i], j->r->data->tensor[slot].bytes) == 0;
        free(second);
        if (!same)
            return conclude(j->report, JUDGE_WRONG, "%s: a second run with another workspace gave other bits",
                            problem_slot_name(slot));
    }
    return JUDGE_RIGHT;
}

static judge_verdict compare_all(judge *j)
{
    char *first[OUTPUTS_MAX] = {NULL};
    judge_verdict verdict = JUDGE_RIGHT;
    kiln_status status = KILN_OK;
    for (int i = 0; i < j->count && status == KILN_OK; i++)
        first[i] = fetch(j->r, j->output[i].slot, &status);
    if (status != KILN_OK)
        verdict = conclude(j->report, JUDGE_UNKNOWN, "the outputs could not be read back");
    /* Backward is free to differ from run to run unless it is told not to. */
    if (verdict == JUDGE_RIGHT &&
        (j->r->call.op != KILN_OP_ATTENTION_BACKWARD || j->r->data->spec.flags & KILN_FLAG_DETERMINISTIC))
        verdict = check_repeat(j, first);
    for (int i = 0; i < j->count && verdict == JUDGE_RIGHT; i++)
        verdict = compare_output(j, &j->output[i], first[i]);
    for (int i = 0; i < j->count; i++)
        free(first[i]);
    if (verdict == JUDGE_RIGHT && j->report->wrong > 0)
        verdict = conclude(j->report, JUDGE_WRONG, "%lld of %lld elements are outside their bound",
                           (long long)j->report->wrong, (long long)j->report->checked);
    if (verdict == JUDGE_RIGHT)
        verdict = check_guards(j);
    if (verdict == JUDGE_RIGHT)
        verdict = unchanged(j, false, "%s is an input and was written");
    return verdict;
}

judge_verdict judge_run(runner *r, const judge_options *options, judge_report *report)
{
    judge j = {.r = r, .report = report};
    problem_call host;
    kiln_numerics numerics;
    memset(report, 0, sizeof *report);
    memcpy(report->kernel, r->kernel, sizeof report->kernel);
    report->workspace_bytes = r->workspace_bytes;

    kiln_status status = runner_reset(r, false, PROBLEM_FILL);
    if (status == KILN_OK && (status = runner_run(r)) != KILN_OK) {
        refused(report, status);
        judge_report silent = *report; /* a refusal must not have written anything */
        j.report = &silent;
        if (unchanged(&j, true, "%s was written by a call that was refused") == JUDGE_WRONG)
            *report = silent;
        return report->verdict;
    }
    if (status == KILN_OK)
        status = kiln_stream_synchronize(r->context, NULL);
    if (status == KILN_OK)
        status = kiln_internal_numerics(r->context, r->call.op, problem_call_args(&r->call), &numerics);
    if (status != KILN_OK)
        return refused(report, status);

    problem_call_init(&host, r->data, host_device, NULL);
    if (check_lengths(&host) != KILN_OK) /* a device clamps what it reads there, the oracle does not */
        return conclude(report, JUDGE_UNKNOWN, "the oracle does not follow wrong lengths: %s", kiln_last_error());
    status = consult(&j, &host, &numerics, options->full);
    if (status == KILN_OK)
        report->verdict = compare_all(&j);
    else
        conclude(report, JUDGE_UNKNOWN,
                 status == KILN_OUT_OF_MEMORY ? "no memory for the oracle's results"
                                              : "the oracle does not do this yet");
    forget(&j);
    return report->verdict;
}

typedef struct store {
    char *storage;
    int32_t type;
    const double *value;
} store;

static void store_one(void *user, int64_t flat, int64_t element)
{
    const store *s = user;
    if (s->value[flat] == s->value[flat]) /* rows outside every sequence keep the fill */
        kiln_store_double(s->storage, s->type, element, s->value[flat]);
}

static void put_values(problem_data *data, problem_slot slot, const double *value)
{
    store s = {problem_storage(data, slot), data->tensor[slot].type, value};
    problem_each(&data->tensor[slot], store_one, &s);
}

/* Would the library take it? Asked before the oracle sees the arguments, which it trusts. */
static kiln_status acceptable(kiln_context *context, const problem_data *data, char *why, size_t cap)
{
    problem_call call;
    problem_call_init(&call, data, kiln_context_device(context), NULL);
    return runner_supported(context, &call, why, cap);
}

judge_verdict judge_prepare(kiln_context *context, problem_data *data, judge_report *report)
{
    static const kiln_numerics exact = {0};
    problem_call call;
    char why[256];
    problem_slot first = data->spec.op == KILN_OP_SOFTMAX_BACKWARD ? SLOT_Y : SLOT_O;
    memset(report, 0, sizeof *report);
    kiln_status status = acceptable(context, data, why, sizeof why);
    if (status != KILN_OK)
        return refused(report, status);
    if (data->spec.op != KILN_OP_SOFTMAX_BACKWARD && data->spec.op != KILN_OP_ATTENTION_BACKWARD)
        return JUDGE_RIGHT;
    problem_call_init(&call, data, host_device, NULL);
    if (check_lengths(&call) != KILN_OK)
        return JUDGE_RIGHT; /* no forward result; the call that follows refuses the lengths, or clamps them */
    double *value = calloc((size_t)problem_count(&data->tensor[first]) + 1, sizeof(double));
    double *lse = first == SLOT_O ? calloc((size_t)problem_count(&data->tensor[SLOT_LSE]) + 1, sizeof(double)) : NULL;
    if (value == NULL || (first == SLOT_O && lse == NULL)) {
        status = KILN_OUT_OF_MEMORY;
    } else if (first == SLOT_Y) {
        kiln_oracle_softmax out = {.y.value = value};
        status = kiln_oracle_softmax_forward(&call.softmax_forward, &exact, &out);
    } else {
        kiln_oracle_attention out = {.o.value = value, .lse.value = lse};
        status = kiln_oracle_attention_forward(&call.forward, &exact, &out);
    }
    if (status == KILN_OK) {
        put_values(data, first, value);
        if (first == SLOT_O)
            put_values(data, SLOT_LSE, lse);
    } else {
        conclude(report, JUDGE_UNKNOWN, "the forward result that backward needs could not be computed: %s",
                 kiln_status_name(status));
    }
    free(value);
    free(lse);
    return report->verdict;
}

judge_verdict judge_problem(kiln_context *context, const problem_spec *spec, const judge_options *options,
                            judge_report *report)
{
    problem_data data;
    runner r;
    char why[256];
    memset(report, 0, sizeof *report);
    if (!problem_build(spec, 0, &data, why, sizeof why))
        return conclude(report, JUDGE_UNKNOWN, "%s", why);
    if (judge_prepare(context, &data, report) == JUDGE_RIGHT) {
        kiln_status status = runner_open(&r, context, &data);
        if (status != KILN_OK) {
            refused(report, status);
        } else {
            judge_run(&r, options, report);
            runner_close(&r);
        }
    }
    problem_free(&data);
    return report->verdict;
}
