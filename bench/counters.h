/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * counters.h: what a device counted during one call, beside what the traffic ledger says. The emulated devices count; a plug-in
 * exports nothing but its entry, so their counters come through the file that KILN_SIMT_COUNTERS names, one JSON object a
 * launch, and are kept as they come. Library `kiln_counters` (jansson): for the program and for tests.
 */
#ifndef KILN_BENCH_COUNTERS_H
#define KILN_BENCH_COUNTERS_H

#include <jansson.h>

#include "ladder.h"
#include "runner.h"

/* Does this device count? If not, why: a sentence that names those that do. */
bool counters_available(const kiln_device_info *info, char *why, size_t cap);

/* Runs the call of an open runner once. A new array with an object a launch; NULL: `why` says why not. Sets and unsets the
 * environment variable, so no other thread may read the environment meanwhile. */
json_t *counters_run(runner *r, char *why, size_t cap);

/* Sums over launches: bytes by what the ledger counts together. */
typedef struct counters_bytes {
    ladder_bytes ledger;
    int64_t tile_q, tile_k; /* of the kernels: the largest of the launches */
    double matrices; /* all tensors but those below; requested, or distinct of each launch, as the ledger counts */
    double lse;      /* requested */
    double factors;  /* naive, tiled: 1/l of each row, which the ledger leaves out */
} counters_bytes;
counters_bytes counters_bytes_of(const json_t *launches, const problem_data *data, const char *algorithm);

/* The sum of one number over launches ("bank_conflicts"). */
json_int_t counters_sum(const json_t *launches, const char *key);

/* The same as members of a result: "launches", "ledger_bytes", "counted_bytes", ... */
void counters_record(json_t *result, json_t *launches, const problem_data *data, const char *algorithm);

/* Results of one problem, each with "algorithm" and the members of counters_record(), as tables: what a rung moved beside the
 * ledger, what each launch did, what became of each tensor. */
void counters_print(FILE *to, const json_t *results);
/* All of it as one table of comma-separated values: a row per rung, per launch (with its kernel) and per tensor. */
void counters_csv(FILE *to, const json_t *results);

#endif
