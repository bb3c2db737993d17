# A product: its arguments, borrowed, as an entry point hands them over (Call), and what they describe (Parts).
cimport numpy as cnp
from cpython.ref cimport PyObject

from mp_core.core.run cimport Axis, Product

# The scales of the left operand. NO_SCALES: there are none. OF_CODES: a holds codes, and these are their scales.
# TO_CODES: a is float and becomes codes during the product.
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
    PyObject *scale    # OF_CODES: float32, one or one per row. TO_CODES: None: each row's own, a float, or float32 (k,)
    PyObject *zeros    # OF_CODES: int32 like the scales or None. TO_CODES: int32 (k,), or None unless scale is (k,)

cdef struct Batch:                # the axes of an operand before its matrices
    bint vector                   # an array of one axis: a row on the left, a column on the right
    int axes
    const cnp.npy_intp *lengths
    const cnp.npy_intp *strides   # in bytes; of Panels in matrices

cdef struct Parts:
    Product product
    Batch a, b
    Axis batch[64]
    int ndim                      # of the result
    cnp.npy_intp shape[64]
    float scale                   # row_scale points here if the scale was given as a number

cdef object multiply(const Call *call)
