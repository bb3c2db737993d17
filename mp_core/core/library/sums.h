/* Sums of rows and of columns, in the order of kernels/rows/sums.h: 16 lanes, blocks of 4096 elements, a tree.
 *
 * An array is seen as (outer, k, inner), C-contiguous, and summed over k. If `inner` is 1, blocks of rows are summed
 * along memory. If not, rows of `inner` elements are added to each other, a strip of columns at a time, so that memory
 * is read in its order. Both add the same elements in the same order. */
#ifndef MP_SUMS_H
#define MP_SUMS_H

#include "library/operation.h"

MP_SHARED_BEGIN

enum {
    MP_SUMS_WORK = 1 << 17, /* elements, each read and added, from which a second thread pays (November 2026; the CPU is
                               not recorded) */
    MP_MOST_COLUMNS = 1024, /* of a strip: their lanes, 64 KiB, stay in the L2 cache */
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
    float *lanes;      /* [mp_lanes_of_sums], for the lanes of blocks */
    ptrdiff_t blocks;  /* of k elements */
    ptrdiff_t share;   /* blocks, of all rows, in a task; columns of a strip */
    int status;
} mp_sum_call;

/* Floats that `lanes` must have: 0 unless rows have more than one block. */
ptrdiff_t mp_lanes_of_sums(const mp_sum_call *s);

/* The operation SUMS; if there are lanes, SUMS_JOIN has to follow, which is one task. Their rows are `outer`. */
ptrdiff_t mp_plan_sums(void *call, ptrdiff_t outer, int threads, int reproducible);
void mp_run_sums_task(void *call, ptrdiff_t task);
ptrdiff_t mp_plan_sums_join(void *call, ptrdiff_t outer, int threads, int reproducible);
void mp_join_sums_task(void *call, ptrdiff_t task);
int mp_sums_are_large(const void *call);

/* Compute the sums, on up to `threads` threads: both operations. */
void mp_run_sums(mp_sum_call *s, int threads);

MP_SHARED_END
#endif
