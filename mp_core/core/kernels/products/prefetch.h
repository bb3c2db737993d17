/* Prefetching: every request for memory before it is loaded. The planner (core) says in mp_prefetch what to prefetch; here
 * is who does it, how far ahead, and why the hardware does not do it itself: its prefetchers follow a few streams of
 * neighbouring cache lines, within a page of 4 KiB, after they have seen some misses of each.
 *
 * what                by whom                                    distance, cache     why the hardware does not
 * the next range      register blocks of more than 3 rows,       a range, L2         a range of a panel, or of rows or columns
 *                     sharing it out (share_prefetch)                                of B, begins with a jump
 * its own panel       the first register blocks of a panel that  8 KiB, L1           one core follows memory only while it
 *                     comes from memory (OWN_PANEL)                                  computes little: to decode is too much
 * rows, one row of a  multiply_one_row                           <= 16 KiB, L1       rows narrower than a line or many streams:
 * rows, few rows of a the first register blocks that read rows   the range, L1       one for each row of B of the range
 *                     of B in place
 * columns             a transposed B, piece by piece             columns, L2         one stream for each of 16 or 32 columns
 * int8 columns        transposed_int8.h                          4 columns or        the same; one column alone is a stream
 *                                                                8 KiB, L1           that ends with the column
 * packing             packing.h: rows 32 bytes of a column       L1                  rows and columns lie far apart
 *                     ahead, columns 256 bytes
 */
enum {
    OWN_DISTANCE = 1 << 13,     /* bytes */
    L1_BYTES = 1 << 14,         /* so many bytes prefetched into L1 stay there until they are used (half of 32 KiB) */
    L2_BYTES = 1 << 19,         /* the same of L2 (half of 1 MiB) */
    BUSY_ROWS = 3,              /* register blocks of at most 3 rows multiply too little to hide prefetches of a range */
    PACK_ROWS_DISTANCE = 32,    /* packing rows: bytes of a column, that is 32 / element bytes rows */
    PACK_COLUMNS_DISTANCE = 256 /* packing columns: bytes */
};

/* Whether rows (or columns) of `bytes` bytes are one stretch of memory, with gaps of less than 1/8 of a row. */
V int is_stretch(ptrdiff_t bytes, ptrdiff_t stride) { return stride >= 0 && 8 * stride < 9 * bytes; }

/* Rows to be prefetched line by line in memory's order. */
typedef struct {
    const char *line, *row;        /* the next line; where its row begins */
    ptrdiff_t row_bytes, stride;   /* bytes of a row (of a stretch: no end); bytes from one row to the next */
} line_cursor;

V line_cursor cursor_at(const char *row, ptrdiff_t row_bytes, ptrdiff_t stride) {
    return (line_cursor){row, row, is_stretch(row_bytes, stride) ? PTRDIFF_MAX : row_bytes, stride};
}

/* Prefetch the next cache lines into L1 or L2. */
V void prefetch_lines(line_cursor *r, const int lines, const int level) {
    UNROLL for (int i = 0; i < lines; i++) {
        if (level == 1)
            __builtin_prefetch(r->line + i * 64, 0, 3);
        else
            __builtin_prefetch(r->line + i * 64, 0, 2);
    }
    r->line += lines * 64;
    if (r->line - r->row >= r->row_bytes) r->line = r->row += r->stride;
}

/* Prefetch a range of memory into L1. */
V void prefetch_bytes(const char *from, ptrdiff_t bytes) {
    for (ptrdiff_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
}

/* ---- the next range */

/* What is left of mp_prefetch.next, shared out among register blocks, by pairs of cache lines in memory's order, which the
 * hardware then follows. */
typedef struct {
    line_cursor next;
    ptrdiff_t pairs;    /* of cache lines, to go */
    ptrdiff_t share;    /* of each register block */
    ptrdiff_t interval; /* groups of K from one pair to the next, less 1: a mask */
} shared_prefetch;

/* How many pairs of cache lines mp_prefetch.next is, from `next` on. The line in which a row begins has come with what
 * precedes it. */
V ptrdiff_t pairs_to_prefetch(const mp_prefetch *p, line_cursor *next) {
    const int stretch = is_stretch(p->row_bytes, p->row_stride);
    const ptrdiff_t rows = stretch ? 1 : p->rows, bytes = stretch ? p->rows * p->row_stride : p->row_bytes;
    *next = cursor_at(p->next + at_most(63, p->row_bytes - 1), p->row_bytes, p->row_stride);
    return rows * ((bytes + 127) / 128);
}

/* Shares for `blocks` register blocks of `groups` steps each, with pairs as far apart as lets all blocks together reach the
 * last one. */
V void share_prefetch(const mp_prefetch *p, shared_prefetch *s, ptrdiff_t blocks, ptrdiff_t groups) {
    s->pairs = pairs_to_prefetch(p, &s->next);
    int shift = 0;
    while (groups >> (shift + 1) && s->pairs <= blocks * (groups >> (shift + 1))) shift++;
    s->share = groups >> shift, s->interval = ((ptrdiff_t)1 << shift) - 1;
}

/* What a register block prefetches beside its multiplications. */
typedef enum { NOTHING, OWN_PANEL, NEXT_RANGE } prefetch_kind;

/* ---- rows of a row-major B read in place by few rows of a */

/* The rows that follow this range, read by `widths` register blocks next to each other: pairs of lines that each of them
 * prefetches before it begins, 0 if it does not pay. More rows of a prefetch the next range beside their multiplications;
 * fewer have no time for whole lines, which the hardware follows. */
V ptrdiff_t pairs_of_rows(const mp_gemm *g, line_cursor *next, ptrdiff_t row_bytes, ptrdiff_t group,
                          ptrdiff_t block_bytes, int is_worth) {
    const ptrdiff_t stride = g->operands.b_stride / group;
    *next = cursor_at((const char *)g->operands.b + g->shape.k / group * g->operands.b_stride, row_bytes, stride);
    const int prefetched = g->prefetch.from_memory && !g->accumulators.last && is_worth
                           && (row_bytes >= 512 || is_stretch(row_bytes, stride));
    return prefetched ? g->shape.k * block_bytes / 128 : 0;
}

/* ---- columns of a transposed B */

/* While a piece is transposed: as many bytes of the next columns, of which each piece has its share, line by line. */
V void prefetch_columns(const char *next, ptrdiff_t bytes) {
    for (ptrdiff_t at = 0; at < bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
}

/* ---- packing: the source */

/* `rows` rows that pack_rows reads soon, `bytes` of each. */
V void prefetch_pack_rows(const char *src, ptrdiff_t rs, ptrdiff_t bytes, const int rows, const int size) {
    for (int q = 0; q < rows; q++) prefetch_bytes(src + (PACK_ROWS_DISTANCE / size + q) * rs, bytes);
}

/* 16 columns that pack_columns transposes soon. */
V void prefetch_pack_columns(const char *src, ptrdiff_t cs) {
    UNROLL16 for (int i = 0; i < MP_LANES; i++) __builtin_prefetch(src + i * cs + PACK_COLUMNS_DISTANCE, 0, 3);
}
