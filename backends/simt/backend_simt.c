/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* backend_simt.c: the plug-in kiln_simt.so: the backends "simt-cuda" and "simt-hip". Compiled once; the two lists of methods
 * are backends/cuda/select_cuda.c and backends/hip/select_hip.c, each compiled with the symbols of its emulated target. */
#include "runtime_simt.h"

extern const gpu_method *const gpu_methods_simt_cuda[];
extern const gpu_method *const gpu_methods_simt_hip[];

GPU_BACKEND(simt_cuda, gpu_runtime_simt_cuda, gpu_methods_simt_cuda)
GPU_BACKEND(simt_hip, gpu_runtime_simt_hip, gpu_methods_simt_hip)

__attribute__((visibility("default"))) const kiln_backend *kiln_backend_entry(const kiln_services *services,
                                                                              uint32_t index);
const kiln_backend *kiln_backend_entry(const kiln_services *services, uint32_t index)
{
    return index == 0 ? simt_cuda(services) : index == 1 ? simt_hip(services) : NULL;
}
