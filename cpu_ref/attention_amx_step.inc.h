/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * attention_amx_step.inc.h: the arithmetic of a tile of 32 queries against a unit of 32 keys, on AMX.
 *
 * Queries lie in the columns of every tile, so nothing is summed across lanes:
 *   scores    St[key][lane] = K·Qt           A = K as it is,  B = Q in pairs of columns
 *   softmax   P = exp2(St·c - m), l += Σ P   P rounded to bf16, in pairs of keys; l from the values before rounding
 *   values    Ot[column][lane] += Vt·P       A = V transposed, B = P; once a block of 128 keys, since O lies in memory
 * No maximum is taken of a block: m is that of the first unit in which a lane sees a score above -inf, and stays while the
 * weights of a block sum to AMX_SUM or less; only then m moves to the block's maximum, and the block is done again. A matter
 * of each lane alone: its bits do not depend on others.
 *
 * Software pipeline: amx_slot_run() interleaves, tile product by tile product, the scores of one unit and a share of the
 * values of the last block with the softmax of the unit before. The out-of-order window is far shorter than one of these
 * phases, so this must be in the program text.
 *
 * What bounds it (measured, Sapphire and Emerald Rapids): around tile instructions the multiply-adds, scalefs, reduces and
 * maxima of 512-bit vectors run once a cycle instead of twice, additions and shuffles do not suffer; a tile store costs as
 * much as two products and more where the line is not in the first-level cache. Hence the short polynomial, the byte shift,
 * no maximum, and units as small as a block of products: S takes 8 KiB, P of two blocks 16 KiB. With the sibling thread awake
 * tile loads in a row wait for one another and for all products before them: hence one load before each product.
 * Cost of a unit: 4 products of 16·16·32 multiply-adds per 32 columns of k and of v, with one tile load each; 4 tile stores
 * for S, 2 per 32 columns of v for O; 9 vector operations per 16 scores, 7 of them of the slow kind.
 */
#ifndef KILN_CPU_REF_ATTENTION_AMX_STEP_INC_H
#define KILN_CPU_REF_ATTENTION_AMX_STEP_INC_H

#include "attention_amx_pack.inc.h"

/* Most that the weights of a block may sum to before m moves. Exponents are then below 15, and any 2^17 blocks times the
 * largest value that tiles see (2^94, attention_amx_pack.inc.h) are finite. */
#define AMX_SUM 0x1p15f

enum { AMX_PIECES = 16 }; /* vector work of a unit is dealt in pieces of 2 keys */

/* One tile of queries. m is in powers of two: a score times c that the lane saw, -inf if none. */
typedef struct amx_state {
    uint16_t *q; /* packed */
    float *o;    /* tiles of columns of v (padded) x lanes: amx_at() */
    float *m, *l;
} amx_state;

/* Where lanes 16·half ... of row `row` lie in S and O, whose tiles lie one after another: rows 0-15 and lanes 0-15, rows 0-15
 * and lanes 16-31, rows 16-31 ... Every tile in memory is 1 KiB of consecutive cache lines. */
VF_INLINE int64_t amx_at(int64_t row, int64_t half)
{
    return (row / 16 * 2 + half) * 256 + row % 16 * 16;
}

/* 2x2 blocks: C = tiles 0 1 (rows 0-15) and 2 3, A = 4 5, B = 6 7. */
VF_INLINE void amx_block_product(const uint16_t *a, const void *b)
{
    AMX_LOAD(4, a, 64);
    AMX_LOAD(6, b, 64);
    AMX_LOAD(7, (const char *)b + 1024, 64);
    AMX_LOAD(5, a + 512, 64);
    AMX_PRODUCT(0, 4, 6);
    AMX_PRODUCT(1, 4, 7);
    AMX_PRODUCT(2, 5, 6);
    AMX_PRODUCT(3, 5, 7);
}

VF_INLINE void amx_block_zero(void)
{
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
}

VF_INLINE void amx_block_load(const float *c)
{
    AMX_LOAD(0, c, 64);
    AMX_LOAD(1, c + 256, 64);
    AMX_LOAD(2, c + 512, 64);
    AMX_LOAD(3, c + 768, 64);
}

VF_INLINE void amx_block_store(float *c)
{
    AMX_STORE(0, c, 64);
    AMX_STORE(1, c + 256, 64);
    AMX_STORE(2, c + 512, 64);
    AMX_STORE(3, c + 768, 64);
}

/*
 * amx_exp2() with a polynomial of degree 4: P is rounded to bf16 anyway, and near tile instructions each multiply-add costs
 * a cycle. x < 16; relative error <= AMX_WEIGHT_ERROR, found by trying every float of [-126, 16) down to 2^-31: 2.98e-6;
 * exp2(0) is exactly 1.
 */
#define AMX_WEIGHT_ERROR 3.2e-6

static const float amx_weight_terms[] = {1.0f, 0x1.62d6c6p-1f, 0x1.ee2450p-3f, 0x1.abf868p-5f, 0x1.b7f73p-7f};

VF_INLINE vf amx_weight(vf x, const vf *terms)
{
    vf f = _mm512_reduce_ps(x, 0x09); /* x - floor(x) */
    vf p = terms[4];
    UNROLL for (int i = 3; i >= 0; i--) p = vf_fma(p, f, terms[i]);
    return _mm512_scalef_ps(p, x);
}

/* Softmax of a unit: what it keeps in registers. `sum` is the unit's own. */
typedef struct amx_softmax {
    vf c, minus_m[2], sum[2], terms[5];
} amx_softmax;

VF_INLINE amx_softmax amx_softmax_begin(const float *m, float c)
{
    amx_softmax x = {.c = vf_set1(c), .sum = {vf_zero(), vf_zero()}};
    UNROLL for (int i = 0; i < 5; i++)
    {
        x.terms[i] = vf_set1(amx_weight_terms[i]);
        __asm__ __volatile__("" : "+v"(x.terms[i])); /* gcc 12 would load them again for every piece */
    }
    UNROLL for (int half = 0; half < 2; half++)
    {
        vf top = vf_load(m + 16 * half);
        x.minus_m[half] = vf_select(vf_eq(top, vf_set1(-INFINITY)), vf_zero(), vf_neg(top));
    }
    return x;
}

/*
 * Piece `piece` of a unit: 2 keys. Rounding to bf16 is to nearest, ties away: one addition. (A NaN survives it: NaNs that
 * come of bf16 numbers and of arithmetic have zeros below.) The byte shift does what a shift by 16 would, on the port that
 * is idle here; what it brings in from the neighbour is blended away. The empty assembly pins the sum: gcc 12 would delay
 * all sums of an unrolled loop and spill every weight.
 */
VF_INLINE void amx_exp_piece(const float *s, uint32_t *p, uint64_t piece, amx_softmax *x)
{
    const __m512i half_ulp = _mm512_set1_epi32(0x8000);
    s += piece / 8 * 512 + piece % 8 * 32; /* amx_at(2 * piece, 0), without a division */
    p += 16 * piece;
    UNROLL for (int half = 0; half < 2; half++)
    {
        vf even = amx_weight(vf_fma(vf_load(s + 256 * half), x->c, x->minus_m[half]), x->terms);
        vf odd = amx_weight(vf_fma(vf_load(s + 256 * half + 16), x->c, x->minus_m[half]), x->terms);
        x->sum[half] = vf_add(x->sum[half], vf_add(even, odd));
        __asm__ __volatile__("" : "+v"(x->sum[half]));
        __m512i low = _mm512_bsrli_epi128(_mm512_add_epi32(_mm512_castps_si512(even), half_ulp), 2);
        __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half_ulp);
        _mm512_storeu_si512(p + 256 * half, _mm512_mask_blend_epi16(0xaaaaaaaau, low, high));
    }
}

/* The pieces of a slot's softmax, dealt evenly to its products. */
typedef struct amx_dealer {
    const float *s;
    uint32_t *p;
    int64_t pieces, products; /* in all */
    int64_t due;              /* >= products: another piece */
    uint64_t piece;           /* the next one */
    amx_softmax softmax;
} amx_dealer;

/* Comes after each product. */
VF_INLINE void amx_deal(amx_dealer *x)
{
    for (x->due += x->pieces; x->due >= x->products; x->due -= x->products)
        amx_exp_piece(x->s, x->p, x->piece++, &x->softmax);
}

/* Where the operands of four products lie: two tiles each, one after the other. */
typedef struct amx_group {
    const uint16_t *a; /* NULL: there are none */
    const char *b;
} amx_group;

/* Share `part` of four of the 2 KB of K or V that follow `now` in memory, on their way to the first-level cache: a tile load waits
 * for all of its lines. The next group reads them, or after the last unit of K the next slot. Past the end they cost little. */
VF_INLINE void amx_group_fetch(const amx_group now, int part)
{
    UNROLL for (int line = 0; line < 8; line++)
        __builtin_prefetch((const char *)now.a + 2048 + (8 * part + line) * 64, 0, 3);
}

/* Accumulators change over to another block: what they hold goes to `done` (NULL: nowhere), they begin with `begin` (NULL:
 * with 0). */
typedef struct amx_change {
    float *done;
    const float *begin;
} amx_change;

/* Accumulator `t` does, a literal 0...3. x NULL: it does not. */
#define AMX_CHANGE(t, x)                                                                                               \
    do {                                                                                                               \
        if ((x) && (x)->done)                                                                                          \
            AMX_STORE(t, (x)->done + 256 * (t), 64);                                                                   \
        if ((x) && (x)->begin)                                                                                         \
            AMX_LOAD(t, (x)->begin + 256 * (t), 64);                                                                   \
        else if (x)                                                                                                    \
            AMX_ZERO(t);                                                                                               \
    } while (0)

/*
 * The four products of `now`, a share of the vector `work` after each, and before it the load of a tile that a later product
 * needs: the second B tile and the second A tile of `now`, then the first ones of `next`. Every load goes to a tile that the
 * product before has done with, none waits for its own product, and there are never two in a row. The first tiles of `now`
 * are loaded already: A in tile 4, and in tile 6 + `turned` the B tile of that number, with which this group begins. The
 * group after it is turned the other way round. Where a block begins (`change` is not NULL) each accumulator changes over
 * one product before its own, so that the stores run beside products.
 * `b`, `c`, `d`: tiles of B, of accumulators of the first A tile, and of the second one; 1 comes first, 2 second.
 */
#define AMX_GROUP(b1, b2, c1, c2, d1, d2)                                                                              \
    AMX_CHANGE(c1, change);                                                                                            \
    AMX_CHANGE(c2, change);                                                                                            \
    AMX_LOAD(b2, now.b + ((b2)-6) * 1024, 64);                                                                         \
    AMX_PRODUCT(c1, 4, b1);                                                                                            \
    if (fetch)                                                                                                         \
        amx_group_fetch(now, 0);                                                                                       \
    amx_deal(work);                                                                                                    \
    AMX_CHANGE(d2, change);                                                                                            \
    AMX_LOAD(5, now.a + 512, 64);                                                                                      \
    AMX_PRODUCT(c2, 4, b2);                                                                                            \
    if (fetch)                                                                                                         \
        amx_group_fetch(now, 1);                                                                                       \
    amx_deal(work);                                                                                                    \
    AMX_CHANGE(d1, change);                                                                                            \
    if (next.a)                                                                                                        \
        AMX_LOAD(4, next.a, 64);                                                                                       \
    AMX_PRODUCT(d2, 5, b2);                                                                                            \
    if (fetch)                                                                                                         \
        amx_group_fetch(now, 2);                                                                                       \
    amx_deal(work);                                                                                                    \
    if (next.a)                                                                                                        \
        AMX_LOAD(b2, next.b + ((b2)-6) * 1024, 64);                                                                    \
    AMX_PRODUCT(d1, 5, b1);                                                                                            \
    if (fetch)                                                                                                         \
        amx_group_fetch(now, 3);                                                                                       \
    amx_deal(work)

VF_INLINE void amx_group_products(const bool turned, const bool fetch, const amx_group now, const amx_group next,
                                  const amx_change *change, amx_dealer *work)
{
    if (!turned) {
        AMX_GROUP(6, 7, 0, 1, 2, 3);
    } else {
        AMX_GROUP(7, 6, 1, 0, 3, 2);
    }
}

/* Loads what the first group, which is not turned, expects. */
VF_INLINE void amx_group_first(const amx_group first)
{
    if (first.a) {
        AMX_LOAD(4, first.a, 64);
        AMX_LOAD(6, first.b, 64);
    }
}

/* Maxima of a unit's scores join max[half]. */
static void amx_maximum(const float *s, vf *max)
{
    for (int i = 0; i < 32; i++)
        for (int half = 0; half < 2; half++)
            max[half] = vf_max(max[half], vf_load(s + amx_at(i, half)));
}

/* Lanes that saw nothing yet take the maximum of a unit for m. Returns whether all lanes have one then. */
static bool amx_settle(float *m, const float *s, float c)
{
    const vf lowest = vf_set1(-INFINITY);
    vf max[2] = {lowest, lowest};
    bool settled = true;
    amx_maximum(s, max);
    for (int half = 0; half < 2; half++) {
        vf old = vf_load(m + 16 * half);
        vf now = vf_select(vf_eq(old, lowest), vf_mul(max[half], vf_set1(c)), old);
        vf_store(m + 16 * half, now);
        settled &= !vm_any(vf_eq(now, lowest));
    }
    return settled;
}

/* The weights of some lane of a block sum to more than AMX_SUM. A NaN is no reason. */
static bool amx_too_large(const float *sum)
{
    const vf most = vf_set1(AMX_SUM);
    return vm_any(vm_or(vf_lt(most, vf_load(sum)), vf_lt(most, vf_load(sum + 16))));
}

/* Moves m of those lanes to the maximum of the block, and l with it; `correction` is for O. */
static void amx_move_maximum(amx_state *t, const vf *max, float c, const float *sum, float *correction)
{
    for (int half = 0; half < 2; half++) {
        float *m = t->m + 16 * half, *l = t->l + 16 * half;
        vf old = vf_load(m), seen = vf_mul(max[half], vf_set1(c));
        vm move = vf_lt(vf_set1(AMX_SUM), vf_load(sum + 16 * half));
        vf factor = vf_select(move, amx_exp2(vf_sub(old, seen)), vf_set1(1.0f));
        vf_store(m, vf_select(move, seen, old));
        vf_store(l, vf_mul(vf_load(l), factor));
        vf_store(correction + 16 * half, factor);
    }
}

static void amx_rescale(float *o, int64_t columns, const float *correction)
{
    for (int64_t i = 0; i < columns; i++)
        for (int half = 0; half < 2; half++) {
            float *x = o + amx_at(i, half);
            vf_store(x, vf_mul(vf_load(x), vf_load(correction + 16 * half)));
        }
}

/* What a slot of the pipeline works on. Each of the three parts may be missing. */
typedef struct amx_slot {
    /* scores of a unit: 32 keys and the queries; k NULL = none */
    const uint16_t *k, *q;
    float *s_next;
    /* softmax of a unit; s_now NULL = none. `sum` of the block grows */
    const float *s_now, *m;
    uint32_t *p_now;
    float *sum;
    /* values of units [unit, unit_end) of a block, for 32-column steps [column, column_end) */
    const uint16_t *v;
    const uint32_t *p_last;
    float *o;
    int64_t column, column_end, unit, unit_end;
    bool fresh;  /* O is garbage and counts as 0 */
    float *held; /* where the accumulators belong that the slot before left; NULL: nowhere */
    /* two streams wanted in the second-level cache soon: a line of each a group */
    const char *ahead[2];
    int64_t ahead_lines;
} amx_slot;

/* Groups of four products: of the scores, `steps` of k, and of the values. */
static int64_t amx_slot_groups(int64_t steps, const amx_slot *x)
{
    return steps + (x->column_end - x->column) * (x->unit_end - x->unit);
}

VF_INLINE void amx_slot_ahead(const amx_slot *x, int64_t *line)
{
    if (*line < x->ahead_lines) {
        __builtin_prefetch(x->ahead[0] + *line * 64, 0, 2);
        __builtin_prefetch(x->ahead[1] + *line * 64, 0, 2);
        ++*line;
    }
}

/* Operands of a slot's products: those of the scores, step by step, then those of the values. */
VF_INLINE amx_group amx_slot_scores_group(const amx_slot *x, int64_t step)
{
    return (amx_group){x->k + step * 1024, (const char *)(x->q + step * 1024)};
}

VF_INLINE amx_group amx_slot_values_group(const amx_slot *x, int64_t column, int64_t unit)
{
    if (column == x->column_end || x->unit == x->unit_end)
        return (amx_group){NULL, NULL};
    return (amx_group){x->v + (column * AMX_UNITS + unit) * 1024, (const char *)(x->p_last + unit * 512)};
}

/* Returns where the accumulators belong that the next slot is to store, beside its first products: a part of O, or NULL. (A
 * copy of `x`: nothing that has an address stays in a register across the assembly.) */
VF_INLINE float *amx_slot_run(const int64_t steps, const bool fetch, const amx_slot *x, float c)
{
    const amx_slot y = *x;
    amx_dealer work = {.s = y.s_now, .p = y.p_now, .pieces = y.s_now ? AMX_PIECES : 0};
    int64_t line = 0;
    work.products = 4 * amx_slot_groups(steps, &y);
    bool turned = false;
    work.softmax = (amx_softmax){.c = vf_zero()};
    if (work.pieces)
        work.softmax = amx_softmax_begin(y.m, c);
    amx_group now = steps > 0 ? amx_slot_scores_group(&y, 0) : amx_slot_values_group(&y, y.column, y.unit);
    amx_group_first(now);
    amx_change change = {y.held, NULL};
    if (steps > 0) {
        for (int64_t i = 1; i <= steps; i++, turned = !turned) {
            amx_group next = i < steps ? amx_slot_scores_group(&y, i) : amx_slot_values_group(&y, y.column, y.unit);
            amx_slot_ahead(&y, &line);
            amx_group_products(turned, fetch, now, next, i == 1 ? &change : NULL, &work);
            now = next;
        }
        change.done = y.s_next;
        if (y.column == y.column_end) {
            amx_block_store(y.s_next); /* the next slot reads it first */
            change.done = NULL;
        }
    }
    for (int64_t i = y.column; i < y.column_end; i++) {
        float *o = y.o + i * 32 * AMX_LANES;
        change.begin = y.fresh ? NULL : o;
        for (int64_t u = y.unit; u < y.unit_end; u++, turned = !turned) {
            amx_group next =
                u + 1 < y.unit_end ? amx_slot_values_group(&y, i, u + 1) : amx_slot_values_group(&y, i + 1, y.unit);
            amx_slot_ahead(&y, &line);
            amx_group_products(turned, fetch, now, next, u == y.unit ? &change : NULL, &work);
            now = next;
        }
        change.done = o;
    }
    while ((int64_t)work.piece < work.pieces)
        amx_exp_piece(work.s, work.p, work.piece++, &work.softmax);
    for (int half = 0; work.pieces && half < 2; half++)
        vf_store(y.sum + 16 * half, vf_add(vf_load(y.sum + 16 * half), work.softmax.sum[half]));
    return change.done;
}

#define AMX_NOINLINE static __attribute__((noinline))

AMX_NOINLINE float *amx_slot_64(const amx_slot *x, float c)
{
    return amx_slot_run(2, false, x, c); /* fetching costs more than it brings */
}
AMX_NOINLINE float *amx_slot_128(const amx_slot *x, float c)
{
    return amx_slot_run(4, true, x, c);
}
AMX_NOINLINE float *amx_slot_any(int64_t steps, const amx_slot *x, float c)
{
    return amx_slot_run(steps, false, x, c);
}

/* `steps`: of k, 0 if there are no scores. */
static float *amx_slot_start(int64_t steps, const amx_slot *x, float c)
{
    switch (steps) {
    case 2: return amx_slot_64(x, c);
    case 4: return amx_slot_128(x, c);
    default: return amx_slot_any(steps, x, c);
    }
}

#endif
