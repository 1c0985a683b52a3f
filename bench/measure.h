/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * measure.h: timing several calls against each other with the events of the library.
 */
#ifndef KILN_BENCH_MEASURE_H
#define KILN_BENCH_MEASURE_H

#include "runner.h"

typedef struct timing {
    int samples;
    int repeats; /* calls per sample: more than one where a call is too short for the clock */
    double minimum, p25, median, p75, maximum; /* seconds of one call */
} timing;

typedef struct measure_options {
    double seconds;    /* about how long to time each rival */
    int samples_least; /* at least so many samples each, however long they take */
    bool cold_cache;   /* write over a buffer larger than the caches before every call */
    int64_t cache_bytes;
} measure_options;

/*
 * Times the rivals in turn, round by round, so that whatever else the machine does falls on all of them alike; one warm-up
 * call each first. Fills timings[i]. On failure the status is the library's.
 */
kiln_status measure(runner *const *rivals, int count, const measure_options *options, timing *timings);

#endif
