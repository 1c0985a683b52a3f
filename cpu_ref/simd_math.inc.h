/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * simd_math.inc.h: vf_exp and vf_tanh for every instruction set, included at the end of simd_<isa>.h.
 *
 * vf_exp, x <= 88: natural exponential by Cody and Waite's reduction x = n·ln 2 + f (n·LN2_HIGH is exact, so an fma
 * that rounds twice does no harm) and a minimax polynomial of degree 6 with p(0) = 1, so that exp(0) is exactly 1.
 *   relative error <= VF_EXP_ERROR, found by trying every float in [-87.34, 0];
 *   x < VF_EXP_LEAST (results below 2^-126, -inf included) gives exactly 0: no denormal is made; NaN stays NaN.
 * vf_exp_half, the same for results that will be rounded to 16 bits: degree 4, ln 2 in one piece. Three operations less, relative
 *   error <= VF_EXP_HALF_ERROR, found in the same way. Where fma rounds twice it is vf_exp.
 * vf_tanh, any x: an odd polynomial below 0.55 (relative error 2e-7, so that small scores keep their precision), else
 *   (1-e)/(1+e) with e = exp(-2|x|). Absolute error <= VF_TANH_ERROR, found by trying every float; ±inf gives ±1.
 */
#define VF_EXP_ERROR      1.3e-7
#define VF_TANH_ERROR     1e-7
#define VF_EXP_HALF_ERROR 3.3e-6
#define VF_EXP_LEAST      -87.3365f

VF_INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(0x1.8p23f + 127.0f); /* t = magic + n, with n + 127 in its low bits */
    vm m = vf_not_lt(x, vf_set1(VF_EXP_LEAST));
    vf t = vf_fma(x, vf_set1(0x1.715476p0f), magic);
    vf n = vf_sub(t, magic);
    vf f = vf_fma(n, vf_set1(-0x1.62e4p-1f), x); /* -LN2_HIGH: 15 bits */
    f = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), f); /* -LN2_LOW */
    vf p = vf_set1(0.001394859278f);
    p = vf_fma(p, f, vf_set1(0.008381118868f));
    p = vf_fma(p, f, vf_set1(0.04166624054f));
    p = vf_fma(p, f, vf_set1(0.1666632556f));
    p = vf_fma(p, f, vf_set1(0.5000000081f));
    p = vf_fma(p, f, vf_set1(1.000000065f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_scale2_(m, p, t, n);
}

VF_INLINE vf vf_exp_half(vf x)
{
    if (VF_FMA_UNIT > 0x1p-24)
        return vf_exp(x);
    const vf magic = vf_set1(0x1.8p23f + 127.0f);
    vm m = vf_not_lt(x, vf_set1(VF_EXP_LEAST));
    vf t = vf_fma(x, vf_set1(0x1.715476p0f), magic);
    vf n = vf_sub(t, magic);
    vf f = vf_fma(n, vf_set1(-0x1.62e43p-1f), x);
    vf p = vf_set1(0.04151384743f);
    p = vf_fma(p, f, vf_set1(0.1678747344f));
    p = vf_fma(p, f, vf_set1(0.5000301365f));
    p = vf_fma(p, f, vf_set1(0.9999668365f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_scale2_(m, p, t, n);
}

VF_INLINE vf vf_tanh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf p = vf_set1(0.01643758066f);
    p = vf_fma(p, z, vf_set1(-0.05267181328f));
    p = vf_fma(p, z, vf_set1(0.1332072505f));
    p = vf_fma(p, z, vf_set1(-0.3333294664f));
    p = vf_fma(vf_mul(p, z), x, x);
    vf e = vf_exp(vf_mul(a, vf_set1(-2.0f)));
    vf q = vf_div(vf_sub(one, e), vf_add(one, e));
    q = vf_select(vf_lt(x, vf_zero()), vf_neg(q), q);
    return vf_select(vf_lt(a, vf_set1(0.55f)), p, q);
}
