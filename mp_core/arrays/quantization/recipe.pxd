cimport numpy as cnp

from mp_core.core.library cimport mp_quantization


cdef class QuantizedFields:
    cdef readonly cnp.ndarray values, scale, zero_point
    cdef readonly tuple axis, shape
    cdef readonly object group_size, dtype


cdef class Recipe:
    cdef mp_quantization prepared
    cdef readonly tuple shape, axes, scale_shape
    cdef readonly object group_size, codes
    cdef object dtype                  # of the codes
    cdef bint wide                     # codes have 16 bits, which no kernel reads
    cdef cnp.npy_intp lengths[64]      # `shape`
    cdef cnp.npy_intp sizes[64]        # the shape of the stored codes, which may be two to a byte
    cdef cnp.npy_intp scale_sizes[64]  # `scale_shape`
    cdef int storage                   # NumPy's type number of the stored codes
    cdef int how, qmin                 # if scales are found: what they follow from, the lowest code
    cdef readonly bint as_they_are     # how kernels take the arrays: no axes to transpose, no byte of two rows
    cdef readonly bint with_zeros      # if scales are found, zero points are found too

    cdef QuantizedFields new(self, type kind, bint with_zeros)
    cdef bint agrees(self, QuantizedFields q) except -1
    cdef bint holds(self, QuantizedFields q, cnp.ndarray x, bint to_write) except -1
    cdef int run(self, cnp.ndarray x, int fmt, QuantizedFields q, bint given, bint back) except -1
    cdef int run_arrays(self, cnp.ndarray x, int fmt, cnp.ndarray values, cnp.ndarray scale, cnp.ndarray zero_point,
                        bint given, bint back, bint packed) except -1


cdef bint fits(object a, int type_number, int ndim, const cnp.npy_intp *sizes, bint to_write) noexcept
cpdef bint positive_and_finite(cnp.ndarray scale) except -1
