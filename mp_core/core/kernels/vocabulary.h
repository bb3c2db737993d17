/* What every template stands on: the vocabulary of one ISA, and the words that all of them spell the same way.
 *
 * A vocabulary header in simd/ defines vectors of 16 lanes, whatever the registers' width, so that every template gives
 * the same bits everywhere:
 *   vf32 vu32 vu16 vu8 vmask; set_* load_* store_* (loadn_*, storen_*: the first 0 < n <= 16 lanes, the rest reads 0),
 *   stream_* (to aligned memory, past the caches) and stream_fence, after which other threads see it,
 *   and_u32, or_u32, xor_u32, shl_u32, shr_u32, sar_u32, add_u32, sub_u32, mul_u32, min_u32, max_u32, as_f32, as_u32,
 *   floating-point arithmetic rounded once per operation, fma_f32(a, b, c) = a b + c rounded once,
 *   min_f32, max_f32: a if it is smaller (larger), else b, so b where one is NaN,
 *   lt_f32, gt_i32 (signed), select_*(mask, yes, no), first_n(n): the mask of the lanes below n,
 *   i32_from_f32: to nearest even, in range; of NaN (if not MP_DIVIDES, of what is out of range too) a multiple of 2^16;
 *   widen_*, narrow_* (the low bits), f32_from_bf16: exact, a signalling NaN made quiet,
 *   if the hardware has them: f32_from_f16, f16_from_f32, high_u8, eq_u16 and the 16-bit lanes of lanes16.h (MP_NATIVE_F16),
 *   bf16_of_normal and any_subnormal (MP_NATIVE_BF16),
 *   transpose_u32: 16 vectors as a matrix, in place; sums_u32: the sums of their lanes, if there is a faster way than by
 *   transposing them (MP_NATIVE_SUMS); load_columns: 16 words from each of 16 places cs bytes apart, transposed, likewise
 *   (MP_NATIVE_COLUMNS); low_halves, high_halves: those of the words of two vectors, one after the other,
 *   interleave_u8: byte i of each of four in the 32 bits of lane i, if there is a fast way (MP_NATIVE_U8),
 *   likewise interleave_rows: 64 bytes of each of four rows, rs bytes apart, to four such vectors (MP_NATIVE_ROWS),
 *   likewise pair_from_e4m3fn and pair_from_e5m2 (MP_NATIVE_F8_PAIRS), pair_from_i8 (MP_NATIVE_I8_PAIRS) and pair_from_i4
 *   (MP_NATIVE_I4_PAIRS; decode.inc),
 *   top_u32: the largest lane; sum_f32: lanes i and i + 8, then i + 4, i + 2, i + 1,
 *   if not MP_DIVIDES, of 64 bytes or 32 halves in a vector: min_u16, min_i8, max_i8, any_clear (whether a word has none
 *   of some bits), any_set (whether one has some of them),
 *   narrow_high_i8 (the high halves of four vectors, saturated, in order), storen_bytes (the first 0 < n < 64),
 *   dot_bf16: acc + odd * odd, then + even * even, of the bf16 pairs in each 32 bits; dot_u8s8: acc + four products,
 *   MP_QUADS_BY_TWO if dot_u8s8 takes two of its products at a time (vpmaddwd), at the rate of fused multiply-adds,
 *   MP_OUT_OF_LINE if what is APART is to be functions of their own, which are large there,
 *   MP_NATIVE_TILES if there are _tile_loadd, _tile_dpbssd and the like (products/amx.h),
 *   MP_DIVIDES: 1 if a division costs less than five fused multiply-adds,
 *   MP_TILE_ROWS x MP_TILE_VECTORS: the accumulators of a product that fit the registers,
 *   MP_FEW_ROWS_WIDE, MP_FEW_ROWS_PAIRS: few_rows of mp_products, where the two ways were equally fast (512 x 512, Zen 4 and 5, November 2026).
 */
#ifndef MP_VOCABULARY_H
#define MP_VOCABULARY_H

#if defined(__SSE__)
#include <immintrin.h>
#endif

#include <math.h>
#include <string.h>

#include "mp_core.h"

#define V static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8") /* in products: registers cannot be indexed, so loops over them must go */
#define UNROLL16 _Pragma("GCC unroll 16")
#define MP_CONCAT_(A, B) A##B
#define MP_CONCAT(A, B) MP_CONCAT_(A, B)

#include MP_SIMD

#ifdef MP_OUT_OF_LINE
#define APART static __attribute__((noinline, unused))
#else
#define APART V
#endif

#ifndef MP_NATIVE_BF16
V vf32 dot_bf16(vf32 acc, vu32 a, vu32 b) {
    const vu32 odd = set_u32(0xFFFF0000u);
    acc = fma_f32(as_f32(and_u32(a, odd)), as_f32(and_u32(b, odd)), acc);
    return fma_f32(as_f32(shl_u32(a, 16)), as_f32(shl_u32(b, 16)), acc);
}
#endif

#ifndef MP_NATIVE_SUMS
V vu32 sums_u32(vu32 *r) {
    transpose_u32(r);
    vu32 total = r[0];
    for (int i = 1; i < MP_LANES; i++) total = add_u32(total, r[i]);
    return total;
}
#endif

#ifndef MP_NATIVE_COLUMNS
V void load_columns(const char *from, ptrdiff_t cs, vu32 *r) {
    UNROLL16 for (int i = 0; i < MP_LANES; i++) r[i] = load_u32(from + i * cs);
    transpose_u32(r);
}
#endif

#ifndef MP_NATIVE_U8
V vu32 interleave_u8(vu8 a, vu8 b, vu8 c, vu8 d) {
    const vu32 ab = or_u32(widen_u8(a), shl_u32(widen_u8(b), 8));
    return or_u32(ab, or_u32(shl_u32(widen_u8(c), 16), shl_u32(widen_u8(d), 24)));
}
#endif

#ifndef MP_NATIVE_ROWS
V void interleave_rows(const char *src, ptrdiff_t rs, vu32 *quads) {
    UNROLL for (int i = 0; i < 4; i++, src += MP_LANES)
        quads[i] = interleave_u8(load_u8(src), load_u8(src + rs), load_u8(src + 2 * rs), load_u8(src + 3 * rs));
}
#endif

V float max_lanes(vf32 x) {
    float lane[MP_LANES], best;
    store_f32(lane, x);
    best = lane[0];
    for (int i = 1; i < MP_LANES; i++) best = lane[i] > best ? lane[i] : best;
    return best;
}

V ptrdiff_t at_most(ptrdiff_t n, ptrdiff_t limit) { return n < limit ? n : limit; }

/* Elements before the first one at a multiple of 64 bytes, or all n where none ever is. */
V ptrdiff_t unaligned_head(const void *p, ptrdiff_t size, ptrdiff_t n) {
    const ptrdiff_t bytes = (ptrdiff_t)(-(uintptr_t)p % 64);
    return bytes % size ? n : at_most(bytes / size, n);
}

/* A family's table of functions is the only name that its object file exports: mp_<family>_<isa>. */
#define MP_EXPORTED(FAMILY) MP_CONCAT(MP_CONCAT(mp_, FAMILY), MP_CONCAT(_, MP_ISA))

#endif
