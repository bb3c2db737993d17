/* The words in which every kernel is written: the vocabulary of an instruction set, which a header in simd/ defines,
 * and the words below, which are made of it.
 *
 * A vector has 16 lanes, for registers of any width, so that every kernel has the same results on every set: vf32 of
 * floats, vu32, vu16, vu8 of unsigned integers, vmask of yes or no. In the tables x, y, z, w are vectors of the type in
 * the word's name, r[16] vectors in memory, m a mask, n a count, s a scalar, an index or a stride in bytes, p and q
 * addresses of any alignment, t a second stride. Each word is in tests/vocabulary.c, and tests/test_vocabulary.py
 * computes its meaning with NumPy.
 *
 * word                                   | operands    | meaning
 * -------------------------------------- | ----------- | -------
 * set_f32 set_u32                        | s           | s in every lane
 * load_f32 load_u32 load_u16 load_u8     | p           | the 16 elements at p
 * store_f32 store_u32 store_u16 store_u8 | p, x        | writes x to p
 * loadn_f32 loadn_u32 loadn_u16 loadn_u8 | p, n        | the first 0 < n <= 16 elements at p, 0 in the other lanes
 * storen_f32 storen_u32                  | p, x, n     | writes the first 0 < n <= 16 lanes of x to p
 * storen_u16 storen_u8                   |             |
 * storen_bytes                           | p, x, n     | writes the first 0 < n < 64 bytes of x to p
 * stream_f32 stream_u16 stream_u8        | p, x        | writes x to p past the caches; p is aligned to a vector
 * stream_fence                           |             | other threads see what was streamed before it
 *
 * add_f32 sub_f32 mul_f32 div_f32        | x, y        | IEEE arithmetic, rounded once to nearest even
 * fma_f32                                | x, y, z     | x y + z, rounded once
 * min_f32 max_f32                        | x, y        | x where x < y (x > y), else y: so y where either is NaN
 * add_u32 sub_u32 mul_u32                | x, y        | modulo 2^32
 * min_u32 max_u32                        | x, y        | of unsigned numbers
 * and_u32 or_u32 xor_u32                 | x, y        | bit by bit
 * shl_u32 shr_u32 sar_u32                | x, s        | by a constant 0 <= s < 32: left, right, right with the sign
 * as_f32 as_u32                          | x           | the same bits as the other type
 * lt_f32                                 | x, y        | mask of the lanes where x < y; no where either is NaN
 * gt_i32                                 | x, y        | mask of the lanes where x > y as signed numbers
 * first_n                                | n           | mask of the first 0 <= n <= 16 lanes
 * select_f32 select_u32                  | m, x, y     | x where m says yes, else y
 *
 * f32_from_i32                           | x           | signed integers, rounded to nearest even
 * i32_from_f32                           | x           | to nearest even, if the result fits int32. NaN and, if
 *                                        |             | MP_DIVIDES is 0, numbers beyond int32 become some
 *                                        |             | multiple of 2^16 (quantize/reciprocals.h needs that)
 * f32_from_bf16                          | x           | exact; a NaN becomes quiet and keeps its sign
 * widen_u16 widen_u8 widen_i8            | x           | to 32 bits; widen_i8 copies the sign
 * load_u16_as_u32                        | p           | widen_u16(load_u16(p))
 * narrow_u16 narrow_u8                   | x           | the lowest 16 (8) bits of each lane
 * low_halves high_halves                 | x, y        | the lower (upper) 16 bits of the lanes of x, then of y
 *
 * top_u32                                | x           | the largest lane, unsigned
 * max_lanes                              | x           | the largest lane; NaN in lanes 1 to 15 is ignored
 * sum_f32                                | x           | lanes i and i + 8 added, then i and i + 4, i + 2, i + 1
 * sums_u32                               | r[16]       | lane i: the sum of the lanes of r[i]; may overwrite r
 * transpose_u32                          | r[16]       | r as a matrix of 16 x 16 words, transposed in place
 * load_columns                           | p, s, r[16] | lane i of r[j]: word j of those at p + i s bytes
 * interleave_u8                          | x, y, z, w  | byte i of x, y, z and w in lane i, x lowest
 * interleave_rows                        | p, s, r[4]  | lane j of r[i]: byte 16 i + j at p, p + s, p + 2 s, p + 3 s
 *
 * dot_bf16                               | z, x, y     | fma(x0, y0, fma(x1, y1, z)) of the bf16 x0 (low half) and x1
 *                                        |             | in each lane; flushes subnormals if the caller has set that
 *                                        |             | mode, and always on a CPU that has no such mode
 * dot_u8s8                               | z, x, y     | z + four products of unsigned bytes of x by signed ones of y
 * wide_factor pair_factor                | p           | the f32 or the pair of bf16 at p as a factor, which is
 *                                        |             | multiplied with every lane
 * quad_factor                            | p, s        | the four bytes at p, whose 32 bits are xored with s, likewise
 * fma_factor                             | z, x, y     | x y + z, rounded once, of a factor x
 * dot_bf16_factor dot_u8s8_factor        | z, x, y     | dot_bf16 and dot_u8s8 of a factor x
 * at_most                                | n, s        | the smaller of two counts
 * unaligned_head                         | p, s, n     | how many of n elements of s bytes at p are before the first
 *                                        |             | that begins at a multiple of 64 bytes; n if none does
 *
 * if MP_NATIVE_F16: the CPU converts f16
 * f32_from_f16 f16_from_f32              | x           | exact, NaN as in f32_from_bf16; rounded once to nearest even
 * load_f16_as_f32                        | p           | f32_from_f16(load_u16(p))
 * set_u16 u16_from_u8 and_u16 or_u16     |             | as those of 32 bits
 * shl_u16                                |             |
 * high_u8                                | x           | the upper byte of each lane
 * eq_u16                                 | x, y        | mask of the lanes where x = y
 *
 * if MP_NATIVE_BF16: the CPU converts and multiplies bf16
 * bf16_of_normal                         | x           | rounded once to nearest even; no lane is subnormal
 * any_subnormal                          | x           | whether a lane is subnormal: nonzero or 0
 *
 * if not MP_DIVIDES: quantization multiplies by reciprocals, many codes at a time
 * min_u16 min_i8 max_i8                  | x, y        | of the 32 halves or 64 bytes of a vu32
 * any_clear                              | x, y        | whether x & y is 0 in a lane: nonzero or 0
 * any_set                                | x, y        | whether x & y is not 0 in a lane: nonzero or 0
 * narrow_high_i8                         | x, y, z, w  | the upper halves of all lanes, signed, clamped to 64 int8
 *
 * if MP_NATIVE_F8_PAIRS: 8-bit floats to pairs of bf16 (casts/decode.h)
 * pair_from_e4m3fn pair_from_e5m2        | x, s        | bytes 2 s, 2 s + 1 of each lane as bf16; s constant, 0 or 1
 *
 * if MP_NATIVE_I8_PAIRS: likewise
 * pair_from_i8                           | x, s        | the same of signed bytes
 *
 * if MP_NATIVE_I4_PAIRS: likewise
 * pair_from_i4                           | x           | bits 0-3 and 16-19 of each lane as signed numbers, in bf16
 *
 * if MP_NATIVE_F4: likewise
 * f32_from_f4                            | x           | bits 0-3 of each lane, an e2m1
 *
 * if MP_NATIVE_F4_PAIRS: likewise
 * pair_from_f4                           | x           | bits 0-3 and 16-19 of each lane, each an e2m1, in bf16
 *
 * if MP_NATIVE_F4_WORDS: likewise
 * pair_of_f4                             | x, s        | bits 4 s to 4 s + 3 of each half of a lane, each an e2m1, in
 *                                        |             | bf16; s constant, 0 to 3
 *
 * if MP_NATIVE_E4M3FN_WORDS: likewise
 * pair_of_e4m3fn                         | x, s        | bytes s and s + 2 of each lane, each an e4m3fn, in bf16; s
 *                                        |             | constant, 0 or 1
 *
 * if MP_NATIVE_F4_BYTES: likewise
 * bytes_from_f4                          | x           | bytes that are at most 15, each an e2m1: twice its value, plus
 *                                        |             | 12
 *
 * if MP_NATIVE_U5: likewise
 * pair_from_u5                           | x           | bits 0-4 and 16-20 of each lane, less 16, in bf16
 * f32_from_u5                            | x           | bits 0-4 of each lane, less 16
 *
 * if MP_NATIVE_U4_QUADS: likewise, to bytes
 * quad_from_u4                           | x, s        | the four bits from bit 8 s, 8 s + 16, 8 s + 4 and 8 s + 20 of
 *                                        |             | each lane on, as four bytes; s constant, 0 or 1
 *
 * if MP_NATIVE_TRANSPOSE: the set transposes by parts, since 16 vectors are more than its registers hold
 * transpose_words                        | p, s, q, t  | load_columns(p, s, r), stored: r[j] at q + j t bytes
 *
 * if MP_NATIVE_FMA_COLUMNS: one row of f32 is multiplied by columns in place, a few words at a time. (With
 * MP_COLUMNS_FIT_REGISTERS, one row of any float is, after load_columns: products/row_by_columns.h.)
 * fma_columns                            | z, a, p, s, k | lane i: z + the products of the k floats at a by those at
 *                                        |             | p + i s, each added by one fma, in order
 *
 * if MP_WIDENS: products of int16 and f32 are faster than those of int8 and of pairs of bf16 (recode of mp_products)
 * i16_from_i8                            | x, s        | signed bytes 2 s, 2 s + 1 of each lane as halves; s constant,
 *                                        |             | 0 or 1
 * dot_i16                                | z, x, y     | z + two products of signed halves
 *
 * if MP_NATIVE_OCTS: the CPU multiplies two rows by two columns of eight bytes (products/octs.h). An oct is two lanes
 * load_octs                              | p, q        | the eight bytes at p and the eight bytes at q, a two_octs
 * dot_octs_s8 dot_octs_u8                | z, x, y     | lane 4 p + 2 i + j: z + eight products of the bytes of oct i
 *                                        |             | of x, signed or unsigned, by those of oct 2 p + j of y,
 *                                        |             | signed; i and j are 0 or 1
 * zip_words zip_octs                     | x, y, s     | the first (s = 0) or the last half of: a word or oct of x, one
 *                                        |             | of y, the next of x, and so on; s constant, 0 or 1
 * unzip_octs                             | x, y, s     | the inverse: every other oct of x, then of y, from number s on
 *
 * if MP_NATIVE_S8: signed by signed bytes take no longer than unsigned by signed ones
 * dot_s8s8                               | z, x, y     | z + four products of signed bytes
 * dot_s8s8_factor                        | z, x, y     | the same of a factor x
 *
 * if not MP_NATIVE_S8: likewise
 * dot_s8u8_factor                        | z, x, y     | dot_u8s8 of a factor x, which is the signed one
 *
 * if MP_NATIVE_U4_DOT: likewise
 * dot_two_s8u4                           | z, x, y,    | dot_s8u8_factor of x and y, then of u and v; the bytes of y
 *                                        | u, v        | and v are at most 24
 *
 * A set may define factors of its own (MP_NATIVE_FACTORS), and faster load_u16_as_u32 and load_f16_as_f32, sums_u32,
 * load_columns, interleave_u8, interleave_rows or dot_bf16 than those below; it then defines MP_NATIVE_WIDE_LOADS,
 * MP_NATIVE_SUMS, MP_NATIVE_COLUMNS, MP_NATIVE_U8, MP_NATIVE_ROWS or, of dot_bf16, MP_NATIVE_DOT (MP_NATIVE_BF16
 * implies it).
 *
 * constant                               | meaning
 * -------------------------------------- | -------
 * MP_MR, MP_NR_VECTORS                   | the tallest register block: 6 or 1 rows, 4 or 1 vectors; those of
 *                                        | fewer rows may be wider (vectors_of in products/kinds.h)
 * MP_DIVIDES                             | 1 if a division costs less than five fused multiply-adds
 * MP_FEW_ROWS_WIDE, MP_FEW_ROWS_PAIRS    | few_rows of `decoded`: up to this many rows of A, decoding in registers
 *                                        | is faster than decoding the panel first, or reading float32 as it is
 *                                        | than copying it (Zen 4 and 5; float32, float16, int8 and int4 on
 *                                        | AVX2: Zen 3; AArch64: not measured; November 2026).
 *                                        | PTRDIFF_MAX: always
 * MP_FEW_ROWS_SHIFTED_WIDE, ..._PAIRS,   | few_rows_shifted of `decoded` (Zen 4, November 2026; AArch64:
 * MP_FEW_ROWS_SHIFTED_QUADS              | not measured)
 * MP_FEW_ROWS_RECODED_PAIRS,             | if MP_WIDENS (of quads: or MP_NATIVE_OCTS): few_rows of `recoded`
 * MP_FEW_ROWS_RECODED_QUADS              | (AVX2: Zen 3, November 2026; AArch64: not measured)
 * MP_TWO_GROUPS                          | defined if an iteration of the loop along K multiplies two
 *                                        | groups of wide_f32. On AVX2 a group takes 12 multiply-adds, two
 *                                        | loads and six broadcasts, and the loop 12 more instructions,
 *                                        | which are free only while the core's other hardware thread is
 *                                        | idle (Zen 3: docs/performance.md)
 * MP_PANELS_IN_TURN                      | if defined: for one row of A, the number of packed panels from
 *                                        | memory that are multiplied in turn (products/in_turn.h)
 * MP_QUADS_BY_TWO                        | defined if dot_u8s8 is two vpmaddwd, each at the rate of fused
 *                                        | multiply-adds; read only by the roofline (benchmark/loops.c)
 * MP_DECODES_TO_F32                      | defined if register blocks of pairs of at most three rows decode
 *                                        | codes to f32, not to bf16 (has_halves in products/kinds.h)
 * MP_OUT_OF_LINE                         | defined if functions marked MP_OUTLINED are too large to be inlined
 * MP_NATIVE_TILES                        | defined if there are AMX tiles (products/amx.h)
 * */
#ifndef MP_VOCABULARY_H
#define MP_VOCABULARY_H

#include <math.h>
#include <string.h>

#include "kernels.h"

#define MP_INLINE static inline __attribute__((always_inline))
#define MP_UNROLL_8 _Pragma("GCC unroll 8") /* products unroll loops completely: vectors stay in registers */
#define MP_UNROLL_16 _Pragma("GCC unroll 16")
#define MP_CONCAT_(A, B) A##B
#define MP_CONCAT(A, B) MP_CONCAT_(A, B)

#include MP_SIMD

#ifdef MP_OUT_OF_LINE
#define MP_OUTLINED static __attribute__((noinline, unused))
#else
#define MP_OUTLINED MP_INLINE
#endif

#if !defined(MP_NATIVE_BF16) && !defined(MP_NATIVE_DOT)
MP_INLINE vf32 dot_bf16(vf32 acc, vu32 a, vu32 b) {
    const vu32 odd = set_u32(0xFFFF0000u);
    acc = fma_f32(as_f32(and_u32(a, odd)), as_f32(and_u32(b, odd)), acc);
    return fma_f32(as_f32(shl_u32(a, 16)), as_f32(shl_u32(b, 16)), acc);
}
#endif

/* 1 if one of two signed operands is made unsigned by ^ 0x80: a for packed panels, b in place (kernels.h). */
#ifdef MP_NATIVE_S8
#define MP_FLIPS 0
#else
#define MP_FLIPS 1
#endif

#ifndef MP_NATIVE_FACTORS /* a factor is a vector */
typedef vf32 factor;
MP_INLINE factor wide_factor(const void *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return set_f32(x);
}
MP_INLINE factor pair_factor(const void *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return as_f32(set_u32(bits));
}
MP_INLINE factor quad_factor(const void *p, uint32_t flip) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return as_f32(xor_u32(set_u32(bits), set_u32(flip)));
}
MP_INLINE vf32 fma_factor(vf32 z, factor x, vf32 y) { return fma_f32(x, y, z); }
MP_INLINE vf32 dot_bf16_factor(vf32 z, factor x, vu32 y) { return dot_bf16(z, as_u32(x), y); }
MP_INLINE vu32 dot_u8s8_factor(vu32 z, factor x, vu32 y) { return dot_u8s8(z, as_u32(x), y); }
MP_INLINE vu32 dot_s8u8_factor(vu32 z, factor x, vu32 y) { return dot_u8s8(z, y, as_u32(x)); }
#ifdef MP_NATIVE_S8
MP_INLINE vu32 dot_s8s8_factor(vu32 z, factor x, vu32 y) { return dot_s8s8(z, as_u32(x), y); }
#endif
#endif

#ifndef MP_NATIVE_SUMS
MP_INLINE vu32 sums_u32(vu32 *r) {
    transpose_u32(r);
    vu32 total = r[0];
    for (int i = 1; i < MP_LANES; i++) total = add_u32(total, r[i]);
    return total;
}
#endif

#ifndef MP_NATIVE_COLUMNS
MP_INLINE void load_columns(const char *from, ptrdiff_t cs, vu32 *r) {
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++) r[i] = load_u32(from + i * cs);
    transpose_u32(r);
}
#endif

#ifndef MP_NATIVE_WIDE_LOADS
MP_INLINE vu32 load_u16_as_u32(const void *p) { return widen_u16(load_u16(p)); }
#ifdef MP_NATIVE_F16
MP_INLINE vf32 load_f16_as_f32(const void *p) { return f32_from_f16(load_u16(p)); }
#endif
#endif

#ifndef MP_NATIVE_U8
MP_INLINE vu32 interleave_u8(vu8 a, vu8 b, vu8 c, vu8 d) {
    const vu32 ab = or_u32(widen_u8(a), shl_u32(widen_u8(b), 8));
    return or_u32(ab, or_u32(shl_u32(widen_u8(c), 16), shl_u32(widen_u8(d), 24)));
}
#endif

#ifndef MP_NATIVE_ROWS
MP_INLINE void interleave_rows(const char *src, ptrdiff_t rs, vu32 *quads) {
    MP_UNROLL_8 for (int i = 0; i < 4; i++, src += MP_LANES)
        quads[i] = interleave_u8(load_u8(src), load_u8(src + rs), load_u8(src + 2 * rs), load_u8(src + 3 * rs));
}
#endif

MP_INLINE ptrdiff_t at_most(ptrdiff_t n, ptrdiff_t limit) { return n < limit ? n : limit; }

/* The number of elements before the first one at a multiple of 64 bytes; n if there is none. */
MP_INLINE ptrdiff_t unaligned_head(const void *p, ptrdiff_t size, ptrdiff_t n) {
    const ptrdiff_t bytes = (ptrdiff_t)(-(uintptr_t)p % 64);
    return bytes % size ? n : at_most(bytes / size, n);
}

/* An object file of kernels exports only its kernel tables: mp_<table>_<isa>. */
#define MP_EXPORTED(FAMILY) MP_CONCAT(MP_CONCAT(mp_, FAMILY), MP_CONCAT(_, MP_ISA))

#endif
