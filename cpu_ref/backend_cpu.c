/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * backend_cpu.c: the vtable of the CPU backend. Glue only: kernels are chosen in select.c and live in *.inc.h.
 *
 * One device, "0". Everything is synchronous, so the only stream is NULL, device memory is host memory and an event is a
 * time stamp. A context's state is immutable after open(); any number of calls may run on it at a time.
 */
#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "../common/fp_env.h"
#include "../common/topology.h"

enum { ALIGNMENT = 256, WHY = 384 };
/* More workers than this are not used: an absurd max_threads must not make the OpenMP runtime end the process because it
 * cannot create the threads. */
enum { MOST_THREADS = 4096 };

/* Set by the entry before anybody can call a slot. The same pointer whenever it is set. */
static const kiln_services *services;

static kiln_status check_stream(kiln_stream stream)
{
    return stream ? services->fail(KILN_INVALID_ARGUMENT, "stream is %p; the cpu backend is synchronous, pass NULL",
                                   stream)
                  : KILN_OK;
}

static int32_t probe(char *reason, size_t cap)
{
    if (cap)
        reason[0] = '\0';
    return 1; /* works everywhere; every usable GPU comes first */
}

static int32_t device_count(void)
{
    return 1;
}

static int32_t choose_threads(const kiln_open_options *options)
{
    int32_t threads = options->max_threads;
    if (threads <= 0)
        threads = kiln_topology_get()->processors;
#ifdef _OPENMP
    if (options->max_threads <= 0 && !options->parallel_for)
        threads = omp_get_max_threads();
#endif
    return threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
}

static kiln_status open_device(const kiln_open_options *options, void **state)
{
    if (options->device != 0)
        return services->fail(KILN_UNAVAILABLE, "device is %d; the cpu backend has only device 0", options->device);
    kiln_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return services->fail(KILN_OUT_OF_MEMORY, "no memory for the state of a cpu context");
    const kiln_topology *topology = kiln_topology_get();
    cpu->services = services;
    cpu->isa = kiln_cpu_choose_isa(options);
    cpu->threads = choose_threads(options);
    cpu->parallel_for = options->parallel_for;
    cpu->parallel_for_user = options->parallel_for_user;
    cpu->l1_bytes = topology->l1_bytes;
    cpu->l2_bytes = topology->l2_bytes;
    options->log(options->log_user, KILN_LOG_DEBUG, "cpu: %s, %s kernels, %d threads, caches from %s",
                 topology->cpu_name, cpu->isa->name, cpu->threads, topology->source);
    *state = cpu;
    return KILN_OK;
}

static void close_device(void *state)
{
    free(state);
}

static kiln_status info(void *state, kiln_device_info *info)
{
    const kiln_cpu *cpu = state;
    const kiln_topology *topology = kiln_topology_get();
    info->name = topology->cpu_name;
    info->architecture = cpu->isa->name;
    info->device = (kiln_device){KILN_DEVICE_CPU, 0};
    info->units = cpu->threads;
    info->numa_nodes = topology->numa_nodes;
    info->memory_bytes = topology->memory_bytes;
    info->l1_bytes = topology->l1_bytes;
    info->l2_bytes = topology->l2_bytes;
    info->l3_bytes = topology->l3_bytes;
    return KILN_OK;
}

/* The kernel, or NULL with *status set and the thread's error sentence written. */
static const kiln_cpu_kernel *choose(const kiln_cpu *cpu, const kiln_problem *problem, kiln_status *status)
{
    char why[WHY] = "";
    bool unknown = false;
    const kiln_cpu_kernel *kernel = kiln_cpu_select(cpu, problem, &unknown, why, sizeof why);
    *status = KILN_OK;
    if (!kernel)
        *status = services->fail(unknown ? KILN_INVALID_ARGUMENT : KILN_UNSUPPORTED, "%s", why);
    return kernel;
}

static kiln_status supports(void *state, const kiln_problem *problem, char *why, size_t cap)
{
    kiln_status status;
    const kiln_cpu_kernel *kernel = choose(state, problem, &status);
    if (kernel && why && cap)
        snprintf(why, cap, "%s: %s", kernel->algorithm, kernel->name);
    return status;
}

static kiln_status workspace(void *state, const kiln_problem *problem, size_t *bytes)
{
    kiln_status status;
    const kiln_cpu_kernel *kernel = choose(state, problem, &status);
    if (kernel)
        *bytes = kernel->workspace(state, problem, kiln_cpu_workers(state, problem));
    return status;
}

static kiln_status run(void *state, const kiln_problem *problem, void *memory, size_t bytes, kiln_stream stream)
{
    kiln_status status = check_stream(stream);
    if (status != KILN_OK)
        return status;
    const kiln_cpu_kernel *kernel = choose(state, problem, &status);
    if (!kernel)
        return status;
    (void)bytes;                             /* large enough, says the dispatch layer */
    kiln_fp_env saved = kiln_fp_env_enter(); /* for what kernels do between their parallel loops */
    kernel->run(state, problem, memory, kiln_cpu_workers(state, problem));
    kiln_fp_env_leave(saved);
    return KILN_OK;
}

static kiln_status numerics(void *state, const kiln_problem *problem, kiln_numerics *result)
{
    kiln_status status;
    const kiln_cpu_kernel *kernel = choose(state, problem, &status);
    if (kernel)
        kernel->numerics(problem, result);
    return status;
}

static kiln_status device_malloc(void *state, size_t bytes, void **pointer)
{
    (void)state;
    *pointer = NULL;
    if (bytes == 0)
        return KILN_OK;
    if (bytes <= SIZE_MAX - ALIGNMENT) /* aligned_alloc wants a multiple of the alignment */
        *pointer = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    return *pointer ? KILN_OK : services->fail(KILN_OUT_OF_MEMORY, "no host memory for %zu bytes", bytes);
}

static kiln_status device_free(void *state, void *pointer)
{
    (void)state;
    free(pointer);
    return KILN_OK;
}

static kiln_status copy(void *state, void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    (void)state;
    kiln_status status = check_stream(stream);
    if (status == KILN_OK && bytes)
        memcpy(destination, source, bytes);
    return status;
}

static kiln_status fill(void *state, void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    (void)state;
    kiln_status status = check_stream(stream);
    if (status == KILN_OK && bytes)
        memset(destination, value, bytes);
    return status;
}

static kiln_status stream_create(void *state, kiln_stream *stream)
{
    (void)state;
    *stream = NULL;
    return KILN_OK;
}

static kiln_status stream_destroy(void *state, kiln_stream stream)
{
    (void)state;
    return check_stream(stream);
}

static kiln_status stream_synchronize(void *state, kiln_stream stream)
{
    (void)state;
    return check_stream(stream);
}

typedef struct cpu_event {
    bool recorded;
    struct timespec time;
} cpu_event;

static kiln_status event_create(void *state, void **event)
{
    (void)state;
    *event = calloc(1, sizeof(cpu_event));
    return *event ? KILN_OK : services->fail(KILN_OUT_OF_MEMORY, "no memory for an event");
}

static kiln_status event_destroy(void *state, void *event)
{
    (void)state;
    free(event);
    return KILN_OK;
}

static kiln_status event_record(void *state, void *event, kiln_stream stream)
{
    (void)state;
    cpu_event *e = event;
    kiln_status status = check_stream(stream);
    if (status == KILN_OK) {
        clock_gettime(CLOCK_MONOTONIC, &e->time);
        e->recorded = true;
    }
    return status;
}

static kiln_status event_elapsed(void *state, void *start, void *end, double *milliseconds)
{
    (void)state;
    const cpu_event *a = start, *b = end;
    if (!a->recorded || !b->recorded)
        return services->fail(KILN_INVALID_ARGUMENT, "the %s event was not recorded", a->recorded ? "end" : "start");
    *milliseconds =
        1e3 * (double)(b->time.tv_sec - a->time.tv_sec) + 1e-6 * (double)(b->time.tv_nsec - a->time.tv_nsec);
    return KILN_OK;
}

static const kiln_backend backend = {
    .abi = KILN_BACKEND_ABI,
    .struct_size = sizeof(kiln_backend),
    .name = "cpu",
    .probe = probe,
    .device_count = device_count,
    .open = open_device,
    .close = close_device,
    .info = info,
    .supports = supports,
    .workspace = workspace,
    .prepare = NULL,
    .run = run,
    .numerics = numerics,
    .host_readable = true,
    .malloc = device_malloc,
    .free = device_free,
    .copy = copy,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_elapsed = event_elapsed,
};

const kiln_backend *kiln_cpu_backend(const kiln_services *host_services, uint32_t index)
{
    if (index > 0)
        return NULL;
    __atomic_store_n(&services, host_services, __ATOMIC_RELEASE);
    return &backend;
}
