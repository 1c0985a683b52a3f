/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * roofline.h: how many bytes and floating-point operations each rung of the ladder needs, and how fast a device could be.
 *
 * Pure functions of their arguments: no state, no allocation, no failure. Counts are doubles, because they are estimates
 * of large products; they are exact up to 2^53. The roofline model is Williams, Waterman and Patterson, "Roofline: an
 * insightful visual performance model" (CACM 2009); the traffic of the two flash rungs follows Dao et al. 2022 and 2023.
 */
#ifndef KILN_COMMON_ROOFLINE_H
#define KILN_COMMON_ROOFLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kiln_rung {
    KILN_RUNG_NAIVE,  /* S and P in memory, one thread per score */
    KILN_RUNG_TILED,  /* the same bytes, by tiles */
    KILN_RUNG_FLASH1, /* K and V in the outer loop; O, m, l revisited in memory */
    KILN_RUNG_FLASH2, /* Q in the outer loop; state on chip */
    KILN_RUNG_IDEAL,  /* every byte of Q, K, V, O once: flash with a perfect cache */
    KILN_RUNG_COUNT
} kiln_rung;

/* One attention forward: `heads` query heads in all (batch included) that share `heads_k` KV heads. */
typedef struct kiln_ledger {
    int64_t heads, heads_k, seqlen_q, seqlen_k, d, d_v;
    int32_t element_bytes; /* q, k, v and the final o: e */
    int32_t score_bytes;   /* one element of S and of P in memory: e_S */
    int32_t output_bytes;  /* one element of O as flash1 revisits it: e_O */
    int64_t block_q;       /* rows of a query tile: Br, flash2 */
    int64_t block_k;       /* rows of a key tile: Bc, flash1 */
    bool causal;           /* halves what grows with seqlen_q·seqlen_k */
} kiln_ledger;

/* "naive", ...; the static name of a rung. */
const char *kiln_rung_name(kiln_rung rung);

/* heads·(4·N²·d + 3·N²) when square: two products, then subtract, exponential and sum per score. */
double kiln_ledger_flops(const kiln_ledger *ledger);

/*
 * Bytes between memory and chip, no cache: distinct bytes per launch for naive, tiled and ideal, bytes requested by tile
 * loads for the flash rungs. Per head with N = seqlen_q = seqlen_k, d = d_v, heads = heads_k, not causal:
 *   naive, tiled  4·N·d·e + 4·N²·e_S
 *   flash1        2·N·d·e + T·(N·d·e + 2·N·d·e_O + 16·N) - (N·d·e_O + 8·N),  T = ⌈N/Bc⌉
 *   flash2        2·N·d·e + 2·N·d·e·⌈N/Br⌉
 *   ideal         4·N·d·e
 * LSE (4·N per head) is not in it: kiln_ledger_lse_bytes().
 */
double kiln_ledger_bytes(const kiln_ledger *ledger, kiln_rung rung);
double kiln_ledger_lse_bytes(const kiln_ledger *ledger);

/*
 * The operations that a benchmark divides by time, without the softmax: forward 4·B·H·Sq·Sk·d, with d = (d + d2 + d_v)/2
 * where the sizes differ. The caller halves it for square causal problems and takes 2.5 times it for backward.
 */
double kiln_attention_flops(int64_t batch_heads, int64_t seqlen_q, int64_t seqlen_k, int64_t d_score, int64_t d_v);

/* A device as a roofline sees it. */
typedef struct kiln_device_model {
    const char *key;  /* what a user types: "a100" */
    const char *name; /* what a page prints */
    double flops16;   /* FLOP/s of fp16 and bf16 matrix units, dense, fp32 accumulation */
    double flops32;   /* FLOP/s in true fp32: the faster of vector FMA and fp32 matrix units (TF32 is not fp32) */
    double bandwidth; /* bytes/s of device memory */
} kiln_device_model;

/* The built-in table, `*count` rows. Vendors' peak numbers, not measurements. */
const kiln_device_model *kiln_device_models(size_t *count);
/* The row of that key, or NULL. */
const kiln_device_model *kiln_device_model_find(const char *key);

/* Intensity (FLOP/byte) at which computing and moving take the same time. */
double kiln_roofline_knee(double flops_per_second, double bytes_per_second);
/* Seconds below which no implementation with these counts can run: max(flops/peak, bytes/bandwidth). */
double kiln_roofline_time(double flops, double bytes, double flops_per_second, double bytes_per_second);

#endif
