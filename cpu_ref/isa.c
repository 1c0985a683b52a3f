/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * isa.c: which instruction set to use. From CPUID, XCR0 (the operating system must save the registers) and the environment
 * variable KILN_CPU_ISA, never from a timing: equal machines give equal bits.
 *
 * KILN_CPU_ISA=portable|avx2|avx512 caps the choice, so that tests reach every path on one machine. A level above what the
 * machine has is no error: the best below it is taken. Reads nothing but registers and the environment; any thread, any time.
 */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

enum level { PORTABLE, AVX2, AVX512 };
static const char *const level_name[] = {"portable", "avx2", "avx512"};

#if defined(__x86_64__)

#include <cpuid.h>

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static enum level machine_level(void)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29; /* leaf 1, ecx */
    const uint32_t avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  /* leaf 7, ebx: f dq bw vl */
    const uint64_t ymm_state = 0x6, zmm_state = 0xe6;                                   /* XCR0 */
    uint32_t eax, ebx, ecx, edx, want = fma | osxsave | avx | f16c;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & want) != want)
        return PORTABLE;
    uint64_t saved = read_xcr0();
    if ((saved & ymm_state) != ymm_state || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & avx2))
        return PORTABLE;
    return (saved & zmm_state) == zmm_state && (ebx & avx512) == avx512 ? AVX512 : AVX2;
}

static const kiln_cpu_isa *isa_of(enum level level)
{
    return level == AVX512 ? &kiln_cpu_isa_avx512 : level == AVX2 ? &kiln_cpu_isa_avx2 : &kiln_cpu_isa_portable;
}

#else

static enum level machine_level(void)
{
    return PORTABLE;
}

static const kiln_cpu_isa *isa_of(enum level level)
{
    (void)level;
    return &kiln_cpu_isa_portable;
}

#endif

const kiln_cpu_isa *kiln_cpu_choose_isa(const kiln_open_options *options)
{
    enum level level = machine_level();
    const char *cap = getenv("KILN_CPU_ISA");
    if (!cap || !*cap)
        return isa_of(level);
    for (int i = PORTABLE; i <= AVX512; i++)
        if (strcmp(cap, level_name[i]) == 0)
            return isa_of(i < (int)level ? (enum level)i : level);
    options->log(options->log_user, KILN_LOG_WARNING,
                 "KILN_CPU_ISA is \"%s\"; it must be portable, avx2 or avx512. Ignored", cap);
    return isa_of(level);
}
