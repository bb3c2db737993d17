/* Scales and zero points from ranges. A scale is 1 if the range is [0, 0], else at least the smallest positive float,
 * 2^-149.
 *
 * The first pass assumes that all scales are normal numbers, and their products with the largest code finite. If one is
 * not, a second pass runs with `strict`. It changes some scales to the next float: the next larger one if the scale was
 * rounded down so much that an end of the range is more than half a code beyond the codes; the next smaller one if its
 * product with the largest code is infinite (symmetric scales only). The second pass reads the ranges again, so scales
 * must not overwrite them. */

/* Bits of the smallest normal float; key_of_scale is at most ORDINARY for scales from there to 2^112, else larger. */
enum { SMALLEST_NORMAL = 1 << 23, ORDINARY = 238 << 23 };

MP_INLINE vu32 key_of_scale(vf32 scale) { return sub_u32(as_u32(scale), set_u32(SMALLEST_NORMAL)); }
MP_INLINE vf32 next_float(vf32 scale, uint32_t difference) {
    return as_f32(add_u32(as_u32(scale), set_u32(difference)));
}

/* The scale of a range: at least 2^-149, or 1 if the range is empty. */
MP_INLINE vf32 positive(vf32 scale, vf32 range) {
    return select_f32(lt_f32(set_f32(0.0f), range), max_f32(scale, set_f32(0x1p-149f)), set_f32(1.0f));
}

MP_INLINE int symmetric_pass(const float *restrict amax, ptrdiff_t n, float largest, float *restrict scale,
                             const int strict) {
    /* The largest quotient that is rounded to the largest code; larger ones are clamped. */
    const float limit = largest + (largest == 448.0f ? 16.0f : largest == 57344.0f ? 4096.0f : 0.5f);
    vu32 key = set_u32(0);
    for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
        const ptrdiff_t left = at_most(n - j, MP_LANES);
        const vf32 a = loadn_f32(amax + j, left);
        vf32 s = positive(div_f32(a, set_f32(largest)), a);
        if (strict) {
            s = select_f32(lt_f32(set_f32(limit), div_f32(a, s)), next_float(s, 1), s);
            s = select_f32(lt_f32(mul_f32(s, set_f32(largest)), set_f32(INFINITY)), s, next_float(s, (uint32_t)-1));
        }
        key = max_u32(key, key_of_scale(s));
        storen_f32(scale + j, s, left);
    }
    return top_u32(key) > ORDINARY;
}

static void symmetric_scales(const float *restrict amax, ptrdiff_t n, float largest, float *restrict scale) {
    if (symmetric_pass(amax, n, largest, scale, 0)) symmetric_pass(amax, n, largest, scale, 1);
}

MP_INLINE vu32 zeros_of(vf32 lo, vf32 scale, vf32 low, vf32 high) {
    return i32_from_f32(min_f32(max_f32(sub_f32(low, div_f32(lo, scale)), low), high));
}

/* scale = (hi - lo) / (qmax - qmin), zero_point = round(clamp(qmin - lo / scale)): ONNX DynamicQuantizeLinear. If hi -
 * lo overflows, hi and lo are divided first. */
MP_INLINE int asymmetric_pass(const float *restrict lo, const float *restrict hi, ptrdiff_t n, int32_t qmin,
                              int32_t qmax, float *restrict scale, int32_t *restrict zero_point, const int strict) {
    const vf32 low = set_f32((float)qmin), high = set_f32((float)qmax), codes = set_f32((float)(qmax - qmin));
    vu32 key = set_u32(0);
    for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
        const ptrdiff_t left = at_most(n - j, MP_LANES);
        const vf32 a = loadn_f32(lo + j, left), b = loadn_f32(hi + j, left), spread = sub_f32(b, a);
        const vf32 parts = sub_f32(div_f32(b, codes), div_f32(a, codes));
        const vf32 whole = select_f32(lt_f32(spread, set_f32(INFINITY)), div_f32(spread, codes), parts);
        vf32 s = positive(whole, spread);
        if (strict) {
            const vf32 zero = f32_from_i32(zeros_of(a, s, low, high));
            const vf32 above = sub_f32(add_f32(div_f32(b, s), zero), high),
                       below = sub_f32(low, add_f32(div_f32(a, s), zero));
            const vf32 beyond = select_f32(lt_f32(s, set_f32(0x1p-126f)), max_f32(above, below), set_f32(0.0f));
            s = select_f32(lt_f32(set_f32(0.5f), beyond), next_float(s, 1), s);
        }
        key = max_u32(key, key_of_scale(s));
        storen_f32(scale + j, s, left);
        storen_u32((uint32_t *)zero_point + j, zeros_of(a, s, low, high), left);
    }
    return top_u32(key) > ORDINARY;
}

static void asymmetric_scales(const float *restrict lo, const float *restrict hi, ptrdiff_t n, int32_t qmin,
                              int32_t qmax, float *restrict scale, int32_t *restrict zero_point) {
    if (asymmetric_pass(lo, hi, n, qmin, qmax, scale, zero_point, 0))
        asymmetric_pass(lo, hi, n, qmin, qmax, scale, zero_point, 1);
}
