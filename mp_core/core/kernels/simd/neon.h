/* The vocabulary on AArch64, whose Advanced SIMD (NEON) every CPU has: a vector of 16 lanes is four 128-bit
 * registers. */
#include <arm_neon.h>

typedef struct { float32x4_t a, b, c, d; } vf32;
typedef struct { uint32x4_t a, b, c, d; } vu32;
typedef struct { uint16x8_t a, b; } vu16;
typedef uint8x16_t vu8;
typedef vu32 vmask; /* all ones or all zeros per lane */

#define MP_FOUR0(T, X) ((T){X, X, X, X})
#define MP_FOUR1(T, R, NAME, OP) MP_INLINE R NAME(T x) { return (R){OP(x.a), OP(x.b), OP(x.c), OP(x.d)}; }
#define MP_FOUR2(T, R, NAME, OP) \
    MP_INLINE R NAME(T x, T y) { return (R){OP(x.a, y.a), OP(x.b, y.b), OP(x.c, y.c), OP(x.d, y.d)}; }

MP_INLINE vf32 set_f32(float x) { return MP_FOUR0(vf32, vdupq_n_f32(x)); }
MP_INLINE vu32 set_u32(uint32_t x) { return MP_FOUR0(vu32, vdupq_n_u32(x)); }

MP_INLINE vf32 load_f32(const float *p) {
    return (vf32){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
MP_INLINE vu8 load_u8(const void *p) { return vld1q_u8(p); }
MP_INLINE vu32 load_u32(const void *p) {
    const uint8_t *const at = p;
#define MP_WORDS(I) vreinterpretq_u32_u8(vld1q_u8(at + 16 * (I)))
    return (vu32){MP_WORDS(0), MP_WORDS(1), MP_WORDS(2), MP_WORDS(3)};
#undef MP_WORDS
}
MP_INLINE vu16 load_u16(const void *p) {
    const uint8_t *const at = p;
    return (vu16){vreinterpretq_u16_u8(vld1q_u8(at)), vreinterpretq_u16_u8(vld1q_u8(at + 16))};
}
MP_INLINE void store_f32(float *p, vf32 x) {
    vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d);
}
MP_INLINE void store_u8(void *p, vu8 x) { vst1q_u8(p, x); }
MP_INLINE void store_u32(void *p, vu32 x) {
    uint8_t *const at = p;
    vst1q_u8(at, vreinterpretq_u8_u32(x.a)), vst1q_u8(at + 16, vreinterpretq_u8_u32(x.b));
    vst1q_u8(at + 32, vreinterpretq_u8_u32(x.c)), vst1q_u8(at + 48, vreinterpretq_u8_u32(x.d));
}
MP_INLINE void store_u16(void *p, vu16 x) {
    uint8_t *const at = p;
    vst1q_u8(at, vreinterpretq_u8_u16(x.a)), vst1q_u8(at + 16, vreinterpretq_u8_u16(x.b));
}
/* There is no intrinsic for non-temporal stores (stnp), only a hint on AArch64; plain stores need no fence. */
#define stream_f32 store_f32
#define stream_u16 store_u16
#define stream_u8 store_u8
MP_INLINE void stream_fence(void) {}
#include "partial.h"

MP_FOUR1(vf32, vu32, as_u32, vreinterpretq_u32_f32)
MP_FOUR1(vu32, vf32, as_f32, vreinterpretq_f32_u32)

MP_FOUR2(vf32, vf32, add_f32, vaddq_f32)
MP_FOUR2(vf32, vf32, sub_f32, vsubq_f32)
MP_FOUR2(vf32, vf32, mul_f32, vmulq_f32)
MP_FOUR2(vf32, vf32, div_f32, vdivq_f32)
MP_INLINE vf32 fma_f32(vf32 x, vf32 y, vf32 z) {
    return (vf32){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                  vfmaq_f32(z.d, x.d, y.d)};
}

MP_FOUR2(vu32, vu32, and_u32, vandq_u32)
MP_FOUR2(vu32, vu32, or_u32, vorrq_u32)
MP_FOUR2(vu32, vu32, xor_u32, veorq_u32)
MP_FOUR2(vu32, vu32, add_u32, vaddq_u32)
MP_FOUR2(vu32, vu32, sub_u32, vsubq_u32)
MP_FOUR2(vu32, vu32, mul_u32, vmulq_u32)
MP_FOUR2(vu32, vu32, min_u32, vminq_u32)
MP_FOUR2(vu32, vu32, max_u32, vmaxq_u32)
/* Shifts of vectors by a constant, in the compilers' own notation, since those of arm_neon.h need a literal. */
MP_INLINE vu32 shl_u32(vu32 x, int n) { return (vu32){x.a << n, x.b << n, x.c << n, x.d << n}; }
MP_INLINE vu32 shr_u32(vu32 x, int n) { return (vu32){x.a >> n, x.b >> n, x.c >> n, x.d >> n}; }
MP_INLINE vu32 sar_u32(vu32 x, int n) {
#define MP_SAR(X) ((uint32x4_t)((int32x4_t)(X) >> n))
    return (vu32){MP_SAR(x.a), MP_SAR(x.b), MP_SAR(x.c), MP_SAR(x.d)};
#undef MP_SAR
}

MP_FOUR2(vf32, vmask, lt_f32, vcltq_f32)
MP_INLINE uint32x4_t gt_words(uint32x4_t x, uint32x4_t y) { return vcgtq_s32((int32x4_t)x, (int32x4_t)y); }
MP_FOUR2(vu32, vmask, gt_i32, gt_words)
MP_INLINE vu32 select_u32(vmask m, vu32 x, vu32 y) {
    return (vu32){vbslq_u32(m.a, x.a, y.a), vbslq_u32(m.b, x.b, y.b), vbslq_u32(m.c, x.c, y.c),
                  vbslq_u32(m.d, x.d, y.d)};
}
MP_INLINE vf32 select_f32(vmask m, vf32 x, vf32 y) { return as_f32(select_u32(m, as_u32(x), as_u32(y))); }
/* fmin and fmax have other results for NaN, so these are a comparison and a selection. */
MP_INLINE vf32 min_f32(vf32 x, vf32 y) { return select_f32(lt_f32(x, y), x, y); }
MP_INLINE vf32 max_f32(vf32 x, vf32 y) { return select_f32(lt_f32(y, x), x, y); }
MP_INLINE vmask first_n(ptrdiff_t n) {
    static const uint32_t lane[MP_LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return gt_i32(set_u32((uint32_t)n), load_u32(lane));
}

MP_INLINE float32x4_t floats_of(uint32x4_t x) { return vcvtq_f32_s32((int32x4_t)x); }
MP_FOUR1(vu32, vf32, f32_from_i32, floats_of)
/* For numbers from 2^31 on fcvtns returns the largest int32; 1 more is a multiple of 2^16. */
MP_INLINE uint32x4_t nearest_of(float32x4_t x) {
    return vsubq_u32((uint32x4_t)vcvtnq_s32_f32(x), vcgeq_f32(x, vdupq_n_f32(0x1p31f)));
}
MP_FOUR1(vf32, vu32, i32_from_f32, nearest_of)
MP_INLINE vu32 widen_u16(vu16 x) {
    return (vu32){vmovl_u16(vget_low_u16(x.a)), vmovl_high_u16(x.a), vmovl_u16(vget_low_u16(x.b)), vmovl_high_u16(x.b)};
}
MP_INLINE vu16 u16_from_u8(vu8 x) { return (vu16){vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x)}; }
MP_INLINE vu32 widen_u8(vu8 x) { return widen_u16(u16_from_u8(x)); }
MP_INLINE vu32 widen_i8(vu8 x) {
    const int16x8_t low = vmovl_s8(vget_low_s8((int8x16_t)x)), high = vmovl_high_s8((int8x16_t)x);
    return (vu32){(uint32x4_t)vmovl_s16(vget_low_s16(low)), (uint32x4_t)vmovl_high_s16(low),
                  (uint32x4_t)vmovl_s16(vget_low_s16(high)), (uint32x4_t)vmovl_high_s16(high)};
}
MP_INLINE vu16 narrow_u16(vu32 x) {
    return (vu16){vuzp1q_u16((uint16x8_t)x.a, (uint16x8_t)x.b), vuzp1q_u16((uint16x8_t)x.c, (uint16x8_t)x.d)};
}
MP_INLINE vu16 high_u16(vu32 x) {
    return (vu16){vuzp2q_u16((uint16x8_t)x.a, (uint16x8_t)x.b), vuzp2q_u16((uint16x8_t)x.c, (uint16x8_t)x.d)};
}
MP_INLINE vu8 narrow_u8(vu32 x) {
    const vu16 low = narrow_u16(x);
    return vuzp1q_u8((uint8x16_t)low.a, (uint8x16_t)low.b);
}
MP_INLINE vu32 joined_u16(vu16 x, vu16 y) {
    return (vu32){(uint32x4_t)x.a, (uint32x4_t)x.b, (uint32x4_t)y.a, (uint32x4_t)y.b};
}
MP_INLINE vu32 low_halves(vu32 x, vu32 y) { return joined_u16(narrow_u16(x), narrow_u16(y)); }
MP_INLINE vu32 high_halves(vu32 x, vu32 y) { return joined_u16(high_u16(x), high_u16(y)); }

#define MP_PARTS(NAME, TYPE, OP) \
    MP_INLINE uint32x4_t NAME##_of(uint32x4_t x, uint32x4_t y) { return (uint32x4_t)OP((TYPE)x, (TYPE)y); } \
    MP_FOUR2(vu32, vu32, NAME, NAME##_of)
MP_PARTS(min_u16, uint16x8_t, vminq_u16)
MP_PARTS(min_i8, int8x16_t, vminq_s8)
MP_PARTS(max_i8, int8x16_t, vmaxq_s8)
MP_INLINE int any_clear(vu32 x, vu32 bits) {
    const uint32x4_t ab = vandq_u32(vtstq_u32(x.a, bits.a), vtstq_u32(x.b, bits.b));
    return vminvq_u32(vandq_u32(ab, vandq_u32(vtstq_u32(x.c, bits.c), vtstq_u32(x.d, bits.d)))) == 0;
}
MP_INLINE int any_set(vu32 x, vu32 bits) {
    const vu32 kept = and_u32(x, bits);
    return vmaxvq_u32(vorrq_u32(vorrq_u32(kept.a, kept.b), vorrq_u32(kept.c, kept.d))) != 0;
}
MP_INLINE uint32x4_t narrow_one(vu32 x) {
    const vu16 high = high_u16(x);
    return (uint32x4_t)vqmovn_high_s16(vqmovn_s16((int16x8_t)high.a), (int16x8_t)high.b);
}
MP_INLINE vu32 narrow_high_i8(vu32 x, vu32 y, vu32 z, vu32 w) {
    return (vu32){narrow_one(x), narrow_one(y), narrow_one(z), narrow_one(w)};
}

#define MP_NATIVE_F16
MP_INLINE vf32 f32_from_f16(vu16 x) {
    const float16x8_t a = (float16x8_t)x.a, b = (float16x8_t)x.b;
    return (vf32){vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
                  vcvt_high_f32_f16(b)};
}
MP_INLINE vu16 f16_from_f32(vf32 x) {
    return (vu16){(uint16x8_t)vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b),
                  (uint16x8_t)vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)};
}
MP_INLINE vu8 high_u8(vu16 x) { return vuzp2q_u8((uint8x16_t)x.a, (uint8x16_t)x.b); }
MP_INLINE vmask eq_u16(vu16 x, vu16 y) {
    const int16x8_t a = (int16x8_t)vceqq_u16(x.a, y.a), b = (int16x8_t)vceqq_u16(x.b, y.b);
    return (vmask){(uint32x4_t)vmovl_s16(vget_low_s16(a)), (uint32x4_t)vmovl_high_s16(a),
                   (uint32x4_t)vmovl_s16(vget_low_s16(b)), (uint32x4_t)vmovl_high_s16(b)};
}
MP_INLINE vu16 set_u16(uint16_t x) { return (vu16){vdupq_n_u16(x), vdupq_n_u16(x)}; }
MP_INLINE vu16 and_u16(vu16 x, vu16 y) { return (vu16){vandq_u16(x.a, y.a), vandq_u16(x.b, y.b)}; }
MP_INLINE vu16 or_u16(vu16 x, vu16 y) { return (vu16){vorrq_u16(x.a, y.a), vorrq_u16(x.b, y.b)}; }
MP_INLINE vu16 shl_u16(vu16 x, int n) { return (vu16){x.a << n, x.b << n}; }

/* A NaN, whose magnitude exceeds that of infinity, is made quiet. Then each bf16 goes to the upper half of its lane. */
MP_INLINE uint16x8_t quiet_bf16(uint16x8_t h) {
    const uint16x8_t nan = vcgtq_u16(vandq_u16(h, vdupq_n_u16(0x7FFF)), vdupq_n_u16(0x7F80));
    return vorrq_u16(h, vandq_u16(nan, vdupq_n_u16(0x40)));
}
MP_INLINE vf32 f32_from_bf16(vu16 h) {
    const uint16x8_t a = quiet_bf16(h.a), b = quiet_bf16(h.b);
    return as_f32((vu32){vshll_n_u16(vget_low_u16(a), 16), vshll_high_n_u16(a, 16),
                         vshll_n_u16(vget_low_u16(b), 16), vshll_high_n_u16(b, 16)});
}

/* Transpose 4 x 4 words: registers 0, 4, 8 and 12 of `from` into those of `to`. */
MP_INLINE void transpose_four(const uint32x4_t *from, uint32x4_t *to) {
    const uint32x4_t even0 = vzip1q_u32(from[0], from[8]), even1 = vzip2q_u32(from[0], from[8]);
    const uint32x4_t odd0 = vzip1q_u32(from[4], from[12]), odd1 = vzip2q_u32(from[4], from[12]);
    to[0] = vzip1q_u32(even0, odd0), to[4] = vzip2q_u32(even0, odd0);
    to[8] = vzip1q_u32(even1, odd1), to[12] = vzip2q_u32(even1, odd1);
}
/* A matrix of 16 x 16 words, transposed in place: sixteen parts of 4 x 4. */
MP_INLINE void transpose_u32(vu32 *r) {
    uint32x4_t from[4 * MP_LANES], to[4 * MP_LANES];
    memcpy(from, r, sizeof from);
    MP_UNROLL_8 for (int i = 0; i < 4; i++)
        MP_UNROLL_8 for (int j = 0; j < 4; j++) transpose_four(from + 16 * i + j, to + 16 * j + i);
    memcpy(r, to, sizeof to);
}

/* Adding neighbours takes a quarter of the work of transposing first. */
#define MP_NATIVE_SUMS
MP_INLINE uint32x4_t sum_of_parts(vu32 x) { return vaddq_u32(vaddq_u32(x.a, x.b), vaddq_u32(x.c, x.d)); }
MP_INLINE uint32x4_t sums_of_four(const vu32 *r) {
    return vpaddq_u32(vpaddq_u32(sum_of_parts(r[0]), sum_of_parts(r[1])),
                      vpaddq_u32(sum_of_parts(r[2]), sum_of_parts(r[3])));
}
MP_INLINE vu32 sums_u32(const vu32 *r) {
    return (vu32){sums_of_four(r), sums_of_four(r + 4), sums_of_four(r + 8), sums_of_four(r + 12)};
}

#define MP_NATIVE_U8
MP_INLINE vu32 interleave_u8(vu8 x, vu8 y, vu8 z, vu8 w) {
    const uint16x8_t xy = (uint16x8_t)vzip1q_u8(x, y), xy1 = (uint16x8_t)vzip2q_u8(x, y);
    const uint16x8_t zw = (uint16x8_t)vzip1q_u8(z, w), zw1 = (uint16x8_t)vzip2q_u8(z, w);
    return (vu32){(uint32x4_t)vzip1q_u16(xy, zw), (uint32x4_t)vzip2q_u16(xy, zw),
                  (uint32x4_t)vzip1q_u16(xy1, zw1), (uint32x4_t)vzip2q_u16(xy1, zw1)};
}

MP_INLINE uint32_t top_u32(vu32 x) { return vmaxvq_u32(vmaxq_u32(vmaxq_u32(x.a, x.b), vmaxq_u32(x.c, x.d))); }
/* First the maximum of lanes 1 to 15, with NaN as -Inf; then the larger one of it and lane 0. If lane 0 is NaN, the
 * result is NaN. */
MP_INLINE float max_lanes(vf32 x) {
    const float first = vgetq_lane_f32(x.a, 0), lowest = -INFINITY;
    x.a = vsetq_lane_f32(lowest, x.a, 0);
    const vf32 y = max_f32(x, set_f32(lowest));
    const float others = vmaxvq_f32(vmaxq_f32(vmaxq_f32(y.a, y.b), vmaxq_f32(y.c, y.d)));
    return others > first ? others : first;
}
MP_INLINE float sum_f32(vf32 x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

#include "neon_products.h"

#define MP_DIVIDES 0
#define MP_MR 6
#define MP_NR_VECTORS 1
#define MP_FEW_ROWS_WIDE \
    {[MP_F32] = 96, [MP_F16] = 24, [MP_BF16] = 24, [MP_F8_E4M3FN] = 5, [MP_F8_E5M2] = 5, [MP_I8] = 5, [MP_I4] = 5, \
     [MP_F4] = 5}
#define MP_FEW_ROWS_PAIRS {[MP_F8_E4M3FN] = 5, [MP_F8_E5M2] = 5, [MP_I8] = 5, [MP_I4] = 5, \
     [MP_F4] = 5}
#define MP_FEW_ROWS_SHIFTED_WIDE 4
#define MP_FEW_ROWS_SHIFTED_PAIRS 4
#define MP_FEW_ROWS_SHIFTED_QUADS 4
