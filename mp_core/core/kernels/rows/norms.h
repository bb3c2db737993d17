/* layer_norm in three passes: the sum, the squared deviations, the result; rms_norm in two: the squares, the result. */

/* Write x + residual to y; return the sum of y or, if `squared`, of y^2, which is added by fused multiply-adds. */
MP_INLINE float widen_and_sum(mp_format format, const void *x, const void *residual, const int squared, ptrdiff_t n,
                              float *y) {
    row_sum sum;
    start_sum(&sum, n);
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
#define ADD(I, N)                                                              \
    do {                                                                       \
        vf32 v = read_row(format, x, I, N); /* lanes beyond N are 0 */        \
        if (residual) v = add_f32(v, read_row(format, residual, I, N));        \
        write_row(MP_F32, y, I, v, N);                                         \
        total = squared ? fma_f32(v, v, total) : add_f32(total, v);            \
    } while (0)
        FOR_VECTORS(i, end, ADD)
        add_block(&sum, total);
    }
    return sum_of_blocks(&sum);
}

/* The sum of (x - from)^2; each square is added by a fused multiply-add. */
MP_INLINE float sum_of_squares(const float *x, float from, ptrdiff_t n) {
    const vf32 mean = set_f32(from);
    row_sum sum;
    start_sum(&sum, n);
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
#define SQUARES(I, N)                                                          \
    do {                                                                       \
        const vf32 d = sub_f32(read_row(MP_F32, x, I, N), mean);               \
        total = first_of(N, fma_f32(d, d, total), total);                      \
    } while (0)
        FOR_VECTORS(i, end, SQUARES)
        add_block(&sum, total);
    }
    return sum_of_blocks(&sum);
}

/* The factor by which a row is multiplied before its squares are added: 1 if `squares`, their sum without a factor, has
 * no relevant error by overflow or underflow. The two other factors are powers of two, so that they change no other
 * bits. If |mean| >= 1, a sum below 2^-100 is one of equal numbers, which might overflow. */
MP_INLINE float before_squares(float squares, float mean, float epsilon) {
    if (!(squares <= 0x1p126f)) return 0x1p-96f;
    return squares < 0x1p-100f && epsilon < 0x1p-100f && fabsf(mean) < 1.0f ? 0x1p100f : 1.0f;
}

/* Compute a row y = x * by and 1 / sqrt(mean (y - mean)^2 + epsilon); `mean` is NULL for a norm around 0. With such
 * squares, epsilon becomes (sqrt(epsilon) by)^2. Few rows need this, so it is not inlined. */
__attribute__((cold)) MP_OUTLINED float
factor_of_multiplied(const float *x, float by, ptrdiff_t n, float epsilon, float *y, float *mean) {
    const float root = sqrtf(epsilon) * by;
    for (ptrdiff_t i = 0; i < n; i++) y[i] = x[i] * by;
    if (mean) *mean = widen_and_sum(MP_F32, y, NULL, 0, n, y) / (float)n;
    return 1.0f / sqrtf(sum_of_squares(y, mean ? *mean : 0.0f, n) / (float)n + root * root);
}

/* (x - mean) * factor * gamma + beta */
MP_INLINE void scale(mp_format format, const float *x, float mean, float factor, const float *gamma, const float *beta,
                     ptrdiff_t n, void *out) {
    const vf32 from = set_f32(mean), by = set_f32(factor);
    ptrdiff_t i = 0;
#define SHIFT(I, N)                                                            \
    do {                                                                       \
        vf32 y = mul_f32(sub_f32(read_row(MP_F32, x, I, N), from), by);        \
        if (gamma) y = mul_f32(y, read_row(MP_F32, gamma, I, N));              \
        if (beta) y = add_f32(y, read_row(MP_F32, beta, I, N));                \
        write_row(format, out, I, y, N);                                       \
    } while (0)
    FOR_VECTORS(i, n, SHIFT)
}

static float sum_of_row(const mp_row_block *b, ptrdiff_t row, const void *residual) {
    const void *const x = row_of_x(b, b->x, row), *const other = residual ? row_of_x(b, residual, row) : NULL;
    switch (b->x_format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: return widen_and_sum(MP_##FORMAT, x, other, 0, b->n, row_of_work(b, row));
#include "formats.def"
    default: return 0.0f;
    }
}

/* The row as f32: in place or, after squares_of_row has widened it, in `work`. */
MP_INLINE const float *widened_row(const mp_row_block *b, ptrdiff_t row) {
    return b->x_format == MP_F32 ? row_of_x(b, b->x, row) : row_of_work(b, row);
}

static float squares_of_row(const mp_row_block *b, ptrdiff_t row) {
    const void *const x = row_of_x(b, b->x, row);
    if (b->x_format == MP_F32) return sum_of_squares(x, 0.0f, b->n);
    switch (b->x_format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: return widen_and_sum(MP_##FORMAT, x, NULL, 1, b->n, row_of_work(b, row));
#include "formats.def"
    default: return 0.0f;
    }
}

static void scale_row(const mp_row_block *b, ptrdiff_t row, const float *y, float mean, float factor,
                      const float *gamma, const float *beta) {
    switch (b->out_format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: scale(MP_##FORMAT, y, mean, factor, gamma, beta, b->n, row_of_out(b, row)); break;
#include "formats.def"
    default: break;
    }
}

/* (y - mean y) / sqrt(var y + epsilon) * gamma + beta, y = x + residual, var = mean (y - mean y)^2 in a second pass. If
 * before_squares says so, y is first multiplied by a power of two. */
static void layer_norm(const mp_row_block *b, const void *residual, const float *gamma, const float *beta,
                       float epsilon) {
    const ptrdiff_t together = mp_rows_together(b->n);
    for (ptrdiff_t first = 0; first < b->rows; first += together) {
        const ptrdiff_t rows = at_most(b->rows - first, together);
        float mean[MP_ROWS_TOGETHER], factor[MP_ROWS_TOGETHER];
        for (ptrdiff_t i = 0; i < rows; i++) mean[i] = sum_of_row(b, first + i, residual) / (float)b->n;
        for (ptrdiff_t i = 0; i < rows; i++) {
            float *const y = row_of_work(b, first + i);
            const float squares = sum_of_squares(y, mean[i], b->n), by = before_squares(squares, mean[i], epsilon);
            factor[i] = by == 1.0f ? 1.0f / sqrtf(squares / (float)b->n + epsilon)
                                   : factor_of_multiplied(y, by, b->n, epsilon, y, &mean[i]);
        }
        for (ptrdiff_t i = 0; i < rows; i++)
            scale_row(b, first + i, row_of_work(b, first + i), mean[i], factor[i], gamma, beta);
    }
}

/* x / sqrt(mean x^2 + epsilon) * gamma; if before_squares says so, x is first multiplied by a power of two. */
static void rms_norm(const mp_row_block *b, const float *gamma, float epsilon) {
    const ptrdiff_t together = mp_rows_together(b->n);
    for (ptrdiff_t first = 0; first < b->rows; first += together) {
        const ptrdiff_t rows = at_most(b->rows - first, together);
        float factor[MP_ROWS_TOGETHER];
        const float *y[MP_ROWS_TOGETHER];
        for (ptrdiff_t i = 0; i < rows; i++) {
            const float squares = squares_of_row(b, first + i), by = before_squares(squares, 0.0f, epsilon);
            y[i] = widened_row(b, first + i);
            if (by == 1.0f) {
                factor[i] = 1.0f / sqrtf(squares / (float)b->n + epsilon);
            } else {
                float *const work = row_of_work(b, first + i);
                factor[i] = factor_of_multiplied(y[i], by, b->n, epsilon, work, NULL);
                y[i] = work;
            }
        }
        for (ptrdiff_t i = 0; i < rows; i++) scale_row(b, first + i, y[i], 0.0f, factor[i], gamma, NULL);
    }
}
