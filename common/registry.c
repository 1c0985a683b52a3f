/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * registry.c: every backend this process knows: the ones linked in, and the plug-ins found so far.
 *
 * Entries are made once, under a lock, and never go away; what a probe fills in later has a lock of its own. So what a visit
 * sees needs none.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"

static const kiln_backend_entry_fn built_in[] = {kiln_cpu_backend};
static const kiln_services services = {KILN_BACKEND_ABI, kiln_fail};

enum { BACKENDS_PER_FILE = 8 };

/* One file, or everything that is linked in (path ""). */
typedef struct group {
    struct group *next;
    int count;
    kiln_registry_entry entries[BACKENDS_PER_FILE];
    char path[];
} group;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, probe_lock = PTHREAD_MUTEX_INITIALIZER;
static group *groups;

static group *add_group(const char *path)
{
    size_t length = strlen(path) + 1;
    group *g = calloc(1, sizeof *g + length);
    if (!g)
        return NULL;
    memcpy(g->path, path, length);
    g->next = groups;
    groups = g;
    return g;
}

static group *find_group(const char *path)
{
    for (group *g = groups; g; g = g->next)
        if (strcmp(g->path, path) == 0)
            return g;
    return NULL;
}

static group *linked_in(void)
{
    group *g = find_group("");
    if (g || !(g = add_group("")))
        return g;
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        for (uint32_t k = 0; built_in[i](&services, k) && g->count < BACKENDS_PER_FILE; k++) {
            kiln_registry_entry *entry = &g->entries[g->count++];
            entry->path = "";
            entry->name = built_in[i](&services, k)->name;
            kiln_registry_check(entry, built_in[i](&services, k));
        }
    return g;
}

/* The groups of one visit, in order. */
typedef struct selection {
    group **list;
    size_t count, room;
    bool out_of_memory;
    const kiln_log *log;
} selection;

static void select_group(selection *s, group *g)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i] == g)
            return; /* the same file by two folders */
    if (g && s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 8;
        group **list = realloc(s->list, room * sizeof *list);
        if (list) {
            s->list = list;
            s->room = room;
        }
    }
    if (!g || s->count == s->room) {
        s->out_of_memory = true;
        return;
    }
    s->list[s->count++] = g;
}

static void select_file(void *user, const char *path)
{
    selection *s = user;
    group *g = find_group(path);
    if (!g && (g = add_group(path))) {
        g->count = kiln_plugin_load(g->path, &services, g->entries, BACKENDS_PER_FILE);
        for (int i = 0; i < g->count; i++)
            kiln_log_write(s->log, KILN_LOG_DEBUG, "plug-in %s: %s%s%s", path, g->entries[i].name,
                           g->entries[i].backend ? "" : " unavailable, ", g->entries[i].reason);
    }
    select_group(s, g);
}

/* Visits what was selected since `*from`. True: the visitor has seen enough. */
static bool visit_selected(const selection *s, size_t *from, bool (*visit)(void *user, kiln_registry_entry *entry),
                           void *user)
{
    for (; *from < s->count; ++*from)
        for (int k = 0; k < s->list[*from]->count; k++)
            if (visit(user, &s->list[*from]->entries[k]))
                return true;
    return false;
}

kiln_status kiln_registry_visit(const char *plugin_path, const kiln_log *log,
                                bool (*visit)(void *user, kiln_registry_entry *entry), void *user)
{
    selection s = {.log = log};
    size_t visited = 0;
    pthread_mutex_lock(&lock);
    select_group(&s, linked_in());
    pthread_mutex_unlock(&lock);
    if (!s.out_of_memory && !visit_selected(&s, &visited, visit, user)) {
        pthread_mutex_lock(&lock);
        if (!kiln_plugin_search(plugin_path, select_file, &s))
            s.out_of_memory = true;
        pthread_mutex_unlock(&lock);
        if (!s.out_of_memory)
            visit_selected(&s, &visited, visit, user);
    }
    free(s.list);
    return s.out_of_memory ? kiln_fail(KILN_OUT_OF_MEMORY, "no memory for the list of backends") : KILN_OK;
}

bool kiln_registry_available(kiln_registry_entry *entry, const kiln_log *log)
{
    bool first = false;
    pthread_mutex_lock(&probe_lock);
    if (!entry->probed) {
        entry->probed = true;
        entry->score = -1;
        if (entry->backend) {
            first = true;
            entry->score = entry->backend->probe(entry->reason, sizeof entry->reason);
            if (entry->score < 0 && !entry->reason[0])
                snprintf(entry->reason, sizeof entry->reason, "it gave no reason");
        }
    }
    pthread_mutex_unlock(&probe_lock);
    if (first)
        kiln_log_write(log, KILN_LOG_DEBUG, "backend %s: %s%s", entry->name,
                       entry->score < 0 ? "unavailable, " : "available", entry->reason);
    return entry->score >= 0;
}
