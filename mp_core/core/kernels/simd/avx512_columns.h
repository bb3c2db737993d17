/* Included by avx512.h: transposing 16 columns of 16 words, and multiplying them by one row in registers. */

/* Transpose the 4 x 4 words in each 128-bit quarter of r[0..3], r[4..7], ...: first pairs of words, then pairs of
 * pairs. */
V void transpose_quarters(vu32 *r) {
    vu32 t[MP_LANES];
    UNROLL for (int i = 0; i < MP_LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < MP_LANES; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
}

/* A matrix of 16 x 16 words, transposed in place. */
V void transpose_u32(vu32 *r) {
    vu32 t[MP_LANES];
    transpose_quarters(r);
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 2; j++) {
            t[8 * j + i] = _mm512_shuffle_i32x4(r[8 * j + i], r[8 * j + i + 4], 0x88);
            t[8 * j + i + 4] = _mm512_shuffle_i32x4(r[8 * j + i], r[8 * j + i + 4], 0xDD);
        }
    UNROLL for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    }
}

/* Each load puts 8 words of row i + 4 above 8 words of row i, in the place of one of the shuffles of transpose_u32. */
#define MP_NATIVE_COLUMNS
V void load_columns(const char *from, ptrdiff_t cs, vu32 *r) {
    vu32 t[MP_LANES];
    UNROLL16 for (int i = 0; i < MP_LANES; i++) {
        const char *const row = from + (i % 8 + i % 8 / 4 * 4) * cs + i / 8 * 32;
        const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)row));
        t[i] = _mm512_mask_broadcast_i64x4(low, 0xF0, _mm256_loadu_si256((const void *)(row + 4 * cs)));
    }
    transpose_quarters(t);
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = i; j < MP_LANES; j += 8) {
            r[j] = _mm512_shuffle_i32x4(t[j], t[j + 4], 0x88);
            r[j + 4] = _mm512_shuffle_i32x4(t[j], t[j + 4], 0xDD);
        }
}

/* fma_columns for fewer than 16 words of each column: before the first cache line, or at the end of K. Masks keep it from
 * reading beyond them. */
static __attribute__((noinline, unused)) vf32 fma_part(vf32 z, const char *a, const char *from, ptrdiff_t cs, ptrdiff_t k) {
    vu32 word[MP_LANES];
    UNROLL16 for (int i = 0; i < MP_LANES; i++) word[i] = loadn_u32(from + i * cs, k);
    transpose_u32(word);
    for (ptrdiff_t p = 0; p < k; p++) {
        float factor;
        memcpy(&factor, a + p * 4, 4);
        z = fma_f32(set_f32(factor), as_f32(word[p]), z);
    }
    return z;
}

/* 16 words of a column are one cache line if the column begins with one. (fma_columns and fma_part are not inlined: inlined,
 * a B of 4 MiB in L3 is read at 50 GB/s instead of 56, float32 1x1024x1024 nk; Zen 5, November 2026.) */
#define MP_NATIVE_FMA_COLUMNS
#define MP_FMA_COLUMNS_K MP_LANES
static __attribute__((noinline, unused)) vf32 fma_columns(vf32 z, const char *a, const char *from, ptrdiff_t cs, ptrdiff_t k) {
    float factor[MP_LANES];
    vu32 word[MP_LANES];
    if (k < MP_LANES) return fma_part(z, a, from, cs, k);
    memcpy(factor, a, sizeof factor);
    load_columns(from, cs, word);
    UNROLL16 for (int p = 0; p < MP_LANES; p++) z = fma_f32(set_f32(factor[p]), as_f32(word[p]), z);
    return z;
}
