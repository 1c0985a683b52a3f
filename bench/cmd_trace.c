/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cmd_trace.c: `kiln trace`: the recurrence of the online softmax on numbers from the command line, in fp32 as kernels do
 * it, beside the safe three-pass softmax. Milakov and Gimelshein 2018; the guard for -inf is the one that kernels have.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "text.h"

enum { NUMBERS_MAX = 4096 };

static const command about = {
    "trace", "trace NUMBERS [NUMBERS]...",
    "Shows how a softmax is computed in one pass over blocks of scores. Each word is one block; commas separate its\n"
    "scores, and | may separate blocks too. After every block it prints the running maximum m, the running sum\n"
    "l = sum of exp(x - m), and the factor exp(m_old - m) that corrects what was summed before the maximum moved.\n"
    "At the end: the probabilities exp(x - m)/l beside those of the safe three-pass softmax, which sees all scores "
    "first.\n"
    "Scores are finite numbers of fp32, or -inf (a masked key).\n",
    "  kiln trace 1,3 2,4            two blocks: l = 1.135 -> 1.553\n"
    "  kiln trace '1,3 | 2,4'        the same\n"
    "  kiln trace 1000,1001 -5       no overflow, although exp(1000) is not a number that fits\n"
    "  kiln trace -inf,-inf 0,1      a block without a visible key\n",
    NULL};

typedef struct scores {
    float x[NUMBERS_MAX];
    int count;
    int block_end[NUMBERS_MAX]; /* count after each block */
    float l[NUMBERS_MAX];       /* running sum after each block */
    int blocks;
    bool bar; /* a | stands after the last block */
} scores;

/* One score, cut out of a word. */
static int read_number(scores *s, const char *text, size_t length)
{
    char number[64];
    double value;
    snprintf(number, sizeof number, "%.*s", (int)(length < sizeof number ? length : sizeof number - 1), text);
    if (length == 0)
        return usage_error(&about, "a number is missing beside a comma: write blocks as 1,3 2,4");
    if (length >= sizeof number || !text_float(number, &value))
        return usage_error(&about, "\"%s\" is no number: write blocks as 1,3 2,4", number);
    if (!(value <= (double)FLT_MAX) || (value < -(double)FLT_MAX && value != -INFINITY))
        return usage_error(&about, "\"%s\" is no score: they are finite numbers of fp32, or -inf (a masked key)",
                           number);
    if (s->count == NUMBERS_MAX)
        return usage_error(&about, "at most %d numbers", NUMBERS_MAX);
    s->x[s->count++] = (float)value;
    return EXIT_RIGHT;
}

/* One word of the command line: numbers joined by commas; blocks are separated by spaces, or by one bar. */
static int read_word(scores *s, const char *word)
{
    size_t at = strspn(word, " ");
    if (word[at] == '\0')
        return usage_error(&about, "an empty word: write blocks as 1,3 2,4");
    while (word[at] != '\0') {
        if (word[at] == '|') {
            if (s->blocks == 0 || s->bar)
                return usage_error(&about, "no scores stand before a |");
            s->bar = true;
            at++;
        } else {
            int code;
            size_t n = strcspn(word + at, ", |");
            while ((code = read_number(s, word + at, n)) == EXIT_RIGHT && word[at + n] == ',') {
                at += n + 1;
                n = strcspn(word + at, ", |");
            }
            if (code != EXIT_RIGHT)
                return code;
            at += n;
            s->block_end[s->blocks++] = s->count;
            s->bar = false;
        }
        at += strspn(word + at, " ");
    }
    return EXIT_RIGHT;
}

/* exp(x - m), 0 for a masked key even while every key so far is masked and m is -inf itself. */
static float weight(float x, float m)
{
    return x == -INFINITY ? 0 : expf(x - m);
}

static void print_block(const scores *s, int begin, int end, char *text, size_t cap)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = begin; i < end && i < begin + 8; i++)
        text_append(text, cap, &used, "%s%g", i > begin ? ", " : "", (double)s->x[i]);
    if (end - begin > 8)
        text_append(text, cap, &used, ", ... (%d)", end - begin);
}

static void run_online(scores *s, float *final_m, float *final_l)
{
    float m = -INFINITY, l = 0;
    int begin = 0;
    printf("Online softmax, one pass. Start: m = -inf, l = 0.\n\n"
           "block  %-28s %10s %12s %12s %12s   l = l*factor + block sum\n",
           "scores", "m", "factor", "block sum", "l");
    for (int b = 0; b < s->blocks; b++) {
        float old_m = m, old_l = l, sum = 0;
        for (int i = begin; i < s->block_end[b]; i++)
            m = s->x[i] > m ? s->x[i] : m;
        float factor = weight(old_m, m);
        for (int i = begin; i < s->block_end[b]; i++)
            sum += weight(s->x[i], m);
        s->l[b] = l = old_l * factor + sum;
        char text[160];
        print_block(s, begin, s->block_end[b], text, sizeof text);
        printf("%5d  %-28s %10g %12.6f %12.6f %12.6f   %.6f*%.6f + %.6f\n", b + 1, text, (double)m, (double)factor,
               (double)sum, (double)l, (double)old_l, (double)factor, (double)sum);
        begin = s->block_end[b];
    }
    *final_m = m;
    *final_l = l;
    printf("\nl =");
    for (int b = 0; b < s->blocks; b++)
        printf("%s %.3f", b > 0 ? " ->" : "", (double)s->l[b]);
    printf("   lse = m + ln l = %.6f\n\n", (double)(m == -INFINITY ? -INFINITY : m + logf(l)));
}

static void run_three_pass(const scores *s, float m, float l)
{
    float safe_m = -INFINITY, safe_l = 0, worst = 0;
    for (int i = 0; i < s->count; i++)
        safe_m = s->x[i] > safe_m ? s->x[i] : safe_m;
    for (int i = 0; i < s->count; i++)
        safe_l += weight(s->x[i], safe_m);
    printf("%8s %14s %14s %14s\n", "score", "online", "three-pass", "difference");
    for (int i = 0; i < s->count; i++) {
        float p = l > 0 ? weight(s->x[i], m) / l : 0;
        float safe = safe_l > 0 ? weight(s->x[i], safe_m) / safe_l : 0;
        float difference = fabsf(p - safe);
        worst = !(difference <= worst) ? difference : worst;
        printf("%8g %14.9f %14.9f %14.3g\n", (double)s->x[i], (double)p, (double)safe, (double)(p - safe));
    }
    if (worst == 0)
        printf("\nThe one-pass result is the three-pass result to the last bit, and every score was read once less.\n");
    else
        printf("\nThe largest difference is %.2g: rounding of fp32 (one unit near 1 is 6e-08), and every score was "
               "read once "
               "less.\n",
               (double)worst);
}

int command_trace(int argc, char **argv)
{
    int words, code;
    if (!options_read(&about, NULL, 0, argc, argv, &words, &code))
        return code;
    if (words == 0)
        return usage_error(&about, "give it scores, for example: kiln trace 1,3 2,4");
    scores *s = calloc(1, sizeof *s);
    if (s == NULL)
        return usage_error(&about, "out of memory");
    for (int i = 0; i < words && code == EXIT_RIGHT; i++)
        code = read_word(s, argv[i]);
    if (code == EXIT_RIGHT && s->bar)
        code = usage_error(&about, "no scores stand after the last |");
    if (code == EXIT_RIGHT) {
        float m, l;
        run_online(s, &m, &l);
        run_three_pass(s, m, l);
    }
    free(s);
    return code;
}
