/* An array that is quantized or dequantized, its codes and its scales. */
#ifndef MP_QUANTIZE_H
#define MP_QUANTIZE_H

#include "kernels.h"

MP_SHARED_BEGIN

/* What scales follow from. */
typedef enum {
    MP_GIVEN,      /* the caller gives them */
    MP_SYMMETRIC,  /* max |x| */
    MP_POSITIVE,   /* max(x, 0) */
    MP_ASYMMETRIC, /* min(x, 0) and max(x, 0), with zero points */
} mp_scales_from;

/* Which elements of a C-contiguous array share a scale. The array is `outer` slabs, outer_stride elements apart. A slab
 * is `rows` rows of `cols` elements, row_stride elements apart, and has `groups` scale groups along one axis.
 *   by_column       a scale for each column of each `group` rows
 *   else, rows = 1  a scale for each `group` elements of the row
 *   else            one scale for the slab */
typedef struct {
    ptrdiff_t outer, outer_stride, rows, row_stride, cols, group, groups;
    int by_column;
} mp_scale_layout;

typedef struct {
    int kind;           /* mp_code */
    int nibbles;        /* 4-bit codes, two to a byte */
    int32_t qmin, qmax; /* of integers */
    float largest;      /* the largest code: symmetric scales are max |x| / largest */
} mp_codes_kind;

/* The kinds of route through an array: in which order its memory is read. */
typedef enum {
    MP_COLUMNS, /* a task is a strip of columns of one scale group of rows: its ranges, scales and codes while it is in
                   L2 */
    MP_RUNS,    /* a task is some runs, that is neighbours with one scale, which follow each other */
    MP_SLICES,  /* a task is a slab of several rows with one scale */
    MP_SPLIT,   /* all ranges first, then all codes: if columns are too long for L2, or scales are too few for the
                   threads */
} mp_route;

/* The route that is taken through an array, with the sizes of its tasks; decided once for a call. */
typedef struct {
    mp_route route;
    int prefetch_next; /* while the codes of a part are made, the next part is prefetched */
    ptrdiff_t strip;   /* COLUMNS: columns of a task, whose scales are found and used before those of the next */
    ptrdiff_t share;   /* RUNS: scales of a task. SPLIT: rows of a task or, if a slab is one row, columns */
    ptrdiff_t tasks;
} mp_passage;

typedef struct {
    const mp_kernels *kernels;
    mp_scale_layout layout;
    mp_codes_kind codes;
    mp_passage passage;
    mp_scales_from how;
    int back;            /* from codes to numbers */
    int mode;            /* flags of kernels.h: MP_STREAM, MP_NO_CLAMP */
    int format;          /* of x */
    ptrdiff_t size;      /* bytes of its elements */
    char *x;
    uint8_t *q;
    float *scale;
    int32_t *zero_point; /* or NULL */
    float *lo, *hi;      /* SPLIT: the ranges that each task finds: [tasks][outer][scales of a slab] */
} mp_quantization;

enum { MP_QUANTIZE_WORK = 1 << 17 }; /* elements from which a second thread pays (Zen 4, November 2026) */

/* Quantize (or dequantize) on up to so many threads; return 0, or -1 if there is no memory. */
int mp_run_quantization(mp_quantization *z, int threads);

MP_SHARED_END
#endif
