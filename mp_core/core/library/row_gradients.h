/* The gradients of operations on rows: softmax, log_softmax, layer norm, RMS norm. Elements are converted to float32;
 * results are computed in float32 and rounded once. */
#ifndef MP_ROW_GRADIENTS_H
#define MP_ROW_GRADIENTS_H

#include "library/operation.h"

MP_SHARED_BEGIN

typedef enum {
    MP_SOFTMAX_GRADIENT, MP_LOG_SOFTMAX_GRADIENT, MP_LAYER_NORM_GRADIENT, MP_RMS_NORM_GRADIENT,
} mp_row_gradient_of;

/* `rows` rows of `length` elements each. All arrays are C-contiguous and do not overlap. */
typedef struct {
    const mp_kernels *kernels;
    mp_row_gradient_of what;
    int format, size;          /* of x, residual and d; bytes of an element */
    int out_format, out_size;
    ptrdiff_t rows, length, share; /* `share`: rows in a task */
    const char *x, *residual;  /* norms: the normalized array is x + residual; softmax: x is its result */
    const char *d;             /* the gradient of the result */
    const float *gamma;        /* norms; or NULL */
    char *out;                 /* the gradient of x */
    float *shares;             /* norms: d times the normalized elements, in float32; or NULL */
    float scale;               /* softmax */
    float epsilon;             /* norms */
    int status;
} mp_row_gradient;

/* The operation ROW_GRADIENTS. A task has `share` rows. */
ptrdiff_t mp_plan_row_gradients(void *call, ptrdiff_t rows, int threads, int reproducible);
void mp_run_row_gradients(void *call, ptrdiff_t task);
int mp_row_gradients_are_large(const void *call);

MP_SHARED_END
#endif
