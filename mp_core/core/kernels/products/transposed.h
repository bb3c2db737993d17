/* The product of at most MP_TRANSPOSED_ROWS rows of A by at most MP_PANEL columns of a transposed B, over all of K.
 * Pieces of B are transposed into the L1 cache and multiplied immediately, piece after piece along K, so that memory is
 * read in order. A piece is some columns by some elements of K, in the layout of a panel. (multiply_row, for one row of
 * the kinds in MP_ROW_KINDS, needs no pieces.) */

/* Columns of a piece, and words (4 bytes) of each column. If B is in a cache, a piece has 32 columns. If B is in
 * memory, a piece is one transposition (32 columns of f16, else 16) with half as many words, so that multiplying starts
 * earlier. (Measured on Zen 5, November 2026.) */
enum { CACHED_COLUMNS = 2 * MP_LANES, CACHED_WORDS = 2 * MP_LANES, MEMORY_WORDS = MP_LANES };
#define MEMORY_COLUMNS(KIND) at_a_time(size_of_b(KIND), group_of(KIND))

/* The number of elements in `words` words of a column. */
MP_INLINE ptrdiff_t elements_of(ptrdiff_t words, const int kind) { return words * 4 / size_of_b(kind); }

/* Multiply a whole piece, of `all` vectors of columns and k elements along K, by `rows` rows of A from number `row` on,
 * and add the products to partial sums, in rows of CACHED_COLUMNS. */
MP_INLINE void multiply_piece(const mp_gemm *g, ptrdiff_t row, const int kind, const int rows, const int all,
                              const int k) {
    if (rows == 1 && has_row(kind)) return; /* one row is multiplied by multiply_row or `panel` */
    const int most = MP_MR * MP_NR_VECTORS / rows, vectors = all < most ? all : most, group = group_of(kind);
    const ptrdiff_t lda = g->operands.lda * size_of_a(kind), b_stride = all * vector_bytes(kind),
                    ld = CACHED_COLUMNS * 4;
    for (int v = 0; v < all; v += vectors) {
        place at = {.lda = lda, .b = (const char *)g->operands.b + v * vector_bytes(kind)};
        at.a = (const char *)g->operands.a + row * lda;
        char *const partial = (char *)g->accumulators.partial + row * ld + v * MP_LANES * 4;
        vf32 c[MOST_ROWS][MOST_VECTORS];
        load_sums(c, partial, ld, rows, vectors);
        watch(kind);
#define MP_ADVANCE                                                 \
        multiply_group(g, c, &at, kind, rows, vectors, group);     \
        at.a += group * size_of_a(kind), at.b += b_stride;
        if (rows < 3)
            _Pragma("GCC unroll 4") for (int left = k / group; left > 0; left--) { MP_ADVANCE }
        else
            for (int left = k / group; left > 0; left--) { MP_ADVANCE }
#undef MP_ADVANCE
        if (has_flushed(c, kind, rows, vectors)) {
            const again_block block = {
                .at = {.a = (const char *)g->operands.a + row * lda, .lda = lda,
                       .b = (const char *)g->operands.b + v * vector_bytes(kind)},
                .k = k, .b_stride = b_stride, .sums = partial, .ld = ld, .rows = rows, .vectors = vectors,
            };
            multiply_again(&block, kind);
            continue;
        }
        store_sums(c, partial, ld, rows, vectors);
    }
}

#if MP_NR_VECTORS == 4 /* pieces have at most two vectors of columns, not four: so up to 2 MR rows */
#define MP_PIECE_ROWS (2 * MP_MR)
#define MP_HEIGHTS(DO, KIND) \
    DO(KIND, 1) DO(KIND, 2) DO(KIND, 3) DO(KIND, 4) DO(KIND, 5) DO(KIND, 6) \
    DO(KIND, 7) DO(KIND, 8) DO(KIND, 9) DO(KIND, 10) DO(KIND, 11) DO(KIND, 12)
#elif MP_MR == 6
#define MP_PIECE_ROWS 6
#define MP_HEIGHTS(DO, KIND) DO(KIND, 1) DO(KIND, 2) DO(KIND, 3) DO(KIND, 4) DO(KIND, 5) DO(KIND, 6)
#else
#define MP_PIECE_ROWS 1
#define MP_HEIGHTS(DO, KIND) DO(KIND, 1)
#endif
typedef void (*const piece_kernels[MP_PIECE_ROWS])(const mp_gemm *g, ptrdiff_t row);

/* Pack a piece that is smaller than the others: at the end of K or of the columns, or before the first cache line. */
MP_INLINE void pack_piece(ptrdiff_t k, ptrdiff_t n, const char *b, ptrdiff_t b_stride, char *made, const int kind) {
    if (group_of(kind) == 2) pack_pairs(k, n, b, size_of_b(kind), b_stride, made);
    else if (size_of_b(kind) == 2) pack_halves(k, n, b, size_of_b(kind), b_stride, made);
    else pack_words(k, n, b, size_of_b(kind), b_stride, made);
}

/* Write a whole piece to `made` as a panel: `words` words of the `columns` columns at b, which are b_stride bytes
 * apart. */
MP_INLINE void transpose_piece(const char *b, ptrdiff_t b_stride, char *made, const int kind, const ptrdiff_t columns,
                               const ptrdiff_t words) {
    const int size = size_of_b(kind), group = group_of(kind);
    const ptrdiff_t at_once = at_most(columns, at_a_time(size, group));
    for (ptrdiff_t i = 0; i < columns; i += at_once)
        for (ptrdiff_t w = 0; w < words; w += MP_LANES)
            transpose(b + i * b_stride + w * 4, b_stride, at_once,
                      made + (i * group + elements_of(w, kind) * columns) * size, columns * size * group, size, group);
}

/* Data of all pieces of the same columns. */
typedef struct {
    mp_gemm call;                 /* for one piece; its partial sums are [rows of a][CACHED_COLUMNS] */
    char *made;                   /* the buffer for the piece as a panel */
    const char *column, *next;    /* the first column; the first of the columns to be prefetched, or NULL */
    ptrdiff_t rows, head;         /* rows of a register block; words of a column before its first cache line, or 0 */
    void (*const *kernels)(const mp_gemm *g, ptrdiff_t row); /* multiply whole pieces, by rows - 1 */
    void (*panel)(const mp_gemm *g);                         /* multiplies smaller ones */
} pieces;

/* Multiply the elements start to end - 1 along K, which are in one K block, for `columns` columns, or fewer at the end.
 * Whole pieces are transposed and multiplied by loops of constant length. */
MP_INLINE void multiply_pieces(const mp_gemm *g, pieces *p, ptrdiff_t start, ptrdiff_t end, const int kind,
                               const ptrdiff_t columns, const ptrdiff_t words) {
    mp_gemm *const call = &p->call;
    const ptrdiff_t b_stride = g->operands.b_stride, size = size_of_b(kind);
    for (ptrdiff_t at = start; at < end; at += call->shape.k) {
        const char *const b = p->column + at * size;
        call->operands.a = (const char *)g->operands.a + at * size_of_a(kind);
        call->shape.k = at_most(end - at, elements_of(at == start && p->head ? p->head : words, kind));
        if (call->shape.k < elements_of(words, kind) || call->shape.n < columns) {
            pack_piece(call->shape.k, call->shape.n, b, b_stride, p->made, kind);
            p->panel(call);
            continue;
        }
        if (p->next) prefetch_columns(p->next + at * size * columns, columns * words * 4);
        transpose_piece(b, b_stride, p->made, kind, columns, words);
        for (ptrdiff_t i = 0; i < g->shape.m; i += p->rows)
            p->kernels[at_most(g->shape.m - i, p->rows) - 1](call, i);
    }
}

/* Like multiply_pieces, for one row and whole words of columns in place. Return the end of the multiplied elements
 * along K: of elements of two bytes, an odd last one is left.
 *
 * 32 columns are two vectors of 16. They alternate every MP_ROW_WORDS words, because each multiplication waits for the
 * one before it in its vector. If B is in memory, each time as many bytes of the next columns are prefetched as are
 * multiplied, in the order of memory. They are prefetched into L1; into L2, products take 1.13 times as long (AVX-512
 * on Zen 5, November 2026). On AVX2 one call multiplies all of the K block, and nothing is prefetched. */
MP_INLINE ptrdiff_t multiply_row(const mp_gemm *g, const pieces *p, ptrdiff_t start, ptrdiff_t end, float *partial,
                                 const int kind, const ptrdiff_t columns) {
    const ptrdiff_t b_stride = g->operands.b_stride, size = size_of_b(kind), elements = elements_of(1, kind);
    /* On AVX-512, if the stride of columns is a multiple of a page, the first call multiplies the words before the
     * first cache line boundary, so that later calls read whole lines. */
    const ptrdiff_t head = MP_ROW_WORDS == MP_LANES ? p->head : 0;
    ptrdiff_t at = start;
    vf32 sums[CACHED_COLUMNS / MP_LANES];
    MP_UNROLL_8 for (int v = 0; v < columns / MP_LANES; v++) sums[v] = set_f32(0.0f);
    for (ptrdiff_t words; end - at >= elements; at += words * elements) {
        words = at_most((end - at) / elements, at == start && head ? head : MP_ROW_WORDS);
        MP_UNROLL_8 for (int v = 0; v < columns / MP_LANES; v++) {
            const ptrdiff_t bytes = MP_LANES * words * 4;
            if (p->next && words == MP_ROW_WORDS) prefetch_bytes(p->next + at * size * columns + v * bytes, bytes);
            sums[v] = multiply_words(sums[v], (const char *)g->operands.a + at * size_of_a(kind),
                                     p->column + v * MP_LANES * b_stride + at * size, b_stride, words, kind);
        }
    }
    MP_UNROLL_8 for (int v = 0; v < columns / MP_LANES; v++) store_f32(partial + v * MP_LANES, sums[v]);
    return at;
}

/* Add the partial sums of a K block to the sums of `columns` columns or, without `adds`, copy them. */
MP_INLINE void add_pieces(const mp_gemm *g, const float *partial, float *sums, const ptrdiff_t columns, int adds) {
    for (ptrdiff_t i = 0; i < g->shape.m; i++)
        for (ptrdiff_t v = 0; v < columns; v += MP_LANES) {
            float *const to = sums + i * MP_PANEL + v;
            const vf32 sum = load_f32(partial + i * CACHED_COLUMNS + v);
            store_f32(to, adds ? add_f32(load_f32(to), sum) : sum);
        }
}

/* Multiply all columns of the call, `columns` at a time, and run the epilogue. */
MP_INLINE void multiply_columns(const mp_gemm *g, pieces *p, const int kind, const ptrdiff_t columns,
                                const ptrdiff_t words) {
    _Alignas(64) float sums[MP_TRANSPOSED_ROWS * MP_PANEL], partial[MP_TRANSPOSED_ROWS * CACHED_COLUMNS];
    _Alignas(64) char made[CACHED_COLUMNS * CACHED_WORDS * 4 + MP_SLACK];
    const ptrdiff_t blocks = (g->shape.m + MP_PIECE_ROWS - 1) / MP_PIECE_ROWS, b_stride = g->operands.b_stride;
    const int prefetched = g->prefetch.from_memory && is_stretch(g->shape.k * size_of_b(kind), b_stride)
                           && columns * b_stride <= L2_BYTES;
    p->rows = (g->shape.m + blocks - 1) / blocks, p->made = made, p->call = *g;
    p->call.operands.b = made, p->call.prefetch.next = NULL;
    p->call.accumulators = (mp_accumulators){.partial = partial, .ld = CACHED_COLUMNS, .resume = 1, .suspend = 1};
    for (ptrdiff_t j = 0; j < g->shape.n; j += columns) {
        p->column = (const char *)g->operands.b + j * b_stride;
        /* If the stride is a multiple of a page, each line must be read in one load: see pack_columns. */
        p->head = b_stride % MP_PAGE ? 0 : unaligned_head(p->column, 4, MP_LANES) % MP_LANES;
        p->next = j + columns < g->shape.n ? p->column + columns * b_stride : g->prefetch.next;
        if (!prefetched) p->next = NULL;
        p->call.shape.n = at_most(g->shape.n - j, columns);
        p->call.operands.b_stride = p->call.shape.n * size_of_b(kind) * group_of(kind);
        for (ptrdiff_t start = 0, end; start < g->shape.k; start = end) {
            end = start + at_most(g->shape.k - start, g->shape.k_block);
            memset(partial, 0, (size_t)g->shape.m * CACHED_COLUMNS * 4);
            ptrdiff_t done = start;
            if (multiplies_row(g, kind) && p->call.shape.n == columns)
                done = multiply_row(g, p, start, end, partial, kind, columns);
            multiply_pieces(g, p, done, end, kind, columns, words);
            add_pieces(g, partial, sums + j, columns, start > 0);
        }
    }
    run_epilogue(g, sums, 0, g->shape.m, kind, IN_MEMORY);
}

MP_INLINE void multiply_transposed(const mp_gemm *g, const int kind, void (*panel)(const mp_gemm *),
                                   piece_kernels *kernels) {
    /* With one row, each fma waits for the one before it, 4 cycles on Zen 5. If a word of 16 columns (64 bytes) needs
     * two of them, one vector of columns reads 8 bytes a cycle, less than memory delivers. So two vectors alternate, as
     * for a B in a cache. This makes float32 times bfloat16, 1x1024x1024 and 1x4096x4096 nk, 1.25 times as fast.
     * bfloat16 by vdpbf16ps would be 1.2 to 1.4 times as fast with B in L3, but only 0.82 to 0.97 times as fast with B
     * in memory. (Alternating builds; November 2026.) */
    const int is_slow_row = multiplies_row(g, kind) && has_two_multiplications(kind);
    const int from_memory = g->prefetch.from_memory && !is_slow_row;
    pieces p = {.panel = panel, .kernels = kernels[from_memory]};
    if (from_memory) multiply_columns(g, &p, kind, MEMORY_COLUMNS(kind), MEMORY_WORDS);
    else multiply_columns(g, &p, kind, CACHED_COLUMNS, CACHED_WORDS);
}

#define MP_PIECE(KIND, R)                                                                                           \
    static __attribute__((noinline)) void multiply_cached_##KIND##_##R(const mp_gemm *g, ptrdiff_t row) {           \
        multiply_piece(g, row, KIND_##KIND, R, CACHED_COLUMNS / MP_LANES,                                           \
                       (int)elements_of(CACHED_WORDS, KIND_##KIND));                                                \
    }                                                                                                               \
    static __attribute__((noinline)) void multiply_memory_##KIND##_##R(const mp_gemm *g, ptrdiff_t row) {           \
        multiply_piece(g, row, KIND_##KIND, R, MEMORY_COLUMNS(KIND_##KIND) / MP_LANES,                              \
                       (int)elements_of(MEMORY_WORDS, KIND_##KIND));                                                \
    }
#define MP_CACHED_PIECE(KIND, R) multiply_cached_##KIND##_##R,
#define MP_MEMORY_PIECE(KIND, R) multiply_memory_##KIND##_##R,
#define MP_TRANSPOSED(KIND)                                                                                         \
    MP_HEIGHTS(MP_PIECE, KIND)                                                                                      \
    static piece_kernels pieces_##KIND[2] = {{MP_HEIGHTS(MP_CACHED_PIECE, KIND)},                                   \
                                             {MP_HEIGHTS(MP_MEMORY_PIECE, KIND)}};                                  \
    static __attribute__((noinline)) void panel_transposed_##KIND(const mp_gemm *g) {                               \
        multiply_transposed(g, KIND_##KIND, panel_##KIND, pieces_##KIND);                                           \
    }
