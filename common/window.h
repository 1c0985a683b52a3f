/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * window.h: which keys a query sees through the window of its positions (contract, "positions" and "mask kinds"). Pure
 * integer arithmetic, one definition for the CPU, for GPU kernels and for the host code that counts tiles.
 */
#ifndef KILN_COMMON_WINDOW_H
#define KILN_COMMON_WINDOW_H

#include "inline.h"
#include "problem.h"

/* a + b and a - b, stopping at the ends of the type. Written without compiler built-ins, which device code lacks. */
KILN_INLINE int64_t kiln_add_saturating(int64_t a, int64_t b)
{
    int64_t sum = (int64_t)((uint64_t)a + (uint64_t)b);
    if (((a ^ sum) & (b ^ sum)) < 0)
        return b < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

KILN_INLINE int64_t kiln_subtract_saturating(int64_t a, int64_t b)
{
    int64_t difference = (int64_t)((uint64_t)a - (uint64_t)b);
    if (((a ^ b) & (a ^ difference)) < 0)
        return b > 0 ? INT64_MIN : INT64_MAX;
    return difference;
}

KILN_INLINE int64_t kiln_divide_floor(int64_t a, int64_t b)
{
    return b == 1 ? a : a / b - (a % b < 0);
}

/*
 * The keys [begin, end) of query i. With t = pos_k + j·k_step: j >= ceil((p - left - pos_k) / k_step) and
 * j <= floor((p + right - pos_k) / k_step). Positions themselves are bounded by validation (|pos| <= 2^62), so that only
 * left and right can saturate, and then the true value lies beyond every key as well.
 */
KILN_INLINE kiln_key_range kiln_window_keys(const kiln_attention_problem *p, const kiln_sequence *s, int64_t i)
{
    kiln_key_range range = {0, s->seqlen_k};
    if (!p->masked)
        return range;
    int64_t pos = s->pos_q + i * p->q_step;
    if (p->window_left != KILN_UNBOUNDED) {
        int64_t low = kiln_subtract_saturating(kiln_subtract_saturating(pos, p->window_left), s->pos_k);
        range.begin = -kiln_divide_floor(-(low == INT64_MIN ? INT64_MIN + 1 : low), p->k_step);
    }
    if (p->window_right != KILN_UNBOUNDED) {
        int64_t high = kiln_subtract_saturating(kiln_add_saturating(pos, p->window_right), s->pos_k);
        range.end = kiln_add_saturating(kiln_divide_floor(high, p->k_step), 1);
    }
    range.begin = range.begin < 0 ? 0 : range.begin > s->seqlen_k ? s->seqlen_k : range.begin;
    range.end = range.end > s->seqlen_k ? s->seqlen_k : range.end < range.begin ? range.begin : range.end;
    return range;
}

#endif
