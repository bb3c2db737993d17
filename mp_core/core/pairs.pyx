"""Elementwise functions (library/elementwise.h), rotary positions (library/rotary.h), sums of overlapping windows
(library/windows.h) and random numbers (library/random.h)."""

import numpy as np

cimport numpy as cnp
from libc.math cimport ceil
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from mp_core.core.header cimport MP_I8, MP_I32, MP_SATURATE, MP_U8, mp_activation, mp_element_bytes
from mp_core.core.library cimport (
    MP_BOOL, MP_DOUBLE, MP_I16, MP_I64, MP_NO_ARITHMETIC, MP_NO_ROW, MP_OPERATION_ELEMENTWISE, MP_OPERATION_RANDOM,
    MP_OPERATION_ROTARY, MP_OPERATION_WINDOWS, MP_SIGNED, MP_SINGLE, MP_U16, MP_U32, MP_U64, MP_UNSIGNED, mp_cost,
    mp_elementwise, mp_elementwise_names, mp_elementwise_operands, mp_join_axes, mp_recorder, mp_rotary, mp_wide,
)
from mp_core.core.recording cimport run_operation
from mp_core.core.training cimport (
    MP_DROPOUT, MP_NEXT_KEY, MP_NORMAL, MP_ROUND_RANDOMLY, MP_UNIFORM, mp_join_windows, mp_random, mp_windows,
)

cnp.import_array()

BOOL = MP_BOOL  # the format of bool
RANDOM = {"dropout": MP_DROPOUT, "uniform": MP_UNIFORM, "normal": MP_NORMAL, "next key": MP_NEXT_KEY}
INTEGERS = {np.dtype(name): number for name, number in {
    "bool": MP_BOOL, "int8": MP_I8, "uint8": MP_U8, "int16": MP_I16, "uint16": MP_U16, "int32": MP_I32,
    "uint32": MP_U32, "int64": MP_I64, "uint64": MP_U64}.items()}
SINGLE, SIGNED, UNSIGNED, DOUBLE = MP_SINGLE, MP_SIGNED, MP_UNSIGNED, MP_DOUBLE  # the types in which it computes
FUNCTIONS = {}  # name -> number: the rows of library/elementwise.def
while mp_elementwise_names[len(FUNCTIONS)] != NULL:
    FUNCTIONS[mp_elementwise_names[len(FUNCTIONS)].decode()] = len(FUNCTIONS)


def elementwise(str name not None, int activation, tuple operands not None, tuple formats not None,
                cnp.ndarray out not None, int out_format, int wide):
    """Compute out = function(activation(first), second, ...); `name` is a key of :data:`FUNCTIONS`.

    All arrays have the same shape, with at least one axis and no length 0. Operands have any strides; `out` is
    C-contiguous. `wide` is the type of the computation. With SINGLE, formats are those of floats and BOOL (for the mask
    of "where" and results of comparisons); otherwise also those of float64 and of :data:`INTEGERS`.
    """
    cdef mp_elementwise e
    cdef cnp.ndarray x
    cdef Py_ssize_t bytes = cnp.PyArray_ITEMSIZE(out)
    cdef int i, axis
    memset(&e, 0, sizeof(e))
    if len(operands) != mp_elementwise_operands[<int>FUNCTIONS[name]]:
        raise TypeError(f"{name} takes {mp_elementwise_operands[<int>FUNCTIONS[name]]} arrays, not {len(operands)}")
    e.function, e.activation, e.axes = FUNCTIONS[name], <mp_activation>activation, cnp.PyArray_NDIM(out)
    e.wide = <mp_wide>wide
    for axis in range(e.axes):
        e.shape[axis] = cnp.PyArray_DIM(out, axis)
    for i, x in enumerate(operands):
        e.operand[i].data, e.operand[i].format, e.operand[i].size = (
            cnp.PyArray_BYTES(x), formats[i], <int>cnp.PyArray_ITEMSIZE(x))
        bytes += e.operand[i].size
        for axis in range(e.axes):
            e.operand[i].stride[axis] = cnp.PyArray_STRIDE(x, axis)
    e.out, e.out_format, e.out_size = cnp.PyArray_BYTES(out), out_format, <int>cnp.PyArray_ITEMSIZE(out)
    mp_join_axes(&e, 1 if mp_recorder()[0] != NULL else 0)  # in a plan, the length of axis 0 may differ between runs
    run_operation(MP_OPERATION_ELEMENTWISE, &e, name if activation == 0 else "gate", out,
                  mp_cost(e.shape[0], 0, MP_NO_ARITHMETIC, cnp.PyArray_SIZE(out) * bytes))


def add_windows(int fmt, cnp.ndarray x not None, cnp.ndarray to not None):
    """Compute to[index] += x[index] for every index, in C order; `to` may be a view with repeated elements.

    Both have the same shape, with at least one axis and no length 0. `x` has format `fmt` and is C-contiguous; `to` is
    float32 of any strides.
    """
    cdef mp_windows w
    cdef int axis
    memset(&w, 0, sizeof(w))
    w.x, w.format, w.size, w.to = cnp.PyArray_BYTES(x), fmt, mp_element_bytes[fmt], <float *>cnp.PyArray_DATA(to)
    w.axes = cnp.PyArray_NDIM(to)
    for axis in range(w.axes):
        w.shape[axis], w.stride[axis] = cnp.PyArray_DIM(to, axis), cnp.PyArray_STRIDE(to, axis)
    mp_join_windows(&w)
    run_operation(MP_OPERATION_WINDOWS, &w, "sums over windows", to,
                  mp_cost(w.shape[0], 0, MP_NO_ARITHMETIC, 3 * cnp.PyArray_NBYTES(x)))


def randomize(str kind not None, int fmt, cnp.ndarray key not None, cnp.ndarray out not None, cnp.ndarray x=None,
              double rate=0.0, tuple shared=(), cnp.ndarray rows_before=None):
    """Write random numbers to `out`; `kind` is a key of :data:`RANDOM` (library/random.h).

    - `key`: uint32 (seed, draw), C-contiguous, read when the operation runs.
    - `out`: C-contiguous, at least one axis, no length 0; float32, or for "next key" uint32 of the shape of `key`.
    - Dropout: `x` and `out` have the same shape and format `fmt`, and `x` is C-contiguous. A share `rate`, below 1, of
      its elements is dropped. Along axes in `shared`, all elements share one random number.
    - `rows_before`: int32 of one element, read when the operation runs. The numbers of that many indices of axis 0 are
      skipped.
    """
    cdef mp_random r
    memset(&r, 0, sizeof(r))
    r.kind, r.format, r.size = RANDOM[kind], fmt, <int>cnp.PyArray_ITEMSIZE(out)
    r.key, r.out = <const uint32_t *>cnp.PyArray_DATA(key), cnp.PyArray_BYTES(out)
    if rows_before is not None:
        r.rows_before = <const int32_t *>cnp.PyArray_DATA(rows_before)
    if x is not None:
        r.x, r.factor = cnp.PyArray_BYTES(x), 1 / (1 - rate)
        r.least = <uint64_t>ceil(rate * 2.0**53)
    set_numbers(&r, out, shared)
    run_operation(MP_OPERATION_RANDOM, &r, kind, out,
                  mp_cost(r.shape[0], 0, MP_NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(out)))


cdef void set_numbers(mp_random *r, cnp.ndarray out, tuple shared):
    """Set the shape of `out`, and how the number of an element follows from its indices."""
    cdef int axis
    cdef Py_ssize_t step = 1
    r.axes = cnp.PyArray_NDIM(out)
    for axis in range(r.axes - 1, -1, -1):
        r.shape[axis] = cnp.PyArray_DIM(out, axis)
        r.step[axis] = 0 if axis in shared else step
        step *= 1 if axis in shared else r.shape[axis]


def round_randomly(int fmt, int out_format, cnp.ndarray key not None, cnp.ndarray x not None, cnp.ndarray out not None,
                   tuple stream=(0, 0, 0), bint saturate=False):
    """Round `x` of format `fmt` stochastically to `out` of format `out_format` (mp_rounding in library/random.h).

    `x` and `out` have the same shape, with at least one axis and no length 0. They are C-contiguous and do not overlap.
    `key` is as in :func:`randomize`. `stream` are words 1 to 3 of the counters.
    """
    cdef mp_random r
    cdef int i
    memset(&r, 0, sizeof(r))
    r.kind, r.key = MP_ROUND_RANDOMLY, <const uint32_t *>cnp.PyArray_DATA(key)
    r.x, r.format, r.size = cnp.PyArray_BYTES(x), fmt, <int>cnp.PyArray_ITEMSIZE(x)
    r.out, r.rounding.format, r.out_size = cnp.PyArray_BYTES(out), out_format, <int>cnp.PyArray_ITEMSIZE(out)
    r.rounding.mode = MP_SATURATE if saturate else 0
    for i in range(3):
        r.rounding.stream[i] = stream[i]
    set_numbers(&r, out, ())
    run_operation(MP_OPERATION_RANDOM, &r, "stochastic rounding", out,
                  mp_cost(r.shape[0], 0, MP_NO_ARITHMETIC, cnp.PyArray_NBYTES(x) + cnp.PyArray_NBYTES(out)))


def turn(int fmt, cnp.ndarray x not None, cnp.ndarray angles not None, cnp.ndarray out not None, Py_ssize_t length,
         cnp.ndarray offsets=None, Py_ssize_t few=0, cnp.ndarray past=None):
    """Set out[row, i] to the vector x[row, i], rotated by the angles of the row's position in its sequence.

    - `x`: format `fmt`, shape (rows, vectors, size); the vectors of a row are contiguous. `out` is C-contiguous. No
      length is 0.
    - `angles`: float32 (positions, size), C-contiguous; in each row size / 2 cosines, then as many sines.
    - Sequences have `length` rows each; or with `offsets` (int32, ascending from 0 to the number of rows), sequence i
      has the rows from offsets[i] to offsets[i + 1]. If `few` is not 0, sequences of more than `few` rows use the
      angles after the first `few`. With `past` (int32), rows of sequence i continue a sequence of past[i] rows.

    Raise IndexError for a position beyond the table.
    """
    cdef mp_rotary t
    memset(&t, 0, sizeof(t))
    t.x.data, t.x.format, t.x.size, t.x.stride = (
        cnp.PyArray_BYTES(x), fmt, mp_element_bytes[fmt], cnp.PyArray_STRIDE(x, 0))
    t.out = t.x
    t.out.data, t.out.stride = cnp.PyArray_BYTES(out), cnp.PyArray_STRIDE(out, 0)
    t.angles, t.positions = <const float *>cnp.PyArray_DATA(angles), cnp.PyArray_DIM(angles, 0)
    t.rows, t.vectors, t.half, t.length = (
        cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2) // 2, length)
    if offsets is not None:
        t.offsets, t.few = <const int32_t *>cnp.PyArray_DATA(offsets), few
    if past is not None:
        t.past = <const int32_t *>cnp.PyArray_DATA(past)
    if run_operation(MP_OPERATION_ROTARY, &t, "rotary", out,
                     mp_cost(t.rows, 0, MP_NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(out))) == MP_NO_ROW:
        raise IndexError(f"a sequence is longer than the table of angles, which has {t.positions} positions")
