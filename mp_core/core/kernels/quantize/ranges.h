/* What numbers with one scale are within, and the scales that follow. The unit of work is a tile; see mp_tile in mp_core.h. */

enum {
    BLOCK = 4 * MP_LANES, /* codes of a cache line */
    ROWS = 4,             /* that share what is known of 64 columns */
    TABLE = 4096,         /* columns that one table holds, half as many where there are two, ... */
    FAR_TABLE = 16384,    /* ... and one alone, for rows from memory */
    NARROW = 512,         /* columns of rows from memory that are one stream even four at a time */
    SHORT = 256,          /* a run with as few elements is one of many */
    RUNS = 256,           /* that are looked at together */
};

/* ---- ranges: what is infinite or NaN does not count, an empty slice has the range [0, 0]
 *
 * First as if all were finite; where the result tells otherwise (1 is returned), again with `strict`. */

enum { SMALLEST_KEY = 0x01000000, INFINITE = 0x7F800000, MAGNITUDE = 0x7FFFFFFF };

/* The bits of |x|. Strict: twice as much, plus what makes Inf and NaN wrap around and come below all others. */
V vu32 key_of(vf32 x, const int strict) {
    if (!strict) return and_u32(as_u32(x), set_u32(MAGNITUDE));
    return add_u32(shl_u32(as_u32(x), 1), set_u32(SMALLEST_KEY));
}
V vu32 bits_of_key(vu32 key, const int strict) {
    const vu32 least = set_u32(SMALLEST_KEY);
    return strict ? shr_u32(sub_u32(max_u32(key, least), least), 1) : key;
}

/* What a tile fetches beside its work on 64 numbers: as many `ahead`, or half as much. */
typedef struct {
    ptrdiff_t ahead;
    uintptr_t next; /* for x: from the address next + x / 2; or 0 */
} mp_fetch;

V mp_fetch fetch_of(const mp_tile *t) {
    return (mp_fetch){t->ahead, t->next ? (uintptr_t)t->next - (uintptr_t)t->x / 2 : 0};
}
V void prefetch_lines(const char *at, const int lines) {
    UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch(at + i * 64, 0, 3);
}
V void fetch_all(const float *x, ptrdiff_t ahead) {
    if (ahead) prefetch_lines((const char *)(x + ahead), 4);
}
V void fetch(const float *x, mp_fetch f) {
    if (f.next) prefetch_lines((const char *)(f.next + (uintptr_t)x / 2), 2);
    else fetch_all(x, f.ahead);
}

/* Wide rows from memory are read one by one: with one table 16384 columns, where the second-level cache holds it, with two
 * 2048, where the first does. What follows in the row is fetched or, of a part of a row, the same part of the next one. One
 * Zen 5 core, November 2026: ranges at 31 to 39 GB/s, of four rows at a time or of parts of 4096 columns at 19 to 33. */
V ptrdiff_t rows_by_four(const mp_tile *t) { return t->mode & MP_FAR && t->cols > NARROW ? 0 : t->rows / ROWS * ROWS; }
V ptrdiff_t columns_together(const mp_tile *t, const int tables) {
    return tables > 1 ? TABLE / 2 : t->mode & MP_FAR ? FAR_TABLE : TABLE;
}
V ptrdiff_t ahead_of_part(const mp_tile *t, ptrdiff_t cols) {
    return t->mode & MP_FAR && cols < t->cols ? t->ldx : t->ahead;
}

V int top_of_run(const float *x, ptrdiff_t n, float *result, mp_fetch f, const int strict) {
    vu32 top[4];
    UNROLL for (int v = 0; v < 4; v++) top[v] = key_of(set_f32(*result), strict);
    ptrdiff_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK) {
        fetch(x + j, f);
        UNROLL for (int v = 0; v < 4; v++) top[v] = max_u32(top[v], key_of(load_f32(x + j + v * MP_LANES), strict));
    }
    for (; j < n; j += MP_LANES) top[0] = max_u32(top[0], key_of(loadn_f32(x + j, at_most(n - j, MP_LANES)), strict));
    const vu32 highest = max_u32(max_u32(top[0], top[1]), max_u32(top[2], top[3]));
    const uint32_t bits = top_u32(bits_of_key(highest, strict));
    if (bits >= INFINITE) return 1;
    memcpy(result, &bits, sizeof bits);
    return 0;
}

V void top_of_rows(const float *x, ptrdiff_t ldx, ptrdiff_t cols, ptrdiff_t ahead, uint32_t *top, const int rows,
                   const int strict) {
    ptrdiff_t j = 0;
    for (; j + BLOCK <= cols; j += BLOCK) {
        vu32 most[4];
        UNROLL for (int v = 0; v < 4; v++) most[v] = load_u32(top + j + v * MP_LANES);
        UNROLL16 for (int r = 0; r < rows; r++) {
            fetch_all(x + r * ldx + j, ahead);
            UNROLL for (int v = 0; v < 4; v++)
                most[v] = max_u32(most[v], key_of(load_f32(x + r * ldx + j + v * MP_LANES), strict));
        }
        UNROLL for (int v = 0; v < 4; v++) store_u32(top + j + v * MP_LANES, most[v]);
    }
    for (; j < cols; j += MP_LANES) {
        vu32 most = load_u32(top + j);
        UNROLL16 for (int r = 0; r < rows; r++)
            most = max_u32(most, key_of(loadn_f32(x + r * ldx + j, at_most(cols - j, MP_LANES)), strict));
        store_u32(top + j, most);
    }
}

V int top_of_columns(const mp_tile *t, ptrdiff_t first, float *result, const int strict) {
    const ptrdiff_t cols = at_most(t->cols - first, columns_together(t, 1)), ldx = t->ldx;
    const ptrdiff_t fours = strict ? 0 : rows_by_four(t), ahead = ahead_of_part(t, cols);
    const float *x = t->x + first;
    _Alignas(64) uint32_t top[FAR_TABLE];
    for (ptrdiff_t j = 0; j < cols; j += MP_LANES)
        store_u32(top + j, key_of(loadn_f32(result + first + j, at_most(cols - j, MP_LANES)), strict));
    ptrdiff_t i = 0;
    for (; i < fours; i += ROWS) top_of_rows(x + i * ldx, ldx, cols, ahead, top, ROWS, 0);
    for (; i < t->rows; i++) top_of_rows(x + i * ldx, ldx, cols, ahead, top, 1, strict);
    vu32 highest = set_u32(0);
    for (ptrdiff_t j = 0; j < cols; j += MP_LANES) {
        const vu32 bits = bits_of_key(load_u32(top + j), strict);
        store_u32(top + j, bits);
        highest = max_u32(highest, bits);
    }
    if (top_u32(highest) >= INFINITE) return 1;
    memcpy(result + first, top, (size_t)cols * sizeof *result);
    return 0;
}

/* 16 runs at a time: their vectors of 16 maxima are the rows of a matrix, whose columns have the maxima. */
V int top_of_runs(const mp_tile *t, ptrdiff_t i, float *result, mp_fetch f) {
    vu32 top[MP_LANES];
    for (int r = 0; r < MP_LANES; r++) {
        const float *x = t->x + (i + r) * t->ldx;
        vu32 most = set_u32(0);
        ptrdiff_t j = 0;
        for (; j + MP_LANES <= t->cols; j += MP_LANES) {
            if (j % BLOCK == 0) fetch(x + j, f);
            most = max_u32(most, key_of(load_f32(x + j), 0));
        }
        if (j < t->cols) most = max_u32(most, key_of(loadn_f32(x + j, t->cols - j), 0));
        top[r] = most;
    }
    transpose_u32(top);
    vu32 highest = key_of(load_f32(result + i), 0);
    UNROLL16 for (int r = 0; r < MP_LANES; r++) highest = max_u32(highest, top[r]);
    if (top_u32(highest) >= INFINITE) return 1;
    store_f32(result + i, as_f32(highest));
    return 0;
}

static void amax(const mp_tile *t, float *result) {
    const mp_fetch f = fetch_of(t);
    for (ptrdiff_t i = 0; i < t->rows && !t->col_step; i++) {
        const float *x = t->x + i * t->ldx;
        float *to = result + i * t->row_step;
        if (t->row_step && t->cols <= SHORT && i + MP_LANES <= t->rows && !top_of_runs(t, i, result, f)) i += MP_LANES - 1;
        else if (top_of_run(x, t->cols, to, f, 0)) top_of_run(x, t->cols, to, f, 1);
    }
    for (ptrdiff_t j = 0; j < t->cols && t->col_step; j += columns_together(t, 1))
        if (top_of_columns(t, j, result, 0)) top_of_columns(t, j, result, 1);
}

V vf32 finite_or_zero(vf32 x) {
    return select_f32(gt_i32(set_u32(INFINITE), and_u32(as_u32(x), set_u32(MAGNITUDE))), x, set_f32(0.0f));
}

/* NaN does not win a comparison. */
V void widen_range(vf32 x, vf32 *lo, vf32 *hi, const int strict) {
    const vf32 counted = strict ? finite_or_zero(x) : x;
    *lo = min_f32(counted, *lo), *hi = max_f32(counted, *hi);
}

/* The bits of numbers >= +0 are in their order, and those of numbers <= -0 in the opposite one. */
V int farthest(vf32 x, float *result) {
    const uint32_t bits = top_u32(as_u32(x));
    if ((bits & MAGNITUDE) >= INFINITE) return 1;
    memcpy(result, &bits, sizeof bits);
    return 0;
}

V int range_of_run(const float *x, ptrdiff_t n, float *lo, float *hi, mp_fetch f, const int strict) {
    vf32 a[4], b[4];
    UNROLL for (int v = 0; v < 4; v++) a[v] = set_f32(*lo), b[v] = set_f32(*hi);
    ptrdiff_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK) {
        fetch(x + j, f);
        UNROLL for (int v = 0; v < 4; v++) widen_range(load_f32(x + j + v * MP_LANES), a + v, b + v, strict);
    }
    for (; j < n; j += MP_LANES) widen_range(loadn_f32(x + j, at_most(n - j, MP_LANES)), a, b, strict);
    const vf32 least = min_f32(min_f32(a[0], a[1]), min_f32(a[2], a[3]));
    const vf32 most = max_f32(max_f32(b[0], b[1]), max_f32(b[2], b[3]));
    float first;
    if (farthest(least, &first) || farthest(most, hi)) return 1;
    *lo = first;
    return 0;
}

V void range_of_rows(const float *x, ptrdiff_t ldx, ptrdiff_t cols, ptrdiff_t ahead, float *lo, float *hi, const int rows,
                     const int strict) {
    ptrdiff_t j = 0;
    for (; j + BLOCK <= cols; j += BLOCK) {
        vf32 least[4], most[4];
        UNROLL for (int v = 0; v < 4; v++)
            least[v] = load_f32(lo + j + v * MP_LANES), most[v] = load_f32(hi + j + v * MP_LANES);
        UNROLL16 for (int r = 0; r < rows; r++) {
            fetch_all(x + r * ldx + j, ahead);
            UNROLL for (int v = 0; v < 4; v++)
                widen_range(load_f32(x + r * ldx + j + v * MP_LANES), least + v, most + v, strict);
        }
        UNROLL for (int v = 0; v < 4; v++)
            store_f32(lo + j + v * MP_LANES, least[v]), store_f32(hi + j + v * MP_LANES, most[v]);
    }
    for (; j < cols; j += MP_LANES) {
        vf32 least = load_f32(lo + j), most = load_f32(hi + j);
        UNROLL16 for (int r = 0; r < rows; r++)
            widen_range(loadn_f32(x + r * ldx + j, at_most(cols - j, MP_LANES)), &least, &most, strict);
        store_f32(lo + j, least), store_f32(hi + j, most);
    }
}

V int range_of_columns(const mp_tile *t, ptrdiff_t first, float *lo, float *hi, const int strict) {
    const ptrdiff_t cols = at_most(t->cols - first, columns_together(t, 2)), ldx = t->ldx;
    const ptrdiff_t fours = strict ? 0 : rows_by_four(t), ahead = ahead_of_part(t, cols);
    const float *x = t->x + first;
    _Alignas(64) float a[TABLE / 2], b[TABLE / 2];
    for (ptrdiff_t j = 0; j < cols; j += MP_LANES) {
        const ptrdiff_t left = at_most(cols - j, MP_LANES);
        store_f32(a + j, loadn_f32(lo + first + j, left)), store_f32(b + j, loadn_f32(hi + first + j, left));
    }
    ptrdiff_t i = 0;
    for (; i < fours; i += ROWS) range_of_rows(x + i * ldx, ldx, cols, ahead, a, b, ROWS, 0);
    for (; i < t->rows; i++) range_of_rows(x + i * ldx, ldx, cols, ahead, a, b, 1, strict);
    vu32 highest = set_u32(0);
    for (ptrdiff_t j = 0; j < cols; j += MP_LANES) {
        const ptrdiff_t left = at_most(cols - j, MP_LANES);
        highest = max_u32(highest, and_u32(as_u32(loadn_f32(a + j, left)), set_u32(MAGNITUDE)));
        highest = max_u32(highest, and_u32(as_u32(loadn_f32(b + j, left)), set_u32(MAGNITUDE)));
    }
    if (top_u32(highest) >= INFINITE) return 1;
    memcpy(lo + first, a, (size_t)cols * sizeof *a), memcpy(hi + first, b, (size_t)cols * sizeof *b);
    return 0;
}

static void range(const mp_tile *t, float *lo, float *hi) {
    const mp_fetch f = fetch_of(t);
    for (ptrdiff_t i = 0; i < t->rows && !t->col_step; i++) {
        const float *x = t->x + i * t->ldx;
        float *a = lo + i * t->row_step, *b = hi + i * t->row_step;
        if (range_of_run(x, t->cols, a, b, f, 0)) range_of_run(x, t->cols, a, b, f, 1);
    }
    for (ptrdiff_t j = 0; j < t->cols && t->col_step; j += columns_together(t, 2))
        if (range_of_columns(t, j, lo, hi, 0)) range_of_columns(t, j, lo, hi, 1);
}

/* ---- scales: 1 where there is nothing to scale, else at least the smallest float
 *
 * The first pass takes all scales for ordinary: normal numbers whose product with the largest code is finite. If one is
 * not, a second pass runs with `strict`, which corrects scales by one float. A scale that was rounded down so far that an
 * end of the range lies more than half a step beyond the codes becomes the next larger float. A scale whose product with
 * the largest code is infinite becomes the next smaller one. */

enum { SMALLEST_NORMAL = 1 << 23, ORDINARY = 238 << 23 }; /* normal and below 2^112, as sizes of the key below */

V vu32 key_of_scale(vf32 scale) { return sub_u32(as_u32(scale), set_u32(SMALLEST_NORMAL)); }
V vf32 next_float(vf32 scale, uint32_t step) { return as_f32(add_u32(as_u32(scale), set_u32(step))); }

V vf32 positive(vf32 scale, vf32 range) {
    return select_f32(lt_f32(set_f32(0.0f), range), max_f32(scale, set_f32(0x1p-149f)), set_f32(1.0f));
}

V int symmetric_steps(const float *top, ptrdiff_t n, float largest, float *scale, const int strict) {
    /* The largest code and half a step: what is beyond it was not in the range of the scale. */
    const float limit = largest + (largest == 448.0f ? 16.0f : largest == 57344.0f ? 4096.0f : 0.5f);
    vu32 key = set_u32(0);
    for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
        const ptrdiff_t left = at_most(n - j, MP_LANES);
        const vf32 a = loadn_f32(top + j, left);
        vf32 s = positive(div_f32(a, set_f32(largest)), a);
        if (strict) {
            s = select_f32(lt_f32(set_f32(limit), div_f32(a, s)), next_float(s, 1), s);
            s = select_f32(lt_f32(mul_f32(s, set_f32(largest)), set_f32(INFINITY)), s, next_float(s, (uint32_t)-1));
        }
        key = max_u32(key, key_of_scale(s));
        storen_f32(scale + j, s, left);
    }
    return top_u32(key) > ORDINARY;
}

static void symmetric_scales(const float *top, ptrdiff_t n, float largest, float *scale) {
    if (symmetric_steps(top, n, largest, scale, 0)) symmetric_steps(top, n, largest, scale, 1);
}

V vu32 zeros_of(vf32 lo, vf32 scale, vf32 low, vf32 high) {
    return i32_from_f32(min_f32(max_f32(sub_f32(low, div_f32(lo, scale)), low), high));
}

/* ONNX DynamicQuantizeLinear's rule. A range wider than f32 can express is scaled by parts. */
V int asymmetric_steps(const float *lo, const float *hi, ptrdiff_t n, int32_t qmin, int32_t qmax, float *scale,
                       int32_t *zero_point, const int strict) {
    const vf32 low = set_f32((float)qmin), high = set_f32((float)qmax), codes = set_f32((float)(qmax - qmin));
    vu32 key = set_u32(0);
    for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
        const ptrdiff_t left = at_most(n - j, MP_LANES);
        const vf32 a = loadn_f32(lo + j, left), b = loadn_f32(hi + j, left), spread = sub_f32(b, a);
        const vf32 parts = sub_f32(div_f32(b, codes), div_f32(a, codes));
        const vf32 whole = select_f32(lt_f32(spread, set_f32(INFINITY)), div_f32(spread, codes), parts);
        vf32 s = positive(whole, spread);
        if (strict) {
            const vf32 zero = f32_from_i32(zeros_of(a, s, low, high));
            const vf32 above = sub_f32(add_f32(div_f32(b, s), zero), high), below = sub_f32(low, add_f32(div_f32(a, s), zero));
            const vf32 beyond = select_f32(lt_f32(s, set_f32(0x1p-126f)), max_f32(above, below), set_f32(0.0f));
            s = select_f32(lt_f32(set_f32(0.5f), beyond), next_float(s, 1), s);
        }
        key = max_u32(key, key_of_scale(s));
        storen_f32(scale + j, s, left);
        storen_u32((uint32_t *)zero_point + j, zeros_of(a, s, low, high), left);
    }
    return top_u32(key) > ORDINARY;
}

static void asymmetric_scales(const float *lo, const float *hi, ptrdiff_t n, int32_t qmin, int32_t qmax, float *scale,
                              int32_t *zero_point) {
    if (asymmetric_steps(lo, hi, n, qmin, qmax, scale, zero_point, 0))
        asymmetric_steps(lo, hi, n, qmin, qmax, scale, zero_point, 1);
}
