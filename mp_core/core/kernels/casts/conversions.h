/* Conversions between f32 and the narrow formats, over vectors.
 *
 *            sign exponent mantissa  bias   codes above the largest finite value
 *   f32       1      8       23      127    Inf, NaN
 *   bf16      1      8        7      127    Inf, NaN (the upper half of f32)
 *   f16       1      5       10       15    Inf, NaN
 *   e5m2      1      5        2       15    Inf, NaN (the upper half of f16)
 *   e4m3fn    1      4        3        7    NaN (0x7F) only: overflow gives NaN, as in ml_dtypes
 */

MP_INLINE vf32 same_f32(vf32 x) { return x; }

/* Round to nearest even: add 0x7FFF (just less than half of the last kept bit), and 1 more if that bit is 1; then drop
 * the lower bits. NaN needs a case of its own: the addition would change 0x7FFFFFFF to -0. */
MP_INLINE vu16 bf16_from_f32(vf32 x) {
#ifdef MP_NATIVE_BF16 /* vcvtneps2bf16 does just this, but flushes subnormal numbers */
    if (!any_subnormal(x)) return bf16_of_normal(x);
#endif
    const vu32 u = as_u32(x), high = shr_u32(u, 16);
    const vu32 rounded = shr_u32(add_u32(u, add_u32(set_u32(0x7FFF), and_u32(high, set_u32(1)))), 16);
    const vmask nan = gt_i32(and_u32(u, set_u32(0x7FFFFFFF)), set_u32(0x7F800000));
    return narrow_u16(select_u32(nan, or_u32(high, set_u32(0x40) /* quiet */), rounded));
}

/* bf16_from_f32 for results of an arithmetic that flushes subnormal numbers: it does not test for them. */
MP_INLINE vu16 bf16_of_flushed(vf32 x) {
#ifdef MP_NATIVE_BF16
    return bf16_of_normal(x);
#else
    return bf16_from_f32(x);
#endif
}

/* A code of a sign, `exponent` and `mantissa` bits, in the low bits of each lane of u, to f32, exactly.
 *   normal      shift the fields to their place and add the difference of the biases to the exponent
 *   subnormal   m 2^(1 - bias - mantissa): put m into the mantissa of 2^(1 - bias), which gives 2^(1 - bias) + the
 *               number, and subtract 2^(1 - bias) */
MP_INLINE vf32 widen_code(vu32 u, const int exponent, const int mantissa) {
    const int shift = 23 - mantissa, bias = (1 << (exponent - 1)) - 1;
    const vu32 magnitude = and_u32(u, set_u32((1u << (exponent + mantissa)) - 1));
    const vu32 sign = shl_u32(and_u32(u, set_u32(1u << (exponent + mantissa))), 31 - exponent - mantissa);
    const vu32 smallest = set_u32((uint32_t)(128 - bias) << 23); /* 2^(1 - bias), the smallest normal number */
    const vu32 normal = add_u32(shl_u32(magnitude, shift), set_u32((uint32_t)(127 - bias) << 23));
    const vf32 tiny = sub_f32(as_f32(add_u32(shl_u32(magnitude, shift), smallest)), as_f32(smallest));
    const vmask is_tiny = gt_i32(set_u32(1u << mantissa), magnitude);
    return as_f32(or_u32(sign, select_u32(is_tiny, as_u32(tiny), normal)));
}

/* f32 to such a code, rounded to nearest even by one floating-point addition. For |x| in [2^e, 2^(e+1)) the value of
 * the format's last bit is 2^(e - mantissa). This is also the value of the last bit of an f32 in [2^E, 2^(E+1)), E = e
 * + 23 - mantissa. So |x| + 2^E is rounded to the format's last bit, and its low bits are |x| as a multiple of 2^(e -
 * mantissa). Below the smallest normal number e is 1 - bias, so that subnormal numbers need no case of their own.
 *     code = low bits + ((e + bias - 1) << mantissa),    since the leading bit of x in the low bits adds 1 << mantissa
 * The constant part of this is in the addend, together with 2^E; it is even, so ties still go to even. `limit` are the
 * bits of the smallest number that overflows: all numbers from it on, also Inf and NaN, get its code. */
MP_INLINE vu32 narrow_code(vf32 x, const int exponent, const int mantissa, const uint32_t limit) {
    const int shift = 23 - mantissa, bias = (1 << (exponent - 1)) - 1;
    const uint32_t lowest = (uint32_t)(128 - bias) << 23, magnitude = (1u << (exponent + mantissa)) - 1;
    const uint32_t constant = (0u - (lowest >> shift)) & magnitude;
    const vu32 u = as_u32(x), t = min_u32(and_u32(u, set_u32(0x7FFFFFFF)), set_u32(limit));
    const vu32 e = max_u32(and_u32(t, set_u32(0x7F800000)), set_u32(lowest));
    const vu32 addend = add_u32(e, set_u32(((uint32_t)shift << 23) + constant));
    const vu32 sum = as_u32(add_f32(as_f32(t), as_f32(addend)));
    const vu32 code = add_u32(sum, shr_u32(e, shift)), sign = shr_u32(u, 31 - exponent - mantissa);
    return or_u32(and_u32(code, set_u32(magnitude)), and_u32(sign, set_u32(magnitude + 1)));
}

/* widen_code, for formats with infinities: codes with the largest exponent are Inf and NaN; they get the largest
 * exponent of f32. */
MP_INLINE vf32 widen_ieee(vu32 u, const int exponent, const int mantissa) {
    const vf32 x = widen_code(u, exponent, mantissa);
    const uint32_t infinity = ((1u << exponent) - 1) << mantissa;
    const vmask special = gt_i32(and_u32(u, set_u32((1u << (exponent + mantissa)) - 1)), set_u32(infinity - 1));
    return as_f32(select_u32(special, or_u32(as_u32(x), set_u32(0x7F800000)), as_u32(x)));
}

/* narrow_code, for formats with infinities: overflow gives Inf, NaN a quiet NaN. */
MP_INLINE vu32 narrow_ieee(vf32 x, const int exponent, const int mantissa) {
    const uint32_t infinity = ((1u << exponent) - 1) << mantissa;
    const uint32_t limit = (uint32_t)(127 + (1 << (exponent - 1))) << 23;
    const vu32 code = narrow_code(x, exponent, mantissa, limit);
    const vmask nan = gt_i32(and_u32(as_u32(x), set_u32(0x7FFFFFFF)), set_u32(0x7F800000));
    return select_u32(nan, or_u32(code, set_u32(infinity | 1u << (mantissa - 1))), code);
}

/* A signalling NaN becomes quiet. */
MP_INLINE vf32 quiet_f32(vf32 x) {
    const vmask nan = gt_i32(and_u32(as_u32(x), set_u32(0x7FFFFFFF)), set_u32(0x7F800000));
    return as_f32(select_u32(nan, or_u32(as_u32(x), set_u32(0x7FC00000)), as_u32(x)));
}

/* The e4m3fn code in the low byte of each lane, to f32. */
MP_INLINE vf32 f32_of_e4m3fn(vu32 u) {
    const vf32 x = widen_code(u, 4, 3);
    const vmask nan = gt_i32(and_u32(u, set_u32(0x7F)), set_u32(0x7E));
    return as_f32(select_u32(nan, or_u32(as_u32(x), set_u32(0x7FC00000)), as_u32(x)));
}

MP_INLINE vu8 e4m3fn_from_f32(vf32 x) { return narrow_u8(narrow_code(x, 4, 3, 0x43F00000 /* 480, the code of NaN */)); }

#ifdef MP_NATIVE_F16

/* e5m2 is the upper half of f16. The low seven bits of e4m3fn, shifted left by 7, are an f16 of 2^-8 times the value,
 * also for subnormal numbers: the biases are 15 and 7. */
MP_INLINE vf32 f32_from_e5m2(vu8 h) { return f32_from_f16(shl_u16(u16_from_u8(h), 8)); }

/* x is rounded by an addition as in narrow_code, here of 1.5 * 2^E, which is right for both signs of x. Then this is
 * subtracted again. The difference is exact in f16, whose conversion handles overflow and NaN. Only the sign of a zero
 * is lost, and set again. */
MP_INLINE vu8 e5m2_from_f32(vf32 x) {
    const vu32 sign = and_u32(as_u32(x), set_u32(0x80000000u)), exponent = and_u32(as_u32(x), set_u32(0x7F800000));
    const vu32 e = min_u32(max_u32(exponent, set_u32(113u << 23)), set_u32(143u << 23)); /* 2^-14 to 2^16 */
    const vf32 addend = as_f32(add_u32(e, set_u32((21u << 23) + (1u << 22))));
    const vf32 rounded = sub_f32(add_f32(x, addend), addend);
    return high_u8(f16_from_f32(as_f32(or_u32(as_u32(rounded), sign))));
}

MP_INLINE vf32 f32_from_e4m3fn(vu8 h) {
    const vu16 u = u16_from_u8(h), t = and_u16(u, set_u16(0x7F)), sign = shl_u16(and_u16(u, set_u16(0x80)), 8);
    const vf32 x = mul_f32(f32_from_f16(or_u16(sign, shl_u16(t, 7))), set_f32(256.0f));
    return as_f32(select_u32(eq_u16(t, set_u16(0x7F)), or_u32(as_u32(x), set_u32(0x7FC00000)), as_u32(x)));
}

#else

MP_INLINE vf32 f32_from_f16(vu16 h) { return quiet_f32(widen_ieee(widen_u16(h), 5, 10)); }
MP_INLINE vf32 load_f16_as_f32(const void *p) { return f32_from_f16(load_u16(p)); }
MP_INLINE vu16 f16_from_f32(vf32 x) { return narrow_u16(narrow_ieee(x, 5, 10)); }
MP_INLINE vf32 f32_from_e5m2(vu8 h) { return quiet_f32(widen_ieee(widen_u8(h), 5, 2)); }
MP_INLINE vu8 e5m2_from_f32(vf32 x) { return narrow_u8(narrow_ieee(x, 5, 2)); }
MP_INLINE vf32 f32_from_e4m3fn(vu8 h) { return f32_of_e4m3fn(widen_u8(h)); }

#endif

/* The 16 elements at p as f32, like load_f16_as_f32. */
MP_INLINE vf32 load_bf16_as_f32(const void *p) { return f32_from_bf16(load_u16(p)); }
MP_INLINE vf32 load_e4m3fn_as_f32(const void *p) { return f32_from_e4m3fn(load_u8(p)); }
MP_INLINE vf32 load_e5m2_as_f32(const void *p) { return f32_from_e5m2(load_u8(p)); }

/* x clamped to [-limit, limit]; NaN stays NaN. */
MP_INLINE vf32 clamp_f32(vf32 x, vf32 limit) { return min_f32(limit, max_f32(sub_f32(set_f32(-0.0f), limit), x)); }
