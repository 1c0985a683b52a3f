/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem_keys.h: the one table of `key=value` options that parser, printer and help share. Private to kiln_problem.
 */
#ifndef KILN_BENCH_PROBLEM_KEYS_H
#define KILN_BENCH_PROBLEM_KEYS_H

#include "problem.h"

typedef enum key_kind {
    KEY_INT,    /* int64_t */
    KEY_UINT,   /* uint64_t */
    KEY_DOUBLE, /* double */
    KEY_SWITCH, /* int32_t, on or off; the key alone means on */
    KEY_NAME,   /* int32_t, index into names */
    KEY_TYPE,   /* int32_t, an element type */
    KEY_AXES,   /* int32_t, letters of bhqk, or 1 for none of them */
    KEY_LIST,   /* problem_list */
    KEY_FLAGS,  /* uint64_t, names of KILN_FLAG_* joined by + */
    KEY_TEXT,   /* char[PROBLEM_NAME_MAX] */
    KEY_KEEP    /* attn_mask: a density, or a name; keep and keep_density */
} key_kind;

/* Operations that know a key. */
enum {
    FOR_SOFTMAX = 1 << KILN_OP_SOFTMAX_FORWARD | 1 << KILN_OP_SOFTMAX_BACKWARD,
    FOR_BACKWARD = 1 << KILN_OP_ATTENTION_BACKWARD,
    FOR_ATTENTION = 1 << KILN_OP_ATTENTION_FORWARD | 1 << KILN_OP_ATTENTION_BACKWARD,
    FOR_MERGE = 1 << KILN_OP_ATTENTION_MERGE,
    FOR_ALL = FOR_SOFTMAX | FOR_ATTENTION | FOR_MERGE
};

typedef struct problem_key {
    const char *name;
    key_kind kind;
    size_t offset; /* of the field in problem_spec */
    int32_t ops;
    const char *const *names; /* KEY_NAME: NULL-terminated */
} problem_key;

extern const problem_key problem_keys[];
extern const size_t problem_key_count;
enum { PROBLEM_KEYS_MAX = 64 };

/* What a key has no effect without, in words ("attn_mask"), if the problem does not have it; else NULL. The parser refuses such
 * a key, the printer leaves it out. */
const char *problem_key_lacks(const problem_key *key, const problem_spec *spec);

extern const char *const problem_mask_names[]; /* by KILN_MASK_*; NULL-terminated, as all of these */
extern const char *const problem_flag_names[]; /* by bit */
extern const char *const problem_keep_names[];
extern const char problem_axis_letters[]; /* by bit */

/* The type of that name, or 0. */
int32_t problem_type_find(const char *name);
/* Names of all types, NULL-terminated. */
extern const char *const problem_type_names[];

#endif
