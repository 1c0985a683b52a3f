/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fp_env.h: the floating-point environment that Kiln computes in: round to nearest, denormals kept, exceptions masked.
 *
 * A caller may run with another rounding mode, with FTZ or DAZ, or with traps; bits of a result must not depend on that,
 * and the caller's environment (flags included) must be as it was afterwards. fenv.h would do, but it also saves
 * and restores the x87 state, which no kernel uses; only the SIMD control register matters here.
 */
#ifndef KILN_COMMON_FP_ENV_H
#define KILN_COMMON_FP_ENV_H

#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

typedef uint32_t kiln_fp_env;

static inline kiln_fp_env kiln_fp_env_enter(void)
{
    kiln_fp_env saved = _mm_getcsr();
    _mm_setcsr(0x1f80); /* the value at process start: all exceptions masked, nearest, no FTZ, no DAZ */
    return saved;
}

static inline void kiln_fp_env_leave(kiln_fp_env saved)
{
    _mm_setcsr(saved);
}

#elif defined(__aarch64__)

typedef struct kiln_fp_env {
    uint64_t control, status;
} kiln_fp_env;

static inline kiln_fp_env kiln_fp_env_enter(void)
{
    kiln_fp_env saved;
    __asm__ __volatile__("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved.control), "=r"(saved.status));
    __asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return saved;
}

static inline void kiln_fp_env_leave(kiln_fp_env saved)
{
    __asm__ __volatile__("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(saved.control), "r"(saved.status) : "memory");
}

#else

#include <fenv.h>

typedef fenv_t kiln_fp_env;

static inline kiln_fp_env kiln_fp_env_enter(void)
{
    kiln_fp_env saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}

static inline void kiln_fp_env_leave(kiln_fp_env saved)
{
    fesetenv(&saved);
}

#endif
#endif
