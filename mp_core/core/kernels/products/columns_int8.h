/* The product of int8 rows by contiguous int8 columns of b, `step` bytes apart. Sums of integers have no order: neighbours
 * along k are multiplied as they lie, and the lanes are added in the end. At most MP_TURNED_ROWS rows, of all k, by at most
 * MP_PANEL columns. DOT, FINISH: those of quads_in_place. */
enum { SIDE_BY_SIDE = 4, LINE = 4 * MP_LANES };

V vf32 flipped(const uint8_t *b) { return as_f32(xor_u32(load_u32(b), set_u32(0x80808080u))); }

/* Bytes of a row or a column from byte `whole` on: the end of LINE bytes after zeros, or all of fewer before zeros. */
V void last_line(uint8_t *to, const uint8_t *x, ptrdiff_t k, ptrdiff_t whole) {
    memset(to, 0, LINE);
    memcpy(to + (k < LINE ? 0 : LINE - (k - whole)), x + whole, (size_t)(k - whole));
}

/* One row of a: a column after the other, several vectors of it at a time, so that memory is read in order and no sum waits
 * for another. What lies behind them is fetched, or the next column, if that is farther. */
V void turn_row(const mp_gemm *g, int32_t *acc) {
    enum { VECTORS = 4 };
    const ptrdiff_t whole = g->k / LINE * LINE, ahead = is_stretch(g->k, g->step) ? 128 * LINE : g->step;
    const uint8_t *const a = g->a, *b = g->b;
    uint8_t last_a[LINE];
    vu32 sums[MP_LANES];
    memset(sums, 0, sizeof sums);
    last_line(last_a, a, g->k, whole);
    for (ptrdiff_t j = 0; j < g->n; j++, b += g->step) {
        vf32 c[VECTORS];
        UNROLL for (int s = 0; s < VECTORS; s++) c[s] = set_f32(0.0f);
        ptrdiff_t p = 0;
        for (; p + VECTORS * LINE <= whole; p += VECTORS * LINE)
            UNROLL for (int s = 0; s < VECTORS; s++) {
                __builtin_prefetch(b + p + s * LINE + ahead, 0, 3);
                c[s] = DOT(c[s], load_f32((const void *)(a + p + s * LINE)), flipped(b + p + s * LINE));
            }
        for (; p < whole; p += LINE) c[0] = DOT(c[0], load_f32((const void *)(a + p)), flipped(b + p));
        c[1] = DOT(c[1], load_f32((const void *)last_a), flipped(b + g->k - LINE));
        sums[j % MP_LANES] = as_u32(ADD(ADD(c[0], c[1]), ADD(c[2], c[3])));
        if (j % MP_LANES == MP_LANES - 1 || j == g->n - 1) store_u32(acc + j / MP_LANES * MP_LANES, sums_u32(sums));
    }
}

/* Columns side by side: in whole vectors from `head` words to byte `whole`; what is left is among their `last` LINE bytes. */
typedef struct {
    const uint8_t *b[SIDE_BY_SIDE], *last[SIDE_BY_SIDE];
    ptrdiff_t head, whole;
} turned_columns;

/* Some rows of a, `lda` bytes apart, by these columns: the sums of 16 lanes each. The first rows fetch the next columns, if
 * they are one stretch of memory, line by line: that columns side by side are that no processor sees. */
V void turned_dots(const turned_columns *t, const uint8_t *a, ptrdiff_t lda, const uint8_t (*last_a)[LINE], vu32 *sums,
                   const int rows, const uint8_t *next) {
#define MP_DOTS(A_AT, LOAD_A, B_AT)                                                                                  \
    UNROLL for (int i = 0; i < rows; i++) y[i] = LOAD_A((const void *)(A_AT));                                       \
    UNROLL for (int q = 0; q < SIDE_BY_SIDE; q++) {                                                                  \
        const vf32 x = flipped(B_AT);                                                                                \
        UNROLL for (int i = 0; i < rows; i++) c[i][q] = DOT(c[i][q], y[i], x);                                       \
    }
#define MP_HEAD(P) loadn_f32(P, t->head) /* zeros times what follows b's head */
    vf32 c[2][SIDE_BY_SIDE], y[2];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int q = 0; q < SIDE_BY_SIDE; q++) c[i][q] = set_f32(0.0f);
    MP_DOTS(last_a[i], load_f32, t->last[q])
    if (t->head) { MP_DOTS(a + i * lda, MP_HEAD, t->b[q]) }
    for (ptrdiff_t p = 4 * t->head; p < t->whole; p += LINE) {
        if (next) UNROLL for (int q = 0; q < SIDE_BY_SIDE; q++) __builtin_prefetch(next + SIDE_BY_SIDE * p + q * LINE, 0, 3);
        MP_DOTS(a + i * lda + p, load_f32, t->b[q] + p)
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int q = 0; q < SIDE_BY_SIDE; q++) sums[i * MP_LANES + q] = as_u32(c[i][q]);
#undef MP_DOTS
#undef MP_HEAD
}

V void turn_rows(const mp_gemm *g, int32_t *acc) {
    turned_columns t;
    /* Words before the first cache line, where all columns begin at the same place in one, and are long enough to gain. */
    const int skewed = g->step % LINE == 0 && g->k >= 10 * LINE;
    t.head = skewed ? unaligned_head(g->b, 4, MP_LANES) % MP_LANES : 0;
    t.whole = (g->k - 4 * t.head) / LINE * LINE + 4 * t.head;
    const int fetched = is_stretch(g->k, g->step) && SIDE_BY_SIDE * g->step <= FETCHED_ROWS;
    uint8_t last_a[MP_TURNED_ROWS][LINE], short_b[SIDE_BY_SIDE][LINE];
    for (ptrdiff_t i = 0; i < g->m; i++) last_line(last_a[i], (const uint8_t *)g->a + i * g->lda, g->k, t.whole);
    for (ptrdiff_t j = 0; j < g->n; j += MP_LANES) {
        vu32 sums[MP_TURNED_ROWS * MP_LANES];
        for (int first = 0; first < MP_LANES; first += SIDE_BY_SIDE) {
            for (int q = 0; q < SIDE_BY_SIDE; q++) { /* beyond the last column, that one again */
                t.b[q] = (const uint8_t *)g->b + at_most(j + first + q, g->n - 1) * g->step;
                t.last[q] = t.b[q] + g->k - LINE;
                if (g->k < LINE) last_line(short_b[q], t.b[q], g->k, 0), t.last[q] = short_b[q];
            }
            const uint8_t *a = g->a, *next = NULL;
            if (fetched) next = j + first + SIDE_BY_SIDE < g->n ? t.b[0] + SIDE_BY_SIDE * g->step : (const void *)g->fetch;
            ptrdiff_t i = 0;
            for (; i + 2 <= g->m; i += 2, a += 2 * g->lda)
                turned_dots(&t, a, g->lda, last_a + i, sums + i * MP_LANES + first, 2, i ? NULL : next);
            if (i < g->m) turned_dots(&t, a, g->lda, last_a + i, sums + i * MP_LANES + first, 1, NULL);
        }
        for (ptrdiff_t i = 0; i < g->m; i++) store_u32(acc + i * MP_PANEL + j, sums_u32(sums + i * MP_LANES));
    }
}

static __attribute__((noinline)) void panel_turned_quads_i8(const mp_gemm *g) {
    _Alignas(64) int32_t acc[MP_TURNED_ROWS * MP_PANEL];
    if (g->m == 1 && g->k >= LINE) turn_row(g, acc);
    else turn_rows(g, acc);
    FINISH(g, acc, 0, g->m);
}
