/* Kernels over one row of f32, in several passes: the row is expected to stay in a cache between them.
 *
 * The order of a sum is part of the numerics contract. A row is cut into row blocks of MP_BLOCK_ROW elements. In each,
 * lane i adds the elements i, i + 16, i + 32, ... in order, starting at +0. The lanes of the row blocks are added in a
 * tree: the sum of m row blocks is the sum of the first 2^t plus the sum of the others, 2^t being the largest power of
 * two below m. sum_f32 adds the 16 lanes. */
#include "vocabulary.h"

#include "casts/conversions.h"
#include "rows/functions.h"

typedef struct {
    ptrdiff_t n;      /* numbers to be added */
    ptrdiff_t blocks; /* how many row blocks were added */
    vf32 only;        /* the sum of the only row block, if n <= MP_BLOCK_ROW: it stays in a register; else: */
    vf32 part[52];    /* part[i]: the sum of 2^i neighbouring row blocks if bit i of `blocks` is set; else undefined */
} row_sum;

V void start_sum(row_sum *sum, ptrdiff_t n) { sum->n = n, sum->blocks = 0, sum->only = set_f32(0.0f); }

V void add_block(row_sum *sum, vf32 block) {
    sum->only = block;
    if (sum->n <= MP_BLOCK_ROW) return;
    int i = 0;
    for (; sum->blocks >> i & 1; i++) block = add_f32(sum->part[i], block);
    sum->part[i] = block;
    sum->blocks++;
}

V float sum_of_blocks(const row_sum *sum) {
    if (sum->n <= MP_BLOCK_ROW) return sum_f32(sum->only);
    int i = 0;
    while (!(sum->blocks >> i & 1)) i++;
    vf32 total = sum->part[i];
    while (sum->blocks >> ++i)
        if (sum->blocks >> i & 1) total = add_f32(sum->part[i], total);
    return sum_f32(total);
}

/* The first 0 < n <= 16 elements at p. n is mostly a constant: whole vectors are read and written without a mask. */
V vf32 read_f32(const float *p, ptrdiff_t n) { return n == MP_LANES ? load_f32(p) : loadn_f32(p, n); }
V void write_f32(float *p, vf32 x, ptrdiff_t n) {
    if (n == MP_LANES) store_f32(p, x);
    else storen_f32(p, x, n);
}
V vf32 first_of(ptrdiff_t n, vf32 yes, vf32 no) { return n == MP_LANES ? yes : select_f32(first_n(n), yes, no); }

/* yes in the lanes whose keep[i] != 0, `no` in the others; yes if keep is NULL. */
V vf32 where_kept(const uint8_t *keep, ptrdiff_t n, vf32 yes, float no) {
    if (!keep) return yes;
    return select_f32(gt_i32(widen_u8(n == MP_LANES ? load_u8(keep) : loadn_u8(keep, n)), set_u32(0)), yes, set_f32(no));
}

/* Do something for all vectors from i to `end`: for whole ones with n = MP_LANES, then for what is left. */
#define FOR_VECTORS(I, END, DO)                                 \
    for (; I + MP_LANES <= END; I += MP_LANES) DO(I, MP_LANES); \
    if (I < END) {                                              \
        const ptrdiff_t rest = END - I;                         \
        DO(I, rest);                                            \
        I = END;                                                \
    }

/* One vector of each pass of softmax: scale and mask, exponentials, their share of the sum. */
V vf32 scale_scores(const float *x, const uint8_t *keep, vf32 factor, vf32 top, ptrdiff_t n, float *out) {
    const vf32 y = where_kept(keep, n, mul_f32(read_f32(x, n), factor), -INFINITY);
    write_f32(out, y, n);
    return first_of(n, max_f32(y, top), top);
}

V vf32 exponentials(float *x, vf32 peak, vf32 total, ptrdiff_t n) {
    const vf32 e = exp_f32(sub_f32(read_f32(x, n), peak));
    write_f32(x, e, n);
    return add_f32(total, first_of(n, e, set_f32(0.0f)));
}

/* softmax(scale * x) of the elements with keep[i] != 0, and 0 for the others. NaN or +Inf in a kept element, or -Inf in
 * all of them, makes all kept elements NaN. */
static void softmax(const float *x, const uint8_t *keep, float scale, ptrdiff_t n, float *out) {
    const vf32 factor = set_f32(scale);
    vf32 top = set_f32(-INFINITY);
    ptrdiff_t i = 0;
#define SCALE(I, N) top = scale_scores(x + I, keep ? keep + I : NULL, factor, top, N, out + I)
    FOR_VECTORS(i, n, SCALE)
    const float largest = max_lanes(top);
    const vf32 peak = set_f32(largest > -INFINITY ? largest : 0.0f); /* -Inf - -Inf would be NaN */
    row_sum sum;
    start_sum(&sum, n);
    for (i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
#define EXPONENTIALS(I, N) total = exponentials(out + I, peak, total, N)
        FOR_VECTORS(i, end, EXPONENTIALS)
        add_block(&sum, total);
    }
    const float inverse = 1.0f / sum_of_blocks(&sum);
    const vf32 by = set_f32(inverse);
    if (inverse < INFINITY) keep = NULL; /* exponentials that are not kept are 0, and times a number stay 0 */
    i = 0;
#define DIVIDE(I, N) \
    write_f32(out + I, where_kept(keep ? keep + I : NULL, N, mul_f32(read_f32(out + I, N), by), 0.0f), N)
    FOR_VECTORS(i, n, DIVIDE)
}

V vf32 squares(const float *x, vf32 from, vf32 total, ptrdiff_t n) {
    const vf32 d = sub_f32(read_f32(x, n), from);
    return first_of(n, fma_f32(d, d, total), total);
}

/* The sum of (x - from)^2; each square is added by a fused multiply-add. */
V float sum_of_squares(const float *x, vf32 from, ptrdiff_t n) {
    row_sum sum;
    start_sum(&sum, n);
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
#define SQUARES(I, N) total = squares(x + I, from, total, N)
        FOR_VECTORS(i, end, SQUARES)
        add_block(&sum, total);
    }
    return sum_of_blocks(&sum);
}

/* (x - from) * by * gamma + beta */
V void scale_vector(const float *x, vf32 from, vf32 by, const float *gamma, const float *beta, ptrdiff_t n, float *out) {
    vf32 y = mul_f32(sub_f32(read_f32(x, n), from), by);
    if (gamma) y = mul_f32(y, read_f32(gamma, n));
    if (beta) y = add_f32(y, read_f32(beta, n));
    write_f32(out, y, n);
}

V void scale_row(const float *x, vf32 from, vf32 by, const float *gamma, const float *beta, ptrdiff_t n, float *out) {
    ptrdiff_t i = 0;
#define SHIFT(I, N) scale_vector(x + I, from, by, gamma ? gamma + I : NULL, beta ? beta + I : NULL, N, out + I)
    FOR_VECTORS(i, n, SHIFT)
}

V vf32 add_vectors(const float *x, const float *residual, vf32 total, ptrdiff_t n, float *out) {
    vf32 y = read_f32(x, n);
    if (residual) y = add_f32(y, read_f32(residual, n));
    write_f32(out, y, n);
    return add_f32(total, y); /* lanes beyond n hold 0 */
}

/* (y - mean y) / sqrt(var y + epsilon) * gamma + beta, y = x + residual, var = mean (y - mean y)^2 in a second pass. */
static void layer_norm(const float *x, const float *residual, const float *gamma, const float *beta, float epsilon,
                       ptrdiff_t n, float *out) {
    row_sum sum;
    start_sum(&sum, n);
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
#define ADD(I, N) total = add_vectors(x + I, residual ? residual + I : NULL, total, N, out + I)
        FOR_VECTORS(i, end, ADD)
        add_block(&sum, total);
    }
    const vf32 mean = set_f32(sum_of_blocks(&sum) / (float)n);
    const float variance = sum_of_squares(out, mean, n) / (float)n;
    scale_row(out, mean, set_f32(1.0f / sqrtf(variance + epsilon)), gamma, beta, n, out);
}

/* x / sqrt(mean x^2 + epsilon) * gamma */
static void rms_norm(const float *x, const float *gamma, float epsilon, ptrdiff_t n, float *out) {
    const vf32 zero = set_f32(0.0f);
    const float mean = sum_of_squares(x, zero, n) / (float)n;
    scale_row(x, zero, set_f32(1.0f / sqrtf(mean + epsilon)), gamma, NULL, n, out);
}

static void activate_row(mp_activation activation, const float *x, ptrdiff_t n, float *out) {
    activate(activation, (float *)x, n, 1, n, (result_rows){MP_F32, out, n}); /* x stays: the result is f32 */
}

extern const mp_rows MP_EXPORTED(rows);
const mp_rows MP_EXPORTED(rows) = {
    .softmax = softmax,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .activate = activate_row,
};
