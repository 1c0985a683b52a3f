/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * isa.c: which instruction set to use. From CPUID, XCR0 (the operating system must save the registers) and the environment
 * variable KILN_CPU_ISA, never from a timing: equal machines give equal bits.
 *
 * KILN_CPU_ISA=portable|neon|avx2|avx512|amx caps the choice, so that tests reach every path on one machine. A level above
 * what the machine has is no error: the best below it is taken. The levels of all processors stand in one order: neon is
 * portable on x86-64, and avx2 caps nothing on AArch64, whose every processor has Advanced SIMD. Reads nothing but registers
 * and the environment; any thread, any time. Only where AMX is chosen, Linux is asked once for the process's permission to
 * use tile data: it is off by default, since the registers make signal frames 8 KiB larger, and is refused where a thread's
 * alternate signal stack is too small for that. Then the level is AVX-512.
 */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

enum level { PORTABLE, NEON, AVX2, AVX512, AMX };
static const char *const level_name[] = {"portable", "neon", "avx2", "avx512", "amx"};

#if defined(__x86_64__)

#include <cpuid.h>

#ifdef KILN_AMX_EMULATE
static bool may_use_tiles(void)
{
    return true;
}
#elif defined(__linux__)
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool tiles_permitted;

static void ask_for_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA */
    tiles_permitted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool may_use_tiles(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_for_tiles);
    return tiles_permitted;
}
#else
static bool may_use_tiles(void)
{
    return false;
}
#endif

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
    const uint32_t amx = 1u << 22 | 1u << 24;                                           /* leaf 7, edx: bf16 tile */
    const uint64_t ymm_state = 0x6, zmm_state = 0xe6, tile_state = 0x60000;             /* XCR0 */
    uint32_t eax, ebx, ecx, edx, want = fma | osxsave | avx | f16c;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & want) != want)
        return PORTABLE;
    uint64_t saved = read_xcr0();
    if ((saved & ymm_state) != ymm_state || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & avx2))
        return PORTABLE;
    if ((saved & zmm_state) != zmm_state || (ebx & avx512) != avx512)
        return AVX2;
#ifdef KILN_AMX_EMULATE
    saved |= tile_state;
    edx |= amx;
#endif
    return (saved & tile_state) == tile_state && (edx & amx) == amx ? AMX : AVX512;
}

static const kiln_cpu_isa *isa_of(enum level level)
{
    switch (level) {
    case AMX: return may_use_tiles() ? &kiln_cpu_isa_amx : &kiln_cpu_isa_avx512;
    case AVX512: return &kiln_cpu_isa_avx512;
    case AVX2: return &kiln_cpu_isa_avx2;
    default: return &kiln_cpu_isa_portable;
    }
}

#elif defined(__aarch64__)

static enum level machine_level(void)
{
    return NEON;
}

static const kiln_cpu_isa *isa_of(enum level level)
{
    return level == NEON ? &kiln_cpu_isa_neon : &kiln_cpu_isa_portable;
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
    for (int i = PORTABLE; i <= AMX; i++)
        if (strcmp(cap, level_name[i]) == 0)
            return isa_of(i < (int)level ? (enum level)i : level);
    options->log(options->log_user, KILN_LOG_WARNING,
                 "KILN_CPU_ISA is \"%s\"; it must be portable, neon, avx2, avx512 or amx. Ignored", cap);
    return isa_of(level);
}
