/* The codes of a part by reciprocals, in blocks of 64. If not all codes of a block are certain, it is computed by
 * quotients instead. In some arrays, such as one of multiples of half a scale, no block is certain, and trying each
 * costs time. So after a block that failed, some are computed by quotients without a try: after each further failure
 * twice as many, up to these numbers. */
enum {
    MOST_UNTRIED = 2048, /* elements, of a run with one scale */
    MOST_SKIPPED = 7,    /* blocks, of columns with a scale each or of short runs */
    RUNS = 256,          /* short runs whose reciprocals are computed at a time, in a buffer of 1 KiB */
};

/* ---- some elements by quotients */

/* Compute the codes of `rows` x `cols` elements from element (i, j) of p on by quotients. */
static __attribute__((noinline)) void code_part(const mp_part *p, ptrdiff_t i, ptrdiff_t j, ptrdiff_t rows,
                                                ptrdiff_t cols, mp_code kind) {
    const ptrdiff_t at = i * p->by_row + j * p->by_column;
    mp_part part = *p;
    part.rows = rows, part.cols = cols, part.x += i * p->ldx + j, part.q += i * p->ldq + j, part.scale += at;
    if (part.zero_point) part.zero_point += at;
#define MP_PART(KIND)                                              \
    do {                                                           \
        if (p->by_column) code_columns(&part, KIND, 0);         \
        else code_runs(&part, 0, 0, KIND, 0);       \
    } while (0)
    if (kind == MP_CODE_E4M3FN) MP_PART(MP_CODE_E4M3FN);
    else if (kind == MP_CODE_E5M2) MP_PART(MP_CODE_E5M2);
    else MP_PART(MP_CODE_I8);
#undef MP_PART
}

/* The same for n columns from column j on, in each of the `rows` rows from row i on whose bit in `uncertain` is 1. */
MP_INLINE void code_uncertain(const mp_part *p, ptrdiff_t i, ptrdiff_t j, int uncertain, int rows, ptrdiff_t n,
                              const mp_code kind) {
    if (uncertain == (1 << rows) - 1) code_part(p, i, j, rows, n, kind);
    else
        for (int r = 0; r < rows; r++)
            if (uncertain >> r & 1) code_part(p, i + r, j, 1, n, kind);
}

/* The same for n <= 4 vectors from vector number w of the part on; each run is 1 << shift vectors. */
static __attribute__((noinline)) void code_vectors(const mp_part *p, ptrdiff_t w, ptrdiff_t n, int shift,
                                                   mp_code kind) {
    mp_rule rules[4];
    for (ptrdiff_t v = 0; v < n; v++) {
        const ptrdiff_t run = (w + v) >> shift;
        const vu32 zero = set_u32(p->zero_point ? (uint32_t)p->zero_point[run] : 0);
        rules[v] = rule_of(p, set_f32(p->scale[run]), zero, kind, 0);
    }
    code_block(p->x + w * MP_LANES, p->q + w * MP_LANES, n * MP_LANES, rules, 1, 0, kind, 0);
}

/* ---- runs: one scale for all elements of a row, or for all rows */

/* The numbers and codes of a run, and their count. */
typedef struct {
    const float *x;
    uint8_t *q;
    ptrdiff_t cols;
} mp_run;

/* Compute the codes of whole blocks up to the first block that is not certain. Return how many were computed. */
MP_INLINE ptrdiff_t try_blocks(const float *x, uint8_t *q, ptrdiff_t blocks, ptrdiff_t distance, mp_terms terms,
                               const mp_bytes bytes, const mp_how how) {
    for (ptrdiff_t b = 0; b < blocks; b++, x += BLOCK, q += BLOCK) {
        prefetch(x, distance);
        if (!try_block(x, q, BLOCK, terms, bytes, how)) return b;
    }
    return blocks;
}

/* Compute the codes of row i of p. The fields of p are passed as parameters: a store of codes (uint8_t) may alias *p,
 * so the compiler would load them again after each store. */
MP_INLINE void fast_run(const mp_part *p, ptrdiff_t i, const mp_run run, ptrdiff_t distance, mp_terms terms,
                        const mp_bytes bytes, const mp_how how) {
    const mp_how edge = {how.kind, 0, 0};
    const float *const x = run.x;
    uint8_t *const q = run.q;
    const ptrdiff_t cols = run.cols;
    ptrdiff_t j = how.stream ? unaligned_head(q, 1, cols) : 0, untried = BLOCK;
    if (j && !try_block(x, q, j, terms, bytes, edge)) code_part(p, i, 0, 1, j, how.kind);
    for (ptrdiff_t n; j < cols; j += n) {
        n = BLOCK * try_blocks(x + j, q + j, (cols - j) / BLOCK, distance, terms, bytes, how);
        if (n) {
            untried = BLOCK;
            continue;
        }
        n = at_most(cols - j, untried);
        if (cols - j < BLOCK && try_block(x + j, q + j, n, terms, bytes, edge)) break;
        code_part(p, i, j, 1, n, how.kind);
        untried = at_most(2 * untried, MOST_UNTRIED);
    }
}

MP_INLINE void fast_runs(const mp_part *p, const mp_how how) {
    const mp_bytes bytes = bytes_of(p);
    const ptrdiff_t distance = p->prefetch_distance;
    const ptrdiff_t rows = p->rows, cols = p->cols, ldx = p->ldx, ldq = p->ldq, by_row = p->by_row;
    const float *x = p->x, *scale = p->scale;
    const int32_t *zero = p->zero_point;
    uint8_t *q = p->q;
    float factors[MP_LANES], starts[MP_LANES];
    for (ptrdiff_t i = 0, n; i < rows; i += n) {
        n = by_row ? at_most(rows - i, MP_LANES) : rows; /* runs whose factors are computed together */
        store_f32(factors, factors_of(scale + i * by_row, by_row ? n : 1, how.kind));
        store_f32(starts, starts_of(zero ? zero + i * by_row : NULL, by_row ? n : 1, bytes.middle));
        for (ptrdiff_t r = 0; r < n; r++) {
            const vf32 factor = set_f32(factors[r * by_row]), start = set_f32(starts[r * by_row]);
            const mp_run run = {x + (i + r) * ldx, q + (i + r) * ldq, cols};
            fast_run(p, i + r, run, distance, (mp_terms){&factor, &start, 0}, bytes, how);
        }
    }
}

/* ---- short runs: contiguous runs of 16, 32 or 64 elements with one scale each */

/* Return s if the part consists of such runs of 1 << s vectors, else -1. */
MP_INLINE int shift_of_runs(const mp_part *p) {
    if (!p->by_row || p->ldx != p->cols || p->ldq != p->cols) return -1;
    return p->cols == MP_LANES ? 0 : p->cols == 2 * MP_LANES ? 1 : p->cols == BLOCK ? 2 : -1;
}

/* Compute the codes of short runs. A block of four vectors starts with a run or, if codes are streamed, with a cache
 * line of codes. */
MP_INLINE void fast_short_runs(const mp_part *p, const int shift, const mp_how how) {
    const mp_bytes bytes = bytes_of(p);
    const ptrdiff_t distance = p->prefetch_distance;
    const ptrdiff_t rows = p->rows;
    const float *x = p->x;
    const int32_t *zero = p->zero_point;
    uint8_t *q = p->q;
    ptrdiff_t skip = 0, next_skip = 0; /* blocks that are not tried; how many after the next failure */
    float factors[RUNS], starts[RUNS];
    for (ptrdiff_t i = 0, w = 0; i < rows; i += RUNS) {
        const ptrdiff_t runs = at_most(rows - i, RUNS), end = (i + runs) << shift;
        for (ptrdiff_t r = 0; r < runs; r += MP_LANES) {
            const ptrdiff_t n = at_most(runs - r, MP_LANES);
            store_f32(factors + r, factors_of(p->scale + i + r, n, how.kind));
            store_f32(starts + r, starts_of(zero ? zero + i + r : NULL, n, bytes.middle));
        }
        const ptrdiff_t head = how.stream ? at_most(unaligned_head(q + w * MP_LANES, 1, BLOCK) / MP_LANES, end - w) : 0;
        if (head) code_vectors(p, w, head, shift, how.kind), w += head;
        for (; w + 4 <= end; w += 4) {
            vf32 factor[4], start[4];
            MP_UNROLL_8 for (int v = 0; v < 4; v++) {
                const ptrdiff_t run = how.stream ? ((w + v) >> shift) - i : (w >> shift) - i + (v >> shift);
                factor[v] = set_f32(factors[run]), start[v] = set_f32(starts[run]);
            }
            const float *from = x + w * MP_LANES;
            prefetch(from, distance);
            if (skip) {
                skip--;
            } else if (try_block(from, q + w * MP_LANES, BLOCK, (mp_terms){factor, start, 1}, bytes, how)) {
                next_skip = 0;
                continue;
            } else {
                skip = next_skip, next_skip = at_most(2 * next_skip + 1, MOST_SKIPPED);
            }
            code_vectors(p, w, 4, shift, how.kind);
        }
        if (w < end) code_vectors(p, w, end - w, shift, how.kind), w = end;
    }
}

/* ---- columns: each column has a scale */

/* The factors and starts of `cols` columns from number `first` on. The caller may read whole blocks of 64 of them. If
 * stride is 0, all columns have the same start. */
typedef struct {
    ptrdiff_t first, cols;
    const float *factors, *starts;
    ptrdiff_t stride;
} mp_columns;

/* The factors and starts of 64 columns. */
typedef struct {
    vf32 factor[4], start[4];
} mp_block;

MP_INLINE mp_block block_of(const mp_columns *c, ptrdiff_t j) {
    mp_block b;
    MP_UNROLL_8 for (int v = 0; v < 4; v++) {
        b.factor[v] = load_f32(c->factors + j + v * MP_LANES);
        b.start[v] = load_f32(c->starts + (j + v * MP_LANES) * c->stride);
    }
    return b;
}

/* Compute the codes of n < 64 columns from column j on, of `rows` rows from row i on. */
MP_INLINE void edge_columns(const mp_part *p, ptrdiff_t i, const mp_columns *c, ptrdiff_t j, ptrdiff_t rows,
                            ptrdiff_t n, const mp_code kind) {
    const ptrdiff_t ldx = p->ldx, ldq = p->ldq, last = i + rows;
    const mp_bytes bytes = bytes_of(p);
    const mp_block b = block_of(c, j);
    const float *x = p->x + i * ldx + c->first + j;
    uint8_t *q = p->q + i * ldq + c->first + j;
    for (int count; i < last; i += count) {
        int uncertain = 0;
        count = (int)at_most(last - i, ROWS);
        for (int r = 0; r < count; r++, x += ldx, q += ldq) {
            if (!try_block(x, q, n, (mp_terms){b.factor, b.start, 1}, bytes, (mp_how){kind, 0, 0})) uncertain |= 1 << r;
        }
        if (uncertain) code_uncertain(p, i, c->first + j, uncertain, count, n, kind);
    }
}
static __attribute__((noinline)) void fast_edge(const mp_part *p, ptrdiff_t i, const mp_columns *c, ptrdiff_t j,
                                                ptrdiff_t rows, ptrdiff_t n, mp_code kind) {
    if (kind == MP_CODE_E4M3FN) edge_columns(p, i, c, j, rows, n, MP_CODE_E4M3FN);
    else if (kind == MP_CODE_E5M2) edge_columns(p, i, c, j, rows, n, MP_CODE_E5M2);
    else edge_columns(p, i, c, j, rows, n, MP_CODE_I8);
}

/* Compute the codes of `rows` rows from row i on. Before the first cache line of codes there are `head` columns. */
MP_INLINE void fast_rows(const mp_part *p, ptrdiff_t i, const mp_columns *c, ptrdiff_t head, const int rows,
                         const mp_bytes bytes, const mp_how how) {
    const ptrdiff_t ldx = p->ldx, ldq = p->ldq;
    const float *x = p->x + i * ldx + c->first;
    uint8_t *q = p->q + i * ldq + c->first;
    const int all = (1 << rows) - 1;
    ptrdiff_t skip = 0, next_skip = 0; /* as in fast_short_runs */
    ptrdiff_t j = head;
    if (head) fast_edge(p, i, c, 0, rows, head, how.kind);
    for (; j + BLOCK <= c->cols; j += BLOCK) {
        if (skip) {
            skip--, code_uncertain(p, i, c->first + j, all, rows, BLOCK, how.kind);
            continue;
        }
        const mp_block b = block_of(c, j);
        int uncertain = 0;
        for (int r = 0; r < rows; r++) {
            if (!try_block(x + r * ldx + j, q + r * ldq + j, BLOCK, (mp_terms){b.factor, b.start, 1}, bytes, how))
                uncertain |= 1 << r;
        }
        if (uncertain != all) next_skip = 0;
        else skip = next_skip, next_skip = at_most(2 * next_skip + 1, MOST_SKIPPED);
        if (uncertain) code_uncertain(p, i, c->first + j, uncertain, rows, BLOCK, how.kind);
    }
    if (j < c->cols) fast_edge(p, i, c, j, rows, c->cols - j, how.kind);
}

/* Compute the codes of a part with a scale for each column: up to TABLE columns at a time, with their factors in L1. */
MP_INLINE void fast_columns(const mp_part *p, const mp_how how) {
    const mp_bytes bytes = bytes_of(p);
    const ptrdiff_t fours = p->rows / ROWS * ROWS, most = p->zero_point ? TABLE / 2 : TABLE;
    _Alignas(64) float factors[TABLE + 2 * BLOCK];
    float *const starts = factors + most + BLOCK;
    mp_columns c = {0, 0, factors, starts, p->zero_point != NULL};
    store_f32(starts, starts_of(NULL, MP_LANES, bytes.middle));
    for (; c.first < p->cols; c.first += most) {
        c.cols = at_most(p->cols - c.first, most);
        for (ptrdiff_t j = 0; j < c.cols + BLOCK; j += MP_LANES) { /* lanes without a column are certain */
            const ptrdiff_t at = c.first + j, n = at_most(c.cols - j, MP_LANES);
            store_f32(factors + j, set_f32(0.0f));
            if (n > 0) storen_f32(factors + j, factors_of(p->scale + at, n, how.kind), n);
            if (!p->zero_point) continue;
            store_f32(starts + j, set_f32(0x8004));
            if (n > 0) storen_f32(starts + j, starts_of(p->zero_point + at, n, bytes.middle), n);
        }
        if (c.cols < BLOCK) {
            fast_edge(p, 0, &c, 0, p->rows, c.cols, how.kind);
            continue;
        }
        const ptrdiff_t head = how.stream ? unaligned_head(p->q + c.first, 1, c.cols) : 0;
        ptrdiff_t i = 0;
        for (; i < fours; i += ROWS) fast_rows(p, i, &c, head, ROWS, bytes, how);
        for (; i < p->rows; i++) fast_rows(p, i, &c, head, 1, bytes, how);
    }
}

/* ---- choosing one of these by the scales of the part */

MP_INLINE void fast_part(const mp_part *p, const int shift, const mp_how how) {
    if (p->by_column) fast_columns(p, how);
    else if (shift == 2) fast_short_runs(p, 2, how); /* scale groups of 64: shift is a constant */
    else if (shift >= 0) fast_short_runs(p, shift, how);
    else fast_runs(p, how);
    if (how.stream) stream_fence();
}

MP_INLINE void quantize_fast(const mp_part *p, const mp_code kind) {
    const int shift = shift_of_runs(p);
    const int may_stream = p->by_column  ? !(p->ldq % BLOCK)
                           : shift >= 0 ? !((uintptr_t)p->q % MP_LANES)
                                        : p->cols >= SHORT;
    if (p->mode & MP_STREAM && may_stream) fast_part(p, shift, (mp_how){kind, 1, 1});
    else fast_part(p, shift, (mp_how){kind, 1, 0});
}
