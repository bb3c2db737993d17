/* The product of one row of A by 16 columns of a transposed B in place, without a copy in memory. On AVX-512, 16 words
 * (4 bytes: one f32, two bf16 or two f16) of each column are transposed in registers, and multiplied. AVX2 has half as
 * many registers, and multiplies f32 by fma_columns. */
#ifdef MP_COLUMNS_FIT_REGISTERS
#ifdef MP_WATCHES_FLUSHING
#error "pairs are not watched here: see flushing.h"
#endif
#define MP_ROW_KINDS(DO) DO(wide_f32) DO(wide_f16) DO(wide_bf16) DO(pairs_bf16)
#define MP_ROW_WORDS MP_LANES /* the most words of each column in a call of multiply_words */

/* z + the products of the elements in a word of each column and the elements at a, added one after the other along K
 * (those of a pair in the order of dot_bf16). */
MP_INLINE vf32 multiply_word(vf32 z, const char *a, vu32 word, const int kind) {
    const char *const next = a + 4;
    switch (kind) {
    case KIND_wide_f32: return fma_factor(z, wide_factor(a), as_f32(word));
    case KIND_wide_f16:
        z = fma_factor(z, wide_factor(a), f32_from_f16(narrow_u16(word)));
        return fma_factor(z, wide_factor(next), f32_from_f16(narrow_u16(shr_u32(word, 16))));
    case KIND_wide_bf16:
        z = fma_factor(z, wide_factor(a), wide_part_bf16(word, 0));
        return fma_factor(z, wide_factor(next), wide_part_bf16(word, 1));
    case KIND_pairs_bf16: return dot_bf16_factor(z, pair_factor(a), word);
    default: __builtin_unreachable();
    }
}

/* Bytes of A that are multiplied by a word of B. */
MP_INLINE ptrdiff_t a_bytes_of_word(const int kind) { return 4 / size_of_b(kind) * size_of_a(kind); }

MP_INLINE vf32 multiply_sixteen(vf32 z, const char *a, const char *from, ptrdiff_t cs, const int kind) {
    vu32 word[MP_LANES];
    load_columns(from, cs, word);
    MP_UNROLL_16 for (int p = 0; p < MP_LANES; p++) z = multiply_word(z, a + p * a_bytes_of_word(kind), word[p], kind);
    return z;
}

/* The same for fewer than 16 words. With masks, it does not read beyond them. */
MP_INLINE vf32 multiply_few(vf32 z, const char *a, const char *from, ptrdiff_t cs, ptrdiff_t words, const int kind) {
    vu32 word[MP_LANES];
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++) word[i] = loadn_u32(from + i * cs, words);
    transpose_u32(word);
    for (ptrdiff_t p = 0; p < words; p++) z = multiply_word(z, a + p * a_bytes_of_word(kind), word[p], kind);
    return z;
}

/* Not inlined: if it is, a B of 4 MiB in L3 is read at 50 GB/s instead of 56 (float32 1x1024x1024 nk; for other kinds
 * this was not measured; Zen 5, November 2026). */
#define MP_ROW(KIND)                                                                                                   \
    static __attribute__((noinline)) vf32 multiply_few_##KIND(vf32 z, const char *a, const char *from, ptrdiff_t cs,   \
                                                              ptrdiff_t words) {                                       \
        return multiply_few(z, a, from, cs, words, KIND_##KIND);                                                       \
    }                                                                                                                  \
    static __attribute__((noinline)) vf32 multiply_words_##KIND(vf32 z, const char *a, const char *from, ptrdiff_t cs, \
                                                                ptrdiff_t words) {                                     \
        if (words < MP_LANES) return multiply_few_##KIND(z, a, from, cs, words);                                       \
        return multiply_sixteen(z, a, from, cs, KIND_##KIND);                                                          \
    }
MP_ROW_KINDS(MP_ROW)
#undef MP_ROW

#elif defined(MP_NATIVE_FMA_COLUMNS)
#define MP_ROW_KINDS(DO) DO(wide_f32)
#define MP_ROW_WORDS PTRDIFF_MAX
#define multiply_words_wide_f32 fma_columns

#else
#define MP_ROW_KINDS(DO)
#define MP_ROW_WORDS 1
#endif

/* Whether one row of this kind is multiplied by multiply_words. */
MP_INLINE int has_row(const int kind) {
#define MP_ROW(KIND) || kind == KIND_##KIND
    (void)kind;
    return MP_HAS(COLUMNS_WHERE_THEY_LIE) && (0 MP_ROW_KINDS(MP_ROW));
#undef MP_ROW
}
MP_INLINE int multiplies_row(const mp_gemm *g, const int kind) { return g->shape.m == 1 && has_row(kind); }

/* Whether a word needs two multiplications, the second of which waits for the first. (vdpbf16ps multiplies a whole
 * pair.) */
MP_INLINE int has_two_multiplications(const int kind) {
#ifdef MP_NATIVE_BF16
    if (kinds[kind].arithmetic == MP_PAIRS) return 0;
#endif
    return size_of_b(kind) == 2;
}

/* Lane i: z + the products of the elements at a and those in the first `words` words of column i, at from + i cs. */
MP_INLINE vf32 multiply_words(vf32 z, const char *a, const char *from, ptrdiff_t cs, ptrdiff_t words, const int kind) {
#define MP_ROW(KIND) if (kind == KIND_##KIND) return multiply_words_##KIND(z, a, from, cs, words);
    MP_ROW_KINDS(MP_ROW)
#undef MP_ROW
    (void)a, (void)from, (void)cs, (void)words, (void)kind;
    return z;
}
