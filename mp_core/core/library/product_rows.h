/* The rows of A of a task of a product: where they lie, or copied into scratch as the kernels read them. */
#ifndef MP_PRODUCT_ROWS_H
#define MP_PRODUCT_ROWS_H

#include "library/product.h"

/* Of one task: where its operands and its result begin. */
typedef struct {
    const char *a; /* MC rows of A, as the kernels read them */
    const char *b;
    const int32_t *sums;
    const char *residual;
    char *out;
    const int32_t *block_sums; /* see mp_operands; or NULL */
} mp_task_place;

/* Return where the operands and the result of a task begin: the rows from `row` on, of one matrix of the batch. */
mp_task_place mp_place_of(const mp_product *p, ptrdiff_t matrix, ptrdiff_t row);

/* Copy rows of A into scratch as the kernels read them: quantized, gathered, made wider. */
void mp_copy_rows(const mp_product *p, mp_gemm *g, const char *a, ptrdiff_t rows, char *work);

/* Set the rows of A of a task: where they lie or copied, with their scales, zero points and sums. `row` counts the
 * rows of all matrices of the batch. Return the scratch that is left. */
char *mp_prepare_rows(const mp_product *p, mp_gemm *g, mp_task_place *at, ptrdiff_t row, char *work);

#endif
