/* The words for products on AArch64: sums of products of bytes, and factors. Included by neon.h. */

/* Bytes 0 and 2, then 1 and 3, widened to 16 bits, whose products are exact in 32. Each 64-bit half of z
 * gets two 32-bit sums, each of four products. */
#ifndef MP_NATIVE_DOTPROD /* neon_dotprod.h */
MP_INLINE uint32x4_t dot_bytes(uint32x4_t z, uint32x4_t x, uint32x4_t y) {
    const int16x8_t x_even = (int16x8_t)(x & 0x00FF00FFu), x_odd = (int16x8_t)((uint16x8_t)x >> 8);
    const int16x8_t y_even = (int16x8_t)((uint16x8_t)y << 8) >> 8, y_odd = (int16x8_t)y >> 8;
    const int32x4_t low
        = vmlal_s16(vmull_s16(vget_low_s16(x_even), vget_low_s16(y_even)), vget_low_s16(x_odd), vget_low_s16(y_odd));
    const int32x4_t high = vmlal_high_s16(vmull_high_s16(x_even, y_even), x_odd, y_odd);
    return vaddq_u32(z, (uint32x4_t)vpaddq_s32(low, high));
}
#else
MP_INLINE uint32x4_t dot_signed(uint32x4_t z, uint32x4_t x, uint32x4_t y) {
    return (uint32x4_t)vdotq_s32((int32x4_t)z, (int8x16_t)x, (int8x16_t)y);
}
#define MP_NATIVE_S8
MP_INLINE vu32 dot_s8s8(vu32 z, vu32 x, vu32 y) {
    return (vu32){dot_signed(z.a, x.a, y.a), dot_signed(z.b, x.b, y.b), dot_signed(z.c, x.c, y.c),
                  dot_signed(z.d, x.d, y.d)};
}
#ifdef MP_NATIVE_I8MM /* neon_bf16.h */
MP_INLINE uint32x4_t dot_bytes(uint32x4_t z, uint32x4_t x, uint32x4_t y) {
    return (uint32x4_t)vusdotq_s32((int32x4_t)z, (uint8x16_t)x, (int8x16_t)y);
}
#else /* x = (x - 128) + 64 + 64 */
MP_INLINE uint32x4_t dot_bytes(uint32x4_t z, uint32x4_t x, uint32x4_t y) {
    const uint32x4_t half = vdupq_n_u32(0x40404040u);
    return dot_signed(dot_signed(dot_signed(z, veorq_u32(x, vdupq_n_u32(0x80808080u)), y), half, y), half, y);
}
#endif
#endif
MP_INLINE vu32 dot_u8s8(vu32 z, vu32 x, vu32 y) {
    return (vu32){dot_bytes(z.a, x.a, y.a), dot_bytes(z.b, x.b, y.b), dot_bytes(z.c, x.c, y.c),
                  dot_bytes(z.d, x.d, y.d)};
}

/* Factors: one operand of a multiplication may be a lane of a register, so it need not be copied to all lanes. `ldr s`
 * and `fmov s` do not use the arithmetic pipes of the multiplications; `ld1r` and `dup`, which compilers would choose,
 * do. */
#define MP_NATIVE_FACTORS
typedef struct { float32x2_t word, even; } factor; /* in lane 0; even: the even element of a pair, if the two are
                                                      multiplied one by one */
typedef struct { char bytes[4]; } one_word; /* of any type, at any address */
MP_INLINE float32x2_t word_at(const void *p) {
    float32x2_t x;
    __asm__("ldr %s0, %1" : "=w"(x) : "m"(*(const one_word *)p));
    return x;
}
MP_INLINE float32x2_t word_of(uint32_t bits) {
    float32x2_t x;
    __asm__("fmov %s0, %w1" : "=w"(x) : "r"(bits));
    return x;
}
#define MP_BY_FACTOR(R, OP, Z, X, Y) \
    ((R){OP((Z).a, (Y).a, X), OP((Z).b, (Y).b, X), OP((Z).c, (Y).c, X), OP((Z).d, (Y).d, X)})
MP_INLINE float32x4_t fma_word(float32x4_t z, float32x4_t y, float32x2_t x) { return vfmaq_lane_f32(z, y, x, 0); }
MP_INLINE factor wide_factor(const void *p) { return (factor){.word = word_at(p)}; }
MP_INLINE vf32 fma_factor(vf32 z, factor x, vf32 y) { return MP_BY_FACTOR(vf32, fma_word, z, x.word, y); }

#ifdef MP_NATIVE_BFMLAL /* neon_bf16.h */
MP_INLINE factor pair_factor(const void *p) { return (factor){.word = word_at(p)}; }
/* In assembly: for the intrinsics, GCC 12 would use registers that the instruction cannot encode. */
MP_INLINE float32x4_t fma_pair(float32x4_t z, uint32x4_t y, float32x2_t x) {
    __asm__("bfmlalt %0.4s, %1.8h, %2.h[1]\n\tbfmlalb %0.4s, %1.8h, %2.h[0]" : "+&w"(z) : "w"(y), "x"(x));
    return z;
}
MP_INLINE vf32 dot_bf16_factor(vf32 z, factor x, vu32 y) { return MP_BY_FACTOR(vf32, fma_pair, z, x.word, y); }
#else
MP_INLINE factor pair_factor(const void *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return (factor){.word = word_of(bits & 0xFFFF0000u), .even = word_of(bits << 16)};
}
MP_INLINE vf32 dot_bf16_factor(vf32 z, factor x, vu32 y) {
    const vf32 odd = as_f32(and_u32(y, set_u32(0xFFFF0000u))), even = as_f32(shl_u32(y, 16));
    const vf32 sum = MP_BY_FACTOR(vf32, fma_word, z, x.word, odd);
    return MP_BY_FACTOR(vf32, fma_word, sum, x.even, even);
}
#endif

MP_INLINE factor quad_factor(const void *p, uint32_t flip) {
    if (!flip) return (factor){.word = word_at(p)};
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return (factor){.word = word_of(bits ^ flip)};
}
#ifdef MP_NATIVE_I8MM
#define MP_NATIVE_OCTS
typedef int8x16_t two_octs;
MP_INLINE two_octs load_octs(const void *p, const void *q) { return vcombine_s8(vld1_s8(p), vld1_s8(q)); }
#define MP_MMLA(MMLA, T, Z, X, Y) ((uint32x4_t)MMLA((int32x4_t)(Z), (T)(X), (int8x16_t)(Y)))
#define MP_FOUR_MMLA(MMLA, T, Z, X, Y) \
    ((vu32){MP_MMLA(MMLA, T, (Z).a, X, (Y).a), MP_MMLA(MMLA, T, (Z).b, X, (Y).b), \
            MP_MMLA(MMLA, T, (Z).c, X, (Y).c), MP_MMLA(MMLA, T, (Z).d, X, (Y).d)})
MP_INLINE vu32 dot_octs_s8(vu32 z, two_octs x, vu32 y) { return MP_FOUR_MMLA(vmmlaq_s32, int8x16_t, z, x, y); }
MP_INLINE vu32 dot_octs_u8(vu32 z, two_octs x, vu32 y) { return MP_FOUR_MMLA(vusmmlaq_s32, uint8x16_t, z, x, y); }
MP_INLINE uint32x4_t zip1_octs(uint32x4_t x, uint32x4_t y) {
    return (uint32x4_t)vzip1q_u64((uint64x2_t)x, (uint64x2_t)y);
}
MP_INLINE uint32x4_t zip2_octs(uint32x4_t x, uint32x4_t y) {
    return (uint32x4_t)vzip2q_u64((uint64x2_t)x, (uint64x2_t)y);
}
MP_INLINE vu32 zip_words(vu32 x, vu32 y, const int s) {
    if (s) return (vu32){vzip1q_u32(x.c, y.c), vzip2q_u32(x.c, y.c), vzip1q_u32(x.d, y.d), vzip2q_u32(x.d, y.d)};
    return (vu32){vzip1q_u32(x.a, y.a), vzip2q_u32(x.a, y.a), vzip1q_u32(x.b, y.b), vzip2q_u32(x.b, y.b)};
}
MP_INLINE vu32 zip_octs(vu32 x, vu32 y, const int s) {
    if (s) return (vu32){zip1_octs(x.c, y.c), zip2_octs(x.c, y.c), zip1_octs(x.d, y.d), zip2_octs(x.d, y.d)};
    return (vu32){zip1_octs(x.a, y.a), zip2_octs(x.a, y.a), zip1_octs(x.b, y.b), zip2_octs(x.b, y.b)};
}
MP_INLINE vu32 unzip_octs(vu32 x, vu32 y, const int s) {
    if (s) return (vu32){zip2_octs(x.a, x.b), zip2_octs(x.c, x.d), zip2_octs(y.a, y.b), zip2_octs(y.c, y.d)};
    return (vu32){zip1_octs(x.a, x.b), zip1_octs(x.c, x.d), zip1_octs(y.a, y.b), zip1_octs(y.c, y.d)};
}
#define MP_FEW_ROWS_RECODED_QUADS {[MP_I8] = 12}
#endif

MP_INLINE vu32 words_of(factor x) { return MP_FOUR0(vu32, vdupq_lane_u32((uint32x2_t)x.word, 0)); }
#ifdef MP_NATIVE_I8MM
MP_INLINE uint32x4_t dot_word_u8s8(uint32x4_t z, uint32x4_t y, float32x2_t x) {
    return (uint32x4_t)vsudotq_lane_s32((int32x4_t)z, (int8x16_t)y, (uint8x8_t)x, 0);
}
MP_INLINE vu32 dot_u8s8_factor(vu32 z, factor x, vu32 y) { return MP_BY_FACTOR(vu32, dot_word_u8s8, z, x.word, y); }
#else
MP_INLINE vu32 dot_u8s8_factor(vu32 z, factor x, vu32 y) { return dot_u8s8(z, words_of(x), y); }
#endif
#ifdef MP_NATIVE_S8
MP_INLINE uint32x4_t dot_word_s8s8(uint32x4_t z, uint32x4_t y, float32x2_t x) {
    return (uint32x4_t)vdotq_lane_s32((int32x4_t)z, (int8x16_t)y, (int8x8_t)x, 0);
}
MP_INLINE vu32 dot_s8s8_factor(vu32 z, factor x, vu32 y) { return MP_BY_FACTOR(vu32, dot_word_s8s8, z, x.word, y); }
#else
MP_INLINE vu32 dot_s8u8_factor(vu32 z, factor x, vu32 y) { return dot_u8s8(z, y, words_of(x)); }
#endif
