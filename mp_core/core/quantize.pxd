# An array that is quantized, its codes and its scales.
from libc.stdint cimport int32_t, uint8_t

from mp_core.core.header cimport mp_kernels

# How scales come about: given, from max |x|, from max(x, 0), or with zero points from the range of x.
cdef enum:
    GIVEN, SYMMETRIC, POSITIVE, ASYMMETRIC

# Which elements of a C-contiguous array share a scale. The array is `outer` blocks, outer_stride elements apart.
#   by_column       a block is `rows` rows of `cols` columns; every column of every `group` rows has a scale
#   else, rows = 1  a block is one row; every `group` elements of it have a scale
#   else            a block is `rows` rows, row_stride elements apart, with one scale
cdef struct Layout:
    Py_ssize_t outer, outer_stride, rows, row_stride, cols, group, groups
    bint by_column

cdef struct Codes:
    int kind            # mp_code
    bint packed         # two to a byte
    int32_t qmin, qmax  # of integers
    float largest

# The way through an array: way_of decides it, once for a call.
cdef struct Way:
    int route           # COLUMNS, RUNS, SLICES or SPLIT
    bint prefetch_next  # while the codes of a part are made, the next part is prefetched
    Py_ssize_t strip    # COLUMNS: columns whose scales are found and used together
    Py_ssize_t share    # RUNS: scales of a task. SPLIT: rows, or columns of one row, of a task
    Py_ssize_t tasks

cdef struct Quantization:
    const mp_kernels *kernels
    Layout layout
    Codes codes
    Way way
    int how             # GIVEN, ...
    bint back           # from codes to numbers
    int mode            # MP_STREAM, MP_WITHIN
    int format          # of x
    Py_ssize_t size     # bytes of its elements
    char *x
    uint8_t *q
    float *scale
    int32_t *zero_point  # or NULL
    float *lo           # SPLIT: ranges, [tasks][outer][scales of a block]
    float *hi

cdef int run(Quantization *z) except -1
