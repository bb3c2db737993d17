cimport numpy as cnp

from mp_core.core.header cimport mp_scale_codes

ctypedef object (*Product)(object a, object b)

cdef Product product  # matmul(a, b), for operators; NULL until products/matmul.pyx, which imports this module, sets it


cdef class PackedMatrix:
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef readonly cnp.ndarray data         # uint8: the panels of all matrices, then MP_SLACK bytes
    cdef readonly cnp.ndarray column_sums  # for int8: int32 [matrices][n]; else None
    cdef cnp.ndarray scales                # for quantized codes: float32 [n] or [scale groups][n], or mp_right's codes
    cdef readonly cnp.ndarray zero_point   # for asymmetric codes: int32 [n] (int4: int8, the shape of scale); else None
    cdef readonly object group_size        # elements along k in a scale group; None: no groups
    cdef int format, axes                  # axes: the number of batch axes
    cdef mp_scale_codes scale_codes
    cdef Py_ssize_t k, n, matrices, matrix_bytes, group
    cdef cnp.npy_intp lengths[62]          # lengths of the batch axes
    cdef cnp.npy_intp strides[62]          # strides of the batch axes, in matrices
