/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* counters_print.c: counters as tables. Contract: counters.h. */
#include <stdio.h>

#include "counters.h"
#include "output.h"

static const column rungs[] = {
    {"algorithm", "algorithm", COLUMN_TEXT, NULL, 0},
    {"verdict", "verdict", COLUMN_TEXT, NULL, 0},
    {"counted", "bytes", COLUMN_TEXT, NULL, 0},
    {"counted_bytes", "counted", COLUMN_NUMBER, NULL, 0},
    {"ledger_rung", "formula", COLUMN_TEXT, NULL, 0},
    {"ledger_bytes", "ledger", COLUMN_NUMBER, NULL, 0},
    {"counted_over_ledger", "counted/ledger", COLUMN_NUMBER, NULL, 4},
    {"counted_lse_bytes", "lse", COLUMN_NUMBER, NULL, 0},
    {"ledger_lse_bytes", "ledger", COLUMN_NUMBER, NULL, 0},
    {"counted_factor_bytes", "1/l", COLUMN_NUMBER, NULL, 0},
    {"bank_conflicts", "bank conflicts", COLUMN_NUMBER, NULL, 0},
};
static const column launches[] = {
    {"algorithm", "algorithm", COLUMN_TEXT, NULL, 0},
    {"kernel", "launch", COLUMN_TEXT, NULL, 0},
    {"blocks", "blocks", COLUMN_NUMBER, NULL, 0},
    {"threads", "threads", COLUMN_NUMBER, NULL, 0},
    {"shared_bytes", "shared/block", COLUMN_NUMBER, NULL, 0},
    {"shared_accesses", "shared accesses", COLUMN_NUMBER, NULL, 0},
    {"shared_phases", "phases", COLUMN_NUMBER, NULL, 0},
    {"bank_conflicts", "conflicts", COLUMN_NUMBER, NULL, 0},
    {"exchanges", "exchanges", COLUMN_NUMBER, NULL, 0},
    {"matrix_ops", "matrix ops", COLUMN_NUMBER, NULL, 0},
    {"wave_barriers", "wave barriers", COLUMN_NUMBER, NULL, 0},
    {"block_barriers", "block barriers", COLUMN_NUMBER, NULL, 0},
    {"atomics", "atomics", COLUMN_NUMBER, NULL, 0},
};
static const column tensors[] = {
    {"kernel", "launch", COLUMN_TEXT, NULL, 0},
    {"tensor", "tensor", COLUMN_TEXT, NULL, 0},
    {"read", "read", COLUMN_NUMBER, NULL, 0},
    {"written", "written", COLUMN_NUMBER, NULL, 0},
    {"distinct_read", "distinct read", COLUMN_NUMBER, NULL, 0},
    {"distinct_written", "distinct written", COLUMN_NUMBER, NULL, 0},
    {"read_sectors", "sectors read", COLUMN_NUMBER, NULL, 0},
    {"written_sectors", "sectors written", COLUMN_NUMBER, NULL, 0},
};
static const column lines[] = {
    {"kernel", "launch", COLUMN_TEXT, NULL, 0},
    {"line", "conflicts come from", COLUMN_TEXT, NULL, 0},
    {"conflicts", "conflicts", COLUMN_NUMBER, NULL, 0},
};
#define COUNT(columns) (sizeof(columns) / sizeof *(columns))

/* The rows of one kind from a rung's result: of its launches, of their tensors, of their lines with conflicts. */
typedef enum rows_of { LAUNCHES, TENSORS, LINES } rows_of;
static void add_rows(json_t *rows, const json_t *result, rows_of kind)
{
    size_t i;
    json_t *launch, *value;
    const char *name;
    json_array_foreach(json_object_get(result, "launches"), i, launch)
    {
        json_t *row = json_pack("{s:O*, s:O, s:O, s:i}", "problem", json_object_get(result, "problem"), "algorithm",
                                json_object_get(result, "algorithm"), "kernel", json_object_get(launch, "kernel"),
                                "launch", (int)i + 1);
        if (kind == LAUNCHES) {
            json_object_update_missing(row, launch);
            json_array_append(rows, row);
        }
        json_object_foreach(json_object_get(launch, kind == LINES ? "conflicts_by_line" : "tensors"), name, value)
        {
            json_t *copy = kind == LAUNCHES ? NULL : json_copy(row);
            if (kind == TENSORS)
                json_object_update(copy, value);
            else if (kind == LINES)
                json_object_set(copy, "conflicts", value);
            if (copy != NULL) {
                json_object_set_new(copy, kind == LINES ? "line" : "tensor", json_string(name));
                json_array_append_new(rows, copy);
            }
        }
        json_decref(row);
    }
}

static void print_rows(FILE *to, const json_t *results, rows_of kind, const column *columns, size_t count)
{
    size_t i;
    json_t *result, *rows = json_array();
    json_array_foreach(results, i, result) add_rows(rows, result, kind);
    if (json_array_size(rows) > 0) {
        fprintf(to, "\n");
        output_table(to, columns, count, rows);
    }
    json_decref(rows);
}

void counters_print(FILE *to, const json_t *results)
{
    output_table(to, rungs, COUNT(rungs), results);
    print_rows(to, results, LAUNCHES, launches, COUNT(launches));
    print_rows(to, results, TENSORS, tensors, COUNT(tensors));
    print_rows(to, results, LINES, lines, COUNT(lines));
}

void counters_csv(FILE *to, const json_t *results)
{
    static const column columns[] = {
        {"problem", NULL, COLUMN_TEXT, NULL, 0},
        {"algorithm", NULL, COLUMN_TEXT, NULL, 0},
        {"verdict", NULL, COLUMN_TEXT, NULL, 0},
        {"launch", NULL, COLUMN_TEXT, NULL, 0},
        {"kernel", NULL, COLUMN_TEXT, NULL, 0},
        {"tensor", NULL, COLUMN_TEXT, NULL, 0},
        {"counted", NULL, COLUMN_TEXT, NULL, 0},
        {"counted_bytes", NULL, COLUMN_TEXT, NULL, 0},
        {"ledger_rung", NULL, COLUMN_TEXT, NULL, 0},
        {"ledger_bytes", NULL, COLUMN_TEXT, NULL, 0},
        {"counted_lse_bytes", NULL, COLUMN_TEXT, NULL, 0},
        {"ledger_lse_bytes", NULL, COLUMN_TEXT, NULL, 0},
        {"blocks", NULL, COLUMN_TEXT, NULL, 0},
        {"threads", NULL, COLUMN_TEXT, NULL, 0},
        {"shared_bytes", NULL, COLUMN_TEXT, NULL, 0},
        {"shared_accesses", NULL, COLUMN_TEXT, NULL, 0},
        {"shared_phases", NULL, COLUMN_TEXT, NULL, 0},
        {"bank_conflicts", NULL, COLUMN_TEXT, NULL, 0},
        {"matrix_ops", NULL, COLUMN_TEXT, NULL, 0},
        {"wave_barriers", NULL, COLUMN_TEXT, NULL, 0},
        {"block_barriers", NULL, COLUMN_TEXT, NULL, 0},
        {"atomics", NULL, COLUMN_TEXT, NULL, 0},
        {"read", NULL, COLUMN_TEXT, NULL, 0},
        {"written", NULL, COLUMN_TEXT, NULL, 0},
        {"distinct_read", NULL, COLUMN_TEXT, NULL, 0},
        {"distinct_written", NULL, COLUMN_TEXT, NULL, 0},
        {"read_sectors", NULL, COLUMN_TEXT, NULL, 0},
        {"written_sectors", NULL, COLUMN_TEXT, NULL, 0},
    };
    size_t i;
    json_t *result, *rows = json_array();
    json_array_foreach(results, i, result)
    {
        json_t *rung = json_copy(result); /* a "kernel" here would make it look like a launch */
        json_object_del(rung, "kernel");
        json_array_append_new(rows, rung);
        add_rows(rows, result, LAUNCHES);
        add_rows(rows, result, TENSORS);
    }
    output_csv(to, columns, COUNT(columns), rows);
    json_decref(rows);
}
