/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem.h: a call of Kiln written as one line of text, and the tensors and argument structs that it stands for.
 *
 * Library `kiln_problem`: no symbol of libkiln is used, so that tests and fuzzers can link it alone. The grammar is in
 * problem_help() (problem_keys.c), which `kiln verify --help` prints. Three steps, each usable alone:
 *
 *   text  --problem_parse-->  problem_spec  --problem_build-->  problem_data  --problem_call_init-->  argument structs
 *   text  <--problem_print--
 *
 * Parsing checks the grammar only: a problem that the library must refuse (heads not divisible, a type it does not know,
 * lengths out of range) parses and builds, so that its refusal can be seen. Building never touches memory outside what it
 * allocates, whatever the numbers are. Values depend on (seed, tensor, logical index) alone: the same seed gives the same
 * numbers in every layout.
 */
#ifndef KILN_BENCH_PROBLEM_H
#define KILN_BENCH_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/problem.h"

/* Every tensor that a call may have. Their names, as in kiln.h: problem_slot_name(). */
typedef enum problem_slot {
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_O,
    SLOT_LSE,
    SLOT_Q2,
    SLOT_K2,
    SLOT_BIAS,
    SLOT_ALIBI,
    SLOT_SINKS,
    SLOT_ATTN_MASK,
    SLOT_Q_STARTS,
    SLOT_K_STARTS,
    SLOT_CU_SEQLENS_Q,
    SLOT_CU_SEQLENS_K,
    SLOT_SEQUSED_Q,
    SLOT_SEQUSED_K,
    SLOT_LEFTPAD_K,
    SLOT_BLOCK_TABLE,
    SLOT_CACHE_BATCH_IDX,
    SLOT_DROPOUT, /* seed and offset in device memory: not a tensor of the API, but allocated like one */
    SLOT_STATUS,  /* device_status, likewise */
    SLOT_DOUT,
    SLOT_DLSE,
    SLOT_DQ,
    SLOT_DK,
    SLOT_DV,
    SLOT_DQ2,
    SLOT_DK2,
    SLOT_DBIAS,
    SLOT_DSINKS,
    SLOT_X,
    SLOT_Y,
    SLOT_DY,
    SLOT_DX,
    SLOT_O_PARTS,   /* merge: all parts in one tensor, the part outermost */
    SLOT_LSE_PARTS, /* likewise */
    SLOT_COUNT
} problem_slot;

enum {
    PROBLEM_LIST_MAX = 64,   /* entries of a list that is written out */
    PROBLEM_PARTS_MAX = 64,  /* parts of a merge */
    PROBLEM_NAME_MAX = 64,   /* bytes of an algorithm's name, terminator included */
    PROBLEM_TEXT_MAX = 8192, /* bytes of a problem string, terminator included */
    PROBLEM_SOFTMAX_OUTER = KILN_MAX_RANK - 1
};

/* Where the rows of q, k, v, o lie in memory. */
enum { LAYOUT_BHSD, LAYOUT_BSHD, LAYOUT_SBHD, LAYOUT_QKV, LAYOUT_KV, LAYOUT_COUNT };
/* What attn_mask holds. */
enum { KEEP_NONE, KEEP_RANDOM, KEEP_TREE, KEEP_DIAGONAL, KEEP_COUNT };
/* Order of the pages in a block table. */
enum { TABLE_SHUFFLED, TABLE_ORDERED, TABLE_COUNT };
/* Values of the tensors. problem_fill.c says what each is for. */
enum {
    DATA_NORMAL,
    DATA_UNIFORM,
    DATA_OUTLIER,
    DATA_NEGATIVE,
    DATA_HUGE,
    DATA_TINY,
    DATA_ZEROS,
    DATA_ONES,
    DATA_INDEX,
    DATA_NEEDLE,
    DATA_NAN,
    DATA_INF,
    DATA_NAN_HIDDEN,
    DATA_INF_HIDDEN,
    DATA_COUNT
};
/* Axes that a broadcastable tensor really has; others are of size 1. Bits. */
enum { AXIS_BATCH = 1, AXIS_HEAD = 2, AXIS_QUERY = 4, AXIS_KEY = 8, AXES_PRESENT = 16 };

/* A list of one number per sequence. */
enum { LIST_ABSENT, LIST_RANDOM, LIST_FULL, LIST_GIVEN };
typedef struct problem_list {
    int32_t kind;
    int32_t count; /* LIST_GIVEN */
    int64_t value[PROBLEM_LIST_MAX];
} problem_list;

/* Overrides for one tensor; all zero = what the rest of the line gives it. */
typedef struct problem_override {
    int32_t type;         /* KILN_FLOAT32, ...; 0 = default */
    int32_t stride_count; /* 0 = default */
    int64_t stride[KILN_MAX_RANK];
    int64_t offset; /* elements before the first one, as byte_offset */
} problem_override;

/* What one line says. Plain data: copied by assignment, compared by problem_print(). */
typedef struct problem_spec {
    kiln_op op;
    int32_t type; /* KILN_FLOAT32, ... of q, k, v / x */

    int64_t batch, heads, heads_k, seqlen_q, seqlen_k, d, d_v, d2; /* attention, merge */
    int32_t outer_rank;                                            /* softmax: axes before the last */
    int64_t outer[PROBLEM_SOFTMAX_OUTER], n;

    int32_t mask; /* KILN_MASK_* */
    int64_t window_left, window_right;

    int32_t out, grad; /* types of o / y and of gradients; 0 = type */
    int32_t layout;
    int64_t row_pad, inner, offset;
    int32_t alias_kv;

    int32_t keep, keep_axes;
    double keep_density;
    int64_t mask_len;    /* 0 = seqlen_k */
    int32_t bias, alibi; /* axes */
    double softcap, scale;
    int32_t sinks;

    int64_t q_start, q_step, k_start, k_step;
    problem_list q_starts, k_starts;

    problem_list lens_q, lens_k; /* packed */
    int64_t pack_gap;
    problem_list seqused_q, seqused_k, leftpad_k, cache_batch_idx;
    int64_t cache_batch; /* 0 = batch */
    int64_t page_size;   /* 0 = not paged */
    int32_t table;
    int64_t spare_pages;

    double dropout_p;
    uint64_t dropout_seed, dropout_offset;
    int32_t dropout_ptr;

    int32_t lse, status;
    int32_t dlse, dbias, dsinks;
    int64_t parts;

    int32_t data;
    uint64_t seed;
    uint64_t flags;
    int64_t num_splits, max_sms;
    char algorithm[PROBLEM_NAME_MAX]; /* "" = auto */

    problem_override override[SLOT_COUNT];
} problem_spec;

/* Where a line is wrong and what to write instead. */
typedef struct problem_error {
    int32_t position; /* byte of the text, from 0 */
    char message[384];
} problem_error;

/* The defaults of every field, for this operation. */
problem_spec problem_default(kiln_op op);
/* Reads a line. `op` is meant when the line names none. On false, *error is filled and *spec undefined. */
bool problem_parse(const char *text, kiln_op op, problem_spec *spec, problem_error *error);
/* Writes the line, cut to `cap` bytes with a terminator; returns the bytes that the whole needs without it. Parsing what it
 * wrote gives the same spec, and printing that the same line. */
size_t problem_print(const problem_spec *spec, char *text, size_t cap);
/* The grammar, for people. Static storage. */
const char *problem_help(void);

const char *problem_slot_name(problem_slot slot);
const char *problem_op_name(kiln_op op);
/* The operation of that name, or KILN_OP_COUNT. */
kiln_op problem_op_find(const char *name);
const char *problem_type_name(int32_t type);
const char *problem_data_name(int32_t data);

/* One tensor in host memory. */
typedef struct problem_tensor {
    bool present;
    bool output;
    bool accumulate;   /* an output that is read too */
    problem_slot home; /* whose storage it lies in: itself, or the first of a fused layout */
    int32_t type, ndim;
    int64_t shape[KILN_MAX_RANK], stride[KILN_MAX_RANK];
    int64_t origin; /* element of the storage that holds logical index 0 (byte_offset of the tensor included) */
    int64_t offset; /* of those, elements that become byte_offset */
    char *storage;  /* of home; NULL unless home is itself */
    size_t bytes;   /* of the storage, the guards at both ends included */
} problem_tensor;

/* Bytes before and after each storage that nobody may touch, filled like all padding with 0xFF (a NaN in every type). */
enum { PROBLEM_GUARD = 256, PROBLEM_FILL = 0xFF };

typedef struct problem_data {
    problem_spec spec;
    problem_tensor tensor[SLOT_COUNT];
} problem_data;

/*
 * Allocates and fills every tensor of the problem. Outputs are filled with PROBLEM_FILL (random values if accumulated).
 * backward's o and lse and softmax_backward's y are left for the caller to compute. On failure: false, a sentence in
 * `why`, nothing allocated. `limit`: most bytes of all storages, 0 = no limit but the address space.
 */
bool problem_build(const problem_spec *spec, size_t limit, problem_data *data, char *why, size_t cap);
void problem_free(problem_data *data);

/* Puts the outputs' storage back to what problem_build left there. */
void problem_reset_outputs(problem_data *data);

/* Element (offset from the storage's first byte, in elements of the type) of logical index `index`. */
int64_t problem_element(const problem_tensor *tensor, const int64_t *index);
int64_t problem_count(const problem_tensor *tensor);
/* Calls visit(user, flat logical index, element) for every element, in row-major order. */
void problem_each(const problem_tensor *tensor, void (*visit)(void *user, int64_t flat, int64_t element), void *user);
/* What an attention problem really works on, after packing and used lengths: query rows and key rows (of one head, all
 * sequences together), and pairs of both. */
typedef struct problem_extent {
    int64_t q_rows, k_rows;
    double pairs;
} problem_extent;
problem_extent problem_attention_extent(const problem_data *data);

/* The storage that a tensor's elements lie in. */
char *problem_storage(const problem_data *data, problem_slot slot);

/* The argument structs of the call; pointers lead into this struct and into `storage`, so it must not be moved. */
typedef struct problem_call {
    kiln_op op;
    kiln_tensor tensor[SLOT_COUNT];
    kiln_tensor part[2][PROBLEM_PARTS_MAX];
    const kiln_tensor *part_pointer[2][PROBLEM_PARTS_MAX];
    kiln_softmax_forward_args softmax_forward;
    kiln_softmax_backward_args softmax_backward;
    kiln_attention_forward_args forward; /* also what backward points to */
    kiln_attention_backward_args backward;
    kiln_attention_merge_args merge;
} problem_call;

/* `storage[slot]` is where the storage of a home slot lies on `device`; NULL array: the host copies of `data`. */
void problem_call_init(problem_call *call, const problem_data *data, kiln_device device, char *const *storage);
/* The struct that the operation takes. */
const void *problem_call_args(const problem_call *call);

#endif
