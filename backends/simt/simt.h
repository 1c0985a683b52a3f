/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* simt.h: a launch on the emulated device, and what it counts: for the runtime and for tests that are linked with it. */
#ifndef KILN_BACKENDS_SIMT_H
#define KILN_BACKENDS_SIMT_H

#include <stddef.h>
#include <stdint.h>

#include "../gpu/gpu_kernel.h"

enum { SIMT_TENSORS = 48, SIMT_LINES = 8 };

typedef struct simt_tensor_counters {
    const char *name;                        /* as in the argument struct; NULL past the last */
    int64_t read, written;                   /* bytes requested */
    int64_t distinct_read, distinct_written; /* different bytes among them */
    int64_t read_sectors, written_sectors;   /* of 32 bytes, per instruction of a wave */
} simt_tensor_counters;

typedef struct simt_counters {
    simt_tensor_counters tensor[SIMT_TENSORS];
    int64_t shared_accesses; /* instructions of a wave */
    int64_t shared_phases;   /* passes through the banks if there were no conflicts */
    int64_t bank_conflicts;  /* passes on top of that */
    int64_t exchanges, matrix_ops, wave_barriers, block_barriers, atomics; /* per wave; block_barriers per block */
    int64_t switches;                                                      /* of lanes: what emulation costs */
    struct {
        const char *file;
        unsigned line;
        int64_t conflicts;
    } line[SIMT_LINES]; /* where most conflicts come from */
} simt_counters;

#ifdef __cplusplus
extern "C" {
#endif

/* Runs `blocks` blocks. 0, or -1 with the fault in `fault`. `counters` may be NULL. */
int simt_launch(const gpu_kernel *kernel, int32_t blocks, const void *args, simt_counters *counters, char *fault,
                size_t cap);

/* KILN_SIMT_COUNTERS, or NULL; appends a launch to such a file. */
const char *simt_counters_file(void);
bool simt_counters_append(const char *path, const gpu_kernel *kernel, int32_t blocks, const simt_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
