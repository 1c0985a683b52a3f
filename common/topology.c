/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * topology.c: the only user of hwloc. Without hwloc (not built in, or it fails): Linux' sysfs, then sysconf, then defaults.
 * Costs a millisecond or two, once. hwloc itself does not survive a failed allocation (2.9 faults); the rest does.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "topology.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if KILN_HAVE_HWLOC
#include <hwloc.h>
#endif

static kiln_topology found;

/* Fills what is still unknown. */
static void keep(int64_t *slot, int64_t value)
{
    if (*slot <= 0 && value > 0)
        *slot = value;
}

#if KILN_HAVE_HWLOC
static void read_hwloc(kiln_topology *t)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return;
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    unsigned long flags = 0;
#if HWLOC_API_VERSION >= 0x00020500
    flags |= HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING;
#endif
    if (hwloc_topology_set_flags(topology, flags) == 0 && hwloc_topology_load(topology) == 0) {
        const struct {
            hwloc_obj_type_t type;
            int64_t *slot;
        } caches[] = {
            {HWLOC_OBJ_L1CACHE, &t->l1_bytes}, {HWLOC_OBJ_L2CACHE, &t->l2_bytes}, {HWLOC_OBJ_L3CACHE, &t->l3_bytes}};
        for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
            hwloc_obj_t cache = hwloc_get_obj_by_type(topology, caches[i].type, 0);
            if (cache)
                keep(caches[i].slot, (int64_t)cache->attr->cache.size);
        }
        int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        t->numa_nodes = nodes > 0 ? nodes : 0;
        if (t->l1_bytes > 0 || t->l2_bytes > 0)
            t->source = "hwloc";
    }
    hwloc_topology_destroy(topology);
}
#endif

static bool read_line(const char *path, char *line, int cap)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(line, cap, file) != NULL;
    fclose(file);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

static void read_sysfs(kiln_topology *t)
{
    int64_t *slots[] = {NULL, &t->l1_bytes, &t->l2_bytes, &t->l3_bytes};
    for (int index = 0; index < 8; index++) {
        char path[96], level[16], type[32], size[32];
        const char *fields[] = {"level", "type", "size"};
        char *values[] = {level, type, size};
        const int room[] = {sizeof level, sizeof type, sizeof size};
        bool ok = true;
        for (int f = 0; f < 3 && ok; f++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, fields[f]);
            ok = read_line(path, values[f], room[f]);
        }
        int n = 0;
        long long amount = 0;
        char unit = 0;
        if (!ok || strcmp(type, "Instruction") == 0 || sscanf(level, "%d", &n) != 1 || n < 1 || n > 3 ||
            sscanf(size, "%lld%c", &amount, &unit) < 1)
            continue;
        keep(slots[n], amount * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1));
        t->source = "sysfs";
    }
}

/* sysconf answers 0 on some machines (Linux on AArch64): keep() ignores that. */
static void read_sysconf(kiln_topology *t)
{
#if defined(_SC_LEVEL1_DCACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
    keep(&t->l1_bytes, sysconf(_SC_LEVEL1_DCACHE_SIZE));
    keep(&t->l2_bytes, sysconf(_SC_LEVEL2_CACHE_SIZE));
    keep(&t->l3_bytes, sysconf(_SC_LEVEL3_CACHE_SIZE));
    if (t->l1_bytes > 0 && t->l2_bytes > 0)
        t->source = "sysconf";
#else
    (void)t;
#endif
}

static void read_cpu_name(kiln_topology *t)
{
    char line[256];
    snprintf(t->cpu_name, sizeof t->cpu_name, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon && colon[1]) {
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(t->cpu_name, sizeof t->cpu_name, "%.127s", colon + 2);
            break;
        }
    }
    if (file)
        fclose(file);
}

static void read_all(void)
{
    kiln_topology *t = &found;
    t->source = "defaults";
#if KILN_HAVE_HWLOC
    read_hwloc(t);
#endif
    if (t->l1_bytes <= 0 || t->l2_bytes <= 0)
        read_sysfs(t);
    if (t->l1_bytes <= 0 || t->l2_bytes <= 0)
        read_sysconf(t);
    keep(&t->l1_bytes, 32 * 1024);
    keep(&t->l2_bytes, 1024 * 1024);
    read_cpu_name(t);

    cpu_set_t allowed;
    t->processors = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
    if (t->processors < 1)
        t->processors = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (t->processors < 1)
        t->processors = 1;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    t->memory_bytes = pages > 0 && page_bytes > 0 ? (int64_t)pages * page_bytes : 0;
}

const kiln_topology *kiln_topology_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_all);
    return &found;
}
