"""Sums over the middle axis of an array, by library/sums.c."""

cimport numpy as cnp

from libc.string cimport memset

from mp_core.core.cpu cimport is_recording, kernels, threads_for
from mp_core.core.header cimport mp_kernels
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

cnp.import_array()

cdef extern from "library/sums.h" nogil:
    enum:
        SUMS_WORK "MP_SUMS_WORK"

    ctypedef struct Sums "mp_sum_call":
        const mp_kernels *kernels
        int format, size
        const char *x
        float *out
        float divisor
        Py_ssize_t outer, k, inner
        float *lanes
        bint failed

    Py_ssize_t lanes_of_sums "mp_lanes_of_sums"(const Sums *s)
    Py_ssize_t share_sums "mp_share_sums"(Sums *s, int threads)
    void run_task "mp_run_sums_task"(void *call, Py_ssize_t index) noexcept
    void join_task "mp_join_sums_task"(void *call, Py_ssize_t index) noexcept
    void run_sums "mp_run_sums"(Sums *s, int threads)


cdef Py_ssize_t prepare_sums(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    """Share out the sums of as many rows as there are or those that are recorded; return the number of tasks."""
    cdef Sums *s = <Sums *>context
    s.kernels = kernels()
    if rows >= 0:
        s.outer = rows
    return share_sums(s, threads)


cdef Py_ssize_t prepare_join(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    prepare_sums(context, rows, threads, reproducible)
    return 1


cdef int note_sums(const Sums *s, cnp.ndarray out, cnp.ndarray lanes) except -1:
    """Note one step, and one more if rows have several blocks, whose lanes lie in a buffer between the two."""
    cdef Py_ssize_t base = <Py_ssize_t>s, failed = <Py_ssize_t>&s.failed - base
    cdef Cost cost = Cost(s.outer, 0, NO_ARITHMETIC, s.outer * s.inner * (s.k * s.size + 4))
    pointers = (<Py_ssize_t>&s.x - base, <Py_ssize_t>&s.out - base, <Py_ssize_t>&s.lanes - base)
    recording().add_buffer(out)
    if s.lanes != NULL:
        recording().add_buffer(lanes)
    recording().note("sums", Kind(prepare_sums, run_task, sizeof(s[0]), failed), s, pointers, cost)
    if s.lanes != NULL:
        recording().note("sums of blocks", Kind(prepare_join, join_task, sizeof(s[0]), failed), s, pointers, cost)
    return 0


def sum_middle(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float divisor):
    """out[outer][inner] = the sum of x[outer][k][inner] over k, divided by `divisor`; all lengths are at least 1.

    Both are C-contiguous; `x` has the format `fmt`, `out` is float32.
    """
    cdef Sums s
    cdef cnp.ndarray lanes
    cdef cnp.npy_intp lengths[2]
    cdef int threads = threads_for(<double>cnp.PyArray_SIZE(x), SUMS_WORK)
    memset(&s, 0, sizeof(s))
    s.kernels, s.format, s.size = kernels(), fmt, <int>cnp.PyArray_ITEMSIZE(x)
    s.x, s.out, s.divisor = cnp.PyArray_BYTES(x), <float *>cnp.PyArray_DATA(out), divisor
    s.outer, s.k, s.inner = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2)
    lengths[0], lengths[1] = s.outer, lanes_of_sums(&s) // s.outer
    lanes = cnp.PyArray_EMPTY(2, lengths, cnp.NPY_FLOAT32, 0)
    if lengths[1]:
        s.lanes = <float *>cnp.PyArray_DATA(lanes)
    if is_recording():
        note_sums(&s, out, lanes)
    with nogil:
        run_sums(&s, threads)
    if s.failed:
        raise MemoryError("no memory for the sums of columns")
