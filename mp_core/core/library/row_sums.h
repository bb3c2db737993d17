/* Sums over rows in K blocks, in the order of products: the gradients of an array that was added to every row, or
 * multiplied by every row. */
#ifndef MP_ROW_SUMS_H
#define MP_ROW_SUMS_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* out[j] = before[j] + the sum of x[row][j]; x is C-contiguous. Rows are in blocks of MP_BLOCK_WIDE, from the first row
 * on. The sum of a block starts at +0 and adds rows in order; then block sums are added in order. So several calls,
 * each with whole blocks, give the bits of one call with all rows. `before` may be `out`. */
typedef struct {
    const mp_kernels *kernels;
    int format, size;          /* of x; bytes of an element */
    const char *x;
    const float *before;       /* or NULL */
    float *out;
    ptrdiff_t rows, columns, share; /* `share`: columns in a task */
    int status;                /* always MP_DONE */
} mp_row_sums;

/* The operation ROW_SUMS. A task has `share` columns. */
ptrdiff_t mp_plan_row_sums(void *call, ptrdiff_t rows, int threads, int reproducible);
void mp_run_row_sums(void *call, ptrdiff_t task);
int mp_row_sums_are_large(const void *call);

MP_SHARED_END
#endif
