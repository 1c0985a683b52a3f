/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* driver.c: see driver.h. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

static cuda_driver driver;
static void *primary; /* of device 0; kept for the life of the process */
static _Thread_local void *before;

static bool find_all(void *library)
{
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {"cuInit", &driver.Init},
        {"cuDeviceGetCount", &driver.DeviceGetCount},
        {"cuDeviceGet", &driver.DeviceGet},
        {"cuDevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain},
        {"cuCtxCreate_v2", &driver.CtxCreate_v2},
        {"cuCtxDestroy_v2", &driver.CtxDestroy_v2},
        {"cuCtxGetCurrent", &driver.CtxGetCurrent},
        {"cuCtxSetCurrent", &driver.CtxSetCurrent},
        {"cuCtxSynchronize", &driver.CtxSynchronize},
        {"cuPointerGetAttribute", &driver.PointerGetAttribute},
        {"cuStreamCreate", &driver.StreamCreate},
        {"cuStreamDestroy_v2", &driver.StreamDestroy_v2},
        {"cuStreamSynchronize", &driver.StreamSynchronize},
        {"cuStreamBeginCapture_v2", &driver.StreamBeginCapture_v2},
        {"cuStreamEndCapture", &driver.StreamEndCapture},
        {"cuGraphInstantiateWithFlags", &driver.GraphInstantiateWithFlags},
        {"cuGraphLaunch", &driver.GraphLaunch},
        {"cuGraphExecDestroy", &driver.GraphExecDestroy},
        {"cuGraphDestroy", &driver.GraphDestroy},
        {"cuModuleLoadData", &driver.ModuleLoadData},
        {"cuModuleGetFunction", &driver.ModuleGetFunction},
        {"cuLaunchKernel", &driver.LaunchKernel},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        *(void **)functions[i].slot = dlsym(library, functions[i].name);
        if (!*(void **)functions[i].slot) {
            printf("the driver has no %s\n", functions[i].name);
            return false;
        }
    }
    return true;
}

void cuda_driver_enter(void)
{
    before = NULL;
    (void)driver.CtxGetCurrent(&before);
    (void)driver.CtxSetCurrent(primary); /* if it fails, so does the call */
}

int cuda_driver_leave(int result)
{
    int restored = driver.CtxSetCurrent(before);
    return result ? result : restored;
}

const cuda_driver *cuda_driver_get(void)
{
    static bool ready;
    int device;
    int count = 0;
    if (ready)
        return &driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("no CUDA driver: %s\n", dlerror());
        return NULL;
    }
    if (!find_all(library))
        return NULL;
    ready = driver.Init(0) == 0 && driver.DeviceGetCount(&count) == 0 && count > 0 &&
            driver.DeviceGet(&device, 0) == 0 && driver.DevicePrimaryCtxRetain(&primary, device) == 0;
    if (!ready)
        printf("the CUDA driver finds no device\n");
    return ready ? &driver : NULL;
}
