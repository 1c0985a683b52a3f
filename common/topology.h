/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * topology.h: cache sizes, NUMA nodes and the processor's name, for scheduling and for `info`.
 *
 * Never binds anything, and nothing here may change a bit of a result: sizes choose how work is cut into tasks only.
 */
#ifndef KILN_COMMON_TOPOLOGY_H
#define KILN_COMMON_TOPOLOGY_H

#include <stdint.h>

typedef struct kiln_topology {
    int64_t l1_bytes, l2_bytes,
        l3_bytes;         /* data cache of one core, second level of one core, last level; never 0 for the
                                             first two (defaults 32 KiB and 1 MiB), 0 = none or unknown for the last */
    int64_t memory_bytes; /* installed; 0 = unknown */
    int32_t numa_nodes;   /* 0 = unknown */
    int32_t processors;   /* the process may run on; >= 1 */
    char cpu_name[128];
    const char *source; /* "hwloc", "sysfs", "sysconf" or "defaults": where the cache sizes come from */
} kiln_topology;

/* Read once, on first use; thread-safe. */
const kiln_topology *kiln_topology_get(void);

#endif
