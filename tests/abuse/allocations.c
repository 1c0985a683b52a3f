/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * allocations.c: see allocations.h. The names of the allocator are defined here, in the program, and so win over those
 * of every shared library. Pointers taken while armed are kept in a table, so that it is known which of them were
 * freed.
 */
#include "allocations.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#define EXPORT         __attribute__((visibility("default")))
#define WEAK           __attribute__((weak))
#define UNINSTRUMENTED __attribute__((no_sanitize("address"))) /* called before a sanitizer has begun */

/* glibc's own names for its functions, and AddressSanitizer's for those that stand before them. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
WEAK void *__interceptor_malloc(size_t);
WEAK void *__interceptor_calloc(size_t, size_t);
WEAK void *__interceptor_realloc(void *, size_t);
WEAK void *__interceptor_memalign(size_t, size_t);
WEAK void __interceptor_free(void *);
#define NEXT(name, ...) (__interceptor_##name ? __interceptor_##name(__VA_ARGS__) : __libc_##name(__VA_ARGS__))

enum { TABLE = 1 << 15 };
static void *table[TABLE];
static int64_t table_used, fail_number, asked;
static int armed, failed;

void allocations_arm(int64_t fail_at)
{
    table_used = asked = 0;
    failed = 0;
    fail_number = fail_at;
    __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}

allocations allocations_disarm(void)
{
    allocations result = {0};
    __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST);
    for (int64_t i = 0; i < table_used && i < TABLE; i++)
        result.live += table[i] != NULL;
    result.asked = asked;
    result.failed = failed;
    return result;
}

/* May this one go through? */
UNINSTRUMENTED static bool ask(void)
{
    if (!__atomic_load_n(&armed, __ATOMIC_RELAXED) || __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED) != fail_number)
        return true;
    failed = 1;
    errno = ENOMEM;
    return false;
}

UNINSTRUMENTED static void *taken(void *pointer)
{
    if (pointer && __atomic_load_n(&armed, __ATOMIC_RELAXED)) {
        int64_t slot = __atomic_fetch_add(&table_used, 1, __ATOMIC_RELAXED);
        if (slot < TABLE)
            table[slot] = pointer;
    }
    return pointer;
}

UNINSTRUMENTED static void given(const void *pointer)
{
    if (!pointer || !__atomic_load_n(&armed, __ATOMIC_RELAXED))
        return;
    for (int64_t i = (table_used < TABLE ? table_used : TABLE) - 1; i >= 0; i--)
        if (table[i] == pointer) {
            table[i] = NULL;
            return;
        }
}

EXPORT UNINSTRUMENTED void *malloc(size_t bytes)
{
    return ask() ? taken(NEXT(malloc, bytes)) : NULL;
}

EXPORT UNINSTRUMENTED void *calloc(size_t count, size_t bytes)
{
    return ask() ? taken(NEXT(calloc, count, bytes)) : NULL;
}

EXPORT UNINSTRUMENTED void *realloc(void *old, size_t bytes)
{
    if (!ask())
        return NULL;
    given(old);
    return taken(NEXT(realloc, old, bytes));
}

EXPORT UNINSTRUMENTED void *aligned_alloc(size_t alignment, size_t bytes)
{
    return ask() ? taken(NEXT(memalign, alignment, bytes)) : NULL;
}

EXPORT UNINSTRUMENTED int posix_memalign(void **pointer, size_t alignment, size_t bytes)
{
    void *made = aligned_alloc(alignment, bytes);
    if (!made)
        return ENOMEM;
    *pointer = made;
    return 0;
}

EXPORT UNINSTRUMENTED void free(void *pointer)
{
    given(pointer);
    NEXT(free, pointer);
}
