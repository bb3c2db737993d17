/* Packing a matrix into the panels that kernels/kernels.h describes; for int8 also the sums of its columns. */
#ifndef MP_PACKING_H
#define MP_PACKING_H

#include "kernels.h"

MP_SHARED_BEGIN

/* The fewest elements for which a second thread pays (November 2026; the CPU is not recorded). */
enum { MP_PACKING_WORK = 1 << 20 };

typedef struct {
    const mp_kernels *kernels;
    int format;
    ptrdiff_t k, n;
    const char *src;
    ptrdiff_t rs, cs; /* bytes from one row to the next, from one column to the next */
    char *dst;
    int32_t *sums;    /* [n], zeros before the call; or NULL */
} mp_packed_matrix;

/* Pack on up to `threads` threads. */
void mp_pack_matrix(const mp_packed_matrix *p, int threads);

MP_SHARED_END
#endif
