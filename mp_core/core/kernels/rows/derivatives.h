/* The gradients of activations: d f'(x), computed by the same polynomials as the activations in functions.h. If the
 * result y of the activation is enough to compute it, the second operand is y, not x. */

/* d where y > 0, else 0, also at NaN. y is the result or the operand of the activation. */
MP_INLINE vf32 relu_gradient_f32(vf32 d, vf32 y) { return select_f32(lt_f32(set_f32(0.0f), y), d, set_f32(0.0f)); }
MP_INLINE vf32 relu6_gradient_f32(vf32 d, vf32 y) {
    return select_f32(lt_f32(y, set_f32(6.0f)), relu_gradient_f32(d, y), set_f32(0.0f));
}

MP_INLINE vf32 sigmoid_gradient_f32(vf32 d, vf32 y) { return mul_f32(d, fma_f32(minus(y), y, y)); }
MP_INLINE vf32 tanh_gradient_f32(vf32 d, vf32 y) { return mul_f32(d, fma_f32(minus(y), y, set_f32(1.0f))); }

/* e^x = y + 1 where y < 0, else 1. */
MP_INLINE vf32 elu_gradient_f32(vf32 d, vf32 y) {
    return mul_f32(d, add_f32(set_f32(1.0f), min_f32(set_f32(0.0f), y))); /* NaN stays */
}

/* sigmoid(x) = 1 - e^-y. */
MP_OUTLINED vf32 softplus_gradient_f32(vf32 d, vf32 y) { return mul_f32(d, minus(elu_f32(minus(y)))); }

/* Phi(x) + x phi(x). Let u = |x| and g = Q(u) - u e^(-u^2 / 2) / sqrt(2 pi), Q as in tail_of_gelu. Then the derivative
 * is g if x < 0, else 1 - g. */
MP_OUTLINED vf32 gelu_gradient_f32(vf32 d, vf32 x) {
    const vf32 u = bounded_for_gelu(x);
    const gelu_tail t = tail_of_gelu(u);
    vf32 n;
    const vf32 tail = mul_f32(minus(t.s), fma_f32(t.p, t.rest, t.p)), e = exp_near_0(remainder_of_gelu(u, &n));
    const vf32 g = times_power_of_2(mul_f32(e, fma_f32(minus(u), set_f32(0x1.988454p-2f), tail)), n);
    return mul_f32(d, select_f32(lt_f32(x, set_f32(0.0f)), g, sub_f32(set_f32(1.0f), g)));
}

/* The derivative of x sigmoid(w): s (1 + x w' (1 - s)), s = sigmoid(w). w has the sign of x, and e^-|w| = 2^n e^r. */
MP_OUTLINED vf32 gated_derivative_f32(vf32 x, vf32 rise /* x w' */, vf32 r, vf32 n) {
    const vf32 one = set_f32(1.0f), e = times_power_of_2(exp_near_0(r), n), share = div_f32(one, add_f32(one, e));
    const vmask below = lt_f32(x, set_f32(0.0f));
    const vf32 other = mul_f32(share, e), s = select_f32(below, other, share), left = select_f32(below, share, other);
    return fma_f32(mul_f32(s, rise), left, s);
}

MP_OUTLINED vf32 silu_gradient_f32(vf32 d, vf32 x) {
    const vf32 bounded = min_f32(set_f32(113.0f), max_f32(set_f32(-113.0f), x)), w = below_0(bounded);
    const vf32 n = exponent_of(w);
    return mul_f32(d, gated_derivative_f32(bounded, bounded, remainder_of(w, n), n));
}

/* x w' = x (c1 + 3 c2 x^2), c1 and c2 as in gelu_tanh_f32. */
MP_OUTLINED vf32 gelu_tanh_gradient_f32(vf32 d, vf32 x) {
    const vf32 u = min_f32(set_f32(11.02f), magnitude_of(x)), square = mul_f32(u, u);
    const vf32 slope = fma_f32(set_f32(0x1.b6676cp-3f), square, set_f32(0x1.988454p+0f));
    const vf32 rise = mul_f32(select_f32(lt_f32(x, set_f32(0.0f)), minus(u), u), slope);
    vf32 n;
    const vf32 r = remainder_of_gelu_tanh(u, &n);
    return mul_f32(d, gated_derivative_f32(x, rise, r, n));
}
