"""Look up rows of tables, sum gradients of look-ups, count positions of tokens (library/look_up.h, taken_rows.h)."""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.library cimport (
    MP_NO_ARITHMETIC, MP_NO_ROW, MP_OPERATION_LOOK_UP, MP_OPERATION_PLACES, MP_OPERATION_STORE,
    MP_OPERATION_TAKEN_ROWS, mp_cost, mp_look_up, mp_places, mp_store,
)
from mp_core.core.recording cimport run_operation
from mp_core.core.training cimport mp_taken_rows

cnp.import_array()


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

    `kind` is (mp_code of the codes, whether a byte has two codes, whether these are signed). `scale` (float32) and
    `zero_point` (int32 or None) are C-contiguous, with one row for each row of the table or a single row, and one
    column for each `group` columns.
    """
    cdef mp_look_up t = describe(table, indices, out, dst_format)
    t.codes.kind, t.codes.packed, t.codes.is_signed = kind
    t.codes.scale, t.codes.group = <const float *>cnp.PyArray_DATA(scale), group
    t.codes.scales = cnp.PyArray_DIM(scale, 1) if cnp.PyArray_DIM(scale, 0) == t.limit else 0
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


def store_rows(cnp.ndarray x not None, cnp.ndarray places not None, cnp.ndarray to not None):
    """Set to[places[i]] = x[i].

    Both have the same dtype and rows of the same length, which are contiguous. `places` is int32, C-contiguous, without
    duplicates and within `to`.
    """
    cdef mp_store t
    memset(&t, 0, sizeof(t))
    t.x, t.places, t.to = cnp.PyArray_BYTES(x), <const int32_t *>cnp.PyArray_DATA(places), cnp.PyArray_BYTES(to)
    t.rows, t.x_stride, t.to_stride = cnp.PyArray_DIM(x, 0), cnp.PyArray_STRIDE(x, 0), cnp.PyArray_STRIDE(to, 0)
    t.bytes = cnp.PyArray_NBYTES(to) // max(cnp.PyArray_DIM(to, 0), 1)
    run_operation(MP_OPERATION_STORE, &t, "store", to, mp_cost(t.rows, 0, MP_NO_ARITHMETIC, 2 * t.rows * t.bytes))
