"""Rows of tables by their indices, and the indices of tokens in a table of positions."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from mp_core.core.convert cimport Cast, cast_line
from mp_core.core.cpu cimport is_recording, kernels, scratch
from mp_core.core.header cimport MP_F32, mp_part
from mp_core.core.steps cimport NO_ARITHMETIC, NO_ROW, Cost, Kind, recording

cnp.import_array()

cdef struct Codes:              # the elements of a table that holds no floats
    int kind                    # mp_code, once they are unpacked
    bint packed, is_signed      # two to a byte
    const float *scale          # NULL: the table holds floats
    const int32_t *zero_point   # or NULL: zeros
    Py_ssize_t scales, group    # scales per row of the table, 0: all rows share one row of them; columns per scale

cdef struct Gather:
    Cast cast                   # of one row
    Codes codes
    const char *table
    const char *indices
    int index_bytes             # 4 or 8
    char *out
    Py_ssize_t rows, limit, row_bytes, share  # indices; rows of the table; bytes from one to the next
    int failed                  # NO_ROW, 1: no memory, or 0


cdef bint gather_codes(const Gather *g, Py_ssize_t row, char *out) noexcept nogil:
    """A row of numbers ``scale * (code - zero point)``, rounded once to the type of the result; False: no memory."""
    cdef const Codes *c = &g.codes
    cdef Py_ssize_t n = g.cast.n
    cdef float *numbers = <float *>scratch(5 * n)  # of these, and of as many bytes
    cdef mp_part p
    if numbers == NULL:
        return False
    memset(&p, 0, sizeof(p))
    p.q, p.ldq, p.ldx, p.by_row = <uint8_t *>(g.table + row * g.row_bytes), c.group, c.group, 1
    if c.packed:
        g.cast.kernels.quantizers.unpack_nibbles(p.q, n, c.is_signed, <uint8_t *>(numbers + n))
        p.q = <uint8_t *>(numbers + n)
    p.x = <float *>out if g.cast.dst_format == MP_F32 else numbers
    p.scale, p.rows, p.cols = c.scale + row * c.scales, n // c.group, c.group
    if c.zero_point != NULL:
        p.zero_point = c.zero_point + row * c.scales
    if p.rows:
        g.cast.kernels.quantizers.dequantize[c.kind](&p)
    if n % c.group:
        p.x, p.q, p.scale = p.x + p.rows * c.group, p.q + p.rows * c.group, p.scale + p.rows
        p.zero_point = p.zero_point + p.rows if p.zero_point != NULL else NULL
        p.rows, p.cols = 1, n % c.group
        g.cast.kernels.quantizers.dequantize[c.kind](&p)
    if g.cast.dst_format != MP_F32:
        g.cast.kernels.casts.narrow[g.cast.dst_format](numbers, out, n, 0)
    return True


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
        if g.codes.scale == NULL:
            cast_line(&g.cast, g.table + row * g.row_bytes, g.cast.src_size, to, g.cast.dst_size, g.cast.n)
        elif not gather_codes(g, row, to):
            g.failed = 1


cdef Py_ssize_t prepare_gather(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    cdef Gather *g = <Gather *>context
    g.cast.kernels = kernels()
    if rows >= 0:
        g.rows = rows
    g.share = max(1, (g.rows + threads - 1) // threads)
    return (g.rows + g.share - 1) // g.share


def gather(cnp.ndarray table not None, cnp.ndarray indices not None, cnp.ndarray out not None, int src_format,
           int dst_format):
    """out[i] = table[indices[i]], cast to `dst_format`, for every index, int32 or int64.

    `table` has two axes and rows of unit stride; `out`, C-contiguous, is as wide. Formats are those of :func:`convert`.
    Raises IndexError for an index outside of it.
    """
    cdef Gather g = gather_of(table, indices, out, dst_format)
    g.cast.src_format, g.cast.n = src_format, cnp.PyArray_DIM(table, 1)
    run_gather(&g, out)


def gather_numbers(cnp.ndarray table not None, cnp.ndarray indices not None, cnp.ndarray out not None, int dst_format,
                   tuple kind not None, cnp.ndarray scale not None, cnp.ndarray zero_point, Py_ssize_t group):
    """out[i] = the numbers that the codes of row indices[i] stand for, as in :func:`gather`.

    `kind` is the mp_code of the codes, whether there are two of them to a byte, and whether such pairs are signed.
    `scale`, float32, and `zero_point`, int32 or None, are C-contiguous: one row for each of the table, or one row for
    all; one column for each `group` columns.
    """
    cdef Gather g = gather_of(table, indices, out, dst_format)
    g.cast.n = cnp.PyArray_DIM(out, cnp.PyArray_NDIM(out) - 1)
    g.codes.kind, g.codes.packed, g.codes.is_signed = kind
    g.codes.scale, g.codes.group = <const float *>cnp.PyArray_DATA(scale), group
    g.codes.scales = cnp.PyArray_DIM(scale, 1) if cnp.PyArray_DIM(scale, 0) == g.limit else 0
    if zero_point is not None:
        g.codes.zero_point = <const int32_t *>cnp.PyArray_DATA(zero_point)
    run_gather(&g, out)


cdef Gather gather_of(cnp.ndarray table, cnp.ndarray indices, cnp.ndarray out, int dst_format) noexcept:
    cdef Gather g
    memset(&g, 0, sizeof(g))
    g.cast.dst_format, g.cast.src_size, g.cast.dst_size = (
        dst_format, cnp.PyArray_ITEMSIZE(table), cnp.PyArray_ITEMSIZE(out))
    g.table, g.row_bytes, g.limit = cnp.PyArray_BYTES(table), cnp.PyArray_STRIDE(table, 0), cnp.PyArray_DIM(table, 0)
    g.indices, g.index_bytes, g.out = cnp.PyArray_BYTES(indices), cnp.PyArray_ITEMSIZE(indices), cnp.PyArray_BYTES(out)
    g.rows = cnp.PyArray_SIZE(indices)
    return g


cdef int run_gather(Gather *g, cnp.ndarray out) except -1:
    cdef Gather s = g[0]
    cdef Py_ssize_t base = <Py_ssize_t>&s
    if g.rows == 0 or g.cast.n == 0:
        return 0
    if is_recording():
        recording().add_buffer(out)
        recording().note(
            "look-up", Kind(prepare_gather, gather_share, sizeof(s), <Py_ssize_t>&s.failed - base), &s,
            (<Py_ssize_t>&s.table - base, <Py_ssize_t>&s.codes.scale - base, <Py_ssize_t>&s.codes.zero_point - base,
             <Py_ssize_t>&s.indices - base, <Py_ssize_t>&s.out - base),
            Cost(s.rows, 0, NO_ARITHMETIC, s.rows * s.cast.n * (s.cast.src_size + s.cast.dst_size)))
    prepare_gather(g, -1, 1, False)
    with nogil:
        gather_share(g, 0)
    if g.failed == NO_ROW:
        raise IndexError(f"an index is outside of the table, which has {g.limit} rows")
    if g.failed:
        raise MemoryError("no memory for the scratch of a look-up")
    return 0


cdef struct Places:
    const int32_t *ids
    int32_t *places
    Py_ssize_t rows, length
    int32_t padding
    bint failed


cdef Py_ssize_t prepare_places(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
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
