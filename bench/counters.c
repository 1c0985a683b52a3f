/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* counters.c: see counters.h. Cost: a call, and a file of a few hundred bytes a launch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "counters.h"

static const char variable[] = "KILN_SIMT_COUNTERS";

bool counters_available(const kiln_device_info *info, char *why, size_t cap)
{
    if (strncmp(info->backend, "simt-", 5) == 0)
        return true;
    snprintf(why, cap, "backend %s counts nothing; the emulated devices do: --backend simt-cuda or simt-hip",
             info->backend);
    return false;
}

/* One JSON object a line. */
static json_t *read_launches(FILE *file)
{
    json_t *launches = json_array();
    for (;;) {
        json_error_t error;
        json_t *launch = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error);
        if (launch == NULL && json_error_code(&error) == json_error_premature_end_of_input)
            return launches;
        if (!json_is_object(launch)) {
            json_decref(launch);
            json_decref(launches);
            return NULL;
        }
        json_array_append_new(launches, launch);
    }
}

json_t *counters_run(runner *r, char *why, size_t cap)
{
    const char *folder = getenv("TMPDIR");
    char path[256];
    int length = snprintf(path, sizeof path, "%s/kiln-counters-XXXXXX", folder && folder[0] ? folder : "/tmp");
    int descriptor = length < (int)sizeof path ? mkstemp(path) : -1;
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "r") : NULL;
    if (file == NULL) {
        snprintf(why, cap, "no temporary file for the counters: TMPDIR names a folder that can be written");
        return NULL;
    }
    const char *value = getenv(variable);
    char *before = value != NULL ? strdup(value) : NULL;
    kiln_status status = runner_reset(r, false, 0);
    if (status == KILN_OK && setenv(variable, path, 1) == 0) {
        status = runner_run(r);
        unsetenv(variable);
        if (before != NULL)
            setenv(variable, before, 1);
    }
    json_t *launches = status == KILN_OK ? read_launches(file) : NULL;
    if (status != KILN_OK)
        snprintf(why, cap, "%s", kiln_last_error());
    else if (launches == NULL)
        snprintf(why, cap, "what the device counted cannot be read");
    free(before);
    fclose(file);
    unlink(path);
    return launches;
}

static json_int_t number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

json_int_t counters_sum(const json_t *launches, const char *key)
{
    size_t i;
    json_t *launch;
    json_int_t sum = 0;
    json_array_foreach(launches, i, launch) sum += number(launch, key);
    return sum;
}

counters_bytes counters_bytes_of(const json_t *launches, const problem_data *data, const char *algorithm)
{
    size_t i;
    json_t *launch, *tensor;
    const char *name;
    counters_bytes bytes = {0};
    json_array_foreach(launches, i, launch)
    {
        bytes.tile_q = number(launch, "tile_q") > bytes.tile_q ? number(launch, "tile_q") : bytes.tile_q;
        bytes.tile_k = number(launch, "tile_k") > bytes.tile_k ? number(launch, "tile_k") : bytes.tile_k;
    }
    bytes.ledger = ladder_bytes_of(data, algorithm, bytes.tile_q, bytes.tile_k);
    json_array_foreach(launches, i, launch)
    {
        json_object_foreach(json_object_get(launch, "tensors"), name, tensor)
        {
            double requested = (double)(number(tensor, "read") + number(tensor, "written"));
            double distinct = (double)(number(tensor, "distinct_read") + number(tensor, "distinct_written"));
            if (strcmp(name, "lse") == 0)
                bytes.lse += requested;
            else if (bytes.ledger.distinct && strcmp(name, "part_lse") == 0)
                bytes.factors += distinct;
            else if (bytes.ledger.distinct)
                bytes.matrices += distinct;
            else
                bytes.matrices += requested;
        }
    }
    return bytes;
}

void counters_record(json_t *result, json_t *launches, const problem_data *data, const char *algorithm)
{
    static const char *const sums[] = {"shared_accesses", "shared_phases", "bank_conflicts", "exchanges",
                                       "matrix_ops",      "wave_barriers", "block_barriers", "atomics"};
    const counters_bytes bytes = counters_bytes_of(launches, data, algorithm);
    json_object_set_new(result, "counted", json_string(bytes.ledger.distinct ? "distinct" : "requested"));
    json_object_set_new(result, "counted_bytes", json_integer((json_int_t)bytes.matrices));
    json_object_set_new(result, "ledger_rung",
                        bytes.ledger.rung == KILN_RUNG_COUNT ? json_null()
                                                             : json_string(kiln_rung_name(bytes.ledger.rung)));
    json_object_set_new(result, "ledger_bytes", json_integer((json_int_t)bytes.ledger.matrices));
    if (bytes.ledger.matrices > 0)
        json_object_set_new(result, "counted_over_ledger", json_real(bytes.matrices / bytes.ledger.matrices));
    json_object_set_new(result, "counted_lse_bytes", json_integer((json_int_t)bytes.lse));
    json_object_set_new(result, "ledger_lse_bytes", json_integer((json_int_t)bytes.ledger.lse));
    json_object_set_new(result, "counted_factor_bytes", json_integer((json_int_t)bytes.factors));
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        json_object_set_new(result, sums[i], json_integer(counters_sum(launches, sums[i])));
    json_object_set(result, "launches", launches);
}
