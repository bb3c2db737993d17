/* Sums over rows in K blocks, as products add them: the gradients of what was added to, or multiplied with, every
 * row. */
#ifndef MP_ROW_SUMS_H
#define MP_ROW_SUMS_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* out[j] = the sum of x[row][j], x C-contiguous: rows in blocks of MP_BLOCK_WIDE from the front, the sum of each from
 * +0 in the order of rows, and block sums added in order, to before[j] if there is one. So rows that come in several
 * calls of whole blocks give the bits of one call. `before` may be `out`. */
typedef struct {
    const mp_kernels *kernels;
    int format, size;          /* of x; bytes of an element */
    const char *x;
    const float *before;       /* or NULL */
    float *out;
    ptrdiff_t rows, columns, share; /* columns of a task */
    int status;                /* always MP_DONE */
} mp_row_sums;

/* The operation ROW_SUMS. A task has `share` columns. */
ptrdiff_t mp_plan_row_sums(void *call, ptrdiff_t rows, int threads, int reproducible);
void mp_run_row_sums(void *call, ptrdiff_t task);
int mp_row_sums_are_large(const void *call);

MP_SHARED_END
#endif
