"""Look up rows of tables, sum gradients of look-ups, count positions of tokens (library/look_up.h, taken_rows.h)."""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.library cimport (
    MP_NO_ARITHMETIC, MP_NO_ROW, MP_OPERATION_INDEXED, MP_OPERATION_LOOK_UP, MP_OPERATION_ORDER, MP_OPERATION_PLACES,
    MP_OPERATION_STORE, MP_OPERATION_TAKEN_ROWS, mp_cast, mp_cost, mp_recorder, mp_wide,
)
from mp_core.core.recording cimport run_operation
from mp_core.core.training cimport mp_taken_rows

cdef extern from "library/look_up.h" nogil:
    ctypedef struct mp_table_codes:
        int kind, packed, is_signed, panels
        const float *scale
        const int32_t *zero_point
        Py_ssize_t scales, group

    ctypedef struct mp_look_up:
        mp_cast cast
        mp_table_codes codes
        const char *table
        const char *indices
        int index_bytes
        char *out
        Py_ssize_t rows, limit, row_bytes

    ctypedef struct mp_store:
        const char *x
        const int32_t *places
        const int32_t *head_rows
        char *to
        Py_ssize_t rows, heads, bytes, x_row, x_head

    ctypedef struct mp_places:
        const int32_t *ids
        int32_t *places
        Py_ssize_t rows, length
        int32_t padding

cnp.import_array()

cdef extern from "library/indexed.h" nogil:
    ctypedef enum mp_indexed_how:
        MP_READ, MP_REPLACE, MP_ADD_TO, MP_MULTIPLY_BY, MP_LARGEST_OF, MP_SMALLEST_OF

    ctypedef struct mp_indexed:
        mp_indexed_how how
        char *array
        char *other
        const char *indices
        int size, format, index_bytes, axes
        Py_ssize_t *shape
        Py_ssize_t *array_stride
        Py_ssize_t *other_stride
        Py_ssize_t *index_stride
        Py_ssize_t step, limit

cdef extern from "library/order.h" nogil:
    ctypedef struct mp_order:
        const char *x
        int format, size
        mp_wide wide
        int descending, extreme
        int32_t *out
        Py_ssize_t outer, n, inner, k

HOW = {"read": MP_READ, "replace": MP_REPLACE, "add": MP_ADD_TO, "multiply": MP_MULTIPLY_BY, "maximum": MP_LARGEST_OF,
       "minimum": MP_SMALLEST_OF}


cdef mp_look_up describe(cnp.ndarray table, cnp.ndarray indices, cnp.ndarray out, int dst_format) noexcept:
    cdef mp_look_up t
    memset(&t, 0, sizeof(t))
    t.cast.n = cnp.PyArray_DIM(out, cnp.PyArray_NDIM(out) - 1)
    t.cast.dst_format, t.cast.src_size, t.cast.dst_size = (
        dst_format, cnp.PyArray_ITEMSIZE(table), cnp.PyArray_ITEMSIZE(out))
    t.table, t.row_bytes, t.limit = cnp.PyArray_BYTES(table), cnp.PyArray_STRIDE(table, 0), cnp.PyArray_DIM(table, 0)
    t.indices, t.index_bytes, t.out = cnp.PyArray_BYTES(indices), cnp.PyArray_ITEMSIZE(indices), cnp.PyArray_BYTES(out)
    t.rows = cnp.PyArray_SIZE(indices)
    return t


cdef int look_up(mp_look_up *t, cnp.ndarray out) except -1:
    if t.rows == 0 or t.cast.n == 0:
        return 0
    if run_operation(MP_OPERATION_LOOK_UP, t, "look-up", out,
                     mp_cost(t.rows, 0, MP_NO_ARITHMETIC,
                             t.rows * t.cast.n * (t.cast.src_size + t.cast.dst_size))) == MP_NO_ROW:
        raise IndexError(f"an index is outside of the table, which has {t.limit} rows")
    return 0


def gather(cnp.ndarray table not None, cnp.ndarray indices not None, cnp.ndarray out not None, int src_format,
           int dst_format):
    """Set out[i] = table[indices[i]], cast to `dst_format`. Indices are int32 or int64.

    `table` has two axes, the last one with stride 1; `out` is C-contiguous and has rows of the same length. Formats are
    those of :func:`convert`. Raise IndexError for an index outside of the table.
    """
    cdef mp_look_up t = describe(table, indices, out, dst_format)
    t.cast.src_format = src_format
    look_up(&t, out)


def gather_numbers(cnp.ndarray table not None, cnp.ndarray indices not None, cnp.ndarray out not None, int dst_format,
                   tuple kind not None, cnp.ndarray scale not None, cnp.ndarray zero_point, Py_ssize_t group):
    """Set out[i] to the dequantized row indices[i] of a table of codes; otherwise as :func:`gather`.

    `kind` is (mp_code of the codes, whether a byte has two codes, whether these are signed, columns). `scale` (float32)
    and `zero_point` (int32 or None) are C-contiguous, with one row for each row of the table or a single row, and one
    column for each `group` columns.

    If columns is not 0, `table` is the data of a packed matrix of so many columns, of which `out` are some. `scale` has
    shape (groups, columns), and `zero_point`, for int4 only, is int8 of that shape.
    """
    cdef mp_look_up t = describe(table, indices, out, dst_format)
    cdef Py_ssize_t columns = kind[3]
    t.codes.kind, t.codes.packed, t.codes.is_signed = kind[:3]
    t.codes.scale, t.codes.group = <const float *>cnp.PyArray_DATA(scale), group
    t.codes.scales = cnp.PyArray_DIM(scale, 1) if cnp.PyArray_DIM(scale, 0) == t.limit else 0
    if columns:
        t.codes.panels, t.limit = 1, columns
    if zero_point is not None:
        t.codes.zero_point = <const int32_t *>cnp.PyArray_DATA(zero_point)
    look_up(&t, out)


def sum_by_index(int fmt, cnp.ndarray x not None, cnp.ndarray indices not None, cnp.ndarray out not None):
    """Set out[r] to the sum of x[i] over all i with indices[i] == r, in the order stated in library/taken_rows.h.

    `x` has format `fmt`, shape (rows, columns) and last stride 1. `indices` (int32 or int64) is C-contiguous, with one
    element for each row of `x`. `out` is float32, C-contiguous, with the columns of `x`. No length is 0. Raise
    IndexError for an index outside of `out`.
    """
    cdef mp_taken_rows s
    memset(&s, 0, sizeof(s))
    s.x, s.format, s.stride = cnp.PyArray_BYTES(x), fmt, cnp.PyArray_STRIDE(x, 0)
    s.indices, s.index_bytes = cnp.PyArray_BYTES(indices), cnp.PyArray_ITEMSIZE(indices)
    s.out, s.limit = <float *>cnp.PyArray_DATA(out), cnp.PyArray_DIM(out, 0)
    s.rows, s.n = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1)
    if s.rows >= 1 << 31:
        raise MemoryError(f"no memory to sort {s.rows} rows by their indices")
    if run_operation(MP_OPERATION_TAKEN_ROWS, &s, "sums of rows of a table", out,
                     mp_cost(s.rows, 0, MP_NO_ARITHMETIC,
                             cnp.PyArray_NBYTES(x) + cnp.PyArray_NBYTES(out))) == MP_NO_ROW:
        raise IndexError(f"an index is outside of the table, which has {s.limit} rows")


cdef void add_axis(mp_indexed *t, Py_ssize_t length, Py_ssize_t array, Py_ssize_t other, Py_ssize_t indices,
                   bint apart) noexcept:
    """Add an axis with these strides. Unless it stays apart, merge it with the axis before it, or leave it out, if
    possible.

    While a plan is recorded the first axis stays, since its length may differ from run to run.
    """
    cdef int last = t.axes - 1
    if not apart and length == 1:
        return
    if (not apart and t.array_stride[last] == array * length and t.other_stride[last] == other * length
            and t.index_stride[last] == indices * length):
        length *= t.shape[last]
    else:
        last += 1
        t.axes += 1
    t.shape[last], t.array_stride[last], t.other_stride[last], t.index_stride[last] = length, array, other, indices


def at_indices(str how not None, int fmt, cnp.ndarray array not None, cnp.ndarray other not None,
               cnp.ndarray indices not None, Py_ssize_t step, Py_ssize_t limit):
    """Read, replace or combine the elements of an array at indices along one axis; `how` is a key of :data:`HOW`.

    All arrays have the same shape, with at least one axis and no length 0, and any strides. `array` has the stride 0
    along the axis of the indices (or length 1), along which `step` are the bytes between two of `limit` elements.
    `other` is what is written (for "read"), or the elements that replace or are combined. Indices are int32 or int64;
    negative ones count from the end. `fmt` is the type of combined elements: float32, float64, int32 or int64. Raise
    IndexError for an index out of range.
    """
    cdef mp_indexed t
    cdef int axis
    cdef cnp.ndarray out = other if how == "read" else array
    memset(&t, 0, sizeof(t))
    t.how, t.format, t.size = <mp_indexed_how><int>HOW[how], fmt, <int>cnp.PyArray_ITEMSIZE(array)
    t.array, t.other, t.indices = cnp.PyArray_BYTES(array), cnp.PyArray_BYTES(other), cnp.PyArray_BYTES(indices)
    t.index_bytes, t.step, t.limit = cnp.PyArray_ITEMSIZE(indices), step, limit
    for axis in range(cnp.PyArray_NDIM(other)):
        add_axis(&t, cnp.PyArray_DIM(other, axis), cnp.PyArray_STRIDE(array, axis), cnp.PyArray_STRIDE(other, axis),
                 cnp.PyArray_STRIDE(indices, axis), axis == 0 or (t.axes == 1 and mp_recorder()[0] != NULL))
    # The number of rows may differ between runs, unless axis 0 is that of the indices: its limit would change too.
    if run_operation(MP_OPERATION_INDEXED, &t, "look-up" if how == "read" else "scatter", out,
                     mp_cost(t.shape[0] if t.axes > 1 and t.array_stride[0] else 0, 0, MP_NO_ARITHMETIC,
                             2 * cnp.PyArray_NBYTES(other) + cnp.PyArray_SIZE(other) * t.index_bytes)) == MP_NO_ROW:
        raise IndexError(f"an index is outside of an axis of length {limit}")


def find_order(int fmt, int wide, cnp.ndarray x not None, cnp.ndarray out not None, bint descending, bint extreme):
    """Set out[outer, :, inner] to the places of the first elements of x[outer, :, inner] in order (library/order.h).

    Both arrays are C-contiguous, with three axes of which no length is 0. `out` is int32; its middle length is the
    number of places. `fmt` and `wide` are as for :func:`mp_core.core.pairs.elementwise`, without SINGLE.
    """
    cdef mp_order s
    memset(&s, 0, sizeof(s))
    s.x, s.format, s.size, s.wide = cnp.PyArray_BYTES(x), fmt, <int>cnp.PyArray_ITEMSIZE(x), <mp_wide>wide
    s.out, s.descending, s.extreme = <int32_t *>cnp.PyArray_DATA(out), descending, extreme
    s.outer, s.n, s.inner, s.k = (
        cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2), cnp.PyArray_DIM(out, 1))
    if s.n >= 1 << 31:
        raise MemoryError(f"no memory to sort {s.n} elements")
    run_operation(MP_OPERATION_ORDER, &s, "order", out,
                  mp_cost(s.outer, 0, MP_NO_ARITHMETIC, cnp.PyArray_NBYTES(x) + cnp.PyArray_NBYTES(out)))


def count_places(cnp.ndarray ids not None, int32_t padding, cnp.ndarray places not None):
    """Set places[i, j] = padding + (number of ids[i, :j + 1] that are not `padding`); `padding` where ids[i, j] is.

    Both arrays are int32, C-contiguous, and have the same shape with two axes.
    """
    cdef mp_places t
    memset(&t, 0, sizeof(t))
    t.ids, t.places, t.padding = <const int32_t *>cnp.PyArray_DATA(ids), <int32_t *>cnp.PyArray_DATA(places), padding
    t.rows, t.length = cnp.PyArray_DIM(ids, 0), cnp.PyArray_DIM(ids, 1)
    if cnp.PyArray_SIZE(ids):
        run_operation(MP_OPERATION_PLACES, &t, "places", places,
                      mp_cost(0, 0, MP_NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(ids)))


def store_rows(cnp.ndarray x not None, cnp.ndarray places not None, cnp.ndarray head_rows not None,
               cnp.ndarray to not None):
    """Set to[head * head_rows[0] + places[i]] = x[i, head].

    Both have the same dtype and rows of the same length, which are contiguous; `to` is C-contiguous. The other arrays
    are int32 and C-contiguous. `places` has no duplicates and is below ``head_rows[0]``.
    """
    cdef mp_store t
    memset(&t, 0, sizeof(t))
    t.x, t.places, t.to = cnp.PyArray_BYTES(x), <const int32_t *>cnp.PyArray_DATA(places), cnp.PyArray_BYTES(to)
    t.head_rows, t.bytes = <const int32_t *>cnp.PyArray_DATA(head_rows), cnp.PyArray_STRIDE(to, 0)
    t.rows, t.heads = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1)
    t.x_row, t.x_head = cnp.PyArray_STRIDE(x, 0), cnp.PyArray_STRIDE(x, 1)
    run_operation(MP_OPERATION_STORE, &t, "store", to,
                  mp_cost(t.rows, 0, MP_NO_ARITHMETIC, 2 * t.rows * t.heads * t.bytes))
