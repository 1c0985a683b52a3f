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
 * tiled and flash1 of dense problems (`tile`: keys of a tile, 0 = all; `score_bytes`: of one element of S and P in memory);
 * for everything else each tensor once, which is the least that can be.
 * Softmax: reads and writes of the rung, no FLOP. Merge: each tensor once.
 */
ladder_cost ladder_cost_of(const problem_data *data, const char *algorithm, int64_t tile, int32_t score_bytes);

#endif
