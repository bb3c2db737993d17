/* Packing a matrix: the panels that kernels/kernels.h describes, and of int8 the sums of their columns. */
#ifndef MP_PACKING_H
#define MP_PACKING_H

#include "kernels.h"

MP_SHARED_BEGIN

/* Elements from which a second thread pays (November 2026; the CPU is not recorded). */
enum { MP_PACKING_WORK = 1 << 20 };

typedef struct {
    const mp_kernels *kernels;
    int format;
    ptrdiff_t k, n;
    const char *src;
    ptrdiff_t rs, cs; /* bytes from one row, one column to the next */
    char *dst;
    int32_t *sums;    /* [n], zeros at first; or NULL: not wanted */
} mp_packed_matrix;

/* Pack on up to so many threads. */
void mp_pack_matrix(const mp_packed_matrix *p, int threads);

MP_SHARED_END
#endif
