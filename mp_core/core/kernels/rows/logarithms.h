/* Logarithms: fixed polynomials of fused multiply-adds, as in functions.h. */

/* u = 2^n (1 + f) > 0, 2/3 <= 1 + f < 4/3: return f, exactly, and n as a number. Subnormal u are scaled by 2^24. */
MP_INLINE vf32 fraction_of(vf32 u, vf32 *power) {
    const vmask small = lt_f32(u, set_f32(0x1p-126f));
    const vu32 bits = as_u32(select_f32(small, mul_f32(u, set_f32(0x1p24f)), u));
    const vu32 n = sar_u32(sub_u32(bits, set_u32(0x3F2AAAABu /* 2/3 */)), 23);
    *power = f32_from_i32(sub_u32(n, select_u32(small, set_u32(24), set_u32(0))));
    return sub_f32(as_f32(sub_u32(bits, shl_u32(n, 23))), set_f32(1.0f));
}

/* log(u + error), |error| far below u: log(1 + f) = f - f^2 / 2 + f^3 P(f), deg P = 7, relative error 4.7e-9. ln 2 is
 * split as in remainder_of, so that n * LN2_HIGH is exact. */
MP_INLINE vf32 log_of_sum(vf32 u, vf32 error) {
    vf32 power;
    const vf32 f = fraction_of(u, &power);
    vf32 p = set_f32(-0x1.07c878p-3f);
    p = fma_f32(p, f, set_f32(0x1.1e678cp-3f));
    p = fma_f32(p, f, set_f32(-0x1.f332fep-4f));
    p = fma_f32(p, f, set_f32(0x1.1ed662p-3f));
    p = fma_f32(p, f, set_f32(-0x1.559c44p-3f));
    p = fma_f32(p, f, set_f32(0x1.99d044p-3f));
    p = fma_f32(p, f, set_f32(-0x1.fffefcp-3f));
    p = fma_f32(p, f, set_f32(0x1.555506p-2f));
    const vf32 square = mul_f32(f, f), rest = mul_f32(square, fma_f32(p, f, set_f32(-0.5f)));
    const vf32 low = add_f32(fma_f32(power, set_f32(0x1.c85fe0p-10f), error), rest);
    return fma_f32(power, set_f32(0x1.62p-1f /* LN2_HIGH */), add_f32(f, low));
}

/* y, the logarithm of u, where 0 < u < Inf; -Inf at 0, Inf at Inf, else NaN. */
MP_INLINE vf32 within_logarithm(vf32 u, vf32 y) {
    const vf32 zero = set_f32(0.0f), infinity = set_f32(INFINITY);
    const vf32 at_0 = select_f32(lt_f32(u, zero), set_f32(NAN), set_f32(-INFINITY));
    const vf32 above = select_f32(lt_f32(u, infinity), y, u); /* NaN stays u too */
    return select_f32(lt_f32(zero, u), above, select_f32(lt_f32(u, set_f32(0x1p-149f)), at_0, u));
}

MP_OUTLINED vf32 log_f32(vf32 x) { return within_logarithm(x, log_of_sum(x, set_f32(0.0f))); }

/* log(1 + x) = log(u + e), where u is 1 + x, rounded, and e its rounding error, which enters by the derivative of the
 * logarithm. If x is so small that u is 1, the result is x. */
MP_OUTLINED vf32 log1p_f32(vf32 x) {
    const vf32 one = set_f32(1.0f), u = add_f32(one, x), back = sub_f32(u, x), part = sub_f32(u, back);
    const vf32 error = add_f32(sub_f32(one, back), sub_f32(x, part)); /* Knuth's two-sum */
    const vf32 y = within_logarithm(u, log_of_sum(u, div_f32(error, u)));
    return select_f32(lt_f32(magnitude_of(x), set_f32(0x1p-24f)), x, y);
}

/* The logarithm of x > 0 in two parts, *low and the returned one: n ln 2 + 2 atanh(s), s = f / (2 + f) in two parts, 2
 * atanh(s) = s (2 + t), t = 2/3 z + z^2 Q(z), z = s^2 <= 0.04, deg Q = 3, relative error 2^-41. ln 2 is split into
 * three. */
MP_INLINE vf32 log_in_two_parts(vf32 x, vf32 *low) {
    vf32 n;
    const vf32 f = fraction_of(x, &n), two = set_f32(2.0f), third = set_f32(0x1.555556p-1f /* 2/3 + 2^-26 2/3 */);
    const vf32 d = add_f32(two, f), d_rest = sub_f32(f, sub_f32(d, two)), s = div_f32(f, d);
    const vf32 s_rest = div_f32(fma_f32(minus(s), d_rest, fma_f32(minus(s), d, f)), d);
    const vf32 z = mul_f32(s, s), z_rest = fma_f32(mul_f32(two, s), s_rest, fma_f32(s, s, minus(z)));
    vf32 q = set_f32(0x1.982f22p-3f);
    q = fma_f32(q, z, set_f32(0x1.c5bb98p-3f));
    q = fma_f32(q, z, set_f32(0x1.249508p-2f));
    q = fma_f32(q, z, set_f32(0x1.999996p-2f));
    const vf32 small = fma_f32(z, set_f32(-0x1.555556p-26f), fma_f32(third, z_rest, mul_f32(mul_f32(z, z), q)));
    const vf32 t = mul_f32(third, z), w = add_f32(two, t);
    const vf32 w_rest = add_f32(sub_f32(t, sub_f32(w, two)), add_f32(fma_f32(third, z, minus(t)), small));
    const vf32 y = mul_f32(s, w), y_rest = fma_f32(s_rest, w, fma_f32(s, w_rest, fma_f32(s, w, minus(y))));
    const vf32 high = mul_f32(n, set_f32(0x1.62p-1f /* LN2_HIGH */)), sum = add_f32(high, y);
    const vf32 below = fma_f32(n, set_f32(0x1.c85fe0p-10f), fma_f32(n, set_f32(-0x1.718432p-35f), y_rest));
    const vf32 rest = add_f32(add_f32(sub_f32(high, sum), y), below), result = add_f32(sum, rest);
    *low = add_f32(sub_f32(sum, result), rest);
    return result;
}

/* x^y = e^(y log x), y log x in two parts. For negative x the result is negative if y is odd, and NaN if y is not an
 * integer. x^0 is 1. */
MP_OUTLINED vf32 power_f32(vf32 x, vf32 y) {
    const vf32 zero = set_f32(0.0f), size = magnitude_of(x);
    vf32 low;
    const vf32 log = log_in_two_parts(size, &low), high = within_logarithm(size, log), p = mul_f32(y, high);
    const vf32 more = fma_f32(y, low, fma_f32(y, high, minus(p)));
    const vf32 rest = select_f32(lt_f32(magnitude_of(p), set_f32(113.0f)), more, zero); /* Inf - Inf would be NaN */
    const vf32 bounded = bounded_exponent(p), n = exponent_of(bounded);
    const vf32 result = scaled_exponential(add_f32(remainder_of(bounded, n), rest), n);
    const vf32 whole = min_f32(set_f32(0x1p24f), magnitude_of(y)); /* all larger numbers are even */
    const vu32 integer = i32_from_f32(whole), odd = shl_u32(integer, 31);
    const vmask broken = lt_f32(zero, magnitude_of(sub_f32(whole, f32_from_i32(integer))));
    const vf32 of_no_integer = select_f32(lt_f32(size, set_f32(INFINITY)), set_f32(NAN), result);
    const vf32 below = select_f32(broken, of_no_integer, as_f32(xor_u32(as_u32(result), odd)));
    const vf32 at_0 = select_f32(broken, result, as_f32(xor_u32(as_u32(result), odd)));
    const vmask has_sign = gt_i32(set_u32(0), as_u32(x)), counts = lt_f32(zero, magnitude_of(y));
    const vf32 of_sign = select_f32(lt_f32(x, zero), below, at_0);
    return select_f32(counts, select_f32(has_sign, of_sign, result), add_f32(set_f32(1.0f), mul_f32(zero, y)));
}
