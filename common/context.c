/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* context.c: creating a context (choosing a backend, opening a device), describing it, listing backends. */
#define _GNU_SOURCE /* secure_getenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"
#include "validate.h"

/* The search for a backend by name, or for the best. */
typedef struct choice {
    const char *wanted; /* NULL = best */
    const kiln_log *log;
    const kiln_registry_entry *found;
    const kiln_registry_entry *unloaded; /* the file that should hold it, if it could not be loaded */
    char names[256];                     /* what exists, for the error sentence */
} choice;

/* Backends that this version of Kiln knows of, installed or not. */
static bool is_known(const char *name)
{
    static const char *const known[] = {"cpu", "cuda", "hip", "simt-cuda", "simt-hip"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return false;
}

/* kiln_simt.so is where backends "simt" and "simt-..." are looked for. */
static bool should_hold(const char *file, const char *name)
{
    size_t length = strcspn(name, "-");
    return strncmp(file, "kiln_", 5) == 0 && strncmp(file + 5, name, length) == 0 &&
           strcmp(file + 5 + length, ".so") == 0;
}

/* By name, the first that is available ends the search; what is behind it is neither loaded nor asked. */
static bool consider(void *user, kiln_registry_entry *entry)
{
    choice *c = user;
    size_t used = strlen(c->names);
    snprintf(c->names + used, sizeof c->names - used, "%s%s", used ? ", " : "", entry->name);
    if (c->wanted) {
        if (!entry->backend && should_hold(entry->name, c->wanted))
            c->unloaded = entry;
        if (strcmp(c->wanted, entry->name) == 0) {
            c->found = entry;
            return kiln_registry_available(entry, c->log);
        }
    } else if (kiln_registry_available(entry, c->log) && entry->score > 0 &&
               (!c->found || entry->score > c->found->score)) {
        c->found = entry;
    }
    return false;
}

static kiln_status choose(const kiln_context_options *options, const kiln_log *log, const kiln_backend **backend)
{
    choice c = {.wanted = options->backend, .log = log};
    const char *asked_by = "options.backend";
    if (!c.wanted) {
        c.wanted = secure_getenv("KILN_BACKEND");
        asked_by = "the environment variable KILN_BACKEND";
        if (c.wanted && !c.wanted[0])
            c.wanted = NULL;
    }
    KILN_TRY(kiln_registry_visit(options->plugin_path, log, consider, &c));
    if (!c.found)
        c.found = c.unloaded;
    if (!c.found && c.wanted && is_known(c.wanted))
        return kiln_fail(
            KILN_UNAVAILABLE,
            "backend '%s' (asked for by %s) is not installed: no plug-in for it in the plug-in folders; there "
            "are: %s",
            c.wanted, asked_by, c.names);
    if (!c.found && c.wanted)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is '%s'; there is no such backend, there are: %s", asked_by,
                         c.wanted, c.names);
    if (!c.found)
        return kiln_fail(KILN_UNAVAILABLE, "no backend is available on this machine; there are: %s", c.names);
    if (c.found->score < 0 || !c.found->backend)
        return kiln_fail(KILN_UNAVAILABLE, "backend '%s' (%s) is unavailable: %s", c.wanted ? c.wanted : c.found->name,
                         c.found->path[0] ? c.found->path : "linked in", c.found->reason);
    kiln_log_write(log, KILN_LOG_INFO, "backend %s chosen (%s)", c.found->name,
                   c.wanted ? "by name" : "the best that is available");
    *backend = c.found->backend;
    return KILN_OK;
}

static kiln_status check_options(const kiln_context_options *options)
{
    KILN_TRY(kiln_check_range("options.device", options->device, 0, INT32_MAX));
    KILN_TRY(kiln_check_range("options.max_threads", options->max_threads, 0, 65536));
    KILN_TRY(kiln_check_range("options.log_level", options->log_level, KILN_LOG_ERROR, KILN_LOG_DEBUG));
    return kiln_check_range("options.reserved", options->reserved, 0, 0);
}

static kiln_status copy_options(kiln_context_options *copy, const kiln_context_options *options)
{
    memset(copy, 0, sizeof *copy);
    if (options)
        KILN_TRY(kiln_args_copy(copy, sizeof *copy, options, "kiln_context_options"));
    return check_options(copy);
}

static kiln_status open_device(kiln_context *context, const kiln_context_options *options)
{
    KILN_TRY(choose(options, &context->log, &context->backend));
    int32_t count = context->backend->device_count();
    if (options->device >= count)
        return kiln_fail(KILN_UNAVAILABLE, "options.device is %d, but backend %s has %d device%s", options->device,
                         context->backend->name, count, count == 1 ? "" : "s");
    const kiln_open_options open = {
        .device = options->device,
        .max_threads = options->max_threads,
        .parallel_for = options->parallel_for,
        .parallel_for_user = options->parallel_for_user,
        .log = kiln_log_service,
        .log_user = &context->log,
    };
    KILN_TRY(context->backend->open(&open, &context->state));
    kiln_device_info info = {.struct_size = sizeof info};
    kiln_status status = context->backend->info(context->state, &info);
    if (status != KILN_OK) {
        context->backend->close(context->state);
        return status;
    }
    context->device = info.device;
    return KILN_OK;
}

kiln_status kiln_context_create(kiln_context **context, const kiln_context_options *options)
{
    if (!context)
        return kiln_fail(KILN_INVALID_ARGUMENT, "context is NULL; pass the address of a kiln_context *");
    *context = NULL;
    kiln_context_options copy;
    KILN_TRY(copy_options(&copy, options));
    kiln_context *made = calloc(1, sizeof *made);
    if (!made)
        return kiln_fail(KILN_OUT_OF_MEMORY, "no memory for a context (%zu bytes)", sizeof *made);
    made->log = (kiln_log){copy.log, copy.log_user, copy.log_level};
    kiln_status status = open_device(made, &copy);
    if (status != KILN_OK) {
        free(made);
        return status;
    }
    *context = made;
    return KILN_OK;
}

void kiln_context_destroy(kiln_context *context)
{
    if (!context)
        return;
    context->backend->close(context->state);
    free(context);
}

kiln_status kiln_context_info(const kiln_context *context, kiln_device_info *info)
{
    if (!context || !info)
        return kiln_fail(KILN_INVALID_ARGUMENT, "%s is NULL", context ? "info" : "context");
    /* struct_size must be read before anything else is: an older caller has a shorter struct. */
    size_t theirs = info->struct_size;
    if (theirs < sizeof theirs)
        return kiln_fail(KILN_VERSION_MISMATCH,
                         "kiln_device_info.struct_size is %zu; set it to sizeof(kiln_device_info)", theirs);
    kiln_device_info full = {.struct_size = sizeof full};
    KILN_TRY(context->backend->info(context->state, &full));
    full.backend = context->backend->name;
    full.struct_size = theirs;
    memcpy(info, &full, theirs < sizeof full ? theirs : sizeof full);
    return KILN_OK;
}

kiln_device kiln_context_device(const kiln_context *context)
{
    return context ? context->device : (kiln_device){0, 0};
}

const kiln_backend *kiln_context_backend(const kiln_context *context)
{
    return context->backend;
}

typedef struct listing {
    void (*visit)(void *user, const kiln_backend_info *info);
    void *user;
    const kiln_log *log;
} listing;

static bool list_one(void *user, kiln_registry_entry *entry)
{
    const listing *l = user;
    bool available = kiln_registry_available(entry, l->log);
    const kiln_backend_info info = {
        .name = entry->name,
        .path = entry->path,
        .reason = available ? "" : entry->reason,
        .available = available,
        .score = available ? entry->score : 0,
        .device_count = available ? entry->backend->device_count() : 0,
    };
    l->visit(l->user, &info);
    return false;
}

kiln_status kiln_backend_list(const kiln_context_options *options,
                              void (*visit)(void *user, const kiln_backend_info *info), void *user)
{
    if (!visit)
        return kiln_fail(KILN_INVALID_ARGUMENT, "visit is NULL; it is called once for every backend");
    kiln_context_options copy;
    KILN_TRY(copy_options(&copy, options));
    const kiln_log log = {copy.log, copy.log_user, copy.log_level};
    listing l = {visit, user, &log};
    return kiln_registry_visit(copy.plugin_path, &log, list_one, &l);
}
