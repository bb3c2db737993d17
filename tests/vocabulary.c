/* Every word of mp_core/core/kernels/vocabulary.h as a function over memory, for tests/test_vocabulary.py, which
 * compiles this file with the flags of each instruction set. A function reads its operands from a, b and c, or from
 * vectors that follow each other at a; n is its count, shift or stride; it writes its result to out. A mask is written
 * as 1 or 0 per lane. Vectors are copied by memcpy, so that a function uses no other word than its own, but for
 * masks. */
#include "vocabulary.h"

#define OPERANDS const void *a, const void *b, const void *c, ptrdiff_t n, void *out
#define WORD(NAME)                                                            \
    __attribute__((visibility("default"))) void word_##NAME(OPERANDS);        \
    void word_##NAME(OPERANDS)

#define VECTOR(T)                                                                \
    MP_INLINE T get_##T(const void *p) { T x; memcpy(&x, p, sizeof x); return x; }       \
    MP_INLINE void put_##T(void *p, T x) { memcpy(p, &x, sizeof x); }
VECTOR(vf32)
VECTOR(vu32)
VECTOR(vu16)
VECTOR(vu8)
MP_INLINE vmask get_vmask(const void *p) { return gt_i32(get_vu32(p), set_u32(0)); }
MP_INLINE void put_vmask(void *p, vmask m) { put_vu32(p, select_u32(m, set_u32(1), set_u32(0))); }
MP_INLINE const char *after(const void *p, int vectors) { return (const char *)p + vectors * sizeof(vu32); }

#define UNARY(NAME, R, A) WORD(NAME) { put_##R(out, NAME(get_##A(a))); }
#define BINARY(NAME, R, A, B) WORD(NAME) { put_##R(out, NAME(get_##A(a), get_##B(b))); }
#define TERNARY(NAME, R, A, B, C) WORD(NAME) { put_##R(out, NAME(get_##A(a), get_##B(b), get_##C(c))); }
#define SCALAR(NAME, R, EXPRESSION) WORD(NAME) { const R r = (EXPRESSION); memcpy(out, &r, sizeof r); }

/* Shifts are by constants. */
#define SHIFTED(NAME, T, N) case N: put_##T(out, NAME(get_##T(a), N)); break;
#define EIGHT(M, NAME, T, N) \
    M(NAME, T, N) M(NAME, T, N + 1) M(NAME, T, N + 2) M(NAME, T, N + 3) \
    M(NAME, T, N + 4) M(NAME, T, N + 5) M(NAME, T, N + 6) M(NAME, T, N + 7)
#define SHIFT_U32(NAME)                                             \
    WORD(NAME) {                                                    \
        switch (n) {                                                \
            EIGHT(SHIFTED, NAME, vu32, 0) EIGHT(SHIFTED, NAME, vu32, 8) \
            EIGHT(SHIFTED, NAME, vu32, 16) EIGHT(SHIFTED, NAME, vu32, 24) \
        }                                                           \
    }

#define MEMORY(T, SUFFIX)                                                                \
    WORD(load_##SUFFIX) { put_##T(out, load_##SUFFIX(a)); }                              \
    WORD(store_##SUFFIX) { store_##SUFFIX(out, get_##T(a)); }                            \
    WORD(loadn_##SUFFIX) { put_##T(out, loadn_##SUFFIX(a, n)); }                         \
    WORD(storen_##SUFFIX) { storen_##SUFFIX(out, get_##T(a), n); }
MEMORY(vf32, f32)
MEMORY(vu32, u32)
MEMORY(vu16, u16)
MEMORY(vu8, u8)
WORD(stream_f32) { stream_f32(out, get_vf32(a)); }
WORD(stream_u16) { stream_u16(out, get_vu16(a)); }
WORD(stream_u8) { stream_u8(out, get_vu8(a)); }
WORD(stream_fence) { stream_fence(); }
WORD(storen_bytes) { storen_bytes(out, get_vu32(a), n); }
WORD(set_f32) { put_vf32(out, set_f32(*(const float *)a)); }
WORD(set_u32) { put_vu32(out, set_u32(*(const uint32_t *)a)); }

BINARY(and_u32, vu32, vu32, vu32)
BINARY(or_u32, vu32, vu32, vu32)
BINARY(xor_u32, vu32, vu32, vu32)
BINARY(add_u32, vu32, vu32, vu32)
BINARY(sub_u32, vu32, vu32, vu32)
BINARY(mul_u32, vu32, vu32, vu32)
BINARY(min_u32, vu32, vu32, vu32)
BINARY(max_u32, vu32, vu32, vu32)
SHIFT_U32(shl_u32)
SHIFT_U32(shr_u32)
SHIFT_U32(sar_u32)
UNARY(as_f32, vf32, vu32)
UNARY(as_u32, vu32, vf32)

BINARY(add_f32, vf32, vf32, vf32)
BINARY(sub_f32, vf32, vf32, vf32)
BINARY(mul_f32, vf32, vf32, vf32)
BINARY(div_f32, vf32, vf32, vf32)
TERNARY(fma_f32, vf32, vf32, vf32, vf32)
BINARY(min_f32, vf32, vf32, vf32)
BINARY(max_f32, vf32, vf32, vf32)

BINARY(lt_f32, vmask, vf32, vf32)
BINARY(gt_i32, vmask, vu32, vu32)
TERNARY(select_f32, vf32, vmask, vf32, vf32)
TERNARY(select_u32, vu32, vmask, vu32, vu32)
WORD(first_n) { put_vmask(out, first_n(n)); }

UNARY(f32_from_i32, vf32, vu32)
UNARY(i32_from_f32, vu32, vf32)
UNARY(f32_from_bf16, vf32, vu16)
UNARY(widen_u16, vu32, vu16)
WORD(load_u16_as_u32) { put_vu32(out, load_u16_as_u32(a)); }
UNARY(widen_u8, vu32, vu8)
UNARY(widen_i8, vu32, vu8)
UNARY(narrow_u16, vu16, vu32)
UNARY(narrow_u8, vu8, vu32)
BINARY(low_halves, vu32, vu32, vu32)
BINARY(high_halves, vu32, vu32, vu32)

SCALAR(top_u32, uint32_t, top_u32(get_vu32(a)))
SCALAR(sum_f32, float, sum_f32(get_vf32(a)))
SCALAR(max_lanes, float, max_lanes(get_vf32(a)))

#define SIXTEEN(NAME, DO)                                                \
    WORD(NAME) {                                                         \
        vu32 r[MP_LANES];                                                \
        memcpy(r, a, sizeof r);                                          \
        DO;                                                              \
    }
SIXTEEN(transpose_u32, transpose_u32(r); memcpy(out, r, sizeof r))
SIXTEEN(sums_u32, put_vu32(out, sums_u32(r)))
WORD(load_columns) {
    vu32 r[MP_LANES];
    load_columns(a, n, r);
    memcpy(out, r, sizeof r);
}
WORD(interleave_u8) {
    const char *const x = a;
    put_vu32(out, interleave_u8(get_vu8(x), get_vu8(x + 16), get_vu8(x + 32), get_vu8(x + 48)));
}
WORD(interleave_rows) {
    vu32 r[4];
    interleave_rows(a, n, r);
    memcpy(out, r, sizeof r);
}

TERNARY(dot_bf16, vf32, vf32, vu32, vu32)
TERNARY(dot_u8s8, vu32, vu32, vu32, vu32)

#define FACTOR(NAME, T, MAKE) WORD(NAME) { put_##T(out, NAME(get_##T(a), MAKE, get_##T(c))); }
FACTOR(fma_factor, vf32, wide_factor(b))
WORD(dot_bf16_factor) { put_vf32(out, dot_bf16_factor(get_vf32(a), pair_factor(b), get_vu32(c))); }
FACTOR(dot_u8s8_factor, vu32, quad_factor(b, 0))
#ifdef MP_NATIVE_S8
TERNARY(dot_s8s8, vu32, vu32, vu32, vu32)
FACTOR(dot_s8s8_factor, vu32, quad_factor(b, 0))
#else
FACTOR(dot_s8u8_factor, vu32, quad_factor(b, 0))
#endif
#ifdef MP_NATIVE_U4_DOT
WORD(dot_two_s8u4) { /* the next word of b by bytes that differ from those of c in their last bit */
    const vu32 y = get_vu32(c), next = xor_u32(y, set_u32(0x01010101u));
    put_vu32(out, dot_two_s8u4(get_vu32(a), quad_factor(b, 0), y, quad_factor((const char *)b + 4, 0), next));
}
#endif
/* A factor alone, by products that show it: x 1 + -0; fma(x0, 1, fma(x1, 0, -0)); bytes 0 and 1. */
WORD(wide_factor) { put_vf32(out, fma_factor(set_f32(-0.0f), wide_factor(a), set_f32(1.0f))); }
WORD(pair_factor) { put_vf32(out, dot_bf16_factor(set_f32(-0.0f), pair_factor(a), set_u32(0x00003F80))); }
WORD(quad_factor) { put_vu32(out, dot_u8s8_factor(set_u32(0), quad_factor(a, (uint32_t)n), set_u32(0x00000101))); }

SCALAR(at_most, ptrdiff_t, at_most(((const ptrdiff_t *)a)[0], ((const ptrdiff_t *)a)[1]))
SCALAR(unaligned_head, ptrdiff_t, unaligned_head(a, ((const ptrdiff_t *)b)[0], ((const ptrdiff_t *)b)[1]))

#ifdef MP_NATIVE_F16
UNARY(f32_from_f16, vf32, vu16)
WORD(load_f16_as_f32) { put_vf32(out, load_f16_as_f32(a)); }
UNARY(f16_from_f32, vu16, vf32)
UNARY(high_u8, vu8, vu16)
BINARY(eq_u16, vmask, vu16, vu16)
WORD(set_u16) { put_vu16(out, set_u16(*(const uint16_t *)a)); }
UNARY(u16_from_u8, vu16, vu8)
BINARY(and_u16, vu16, vu16, vu16)
BINARY(or_u16, vu16, vu16, vu16)
WORD(shl_u16) {
    switch (n) { EIGHT(SHIFTED, shl_u16, vu16, 0) EIGHT(SHIFTED, shl_u16, vu16, 8) }
}
#endif

#ifdef MP_NATIVE_BF16
UNARY(bf16_of_normal, vu16, vf32)
SCALAR(any_subnormal, uint32_t, any_subnormal(get_vf32(a)) != 0)
#endif

#if !MP_DIVIDES
BINARY(min_u16, vu32, vu32, vu32)
BINARY(min_i8, vu32, vu32, vu32)
BINARY(max_i8, vu32, vu32, vu32)
SCALAR(any_clear, uint32_t, any_clear(get_vu32(a), get_vu32(b)) != 0)
SCALAR(any_set, uint32_t, any_set(get_vu32(a), get_vu32(b)) != 0)
WORD(narrow_high_i8) {
    put_vu32(out, narrow_high_i8(get_vu32(a), get_vu32(after(a, 1)), get_vu32(after(a, 2)), get_vu32(after(a, 3))));
}
#endif

#define PAIR(NAME) WORD(NAME) { put_vu32(out, n ? NAME(get_vu32(a), 1) : NAME(get_vu32(a), 0)); }
#ifdef MP_NATIVE_F8_PAIRS
PAIR(pair_from_e4m3fn)
PAIR(pair_from_e5m2)
#endif
#ifdef MP_NATIVE_I8_PAIRS
PAIR(pair_from_i8)
#endif
#ifdef MP_NATIVE_I4_PAIRS
UNARY(pair_from_i4, vu32, vu32)
#endif
#ifdef MP_NATIVE_F4
UNARY(f32_from_f4, vf32, vu32)
#endif
#ifdef MP_NATIVE_F4_PAIRS
UNARY(pair_from_f4, vu32, vu32)
#endif
#ifdef MP_NATIVE_F4_WORDS
WORD(pair_of_f4) {
    const vu32 x = get_vu32(a);
    put_vu32(out, n == 0 ? pair_of_f4(x, 0) : n == 1 ? pair_of_f4(x, 1) : n == 2 ? pair_of_f4(x, 2) : pair_of_f4(x, 3));
}
#endif
#ifdef MP_NATIVE_E4M3FN_WORDS
WORD(pair_of_e4m3fn) { put_vu32(out, n ? pair_of_e4m3fn(get_vu32(a), 1) : pair_of_e4m3fn(get_vu32(a), 0)); }
#endif
#ifdef MP_NATIVE_F4_BYTES
UNARY(bytes_from_f4, vu32, vu32)
#endif
#ifdef MP_NATIVE_U5
UNARY(pair_from_u5, vu32, vu32)
UNARY(f32_from_u5, vf32, vu32)
#endif
#ifdef MP_NATIVE_U4_QUADS
PAIR(quad_from_u4)
#endif

#ifdef MP_NATIVE_TRANSPOSE
WORD(transpose_words) { transpose_words(a, n, out, ((const ptrdiff_t *)b)[0]); }
#endif
#ifdef MP_NATIVE_FMA_COLUMNS
WORD(fma_columns) {
    const float *factors = b, *columns = factors + 256;
    put_vf32(out, fma_columns(get_vf32(a), (const char *)factors, (const char *)columns, *(const ptrdiff_t *)c, n));
}
#endif
#ifdef MP_WIDENS
PAIR(i16_from_i8)
TERNARY(dot_i16, vu32, vu32, vu32, vu32)
#endif
#ifdef MP_NATIVE_OCTS
/* Octs alone, by products that show them: of c, whose octs each have one byte, a 1. */
WORD(load_octs) { put_vu32(out, dot_octs_u8(set_u32(0), load_octs(a, b), get_vu32(c))); }
WORD(dot_octs_s8) { put_vu32(out, dot_octs_s8(get_vu32(a), load_octs(b, (const char *)b + 8), get_vu32(c))); }
WORD(dot_octs_u8) { put_vu32(out, dot_octs_u8(get_vu32(a), load_octs(b, (const char *)b + 8), get_vu32(c))); }
#define HALVES(NAME) \
    WORD(NAME) { put_vu32(out, n ? NAME(get_vu32(a), get_vu32(b), 1) : NAME(get_vu32(a), get_vu32(b), 0)); }
HALVES(zip_words)
HALVES(zip_octs)
HALVES(unzip_octs)
#endif

/* The conditions of vocabulary.h's tables that hold. */
extern const char conditions[];
__attribute__((visibility("default"))) const char conditions[] = ""
#ifdef MP_NATIVE_F16
    "MP_NATIVE_F16 "
#endif
#ifdef MP_NATIVE_S8
    "MP_NATIVE_S8 "
#endif
#ifdef MP_NATIVE_BF16
    "MP_NATIVE_BF16 "
#endif
#if MP_DIVIDES
    "MP_DIVIDES "
#endif
#ifdef MP_NATIVE_F8_PAIRS
    "MP_NATIVE_F8_PAIRS "
#endif
#ifdef MP_NATIVE_I8_PAIRS
    "MP_NATIVE_I8_PAIRS "
#endif
#ifdef MP_NATIVE_I4_PAIRS
    "MP_NATIVE_I4_PAIRS "
#endif
#ifdef MP_NATIVE_F4
    "MP_NATIVE_F4 "
#endif
#ifdef MP_NATIVE_F4_PAIRS
    "MP_NATIVE_F4_PAIRS "
#endif
#ifdef MP_NATIVE_E4M3FN_WORDS
    "MP_NATIVE_E4M3FN_WORDS "
#endif
#ifdef MP_NATIVE_U4_DOT
    "MP_NATIVE_U4_DOT "
#endif
#ifdef MP_NATIVE_F4_WORDS
    "MP_NATIVE_F4_WORDS "
#endif
#ifdef MP_NATIVE_F4_BYTES
    "MP_NATIVE_F4_BYTES "
#endif
#ifdef MP_NATIVE_U5
    "MP_NATIVE_U5 "
#endif
#ifdef MP_NATIVE_U4_QUADS
    "MP_NATIVE_U4_QUADS "
#endif
#ifdef MP_NATIVE_TRANSPOSE
    "MP_NATIVE_TRANSPOSE "
#endif
#ifdef MP_NATIVE_FMA_COLUMNS
    "MP_NATIVE_FMA_COLUMNS "
#endif
#ifdef MP_WIDENS
    "MP_WIDENS "
#endif
#ifdef MP_NATIVE_OCTS
    "MP_NATIVE_OCTS "
#endif
    ;
