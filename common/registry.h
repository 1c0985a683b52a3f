/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * registry.h: the backends this process knows. To link one more in, declare its entry here and name it in registry.c.
 */
#ifndef KILN_COMMON_REGISTRY_H
#define KILN_COMMON_REGISTRY_H

#include "context.h"

/* cpu_ref/backend_cpu.c */
const kiln_backend *kiln_cpu_backend(const kiln_services *services, uint32_t index);

/* One backend, or a file that could not be used. Entries live as long as the process; once probed they never change. */
typedef struct kiln_registry_entry {
    const kiln_backend *backend; /* NULL: cannot be used, reason says why */
    const char *name, *path;     /* path "" = linked in */
    /* For kiln_registry_available() and, after it, everybody: */
    bool probed;
    char reason[256]; /* why it is unavailable, or "" */
    int32_t score;    /* -1 = unavailable */
} kiln_registry_entry;

/* Calls visit for each entry until it returns true; first what is linked in, then the plug-in folders in their order, which
 * are looked at, and their new files loaded, only if it comes to them. Errors: OUT_OF_MEMORY. */
kiln_status kiln_registry_visit(const char *plugin_path, const kiln_log *log,
                                bool (*visit)(void *user, kiln_registry_entry *entry), void *user);

/* Asks the backend whether it can be used, the first time: that may start a vendor's driver, so only where the answer counts.
 * Fills score and reason. */
bool kiln_registry_available(kiln_registry_entry *entry, const kiln_log *log);

/* plugin.c: fills an entry from a table, if its interface number and required slots are right; else the reason. */
void kiln_registry_check(kiln_registry_entry *entry, const kiln_backend *backend);
/* plugin.c: loads one file; fills entries[0 ... returned-1] (zeroed by the caller), at least one, at most `cap`. */
int kiln_plugin_load(const char *path, const kiln_services *services, kiln_registry_entry *entries, int cap);
/* plugin.c: calls visit for every file in the plug-in folders that looks like a plug-in, sorted by name in each. False: a
 * folder could not be read for want of memory. */
bool kiln_plugin_search(const char *plugin_path, void (*visit)(void *user, const char *path), void *user);

#endif
