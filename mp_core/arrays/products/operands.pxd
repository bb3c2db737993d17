# A product: the arguments of an entry point, borrowed (Call), and what kernels need to know of them (Parts).
cimport numpy as cnp
from cpython.ref cimport PyObject

from mp_core.core.library cimport MP_REFUSALS, mp_axis, mp_product

# Why the fast path does not serve a call: an mp_refusal of library/contract.h, or one of these. REASONS says each in
# words.
cdef enum:
    NO_ARRAY = MP_REFUSALS          # an operand is no ndarray of a type that kernels read, in native byte order
    ARE_NUMBERS                     # plain integers beside scaled codes are numbers, and multiply as floats
    NO_FIT                          # shapes do not fit
    NO_DTYPE                        # `out_dtype` is none that kernels write
    OUT                             # kernels cannot write to `out`, or it shares memory with an operand
    EPILOGUE                        # bias, activation or residual must be checked or converted
    ROWS                            # the left operand, which becomes codes, is not contiguous, or has other scales

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
    bint copies        # the caller copies the result if kernels cannot write to `out`
    int reason         # set by multiply: MP_ACCEPTED, or why it returned None

cdef struct Batch:                # the batch axes of an operand: all but the last two
    bint vector                   # the operand has one axis: it is a row on the left, a column on the right
    int axes                      # how many there are
    const cnp.npy_intp *lengths
    const cnp.npy_intp *strides   # in bytes; of PackedMatrix in matrices

cdef struct Parts:
    mp_product product
    Batch a, b
    mp_axis batch[64]
    int ndim                      # of the result
    cnp.npy_intp shape[64]
    float scale                   # where row_scale points if the scale was given as a number

cdef object multiply(Call *call)
