/* Two arrays element by element: sums, products, gates. Elements are widened to float32, computed in float32 and rounded
 * once. */
#ifndef MP_PAIR_H
#define MP_PAIR_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* Elements, of which two are read and one is written, from which a second thread pays (November 2026; the CPU is not
 * recorded). */
enum { MP_PAIR_WORK = 1 << 17 };

/* Indices into `combine` of mp_rows. */
typedef enum { MP_ADD, MP_MULTIPLY } mp_combination;

/* An operand or the result: rows of unit stride. */
typedef struct {
    char *data;
    int format;
    ptrdiff_t size, stride; /* bytes of an element, and from one row to the next */
} mp_row_array;

/* out = activation(x) + y, or activation(x) * y. */
typedef struct {
    const mp_kernels *kernels;
    mp_combination how;
    mp_activation activation;
    mp_row_array x, y, out;
    ptrdiff_t rows, length, share; /* rows of a task */
    int status;
} mp_pair;

/* The operation PAIR. */
ptrdiff_t mp_plan_pair(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_pair(void *context, ptrdiff_t task);
int mp_pair_is_large(const void *context);

/* The rows of a task of an operation that costs as much for an element as PAIR. */
ptrdiff_t mp_share_rows(ptrdiff_t rows, ptrdiff_t length, int threads);

/* n elements at `at` as float32: where they lie, or widened into a buffer. */
const float *mp_widened(const mp_kernels *kernels, int format, const char *at, ptrdiff_t n, float *buffer);

MP_SHARED_END
#endif
