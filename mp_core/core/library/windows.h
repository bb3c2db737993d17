/* Sums over windows that may overlap, as those of a convolution: the gradient of copying a view that contains elements
 * of an array several times. */
#ifndef MP_WINDOWS_H
#define MP_WINDOWS_H

#include "library/operation.h"
#include "library/rows.h" /* MP_MOST_AXES */

MP_SHARED_BEGIN

/* to[index] += x[index] for every index, in C order. `to` is float32 and has any strides; x is C-contiguous. */
typedef struct {
    const mp_kernels *kernels;
    const char *x;
    int format, size;          /* of x; bytes of an element */
    float *to;
    int axes;                  /* at least one */
    ptrdiff_t shape[MP_MOST_AXES];
    ptrdiff_t stride[MP_MOST_AXES]; /* of `to`, in bytes */
    int status;                /* MP_NO_MEMORY */
} mp_windows;

/* Merge the last axes that are contiguous in `to` into one. The first axis is never merged. */
void mp_join_windows(mp_windows *w);

/* The operation WINDOWS. A task is one index of the first axis if different indices write different elements; else
 * there is one task. */
ptrdiff_t mp_plan_windows(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_windows(void *context, ptrdiff_t task);
int mp_windows_are_large(const void *context);

MP_SHARED_END
#endif
