/* Integers at once: with t = x (1 / scale) + zero_point + 1/2, the code is floor(t), unless t is close to an integer
 *
 * t has 16 bits of fraction; u = 2^-16. Let f be the rounded quotient, |f| <= 256: beyond, t and f are both beyond the same
 * end of the codes. The rounded inverse is off by a relative 2^-24, so its product with x by u, f by u / 2; the fused
 * multiply-add rounds numbers below 2^23 u by u / 4 and the conversion to an integer by u / 2. So t, computed, is within
 * 2.25 u of f + zero_point + 1/2; 4 u are added. Where its fraction then is at least 8 u, that of f + zero_point + 1/2 is above
 * 0, there is no tie, and both have the same floor. The others, one in 8192, go the long way, and so do NaN and what is
 * beyond 2^15: they convert to a fraction of 0.
 *
 * 8-bit floats likewise: with y = |x| (1 / scale), bounded, w is the bits of y plus half of what separates those of
 * two codes. y and f are each off by a relative 2^-24 for each of their roundings, three in all, which is at most 3
 * units of their bits; 4 are added to w. Where what is below the code in w then is at least 8, y is on the same side
 * of the middle between two codes as f, and the code is what is above, less the difference of the biases. The others,
 * one in 2^17 or 2^18, go the long way, and so do NaN and what is between 0 and the smallest normal number of the
 * codes. A y of 0 is sure: f is then 0 too, or as good as 0 in these formats. */
#if !MP_DIVIDES
/* What is the same for a tile of integers. One of the bits `sure` of a code's fraction is set; the codes less `middle` are
 * signed bytes, which may have to be bounded or turned back. */
typedef struct {
    int32_t middle;
    int more;
    vu32 sure, lo, hi, turn;
} mp_bytes;

V vu32 set_bytes(int32_t byte) { return set_u32(0x01010101u * (uint8_t)byte); }
V mp_bytes bytes_of(const mp_tile *t) {
    const int32_t middle = t->qmax > INT8_MAX ? 128 : 0;
    const int bounded = t->qmax - t->qmin < UINT8_MAX && !(t->mode & MP_WITHIN);
    return (mp_bytes){middle,
                      bounded || middle,
                      set_u32(0xFFF8u),
                      set_bytes(t->qmin - middle),
                      set_bytes(t->qmax - middle),
                      set_bytes(middle)};
}

/* Of up to 16 scales: what x is multiplied by, and of integers the other two terms of t and 4 u, in units of u. */
V vf32 factors_of(const float *scale, ptrdiff_t n, const mp_code kind) {
    return div_f32(set_f32(is_integer(kind) ? 0x1p16f : 1.0f), loadn_f32(scale, n));
}
V vf32 starts_of(const int32_t *zero, ptrdiff_t n, int32_t middle) {
    const vu32 shift = zero ? sub_u32(loadn_u32(zero, n), set_u32((uint32_t)middle)) : set_u32((uint32_t)-middle);
    return f32_from_i32(add_u32(shl_u32(shift, 16), set_u32(0x8004)));
}

/* Up to 64 numbers: 16 of them from v * 16 on, 0 beyond the last. */
V vf32 numbers_of(const float *x, ptrdiff_t n, int v, const int full) {
    const ptrdiff_t left = at_most(n - v * MP_LANES, MP_LANES);
    return full ? load_f32(x + v * MP_LANES) : left > 0 ? loadn_f32(x + v * MP_LANES, left) : set_f32(0.0f);
}
V void put_codes(uint8_t *q, vu32 codes, ptrdiff_t n, const int stream, const int full) {
    if (!full) storen_bytes(q, codes, n);
    else if (stream) stream_f32((float *)q, as_f32(codes));
    else store_u32(q, codes);
}

/* n <= 64 codes of floats, one factor for all or, with step 1, for every 16; if `full`, n = 64. Returns 0 if not all
 * codes are sure. */
V int quick_floats(const float *x, uint8_t *q, ptrdiff_t n, const vf32 *factor, const int step, const int stream,
                   const int full, const mp_code kind) {
    const int mantissa = kind == MP_CODE_E4M3FN ? 3 : 2, bias = kind == MP_CODE_E4M3FN ? 7 : 15, shift = 23 - mantissa;
    const uint32_t smallest = (uint32_t)(128 - bias) << 23; /* the bits of the format's smallest normal number */
    const vu32 half = set_u32((1u << (shift - 1)) + 4), below = set_u32((1u << shift) - 8);
    const vu32 base = set_u32((uint32_t)(127 - bias) << 23), one = set_u32(1), least = set_u32(smallest - 1);
    const vf32 largest = set_f32(largest_of(kind));
    vu32 codes[4], distance[4], before[4], any = set_u32(0);
    UNROLL for (int v = 0; v < 4; v++) {
        const vf32 y = mul_f32(numbers_of(x, n, v, full), factor[v * step]);
        const vu32 u = as_u32(min_f32(largest, as_f32(and_u32(as_u32(y), set_u32(MAGNITUDE))))); /* NaN stays */
        const vu32 w = add_u32(u, half), code = sub_u32(max_u32(w, base), base);
        distance[v] = and_u32(w, below), before[v] = sub_u32(u, one), any = or_u32(any, code);
        /* As a signed number in the high half: less 128 if y is negative. */
        codes[v] = or_u32(shr_u32(code, shift - 16), and_u32(sar_u32(as_u32(y), 31), set_u32(0xFF800000u)));
    }
    const vu32 nearest = min_u32(min_u32(distance[0], distance[1]), min_u32(distance[2], distance[3]));
    const vu32 first = min_u32(min_u32(before[0], before[1]), min_u32(before[2], before[3])); /* 0 precedes none */
    const vu32 too_small = xor_u32(first, max_u32(first, least));
    const vu32 too_large = and_u32(any, set_u32(~0u << (shift + 7)));
    if (__builtin_expect(any_clear(nearest, below) | any_set(or_u32(too_small, too_large), set_u32(~0u)), 0)) return 0;
    put_codes(q, narrow_high_i8(codes[0], codes[1], codes[2], codes[3]), n, stream, full);
    return 1;
}

/* Those of integers. */
V int quick_integers(const float *x, uint8_t *q, ptrdiff_t n, const vf32 *factor, const vf32 *start, const int step,
                     const mp_bytes bytes, const int stream, const int full) {
    vu32 t[4];
    UNROLL for (int v = 0; v < 4; v++)
        t[v] = i32_from_f32(fma_f32(numbers_of(x, n, v, full), factor[v * step], start[v * step]));
    const vu32 nearest = min_u16(min_u16(t[0], t[1]), min_u16(t[2], t[3]));
    if (__builtin_expect(any_clear(nearest, bytes.sure), 0)) return 0;
    vu32 codes = narrow_high_i8(t[0], t[1], t[2], t[3]);
    if (bytes.more) codes = xor_u32(min_i8(bytes.hi, max_i8(bytes.lo, codes)), bytes.turn);
    put_codes(q, codes, n, stream, full);
    return 1;
}

V int quick_block(const float *x, uint8_t *q, ptrdiff_t n, const vf32 *factor, const vf32 *start, const int step,
                  const mp_bytes bytes, const int stream, const int full, const mp_code kind) {
    return is_integer(kind) ? quick_integers(x, q, n, factor, start, step, bytes, stream, full)
                            : quick_floats(x, q, n, factor, step, stream, full, kind);
}

/* Blocks with one factor, up to the first that is not sure. Returns how many. */
V ptrdiff_t quick_blocks(const float *x, uint8_t *q, ptrdiff_t blocks, mp_fetch f, const vf32 *factor, const vf32 *start,
                         const mp_bytes bytes, const int stream, const mp_code kind) {
    for (ptrdiff_t b = 0; b < blocks; b++, x += BLOCK, q += BLOCK) {
        fetch(x, f);
        if (!quick_block(x, q, BLOCK, factor, start, 0, bytes, stream, 1, kind)) return b;
    }
    return blocks;
}

/* The long way: a part of a tile by quotients. */
static __attribute__((noinline)) void code_part(const mp_tile *t, ptrdiff_t i, ptrdiff_t j, ptrdiff_t rows, ptrdiff_t cols,
                                                mp_code kind) {
    const ptrdiff_t at = i * t->row_step + j * t->col_step;
    mp_tile part = *t;
    part.rows = rows, part.cols = cols, part.x += i * t->ldx + j, part.q += i * t->ldq + j, part.scale += at;
    if (part.zero_point) part.zero_point += at;
#define MP_PART(KIND)                                                      \
    do {                                                                   \
        if (t->col_step) code_columns(&part, 0, KIND, 0);                  \
        else code_runs(&part, (mp_fetch){0, 0}, 0, KIND, 0);               \
    } while (0)
    if (kind == MP_CODE_E4M3FN) MP_PART(MP_CODE_E4M3FN);
    else if (kind == MP_CODE_E5M2) MP_PART(MP_CODE_E5M2);
    else MP_PART(MP_CODE_I8);
#undef MP_PART
}

/* The fields of a tile are read once: for all the compiler knows, they could be among the codes. */
V void quick_run(const mp_tile *t, ptrdiff_t i, const float *x, uint8_t *q, const ptrdiff_t cols, mp_fetch f,
                 const vf32 factor, const vf32 start, const mp_bytes bytes, const int stream, const mp_code kind) {
    ptrdiff_t j = stream ? unaligned_head(q, 1, cols) : 0, stretch = BLOCK;
    if (j && !quick_block(x, q, j, &factor, &start, 0, bytes, 0, 0, kind)) code_part(t, i, 0, 1, j, kind);
    for (ptrdiff_t n; j < cols; j += n) {
        n = BLOCK * quick_blocks(x + j, q + j, (cols - j) / BLOCK, f, &factor, &start, bytes, stream, kind);
        if (n) {
            stretch = BLOCK;
            continue;
        }
        n = at_most(cols - j, stretch);
        if (cols - j < BLOCK && quick_block(x + j, q + j, n, &factor, &start, 0, bytes, 0, 0, kind)) break;
        code_part(t, i, j, 1, n, kind);
        stretch = at_most(2 * stretch, STRETCH);
    }
}

/* Runs of 1 << shift vectors, 1 to 4, that follow each other, or -1. */
V int shift_of_runs(const mp_tile *t) {
    if (!t->row_step || t->ldx != t->cols || t->ldq != t->cols) return -1;
    return t->cols == MP_LANES ? 0 : t->cols == 2 * MP_LANES ? 1 : t->cols == BLOCK ? 2 : -1;
}

/* The long way: n <= 4 vectors of such runs, from number w of the tile on. */
static __attribute__((noinline)) void code_vectors(const mp_tile *t, ptrdiff_t w, ptrdiff_t n, int shift, mp_code kind) {
    mp_rule rules[4];
    for (ptrdiff_t v = 0; v < n; v++) {
        const ptrdiff_t run = (w + v) >> shift;
        const vu32 zero = set_u32(t->zero_point ? (uint32_t)t->zero_point[run] : 0);
        rules[v] = rule_of(t, set_f32(t->scale[run]), zero, kind, 0);
    }
    code_block(t->x + w * MP_LANES, t->q + w * MP_LANES, n * MP_LANES, rules, 1, 0, kind, 0);
}

/* Blocks begin with a run or, streamed, with a cache line of codes. */
V void quick_short(const mp_tile *t, const int shift, const int stream, const mp_code kind) {
    const mp_bytes bytes = bytes_of(t);
    const mp_fetch f = fetch_of(t);
    const ptrdiff_t rows = t->rows;
    const float *x = t->x;
    const int32_t *zero = t->zero_point;
    uint8_t *q = t->q;
    ptrdiff_t skip = 0, stretch = 0; /* as for columns */
    float factors[RUNS], starts[RUNS];
    for (ptrdiff_t i = 0, w = 0; i < rows; i += RUNS) {
        const ptrdiff_t runs = at_most(rows - i, RUNS), end = (i + runs) << shift;
        for (ptrdiff_t r = 0; r < runs; r += MP_LANES) {
            const ptrdiff_t n = at_most(runs - r, MP_LANES);
            store_f32(factors + r, factors_of(t->scale + i + r, n, kind));
            store_f32(starts + r, starts_of(zero ? zero + i + r : NULL, n, bytes.middle));
        }
        const ptrdiff_t head = stream ? at_most(unaligned_head(q + w * MP_LANES, 1, BLOCK) / MP_LANES, end - w) : 0;
        if (head) code_vectors(t, w, head, shift, kind), w += head;
        for (; w + 4 <= end; w += 4) {
            vf32 factor[4], start[4];
            UNROLL for (int v = 0; v < 4; v++) {
                const ptrdiff_t run = stream ? ((w + v) >> shift) - i : (w >> shift) - i + (v >> shift);
                factor[v] = set_f32(factors[run]), start[v] = set_f32(starts[run]);
            }
            const float *from = x + w * MP_LANES;
            fetch(from, f);
            if (skip) {
                skip--;
            } else if (quick_block(from, q + w * MP_LANES, BLOCK, factor, start, 1, bytes, stream, 1, kind)) {
                stretch = 0;
                continue;
            } else {
                skip = stretch, stretch = at_most(2 * stretch + 1, SKIPPED);
            }
            code_vectors(t, w, 4, shift, kind);
        }
        if (w < end) code_vectors(t, w, end - w, shift, kind), w = end;
    }
}

V void quick_runs(const mp_tile *t, const int stream, const mp_code kind) {
    const mp_bytes bytes = bytes_of(t);
    const mp_fetch f = fetch_of(t);
    const ptrdiff_t rows = t->rows, cols = t->cols, ldx = t->ldx, ldq = t->ldq, step = t->row_step;
    const float *x = t->x, *scale = t->scale;
    const int32_t *zero = t->zero_point;
    uint8_t *q = t->q;
    float factors[MP_LANES], starts[MP_LANES];
    for (ptrdiff_t i = 0, n; i < rows; i += n) {
        n = step ? at_most(rows - i, MP_LANES) : rows; /* runs whose factors are at hand */
        store_f32(factors, factors_of(scale + i * step, step ? n : 1, kind));
        store_f32(starts, starts_of(zero ? zero + i * step : NULL, step ? n : 1, bytes.middle));
        const float *from = x + i * ldx;
        uint8_t *to = q + i * ldq;
        for (ptrdiff_t run = 0; run < n; run++)
            quick_run(t, i + run, from + run * ldx, to + run * ldq, cols, f, set_f32(factors[run * step]),
                      set_f32(starts[run * step]), bytes, stream, kind);
    }
}

/* What is known of some columns, readable to the end of a block: their factors and starts; with start_step 0, one start. */
typedef struct {
    ptrdiff_t first, cols;
    const float *factors, *starts;
    ptrdiff_t start_step;
} mp_columns;

/* Factors and starts of 64 columns from column j on. */
typedef struct {
    vf32 factor[4], start[4];
} mp_block;

V mp_block block_of(const mp_columns *c, ptrdiff_t j) {
    mp_block b;
    UNROLL for (int v = 0; v < 4; v++) {
        b.factor[v] = load_f32(c->factors + j + v * MP_LANES);
        b.start[v] = load_f32(c->starts + (j + v * MP_LANES) * c->start_step);
    }
    return b;
}

/* The long way for the rows with a bit in `unsure`. */
V void code_unsure(const mp_tile *t, ptrdiff_t i, ptrdiff_t j, int unsure, int rows, ptrdiff_t n, const mp_code kind) {
    if (unsure == (1 << rows) - 1) code_part(t, i, j, rows, n, kind);
    else
        for (int r = 0; r < rows; r++)
            if (unsure >> r & 1) code_part(t, i + r, j, 1, n, kind);
}

/* Puts n codes of row r of those at x and q. Returns the row's bit if they are not sure. */
V int row_codes(const float *x, ptrdiff_t ldx, uint8_t *q, ptrdiff_t ldq, int r, ptrdiff_t n, ptrdiff_t ahead,
                const mp_block *b, const mp_bytes bytes, const int stream, const int full, const mp_code kind) {
    fetch_all(x + r * ldx, ahead);
    return quick_block(x + r * ldx, q + r * ldq, n, b->factor, b->start, 1, bytes, stream, full, kind) ? 0 : 1 << r;
}

/* n < 64 columns of some rows. */
V void edge(const mp_tile *t, ptrdiff_t i, const mp_columns *c, ptrdiff_t j, ptrdiff_t rows, ptrdiff_t n, const mp_code kind) {
    const ptrdiff_t ldx = t->ldx, ldq = t->ldq, ahead = ahead_of_part(t, c->cols), last = i + rows;
    const mp_bytes bytes = bytes_of(t);
    const mp_block b = block_of(c, j);
    const float *x = t->x + i * ldx + c->first + j;
    uint8_t *q = t->q + i * ldq + c->first + j;
    for (int together; i < last; i += together, x += together * ldx, q += together * ldq) {
        int unsure = 0;
        together = (int)at_most(last - i, ROWS);
        for (int r = 0; r < together; r++) unsure |= row_codes(x, ldx, q, ldq, r, n, ahead, &b, bytes, 0, 0, kind);
        if (unsure) code_unsure(t, i, c->first + j, unsure, together, n, kind);
    }
}
static __attribute__((noinline)) void quick_edge(const mp_tile *t, ptrdiff_t i, const mp_columns *c, ptrdiff_t j,
                                                 ptrdiff_t rows, ptrdiff_t n, mp_code kind) {
    if (kind == MP_CODE_E4M3FN) edge(t, i, c, j, rows, n, MP_CODE_E4M3FN);
    else if (kind == MP_CODE_E5M2) edge(t, i, c, j, rows, n, MP_CODE_E5M2);
    else edge(t, i, c, j, rows, n, MP_CODE_I8);
}

V void quick_rows(const mp_tile *t, ptrdiff_t i, const mp_columns *c, ptrdiff_t head, const int rows, const mp_bytes bytes,
                  const int stream, const mp_code kind) {
    const ptrdiff_t ldx = t->ldx, ldq = t->ldq, ahead = ahead_of_part(t, c->cols);
    const float *x = t->x + i * ldx + c->first;
    uint8_t *q = t->q + i * ldq + c->first;
    const int all = (1 << rows) - 1;
    ptrdiff_t skip = 0, stretch = 0; /* blocks to go the long way, untried; those after the next one that is not sure */
    ptrdiff_t j = head;
    if (head) quick_edge(t, i, c, 0, rows, head, kind);
    for (; j + BLOCK <= c->cols; j += BLOCK) {
        if (skip) {
            skip--, code_unsure(t, i, c->first + j, all, rows, BLOCK, kind);
            continue;
        }
        const mp_block b = block_of(c, j);
        int unsure = 0;
        for (int r = 0; r < rows; r++)
            unsure |= row_codes(x + j, ldx, q + j, ldq, r, BLOCK, ahead, &b, bytes, stream, 1, kind);
        if (unsure != all) stretch = 0;
        else skip = stretch, stretch = at_most(2 * stretch + 1, SKIPPED);
        if (unsure) code_unsure(t, i, c->first + j, unsure, rows, BLOCK, kind);
    }
    if (j < c->cols) quick_edge(t, i, c, j, rows, c->cols - j, kind);
}

V void quick_columns(const mp_tile *t, const int stream, const mp_code kind) {
    const mp_bytes bytes = bytes_of(t);
    const ptrdiff_t fours = rows_by_four(t), most = columns_together(t, t->zero_point ? 2 : 1);
    _Alignas(64) float factors[FAR_TABLE + 2 * BLOCK];
    float *const starts = factors + (t->zero_point ? TABLE : FAR_TABLE) + BLOCK; /* beside 2048 factors, or one alone */
    mp_columns c = {0, 0, factors, starts, t->zero_point != NULL};
    store_f32(starts, starts_of(NULL, MP_LANES, bytes.middle));
    for (; c.first < t->cols; c.first += most) {
        c.cols = at_most(t->cols - c.first, most);
        for (ptrdiff_t j = 0; j < c.cols + BLOCK; j += MP_LANES) { /* lanes without a column are sure */
            const ptrdiff_t at = c.first + j, n = at_most(c.cols - j, MP_LANES);
            store_f32(factors + j, set_f32(0.0f));
            if (n > 0) storen_f32(factors + j, factors_of(t->scale + at, n, kind), n);
            if (!t->zero_point) continue;
            store_f32(starts + j, set_f32(0x8004));
            if (n > 0) storen_f32(starts + j, starts_of(t->zero_point + at, n, bytes.middle), n);
        }
        if (c.cols < BLOCK) {
            quick_edge(t, 0, &c, 0, t->rows, c.cols, kind);
            continue;
        }
        const ptrdiff_t head = stream ? unaligned_head(t->q + c.first, 1, c.cols) : 0;
        ptrdiff_t i = 0;
        for (; i < fours; i += ROWS) quick_rows(t, i, &c, head, ROWS, bytes, stream, kind);
        for (; i < t->rows; i++) quick_rows(t, i, &c, head, 1, bytes, stream, kind);
    }
}

V void quantize_with(const mp_tile *t, const int shift, const int stream, const mp_code kind) {
    if (t->col_step) quick_columns(t, stream, kind);
    else if (shift == 2) quick_short(t, 2, stream, kind); /* the usual groups, known to the compiler */
    else if (shift >= 0) quick_short(t, shift, stream, kind);
    else quick_runs(t, stream, kind);
    if (stream) stream_fence();
}

V void quantize_quickly(const mp_tile *t, const mp_code kind) {
    const int shift = shift_of_runs(t);
    const int may_stream = t->col_step  ? !(t->ldq % BLOCK)
                           : shift >= 0 ? !((uintptr_t)t->q % MP_LANES)
                                        : t->cols >= SHORT;
    if (t->mode & MP_STREAM && may_stream) quantize_with(t, shift, 1, kind);
    else quantize_with(t, shift, 0, kind);
}

#define MP_QUANTIZE(KIND)                                       \
    static void quantize_##KIND(const mp_tile *t) {             \
        if (!plain(t)) quantize_as(t, MP_CODE_##KIND, 1);       \
        else quantize_quickly(t, MP_CODE_##KIND);               \
    }
#else
#define MP_QUANTIZE(KIND) \
    static void quantize_##KIND(const mp_tile *t) { quantize_as(t, MP_CODE_##KIND, 1); }
#endif
MP_QUANTIZE(I8)
MP_QUANTIZE(E4M3FN)
MP_QUANTIZE(E5M2)
#undef MP_QUANTIZE
