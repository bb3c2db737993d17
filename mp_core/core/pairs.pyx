"""Two arrays element by element: sums, products, gates; and vectors that turn with their positions.

Elements are widened to float32, computed in float32 and rounded once.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.convert cimport CHUNK
from mp_core.core.cpu cimport is_recording, kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport (
    MP_F32, MP_LINEAR, mp_activation, mp_chunk_floats, mp_element_bytes, mp_kernels,
)
from mp_core.core.steps cimport NO_ARITHMETIC, NO_ROW, Cost, Kind, recording

cnp.import_array()

ADD, MULTIPLY = 0, 1  # indices into `combine` of the kernels

# Elements, of which two are read and one is written, from which a second thread pays (November 2026; the CPU is not
# recorded).
cdef double WORTHWHILE = 1 << 17

cdef struct Part:               # an operand or the result: rows of unit stride
    char *data
    int format
    Py_ssize_t size, stride     # bytes of an element, and from one row to the next

cdef struct Pair:
    const mp_kernels *kernels
    int how
    mp_activation activation    # of x, before it meets y
    Part x, y, out
    Py_ssize_t rows, length, share
    int failed                  # never

cdef struct Turn:
    const mp_kernels *kernels
    Part x, out
    const float *angles
    const int32_t *offsets      # ragged: [sequences + 1] rows at which sequences begin, and the last one ends; or NULL
    Py_ssize_t rows, length, limit, half, vectors, share    # length of each sequence, if not ragged; rows of `angles`
    int failed                  # NO_ROW: a sequence is longer than the table; 1: no memory


cdef Part part_of(cnp.ndarray x, int fmt) noexcept:
    """Describe rows: those of the last axis, if the others have one stride in common."""
    cdef Part part
    cdef int axis = cnp.PyArray_NDIM(x) - 2
    while axis > 0 and cnp.PyArray_DIM(x, axis) == 1:
        axis -= 1
    part.data, part.format, part.size = cnp.PyArray_BYTES(x), fmt, mp_element_bytes[fmt]
    part.stride = cnp.PyArray_STRIDE(x, axis) if axis >= 0 else 0
    return part


cdef Py_ssize_t share_rows(Py_ssize_t rows, Py_ssize_t length, int threads) noexcept nogil:
    """The rows of a task."""
    if <double>rows * length < WORTHWHILE or threads == 1:
        return rows
    return max(1, (rows + 4 * threads - 1) // (4 * threads))


cdef const float *widened(const mp_kernels *table, const Part *part, const char *at, Py_ssize_t n,
                          float *buffer) noexcept nogil:
    """n elements as float32: where they lie, or in a buffer."""
    if part.format == MP_F32:
        return <const float *>at
    table.casts.widen[part.format](at, buffer, n, 0)
    return buffer


# ---- pairs

cdef void run_row(const Pair *p, Py_ssize_t row) noexcept nogil:
    cdef mp_chunk_floats first, second
    cdef const float *x
    cdef const float *y
    cdef char *to
    cdef Py_ssize_t column = 0, n
    while column < p.length:
        n = min(p.length - column, <Py_ssize_t>CHUNK)
        x = widened(p.kernels, &p.x, p.x.data + row * p.x.stride + column * p.x.size, n, first.at)
        y = widened(p.kernels, &p.y, p.y.data + row * p.y.stride + column * p.y.size, n, second.at)
        to = p.out.data + row * p.out.stride + column * p.out.size
        if p.activation != MP_LINEAR:
            p.kernels.rows.activate(p.activation, x, n, first.at)
            x = first.at
        if p.out.format == MP_F32:
            p.kernels.rows.combine[p.how](x, y, n, <float *>to)
        else:
            p.kernels.rows.combine[p.how](x, y, n, first.at)
            p.kernels.casts.narrow[p.out.format](first.at, to, n, 0)
        column += n


cdef void run_pair(void *context, Py_ssize_t index) noexcept nogil:
    """One task: `share` rows."""
    cdef const Pair *p = <const Pair *>context
    cdef Py_ssize_t row
    for row in range(index * p.share, min((index + 1) * p.share, p.rows)):
        run_row(p, row)


cdef Py_ssize_t prepare_pair(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    cdef Pair *p = <Pair *>context
    p.kernels = kernels()
    if rows >= 0:
        p.rows = rows
    p.share = share_rows(p.rows, p.length, threads)
    return (p.rows + p.share - 1) // p.share


cdef str name_of(const Pair *p):
    return "gate" if p.activation != MP_LINEAR else "sum" if p.how == ADD else "multiplication"


def combine(int how, int activation, cnp.ndarray x not None, int x_format, cnp.ndarray y not None, int y_format,
            cnp.ndarray out not None, int out_format):
    """out = activation(x) + y, or activation(x) * y; `how` is ADD or MULTIPLY.

    All have one shape, of at least one axis and without a length of 0, and unit last stride; all other axes of one of
    them have one stride in common. `out` is C-contiguous.
    """
    cdef Pair p
    cdef Py_ssize_t base = <Py_ssize_t>&p, tasks
    cdef int threads = threads_for(<double>cnp.PyArray_SIZE(out), WORTHWHILE)
    memset(&p, 0, sizeof(p))
    p.how, p.activation = how, <mp_activation>activation
    p.length = cnp.PyArray_DIM(out, cnp.PyArray_NDIM(out) - 1)
    p.rows = cnp.PyArray_SIZE(out) // p.length
    p.x, p.y, p.out = part_of(x, x_format), part_of(y, y_format), part_of(out, out_format)
    if is_recording():
        recording().add_buffer(out)
        recording().note(
            name_of(&p), Kind(prepare_pair, run_pair, sizeof(p), <Py_ssize_t>&p.failed - base), &p,
            (<Py_ssize_t>&p.x.data - base, <Py_ssize_t>&p.y.data - base, <Py_ssize_t>&p.out.data - base),
            Cost(p.rows, 0, NO_ARITHMETIC, p.rows * p.length * (p.x.size + p.y.size + p.out.size)))
    tasks = prepare_pair(&p, -1, threads, False)
    with nogil:
        parallel_for(threads, tasks, run_pair, &p)


# ---- rotary positions

cdef void run_turn(void *context, Py_ssize_t index) noexcept nogil:
    """One task: the vectors of `share` rows."""
    cdef Turn *t = <Turn *>context
    cdef Py_ssize_t row = index * t.share, end = min(row + t.share, t.rows), position, sequence = 0
    cdef Py_ssize_t n = 2 * t.half * t.vectors
    cdef bint is_wide = t.x.format == MP_F32
    cdef float *work = NULL if is_wide else <float *>scratch(2 * n * 4)
    cdef float *to
    if work == NULL and not is_wide:
        t.failed = 1
        return
    while row < end:
        position = row % t.length
        if t.offsets != NULL:
            while t.offsets[sequence + 1] <= row:
                sequence += 1
            position = row - t.offsets[sequence]
        if position >= t.limit:
            t.failed = NO_ROW
            return
        to = <float *>(t.out.data + row * t.out.stride) if is_wide else work + n
        t.kernels.rows.turn(widened(t.kernels, &t.x, t.x.data + row * t.x.stride, n, work),
                            t.angles + position * 2 * t.half, t.half, t.vectors, to)
        if not is_wide:
            t.kernels.casts.narrow[t.out.format](to, t.out.data + row * t.out.stride, n, 0)
        row += 1


cdef Py_ssize_t prepare_turn(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    cdef Turn *t = <Turn *>context
    t.kernels = kernels()
    if rows >= 0:
        t.rows = rows
    t.share = share_rows(t.rows, 2 * t.half * t.vectors, threads)
    return (t.rows + t.share - 1) // t.share


def turn(int fmt, cnp.ndarray x not None, cnp.ndarray angles not None, cnp.ndarray out not None, Py_ssize_t length,
         cnp.ndarray offsets=None):
    """out[row, i] = the vector x[row, i], turned by the angles of the row's position in its sequence.

    `x`, of format `fmt`, has shape (rows, vectors, size), its vectors one behind the other; `out` is C-contiguous. No
    length is 0. `angles` is float32, C-contiguous, (positions, size): size / 2 cosines, then as many sines. Sequences
    have `length` rows each or, with `offsets`, int32 and ascending from 0 to the number of rows, those between two of
    them. Raises IndexError for a position beyond the table.
    """
    cdef Turn t
    cdef Py_ssize_t base = <Py_ssize_t>&t, tasks
    cdef int threads = threads_for(<double>cnp.PyArray_SIZE(out), WORTHWHILE)
    memset(&t, 0, sizeof(t))
    t.x.data, t.x.format, t.x.size, t.x.stride = (
        cnp.PyArray_BYTES(x), fmt, mp_element_bytes[fmt], cnp.PyArray_STRIDE(x, 0))
    t.out = t.x
    t.out.data, t.out.stride = cnp.PyArray_BYTES(out), cnp.PyArray_STRIDE(out, 0)
    t.angles, t.limit = <const float *>cnp.PyArray_DATA(angles), cnp.PyArray_DIM(angles, 0)
    t.rows, t.vectors, t.half, t.length = (
        cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2) // 2, length)
    if offsets is not None:
        t.offsets = <const int32_t *>cnp.PyArray_DATA(offsets)
    if is_recording():
        recording().add_buffer(out)
        recording().note(
            "rotary", Kind(prepare_turn, run_turn, sizeof(t), <Py_ssize_t>&t.failed - base), &t,
            (<Py_ssize_t>&t.x.data - base, <Py_ssize_t>&t.out.data - base, <Py_ssize_t>&t.angles - base,
             <Py_ssize_t>&t.offsets - base),
            Cost(t.rows, 0, NO_ARITHMETIC, 2 * cnp.PyArray_NBYTES(out)))
    tasks = prepare_turn(&t, -1, threads, False)
    with nogil:
        parallel_for(threads, tasks, run_turn, &t)
    if t.failed == NO_ROW:
        raise IndexError(f"a sequence is longer than the table of angles, which has {t.limit} positions")
    if t.failed:
        raise MemoryError("no memory for the scratch of rotary positions")
