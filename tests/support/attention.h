/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention.h: one attention forward problem as a short description, from it tensors and arguments, and the judgement.
 *
 * A description that is all zero except for lengths and d is the plain problem: batch 1, heads 1, fp32, d_v = d, normal
 * data, compact. ABSENT_SIZE stands where 0 would mean the default and a real 0 is wanted.
 * What no call may read (rows outside every sequence, unused pages, padding) holds NaN.
 */
#ifndef KILN_TESTS_SUPPORT_ATTENTION_H
#define KILN_TESTS_SUPPORT_ATTENTION_H

#include "../../cpu_ref/oracle.h"
#include "fixture.h"

enum { ABSENT_SIZE = -1 };

typedef enum attention_values {
    VALUES_NORMAL,
    VALUES_OUTLIERS, /* a few rows 12 times larger: one key takes all the weight */
    VALUES_NEGATIVE, /* every score far below zero */
    VALUES_HUGE,     /* scores far beyond where exp overflows and underflows */
    VALUES_ZERO,     /* q = 0: every visible key weighs the same */
    VALUES_SMALL,    /* values of fp16's subnormal range */
    VALUES_POISON,   /* NaN and both infinities planted in q, k and v */
    VALUES_COUNT
} attention_values;
extern const char *const attention_values_name[VALUES_COUNT];

enum { BROADCAST_BATCH = 1, BROADCAST_HEAD = 2, BROADCAST_QUERY = 4, BROADCAST_KEY = 8 };

typedef struct attention_case {
    int64_t batch, heads, heads_k, seqlen_q, seqlen_k, d, d_v, d2;
    int32_t type;   /* of q, k, v; 0 = fp32 */
    int32_t o_type; /* 0 = type */
    test_strides q_strides, k_strides, v_strides, o_strides;
    attention_values values;
    float scale, softcap; /* kiln.h's meaning */
    int32_t mask;
    int64_t window_left, window_right;
    int64_t q_start, q_step, k_start, k_step;
    bool starts;                /* q_starts and k_starts */
    int64_t mask_len;           /* > 0: attn_mask over that many last keys, 70 % visible */
    int mask_broadcast;         /* BROADCAST_*, of attn_mask */
    int32_t mask_type;          /* 0 = uint8 */
    bool bias;                  /* with 5 % of -inf */
    int bias_broadcast;         /* BROADCAST_*, of bias */
    int32_t bias_type;          /* 0 = fp32 */
    test_strides extra_strides; /* of bias, attn_mask, alibi, sinks, lse */
    int alibi;                  /* 1: (heads), 2: (batch, heads) */
    bool sinks;
    int32_t sinks_type; /* 0 = fp32 */
    bool no_lse, v_is_k;
    bool packed_q, packed_k; /* lengths vary, the first row of all and the last two belong to nobody */
    int64_t page_size;       /* > 0: paged */
    bool used_q, used_k, leftpad, cache_idx;
    const int64_t *lengths_q,
        *lengths_k; /* NULL = varied; else of each sequence: packed ones lie side by side from row 0,
                                             unpacked keys are shortened to them (with used_k or paged) */
    float dropout_p;
    uint64_t dropout_seed, dropout_offset;
    bool dropout_pointers; /* seed and offset by pointer */
    int32_t num_splits;
    int32_t max_sms;
    uint64_t flags;
    uint64_t seed; /* of the data */
} attention_case;

typedef struct test_attention {
    attention_case c; /* defaults resolved */
    test_tensor *q, *k, *v, *o, *lse, *q2, *k2, *bias, *attn_mask, *alibi, *sinks, *q_starts, *k_starts, *cu_q, *cu_k,
        *used_q, *used_k, *leftpad, *table, *cache_idx, *dropout;
    kiln_attention_forward_args args, host_args; /* over device memory, over images (for the oracle) */
    /* Filled by the first judgement. */
    double *o_value, *o_bound, *lse_value, *lse_bound;
    kiln_numerics numerics;
    bool judged;
} test_attention;

/* Builds tensors and data, and labels the test with the description. */
test_attention *test_attention_new(const attention_case *description);

/* Multiply-adds of one run, for test_left_out(). An emulated thread block starts in the time of 4·10^4. */
double test_attention_cost(const test_attention *attention);

/*
 * Runs the algorithm and judges every element of o and lse with the oracle. Returns KILN_OK, or the status of a refusal
 * (test_refused()) with `why`. Anything else that is not right fails the test. KILN_UNSUPPORTED too if it is left out on a
 * slow backend; auto, which takes a rung that runs under its name as well, from a quarter of the size on.
 */
kiln_status test_attention_run(test_attention *attention, kiln_context *context, const char *algorithm, char *why,
                               size_t cap);

/* The same on test_context(). True if it ran. */
bool test_attention_ran(test_attention *attention, const char *algorithm);

/* The values and bounds that the oracle has for this problem and these numerics. */
void test_attention_oracle(test_attention *attention, const kiln_numerics *numerics);

#endif
