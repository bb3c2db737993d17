"""Functions of elements, by library/elementwise.c; and vectors that turn with their positions.

Elements are widened to float32, computed in float32 and rounded once.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport MP_F32, mp_activation, mp_element_bytes, mp_kernels
from mp_core.core.steps cimport NO_ARITHMETIC, NO_ROW, Cost, Kind, recording

cnp.import_array()

cdef extern from "library/elementwise.h" nogil:
    enum:
        BOOL "MP_BOOL"
        WORTHWHILE "MP_ELEMENTWISE_WORK"
        MOST_AXES "MP_MOST_AXES"

    ctypedef int mp_elementwise_function
    const char *const *const mp_elementwise_names

    ctypedef struct Operand "mp_operand":
        const char *data
        int format, size
        Py_ssize_t *stride

    ctypedef struct Elementwise "mp_elementwise":
        const mp_kernels *kernels
        mp_elementwise_function function
        mp_activation activation
        int axes
        Py_ssize_t *shape
        Operand operand[3]
        char *out
        int out_format, out_size
        int failed

    void join_axes "mp_join_axes"(Elementwise *e, int first)
    Py_ssize_t share_elements "mp_share_elementwise"(Elementwise *e, Py_ssize_t rows, int threads)
    void run_elements "mp_run_elementwise_task"(void *call, Py_ssize_t index) noexcept

FUNCTIONS = {}  # name -> number: the rows of library/elementwise.def
while mp_elementwise_names[len(FUNCTIONS)] != NULL:
    FUNCTIONS[mp_elementwise_names[len(FUNCTIONS)].decode()] = len(FUNCTIONS)

cdef struct Part:               # an operand or the result: rows of unit stride
    char *data
    int format
    Py_ssize_t size, stride     # bytes of an element, and from one row to the next

cdef struct Turn:
    const mp_kernels *kernels
    Part x, out
    const float *angles
    const int32_t *offsets      # ragged: [sequences + 1] rows at which sequences begin, and the last one ends; or NULL
    Py_ssize_t rows, length, limit, half, vectors, share    # length of each sequence, if not ragged; rows of `angles`
    int failed                  # NO_ROW: a sequence is longer than the table; 1: no memory


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


# ---- functions of elements

cdef Py_ssize_t prepare_elements(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    (<Elementwise *>context).kernels = kernels()
    return share_elements(<Elementwise *>context, rows, threads)


cdef int note_elements(const Elementwise *e, str name, cnp.ndarray out) except -1:
    cdef Py_ssize_t base = <Py_ssize_t>e, moved = cnp.PyArray_NBYTES(out), n = cnp.PyArray_SIZE(out)
    for i in range(3):
        moved += n * e.operand[i].size
    recording().add_buffer(out)
    recording().note(
        name, Kind(prepare_elements, run_elements, sizeof(e[0]), <Py_ssize_t>&e.failed - base), e,
        (<Py_ssize_t>&e.operand[0].data - base, <Py_ssize_t>&e.operand[1].data - base,
         <Py_ssize_t>&e.operand[2].data - base, <Py_ssize_t>&e.out - base),
        Cost(e.shape[0], 0, NO_ARITHMETIC, moved))
    return 0


def elementwise(str name not None, int activation, tuple operands not None, tuple formats not None,
                cnp.ndarray out not None, int out_format):
    """out = function(activation(first), second, ...); `name` is of :data:`FUNCTIONS`.

    All have one shape, of at least one axis and without a length of 0; operands have any strides, and `out` is
    C-contiguous. A format is that of a float, or -1 of booleans: the mask of "where", the result of comparisons.
    """
    cdef Elementwise e
    cdef cnp.ndarray x
    cdef Py_ssize_t tasks
    cdef int i, axis, threads = threads_for(<double>cnp.PyArray_SIZE(out), WORTHWHILE)
    memset(&e, 0, sizeof(e))
    e.function, e.activation, e.axes = FUNCTIONS[name], <mp_activation>activation, cnp.PyArray_NDIM(out)
    for axis in range(e.axes):
        e.shape[axis] = cnp.PyArray_DIM(out, axis)
    for i, x in enumerate(operands):
        e.operand[i].data, e.operand[i].format, e.operand[i].size = (
            cnp.PyArray_BYTES(x), formats[i], <int>cnp.PyArray_ITEMSIZE(x))
        for axis in range(e.axes):
            e.operand[i].stride[axis] = cnp.PyArray_STRIDE(x, axis)
    e.out, e.out_format, e.out_size = cnp.PyArray_BYTES(out), out_format, <int>cnp.PyArray_ITEMSIZE(out)
    join_axes(&e, 1 if is_recording() else 0)
    if is_recording():
        note_elements(&e, name if activation == 0 else "gate", out)
    tasks = prepare_elements(&e, -1, threads, False)
    with nogil:
        parallel_for(threads, tasks, run_elements, &e)


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
