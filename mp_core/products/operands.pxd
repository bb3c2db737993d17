# A product: the arguments of an entry point, borrowed (Call), and what kernels need to know of them (Parts).
cimport numpy as cnp
from cpython.ref cimport PyObject

from mp_core.core.library cimport mp_axis, mp_product

# The scales of the left operand. NO_SCALES: it has none. OF_CODES: it holds codes, and these are their scales.
# TO_CODES: it is float, and becomes codes by these scales during the product.
cdef enum:
    NO_SCALES, OF_CODES, TO_CODES

cdef struct Call:
    PyObject *a
    PyObject *b
    PyObject *out_dtype
    PyObject *out
    PyObject *bias
    PyObject *activation
    PyObject *residual
    int left           # NO_SCALES, OF_CODES or TO_CODES
    PyObject *scale    # OF_CODES: float32, one or one per row. TO_CODES: None (each row's own), float, or float32 (k,)
    PyObject *zeros    # OF_CODES: int32 like the scales, or None. TO_CODES: int32 (k,) if scale is (k,), else None

cdef struct Batch:                # the batch axes of an operand: all but the last two
    bint vector                   # the operand has one axis: it is a row on the left, a column on the right
    int axes                      # how many there are
    const cnp.npy_intp *lengths
    const cnp.npy_intp *strides   # in bytes; of Panels in matrices

cdef struct Parts:
    mp_product product
    Batch a, b
    mp_axis batch[64]
    int ndim                      # of the result
    cnp.npy_intp shape[64]
    float scale                   # where row_scale points if the scale was given as a number

cdef object multiply(const Call *call)
