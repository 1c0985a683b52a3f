/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* cmd_info.c: `kiln info`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "output.h"
#include "session.h"
#include "text.h"

static const command about = {"info", "info [options]",
                              "Lists every backend that is linked in or found as a plug-in, why one cannot be used, "
                              "which one was chosen and why,\n"
                              "and what is known about its device.\n",
                              "  kiln info\n"
                              "  kiln info --backend cpu --threads 1\n"
                              "  KILN_BACKEND_PATH=/opt/kiln kiln info      look for plug-ins there\n"
                              "  KILN_CPU_ISA=avx2 kiln info                cap the instruction set\n",
                              NULL};

static void add_backend(void *user, const kiln_backend_info *info)
{
    json_array_append_new(user, json_pack("{s:s, s:s, s:i, s:i, s:s, s:s}", "name", info->name, "state",
                                          info->available ? "available" : "unavailable", "devices", info->device_count,
                                          "score", info->score, "from", info->path[0] ? info->path : "linked in",
                                          "reason", info->reason[0] ? info->reason : "-"));
}

/* What the library says while it opens a context: which backend auto took, and why. */
static void keep_message(void *user, int32_t level, const char *message)
{
    (void)level;
    json_array_append_new(user, json_string(message));
}

static void print_devices(session *s)
{
    kiln_device_info info;
    for (int32_t device = 0;; device++) {
        kiln_context_options options;
        kiln_context *context;
        if (!session_options(s, &about, &options))
            return;
        options.backend = s->info.backend;
        options.device = device;
        if (kiln_context_create(&context, &options) != KILN_OK)
            return;
        memset(&info, 0, sizeof info);
        info.struct_size = sizeof info;
        if (kiln_context_info(context, &info) == KILN_OK)
            printf("  %s %d: %s, %s, %d %s%s\n", info.backend, device, info.name, info.architecture, info.units,
                   info.device.device_type == KILN_DEVICE_CPU ? "threads" : "units",
                   device == s->device ? "   <- chosen" : "");
        kiln_context_destroy(context);
        if (info.device.device_type == KILN_DEVICE_CPU)
            return;
    }
}

static void print_row(const char *name, const char *value)
{
    printf("  %-14s %s\n", name, value);
}

static void print_bytes(const char *name, int64_t bytes)
{
    char text[32] = "unknown";
    if (bytes > 0)
        text_bytes((double)bytes, text, sizeof text);
    print_row(name, text);
}

/* The instruction set that the CPU backend would take without KILN_CPU_ISA, into `name` ("" if that cannot be said). */
static void uncapped_architecture(const session *s, char *name, size_t cap)
{
    const char *set = getenv("KILN_CPU_ISA");
    char *kept = set != NULL ? strdup(set) : NULL;
    session plain = *s;
    kiln_context_options options;
    name[0] = '\0';
    if (kept == NULL)
        return;
    unsetenv("KILN_CPU_ISA");
    plain.backend = s->info.backend;
    if (session_options(&plain, &about, &options) && kiln_context_create(&plain.context, &options) == KILN_OK) {
        if (kiln_context_info(plain.context, &plain.info) == KILN_OK)
            snprintf(name, cap, "%s", plain.info.architecture);
        session_close(&plain);
    }
    setenv("KILN_CPU_ISA", kept, 1);
    free(kept);
}

static void print_device(const session *s)
{
    char number[32], uncapped[64];
    const kiln_device_info *d = &s->info;
    bool cpu = d->device.device_type == KILN_DEVICE_CPU;
    printf("\nThis device\n");
    print_row("name", d->name);
    print_row(cpu ? "kernels for" : "architecture", d->architecture);
    if (cpu) {
        uncapped_architecture(s, uncapped, sizeof uncapped);
        if (uncapped[0] != '\0' && strcmp(uncapped, d->architecture) != 0)
            printf("  %-14s (capped by KILN_CPU_ISA; without it %s)\n", "", uncapped);
    }
    snprintf(number, sizeof number, "%d", d->units);
    print_row(cpu ? "threads" : "units", number);
    snprintf(number, sizeof number, "%d", d->numa_nodes);
    if (cpu)
        print_row("NUMA nodes", d->numa_nodes > 0 ? number : "unknown");
    print_bytes("memory", d->memory_bytes);
    print_bytes(cpu ? "L1 data cache" : "shared memory", d->l1_bytes);
    print_bytes("L2 cache", d->l2_bytes);
    print_bytes("L3 cache", d->l3_bytes);
}

int command_info(int argc, char **argv)
{
    static const column columns[] = {
        {"name", "backend", COLUMN_TEXT, NULL, 0},      {"state", "state", COLUMN_TEXT, NULL, 0},
        {"devices", "devices", COLUMN_NUMBER, NULL, 0}, {"score", "score", COLUMN_NUMBER, NULL, 0},
        {"from", "from", COLUMN_TEXT, NULL, 0},         {"reason", "why not", COLUMN_TEXT, NULL, 0},
    };
    session s = {0};
    const option options[] = {SESSION_OPTIONS(s)};
    int words, code;
    if (!options_read(&about, options, sizeof options / sizeof *options, argc, argv, &words, &code))
        return code;
    if (words > 0)
        return usage_error(&about, "it takes no arguments, only options; \"%s\" is neither", argv[0]);
    kiln_context_options context_options;
    if (!session_options(&s, &about, &context_options))
        return EXIT_USAGE;
    json_t *backends = json_array(), *messages = json_array();
    if (kiln_backend_list(&context_options, add_backend, backends) != KILN_OK)
        code = usage_error(&about, "%s", kiln_last_error());
    if (code == EXIT_RIGHT) {
        printf("kiln %s\n\nBackends (auto takes the highest score)\n", kiln_version_string());
        output_table(stdout, columns, sizeof columns / sizeof *columns, backends);
        code = session_open(&s, &about, keep_message, messages);
    }
    if (code == EXIT_RIGHT) {
        size_t i;
        json_t *message;
        printf("\nWhat was chosen\n");
        json_array_foreach(messages, i, message) printf("  %s\n", json_string_value(message));
        print_devices(&s);
        print_device(&s);
        printf("\nThis program will run on %s. Next: `kiln verify` to see that it is right, `kiln bench` how fast it "
               "is.\n",
               s.info.backend);
        session_close(&s);
    }
    json_decref(backends);
    json_decref(messages);
    return code;
}
