"""Operations on rows: softmax, layer norm, RMS norm, activations.

Elements are widened to float32, computed in float32 and rounded once. `x` and `out` have the format `fmt`.
"""

cimport numpy as cnp
from libc.math cimport M_SQRT1_2, erfc
from libc.stdint cimport uint8_t
from libc.string cimport memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport MP_F32, mp_activation, mp_format, mp_kernels, mp_row_block, mp_rows_together
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

cnp.import_array()

cdef double WORTHWHILE = 1 << 15  # elements, each about an exponential, from which a second thread pays

cdef enum:
    SOFTMAX
    LAYER_NORM
    ACTIVATE
    RMS_NORM

cdef tuple NAMES = ("softmax", "layer norm", "activation", "RMS norm")

# One call: `rows` rows of `length` elements each, C-contiguous. The row index has keep_axes axes; `keep` (the mask, one
# byte per element) has a stride in bytes for each of them, 0 where it is broadcast.
cdef struct Rows:
    const mp_kernels *kernels
    int what, format, size  # of the elements of x, residual and out
    Py_ssize_t rows, length, share
    const char *x
    const char *residual
    char *out
    float scale             # of a softmax; epsilon of a norm
    const float *gamma      # of a norm
    const float *beta
    mp_activation activation
    const uint8_t *keep
    int keep_axes
    Py_ssize_t keep_shape[64]
    Py_ssize_t keep_stride[64]
    bint failed


cdef const uint8_t *kept(const Rows *r, Py_ssize_t row) noexcept nogil:
    """The mask of a row, or NULL."""
    cdef const uint8_t *at = r.keep
    cdef int axis
    if at != NULL:
        for axis in range(r.keep_axes - 1, -1, -1):
            at += row % r.keep_shape[axis] * r.keep_stride[axis]
            row //= r.keep_shape[axis]
    return at


cdef void run_softmax(const Rows *r, mp_row_block *b, Py_ssize_t row) noexcept nogil:
    """Softmax of the next rows, which are cut where those end whose masks lie a fixed stride apart."""
    cdef Py_ssize_t stride = 0, period
    if r.keep != NULL and r.keep_axes > 0:
        stride, period = r.keep_stride[r.keep_axes - 1], r.keep_shape[r.keep_axes - 1]
        b.rows = min(b.rows, period - row % period)
    r.kernels.rows.softmax(b, kept(r, row), stride, r.scale)


cdef void run_activation(const Rows *r, const mp_row_block *b) noexcept nogil:
    cdef Py_ssize_t n = b.rows * b.n
    cdef const float *x = <const float *>b.x
    if r.format != MP_F32:
        r.kernels.casts.widen[r.format](b.x, b.work, n, 0)
        x = b.work
    r.kernels.rows.activate(r.activation, x, n, b.work)
    if r.format != MP_F32:
        r.kernels.casts.narrow[r.format](b.work, b.out, n, 0)


cdef void run_rows(void *context, Py_ssize_t index) noexcept nogil:
    """One task: `share` rows, some at a time. Between the passes over narrow rows, float32 lies in scratch."""
    cdef Rows *r = <Rows *>context
    cdef Py_ssize_t row = index * r.share, end = min(row + r.share, r.rows), together = mp_rows_together(r.length)
    cdef mp_row_block b
    cdef const char *residual = NULL
    cdef void *work = scratch(together * r.length * 4) if r.format != MP_F32 else r.out
    if work == NULL:
        r.failed = True
        return
    b.n = b.ldx = b.ldw = b.ldo = r.length
    b.x_format = b.out_format = <mp_format>r.format
    while row < end:
        b.rows = min(end - row, together)
        b.x, b.out = r.x + row * r.length * r.size, r.out + row * r.length * r.size
        b.work = <float *>(b.out if r.format == MP_F32 else work)
        if r.what == SOFTMAX:
            run_softmax(r, &b, row)
        elif r.what == ACTIVATE:
            run_activation(r, &b)
        elif r.what == RMS_NORM:
            r.kernels.rows.rms_norm(&b, r.gamma, r.scale)
        else:
            if r.residual != NULL:
                residual = r.residual + row * r.length * r.size
            r.kernels.rows.layer_norm(&b, residual, r.gamma, r.beta, r.scale)
        row += b.rows


cdef Py_ssize_t prepare_rows(void *context, Py_ssize_t rows, int threads) noexcept nogil:
    """Share out the rows, as many as there are or those that are recorded; return the number of tasks."""
    cdef Rows *r = <Rows *>context
    r.kernels = kernels()
    if rows >= 0:
        r.rows = rows
    if <double>r.rows * r.length < WORTHWHILE:
        threads = 1
    r.share = max(1, (r.rows + 4 * threads - 1) // (4 * threads)) if threads > 1 else r.rows
    return (r.rows + r.share - 1) // r.share


cdef int note_rows(const Rows *r, cnp.ndarray out) except -1:
    cdef Rows s = r[0]
    cdef Py_ssize_t base = <Py_ssize_t>&s
    pointers = (<Py_ssize_t>&s.x - base, <Py_ssize_t>&s.residual - base, <Py_ssize_t>&s.out - base,
                <Py_ssize_t>&s.gamma - base, <Py_ssize_t>&s.beta - base, <Py_ssize_t>&s.keep - base)
    recording().add_buffer(out)
    recording().note(NAMES[r.what], Kind(prepare_rows, run_rows, sizeof(s), <Py_ssize_t>&s.failed - base), &s, pointers,
                     Cost(r.rows, 0, NO_ARITHMETIC, r.rows * r.length * r.size * (3 if r.residual != NULL else 2)))
    return 0


cdef int run(Rows *r, int fmt, cnp.ndarray x, cnp.ndarray out) except -1:
    cdef int threads = threads_for(<double>r.rows * r.length, WORTHWHILE)
    cdef Py_ssize_t tasks
    r.format, r.size = fmt, cnp.PyArray_ITEMSIZE(x)
    r.x, r.out = cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(out)
    if r.rows == 0 or r.length == 0:
        return 0
    if is_recording():
        note_rows(r, out)
    tasks = prepare_rows(r, -1, threads)
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
        r.keep, r.keep_axes = <const uint8_t *>cnp.PyArray_DATA(keep), ndim - 1
        for axis in range(ndim - 1):
            r.keep_shape[axis], r.keep_stride[axis] = cnp.PyArray_DIM(keep, axis), cnp.PyArray_STRIDE(keep, axis)
    run(&r, fmt, x, out)


def layer_norm(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float epsilon, cnp.ndarray gamma=None,
               cnp.ndarray beta=None, cnp.ndarray residual=None):
    """Layer norm of x + residual over the last axis; C-contiguous, `residual` of x's dtype, gamma and beta float32."""
    cdef Rows r
    memset(&r, 0, sizeof(r))
    r.what, r.scale = LAYER_NORM, epsilon
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
    r.what, r.scale = RMS_NORM, epsilon
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
