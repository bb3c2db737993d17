"""Sums over the middle axis of an array (library/sums.c), and sums over rows in K blocks (library/row_sums.c)."""

cimport numpy as cnp
from libc.string cimport memset

from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport mp_active, mp_listener
from mp_core.core.library cimport (
    MP_NO_ARITHMETIC, MP_OPERATION_ROW_SUMS, MP_OPERATION_SUMS, MP_OPERATION_SUMS_JOIN, MP_SUMS_WORK, mp_cost,
    mp_lanes_of_sums, mp_recorder, mp_row_sums, mp_run_sums, mp_sum_call,
)
from mp_core.core.recording cimport Tape, recording, run_operation
from mp_core.core.signals cimport heard, listen

cnp.import_array()


cdef int note(const mp_sum_call *s, cnp.ndarray out, cnp.ndarray lanes) except -1:
    """Note the sums; if rows have several blocks, note a second operation that adds the sums of blocks in `lanes`."""
    cdef Tape tape = recording()
    cdef mp_cost cost = mp_cost(s.outer, 0, MP_NO_ARITHMETIC, s.outer * s.inner * (s.k * s.size + 4))
    if s.lanes != NULL:
        tape.add_buffer(lanes)
    tape.note(MP_OPERATION_SUMS, s, "sums", out, cost)
    if s.lanes != NULL:
        tape.note(MP_OPERATION_SUMS_JOIN, s, "sums of blocks", out, cost)
    return 0


def row_sums(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, cnp.ndarray before=None):
    """Set out[column] = before[column] + (sum of x[row][column] over rows), in K blocks; no length is 0.

    All arrays are C-contiguous. `x` has the format `fmt`, the others are float32. `before` may be `out`.
    """
    cdef mp_row_sums s
    memset(&s, 0, sizeof(s))
    s.format, s.size = fmt, <int>cnp.PyArray_ITEMSIZE(x)
    s.x, s.out = cnp.PyArray_BYTES(x), <float *>cnp.PyArray_DATA(out)
    s.rows, s.columns = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1)
    if before is not None:
        s.before = <const float *>cnp.PyArray_DATA(before)
    run_operation(MP_OPERATION_ROW_SUMS, &s, "sums of rows", out,
                  mp_cost(s.rows, 0, MP_NO_ARITHMETIC, cnp.PyArray_NBYTES(x)))


def sum_middle(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float divisor):
    """Set out[outer][inner] = (sum of x[outer][k][inner] over k) / `divisor`; no length is 0.

    Both arrays are C-contiguous. `x` has the format `fmt`, `out` is float32.
    """
    cdef mp_sum_call s
    cdef cnp.ndarray lanes
    cdef cnp.npy_intp lengths[2]
    cdef mp_listener listener
    cdef int threads = threads_for(<double>cnp.PyArray_SIZE(x), MP_SUMS_WORK)
    memset(&s, 0, sizeof(s))
    s.kernels, s.format, s.size = mp_active(), fmt, <int>cnp.PyArray_ITEMSIZE(x)
    s.x, s.out, s.divisor = cnp.PyArray_BYTES(x), <float *>cnp.PyArray_DATA(out), divisor
    s.outer, s.k, s.inner = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2)
    lengths[0], lengths[1] = s.outer, mp_lanes_of_sums(&s) // s.outer
    lanes = cnp.PyArray_EMPTY(2, lengths, cnp.NPY_FLOAT32, 0)
    if lengths[1]:
        s.lanes = <float *>cnp.PyArray_DATA(lanes)
    if mp_recorder()[0] != NULL:
        note(&s, out, lanes)
        return
    listen(&listener)
    with nogil:
        mp_run_sums(&s, threads)
    heard(&listener)
    if s.status:
        raise MemoryError("no memory for the sums of columns")
