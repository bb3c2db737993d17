/* Decode packed groups of narrow elements, exactly. Each lane of `word` is a group (2 bf16, 4 8-bit or 8 4-bit
 * elements); s is a constant.
 *   wide_part_*(word, s)  element s of each group, as f32
 *   pair_part_*(word, s)  elements 2 s and 2 s + 1 of each group, as two bf16, the first in the low half of the lane */

MP_OUTLINED vf32 wide_part_bf16(vu32 word, const int s) {
    return as_f32(s ? and_u32(word, set_u32(0xFFFF0000u)) : shl_u32(word, 16));
}

MP_OUTLINED vf32 wide_part_i8(vu32 word, const int s) { return f32_from_i32(sar_u32(shl_u32(word, 24 - 8 * s), 24)); }

/* Eight int4: elements 0, 2, 4, 6 are in the low half of the lane, 1, 3, 5, 7 in the high half. */
MP_OUTLINED vf32 wide_part_i4(vu32 word, const int s) {
    return f32_from_i32(sar_u32(shl_u32(word, 28 - (s / 2 * 4 + s % 2 * 16)), 28));
}

/* e2m1 in the low four bits of each lane. */
#ifndef MP_NATIVE_F4
MP_INLINE vf32 f32_from_f4(vu32 x) { return widen_code(x, 2, 1); }
#endif

/* Two f32 as a pair of bf16, exactly: they have at most 8 significant bits, so their low 16 bits are zero. */
MP_INLINE vu32 as_pair(vf32 first, vf32 second) {
    return or_u32(shr_u32(as_u32(first), 16), and_u32(as_u32(second), set_u32(0xFFFF0000u)));
}

#ifdef MP_NATIVE_F8_PAIRS
MP_OUTLINED vu32 pair_part_e4m3fn(vu32 word, const int s) { return pair_from_e4m3fn(word, s); }
MP_OUTLINED vu32 pair_part_e5m2(vu32 word, const int s) { return pair_from_e5m2(word, s); }
MP_OUTLINED vf32 wide_part_e4m3fn(vu32 word, const int s) {
    return wide_part_bf16(pair_from_e4m3fn(word, s / 2), s % 2);
}
MP_OUTLINED vf32 wide_part_e5m2(vu32 word, const int s) { return wide_part_bf16(pair_from_e5m2(word, s / 2), s % 2); }
#else
#ifdef MP_NATIVE_E4M3FN_WORDS
MP_OUTLINED vf32 wide_part_e4m3fn(vu32 word, const int s) {
    return wide_part_bf16(pair_of_e4m3fn(word, s % 2), s / 2);
}
#else
MP_OUTLINED vf32 wide_part_e4m3fn(vu32 word, const int s) { return f32_of_e4m3fn(shr_u32(word, 8 * s)); }
#endif
MP_OUTLINED vf32 wide_part_e5m2(vu32 word, const int s) { return widen_ieee(shr_u32(word, 8 * s), 5, 2); }
MP_OUTLINED vu32 pair_part_e4m3fn(vu32 word, const int s) {
    return as_pair(wide_part_e4m3fn(word, 2 * s), wide_part_e4m3fn(word, 2 * s + 1));
}
MP_OUTLINED vu32 pair_part_e5m2(vu32 word, const int s) {
    return as_pair(wide_part_e5m2(word, 2 * s), wide_part_e5m2(word, 2 * s + 1));
}
#endif

#ifdef MP_NATIVE_I8_PAIRS
MP_OUTLINED vu32 pair_part_i8(vu32 word, const int s) { return pair_from_i8(word, s); }
#else
MP_OUTLINED vu32 pair_part_i8(vu32 word, const int s) {
    return as_pair(wide_part_i8(word, 2 * s), wide_part_i8(word, 2 * s + 1));
}
#endif

#ifdef MP_NATIVE_I4_PAIRS
MP_OUTLINED vu32 pair_part_i4(vu32 word, const int s) { return pair_from_i4(shr_u32(word, 4 * s)); }
#else
MP_OUTLINED vu32 pair_part_i4(vu32 word, const int s) {
    return as_pair(wide_part_i4(word, 2 * s), wide_part_i4(word, 2 * s + 1));
}
#endif

/* Eight e2m1, in the order of eight int4. */
#ifdef MP_NATIVE_F4_WORDS
MP_OUTLINED vu32 pair_part_f4(vu32 word, const int s) { return pair_of_f4(word, s); }
MP_OUTLINED vf32 wide_part_f4(vu32 word, const int s) { return wide_part_bf16(pair_of_f4(word, s / 2), s % 2); }
#else
#ifndef MP_NATIVE_F4_PAIRS
MP_INLINE vu32 pair_from_f4(vu32 x) { return as_pair(f32_from_f4(x), f32_from_f4(shr_u32(x, 16))); }
#endif
MP_OUTLINED vu32 pair_part_f4(vu32 word, const int s) { return pair_from_f4(shr_u32(word, 4 * s)); }
MP_OUTLINED vf32 wide_part_f4(vu32 word, const int s) { return f32_from_f4(shr_u32(word, s / 2 * 4 + s % 2 * 16)); }
#endif

/* Eight int4 with zero points. In u, a code q is q + 8, which is unsigned. `zero` is a word of mp_zero_words: the sum
 * of both has no carry from one element to the next. */
MP_INLINE vu32 u_of_i4(vu32 word) { return xor_u32(word, set_u32(0x88888888u)); }

/* Four e2m1, each in the low bits of a byte whose other bits are 0: twice their value, plus 12. For the three bits m
 * below the sign, twice the magnitude is m up to 4, then 6, 8, 12: m + (m & 3), and 2 more for the last. */
#ifndef MP_NATIVE_F4_BYTES
MP_INLINE vu32 bytes_from_f4(vu32 code) {
    const vu32 ones = set_u32(0x01010101u), m = and_u32(code, set_u32(0x07070707u));
    const vu32 above = and_u32(shr_u32(code, 2), ones), low = and_u32(m, or_u32(above, shl_u32(above, 1)));
    const vu32 last = and_u32(and_u32(low, shr_u32(low, 1)), ones), sign = and_u32(shr_u32(code, 3), ones);
    const vu32 magnitude = add_u32(add_u32(m, low), shl_u32(last, 1));
    const vu32 negative = and_u32(magnitude, sub_u32(shl_u32(sign, 8), sign)); /* those whose sign is set */
    return sub_u32(add_u32(set_u32(0x0C0C0C0Cu), magnitude), shl_u32(negative, 1));
}
#endif

/* q + 8 as bytes, of the four int4 from bits 4 s, 4 s + 8, 4 s + 16 and 4 s + 24 on: elements 0, 4, 1, 5 or, if s is 1,
 * 2, 6, 3, 7. */
MP_INLINE vu32 half_of_u4(vu32 word, const int s) {
    const vu32 u = u_of_i4(word);
    return and_u32(s ? shr_u32(u, 4) : u, set_u32(0x0F0F0F0Fu));
}

/* Likewise of e2m1. */
MP_INLINE vu32 half_of_f4(vu32 word, const int s) {
    return bytes_from_f4(and_u32(s ? shr_u32(word, 4) : word, set_u32(0x0F0F0F0Fu)));
}

/* The same minus zero points: q - zero_point + 16. All parts of a word are made of the sums of its two halves. */
MP_INLINE vu32 less_zero_bytes(vu32 word, vu32 zero, const int s) { return add_u32(half_of_u4(word, s), zero); }

#ifndef MP_NATIVE_U5
MP_INLINE vf32 f32_from_u5(vu32 x) { return f32_from_i32(sub_u32(and_u32(x, set_u32(31)), set_u32(16))); }
MP_INLINE vu32 pair_from_u5(vu32 x) { return as_pair(f32_from_u5(x), f32_from_u5(shr_u32(x, 16))); }
#endif

#ifndef MP_NATIVE_U4_QUADS
MP_INLINE vu32 quad_from_u4(vu32 word, const int s) {
    const vu32 x = shr_u32(word, 8 * s);
    const vu32 bytes = or_u32(and_u32(x, set_u32(0xFF)), and_u32(shr_u32(x, 8), set_u32(0xFF00)));
    return or_u32(and_u32(bytes, set_u32(0x0F0F)), and_u32(shl_u32(bytes, 12), set_u32(0x0F0F0000)));
}
#endif

/* Part number `part` of eight int4 minus zero points: one element as f32 (wide), two as bf16 (pairs) or four as bytes
 * (quads). F4, only in quads: four bytes of twice their value. */
MP_INLINE vf32 wide_less_zero(vu32 word, vu32 zero, const int part) {
    return f32_from_u5(shr_u32(less_zero_bytes(word, zero, part / 2 % 2), part / 4 * 8 + part % 2 * 16));
}
MP_INLINE vu32 pair_less_zero(vu32 word, vu32 zero, const int part) {
    return pair_from_u5(shr_u32(less_zero_bytes(word, zero, part % 2), part / 2 * 8));
}
MP_INLINE vu32 less_zero(vu32 word, vu32 zero, const mp_arithmetic arithmetic, const mp_format format, const int part) {
    if (arithmetic == MP_WIDE) return as_u32(wide_less_zero(word, zero, part));
    if (arithmetic == MP_PAIRS) return pair_less_zero(word, zero, part);
    const vu32 u = format == MP_F4 ? bytes_from_f4(quad_from_u4(word, part)) : quad_from_u4(u_of_i4(word), part);
    return xor_u32(add_u32(u, zero), set_u32(0x80808080u));
}
