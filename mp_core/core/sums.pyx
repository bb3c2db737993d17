"""Sums over the middle axis of an array, by library/sums.c."""

cimport numpy as cnp

from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport mp_active, mp_kernels

cnp.import_array()

cdef extern from "library/sums.h" nogil:
    enum:
        MP_SUMS_WORK

    ctypedef struct mp_sum_call:
        const mp_kernels *kernels
        int format, size
        const char *x
        float *out
        float divisor
        Py_ssize_t outer, k, inner
        float *lanes
        bint failed

    Py_ssize_t mp_lanes_of_sums(const mp_sum_call *s)
    void mp_run_sums(mp_sum_call *s, int threads)


def sum_middle(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float divisor):
    """out[outer][inner] = the sum of x[outer][k][inner] over k, divided by `divisor`; all lengths are at least 1.

    Both are C-contiguous; `x` has the format `fmt`, `out` is float32.
    """
    cdef mp_sum_call s
    cdef cnp.ndarray lanes
    cdef cnp.npy_intp length
    cdef int threads = threads_for(<double>cnp.PyArray_SIZE(x), MP_SUMS_WORK)
    s.kernels, s.format, s.size = mp_active(), fmt, <int>cnp.PyArray_ITEMSIZE(x)
    s.x, s.out, s.divisor = cnp.PyArray_BYTES(x), <float *>cnp.PyArray_DATA(out), divisor
    s.outer, s.k, s.inner = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2)
    length = mp_lanes_of_sums(&s)
    lanes = cnp.PyArray_EMPTY(1, &length, cnp.NPY_FLOAT32, 0)
    s.lanes = <float *>cnp.PyArray_DATA(lanes)
    with nogil:
        mp_run_sums(&s, threads)
    if s.failed:
        raise MemoryError("no memory for the sums of columns")
