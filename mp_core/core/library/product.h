/* A product: operands, epilogue and plan. products/operands.pyx and api_products.c fill it, mp_run_product plans and
 * runs it. attention.c and pooling.c plan their products by mp_plan_product and run them by mp_run_here. The batch may
 * have any number of axes. */
#ifndef MP_PRODUCT_H
#define MP_PRODUCT_H

#include "library/operation.h"
#include "library/plan.h"
#include "library/runtime.h"
#include "library/window_rows.h"

MP_SHARED_BEGIN

/* An axis of the batch. Strides are in bytes; of a packed B in matrices. */
typedef struct {
    ptrdiff_t length, a, b, out, residual;
} mp_axis;

/* A, m x k. */
typedef struct {
    const char *data;
    int format;
    ptrdiff_t size;           /* bytes of an element */
    ptrdiff_t rs, cs;         /* bytes from one row to the next, from one column to the next */
    const mp_window_rows *windows; /* NULL, or rows are windows of the array at `data`; then rs is 0, cs is `size` */
    const float *row_scale;   /* [batch][m] if common.epilogue.row_stride is 1; one value if it is 0 */
    const int32_t *row_zero;  /* zero points, as many */
    int quantized_here;       /* A is float; the product quantizes it to int8, by `scales`, by row_scale or by the
                                 largest magnitude of each row */
    const float *scales;      /* for quantized_here: [k], with zero points `zeros`; or NULL */
    const int32_t *zeros;
} mp_left;

/* B, k x n. */
typedef struct {
    const char *data;
    int format;
    ptrdiff_t rs, cs;          /* not packed: bytes from one row to the next, from one column to the next */
    int packed;                /* B is packed in panels */
    ptrdiff_t matrix_bytes;    /* bytes of the panels of each matrix */
    const int32_t *sums;       /* packed: [matrices][n], or NULL */
    const float *scale;        /* [n] or NULL */
    const float *group_scale;  /* [ceil(k / group)][n], or NULL */
    ptrdiff_t group;           /* elements of K in a scale group */
    const int32_t *zero_point; /* [n] or NULL */
    const int8_t *code_zero;   /* int4: zero points, as many as scales; or NULL */
} mp_right;

/* An array, m x n, whose rows are contiguous. */
typedef struct {
    char *data;
    ptrdiff_t rs, size; /* bytes from one row to the next; bytes of an element */
} mp_lines;

typedef struct {
    const mp_kernels *kernels;
    ptrdiff_t m, n, k;
    mp_left a;
    mp_right b;
    mp_lines out, residual;
    const float *bias;     /* [n], or with bias_stride n [matrices][n] */
    ptrdiff_t bias_stride; /* elements from the bias of one matrix to that of the next; 0: all have the same */
    mp_gemm common; /* what all calls of the kernels share */
    int reproducible; /* the order of sums: see mp_problem */
    int batch_axes;
    mp_axis *batch;
    mp_plan plan;
    int threads;     /* the most threads that run its tasks */
    mp_slots *slots; /* the scratch of its tasks; NULL: they use mp_scratch of their threads */
    int status;
} mp_product;

/* Replace a product by its transpose if the result is one contiguous column of several rows, A and B have the same
 * format or are both floats, B is not packed, and there are no scales, zero points, bias or residual. Then the result
 * is one row. It has the same bits, since a b = b a and the order of sums along K does not change. */
void mp_column_as_row(mp_product *p);

/* Plan a product whose operands, result and epilogue are set, for at most `threads` threads (one if it is too small for
 * two), and set the fields that all its tasks share. */
void mp_plan_product(mp_product *p, ptrdiff_t matrices, int threads);

/* The number of tasks of a planned product. */
ptrdiff_t mp_product_tasks(const mp_product *p, ptrdiff_t matrices);

/* Run a task of a product. It may set the product's status. */
void mp_run_product_task(void *product, ptrdiff_t index);

/* Plan and run a product. Its status is MP_NO_MEMORY if there was none for scratch. */
void mp_run_product(mp_product *p, ptrdiff_t matrices, int threads);

/* Run a planned product of one matrix on this thread. `work` is plan.scratch.total bytes of scratch. The product may
 * have fewer rows than were planned. */
void mp_run_here(const mp_product *p, char *work);

MP_SHARED_END
#endif
