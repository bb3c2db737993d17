/* Pooling over windows of arrays with up to three spatial axes: maxima, sums, and their gradients. */
#ifndef MP_WINDOW_POOLING_H
#define MP_WINDOW_POOLING_H

#include "library/operation.h"
#include "library/window_rows.h"

MP_SHARED_BEGIN

/* Arrays are C-contiguous: x and its gradient are [batch][length...][channels], the results and their gradients
 * [batch][windows...][channels]. With fewer than three spatial axes the first lengths are 1. Results and gradients are
 * computed in float32 and rounded once. The gradient of an element is the sum over the windows that contain it, from +0
 * in the order of the windows: 0 if there are none. `split` of kernels/windows/windows.c says which elements get the
 * gradient of a maximum. */
typedef struct {
    const mp_kernels *kernels;
    mp_window_what what;
    mp_window_array x, d, out; /* d: the gradients of the results, or NULL; out: the computed array */
    ptrdiff_t batch, channels;
    ptrdiff_t length[MP_WINDOW_AXES], window[MP_WINDOW_AXES], step[MP_WINDOW_AXES], windows[MP_WINDOW_AXES];
    ptrdiff_t share;           /* results: rows of windows in a task */
    int status;
} mp_window_pooling;

/* The operation WINDOW_POOLING. Its rows are those of the batch. A task is a share of the rows of windows; for
 * gradients it is all windows of a row of the batch. */
ptrdiff_t mp_plan_window_pooling(void *context, ptrdiff_t batch, int threads, int reproducible);
void mp_run_window_pooling(void *context, ptrdiff_t task);
int mp_window_pooling_is_large(const void *context);

MP_SHARED_END
#endif
