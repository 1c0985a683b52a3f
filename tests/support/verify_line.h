/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* verify_line.h: an attention problem as the problem string of `kiln verify` (bench/problem.h). */
#ifndef KILN_TESTS_SUPPORT_VERIFY_LINE_H
#define KILN_TESTS_SUPPORT_VERIFY_LINE_H

#include "attention.h"

void test_verify_line(const test_attention *attention, const char *algorithm, char *text, size_t cap);

#endif
