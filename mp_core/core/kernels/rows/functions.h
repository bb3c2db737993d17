/* exp and the activations: fixed polynomials of fused multiply-adds, with the same bits on every ISA. The coefficients
 * are minimax (Remez); docs/numerics.md states the error bounds, and tests/test_rows.py checks them. */

/* x = n ln 2 + r, |r| <= ln(2) / 2. ln 2 is split into LN2_HIGH, of 8 bits, so that n * LN2_HIGH is exact, and the
 * rest. */
MP_INLINE vu32 exponent_of(vf32 x) { return i32_from_f32(mul_f32(x, set_f32(0x1.715476p+0f))); }
MP_INLINE vf32 remainder_of(vf32 x, vu32 n) {
    const vf32 nf = f32_from_i32(n);
    const vf32 r = fma_f32(nf, set_f32(-0x1.62p-1f /* LN2_HIGH */), x);
    return fma_f32(nf, set_f32(-0x1.c85fe0p-10f), r);
}

/* P of e^r - 1 = r + r^2 P(r), deg P = 4: e^r has relative error 1.0e-8. */
MP_INLINE vf32 curve_of_exp(vf32 r) {
    vf32 p = set_f32(0x1.6d117cp-10f);
    p = fma_f32(p, r, set_f32(0x1.120be2p-7f));
    p = fma_f32(p, r, set_f32(0x1.555518p-5f));
    p = fma_f32(p, r, set_f32(0x1.5554dcp-3f));
    return fma_f32(p, r, set_f32(0.5f));
}
MP_OUTLINED vf32 expm1_near_0(vf32 r) { return fma_f32(mul_f32(r, r), curve_of_exp(r), r); }

/* Q of e^r = 1 + r Q(r), Q(r) = 1 + r P(r). With t = r Q(r), a product y e^r is fma(y, t, y), which rounds once less
 * than y (1 + t). */
MP_OUTLINED vf32 slope_of_exp(vf32 r) { return fma_f32(curve_of_exp(r), r, set_f32(1.0f)); }
MP_INLINE vf32 exp_near_0(vf32 r) { return fma_f32(slope_of_exp(r), r, set_f32(1.0f)); }

/* y 2^n for -162 <= n <= 0, rounded once: y 2^(n + 36) is exact, so only the product with 2^-36 can round (below
 * 2^-126). For n = -163 the power is 0, and so is the result: arguments whose result is 0 are clamped to one with this
 * n, since a product that underflows takes 20 cycles or more (Zen 4, November 2026). */
MP_INLINE vf32 scaled_power(vu32 n) { return as_f32(shl_u32(add_u32(n, set_u32(127 + 36)), 23)); }
MP_INLINE vf32 times_power_of_2(vf32 y, vu32 n) { return mul_f32(mul_f32(y, scaled_power(n)), set_f32(0x1p-36f)); }

/* e^x for x <= 0; 0 for x <= -104. */
MP_OUTLINED vf32 exp_f32(vf32 x) {
    const vf32 bounded = max_f32(set_f32(-113.0f), x); /* NaN stays */
    const vu32 n = exponent_of(bounded);
    return times_power_of_2(exp_near_0(remainder_of(bounded, n)), n);
}

MP_INLINE vf32 magnitude_of(vf32 x) { return as_f32(and_u32(as_u32(x), set_u32(0x7FFFFFFFu))); }
MP_INLINE vf32 minus(vf32 x) { return as_f32(xor_u32(as_u32(x), set_u32(0x80000000u))); }

MP_INLINE vf32 relu_f32(vf32 x) { return max_f32(set_f32(0.0f), x); } /* max_f32(a, NaN) is NaN: NaN stays */
MP_INLINE vf32 relu6_f32(vf32 x) { return min_f32(set_f32(6.0f), relu_f32(x)); }

/* x Phi(x) = max(x, 0) - |x| Q(|x|), where Q(u) = erfc(u / sqrt 2) / 2 is the upper tail of the normal distribution: no
 * cancellation for negative x. Q(u) = exp(-u^2 / 2) A(u) / B(u), deg A = 4, deg B = 5, relative error 9.3e-9 on 0 <= u
 * <= 14.5; all coefficients are positive. From 14.5 to the bound of u, u Q(u) rounds to 0. u^2 is computed in two
 * parts, since its rounding error becomes a relative error of exp. The multiplication by 2^n is the last one, so that
 * only results below 2^-126 lose bits. */
MP_INLINE vf32 numerator_of_tail(vf32 u) {
    vf32 a = set_f32(0x1.0dc450p-8f);
    a = fma_f32(a, u, set_f32(0x1.4cde20p-5f));
    a = fma_f32(a, u, set_f32(0x1.77440ap-3f));
    a = fma_f32(a, u, set_f32(0x1.c0d064p-2f));
    return fma_f32(a, u, set_f32(0.5f));
}
MP_INLINE vf32 denominator_of_tail(vf32 u) {
    vf32 b = set_f32(0x1.521944p-7f);
    b = fma_f32(b, u, set_f32(0x1.a136d2p-4f));
    b = fma_f32(b, u, set_f32(0x1.e0bcfcp-2f));
    b = fma_f32(b, u, set_f32(0x1.33d742p+0f));
    b = fma_f32(b, u, set_f32(0x1.acaa62p+0f));
    return fma_f32(b, u, set_f32(1.0f));
}
/* Return r, where e^(-u^2 / 2) = 2^n e^r. */
MP_INLINE vf32 remainder_of_gelu(vf32 u, vu32 *n) {
    const vf32 half = mul_f32(u, set_f32(-0.5f)), exponent = mul_f32(half, u), rest = fma_f32(half, u, minus(exponent));
    *n = exponent_of(exponent);
    return add_f32(remainder_of(exponent, *n), rest);
}
MP_OUTLINED vf32 gelu_f32(vf32 x) {
    const vf32 u = min_f32(set_f32(15.04f), magnitude_of(x));
    vu32 n;
    const vf32 r = remainder_of_gelu(u, &n), t = mul_f32(slope_of_exp(r), r);
    const vf32 tail = div_f32(mul_f32(fma_f32(u, t, u), numerator_of_tail(u)), denominator_of_tail(u));
    const vf32 above = max_f32(set_f32(-0.0f), x); /* so that a tail that rounds to 0 gives -0; NaN stays */
    return fma_f32(mul_f32(tail, scaled_power(n)), set_f32(-0x1p-36f), above);
}

/* For negative x, 1 / (1 + e^-x) = q = e^x / (1 + e^x), and for others 1 - q, where q is that of -x: e^-|x| never
 * overflows, and the rounding errors of q, which is at most 1/2, count half as much in 1 - q. */
MP_OUTLINED vf32 sigmoid_f32(vf32 x) {
    const vf32 one = set_f32(1.0f), e = exp_f32(minus(magnitude_of(x))), below = div_f32(e, add_f32(one, e));
    return select_f32(lt_f32(x, set_f32(0.0f)), below, sub_f32(one, below));
}

/* x sigmoid(w), where w has the sign of x and e^-|w| = 2^n e^r. For negative x, `below` is used instead of x: max(x,
 * bound) with a bound of the caller, below which x e^-|w| rounds to -0 anyway. The multiplication by 2^n is the last
 * one, as in gelu. */
MP_OUTLINED vf32 gated_f32(vf32 x, vf32 below, vf32 r, vu32 n) {
    const vf32 t = mul_f32(slope_of_exp(r), r), power = scaled_power(n), small = set_f32(0x1p-36f);
    const vf32 product = mul_f32(mul_f32(fma_f32(below, t, below), power), small);
    const vf32 above = select_f32(lt_f32(x, set_f32(0.0f)), product, x);
    return div_f32(above, fma_f32(mul_f32(add_f32(t, set_f32(1.0f)), power), small, set_f32(1.0f)));
}

/* x sigmoid(x). */
MP_OUTLINED vf32 silu_f32(vf32 x) {
    const vf32 below = max_f32(set_f32(-113.0f), minus(magnitude_of(x)));
    const vu32 n = exponent_of(below);
    return gated_f32(x, below, remainder_of(below, n), n);
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x sigmoid(w), w = x (c1 + c2 x^2). The absolute error of w
 * becomes a relative error of exp, so x^2, q = c1 + c2 x^2, w, c1 and c2 are all in two parts; c1 has only 19 bits
 * after the point, so that c1 - q is exact. */
MP_INLINE vf32 remainder_of_gelu_tanh(vf32 u, vu32 *n) {
    const vf32 c1 = set_f32(0x1.98846p+0f), c2 = set_f32(0x1.2444f2p-4f);
    const vf32 square = mul_f32(u, u), square_rest = fma_f32(u, u, minus(square));
    const vf32 constants_rest = fma_f32(square, set_f32(0x1.49b16ap-29f), set_f32(-0x1.985794p-21f));
    const vf32 q = fma_f32(c2, square, c1);
    const vf32 q_rest = add_f32(fma_f32(c2, square, sub_f32(c1, q)), fma_f32(c2, square_rest, constants_rest));
    const vf32 below = minus(u), w = mul_f32(below, q), w_rest = fma_f32(below, q_rest, fma_f32(below, q, minus(w)));
    *n = exponent_of(w);
    return add_f32(remainder_of(w, *n), w_rest);
}
MP_OUTLINED vf32 gelu_tanh_f32(vf32 x) {
    const vf32 u = min_f32(set_f32(11.02f), magnitude_of(x));
    vu32 n;
    const vf32 r = remainder_of_gelu_tanh(u, &n);
    return gated_f32(x, minus(u), r, n);
}

/* tanh |x| = -m / (2 + m), m = e^(-2|x|) - 1 = 2^n (e^r - 1) + (2^n - 1), without cancellation; 1 from |x| = 10 on. The
 * sign is that of x. */
MP_OUTLINED vf32 tanh_f32(vf32 x) {
    const vf32 y = mul_f32(set_f32(-2.0f), min_f32(set_f32(10.0f), magnitude_of(x)));
    const vu32 n = exponent_of(y);
    const vf32 power = as_f32(shl_u32(add_u32(n, set_u32(127)), 23));
    const vf32 m = fma_f32(expm1_near_0(remainder_of(y, n)), power, sub_f32(power, set_f32(1.0f)));
    const vf32 size = magnitude_of(div_f32(m, add_f32(set_f32(2.0f), m)));
    return as_f32(or_u32(as_u32(size), and_u32(as_u32(x), set_u32(0x80000000u))));
}

/* x, or e^x - 1 = 2^n (e^r - 1) + (2^n - 1) where x < 0, without cancellation; -1 from x = -25 down. */
MP_OUTLINED vf32 elu_f32(vf32 x) {
    const vf32 below = max_f32(set_f32(-25.0f), x);
    const vu32 n = exponent_of(below);
    const vf32 power = as_f32(shl_u32(add_u32(n, set_u32(127)), 23));
    const vf32 m = fma_f32(expm1_near_0(remainder_of(below, n)), power, sub_f32(power, set_f32(1.0f)));
    return select_f32(lt_f32(x, set_f32(0.0f)), m, x);
}

/* log(1 + e^x) = max(x, 0) + log(1 + u), u = e^-|x|. log(1 + u) = 2 atanh(s / 2) = s + s z P(z), s = 2 u / (2 + u) <=
 * 2/3, z = s^2, deg P = 4, relative error 2.8e-10. */
MP_OUTLINED vf32 softplus_f32(vf32 x) {
    const vf32 u = exp_f32(minus(magnitude_of(x)));
    const vf32 s = div_f32(add_f32(u, u), add_f32(set_f32(2.0f), u)), z = mul_f32(s, s);
    vf32 p = set_f32(0x1.edd192p-14f);
    p = fma_f32(p, z, set_f32(0x1.b7c462p-12f));
    p = fma_f32(p, z, set_f32(0x1.24ffd6p-9f));
    p = fma_f32(p, z, set_f32(0x1.9996f4p-7f));
    p = fma_f32(p, z, set_f32(0x1.555558p-4f));
    return add_f32(relu_f32(x), fma_f32(s, mul_f32(p, z), s));
}

/* The bounds between which e^x is neither 0 nor infinite; NaN stays. */
MP_INLINE vf32 bounded_exponent(vf32 x) { return min_f32(set_f32(89.0f), max_f32(set_f32(-113.0f), x)); }

/* 2^n e^r: only the product with the second half of the power rounds, or is infinite. */
MP_INLINE vf32 exponential_of(vf32 r, vu32 n) {
    const vu32 half = sar_u32(n, 1), rest = sub_u32(n, half), bias = set_u32(127);
    const vf32 y = mul_f32(exp_near_0(r), as_f32(shl_u32(add_u32(half, bias), 23)));
    return mul_f32(y, as_f32(shl_u32(add_u32(rest, bias), 23)));
}

/* e^x for all x. */
MP_OUTLINED vf32 exponential_f32(vf32 x) {
    const vf32 bounded = bounded_exponent(x);
    const vu32 n = exponent_of(bounded);
    return exponential_of(remainder_of(bounded, n), n);
}

/* The activation of one vector. Not inlined: it is used only for the last, partial vector of rows. */
static __attribute__((noinline)) vf32 activate_f32(mp_activation activation, vf32 x) {
    switch (activation) {
#define MP_ACTIVATION(NAME, WORD, FUNCTION) case MP_##NAME: return FUNCTION(x);
#include "activations.def"
    case MP_LINEAR: break;
    }
    return x;
}

/* The array for results: rows of f32, ld elements apart. They may be f16 or bf16 if rows are whole vectors (n is a
 * multiple of 16). */
typedef struct {
    mp_format format;
    void *at;
    ptrdiff_t ld;
} result_rows;

MP_INLINE int takes_results(mp_format format, ptrdiff_t n) {
    return format == MP_F32 || (n % MP_LANES == 0 && (format == MP_F16 || format == MP_BF16));
}

/* Store y, rounded, as element `at` of the result. If the result is not f32, also store y without rounding at x. Return
 * 1 if a subnormal number was flushed. (bf16_from_f32 would not flush it, but needs registers that the activations
 * use.) */
MP_OUTLINED int store_rounded(const result_rows *out, ptrdiff_t at, float *x, vf32 y) {
    if (out->format == MP_F32) {
        store_f32((float *)out->at + at, y);
        return 0;
    }
    store_f32(x, y);
    store_u16((uint16_t *)out->at + at, out->format == MP_F16 ? f16_from_f32(y) : bf16_of_flushed(y));
#ifdef MP_NATIVE_BF16
    return out->format == MP_BF16 && any_subnormal(y);
#else
    return 0;
#endif
}

/* Compute the activation of n columns of rows of x, ldx elements apart. If the result is not f32, x is overwritten with
 * the activation before rounding. Return whether the caller must round x again, because subnormal numbers were flushed.
 * The switch is outside of the loop, so that the constants of a function stay in registers. */
static int activate(mp_activation activation, float *x, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t n,
                    result_rows out) {
    const ptrdiff_t whole = n / MP_LANES * MP_LANES, rest = n - whole;
    ptrdiff_t i = 0, j = 0;
    int flushed = 0;
    switch (activation) {
#define MP_ACTIVATION(NAME, WORD, FUNCTION)                                                                     \
    case MP_##NAME:                                                                                             \
        for (ptrdiff_t left = rows * (whole / MP_LANES); left > 0; left--) {                                    \
            float *const at = x + i * ldx + j;                                                                  \
            flushed |= store_rounded(&out, i * out.ld + j, at, FUNCTION(load_f32(at)));                         \
            j += MP_LANES;                                                                                      \
            if (j == whole) j = 0, i++;                                                                         \
        }                                                                                                       \
        break;
#include "activations.def"
    case MP_LINEAR: break;
    }
    for (i = 0; i < rows && rest; i++) {
        const vf32 y = activate_f32(activation, loadn_f32(x + i * ldx + whole, rest));
        storen_f32((float *)out.at + i * out.ld + whole, y, rest);
    }
    return flushed;
}
