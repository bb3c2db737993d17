/* Maxima and sums of windows, and their gradients, in float32. */
#ifndef MP_WINDOWS_KERNELS_H
#define MP_WINDOWS_KERNELS_H

#include "kernels.h"

MP_SHARED_BEGIN

/* What is computed: results, or the gradients of elements from those of the results. */
typedef enum {
    MP_WINDOW_MAXIMA,
    MP_WINDOW_SUMS,
    MP_WINDOW_MAXIMA_GRADIENT,
    MP_WINDOW_SUMS_GRADIENT,
    MP_WINDOW_KERNELS,
} mp_window_what;

/* `count` windows beside each other, each `step` places further than the one before. A window has `width` places in
 * each of `rows` rows, which count row by row; a place has `channels` elements, one behind the other. */
typedef struct {
    const float *const *x;      /* [rows]: where the first window begins; not read by MP_WINDOW_SUMS_GRADIENT */
    ptrdiff_t rows, width, step, count, channels;
    float *out;                 /* [count][channels]: the results */
    const float *d;             /* [count][channels]: their gradients */
    float *const *to;           /* [rows]: the gradients of x */
    int adds;                   /* windows overlap: their gradients are added to what is there, else written */
    float *kept;                /* [rows * width][MP_LANES]: scratch of MP_WINDOW_MAXIMA_GRADIENT */
} mp_window_row;

typedef void mp_window_function(const mp_window_row *w);

/* The functions of an instruction set, by mp_window_what. */
mp_window_function *const *mp_window_functions_of(const mp_kernels *kernels);

MP_SHARED_END
#endif
