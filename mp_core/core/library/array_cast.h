/* Casts and copies of arrays of any strides, and arrays of equal elements. Plans use them to make the arrays that their
 * operations read. */
#ifndef MP_ARRAY_CAST_H
#define MP_ARRAY_CAST_H

#include "library/cast.h"
#include "library/operation.h"

MP_SHARED_BEGIN

enum { MP_CAST_AXES = 64 };

typedef struct {
    mp_cast cast;
    ptrdiff_t rows, row; /* the length of the first axis; elements in each of its rows */
    int axes;            /* 0: both sides are contiguous, and shape and strides are not used */
    ptrdiff_t shape[MP_CAST_AXES];
    ptrdiff_t src_stride[MP_CAST_AXES], dst_stride[MP_CAST_AXES]; /* in bytes */
    int status;
} mp_array_cast;

/* Merge axes that are contiguous with each other on both sides, and leave out axes of length 1. The first axis stays,
 * since its length may differ from run to run. */
void mp_join_cast_axes(mp_array_cast *c);

/* The operation CAST. A task is a share of contiguous elements, or an index of the first axis. */
ptrdiff_t mp_plan_array_cast(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_array_cast(void *context, ptrdiff_t task);
int mp_array_cast_is_large(const void *context);

/* Contiguous elements that are all equal. */
typedef struct {
    char *to;
    ptrdiff_t bytes, size; /* of all elements; of one element, at most sizeof element */
    char element[16];
    int status;
} mp_fill;

/* The operation FILL: one task. */
ptrdiff_t mp_plan_fill(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_fill(void *context, ptrdiff_t task);
int mp_fill_is_large(const void *context);

MP_SHARED_END
#endif
