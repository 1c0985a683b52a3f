/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * oracle_bound.c: how far a right kernel may be from the exact value. All formulas, with their derivation.
 *
 * Model (Higham, "Accuracy and Stability of Numerical Algorithms", ch. 3): every operation is exact times 1 + e with
 * |e| <= u = numerics.unit, so a chain of n of them is off by at most gamma(n) = n·u / (1 - n·u) of the sum of magnitudes.
 * Terms below fp32's normal range add absolute errors of at most 2^-126 (products of a score) or 2^-149 (sums).
 * Symbols: x = scale·q·k, X = |scale|·Σ|q||k|, B = |bias| + |slope·distance|, E = score_extra, D = d + d2, m = row maximum.
 *
 * Score. Its D products and E other roundings give |Δx| <= gamma(D + E)·X. Softcap c: y = c·tanh(x/c) is monotone and
 *   flattens outwards, hence |Δy| <= c·(tanh(|x|/c) - tanh((|x| - |Δx|)/c)) + c·tanh_error + gamma(E)·|y|. Bias and ALiBi
 *   may be put into the accumulator first, so they take part in all roundings:
 *     ds_j = |Δy_j| + gamma(D + E)·B_j + (D + 2)·2^-126.
 *   The exponential's argument s - m is rounded with |s| + |m| as magnitude; |s|'s part is in E above, |m|'s is
 *     |Δ(s_j - m)| <= d_j = ds_j + gamma(E)·|m|.
 *   Softmax and merge: D = 0, ds_j = gamma(E)·|s_j|. Sink: the same, |s_j| = |sink|.
 *
 * Weight w_j = exp(s_j - m). The argument's error gives g_j = w_j·(e^d_j - 1) <= w_j·(d_j + d_j²), or, when d_j is not small,
 *   at most the largest value that the computed weight can have, exp(min(0, s_j - m + d_j)): a key at -1e30 has no weight
 *   whatever its rounding is. Every rise of the running maximum, from tile to tile, costs the tiles before it one more
 *   exponential and one product, and so does joining what was split: R rises (counted on the exact scores; the most for any
 *   start and either direction, and one for the join unless all tiles have the same maximum), e = (1 + R)·exp_error.
 *   Weights below p_floor may be lost or rounded absolutely: min(w_j, p_floor), never more than the weight itself.
 *     error_j = (g_j + e·w_j + min(w_j, p_floor)) / l,  l = Σ w_j + exp(sink - m).
 *
 * Depth n = min(tile, terms) + min(number of tiles, terms) + R: adding a masked key adds an exact 0.
 *
 * Denominator: relative error L = Σ g_j / l + e + gamma(n).
 * lse = m + ln l: |Δlse| <= min(L/(1 - L), max_j d_j + r/(1 - r)) + gamma(4)·ln l with r = e + gamma(n); the four are the
 *   logarithm (2 ulp of it), the change of base and the sum; m's share of the last two is gamma(E)·|m| in d_j.
 * o = N/l with N = Σ w_j v_j: |Δo| <= (Σ (error_j + (gamma(n) + p_unit)·p_j)·|v_j| + L·|o|)/(1 - L) + gamma(2)·|o|, the two
 *   being reciprocal and product. It is a mean: |Δo| <= max|v| + |o| always. Dropout scales weights by 256/T: one more
 *   rounding. Softmax: y_j is the mean of a unit vector, p_unit = 0; log-softmax: ds_j + |Δlse| + gamma(2)·(|s_j| + |lse|).
 *
 * Backward. p = exp(s - lse), lse an exact input: d_j as above with |lse| for |m|, Δp = g + p·exp_error + min(p, floor), where
 *   floor is that of the exponential alone: 2^-125 when p_floor speaks of 16-bit P. h(x) = p_unit·|x| + min(|x|, p_floor) is
 *   the rounding of P and dS to 16 bits, 0 when p_unit is 0.
 *   G = dp - D + dlse: ΔG <= gamma(d_v + 4)·(keep·Σ|do||v| + Σ|do||o|) + gamma(4)·|dlse| (d_v products, dropout's factor,
 *   two subtractions, one spare for a scaled operand). ds = p·G: Δds <= Δp·(|G| + ΔG) + p·ΔG + u·|ds| + 2^-149.
 *   Softcap's factor c = 1 - t²: Δc <= (2|t| + Δt)·Δt + gamma(2); dx = ds·c: Δdx <= Δds·(c + Δc) + |ds|·Δc + u·|dx|.
 *   Sums: dq <= |scale|·Σ (Δdx + h(dx) + gamma(n)·|dx|)·|k| + gamma(2)·|dq|, n over the keys seen;
 *   dk the same with |q|, n over queries × group; dv <= Σ (keep·Δp + h(keep·p) + gamma(n + 1)·keep·p)·|do|;
 *   dbias <= Σ (Δds + gamma(n)·|ds|), n over the broadcast axes; dsinks: as dbias with p = exp(sink - lse), G = dlse - D.
 *   Every term of a sum may also lose 2^-149 below fp32's range. ACCUMULATE: one more addition, gamma(1)·|sum|.
 *
 * Last, half an ulp of the output type (never less than half its smallest subnormal), and overflow: a value that rounds to
 * ±Inf there for every result within the error is ±Inf; when only some do, the bound is stored negated (oracle.h).
 */
#include <math.h>

#include "../common/convert.h"
#include "oracle_private.h"

double kiln_oracle_gamma(const kiln_numerics *numerics, double roundings)
{
    double nu = fmin(roundings * numerics->unit, 1023.0 / 1024); /* far past use; finite, so that times 0 it is 0 */
    return nu / (1 - nu);
}

double kiln_oracle_depth(const kiln_numerics *numerics, int64_t terms, int64_t length)
{
    int64_t tile = numerics->tile > 0 && numerics->tile < length ? numerics->tile : length;
    int64_t tiles = tile > 0 ? (length - 1) / tile + 1 : 0;
    return (double)(tile < terms ? tile : terms) + (double)(tiles < terms ? tiles : terms);
}

double kiln_oracle_exp(double x)
{
    double w = exp(x);
    return w == 0 && x > -INFINITY ? 0x1p-1074 : w;
}

double kiln_oracle_exp_growth(double w, double x, double error, double limit)
{
    return error < 0.5 ? w * (error + error * error) : fmin(exp(x + error), limit);
}

double kiln_oracle_exp_floor(const kiln_numerics *numerics)
{
    return numerics->p_unit > 0 ? fmin(numerics->p_floor, 0x1p-125) : numerics->p_floor;
}

double kiln_oracle_score_range(double s)
{
    return fabs(s) >= 0x1.ffffffp127 ? copysign(INFINITY, s) : s;
}

/*
 * Most often that a running maximum can rise after a tile: over any run of tiles, since a kernel may split the row, and in
 * either direction. Scanning towards the start, `stack` holds the rises that follow the tile, the next one on top.
 */
static int64_t rises(const kiln_numerics *numerics, int64_t count, int64_t stride, const double *s, double max,
                     double *stack)
{
    int64_t tile = numerics->tile > 0 ? numerics->tile : count, most = 0;
    bool differ = false; /* then joining splits, or a sink, is one more rise */
    for (int backwards = 0; backwards < 2 && count > 0; backwards++) {
        int64_t tiles = (count - 1) / tile + 1, depth = 0;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t begin = (backwards ? t : tiles - 1 - t) * tile;
            int64_t end = count - begin > tile ? begin + tile : count;
            double top = -INFINITY;
            for (int64_t j = begin; j < end; j++)
                top = fmax(top, s[j * stride]);
            if (top == -INFINITY)
                continue;
            while (depth > 0 && stack[depth - 1] <= top)
                depth--;
            stack[depth++] = top;
            most = depth - 1 > most ? depth - 1 : most;
            differ |= top != max;
        }
    }
    return most + differ;
}

void kiln_oracle_row_weights(const kiln_numerics *numerics, int64_t count, int64_t stride, const double *s,
                             const double *ds, double sink, double *p, double *error, double *scratch,
                             kiln_oracle_row *row)
{
    double m = sink;
    bool not_a_number = isnan(sink);
    int64_t terms = sink > -INFINITY;
    for (int64_t j = 0; j < count; j++) {
        double x = s[j * stride];
        not_a_number |= isnan(x);
        terms += x > -INFINITY;
        m = x > m ? x : m;
    }
    *row = (kiln_oracle_row){.max = m, .lse = -INFINITY};
    if (not_a_number || m == INFINITY) {
        row->max = row->lse = NAN;
        for (int64_t j = 0; j < count; j++) {
            p[j * stride] = NAN;
            error[j * stride] = 0;
        }
        return;
    }

    double rise = (double)rises(numerics, count, stride, s, m, scratch);
    double e = (1 + rise) * numerics->exp_error;
    double extra = kiln_oracle_gamma(numerics, (double)numerics->score_extra);
    double sum = 0, growths = 0, worst = 0;
    row->depth = kiln_oracle_depth(numerics, terms, count) + rise;
    for (int64_t j = 0; j < count; j++) {
        double x = s[j * stride], d = ds[j * stride] + extra * fabs(m);
        if (x == -INFINITY) {
            p[j * stride] = error[j * stride] = 0;
            continue;
        }
        double w = kiln_oracle_exp(x - m), growth = kiln_oracle_exp_growth(w, x - m, d, 1);
        sum += w;
        growths += growth;
        worst = fmax(worst, d);
        p[j * stride] = w;
        error[j * stride] = growth + e * w + fmin(w, numerics->p_floor);
    }
    if (sink > -INFINITY) {
        double d = extra * (fabs(sink) + fabs(m));
        double w = exp(sink - m);
        sum += w;
        growths += kiln_oracle_exp_growth(w, sink - m, d, 1);
        worst = fmax(worst, d);
    }
    if (terms == 0)
        return;
    for (int64_t j = 0; j < count; j++) {
        if (p[j * stride] > 0)
            p[j * stride] = fmax(p[j * stride] / sum, 0x1p-1074);
        error[j * stride] /= sum;
    }
    double own = e + kiln_oracle_gamma(numerics, row->depth), log_sum = log(sum);
    row->sum_error = growths / sum + own;
    row->lse = m + log_sum;
    row->lse_error = worst + own / (1 - fmin(own, 0.5));
    if (row->sum_error < 0.5)
        row->lse_error = fmin(row->lse_error, row->sum_error / (1 - row->sum_error));
    row->lse_error += kiln_oracle_gamma(numerics, 4) * fabs(log_sum);
}

double kiln_oracle_mean_error(const kiln_numerics *numerics, const kiln_oracle_row *row, double value, double numerator,
                              double largest, int64_t terms)
{
    double error = largest + fabs(value);
    if (row->sum_error < 0.5)
        error = fmin(error, (numerator + row->sum_error * fabs(value)) / (1 - row->sum_error));
    return error + kiln_oracle_gamma(numerics, 2) * fabs(value) + (double)terms * 0x1p-149;
}

/* Digits after the leading one, smallest normal exponent and where rounding goes to infinity, of an output type. */
typedef struct float_format {
    int digits, min_exponent;
    double limit;
} float_format;

static float_format format_of(int32_t type)
{
    switch (type) {
    case KILN_FLOAT64: return (float_format){52, -1022, INFINITY};
    case KILN_FLOAT16: return (float_format){10, -14, 65520};
    case KILN_BFLOAT16: return (float_format){7, -126, 0x1.ffp127};
    default: return (float_format){23, -126, 0x1.ffffffp127};
    }
}

static double half_ulp(float_format format, double magnitude)
{
    int exponent = format.min_exponent;
    if (magnitude >= ldexp(1, exponent))
        exponent = ilogb(magnitude);
    return ldexp(1, exponent - format.digits - 1);
}

void kiln_oracle_finish(const kiln_oracle_output *output, int64_t index, double value, double error, int32_t type)
{
    float_format format = format_of(type);
    if (isnan(value)) {
        kiln_oracle_put(output, index, value, 0);
    } else if (isinf(value)) {
        kiln_oracle_put(output, index, value, isnan(error) ? INFINITY : 0);
    } else if (fabs(value) - error >= format.limit) {
        kiln_oracle_put(output, index, copysign(INFINITY, value), 0);
    } else {
        double reach = fabs(value) + error;
        double bound = error + half_ulp(format, fmin(reach, format.limit));
        kiln_oracle_put(output, index, value, reach >= format.limit ? -bound : bound);
    }
}

void kiln_oracle_finish_exact(const kiln_oracle_output *output, int64_t index, double value, int32_t type)
{
    double stored;
    switch (type) {
    case KILN_FLOAT64: stored = value; break;
    case KILN_FLOAT16: stored = kiln_f16_to_float(kiln_f16_from_float((float)value)); break;
    case KILN_BFLOAT16: stored = kiln_bf16_to_float(kiln_bf16_from_float((float)value)); break;
    default: stored = (float)value; /* also an lse that the call does not store */
    }
    if (isfinite(value) && isfinite(stored))
        kiln_oracle_put(output, index, value, fabs(stored - value));
    else
        kiln_oracle_put(output, index, stored, 0);
}
