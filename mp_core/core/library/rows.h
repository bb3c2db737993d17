/* Operations on rows: softmax, norms, activations. Elements are converted to float32; results are computed in float32
 * and rounded once. Most activations of 16-bit types are read from tables (library/tables.h). */
#ifndef MP_ROWS_H
#define MP_ROWS_H

#include "library/operation.h"

MP_SHARED_BEGIN

enum {
    MP_ROWS_WORK = 1 << 15, /* the fewest elements for which a second thread pays, if an element takes about as long
                               as an exponential (November 2026; the CPU is not recorded) */
    MP_MOST_AXES = 64,
};

typedef enum { MP_SOFTMAX, MP_LAYER_NORM, MP_ACTIVATE, MP_RMS_NORM, MP_LOG_SOFTMAX } mp_row_operation;

/* Which elements of the rows are used: a byte for each, 0 for those that are not. The row index has `axes` axes;
 * `stride` is the mask's stride in bytes along each of them, 0 if it is broadcast. */
typedef struct {
    const uint8_t *keep; /* NULL: all elements are used */
    int axes;
    ptrdiff_t shape[MP_MOST_AXES], stride[MP_MOST_AXES];
} mp_mask;

/* `rows` rows of `length` elements each; rows are ldx (x and residual) and ldo (out) elements apart. */
typedef struct {
    const mp_kernels *kernels;
    mp_row_operation what;
    int format, size;  /* of the elements of x, residual and out; bytes of one */
    ptrdiff_t rows, length, ldx, ldo;
    ptrdiff_t share;   /* rows in a task */
    const char *x, *residual;
    char *out;
    float scale;       /* softmax */
    float epsilon;     /* norms */
    const float *gamma, *beta; /* norms */
    mp_activation activation;
    mp_mask mask;      /* softmax */
    int status;
} mp_row_call;

/* The operation ROWS. A task has `share` rows. */
ptrdiff_t mp_plan_rows(void *call, ptrdiff_t rows, int threads, int reproducible);
void mp_run_rows(void *call, ptrdiff_t task);
int mp_rows_are_large(const void *call);

MP_SHARED_END
#endif
