/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_private.h: what the files of the oracle share. Nothing outside oracle_*.c may include it.
 *
 *   oracle_common.c     strided tensors, acceptance
 *   oracle_bound.c      the rounding model: every formula of a bound stands there, with its derivation
 *   oracle_attention.c  an attention call resolved: lengths, positions, masks, scores of a few rows
 *   oracle_softmax.c, oracle_attention_forward.c, oracle_attention_backward.c, oracle_attention_merge.c: the operations
 */
#ifndef KILN_CPU_REF_ORACLE_PRIVATE_H
#define KILN_CPU_REF_ORACLE_PRIVATE_H

#include "oracle.h"

/* ---- oracle_common.c ---- */

/* A tensor with strides resolved. Axes of size 1 and absent axes have stride 0, so any index broadcasts. type 0 = absent. */
typedef struct kiln_oracle_view {
    char *data;
    int32_t type;
    int64_t size[KILN_MAX_RANK];
    int64_t stride[KILN_MAX_RANK];
} kiln_oracle_view;

/* Axis a of the tensor becomes axis first + a of the view. NULL gives an absent view. */
kiln_oracle_view kiln_oracle_view_of(const kiln_tensor *tensor, int first);
double kiln_oracle_load(const kiln_oracle_view *view, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
/* `count` elements from element offset `offset` on, `stride` apart. */
void kiln_oracle_load_run(const kiln_oracle_view *view, int64_t offset, int64_t stride, int64_t count, double *out);
/* The row (i0, i1, i2, *) of a view of four axes. */
void kiln_oracle_load_row(const kiln_oracle_view *view, int64_t i0, int64_t i1, int64_t i2, double *out);
/* Zeroed array of `count` (0 allowed) doubles, NULL if there is no memory. */
double *kiln_oracle_alloc(int64_t count);

static inline bool kiln_oracle_wanted(const kiln_oracle_output *output)
{
    return output->value || output->bound;
}

static inline void kiln_oracle_put(const kiln_oracle_output *output, int64_t index, double value, double bound)
{
    if (output->value)
        output->value[index] = value;
    if (output->bound)
        output->bound[index] = bound;
}

/* ---- oracle_bound.c: see its head comment for the derivations ---- */

/* The smallest weight that every backend must tell from 0 when it meets an infinity (kiln.h). */
#define KILN_ORACLE_WEIGHT_MIN 0x1p-126

double kiln_oracle_gamma(const kiln_numerics *numerics, double roundings);
/* Longest chain of additions for `terms` non-zero terms among `length` that are summed tile by tile. */
double kiln_oracle_depth(const kiln_numerics *numerics, int64_t terms, int64_t length);
/* Most that w = exp(x) may be off when x is off by `error`; `limit` is the most that the computed value can be. */
double kiln_oracle_exp_growth(double w, double x, double error, double limit);
/* Results of an exponential that may be lost when nothing is rounded to 16 bits. */
double kiln_oracle_exp_floor(const kiln_numerics *numerics);
/* exp(x) that stays positive for every x > -inf, so that times infinity it is infinite. */
double kiln_oracle_exp(double x);
/* fp32 range of scores: what leaves it is infinite. */
double kiln_oracle_score_range(double s);

/* One row of scores turned into weights. */
typedef struct kiln_oracle_row {
    double max;            /* of the scores and the sink; -inf: no key counts */
    double lse, lse_error; /* lse_error: arithmetic only, without the rounding to the output type */
    double sum_error;      /* relative error of the denominator */
    double depth;
} kiln_oracle_row;

/*
 * Weights p_j = exp(s_j - lse) of `count` scores (`stride` doubles apart; -inf = no weight) whose errors are at most ds_j,
 * and of a sink (-inf = none). error_j is the absolute error of the numerator's weight j over the exact denominator:
 * everything but the sum's own roundings and p_unit. p may be s, and error may be ds; scratch holds
 * `count` doubles. NaN or a maximum of +inf makes
 * every p_j NaN, and lse too.
 */
void kiln_oracle_row_weights(const kiln_numerics *numerics, int64_t count, int64_t stride, const double *s,
                             const double *ds, double sink, double *p, double *error, double *scratch,
                             kiln_oracle_row *row);
/* Error of Σ p_j·v_j given value, Σ (error of p_j)·|v_j| and the largest weight·|v_j| possible. */
double kiln_oracle_mean_error(const kiln_numerics *numerics, const kiln_oracle_row *row, double value, double numerator,
                              double largest, int64_t terms);

/* Value and bound as they are stored: adds half an ulp of `type`, and turns overflow of the type into ±Inf. An error of NaN
 * says that a weight below KILN_ORACLE_WEIGHT_MIN met an infinity: instead of ±Inf the result may be NaN. */
void kiln_oracle_finish(const kiln_oracle_output *output, int64_t index, double value, double error, int32_t type);
/* The same for a value that is copied or rounded once, without any arithmetic. */
void kiln_oracle_finish_exact(const kiln_oracle_output *output, int64_t index, double value, int32_t type);

/* ---- oracle_attention.c ---- */

enum { KILN_ORACLE_LANES = 8 }; /* query rows that share the reading of a key */

typedef struct kiln_oracle_attention_call {
    const kiln_attention_forward_args *args;
    const kiln_numerics *numerics;
    bool packed_q, packed_k, paged;
    int64_t batch, heads, heads_k, group;
    int64_t rows_q, rows_k; /* per batch entry or in all (packed); paged: of one page */
    int64_t kv_batch;       /* batch entries or pages of k */
    int64_t d, d2, d_v;
    int64_t max_seqlen_k; /* longest sequence of keys of this call */
    double scale, softcap;
    int64_t q_step, k_step;
    uint32_t dropout_threshold;
    uint64_t dropout_seed, dropout_offset;
    double keep_scale; /* factor of kept weights; 1 without dropout */
    kiln_oracle_view q, k, v, o, lse, q2, k2, bias, mask, alibi, sinks, q_starts, k_starts;
    kiln_oracle_view cu_q, cu_k, used_q, used_k, leftpad, table, cache_idx;
} kiln_oracle_attention_call;

/* One sequence: where it lies and where its positions begin. */
typedef struct kiln_oracle_sequence {
    int64_t b;
    int64_t seqlen_q, seqlen_k;
    int64_t q_batch, q_row;
    int64_t k_batch, k_row;
    int64_t pos_q, pos_k; /* of query 0 and key 0 */
} kiln_oracle_sequence;

/* Up to KILN_ORACLE_LANES neighbouring query rows of one head, and one key at a time. Arrays "[n][lane]" are key major. */
typedef struct kiln_oracle_block {
    int64_t head, first;
    int lanes;
    double *q, *q2;                                                /* [d][lane] */
    double *k, *k2;                                                /* the key that was scored last */
    uint8_t *visible;                                              /* [key][lane] */
    int64_t seen[KILN_ORACLE_LANES];                               /* visible keys of each row */
    double s[KILN_ORACLE_LANES], ds[KILN_ORACLE_LANES];            /* score and its error; -inf and 0 where hidden */
    double tanh[KILN_ORACLE_LANES], tanh_error[KILN_ORACLE_LANES]; /* of the softcap; 0 without */
} kiln_oracle_block;

kiln_status kiln_oracle_call_init(kiln_oracle_attention_call *call, const kiln_attention_forward_args *args,
                                  const kiln_numerics *numerics);
kiln_oracle_sequence kiln_oracle_sequence_of(const kiln_oracle_attention_call *call, int64_t b);
/* Flattened number of query row i of a head in a compact o or softmax_lse: (batch, heads, row) or (heads, total_q). */
int64_t kiln_oracle_row_number(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t head,
                               int64_t i);
double kiln_oracle_sink(const kiln_oracle_attention_call *call, int64_t head);
/* Factor of a weight: 1, or 0 or 256/T with dropout. */
double kiln_oracle_keep(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq, int64_t head,
                        int64_t i, int64_t j);

bool kiln_oracle_block_init(kiln_oracle_block *block, const kiln_oracle_attention_call *call);
void kiln_oracle_block_free(kiln_oracle_block *block);
/* Loads the rows and decides which keys they see. */
void kiln_oracle_block_begin(kiln_oracle_block *block, const kiln_oracle_attention_call *call,
                             const kiln_oracle_sequence *seq, int64_t head, int64_t first, int lanes);
/* Σ q·k and Σ |q||k| of every lane, q[d][lane], added to what is there. */
void kiln_oracle_dot_lanes(int64_t d, const double *q, const double *k, double *dot, double *magnitude);
/* Scores key j against the rows: fills k, k2, s, ds, tanh. False, with nothing read, if no row sees it. */
bool kiln_oracle_block_score(kiln_oracle_block *block, const kiln_oracle_attention_call *call,
                             const kiln_oracle_sequence *seq, int64_t j);
/* Row of key j in k, k2 or v. */
void kiln_oracle_load_key(const kiln_oracle_attention_call *call, const kiln_oracle_sequence *seq,
                          const kiln_oracle_view *view, int64_t head, int64_t j, double *out);

#endif
