/* The gradients of operations on rows: softmax, log_softmax, norms. Everything is float32; sums are in the order of
 * rows/sums.h. */

/* The sum of the terms of a row; TERM(I, N, TOTAL) adds the terms of one vector to the sums of its lanes. */
#define SUM_OF_ROW(NAME, PARAMETERS, TERM)                          \
    MP_INLINE float NAME PARAMETERS {                                       \
        row_sum sum;                                                \
        start_sum(&sum, n);                                         \
        for (ptrdiff_t i = 0; i < n;) {                             \
            const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW); \
            vf32 total = set_f32(0.0f);                             \
            FOR_VECTORS(i, end, TERM)                               \
            add_block(&sum, total);                                 \
        }                                                           \
        return sum_of_blocks(&sum);                                 \
    }

#define ELEMENT(I, N) total = add_f32(total, read_row(MP_F32, x, I, N))
SUM_OF_ROW(sum_of_elements, (const float *x, ptrdiff_t n), ELEMENT)

#define PRODUCT(I, N) total = fma_f32(read_row(MP_F32, x, I, N), read_row(MP_F32, y, I, N), total)
SUM_OF_ROW(sum_of_products, (const float *x, const float *y, ptrdiff_t n), PRODUCT)

/* (y (d - sum d y)) scale */
static void softmax_gradient(const float *y, const float *d, ptrdiff_t n, float scale, float *out) {
    const vf32 mean = set_f32(sum_of_products(d, y, n)), factor = set_f32(scale);
    ptrdiff_t i = 0;
#define OF_SOFTMAX(I, N)                                                                                              \
    write_row(MP_F32, out, I,                                                                                         \
              mul_f32(mul_f32(read_row(MP_F32, y, I, N), sub_f32(read_row(MP_F32, d, I, N), mean)), factor), N)
    FOR_VECTORS(i, n, OF_SOFTMAX)
}

/* d - e^y sum d */
static void log_softmax_gradient(const float *y, const float *d, ptrdiff_t n, float *out) {
    const vf32 sum = set_f32(-sum_of_elements(d, n));
    for (ptrdiff_t i = 0; i < n; i += MP_LANES) {
        const ptrdiff_t m = at_most(n - i, MP_LANES);
        write_row(MP_F32, out, i, fma_f32(exp_f32(read_row(MP_F32, y, i, m)), sum, read_row(MP_F32, d, i, m)), m);
    }
}

/* Write the normalized elements to `shares`, and their gradients, d gamma, to `out`. */
MP_INLINE void normalize(const mp_norm_row *r, const float *row, float mean, float factor) {
    const vf32 from = set_f32(mean), by = set_f32(factor);
    ptrdiff_t i = 0;
#define NORMALIZE(I, N)                                                               \
    do {                                                                              \
        const vf32 x = mul_f32(sub_f32(read_row(MP_F32, row, I, N), from), by);       \
        vf32 g = read_row(MP_F32, r->d, I, N);                                        \
        if (r->gamma) g = mul_f32(g, read_row(MP_F32, r->gamma, I, N));               \
        write_row(MP_F32, r->shares, I, x, N);                                        \
        write_row(MP_F32, r->out, I, g, N);                                           \
    } while (0)
    FOR_VECTORS(i, r->n, NORMALIZE)
}

/* The gradient of a norm, with n = (x - mean) factor and g = d gamma: factor (g - mean g - n mean (g n)), without mean
 * g if the norm is not centred. The statistics are computed as in the norm, with the same bits. */
static void norm_gradient(const mp_norm_row *r) {
    const float *row = r->x;
    const float n = (float)r->n;
    float mean = r->is_centred ? sum_of_elements(row, r->n) / n : 0.0f;
    const float squares = sum_of_squares(row, mean, r->n), before = before_squares(squares, mean, r->epsilon);
    float factor = 1.0f / sqrtf(squares / n + r->epsilon);
    if (before != 1.0f) {
        factor = factor_of_multiplied(row, before, r->n, r->epsilon, r->shares, r->is_centred ? &mean : NULL);
        row = r->shares;
    }
    normalize(r, row, mean, factor);
    const vf32 by = set_f32(factor * before), slope = set_f32(-(sum_of_products(r->out, r->shares, r->n) / n));
    const vf32 middle = set_f32(r->is_centred ? sum_of_elements(r->out, r->n) / n : 0.0f);
    ptrdiff_t i = 0;
#define OF_NORM(I, N)                                                                                                 \
    do {                                                                                                              \
        const vf32 x = read_row(MP_F32, r->shares, I, N), g = sub_f32(read_row(MP_F32, r->out, I, N), middle);        \
        write_row(MP_F32, r->out, I, mul_f32(fma_f32(x, slope, g), by), N);                                           \
        write_row(MP_F32, r->shares, I, mul_f32(read_row(MP_F32, r->d, I, N), x), N);                                 \
    } while (0)
    FOR_VECTORS(i, r->n, OF_NORM)
}
