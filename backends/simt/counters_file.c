/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * counters_file.c: with KILN_SIMT_COUNTERS=FILE every launch appends its counters to FILE, one JSON object a line. The way for
 * a program to read them, since a plug-in exports nothing but its entry.
 */
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *simt_counters_file(void)
{
    const char *path = getenv("KILN_SIMT_COUNTERS");
    return path && path[0] ? path : NULL;
}

static void write_tensors(FILE *file, const simt_counters *c)
{
    const char *comma = "";
    fprintf(file, ", \"tensors\": {");
    for (int t = 0; t < SIMT_TENSORS && c->tensor[t].name; t++) {
        const simt_tensor_counters *x = &c->tensor[t];
        if (x->read + x->written == 0)
            continue;
        fprintf(file,
                "%s\"%s\": {\"read\": %lld, \"written\": %lld, \"distinct_read\": %lld, \"distinct_written\": %lld, "
                "\"read_sectors\": %lld, \"written_sectors\": %lld}",
                comma, x->name, (long long)x->read, (long long)x->written, (long long)x->distinct_read,
                (long long)x->distinct_written, (long long)x->read_sectors, (long long)x->written_sectors);
        comma = ", ";
    }
    fprintf(file, "}");
}

static void write_lines(FILE *file, const simt_counters *c)
{
    fprintf(file, ", \"conflicts_by_line\": {");
    for (int i = 0; i < SIMT_LINES && c->line[i].conflicts > 0; i++)
        fprintf(file, "%s\"%s:%u\": %lld", i ? ", " : "", c->line[i].file, c->line[i].line,
                (long long)c->line[i].conflicts);
    fprintf(file, "}");
}

bool simt_counters_append(const char *path, const gpu_kernel *kernel, int32_t blocks, const simt_counters *c)
{
    pthread_mutex_lock(&lock);
    FILE *file = fopen(path, "a");
    if (file) {
        fprintf(file, "{\"kernel\": \"%s\", \"wave\": %d, \"blocks\": %d, \"threads\": %d, \"shared_bytes\": %d",
                kernel->name, kernel->wave, blocks, kernel->threads, kernel->shared_bytes);
        fprintf(file, ", \"tile_q\": %d, \"tile_k\": %d", kernel->tile_q, kernel->tile_k);
        fprintf(file, ", \"shared_accesses\": %lld, \"shared_phases\": %lld, \"bank_conflicts\": %lld",
                (long long)c->shared_accesses, (long long)c->shared_phases, (long long)c->bank_conflicts);
        fprintf(file, ", \"exchanges\": %lld, \"matrix_ops\": %lld, \"wave_barriers\": %lld", (long long)c->exchanges,
                (long long)c->matrix_ops, (long long)c->wave_barriers);
        fprintf(file, ", \"block_barriers\": %lld, \"atomics\": %lld", (long long)c->block_barriers,
                (long long)c->atomics);
        write_tensors(file, c);
        write_lines(file, c);
        fprintf(file, "}\n");
    }
    const bool ok = file && fclose(file) == 0;
    pthread_mutex_unlock(&lock);
    return ok;
}
