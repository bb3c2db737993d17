/* The gradient of a look-up: for each row of a table, the sum of the gradients of its copies. */
#ifndef MP_TAKEN_ROWS_H
#define MP_TAKEN_ROWS_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* out[r] = the sum of x[i] over all i with indices[i] == r, in float32; +0 if there are none. Rows of x are in blocks
 * of MP_BLOCK_WIDE. The sum of a block starts at +0 and adds rows in order; then block sums are added in order. */
typedef struct {
    const mp_kernels *kernels;
    const char *x;             /* [rows][n]; rows are contiguous */
    int format;
    ptrdiff_t stride;          /* bytes from one row of x to the next */
    const char *indices;
    int index_bytes;           /* 4 or 8 */
    float *out;                /* [limit][n] */
    ptrdiff_t rows, limit, n;  /* rows of x, fewer than 2^31; rows of the table; columns */
    ptrdiff_t share;           /* columns in a task */
    int status;                /* MP_NO_ROW: an index is outside of the table */
} mp_taken_rows;

/* The operation TAKEN_ROWS. */
ptrdiff_t mp_plan_taken_rows(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_taken_rows(void *context, ptrdiff_t task);
int mp_taken_rows_are_many(const void *context);

MP_SHARED_END
#endif
