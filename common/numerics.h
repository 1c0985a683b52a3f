/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * numerics.h: what a kernel says about its own rounding, so that the oracle can turn it into a bound per element.
 *
 * Every backend answers the vtable's `numerics` slot with one of these for the kernel that would run; the oracle
 * (cpu_ref/oracle.h) computes |result - exact| <= bound from it. A kernel that claims less error than it makes fails its
 * tests; one that claims more is caught by the needle tests. Formulas: cpu_ref/oracle.h.
 */
#ifndef KILN_COMMON_NUMERICS_H
#define KILN_COMMON_NUMERICS_H

#include <stdint.h>

typedef struct kiln_numerics {
    double unit;         /* unit roundoff of one multiply-add: 2^-24 for FMA, 2^-23 for matrix units */
    double exp_error;    /* largest relative error of the exponential on (-inf, 0] */
    double tanh_error;   /* largest absolute error of tanh; the score's error is softcap times it */
    double p_unit;       /* relative rounding of P before P·V: 0 if P stays fp32, 2^-8 bf16, 2^-11 fp16 */
    double p_floor;      /* weights below this share of the row's largest may be lost: 2^-125, 2^-25 for fp16 P */
    int64_t score_extra; /* roundings of one score beyond its d products: scaling, subtraction, ... */
    int64_t tile;        /* elements of a row summed in one run; 0 = the whole row. Depth = tile + number of tiles */
} kiln_numerics;

#endif
