/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* lines.c: see lines.h. */
#include <stdio.h>
#include <string.h>

#include "lines.h"

int line_op(const command *about, const char *name, kiln_op *op)
{
    *op = name != NULL ? problem_op_find(name) : KILN_OP_ATTENTION_FORWARD;
    if (*op != KILN_OP_COUNT)
        return EXIT_RIGHT;
    return usage_error(about,
                       "there is no operation \"%s\": write attention_forward, attention_backward, attention_merge, "
                       "softmax_forward or softmax_backward",
                       name);
}

int line_algorithms(const command *about, const char *names, int most)
{
    int count = 0;
    for (const char *at = names; at != NULL;) {
        size_t n = strcspn(at, ",");
        if (n == 0)
            return usage_error(about, "--algorithm %s: name %d is empty", names, count + 1);
        if (n >= PROBLEM_NAME_MAX)
            return usage_error(about, "--algorithm: a name has at most %d letters", PROBLEM_NAME_MAX - 1);
        if (++count > most)
            return usage_error(about, "--algorithm takes at most %d name%s", most, most == 1 ? "" : "s");
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    return EXIT_RIGHT;
}

int line_problem(const command *about, const char *text, kiln_op op, const char *algorithms, problem_spec *spec)
{
    problem_error error;
    if (!problem_parse(text, op, spec, &error)) {
        int before = fprintf(stderr, "kiln %s: ", about->name);
        fprintf(stderr, "%s\n%*s^ %s\n", text, before + error.position, "", error.message);
        return EXIT_USAGE;
    }
    if (algorithms != NULL && spec->algorithm[0] != '\0')
        return usage_error(about, "%s names an algorithm, and so does --algorithm %s: leave one out", text, algorithms);
    return EXIT_RIGHT;
}
