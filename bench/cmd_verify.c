/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* cmd_verify.c: `kiln verify`. The judging is in judge.c, the built-in table in cases.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "commands.h"
#include "judge.h"
#include "lines.h"
#include "output.h"
#include "session.h"
#include "text.h"

static const command about = {
    "verify", "verify [options] [PROBLEM]...",
    "Runs each problem and compares every element of every output with the fp64 oracle. Right means: within the bound "
    "that\n"
    "the kernel's rounding allows (\"error/bound\" is at most 1), NaN and Inf exactly where they belong, not a byte "
    "written\n"
    "outside the tensors, inputs and guards untouched, and the same bits when run again. Long attention problems are\n"
    "compared on rows spread over the whole unless --full is given. Without PROBLEM a built-in table is run.\n",
    "  kiln verify                                             the whole table, best backend\n"
    "  kiln verify --algorithm all b1h2q100k130d64:fp16        every rung on one problem\n"
    "  kiln verify --backend cpu --threads 1 b2h4k2q65d80:bf16:causal_br:softcap=30\n"
    "  kiln verify --op softmax_forward r8n1000:fp32:flags=log:data=huge\n",
    NULL};

typedef struct tally {
    int right, wrong, unsupported, refused, unknown;
    double worst;
    char worst_line[256];
    json_t *reasons; /* sentence -> count */
} tally;

typedef struct verification {
    session session;
    const char *op, *algorithm;
    bool full, quiet, explicit_problem, all_rungs;
    judge_options judge;
    tally tally;
} verification;

static void print_line(const char *verdict, const judge_report *report, const char *line, const char *more)
{
    char ratio[16] = "-";
    if (report->verdict == JUDGE_RIGHT)
        snprintf(ratio, sizeof ratio, "%.3f", report->ratio);
    static bool titled;
    progress_done();
    if (!titled)
        printf("%-11s %8s  problem\n%-11s %8s\n", "verdict", "error/", "", "bound");
    titled = true;
    printf("%-11s %8s  %s%s%s\n", verdict, ratio, line, more[0] ? "\n             " : "", more);
}

static void print_wrong(const verification *v, const judge_report *report, const char *line)
{
    char where[128] = "";
    size_t used = 0;
    print_line("WRONG", report, line, report->sentence);
    if (report->wrong > 0) {
        for (int axis = 0; axis < report->ndim; axis++)
            text_append(where, sizeof where, &used, "%s%lld", axis > 0 ? "," : "", (long long)report->index[axis]);
        printf("             worst: %s[%s] is %.9g, should be %.9g: error %.3g, bound %.3g (%.3g times)\n",
               report->output, where, report->got, report->want, report->error, report->bound, report->ratio);
    }
    printf("             kernel: %s\n             again:  kiln verify --backend %s '%s'\n", report->kernel,
           v->session.info.backend, line);
}

static void count_reason(tally *t, const char *sentence)
{
    json_t *count = json_object_get(t->reasons, sentence);
    json_object_set_new(t->reasons, sentence, json_integer(1 + json_integer_value(count)));
}

static void verify_one(verification *v, const problem_spec *spec)
{
    char line[PROBLEM_TEXT_MAX];
    judge_report report;
    tally *t = &v->tally;
    problem_print(spec, line, sizeof line);
    progress("%s", line);
    switch (judge_problem(v->session.context, spec, &v->judge, &report)) {
    case JUDGE_RIGHT:
        t->right++;
        if (report.ratio > t->worst) {
            t->worst = report.ratio;
            snprintf(t->worst_line, sizeof t->worst_line, "%.255s", line);
        }
        if (!v->quiet) {
            char note[320] = "";
            if (v->explicit_problem)
                snprintf(note, sizeof note, "%s; %lld of %lld elements compared", report.kernel,
                         (long long)report.checked, (long long)report.total);
            print_line("right", &report, line, note);
        }
        break;
    case JUDGE_WRONG:
        t->wrong++;
        print_wrong(v, &report, line);
        break;
    case JUDGE_REFUSED:
        if (v->explicit_problem && (report.status != KILN_UNSUPPORTED || !v->all_rungs)) {
            t->refused++;
            progress_done();
            fflush(stdout);
            fprintf(stderr, "kiln verify: %s\n             %s\n", line, report.sentence);
        } else if (report.status == KILN_UNSUPPORTED) {
            t->unsupported++;
            count_reason(t, report.sentence);
            if (!v->quiet)
                print_line("unsupported", &report, line, "");
        } else {
            t->wrong++; /* the table holds nothing that the header does not allow */
            print_line("REFUSED", &report, line, report.sentence);
        }
        break;
    case JUDGE_UNKNOWN:
        t->unknown++;
        if (v->explicit_problem)
            fprintf(stderr, "kiln verify: %s\n             %s\n", line, report.sentence);
        else
            print_line("NOT JUDGED", &report, line, report.sentence);
        break;
    }
}

/* With --algorithm all: every rung that the backend has for this problem. */
static void verify_rungs(verification *v, problem_spec *spec)
{
    if (v->algorithm == NULL) {
        verify_one(v, spec);
        return;
    }
    if (strcmp(v->algorithm, "all") != 0) {
        snprintf(spec->algorithm, sizeof spec->algorithm, "%s", v->algorithm);
        verify_one(v, spec);
        return;
    }
    v->all_rungs = true; /* a rung that does not do this problem is no mistake of the user */
    const char *names[RUNGS_MAX];
    int count = runner_rungs(v->session.context, spec->op, names);
    for (int i = 0; i < count; i++) {
        snprintf(spec->algorithm, sizeof spec->algorithm, "%s", names[i]);
        verify_one(v, spec);
    }
}

static void print_reasons(const tally *t)
{
    const char *sentence;
    json_t *count;
    json_object_foreach(t->reasons, sentence, count)
    {
        printf("  %4lld x %s\n", (long long)json_integer_value(count), sentence);
    }
}

static int conclude(const verification *v)
{
    const tally *t = &v->tally;
    int total = t->right + t->wrong + t->unsupported + t->refused + t->unknown;
    if (v->explicit_problem && t->refused + t->unknown > 0)
        return t->wrong > 0 ? EXIT_WRONG : EXIT_USAGE;
    printf("\n%d problem%s on %s (%s): %d right, %d wrong, %d not supported here, %d not judged.\n", total,
           total == 1 ? "" : "s", v->session.info.backend, v->session.info.architecture, t->right, t->wrong,
           t->unsupported, t->unknown);
    if (t->unsupported > 0) {
        printf("Not supported, which the library said in so many words:\n");
        print_reasons(t);
    }
    if (t->wrong > 0)
        printf("Something is wrong: the lines above marked WRONG or REFUSED reproduce it.\n");
    else if (t->right > 0)
        printf("Everything that ran is right: the largest error was %.3f of what rounding allows%s%s\n", t->worst,
               t->worst > 0 ? ", in\n  " : ".", t->worst_line);
    else
        printf("Nothing ran.\n");
    return t->wrong > 0 || t->unknown > 0 || t->right == 0 ? EXIT_WRONG : EXIT_RIGHT;
}

static int verify_table(verification *v, kiln_op op)
{
    for (size_t i = 0; i < bench_case_count(); i++) {
        problem_spec spec;
        if (!bench_case(i, &spec))
            return usage_error(&about, "the built-in case \"%s\" does not parse", bench_case_text(i));
        if (v->op == NULL || spec.op == op)
            verify_rungs(v, &spec);
    }
    return EXIT_RIGHT;
}

static int verify_words(verification *v, kiln_op op, char **words, int count)
{
    int code = EXIT_RIGHT;
    problem_spec spec;
    /* All are read before the first is run: a typing error should not show after minutes. */
    for (int i = 0; i < count && code == EXIT_RIGHT; i++)
        code = line_problem(&about, words[i], op, v->algorithm, &spec);
    for (int i = 0; i < count && code == EXIT_RIGHT; i++) {
        code = line_problem(&about, words[i], op, v->algorithm, &spec);
        if (code == EXIT_RIGHT)
            verify_rungs(v, &spec);
    }
    return code;
}

int command_verify(int argc, char **argv)
{
    static verification v;
    const option options[] = {
        {"op", OPTION_TEXT, &v.op, "NAME", "operation of problems that name none; of the table: only this one"},
        SESSION_OPTIONS(v.session),
        {"algorithm", OPTION_TEXT, &v.algorithm, "NAME", "a rung of the ladder, or all of them: all"},
        {"full", OPTION_SWITCH, &v.full, NULL, "compare every row of long problems too"},
        {"quiet", OPTION_SWITCH, &v.quiet, NULL, "print only what is wrong, and the summary"},
    };
    command with_grammar = about;
    int words, code;
    with_grammar.more = problem_help();
    if (!options_read(&with_grammar, options, sizeof options / sizeof *options, argc, argv, &words, &code))
        return code;
    kiln_op op;
    if ((code = line_op(&about, v.op, &op)) != EXIT_RIGHT ||
        (code = line_algorithms(&about, v.algorithm, 1)) != EXIT_RIGHT)
        return code;
    if ((code = session_open(&v.session, &about, NULL, NULL)) != EXIT_RIGHT)
        return code;
    v.judge.full = v.full;
    v.explicit_problem = words > 0;
    v.tally.reasons = json_object();
    code = words > 0 ? verify_words(&v, op, argv, words) : verify_table(&v, op);
    progress_done();
    if (code == EXIT_RIGHT)
        code = conclude(&v);
    json_decref(v.tally.reasons);
    session_close(&v.session);
    return code;
}
