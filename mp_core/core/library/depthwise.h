/* Depthwise convolution: each channel of an array is convolved with its own kernel. */
#ifndef MP_DEPTHWISE_H
#define MP_DEPTHWISE_H

#include "library/operation.h"
#include "library/window_rows.h"

MP_SHARED_BEGIN

/* out[window][c] = narrow(activation(sum over the places p of window[p][c] * weights[p][c] + bias[c])). The sum starts
 * at +0; places are added in C order, each by one multiply-add in float32. */
typedef struct {
    const mp_kernels *kernels;
    mp_window_array x, out;  /* out is C-contiguous */
    mp_window_rows windows;  /* of x */
    ptrdiff_t images;
    const float *weights;    /* [places][channels] */
    const float *bias;       /* [channels] or NULL */
    mp_activation activation;
    ptrdiff_t together;      /* windows of a line that are computed together */
    ptrdiff_t share;         /* such parts of lines in a task */
    int status;
} mp_depthwise;

/* The operation DEPTHWISE. Its rows are the images. */
ptrdiff_t mp_plan_depthwise(void *context, ptrdiff_t images, int threads, int reproducible);
void mp_run_depthwise(void *context, ptrdiff_t task);
int mp_depthwise_is_large(const void *context);

MP_SHARED_END
#endif
