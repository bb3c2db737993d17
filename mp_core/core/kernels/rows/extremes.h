/* The smaller and the larger number of two; NaN where one of them is NaN. If both are equal, their bits differ only in
 * the sign of zeros, of which the smaller one is -0. The larger one is minus the smaller one of both with the other
 * sign. */
MP_INLINE vf32 smaller_f32(vf32 x, vf32 y) { return as_f32(or_u32(as_u32(min_f32(x, y)), as_u32(min_f32(y, x)))); }
MP_INLINE vf32 larger_f32(vf32 x, vf32 y) {
    const vu32 sign = set_u32(0x80000000u);
    const vf32 least = smaller_f32(as_f32(xor_u32(as_u32(x), sign)), as_f32(xor_u32(as_u32(y), sign)));
    return as_f32(xor_u32(as_u32(least), sign));
}
