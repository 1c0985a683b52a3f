/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* main.c: the `kiln` program: finds the subcommand. Everything else is in cmd_*.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <kiln/kiln.h>

#include "commands.h"
#include "options.h"
#include "text.h"

typedef struct entry {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} entry;

static const entry entries[] = {
    {"info", command_info, "backends, devices, what was chosen and why"},
    {"verify", command_verify, "is a result right? every element against the fp64 oracle"},
    {"bench", command_bench, "how fast is every rung of the ladder? verified, then timed"},
    {"roofline", command_roofline, "how fast could it be? operations, bytes, least time on any device"},
    {"report", command_report, "results of several machines on one page, as text or HTML with plots"},
    {"trace", command_trace, "watch the online softmax work, block by block, on your numbers"},
};
enum { ENTRIES = sizeof entries / sizeof *entries };

static void print_help(FILE *to)
{
    fprintf(to,
            "kiln %s: exact softmax and attention for NVIDIA GPUs, AMD GPUs and any CPU\n\n"
            "Usage: kiln COMMAND [options]\n\n",
            kiln_version_string());
    for (size_t i = 0; i < ENTRIES; i++)
        fprintf(to, "  %-10s %s\n", entries[i].name, entries[i].summary);
    fprintf(to, "\nBegin with\n"
                "  kiln info                   what can this machine do?\n"
                "  kiln trace 1,3 2,4          the idea behind all of it, on four numbers\n"
                "  kiln roofline --device a100 why it is worth the trouble\n"
                "  kiln bench                  the ladder from naive to flash attention, on this machine\n"
                "  kiln COMMAND --help         options and examples of one command\n\n"
                "Exit code: 0 all is well, 1 a result is wrong, 2 the command line or the problem is not acceptable,\n"
                "           3 the output could not be written.\n");
}

static int run(int argc, char **argv)
{
    const char *names[ENTRIES];
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        if (argc == 2) {
            print_help(stdout);
            return EXIT_RIGHT;
        }
        argv[1] = argv[2]; /* kiln help bench */
        argv[2] = "--help";
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("kiln %s\n", kiln_version_string());
        return EXIT_RIGHT;
    }
    for (size_t i = 0; i < ENTRIES; i++) {
        names[i] = entries[i].name;
        if (strcmp(argv[1], entries[i].name) == 0)
            return entries[i].run(argc - 2, argv + 2);
    }
    const char *near = text_nearest(argv[1], names, ENTRIES);
    fprintf(stderr, "kiln: there is no command \"%s\"", argv[1]);
    if (near != NULL)
        fprintf(stderr, ": did you mean `kiln %s`?\n", near);
    else
        fprintf(stderr, ": `kiln --help` lists them\n");
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    int code = run(argc, argv);
    /* a full disk or a closed descriptor must look neither like success nor like a wrong result */
    errno = 0;
    bool bad = fflush(stdout) != 0;
    int reason = errno;
    if (!bad && !ferror(stdout))
        return code;
    fprintf(stderr, "kiln: standard output could not be written to its end%s%s\n", reason != 0 ? ": " : "",
            reason != 0 ? strerror(reason) : "");
    return code == EXIT_RIGHT ? EXIT_OUTPUT : code;
}
