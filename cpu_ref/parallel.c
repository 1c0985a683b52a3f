/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * parallel.c: the parallel loop of the CPU backend, over OpenMP, the host's own pool, or none. Contract: cpu.h.
 *
 * Nothing of the caller's OpenMP settings is changed and no thread is bound. OpenMP may give a smaller team than asked
 * (one thread inside a parallel region whose nesting is off, fewer at a thread limit), hence the loop over worker
 * numbers.
 *
 * fork() copies one thread only, but gcc's OpenMP runtime still counts on the others and waits for them for ever. So
 * once OpenMP's threads have been used here, children run on the calling thread. A host's own pool is the host's to
 * repair.
 */
#include "../common/fp_env.h"
#include "cpu.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>

/* Written in a child before it has a second thread, and by pthread_once(). */
static bool threads_lost;

static void lose_threads(void)
{
    threads_lost = true;
}

static void watch_forks(void)
{
    threads_lost = pthread_atfork(NULL, NULL, lose_threads) != 0; /* no memory: stay on the safe side */
}

static bool openmp_works(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return !threads_lost;
}
#endif

typedef struct loop {
    void (*body)(void *arg, int32_t worker);
    void *arg;
} loop;

/* On the thread that does the work: the environment belongs to a thread, not to a call. */
static void run_worker(void *arg, int32_t worker)
{
    const loop *l = arg;
    kiln_fp_env saved = kiln_fp_env_enter();
    l->body(l->arg, worker);
    kiln_fp_env_leave(saved);
}

void kiln_cpu_parallel(const kiln_cpu *cpu, int32_t workers, void (*body)(void *arg, int32_t worker), void *arg)
{
    loop l = {body, arg};
    if (workers > 1 && cpu->parallel_for) {
        cpu->parallel_for(cpu->parallel_for_user, workers, run_worker, &l);
        return;
    }
#ifdef _OPENMP
    if (workers > 1 && openmp_works()) {
#pragma omp parallel num_threads(workers)
        for (int32_t worker = omp_get_thread_num(); worker < workers; worker += omp_get_num_threads())
            run_worker(&l, worker);
        return;
    }
#endif
    for (int32_t worker = 0; worker < workers; worker++)
        run_worker(&l, worker);
}
