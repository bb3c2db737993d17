/* The smaller and the larger of two numbers; NaN if one of them is NaN. Equal numbers have different bits only if they
 * are zeros; then -0 is the smaller one. The larger of x and y is minus the smaller of -x and -y. */
MP_INLINE vf32 smaller_f32(vf32 x, vf32 y) { return as_f32(or_u32(as_u32(min_f32(x, y)), as_u32(min_f32(y, x)))); }
MP_INLINE vf32 larger_f32(vf32 x, vf32 y) {
    const vu32 sign = set_u32(0x80000000u);
    const vf32 least = smaller_f32(as_f32(xor_u32(as_u32(x), sign)), as_f32(xor_u32(as_u32(y), sign)));
    return as_f32(xor_u32(as_u32(least), sign));
}
