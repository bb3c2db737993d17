"""Two arrays element by element (library/pair.h), and vectors that turn with their positions (library/rotary.h)."""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.header cimport MP_LINEAR, mp_activation, mp_element_bytes
from mp_core.core.library cimport (
    MP_ADD, MP_MULTIPLY, MP_NO_ARITHMETIC, MP_NO_ROW, MP_OPERATION_PAIR, MP_OPERATION_ROTARY, mp_combination, mp_cost,
    mp_pair, mp_rotary, mp_row_array,
)
from mp_core.core.recording cimport run_operation

cnp.import_array()

ADD, MULTIPLY = MP_ADD, MP_MULTIPLY


cdef mp_row_array rows_of(cnp.ndarray x, int fmt) noexcept:
    """Describe rows: those of the last axis, if the others have one stride in common."""
    cdef mp_row_array rows
    cdef int axis = cnp.PyArray_NDIM(x) - 2
    while axis > 0 and cnp.PyArray_DIM(x, axis) == 1:
        axis -= 1
    rows.data, rows.format, rows.size = cnp.PyArray_BYTES(x), fmt, mp_element_bytes[fmt]
    rows.stride = cnp.PyArray_STRIDE(x, axis) if axis >= 0 else 0
    return rows


def combine(int how, int activation, cnp.ndarray x not None, int x_format, cnp.ndarray y not None, int y_format,
            cnp.ndarray out not None, int out_format):
    """out = activation(x) + y, or activation(x) * y; `how` is ADD or MULTIPLY.

    All have one shape, of at least one axis and without a length of 0, and unit last stride; all other axes of one of
    them have one stride in common. `out` is C-contiguous.
    """
    cdef mp_pair p
    memset(&p, 0, sizeof(p))
    p.how, p.activation = <mp_combination>how, <mp_activation>activation
    p.length = cnp.PyArray_DIM(out, cnp.PyArray_NDIM(out) - 1)
    p.rows = cnp.PyArray_SIZE(out) // p.length
    p.x, p.y, p.out = rows_of(x, x_format), rows_of(y, y_format), rows_of(out, out_format)
    name = "gate" if p.activation != MP_LINEAR else "sum" if how == MP_ADD else "multiplication"
    run_operation(MP_OPERATION_PAIR, &p, name, out,
                  mp_cost(p.rows, 0, MP_NO_ARITHMETIC, p.rows * p.length * (p.x.size + p.y.size + p.out.size)))


def turn(int fmt, cnp.ndarray x not None, cnp.ndarray angles not None, cnp.ndarray out not None, Py_ssize_t length,
         cnp.ndarray offsets=None):
    """out[row, i] = the vector x[row, i], turned by the angles of the row's position in its sequence.

    `x`, of format `fmt`, has shape (rows, vectors, size), its vectors one behind the other; `out` is C-contiguous. No
    length is 0. `angles` is float32, C-contiguous, (positions, size): size / 2 cosines, then as many sines. Sequences
    have `length` rows each or, with `offsets`, int32 and ascending from 0 to the number of rows, those between two of
    them. Raises IndexError for a position beyond the table.
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
        t.offsets = <const int32_t *>cnp.PyArray_DATA(offsets)
    if run_operation(MP_OPERATION_ROTARY, &t, "rotary", out,
                     mp_cost(t.rows, 0, MP_NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(out))) == MP_NO_ROW:
        raise IndexError(f"a sequence is longer than the table of angles, which has {t.positions} positions")
