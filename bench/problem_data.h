/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* problem_data.h: what problem_build.c, problem_fill.c and problem_lengths.c share. Private to kiln_problem. */
#ifndef KILN_BENCH_PROBLEM_DATA_H
#define KILN_BENCH_PROBLEM_DATA_H

#include "problem.h"

/* Four 32-bit random words for (seed, stream, index). Streams: a slot, or one past SLOT_COUNT for other choices. */
uint32_t problem_random(uint64_t seed, uint32_t stream, uint64_t index);

/* problem_lengths.c: entry b of a list, for sequences of at most `full`. */
int64_t problem_list_value(const problem_spec *spec, problem_slot slot, const problem_list *list, int64_t b,
                           int64_t full);
int64_t problem_list_count(const problem_spec *spec, const problem_list *list);
/* Rows of a packed tensor: the lengths, and the gaps at both ends. */
int64_t problem_total(const problem_spec *spec, problem_slot slot, const problem_list *lens, int64_t longest);
int64_t problem_pages_per_sequence(const problem_spec *spec);
int64_t problem_cache_batch(const problem_spec *spec);
/* Fills the int32 tensors: cu_seqlens, seqused, leftpad, block table, ... */
void problem_fill_lengths(problem_data *data);
/* Overwrites with NaN (or Inf, for inf_hidden) what no query may see: rows outside every sequence, unused pages, and for
 * the hidden kinds of data every key that is masked from all queries. False: out of memory. */
bool problem_poison(problem_data *data);

/* problem_fill.c: writes one element; 0 where an integer type (which the library will refuse) cannot hold the value. */
void problem_store(char *storage, int32_t type, int64_t element, double value);
/* problem_fill.c: the values of one tensor of floats. */
void problem_fill_slot(problem_data *data, problem_slot slot);

#endif
