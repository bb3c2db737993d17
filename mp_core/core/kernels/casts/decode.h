/* Decode packed groups of narrow elements, exactly. Each lane of `word` holds one group (of 2 bf16, 4 8-bit or 8 int4
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
MP_OUTLINED vf32 wide_part_e4m3fn(vu32 word, const int s) { return f32_of_e4m3fn(shr_u32(word, 8 * s)); }
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

/* Part number `part` of eight int4, each less its zero point: one element as f32 (wide), two as bf16 (pairs) or four as
 * bytes (quads). In u, a code q is q + 8, which is unsigned. `zero` holds a word of mp_zero_words: no sum of the two
 * has a carry from one element to the next. */
#ifndef MP_NATIVE_I4_PAIRS
MP_INLINE vu32 pair_from_u5(vu32 halves) {
    const vu32 first = and_u32(halves, set_u32(0xFFFF)), second = shr_u32(halves, 16), base = set_u32(16);
    return as_pair(f32_from_i32(sub_u32(first, base)), f32_from_i32(sub_u32(second, base)));
}
#endif

#ifndef MP_NATIVE_U4_QUADS
MP_INLINE vu32 quad_from_u4(vu32 word, const int s) {
    const vu32 x = shr_u32(word, 8 * s);
    const vu32 bytes = or_u32(and_u32(x, set_u32(0xFF)), and_u32(shr_u32(x, 8), set_u32(0xFF00)));
    return or_u32(and_u32(bytes, set_u32(0x0F0F)), and_u32(shl_u32(bytes, 12), set_u32(0x0F0F0000)));
}
#endif

MP_INLINE vu32 less_zero_i4(vu32 word, vu32 zero, const mp_arithmetic arithmetic, const int part) {
    const vu32 u = xor_u32(word, set_u32(0x88888888u));
    if (arithmetic == MP_WIDE)
        return as_u32(f32_from_i32(add_u32(and_u32(shr_u32(u, part / 2 * 4 + part % 2 * 16), set_u32(15)), zero)));
    if (arithmetic == MP_PAIRS) return pair_from_u5(add_u32(and_u32(shr_u32(u, 4 * part), set_u32(0x000F000F)), zero));
    return xor_u32(add_u32(quad_from_u4(u, part), zero), set_u32(0x80808080u));
}
