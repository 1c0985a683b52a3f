/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fuzz_args.h: what the files of fuzz_args share.
 *
 *   fuzz_args_make.c   bytes -> a problem of small size, every option of the problem grammar reachable
 *   fuzz_args_spoil.c  bytes -> changes of its tensors, its scalars and the contents of its lengths
 *   fuzz_args.c        the target: makes the four calls and demands the rules of kiln.h
 */
#ifndef KILN_TESTS_FUZZ_FUZZ_ARGS_H
#define KILN_TESTS_FUZZ_FUZZ_ARGS_H

#include "../../bench/problem.h"
#include "fuzz.h"

/* The input, read once from the front; zeros follow its end. */
typedef struct input {
    const uint8_t *at;
    size_t left;
} input;
uint8_t input_byte(input *in);
/* A number below `count`. */
size_t input_below(input *in, size_t count);
/* Mostly small, sometimes any of the numbers at which arithmetic goes wrong. */
int64_t input_number(input *in);

/* False: what the bytes say is no problem, or a large one. */
bool make_problem(input *in, problem_data *data);

/* The argument structs in memory of exactly their struct_size, so that a sanitizer sees a read past them. */
typedef struct call_args {
    kiln_op op;
    void *args;    /* what the call takes */
    void *forward; /* backward only: the struct that it points to */
    bool spoiled;  /* no longer what problem_call_init() made */
    bool complete; /* every tensor that is given has its data */
    bool moved;    /* a tensor may lie elsewhere in its storage, the guards at both ends included */
    /* Room for the metadata that was changed. */
    kiln_tensor tensor[SLOT_COUNT];
    int64_t shape[SLOT_COUNT][KILN_MAX_RANK], stride[SLOT_COUNT][KILN_MAX_RANK];
} call_args;

/* Copies the structs of `call`, and changes up to a few things as the bytes say. Data of tensors that no longer lie in
 * their storage, or would take long to compute, are taken away: then `complete` is false. */
void call_args_make(call_args *a, input *in, problem_call *call, problem_data *data);
void call_args_free(call_args *a);

#endif
