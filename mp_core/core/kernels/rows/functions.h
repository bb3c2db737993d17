/* exp and the activations: fixed polynomials of fused multiply-adds, with the same bits on every ISA. The coefficients
 * are minimax (Remez); docs/numerics.md states the error bounds, and tests/test_rows.py checks them. */

/* x = n ln 2 + r, |r| <= ln(2) / 2. exponent_of returns n + 1.5 2^23, whose lowest bits are those of n. ln 2 is split
 * into LN2_HIGH, of 8 bits, so that n * LN2_HIGH is exact, and the rest. */
MP_INLINE vf32 exponent_of(vf32 x) { return fma_f32(x, set_f32(0x1.715476p+0f), set_f32(0x1.8p23f)); }
MP_INLINE vf32 integer_of(vf32 exponent) { return sub_f32(exponent, set_f32(0x1.8p23f)); }
MP_INLINE vf32 remainder_of(vf32 x, vf32 exponent) {
    const vf32 n = integer_of(exponent), r = fma_f32(n, set_f32(-0x1.62p-1f /* LN2_HIGH */), x);
    return fma_f32(n, set_f32(-0x1.c85fe0p-10f), r);
}

/* 2^(n + more), a normal number. */
MP_INLINE vf32 power_of_2(vf32 exponent, uint32_t more) {
    return as_f32(shl_u32(add_u32(as_u32(exponent), set_u32(127 + more)), 23));
}
/* 2^n, and 0 for n < -126. */
MP_INLINE vf32 power_or_0(vf32 exponent) {
    const vu32 biased = add_u32(as_u32(exponent), set_u32(127));
    return as_f32(shl_u32(max_u32(biased, set_u32(0x4B400000u /* 1.5 2^23 */)), 23));
}

/* P of e^r - 1 = r + r^2 P(r), deg P = 4: e^r has relative error 3.7e-9. */
MP_INLINE vf32 curve_of_exp(vf32 r) {
    vf32 p = set_f32(0x1.6b6960p-10f);
    p = fma_f32(p, r, set_f32(0x1.122f20p-7f));
    p = fma_f32(p, r, set_f32(0x1.55568cp-5f));
    p = fma_f32(p, r, set_f32(0x1.5554a4p-3f));
    return fma_f32(p, r, set_f32(0.5f));
}
MP_OUTLINED vf32 expm1_near_0(vf32 r) { return fma_f32(mul_f32(r, r), curve_of_exp(r), r); }
MP_OUTLINED vf32 exp_near_0(vf32 r) {
    return fma_f32(fma_f32(curve_of_exp(r), r, set_f32(1.0f)), r, set_f32(1.0f));
}

/* y 2^n for -162 <= n <= 0, rounded once: y 2^(n + 36) is exact, so only the product with 2^-36 can round (below
 * 2^-126). For n = -163 the power is 0, and so is the result: arguments whose result is 0 are clamped to one with this
 * n, since a product that underflows takes 20 cycles or more (Zen 4, November 2026). */
MP_INLINE vf32 scaled_power(vf32 exponent) { return power_of_2(exponent, 36); }
MP_INLINE vf32 times_power_of_2(vf32 y, vf32 exponent) {
    return mul_f32(mul_f32(y, scaled_power(exponent)), set_f32(0x1p-36f));
}

/* e^x for x <= 0; 0 for x <= -104. */
MP_OUTLINED vf32 exp_f32(vf32 x) {
    const vf32 bounded = max_f32(set_f32(-113.0f), x), n = exponent_of(bounded); /* NaN stays */
    return times_power_of_2(exp_near_0(remainder_of(bounded, n)), n);
}

MP_INLINE vf32 magnitude_of(vf32 x) { return as_f32(and_u32(as_u32(x), set_u32(0x7FFFFFFFu))); }
MP_INLINE vf32 minus(vf32 x) { return as_f32(xor_u32(as_u32(x), set_u32(0x80000000u))); }
MP_INLINE vf32 below_0(vf32 x) { return as_f32(or_u32(as_u32(x), set_u32(0x80000000u))); } /* -|x| */

MP_INLINE vf32 relu_f32(vf32 x) { return max_f32(set_f32(0.0f), x); } /* max_f32(a, NaN) is NaN: NaN stays */
MP_INLINE vf32 relu6_f32(vf32 x) { return min_f32(set_f32(6.0f), relu_f32(x)); }

/* An exponential as its first step leaves it: e^w = 2^n (1 + r + q), q = r^2 P(r). Activations that are computed from
 * one have two steps, NAME_exponential and NAME_of: several vectors pass the first step before the second one, so that
 * the chains of dependent operations are shorter and those of more vectors overlap (activate, below). */
typedef struct { vf32 n /* of exponent_of */, r, q; } exponential;
MP_OUTLINED exponential exponential_of_rest(vf32 r, vf32 n) {
    return (exponential){n, r, mul_f32(mul_f32(r, r), curve_of_exp(r))};
}
/* fma_f32. Where it is long (simd/fused.h), long functions call one copy of it, which saves 100 kB. */
MP_OUTLINED vf32 fused(vf32 x, vf32 y, vf32 z) { return fma_f32(x, y, z); }

/* Of max(-113, -|x|); r is in two parts, and q includes the lower one. */
MP_OUTLINED exponential exponential_below(vf32 x) {
    const vf32 w = max_f32(set_f32(-113.0f), below_0(x)), n = exponent_of(w);
    const vf32 k = integer_of(n), c = set_f32(-0x1.c85fe0p-10f);
    const vf32 upper = fused(k, set_f32(-0x1.62p-1f /* LN2_HIGH */), w), r = fused(k, c, upper);
    const vf32 lower = fused(k, c, sub_f32(upper, r));
    return (exponential){n, r, fused(mul_f32(r, r), curve_of_exp(r), lower)};
}

/* 1 / (d + lost) = -s (1 + u), up to u^2; |lost| is at most the rounding error of d. */
MP_OUTLINED vf32 reciprocal_of_sum(vf32 d, vf32 lost, vf32 *u) {
    const vf32 s = div_f32(set_f32(-1.0f), d);
    *u = fused(lost, s, fused(s, d, set_f32(1.0f)));
    return s;
}

/* x Phi(x) = max(x, 0) - |x| Q(|x|), where Q(u) = erfc(u / sqrt 2) / 2 is the upper tail of the normal distribution: no
 * cancellation for negative x. Q(u) = e^(-u^2 / 2) t P(t), t = 1 / (1 + c u), deg P = 9 around -s = 0.39, relative
 * error 4.3e-9 on 0 <= u <= 15.04; beyond, u Q(u) rounds to 0. -t is s (1 + u), as in reciprocal_of_sum, so
 * that t P(t) is -s (p + p_rest) (1 + rest), rest = (1 + 1.6 t) u. */
typedef struct { vf32 s, p, p_rest, rest; } gelu_tail;
MP_OUTLINED gelu_tail tail_of_gelu(vf32 u) {
    const vf32 one = set_f32(1.0f), c = set_f32(0x1.333334p-2f), d = fused(c, u, one);
    gelu_tail t;
    t.s = reciprocal_of_sum(d, fused(c, u, sub_f32(one, d)), &t.rest);
    t.rest = mul_f32(t.rest, fused(t.s, set_f32(-1.6f), one));
    const vf32 z = add_f32(t.s, set_f32(0.390625f)), constant = set_f32(0x1.84c308p-3f);
    vf32 p = set_f32(0x1.56d86p-6f);
    p = fused(p, z, set_f32(0x1.4b58e8p-5f));
    p = fused(p, z, set_f32(-0x1.3a3b66p-7f));
    p = fused(p, z, set_f32(-0x1.c36da8p-5f));
    p = fused(p, z, set_f32(0x1.7bfe82p-5f));
    p = fused(p, z, set_f32(0x1.04270ep-4f));
    p = fused(p, z, set_f32(-0x1.9c11eap-3f));
    p = fused(p, z, set_f32(0x1.1af8b6p-2f));
    p = fused(p, z, set_f32(-0x1.0b7692p-2f));
    t.p = fused(p, z, constant), t.p_rest = fused(p, z, sub_f32(constant, t.p));
    return t;
}
/* Return r, where e^(-u^2 / 2) = 2^n e^r. u^2 is computed in two parts, since its rounding error becomes a relative
 * error of exp. */
MP_INLINE vf32 remainder_of_gelu(vf32 u, vf32 *n) {
    const vf32 half = mul_f32(u, set_f32(-0.5f)), exponent = mul_f32(half, u), rest = fused(half, u, minus(exponent));
    *n = exponent_of(exponent);
    return add_f32(remainder_of(exponent, *n), rest);
}
MP_INLINE vf32 bounded_for_gelu(vf32 x) { return min_f32(set_f32(15.04f), magnitude_of(x)); }
MP_OUTLINED exponential gelu_exponential(vf32 x) {
    vf32 n;
    const vf32 r = remainder_of_gelu(bounded_for_gelu(x), &n);
    return exponential_of_rest(r, n);
}
/* u s and P e^r are products in two parts. The multiplication by 2^n is the last one, so that only results below 2^-126
 * lose bits. */
MP_OUTLINED vf32 gelu_of(vf32 x, exponential e) {
    const vf32 u = bounded_for_gelu(x);
    const gelu_tail t = tail_of_gelu(u);
    const vf32 share = add_f32(set_f32(1.0f), add_f32(e.r, e.q)), m = add_f32(e.r, fused(t.rest, share, e.q));
    const vf32 g = fused(t.p, m, t.p), g_rest = add_f32(fused(t.p, m, sub_f32(t.p, g)), t.p_rest);
    const vf32 v = mul_f32(u, t.s), v_rest = fused(u, t.s, minus(v));
    const vf32 tail = fused(v, g, fused(v_rest, g, mul_f32(v, g_rest)));
    const vf32 above = max_f32(set_f32(-0.0f), x); /* so that a tail that rounds to 0 gives -0; NaN stays */
    return fused(mul_f32(below_0(tail), scaled_power(e.n)), set_f32(0x1p-36f), above);
}

/* 1 - q for positive x and q for negative x, q = e / (1 + e), e = e^-|x|, which never overflows. q = 2^n (1 + m) t, t =
 * 1 / (1 + e); 1 + e is in two parts, and m includes the rest of t. */
MP_OUTLINED exponential sigmoid_exponential(vf32 x) { return exponential_below(x); }
MP_OUTLINED vf32 sigmoid_of(vf32 x, exponential e) {
    const vf32 one = set_f32(1.0f), small = set_f32(0x1p-36f), power = power_or_0(e.n), t = add_f32(e.r, e.q);
    const vf32 share = add_f32(one, t), share_rest = sub_f32(t, sub_f32(share, one)), d = fused(share, power, one);
    vf32 rest;
    const vf32 lost = fused(share_rest, power, fused(share, power, sub_f32(one, d)));
    const vf32 s = reciprocal_of_sum(d, lost, &rest), m = add_f32(e.r, fused(rest, share, e.q));
    const vf32 below = mul_f32(fused(s, m, s), scaled_power(e.n));
    return select_f32(lt_f32(x, set_f32(0.0f)), mul_f32(below, minus(small)), fused(below, small, one));
}

/* x sigmoid(w), where w has the sign of x and e is e^-|w|. For negative x, `below` is used instead of x: max(x, bound)
 * with a bound of the caller, below which x e^-|w| rounds to -0 anyway. The rounding error of 1 + e is subtracted from
 * the numerator, times 0.875 (1 + r + q), which is near (1 + r + q) / (1 + e). The multiplication by 2^n is the last
 * one, as in gelu. */
MP_OUTLINED vf32 gated(vf32 x, vf32 below, exponential e) {
    const vf32 one = set_f32(1.0f), t = add_f32(e.r, e.q), share = add_f32(one, t), power = power_or_0(e.n);
    const vf32 d = fused(share, power, one), lost = fused(share, power, sub_f32(one, d));
    const vf32 y = fused(below, fused(mul_f32(lost, share), set_f32(-0.875f), t), below);
    return div_f32(select_f32(lt_f32(x, set_f32(0.0f)), times_power_of_2(y, e.n), x), d);
}

/* x sigmoid(x). */
MP_OUTLINED exponential silu_exponential(vf32 x) { return exponential_below(x); }
MP_OUTLINED vf32 silu_of(vf32 x, exponential e) { return gated(x, max_f32(set_f32(-113.0f), x), e); }

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x sigmoid(w), w = x (c1 + c2 x^2). The absolute error of w
 * becomes a relative error of exp, so x^2, q = c1 + c2 x^2, w, c1 and c2 are all in two parts; c1 has only 19 bits
 * after the point, so that c1 - q is exact. */
MP_INLINE vf32 remainder_of_gelu_tanh(vf32 u, vf32 *n) {
    const vf32 c1 = set_f32(0x1.98846p+0f), c2 = set_f32(0x1.2444f2p-4f);
    const vf32 square = mul_f32(u, u), square_rest = fused(u, u, minus(square));
    const vf32 constants_rest = fused(square, set_f32(0x1.49b16ap-29f), set_f32(-0x1.985794p-21f));
    const vf32 q = fused(c2, square, c1);
    const vf32 q_rest = add_f32(fused(c2, square, sub_f32(c1, q)), fused(c2, square_rest, constants_rest));
    const vf32 below = minus(u), w = mul_f32(below, q), w_rest = fused(below, q_rest, fused(below, q, minus(w)));
    *n = exponent_of(w);
    return add_f32(remainder_of(w, *n), w_rest);
}
MP_OUTLINED exponential gelu_tanh_exponential(vf32 x) {
    vf32 n;
    const vf32 r = remainder_of_gelu_tanh(min_f32(set_f32(11.02f), magnitude_of(x)), &n);
    return exponential_of_rest(r, n);
}
MP_OUTLINED vf32 gelu_tanh_of(vf32 x, exponential e) { return gated(x, max_f32(set_f32(-11.02f), x), e); }

/* tanh |x| = 2 t - 1, t = 1 / (1 + e), e = e^(-2|x|) = 2^n (1 + r + q). -t is s (1 + u), and 2 s + 1 is exact. ln 2 is
 * one number here, since 2^n is small where n is large. 1 from |x| = 10 on; the sign is that of x. */
MP_OUTLINED exponential tanh_exponential(vf32 x) {
    const vf32 half = max_f32(set_f32(-10.0f), below_0(x)), w = add_f32(half, half), n = exponent_of(w);
    return exponential_of_rest(fused(integer_of(n), set_f32(-0x1.62e430p-1f), w), n);
}
MP_OUTLINED vf32 tanh_of(vf32 x, exponential e) {
    const vf32 one = set_f32(1.0f), power = power_of_2(e.n, 0);
    const vf32 d = fused(power, add_f32(e.r, e.q), add_f32(one, power));
    const vf32 lost = fused(power, e.q, fused(power, e.r, sub_f32(power, sub_f32(d, one))));
    vf32 u;
    const vf32 s = reciprocal_of_sum(d, lost, &u), twice = add_f32(s, s);
    const vu32 size = as_u32(magnitude_of(fused(twice, u, add_f32(twice, one))));
    const vf32 y = as_f32(or_u32(size, and_u32(as_u32(x), set_u32(0x80000000u))));
    return select_f32(lt_f32(magnitude_of(x), set_f32(0x1p-12f)), x, y);
}

/* x, or e^x - 1 = 2^n (e^r - 1) + (2^n - 1) where x < 0, without cancellation; -1 from x = -25 down. */
MP_OUTLINED vf32 elu_f32(vf32 x) {
    const vf32 below = max_f32(set_f32(-25.0f), x), n = exponent_of(below), power = power_of_2(n, 0);
    const vf32 m = fma_f32(expm1_near_0(remainder_of(below, n)), power, sub_f32(power, set_f32(1.0f)));
    return select_f32(lt_f32(x, set_f32(0.0f)), m, x);
}

/* log(1 + e^x) = max(x, 0) + log(1 + u), u = e^-|x| = 2^n (1 + r + q). log(1 + u) = u (1 + u C(u - 1/2)), deg C = 8,
 * relative error 7.5e-9. */
MP_OUTLINED exponential softplus_exponential(vf32 x) {
    const vf32 w = max_f32(set_f32(-113.0f), below_0(x)), n = exponent_of(w);
    return exponential_of_rest(remainder_of(w, n), n);
}
MP_OUTLINED vf32 softplus_of(vf32 x, exponential e) {
    const vf32 one = set_f32(1.0f), share = add_f32(one, add_f32(e.r, e.q)), power = power_or_0(e.n);
    const vf32 u = mul_f32(share, power), z = sub_f32(u, set_f32(0.5f));
    vf32 c = set_f32(-0x1.a82150p-9f);
    c = fused(c, z, set_f32(0x1.c50ac2p-8f));
    c = fused(c, z, set_f32(-0x1.4ec148p-7f));
    c = fused(c, z, set_f32(0x1.1100a0p-6f));
    c = fused(c, z, set_f32(-0x1.d97a68p-6f));
    c = fused(c, z, set_f32(0x1.a28448p-5f));
    c = fused(c, z, set_f32(-0x1.7de114p-4f));
    c = fused(c, z, set_f32(0x1.6f0d78p-3f));
    c = fused(c, z, set_f32(-0x1.833704p-2f));
    const vf32 m = add_f32(e.r, fused(mul_f32(c, u), share, e.q));
    const vf32 y = add_f32(one, m), y_rest = sub_f32(m, sub_f32(y, one));
    return fused(mul_f32(y, scaled_power(e.n)), set_f32(0x1p-36f), fused(y_rest, power, relu_f32(x)));
}

/* The bounds between which e^x is neither 0 nor infinite; NaN stays. */
MP_INLINE vf32 bounded_exponent(vf32 x) { return min_f32(set_f32(89.0f), max_f32(set_f32(-113.0f), x)); }

/* 2^n e^r: only the product with the second half of the power rounds, or is infinite. */
MP_INLINE vf32 scaled_exponential(vf32 r, vf32 exponent) {
    const vu32 n = sub_u32(as_u32(exponent), set_u32(0x4B400000u /* 1.5 2^23 */)), half = sar_u32(n, 1);
    const vu32 rest = sub_u32(n, half), bias = set_u32(127);
    const vf32 y = mul_f32(exp_near_0(r), as_f32(shl_u32(add_u32(half, bias), 23)));
    return mul_f32(y, as_f32(shl_u32(add_u32(rest, bias), 23)));
}

/* e^x for all x. */
MP_OUTLINED vf32 exponential_f32(vf32 x) {
    const vf32 bounded = bounded_exponent(x), n = exponent_of(bounded);
    return scaled_exponential(remainder_of(bounded, n), n);
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

/* A place in rows of whole vectors, which are visited in order. */
typedef struct { ptrdiff_t i, j; } vector_place;
MP_INLINE vector_place next_vector(vector_place at, ptrdiff_t whole) {
    const ptrdiff_t j = at.j + MP_LANES;
    return j == whole ? (vector_place){at.i + 1, 0} : (vector_place){at.i, j};
}
enum { MP_STAGED = 8 }; /* vectors that pass the first step of an activation before the second one */

/* Compute the activation of n columns of rows of x, ldx elements apart. If the result is not f32, x is overwritten with
 * the activation before rounding. Return whether the caller must round x again, because subnormal numbers were flushed.
 * The switch is outside of the loop, so that the constants of a function stay in registers. */
static int activate(mp_activation activation, float *x, ptrdiff_t ldx, ptrdiff_t rows, ptrdiff_t n,
                    result_rows out) {
    const ptrdiff_t whole = n / MP_LANES * MP_LANES, rest = n - whole, vectors = rows * (whole / MP_LANES);
    float staged[MP_STAGED][3][MP_LANES];
    vector_place first = {0, 0}, at = first;
    int flushed = 0;
    switch (activation) {
#define MP_ACTIVATION(NAME, WORD, FUNCTION)                                                           \
    case MP_##NAME:                                                                                   \
        for (ptrdiff_t i = 0; i < rows; i++)                                                          \
            for (ptrdiff_t j = 0; j < whole; j += MP_LANES) {                                         \
                float *const p = x + i * ldx + j;                                                     \
                flushed |= store_rounded(&out, i * out.ld + j, p, FUNCTION(load_f32(p)));             \
            }                                                                                         \
        break;
#define MP_ACTIVATION_BY_EXP(NAME, WORD, FUNCTION)                                                    \
    case MP_##NAME:                                                                                   \
        for (ptrdiff_t left = vectors; left > 0; left -= MP_STAGED) {                                 \
            const ptrdiff_t m = at_most(left, MP_STAGED);                                             \
            for (ptrdiff_t v = 0; v < m; v++, first = next_vector(first, whole)) {                    \
                const exponential e = FUNCTION##_exponential(load_f32(x + first.i * ldx + first.j));  \
                store_f32(staged[v][0], e.n), store_f32(staged[v][1], e.r), store_f32(staged[v][2], e.q); \
            }                                                                                         \
            for (ptrdiff_t v = 0; v < m; v++, at = next_vector(at, whole)) {                          \
                float *const p = x + at.i * ldx + at.j;                                               \
                const exponential e = {load_f32(staged[v][0]), load_f32(staged[v][1]), load_f32(staged[v][2])}; \
                flushed |= store_rounded(&out, at.i * out.ld + at.j, p, FUNCTION##_of(load_f32(p), e)); \
            }                                                                                         \
        }                                                                                             \
        break;
#include "activations.def"
    case MP_LINEAR: break;
    }
    for (ptrdiff_t i = 0; i < rows && rest; i++) { /* the last, partial vectors, as whole ones */
        float y[MP_LANES];
        store_f32(y, loadn_f32(x + i * ldx + whole, rest));
        activate(activation, y, MP_LANES, 1, MP_LANES, (result_rows){MP_F32, y, MP_LANES});
        storen_f32((float *)out.at + i * out.ld + whole, load_f32(y), rest);
    }
    return flushed;
}
