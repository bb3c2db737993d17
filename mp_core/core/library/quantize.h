/* Quantization and dequantization of an array. */
#ifndef MP_QUANTIZE_H
#define MP_QUANTIZE_H

#include "kernels.h"

MP_SHARED_BEGIN

/* How scales are computed. */
typedef enum {
    MP_GIVEN,      /* not at all: they are the caller's */
    MP_SYMMETRIC,  /* max |x| */
    MP_POSITIVE,   /* max(x, 0) */
    MP_ASYMMETRIC, /* min(x, 0) and max(x, 0), with zero points */
} mp_scales_from;

/* Which elements of a C-contiguous array share a scale. The array is `outer` slabs, outer_stride elements apart. A slab
 * is `rows` rows of `cols` elements, row_stride elements apart, with `groups` scale groups along one axis.
 *   by_column       each column has a scale for each `group` rows
 *   else, rows = 1  the row has a scale for each `group` elements
 *   else            the slab has one scale */
typedef struct {
    ptrdiff_t outer, outer_stride, rows, row_stride, cols, group, groups;
    int by_column;
} mp_scale_layout;

typedef struct {
    int kind;           /* mp_code */
    int nibbles;        /* 4-bit codes, two to a byte */
    int32_t qmin, qmax; /* integers: the smallest and largest code */
    float largest;      /* the largest code: symmetric scales are max |x| / largest */
} mp_codes_kind;

/* In which order the memory of an array is read, and what a task is. */
typedef enum {
    MP_COLUMNS, /* a strip of columns of one scale group of rows: it stays in L2 while its ranges, scales and codes are
                   computed */
    MP_RUNS,    /* several runs: consecutive elements that share a scale */
    MP_SLICES,  /* a slab of several rows that share a scale */
    MP_SPLIT,   /* all ranges are computed first, then all codes: for columns that are too long for L2, and for fewer
                   scales than threads */
} mp_route;

/* The route through an array and the sizes of its tasks; decided once in each call. */
typedef struct {
    mp_route route;
    int prefetch_next; /* the next part is prefetched while the codes of one are computed */
    ptrdiff_t strip;   /* COLUMNS: columns in a task */
    ptrdiff_t share;   /* RUNS: scales in a task. SPLIT: rows in a task or, if a slab is one row, columns */
    ptrdiff_t tasks;
} mp_passage;

typedef struct {
    const mp_kernels *kernels;
    mp_scale_layout layout;
    mp_codes_kind codes;
    mp_passage passage;
    mp_scales_from how;
    int back;            /* dequantize */
    int mode;            /* flags of kernels.h: MP_STREAM, MP_NO_CLAMP */
    int format;          /* of x */
    ptrdiff_t size;      /* bytes of its elements */
    char *x;
    uint8_t *q;
    float *scale;
    int32_t *zero_point; /* or NULL */
    float *lo, *hi;      /* SPLIT: the ranges of each task: [tasks][outer][scales of a slab] */
} mp_quantization;

/* The fewest elements for which a second thread pays (Zen 4, November 2026). */
enum { MP_QUANTIZE_WORK = 1 << 17 };

/* Quantize or dequantize on up to `threads` threads; return 0, or -1 if there is no memory. */
int mp_run_quantization(mp_quantization *z, int threads);

MP_SHARED_END
#endif
