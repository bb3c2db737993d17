"""Pooling of ragged sequences to one row each (library/pooling.h), and of windows (library/window_pooling.h).

Also the windows of convolutions (library/window_rows.h), and depthwise convolution (library/depthwise.h).
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.header cimport MP_F32, mp_activation, mp_element_bytes
from mp_core.core.library cimport (
    MP_FIRST_ROW, MP_LARGEST, MP_LAST_ROW, MP_MEAN, MP_MEAN_BY_PLACE, MP_MEAN_BY_ROOT, MP_NO_ARITHMETIC,
    MP_OPERATION_DEPTHWISE, MP_OPERATION_POOLING, MP_OPERATION_POOLING_GRADIENT, MP_OPERATION_WINDOW_POOLING, mp_cost,
    mp_pool, mp_pooling, mp_window_array, mp_window_rows,
)
from mp_core.core.recording cimport run_operation
from mp_core.core.run cimport refuse_huge
from mp_core.core.training cimport mp_pooling_gradient

cnp.import_array()

cdef extern from "library/window_pooling.h" nogil:
    ctypedef enum mp_window_what:
        MP_WINDOW_MAXIMA, MP_WINDOW_SUMS, MP_WINDOW_MAXIMA_GRADIENT, MP_WINDOW_SUMS_GRADIENT

    ctypedef struct mp_window_pooling:
        mp_window_what what
        mp_window_array x, d, out
        Py_ssize_t batch, channels
        Py_ssize_t *length
        Py_ssize_t *window
        Py_ssize_t *step
        Py_ssize_t *windows

cdef extern from "library/depthwise.h" nogil:
    ctypedef struct mp_depthwise:
        mp_window_array x, out
        mp_window_rows windows
        Py_ssize_t images
        const float *weights
        const float *bias
        mp_activation activation

POOLINGS = {"mean": MP_MEAN, "mean_sqrt_len_tokens": MP_MEAN_BY_ROOT, "weightedmean": MP_MEAN_BY_PLACE,
            "cls": MP_FIRST_ROW, "lasttoken": MP_LAST_ROW, "max": MP_LARGEST}
WINDOWS = {"maxima": MP_WINDOW_MAXIMA, "sums": MP_WINDOW_SUMS, "maxima gradient": MP_WINDOW_MAXIMA_GRADIENT,
           "sums gradient": MP_WINDOW_SUMS_GRADIENT}


def pool(int fmt, int how, cnp.ndarray x not None, cnp.ndarray offsets not None, cnp.ndarray weights not None,
         Py_ssize_t skipped, cnp.ndarray out not None, Py_ssize_t column):
    """Pool the rows of sequence i, except its first `skipped`, into out[i]; `how` is a value of :data:`POOLINGS`.

    A mean is the sum of weights[j] x[offsets[i] + j] over the rows j of sequence i, divided by the number of rows minus
    `skipped`, by the square root of that number, or by the sum of the weights.

    - `x`: shape (rows, width), format `fmt`, last stride 1. `offsets`: int32, ascending.
    - `weights`: of x's type, at least as long as the longest sequence: `skipped` zeros, then ones. For the mean
      weighted by position, whose x is float32: `skipped` zeros, then skipped + 1, skipped + 2, ...
    - `out`: float32, C-contiguous, (sequences, at least column + width). The result is written from `column` on.
    """
    cdef mp_pooling t
    cdef Py_ssize_t size = mp_element_bytes[fmt]
    memset(&t, 0, sizeof(t))
    t.offsets, t.sequences, t.skipped, t.how = (
        <const int32_t *>cnp.PyArray_DATA(offsets), cnp.PyArray_DIM(offsets, 0) - 1, skipped, <mp_pool>how)
    t.sums.m, t.sums.n = 1, cnp.PyArray_DIM(x, 1)
    t.sums.a.data, t.sums.a.format, t.sums.a.size = cnp.PyArray_BYTES(weights), fmt, size
    t.sums.a.rs, t.sums.a.cs = cnp.PyArray_NBYTES(weights), size
    t.sums.b.data, t.sums.b.format = cnp.PyArray_BYTES(x), fmt
    t.sums.b.rs, t.sums.b.cs = cnp.PyArray_STRIDE(x, 0), size
    t.sums.out.data, t.sums.out.rs, t.sums.out.size = (
        cnp.PyArray_BYTES(out) + 4 * column, cnp.PyArray_STRIDE(out, 0), 4)
    t.sums.common.epilogue.out_format = MP_F32
    refuse_huge(cnp.PyArray_DIM(x, 0))
    run_operation(MP_OPERATION_POOLING, &t, "pooling", out,
                  mp_cost(t.sequences, 0, MP_NO_ARITHMETIC, cnp.PyArray_NBYTES(x)))


def pooling_gradient(int fmt, int how, cnp.ndarray d not None, cnp.ndarray offsets not None, cnp.ndarray x not None,
                     Py_ssize_t skipped, cnp.ndarray out not None, Py_ssize_t column):
    """Compute the gradient of :func:`pool` with respect to `x`. `d` has the gradient of the result from `column` on.

    `x` and `out` are C-contiguous, of format `fmt` and the same shape; `d` is float32 and C-contiguous.
    """
    cdef mp_pooling_gradient t
    memset(&t, 0, sizeof(t))
    t.how, t.format, t.size, t.skipped = <mp_pool>how, fmt, mp_element_bytes[fmt], skipped
    t.x, t.out = cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(out)
    t.rows, t.width = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1)
    t.d, t.d_stride = <const float *>cnp.PyArray_DATA(d) + column, cnp.PyArray_DIM(d, 1)
    t.offsets, t.sequences = <const int32_t *>cnp.PyArray_DATA(offsets), cnp.PyArray_DIM(offsets, 0) - 1
    run_operation(MP_OPERATION_POOLING_GRADIENT, &t, "gradient of pooling", out,
                  mp_cost(t.sequences, 0, MP_NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(out)))


cdef int set_array(mp_window_array *a, cnp.ndarray x, object fmt) except -1:
    a.data, a.format, a.size = cnp.PyArray_BYTES(x), fmt, <int>cnp.PyArray_ITEMSIZE(x)
    return 0


def pool_windows(str what not None, tuple window not None, tuple step not None, dict formats not None,
                 cnp.ndarray out not None, cnp.ndarray x=None, cnp.ndarray d=None):
    """Compute maxima or sums of windows of `x`, or the gradient of x from their gradient `d`.

    `what` is a key of :data:`WINDOWS`. `window` and `step` have the length of a window, and the distance to the next
    window, along each of the one to three axes of places. x and its gradient have shape (batch, places..., channels);
    results and `d` have shape (batch, windows..., channels), for the windows completely inside, at least one. All are
    C-contiguous, without a length 0, of types in `formats` that kernels write. "sums gradient" does not read `x`.
    """
    cdef mp_window_pooling p
    cdef cnp.ndarray places = out if d is not None else x
    cdef int axis, first = 3 - <int>len(window)
    memset(&p, 0, sizeof(p))
    p.what = <mp_window_what>WINDOWS[what]
    set_array(&p.out, out, formats[out.dtype])
    if x is not None:
        set_array(&p.x, x, formats[x.dtype])
    if d is not None:
        set_array(&p.d, d, formats[d.dtype])
    p.batch, p.channels = cnp.PyArray_DIM(places, 0), cnp.PyArray_DIM(places, cnp.PyArray_NDIM(places) - 1)
    for axis in range(3):
        p.length[axis] = p.window[axis] = p.step[axis] = p.windows[axis] = 1
    for axis in range(first, 3):
        p.length[axis] = cnp.PyArray_DIM(places, axis - first + 1)
        p.window[axis], p.step[axis] = window[axis - first], step[axis - first]
        p.windows[axis] = (p.length[axis] - p.window[axis]) // p.step[axis] + 1
    run_operation(MP_OPERATION_WINDOW_POOLING, &p, what, out,
                  mp_cost(p.batch, 0, MP_NO_ARITHMETIC, (2 if d is not None else 1) * cnp.PyArray_NBYTES(places)))


cdef int describe_windows(cnp.ndarray x, object windows, Py_ssize_t groups, mp_window_rows *w) except -1:
    """Describe windows of `x`, shape (images, one to three lengths, channels); the channels must be contiguous.

    `windows` has the attributes `size`, `strides`, `dilation`, `before` (places of padding before the first one) and
    `counts` (of windows), tuples of int with a number for each axis of places, and `fill`, the byte of padding.
    """
    cdef int axis, rank = cnp.PyArray_NDIM(x) - 2, to
    memset(w, 0, sizeof(mp_window_rows))
    w.image, w.channels = cnp.PyArray_STRIDE(x, 0), cnp.PyArray_DIM(x, rank + 1) // groups
    w.fill = windows.fill
    for to in range(3):
        w.length[to] = w.count[to] = w.size[to] = w.step[to] = w.dilation[to] = 1
    for axis in range(rank):
        to = 3 - rank + axis
        w.length[to], w.stride[to] = cnp.PyArray_DIM(x, axis + 1), cnp.PyArray_STRIDE(x, axis + 1)
        w.size[to], w.step[to], w.dilation[to] = windows.size[axis], windows.strides[axis], windows.dilation[axis]
        w.before[to], w.count[to] = windows.before[axis], windows.counts[axis]
    return 0


def multiply_channels(cnp.ndarray x not None, cnp.ndarray weights not None, object windows, cnp.ndarray bias,
                      int activation, dict formats not None, cnp.ndarray out not None):
    """Write ``activation(sum over the places p of windows[p] * weights[p] + bias)`` to `out`, channel by channel.

    - `x`, `windows`: as for :func:`describe_windows`; x is float.
    - `weights`: C-contiguous float32 (places, channels); `bias`: contiguous float32 (channels,).
    - `out`: C-contiguous (images, windows..., channels), of a type in `formats`.
    """
    cdef mp_depthwise d
    memset(&d, 0, sizeof(d))
    describe_windows(x, windows, 1, &d.windows)
    set_array(&d.x, x, formats[x.dtype])
    set_array(&d.out, out, formats[out.dtype])
    d.images, d.weights = cnp.PyArray_DIM(x, 0), <const float *>cnp.PyArray_DATA(weights)
    d.bias = NULL if bias is None else <const float *>cnp.PyArray_DATA(bias)
    d.activation = <mp_activation>activation
    run_operation(MP_OPERATION_DEPTHWISE, &d, "depthwise convolution", out,
                  mp_cost(d.images, 2.0 * cnp.PyArray_SIZE(out) * cnp.PyArray_DIM(weights, 0), MP_NO_ARITHMETIC,
                          cnp.PyArray_NBYTES(x) + cnp.PyArray_NBYTES(out)))
