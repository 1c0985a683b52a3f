/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_tile.inc.h: the arithmetic of one tile of queries against one block of keys, shared by every attention
 * rung.
 *
 * Queries lie in SIMD lanes, so nothing is summed across lanes and neither K nor V is packed. With nq = nv·VF_LANES
 * lanes:
 *   score_rows    St[r][lane] = Σ_c K[r][c]·Q[c][lane], and the running maximum of every lane (NULL = not wanted)
 *   softmax_rows  m, corr = exp(m_old - m), P = exp(St - m) in place, l = l·corr + Σ P
 *   value_rows    O[c][lane] = O[c][lane]·corr[lane] + Σ_r V[r][c]·P[r][lane]
 * A lane's bits depend on nothing but its own column: not on nv, the register blocks, its neighbours, or whether a
 * block that is hidden from it is skipped or multiplied by exact zeros (corr = exp(0) = 1). Two things see to it: each
 * block is summed from 0 and then joined to O (which is also what makes the depth KEY_BLOCK + number of blocks), and l
 * is summed in two chains, even and odd rows of the block.
 *
 * Register blocks (rows × vectors) come from kernels_<isa>.c: TILE_ROWS × TILE_VECTORS accumulators for full tiles,
 * NARROW_ROWS × 1 for few queries. 2 FLOPs · rows · nq · columns; per column one broadcast a row and one load a vector.
 */
#ifndef KILN_CPU_REF_ATTENTION_TILE_INC_H
#define KILN_CPU_REF_ATTENTION_TILE_INC_H

#include "unroll.h"

/* Keys of one block. A multiple of every register block, even; fixed, because it decides rounding. */
#define KEY_BLOCK 96
/* Most lanes of a tile. */
#define TILE_LANES (TILE_VECTORS * VF_LANES)

/* Before the loop over columns or keys of a register block. Fewer turns, so that its end is foretold; but where the registers
 * are only just enough, gcc spills. */
#ifndef TILE_UNROLL
#define TILE_UNROLL
#endif

/* Most accumulators of one register block. */
#define TILE_ACCUMULATORS_ (TILE_ROWS > NARROW_ROWS ? TILE_ROWS : NARROW_ROWS)

VF_INLINE void score_rows_block(const int rows, const int nv, const float *k, int64_t ldk, const float *q, float *s,
                                int64_t columns, vf *max)
{
    vf acc[TILE_ACCUMULATORS_][TILE_VECTORS];
    int64_t c = 0;
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < nv; j++) acc[i][j] = vf_zero();
#ifdef VF_FMA_LANE /* the same sums, K loaded a vector at a time */
    for (; c + VF_LANES <= columns; c += VF_LANES) {
        vf a[TILE_ACCUMULATORS_];
        UNROLL for (int i = 0; i < rows; i++) a[i] = vf_load(k + i * ldk + c);
        UNROLL for (int e = 0; e < VF_LANES; e++) UNROLL for (int j = 0; j < nv; j++)
        {
            vf b = vf_load(q + ((c + e) * nv + j) * VF_LANES);
            UNROLL for (int i = 0; i < rows; i++) acc[i][j] = vf_fma_lane(a[i], e, b, acc[i][j]);
        }
    }
#endif
    TILE_UNROLL for (; c < columns; c++)
    {
        vf b[TILE_VECTORS];
        UNROLL for (int j = 0; j < nv; j++) b[j] = vf_load(q + (c * nv + j) * VF_LANES);
        UNROLL for (int i = 0; i < rows; i++)
        {
            vf a = vf_set1(k[i * ldk + c]);
            UNROLL for (int j = 0; j < nv; j++) acc[i][j] = vf_fma(a, b[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < nv; j++)
    {
        vf_store(s + (i * nv + j) * VF_LANES, acc[i][j]);
        if (max)
            max[j] = vf_max(max[j], acc[i][j]);
    }
}

VF_INLINE void score_rows(const int nv, const float *k, int64_t ldk, const float *q, float *s, int64_t rows,
                          int64_t columns, vf *max)
{
    const int block = nv == 1 ? NARROW_ROWS : TILE_ROWS;
    int64_t r = 0;
    for (; r + block <= rows; r += block)
        score_rows_block(block, nv, k + r * ldk, ldk, q, s + r * nv * VF_LANES, columns, max);
    if (block > 4)
        for (; r + 4 <= rows; r += 4)
            score_rows_block(4, nv, k + r * ldk, ldk, q, s + r * nv * VF_LANES, columns, max);
    for (; r < rows; r++)
        score_rows_block(1, nv, k + r * ldk, ldk, q, s + r * nv * VF_LANES, columns, max);
}

VF_INLINE void value_rows_block(const int rows, const int nv, const float *v, int64_t ldv, const float *p, float *o,
                                int64_t keys, const vf *corr)
{
    vf acc[TILE_ACCUMULATORS_][TILE_VECTORS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < nv; j++) acc[i][j] = vf_zero();
    TILE_UNROLL for (int64_t r = 0; r < keys; r++)
    {
        vf b[TILE_VECTORS];
        int i = 0;
        UNROLL for (int j = 0; j < nv; j++) b[j] = vf_load(p + (r * nv + j) * VF_LANES);
#ifdef VF_FMA_LANE /* the same sums, V loaded a vector at a time */
        UNROLL for (; i + VF_LANES <= rows; i += VF_LANES)
        {
            vf a = vf_load(v + r * ldv + i);
            UNROLL for (int e = 0; e < VF_LANES; e++) UNROLL for (int j = 0; j < nv; j++) acc[i + e][j] =
                vf_fma_lane(a, e, b[j], acc[i + e][j]);
        }
#endif
        UNROLL for (; i < rows; i++)
        {
            vf a = vf_set1(v[r * ldv + i]);
            UNROLL for (int j = 0; j < nv; j++) acc[i][j] = vf_fma(a, b[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < nv; j++)
    {
        float *x = o + (i * nv + j) * VF_LANES;
        vf_store(x, vf_fma(vf_load(x), corr[j], acc[i][j]));
    }
}

VF_INLINE void value_rows(const int nv, const float *v, int64_t ldv, const float *p, float *o, int64_t keys,
                          int64_t columns, const vf *corr)
{
    const int block = nv == 1 ? NARROW_ROWS : TILE_ROWS;
    int64_t c = 0;
    for (; c + block <= columns; c += block)
        value_rows_block(block, nv, v + c, ldv, p, o + c * nv * VF_LANES, keys, corr);
    if (block > 4)
        for (; c + 4 <= columns; c += 4)
            value_rows_block(4, nv, v + c, ldv, p, o + c * nv * VF_LANES, keys, corr);
    if (block > 2)
        for (; c + 2 <= columns; c += 2)
            value_rows_block(2, nv, v + c, ldv, p, o + c * nv * VF_LANES, keys, corr);
    for (; c < columns; c++)
        value_rows_block(1, nv, v + c, ldv, p, o + c * nv * VF_LANES, keys, corr);
}

/*
 * The same sum where a hidden key meets a V that is not finite: 0·NaN is NaN, so hidden pairs are left out by
 * selection. Same order, same bits for the others. `visible` has one word a row and vector. Rare, so written plainly.
 */
static void value_rows_select(int nv, const float *v, int64_t ldv, const float *p, float *o, int64_t keys,
                              int64_t columns, const vf *corr, const uint32_t *visible)
{
    for (int64_t c = 0; c < columns; c++)
        for (int j = 0; j < nv; j++) {
            vf acc = vf_zero();
            for (int64_t r = 0; r < keys; r++) {
                vf next = vf_fma(vf_set1(v[r * ldv + c]), vf_load(p + (r * nv + j) * VF_LANES), acc);
                acc = vf_select(vm_of_bits(visible[r * nv + j]), next, acc);
            }
            float *x = o + (c * nv + j) * VF_LANES;
            vf_store(x, vf_fma(vf_load(x), corr[j], acc));
        }
}

/* Is every V row that is hidden from some lane finite? Then zeros in P are enough. */
static bool hidden_rows_finite(int nv, const float *v, int64_t ldv, int64_t keys, int64_t columns,
                               const uint32_t *visible)
{
    const uint32_t all = (1u << VF_LANES) - 1;
    for (int64_t r = 0; r < keys; r++) {
        uint32_t common = all;
        for (int j = 0; j < nv; j++)
            common &= visible[r * nv + j];
        if (common == all)
            continue;
        int64_t c = 0;
        vm finite = vm_first(VF_LANES);
        for (; c + VF_LANES <= columns; c += VF_LANES)
            finite = vm_and(finite, vf_finite(vf_load(v + r * ldv + c)));
        finite = vm_and(finite, vf_finite(vf_load_tail(v + r * ldv + c, (int)(columns - c))));
        if (!vm_all(finite))
            return false;
    }
    return true;
}

/* P = exp(St - shift) in place, and its sum added to sum[0] (even rows) and sum[1] (odd rows); one vector of lanes. */
VF_INLINE void exp_rows(const int nv, float *s, int64_t rows, vf shift, vf *sum)
{
    vf even = sum[0], odd = sum[1];
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
        float *x = s + r * nv * VF_LANES, *y = x + nv * VF_LANES;
        vf p = vf_exp(vf_sub(vf_load(x), shift)), u = vf_exp(vf_sub(vf_load(y), shift));
        vf_store(x, p);
        vf_store(y, u);
        even = vf_add(even, p);
        odd = vf_add(odd, u);
    }
    if (r < rows) {
        float *x = s + r * nv * VF_LANES;
        vf p = vf_exp(vf_sub(vf_load(x), shift));
        vf_store(x, p);
        even = vf_add(even, p);
    }
    sum[0] = even;
    sum[1] = odd;
}

/* What is subtracted from the scores: the maximum, or 0 where nothing has been seen yet (-inf - -inf is NaN). */
VF_INLINE vf score_shift(vf m)
{
    return vf_select(vf_eq(m, vf_set1(-INFINITY)), vf_zero(), m);
}

/* Joins a block with column maxima `max` to the state (m, l). Row 0 must be an even row of its block. */
VF_INLINE void softmax_rows(const int nv, float *s, int64_t rows, float *m, float *l, const vf *max, vf *corr)
{
    UNROLL for (int j = 0; j < nv; j++)
    {
        vf old = vf_load(m + j * VF_LANES), now = vf_max(old, max[j]), shift = score_shift(now);
        vf sum[2] = {vf_zero(), vf_zero()};
        corr[j] = vf_exp(vf_sub(old, shift));
        vf_store(m + j * VF_LANES, now);
        exp_rows(nv, s + j * VF_LANES, rows, shift, sum);
        vf_store(l + j * VF_LANES, vf_fma(vf_load(l + j * VF_LANES), corr[j], vf_add(sum[0], sum[1])));
    }
}

#endif
