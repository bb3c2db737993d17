/* Pairs flush a result that is below 2^-126 after rounding to 24 bits, as MXCSR does. A processor that decides before
 * rounding (environment.h, MP_WATCHES_FLUSHING) also flushes results that would round up to 2^-126. These are detected
 * by the same operation on operands 2^24 times as large: its result is exactly 2^-102, and is not flushed. If it
 * overflows, the result is not small. (A sum of two floats needs no such test: below 2^-126 it is exact.) */
#ifdef MP_WATCHES_FLUSHING

MP_INLINE vf32 flushed_after_rounding(vf32 result, vf32 scaled) {
    const vu32 bits = as_u32(scaled), magnitude = and_u32(bits, set_u32(0x7FFFFFFF));
    const vmask smallest = gt_i32(set_u32(1), xor_u32(magnitude, set_u32((127 - 102) << 23)));
    const vu32 restored = or_u32(xor_u32(bits, magnitude) /* sign */, set_u32(1 << 23));
    return as_f32(select_u32(smallest, restored, as_u32(result)));
}

MP_INLINE vf32 mul_flushing(vf32 x, vf32 y) {
    return flushed_after_rounding(mul_f32(x, y), mul_f32(mul_f32(x, set_f32(0x1p24f)), y));
}
MP_INLINE vf32 fma_flushing(vf32 x, vf32 y, vf32 z) {
    const vf32 up = set_f32(0x1p24f);
    return flushed_after_rounding(fma_f32(x, y, z), fma_f32(mul_f32(x, up), y, mul_f32(z, up)));
}

#else
#define mul_flushing mul_f32
#define fma_flushing fma_f32
#endif
