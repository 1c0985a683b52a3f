/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * unroll.h: UNROLL in front of a loop with a constant count unrolls it completely, also at -O2. Without it arrays of vectors
 * that such loops index stay in memory instead of registers.
 */
#ifndef KILN_CPU_REF_UNROLL_H
#define KILN_CPU_REF_UNROLL_H

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif
