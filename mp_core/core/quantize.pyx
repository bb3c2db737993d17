"""Quantization to 8-bit integers: array loops around the kernels, float32 in between."""

cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stdint cimport int32_t

from mp_core.core.cpu cimport kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport MP_F32, mp_kernels

import numpy as np

cnp.import_array()

cdef double WORTHWHILE = 1 << 17

# An array seen as (outer, channels, inner), C-contiguous; a scale belongs to each channel. With inner == 1 the channels
# run along the rows of an (outer, channels) matrix, else each (outer, channel) is a run of `inner` elements.
cdef struct Blocks:
    const mp_kernels *kernels
    int format, size
    Py_ssize_t outer, channels, inner, share
    const char *x
    char *q
    float *scale
    float *lo
    float *hi
    int32_t *zero_point
    int32_t qmin, qmax
    float *result
    bint failed

cdef enum:
    CHUNK = 1024


cdef const float *as_f32(const Blocks *b, Py_ssize_t first, Py_ssize_t n, float *middle) noexcept nogil:
    """Elements [first, first + n) of x as float32: in place, or widened into `middle`."""
    if b.format == MP_F32:
        return <const float *>b.x + first
    b.kernels.widen[b.format](b.x + first * b.size, middle, n, 0)
    return middle


cdef void range_of_channel(void *context, Py_ssize_t channel) noexcept nogil:
    cdef Blocks *b = <Blocks *>context
    cdef float middle[CHUNK]
    cdef Py_ssize_t outer, i, start, n
    for outer in range(b.outer):
        start, i = (outer * b.channels + channel) * b.inner, 0
        while i < b.inner:
            n = min(b.inner - i, <Py_ssize_t>CHUNK)
            b.kernels.value_range(as_f32(b, start + i, n, middle), n, b.lo + channel, b.hi + channel)
            i += n


cdef void range_of_columns(void *context, Py_ssize_t index) noexcept nogil:
    """The range of a strip of columns, over all rows."""
    cdef Blocks *b = <Blocks *>context
    cdef float middle[CHUNK]
    cdef Py_ssize_t outer, first = index * CHUNK, n = min(b.channels - first, <Py_ssize_t>CHUNK)
    for outer in range(b.outer):
        b.kernels.value_range_columns(as_f32(b, outer * b.channels + first, n, middle), n, b.lo + first, b.hi + first)


cdef void quantize_share(void *context, Py_ssize_t index) noexcept nogil:
    """A share of the runs (inner > 1) or rows (inner == 1)."""
    cdef Blocks *b = <Blocks *>context
    cdef float middle[CHUNK]
    cdef Py_ssize_t run, i, n, start, channel, step, length = b.inner
    cdef Py_ssize_t runs = b.outer * b.channels
    if b.inner == 1:
        runs, length = b.outer, b.channels
    step = 1 if b.inner == 1 else 0
    for run in range(index * b.share, min((index + 1) * b.share, runs)):
        start, i = run * length, 0
        while i < length:
            n = min(length - i, <Py_ssize_t>CHUNK)
            channel = i if step else run % b.channels
            if b.result == NULL:
                b.kernels.quantize(as_f32(b, start + i, n, middle), n, b.scale + channel, b.zero_point + channel,
                                   step, b.qmin, b.qmax, b.q + start + i)
            else:
                b.kernels.dequantize(b.q + start + i, n, b.qmin < 0, b.scale + channel, b.zero_point + channel, step,
                                     b.result + start + i)
            i += n


cdef int run_shares(Blocks *b) except -1:
    cdef Py_ssize_t runs = b.outer if b.inner == 1 else b.outer * b.channels
    cdef Py_ssize_t length = b.channels if b.inner == 1 else b.inner
    cdef int threads = threads_for(<double>runs * length, WORTHWHILE)
    if runs and length:
        b.share = max(1, (runs + 4 * threads - 1) // (4 * threads)) if threads > 1 else runs
        with nogil:
            parallel_for(threads, (runs + b.share - 1) // b.share, quantize_share, b)
    return 0


def value_range(cnp.ndarray x not None, int fmt, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner):
    """Return (lo, hi), float32 (channels,): each channel's finite range in C-contiguous `x`; +Inf, -Inf if none."""
    cdef cnp.ndarray lo = np.full(channels, np.inf, np.float32), hi = np.full(channels, -np.inf, np.float32)
    cdef Blocks b
    cdef int threads = threads_for(<double>outer * channels * inner, WORTHWHILE)
    b.kernels, b.format, b.size, b.x = kernels(), fmt, cnp.PyArray_ITEMSIZE(x), cnp.PyArray_BYTES(x)
    b.outer, b.channels, b.inner = outer, channels, inner
    b.lo, b.hi = <float *>cnp.PyArray_DATA(lo), <float *>cnp.PyArray_DATA(hi)
    if outer and inner:
        with nogil:
            if inner == 1:
                parallel_for(threads, (channels + CHUNK - 1) // CHUNK, range_of_columns, &b)
            else:
                parallel_for(threads, channels, range_of_channel, &b)
    return lo, hi


def quantize(cnp.ndarray x not None, int fmt, cnp.ndarray q not None, cnp.ndarray scale not None,
             cnp.ndarray zero_point not None, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner,
             int qmin, int qmax):
    """q = clamp(round(x / scale) + zero_point); all C-contiguous, float32 `scale`, int32 `zero_point` (channels,)."""
    cdef Blocks b
    b.kernels, b.format, b.size, b.x = kernels(), fmt, cnp.PyArray_ITEMSIZE(x), cnp.PyArray_BYTES(x)
    b.outer, b.channels, b.inner, b.result = outer, channels, inner, NULL
    b.q, b.qmin, b.qmax = cnp.PyArray_BYTES(q), qmin, qmax
    b.scale, b.zero_point = <float *>cnp.PyArray_DATA(scale), <int32_t *>cnp.PyArray_DATA(zero_point)
    run_shares(&b)


def dequantize(cnp.ndarray q not None, cnp.ndarray x not None, cnp.ndarray scale not None,
               cnp.ndarray zero_point not None, Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner, bint signed):
    """x = scale * (q - zero_point), float32; all C-contiguous."""
    cdef Blocks b
    b.kernels, b.outer, b.channels, b.inner = kernels(), outer, channels, inner
    b.q, b.qmin, b.result = cnp.PyArray_BYTES(q), -128 if signed else 0, <float *>cnp.PyArray_DATA(x)
    b.scale, b.zero_point = <float *>cnp.PyArray_DATA(scale), <int32_t *>cnp.PyArray_DATA(zero_point)
    run_shares(&b)


cdef void quantize_row(void *context, Py_ssize_t index) noexcept nogil:
    """Rows one by one: range, scale, quantize, while the row is in the first-level cache."""
    cdef Blocks *b = <Blocks *>context
    cdef Py_ssize_t row
    cdef float lo, hi, amax
    cdef const float *x
    cdef float *middle = <float *>scratch(b.inner * 4)
    if middle == NULL:
        b.failed = True
        return
    for row in range(index * b.share, min((index + 1) * b.share, b.channels)):
        x = as_f32(b, row * b.inner, b.inner, middle)
        lo, hi = INFINITY, -INFINITY
        b.kernels.value_range(x, b.inner, &lo, &hi)
        amax = max(hi, -lo)
        b.scale[row] = symmetric_scale(amax, b.qmax)
        b.kernels.quantize(x, b.inner, b.scale + row, b.zero_point, 0, b.qmin, b.qmax, b.q + row * b.inner)


cdef inline float symmetric_scale(float amax, int qmax) noexcept nogil:
    """amax / qmax, at least the smallest float32; 1 where there is nothing to scale (all zero, empty, not finite)."""
    cdef float scale = amax / <float>qmax
    if not amax > 0:
        return 1
    return scale if scale > 0 else <float>1.401298464324817e-45


def symmetric_scales(cnp.ndarray lo not None, cnp.ndarray hi not None, int qmax):
    """The scale of each channel's range [lo, hi]; see symmetric_scale."""
    cdef cnp.ndarray scales = np.empty(lo.shape[0], np.float32)
    cdef float *s = <float *>cnp.PyArray_DATA(scales)
    cdef const float *low = <const float *>cnp.PyArray_DATA(lo)
    cdef const float *high = <const float *>cnp.PyArray_DATA(hi)
    cdef Py_ssize_t i
    for i in range(lo.shape[0]):
        s[i] = symmetric_scale(max(high[i], -low[i]), qmax)
    return scales


def quantize_rows(cnp.ndarray x not None, int fmt, cnp.ndarray q not None, cnp.ndarray scale not None,
                  Py_ssize_t rows, Py_ssize_t length):
    """Symmetric int8, a scale per row found and applied in one pass over memory; writes `q` and `scale` (rows,)."""
    cdef Blocks b
    cdef int32_t zero = 0
    cdef int threads = threads_for(<double>rows * length, WORTHWHILE)
    b.kernels, b.format, b.size, b.x = kernels(), fmt, cnp.PyArray_ITEMSIZE(x), cnp.PyArray_BYTES(x)
    b.channels, b.inner, b.failed = rows, length, False
    b.q, b.qmin, b.qmax, b.zero_point = cnp.PyArray_BYTES(q), -127, 127, &zero
    b.scale = <float *>cnp.PyArray_DATA(scale)
    if rows:
        b.share = max(1, (rows + 4 * threads - 1) // (4 * threads)) if threads > 1 else rows
        with nogil:
            parallel_for(threads, (rows + b.share - 1) // b.share, quantize_row, &b)
    if b.failed:
        raise MemoryError("no memory for the scratch of a row")
