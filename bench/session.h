/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * session.h: opening a context from the command line, and describing the machine it runs on.
 */
#ifndef KILN_BENCH_SESSION_H
#define KILN_BENCH_SESSION_H

#include <jansson.h>

#include "options.h"
#include <kiln/kiln.h>

/* The options that choose a context; put SESSION_OPTIONS(session) into a subcommand's table. */
typedef struct session {
    const char *backend, *plugins;
    int64_t device, threads;
    const command *about; /* who opened it */
    kiln_context *context;
    kiln_device_info info;
} session;

#define SESSION_OPTIONS(s)                                                                                             \
    {"backend", OPTION_TEXT, &(s).backend, "NAME", "cpu, cuda, hip, ...; default: the best available"},                \
        {"device", OPTION_INT, &(s).device, "N", "ordinal of the device within the backend"},                          \
        {"threads", OPTION_INT, &(s).threads, "N", "CPU: most threads of a call; default: OpenMP's"},                  \
    {                                                                                                                  \
        "plugins", OPTION_TEXT, &(s).plugins, "FOLDER", "look for backend plug-ins here first"                         \
    }

/* Opens the context. EXIT_RIGHT, or EXIT_USAGE with the library's sentence on stderr. */
int session_open(session *s, const command *about, kiln_log_callback log, void *log_user);
void session_close(session *s);
/* The options as kiln_context_create() takes them. False if a number does not fit, with a sentence on stderr. */
bool session_options(const session *s, const command *about, kiln_context_options *options);

/* What a reader needs to judge numbers from this machine: versions, device, system. A new object. */
json_t *session_environment(const session *s);
/* The same as a few lines of text. */
void session_print(const session *s);

#endif
