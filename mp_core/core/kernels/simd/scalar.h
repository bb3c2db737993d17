/* The vocabulary for any CPU, in the vector extensions of GCC and Clang: a vector of 16 lanes is four vectors of 16
 * bytes, which the compiler maps to the instructions of the CPU (SSE2 on every x86-64). fused.h has the fused
 * multiply-adds. If the compiler needs many instructions where SSE2 has one, the code uses its intrinsic. */
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ > 0 && __FLT_EVAL_METHOD__ < 16
#error "float and double must round in every operation: on 32-bit x86, compile with -msse2 -mfpmath=sse"
#endif

typedef float q_f32 __attribute__((vector_size(16)));
typedef uint32_t q_u32 __attribute__((vector_size(16)));
typedef int32_t q_i32 __attribute__((vector_size(16)));
typedef uint16_t q_u16 __attribute__((vector_size(16)));
typedef uint8_t q_u8 __attribute__((vector_size(16)));

typedef struct { q_f32 x[4]; } vf32;
typedef struct { q_u32 x[4]; } vu32;
typedef struct { q_u16 x[2]; } vu16;
typedef q_u8 vu8;
typedef vu32 vmask; /* all ones or all zeros per lane */
#define MP_OUT_OF_LINE

/* Select lanes by number: 0 to lanes - 1 are those of A, lanes to 2 lanes - 1 those of B. */
#if defined(__clang__)
#define MP_SHUFFLE(MASK, A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define MP_SHUFFLE(MASK, A, B, ...) __builtin_shuffle(A, B, (MASK){__VA_ARGS__})
#endif
#define MP_EVEN_LANES(A, B) MP_SHUFFLE(q_u32, A, B, 0, 2, 4, 6)
#define MP_ODD_LANES(A, B) MP_SHUFFLE(q_u32, A, B, 1, 3, 5, 7)

#define MP_QUARTERS(R, F, ...) ((R){{F(0, __VA_ARGS__), F(1, __VA_ARGS__), F(2, __VA_ARGS__), F(3, __VA_ARGS__)}})
#define MP_INFIX(I, A, OP, B) (A).x[I] OP (B).x[I]
#define MP_CALL1(I, F, A) F((A).x[I])
#define MP_CALL2(I, F, A, B) F((A).x[I], (B).x[I])
#define MP_WORD(T, NAME, OP) MP_INLINE T NAME(T a, T b) { return MP_QUARTERS(T, MP_INFIX, a, OP, b); }

#define MP_REPEAT(I, X) (X)
MP_INLINE vf32 set_f32(float x) { const q_f32 q = {x, x, x, x}; return MP_QUARTERS(vf32, MP_REPEAT, q); }
MP_INLINE vu32 set_u32(uint32_t x) { const q_u32 q = {x, x, x, x}; return MP_QUARTERS(vu32, MP_REPEAT, q); }

#define MP_MEMORY(T, POINTER, LOAD, STORE)                              \
    MP_INLINE T LOAD(POINTER p) { T r; memcpy(&r, p, sizeof r); return r; }     \
    MP_INLINE void STORE(void *p, T x) { memcpy(p, &x, sizeof x); }
MP_MEMORY(vf32, const float *, load_f32, store_f32)
MP_MEMORY(vu32, const void *, load_u32, store_u32)
MP_MEMORY(vu16, const void *, load_u16, store_u16)
MP_MEMORY(vu8, const void *, load_u8, store_u8)
#define stream_f32 store_f32
#define stream_u16 store_u16
#define stream_u8 store_u8
MP_INLINE void stream_fence(void) {}
#include "partial.h"

#define MP_AS(I, Q, A) (Q)(A).x[I]
MP_INLINE vu32 as_u32(vf32 a) { return MP_QUARTERS(vu32, MP_AS, q_u32, a); }
MP_INLINE vf32 as_f32(vu32 a) { return MP_QUARTERS(vf32, MP_AS, q_f32, a); }

MP_WORD(vf32, add_f32, +)
MP_WORD(vf32, sub_f32, -)
MP_WORD(vf32, mul_f32, *)
MP_WORD(vf32, div_f32, /)

MP_WORD(vu32, and_u32, &)
MP_WORD(vu32, or_u32, |)
MP_WORD(vu32, xor_u32, ^)
MP_WORD(vu32, add_u32, +)
MP_WORD(vu32, sub_u32, -)
MP_WORD(vu32, mul_u32, *)
#define MP_SHIFT(I, Q, A, OP, N) (q_u32)((Q)(A).x[I] OP (N))
MP_INLINE vu32 shl_u32(vu32 a, const int n) { return MP_QUARTERS(vu32, MP_SHIFT, q_u32, a, <<, n); }
MP_INLINE vu32 shr_u32(vu32 a, const int n) { return MP_QUARTERS(vu32, MP_SHIFT, q_u32, a, >>, n); }
MP_INLINE vu32 sar_u32(vu32 a, const int n) { return MP_QUARTERS(vu32, MP_SHIFT, q_i32, a, >>, n); }

/* x where m is all ones, y where it is all zeros. */
MP_INLINE q_u32 q_select(q_u32 m, q_u32 x, q_u32 y) { return (m & x) | (~m & y); }

#define MP_COMPARE(I, Q, A, OP, B) (q_u32)((Q)(A).x[I] OP (Q)(B).x[I])
MP_INLINE vmask lt_f32(vf32 a, vf32 b) { return MP_QUARTERS(vmask, MP_COMPARE, q_f32, a, <, b); }
MP_INLINE vmask ne_f32(vf32 a, vf32 b) { return MP_QUARTERS(vmask, MP_COMPARE, q_f32, a, !=, b); }
MP_INLINE vmask gt_i32(vu32 a, vu32 b) { return MP_QUARTERS(vmask, MP_COMPARE, q_i32, a, >, b); }
MP_INLINE vmask lt_u32(vu32 a, vu32 b) { return MP_QUARTERS(vmask, MP_COMPARE, q_u32, a, <, b); }
#define MP_SELECT(I, M, A, B) q_select((M).x[I], (A).x[I], (B).x[I])
MP_INLINE vu32 select_u32(vmask m, vu32 a, vu32 b) { return MP_QUARTERS(vu32, MP_SELECT, m, a, b); }
MP_INLINE vf32 select_f32(vmask m, vf32 a, vf32 b) { return as_f32(select_u32(m, as_u32(a), as_u32(b))); }
MP_INLINE vu32 min_u32(vu32 a, vu32 b) { return select_u32(lt_u32(a, b), a, b); }
MP_INLINE vu32 max_u32(vu32 a, vu32 b) { return select_u32(lt_u32(a, b), b, a); }
#if defined(__SSE__) /* minps and maxps are these selections */
#define MP_SSE2(I, F, A, B) (q_f32)F((__m128)(A).x[I], (__m128)(B).x[I])
MP_INLINE vf32 min_f32(vf32 a, vf32 b) { return MP_QUARTERS(vf32, MP_SSE2, _mm_min_ps, a, b); }
MP_INLINE vf32 max_f32(vf32 a, vf32 b) { return MP_QUARTERS(vf32, MP_SSE2, _mm_max_ps, a, b); }
#else
MP_INLINE vf32 min_f32(vf32 a, vf32 b) { return select_f32(lt_f32(a, b), a, b); }
MP_INLINE vf32 max_f32(vf32 a, vf32 b) { return select_f32(lt_f32(b, a), a, b); }
#endif
MP_INLINE vmask first_n(ptrdiff_t n) {
    const vu32 lane = {{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}};
    return gt_i32(set_u32((uint32_t)n), lane);
}

#define MP_FROM_I32(I, A) __builtin_convertvector((q_i32)(A).x[I], q_f32)
MP_INLINE vf32 f32_from_i32(vu32 a) { return MP_QUARTERS(vf32, MP_FROM_I32, a); }

/* Below 2^23, adding 2^23 with the sign of x rounds x to an integer; larger x are integers. C does not define the
 * conversion of numbers beyond int32 and of NaN: these become 0. */
MP_INLINE q_u32 q_i32_from_f32(q_f32 x) {
    const q_u32 sign = (q_u32)x & 0x80000000u, magnitude = (q_u32)x ^ sign;
    const q_f32 large = (q_f32)(sign | 0x4B000000u);
    const q_u32 integer = q_select((q_u32)(magnitude < 0x4B000000u), (q_u32)((x + large) - large), (q_u32)x);
    const q_u32 fits = (q_u32)(magnitude < 0x4F000000u) | (q_u32)((q_u32)x == 0xCF000000u);
    return (q_u32)__builtin_convertvector((q_f32)(fits & integer), q_i32);
}
MP_INLINE vu32 i32_from_f32(vf32 a) { return MP_QUARTERS(vu32, MP_CALL1, q_i32_from_f32, a); }

/* Fill each 32-bit lane with two copies of a 16-bit element, or with four copies of a byte. Then a right shift widens
 * the element, in both byte orders. */
MP_INLINE vu32 twice_u16(vu16 a) {
    return (vu32){{(q_u32)MP_SHUFFLE(q_u16, a.x[0], a.x[0], 0, 0, 1, 1, 2, 2, 3, 3),
                   (q_u32)MP_SHUFFLE(q_u16, a.x[0], a.x[0], 4, 4, 5, 5, 6, 6, 7, 7),
                   (q_u32)MP_SHUFFLE(q_u16, a.x[1], a.x[1], 0, 0, 1, 1, 2, 2, 3, 3),
                   (q_u32)MP_SHUFFLE(q_u16, a.x[1], a.x[1], 4, 4, 5, 5, 6, 6, 7, 7)}};
}
MP_INLINE vu32 four_times_u8(vu8 a) {
    return twice_u16(
        (vu16){{(q_u16)MP_SHUFFLE(q_u8, a, a, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                (q_u16)MP_SHUFFLE(q_u8, a, a, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)}});
}
MP_INLINE vu32 widen_u16(vu16 a) { return shr_u32(twice_u16(a), 16); }
MP_INLINE vu32 widen_u8(vu8 a) { return shr_u32(four_times_u8(a), 24); }
MP_INLINE vu32 widen_i8(vu8 a) { return sar_u32(four_times_u8(a), 24); }
MP_INLINE vf32 f32_from_bf16(vu16 h) {
    const vu32 u = and_u32(twice_u16(h), set_u32(0xFFFF0000u));
    const vmask nan = gt_i32(and_u32(u, set_u32(0x7FFFFFFF)), set_u32(0x7F800000));
    return as_f32(or_u32(u, and_u32(nan, set_u32(0x400000) /* quiet */)));
}

/* The lower (upper) halves of the lanes of x, then of y. A lane of the result has those of two consecutive lanes, the
 * first in its lower half. */
MP_INLINE q_u32 q_low_halves(q_u32 x, q_u32 y) { return (MP_EVEN_LANES(x, y) & 0xFFFFu) | MP_ODD_LANES(x, y) << 16; }
MP_INLINE q_u32 q_high_halves(q_u32 x, q_u32 y) {
    return MP_EVEN_LANES(x, y) >> 16 | (MP_ODD_LANES(x, y) & 0xFFFF0000u);
}
MP_INLINE vu32 low_halves(vu32 a, vu32 b) {
    return (vu32){{q_low_halves(a.x[0], a.x[1]), q_low_halves(a.x[2], a.x[3]), q_low_halves(b.x[0], b.x[1]),
                   q_low_halves(b.x[2], b.x[3])}};
}
MP_INLINE vu32 high_halves(vu32 a, vu32 b) {
    return (vu32){{q_high_halves(a.x[0], a.x[1]), q_high_halves(a.x[2], a.x[3]), q_high_halves(b.x[0], b.x[1]),
                   q_high_halves(b.x[2], b.x[3])}};
}

/* The lowest 16 bits of the lanes of x, then of y, in the order of memory. */
MP_INLINE q_u32 q_narrow(q_u32 x, q_u32 y) {
#if defined(__SSE2__) /* packssdw saturates, but keeps every bit of sign-extended halves */
    return (q_u32)_mm_packs_epi32((__m128i)((q_i32)(x << 16) >> 16), (__m128i)((q_i32)(y << 16) >> 16));
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return q_low_halves(x, y);
#else
    return MP_EVEN_LANES(x, y) << 16 | (MP_ODD_LANES(x, y) & 0xFFFFu);
#endif
}
MP_INLINE vu16 narrow_u16(vu32 a) { return (vu16){{(q_u16)q_narrow(a.x[0], a.x[1]), (q_u16)q_narrow(a.x[2], a.x[3])}}; }

/* Lane i: the lowest bytes of lanes 2 i and 2 i + 1 of x, then of y, in its lower 16 bits, in the order of memory. */
MP_INLINE q_u32 q_byte_pairs(q_u32 x, q_u32 y) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (MP_EVEN_LANES(x, y) & 0xFFu) | (MP_ODD_LANES(x, y) & 0xFFu) << 8;
#else
    return (MP_EVEN_LANES(x, y) & 0xFFu) << 8 | (MP_ODD_LANES(x, y) & 0xFFu);
#endif
}
MP_INLINE vu8 narrow_u8(vu32 a) {
    return (vu8)q_narrow(q_byte_pairs(a.x[0], a.x[1]), q_byte_pairs(a.x[2], a.x[3]));
}

#define MP_NATIVE_U8
#define MP_LOWER_BYTES(A, B) MP_SHUFFLE(q_u8, A, B, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define MP_UPPER_BYTES(A, B) MP_SHUFFLE(q_u8, A, B, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define MP_LOWER_HALVES(A, B) (q_u32)MP_SHUFFLE(q_u16, (q_u16)(A), (q_u16)(B), 0, 8, 1, 9, 2, 10, 3, 11)
#define MP_UPPER_HALVES(A, B) (q_u32)MP_SHUFFLE(q_u16, (q_u16)(A), (q_u16)(B), 4, 12, 5, 13, 6, 14, 7, 15)
MP_INLINE vu32 in_memory_order(vu8 a, vu8 b, vu8 c, vu8 d) {
    const q_u8 ab0 = MP_LOWER_BYTES(a, b), ab1 = MP_UPPER_BYTES(a, b), cd0 = MP_LOWER_BYTES(c, d),
               cd1 = MP_UPPER_BYTES(c, d);
    return (vu32){
        {MP_LOWER_HALVES(ab0, cd0), MP_UPPER_HALVES(ab0, cd0), MP_LOWER_HALVES(ab1, cd1), MP_UPPER_HALVES(ab1, cd1)}};
}
MP_INLINE vu32 interleave_u8(vu8 a, vu8 b, vu8 c, vu8 d) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return in_memory_order(a, b, c, d);
#else
    return in_memory_order(d, c, b, a);
#endif
}

/* Transpose four rows of four words; then a matrix of 16 x 16 words in place, by its blocks of 4 x 4. */
MP_INLINE void transpose_four(q_u32 *r) {
    const q_u32 a = MP_SHUFFLE(q_u32, r[0], r[1], 0, 4, 1, 5), b = MP_SHUFFLE(q_u32, r[2], r[3], 0, 4, 1, 5);
    const q_u32 c = MP_SHUFFLE(q_u32, r[0], r[1], 2, 6, 3, 7), d = MP_SHUFFLE(q_u32, r[2], r[3], 2, 6, 3, 7);
    r[0] = MP_SHUFFLE(q_u32, a, b, 0, 1, 4, 5), r[1] = MP_SHUFFLE(q_u32, a, b, 2, 3, 6, 7);
    r[2] = MP_SHUFFLE(q_u32, c, d, 0, 1, 4, 5), r[3] = MP_SHUFFLE(q_u32, c, d, 2, 3, 6, 7);
}
MP_INLINE void transpose_u32(vu32 *r) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j <= i; j++) {
            q_u32 below[4], above[4];
            MP_UNROLL_8 for (int k = 0; k < 4; k++) below[k] = r[4 * i + k].x[j], above[k] = r[4 * j + k].x[i];
            transpose_four(below), transpose_four(above);
            MP_UNROLL_8 for (int k = 0; k < 4; k++) r[4 * i + k].x[j] = above[k], r[4 * j + k].x[i] = below[k];
        }
}

MP_INLINE uint32_t top_u32(vu32 a) {
    uint32_t lane[MP_LANES], top = 0;
    store_u32(lane, a);
    for (int i = 0; i < MP_LANES; i++) top = lane[i] > top ? lane[i] : top;
    return top;
}
MP_INLINE float max_lanes(vf32 a) {
    float lane[MP_LANES];
    store_f32(lane, a);
    float best = lane[0];
    for (int i = 1; i < MP_LANES; i++) best = lane[i] > best ? lane[i] : best;
    return best;
}
MP_INLINE float sum_f32(vf32 a) {
    const q_f32 four = (a.x[0] + a.x[2]) + (a.x[1] + a.x[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

MP_INLINE q_u32 q_dot_u8s8(q_u32 sum, q_u32 a, q_u32 b) {
#if defined(__SSE2__) /* bytes 0 and 2, then 1 and 3, widened to 16 bits: nothing saturates */
    const __m128i a_odd = _mm_srli_epi16((__m128i)a, 8), b_even = _mm_srai_epi16(_mm_slli_epi16((__m128i)b, 8), 8);
    sum += (q_u32)_mm_madd_epi16((__m128i)(a & 0x00FF00FFu), b_even);
    return sum + (q_u32)_mm_madd_epi16(a_odd, _mm_srai_epi16((__m128i)b, 8));
#else
    MP_UNROLL_8 for (int n = 0; n < 32; n += 8) sum += (a >> n & 0xFFu) * (q_u32)((q_i32)(b << (24 - n)) >> 24);
    return sum;
#endif
}
#define MP_DOT(I, S, A, B) q_dot_u8s8((S).x[I], (A).x[I], (B).x[I])
MP_INLINE vu32 dot_u8s8(vu32 sum, vu32 a, vu32 b) { return MP_QUARTERS(vu32, MP_DOT, sum, a, b); }

#include "fused.h"

#define MP_DIVIDES 1
#define MP_MR 1
#define MP_NR_VECTORS 1
#define MP_FEW_ROWS_WIDE \
    {[MP_F16] = 3, [MP_BF16] = 3, [MP_F8_E4M3FN] = 3, [MP_F8_E5M2] = 3, [MP_I8] = 3, [MP_I4] = 3, [MP_F4] = 3}
#define MP_FEW_ROWS_PAIRS {[MP_F8_E4M3FN] = 3, [MP_F8_E5M2] = 3, [MP_I8] = 3, [MP_I4] = 3, [MP_F4] = 3}
#define MP_FEW_ROWS_SHIFTED_WIDE 3
#define MP_FEW_ROWS_SHIFTED_PAIRS 3
#define MP_FEW_ROWS_SHIFTED_QUADS 3
