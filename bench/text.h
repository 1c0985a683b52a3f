/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * text.h: small helpers for what people type and read: nearest names, numbers with units. No allocation.
 */
#ifndef KILN_BENCH_TEXT_H
#define KILN_BENCH_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The name that `word` most likely meant, or NULL if none is near (more than about a third of the letters differ). */
const char *text_nearest(const char *word, const char *const *names, size_t count);

bool text_ends_with(const char *text, const char *end);

/* Appends formatted text at *used, never past cap; *used counts what the whole would need, as snprintf does. */
void text_append(char *text, size_t cap, size_t *used, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The shortest decimal that reads back as the same double. */
void text_double(double value, char *text, size_t cap);
/* "1.50 MiB", "312 TFLOP/s", "3.2 ms": three significant digits. */
void text_bytes(double bytes, char *text, size_t cap);
void text_si(double value, const char *unit, char *text, size_t cap);
void text_seconds(double seconds, char *text, size_t cap);

/* Whole-string numbers. False if there is anything else or it does not fit. "inf" is INT64_MAX for text_int. */
bool text_int(const char *text, int64_t *value);
bool text_uint(const char *text, uint64_t *value);
bool text_float(const char *text, double *value);

#endif
