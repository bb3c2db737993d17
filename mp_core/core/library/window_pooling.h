/* The maxima or sums of windows of arrays that have up to three axes of places, and their gradients. */
#ifndef MP_WINDOW_POOLING_H
#define MP_WINDOW_POOLING_H

#include "library/operation.h"
#include "windows/windows.h"

MP_SHARED_BEGIN

enum { MP_WINDOW_AXES = 3 };

typedef struct {
    char *data;
    int format, size; /* a float; bytes of an element */
} mp_window_array;

/* Arrays are C-contiguous: x and the gradient of its elements [batch][length...][channels], the results of the windows
 * and their gradients [batch][windows...][channels]. Missing axes come first, with lengths of 1. Results are computed
 * in float32 and rounded once; so are gradients, which are 0 for an element that is in no window. Windows that overlap
 * add up, from +0 on in the order of the windows; `split` of kernels/windows/windows.c says who gets the gradient of a
 * maximum. */
typedef struct {
    const mp_kernels *kernels;
    mp_window_what what;
    mp_window_array x, d, out; /* d: the gradients of results, or NULL; out: what is computed */
    ptrdiff_t batch, channels;
    ptrdiff_t length[MP_WINDOW_AXES], window[MP_WINDOW_AXES], step[MP_WINDOW_AXES], windows[MP_WINDOW_AXES];
    ptrdiff_t share;           /* rows of windows of a task, in which results are computed */
    int status;
} mp_window_pooling;

/* The operation WINDOW_POOLING. Its rows are those of the batch. A task is a share of the rows of windows; of gradients
 * all windows of a row of the batch. */
ptrdiff_t mp_plan_window_pooling(void *context, ptrdiff_t batch, int threads, int reproducible);
void mp_run_window_pooling(void *context, ptrdiff_t task);
int mp_window_pooling_is_large(const void *context);

MP_SHARED_END
#endif
