/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* inline.h: KILN_INLINE, for small functions that host code and GPU kernels share. */
#ifndef KILN_COMMON_INLINE_H
#define KILN_COMMON_INLINE_H

#if defined(__CUDACC__)
#define KILN_INLINE static __host__ __device__ __forceinline__
#elif defined(__HIP__)
#define KILN_INLINE static __attribute__((host, device, always_inline)) inline
#else
#define KILN_INLINE static inline
#endif

#endif
