/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle.h: the ground truth. fp64, serial, any strides, exact maximum, two passes, no tiling, no cleverness.
 *
 * The oracle takes the *public* argument structs with data on the host and shares no code with the dispatch layer or the
 * kernels (only kiln.h and the conversions), so that it can judge all of them. It trusts its arguments: give it only
 * calls that the library accepted, or lengths that you know are right. Inputs may also be fp64 here (finite differences).
 *
 * Every function fills, for each output of the call, the exact value and the *bound* on what a right kernel may be away
 * from it. All arrays are compact, in the logical shape of the public tensor, and allocated by the caller; NULL = not
 * wanted. Rows outside every sequence get value NaN and bound NaN ("must not be touched": see kiln_oracle_untouched).
 *
 * The bound, per element, in outline (exact form, the gradients' and the derivation: oracle_bound.c; symbols: kiln_numerics;
 * contract §5 of the design):
 *   dS_j = gamma(d + d2 + score_extra)·(scale·Σ|q||k_j| + |bias| + |alibi·distance|) + softcap·tanh_error
 *   n    = tile + ceil(seqlen_k / tile), fewer where a row sees fewer keys
 *   |o - exact|   <= Σ p|v|·(dS_j + exp_error + gamma(n) + p_unit) + |o|·(Σ p·dS + exp_error + gamma(n))
 *                    + Σ min(p, p_floor)·|v| + half an ulp
 *   |lse - exact| <= Σ p·dS + exp_error + gamma(n) + half an ulp
 * with gamma(n) = n·unit / (1 - n·unit).
 */
#ifndef KILN_CPU_REF_ORACLE_H
#define KILN_CPU_REF_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "../common/numerics.h"
#include <kiln/kiln.h>

/* One output: exact values and bounds. */
typedef struct kiln_oracle_output {
    double *value;
    double *bound;
} kiln_oracle_output;

typedef struct kiln_oracle_softmax {
    kiln_oracle_output y;   /* shape of x */
    kiln_oracle_output lse; /* shape of x without the last axis */
} kiln_oracle_softmax;

typedef struct kiln_oracle_attention {
    kiln_oracle_output o;   /* shape of o */
    kiln_oracle_output lse; /* shape of o without the last axis (whether or not softmax_lse is given) */
} kiln_oracle_attention;

typedef struct kiln_oracle_gradients {
    kiln_oracle_output dq, dk, dv, dq2, dk2; /* shapes of q, k, v, q2, k2; ACCUMULATE adds what the tensor holds now */
    kiln_oracle_output dbias, dsinks;
} kiln_oracle_gradients;

/* All return KILN_OK, KILN_OUT_OF_MEMORY, or KILN_UNSUPPORTED for what the contract defers (fp8 scales). */
kiln_status kiln_oracle_softmax_forward(const kiln_softmax_forward_args *args, const kiln_numerics *numerics,
                                        kiln_oracle_softmax *out);
kiln_status kiln_oracle_softmax_backward(const kiln_softmax_backward_args *args, const kiln_numerics *numerics,
                                         kiln_oracle_output *dx);
kiln_status kiln_oracle_attention_forward(const kiln_attention_forward_args *args, const kiln_numerics *numerics,
                                          kiln_oracle_attention *out);
/* A function of its inputs as they are stored: forward->o and forward->softmax_lse are read, not recomputed. */
kiln_status kiln_oracle_attention_backward(const kiln_attention_backward_args *args, const kiln_numerics *numerics,
                                           kiln_oracle_gradients *out);
kiln_status kiln_oracle_attention_merge(const kiln_attention_merge_args *args, const kiln_numerics *numerics,
                                        kiln_oracle_attention *out);

/* Only rows [begin, end) of the flattened (batch, heads, row) or (heads, total_q) numbering, for large problems: `out` still
 * has the full shape, other rows are left alone. */
kiln_status kiln_oracle_attention_forward_rows(const kiln_attention_forward_args *args, const kiln_numerics *numerics,
                                               int64_t begin, int64_t end, kiln_oracle_attention *out);

/* Is `got` right? Same class (NaN, +Inf, -Inf, finite), and |got - value| <= |bound|, where NaN never passes.
 * A bound of +Inf marks an element whose value is ±Inf but may be NaN (kiln.h, "NaN and Inf that are visible").
 * A negative bound marks a finite value so close to the end of the output type that ±Inf is right too. A value that rounds
 * to ±Inf in the output type for certain is given as ±Inf. False for elements that must not be touched. */
bool kiln_oracle_accepts(double got, double value, double bound);

/* True for elements that the call must leave alone. */
bool kiln_oracle_untouched(double value, double bound);

#endif
