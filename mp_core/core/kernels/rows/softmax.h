/* softmax in three passes: scale and mask, exponentials and their sum, the division. */

/* `yes` in the lanes with keep[i] != 0, or if keep is NULL; `no` in the others. */
MP_INLINE vf32 where_kept(const uint8_t *keep, ptrdiff_t n, vf32 yes, float no) {
    if (!keep) return yes;
    const vu32 kept = widen_u8(n == MP_LANES ? load_u8(keep) : loadn_u8(keep, n));
    return select_f32(gt_i32(kept, set_u32(0)), yes, set_f32(no));
}

/* Write scale * x to y, -Inf for elements that are not kept; return the largest. */
MP_INLINE float scale_scores(mp_format format, const void *x, const uint8_t *keep, float scale, ptrdiff_t n, float *y) {
    const vf32 factor = set_f32(scale);
    vf32 top = set_f32(-INFINITY);
    ptrdiff_t i = 0;
#define SCALE(I, N)                                                                                                  \
    do {                                                                                                             \
        const vf32 s = where_kept(keep ? keep + I : NULL, N, mul_f32(read_row(format, x, I, N), factor), -INFINITY); \
        write_row(MP_F32, y, I, s, N);                                                                               \
        top = first_of(N, max_f32(s, top), top);                                                                     \
    } while (0)
    FOR_VECTORS(i, n, SCALE)
    return max_lanes(top);
}

/* The sum of e^(x - from); with `keep`, x is replaced by these exponentials. */
MP_INLINE float sum_of_exponentials(float *x, float from, ptrdiff_t n, const int keep) {
    const vf32 peak = set_f32(from);
    row_sum sum;
    start_sum(&sum, n);
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
#define EXPONENTIALS(I, N)                                                      \
    do {                                                                        \
        const vf32 e = exp_f32(sub_f32(read_row(MP_F32, x, I, N), peak));       \
        if (keep) write_row(MP_F32, x, I, e, N);                                \
        total = add_f32(total, first_of(N, e, set_f32(0.0f)));                  \
    } while (0)
        FOR_VECTORS(i, end, EXPONENTIALS)
        add_block(&sum, total);
    }
    return sum_of_blocks(&sum);
}

/* Replace x by e^(x - largest); return 1 / their sum. -Inf - -Inf would be NaN. */
MP_INLINE float exponentials(float *x, float largest, ptrdiff_t n) {
    return 1.0f / sum_of_exponentials(x, largest > -INFINITY ? largest : 0.0f, n, 1);
}

MP_INLINE void divide(mp_format format, const float *x, const uint8_t *keep, float inverse, ptrdiff_t n, void *out) {
    const vf32 by = set_f32(inverse);
    if (inverse < INFINITY) keep = NULL; /* exponentials that are not kept are 0, also after the multiplication */
    ptrdiff_t i = 0;
#define DIVIDE(I, N)                                                                                        \
    write_row(format, out, I, where_kept(keep ? keep + I : NULL, N, mul_f32(read_row(MP_F32, x, I, N), by), 0.0f), N)
    FOR_VECTORS(i, n, DIVIDE)
}

static float scale_row_of_scores(const mp_row_block *b, ptrdiff_t row, const uint8_t *keep, float scale) {
    switch (b->x_format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: return scale_scores(MP_##FORMAT, row_of_x(b, b->x, row), keep, scale, b->n, row_of_work(b, row));
#include "formats.def"
    default: return 0.0f;
    }
}

static void divide_row(const mp_row_block *b, ptrdiff_t row, const uint8_t *keep, float inverse) {
    switch (b->out_format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: divide(MP_##FORMAT, row_of_work(b, row), keep, inverse, b->n, row_of_out(b, row)); break;
#include "formats.def"
    default: break;
    }
}

/* softmax(scale * x) of the elements with keep[i] != 0; 0 for the others. If a kept element is NaN or +Inf, or all are
 * -Inf, all kept elements become NaN. */
static void softmax(const mp_row_block *b, const uint8_t *keep, ptrdiff_t keep_stride, float scale) {
    const ptrdiff_t together = mp_rows_together(b->n);
    for (ptrdiff_t first = 0; first < b->rows; first += together) {
        const ptrdiff_t rows = at_most(b->rows - first, together);
        float number[MP_ROWS_TOGETHER]; /* of each row: first the largest score, then 1 / the sum */
        const uint8_t *kept[MP_ROWS_TOGETHER];
        for (ptrdiff_t i = 0; i < rows; i++) {
            kept[i] = keep ? keep + (first + i) * keep_stride : NULL;
            number[i] = scale_row_of_scores(b, first + i, kept[i], scale);
        }
        for (ptrdiff_t i = 0; i < rows; i++) number[i] = exponentials(row_of_work(b, first + i), number[i], b->n);
        for (ptrdiff_t i = 0; i < rows; i++) divide_row(b, first + i, kept[i], number[i]);
    }
}

/* Replace x by x - largest; return the logarithm of the sum of their exponentials. */
MP_INLINE float shift_scores(float *x, float largest, ptrdiff_t n) {
    const vf32 peak = set_f32(largest);
    ptrdiff_t i = 0;
#define SHIFT_SCORES(I, N) write_row(MP_F32, x, I, sub_f32(read_row(MP_F32, x, I, N), peak), N)
    FOR_VECTORS(i, n, SHIFT_SCORES)
    float total[MP_LANES];
    store_f32(total, log_f32(set_f32(sum_of_exponentials(x, 0.0f, n, 0))));
    return total[0];
}

/* (x - largest) - log(the sum of e^(x - largest)). A row with NaN or +Inf, or with only -Inf, becomes NaN. */
static void log_softmax(const mp_row_block *b) {
    for (ptrdiff_t row = 0; row < b->rows; row++) {
        float *const y = row_of_work(b, row);
        const float largest = scale_row_of_scores(b, row, NULL, 1.0f);
        scale_row(b, row, y, shift_scores(y, largest, b->n), 1.0f, NULL, NULL);
    }
}
