/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* pool.c: see pool.h. One lock, a stack of loops; workers take one index at a time. */
#include "pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct loop {
    struct loop *next;
    int32_t count, taken, done;
    void (*body)(void *arg, int32_t index);
    void *arg;
} loop;

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    loop *loops; /* those with indices left */
    bool stop;
    int threads;
    pthread_t thread[];
};

static void *work(void *user)
{
    pool *p = user;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->loops && !p->stop)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        loop *l = p->loops;
        int32_t index = l->taken++;
        if (l->taken == l->count)
            p->loops = l->next;
        pthread_mutex_unlock(&p->lock);
        l->body(l->arg, index);
        pthread_mutex_lock(&p->lock);
        if (++l->done == l->count)
            pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

pool *pool_new(int threads)
{
    pool *p = calloc(1, sizeof *p + (size_t)threads * sizeof *p->thread);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (; p->threads < threads; p->threads++)
        if (pthread_create(&p->thread[p->threads], NULL, work, p) != 0) {
            pool_free(p);
            return NULL;
        }
    return p;
}

void pool_free(pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void pool_for(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    pool *p = user;
    loop l = {.count = count, .body = body, .arg = arg};
    if (count <= 0)
        return;
    pthread_mutex_lock(&p->lock);
    l.next = p->loops;
    p->loops = &l;
    pthread_cond_broadcast(&p->work);
    while (l.done < count)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
