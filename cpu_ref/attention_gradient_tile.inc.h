/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_gradient_tile.inc.h: the arithmetic that the backward pass needs beside attention_tile.inc.h. With queries in lanes
 * (nq = nv·VF_LANES) and natural rows of q and do beside the packed ones:
 *   gradient_rows  C[r][c] += Σ_lane A[r][lane]·B[lane][c]       dV = P·dO and dK = dS·Q, for one block of keys
 *   weight_rows    P = exp(S - lse), dS = P·(dP - delta) in place, delta = D - dlse
 *   pack_rows      rows -> lanes, and unpack_rows back
 * The other three products are score_rows and value_rows: all five have one form, A read by broadcasts, B by vectors, so that
 * only the tiles of q and do are transposed.
 * Each block of lanes is summed from 0 and then joined to C, so the depth is nq + number of tiles.
 * Contract: rows of B and C are padded to whole vectors (the padding of C is written). 2 FLOPs · rows · lanes · columns.
 */
#ifndef KILN_CPU_REF_ATTENTION_GRADIENT_TILE_INC_H
#define KILN_CPU_REF_ATTENTION_GRADIENT_TILE_INC_H

#include "attention_tile.inc.h"

/* S = K·Qt and dP = V·dOt. Functions of their own, as all five products, so that each keeps its loop in registers. */
static __attribute__((noinline)) void dot_rows_wide(const float *k, int64_t ldk, const float *q, float *s, int64_t rows,
                                                    int64_t columns)
{
    score_rows(TILE_VECTORS, k, ldk, q, s, rows, columns, NULL);
}

static __attribute__((noinline)) void dot_rows_narrow(const float *k, int64_t ldk, const float *q, float *s,
                                                      int64_t rows, int64_t columns)
{
    score_rows(1, k, ldk, q, s, rows, columns, NULL);
}

static void dot_rows(int nv, const float *k, int64_t ldk, const float *q, float *s, int64_t rows, int64_t columns)
{
    (nv == 1 ? dot_rows_narrow : dot_rows_wide)(k, ldk, q, s, rows, columns);
}

/* dQt += Kt·dS. */
static __attribute__((noinline)) void add_rows_wide(const float *k, int64_t ldk, const float *ds, float *dq,
                                                    int64_t rows, int64_t columns, const vf *one)
{
    value_rows(TILE_VECTORS, k, ldk, ds, dq, rows, columns, one);
}

static __attribute__((noinline)) void add_rows_narrow(const float *k, int64_t ldk, const float *ds, float *dq,
                                                      int64_t rows, int64_t columns, const vf *one)
{
    value_rows(1, k, ldk, ds, dq, rows, columns, one);
}

/* `visible` NULL: all pairs. */
static void add_rows(int nv, const float *k, int64_t ldk, const float *ds, float *dq, int64_t rows, int64_t columns,
                     const uint32_t *visible)
{
    vf one[TILE_VECTORS];
    UNROLL for (int j = 0; j < TILE_VECTORS; j++) one[j] = vf_set1(1.0f);
    if (visible && !hidden_rows_finite(nv, k, ldk, rows, columns, visible))
        value_rows_select(nv, k, ldk, ds, dq, rows, columns, one, visible);
    else
        (nv == 1 ? add_rows_narrow : add_rows_wide)(k, ldk, ds, dq, rows, columns, one);
}

VF_INLINE void gradient_rows_block(const int rows, const int vectors, const float *a, int64_t lda, const float *b,
                                   int64_t ldb, float *c, int64_t ldc, int64_t lanes)
{
    vf acc[TILE_ACCUMULATORS_][TILE_VECTORS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = vf_zero();
    for (int64_t lane = 0; lane < lanes; lane++) {
        vf x[TILE_VECTORS];
        UNROLL for (int j = 0; j < vectors; j++) x[j] = vf_load(b + lane * ldb + j * VF_LANES);
        UNROLL for (int i = 0; i < rows; i++)
        {
            vf y = vf_set1(a[i * lda + lane]);
            UNROLL for (int j = 0; j < vectors; j++) acc[i][j] = vf_fma(y, x[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++)
    {
        float *x = c + i * ldc + j * VF_LANES;
        vf_store(x, vf_add(vf_load(x), acc[i][j]));
    }
}

VF_INLINE void gradient_rows_strip(const int vectors, const float *a, int64_t lda, const float *b, int64_t ldb,
                                   float *c, int64_t ldc, int64_t rows, int64_t lanes)
{
    const int block = vectors == 1 ? NARROW_ROWS : TILE_ROWS;
    int64_t r = 0;
    for (; r + block <= rows; r += block)
        gradient_rows_block(block, vectors, a + r * lda, lda, b, ldb, c + r * ldc, ldc, lanes);
    if (block > 4)
        for (; r + 4 <= rows; r += 4)
            gradient_rows_block(4, vectors, a + r * lda, lda, b, ldb, c + r * ldc, ldc, lanes);
    for (; r < rows; r++)
        gradient_rows_block(1, vectors, a + r * lda, lda, b, ldb, c + r * ldc, ldc, lanes);
}

/* Strips of whole register blocks, then of two vectors, then of one. */
static __attribute__((noinline)) void gradient_rows(const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                                                    int64_t ldc, int64_t rows, int64_t lanes, int64_t columns)
{
    int64_t j = 0;
    for (; j + (TILE_VECTORS - 1) * VF_LANES < columns; j += TILE_VECTORS * VF_LANES)
        gradient_rows_strip(TILE_VECTORS, a, lda, b + j, ldb, c + j, ldc, rows, lanes);
    for (; j + VF_LANES < columns; j += 2 * VF_LANES)
        gradient_rows_strip(2, a, lda, b + j, ldb, c + j, ldc, rows, lanes);
    for (; j < columns; j += VF_LANES)
        gradient_rows_strip(1, a, lda, b + j, ldb, c + j, ldc, rows, lanes);
}

/*
 * The same sum where a hidden pair meets a row of B that is not finite (see value_rows_select). Same order, same bits for the
 * others. Rare, so written plainly.
 */
static void gradient_rows_select(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc,
                                 int64_t rows, int64_t lanes, int64_t columns, int nv, const uint32_t *visible)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < columns; j += VF_LANES) {
            vf acc = vf_zero();
            for (int64_t lane = 0; lane < lanes; lane++)
                if (visible[r * nv + lane / VF_LANES] >> lane % VF_LANES & 1)
                    acc = vf_fma(vf_set1(a[r * lda + lane]), vf_load(b + lane * ldb + j), acc);
            vf_store(c + r * ldc + j, vf_add(vf_load(c + r * ldc + j), acc));
        }
}

/* Are these padded rows finite throughout? */
static bool rows_finite(const float *rows, int64_t ld, int64_t count, int64_t columns)
{
    vm finite = vm_first(VF_LANES);
    for (int64_t r = 0; r < count; r++)
        for (int64_t c = 0; c < columns; c += VF_LANES)
            finite = vm_and(finite, vf_finite(vf_load(rows + r * ld + c)));
    return vm_all(finite);
}

/* C += A·B, pairs that are not in `visible` (NULL: all are) without influence. */
static void join_rows(const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc, int64_t rows,
                      int64_t lanes, int64_t columns, int nv, const uint32_t *visible)
{
    if (visible && !rows_finite(b, ldb, lanes, columns))
        gradient_rows_select(a, lda, b, ldb, c, ldc, rows, lanes, columns, nv, visible);
    else
        gradient_rows(a, lda, b, ldb, c, ldc, rows, lanes, columns);
}

/* What weight_rows needs beside S and dP; NULL = not there. All [rows][nq], but visible: [rows][nv]. */
typedef struct weight_extras {
    const float *keep;          /* 0 where dropout drops the pair, else the factor of a kept one */
    const float *softcap_slope; /* d capped / d score */
    const uint32_t *visible;
} weight_extras;

/*
 * S -> P (times keep) and dP -> dS (times the softcap's slope), in place. Hidden pairs: both exactly 0, whatever S and dP hold.
 * P <= 1 if lse is that of the scores. From 2^20 on, lse may be so far off by its own rounding (a huge bias on every key) that
 * exp(S - lse) would overflow: there P is cut off at 1, so that gradients are finite. Below, an lse of other scores gives
 * what it says: vf_exp(89) is +inf on every instruction set (its factor 2^128 is).
 */
VF_INLINE void weight_rows_with(int nv, float *s, float *dp, int64_t rows, const float *lse, const float *delta,
                                const weight_extras *extras)
{
    for (int j = 0; j < nv; j++) {
        const vf l = vf_load(lse + j * VF_LANES), d = vf_load(delta + j * VF_LANES);
        const vf most = vf_select(vf_lt(vf_abs(l), vf_set1(0x1p20f)), vf_set1(89.0f), vf_zero());
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = (r * nv + j) * VF_LANES;
            vf p = vf_exp(vf_min(most, vf_sub(vf_load(s + at), l))), g = vf_load(dp + at), weight = p;
            if (extras && extras->keep) {
                vf keep = vf_load(extras->keep + at);
                g = vf_mul(g, keep);
                weight = vf_mul(p, keep);
            }
            g = vf_mul(p, vf_sub(g, d));
            if (extras && extras->softcap_slope)
                g = vf_mul(g, vf_load(extras->softcap_slope + at));
            if (extras && extras->visible) {
                vm see = vm_of_bits(extras->visible[r * nv + j]);
                weight = vf_keep(see, weight);
                g = vf_keep(see, g);
            }
            vf_store(s + at, weight);
            vf_store(dp + at, g);
        }
    }
}

static __attribute__((noinline)) void weight_rows_plain(int nv, float *s, float *dp, int64_t rows, const float *lse,
                                                        const float *delta)
{
    weight_rows_with(nv, s, dp, rows, lse, delta, NULL);
}

static __attribute__((noinline)) void weight_rows(int nv, float *s, float *dp, int64_t rows, const float *lse,
                                                  const float *delta, const weight_extras *extras)
{
    weight_rows_with(nv, s, dp, rows, lse, delta, extras);
}

/* out[c][lane] = scale·rows[lane][c] for all nq lanes. Rows are padded to whole vectors. */
static void pack_rows(const float *rows, int64_t ld, int64_t columns, int nq, float scale, float *out)
{
    const vf factor = vf_set1(scale);
    for (int64_t c = 0; c < columns; c += VF_LANES)
        for (int lane = 0; lane < nq; lane += VF_LANES) {
            vf x[VF_LANES];
            UNROLL for (int i = 0; i < VF_LANES; i++) x[i] = vf_mul(vf_load(rows + (lane + i) * ld + c), factor);
            vf_transpose(x);
            if (columns - c >= VF_LANES) {
                UNROLL for (int i = 0; i < VF_LANES; i++) vf_store(out + (c + i) * nq + lane, x[i]);
            } else {
                for (int i = 0; i < (int)(columns - c); i++)
                    vf_store(out + (c + i) * nq + lane, x[i]);
            }
        }
}

/* rows[lane][c] = in[c][lane], plus what was there if `add`, for the first `lanes`. `in` has a multiple of VF_LANES columns, and
 * as many are written of each row. */
static void unpack_rows(const float *in, int64_t columns, int nq, int64_t lanes, bool add, float *const *rows)
{
    for (int64_t c = 0; c < columns; c += VF_LANES)
        for (int lane = 0; lane < lanes; lane += VF_LANES) {
            vf x[VF_LANES];
            UNROLL for (int i = 0; i < VF_LANES; i++) x[i] = vf_load(in + (c + i) * nq + lane);
            vf_transpose(x);
            for (int i = 0; i < VF_LANES && lane + i < lanes; i++) {
                float *out = rows[lane + i] + c;
                vf_store(out, add ? vf_add(vf_load(out), x[i]) : x[i]);
            }
        }
}

#endif
