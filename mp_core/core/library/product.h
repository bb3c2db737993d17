/* One product: operands, epilogue and plan. products/operands.pyx and api_products.c describe it, and mp_run_product
 * plans and runs it; attention.c and pooling.c have products of their own, and run them by mp_plan_product and
 * mp_run_here. Its batch may be of any number of axes. */
#ifndef MP_PRODUCT_H
#define MP_PRODUCT_H

#include "library/operation.h"
#include "library/plan.h"
#include "library/runtime.h"

MP_SHARED_BEGIN

/* An axis of the batch. Strides are in bytes, those of a packed B in matrices. */
typedef struct {
    ptrdiff_t length, a, b, out, residual;
} mp_axis;

/* A, m x k. */
typedef struct {
    const char *data;
    int format;
    ptrdiff_t size;           /* bytes of an element */
    ptrdiff_t rs, cs;         /* bytes from one row, one column to the next */
    const float *row_scale;   /* [batch][m] if common.epilogue.row_stride is 1, one value if it is 0; row_zero alike */
    const int32_t *row_zero;
    int quantized_here;       /* A is float and becomes int8: by `scales`, row_scale or the rows' largest magnitudes */
    const float *scales;      /* quantized_here by given scales: [k], with `zeros`; or NULL */
    const int32_t *zeros;
} mp_left;

/* B, k x n. */
typedef struct {
    const char *data;
    int format;
    ptrdiff_t rs, cs;          /* bytes from one row, one column to the next; of an array */
    int packed;                /* B is packed panels */
    ptrdiff_t matrix_bytes;    /* bytes of the panels of each matrix */
    const int32_t *sums;       /* packed: [matrices][n], or NULL */
    const float *scale;        /* [n] or NULL */
    const float *group_scale;  /* [ceil(k / group)][n], or NULL */
    ptrdiff_t group;           /* elements of K in a scale group */
    const int32_t *zero_point; /* [n] or NULL */
    const int8_t *code_zero;   /* of int4: zero points, as many as scales; or NULL */
} mp_right;

/* m x n, unit stride along n. */
typedef struct {
    char *data;
    ptrdiff_t rs, size; /* bytes from one row to the next; of an element */
} mp_lines;

typedef struct {
    const mp_kernels *kernels;
    ptrdiff_t m, n, k;
    mp_left a;
    mp_right b;
    mp_lines out, residual;
    const float *bias;
    mp_gemm common; /* what all calls of the kernels share */
    int reproducible; /* the order of sums: see mp_problem */
    int batch_axes;
    mp_axis *batch;
    mp_plan plan;
    int threads;     /* at most so many run its tasks */
    mp_slots *slots; /* the scratch of its tasks; NULL: that of the threads that run them */
    int status;
} mp_product;

/* If the result is one contiguous column of several rows, A and B have one format or are both floats, B is unpacked,
 * and there are no scales, zero points, bias or residual: describe the transpose of the product, whose result is one
 * row. Its bits are the same, since a b = b a and the order of sums along K does not change. */
void mp_column_as_row(mp_product *p);

/* Plan a product whose operands, result and epilogue are set, for at most so many threads, and set what all its tasks
 * share. It is planned for one thread if it is too small for two. */
void mp_plan_product(mp_product *p, ptrdiff_t matrices, int threads);

/* The number of tasks of a planned product. */
ptrdiff_t mp_product_tasks(const mp_product *p, ptrdiff_t matrices);

/* One task; its context is the product, whose status it may set. */
void mp_run_product_task(void *product, ptrdiff_t index);

/* Plan a product and run it; its status says whether there was memory for scratch. */
void mp_run_product(mp_product *p, ptrdiff_t matrices, int threads);

/* Run a planned product of one matrix on this thread, in scratch of plan.scratch.total bytes. It may have fewer rows
 * than the plan is for. */
void mp_run_here(const mp_product *p, char *work);

MP_SHARED_END
#endif
