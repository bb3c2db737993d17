/* Sums of rows and of columns, in the order of kernels/rows/sums.h: 16 lanes, blocks of 4096 elements, a tree.
 *
 * An array has the shape (outer, k, inner), is C-contiguous, and is summed over k. If `inner` is 1, each row is summed,
 * one block after the other. Else rows of `inner` elements are added to each other, a strip of columns at a time, so
 * that memory is read in its order. Both add the same elements in the same order. */
#ifndef MP_SUMS_H
#define MP_SUMS_H

#include "library/operation.h"

MP_SHARED_BEGIN

enum {
    MP_SUMS_WORK = 1 << 17, /* the fewest elements for which a second thread pays (November 2026; CPU not recorded) */
    MP_MOST_COLUMNS = 1024, /* in a strip: their lanes, 64 KiB, stay in the L2 cache */
    MP_LEAST_COLUMNS = 64,
};

/* out[outer][inner] = the sum of x[outer][k][inner] over k, divided by `divisor`. All lengths are at least 1. */
typedef struct {
    const mp_kernels *kernels;
    int format, size;  /* of x; bytes of an element */
    const char *x;
    float *out;
    float divisor;
    ptrdiff_t outer, k, inner;
    float *lanes;      /* [mp_lanes_of_sums]: the lanes of each block */
    ptrdiff_t blocks;  /* in k elements */
    ptrdiff_t share;   /* if `inner` is 1: blocks, of all rows, in a task; else columns in a strip */
    int status;
} mp_sum_call;

/* How many floats `lanes` must have: 0 unless rows have more than one block. */
ptrdiff_t mp_lanes_of_sums(const mp_sum_call *s);

/* The operations SUMS and, if there are lanes, SUMS_JOIN after it, which is one task. Their rows are `outer`. */
ptrdiff_t mp_plan_sums(void *call, ptrdiff_t outer, int threads, int reproducible);
void mp_run_sums_task(void *call, ptrdiff_t task);
ptrdiff_t mp_plan_sums_join(void *call, ptrdiff_t outer, int threads, int reproducible);
void mp_join_sums_task(void *call, ptrdiff_t task);
int mp_sums_are_large(const void *call);

/* Compute the sums, on up to `threads` threads: both operations. */
void mp_run_sums(mp_sum_call *s, int threads);

MP_SHARED_END
#endif
