/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * lines.h: what `kiln verify` and `kiln bench` read alike: operations, problems and algorithms named on the command line.
 * Each returns EXIT_RIGHT, or EXIT_USAGE with a sentence on stderr.
 */
#ifndef KILN_BENCH_LINES_H
#define KILN_BENCH_LINES_H

#include "options.h"
#include "problem.h"

/* The operation that --op names; NULL is attention_forward. */
int line_op(const command *about, const char *name, kiln_op *op);
/* --algorithm: names joined by commas, at most `most`; NULL is none. */
int line_algorithms(const command *about, const char *names, int most);
/* One problem. With `algorithms` (the value of --algorithm, or NULL) the problem must not name one too. */
int line_problem(const command *about, const char *text, kiln_op op, const char *algorithms, problem_spec *spec);

#endif
