/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * driver.h: the part of the CUDA driver that the tests need, as a caller of Kiln would have it: found by dlopen() at run time,
 * so that everything compiles without a toolkit. Names without "cu"; CUresult is int, 0 = success.
 */
#ifndef KILN_TESTS_CUDA_DRIVER_H
#define KILN_TESTS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cuda_driver {
    int (*Init)(unsigned flags);
    int (*DeviceGetCount)(int *count);
    int (*DeviceGet)(int *device, int ordinal);
    int (*DevicePrimaryCtxRetain)(void **context, int device);
    int (*CtxCreate_v2)(void **context, unsigned flags, int device);
    int (*CtxDestroy_v2)(void *context);
    int (*CtxGetCurrent)(void **context);
    int (*CtxSetCurrent)(void *context);
    int (*CtxSynchronize)(void);
    int (*PointerGetAttribute)(void *data, int attribute, unsigned long long pointer);
    int (*StreamCreate)(void **stream, unsigned flags);
    int (*StreamDestroy_v2)(void *stream);
    int (*StreamSynchronize)(void *stream);
    int (*StreamBeginCapture_v2)(void *stream, int mode);
    int (*StreamEndCapture)(void *stream, void **graph);
    int (*GraphInstantiateWithFlags)(void **executable, void *graph, unsigned long long flags);
    int (*GraphLaunch)(void *executable, void *stream);
    int (*GraphExecDestroy)(void *executable);
    int (*GraphDestroy)(void *graph);
    int (*ModuleLoadData)(void **module, const void *image);
    int (*ModuleGetFunction)(void **function, void *module, const char *name);
    int (*LaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                        void **extra);
} cuda_driver;

enum { CUDA_POINTER_CONTEXT = 1, CUDA_CAPTURE_GLOBAL = 0 };

/* The driver, initialised; NULL (after a line that says why) where there is none or no device. */
const cuda_driver *cuda_driver_get(void);

/*
 * One call of the driver with the primary context of device 0 current, which is what graphs and captures need; before and
 * after it, this thread's current context is the caller's. So a test whose thread has none shows that Kiln needs none.
 * ON_DEVICE(cuda->GraphLaunch(replay, stream)) is the call's result.
 */
#define ON_DEVICE(call) (cuda_driver_enter(), cuda_driver_leave(call))
void cuda_driver_enter(void);
int cuda_driver_leave(int result);

#endif
