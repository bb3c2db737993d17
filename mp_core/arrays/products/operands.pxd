# A product: the arguments of an entry point as borrowed references (Call), and their description for kernels (Parts).
cimport numpy as cnp
from cpython.ref cimport PyObject

from mp_core.core.library cimport MP_REFUSALS, mp_axis, mp_product

# Why the fast path does not take a call: an mp_refusal of library/contract.h, or one of these. REASONS has the texts.
cdef enum:
    NO_ARRAY = MP_REFUSALS          # an operand is not an ndarray of a type that kernels read, in native byte order
    ARE_NUMBERS                     # plain integers times scaled codes: the integers are numbers, multiplied as floats
    NO_FIT                          # the shapes do not fit
    NO_DTYPE                        # kernels cannot write the type `out_dtype`
    OUT                             # kernels cannot write to `out`, or it shares memory with an operand
    EPILOGUE                        # bias, activation or residual must be checked or converted
    ROWS                            # a left operand to be quantized is not contiguous, or scales do not fit its rows

# The scales of the left operand. NO_SCALES: none. OF_CODES: it holds codes, and these are their scales. TO_CODES: it is
# float, and is quantized with these scales during the product.
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
    bint copies        # allow a new array as the result if kernels cannot write to `out`; the caller copies it
    int reason         # set by multiply: MP_ACCEPTED, or the reason for returning None

cdef struct Batch:                # the batch axes of an operand: all except the last two
    bint vector                   # the operand has one axis: a row if it is the left one, a column if the right one
    int axes                      # the number of batch axes
    const cnp.npy_intp *lengths
    const cnp.npy_intp *strides   # in bytes; for a PackedMatrix in matrices

cdef struct Parts:
    mp_product product
    Batch a, b
    mp_axis batch[64]
    int ndim                      # number of axes of the result
    cnp.npy_intp shape[64]        # shape of the result
    float scale                   # storage for a scale given as a number; row_scale points here

cdef object multiply(Call *call)
