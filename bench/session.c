/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* session.c: see session.h. */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "session.h"
#include "text.h"

bool session_options(const session *s, const command *about, kiln_context_options *options)
{
    memset(options, 0, sizeof *options);
    if (s->device < 0 || s->device > INT32_MAX || s->threads < 0 || s->threads > INT32_MAX) {
        usage_error(about, "--device and --threads are numbers from 0 to %d", INT32_MAX);
        return false;
    }
    options->struct_size = sizeof *options;
    options->backend = s->backend;
    options->device = (int32_t)s->device;
    options->max_threads = (int32_t)s->threads;
    options->plugin_path = s->plugins;
    return true;
}

/* What the library warns of (a variable that it ignores, say) is for people, and so on stderr. */
static void print_warning(void *user, int32_t level, const char *message)
{
    (void)level;
    fprintf(stderr, "kiln %s: %s\n", ((const session *)user)->about->name, message);
}

int session_open(session *s, const command *about, kiln_log_callback log, void *log_user)
{
    kiln_context_options options;
    if (!session_options(s, about, &options))
        return EXIT_USAGE;
    options.log = log;
    options.log_user = log_user;
    s->about = about;
    if (log == NULL) {
        options.log = print_warning;
        options.log_user = s;
        options.log_level = KILN_LOG_WARNING;
    }
    if (kiln_context_create(&s->context, &options) != KILN_OK)
        return usage_error(about, "%s", kiln_last_error());
    memset(&s->info, 0, sizeof s->info);
    s->info.struct_size = sizeof s->info;
    if (kiln_context_info(s->context, &s->info) != KILN_OK) {
        session_close(s);
        return usage_error(about, "%s", kiln_last_error());
    }
    return EXIT_RIGHT;
}

void session_close(session *s)
{
    kiln_context_destroy(s->context);
    s->context = NULL;
}

json_t *session_environment(const session *s)
{
#ifdef __clang__
    static const char compiler[] = __VERSION__;
#else
    static const char compiler[] = "gcc " __VERSION__;
#endif
    struct utsname system;
    char date[32] = "", os[512] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (uname(&system) == 0)
        snprintf(os, sizeof os, "%s %s %s", system.sysname, system.release, system.machine);
    const kiln_device_info *d = &s->info;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I}", "kiln_version",
                     kiln_version_string(), "compiler", compiler, "date_utc", date, "system", os, "backend", d->backend,
                     "device", d->name, "architecture", d->architecture, "units", d->units, "numa_nodes", d->numa_nodes,
                     "memory_bytes", (json_int_t)d->memory_bytes, "l1_bytes", (json_int_t)d->l1_bytes, "l2_bytes",
                     (json_int_t)d->l2_bytes, "l3_bytes", (json_int_t)d->l3_bytes);
}

static void print_size(const char *name, int64_t bytes)
{
    char text[32];
    text_bytes((double)bytes, text, sizeof text);
    printf("%s %s", name, bytes > 0 ? text : "unknown");
}

void session_print(const session *s)
{
    const kiln_device_info *d = &s->info;
    bool cpu = d->device.device_type == KILN_DEVICE_CPU;
    printf("kiln %s, backend %s on %s (%s), %d %s; ", kiln_version_string(), d->backend, d->name, d->architecture,
           d->units, cpu ? "threads" : "units");
    print_size("L1", d->l1_bytes);
    print_size(", L2", d->l2_bytes);
    print_size(", L3", d->l3_bytes);
    printf("\n");
}
