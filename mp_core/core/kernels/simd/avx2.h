/* The vocabulary on AVX2, FMA and F16C: a vector of 16 lanes is two 256-bit registers. */
#include <immintrin.h>

typedef struct { __m256 lo, hi; } vf32;
typedef struct { __m256i lo, hi; } vu32;
typedef __m256i vu16;
typedef __m128i vu8;
typedef vu32 vmask; /* all ones or all zeros per lane */

#define MP_BOTH1(T, R, NAME, OP) MP_INLINE R NAME(T a) { return (R){OP(a.lo), OP(a.hi)}; }
#define MP_BOTH2(T, NAME, OP) MP_INLINE T NAME(T a, T b) { return (T){OP(a.lo, b.lo), OP(a.hi, b.hi)}; }

MP_INLINE vf32 set_f32(float x) { return (vf32){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MP_INLINE vu32 set_u32(uint32_t x) { return (vu32){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }

MP_INLINE vf32 load_f32(const float *p) { return (vf32){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MP_INLINE vu32 load_u32(const void *p) {
    return (vu32){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
MP_INLINE vu16 load_u16(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
MP_INLINE vu8 load_u8(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
MP_INLINE void store_f32(float *p, vf32 x) { _mm256_storeu_ps(p, x.lo), _mm256_storeu_ps(p + 8, x.hi); }
MP_INLINE void store_u32(void *p, vu32 x) {
    _mm256_storeu_si256((__m256i *)p, x.lo), _mm256_storeu_si256((__m256i *)p + 1, x.hi);
}
MP_INLINE void store_u16(void *p, vu16 x) { _mm256_storeu_si256((__m256i *)p, x); }
MP_INLINE void store_u8(void *p, vu8 x) { _mm_storeu_si128((__m128i *)p, x); }

MP_INLINE void stream_f32(float *p, vf32 x) { _mm256_stream_ps(p, x.lo), _mm256_stream_ps(p + 8, x.hi); }
MP_INLINE void stream_u16(void *p, vu16 x) { _mm256_stream_si256((__m256i *)p, x); }
MP_INLINE void stream_u8(void *p, vu8 x) { _mm_stream_si128((__m128i *)p, x); }
MP_INLINE void stream_fence(void) { _mm_sfence(); }

/* loadn_ and storen_ use a buffer: on Zen 4 a vmaskmovps store takes 18 to 42 micro-operations, and there are no masked
 * loads and stores of bytes. */
#include "partial.h"

MP_BOTH1(vf32, vu32, as_u32, _mm256_castps_si256)
MP_BOTH1(vu32, vf32, as_f32, _mm256_castsi256_ps)

MP_BOTH2(vf32, add_f32, _mm256_add_ps)
MP_BOTH2(vf32, sub_f32, _mm256_sub_ps)
MP_BOTH2(vf32, mul_f32, _mm256_mul_ps)
MP_BOTH2(vf32, div_f32, _mm256_div_ps)
MP_BOTH2(vf32, min_f32, _mm256_min_ps)
MP_BOTH2(vf32, max_f32, _mm256_max_ps)
MP_INLINE vf32 fma_f32(vf32 a, vf32 b, vf32 c) {
    return (vf32){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

MP_BOTH2(vu32, and_u32, _mm256_and_si256)
MP_BOTH2(vu32, or_u32, _mm256_or_si256)
MP_BOTH2(vu32, xor_u32, _mm256_xor_si256)
MP_BOTH2(vu32, add_u32, _mm256_add_epi32)
MP_BOTH2(vu32, sub_u32, _mm256_sub_epi32)
MP_BOTH2(vu32, mul_u32, _mm256_mullo_epi32)
MP_BOTH2(vu32, min_u32, _mm256_min_epu32)
MP_BOTH2(vu32, max_u32, _mm256_max_epu32)
#define MP_SHIFT(OP, X, N) ((vu32){OP((X).lo, N), OP((X).hi, N)})
MP_INLINE vu32 shl_u32(vu32 x, int n) { return MP_SHIFT(_mm256_slli_epi32, x, n); }
MP_INLINE vu32 shr_u32(vu32 x, int n) { return MP_SHIFT(_mm256_srli_epi32, x, n); }
MP_INLINE vu32 sar_u32(vu32 x, int n) { return MP_SHIFT(_mm256_srai_epi32, x, n); }

MP_INLINE vmask lt_f32(vf32 a, vf32 b) {
    return (vmask){_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                   _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
MP_BOTH2(vu32, gt_i32, _mm256_cmpgt_epi32)
MP_INLINE vu32 select_u32(vmask m, vu32 a, vu32 b) {
    return (vu32){_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}
MP_INLINE vf32 select_f32(vmask m, vf32 a, vf32 b) { return as_f32(select_u32(m, as_u32(a), as_u32(b))); }
MP_INLINE vmask first_n(ptrdiff_t n) {
    const vu32 lane = {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
    return gt_i32(set_u32((uint32_t)n), lane);
}

MP_BOTH1(vu32, vf32, f32_from_i32, _mm256_cvtepi32_ps)
/* Two of the four bf16 whose low and high bytes are given: those of bytes 0 and 2, or (s) of bytes 1 and 3. */
MP_INLINE __m256i joined_bytes(__m256i low, __m256i high, const int s) {
    const __m256i second = _mm256_set1_epi16((int16_t)0xFF00);
    return s ? _mm256_blendv_epi8(_mm256_srli_epi16(low, 8), high, second)
             : _mm256_blendv_epi8(low, _mm256_slli_epi16(high, 8), second);
}
/* The low and the high bytes of four bf16 are looked up at a time; two pairs share them. */
#define MP_NATIVE_F4_WORDS
MP_INLINE __m256i half_from_f4(__m256i word, const int s) {
    const __m256i low_bytes = _mm256_set1_epi64x((int64_t)0xC0804000C0800000u);
    const __m256i high_bytes = _mm256_setr_epi32(0x3F3F3F00, 0x40404040, (int)0xBFBFBF80u, (int)0xC0C0C0C0u, 0x3F3F3F00,
                                                 0x40404040, (int)0xBFBFBF80u, (int)0xC0C0C0C0u);
    const __m256i codes
        = _mm256_and_si256(s % 2 ? _mm256_srli_epi32(word, 4) : word, _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(low_bytes, codes), high = _mm256_shuffle_epi8(high_bytes, codes);
    return joined_bytes(low, high, s / 2);
}
MP_INLINE vu32 pair_of_f4(vu32 word, const int s) {
    return (vu32){half_from_f4(word.lo, s), half_from_f4(word.hi, s)};
}
#define MP_NATIVE_E4M3FN_WORDS
/* A bf16 of e4m3fn: its high byte depends on the upper four bits, its low byte is the lower four, shifted. The codes of
 * subnormal numbers are those whose magnitude plus 0x78 is below 0x80, so that vpshufb looks up a correction for them
 * and 0 for all others. */
MP_INLINE __m256i half_from_e4m3fn(__m256i word, const int s) {
    const __m256i high_bytes = _mm256_setr_epi32(0x3F3E3D3C, 0x43424140, (int)0xBFBEBDBCu, (int)0xC3C2C1C0u, 0x3F3E3D3C,
                                                 0x43424140, (int)0xBFBEBDBCu, (int)0xC3C2C1C0u);
    const __m256i high_tiny = _mm256_set1_epi64x(0x000000000707073C), low_tiny = _mm256_set1_epi64x(0x10207040F0A01000);
    const __m256i nibble = _mm256_set1_epi8(15), largest = _mm256_set1_epi8(0x7F);
    const __m256i magnitude = _mm256_and_si256(word, largest);
    const __m256i tiny = _mm256_add_epi8(magnitude, _mm256_set1_epi8(0x78));
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi8(magnitude, largest), largest);
    const __m256i normal = _mm256_shuffle_epi8(high_bytes, _mm256_and_si256(_mm256_srli_epi16(word, 4), nibble));
    const __m256i high = _mm256_or_si256(_mm256_xor_si256(normal, _mm256_shuffle_epi8(high_tiny, tiny)), nan);
    const __m256i shifted = _mm256_slli_epi16(_mm256_and_si256(word, nibble), 4);
    const __m256i low = _mm256_xor_si256(shifted, _mm256_shuffle_epi8(low_tiny, tiny));
    return joined_bytes(low, high, s);
}
MP_INLINE vu32 pair_of_e4m3fn(vu32 word, const int s) {
    return (vu32){half_from_e4m3fn(word.lo, s), half_from_e4m3fn(word.hi, s)};
}
#define MP_NATIVE_F4_BYTES
MP_INLINE __m256i doubled_from_f4(__m256i code) {
    const __m256i doubled = _mm256_setr_epi32(0x0F0E0D0C, 0x18141210, 0x090A0B0C, 0x00040608, 0x0F0E0D0C, 0x18141210,
                                              0x090A0B0C, 0x00040608);
    return _mm256_shuffle_epi8(doubled, code);
}
MP_BOTH1(vu32, vu32, bytes_from_f4, doubled_from_f4)
MP_BOTH1(vf32, vu32, i32_from_f32, _mm256_cvtps_epi32)
MP_INLINE vu32 widen_u16(vu16 x) {
    return (vu32){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                  _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
MP_INLINE vu32 widen_u8(vu8 x) { return (vu32){_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))}; }
MP_INLINE vu32 widen_i8(vu8 x) { return (vu32){_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))}; }
/* Faster from memory: vpmovzxwd and vcvtph2ps read 16 bytes there; the upper half of a register would have to be moved
 * to another one first. */
#define MP_NATIVE_WIDE_LOADS
MP_INLINE vu32 load_u16_as_u32(const void *p) {
    return (vu32){_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1))};
}
MP_INLINE vf32 load_f16_as_f32(const void *p) {
    return (vf32){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
MP_INLINE vu16 narrow_u16(vu32 x) { /* vpackusdw saturates, so the high 16 bits are cleared first */
    const vu32 low = and_u32(x, set_u32(0xFFFFu));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), 0xD8);
}
MP_INLINE vu32 low_halves(vu32 a, vu32 b) { return (vu32){narrow_u16(a), narrow_u16(b)}; }
MP_INLINE vu32 high_halves(vu32 a, vu32 b) { return (vu32){narrow_u16(shr_u32(a, 16)), narrow_u16(shr_u32(b, 16))}; }
MP_INLINE vu8 narrow_u8(vu32 x) {
    const vu16 low = narrow_u16(and_u32(x, set_u32(0xFFu)));
    return _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}

/* Interleaving bytes, then halves, leaves four groups of four in each register. */
#define MP_NATIVE_U8
MP_INLINE vu32 interleave_u8(vu8 a, vu8 b, vu8 c, vu8 d) {
    const vu8 low_ab = _mm_unpacklo_epi8(a, b), high_ab = _mm_unpackhi_epi8(a, b);
    const vu8 low_cd = _mm_unpacklo_epi8(c, d), high_cd = _mm_unpackhi_epi8(c, d);
    return (vu32){_mm256_set_m128i(_mm_unpackhi_epi16(low_ab, low_cd), _mm_unpacklo_epi16(low_ab, low_cd)),
                  _mm256_set_m128i(_mm_unpackhi_epi16(high_ab, high_cd), _mm_unpacklo_epi16(high_ab, high_cd))};
}

MP_BOTH2(vu32, min_u16, _mm256_min_epu16)
MP_BOTH2(vu32, min_i8, _mm256_min_epi8)
MP_BOTH2(vu32, max_i8, _mm256_max_epi8)
MP_INLINE int any_clear(vu32 x, vu32 bits) {
    const __m256i zero = _mm256_setzero_si256();
    const vu32 kept = and_u32(x, bits);
    return _mm256_movemask_epi8(_mm256_or_si256(_mm256_cmpeq_epi32(kept.lo, zero), _mm256_cmpeq_epi32(kept.hi, zero)))
           != 0;
}
MP_INLINE int any_set(vu32 x, vu32 bits) {
    return !_mm256_testz_si256(x.lo, bits.lo) || !_mm256_testz_si256(x.hi, bits.hi);
}
MP_INLINE __m256i narrow_two(vu32 a, vu32 b) {
    const vu32 x = sar_u32(a, 16), y = sar_u32(b, 16);
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x.lo, x.hi), _mm256_packs_epi32(y.lo, y.hi));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
MP_INLINE vu32 narrow_high_i8(vu32 a, vu32 b, vu32 c, vu32 d) { return (vu32){narrow_two(a, b), narrow_two(c, d)}; }

#define MP_NATIVE_F16
MP_INLINE vf32 f32_from_f16(vu16 x) {
    return (vf32){_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
MP_INLINE vu16 f16_from_f32(vf32 x) {
    return _mm256_set_m128i(_mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                            _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

MP_INLINE vu8 high_u8(vu16 x) {
    const vu16 high = _mm256_srli_epi16(x, 8);
    return _mm_packus_epi16(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
MP_INLINE vmask eq_u16(vu16 a, vu16 b) {
    const vu16 equal = _mm256_cmpeq_epi16(a, b);
    return (vmask){_mm256_cvtepi16_epi32(_mm256_castsi256_si128(equal)),
                   _mm256_cvtepi16_epi32(_mm256_extracti128_si256(equal, 1))};
}
#include "lanes16.h"

/* A NaN (its magnitude exceeds that of infinity) is made quiet by setting all bits below its sign. Then each bf16 goes
 * to the upper half of its lane. */
MP_INLINE vf32 f32_from_bf16(vu16 h) {
    const vu16 nan = _mm256_cmpgt_epi16(and_u16(h, set_u16(0x7FFF)), set_u16(0x7F80));
    const vu16 quiet = _mm256_permute4x64_epi64(or_u16(h, _mm256_srli_epi16(nan, 1)), 0xD8);
    const vu16 zero = _mm256_setzero_si256();
    return as_f32((vu32){_mm256_unpacklo_epi16(zero, quiet), _mm256_unpackhi_epi16(zero, quiet)});
}

MP_INLINE void transpose_eight(__m256i *r) {
    __m256i t[8];
    MP_UNROLL_8 for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    MP_UNROLL_8 for (int i = 0; i < 8; i += 4)
        MP_UNROLL_8 for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    MP_UNROLL_8 for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    MP_UNROLL_8 for (int i = 0; i < 8; i++) r[i] = t[i];
}

/* A matrix of 16 x 16 words, transposed in place: four parts of 8 x 8. */
MP_INLINE void transpose_u32(vu32 *r) {
    __m256i part[4][8];
    MP_UNROLL_8 for (int i = 0; i < 8; i++)
        part[0][i] = r[i].lo, part[1][i] = r[i].hi, part[2][i] = r[i + 8].lo, part[3][i] = r[i + 8].hi;
    MP_UNROLL_8 for (int i = 0; i < 4; i++) transpose_eight(part[i]);
    MP_UNROLL_8 for (int i = 0; i < 8; i++)
        r[i] = (vu32){part[0][i], part[2][i]}, r[i + 8] = (vu32){part[1][i], part[3][i]};
}

/* 4 words of 8 columns: vector i has word i of each column. A pair of loads fills the halves of a register with columns
 * i and i + 4, which saves a shuffle of transpose_eight. */
MP_INLINE void four_words(const char *from, ptrdiff_t cs, __m256i *word) {
    __m256i r[4], t[4];
    MP_UNROLL_8 for (int i = 0; i < 4; i++) {
        const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const void *)(from + i * cs)));
        r[i] = _mm256_inserti128_si256(low, _mm_loadu_si128((const void *)(from + (i + 4) * cs)), 1);
    }
    MP_UNROLL_8 for (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    MP_UNROLL_8 for (int i = 0; i < 2; i++) {
        word[2 * i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        word[2 * i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    }
}

/* Four words of 8 columns at a time need 8 registers; 16 words of 16 columns would need 32. */
#define MP_NATIVE_TRANSPOSE
MP_INLINE void transpose_words(const char *from, ptrdiff_t cs, char *to, ptrdiff_t stride) {
    MP_UNROLL_8 for (int i = 0; i < 2; i++)
        MP_UNROLL_8 for (int j = 0; j < 4; j++) {
            __m256i word[4];
            four_words(from + 8 * i * cs + 16 * j, cs, word);
            MP_UNROLL_8 for (int p = 0; p < 4; p++)
                _mm256_storeu_si256((void *)(to + (4 * j + p) * stride + 32 * i), word[p]);
        }
}

/* The second 8 columns are read 128 bytes behind the first 8: if the stride of columns is a multiple of a page, 16
 * lines of the same words would be in one set of the L1 cache, which has 8 ways. */
#define MP_NATIVE_FMA_COLUMNS
MP_INLINE __m256 fma_four(__m256 z, const char *a, const char *from, ptrdiff_t cs) {
    float factor[4];
    __m256i word[4];
    memcpy(factor, a, sizeof factor);
    four_words(from, cs, word);
    MP_UNROLL_8 for (int p = 0; p < 4; p++)
        z = _mm256_fmadd_ps(_mm256_set1_ps(factor[p]), _mm256_castsi256_ps(word[p]), z);
    return z;
}
MP_INLINE vf32 fma_columns(vf32 z, const char *a, const char *from, ptrdiff_t cs, ptrdiff_t k) {
    const ptrdiff_t bytes = k * 4, whole = bytes / 16 * 16, distance = whole < 128 ? whole : 128;
    const char *const right = from + 8 * cs;
    for (ptrdiff_t p = 0; p < distance; p += 16) z.lo = fma_four(z.lo, a + p, from + p, cs);
    for (ptrdiff_t p = distance; p < whole; p += 16) {
        z.lo = fma_four(z.lo, a + p, from + p, cs);
        z.hi = fma_four(z.hi, a + p - distance, right + p - distance, cs);
    }
    for (ptrdiff_t p = whole - distance; p < whole; p += 16) z.hi = fma_four(z.hi, a + p, right + p, cs);
    for (ptrdiff_t p = whole; p < bytes; p += 4) {
        float x[MP_LANES], factor;
        for (int i = 0; i < MP_LANES; i++) memcpy(x + i, from + i * cs + p, 4);
        memcpy(&factor, a + p, 4);
        z = fma_f32(set_f32(factor), load_f32(x), z);
    }
    return z;
}

MP_INLINE uint32_t top_u32(vu32 x) {
    const __m256i m8 = _mm256_max_epu32(x.lo, x.hi);
    const __m128i m4 = _mm_max_epu32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
    const __m128i m2 = _mm_max_epu32(m4, _mm_unpackhi_epi64(m4, m4));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m2, _mm_shuffle_epi32(m2, 1)));
}
/* If one of two numbers is NaN, the result of vmaxps is the second one. So the second operands are the lower lanes: all
 * NaN were replaced by -Inf, except one in lane 0. */
MP_INLINE float max_lanes(vf32 x) {
    const __m256 lowest = _mm256_set1_ps(-INFINITY), low = _mm256_blend_ps(_mm256_max_ps(x.lo, lowest), x.lo, 1);
    const __m256 h8 = _mm256_max_ps(_mm256_max_ps(x.hi, lowest), low);
    const __m128 h4 = _mm_max_ps(_mm256_extractf128_ps(h8, 1), _mm256_castps256_ps128(h8));
    const __m128 h2 = _mm_max_ps(_mm_movehl_ps(h4, h4), h4);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(h2), h2));
}
MP_INLINE float sum_f32(vf32 x) {
    const __m256 h8 = _mm256_add_ps(x.lo, x.hi);
    const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

#ifdef MP_NATIVE_VNNI /* avx2_vnni.h */
MP_INLINE vu32 dot_u8s8(vu32 acc, vu32 a, vu32 b) {
    return (vu32){_mm256_dpbusd_avx_epi32(acc.lo, a.lo, b.lo), _mm256_dpbusd_avx_epi32(acc.hi, a.hi, b.hi)};
}
#else
#define MP_QUADS_BY_TWO
/* Bytes 0 and 2, then 1 and 3, widened to 16 bits: |255 * 128 * 2| fits in 32 bits, nothing saturates. */
MP_INLINE vu32 dot_u8s8(vu32 acc, vu32 a, vu32 b) {
    const vu32 a_even = and_u32(a, set_u32(0x00FF00FFu)), a_odd = MP_SHIFT(_mm256_srli_epi16, a, 8);
    const vu32 b_shifted = MP_SHIFT(_mm256_slli_epi16, b, 8);
    const vu32 b_even = MP_SHIFT(_mm256_srai_epi16, b_shifted, 8), b_odd = MP_SHIFT(_mm256_srai_epi16, b, 8);
    acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(a_even.lo, b_even.lo));
    acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a_even.hi, b_even.hi));
    acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(a_odd.lo, b_odd.lo));
    acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a_odd.hi, b_odd.hi));
    return acc;
}
#define MP_NATIVE_S8 /* by the same two vpmaddwd */
MP_INLINE __m256i dot_signed(__m256i z, __m256i x, __m256i y) {
    const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), x_odd = _mm256_srai_epi16(x, 8);
    const __m256i y_even = _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8), y_odd = _mm256_srai_epi16(y, 8);
    const __m256i sum = _mm256_add_epi32(z, _mm256_madd_epi16(x_even, y_even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x_odd, y_odd));
}
MP_INLINE vu32 dot_s8s8(vu32 z, vu32 x, vu32 y) {
    return (vu32){dot_signed(z.lo, x.lo, y.lo), dot_signed(z.hi, x.hi, y.hi)};
}
#endif

/* vpmaddubsw saturates, but not here: |4 * 24 * 128| fits in 16 bits. */
#ifndef MP_NATIVE_VNNI
#define MP_NATIVE_U4_DOT
MP_INLINE __m256i dot_two_u4(__m256i z, __m256i x, __m256i y, __m256i next_x, __m256i next_y) {
    const __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16(y, x), _mm256_maddubs_epi16(next_y, next_x));
    return _mm256_add_epi32(z, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
}
MP_INLINE vu32 dot_two_s8u4(vu32 z, vf32 x, vu32 y, vf32 next_x, vu32 next_y) {
    return (vu32){dot_two_u4(z.lo, as_u32(x).lo, y.lo, as_u32(next_x).lo, next_y.lo),
                  dot_two_u4(z.hi, as_u32(x).hi, y.hi, as_u32(next_x).hi, next_y.hi)};
}
#endif

/* Without VNNI, int8 needs shifts before each vpmaddwd, and int16 does not. f32 needs no splitting, as pairs of bf16
 * do. */
#ifndef MP_NATIVE_VNNI
#define MP_WIDENS
MP_INLINE vu32 i16_from_i8(vu32 x, const int s) {
    const int first = s ? 0x03FF02FF : 0x01FF00FF, next = 0x04000400; /* each byte into the upper byte of a half */
    const __m128i four = _mm_setr_epi32(first, first + next, first + 2 * next, first + 3 * next);
    const __m256i order = _mm256_broadcastsi128_si256(four);
    return (vu32){_mm256_srai_epi16(_mm256_shuffle_epi8(x.lo, order), 8),
                  _mm256_srai_epi16(_mm256_shuffle_epi8(x.hi, order), 8)};
}
MP_INLINE vu32 dot_i16(vu32 acc, vu32 a, vu32 b) {
    return (vu32){_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
                  _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
#endif

#define MP_DECODES_TO_F32
#define MP_DIVIDES 0
#define MP_MR 6
#define MP_NR_VECTORS 1
#define MP_TWO_GROUPS
#ifndef MP_NATIVE_VNNI
#define MP_PANELS_IN_TURN 4
#endif
#define MP_FEW_ROWS_WIDE \
    {[MP_F32] = 96, [MP_F16] = 24, [MP_BF16] = PTRDIFF_MAX, [MP_F8_E4M3FN] = 5, \
     [MP_F8_E5M2] = 5, [MP_I8] = 48, [MP_I4] = 48, [MP_F4] = 48}
#define MP_FEW_ROWS_PAIRS \
    {[MP_F8_E4M3FN] = 5, [MP_F8_E5M2] = 5, [MP_I8] = PTRDIFF_MAX, [MP_I4] = PTRDIFF_MAX, [MP_F4] = PTRDIFF_MAX}
#define MP_FEW_ROWS_SHIFTED_WIDE 4
#define MP_FEW_ROWS_SHIFTED_PAIRS 4
#define MP_FEW_ROWS_SHIFTED_QUADS 4
#define MP_FEW_ROWS_RECODED_PAIRS \
    {[MP_BF16] = 15, [MP_F8_E4M3FN] = 15, [MP_F8_E5M2] = 15, [MP_I8] = 15, [MP_I4] = 15, [MP_F4] = 15}
#define MP_FEW_ROWS_RECODED_QUADS {[MP_I8] = 15, [MP_I4] = 15, [MP_F4] = 15}
