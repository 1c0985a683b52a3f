/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_case.h: small attention problems for the tests of the oracle, and attention written down a second time.
 *
 * Nothing here shares code with the oracle: tensors are filled and read through their own index arithmetic, and
 * oracle_naive.inc.h restates kiln.h's formulas for one query row, in long double and in float. Memory belongs to the
 * running test and is freed by oracle_release().
 */
#ifndef KILN_TESTS_UNIT_ORACLE_CASE_H
#define KILN_TESTS_UNIT_ORACLE_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../cpu_ref/oracle.h"

typedef struct oracle_tensor {
    kiln_tensor tensor;
    int64_t shape[KILN_MAX_RANK], stride[KILN_MAX_RANK];
    int64_t count;
    int32_t type;
} oracle_tensor;

/* `strided`: the axis before the last two swapped with its neighbour, gaps, a byte_offset, the last axis 2 apart. Filled
 * with NaN. */
oracle_tensor *oracle_tensor_new(int32_t type, int32_t ndim, const int64_t *shape, bool strided);
double oracle_get(const oracle_tensor *tensor, int64_t i); /* element i in row-major order */
void oracle_put(oracle_tensor *tensor, int64_t i, double value);
const kiln_tensor *oracle_tensor_of(const oracle_tensor *tensor); /* NULL for NULL */
double oracle_random(void);                                       /* about (-1.7, 1.7), variance 1 */
void oracle_seed(uint64_t seed);
void *oracle_zeroed(size_t bytes);
kiln_oracle_output oracle_output(int64_t count); /* both arrays */
void oracle_release(void);

enum { ORACLE_MAX_BATCH = 4 };

/* 0 is the default of every field but the sizes. */
typedef struct oracle_case {
    const char *name;
    int64_t batch, heads, heads_k, seqlen_q, seqlen_k, d, d_v, d2; /* d_v 0 = d */
    int32_t type;                                                  /* 0 = fp64 */
    float scale, softcap, dropout_p;
    int32_t mask;
    int64_t left, right, mask_len;
    bool bias, bias_broadcast; /* broadcast: batch and query have size 1 */
    int alibi;                 /* 1 (heads), 2 (batch, heads) */
    bool sinks, dlse;
    int64_t q_start, q_step, k_start, k_step;
    bool starts, packed_q, packed_k, used_q, used_k, leftpad, cache_idx, strided;
    int64_t page_size;
} oracle_case;

typedef struct oracle_problem {
    oracle_case c;
    kiln_attention_forward_args args;
    oracle_tensor *q, *k, *v, *q2, *k2, *o, *lse, *bias, *mask, *alibi, *sinks;
    oracle_tensor *q_starts, *k_starts, *cu_q, *cu_k, *used_q, *used_k, *leftpad, *table, *cache_idx;
    int64_t len_q[ORACLE_MAX_BATCH], len_k[ORACLE_MAX_BATCH]; /* what counts */
    int64_t first_q[ORACLE_MAX_BATCH], first_k[ORACLE_MAX_BATCH];
    int64_t rows_q, rows_k; /* rows of q and k on their row axis */
} oracle_problem;

oracle_problem *oracle_problem_new(const oracle_case *description);
/* Row number (all axes but the last) of query i, head h, in q, o and lse; of key j in k and v. */
int64_t oracle_q_row(const oracle_problem *p, int64_t b, int64_t h, int64_t i);
int64_t oracle_k_row(const oracle_problem *p, int64_t b, int64_t h_k, int64_t j);
int64_t oracle_pos_q(const oracle_problem *p, int64_t b, int64_t i);
int64_t oracle_pos_k(const oracle_problem *p, int64_t b, int64_t j);
bool oracle_sees(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j);
double oracle_keeps(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j); /* dropout's factor */
int64_t oracle_bias_index(const oracle_problem *p, int64_t b, int64_t h, int64_t i, int64_t j);

/* Gradients in arrays of the tensors' row-major shape; absent ones NULL. */
typedef struct oracle_grads_exact {
    long double *dq, *dk, *dv, *dq2, *dk2, *dbias, *dsinks;
} oracle_grads_exact;
typedef struct oracle_grads_float {
    float *dq, *dk, *dv, *dq2, *dk2, *dbias, *dsinks;
} oracle_grads_float;

/* One query row: o[d_v] and lse. And everything a row adds to the gradients, from p->o and p->lse as they are stored. */
void oracle_row_exact(const oracle_problem *p, int64_t b, int64_t h, int64_t i, long double *o, long double *lse);
void oracle_row_float(const oracle_problem *p, int64_t b, int64_t h, int64_t i, float *o, float *lse);
void oracle_back_exact(const oracle_problem *p, const oracle_tensor *dout, const oracle_tensor *dlse, int64_t b,
                       int64_t h, int64_t i, oracle_grads_exact *g);
void oracle_back_float(const oracle_problem *p, const oracle_tensor *dout, const oracle_tensor *dlse, int64_t b,
                       int64_t h, int64_t i, oracle_grads_float *g);

/* What oracle_row_float() and oracle_back_float() may say about themselves, with glibc's expf and tanhf. */
extern const kiln_numerics oracle_float_numerics;

/* One case for every feature, and many together. Ends with a NULL name. */
extern const oracle_case oracle_cases[];

#endif
