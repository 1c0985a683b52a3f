/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* cases.h: the built-in table of problems that `kiln verify` and the tests run. */
#ifndef KILN_BENCH_CASES_H
#define KILN_BENCH_CASES_H

#include "problem.h"

size_t bench_case_count(void);
/* The line of case `index`; static storage. */
const char *bench_case_text(size_t index);
/* Reads it. Every case parses; a false here is a defect of the table. */
bool bench_case(size_t index, problem_spec *spec);

#endif
