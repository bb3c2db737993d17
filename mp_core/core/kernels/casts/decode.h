/* From a packed group to what is multiplied: step S of the 16 groups in `word`, exactly. S is a constant.
 * wide_part_*: the element S, in f32. pair_part_*: the elements 2 S and 2 S + 1, in bf16, the first in the low half. */

APART vf32 wide_part_bf16(vu32 word, const int s) {
    return as_f32(s ? and_u32(word, set_u32(0xFFFF0000u)) : shl_u32(word, 16));
}

APART vf32 wide_part_i8(vu32 word, const int s) { return f32_from_i32(sar_u32(shl_u32(word, 24 - 8 * s), 24)); }

/* Element e of eight int4: the even ones lie in the lower 16 bits, the odd ones in the upper. */
APART vf32 wide_part_i4(vu32 word, const int s) {
    return f32_from_i32(sar_u32(shl_u32(word, 28 - (s / 2 * 4 + s % 2 * 16)), 28));
}

/* Numbers of at most 8 significant bits: their f32 ends in 16 zeros. */
V vu32 as_pair(vf32 first, vf32 second) {
    return or_u32(shr_u32(as_u32(first), 16), and_u32(as_u32(second), set_u32(0xFFFF0000u)));
}

#ifdef MP_NATIVE_F8_PAIRS
APART vu32 pair_part_e4m3fn(vu32 word, const int s) { return pair_from_e4m3fn(word, s); }
APART vu32 pair_part_e5m2(vu32 word, const int s) { return pair_from_e5m2(word, s); }
APART vf32 wide_part_e4m3fn(vu32 word, const int s) { return wide_part_bf16(pair_from_e4m3fn(word, s / 2), s % 2); }
APART vf32 wide_part_e5m2(vu32 word, const int s) { return wide_part_bf16(pair_from_e5m2(word, s / 2), s % 2); }
#else
APART vf32 wide_part_e4m3fn(vu32 word, const int s) { return f32_of_e4m3fn(shr_u32(word, 8 * s)); }
APART vf32 wide_part_e5m2(vu32 word, const int s) { return widen_ieee(shr_u32(word, 8 * s), 5, 2); }
APART vu32 pair_part_e4m3fn(vu32 word, const int s) {
    return as_pair(wide_part_e4m3fn(word, 2 * s), wide_part_e4m3fn(word, 2 * s + 1));
}
APART vu32 pair_part_e5m2(vu32 word, const int s) {
    return as_pair(wide_part_e5m2(word, 2 * s), wide_part_e5m2(word, 2 * s + 1));
}
#endif

#ifdef MP_NATIVE_I8_PAIRS
APART vu32 pair_part_i8(vu32 word, const int s) { return pair_from_i8(word, s); }
#else
APART vu32 pair_part_i8(vu32 word, const int s) {
    return as_pair(wide_part_i8(word, 2 * s), wide_part_i8(word, 2 * s + 1));
}
#endif

#ifdef MP_NATIVE_I4_PAIRS
APART vu32 pair_part_i4(vu32 word, const int s) { return pair_from_i4(shr_u32(word, 4 * s)); }
#else
APART vu32 pair_part_i4(vu32 word, const int s) {
    return as_pair(wide_part_i4(word, 2 * s), wide_part_i4(word, 2 * s + 1));
}
#endif
