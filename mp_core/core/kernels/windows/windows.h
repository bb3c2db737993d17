/* Maxima and sums over windows, their gradients, and depthwise convolution, in float32. */
#ifndef MP_WINDOWS_KERNELS_H
#define MP_WINDOWS_KERNELS_H

#include "kernels.h"

MP_SHARED_BEGIN

enum { MP_WINDOW_AXES = 3 }; /* the most spatial axes */

/* What is computed: results, or the gradients of the elements; the results of a depthwise convolution. */
typedef enum {
    MP_WINDOW_MAXIMA,
    MP_WINDOW_SUMS,
    MP_WINDOW_MAXIMA_GRADIENT,
    MP_WINDOW_SUMS_GRADIENT,
    MP_WINDOW_PRODUCTS,
    MP_WINDOW_KERNELS,
} mp_window_what;

/* A row of `count` windows; each starts `step` places after the one before. A window has `rows` lines of `width`
 * places, numbered line by line; a place has `channels` contiguous elements. */
typedef struct {
    const float *const *x;      /* [rows]: the lines of the first window; not used by MP_WINDOW_SUMS_GRADIENT */
    ptrdiff_t rows, width, step, count, channels;
    float *out;                 /* [count][channels]: the results */
    const float *d;             /* [count][channels]: their gradients */
    float *const *to;           /* [rows]: the gradients of x */
    int adds;                   /* 1: windows overlap, so gradients are added to `to`; 0: they are written */
    /* MP_WINDOW_PRODUCTS: */
    ptrdiff_t dilation;         /* places from one column of a window to the next */
    const float *weights;       /* [rows * width][channels] */
    const float *bias;          /* [channels] or NULL */
    float *kept;                /* [rows * width][MP_LANES]: scratch of MP_WINDOW_MAXIMA_GRADIENT */
} mp_window_row;

typedef void mp_window_function(const mp_window_row *w);

/* The functions of an instruction set, by mp_window_what. */
mp_window_function *const *mp_window_functions_of(const mp_kernels *kernels);

MP_SHARED_END
#endif
