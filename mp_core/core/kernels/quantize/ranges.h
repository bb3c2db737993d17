/* The range of the numbers that share a scale: max |x| (amax), or [min(x, 0), max(x, 0)] (range).
 *
 * Infinities and NaN are ignored; without finite numbers the range is [0, 0]. Every function is first called without
 * `strict`, and assumes that all numbers are finite. If its result is infinite or NaN, it returns 1 and does not change
 * the range. Then it is called again with `strict`: it ignores such numbers, and takes longer. */

/* Numbers in a buffer on the stack, in L1 (16 KiB): the amax of TABLE columns, or lo and hi of TABLE / 2. */
enum { TABLE = 4096 };

enum { SMALLEST_KEY = 0x01000000, INFINITE = 0x7F800000, MAGNITUDE = 0x7FFFFFFF };

/* A key by which |x| is compared: its bits. Strict: (2 * bits + 2^24) mod 2^32, which is below 2^24 for Inf and NaN,
 * and at least 2^24 for all other numbers. */
MP_INLINE vu32 key_of(vf32 x, const int strict) {
    if (!strict) return and_u32(as_u32(x), set_u32(MAGNITUDE));
    return add_u32(shl_u32(as_u32(x), 1), set_u32(SMALLEST_KEY));
}
MP_INLINE vu32 bits_of_key(vu32 key, const int strict) {
    const vu32 least = set_u32(SMALLEST_KEY);
    return strict ? shr_u32(sub_u32(max_u32(key, least), least), 1) : key;
}

/* Raise *result to max |x| of n numbers. */
MP_INLINE int top_of_run(const float *x, ptrdiff_t n, float *result, const int strict) {
    vu32 top[4];
    MP_UNROLL_8 for (int v = 0; v < 4; v++) top[v] = key_of(set_f32(*result), strict);
    ptrdiff_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK) {
        MP_UNROLL_8 for (int v = 0; v < 4; v++)
            top[v] = max_u32(top[v], key_of(load_f32(x + j + v * MP_LANES), strict));
    }
    for (; j < n; j += MP_LANES) top[0] = max_u32(top[0], key_of(loadn_f32(x + j, at_most(n - j, MP_LANES)), strict));
    const vu32 highest = max_u32(max_u32(top[0], top[1]), max_u32(top[2], top[3]));
    const uint32_t bits = top_u32(bits_of_key(highest, strict));
    if (bits >= INFINITE) return 1;
    memcpy(result, &bits, sizeof bits);
    return 0;
}

/* Raise the keys top[cols] to those of `rows` rows. */
MP_INLINE void top_of_rows(const float *x, ptrdiff_t ldx, ptrdiff_t cols, uint32_t *top, const int rows,
                           const int strict) {
    ptrdiff_t j = 0;
    for (; j + BLOCK <= cols; j += BLOCK) {
        vu32 most[4];
        MP_UNROLL_8 for (int v = 0; v < 4; v++) most[v] = load_u32(top + j + v * MP_LANES);
        MP_UNROLL_16 for (int r = 0; r < rows; r++) {
            MP_UNROLL_8 for (int v = 0; v < 4; v++)
                most[v] = max_u32(most[v], key_of(load_f32(x + r * ldx + j + v * MP_LANES), strict));
        }
        MP_UNROLL_8 for (int v = 0; v < 4; v++) store_u32(top + j + v * MP_LANES, most[v]);
    }
    for (; j < cols; j += MP_LANES) {
        vu32 most = load_u32(top + j);
        MP_UNROLL_16 for (int r = 0; r < rows; r++)
            most = max_u32(most, key_of(loadn_f32(x + r * ldx + j, at_most(cols - j, MP_LANES)), strict));
        store_u32(top + j, most);
    }
}

/* Raise the amax of at most TABLE columns from number `first` on. */
MP_INLINE int top_of_columns(const mp_part *p, ptrdiff_t first, float *result, const int strict) {
    const ptrdiff_t cols = at_most(p->cols - first, (ptrdiff_t)TABLE), ldx = p->ldx;
    const ptrdiff_t fours = strict ? 0 : p->rows / ROWS * ROWS;
    const float *x = p->x + first;
    _Alignas(64) uint32_t top[TABLE];
    for (ptrdiff_t j = 0; j < cols; j += MP_LANES)
        store_u32(top + j, key_of(loadn_f32(result + first + j, at_most(cols - j, MP_LANES)), strict));
    ptrdiff_t i = 0;
    for (; i < fours; i += ROWS) top_of_rows(x + i * ldx, ldx, cols, top, ROWS, 0);
    for (; i < p->rows; i++) top_of_rows(x + i * ldx, ldx, cols, top, 1, strict);
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

/* Raise the amax of 16 short runs. Each has a vector of 16 maxima. The vectors are transposed as a matrix, so that one
 * maximum of 16 vectors gives the amax of all runs. */
MP_INLINE int top_of_runs(const mp_part *p, ptrdiff_t i, float *result) {
    vu32 top[MP_LANES];
    for (int r = 0; r < MP_LANES; r++) {
        const float *x = p->x + (i + r) * p->ldx;
        vu32 most = set_u32(0);
        ptrdiff_t j = 0;
        for (; j + MP_LANES <= p->cols; j += MP_LANES) {
            most = max_u32(most, key_of(load_f32(x + j), 0));
        }
        if (j < p->cols) most = max_u32(most, key_of(loadn_f32(x + j, p->cols - j), 0));
        top[r] = most;
    }
    transpose_u32(top);
    vu32 highest = key_of(load_f32(result + i), 0);
    MP_UNROLL_16 for (int r = 0; r < MP_LANES; r++) highest = max_u32(highest, top[r]);
    if (top_u32(highest) >= INFINITE) return 1;
    store_f32(result + i, as_f32(highest));
    return 0;
}

static void amax(const mp_part *p, float *result) {
    for (ptrdiff_t i = 0; i < p->rows && !p->by_column; i++) {
        const float *x = p->x + i * p->ldx;
        float *to = result + i * p->by_row;
        if (p->by_row && p->cols <= SHORT && i + MP_LANES <= p->rows && !top_of_runs(p, i, result)) i += MP_LANES - 1;
        else if (top_of_run(x, p->cols, to, 0)) top_of_run(x, p->cols, to, 1);
    }
    for (ptrdiff_t j = 0; j < p->cols && p->by_column; j += (ptrdiff_t)TABLE)
        if (top_of_columns(p, j, result, 0)) top_of_columns(p, j, result, 1);
}

MP_INLINE vf32 finite_or_zero(vf32 x) {
    return select_f32(gt_i32(set_u32(INFINITE), and_u32(as_u32(x), set_u32(MAGNITUDE))), x, set_f32(0.0f));
}

/* Extend [lo, hi] to x, lane by lane. A comparison with NaN is false, so that NaN changes nothing. */
MP_INLINE void widen_range(vf32 x, vf32 *lo, vf32 *hi, const int strict) {
    const vf32 counted = strict ? finite_or_zero(x) : x;
    *lo = min_f32(counted, *lo), *hi = max_f32(counted, *hi);
}

/* Set *result to the lane of x that is farthest from 0. All lanes are >= +0, or all are <= -0, so it is the lane whose
 * bits are the largest unsigned number. */
MP_INLINE int farthest(vf32 x, float *result) {
    const uint32_t bits = top_u32(as_u32(x));
    if ((bits & MAGNITUDE) >= INFINITE) return 1;
    memcpy(result, &bits, sizeof bits);
    return 0;
}

/* Extend [*lo, *hi] to n numbers. */
MP_INLINE int range_of_run(const float *x, ptrdiff_t n, float *lo, float *hi, const int strict) {
    vf32 a[4], b[4];
    MP_UNROLL_8 for (int v = 0; v < 4; v++) a[v] = set_f32(*lo), b[v] = set_f32(*hi);
    ptrdiff_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK) {
        MP_UNROLL_8 for (int v = 0; v < 4; v++) widen_range(load_f32(x + j + v * MP_LANES), a + v, b + v, strict);
    }
    for (; j < n; j += MP_LANES) widen_range(loadn_f32(x + j, at_most(n - j, MP_LANES)), a, b, strict);
    const vf32 least = min_f32(min_f32(a[0], a[1]), min_f32(a[2], a[3]));
    const vf32 most = max_f32(max_f32(b[0], b[1]), max_f32(b[2], b[3]));
    float first;
    if (farthest(least, &first) || farthest(most, hi)) return 1;
    *lo = first;
    return 0;
}

/* Extend [lo, hi] of each column to `rows` rows. */
MP_INLINE void range_of_rows(const float *x, ptrdiff_t ldx, ptrdiff_t cols, float *lo, float *hi, const int rows,
                             const int strict) {
    ptrdiff_t j = 0;
    for (; j + BLOCK <= cols; j += BLOCK) {
        vf32 least[4], most[4];
        MP_UNROLL_8 for (int v = 0; v < 4; v++)
            least[v] = load_f32(lo + j + v * MP_LANES), most[v] = load_f32(hi + j + v * MP_LANES);
        MP_UNROLL_16 for (int r = 0; r < rows; r++) {
            MP_UNROLL_8 for (int v = 0; v < 4; v++)
                widen_range(load_f32(x + r * ldx + j + v * MP_LANES), least + v, most + v, strict);
        }
        MP_UNROLL_8 for (int v = 0; v < 4; v++)
            store_f32(lo + j + v * MP_LANES, least[v]), store_f32(hi + j + v * MP_LANES, most[v]);
    }
    for (; j < cols; j += MP_LANES) {
        vf32 least = load_f32(lo + j), most = load_f32(hi + j);
        MP_UNROLL_16 for (int r = 0; r < rows; r++)
            widen_range(loadn_f32(x + r * ldx + j, at_most(cols - j, MP_LANES)), &least, &most, strict);
        store_f32(lo + j, least), store_f32(hi + j, most);
    }
}

/* Extend the ranges of at most TABLE / 2 columns from number `first` on. */
MP_INLINE int range_of_columns(const mp_part *p, ptrdiff_t first, float *lo, float *hi, const int strict) {
    const ptrdiff_t cols = at_most(p->cols - first, (ptrdiff_t)TABLE / 2), ldx = p->ldx;
    const ptrdiff_t fours = strict ? 0 : p->rows / ROWS * ROWS;
    const float *x = p->x + first;
    _Alignas(64) float a[TABLE / 2], b[TABLE / 2];
    for (ptrdiff_t j = 0; j < cols; j += MP_LANES) {
        const ptrdiff_t left = at_most(cols - j, MP_LANES);
        store_f32(a + j, loadn_f32(lo + first + j, left)), store_f32(b + j, loadn_f32(hi + first + j, left));
    }
    ptrdiff_t i = 0;
    for (; i < fours; i += ROWS) range_of_rows(x + i * ldx, ldx, cols, a, b, ROWS, 0);
    for (; i < p->rows; i++) range_of_rows(x + i * ldx, ldx, cols, a, b, 1, strict);
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

static void range(const mp_part *p, float *lo, float *hi) {
    for (ptrdiff_t i = 0; i < p->rows && !p->by_column; i++) {
        const float *x = p->x + i * p->ldx;
        float *a = lo + i * p->by_row, *b = hi + i * p->by_row;
        if (range_of_run(x, p->cols, a, b, 0)) range_of_run(x, p->cols, a, b, 1);
    }
    for (ptrdiff_t j = 0; j < p->cols && p->by_column; j += (ptrdiff_t)TABLE / 2)
        if (range_of_columns(p, j, lo, hi, 0)) range_of_columns(p, j, lo, hi, 1);
}
