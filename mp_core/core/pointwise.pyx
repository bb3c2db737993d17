"""Operations on rows: softmax, layer norm, RMS norm, activations.

Elements are widened to float32, computed in float32 and rounded once; library/rows.c does the work. `x` and `out` have
the format `fmt`.
"""

cimport numpy as cnp
from libc.math cimport M_SQRT1_2, erfc
from libc.stdint cimport uint8_t
from libc.string cimport memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, threads_for
from mp_core.core.header cimport mp_activation, mp_kernels
from mp_core.core.rows cimport ACTIVATE, LAYER_NORM, RMS_NORM, ROWS_WORK, SOFTMAX, Rows, run_rows, share_rows
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

cnp.import_array()

cdef tuple NAMES = ("softmax", "layer norm", "activation", "RMS norm")  # by Operation


cdef Py_ssize_t prepare_rows(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    """Share out the rows, as many as there are or those that are recorded; return the number of tasks."""
    cdef Rows *r = <Rows *>context
    r.kernels = kernels()
    if rows >= 0:
        r.rows = rows
    return share_rows(r, threads)


cdef int note_rows(const Rows *r, cnp.ndarray out) except -1:
    cdef Rows s = r[0]
    cdef Py_ssize_t base = <Py_ssize_t>&s
    pointers = (<Py_ssize_t>&s.x - base, <Py_ssize_t>&s.residual - base, <Py_ssize_t>&s.out - base,
                <Py_ssize_t>&s.gamma - base, <Py_ssize_t>&s.beta - base, <Py_ssize_t>&s.mask.keep - base)
    recording().add_buffer(out)
    recording().note(NAMES[r.what], Kind(prepare_rows, run_rows, sizeof(s), <Py_ssize_t>&s.failed - base), &s, pointers,
                     Cost(r.rows, 0, NO_ARITHMETIC, r.rows * r.length * r.size * (3 if r.residual != NULL else 2)))
    return 0


cdef int run(Rows *r, int fmt, cnp.ndarray x, cnp.ndarray out) except -1:
    cdef int threads = threads_for(<double>r.rows * r.length, ROWS_WORK)
    cdef Py_ssize_t tasks
    r.format, r.size = fmt, cnp.PyArray_ITEMSIZE(x)
    r.ldx = r.ldo = r.length
    r.x, r.out = cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(out)
    if r.rows == 0 or r.length == 0:
        return 0
    if is_recording():
        note_rows(r, out)
    tasks = prepare_rows(r, -1, threads, False)
    with nogil:
        parallel_for(threads, tasks, run_rows, r)
    if r.failed:
        raise MemoryError("no memory for the scratch of a row")
    return 0


def softmax(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float scale, cnp.ndarray keep=None):
    """out = softmax(scale * x) over the last axis; C-contiguous. `keep`: bool, the shape of `x`, unit last stride."""
    cdef Rows r
    cdef int axis, ndim = cnp.PyArray_NDIM(x)
    memset(&r, 0, sizeof(r))
    r.what, r.scale = SOFTMAX, scale
    r.length = cnp.PyArray_DIM(x, ndim - 1)
    r.rows = cnp.PyArray_SIZE(x) // r.length if r.length else 0
    if keep is not None:
        r.mask.keep, r.mask.axes = <const uint8_t *>cnp.PyArray_DATA(keep), ndim - 1
        for axis in range(ndim - 1):
            r.mask.shape[axis], r.mask.stride[axis] = cnp.PyArray_DIM(keep, axis), cnp.PyArray_STRIDE(keep, axis)
    run(&r, fmt, x, out)


def layer_norm(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float epsilon, cnp.ndarray gamma=None,
               cnp.ndarray beta=None, cnp.ndarray residual=None):
    """Layer norm of x + residual over the last axis; C-contiguous, `residual` of x's dtype, gamma and beta float32."""
    cdef Rows r
    memset(&r, 0, sizeof(r))
    r.what, r.epsilon = LAYER_NORM, epsilon
    r.length = cnp.PyArray_DIM(x, cnp.PyArray_NDIM(x) - 1)
    r.rows = cnp.PyArray_SIZE(x) // r.length if r.length else 0
    if gamma is not None:
        r.gamma = <const float *>cnp.PyArray_DATA(gamma)
    if beta is not None:
        r.beta = <const float *>cnp.PyArray_DATA(beta)
    if residual is not None:
        r.residual = cnp.PyArray_BYTES(residual)
    run(&r, fmt, x, out)


def rms_norm(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float epsilon, cnp.ndarray gamma=None):
    """RMS norm of x over the last axis; C-contiguous, gamma float32."""
    cdef Rows r
    memset(&r, 0, sizeof(r))
    r.what, r.epsilon = RMS_NORM, epsilon
    r.length = cnp.PyArray_DIM(x, cnp.PyArray_NDIM(x) - 1)
    r.rows = cnp.PyArray_SIZE(x) // r.length if r.length else 0
    if gamma is not None:
        r.gamma = <const float *>cnp.PyArray_DATA(gamma)
    run(&r, fmt, x, out)


def gelu_float64(cnp.ndarray x not None, cnp.ndarray out not None):
    """out = x erfc(-x / sqrt 2) / 2 in float64, by the C library; C-contiguous, of equal size."""
    cdef const double *source = <const double *>cnp.PyArray_DATA(x)
    cdef double *result = <double *>cnp.PyArray_DATA(out)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(x)
    with nogil:
        for i in range(n):
            result[i] = source[i] * (0.5 * erfc(-source[i] * M_SQRT1_2))


def activate(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, int activation):
    """out = activation(x), element by element; C-contiguous."""
    cdef Rows r
    memset(&r, 0, sizeof(r))
    r.what, r.activation = ACTIVATE, <mp_activation>activation
    if is_recording() and cnp.PyArray_NDIM(x) > 0:
        r.length = cnp.PyArray_DIM(x, cnp.PyArray_NDIM(x) - 1)
    else:
        r.length = min(cnp.PyArray_SIZE(x), 1024)
    r.rows = cnp.PyArray_SIZE(x) // r.length if r.length else 0
    run(&r, fmt, x, out)
    if r.rows * r.length < cnp.PyArray_SIZE(x):
        tail = r.rows * r.length
        activate(fmt, x.reshape(-1)[tail:], out.reshape(-1)[tail:], activation)


def all_finite(int fmt, cnp.ndarray x not None):
    """Whether no element of `x`, which fills its memory without gaps, is infinite or NaN."""
    cdef const mp_kernels *table = kernels()
    cdef const void *data = cnp.PyArray_DATA(x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef bint finite
    with nogil:
        finite = table.casts.all_finite[fmt](data, n)
    return finite
