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

enum {
    TOGETHER = 4,    /* windows that share each load of a weight */
    NARROW = 3,      /* places of the most common windows: their weights and TOGETHER sums are 14 registers on AVX2 */
    WEIGHTS = 4096,  /* weights of the channels that pass all windows before the next ones: 16 KiB, half of L1 */
};

/* Add one line of places of neighbouring windows to their sums. With a constant `step`, windows have NARROW adjacent
 * places: their weights stay in registers, and each place is loaded once for all windows that have it. */
MP_INLINE void multiply_line(const mp_window_row *w, const float *x, const float *weight, int windows, const int step,
                             ptrdiff_t n, vf32 *sums) {
    const ptrdiff_t next = w->dilation * w->channels;
    if (step) {
        vf32 factors[NARROW];
        MP_UNROLL_8 for (int column = 0; column < NARROW; column++) factors[column] = read(weight, column * next, n);
        MP_UNROLL_16 for (int place = 0; place < (windows - 1) * step + NARROW; place++, x += next) {
            const vf32 at = read(x, 0, n);
            MP_UNROLL_8 for (int column = 0; column < NARROW; column++) {
                const int t = (place - column) / step;
                if (place >= column && (place - column) % step == 0 && t < windows)
                    sums[t] = fma_f32(at, factors[column], sums[t]);
            }
        }
        return;
    }
    for (ptrdiff_t column = 0; column < w->width; column++, x += next, weight += w->channels) {
        const vf32 factor = read(weight, 0, n);
        MP_UNROLL_8 for (int t = 0; t < windows; t++)
            sums[t] = fma_f32(read(x, t * w->step * w->channels, n), factor, sums[t]);
    }
}

/* Each sum starts at +0; the places of a window are added in C order, each by one multiply-add. */
MP_INLINE void multiply_windows(const mp_window_row *w, ptrdiff_t window, int windows, const int step, ptrdiff_t i,
                                ptrdiff_t n) {
    const ptrdiff_t start = window * w->step * w->channels + i, line = w->width * w->channels;
    const float *weight = w->weights + i;
    vf32 sums[TOGETHER];
    MP_UNROLL_8 for (int t = 0; t < windows; t++) sums[t] = set_f32(0.0f);
    for (ptrdiff_t row = 0; row < w->rows; row++, weight += line)
        multiply_line(w, w->x[row] + start, weight, windows, step, n, sums);
    MP_UNROLL_8 for (int t = 0; t < windows; t++) {
        if (w->bias) sums[t] = add_f32(sums[t], read(w->bias, i, n));
        write(w->out + (window + t) * w->channels, i, sums[t], n);
    }
}

/* Multiply the channels i to end - 1 of some windows. They are read in order, which hardware prefetchers follow. */
MP_INLINE void multiply_channels(const mp_window_row *w, ptrdiff_t window, int windows, const int step, ptrdiff_t i,
                                 ptrdiff_t end) {
    for (; i + MP_LANES <= end; i += MP_LANES) multiply_windows(w, window, windows, step, i, MP_LANES);
    if (i < end) multiply_windows(w, window, windows, step, i, end - i);
}

/* The last windows may be computed twice, so that fewer than TOGETHER are only left if there are no more. */
MP_INLINE void multiply_row(const mp_window_row *w, const int step) {
    const ptrdiff_t vectors = WEIGHTS / (w->rows * w->width * MP_LANES), all = w->channels;
    const ptrdiff_t channels = (vectors > 1 ? vectors : 1) * MP_LANES, last = w->count - TOGETHER;
    for (ptrdiff_t i = 0, end; i < all; i = end) {
        end = i + channels < all ? i + channels : all;
        for (ptrdiff_t window = 0; last < 0 && window < w->count; window++)
            multiply_channels(w, window, 1, 0, i, end);
        for (ptrdiff_t window = 0; last >= 0 && window < w->count; window += TOGETHER)
            multiply_channels(w, window < last ? window : last, TOGETHER, step, i, end);
    }
}

static void window_products(const mp_window_row *w) {
    const int is_narrow = w->width == NARROW && w->dilation == 1;
    if (is_narrow && w->step == 1) multiply_row(w, 1);
    else if (is_narrow && w->step == 2) multiply_row(w, 2);
    else multiply_row(w, 0);
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
