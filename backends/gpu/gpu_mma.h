// SPDX-License-Identifier: MIT OR Apache-2.0
// gpu_mma.h: the dialect's second part, for matrix units whose layout is published (PTX ISA, "Matrix Fragments for
// mma.m16n8k16" and "ldmatrix"): operands and results are registers that a kernel may reinterpret, so that P never leaves them.
//
// For lane l of 32, g = l / 4, t = l % 4; registers of 32 bits hold two 16-bit elements, the lower column (row for B) first:
//   a[0] rows g, columns 2t, 2t+1    a[1] rows g+8    a[2] columns 2t+8, 2t+9    a[3] both     (A is 16 x 16)
//   b0 rows 2t, 2t+1, column g       b1 rows 2t+8, 2t+9                                         (B is 16 x 8)
//   d[0], d[1] row g, columns 2t, 2t+1;  d[2], d[3] row g+8                                     (D is 16 x 8, fp32)
// So two neighbouring D tiles, rounded to 16 bits, are an A operand.
//
// Supplied by the target's file:
//   gpu_mma<E>(d, a, b0, b1)                  D += A B
//   gpu_cursor<A>(array, r, c)                a lane's place in a swizzled array; pin(): as gpu_pin, or a loop keeps an address
//                                             for every constant below in a register of its own
//   gpu_ldmatrix<TRANS, DR, DC>(x, cursor)    four 8 x 8 tiles; lane l gives row number l % 8 of tile l / 8 by its cursor moved
//                                             by the constants DR (of 8) and DC (of 16), which stands at column 0 or 8, and gets
//                                             of tile i in x[i] the elements 2t, 2t+1 of row g (TRANS: of column g)
//   gpu_store_pair<DR, DC>(cursor, x)         writes the two elements in x where a cursor at a column below 8 stands, moved likewise
//   gpu_pair<E>(lo, hi)                       two floats, rounded, in a register
//   gpu_block_barrier_apart<THREADS>()        a block barrier that waves may come to at different places of the code
#pragma once
#include "gpu_swizzled.h"

#if defined(__CUDACC__)
#include "gpu_intrin_mma_cuda.h"
#else
#include "gpu_intrin_mma_simt.h"
#endif
