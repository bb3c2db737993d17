/* Functions in two steps: quickly in float32, 16 at a time, and again in float64 where that leaves a doubt. The quick
 * results err by less than 1.3 ULP. So narrow types round them correctly, unless they lie within two ULP of a number
 * halfway between two narrow ones; then, or if the quick step does not know the function there, the block is computed
 * in float64 (doubles.h), and the results in doubt are replaced. About one of 20 blocks needs that. */

/* Not 0 in the lanes within two ULP of what may_be_tie marks. */
MP_INLINE vu32 beside_tie(vf32 y) {
    const vu32 u = add_u32(as_u32(y), set_u32(2)), last = and_u32(u, set_u32(0xFFFu));
    return and_u32(and_u32(sar_u32(sub_u32(last, set_u32(5)), 31), u), set_u32(0x7FF000u));
}

/* y with the sign of x. */
MP_INLINE vf32 with_sign_of(vf32 x, vf32 y) {
    return as_f32(or_u32(as_u32(magnitude_of(y)), and_u32(as_u32(x), set_u32(0x80000000u))));
}

/* Replace the elements in doubt by those in float64. */
static __attribute__((noinline, cold)) void replace_doubtful(void (*function)(const float *x, double *y),
                                                             const float *x, const uint32_t *doubt, float *y) {
    double result[MP_DOUBLES];
    float rounded[MP_DOUBLES];
    function(x, result);
    round_block(result, MP_DOUBLES, rounded);
    for (int j = 0; j < MP_DOUBLES; j++) y[j] = doubt[j] ? rounded[j] : y[j];
}

/* The functions of kernels/functions.def with two steps, for rows. QUICK(x, &doubt) may set lanes of `doubt` to nonzero
 * numbers. */
#define MP_QUICK(NAME, WORD, QUICK, FUNCTION, BOUND)                                      \
    static void NAME##_of_rows(const float *x, const float *y, ptrdiff_t n, float *out) { \
        (void)y;                                                                          \
        for (ptrdiff_t i = 0; i < n; i += MP_DOUBLES) {                                   \
            float block[MP_DOUBLES], result[MP_DOUBLES];                                  \
            uint32_t doubt[MP_DOUBLES];                                                   \
            vu32 any = set_u32(0);                                                        \
            load_block(x + i, n - i, BOUND, block);                                       \
            for (int j = 0; j < MP_DOUBLES; j += MP_LANES) {                              \
                vu32 here = set_u32(0);                                                   \
                const vf32 quick = QUICK(load_f32(block + j), &here);                     \
                here = or_u32(here, beside_tie(quick)), any = or_u32(any, here);          \
                store_f32(result + j, quick), store_u32(doubt + j, here);                 \
            }                                                                             \
            if (top_u32(any)) replace_doubtful(FUNCTION##_block, block, doubt, result);   \
            store_block(result, n - i, out + i);                                          \
        }                                                                                 \
    }

MP_INLINE vf32 exp2_quick(vf32 x, vu32 *doubt) {
    const vf32 n = add_f32(x, set_f32(0x1.8p23f));
    (void)doubt;
    return scaled_exponential(mul_f32(sub_f32(x, integer_of(n)), set_f32(0x1.62e43p-1f)), n);
}

/* e^(r + low) - 1, |r| <= ln(2) / 2, |low| far below |r|: r + r^2 / 2 in two parts, and r^3 P(r); relative error 2^-31.
 * (e^r - 1 of functions.h has twice the error of this one, but fewer operations.) */
MP_INLINE vf32 expm1_of_sum(vf32 r, vf32 low) {
    const vf32 half = mul_f32(r, set_f32(0.5f)), sum = fused(half, r, r), rest = fused(half, r, sub_f32(r, sum));
    vf32 p = set_f32(0x1.9fbdeap-13f);
    p = fused(p, r, set_f32(0x1.6d40bap-10f));
    p = fused(p, r, set_f32(0x1.1111cap-7f));
    p = fused(p, r, set_f32(0x1.5554f2p-5f));
    p = fused(p, r, set_f32(0x1.555554p-3f));
    return add_f32(sum, fused(mul_f32(mul_f32(r, r), r), p, add_f32(rest, fused(low, r, low))));
}

/* 2^n (e^(r + low) - 1) + (2^n - 1), n < 128. */
MP_INLINE vf32 expm1_by_parts(vf32 r, vf32 low, vf32 n) {
    const vf32 power = power_of_2(n, 0);
    return fused(expm1_of_sum(r, low), power, sub_f32(power, set_f32(1.0f)));
}
MP_INLINE vf32 expm1_quick(vf32 x, vu32 *doubt) {
    const vf32 most = set_f32(88.0f), bounded = min_f32(most, max_f32(set_f32(-25.0f), x));
    const vf32 n = exponent_of(bounded), k = integer_of(n);
    const vf32 upper = fused(k, set_f32(-0x1.62p-1f /* LN2_HIGH */), bounded);
    const vf32 rest = set_f32(-0x1.c85fe0p-10f), r = fused(k, rest, upper), low = fused(k, rest, sub_f32(upper, r));
    *doubt = select_u32(lt_f32(most, x), set_u32(1), *doubt);
    return with_sign_of(x, expm1_by_parts(r, low, n));
}

/* erf u = 1 - e^(-u g), as in erf_in_double: g = 2 / sqrt(pi) + u h(u), in two parts. */
MP_INLINE vf32 erf_quick(vf32 x, vu32 *doubt) {
    const vf32 u = magnitude_of(x), first = set_f32(0x1.20dd76p+0f);
    vf32 h = set_f32(-0x1.3968ccp-17f);
    h = fused(h, u, set_f32(0x1.f0b2fep-14f));
    h = fused(h, u, set_f32(-0x1.4d5056p-11f));
    h = fused(h, u, set_f32(0x1.b67740p-10f));
    h = fused(h, u, set_f32(-0x1.5ccf26p-13f));
    h = fused(h, u, set_f32(-0x1.39bf4ap-6f));
    h = fused(h, u, set_f32(0x1.a4f94ap-4f));
    h = fused(h, u, set_f32(0x1.45f2fep-1f));
    const vf32 g = fused(h, u, first), low = add_f32(fused(h, u, sub_f32(first, g)), set_f32(-0x1.f7ac92p-25f));
    const vf32 w = minus(u), a = mul_f32(w, g), a_low = fused(w, low, fused(w, g, minus(a)));
    const vf32 n = exponent_of(a);
    (void)doubt;
    return with_sign_of(x, expm1_by_parts(remainder_of(a, n), a_low, n));
}

/* y = 1 / s, s = sqrt x, corrected by the residual 1 - x y^2. */
MP_INLINE vf32 rsqrt_quick(vf32 x, vu32 *doubt) {
    float lane[MP_LANES];
    store_f32(lane, x);
    for (int j = 0; j < MP_LANES; j++) lane[j] = sqrtf(lane[j]);
    const vf32 y = div_f32(set_f32(1.0f), load_f32(lane)), t = mul_f32(x, y), t_low = fused(x, y, minus(t));
    const vf32 residual = fused(minus(t_low), y, fused(minus(t), y, set_f32(1.0f)));
    (void)doubt;
    return fused(mul_f32(y, set_f32(0.5f)), residual, y);
}

/* x / s, s = 1 + |x| in two parts: x r + r (x - x r s), r = 1 / s. */
MP_INLINE vf32 softsign_quick(vf32 x, vu32 *doubt) {
    const vf32 one = set_f32(1.0f), u = magnitude_of(x), s = add_f32(one, u), back = sub_f32(s, u);
    const vf32 low = add_f32(sub_f32(one, back), sub_f32(u, sub_f32(s, back))); /* Knuth's two-sum */
    const vf32 r = div_f32(one, s), y = mul_f32(x, r), residual = fused(minus(y), low, fused(minus(y), s, x));
    (void)doubt;
    return with_sign_of(x, fused(r, residual, y));
}

/* n a + log(1 + f) b, where a = a0 + a1 and b = b0 + b1, and n a0 is exact: as in log_of_sum, with b f and f^2 in two
 * parts. */
MP_OUTLINED vf32 scaled_logarithm_quick(vf32 x, const float *a, const float *b) {
    vf32 n;
    const vf32 f = fraction_of(x, &n), b0 = set_f32(b[0]);
    vf32 p = set_f32(-0x1.07c878p-3f);
    p = fused(p, f, set_f32(0x1.1e678cp-3f));
    p = fused(p, f, set_f32(-0x1.f332fep-4f));
    p = fused(p, f, set_f32(0x1.1ed662p-3f));
    p = fused(p, f, set_f32(-0x1.559c44p-3f));
    p = fused(p, f, set_f32(0x1.99d044p-3f));
    p = fused(p, f, set_f32(-0x1.fffefcp-3f));
    p = fused(p, f, set_f32(0x1.555506p-2f));
    const vf32 square = mul_f32(f, f), lost = mul_f32(fused(f, f, minus(square)), set_f32(-0.5f));
    const vf32 half = mul_f32(square, set_f32(-0.5f)), rest = fused(mul_f32(square, f), p, lost);
    const vf32 product = mul_f32(f, b0), product_low = fused(f, set_f32(b[1]), fused(f, b0, minus(product)));
    const vf32 whole = mul_f32(n, set_f32(a[0])), sum = add_f32(whole, product);
    const vf32 sum_low = add_f32(sub_f32(whole, sum), product), low = fused(n, set_f32(a[1]), product_low);
    return within_logarithm(x, add_f32(sum, add_f32(sum_low, fused(half, b0, fused(rest, b0, low)))));
}
MP_INLINE vf32 log2_quick(vf32 x, vu32 *doubt) {
    (void)doubt;
    return scaled_logarithm_quick(x, (const float[]){1.0f, 0.0f}, (const float[]){0x1.715476p+0f, 0x1.4ae0cp-26f});
}
MP_INLINE vf32 log10_quick(vf32 x, vu32 *doubt) {
    (void)doubt;
    return scaled_logarithm_quick(x, (const float[]){0x1.344p-2f, 0x1.3509f8p-18f},
                                  (const float[]){0x1.bcb7b2p-2f, -0x1.5b235ep-27f});
}

/* sin and cos of |x| < 2^10: x = n pi / 2 + r + low, with pi / 2 in four parts: of the first three, the products with n
 * are exact, and so are the first two differences. The result of quadrant n + `more`. */
MP_OUTLINED vf32 sine_quick(vf32 x, uint32_t more, vu32 *doubt) {
    const vu32 n = i32_from_f32(mul_f32(x, set_f32(0x1.45f306p-1f))), quadrant = add_u32(n, set_u32(more));
    const vf32 k = minus(f32_from_i32(n)), third = set_f32(0x1.444p-24f), one = set_f32(1.0f);
    const vf32 upper = fused(k, set_f32(0x1.fb4p-12f), fused(k, set_f32(0x1.92p+0f), x));
    const vf32 r = fused(k, third, upper);
    const vf32 low = fused(k, set_f32(0x1.68c234p-39f), fused(k, third, sub_f32(upper, r)));
    const vf32 z = mul_f32(r, r), half = fused(z, set_f32(-0.5f), one);
    vf32 s = set_f32(-0x1.994232p-13f);
    s = fused(s, z, set_f32(0x1.110736p-7f));
    s = fused(s, z, set_f32(-0x1.555546p-3f));
    const vf32 sine = with_sign_of(r, add_f32(r, fused(mul_f32(r, z), s, mul_f32(low, half))));
    vf32 c = set_f32(0x1.9a00dap-16f);
    c = fused(c, z, set_f32(-0x1.6c0c86p-10f));
    c = fused(c, z, set_f32(0x1.55554ap-5f));
    const vf32 error = fused(minus(r), low, fused(z, set_f32(-0.5f), sub_f32(one, half)));
    const vf32 cosine = add_f32(half, fused(mul_f32(z, z), c, error));
    const vmask odd = gt_i32(and_u32(quadrant, set_u32(1)), set_u32(0));
    *doubt = select_u32(lt_f32(magnitude_of(x), set_f32(0x1p10f)), *doubt, set_u32(1));
    const vu32 sign = shl_u32(and_u32(quadrant, set_u32(2)), 30);
    return as_f32(xor_u32(as_u32(select_f32(odd, cosine, sine)), sign));
}
MP_INLINE vf32 sin_quick(vf32 x, vu32 *doubt) { return sine_quick(x, 0, doubt); }
MP_INLINE vf32 cos_quick(vf32 x, vu32 *doubt) { return sine_quick(x, 1, doubt); }

/* atan as in arctan_in_double, with a = 1 for 1/2 <= |x| <= 2: |z| <= 1/2. z is num / den, of an exact num and a den in
 * two parts; z is corrected by its residual. */
MP_INLINE vf32 arctan_quick(vf32 x, vu32 *doubt) {
    const vf32 u = magnitude_of(x), one = set_f32(1.0f), zero = set_f32(0.0f), angle = set_f32(0x1.921fb6p-1f);
    const vmask large = lt_f32(set_f32(2.0f), u), small = lt_f32(u, set_f32(0.5f));
    const vf32 more = add_f32(u, one), back = sub_f32(more, u);
    const vf32 lost = add_f32(sub_f32(one, back), sub_f32(u, sub_f32(more, back))); /* Knuth's two-sum */
    const vf32 num = select_f32(large, set_f32(-1.0f), select_f32(small, u, sub_f32(u, one)));
    const vf32 den = select_f32(large, u, select_f32(small, one, more));
    const vf32 den_low = select_f32(large, zero, select_f32(small, zero, lost));
    const vf32 base = select_f32(large, add_f32(angle, angle), select_f32(small, zero, angle));
    const vf32 r = div_f32(one, den), z = mul_f32(num, r), w = mul_f32(z, z);
    const vf32 z_low = mul_f32(r, fused(minus(z), den_low, fused(minus(z), den, num)));
    vf32 p = set_f32(0x1.3d2422p-5f);
    p = fused(p, w, set_f32(-0x1.470014p-4f));
    p = fused(p, w, set_f32(0x1.c022ccp-4f));
    p = fused(p, w, set_f32(-0x1.244ab2p-3f));
    p = fused(p, w, set_f32(0x1.9996ecp-3f));
    p = fused(p, w, set_f32(-0x1.555552p-2f));
    const vf32 sum = add_f32(base, z), sum_low = add_f32(sub_f32(base, sum), z);
    const vf32 low = fused(base, set_f32(-0x1.de12cap-26f), fused(mul_f32(z, w), p, z_low));
    (void)doubt;
    return with_sign_of(x, add_f32(sum, add_f32(sum_low, low)));
}
