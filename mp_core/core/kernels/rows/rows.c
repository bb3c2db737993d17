/* Kernels over one row of f32, in several passes: the row is expected to stay in a cache between them.
 *
 * The order of a sum is part of the numerics contract. Lane i adds the elements i, i + 16, i + 32, ... of a block of
 * MP_BLOCK_ROW elements, starting at +0. The lanes of several blocks are added in a tree: the sum of m blocks is the sum
 * of the first 2^t plus the sum of the others, 2^t being the largest power of two below m. sum_f32 adds the 16 lanes. */
#include "vocabulary.h"

#include "casts/conversions.h"
#include "rows/functions.h"

typedef struct {
    ptrdiff_t blocks; /* how many were added */
    vf32 part[52];    /* part[i]: the sum of 2^i neighbouring blocks if bit i of `blocks` is set; else undefined */
} row_sum;

V void add_block(row_sum *sum, vf32 block) {
    int i = 0;
    for (; sum->blocks >> i & 1; i++) block = add_f32(sum->part[i], block);
    sum->part[i] = block;
    sum->blocks++;
}

V float sum_of_blocks(const row_sum *sum) {
    int i = 0;
    while (!(sum->blocks >> i & 1)) i++;
    vf32 total = sum->part[i];
    while (sum->blocks >> ++i)
        if (sum->blocks >> i & 1) total = add_f32(sum->part[i], total);
    return sum_f32(total);
}

V vf32 where_kept(const uint8_t *keep, ptrdiff_t n, vf32 yes, float no) {
    return keep ? select_f32(gt_i32(widen_u8(loadn_u8(keep, n)), set_u32(0)), yes, set_f32(no)) : yes;
}

/* softmax(scale * x) of the elements with keep[i] != 0, and 0 for the others. NaN or +Inf in a kept element, or -Inf in
 * all of them, makes all kept elements NaN. */
static void softmax(const float *x, const uint8_t *keep, float scale, ptrdiff_t n, float *out) {
    const vf32 factor = set_f32(scale), lowest = set_f32(-INFINITY);
    const ptrdiff_t whole = n / MP_LANES * MP_LANES, rest = n - whole;
    const vmask tail = first_n(rest);
    vf32 top = lowest;
    for (ptrdiff_t i = 0; i < whole; i += MP_LANES) {
        const vf32 y = where_kept(keep ? keep + i : NULL, MP_LANES, mul_f32(load_f32(x + i), factor), -INFINITY);
        store_f32(out + i, y);
        top = max_f32(y, top);
    }
    if (rest) {
        const vf32 y = where_kept(keep ? keep + whole : NULL, rest, mul_f32(loadn_f32(x + whole, rest), factor), -INFINITY);
        storen_f32(out + whole, y, rest);
        top = max_f32(select_f32(tail, y, lowest), top);
    }
    const float largest = max_lanes(top);
    const vf32 peak = set_f32(largest > -INFINITY ? largest : 0.0f); /* -Inf - -Inf would be NaN */
    row_sum sum;
    sum.blocks = 0;
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
        for (; i + MP_LANES <= end; i += MP_LANES) {
            const vf32 e = exp_f32(sub_f32(load_f32(out + i), peak));
            store_f32(out + i, e);
            total = add_f32(total, e);
        }
        if (i < end) {
            const vf32 e = exp_f32(sub_f32(loadn_f32(out + i, rest), peak));
            storen_f32(out + i, e, rest);
            total = add_f32(total, select_f32(tail, e, set_f32(0.0f)));
        }
        add_block(&sum, total);
        i = end;
    }
    const vf32 inverse = set_f32(1.0f / sum_of_blocks(&sum));
    for (ptrdiff_t i = 0; i < whole; i += MP_LANES) {
        const vf32 y = mul_f32(load_f32(out + i), inverse);
        store_f32(out + i, where_kept(keep ? keep + i : NULL, MP_LANES, y, 0.0f));
    }
    if (rest) {
        const vf32 y = mul_f32(loadn_f32(out + whole, rest), inverse);
        storen_f32(out + whole, where_kept(keep ? keep + whole : NULL, rest, y, 0.0f), rest);
    }
}

/* The sum of (x - from)^2; each square is added by a fused multiply-add. */
V float sum_of_squares(const float *x, vf32 from, ptrdiff_t n) {
    row_sum sum;
    sum.blocks = 0;
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 squares = set_f32(0.0f);
        for (; i < end; i += MP_LANES) {
            const ptrdiff_t left = at_most(end - i, MP_LANES);
            const vf32 d = sub_f32(loadn_f32(x + i, left), from);
            squares = select_f32(first_n(left), fma_f32(d, d, squares), squares);
        }
        add_block(&sum, squares);
        i = end;
    }
    return sum_of_blocks(&sum);
}

/* (x - from) * by * gamma + beta */
V void scale_row(const float *x, vf32 from, vf32 by, const float *gamma, const float *beta, ptrdiff_t n, float *out) {
    for (ptrdiff_t i = 0; i < n; i += MP_LANES) {
        const ptrdiff_t left = at_most(n - i, MP_LANES);
        vf32 y = mul_f32(sub_f32(loadn_f32(x + i, left), from), by);
        if (gamma) y = mul_f32(y, loadn_f32(gamma + i, left));
        if (beta) y = add_f32(y, loadn_f32(beta + i, left));
        storen_f32(out + i, y, left);
    }
}

/* (y - mean y) / sqrt(var y + epsilon) * gamma + beta, y = x + residual, var = mean (y - mean y)^2 in a second pass. */
static void layer_norm(const float *x, const float *residual, const float *gamma, const float *beta, float epsilon,
                       ptrdiff_t n, float *out) {
    row_sum sum;
    sum.blocks = 0;
    for (ptrdiff_t i = 0; i < n;) {
        const ptrdiff_t end = i + at_most(n - i, MP_BLOCK_ROW);
        vf32 total = set_f32(0.0f);
        for (; i < end; i += MP_LANES) {
            const ptrdiff_t left = at_most(end - i, MP_LANES);
            vf32 y = loadn_f32(x + i, left);
            if (residual) y = add_f32(y, loadn_f32(residual + i, left));
            storen_f32(out + i, y, left);
            total = add_f32(total, y); /* lanes beyond n hold 0 */
        }
        add_block(&sum, total);
        i = end;
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
    activate(activation, (float *)x, n, 1, n, (result_rows){MP_F32, out, n}); /* a result in f32 leaves x as it is */
}

extern const mp_rows MP_EXPORTED(rows);
const mp_rows MP_EXPORTED(rows) = {
    .softmax = softmax,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .activate = activate_row,
};
