/* The order of elements along an axis: the places of the smallest or of the largest ones. */
#ifndef MP_ORDER_H
#define MP_ORDER_H

#include "library/elementwise.h"

MP_SHARED_BEGIN

/* out[outer][k][inner] = the places along n of the first k elements of x[outer][n][inner] in order. Equal elements keep
 * their order, and NaN is larger than any number. With `extreme`, k is 1, NaN comes first in both directions, and -0 is
 * smaller than +0. */
typedef struct {
    const mp_kernels *kernels;
    const char *x;
    int format, size;  /* of any type that elementwise functions take */
    mp_wide wide;
    int descending, extreme;
    int32_t *out;
    ptrdiff_t outer, n, inner, k; /* n is at least k, and less than 2^31; no length is 0 */
    ptrdiff_t share;              /* columns of n elements in a task */
    int status;
} mp_order;

/* The operation ORDER. Its rows are `outer`. */
ptrdiff_t mp_plan_order(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_order(void *context, ptrdiff_t task);
int mp_order_is_large(const void *context);

MP_SHARED_END
#endif
