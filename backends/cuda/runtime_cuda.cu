// SPDX-License-Identifier: MIT OR Apache-2.0
// runtime_cuda.cu: gpu_runtime on the CUDA runtime, which is linked in statically and private to the plug-in. Plain C in a
// file for nvcc; the one kernel tells at open whether this build has machine code for the device.
//
// Contexts. A thread's current CUDA context is the caller's business. enter() keeps it if it lies on the device; otherwise the
// home context of the gpu_device is current until leave(): the one that was current at kiln_context_create() if it lies on
// the device, else the device's primary context, which every program that uses the CUDA runtime shares. These are driver
// calls; the driver is not linked but found when it is needed.
//
// Allowed while a stream is being captured: launch, copies between device memory, fill, record. None queries the driver or
// allocates.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gpu/gpu_host.h"
#include "tensor_map.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const int error_ = (int)(call);                                                                                \
        if (error_ != 0) return error_;                                                                                \
    } while (0)

// ------------------------------------------------------------------------------------------------- the driver
namespace {
struct driver_functions {
    CUresult (*get_current)(CUcontext *);
    CUresult (*set_current)(CUcontext);
    CUresult (*device_of_current)(CUdevice *);
    CUresult (*context_id)(CUcontext, unsigned long long *);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*retain)(CUcontext *, CUdevice);
    // Since CUDA 12; NULL in an older driver.
    CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                       const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill);
} driver;
int driver_error = cudaErrorInitializationError;
pthread_once_t driver_once = PTHREAD_ONCE_INIT;

int find_all(void *library)
{
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {"cuCtxGetCurrent", &driver.get_current},
        {"cuCtxSetCurrent", &driver.set_current},
        {"cuCtxGetDevice", &driver.device_of_current},
        {"cuCtxGetId", &driver.context_id},
        {"cuDeviceGet", &driver.device_get},
        {"cuDevicePrimaryCtxRetain", &driver.retain},
    };
    for (const auto &f : functions) {
        void *const address = dlsym(library, f.name);
        if (!address) return cudaErrorInsufficientDriver;
        memcpy(f.slot, &address, sizeof address);
    }
    void *const encode = dlsym(library, "cuTensorMapEncodeTiled");
    memcpy(&driver.encode, &encode, sizeof encode);
    return 0;
}

// The library is in the process already when a device was counted. dlsym() has no side effect; the runtime's own way of finding
// these functions may make a context.
void find_driver()
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    driver_error = library ? find_all(library) : (int)cudaErrorInsufficientDriver;
}

int need_driver()
{
    pthread_once(&driver_once, find_driver);
    return driver_error;
}

// Brings the calling thread's context back, whatever the runtime does meanwhile.
struct context_kept {
    CUcontext before = NULL;
    context_kept() { driver.get_current(&before); }
    ~context_kept() { driver.set_current(before); }
};

// ------------------------------------------------------------------------------------------------- devices
const int built_for[] = {__CUDA_ARCH_LIST__}; // ascending: 800, 900, ...

__global__ void runs_here() {}

int architecture_of(int ordinal)
{
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) != cudaSuccess)
        return 0;
    return 10 * major + minor;
}

void explain_no_driver(cudaError_t error, char *reason, size_t cap)
{
    int version = 0;
    if (error == cudaErrorNoDevice)
        snprintf(reason, cap, "the NVIDIA driver finds no device (or CUDA_VISIBLE_DEVICES hides all)");
    else if (error != cudaErrorInsufficientDriver)
        snprintf(reason, cap, "the NVIDIA driver says: %s (error %d)", cudaGetErrorString(error), (int)error);
    else if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
        snprintf(reason, cap, "no NVIDIA driver is installed (libcuda.so.1 cannot be loaded), so there is no device");
    else
        snprintf(reason, cap, "the NVIDIA driver is made for CUDA %d.%d; this plug-in, made with %d.%d, needs a newer one",
                 version / 1000, version % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

int32_t device_count(char *reason, size_t cap)
{
    int count = 0, best = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count <= 0) {
        explain_no_driver(error == cudaSuccess ? cudaErrorNoDevice : error, reason, cap);
        return -1;
    }
    if (need_driver() != 0) {
        explain_no_driver(cudaErrorInsufficientDriver, reason, cap);
        return -1;
    }
    const context_kept kept;
    for (int i = 0; i < count; i++) best = architecture_of(i) > best ? architecture_of(i) : best;
    if (10 * best < built_for[0]) {
        snprintf(reason, cap, "the newest device is sm_%d; this build has machine code from sm_%d on", best, built_for[0] / 10);
        return -1;
    }
    return count;
}

struct native_device {
    CUdevice device;
    CUcontext home;
};

int enter(const gpu_device *device, void **before)
{
    const native_device *native = (const native_device *)device->native;
    CUcontext now = NULL;
    CUdevice on = -1;
    TRY(driver.get_current(&now));
    if (now && driver.device_of_current(&on) == CUDA_SUCCESS && on == native->device) {
        *before = device->native; // no context has this address: nothing to restore
        return 0;
    }
    *before = now;
    return driver.set_current(native->home);
}

void leave(const gpu_device *device, void *before)
{
    if (before != device->native) driver.set_current((CUcontext)before);
}

int read_properties(gpu_device *device)
{
    cudaDeviceProp prop;
    TRY(cudaGetDeviceProperties(&prop, device->ordinal));
    device->units = prop.multiProcessorCount;
    device->architecture = 10 * prop.major + prop.minor;
    device->wave = prop.warpSize;
    device->shared_bytes = (int64_t)prop.sharedMemPerBlockOptin;
    device->shared_per_unit = (int64_t)prop.sharedMemPerMultiprocessor;
    device->l2_bytes = prop.l2CacheSize;
    device->memory_bytes = (int64_t)prop.totalGlobalMem;
    snprintf(device->name, sizeof device->name, "%.127s", prop.name);
    snprintf(device->architecture_name, sizeof device->architecture_name, "sm_%d", device->architecture);
    return 0;
}

// The home context.
int choose_home(const gpu_device *device, native_device *native)
{
    CUcontext now = NULL;
    CUdevice on = -1;
    TRY(driver.device_get(&native->device, device->ordinal));
    TRY(driver.get_current(&now));
    if (now && driver.device_of_current(&on) == CUDA_SUCCESS && on == native->device) native->home = now;
    else TRY(driver.retain(&native->home, native->device)); // for the life of the process, as the runtime itself does
    return driver.set_current(native->home);
}

void device_close(gpu_device *device)
{
    free(device->native);
    device->native = NULL;
}

int device_open(gpu_device *device)
{
    TRY(need_driver());
    native_device *native = (native_device *)calloc(1, sizeof *native);
    if (!native) return cudaErrorMemoryAllocation;
    device->native = native;
    const context_kept kept;
    cudaFuncAttributes attributes;
    int error = choose_home(device, native);
    if (error == 0) error = read_properties(device);
    if (error == 0) error = cudaFuncGetAttributes(&attributes, runs_here); // is there machine code for the device?
    if (error != 0) device_close(device);
    return error;
}

// ------------------------------------------------------------------------------------------------- kernels
enum { SHARED_WITHOUT_ASKING = 48 << 10 };

// (kernel, context) pairs whose limit of shared memory was raised: a set without locks that only grows. A context's id is
// never used again, its address may be. When the set is full, the limit is simply raised again.
enum { RAISED = 1 << 12, TRIES = 8 };
uint64_t raised[RAISED];

uint64_t key_of(const gpu_kernel *kernel, unsigned long long context)
{
    uint64_t key = ((uint64_t)(uintptr_t)kernel << 16 ^ context) * 0x9e3779b97f4a7c15ull;
    return key ? key : 1; // one to one but for 48-bit addresses and 16-bit ids
}

int raise_limit(const gpu_kernel *kernel)
{
    unsigned long long context = 0;
    TRY(driver.context_id(NULL, &context));
    const uint64_t key = key_of(kernel, context);
    uint64_t *slot = NULL;
    for (int i = 0; i < TRIES; i++) {
        slot = &raised[((key >> 40) + i) % RAISED];
        const uint64_t there = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
        if (there == key) return 0;
        if (there == 0) break;
    }
    TRY(cudaFuncSetAttribute((const void *)kernel->entry, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel->shared_bytes));
    __atomic_store_n(slot, key, __ATOMIC_RELEASE); // two threads may write the same slot: one key is forgotten, no more
    return 0;
}

int prepare(const gpu_device *, const gpu_kernel *kernel)
{
    cudaFuncAttributes attributes;
    TRY(cudaFuncGetAttributes(&attributes, (const void *)kernel->entry));
    return kernel->shared_bytes > SHARED_WITHOUT_ASKING ? raise_limit(kernel) : 0;
}

int launch(const gpu_device *, const gpu_kernel *kernel, int32_t blocks, const void *args, kiln_stream stream)
{
    void *parameters[] = {(void *)args};
    if (kernel->shared_bytes > SHARED_WITHOUT_ASKING) TRY(raise_limit(kernel));
    return cudaLaunchKernel((const void *)kernel->entry, dim3((unsigned)blocks), dim3((unsigned)kernel->threads), parameters,
                            (size_t)kernel->shared_bytes, (cudaStream_t)stream);
}

int launch_chained(const gpu_device *, const gpu_kernel *kernel, int32_t blocks, const void *args, kiln_stream stream)
{
    void *parameters[] = {(void *)args};
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks), config.blockDim = dim3((unsigned)kernel->threads);
    config.dynamicSmemBytes = (size_t)kernel->shared_bytes, config.stream = (cudaStream_t)stream;
    config.attrs = &early, config.numAttrs = 1;
    if (kernel->shared_bytes > SHARED_WITHOUT_ASKING) TRY(raise_limit(kernel));
    return cudaLaunchKernelExC(&config, (const void *)kernel->entry, parameters);
}

// ------------------------------------------------------------------------------------------------- memory, streams, events
int device_malloc(size_t bytes, void **pointer) { return cudaMalloc(pointer, bytes); }
int device_free(void *pointer) { return cudaFree(pointer); }

bool on_host(const void *pointer)
{
    cudaPointerAttributes a;
    return cudaPointerGetAttributes(&a, pointer) != cudaSuccess || a.type != cudaMemoryTypeDevice;
}

int copy(void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    TRY(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, (cudaStream_t)stream));
    return on_host(destination) || on_host(source) ? cudaStreamSynchronize((cudaStream_t)stream) : cudaSuccess;
}

int fill(void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    return cudaMemsetAsync(destination, value, bytes, (cudaStream_t)stream);
}

int stream_create(kiln_stream *stream)
{
    return cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking);
}
int stream_destroy(kiln_stream stream) { return cudaStreamDestroy((cudaStream_t)stream); }
int stream_synchronize(kiln_stream stream) { return cudaStreamSynchronize((cudaStream_t)stream); }

int event_create(void **event) { return cudaEventCreate((cudaEvent_t *)event); }
int event_destroy(void *event) { return cudaEventDestroy((cudaEvent_t)event); }
int event_record(void *event, kiln_stream stream) { return cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream); }
int event_elapsed(void *start, void *end, double *milliseconds)
{
    float time = 0;
    TRY(cudaEventSynchronize((cudaEvent_t)end));
    TRY(cudaEventElapsedTime(&time, (cudaEvent_t)start, (cudaEvent_t)end));
    *milliseconds = time;
    return 0;
}

// ------------------------------------------------------------------------------------------------- errors
kiln_status error_status(int error)
{
    if (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread)
        return KILN_UNSUPPORTED; // not while a stream is being captured
    switch (error) {
    case cudaSuccess: return KILN_OK;
    case cudaErrorMemoryAllocation: return KILN_OUT_OF_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle: return KILN_INVALID_ARGUMENT; // a pointer, stream or event that is none of the device
    case cudaErrorNotSupported: return KILN_UNSUPPORTED;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice: return KILN_UNAVAILABLE;
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction: return KILN_INTERNAL;
    default: return KILN_DEVICE_ERROR;
    }
}

const char *error_text(int error)
{
    static __thread char text[256];
    cudaGetLastError(); // what is not sticky is told once
    if (error != cudaErrorNoKernelImageForDevice) return cudaGetErrorString((cudaError_t)error);
    int used = snprintf(text, sizeof text, "this build has machine code for");
    for (int architecture : built_for)
        if (used < (int)sizeof text) used += snprintf(text + used, sizeof text - used, " sm_%d", architecture / 10);
    return text;
}
} // namespace

extern "C" bool gpu_tensor_map_of(const kiln_view *view, int32_t rows, gpu_tensor_map *map)
{
    static_assert(sizeof(CUtensorMap) == sizeof *map && alignof(CUtensorMap) <= alignof(gpu_tensor_map), "one thing, two names");
    cuuint64_t size[4], distance[3]; // columns first
    const cuuint32_t box[4] = {64, (cuuint32_t)rows, 1, 1}, step[4] = {1, 1, 1, 1};
    if (!driver.encode || view->type % 256 != 16) return false;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t n = view->size[3 - axis], stride = view->stride[3 - axis];
        if (n < 1 || (axis > 0 && n > 1 && (stride <= 0 || stride % 8 != 0))) return false;
        size[axis] = (cuuint64_t)n;
        if (axis > 0) distance[axis - 1] = n > 1 ? 2 * (cuuint64_t)stride : 16; // of one row: any that is allowed
    }
    const CUtensorMapDataType type =
        view->type == KILN_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return driver.encode((CUtensorMap *)map, type, 4, view->data, size, distance, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

extern "C" const gpu_runtime gpu_runtime_cuda = {
    "cuda",
    KILN_DEVICE_CUDA,
    100,
    false,
    device_count,
    device_open,
    device_close,
    enter,
    leave,
    prepare,
    launch,
    launch_chained,
    device_malloc,
    device_free,
    copy,
    fill,
    stream_create,
    stream_destroy,
    stream_synchronize,
    event_create,
    event_destroy,
    event_record,
    event_elapsed,
    error_status,
    error_text,
};
