/* The vocabulary on AVX-512 F, BW, DQ, VL: one 512-bit register is one vector of 16 lanes. */
#include <immintrin.h>

typedef __m512 vf32;
typedef __m512i vu32;
typedef __m256i vu16;
typedef __m128i vu8;
typedef __mmask16 vmask;

MP_INLINE vmask first_n(ptrdiff_t n) { return (vmask)((1u << n) - 1u); }

MP_INLINE vf32 set_f32(float x) { return _mm512_set1_ps(x); }
MP_INLINE vu32 set_u32(uint32_t x) { return _mm512_set1_epi32((int)x); }

MP_INLINE vf32 load_f32(const float *p) { return _mm512_loadu_ps(p); }
MP_INLINE vu32 load_u32(const void *p) { return _mm512_loadu_si512(p); }
MP_INLINE vu16 load_u16(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
MP_INLINE vu8 load_u8(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
MP_INLINE void store_f32(float *p, vf32 x) { _mm512_storeu_ps(p, x); }
MP_INLINE void store_u32(void *p, vu32 x) { _mm512_storeu_si512(p, x); }
MP_INLINE void store_u16(void *p, vu16 x) { _mm256_storeu_si256((__m256i *)p, x); }
MP_INLINE void store_u8(void *p, vu8 x) { _mm_storeu_si128((__m128i *)p, x); }

MP_INLINE void stream_f32(float *p, vf32 x) { _mm512_stream_ps(p, x); }
MP_INLINE void stream_u16(void *p, vu16 x) { _mm256_stream_si256((__m256i *)p, x); }
MP_INLINE void stream_u8(void *p, vu8 x) { _mm_stream_si128((__m128i *)p, x); }
MP_INLINE void stream_fence(void) { _mm_sfence(); }

MP_INLINE vf32 loadn_f32(const float *p, ptrdiff_t n) { return _mm512_maskz_loadu_ps(first_n(n), p); }
MP_INLINE vu32 loadn_u32(const void *p, ptrdiff_t n) { return _mm512_maskz_loadu_epi32(first_n(n), p); }
MP_INLINE vu16 loadn_u16(const void *p, ptrdiff_t n) { return _mm256_maskz_loadu_epi16(first_n(n), p); }
MP_INLINE vu8 loadn_u8(const void *p, ptrdiff_t n) { return _mm_maskz_loadu_epi8(first_n(n), p); }
MP_INLINE void storen_f32(float *p, vf32 x, ptrdiff_t n) { _mm512_mask_storeu_ps(p, first_n(n), x); }
MP_INLINE void storen_u32(void *p, vu32 x, ptrdiff_t n) { _mm512_mask_storeu_epi32(p, first_n(n), x); }
MP_INLINE void storen_u16(void *p, vu16 x, ptrdiff_t n) { _mm256_mask_storeu_epi16(p, first_n(n), x); }
MP_INLINE void storen_u8(void *p, vu8 x, ptrdiff_t n) { _mm_mask_storeu_epi8(p, first_n(n), x); }

MP_INLINE vu32 as_u32(vf32 x) { return _mm512_castps_si512(x); }
MP_INLINE vf32 as_f32(vu32 x) { return _mm512_castsi512_ps(x); }

MP_INLINE vf32 add_f32(vf32 a, vf32 b) { return _mm512_add_ps(a, b); }
MP_INLINE vf32 sub_f32(vf32 a, vf32 b) { return _mm512_sub_ps(a, b); }
MP_INLINE vf32 mul_f32(vf32 a, vf32 b) { return _mm512_mul_ps(a, b); }
MP_INLINE vf32 div_f32(vf32 a, vf32 b) { return _mm512_div_ps(a, b); }
MP_INLINE vf32 fma_f32(vf32 a, vf32 b, vf32 c) { return _mm512_fmadd_ps(a, b, c); }
MP_INLINE vf32 min_f32(vf32 a, vf32 b) { return _mm512_min_ps(a, b); }
MP_INLINE vf32 max_f32(vf32 a, vf32 b) { return _mm512_max_ps(a, b); }

MP_INLINE vu32 and_u32(vu32 a, vu32 b) { return _mm512_and_si512(a, b); }
MP_INLINE vu32 or_u32(vu32 a, vu32 b) { return _mm512_or_si512(a, b); }
MP_INLINE vu32 xor_u32(vu32 a, vu32 b) { return _mm512_xor_si512(a, b); }
MP_INLINE vu32 add_u32(vu32 a, vu32 b) { return _mm512_add_epi32(a, b); }
MP_INLINE vu32 sub_u32(vu32 a, vu32 b) { return _mm512_sub_epi32(a, b); }
MP_INLINE vu32 mul_u32(vu32 a, vu32 b) { return _mm512_mullo_epi32(a, b); }
MP_INLINE vu32 min_u32(vu32 a, vu32 b) { return _mm512_min_epu32(a, b); }
MP_INLINE vu32 max_u32(vu32 a, vu32 b) { return _mm512_max_epu32(a, b); }
#define shl_u32(X, N) _mm512_slli_epi32(X, N)
#define shr_u32(X, N) _mm512_srli_epi32(X, N)
#define sar_u32(X, N) _mm512_srai_epi32(X, N)

MP_INLINE vmask lt_f32(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
MP_INLINE vmask gt_i32(vu32 a, vu32 b) { return _mm512_cmpgt_epi32_mask(a, b); }
MP_INLINE vf32 select_f32(vmask m, vf32 a, vf32 b) { return _mm512_mask_blend_ps(m, b, a); }
MP_INLINE vu32 select_u32(vmask m, vu32 a, vu32 b) { return _mm512_mask_blend_epi32(m, b, a); }

MP_INLINE vf32 f32_from_i32(vu32 x) { return _mm512_cvtepi32_ps(x); }
MP_INLINE vu32 i32_from_f32(vf32 x) { return _mm512_cvtps_epi32(x); }
MP_INLINE vu32 widen_u16(vu16 x) { return _mm512_cvtepu16_epi32(x); }
MP_INLINE vu32 widen_u8(vu8 x) { return _mm512_cvtepu8_epi32(x); }
MP_INLINE vu32 widen_i8(vu8 x) { return _mm512_cvtepi8_epi32(x); }
MP_INLINE vu16 narrow_u16(vu32 x) { return _mm512_cvtepi32_epi16(x); }
MP_INLINE vu8 narrow_u8(vu32 x) { return _mm512_cvtepi32_epi8(x); }

MP_INLINE vu32 min_u16(vu32 a, vu32 b) { return _mm512_min_epu16(a, b); }
MP_INLINE vu32 min_i8(vu32 a, vu32 b) { return _mm512_min_epi8(a, b); }
MP_INLINE vu32 max_i8(vu32 a, vu32 b) { return _mm512_max_epi8(a, b); }
MP_INLINE int any_clear(vu32 x, vu32 bits) { return _mm512_testn_epi32_mask(x, bits) != 0; }
MP_INLINE int any_set(vu32 x, vu32 bits) { return _mm512_test_epi32_mask(x, bits) != 0; }
MP_INLINE vu32 low_halves(vu32 a, vu32 b) {
    const vu32 pair = _mm512_setr_epi32(0x00020000, 0x00060004, 0x000A0008, 0x000E000C, 0x00120010, 0x00160014,
                                        0x001A0018, 0x001E001C, 0x00220020, 0x00260024, 0x002A0028, 0x002E002C,
                                        0x00320030, 0x00360034, 0x003A0038, 0x003E003C);
    return _mm512_permutex2var_epi16(a, pair, b);
}
MP_INLINE vu32 high_halves(vu32 a, vu32 b) {
    const vu32 pair = _mm512_setr_epi32(0x00030001, 0x00070005, 0x000B0009, 0x000F000D, 0x00130011, 0x00170015,
                                        0x001B0019, 0x001F001D, 0x00230021, 0x00270025, 0x002B0029, 0x002F002D,
                                        0x00330031, 0x00370035, 0x003B0039, 0x003F003D);
    return _mm512_permutex2var_epi16(a, pair, b);
}
MP_INLINE vu32 narrow_high_i8(vu32 a, vu32 b, vu32 c, vu32 d) {
    const vu32 packed = _mm512_packs_epi16(high_halves(a, b), high_halves(c, d));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}
MP_INLINE void storen_bytes(void *p, vu32 x, ptrdiff_t n) { _mm512_mask_storeu_epi8(p, (1ull << n) - 1, x); }

#define MP_NATIVE_F16
MP_INLINE vf32 f32_from_f16(vu16 x) { return _mm512_cvtph_ps(x); }
MP_INLINE vu16 f16_from_f32(vf32 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/* Each bf16 goes to the upper half of its lane. Then vfixupimmps makes signalling NaNs quiet. It keeps the bits of all
 * other numbers, subnormal ones too, even if the caller flushes them. */
MP_INLINE vf32 f32_from_bf16(vu16 h) {
    const vu32 twice = _mm512_setr_epi32(0x00000000, 0x00010001, 0x00020002, 0x00030003, 0x00040004, 0x00050005,
                                         0x00060006, 0x00070007, 0x00080008, 0x00090009, 0x000A000A, 0x000B000B,
                                         0x000C000C, 0x000D000D, 0x000E000E, 0x000F000F);
    const vf32 x = as_f32(_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, twice, _mm512_castsi256_si512(h)));
    return _mm512_fixupimm_ps(x, x, set_u32(0x20) /* class 1, signalling NaN: make it quiet */, 0);
}

MP_INLINE vu8 high_u8(vu16 x) { return _mm256_cvtepi16_epi8(_mm256_srli_epi16(x, 8)); }
MP_INLINE vmask eq_u16(vu16 a, vu16 b) { return _mm256_cmpeq_epi16_mask(a, b); }
#include "lanes16.h"

/* Transpose the 4 x 4 words in each 128-bit quarter of r[0..3], r[4..7], ...: first pairs of words, then pairs of
 * pairs. */
MP_INLINE void transpose_quarters(vu32 *r) {
    vu32 t[MP_LANES];
    MP_UNROLL_8 for (int i = 0; i < MP_LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    MP_UNROLL_8 for (int i = 0; i < MP_LANES; i += 4)
        MP_UNROLL_8 for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
}

/* A matrix of 16 x 16 words, transposed in place. */
MP_INLINE void transpose_u32(vu32 *r) {
    vu32 t[MP_LANES];
    transpose_quarters(r);
    MP_UNROLL_8 for (int i = 0; i < 4; i++)
        MP_UNROLL_8 for (int j = 0; j < 2; j++) {
            t[8 * j + i] = _mm512_shuffle_i32x4(r[8 * j + i], r[8 * j + i + 4], 0x88);
            t[8 * j + i + 4] = _mm512_shuffle_i32x4(r[8 * j + i], r[8 * j + i + 4], 0xDD);
        }
    MP_UNROLL_8 for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    }
}

/* Each load puts 8 words of row i + 4 above 8 words of row i. It replaces a shuffle of transpose_u32. */
#define MP_NATIVE_COLUMNS
#define MP_COLUMNS_FIT_REGISTERS
MP_INLINE void load_columns(const char *from, ptrdiff_t cs, vu32 *r) {
    vu32 t[MP_LANES];
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++) {
        const char *const row = from + (i % 8 + i % 8 / 4 * 4) * cs + i / 8 * 32;
        const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)row));
        t[i] = _mm512_mask_broadcast_i64x4(low, 0xF0, _mm256_loadu_si256((const void *)(row + 4 * cs)));
    }
    transpose_quarters(t);
    MP_UNROLL_8 for (int i = 0; i < 4; i++)
        MP_UNROLL_8 for (int j = i; j < MP_LANES; j += 8) {
            r[j] = _mm512_shuffle_i32x4(t[j], t[j + 4], 0x88);
            r[j + 4] = _mm512_shuffle_i32x4(t[j], t[j + 4], 0xDD);
        }
}

/* Adding after each shuffle takes half the work of transposing first. */
#define MP_NATIVE_SUMS
MP_INLINE vu32 sums_u32(const vu32 *r) {
    vu32 four[4];
    MP_UNROLL_8 for (int i = 0; i < 4; i++) { /* sums within 128-bit quarters, of four vectors */
        const vu32 *const q = r + 4 * i;
        const vu32 ab = _mm512_add_epi32(_mm512_unpacklo_epi32(q[0], q[1]), _mm512_unpackhi_epi32(q[0], q[1]));
        const vu32 cd = _mm512_add_epi32(_mm512_unpacklo_epi32(q[2], q[3]), _mm512_unpackhi_epi32(q[2], q[3]));
        four[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
#define QUARTERS(A, B) _mm512_add_epi32(_mm512_shuffle_i32x4(A, B, 0x88), _mm512_shuffle_i32x4(A, B, 0xDD))
    return QUARTERS(QUARTERS(four[0], four[1]), QUARTERS(four[2], four[3]));
#undef QUARTERS
}

/* Permute the words of the four rows into order, then the four bytes of each lane. */
#define MP_NATIVE_U8
MP_INLINE vu32 interleave_u8(vu8 a, vu8 b, vu8 c, vu8 d) {
    const vu32 ab = _mm512_inserti32x4(_mm512_castsi128_si512(a), b, 1);
    const vu32 rows = _mm512_inserti32x4(_mm512_inserti32x4(ab, c, 2), d, 3);
    const vu32 order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, rows),
                               _mm512_set4_epi32(0x0F0B0703, 0x0E0A0602, 0x0D090501, 0x0C080400));
}

/* The words are permuted first, so that vpunpck, which works within 128 bits, leaves the result in order. */
#define MP_NATIVE_ROWS
MP_INLINE void interleave_rows(const char *src, ptrdiff_t rs, vu32 *quads) {
    const vu32 order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    vu32 r[4];
    MP_UNROLL_8 for (int q = 0; q < 4; q++) r[q] = _mm512_permutexvar_epi32(order, load_u32(src + q * rs));
    const vu32 low01 = _mm512_unpacklo_epi8(r[0], r[1]), high01 = _mm512_unpackhi_epi8(r[0], r[1]);
    const vu32 low23 = _mm512_unpacklo_epi8(r[2], r[3]), high23 = _mm512_unpackhi_epi8(r[2], r[3]);
    quads[0] = _mm512_unpacklo_epi16(low01, low23), quads[1] = _mm512_unpackhi_epi16(low01, low23);
    quads[2] = _mm512_unpacklo_epi16(high01, high23), quads[3] = _mm512_unpackhi_epi16(high01, high23);
}

MP_INLINE uint32_t top_u32(vu32 x) { return _mm512_reduce_max_epu32(x); }
/* If one of two numbers is NaN, the result of vmaxps is the second one. So the second operands are the lower lanes:
 * only lane 0 may be NaN. */
MP_INLINE float max_lanes(vf32 x) {
    const vf32 y = _mm512_mask_max_ps(x, 0xFFFE, x, set_f32(-INFINITY));
    const __m256 h8 = _mm256_max_ps(_mm512_extractf32x8_ps(y, 1), _mm512_castps512_ps256(y));
    const __m128 h4 = _mm_max_ps(_mm256_extractf128_ps(h8, 1), _mm256_castps256_ps128(h8));
    const __m128 h2 = _mm_max_ps(_mm_movehl_ps(h4, h4), h4);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(h2), h2));
}
MP_INLINE float sum_f32(vf32 x) {
    const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

#ifdef MP_NATIVE_VNNI /* avx512_vnni.h */
MP_INLINE vu32 dot_u8s8(vu32 acc, vu32 a, vu32 b) { return _mm512_dpbusd_epi32(acc, a, b); }
#else
#define MP_QUADS_BY_TWO
/* Bytes 0 and 2, then 1 and 3, widened to 16 bits: |255 * 128 * 2| fits in 32 bits, nothing saturates. */
MP_INLINE vu32 dot_u8s8(vu32 acc, vu32 a, vu32 b) {
    const vu32 a_even = and_u32(a, set_u32(0x00FF00FFu)), a_odd = _mm512_srli_epi16(a, 8);
    const vu32 b_even = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8), b_odd = _mm512_srai_epi16(b, 8);
    acc = add_u32(acc, _mm512_madd_epi16(a_even, b_even));
    return add_u32(acc, _mm512_madd_epi16(a_odd, b_odd));
}
#endif

/* vpmaddubsw saturates, but not here: |4 * 24 * 128| fits in 16 bits. */
#ifndef MP_NATIVE_VNNI
#define MP_NATIVE_U4_DOT
MP_INLINE vu32 dot_two_s8u4(vu32 z, vf32 x, vu32 y, vf32 next_x, vu32 next_y) {
    const vu32 first = _mm512_maddubs_epi16(y, as_u32(x)), next = _mm512_maddubs_epi16(next_y, as_u32(next_x));
    return add_u32(z, _mm512_madd_epi16(_mm512_add_epi16(first, next), _mm512_set1_epi16(1)));
}
#endif

#ifdef MP_NATIVE_BYTES /* avx512_bf16.h */
#include "tables.h"
#else
/* Elements 2 s and 2 s + 1 of four float8 to a pair of bf16, exactly. Each byte is moved to the top of 16 bits, which
 * is the right place for its sign. Normal numbers: shift exponent and mantissa to their place and add the difference of
 * the biases. Subnormal numbers: look them up (vpermw uses the low 5 bits of the index). `special`: bits that are all
 * set only in codes of Inf and NaN; `mark`: bits that make the result Inf or NaN. */
#define MP_NATIVE_F8_PAIRS
MP_INLINE vu32 pair_from_f8(vu32 word, const int s, const int mantissa, const int bias, const uint16_t *subnormal,
                            const int special, const int mark) {
    const vu32 spread = s ? _mm512_set4_epi32(0x0F800E80, 0x0B800A80, 0x07800680, 0x03800280)
                          : _mm512_set4_epi32(0x0D800C80, 0x09800880, 0x05800480, 0x01800080);
    const vu32 x = _mm512_shuffle_epi8(word, spread);
    const vu32 fields = and_u32(_mm512_srli_epi16(x, 1 + mantissa), _mm512_set1_epi16(0x7F00 >> (1 + mantissa)));
    const vu32 rebased = _mm512_add_epi16(fields, _mm512_set1_epi16((short)((127 - bias) << 7)));
    const __mmask32 tiny = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x7F00 & (0xFF00 << mantissa)));
    const vu32 value =
        _mm512_mask_permutexvar_epi16(rebased, tiny, _mm512_srli_epi16(x, 8), _mm512_loadu_si512(subnormal));
    const vu32 exponent = _mm512_set1_epi16((short)special);
    const vu32 is_special = _mm512_movm_epi16(_mm512_cmpeq_epi16_mask(and_u32(x, exponent), exponent));
    const vu32 marked
        = _mm512_ternarylogic_epi32(value, is_special, _mm512_set1_epi16((short)mark), 0xF8); /* a | b & c */
    return _mm512_ternarylogic_epi32(marked, x, _mm512_set1_epi16((short)0x8000), 0xF8);
}

static const uint16_t e4m3fn_subnormals[32] = {0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60};
MP_INLINE vu32 pair_from_e4m3fn(vu32 word, const int s) {
    return pair_from_f8(word, s, 3, 7, e4m3fn_subnormals, 0x7F00, 0x7FC0);
}

static const uint16_t e5m2_subnormals[32] = {0, 0x3780, 0x3800, 0x3840};
MP_INLINE vu32 pair_from_e5m2(vu32 word, const int s) {
    return pair_from_f8(word, s, 2, 15, e5m2_subnormals, 0x7C00, 0x7F80);
}
#endif

/* Bits 0 to 3 and bits 16 to 19 of each lane, as signed numbers, to a pair of bf16. */
#define MP_NATIVE_I4_PAIRS
static const uint16_t i4_values[32]
    = {/* twice: vpermw looks at 5 bits, of which the highest belongs to the next element */
       0,      0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0,
       0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80, 0,      0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0,
       0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80};
MP_INLINE vu32 pair_from_i4(vu32 word) { return _mm512_permutexvar_epi16(word, _mm512_loadu_si512(i4_values)); }
/* The same bits as e2m1; the low four bits of each lane to f32. */
#define MP_NATIVE_F4
#define MP_NATIVE_F4_PAIRS
static const uint16_t f4_values[32] = {
    0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080,
    0xC0C0, 0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040,
    0xC080, 0xC0C0};
MP_INLINE vu32 pair_from_f4(vu32 word) { return _mm512_permutexvar_epi16(word, _mm512_loadu_si512(f4_values)); }
MP_INLINE vf32 f32_from_f4(vu32 x) {
    const vf32 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(x, values);
}
/* Twice the value of e2m1 in bytes, plus 12. */
#define MP_NATIVE_F4_BYTES
MP_INLINE vu32 bytes_from_f4(vu32 code) {
    const vu32 doubled = _mm512_set4_epi32(0x00040608, 0x090A0B0C, 0x18141210, 0x0F0E0D0C);
    return _mm512_shuffle_epi8(doubled, code);
}
/* The low five bits of each lane or half of a lane, minus 16. */
#define MP_NATIVE_U5
static const uint16_t u5_values[32] = {/* -16 to 15 */
                                       0xC180, 0xC170, 0xC160, 0xC150, 0xC140, 0xC130, 0xC120, 0xC110,
                                       0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80,
                                       0,      0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
                                       0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
MP_INLINE vu32 pair_from_u5(vu32 halves) { return _mm512_permutexvar_epi16(halves, _mm512_loadu_si512(u5_values)); }
MP_INLINE vf32 f32_from_u5(vu32 x) {
    const vf32 low = _mm512_setr_ps(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1);
    const vf32 high = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutex2var_ps(low, x, high);
}

#define MP_DIVIDES 0
#define MP_MR 6
#define MP_NR_VECTORS 4
#ifdef MP_NATIVE_BYTES
#define MP_FEW_ROWS_WIDE {[MP_F16] = PTRDIFF_MAX, [MP_BF16] = PTRDIFF_MAX, \
                          [MP_F8_E4M3FN] = 32, [MP_F8_E5M2] = 32, [MP_I8] = PTRDIFF_MAX, [MP_I4] = PTRDIFF_MAX, \
                          [MP_F4] = PTRDIFF_MAX}
#define MP_FEW_ROWS_PAIRS \
                         {[MP_F8_E4M3FN] = 32, [MP_F8_E5M2] = 32, [MP_I8] = 16, [MP_I4] = PTRDIFF_MAX, \
                          [MP_F4] = PTRDIFF_MAX}
#else
#define MP_FEW_ROWS_WIDE {[MP_F16] = PTRDIFF_MAX, [MP_BF16] = PTRDIFF_MAX, \
                          [MP_F8_E4M3FN] = 16, [MP_F8_E5M2] = 16, [MP_I8] = PTRDIFF_MAX, [MP_I4] = PTRDIFF_MAX, \
                          [MP_F4] = PTRDIFF_MAX}
#define MP_FEW_ROWS_PAIRS \
                         {[MP_F8_E4M3FN] = 5, [MP_F8_E5M2] = 5, [MP_I8] = PTRDIFF_MAX, [MP_I4] = PTRDIFF_MAX, \
                          [MP_F4] = PTRDIFF_MAX}
#endif
#define MP_FEW_ROWS_SHIFTED_WIDE 4
#define MP_FEW_ROWS_SHIFTED_PAIRS 4
#ifdef MP_NATIVE_VNNI
#define MP_SCALED_IN_REGISTERS
#define MP_FEW_ROWS_SHIFTED_QUADS PTRDIFF_MAX
#else
#define MP_FEW_ROWS_SHIFTED_QUADS 4
#endif
