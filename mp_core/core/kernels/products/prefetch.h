/* Prefetching in products. The plan says in mp_prefetch what to prefetch; this file says which function does it, at
 * which distance, and why the hardware prefetchers do not do it. These follow only a few streams of consecutive cache
 * lines, within a page of 4 KiB, and only after some misses in each.
 *
 *   what            by                                       distance, cache     why the hardware does not
 *   the next range  register blocks of more than 3 rows, in  one range, L2       it begins with a jump: of a panel, of
 *                   shares (share_prefetch); AMX tiles, in                       rows or of columns of B
 *                   shares too (multiply_tiles)
 *   the own panel   the first register block of each panel   8 KiB, L1           it keeps up only with a core that
 *                   that comes from memory (OWN_PANEL), or                       multiplies one row and decodes nothing
 *                   the first part by AMX tiles (own)
 *   rows, M = 1     multiply_one_row (panel.h)               the next 2 to 8     16 columns of a row are less than a
 *                                                            rows, L1            line, or rows are too short for it
 *                                                                                to recognise
 *   rows, M <= MR   each register block, before it begins    one range, L1       each row of B of the range is a stream
 *                   (pairs_of_rows)
 *   columns         multiply_pieces (transposed.h)           16 or 32 columns,   each column is a stream
 *                                                            L2
 *                   multiply_row on AVX-512; on AVX2         16 or 32 columns,   the same
 *                   it prefetches nothing                    L1; a long K leaves
 *                                                            L1 for L2 before use
 *   int8 columns    M > 1: multiply_int8_columns             4 columns, L1       each column is a stream
 *                   M = 1: multiply_int8_row                 8 KiB or one        the only stream ends with the column
 *                                                            column, L1
 *   packing         pack_rows, pack_columns (packing.h)      32 or 256 bytes of  rows or columns that are read side by
 *                                                            a column, L1        side are far apart
 *
 * The numbers below were found on Zen 5, November 2026. docs/performance.md has what prefetching gains. */
enum {
    OWN_DISTANCE = 1 << 13,     /* prefetch distance of a call's own panel, bytes */
    L1_BYTES = 1 << 14,         /* prefetched bytes that stay in L1 until they are used: half of 32 KiB */
    L2_BYTES = 1 << 19,         /* ... in L2: half of 1 MiB */
    LOW_ROWS = 3,               /* register blocks of at most this many rows multiply too little to hide prefetches */
    PACK_ROWS_DISTANCE = 32,    /* prefetch distance of packing from rows: bytes of a column, 32 / element bytes rows */
    PACK_COLUMNS_DISTANCE = 256 /* prefetch distance of packing from columns: bytes of a column */
};

/* Whether rows (or columns) of `bytes` bytes are nearly contiguous: gaps are smaller than 1/8 of a row. */
MP_INLINE int is_stretch(ptrdiff_t bytes, ptrdiff_t stride) { return stride >= 0 && 8 * stride < 9 * bytes; }

/* Rows that are prefetched line by line, in the order of memory. */
typedef struct {
    const char *line, *row;        /* the next line; the start of its row */
    ptrdiff_t row_bytes, stride;   /* bytes of a row (PTRDIFF_MAX if is_stretch); bytes from one row to the next */
} line_cursor;

MP_INLINE line_cursor cursor_at(const char *row, ptrdiff_t row_bytes, ptrdiff_t stride) {
    return (line_cursor){row, row, is_stretch(row_bytes, stride) ? PTRDIFF_MAX : row_bytes, stride};
}

/* Prefetch the next `lines` cache lines into L1 or L2, and advance to the line after them. */
MP_INLINE void prefetch_lines(line_cursor *r, const int lines, const int level) {
    MP_UNROLL_8 for (int i = 0; i < lines; i++) {
        if (level == 1)
            __builtin_prefetch(r->line + i * 64, 0, 3);
        else
            __builtin_prefetch(r->line + i * 64, 0, 2);
    }
    r->line += lines * 64;
    if (r->line - r->row >= r->row_bytes) r->line = r->row += r->stride;
}

/* Prefetch a range of memory into L1. */
MP_INLINE void prefetch_bytes(const char *from, ptrdiff_t bytes) {
    for (ptrdiff_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
}

/* ---- the next range */

/* The rest of mp_prefetch.next. Register blocks prefetch equal shares of it, a pair of cache lines at a time, in the
 * order of memory, so that hardware prefetchers follow too. */
typedef struct {
    line_cursor next;
    ptrdiff_t pairs;    /* pairs of cache lines that are left */
    ptrdiff_t share;    /* pairs that each register block prefetches */
    ptrdiff_t interval; /* iterations along K from one pair to the next, a power of two, less 1: a mask */
} shared_prefetch;

/* Return how many pairs of cache lines mp_prefetch.next has, and set `next` to the first line. This is the first line
 * that starts inside of a row, since the line in which the row starts has been prefetched with the bytes before it. */
MP_INLINE ptrdiff_t pairs_to_prefetch(const mp_prefetch *p, line_cursor *next) {
    const int stretch = is_stretch(p->row_bytes, p->row_stride);
    const ptrdiff_t rows = stretch ? 1 : p->rows, bytes = stretch ? p->rows * p->row_stride : p->row_bytes;
    *next = cursor_at(p->next + at_most(63, p->row_bytes - 1), p->row_bytes, p->row_stride);
    return rows * ((bytes + 127) / 128);
}

/* Set the shares of `blocks` register blocks whose loops along K have `iterations` iterations each. A block prefetches
 * one pair every 2^s iterations, for the largest s with pairs <= blocks * (iterations / 2^s). */
MP_INLINE void share_prefetch(const mp_prefetch *p, shared_prefetch *s, ptrdiff_t blocks, ptrdiff_t iterations) {
    s->pairs = pairs_to_prefetch(p, &s->next);
    int shift = 0;
    while (iterations >> (shift + 1) && s->pairs <= blocks * (iterations >> (shift + 1))) shift++;
    s->share = iterations >> shift, s->interval = ((ptrdiff_t)1 << shift) - 1;
}

/* What a register block prefetches between its multiplications. */
typedef enum { NOTHING, OWN_PANEL, NEXT_RANGE } prefetch_kind;

/* ---- rows of a row-major B that is read in place, for at most MR rows of A */

/* Return how many pairs of cache lines, of the rows of B after this range, each register block prefetches before it
 * starts, and set `next` to the first line. Rows of B have row_bytes bytes; a register block reads block_bytes of each.
 * Return 0 if prefetching does not pay: B is in a cache, this is the last range, rows of B are short and far apart, or
 * the caller says so (is_worth). */
MP_INLINE ptrdiff_t pairs_of_rows(const mp_gemm *g, line_cursor *next, ptrdiff_t row_bytes, ptrdiff_t group,
                                  ptrdiff_t block_bytes, int is_worth) {
    const ptrdiff_t stride = g->operands.b_stride / group;
    *next = cursor_at((const char *)g->operands.b + g->shape.k / group * g->operands.b_stride, row_bytes, stride);
    const int prefetched = g->prefetch.from_memory && !g->accumulators.last && is_worth
                           && (row_bytes >= 512 || is_stretch(row_bytes, stride));
    return prefetched ? g->shape.k * block_bytes / 128 : 0;
}

/* ---- columns of a transposed B */

/* Each piece prefetches as many bytes of the next columns as the piece has, in the order of memory. So all pieces of
 * some columns together prefetch all of the next columns. */
MP_INLINE void prefetch_columns(const char *next, ptrdiff_t bytes) {
    for (ptrdiff_t at = 0; at < bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
}

/* ---- packing: the source */

/* Prefetch `bytes` bytes of each of `rows` rows: pack_rows reads them PACK_ROWS_DISTANCE bytes of a column later. */
MP_INLINE void prefetch_pack_rows(const char *src, ptrdiff_t rs, ptrdiff_t bytes, const int rows, const int size) {
    for (int q = 0; q < rows; q++) prefetch_bytes(src + (PACK_ROWS_DISTANCE / size + q) * rs, bytes);
}

/* Prefetch a line of each of 16 columns, which pack_columns transposes PACK_COLUMNS_DISTANCE bytes later. */
MP_INLINE void prefetch_pack_columns(const char *src, ptrdiff_t cs) {
    MP_UNROLL_16 for (int i = 0; i < MP_LANES; i++) __builtin_prefetch(src + i * cs + PACK_COLUMNS_DISTANCE, 0, 3);
}
