/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * plugin.c: backends that exist to be loaded (or not) by test_registry.c. Built several times; PLUGIN says as what.
 * A good one is complete but has no operation: it refuses everything through the services it was given.
 */
#define _GNU_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/backend.h"

#define PLUGIN_GOOD         1 /* two backends in one file: "test" works, by name only; "test-absent" gives a reason */
#define PLUGIN_BEST         2 /* "test-best" has the highest score */
#define PLUGIN_WRONG_ABI    3
#define PLUGIN_WRONG_SIZE   4
#define PLUGIN_NO_ENTRY     5 /* does not export the symbol */
#define PLUGIN_EMPTY        6 /* exports it but holds no backend */
#define PLUGIN_MISSING_SLOT 7
#define PLUGIN_UNRESOLVED   8 /* needs a symbol that nobody has */

static const kiln_services *services;

/* KILN_TEST_PROBED, if it is set: the backends that were asked, for the test to read. */
static void note(const char *name)
{
    const char *before = getenv("KILN_TEST_PROBED");
    char text[256];
    snprintf(text, sizeof text, "%s %s", before ? before : "", name);
    if (before)
        setenv("KILN_TEST_PROBED", text, 1);
}

static int32_t probe(char *reason, size_t cap)
{
    note(PLUGIN == PLUGIN_BEST ? "test-best" : "test");
    if (cap)
        reason[0] = '\0';
    return PLUGIN == PLUGIN_BEST ? 1000000 : 0;
}
static int32_t probe_absent(char *reason, size_t cap)
{
    note("test-absent");
    snprintf(reason, cap, "the test device is not plugged in");
    return -1;
}
static int32_t device_count(void)
{
    return 2;
}
static kiln_status open_device(const kiln_open_options *options, void **state)
{
    options->log(options->log_user, KILN_LOG_WARNING, "test device %d opened", options->device);
    *state = calloc(1, 1);
    return *state ? KILN_OK : services->fail(KILN_OUT_OF_MEMORY, "no memory");
}
static void close_device(void *state)
{
    free(state);
}
static kiln_status info(void *state, kiln_device_info *info)
{
    (void)state;
    info->name = "a device made of cardboard";
    info->architecture = "cardboard";
    info->device = (kiln_device){KILN_DEVICE_CPU, 7};
    return KILN_OK;
}
static kiln_status supports(void *state, const kiln_problem *problem, char *why, size_t cap)
{
    (void)state;
    (void)why;
    (void)cap;
    return services->fail(KILN_UNSUPPORTED, "the test backend has no operation %d", (int)problem->op);
}
static kiln_status workspace(void *state, const kiln_problem *problem, size_t *bytes)
{
    *bytes = 0;
    return supports(state, problem, NULL, 0);
}
static kiln_status run(void *state, const kiln_problem *problem, void *memory, size_t bytes, kiln_stream stream)
{
    (void)memory;
    (void)bytes;
    (void)stream;
    return supports(state, problem, NULL, 0);
}
static kiln_status numerics(void *state, const kiln_problem *problem, kiln_numerics *result)
{
    (void)result;
    return supports(state, problem, NULL, 0);
}
static kiln_status take(void *state, size_t bytes, void **pointer)
{
    (void)state;
    *pointer = malloc(bytes);
    return KILN_OK;
}
static kiln_status give(void *state, void *pointer)
{
    (void)state;
    free(pointer);
    return KILN_OK;
}
static kiln_status copy(void *state, void *destination, const void *source, size_t bytes, kiln_stream stream)
{
    (void)state;
    (void)stream;
    memcpy(destination, source, bytes);
    return KILN_OK;
}
static kiln_status fill(void *state, void *destination, uint8_t value, size_t bytes, kiln_stream stream)
{
    (void)state;
    (void)stream;
    memset(destination, value, bytes);
    return KILN_OK;
}
static kiln_status stream_create(void *state, kiln_stream *stream)
{
    (void)state;
    *stream = NULL;
    return KILN_OK;
}
static kiln_status stream_done(void *state, kiln_stream stream)
{
    (void)state;
    (void)stream;
    return KILN_OK;
}
static kiln_status event_create(void *state, void **event)
{
    (void)state;
    *event = NULL;
    return KILN_OK;
}
static kiln_status event_destroy(void *state, void *event)
{
    (void)state;
    (void)event;
    return KILN_OK;
}
static kiln_status event_record(void *state, void *event, kiln_stream stream)
{
    (void)stream;
    return event_destroy(state, event);
}
static kiln_status event_elapsed(void *state, void *start, void *end, double *milliseconds)
{
    (void)end;
    *milliseconds = 0;
    return event_destroy(state, start);
}

#define COMMON_SLOTS                                                                                                   \
    .abi = KILN_BACKEND_ABI + (PLUGIN == PLUGIN_WRONG_ABI),                                                            \
    .struct_size = sizeof(kiln_backend) - (PLUGIN == PLUGIN_WRONG_SIZE ? 8 : 0), .device_count = device_count,         \
    .open = open_device, .close = close_device, .info = info, .supports = supports, .workspace = workspace,            \
    .run = PLUGIN == PLUGIN_MISSING_SLOT ? NULL : run, .numerics = numerics, .host_readable = true, .malloc = take,    \
    .free = give, .copy = copy, .fill = fill, .stream_create = stream_create, .stream_destroy = stream_done,           \
    .stream_synchronize = stream_done, .event_create = event_create, .event_destroy = event_destroy,                   \
    .event_record = event_record, .event_elapsed = event_elapsed

static const kiln_backend backends[] = {
    {COMMON_SLOTS, .name = PLUGIN == PLUGIN_BEST ? "test-best" : "test", .probe = probe},
    {COMMON_SLOTS, .name = "test-absent", .probe = probe_absent},
};

#if PLUGIN == PLUGIN_UNRESOLVED
void kiln_test_symbol_that_nobody_has(void);
#endif

#if PLUGIN == PLUGIN_NO_ENTRY
#define ENTRY kiln_test_wrong_name
#else
#define ENTRY kiln_backend_entry
#endif

__attribute__((visibility("default"))) const kiln_backend *ENTRY(const kiln_services *given, uint32_t index);
const kiln_backend *ENTRY(const kiln_services *given, uint32_t index)
{
#if PLUGIN == PLUGIN_UNRESOLVED
    kiln_test_symbol_that_nobody_has();
#endif
    services = given;
    const kiln_backend *listed[] = {PLUGIN == PLUGIN_EMPTY ? NULL : &backends[0],
                                    PLUGIN == PLUGIN_GOOD ? &backends[1] : NULL, NULL};
    return index < 2 ? listed[index] : NULL;
}
