/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * options.h: the command line of one subcommand, read by a table. Errors name the nearest option and say what to type.
 */
#ifndef KILN_BENCH_OPTIONS_H
#define KILN_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What every subcommand returns to the shell. */
enum {
    EXIT_RIGHT = 0,
    EXIT_WRONG = 1, /* a result is wrong */
    EXIT_USAGE = 2, /* the command line, a problem, a file or a backend is not acceptable */
    EXIT_OUTPUT = 3 /* what was found could not be written to its end */
};

typedef enum option_kind {
    OPTION_SWITCH, /* bool * */
    OPTION_TEXT,   /* const char ** */
    OPTION_INT,    /* int64_t * */
    OPTION_DOUBLE  /* double * */
} option_kind;

typedef struct option {
    const char *name; /* without its two dashes; a name that begins with a dash is written as it is: -o */
    option_kind kind;
    void *value;
    const char *argument; /* what the help calls the value; NULL for switches */
    const char *help;
} option;

typedef struct command {
    const char *name;
    const char *usage;    /* the line after "Usage: kiln " */
    const char *about;    /* what it does and how to read what it prints */
    const char *examples; /* indented lines */
    const char *more;     /* text after the options, or NULL */
} command;

/*
 * Reads argv[0 ... argc-1] (the words after the subcommand). Words that are no option are moved to the front of argv, and
 * counted in *words. An option that is given twice, or with an empty value, is an error. Returns true to go on; otherwise *exit_code is what to leave with (0 after --help).
 */
bool options_read(const command *about, const option *options, size_t count, int argc, char **argv, int *words,
                  int *exit_code);

/* Prints "kiln COMMAND: sentence" to stderr; returns EXIT_USAGE. */
int usage_error(const command *about, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
