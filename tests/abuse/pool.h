/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* pool.h: a host's own thread pool: a few threads that live between calls, and kiln_parallel_for over them. */
#ifndef KILN_TESTS_ABUSE_POOL_H
#define KILN_TESTS_ABUSE_POOL_H

#include <kiln/kiln.h>

typedef struct pool pool;

/* NULL if the threads cannot be had. */
pool *pool_new(int threads);
/* All its loops must have returned. */
void pool_free(pool *p);
/* A kiln_parallel_for; `user` is the pool. Callers do not help, so all work is done on foreign threads. Any number of loops at
 * a time, from any threads, none of them the pool's own. */
void pool_for(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg);

#endif
