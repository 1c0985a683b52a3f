/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * launch.c: one launch on the emulated device. Blocks run in a seeded order, over as many host threads as KILN_SIMT_THREADS
 * says (default: the processors, and no more than there are blocks); each has a machine, kept for later launches. A fault ends
 * the launch; of several the one of the earliest block in the order is reported, so that reports do not depend on threads.
 */
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_WORKERS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static simt_machine *idle;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t seed = 1;
static int32_t workers = 1;
uint16_t simt_wmma_place[3][32][8];

static void read_environment(void)
{
    const char *text = getenv("KILN_SIMT_SEED");
    if (text)
        seed = strtoull(text, NULL, 0);
    text = getenv("KILN_SIMT_THREADS");
    long n = text ? strtol(text, NULL, 0) : sysconf(_SC_NPROCESSORS_ONLN);
    workers = n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : (int32_t)n;
    uint64_t random = seed;
    for (int which = 0; which < 3; which++) {
        int32_t order[256];
        shuffle(order, 256, &random);
        for (int i = 0; i < 256; i++)
            simt_wmma_place[which][i / 8][i % 8] = (uint16_t)order[i];
    }
}

static simt_machine *machine_get(void)
{
    pthread_mutex_lock(&lock);
    simt_machine *m = idle;
    if (m)
        idle = m->next_free;
    pthread_mutex_unlock(&lock);
    return m ? m : calloc(1, sizeof *m);
}

static void machine_put(simt_machine *m)
{
    pthread_mutex_lock(&lock);
    m->next_free = idle;
    idle = m;
    pthread_mutex_unlock(&lock);
}

static bool grow(void **memory, size_t *room, size_t bytes)
{
    if (*room >= bytes)
        return true;
    free(*memory);
    *memory = malloc(bytes);
    *room = *memory ? bytes : 0;
    return *memory != NULL;
}

/* Makes the machine fit for the launch. */
static bool machine_begin(simt_machine *m, launch *l)
{
    const int32_t threads = l->kernel->threads;
    const size_t shared = (size_t)l->kernel->shared_bytes;
    m->launch = l;
    m->wave = l->kernel->wave;
    if (m->lane_room < threads) {
        for (int32_t t = 0; t < m->lane_room; t++)
            free(m->lanes[t].records), free(m->lanes[t].copies);
        free(m->lanes);
        if (m->stacks)
            munmap(m->stacks, m->stacks_bytes);
        m->lane_room = 0;
        m->lanes = calloc((size_t)threads, sizeof *m->lanes);
        m->stacks_bytes = (size_t)STACK * (size_t)threads;
        m->stacks = mmap(NULL, m->stacks_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (m->stacks == MAP_FAILED)
            m->stacks = NULL;
        if (!m->lanes || !m->stacks)
            return false;
        m->lane_room = threads;
        for (int32_t t = 0; t < threads; t++)
            *(uint64_t *)(m->stacks + (size_t)STACK * (size_t)t) = STACK_END;
    }
    void *arena = m->arena_block, *shadow = m->shadow;
    bool ok = grow(&arena, &m->arena_room, shared + 512);
    m->arena_block = arena;
    ok = ok && grow(&shadow, &m->shadow_room, (shared + 1) * sizeof *m->shadow);
    m->shadow = shadow;
    if (!ok)
        return false;
    /* Aligned to 128 bytes as on hardware, and to no more. */
    m->arena = (unsigned char *)(((uintptr_t)m->arena_block + 255) & ~(uintptr_t)255) + 128;
    memset(&m->count, 0, sizeof m->count);
    memset(m->location, 0, sizeof m->location);
    memset(m->conflicts, 0, sizeof m->conflicts);
    m->last_at = NULL;
    return true;
}

static void *work(void *launch_pointer)
{
    launch *l = launch_pointer;
    simt_lane *before = simt_now;
    simt_machine *m = machine_get();
    int32_t place = 0, fault_place = INT32_MAX;
    const char *fault = NULL;
    if (!m || !machine_begin(m, l)) {
        fault = "the emulated device has no memory";
        fault_place = -1;
    }
    while (!fault && !__atomic_load_n(&l->stop, __ATOMIC_RELAXED) &&
           (place = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->blocks)
        if (!run_block(m, l->order[place]))
            fault = m->fault, fault_place = m->abandoned ? INT32_MAX : place;
    pthread_mutex_lock(&lock);
    if (fault)
        __atomic_store_n(&l->stop, 1, __ATOMIC_RELAXED);
    if (fault && fault_place < l->fault_place) {
        l->fault_place = fault_place;
        snprintf(l->fault, l->fault_cap, "%s", fault);
    }
    if (l->counters && m) {
        counters_lines(m);
        counters_add(l->counters, &m->count);
    }
    pthread_mutex_unlock(&lock);
    if (m)
        machine_put(m);
    simt_now = before;
    return NULL;
}

static uint64_t hash_of(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

int simt_launch(const gpu_kernel *kernel, int32_t blocks, const void *args, simt_counters *counters, char *fault,
                size_t cap)
{
    pthread_once(&once, read_environment);
    launch *l = calloc(1, sizeof *l);
    int32_t *order = malloc(sizeof *order * (size_t)(blocks > 0 ? blocks : 1));
    if (!l || !order || kernel->threads < 1 || kernel->threads % kernel->wave || kernel->threads > SIMT_MAX_THREADS ||
        kernel->args_bytes > ARGS_LIMIT) {
        snprintf(fault, cap, "%s: %d threads of a block, %d bytes of arguments cannot be launched", kernel->name,
                 kernel->threads, kernel->args_bytes);
        free(order);
        free(l);
        return -1;
    }
    *l = (launch){.kernel = kernel, .args = args, .blocks = blocks, .seed = seed ^ hash_of(kernel->name)};
    l->fault = fault, l->fault_cap = cap, l->fault_place = INT32_MAX, l->counters = counters;
    uint64_t random = l->seed;
    shuffle(order, blocks, &random);
    l->order = order;
    fault[0] = 0;
    if (!tensors_of_launch(l)) {
        snprintf(fault, cap, "%s: the emulated device has no memory to watch its tensors", kernel->name);
        l->fault_place = -1;
        l->blocks = 0;
    }
    if (counters) {
        memset(counters, 0, sizeof *counters);
        for (int t = 0; t < l->tensor_count; t++)
            counters->tensor[t].name = l->tensors[t].name;
    }
    pthread_t thread[MAX_WORKERS];
    int32_t started = 0;
    while (started + 1 < workers && started + 1 < blocks && pthread_create(&thread[started], NULL, work, l) == 0)
        started++;
    work(l);
    for (int32_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    const int failed = l->fault_place != INT32_MAX;
    tensors_free(l);
    free(order);
    free(l);
    return failed ? -1 : 0;
}
