/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * peak.h: the ceilings of a context's device: measured now on a CPU, the vendor's numbers on a GPU that the table knows.
 */
#ifndef KILN_BENCH_PEAK_H
#define KILN_BENCH_PEAK_H

#include <jansson.h>

#include "../common/roofline.h"
#include "session.h"

typedef struct device_peak {
    kiln_device_model model; /* numbers are 0 where nothing is known */
    double tile_flops;       /* bf16 on a CPU's tile units; 0 = none, or not in use */
    double copy;             /* bytes/s read and written by a non-temporal copy; 0 = not known */
    bool measured;
    char source[288]; /* one sentence: where the numbers come from */
} device_peak;

device_peak device_peak_of(const session *s);
/* FLOP/s for operands of this type. */
double device_peak_flops(const device_peak *peak, int32_t type);
json_t *device_peak_json(const device_peak *peak);

#endif
