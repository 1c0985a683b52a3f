/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * runtime_hip.c: gpu_runtime on HIP. The library is found at run time: the one that is in the process already, if there is one
 * (two HIP runtimes would not know each other's memory), else the newest; KILN_HIP_LIBRARY names another.
 *
 * Devices. enter() makes the device current for the calling thread, leave() brings back the one that was.
 *
 * Machine code. When a device is opened for the first time, every code object of its architecture is loaded and every kernel
 * looked up; both stay for the life of the process, as the kernels of a program that is linked with HIP do. A launch is
 * then a single call, at any time, also while its stream is being captured. The architecture is found by trying: code objects
 * of the device's generation are offered to it until one loads.
 *
 * Allowed while a stream is being captured: launch, copies between device memory, fill, record.
 */
#include "code_objects.h"
#include "hip_api.h"

#include "../gpu/gpu_host.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIP_NO_CODE_FITS = 1 << 20 }; /* an error of ours, beside HIP's */

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const int error_ = (call);                                                                                     \
        if (error_ != 0)                                                                                               \
            return error_;                                                                                             \
    } while (0)

/* ------------------------------------------------------------------------------------------------- the library */

static hip_api hip;
static char library_name[96] = "libamdhip64.so";
static char library_reason[256]; /* why there is none; empty: there is one */
static pthread_once_t library_once = PTHREAD_ONCE_INIT;

static void find_functions(void *library)
{
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {"hipGetDeviceCount", &hip.GetDeviceCount},
        {"hipGetDevice", &hip.GetDevice},
        {"hipSetDevice", &hip.SetDevice},
        {"hipDeviceGetAttribute", &hip.DeviceGetAttribute},
        {"hipDeviceGetName", &hip.DeviceGetName},
        {"hipDeviceTotalMem", &hip.DeviceTotalMem},
        {"hipModuleLoadData", &hip.ModuleLoadData},
        {"hipModuleUnload", &hip.ModuleUnload},
        {"hipModuleGetFunction", &hip.ModuleGetFunction},
        {"hipModuleLaunchKernel", &hip.ModuleLaunchKernel},
        {"hipMalloc", &hip.Malloc},
        {"hipFree", &hip.Free},
        {"hipMemcpyAsync", &hip.MemcpyAsync},
        {"hipMemsetAsync", &hip.MemsetAsync},
        {"hipPointerGetAttribute", &hip.PointerGetAttribute},
        {"hipStreamCreateWithFlags", &hip.StreamCreateWithFlags},
        {"hipStreamDestroy", &hip.StreamDestroy},
        {"hipStreamSynchronize", &hip.StreamSynchronize},
        {"hipEventCreate", &hip.EventCreate},
        {"hipEventDestroy", &hip.EventDestroy},
        {"hipEventRecord", &hip.EventRecord},
        {"hipEventSynchronize", &hip.EventSynchronize},
        {"hipEventElapsedTime", &hip.EventElapsedTime},
        {"hipGetLastError", &hip.GetLastError},
        {"hipGetErrorString", &hip.GetErrorString},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *const address = dlsym(library, functions[i].name);
        if (!address) {
            snprintf(library_reason, sizeof library_reason, "%s has no %s: it is too old", library_name,
                     functions[i].name);
            return;
        }
        memcpy(functions[i].slot, &address, sizeof address);
    }
}

/* Never closed: a runtime does not survive that. */
static void *open_library(const char *const *names, int count, int flags)
{
    for (int i = 0; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | flags);
        if (library) {
            snprintf(library_name, sizeof library_name, "%s", names[i]);
            return library;
        }
    }
    return NULL;
}

static void find_library(void)
{
    static const char *const known[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so",
                                        "/opt/rocm/lib/libamdhip64.so"};
    enum { KNOWN = sizeof known / sizeof *known };
    const char *named = getenv("KILN_HIP_LIBRARY");
    void *library;
    if (named && named[0])
        library = open_library(&named, 1, 0);
    else if (!(library = open_library(known, KNOWN, RTLD_NOLOAD)))
        library = open_library(known, KNOWN, 0);
    if (library)
        find_functions(library);
    else if (named && named[0])
        snprintf(library_reason, sizeof library_reason, "KILN_HIP_LIBRARY=%.100s cannot be loaded", named);
    else
        snprintf(library_reason, sizeof library_reason,
                 "no ROCm is installed (libamdhip64.so cannot be loaded), so there is no device");
}

/* An error that is no news to the caller: HIP would keep it as his last one. True if there was one. */
static bool forget(int error)
{
    if (error != 0)
        (void)hip.GetLastError();
    return error != 0;
}

/* ------------------------------------------------------------------------------------------------- devices */

/* "gfx942" is 0x942: generation 9.4, stepping 2. */
static int32_t number_of(const char *architecture)
{
    return (int32_t)strtol(architecture + 3, NULL, 16);
}

/* Of gfx942 0x94, as its number says. 0: the device does not tell. */
static int32_t generation_of(int ordinal)
{
    int major = 0, minor = 0;
    if (forget(hip.DeviceGetAttribute(&major, HIP_COMPUTE_CAPABILITY_MAJOR, ordinal)) ||
        forget(hip.DeviceGetAttribute(&minor, HIP_COMPUTE_CAPABILITY_MINOR, ordinal)))
        return 0;
    return major << 4 | minor;
}

static bool may_fit(const hip_code_object *object, int ordinal)
{
    const int32_t generation = generation_of(ordinal);
    return generation == 0 || number_of(object->architecture) >> 4 == generation;
}

/* "gfx90a, gfx942". */
static const char *built_for(char *text, size_t cap)
{
    size_t used = 0;
    text[0] = 0;
    for (const hip_code_object *object = hip_code_objects(hip_kernels); object->architecture && used < cap; object++)
        used += (size_t)snprintf(text + used, cap - used, "%s%s", used ? ", " : "", object->architecture);
    return text;
}

static int32_t device_count(char *reason, size_t cap)
{
    int count = 0;
    char list[96];
    pthread_once(&library_once, find_library);
    if (library_reason[0]) {
        snprintf(reason, cap, "%s", library_reason);
        return -1;
    }
    const int error = hip.GetDeviceCount(&count);
    if (forget(error) && error != HIP_NO_DEVICE) {
        snprintf(reason, cap, "%s says: %s (error %d)", library_name, hip.GetErrorString(error), error);
        return -1;
    }
    if (error != 0 || count <= 0) {
        snprintf(reason, cap, "%s finds no device (or HIP_VISIBLE_DEVICES hides all)", library_name);
        return -1;
    }
    for (int i = 0; i < count; i++)
        for (const hip_code_object *object = hip_code_objects(hip_kernels); object->architecture; object++)
            if (may_fit(object, i))
                return count;
    const int32_t generation = generation_of(0);
    snprintf(reason, cap, "device 0 is of the generation gfx%d.%d; this build has machine code for %s", generation >> 4,
             generation & 15, built_for(list, sizeof list));
    return -1;
}

static int enter(const gpu_device *device, void **before)
{
    int now = 0;
    TRY(hip.GetDevice(&now));
    *before = NULL; /* it is current already: nothing to restore */
    if (now == device->ordinal)
        return 0;
    TRY(hip.SetDevice(device->ordinal));
    *before = (void *)(intptr_t)(now + 1);
    return 0;
}

static void leave(const gpu_device *device, void *before)
{
    (void)device;
    if (before)
        (void)hip.SetDevice((int)(intptr_t)before - 1);
}

/* ------------------------------------------------------------------------------------------------- machine code */

/* What is loaded on a device: once per process. */
typedef struct loaded_device {
    struct loaded_device *next;
    int ordinal;
    const char *architecture;
    uint32_t memory_type; /* what PointerGetAttribute says of the device's memory */
    int32_t module_count;
    void **modules;   /* one a file */
    void **functions; /* by the kernel's place in hip_kernels */
} loaded_device;

static loaded_device *all_loaded;
static pthread_mutex_t loaded_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t kernel_count(void)
{
    return (size_t)(hip_kernels_end - hip_kernels);
}

static void unload(loaded_device *loaded)
{
    for (int32_t i = 0; i < loaded->module_count; i++)
        (void)forget(hip.ModuleUnload(loaded->modules[i]));
    free(loaded->modules);
    free(loaded->functions);
    free(loaded);
}

/* The code objects of place `which` of every file, and their kernels. */
static int load_all(loaded_device *loaded, ptrdiff_t which)
{
    for (size_t i = 0; i < kernel_count(); i++) {
        const hip_code_object *objects = hip_code_objects(&hip_kernels[i]);
        if (i == 0 || objects != hip_code_objects(&hip_kernels[i - 1])) {
            TRY(hip.ModuleLoadData(&loaded->modules[loaded->module_count], objects[which].image));
            loaded->module_count++;
        }
        TRY(hip.ModuleGetFunction(&loaded->functions[i], loaded->modules[loaded->module_count - 1],
                                  hip_kernels[i].name));
    }
    return 0;
}

/* Which architecture the device takes: the place in every file's list. */
static int find_architecture(loaded_device *loaded, ptrdiff_t *which)
{
    const hip_code_object *objects = hip_code_objects(hip_kernels);
    for (*which = 0; objects[*which].architecture; ++*which) {
        void *module = NULL;
        if (!may_fit(&objects[*which], loaded->ordinal))
            continue;
        const int error = hip.ModuleLoadData(&module, objects[*which].image);
        if (error == HIP_OUT_OF_MEMORY)
            return error;
        if (forget(error))
            continue;
        (void)forget(hip.ModuleUnload(module));
        loaded->architecture = objects[*which].architecture;
        return 0;
    }
    return HIP_NO_CODE_FITS;
}

/* The numbers of hipMemoryType depend on ROCm's version; a piece of memory shows which it is. */
static int find_memory_type(loaded_device *loaded)
{
    void *piece = NULL;
    TRY(hip.Malloc(&piece, 256));
    const int error = hip.PointerGetAttribute(&loaded->memory_type, HIP_POINTER_MEMORY_TYPE, piece);
    const int freed = hip.Free(piece);
    return error ? error : freed;
}

/* The device is current. */
static int load_device(int ordinal, loaded_device **result)
{
    loaded_device *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        return HIP_OUT_OF_MEMORY;
    loaded->ordinal = ordinal;
    loaded->modules = calloc(kernel_count(), sizeof(void *));
    loaded->functions = calloc(kernel_count(), sizeof(void *));
    ptrdiff_t which = 0;
    int error = loaded->modules && loaded->functions ? 0 : HIP_OUT_OF_MEMORY;
    if (error == 0)
        error = find_architecture(loaded, &which);
    if (error == 0)
        error = load_all(loaded, which);
    if (error == 0)
        error = find_memory_type(loaded);
    if (error != 0) {
        unload(loaded);
        return error;
    }
    *result = loaded;
    return 0;
}

static int find_loaded(int ordinal, loaded_device **result)
{
    int error = 0;
    pthread_mutex_lock(&loaded_lock);
    for (*result = all_loaded; *result && (*result)->ordinal != ordinal;)
        *result = (*result)->next;
    if (!*result && (error = load_device(ordinal, result)) == 0) {
        (*result)->next = all_loaded;
        __atomic_store_n(&all_loaded, *result, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&loaded_lock);
    return error;
}

static int read_properties(gpu_device *device)
{
    int shared = 0, shared_per_unit = 0, l2 = 0;
    size_t memory = 0;
    const struct {
        int which;
        int *value;
    } attributes[] = {{HIP_MULTIPROCESSOR_COUNT, &device->units},
                      {HIP_WARP_SIZE, &device->wave},
                      {HIP_SHARED_MEMORY_PER_BLOCK, &shared},
                      {HIP_SHARED_MEMORY_PER_MULTIPROCESSOR, &shared_per_unit},
                      {HIP_L2_CACHE_SIZE, &l2}};
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        TRY(hip.DeviceGetAttribute(attributes[i].value, attributes[i].which, device->ordinal));
    TRY(hip.DeviceGetName(device->name, sizeof device->name, device->ordinal));
    TRY(hip.DeviceTotalMem(&memory, device->ordinal));
    device->shared_bytes = shared;
    device->shared_per_unit = shared_per_unit;
    device->l2_bytes = l2;
    device->memory_bytes = (int64_t)memory;
    return 0;
}

static int open_current(gpu_device *device)
{
    loaded_device *loaded = NULL;
    TRY(read_properties(device));
    TRY(find_loaded(device->ordinal, &loaded));
    device->architecture = number_of(loaded->architecture);
    snprintf(device->architecture_name, sizeof device->architecture_name, "%s", loaded->architecture);
    device->native = loaded;
    return 0;
}

static int device_open(gpu_device *device)
{
    void *before = NULL;
    TRY(enter(device, &before));
    const int error = open_current(device);
    leave(device, before);
    return error;
}

static int launch(const gpu_device *device, const gpu_kernel *kernel, int32_t blocks, const void *args,
                  kiln_stream stream)
{
    const loaded_device *loaded = device->native;
    void *parameters[] = {(void *)(uintptr_t)args};
    const int32_t most = INT32_MAX / kernel->threads; /* HIP counts threads; each block takes several items */
    return hip.ModuleLaunchKernel(loaded->functions[kernel - hip_kernels], (unsigned)(blocks < most ? blocks : most), 1,
                                  1, (unsigned)kernel->threads, 1, 1, 0, stream, parameters, NULL);
}

/* --------------------------------------------------------------------------------------- memory, streams, events */

static int device_malloc(size_t bytes, void **pointer)
{
    return hip.Malloc(pointer, bytes);
}

static int device_free(void *pointer)
{
    return hip.Free(pointer);
}

static bool on_host(const void *pointer)
{
    /* One runtime has one numbering: any device's will do, and one is open. */
    uint32_t type = 0;
    if (forget(hip.PointerGetAttribute(&type, HIP_POINTER_MEMORY_TYPE, (void *)(uintptr_t)pointer)))
        return true; /* memory that HIP does not know */
    return type != __atomic_load_n(&all_loaded, __ATOMIC_ACQUIRE)->memory_type;
}

static int copy(void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    TRY(hip.MemcpyAsync(destination, source, bytes, HIP_MEMCPY_DEFAULT, stream));
    return on_host(destination) || on_host(source) ? hip.StreamSynchronize(stream) : 0;
}

static int fill(void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    return hip.MemsetAsync(destination, value, bytes, stream);
}

static int stream_create(kiln_stream *stream)
{
    return hip.StreamCreateWithFlags(stream, HIP_STREAM_NON_BLOCKING);
}

static int stream_destroy(kiln_stream stream)
{
    return hip.StreamDestroy(stream);
}

static int stream_synchronize(kiln_stream stream)
{
    return hip.StreamSynchronize(stream);
}

static int event_create(void **event)
{
    return hip.EventCreate(event);
}

static int event_destroy(void *event)
{
    return hip.EventDestroy(event);
}

static int event_record(void *event, kiln_stream stream)
{
    return hip.EventRecord(event, stream);
}

static int event_elapsed(void *start, void *end, double *milliseconds)
{
    float time = 0;
    TRY(hip.EventSynchronize(end));
    TRY(hip.EventElapsedTime(&time, start, end));
    *milliseconds = time;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- errors */

static kiln_status error_status(int error)
{
    if (error >= HIP_CAPTURE_UNSUPPORTED && error <= HIP_CAPTURE_WRONG_THREAD)
        return KILN_UNSUPPORTED; /* not while a stream is being captured */
    switch (error) {
    case 0: return KILN_OK;
    case HIP_OUT_OF_MEMORY: return KILN_OUT_OF_MEMORY;
    case HIP_INVALID_VALUE:
    case HIP_INVALID_DEVICE_POINTER:
    case HIP_INVALID_HANDLE: return KILN_INVALID_ARGUMENT; /* a pointer, stream or event that HIP does not know */
    case HIP_NOT_SUPPORTED: return KILN_UNSUPPORTED;
    case HIP_NO_CODE_FITS:
    case HIP_NO_BINARY_FOR_GPU:
    case HIP_INSUFFICIENT_DRIVER:
    case HIP_NO_DEVICE:
    case HIP_INVALID_DEVICE: return KILN_UNAVAILABLE;
    case HIP_INVALID_CONFIGURATION:
    case HIP_INVALID_DEVICE_FUNCTION:
    case HIP_NOT_FOUND: return KILN_INTERNAL;
    default: return KILN_DEVICE_ERROR;
    }
}

static const char *error_text(int error)
{
    static _Thread_local char text[160];
    char list[96];
    (void)hip.GetLastError(); /* it is told here, and not again to the caller */
    if (error != HIP_NO_CODE_FITS && error != HIP_NO_BINARY_FOR_GPU)
        return hip.GetErrorString(error);
    snprintf(text, sizeof text, "this build has machine code for %s, and none runs there",
             built_for(list, sizeof list));
    return text;
}

const gpu_runtime gpu_runtime_hip = {
    .name = "hip",
    .device_type = KILN_DEVICE_ROCM,
    .score = 100,
    .device_count = device_count,
    .device_open = device_open,
    .enter = enter,
    .leave = leave,
    .launch = launch,
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
    .error_status = error_status,
    .error_text = error_text,
};
