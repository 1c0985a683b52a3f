/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ladder.h: operations and bytes that a rung needs for a problem, by the rules of the benchmark and the traffic ledger.
 */
#ifndef KILN_BENCH_LADDER_H
#define KILN_BENCH_LADDER_H

#include "../common/roofline.h"
#include "problem.h"

typedef struct ladder_cost {
    double flops; /* 0: not counted for this operation */
    double bytes;
    double once; /* softmax: every tensor once, as a copy would move it; others 0 */
} ladder_cost;

/*
 * Attention: 4·pairs·d FLOP forward, halved for square causal, 2.5 times that backward. Bytes: the ledger's for naive,
 * tiled and flash1 of dense problems (`tile`: keys of a tile, 0 = all); for everything else each tensor once, which is the
 * least that can be.
 * Softmax: reads and writes of the rung, no FLOP. Merge: each tensor once.
 */
ladder_cost ladder_cost_of(const problem_data *data, const char *algorithm, int64_t tile);

/* The bytes that a device which counts must have counted for a dense attention forward. `tile_q`, `tile_k`: of the kernel. */
typedef struct ladder_bytes {
    kiln_rung rung;  /* whose formula it is; KILN_RUNG_COUNT: none, and the bytes are those of ladder_cost_of() */
    bool distinct;   /* of each launch; else requested */
    double matrices; /* q, k, v, o; S and P, or o, m and l revisited */
    double lse;
} ladder_bytes;
ladder_bytes ladder_bytes_of(const problem_data *data, const char *algorithm, int64_t tile_q, int64_t tile_k);

#endif
