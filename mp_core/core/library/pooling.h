/* One row for each of several sequences, whose rows lie one behind the other: a mean, a maximum, or one of them. */
#ifndef MP_POOLING_H
#define MP_POOLING_H

#include "library/product.h"

MP_SHARED_BEGIN

typedef enum {
    MP_MEAN,
    MP_MEAN_BY_ROOT,  /* the sum over the root of the number of rows */
    MP_MEAN_BY_PLACE, /* the rows count 1, 2, 3, ... times */
    MP_FIRST_ROW,
    MP_LAST_ROW,
    MP_LARGEST,
} mp_pool;

typedef struct {
    mp_product sums;        /* of the first sequence: weights @ rows. A mean is computed as a product */
    const int32_t *offsets; /* [sequences + 1] */
    mp_pool how;
    ptrdiff_t sequences;
    ptrdiff_t skipped;      /* rows at the begin of each sequence that do not count */
    int status;
} mp_pooling;

/* The operation POOLING. Its rows are the sequences; a task is one of them. */
ptrdiff_t mp_plan_pooling(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_pooling(void *context, ptrdiff_t task);
int mp_pooling_is_large(const void *context);

MP_SHARED_END
#endif
