cimport numpy as cnp

ctypedef object (*Product)(object a, object b)

cdef Product product  # matmul(a, b), for operators; NULL before products/matmul.pyx, which reads this module, is there


cdef class PackedMatrix:
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef readonly cnp.ndarray data         # uint8, the panels of all matrices, then slack
    cdef readonly cnp.ndarray column_sums  # of int8: int32 [matrices][n]; else None
    cdef readonly cnp.ndarray scale        # of quantized codes: float32 [n], or [scale groups][n]; else None
    cdef readonly cnp.ndarray zero_point   # of codes that are not symmetric: int32 [n]; else None
    cdef readonly object group_size        # elements of k in a scale group; None: there are none
    cdef int format, axes                  # axes: how many axes the batch has
    cdef Py_ssize_t k, n, matrices, matrix_bytes, group
    cdef cnp.npy_intp lengths[62]          # of those axes
    cdef cnp.npy_intp strides[62]          # ... in matrices
