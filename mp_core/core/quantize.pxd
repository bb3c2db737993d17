# An array that is quantized or dequantized, its codes and its scales.
from libc.stdint cimport int32_t, uint8_t

from mp_core.core.header cimport mp_kernels

# What scales follow from. GIVEN: the caller. SYMMETRIC: max |x|. POSITIVE: max(x, 0). ASYMMETRIC: min(x, 0) and
# max(x, 0), with zero points.
cdef enum:
    GIVEN, SYMMETRIC, POSITIVE, ASYMMETRIC

# Which elements of a C-contiguous array share a scale. The array is `outer` slabs, outer_stride elements apart. A slab
# is `rows` rows of `cols` elements, row_stride elements apart, and has `groups` scale groups along one axis.
#   by_column       a scale for each column of each `group` rows
#   else, rows = 1  a scale for each `group` elements of the row
#   else            one scale for the slab
cdef struct Layout:
    Py_ssize_t outer, outer_stride, rows, row_stride, cols, group, groups
    bint by_column

cdef struct Codes:
    int kind            # mp_code
    bint packed         # 4-bit codes, two to a byte
    int32_t qmin, qmax  # of integers
    float largest       # the largest code: symmetric scales are max |x| / largest

# The route through an array, which says in what order memory is read: way_of decides it, once for a call.
cdef struct Way:
    int route           # COLUMNS, RUNS, SLICES or SPLIT
    bint prefetch_next  # while the codes of a part are made, the next part is prefetched
    Py_ssize_t strip    # COLUMNS: columns of a task, whose scales are found and used before those of the next
    Py_ssize_t share    # RUNS: scales of a task. SPLIT: rows of a task or, if a slab is one row, columns
    Py_ssize_t tasks

cdef struct Quantization:
    const mp_kernels *kernels
    Layout layout
    Codes codes
    Way way
    int how             # GIVEN, SYMMETRIC, POSITIVE or ASYMMETRIC
    bint back           # from codes to numbers
    int mode            # MP_STREAM, MP_WITHIN
    int format          # of x
    Py_ssize_t size     # bytes of its elements
    char *x
    uint8_t *q
    float *scale
    int32_t *zero_point  # or NULL
    float *lo           # SPLIT: the ranges that each task finds, lo and hi: [tasks][outer][scales of a slab]
    float *hi

cdef int run(Quantization *z) except -1
