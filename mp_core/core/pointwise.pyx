"""Row operations: softmax, layer norm, RMS norm, activations, and gradients (library/rows.c, row_gradients.c).

Elements are widened to float32, computed in float32 and rounded once. `x` and `out` have the format `fmt`.
"""

cimport numpy as cnp
from libc.math cimport M_SQRT1_2, erf, erfc
from libc.stdint cimport uint8_t
from libc.string cimport memset

from mp_core.core.header cimport mp_activation, mp_active, mp_kernels, mp_listener, mp_stopped
from mp_core.core.library cimport (
    MP_ACTIVATE, MP_LAYER_NORM, MP_LAYER_NORM_GRADIENT, MP_LOG_SOFTMAX, MP_LOG_SOFTMAX_GRADIENT, MP_NO_ARITHMETIC,
    MP_OPERATION_ROW_GRADIENTS, MP_OPERATION_ROWS, MP_RMS_NORM, MP_RMS_NORM_GRADIENT, MP_SOFTMAX, MP_SOFTMAX_GRADIENT,
    mp_cost, mp_recorder, mp_row_call, mp_row_gradient, mp_row_operation,
)
from mp_core.core.recording cimport recording, run_operation
from mp_core.core.signals cimport heard, listen

cnp.import_array()

cdef tuple NAMES = ("softmax", "layer norm", "activation", "RMS norm", "log softmax")  # indexed by mp_row_operation


cdef void describe(mp_row_call *r, mp_row_operation what, int fmt, cnp.ndarray x, cnp.ndarray out,
                   Py_ssize_t length) noexcept:
    """Describe rows of `length` elements; x and out are C-contiguous."""
    memset(r, 0, sizeof(r[0]))
    r.what, r.format, r.size = what, fmt, <int>cnp.PyArray_ITEMSIZE(x)
    r.length = r.ldx = r.ldo = length
    r.rows = cnp.PyArray_SIZE(x) // length if length else 0
    r.x, r.out = cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(out)


cdef inline Py_ssize_t last_length(cnp.ndarray x) noexcept:
    return cnp.PyArray_DIM(x, cnp.PyArray_NDIM(x) - 1)


cdef int run(mp_row_call *r, cnp.ndarray out) except -1:
    if r.rows and r.length:
        run_operation(MP_OPERATION_ROWS, r, NAMES[<int>r.what], out,
                      mp_cost(r.rows, 0, MP_NO_ARITHMETIC,
                              r.rows * r.length * r.size * (3 if r.residual != NULL else 2)))
    return 0


def softmax(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float scale, cnp.ndarray keep=None):
    """Compute out = softmax(scale * x) over the last axis; C-contiguous. `keep`: bool, shape of `x`, last stride 1."""
    cdef mp_row_call r
    cdef int axis, ndim = cnp.PyArray_NDIM(x)
    describe(&r, MP_SOFTMAX, fmt, x, out, last_length(x))
    r.scale = scale
    if keep is not None:
        r.mask.keep, r.mask.axes = <const uint8_t *>cnp.PyArray_DATA(keep), ndim - 1
        for axis in range(ndim - 1):
            r.mask.shape[axis], r.mask.stride[axis] = cnp.PyArray_DIM(keep, axis), cnp.PyArray_STRIDE(keep, axis)
    run(&r, out)


def log_softmax(int fmt, cnp.ndarray x not None, cnp.ndarray out not None):
    """Compute out = x - log(sum(exp(x))) over the last axis; C-contiguous."""
    cdef mp_row_call r
    describe(&r, MP_LOG_SOFTMAX, fmt, x, out, last_length(x))
    run(&r, out)


def layer_norm(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float epsilon, cnp.ndarray gamma=None,
               cnp.ndarray beta=None, cnp.ndarray residual=None):
    """Compute the layer norm of x + residual over the last axis.

    All arrays are C-contiguous. `residual` has the dtype of x; gamma and beta are float32.
    """
    cdef mp_row_call r
    describe(&r, MP_LAYER_NORM, fmt, x, out, last_length(x))
    r.epsilon = epsilon
    if gamma is not None:
        r.gamma = <const float *>cnp.PyArray_DATA(gamma)
    if beta is not None:
        r.beta = <const float *>cnp.PyArray_DATA(beta)
    if residual is not None:
        r.residual = cnp.PyArray_BYTES(residual)
    run(&r, out)


def rms_norm(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float epsilon, cnp.ndarray gamma=None):
    """Compute the RMS norm of x over the last axis. All are C-contiguous; gamma is float32."""
    cdef mp_row_call r
    describe(&r, MP_RMS_NORM, fmt, x, out, last_length(x))
    r.epsilon = epsilon
    if gamma is not None:
        r.gamma = <const float *>cnp.PyArray_DATA(gamma)
    run(&r, out)


cdef void describe_gradient(mp_row_gradient *g, tuple formats, cnp.ndarray x, cnp.ndarray d, cnp.ndarray out) noexcept:
    """Describe the gradients of rows; x, d and out have the same shape and are C-contiguous."""
    memset(g, 0, sizeof(g[0]))
    g.format, g.out_format = formats
    g.size, g.out_size = <int>cnp.PyArray_ITEMSIZE(x), <int>cnp.PyArray_ITEMSIZE(out)
    g.length = last_length(x)
    g.rows = cnp.PyArray_SIZE(x) // g.length
    g.x, g.d, g.out = cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(d), cnp.PyArray_BYTES(out)


cdef int run_gradient(mp_row_gradient *g, cnp.ndarray out) except -1:
    run_operation(MP_OPERATION_ROW_GRADIENTS, g, "gradient of rows", out,
                  mp_cost(g.rows, 0, MP_NO_ARITHMETIC, g.rows * g.length * (2 * g.size + g.out_size)))
    return 0


def softmax_gradient(tuple formats not None, cnp.ndarray y not None, cnp.ndarray d not None, cnp.ndarray out not None,
                     float scale, bint is_log=False):
    """Compute the gradient of a softmax y, or of its logarithm. formats: (of y and d, of out). No length is 0."""
    cdef mp_row_gradient g
    describe_gradient(&g, formats, y, d, out)
    g.what, g.scale = MP_LOG_SOFTMAX_GRADIENT if is_log else MP_SOFTMAX_GRADIENT, scale
    run_gradient(&g, out)


def norm_gradient(tuple formats not None, tuple arrays not None, cnp.ndarray gamma, float epsilon, bint is_centred):
    """Compute the gradient of a layer norm, or of an RMS norm.

    arrays: (x, residual or None, d, out, shares or None). formats: (of x, residual and d; of out). `shares`, d times
    the normalized elements, and gamma are float32.
    """
    cdef mp_row_gradient g
    cdef cnp.ndarray residual = arrays[1], out = arrays[3], shares = arrays[4]
    describe_gradient(&g, formats, arrays[0], arrays[2], out)
    g.what, g.epsilon = MP_LAYER_NORM_GRADIENT if is_centred else MP_RMS_NORM_GRADIENT, epsilon
    if residual is not None:
        g.residual = cnp.PyArray_BYTES(residual)
    if gamma is not None:
        g.gamma = <const float *>cnp.PyArray_DATA(gamma)
    if shares is not None:
        g.shares = <float *>cnp.PyArray_DATA(shares)
        if mp_recorder()[0] != NULL:
            recording().add_buffer(shares)
    run_gradient(&g, out)


cdef Py_ssize_t AT_ONCE = 1 << 18  # elements between two checks for signals


def gelu_float64(cnp.ndarray x not None, cnp.ndarray out not None):
    """Compute out = x erfc(-x / sqrt(2)) / 2 in float64 with the C library; C-contiguous, of equal size."""
    cdef const double *source = <const double *>cnp.PyArray_DATA(x)
    cdef double *result = <double *>cnp.PyArray_DATA(out)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(x)
    cdef mp_listener listener
    listen(&listener)
    with nogil:
        for i in range(n):
            if i % AT_ONCE == AT_ONCE - 1 and mp_stopped():
                break
            result[i] = source[i] * (0.5 * erfc(-source[i] * M_SQRT1_2))
    heard(&listener)


def erf_float64(cnp.ndarray x not None, cnp.ndarray out not None, bint is_complement):
    """Compute out = erf(x), or 1 - erf(x), in float64 with the C library; C-contiguous, of equal size."""
    cdef const double *source = <const double *>cnp.PyArray_DATA(x)
    cdef double *result = <double *>cnp.PyArray_DATA(out)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(x)
    cdef mp_listener listener
    listen(&listener)
    with nogil:
        for i in range(n):
            if i % AT_ONCE == AT_ONCE - 1 and mp_stopped():
                break
            result[i] = erfc(source[i]) if is_complement else erf(source[i])
    heard(&listener)


def activate(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, int activation):
    """Compute out = activation(x), element by element; C-contiguous."""
    cdef mp_row_call r
    cdef bint keeps_rows = mp_recorder()[0] != NULL and cnp.PyArray_NDIM(x) > 0  # their number may differ between runs
    describe(&r, MP_ACTIVATE, fmt, x, out, last_length(x) if keeps_rows else min(cnp.PyArray_SIZE(x), 1024))
    r.activation = <mp_activation>activation
    run(&r, out)
    if r.rows * r.length < cnp.PyArray_SIZE(x):
        tail = r.rows * r.length
        activate(fmt, x.reshape(-1)[tail:], out.reshape(-1)[tail:], activation)


def all_finite(int fmt, cnp.ndarray x not None):
    """Return whether no element of `x`, an array without gaps in memory, is infinite or NaN."""
    cdef const mp_kernels *table = mp_active()
    cdef const void *data = cnp.PyArray_DATA(x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef Py_ssize_t first = 0, bytes = cnp.PyArray_ITEMSIZE(x)
    cdef bint finite = True
    cdef mp_listener listener
    listen(&listener)
    with nogil:
        while finite and first < n and not (first and mp_stopped()):
            finite = table.casts.all_finite[fmt](<const char *>data + first * bytes, min(AT_ONCE, n - first))
            first += AT_ONCE
    heard(&listener)
    return finite
