from libc.stdint cimport int32_t, uint8_t

from mp_core.core.header cimport mp_kernels

# How scales come about: given, by max |x|, by max(x, 0), by the range of x.
cdef enum:
    GIVEN, SYMMETRIC, POSITIVE, ASYMMETRIC

# A C-contiguous array of `outer` blocks. by_column: each block is `rows` rows of `cols` columns with a scale for every
# column of every `group` rows. Else, with one row, a block has a scale for every `group` elements; with more rows,
# which lie row_stride apart, one scale.
cdef struct Blocks:
    const mp_kernels *kernels
    Py_ssize_t outer, outer_stride, rows, row_stride, cols, group, groups, strip, share
    bint by_column, back
    int how, format, size, code, packed, mode, parts, fetch
    int32_t qmin, qmax
    float largest
    char *x
    uint8_t *q
    float *scale
    int32_t *zero_point
    float *lo
    float *hi

cdef int run(Blocks *b) except -1
