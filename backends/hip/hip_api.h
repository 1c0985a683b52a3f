/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hip_api.h: the part of HIP's C API that the backend uses, declared here so that neither ROCm's headers nor its library are
 * needed to build or to load the plug-in. Only functions, plain types and numbers that are the same from ROCm 5 to 7:
 * no struct (hipDeviceProp_t changed in ROCm 6), no hipMemoryType (renumbered in ROCm 6).
 */
#ifndef KILN_BACKENDS_HIP_API_H
#define KILN_BACKENDS_HIP_API_H

#include <stddef.h>

typedef struct hip_api {
    int (*GetDeviceCount)(int *count);
    int (*GetDevice)(int *device);
    int (*SetDevice)(int device);
    int (*DeviceGetAttribute)(int *value, int attribute, int device);
    int (*DeviceGetName)(char *name, int length, int device);
    int (*DeviceTotalMem)(size_t *bytes, int device);
    int (*ModuleLoadData)(void **module, const void *image);
    int (*ModuleUnload)(void *module);
    int (*ModuleGetFunction)(void **function, void *module, const char *name);
    int (*ModuleLaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
                              void **parameters, void **extra);
    int (*Malloc)(void **pointer, size_t bytes);
    int (*Free)(void *pointer);
    int (*MemcpyAsync)(void *destination, const void *source, size_t bytes, int kind, void *stream);
    int (*MemsetAsync)(void *destination, int value, size_t bytes, void *stream);
    int (*PointerGetAttribute)(void *data, int attribute, void *pointer);
    int (*StreamCreateWithFlags)(void **stream, unsigned flags);
    int (*StreamDestroy)(void *stream);
    int (*StreamSynchronize)(void *stream);
    int (*EventCreate)(void **event);
    int (*EventDestroy)(void *event);
    int (*EventRecord)(void *event, void *stream);
    int (*EventSynchronize)(void *event);
    int (*EventElapsedTime)(float *milliseconds, void *start, void *end);
    int (*GetLastError)(void);
    const char *(*GetErrorString)(int error);
} hip_api;

enum { /* hipError_t */
       HIP_INVALID_VALUE = 1,
       HIP_OUT_OF_MEMORY = 2,
       HIP_INVALID_CONFIGURATION = 9,
       HIP_INVALID_DEVICE_POINTER = 17,
       HIP_INSUFFICIENT_DRIVER = 35,
       HIP_INVALID_DEVICE_FUNCTION = 98,
       HIP_NO_DEVICE = 100,
       HIP_INVALID_DEVICE = 101,
       HIP_NO_BINARY_FOR_GPU = 209,
       HIP_INVALID_HANDLE = 400,
       HIP_NOT_FOUND = 500,
       HIP_NOT_SUPPORTED = 801,
       HIP_CAPTURE_UNSUPPORTED = 900, /* the first of the errors of stream capture ... */
       HIP_CAPTURE_WRONG_THREAD = 908 /* ... and the last */
};

enum { /* hipDeviceAttribute_t */
       HIP_L2_CACHE_SIZE = 19,
       HIP_COMPUTE_CAPABILITY_MAJOR = 23, /* of gfx942: 9 */
       HIP_COMPUTE_CAPABILITY_MINOR = 61, /* 4 */
       HIP_MULTIPROCESSOR_COUNT = 63,
       HIP_SHARED_MEMORY_PER_BLOCK = 74,
       HIP_WARP_SIZE = 87,
       HIP_SHARED_MEMORY_PER_MULTIPROCESSOR = 10002
};

enum {
    HIP_MEMCPY_DEFAULT = 4,      /* hipMemcpyKind: the pointers tell */
    HIP_POINTER_MEMORY_TYPE = 2, /* hipPointer_attribute */
    HIP_STREAM_NON_BLOCKING = 1
};

#endif
