/* Packing and unpacking, in the layout that kernels.h describes. size: bytes of an element; group: elements along K in
 * a group. */

#define MP_PAGE 4096

/* The groups of n <= 16 columns, from rows rs bytes apart; 0 in the other lanes. Elements of a group from number
 * `valid` on are 0. */
MP_INLINE vu32 interleaved(const char *src, ptrdiff_t rs, int valid, ptrdiff_t n, const int group) {
#define WORDS(Q) (Q < valid ? widen_u16(loadn_u16(src + Q * rs, n)) : set_u32(0))
#define BYTES(Q) (Q < valid ? loadn_u8(src + Q * rs, n) : narrow_u8(set_u32(0)))
    return group == 2 ? or_u32(WORDS(0), shl_u32(WORDS(1), 16)) : interleave_u8(BYTES(0), BYTES(1), BYTES(2), BYTES(3));
#undef WORDS
#undef BYTES
}

/* Write one row of groups of a panel of 64 columns. */
MP_INLINE void pack_group(const char *src, ptrdiff_t rs, char *dst, const int size, const int group) {
    if (group == 1) {
        MP_UNROLL_8 for (int i = 0; i < MP_PANEL * size; i += 64) store_u32(dst + i, load_u32(src + i));
    } else if (group == 2) {
        MP_UNROLL_8 for (int j = 0; j < MP_PANEL; j += MP_LANES) {
            const vu32 first = load_u16_as_u32(src + j * 2), second = load_u16_as_u32(src + rs + j * 2);
            store_u32(dst + j * 4, or_u32(first, shl_u32(second, 16)));
        }
    } else {
        vu32 quads[4];
        interleave_rows(src, rs, quads);
        MP_UNROLL_8 for (int i = 0; i < 4; i++) store_u32(dst + i * 64, quads[i]);
    }
}

/* Pack from a row-major source: a row of groups at a time if the panel has 64 columns, else 16 columns at a time. */
MP_INLINE void pack_rows(ptrdiff_t k, ptrdiff_t n, const char *src, ptrdiff_t rs, char *dst, const int size,
                         const int group) {
    const ptrdiff_t group_stride = n * group * size;
    for (ptrdiff_t p = 0; p < k; p += group, src += group * rs, dst += group_stride) {
        const int valid = (int)at_most(k - p, group);
        prefetch_pack_rows(src, rs, n * size, group, size);
        if (n == MP_PANEL && valid == group) {
            pack_group(src, rs, dst, size, group);
            continue;
        }
        for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
            const ptrdiff_t left = at_most(n - j, MP_LANES);
            if (size == 4)
                storen_u32(dst + j * 4, loadn_u32(src + j * 4, left), left);
            else if (group == 1)
                storen_u16((uint16_t *)dst + j, loadn_u16(src + j * 2, left), left);
            else
                storen_u32(dst + j * 4, interleaved(src + j * size, rs, valid, left, group), left);
        }
    }
}

/* Pack from a source of any strides, element by element. */
MP_INLINE void pack_elements(ptrdiff_t k, ptrdiff_t n, const char *src, ptrdiff_t rs, ptrdiff_t cs, char *dst,
                             const int size, const int group) {
    const ptrdiff_t group_stride = n * group * size;
    memset(dst, 0, (size_t)((k + group - 1) / group * group_stride));
    for (ptrdiff_t p = 0; p < k; p++)
        for (ptrdiff_t j = 0; j < n; j++)
            memcpy(dst + p / group * group_stride + (j * group + p % group) * size, src + p * rs + j * cs,
                   (size_t)size);
}

/* Store 32-bit words as one row of groups, or (halves: f16) their lower and upper 16 bits as two rows. */
MP_INLINE void store_words(char *to, ptrdiff_t group_stride, int i, vu32 words, ptrdiff_t columns, const int halves) {
    if (halves) {
        storen_u16((uint16_t *)(to + 2 * i * group_stride), narrow_u16(words), columns);
        storen_u16((uint16_t *)(to + (2 * i + 1) * group_stride), narrow_u16(shr_u32(words, 16)), columns);
    } else {
        storen_u32(to + i * group_stride, words, columns);
    }
}

/* Transpose 16 words of 16 columns, and prefetch the next 16 words at the right time: after the loads of load_columns,
 * but before those of transpose_words. The other way round, one row of bf16 by 1024 x 1024 columns took 1.14 times as
 * long on AVX-512, and one row of bf16 1.1 times as long on AVX2 (Zen 5, November 2026). The function is not inlined:
 * in a loop the compiler would keep 32 addresses, more than there are registers, and spill them. */
static __attribute__((noinline)) void transpose_whole(const char *from, ptrdiff_t cs, char *to, ptrdiff_t group_stride,
                                                      int halves) {
#if defined(MP_NATIVE_TRANSPOSE) && MP_HAS(TRANSPOSING_BY_EIGHT)
    if (!halves) {
        prefetch_pack_columns(from, cs);
        transpose_words(from, cs, to, group_stride);
        return;
    }
#endif
    vu32 words16[MP_LANES];
    load_columns(from, cs, words16);
    prefetch_pack_columns(from, cs);
    if (halves)
        MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++) store_words(to, group_stride, i, words16[i], MP_LANES, 1);
    else
        MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++, to += group_stride) store_u32(to, words16[i]);
}

/* Transpose 16 words of 32 columns of f16. A word is two elements of a column, and each row of 32 elements is one
 * vector, so that no vector has to be narrowed. */
static __attribute__((noinline)) void transpose_halves(const char *from, ptrdiff_t cs, char *to,
                                                       ptrdiff_t group_stride) {
    const char *const right = from + MP_LANES * cs;
    vu32 words16[MP_LANES], right16[MP_LANES];
    load_columns(from, cs, words16);
    prefetch_pack_columns(from, cs);
    load_columns(right, cs, right16);
    prefetch_pack_columns(right, cs);
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++, to += 2 * group_stride) {
        store_u32(to, low_halves(words16[i], right16[i]));
        store_u32(to + group_stride, high_halves(words16[i], right16[i]));
    }
}

/* Transpose at most 16 words of at most 16 columns. */
static __attribute__((noinline)) void transpose_part(const char *from, ptrdiff_t cs, ptrdiff_t words, ptrdiff_t columns,
                                                     char *to, ptrdiff_t group_stride, int halves) {
    vu32 words16[MP_LANES];
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++)
        words16[i] = i < columns ? loadn_u32(from + i * cs, words) : set_u32(0);
    transpose_u32(words16);
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++)
        if (i < words) store_words(to, group_stride, i, words16[i], columns, halves);
}

/* How many columns are transposed at a time. */
MP_INLINE int at_a_time(const int size, const int group) { return size == 2 && group == 1 ? 2 * MP_LANES : MP_LANES; }

/* Transpose 16 words of `columns` columns, which are a multiple of 16 and at most at_a_time. */
MP_INLINE void transpose(const char *from, ptrdiff_t cs, ptrdiff_t columns, char *to, ptrdiff_t group_stride,
                         const int size, const int group) {
    const int halves = size == 2 && group == 1;
    if (halves && columns > MP_LANES)
        transpose_halves(from, cs, to, group_stride);
    else
        for (ptrdiff_t i = 0; i < columns; i += MP_LANES)
            transpose_whole(from + i * cs, cs, to + i * group * size, group_stride, halves);
}

/* Pack from a transposed source: 16 words of 16 or 32 columns at a time are transposed in registers. A word is a group,
 * or two elements of f16. If the stride of the columns is a multiple of a page, their cache lines are in the same set
 * of the L1 cache, which has fewer ways than there are columns. Then the words before the first cache line boundary
 * (`head`) are packed first, so that each line is read by one load: it would be evicted before a second one. */
MP_INLINE void pack_columns(ptrdiff_t k, ptrdiff_t n, const char *src, ptrdiff_t cs, char *dst, const int size,
                            const int group) {
    const ptrdiff_t group_stride = n * group * size, per_word = 4 / size, whole = k / per_word;
    const ptrdiff_t head = cs % MP_PAGE ? 0 : unaligned_head(src, 4, whole) % MP_LANES;
    for (ptrdiff_t j = 0, columns; j < n; j += columns) {
        columns = at_most(n - j, n - j < at_a_time(size, group) ? MP_LANES : at_a_time(size, group));
        for (ptrdiff_t w = 0, words; w < whole; w += words) {
            words = w < head ? head : at_most(whole - w, MP_LANES);
            const char *from = src + j * cs + w * 4;
            char *to = dst + w * per_word / group * group_stride + j * group * size;
            if (words == MP_LANES && columns % MP_LANES == 0)
                transpose(from, cs, columns, to, group_stride, size, group);
            else
                for (ptrdiff_t i = 0; i < columns; i += MP_LANES)
                    transpose_part(from + i * cs, cs, words, at_most(columns - i, MP_LANES), to + i * group * size,
                                   group_stride, size == 2 && group == 1);
        }
    }
    const ptrdiff_t done = whole * per_word;
    if (done < k)
        pack_elements(k - done, n, src + done * size, size, cs, dst + done / group * group_stride, size, group);
}

MP_INLINE void unpack_rows(ptrdiff_t k, ptrdiff_t n, const char *src, char *dst, ptrdiff_t ldd, const int size,
                           const int group) {
    for (ptrdiff_t p = 0; p < k; p++)
        for (ptrdiff_t j = 0; j < n; j++)
            memcpy(dst + (p * ldd + j) * size, src + ((p / group * n + j) * group + p % group) * size, (size_t)size);
}

#define MP_PACK(KIND, SIZE, GROUP)                                                                                  \
    static void pack_##KIND(ptrdiff_t k, ptrdiff_t n, const void *src, ptrdiff_t rs, ptrdiff_t cs, void *dst) {    \
        if (cs == SIZE || n == 1)                                                                                  \
            pack_rows(k, n, src, rs, dst, SIZE, GROUP);                                                            \
        else if (rs == SIZE)                                                                                       \
            pack_columns(k, n, src, cs, dst, SIZE, GROUP);                                                         \
        else                                                                                                       \
            pack_elements(k, n, src, rs, cs, dst, SIZE, GROUP);                                                    \
    }                                                                                                              \
    static void unpack_##KIND(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd) {               \
        unpack_rows(k, n, src, dst, ldd, SIZE, GROUP);                                                             \
    }
MP_PACK(words, 4, 1)
MP_PACK(halves, 2, 1)
MP_PACK(pairs, 2, 2)
MP_PACK(quads, 1, 4)

/* The lowest bit of element p of a group of eight elements of four bits: 4 floor(p / 2), plus 16 if p is odd. */
MP_INLINE int nibble_shift(ptrdiff_t p) { return (int)(p % 8 / 2 * 4 + p % 2 * 16); }

static void pack_i4(ptrdiff_t k, ptrdiff_t n, const void *src, ptrdiff_t rs, ptrdiff_t cs, void *dst) {
    for (ptrdiff_t p0 = 0; p0 < k; p0 += 8)
        for (ptrdiff_t j = 0; j < n; j++) {
            uint32_t word = 0;
            for (ptrdiff_t p = p0; p < p0 + at_most(k - p0, 8); p++)
                word |= (uint32_t)(((const uint8_t *)src)[p * rs + j * cs] & 15) << nibble_shift(p);
            memcpy((char *)dst + (p0 / 8 * n + j) * 4, &word, 4);
        }
}

MP_INLINE void unpack_fours(ptrdiff_t k, ptrdiff_t n, const char *src, uint8_t *dst, ptrdiff_t ldd,
                            const int is_signed) {
    for (ptrdiff_t p = 0; p < k; p++)
        for (ptrdiff_t j = 0; j < n; j++) {
            uint32_t word;
            memcpy(&word, src + (p / 8 * n + j) * 4, 4);
            const uint32_t top = word >> nibble_shift(p) << 28;
            dst[p * ldd + j] = (uint8_t)(is_signed ? (uint32_t)((int32_t)top >> 28) : top >> 28);
        }
}
static void unpack_i4(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd) {
    unpack_fours(k, n, src, dst, ldd, 1);
}
static void unpack_f4(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd) {
    unpack_fours(k, n, src, dst, ldd, 0);
}

MP_INLINE void decode_scales(ptrdiff_t n, const uint8_t *codes, float unit, float *scales, const int shift) {
    for (ptrdiff_t i = 0; i < n; i += MP_LANES) {
        const vu32 code = widen_u8(n - i >= MP_LANES ? load_u8(codes + i) : loadn_u8(codes + i, n - i));
        storen_f32(scales + i, mul_f32(as_f32(shl_u32(code, shift)), set_f32(unit)), at_most(n - i, MP_LANES));
    }
}
static void scales(ptrdiff_t n, const void *codes, mp_scale_codes how, float *to) {
    if (how.shift == 23) decode_scales(n, codes, how.unit, to, 23);
    else decode_scales(n, codes, how.unit, to, 20);
}

/* Sum four vectors of columns at a time: four independent sums hide the latency of dot_u8s8. */
static void column_sums(ptrdiff_t k, ptrdiff_t n, const void *packed, int32_t *sums) {
    const vu32 ones = set_u32(0x01010101u);
    for (ptrdiff_t j = 0; j < n; j += 4 * MP_LANES) {
        const char *b = (const char *)packed + j * 4;
        const int vectors = (int)at_most((n - j + MP_LANES - 1) / MP_LANES, 4);
        vf32 total[4] = {set_f32(0.0f), set_f32(0.0f), set_f32(0.0f), set_f32(0.0f)};
#define MP_ADD(I, B) total[I] = as_f32(dot_u8s8(as_u32(total[I]), ones, load_u32((B) + (I) * MP_LANES * 4)))
        ptrdiff_t p = 0;
        for (; vectors == 4 && p < k; p += 4, b += n * 4) MP_UNROLL_8 for (int i = 0; i < 4; i++) MP_ADD(i, b);
        for (; p < k; p += 4, b += n * 4) {
            if (vectors > 0) MP_ADD(0, b);
            if (vectors > 1) MP_ADD(1, b);
            if (vectors > 2) MP_ADD(2, b);
        }
#undef MP_ADD
        for (int i = 0; i < vectors; i++) {
            int32_t *to = sums + j + i * MP_LANES;
            const ptrdiff_t left = at_most(n - j - i * MP_LANES, MP_LANES);
            storen_u32(to, add_u32(loadn_u32(to, left), as_u32(total[i])), left);
        }
    }
}

static void row_sums(ptrdiff_t m, ptrdiff_t k, const void *a, ptrdiff_t lda, uint32_t a_flip, int32_t *sums) {
    const vu32 ones = set_u32(0x01010101u), flip = set_u32(a_flip);
    for (ptrdiff_t i = 0; i < m; i++) {
        const uint8_t *row = (const uint8_t *)a + i * lda;
        vu32 total = set_u32(0);
        ptrdiff_t p = 0;
        uint32_t lanes[MP_LANES], sum = 0;
        for (; p + 64 <= k; p += 64) total = dot_u8s8(total, xor_u32(load_u32(row + p), flip), ones);
        store_u32(lanes, total);
        for (int lane = 0; lane < MP_LANES; lane++) sum += lanes[lane];
        for (; p < k; p++) sum += row[p] ^ (a_flip & 0xFF);
        sums[i] = (int32_t)sum;
    }
}
