"""Rows of tables by their indices, and the indices of tokens in a table of positions."""

cimport numpy as cnp
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.string cimport memset

from mp_core.core.convert cimport CHUNK, Cast, cast_line
from mp_core.core.cpu cimport is_recording, kernels
from mp_core.core.header cimport mp_chunk_floats
from mp_core.core.steps cimport NO_ARITHMETIC, NO_ROW, Cost, Kind, recording

cnp.import_array()

cdef struct Gather:
    Cast cast                   # of one row
    const char *table
    const float *scale          # of int8 codes, one for each row of the table, or NULL
    const char *indices
    int index_bytes             # 4 or 8
    char *out
    Py_ssize_t rows, limit, row_bytes, share  # indices; rows of the table; bytes from one to the next
    int failed                  # NO_ROW, or 0


cdef void gather_codes(const Gather *g, const int8_t *codes, float scale, char *out) noexcept nogil:
    """A row of numbers ``scale * code``, rounded once to the type of the result."""
    cdef mp_chunk_floats buffer
    cdef Py_ssize_t first = 0, j, count
    while first < g.cast.n:
        count = min(g.cast.n - first, <Py_ssize_t>CHUNK)
        for j in range(count):
            buffer.at[j] = scale * <float>codes[first + j]
        g.cast.kernels.casts.narrow[g.cast.dst_format](buffer.at, out + first * g.cast.dst_size, count, 0)
        first += count


cdef void gather_share(void *context, Py_ssize_t index) noexcept nogil:
    cdef Gather *g = <Gather *>context
    cdef Py_ssize_t i, row
    cdef char *to
    for i in range(index * g.share, min((index + 1) * g.share, g.rows)):
        row = (<const int64_t *>g.indices)[i] if g.index_bytes == 8 else (<const int32_t *>g.indices)[i]
        if not 0 <= row < g.limit:
            g.failed = NO_ROW
            row = 0
        to = g.out + i * g.cast.n * g.cast.dst_size
        if g.scale != NULL:
            gather_codes(g, <const int8_t *>(g.table + row * g.row_bytes), g.scale[row], to)
        else:
            cast_line(&g.cast, g.table + row * g.row_bytes, g.cast.src_size, to, g.cast.dst_size, g.cast.n)


cdef Py_ssize_t prepare_gather(void *context, Py_ssize_t rows, int threads) noexcept nogil:
    cdef Gather *g = <Gather *>context
    g.cast.kernels = kernels()
    if rows >= 0:
        g.rows = rows
    g.share = max(1, (g.rows + threads - 1) // threads)
    return (g.rows + g.share - 1) // g.share


def gather(cnp.ndarray table not None, cnp.ndarray indices not None, cnp.ndarray out not None, int src_format,
           int dst_format, cnp.ndarray scale=None):
    """out[i] = table[indices[i]] (* scale[indices[i]]), cast to `dst_format`, for every index, int32 or int64.

    `table` has two axes and rows of unit stride; `out`, C-contiguous, is as wide. Formats are those of :func:`convert`.
    With `scale`, contiguous float32, one for each row, the table is int8. Raises IndexError for an index outside of it.
    """
    cdef Gather g
    cdef Py_ssize_t base = <Py_ssize_t>&g
    memset(&g, 0, sizeof(g))
    g.cast.src_format, g.cast.dst_format, g.cast.n = src_format, dst_format, cnp.PyArray_DIM(table, 1)
    g.cast.src_size, g.cast.dst_size = cnp.PyArray_ITEMSIZE(table), cnp.PyArray_ITEMSIZE(out)
    g.table, g.row_bytes, g.limit = cnp.PyArray_BYTES(table), cnp.PyArray_STRIDE(table, 0), cnp.PyArray_DIM(table, 0)
    g.indices, g.index_bytes, g.out = cnp.PyArray_BYTES(indices), cnp.PyArray_ITEMSIZE(indices), cnp.PyArray_BYTES(out)
    g.rows = cnp.PyArray_SIZE(indices)
    if scale is not None:
        g.scale = <const float *>cnp.PyArray_DATA(scale)
    if g.rows == 0 or g.cast.n == 0:
        return
    if is_recording():
        recording().add_buffer(out)
        recording().note(
            "look-up", Kind(prepare_gather, gather_share, sizeof(g), <Py_ssize_t>&g.failed - base), &g,
            (<Py_ssize_t>&g.table - base, <Py_ssize_t>&g.scale - base, <Py_ssize_t>&g.indices - base,
             <Py_ssize_t>&g.out - base),
            Cost(g.rows, 0, NO_ARITHMETIC, g.rows * g.cast.n * (g.cast.src_size + g.cast.dst_size)))
    prepare_gather(&g, -1, 1)
    with nogil:
        gather_share(&g, 0)
    if g.failed:
        raise IndexError(f"an index is outside of the table, which has {g.limit} rows")


cdef struct Places:
    const int32_t *ids
    int32_t *places
    Py_ssize_t rows, length
    int32_t padding
    bint failed


cdef Py_ssize_t prepare_places(void *context, Py_ssize_t rows, int threads) noexcept nogil:
    return 1


cdef void run_places(void *context, Py_ssize_t index) noexcept nogil:
    cdef Places *t = <Places *>context
    cdef Py_ssize_t row, column
    cdef int32_t count, id
    for row in range(t.rows):
        count = 0
        for column in range(t.length):
            id = t.ids[row * t.length + column]
            count += id != t.padding
            t.places[row * t.length + column] = t.padding + (count if id != t.padding else 0)


def count_places(cnp.ndarray ids not None, int32_t padding, cnp.ndarray places not None):
    """places[i, j] = padding + the number of ids[i, :j + 1] that are not `padding`, or `padding` where ids[i, j] is it.

    Both are int32, C-contiguous, of the same two axes.
    """
    cdef Places t
    cdef Py_ssize_t base = <Py_ssize_t>&t
    memset(&t, 0, sizeof(t))
    t.ids, t.places, t.padding = <const int32_t *>cnp.PyArray_DATA(ids), <int32_t *>cnp.PyArray_DATA(places), padding
    t.rows, t.length = cnp.PyArray_DIM(ids, 0), cnp.PyArray_DIM(ids, 1)
    if is_recording() and cnp.PyArray_SIZE(ids):
        recording().add_buffer(places)
        recording().note("places", Kind(prepare_places, run_places, sizeof(t), <Py_ssize_t>&t.failed - base), &t,
                         (<Py_ssize_t>&t.ids - base, <Py_ssize_t>&t.places - base),
                         Cost(0, 0, NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(ids)))
    run_places(&t, 0)
