/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* backend_hip.c: the plug-in kiln_hip.so: backend "hip", and nothing else that can be seen from outside. */
#include "../gpu/gpu_host.h"

extern const gpu_runtime gpu_runtime_hip;
extern const gpu_method *const GPU_NAME(gpu_methods)[];

GPU_BACKEND(hip, gpu_runtime_hip, GPU_NAME(gpu_methods))

__attribute__((visibility("default"))) const kiln_backend *kiln_backend_entry(const kiln_services *services,
                                                                              uint32_t index);
const kiln_backend *kiln_backend_entry(const kiln_services *services, uint32_t index)
{
    return index == 0 ? hip(services) : NULL;
}
