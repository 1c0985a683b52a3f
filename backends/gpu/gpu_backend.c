/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * gpu_backend.c: the slots of common/backend.h on top of a gpu_runtime, the same for every GPU backend. Glue only: methods
 * are chosen by gpu_select.c and do the work.
 *
 * Every call that touches the device makes it current for its own duration (enter, leave). Cost of a call beyond its
 * launches: three walks through the list of methods and one enter and leave; no allocation, no query of the driver.
 */
#include "gpu_host.h"

#include <stdio.h>
#include <stdlib.h>

enum { WHY = 384 };

/* Set by the entry before anybody can call a slot. The same pointer whenever it is set. */
static const kiln_services *services;

/* ------------------------------------------------------------------------------------------------------- errors */

/* `what` failed with this error of the runtime (0 = it did not). */
static kiln_status check(const gpu_device *device, int error, const char *what)
{
    if (error == 0)
        return KILN_OK;
    const gpu_runtime *runtime = device->runtime;
    return services->fail(runtime->error_status(error), "%s device %d: %s: %s (error %d)", runtime->name,
                          device->ordinal, what, runtime->error_text(error), error);
}

static int enter(const gpu_device *device, void **before)
{
    *before = NULL;
    return device->runtime->enter ? device->runtime->enter(device, before) : 0;
}

static void leave(const gpu_device *device, void *before)
{
    if (device->runtime->leave)
        device->runtime->leave(device, before);
}

/* Runs one call of the runtime with the device current: GUARDED(device, "cudaMalloc", runtime->malloc(...)). */
#define GUARDED(device, what, call)                                                                                    \
    do {                                                                                                               \
        void *before_;                                                                                                 \
        int error_ = enter(device, &before_);                                                                          \
        if (error_ != 0)                                                                                               \
            return check(device, error_, "the device could not be made current");                                      \
        error_ = (call);                                                                                               \
        kiln_status status_ = check(device, error_, what);                                                             \
        leave(device, before_);                                                                                        \
        return status_;                                                                                                \
    } while (0)

/* ------------------------------------------------------------------------------------------ for methods, inside run() */

typedef int launch_function(const gpu_device *device, const gpu_kernel *kernel, int32_t blocks, const void *args,
                            kiln_stream stream);

static kiln_status launch_by(launch_function *function, const gpu_device *device, const gpu_kernel *kernel,
                             const void *args, int64_t max_blocks, kiln_stream stream)
{
    int64_t blocks = *(const int64_t *)args;
    if (blocks <= 0)
        return KILN_OK;
    if (max_blocks > 0 && blocks > max_blocks)
        blocks = max_blocks;
    if (blocks > INT32_MAX) /* the grid's limit; each block takes several items */
        blocks = INT32_MAX;
    return check(device, function(device, kernel, (int32_t)blocks, args, stream), kernel->name);
}

kiln_status gpu_launch(const gpu_device *device, const gpu_kernel *kernel, const void *args, int64_t max_blocks,
                       kiln_stream stream)
{
    return launch_by(device->runtime->launch, device, kernel, args, max_blocks, stream);
}

kiln_status gpu_launch_chained(const gpu_device *device, const gpu_kernel *kernel, const void *args, int64_t max_blocks,
                               kiln_stream stream)
{
    const gpu_runtime *runtime = device->runtime;
    return launch_by(runtime->launch_chained ? runtime->launch_chained : runtime->launch, device, kernel, args,
                     max_blocks, stream);
}

kiln_status gpu_fill(const gpu_device *device, void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    return bytes == 0 ? KILN_OK
                      : check(device, device->runtime->fill(destination, value, bytes, stream), "filling memory");
}

/* ------------------------------------------------------------------------------------------------------- devices */

int32_t gpu_backend_probe(const gpu_runtime *runtime, char *reason, size_t cap)
{
    if (cap)
        reason[0] = '\0';
    return runtime->device_count(reason, cap) > 0 ? runtime->score : -1;
}

int32_t gpu_backend_device_count(const gpu_runtime *runtime)
{
    char unused[8];
    int32_t count = runtime->device_count(unused, sizeof unused);
    return count > 0 ? count : 0;
}

kiln_status gpu_backend_open(const gpu_runtime *runtime, const gpu_method *const *methods,
                             const kiln_open_options *options, void **state)
{
    gpu_device *device = calloc(1, sizeof *device);
    if (!device)
        return services->fail(KILN_OUT_OF_MEMORY, "no memory for the state of a %s context", runtime->name);
    device->services = services;
    device->runtime = runtime;
    device->methods = methods;
    device->ordinal = options->device;
    kiln_status status = check(device, runtime->device_open(device), "it could not be opened");
    if (status != KILN_OK) {
        free(device);
        return status;
    }
    options->log(options->log_user, KILN_LOG_DEBUG, "%s: device %d is %s, %s, %d units", runtime->name, device->ordinal,
                 device->name, device->architecture_name, device->units);
    *state = device;
    return KILN_OK;
}

static void close_device(void *state)
{
    gpu_device *device = state;
    if (device->runtime->device_close)
        device->runtime->device_close(device);
    free(device);
}

static kiln_status info(void *state, kiln_device_info *info)
{
    const gpu_device *device = state;
    info->name = device->name;
    info->architecture = device->architecture_name;
    info->device = (kiln_device){device->runtime->device_type, device->ordinal};
    info->units = device->units;
    info->memory_bytes = device->memory_bytes;
    info->l1_bytes = device->shared_per_unit;
    info->l2_bytes = device->l2_bytes;
    return KILN_OK;
}

/* ---------------------------------------------------------------------------------------------------- operations */

/* The method, or NULL with *status set and the thread's error sentence written. */
static const gpu_method *choose(const gpu_device *device, const kiln_problem *problem, kiln_status *status)
{
    char why[WHY] = "";
    bool unknown = false;
    const gpu_method *method = gpu_select(device, problem, &unknown, why, sizeof why);
    *status = KILN_OK;
    if (!method)
        *status = services->fail(unknown ? KILN_INVALID_ARGUMENT : KILN_UNSUPPORTED, "%s", why);
    return method;
}

static kiln_status supports(void *state, const kiln_problem *problem, char *why, size_t cap)
{
    kiln_status status;
    const gpu_method *method = choose(state, problem, &status);
    if (method && why && cap)
        snprintf(why, cap, "%s: %s", method->algorithm, method->name);
    return status;
}

static kiln_status workspace(void *state, const kiln_problem *problem, size_t *bytes)
{
    kiln_status status;
    const gpu_method *method = choose(state, problem, &status);
    if (method)
        *bytes = method->workspace ? method->workspace(state, problem) : 0;
    return status;
}

static kiln_status prepare(void *state, const kiln_problem *problem)
{
    const gpu_device *device = state;
    kiln_status status;
    const gpu_method *method = choose(device, problem, &status);
    if (!method || !method->kernel || !device->runtime->prepare)
        return status;
    void *before;
    status = check(device, enter(device, &before), "the device could not be made current");
    if (status != KILN_OK)
        return status;
    const gpu_kernel *kernel;
    for (int32_t i = 0; status == KILN_OK && (kernel = method->kernel(device, problem, i)); i++)
        status = check(device, device->runtime->prepare(device, kernel), kernel->name);
    leave(device, before);
    return status;
}

static kiln_status run(void *state, const kiln_problem *problem, void *memory, size_t bytes, kiln_stream stream)
{
    const gpu_device *device = state;
    kiln_status status;
    const gpu_method *method = choose(device, problem, &status);
    if (!method)
        return status;
    (void)bytes; /* large enough, says the dispatch layer */
    void *before;
    status = check(device, enter(device, &before), "the device could not be made current");
    if (status != KILN_OK)
        return status;
    status = method->run(device, problem, memory, stream);
    leave(device, before);
    return status;
}

static kiln_status numerics(void *state, const kiln_problem *problem, kiln_numerics *result)
{
    kiln_status status;
    const gpu_method *method = choose(state, problem, &status);
    if (method)
        method->numerics(state, problem, result);
    return status;
}

/* ---------------------------------------------------------------------------------------- memory, streams, events */

static kiln_status device_malloc(void *state, size_t bytes, void **pointer)
{
    const gpu_device *device = state;
    char what[48];
    *pointer = NULL;
    if (bytes == 0)
        return KILN_OK;
    snprintf(what, sizeof what, "allocating %zu bytes", bytes);
    GUARDED(device, what, device->runtime->malloc(bytes, pointer));
}

static kiln_status device_free(void *state, void *pointer)
{
    const gpu_device *device = state;
    GUARDED(device, "freeing memory", device->runtime->free(pointer));
}

static kiln_status copy(void *state, void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    const gpu_device *device = state;
    GUARDED(device, "copying", device->runtime->copy(destination, source, bytes, stream));
}

static kiln_status fill(void *state, void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    const gpu_device *device = state;
    GUARDED(device, "filling memory", device->runtime->fill(destination, value, bytes, stream));
}

static kiln_status stream_create(void *state, kiln_stream *stream)
{
    const gpu_device *device = state;
    GUARDED(device, "creating a stream", device->runtime->stream_create(stream));
}

static kiln_status stream_destroy(void *state, kiln_stream stream)
{
    const gpu_device *device = state;
    if (!stream) /* the default stream is nobody's to destroy */
        return KILN_OK;
    GUARDED(device, "destroying a stream", device->runtime->stream_destroy(stream));
}

static kiln_status stream_synchronize(void *state, kiln_stream stream)
{
    const gpu_device *device = state;
    GUARDED(device, "waiting for a stream", device->runtime->stream_synchronize(stream));
}

static kiln_status event_create(void *state, void **event)
{
    const gpu_device *device = state;
    *event = NULL;
    GUARDED(device, "creating an event", device->runtime->event_create(event));
}

static kiln_status event_destroy(void *state, void *event)
{
    const gpu_device *device = state;
    GUARDED(device, "destroying an event", device->runtime->event_destroy(event));
}

static kiln_status event_record(void *state, void *event, kiln_stream stream)
{
    const gpu_device *device = state;
    GUARDED(device, "recording an event", device->runtime->event_record(event, stream));
}

static kiln_status event_elapsed(void *state, void *start, void *end, double *milliseconds)
{
    const gpu_device *device = state;
    GUARDED(device, "the time between two events", device->runtime->event_elapsed(start, end, milliseconds));
}

void gpu_backend_table(kiln_backend *table, const gpu_runtime *runtime, const kiln_services *host_services)
{
    __atomic_store_n(&services, host_services, __ATOMIC_RELEASE);
    if (table->abi != 0) /* the same file by another path: it may be in use */
        return;
    table->struct_size = sizeof *table;
    table->name = runtime->name;
    table->close = close_device;
    table->info = info;
    table->supports = supports;
    table->workspace = workspace;
    table->prepare = prepare;
    table->run = run;
    table->numerics = numerics;
    table->host_readable = runtime->host_readable;
    table->malloc = device_malloc;
    table->free = device_free;
    table->copy = copy;
    table->fill = fill;
    table->stream_create = stream_create;
    table->stream_destroy = stream_destroy;
    table->stream_synchronize = stream_synchronize;
    table->event_create = event_create;
    table->event_destroy = event_destroy;
    table->event_record = event_record;
    table->event_elapsed = event_elapsed;
    table->abi = KILN_BACKEND_ABI;
}
