/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* options.c: see options.h. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "text.h"

enum { NAMES_MAX = 32 };

int usage_error(const command *about, const char *format, ...)
{
    va_list list;
    fprintf(stderr, "kiln %s: ", about->name);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    return EXIT_USAGE;
}

/* What stands before a name on the command line. */
static const char *dashes(const char *name)
{
    return name[0] == '-' ? "" : "--";
}

/* Is `word`, up to `length` bytes (before an =), this option? */
static bool is_option(const option *o, const char *word, size_t length)
{
    size_t before = strlen(dashes(o->name));
    return strlen(o->name) + before == length && strncmp(word, "--", before) == 0 &&
           strncmp(word + before, o->name, length - before) == 0;
}

static void print_help(const command *about, const option *options, size_t count)
{
    printf("Usage: kiln %s\n\n%s\nOptions\n", about->usage, about->about);
    for (size_t i = 0; i < count; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s%s%s%s", dashes(options[i].name), options[i].name,
                 options[i].argument ? " " : "", options[i].argument ? options[i].argument : "");
        printf("  %-24s %s\n", left, options[i].help);
    }
    printf("  %-24s %s\n\nExamples\n%s", "--help", "this text", about->examples);
    if (about->more != NULL)
        printf("\n%s", about->more);
}

static int unknown(const command *about, const option *options, size_t count, const char *word)
{
    const char *names[NAMES_MAX] = {"help"};
    size_t n = 1;
    for (size_t i = 0; i < count && n < NAMES_MAX; i++)
        names[n++] = options[i].name;
    const char *near = text_nearest(word + strspn(word, "-"), names, n);
    if (near != NULL)
        return usage_error(about, "unknown option \"%s\": did you mean %s%s?", word, dashes(near), near);
    return usage_error(about, "unknown option \"%s\": `kiln %s --help` lists them", word, about->name);
}

/* A word that begins with a dash and is still no option: a negative number. */
static bool is_number(const char *word)
{
    return word[0] == '-' && (isdigit((unsigned char)word[1]) || word[1] == '.' || strncmp(word + 1, "inf", 3) == 0);
}

static int assign(const command *about, const option *o, const char *value)
{
    switch (o->kind) {
    case OPTION_SWITCH: *(bool *)o->value = true; return EXIT_RIGHT;
    case OPTION_TEXT: *(const char **)o->value = value; return EXIT_RIGHT;
    case OPTION_INT:
        if (text_int(value, o->value))
            return EXIT_RIGHT;
        return usage_error(about, "--%s: \"%s\" is no whole number", o->name, value);
    case OPTION_DOUBLE:
        if (text_float(value, o->value))
            return EXIT_RIGHT;
        return usage_error(about, "--%s: \"%s\" is no number", o->name, value);
    }
    return EXIT_USAGE;
}

bool options_read(const command *about, const option *options, size_t count, int argc, char **argv, int *words,
                  int *exit_code)
{
    bool only_words = false, seen[NAMES_MAX] = {false};
    *words = 0;
    *exit_code = EXIT_RIGHT;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (only_words || word[0] != '-' || word[1] == '\0' || is_number(word)) {
            argv[(*words)++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_words = true;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            print_help(about, options, count);
            *exit_code = EXIT_RIGHT;
            return false;
        }
        const char *equals = strchr(word, '=');
        size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word), at = 0;
        while (at < count && !is_option(&options[at], word, length))
            at++;
        if (at == count) {
            *exit_code = unknown(about, options, count, word);
            return false;
        }
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (options[at].kind == OPTION_SWITCH && value != NULL) {
            *exit_code = usage_error(about, "--%s takes no value", options[at].name);
            return false;
        }
        if (options[at].kind != OPTION_SWITCH && value == NULL) {
            if (i + 1 == argc) {
                *exit_code = usage_error(about, "%s needs a value: write %s %s", word, word, options[at].argument);
                return false;
            }
            value = argv[++i];
        }
        if (seen[at]) {
            *exit_code = usage_error(about, "%s%s is given twice", dashes(options[at].name), options[at].name);
            return false;
        }
        seen[at] = true;
        if (value != NULL && value[0] == '\0') {
            *exit_code =
                usage_error(about, "%s%s has an empty value: write %s%s %s", dashes(options[at].name), options[at].name,
                            dashes(options[at].name), options[at].name, options[at].argument);
            return false;
        }
        if ((*exit_code = assign(about, &options[at], value)) != EXIT_RIGHT)
            return false;
    }
    return true;
}
