/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * runtime_simt.c: gpu_runtime on the host. Device memory is host memory and says so (KILN_DEVICE_CPU): whoever reads a tensor's
 * device would otherwise take it for memory that the host must not touch, or that the vendor's library may. So tensors of the
 * CPU backend can be given to an emulated device and the other way round. A launch has ended when it returns; a fault of a
 * kernel is the launch's error, with the report as its text. Streams and events are names.
 */
#include "runtime_simt.h"
#include "simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FAULT = 1, NO_MEMORY = 2 };

static _Thread_local char fault_text[512];

static int32_t device_count(char *reason, size_t cap)
{
#if defined(__x86_64__) && defined(__AVX2__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        snprintf(reason, cap, "the emulated device was built for processors with AVX2, F16C and FMA");
        return -1;
    }
#endif
    (void)reason, (void)cap;
    return 1;
}

static void describe(gpu_device *device, const char *name, const char *architecture)
{
    device->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    snprintf(device->name, sizeof device->name, "%s", name);
    snprintf(device->architecture_name, sizeof device->architecture_name, "%s", architecture);
}

static int open_cuda(gpu_device *device)
{
    device->units = 108;
    device->architecture = 80;
    device->wave = 32;
    device->shared_bytes = 163 << 10;
    device->shared_per_unit = 164 << 10;
    device->l2_bytes = 40 << 20;
    describe(device, "emulated NVIDIA A100", "sm_80, emulated");
    return 0;
}

static int open_hip(gpu_device *device)
{
    device->units = 304;
    device->architecture = 0x942;
    device->wave = 64;
    device->shared_bytes = device->shared_per_unit = 64 << 10;
    device->l2_bytes = 4 << 20;
    describe(device, "emulated AMD Instinct MI300X", "gfx942, emulated");
    return 0;
}

static int launch_kernel(const gpu_device *device, const gpu_kernel *kernel, int32_t blocks, const void *args,
                         kiln_stream stream)
{
    (void)stream;
    if (kernel->shared_bytes > device->shared_bytes) {
        snprintf(fault_text, sizeof fault_text, "%s needs %d bytes of shared memory, a block may have %lld",
                 kernel->name, kernel->shared_bytes, (long long)device->shared_bytes);
        return FAULT;
    }
    const char *file = simt_counters_file();
    simt_counters *counters = file ? malloc(sizeof *counters) : NULL;
    int error = simt_launch(kernel, blocks, args, counters, fault_text, sizeof fault_text) == 0 ? 0 : FAULT;
    if (error == 0 && file && (!counters || !simt_counters_append(file, kernel, blocks, counters))) {
        snprintf(fault_text, sizeof fault_text, "the counters cannot be written to KILN_SIMT_COUNTERS=%s", file);
        error = FAULT;
    }
    free(counters);
    return error;
}

static int memory_get(size_t bytes, void **pointer)
{
    *pointer = bytes <= SIZE_MAX - 255 ? aligned_alloc(256, (bytes + 255) & ~(size_t)255) : NULL;
    return *pointer ? 0 : NO_MEMORY;
}

static int memory_free(void *pointer)
{
    free(pointer);
    return 0;
}

static int memory_copy(void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    (void)stream;
    memmove(destination, source, bytes);
    return 0;
}

static int memory_fill(void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    (void)stream;
    memset(destination, value, bytes);
    return 0;
}

static int stream_create(kiln_stream *stream)
{
    *stream = malloc(1);
    return *stream ? 0 : NO_MEMORY;
}

static int stream_destroy(kiln_stream stream)
{
    free(stream);
    return 0;
}

static int stream_synchronize(kiln_stream stream)
{
    (void)stream;
    return 0;
}

static int event_create(void **event)
{
    *event = calloc(1, sizeof(struct timespec));
    return *event ? 0 : NO_MEMORY;
}

static int event_destroy(void *event)
{
    free(event);
    return 0;
}

static int event_record(void *event, kiln_stream stream)
{
    (void)stream;
    return clock_gettime(CLOCK_MONOTONIC, event) == 0 ? 0 : FAULT;
}

static int event_elapsed(void *start, void *end, double *milliseconds)
{
    const struct timespec *a = start, *b = end;
    *milliseconds = (double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6;
    return 0;
}

static kiln_status error_status(int error)
{
    return error == NO_MEMORY ? KILN_OUT_OF_MEMORY : KILN_DEVICE_ERROR;
}

static const char *error_text(int error)
{
    return error == NO_MEMORY ? "out of memory" : fault_text;
}

/* clang-format off */
#define RUNTIME(runtime_name, open)                                                                                    \
    {.name = runtime_name, .device_type = KILN_DEVICE_CPU, .score = 0, .host_readable = true,                          \
     .device_count = device_count, .device_open = open, .launch = launch_kernel,                                       \
     .malloc = memory_get, .free = memory_free, .copy = memory_copy, .fill = memory_fill,                              \
     .stream_create = stream_create, .stream_destroy = stream_destroy, .stream_synchronize = stream_synchronize,       \
     .event_create = event_create, .event_destroy = event_destroy, .event_record = event_record,                       \
     .event_elapsed = event_elapsed, .error_status = error_status, .error_text = error_text}
/* clang-format on */

const gpu_runtime gpu_runtime_simt_cuda = RUNTIME("simt-cuda", open_cuda);
const gpu_runtime gpu_runtime_simt_hip = RUNTIME("simt-hip", open_hip);
