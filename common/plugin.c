/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * plugin.c: finds and loads the files that hold backends (kiln_<name>.so).
 *
 * Searched, in this order: the caller's folder, the absolute folders of KILN_BACKEND_PATH, `kiln/` beside the library.
 * Never the current directory, unless the caller's folder says so. A file that cannot be used becomes an entry with the
 * reason; it is never fatal. Nothing is ever closed: runtimes inside plug-ins (OpenMP, CUDA) do not survive it.
 */
#define _GNU_SOURCE /* dladdr, secure_getenv */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry.h"

static int is_plugin(const struct dirent *file)
{
    size_t length = strlen(file->d_name);
    return length > 8 && strncmp(file->d_name, "kiln_", 5) == 0 && strcmp(file->d_name + length - 3, ".so") == 0;
}

/* A folder that is not there or cannot be read is empty; false only for want of memory. */
static bool search_folder(const char *folder, void (*visit)(void *user, const char *path), void *user)
{
    struct dirent **files;
    if (!folder[0])
        return true;
    int count = scandir(folder, &files, is_plugin, alphasort);
    if (count < 0)
        return errno != ENOMEM;
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", folder, files[i]->d_name) < (int)sizeof path)
            visit(user, path);
        free(files[i]);
    }
    free(files);
    return true;
}

/* Where plug-ins are, seen from a program in bin/: the build says, because distributions differ (lib, lib64, ...). */
#ifndef KILN_LIBDIR
#define KILN_LIBDIR "lib"
#endif

/* `kiln/` beside the file that this code is in, or ../lib/kiln for a program in bin/ that has it linked in. */
static bool search_beside_library(void (*visit)(void *user, const char *path), void *user)
{
    static const char anchor = 0;
    Dl_info here;
    char real[PATH_MAX], folder[PATH_MAX + 16];
    if (!dladdr(&anchor, &here) || !here.dli_fname || !realpath(here.dli_fname, real))
        return true;
    char *slash = strrchr(real, '/');
    if (!slash)
        return true;
    *slash = '\0';
    snprintf(folder, sizeof folder, "%s/kiln", real);
    struct stat info;
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode))
        snprintf(folder, sizeof folder, "%s/../" KILN_LIBDIR "/kiln", real);
    return search_folder(folder, visit, user);
}

bool kiln_plugin_search(const char *plugin_path, void (*visit)(void *user, const char *path), void *user)
{
    bool complete = !plugin_path || search_folder(plugin_path, visit, user);
    const char *list = secure_getenv("KILN_BACKEND_PATH");
    while (list && *list) {
        size_t length = strcspn(list, ":");
        char folder[PATH_MAX];
        if (length < sizeof folder) {
            memcpy(folder, list, length);
            folder[length] = '\0';
            if (folder[0] == '/') /* anything else would be taken from the current directory */
                complete = search_folder(folder, visit, user) && complete;
        }
        list += length + (list[length] == ':');
    }
    return search_beside_library(visit, user) && complete;
}

/* Name of the first slot that is required and empty, or NULL. */
static const char *missing_slot(const kiln_backend *b)
{
    const struct {
        bool filled;
        const char *name;
    } slots[] = {
        {b->name, "name"},
        {b->probe, "probe"},
        {b->device_count, "device_count"},
        {b->open, "open"},
        {b->close, "close"},
        {b->info, "info"},
        {b->supports, "supports"},
        {b->workspace, "workspace"},
        {b->run, "run"},
        {b->numerics, "numerics"},
        {b->malloc, "malloc"},
        {b->free, "free"},
        {b->copy, "copy"},
        {b->fill, "fill"},
        {b->stream_create, "stream_create"},
        {b->stream_destroy, "stream_destroy"},
        {b->stream_synchronize, "stream_synchronize"},
        {b->event_create, "event_create"},
        {b->event_destroy, "event_destroy"},
        {b->event_record, "event_record"},
        {b->event_elapsed, "event_elapsed"},
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!slots[i].filled)
            return slots[i].name;
    return NULL;
}

void kiln_registry_check(kiln_registry_entry *entry, const kiln_backend *backend)
{
    entry->score = -1;
    if (backend->abi != KILN_BACKEND_ABI || backend->struct_size != sizeof *backend) {
        snprintf(entry->reason, sizeof entry->reason,
                 "it was built for plug-in interface %u (%u bytes); this library has interface %d (%zu bytes)",
                 (unsigned)backend->abi, (unsigned)backend->struct_size, KILN_BACKEND_ABI, sizeof *backend);
        return;
    }
    const char *missing = missing_slot(backend);
    if (missing) {
        snprintf(entry->reason, sizeof entry->reason, "its table lacks the entry '%s'", missing);
        return;
    }
    entry->backend = backend;
    entry->name = backend->name;
}

/* Is the end of this ELF file missing: a copy that is under way, or that ran out of disk? */
static bool is_cut(int file, off_t size)
{
    ElfW(Ehdr) head;
    ElfW(Phdr) segment;
    if (pread(file, &head, sizeof head, 0) != sizeof head || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_phentsize != sizeof segment)
        return false; /* dlopen() will say what is wrong */
    for (int i = 0; i < head.e_phnum; i++)
        if (pread(file, &segment, sizeof segment, (off_t)head.e_phoff + i * (off_t)sizeof segment) != sizeof segment ||
            (segment.p_type == PT_LOAD &&
             (segment.p_offset > (uint64_t)size || segment.p_filesz > (uint64_t)size - segment.p_offset)))
            return true;
    return false;
}

/* Why dlopen() must not see the file: it waits at a pipe and faults in a file that is cut short. NULL = it may. */
static const char *unfit(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return NULL;
    if (!S_ISREG(info.st_mode))
        return "it is not a file";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    bool cut = is_cut(file, info.st_size);
    close(file);
    return cut ? "the file is cut short" : NULL;
}

int kiln_plugin_load(const char *path, const kiln_services *services, kiln_registry_entry *entries, int cap)
{
    kiln_registry_entry *first = &entries[0];
    const char *slash = strrchr(path, '/');
    first->path = path;
    first->name = slash ? slash + 1 : path;
    first->score = -1;
    const char *text = unfit(path);
    void *library = text ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        if (!text)
            text = dlerror();
        snprintf(first->reason, sizeof first->reason, "it could not be loaded: %s", text ? text : "no reason given");
        return 1;
    }
    kiln_backend_entry_fn entry;
    *(void **)&entry = dlsym(library, KILN_BACKEND_ENTRY);
    if (!entry) {
        snprintf(first->reason, sizeof first->reason, "it has no symbol '%s'", KILN_BACKEND_ENTRY);
        return 1;
    }
    int count = 0;
    for (const kiln_backend *backend; count < cap && (backend = entry(services, (uint32_t)count)); count++) {
        entries[count].path = path;
        entries[count].name = first->name;
        kiln_registry_check(&entries[count], backend);
    }
    if (count == 0) {
        snprintf(first->reason, sizeof first->reason, "it holds no backend");
        return 1;
    }
    return count;
}
