/* The rows of A in a task of a product: read in place, or copied into scratch in the layout that the kernels read. */
#ifndef MP_PRODUCT_ROWS_H
#define MP_PRODUCT_ROWS_H

#include "library/product.h"

/* The addresses of the operands and the result of a task. */
typedef struct {
    const char *a; /* MC rows of A, in the layout that the kernels read */
    const char *b;
    const int32_t *sums;
    const char *residual;
    const float *bias;
    char *out;
    const int32_t *block_sums; /* see mp_operands; or NULL */
} mp_task_place;

/* Return the addresses for a task: the rows from `row` on, of one matrix of the batch. */
mp_task_place mp_place_of(const mp_product *p, ptrdiff_t matrix, ptrdiff_t row);

/* Copy rows of A into scratch in the layout that the kernels read: quantized, made contiguous, widened. They start at
 * `a`; windows are those from number `first` on. */
void mp_copy_rows(const mp_product *p, mp_gemm *g, const char *a, ptrdiff_t first, ptrdiff_t rows, char *work);

/* Set the rows of A in a task, in place or copied, and their scales, zero points and sums. `row` is an index into the
 * rows of all matrices of the batch. Return the scratch that is still free. */
char *mp_prepare_rows(const mp_product *p, mp_gemm *g, mp_task_place *at, ptrdiff_t row, char *work);

#endif
