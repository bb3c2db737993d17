/* The product of at most MP_TRANSPOSED_ROWS int8 rows of A by at most MP_PANEL columns of a transposed int8 B, over all
 * of K. The order of sums of integers does not matter, so elements along K are multiplied in place, 64 at a time, and
 * the 16 lanes of each sum are added at the end. (The constants were measured on Zen 4 and Zen 5, November 2026.) */
enum {
    SIDE_BY_SIDE = 4,       /* columns that are multiplied at a time if M > 1 */
    LINE = 4 * MP_LANES,    /* bytes, and elements, of a vector, which is a cache line */
    ROW_DISTANCE = 128 * LINE /* prefetch distance if M = 1, bytes */
};

/* LINE bytes of a column; their products with LINE signed bytes of a row of A. */
MP_INLINE vf32 line_of_b(const uint8_t *b) { return as_f32(bytes_in_place(load_u32(b))); }
MP_INLINE vf32 dot_line(vf32 sum, vf32 a, vf32 b) {
#ifdef MP_NATIVE_S8
    return as_f32(dot_s8s8(as_u32(sum), as_u32(a), as_u32(b)));
#else
    return as_f32(dot_u8s8(as_u32(sum), as_u32(b), as_u32(a)));
#endif
}
MP_INLINE vf32 load_line(const uint8_t *p) { return load_f32((const void *)p); }

/* Write the last k - whole bytes of x to `to`, at its end if k >= LINE, else at its start. All other of its LINE bytes
 * are zero. */
MP_INLINE void last_line(uint8_t *to, const uint8_t *x, ptrdiff_t k, ptrdiff_t whole) {
    memset(to, 0, LINE);
    memcpy(to + (k < LINE ? 0 : LINE - (k - whole)), x + whole, (size_t)(k - whole));
}

/* M = 1 and K >= LINE: column after column, so that memory is read in order, and four vectors of a column at a time, so
 * that no sum waits for another. The prefetch distance is ROW_DISTANCE if columns are nearly contiguous (is_stretch),
 * else one column. */
MP_INLINE void multiply_int8_row(const mp_gemm *g, int32_t *out) {
    enum { VECTORS = 4 };
    const ptrdiff_t k = g->shape.k, whole = k / LINE * LINE, b_stride = g->operands.b_stride;
    const ptrdiff_t distance = is_stretch(k, b_stride) ? ROW_DISTANCE : b_stride;
    const uint8_t *const a = g->operands.a, *b = g->operands.b;
    uint8_t last_a[LINE];
    vu32 sums[MP_LANES];
    memset(sums, 0, sizeof sums);
    last_line(last_a, a, k, whole);
    for (ptrdiff_t j = 0; j < g->shape.n; j++, b += b_stride) {
        vf32 c[VECTORS];
        MP_UNROLL_8 for (int s = 0; s < VECTORS; s++) c[s] = set_f32(0.0f);
        ptrdiff_t p = 0;
        for (; p + VECTORS * LINE <= whole; p += VECTORS * LINE)
            MP_UNROLL_8 for (int s = 0; s < VECTORS; s++) {
                __builtin_prefetch(b + p + s * LINE + distance, 0, 3);
                c[s] = dot_line(c[s], load_line(a + p + s * LINE), line_of_b(b + p + s * LINE));
            }
        for (; p < whole; p += LINE) c[0] = dot_line(c[0], load_line(a + p), line_of_b(b + p));
        c[1] = dot_line(c[1], load_line(last_a), line_of_b(b + k - LINE));
        sums[j % MP_LANES] = add_u32(add_u32(as_u32(c[0]), as_u32(c[1])), add_u32(as_u32(c[2]), as_u32(c[3])));
        if (j % MP_LANES == MP_LANES - 1 || j == g->shape.n - 1)
            store_u32(out + j / MP_LANES * MP_LANES, sums_u32(sums));
    }
}

/* SIDE_BY_SIDE columns. Bytes 4 * head to whole - 1 of each column are read as whole vectors. The bytes before are the
 * first `head` words of a vector; those after are in `last`, the last LINE bytes of the column. */
typedef struct {
    const uint8_t *b[SIDE_BY_SIDE], *last[SIDE_BY_SIDE];
    ptrdiff_t head, whole;
} int8_columns;

/* Add to the sums c the products of vectors of `rows` rows of A by a vector of each column, from byte `at` on. */
MP_INLINE void dot_columns(vf32 (*c)[SIDE_BY_SIDE], const vf32 *a, const uint8_t *const *b, ptrdiff_t at,
                           const int rows) {
    MP_UNROLL_8 for (int q = 0; q < SIDE_BY_SIDE; q++) {
        const vf32 x = line_of_b(b[q] + at);
        MP_UNROLL_8 for (int i = 0; i < rows; i++) c[i][q] = dot_line(c[i][q], a[i], x);
    }
}

/* Multiply `rows` rows of A, lda bytes apart, by these columns, and store the sums, each with 16 lanes. If `next` is
 * not NULL, prefetch the next columns from there on, line by line: they are nearly contiguous. */
MP_INLINE void multiply_int8_columns(const int8_columns *t, const uint8_t *a, ptrdiff_t lda,
                                     const uint8_t (*last_a)[LINE], vu32 *sums, const int rows, const uint8_t *next) {
    vf32 c[2][SIDE_BY_SIDE], y[2];
    MP_UNROLL_8 for (int i = 0; i < rows; i++)
        MP_UNROLL_8 for (int q = 0; q < SIDE_BY_SIDE; q++) c[i][q] = set_f32(0.0f);
    MP_UNROLL_8 for (int i = 0; i < rows; i++) y[i] = load_line(last_a[i]);
    dot_columns(c, y, t->last, 0, rows);
    if (t->head) { /* lanes beyond the head are zero in a, so those of b may have any value */
        MP_UNROLL_8 for (int i = 0; i < rows; i++) y[i] = loadn_f32((const void *)(a + i * lda), t->head);
        dot_columns(c, y, t->b, 0, rows);
    }
    for (ptrdiff_t p = 4 * t->head; p < t->whole; p += LINE) {
        if (next)
            MP_UNROLL_8 for (int q = 0; q < SIDE_BY_SIDE; q++)
                __builtin_prefetch(next + SIDE_BY_SIDE * p + q * LINE, 0, 3);
        MP_UNROLL_8 for (int i = 0; i < rows; i++) y[i] = load_line(a + i * lda + p);
        dot_columns(c, y, t->b, p, rows);
    }
    MP_UNROLL_8 for (int i = 0; i < rows; i++)
        MP_UNROLL_8 for (int q = 0; q < SIDE_BY_SIDE; q++) sums[i * MP_LANES + q] = as_u32(c[i][q]);
}

/* M > 1, or K < LINE: two rows of A at a time by SIDE_BY_SIDE columns. The first rows prefetch the next columns. */
MP_INLINE void multiply_int8_rows(const mp_gemm *g, int32_t *out) {
    const ptrdiff_t m = g->shape.m, n = g->shape.n, k = g->shape.k, lda = g->operands.lda,
                    b_stride = g->operands.b_stride;
    int8_columns t;
    /* If all columns start at the same offset in a cache line, and are long enough for a gain, the words before the
     * first line boundary are multiplied separately, so that no load crosses a boundary. */
    const int skewed = b_stride % LINE == 0 && k >= 10 * LINE;
    t.head = skewed ? unaligned_head(g->operands.b, 4, MP_LANES) % MP_LANES : 0;
    t.whole = (k - 4 * t.head) / LINE * LINE + 4 * t.head;
    const int prefetched = is_stretch(k, b_stride) && SIDE_BY_SIDE * b_stride <= L1_BYTES;
    uint8_t last_a[MP_TRANSPOSED_ROWS][LINE], short_b[SIDE_BY_SIDE][LINE];
    for (ptrdiff_t i = 0; i < m; i++) last_line(last_a[i], (const uint8_t *)g->operands.a + i * lda, k, t.whole);
    for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
        vu32 sums[MP_TRANSPOSED_ROWS * MP_LANES];
        for (int first = 0; first < MP_LANES; first += SIDE_BY_SIDE) {
            for (int q = 0; q < SIDE_BY_SIDE; q++) { /* instead of columns beyond the last one: the last one */
                t.b[q] = (const uint8_t *)g->operands.b + at_most(j + first + q, n - 1) * b_stride;
                t.last[q] = t.b[q] + k - LINE;
                if (k < LINE) last_line(short_b[q], t.b[q], k, 0), t.last[q] = short_b[q];
            }
            const uint8_t *a = g->operands.a, *next = NULL;
            if (prefetched)
                next = j + first + SIDE_BY_SIDE < n ? t.b[0] + SIDE_BY_SIDE * b_stride : (const void *)g->prefetch.next;
            ptrdiff_t i = 0;
            for (; i + 2 <= m; i += 2, a += 2 * lda)
                multiply_int8_columns(&t, a, lda, last_a + i, sums + i * MP_LANES + first, 2, i ? NULL : next);
            if (i < m) multiply_int8_columns(&t, a, lda, last_a + i, sums + i * MP_LANES + first, 1, NULL);
        }
        for (ptrdiff_t i = 0; i < m; i++) store_u32(out + i * MP_PANEL + j, sums_u32(sums + i * MP_LANES));
    }
}

static __attribute__((noinline)) void panel_transposed_quads_i8(const mp_gemm *g) {
    _Alignas(64) int32_t sums[MP_TRANSPOSED_ROWS * MP_PANEL];
    if (g->shape.m == 1 && g->shape.k >= LINE) multiply_int8_row(g, sums);
    else multiply_int8_rows(g, sums);
    epilogue_of_integers(g, sums, 0, g->shape.m);
}
