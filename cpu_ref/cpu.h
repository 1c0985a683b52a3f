/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cpu.h: what the files of the CPU backend share: its state, the shape of a kernel, the parallel loop.
 *
 * A kernel is one row of the ordered list of its instruction set (kernels_<isa>.c, made by including the *.inc.h bodies
 * after simd_<isa>.h). select.c is the only place that chooses one.
 */
#ifndef KILN_CPU_REF_CPU_H
#define KILN_CPU_REF_CPU_H

#include "../common/backend.h"

struct kiln_cpu_isa;

/* State of one CPU context. Immutable after open(), so calls may run concurrently. */
typedef struct kiln_cpu {
    const kiln_services *services;
    const struct kiln_cpu_isa *isa; /* chosen by isa.c, never by timing */
    int32_t threads;                /* most workers of one call, >= 1 */
    kiln_parallel_for parallel_for; /* NULL = OpenMP (or serial in a build without it) */
    void *parallel_for_user;
    int64_t l1_bytes, l2_bytes; /* of one core; scheduling only: never changes a bit of a result */
} kiln_cpu;

/*
 * One kernel. `workers` is what the call may use: min(threads, max_sms). Results must not depend on it.
 * Workspace: 256-byte aligned, `workspace(...)` bytes, garbage on entry.
 */
typedef struct kiln_cpu_kernel {
    kiln_op op;
    const char *algorithm; /* rung of the ladder: "flash2" */
    const char *name;      /* "attention_forward_flash2_avx512" */
    /* May it run? If not, says so in `why`: one sentence that names the argument, its value and what is allowed. */
    bool (*supports)(const kiln_cpu *cpu, const kiln_problem *problem, char *why, size_t cap);
    /* Is it the better choice among those that may run? Asked only when no algorithm is named; metadata only, never of
     * threads or caches. NULL = yes. */
    bool (*prefers)(const kiln_problem *problem);
    size_t (*workspace)(const kiln_cpu *cpu, const kiln_problem *problem, int32_t workers);
    void (*run)(const kiln_cpu *cpu, const kiln_problem *problem, void *workspace, int32_t workers);
    void (*numerics)(const kiln_problem *problem, kiln_numerics *numerics);
} kiln_cpu_kernel;

/* The kernels of one instruction set, in order of preference per operation, the most general last. */
typedef struct kiln_cpu_isa {
    const char *name;                      /* "portable", "neon", "avx2", "avx512", "amx" */
    const kiln_cpu_kernel *const *kernels; /* NULL-terminated */
    const struct kiln_cpu_isa *base;       /* whose kernels follow these; NULL = the list is complete */
} kiln_cpu_isa;

/* Names in kernels_<isa>.c, whose simd_<isa>.h defines VF_ISA: "attention_forward_flash2" ->
 * "attention_forward_flash2_avx512". */
#define KILN_CPU_STRING_(x)   #x
#define KILN_CPU_STRING(x)    KILN_CPU_STRING_(x)
#define KILN_CPU_NAME(kernel) kernel "_" KILN_CPU_STRING(VF_ISA)

extern const kiln_cpu_isa kiln_cpu_isa_portable;
#if defined(__x86_64__)
extern const kiln_cpu_isa kiln_cpu_isa_avx2;
extern const kiln_cpu_isa kiln_cpu_isa_avx512;
extern const kiln_cpu_isa kiln_cpu_isa_amx;
#elif defined(__aarch64__)
extern const kiln_cpu_isa kiln_cpu_isa_neon;
#endif

/* isa.c: the best instruction set that processor and operating system offer, capped by KILN_CPU_ISA if that is set.
 * A value that is none of the names is logged through `options` and ignored. */
const kiln_cpu_isa *kiln_cpu_choose_isa(const kiln_open_options *options);

/*
 * parallel.c: runs body(arg, w) for w = 0 ... workers-1, at most `workers` at a time and perhaps one after another (so
 * workers never wait for each other), each under the default floating-point environment (round to nearest, no FTZ/DAZ,
 * restored afterwards). Inside a caller's parallel region it runs serially unless nesting is on. Returns when all are done.
 */
void kiln_cpu_parallel(const kiln_cpu *cpu, int32_t workers, void (*body)(void *arg, int32_t worker), void *arg);

/* A counter that workers draw tasks from: `for (int64_t t; (t = kiln_cpu_next(&queue)) < count;)`. Give each queue its own
 * cache line. Which worker runs a task must not change a bit of the result. */
typedef struct kiln_cpu_queue {
    _Alignas(64) int64_t next;
} kiln_cpu_queue;

static inline int64_t kiln_cpu_next(kiln_cpu_queue *queue)
{
    return __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED);
}

/* select.c: the first kernel of cpu->isa for this problem whose algorithm matches and which supports it; NULL with `why`
 * filled otherwise (and *unknown set if the operation has no rung of that name on any backend). */
const kiln_cpu_kernel *kiln_cpu_select(const kiln_cpu *cpu, const kiln_problem *problem, bool *unknown, char *why,
                                       size_t cap);

/* select.c: how many workers the call may use: min(threads, max_sms), where max_sms 0 is no limit; 1 for a tiny one. */
int32_t kiln_cpu_workers(const kiln_cpu *cpu, const kiln_problem *problem);

/* backend_cpu.c: the vtable, for the registry's built-in table. */
const kiln_backend *kiln_cpu_backend(const kiln_services *services, uint32_t index);

#endif
