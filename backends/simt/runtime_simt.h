/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* runtime_simt.h: gpu_runtime (gpu_host.h) of the two emulated devices. */
#ifndef KILN_BACKENDS_SIMT_RUNTIME_H
#define KILN_BACKENDS_SIMT_RUNTIME_H

#include "../gpu/gpu_host.h"

extern const gpu_runtime gpu_runtime_simt_cuda; /* 32 lanes, NVIDIA's rules; models an A100 */
extern const gpu_runtime gpu_runtime_simt_hip;  /* 64 lanes, AMD's rules; models an MI300X */

#endif
