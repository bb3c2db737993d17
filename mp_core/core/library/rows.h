/* Operations on rows: softmax, norms, activations. Elements are widened to float32, computed in
 * float32 and rounded once. */
#ifndef MP_ROWS_H
#define MP_ROWS_H

#include "library/operation.h"

MP_SHARED_BEGIN

enum {
    MP_ROWS_WORK = 1 << 15, /* elements, each about an exponential, from which a second thread pays (November 2026; the
                               CPU is not recorded) */
    MP_MOST_AXES = 64,
};

typedef enum { MP_SOFTMAX, MP_LAYER_NORM, MP_ACTIVATE, MP_RMS_NORM, MP_LOG_SOFTMAX } mp_row_operation;

/* Which elements of the rows count: one byte for each, 0 where it does not. The row index has `axes` axes; the mask has
 * a stride in bytes for each of them, 0 where it is broadcast. */
typedef struct {
    const uint8_t *keep; /* NULL: all elements count */
    int axes;
    ptrdiff_t shape[MP_MOST_AXES], stride[MP_MOST_AXES];
} mp_mask;

/* `rows` rows of `length` elements each, which lie ldx (x and residual) and ldo (out) elements apart. */
typedef struct {
    const mp_kernels *kernels;
    mp_row_operation what;
    int format, size;  /* of the elements of x, residual and out; bytes of one */
    ptrdiff_t rows, length, ldx, ldo;
    ptrdiff_t share;   /* rows of a task */
    const char *x, *residual;
    char *out;
    float scale;       /* of a softmax */
    float epsilon;     /* of a norm */
    const float *gamma, *beta; /* of a norm */
    mp_activation activation;
    mp_mask mask;      /* of a softmax */
    int status;
} mp_row_call;

/* The operation ROWS. A task has `share` rows. */
ptrdiff_t mp_plan_rows(void *call, ptrdiff_t rows, int threads, int reproducible);
void mp_run_rows(void *call, ptrdiff_t task);
int mp_rows_are_large(const void *call);

MP_SHARED_END
#endif
