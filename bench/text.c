/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* text.c: see text.h. Cost: text_nearest is quadratic in the length of a word, times the names. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

enum { LONGEST_WORD = 48 };

/* Levenshtein distance of two words, with one row of the table. */
static size_t distance(const char *a, const char *b)
{
    size_t row[LONGEST_WORD + 1], n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < other ? change : other;
        }
    }
    return row[n];
}

const char *text_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t length = strlen(word), least = length / 3 + 2;
    if (length == 0 || length > LONGEST_WORD)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL || strlen(names[i]) > LONGEST_WORD)
            continue;
        size_t far = distance(word, names[i]);
        if (length >= 3 && strncmp(word, names[i], length) == 0)
            far = 1; /* the beginning of a name is a good guess however long the rest is */
        if (far < least && far < strlen(names[i])) {
            least = far;
            best = names[i];
        }
    }
    return best;
}

bool text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

void text_append(char *text, size_t cap, size_t *used, const char *format, ...)
{
    va_list list;
    size_t at = *used < cap ? *used : cap;
    va_start(list, format);
    int more = vsnprintf(cap > at ? text + at : NULL, cap - at, format, list);
    va_end(list);
    if (more > 0)
        *used += (size_t)more;
}

void text_double(double value, char *text, size_t cap)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, cap, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

static void scaled(double value, double step, const char *const *prefixes, size_t count, const char *unit, char *text,
                   size_t cap)
{
    size_t i = 0;
    while (i + 1 < count && fabs(value) >= step * 0.9995) {
        value /= step;
        i++;
    }
    double size = fabs(value);
    int decimals = i == 0 && value == floor(value) ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
    snprintf(text, cap, "%.*f %s%s", decimals, value, prefixes[i], unit);
}

void text_bytes(double bytes, char *text, size_t cap)
{
    static const char *const prefixes[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi"};
    scaled(bytes, 1024, prefixes, 6, "B", text, cap);
}

void text_si(double value, const char *unit, char *text, size_t cap)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    scaled(value, 1000, prefixes, 7, unit, text, cap);
}

void text_seconds(double seconds, char *text, size_t cap)
{
    static const char *const prefixes[] = {"n", "u", "m", ""};
    scaled(seconds * 1e9, 1000, prefixes, 4, "s", text, cap);
}

bool text_int(const char *text, int64_t *value)
{
    char *end;
    bool negative = text[0] == '-';
    if (strcmp(text + negative, "inf") == 0) {
        *value = negative ? -INT64_MAX : INT64_MAX;
        return true;
    }
    if (!isdigit((unsigned char)text[negative]))
        return false;
    errno = 0;
    long long read = strtoll(text, &end, 10);
    *value = read;
    return errno == 0 && *end == '\0';
}

bool text_uint(const char *text, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long long read = strtoull(text, &end, 10);
    *value = read;
    return errno == 0 && *end == '\0';
}

bool text_float(const char *text, double *value)
{
    char *end;
    if (text[0] == '\0' || isspace((unsigned char)text[0]))
        return false;
    errno = 0;
    *value = strtod(text, &end);
    return *end == '\0' && !(errno == ERANGE && isinf(*value));
}
