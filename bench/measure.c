/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* measure.c: see measure.h. */
#include <math.h>
#include <stdlib.h>

#include "measure.h"
#include "output.h"

enum { SAMPLES_MOST = 200 };
#define SAMPLE_LEAST 2e-3 /* seconds: below, a sample is several calls */

typedef struct bench {
    kiln_context *context;
    kiln_event *begin, *end;
    void *flush; /* cold cache: written before every call */
    size_t flush_bytes;
} bench;

static kiln_status take_sample(bench *b, runner *rival, int repeats, double *seconds)
{
    kiln_status status = KILN_OK;
    double milliseconds = 0;
    if (b->flush != NULL)
        status = kiln_fill(b->context, b->flush, 1, b->flush_bytes, NULL);
    if (status == KILN_OK)
        status = kiln_event_record(b->context, b->begin, NULL);
    for (int i = 0; i < repeats && status == KILN_OK; i++)
        status = runner_run(rival);
    if (status == KILN_OK)
        status = kiln_event_record(b->context, b->end, NULL);
    if (status == KILN_OK)
        status = kiln_event_elapsed(b->context, b->begin, b->end, &milliseconds);
    *seconds = milliseconds * 1e-3 / repeats;
    return status;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorted samples, linear between neighbours. */
static double quantile(const double *sorted, int count, double q)
{
    double at = q * (count - 1);
    int below = (int)at;
    double rest = at - below;
    return below + 1 < count ? sorted[below] * (1 - rest) + sorted[below + 1] * rest : sorted[below];
}

static void summarise(double *samples, int count, timing *t)
{
    qsort(samples, (size_t)count, sizeof *samples, compare);
    t->samples = count;
    t->minimum = samples[0];
    t->p25 = quantile(samples, count, 0.25);
    t->median = quantile(samples, count, 0.5);
    t->p75 = quantile(samples, count, 0.75);
    t->maximum = samples[count - 1];
}

static kiln_status measure_rounds(bench *b, runner *const *rivals, int count, const measure_options *options,
                                  double (*samples)[SAMPLES_MOST], timing *timings)
{
    kiln_status status = KILN_OK;
    int rounds = 0;
    for (int i = 0; i < count && status == KILN_OK; i++) {
        double first;
        progress("warming up %s", rivals[i]->kernel);
        status = take_sample(b, rivals[i], 1, &first);
        first = first > 1e-7 ? first : 1e-7;
        timings[i].repeats = b->flush == NULL && first < SAMPLE_LEAST ? (int)ceil(SAMPLE_LEAST / first) : 1;
        int want = (int)(options->seconds / (first * timings[i].repeats));
        want = want < options->samples_least ? options->samples_least : want > SAMPLES_MOST ? SAMPLES_MOST : want;
        timings[i].samples = want;
        rounds = want > rounds ? want : rounds;
    }
    for (int round = 0; round < rounds && status == KILN_OK; round++)
        for (int i = 0; i < count && status == KILN_OK; i++) {
            if (round >= timings[i].samples)
                continue;
            progress("timing round %d of %d: %s", round + 1, rounds, rivals[i]->kernel);
            status = take_sample(b, rivals[i], timings[i].repeats, &samples[i][round]);
        }
    for (int i = 0; i < count && status == KILN_OK; i++)
        summarise(samples[i], timings[i].samples, &timings[i]);
    progress_done();
    return status;
}

kiln_status measure(runner *const *rivals, int count, const measure_options *options, timing *timings)
{
    if (count == 0)
        return KILN_OK;
    bench b = {.context = rivals[0]->context};
    double(*samples)[SAMPLES_MOST] = calloc((size_t)count, sizeof *samples);
    kiln_status status = samples != NULL ? KILN_OK : KILN_OUT_OF_MEMORY;
    if (status == KILN_OK)
        status = kiln_event_create(b.context, &b.begin);
    if (status == KILN_OK)
        status = kiln_event_create(b.context, &b.end);
    if (status == KILN_OK && options->cold_cache) {
        /* Twice the largest cache; some virtual machines report that of the whole host, so no more than 512 MiB. */
        int64_t bytes = 2 * options->cache_bytes, least = (int64_t)64 << 20, most = (int64_t)512 << 20;
        b.flush_bytes = (size_t)(bytes < least ? least : bytes > most ? most : bytes);
        status = kiln_malloc(b.context, b.flush_bytes, &b.flush);
    }
    if (status == KILN_OK)
        status = measure_rounds(&b, rivals, count, options, samples, timings);
    kiln_free(b.context, b.flush);
    kiln_event_destroy(b.context, b.begin);
    kiln_event_destroy(b.context, b.end);
    free(samples);
    return status;
}
