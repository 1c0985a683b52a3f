/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * allocations.h: stands between the program and the C library's allocator (malloc, calloc, realloc, the aligned ones,
 * and so strdup, fopen, scandir, dlopen and whoever else calls them): counts, and lets one allocation fail.
 *
 * While armed it sees all threads. Not armed it only passes on. Works under AddressSanitizer, whose allocator then
 * stands behind it.
 */
#ifndef KILN_TESTS_ABUSE_ALLOCATIONS_H
#define KILN_TESTS_ABUSE_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct allocations {
    int64_t asked; /* since armed */
    int64_t live;  /* of those, not freed yet */
    bool failed;   /* was one made to fail? */
} allocations;

/* From now on number `fail_at` (from 1) fails with ENOMEM; 0 = none. */
void allocations_arm(int64_t fail_at);
allocations allocations_disarm(void);

#endif
