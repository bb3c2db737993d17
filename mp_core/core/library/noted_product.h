/* A product in a recording: it keeps a copy of the fields that planning changes, so that it can be planned again. */
#ifndef MP_NOTED_PRODUCT_H
#define MP_NOTED_PRODUCT_H

#include "library/product.h"

MP_SHARED_BEGIN

enum { MP_BATCH_AXES = 64 };

typedef struct {
    mp_product product;
    ptrdiff_t m, matrices;
    mp_gemm common;      /* the original product.common; planning changes that */
    const int32_t *sums; /* ... and product.b.sums */
    int one_scale;       /* A has one scale for all rows: `scale` */
    float scale;
    mp_axis batch[MP_BATCH_AXES];
    int has_windows;     /* product.a.windows is `windows` */
    mp_window_rows windows;
    int status;
} mp_noted_product;

/* Fill the context for a product whose operands, result and epilogue are set. */
void mp_describe_noted_product(mp_noted_product *s, const mp_product *p, ptrdiff_t matrices);

/* The operation PRODUCT. Its rows are those of A. */
ptrdiff_t mp_plan_noted_product(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_noted_product(void *context, ptrdiff_t task);
int mp_noted_product_is_large(const void *context);

MP_SHARED_END
#endif
