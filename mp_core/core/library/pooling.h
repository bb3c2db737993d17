/* Pooling of ragged sequences: each becomes one row, a mean or maximum of its rows, or one of them. */
#ifndef MP_POOLING_H
#define MP_POOLING_H

#include "library/product.h"

MP_SHARED_BEGIN

typedef enum {
    MP_MEAN,
    MP_MEAN_BY_ROOT,  /* the sum divided by the square root of the number of rows */
    MP_MEAN_BY_PLACE, /* a mean with the weights 1, 2, 3, ... */
    MP_FIRST_ROW,
    MP_LAST_ROW,
    MP_LARGEST,
} mp_pool;

typedef struct {
    mp_product sums;        /* a mean is a product, weights @ rows: that of the first sequence */
    const int32_t *offsets; /* [sequences + 1] */
    mp_pool how;
    ptrdiff_t sequences;
    ptrdiff_t skipped;      /* rows at the begin of each sequence that are left out */
    int status;
} mp_pooling;

/* The operation POOLING. Its rows are the sequences; a task is one of them. */
ptrdiff_t mp_plan_pooling(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_pooling(void *context, ptrdiff_t task);
int mp_pooling_is_large(const void *context);

/* The gradient of pooling. `out` has the shape and format of x; rows that are in no sequence, or left out, get zeros.
 * The gradient of a maximum goes to the first NaN of a column or, without one, to its first largest element. */
typedef struct {
    const mp_kernels *kernels;
    mp_pool how;
    const char *x;             /* [rows][width]: read only if `how` is MP_LARGEST */
    char *out;
    int format, size;          /* of x and `out`; bytes of an element */
    const float *d;            /* the gradient of the result: rows of `width` elements, d_stride elements apart */
    ptrdiff_t d_stride;
    const int32_t *offsets;    /* [sequences + 1] */
    ptrdiff_t sequences, rows, width, skipped;
    int status;
} mp_pooling_gradient;

/* The operation POOLING_GRADIENT. Its rows are the sequences; a task is one of them. */
ptrdiff_t mp_plan_pooling_gradient(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_pooling_gradient(void *context, ptrdiff_t task);
int mp_pooling_gradient_is_large(const void *context);

MP_SHARED_END
#endif
