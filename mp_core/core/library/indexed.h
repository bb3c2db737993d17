/* Elements of an array at indices along one of its axes: read, replaced, or combined with others. */
#ifndef MP_INDEXED_H
#define MP_INDEXED_H

#include "library/operation.h"
#include "library/rows.h" /* MP_MOST_AXES */

MP_SHARED_BEGIN

typedef enum { MP_READ, MP_REPLACE, MP_ADD_TO, MP_MULTIPLY_BY, MP_LARGEST_OF, MP_SMALLEST_OF } mp_indexed_how;

/* other[p] = array[p; indices[p]] for every place p, in C order; or the other way, replaced or combined. The array has
 * the stride 0 along the axis of the indices, along which `step` is the distance of two elements and `limit` their
 * number. Negative indices count from the end. Sums and products of integers wrap around; the larger of a number and
 * NaN is NaN, as is the smaller. */
typedef struct {
    mp_indexed_how how;
    char *array, *other;
    const char *indices;
    int size, format;  /* of an element: bytes, and F32, F64, I32 or I64 if elements are combined */
    int index_bytes;   /* 4 or 8 */
    int axes;          /* at least 1; no length is 0 */
    ptrdiff_t shape[MP_MOST_AXES];
    ptrdiff_t array_stride[MP_MOST_AXES], other_stride[MP_MOST_AXES], index_stride[MP_MOST_AXES]; /* in bytes */
    ptrdiff_t step, limit;
    ptrdiff_t lines, share; /* along the last axis; of a task */
    int status;             /* MP_NO_ROW: an index is out of range */
} mp_indexed;

/* The operation INDEXED. Its rows are the indices of the first axis. If elements are written, a task has all places
 * that share an index of the first axis, so that no two tasks write the same element. */
ptrdiff_t mp_plan_indexed(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_indexed(void *context, ptrdiff_t task);
int mp_indexed_is_large(const void *context);

MP_SHARED_END
#endif
