/* Pooling over windows, its gradients, and depthwise convolution: window after window, 16 channels at a time. */
#include "vocabulary.h"

#include "rows/extremes.h"
#include "windows/windows.h"

/* The 0 < n <= 16 elements from element i on; n is mostly a constant. */
MP_INLINE vf32 read(const float *x, ptrdiff_t i, ptrdiff_t n) {
    return n == MP_LANES ? load_f32(x + i) : loadn_f32(x + i, n);
}
MP_INLINE void write(float *out, ptrdiff_t i, vf32 x, ptrdiff_t n) {
    if (n == MP_LANES) store_f32(out + i, x);
    else storen_f32(out + i, x, n);
}

/* Do something for the channels of every window: 16 at a time, then the last ones. */
#define FOR_WINDOWS(W, DO)                                                                                    \
    for (ptrdiff_t window = 0; window < (W)->count; window++) {                                               \
        ptrdiff_t i = 0;                                                                                      \
        for (; i + MP_LANES <= (W)->channels; i += MP_LANES) DO(W, window, i, MP_LANES);                      \
        if (i < (W)->channels) DO(W, window, i, (W)->channels - i);                                           \
    }

/* The index of element i of the place `column` of a window. */
MP_INLINE ptrdiff_t place_of(const mp_window_row *w, ptrdiff_t window, ptrdiff_t column, ptrdiff_t i) {
    return (window * w->step + column) * w->channels + i;
}

MP_INLINE vf32 maximum_of_window(const mp_window_row *w, ptrdiff_t window, ptrdiff_t i, ptrdiff_t n) {
    vf32 largest = read(w->x[0], place_of(w, window, 0, i), n);
    for (ptrdiff_t row = 0; row < w->rows; row++)
        for (ptrdiff_t column = row == 0; column < w->width; column++)
            largest = larger_f32(largest, read(w->x[row], place_of(w, window, column, i), n));
    return largest;
}

MP_INLINE vf32 sum_of_window(const mp_window_row *w, ptrdiff_t window, ptrdiff_t i, ptrdiff_t n) {
    vf32 sum = read(w->x[0], place_of(w, window, 0, i), n);
    for (ptrdiff_t row = 0; row < w->rows; row++)
        for (ptrdiff_t column = row == 0; column < w->width; column++)
            sum = add_f32(sum, read(w->x[row], place_of(w, window, column, i), n));
    return sum;
}

MP_INLINE void pool_maxima(const mp_window_row *w, ptrdiff_t window, ptrdiff_t i, ptrdiff_t n) {
    write(w->out + window * w->channels, i, maximum_of_window(w, window, i, n), n);
}
MP_INLINE void pool_sums(const mp_window_row *w, ptrdiff_t window, ptrdiff_t i, ptrdiff_t n) {
    write(w->out + window * w->channels, i, sum_of_window(w, window, i, n), n);
}

/* ---- gradients */

MP_INLINE void give(const mp_window_row *w, ptrdiff_t row, ptrdiff_t at, vf32 d, ptrdiff_t n) {
    if (w->adds) d = add_f32(read(w->to[row], at, n), d);
    write(w->to[row], at, d, n);
}

/* Split a gradient between x, an element, and `before`, the largest of the elements before it: the larger one gets it;
 * if they are equal, each gets half; if one is NaN (then `both`, their maximum, is NaN), none gets it. Return the share
 * of `before`. */
MP_INLINE vf32 split(vf32 d, vf32 before, vf32 x, vf32 both, vf32 *share) {
    const vf32 zero = set_f32(0.0f);
    const vmask is_nan = gt_i32(and_u32(as_u32(both), set_u32(0x7FFFFFFFu)), set_u32(0x7F800000u));
    const vf32 equal = select_f32(is_nan, zero, mul_f32(d, set_f32(0.5f)));
    const vmask above = lt_f32(x, before), below = lt_f32(before, x);
    *share = select_f32(below, d, select_f32(above, zero, equal));
    return select_f32(above, d, select_f32(below, zero, equal));
}

/* Store the running maximum at each place of the window, then split the gradient, from the last place to the first. */
MP_INLINE void split_window(const mp_window_row *w, ptrdiff_t window, ptrdiff_t i, ptrdiff_t n) {
    float *kept = w->kept;
    vf32 largest = read(w->x[0], place_of(w, window, 0, i), n);
    for (ptrdiff_t row = 0; row < w->rows; row++)
        for (ptrdiff_t column = 0; column < w->width; column++, kept += MP_LANES) {
            largest = larger_f32(largest, read(w->x[row], place_of(w, window, column, i), n));
            store_f32(kept, largest);
        }
    vf32 d = read(w->d + window * w->channels, i, n), share;
    for (ptrdiff_t row = w->rows - 1; row >= 0; row--)
        for (ptrdiff_t column = w->width - 1; column >= (row == 0); column--) {
            const ptrdiff_t at = place_of(w, window, column, i);
            kept -= MP_LANES;
            d = split(d, load_f32(kept - MP_LANES), read(w->x[row], at, n), load_f32(kept), &share);
            give(w, row, at, share, n);
        }
    give(w, 0, place_of(w, window, 0, i), d, n);
}

MP_INLINE void spread_window(const mp_window_row *w, ptrdiff_t window, ptrdiff_t i, ptrdiff_t n) {
    const vf32 d = read(w->d + window * w->channels, i, n);
    for (ptrdiff_t row = 0; row < w->rows; row++)
        for (ptrdiff_t column = 0; column < w->width; column++)
            give(w, row, place_of(w, window, column, i), d, n);
}

/* ---- depthwise convolution */

enum { TOGETHER = 4 }; /* windows that share each load of a weight */

/* Each sum starts at +0; the places of a window are added in C order, each by one multiply-add. */
MP_INLINE void multiply_windows(const mp_window_row *w, ptrdiff_t window, int windows, ptrdiff_t i, ptrdiff_t n) {
    const float *weight = w->weights + i;
    vf32 sums[TOGETHER];
    for (int t = 0; t < windows; t++) sums[t] = set_f32(0.0f);
    for (ptrdiff_t row = 0; row < w->rows; row++) {
        const float *x = w->x[row] + window * w->step * w->channels + i;
        for (ptrdiff_t column = 0; column < w->width; column++, x += w->dilation * w->channels) {
            const vf32 factor = read(weight, 0, n);
            for (int t = 0; t < windows; t++)
                sums[t] = fma_f32(read(x, t * w->step * w->channels, n), factor, sums[t]);
            weight += w->channels;
        }
    }
    for (int t = 0; t < windows; t++) {
        if (w->bias) sums[t] = add_f32(sums[t], read(w->bias, i, n));
        write(w->out + (window + t) * w->channels, i, sums[t], n);
    }
}

MP_INLINE void multiply_channels(const mp_window_row *w, ptrdiff_t window, int windows) {
    ptrdiff_t i = 0;
    for (; i + MP_LANES <= w->channels; i += MP_LANES) multiply_windows(w, window, windows, i, MP_LANES);
    if (i < w->channels) multiply_windows(w, window, windows, i, w->channels - i);
}

static void window_products(const mp_window_row *w) {
    ptrdiff_t window = 0;
    for (; window + TOGETHER <= w->count; window += TOGETHER) multiply_channels(w, window, TOGETHER);
    for (; window < w->count; window++) multiply_channels(w, window, 1);
}

static void window_maxima(const mp_window_row *w) { FOR_WINDOWS(w, pool_maxima) }
static void window_sums(const mp_window_row *w) { FOR_WINDOWS(w, pool_sums) }
static void maxima_gradient(const mp_window_row *w) { FOR_WINDOWS(w, split_window) }
static void sums_gradient(const mp_window_row *w) { FOR_WINDOWS(w, spread_window) }

extern mp_window_function *const MP_EXPORTED(window_functions)[];
mp_window_function *const MP_EXPORTED(window_functions)[MP_WINDOW_KERNELS] = {
    [MP_WINDOW_MAXIMA] = window_maxima,
    [MP_WINDOW_SUMS] = window_sums,
    [MP_WINDOW_MAXIMA_GRADIENT] = maxima_gradient,
    [MP_WINDOW_SUMS_GRADIENT] = sums_gradient,
    [MP_WINDOW_PRODUCTS] = window_products,
};
