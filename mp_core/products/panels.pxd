cimport numpy as cnp


cdef class Panels:
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef readonly cnp.ndarray data         # uint8, the panels of all matrices, then slack
    cdef readonly cnp.ndarray column_sums  # int8 only: int32 [matrices][n]
    cdef readonly cnp.ndarray scale
    cdef readonly cnp.ndarray zero_point
    cdef readonly object group_size
    cdef int format, axes                  # axes: of the batch
    cdef Py_ssize_t k, n, matrices, matrix_bytes, group
    cdef cnp.npy_intp lengths[62]          # of those axes
    cdef cnp.npy_intp strides[62]          # ... in matrices
