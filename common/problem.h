/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * problem.h: a call after validation, in the one form that every backend sees.
 *
 * common/validate_*.c turns the public argument structs into these. What holds afterwards, so that no kernel checks it:
 *  - defaults are resolved (scale, steps, max_seqlen), masks are one window with positions, absent tensors have type 0;
 *  - `data` includes byte_offset; every axis of size 1 has stride 0, every broadcast input axis too, so that indexing with
 *    the logical index is always right; strides count elements;
 *  - head counts divide, shapes agree, types are ones that the header allows.
 * In queries (`supported`, `workspace`, `prepare`) `data` means nothing: look at nothing but metadata.
 */
#ifndef KILN_COMMON_PROBLEM_H
#define KILN_COMMON_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kiln/kiln.h>

#include "inline.h"

typedef enum kiln_op {
    KILN_OP_SOFTMAX_FORWARD,
    KILN_OP_SOFTMAX_BACKWARD,
    KILN_OP_ATTENTION_FORWARD,
    KILN_OP_ATTENTION_BACKWARD,
    KILN_OP_ATTENTION_MERGE,
    KILN_OP_COUNT
} kiln_op;

/* Is it a rung of the ladder of this operation, on whatever backend? (The name of one that a backend lacks is well formed.) */
bool kiln_is_rung(kiln_op op, const char *algorithm);

/* A tensor of up to four logical axes. type 0 = absent. Tensors with fewer axes use the first ones named at the field. */
typedef struct kiln_view {
    char *data;
    int32_t type; /* KILN_FLOAT32, ... */
    int64_t size[4];
    int64_t stride[4];
} kiln_view;

KILN_INLINE bool kiln_view_present(const kiln_view *view)
{
    return view->type != 0;
}

/* Element offset of a logical index. 64-bit throughout. */
KILN_INLINE int64_t kiln_view_offset(const kiln_view *view, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return i0 * view->stride[0] + i1 * view->stride[1] + i2 * view->stride[2] + i3 * view->stride[3];
}

/* Softmax: rows are numbered by the outer axes, merged as far as all tensors allow (often into one). */
enum { KILN_SOFTMAX_OUTER = KILN_MAX_RANK - 1 };
typedef struct kiln_rows {
    char *data;
    int32_t type; /* 0 = absent */
    int64_t outer_stride[KILN_SOFTMAX_OUTER];
    int64_t stride; /* along the row */
} kiln_rows;

typedef struct kiln_softmax_problem {
    int64_t rows, n; /* number of rows, their length */
    int32_t outer_rank;
    int64_t outer_size[KILN_SOFTMAX_OUTER];
    kiln_rows x, y, lse; /* forward: x -> y, lse. backward: y (input), x is unused */
    kiln_rows dy, dx;    /* backward only */
    float scale;
    uint64_t flags;
    int32_t max_sms;
    const char *algorithm; /* NULL = auto */
} kiln_softmax_problem;

/* Element offset of row r's first element. */
KILN_INLINE int64_t kiln_rows_offset(const kiln_softmax_problem *p, const kiln_rows *rows, int64_t r)
{
    int64_t offset = 0;
    for (int axis = p->outer_rank - 1; axis > 0; axis--) {
        offset += r % p->outer_size[axis] * rows->outer_stride[axis];
        r /= p->outer_size[axis];
    }
    return p->outer_rank > 0 ? offset + r * rows->outer_stride[0] : 0;
}

typedef struct kiln_attention_problem {
    int64_t batch, heads, heads_k;
    int64_t seqlen_q, seqlen_k; /* dense: the tensor's; packed: max_seqlen; paged: max_pages·page_size. Upper bounds */
    int64_t total_q;            /* packed: rows of q; dense: seqlen_q */
    int64_t total_k;            /* packed: rows of k; dense: seqlen_k; paged: as seqlen_k */
    int64_t d, d_v, d2;         /* d2 = 0: no second operand */
    int64_t page_size;          /* 0 = not paged */
    int64_t kv_batch;           /* dense or paged with cache_batch_idx: entries it may name; else batch */

    /* Axes: 0 batch (packed: size 1, stride 0; paged k/v/k2: the page), 1 head, 2 row, 3 column. */
    kiln_view q, k, v, o, q2, k2;
    kiln_view lse;                             /* 0 batch (packed: stride 0), 1 head, 2 row; fp32 */
    kiln_view q_descale, k_descale, v_descale; /* 0 batch, 1 KV head; fp32 */
    kiln_view bias, attn_mask;                 /* 0 batch, 1 head, 2 query, 3 key (attn_mask: of the last mask_len) */
    int64_t mask_len;                          /* 0 = no attn_mask */
    kiln_view alibi;                           /* 0 batch, 1 head; fp32 */
    kiln_view sinks;                           /* 1 head */
    kiln_view q_starts, k_starts;              /* 0 batch; int32 */
    kiln_view cu_seqlens_q, cu_seqlens_k;      /* 0 batch (batch + 1 entries); int32 */
    kiln_view seqused_q, seqused_k, leftpad_k; /* 0 batch; int32 */
    kiln_view block_table;                     /* 0 batch, 1 page; int32 */
    kiln_view cache_batch_idx;                 /* 0 batch; int32 */

    double softmax_scale;
    float softcap; /* 0 = none */

    /* Visible iff pos_q - window_left <= pos_k <= pos_q + window_right, KILN_UNBOUNDED = no limit on that side. */
    bool masked; /* false: both sides unbounded */
    bool bottom_right;
    int64_t window_left, window_right;
    int64_t q_start, q_step, k_start, k_step; /* steps >= 1 */

    uint32_t dropout_threshold; /* keep iff byte < threshold; 256 = no dropout */
    uint64_t dropout_seed, dropout_offset;
    const uint64_t *dropout_seed_ptr, *dropout_offset_ptr;

    uint64_t flags;
    int32_t num_splits, max_sms;
    uint32_t *device_status;
    const char *algorithm; /* NULL = auto */
} kiln_attention_problem;

typedef struct kiln_attention_backward_problem {
    kiln_attention_problem forward; /* o and lse are inputs; algorithm, max_sms and flags are the backward call's */
    kiln_view dout, dlse;           /* axes as o, lse */
    kiln_view dq, dk, dv, dq2, dk2; /* axes as q, k, v */
    kiln_view dbias;                /* axes as bias, strides 0 where bias broadcasts */
    kiln_view dsinks;               /* 1 head */
} kiln_attention_backward_problem;

typedef struct kiln_merge_problem {
    int64_t batch, heads, seqlen_q, d_v; /* packed: batch 1, seqlen_q = total_q */
    kiln_view o, lse;                    /* 0 batch, 1 head, 2 row, 3 column */
    kiln_view sinks;                     /* 1 head */
    int32_t num_parts, max_sms;
    const kiln_tensor *const *o_parts, *const *lse_parts; /* validated; read one with kiln_merge_part() */
    uint64_t flags;
    const char *algorithm;
} kiln_merge_problem;

typedef struct kiln_problem {
    kiln_op op;
    union {
        kiln_softmax_problem softmax;
        kiln_attention_problem attention;
        kiln_attention_backward_problem backward;
        kiln_merge_problem merge;
    };
} kiln_problem;

const char *kiln_op_name(kiln_op op);                            /* "attention_forward", as in kiln.h */
const char *kiln_problem_algorithm(const kiln_problem *problem); /* the rung that the call names; NULL = auto */

/* Where element 0 of a public tensor lies. Never NULL: a tensor without elements (or a query) may leave `data` out, and
 * kernels may add offsets to what they never read. */
char *kiln_tensor_data(const kiln_tensor *tensor);

/* Stride of one axis of a public tensor, in elements: 0 for size 1, computed where strides are NULL. */
int64_t kiln_tensor_stride(const kiln_tensor *tensor, int axis);

/* A view in which axis k of `tensor` is axis first + k; the others have size 1, stride 0. NULL gives an absent view. */
kiln_view kiln_view_of(const kiln_tensor *tensor, int first);

/* Part i of a merge, as a view with the axes of `o` and `lse`. */
void kiln_merge_part(const kiln_merge_problem *problem, int32_t i, kiln_view *o, kiln_view *lse);

/*
 * One sequence of an attention problem whose lengths are readable on the host (CPU, emulated devices).
 * Row i of the sequence is row q_row + i of the view with batch index q_batch; key j likewise unless the problem is paged,
 * where it is row (k_row + j) % page_size of page block_table[k_batch][(k_row + j) / page_size].
 */
typedef struct kiln_sequence {
    int64_t seqlen_q, seqlen_k;
    int64_t q_batch, q_row;
    int64_t k_batch, k_row;
    int64_t pos_q, pos_k; /* positions of query 0 (base included) and key 0 */
} kiln_sequence;
kiln_sequence kiln_sequence_of(const kiln_attention_problem *problem, int64_t b);

/*
 * The half-open range of keys that query i may see through the window (attn_mask and bias not considered), clipped to
 * [0, seqlen_k). Exact for all 64-bit inputs (saturating arithmetic).
 */
typedef struct kiln_key_range {
    int64_t begin, end;
} kiln_key_range;
kiln_key_range kiln_visible_keys(const kiln_attention_problem *problem, const kiln_sequence *sequence, int64_t i);

#endif
