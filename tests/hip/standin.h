/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * standin.h: a HIP runtime for tests: a shared library with the entry points that the plug-in kiln_hip uses (and those of
 * graphs), which runs a launched kernel, by its name, on the emulated device simt-hip. The plug-in finds it by
 * KILN_HIP_LIBRARY and does not know the difference.
 *
 * What real devices do to a careless host it does too: work waits in its stream until somebody waits for it; device memory
 * cannot be touched by the host (a fault), and lies between pages that nobody can touch; a stream, module or kernel of another
 * device is refused; an error stays the thread's last one until it is asked for; code objects are ELF files that are checked
 * for their architecture and for the kernel: its name, and what it wants of shared memory, arguments and modes.
 *
 * Environment: KILN_STANDIN_DEVICES ("gfx942,gfx942"): the devices; "" none. KILN_STANDIN_ROCM (6): 5 numbers memory types as
 * ROCm 5 did, and does not know the host's memory.
 *
 * Functions for tests, found by dlsym():
 */
#ifndef KILN_TESTS_HIP_STANDIN_H
#define KILN_TESTS_HIP_STANDIN_H

typedef struct standin_counts {
    int modules, allocations, streams, events, graphs, waiting; /* that exist now; operations that wait */
    int calls, launches;                                        /* so far */
} standin_counts;

typedef void standin_count_fn(standin_counts *counts);
/* The n-th call from now on of this entry point ("hipMalloc"; NULL = any) fails with this error, once. n = 0: none. */
typedef void standin_fail_fn(const char *function, int n, int error);
/* The entry point that failed so, or NULL. */
typedef const char *standin_failed_fn(void);

#endif
