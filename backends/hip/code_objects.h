/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * code_objects.h: the machine code inside the plug-in. Every kernel file is compiled to one code object per architecture; they
 * are embedded together, under one symbol (code_objects.S.in), to which the description of each kernel of the file leads.
 */
#ifndef KILN_BACKENDS_HIP_CODE_OBJECTS_H
#define KILN_BACKENDS_HIP_CODE_OBJECTS_H

#include <stddef.h>

#include "../gpu/gpu_kernel.h"

typedef struct hip_code_object {
    const char *architecture; /* "gfx942"; NULL past the last */
    const void *image;
    size_t bytes;
} hip_code_object;

/* Of the file with this kernel, in the order of KILN_HIP_ARCHITECTURES. */
static inline const hip_code_object *hip_code_objects(const gpu_kernel *kernel)
{
    return (const hip_code_object *)kernel->entry;
}

/* Every kernel of the plug-in, those of a file together: [hip_kernels, hip_kernels_end). */
extern const gpu_kernel hip_kernels[] __asm__("__start_kiln_hip_kernels") __attribute__((visibility("hidden")));
extern const gpu_kernel hip_kernels_end[] __asm__("__stop_kiln_hip_kernels") __attribute__((visibility("hidden")));

#endif
