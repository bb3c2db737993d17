"""Casts of arrays between float formats by library/cast.c, copies and fills that recordings note, read-only arrays."""

cimport numpy as cnp
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport MP_SATURATE, mp_active, mp_listener, mp_stopped
from mp_core.core.library cimport (
    MP_CAST_WORK, MP_COPY, MP_NO_ARITHMETIC, MP_OPERATION_CAST, MP_OPERATION_FILL, mp_array_cast, mp_cast,
    mp_cast_line, mp_cost, mp_fill, mp_recorder, mp_run_cast,
)
from mp_core.core.recording cimport Tape, recording
from mp_core.core.signals cimport heard, listen

import numpy as np

from mp_core.core.recording import UnseenError

cnp.import_array()

cdef object FLOAT32 = np.dtype(np.float32)

cdef extern from "numpy/arrayobject.h":
    # It steals a reference to the dtype.
    cnp.ndarray PyArray_NewFromDescr(PyTypeObject *kind, cnp.dtype dtype, int axes, cnp.npy_intp *shape,
                                     cnp.npy_intp *strides, void *data, int flags, PyObject *like)
    # Declared here because Cython does not accept the declarations of NumPy 2.0.
    ctypedef int (*iter_next "NpyIter_IterNextFunc *")(cnp.NpyIter *) noexcept nogil
    iter_next get_iter_next "NpyIter_GetIterNext"(cnp.NpyIter *, char **) except NULL

cdef extern from "library/array_cast.h" nogil:
    void mp_join_cast_axes(mp_array_cast *c)


cdef int contiguous(mp_cast *c) except -1:
    """Run a contiguous cast, on several threads if that pays."""
    cdef int threads
    cdef mp_listener listener
    if c.n < MP_CAST_WORK:  # too short to release the interpreter lock
        mp_run_cast(c, 1)
        return 0
    threads = threads_for(<double>c.n, MP_CAST_WORK)
    listen(&listener)
    with nogil:
        mp_run_cast(c, threads)
    heard(&listener)
    return 0


def convert(cnp.ndarray src not None, cnp.ndarray dst not None, int src_format, int dst_format, bint saturate):
    """Cast `src` into `dst`: same shape, native byte order, any strides, no overlap except exactly the same memory.

    Formats are the values of :data:`mp_core.arrays.formats.CASTS`; ``float64`` is a source only, and its cast to
    ``float32`` rounds to odd.
    """
    cdef mp_cast c
    c.kernels = mp_active()
    c.src, c.dst, c.n = cnp.PyArray_BYTES(src), cnp.PyArray_BYTES(dst), cnp.PyArray_SIZE(src)
    c.src_format, c.dst_format, c.mode = src_format, dst_format, MP_SATURATE if saturate else 0
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(src), cnp.PyArray_ITEMSIZE(dst)
    if c.n == 0:
        return
    if mp_recorder()[0] != NULL and note_cast(&c, src, dst):
        return
    if cnp.PyArray_IS_C_CONTIGUOUS(src) and cnp.PyArray_IS_C_CONTIGUOUS(dst):
        contiguous(&c)
    else:
        iterate(src, dst, &c)


cdef Py_ssize_t CASTS_AT_ONCE = 1 << 18  # elements between two checks for signals


cdef int iterate(cnp.ndarray src, cnp.ndarray dst, const mp_cast *c) except -1:
    """Cast arrays of any strides. NumPy's iterator orders and merges the axes; our kernels run the inner loop."""
    cdef cnp.PyArrayObject *operands[2]
    cdef cnp.npy_uint32 flags[2]
    cdef cnp.NpyIter *iterator
    cdef iter_next advance
    cdef char **data
    cdef cnp.npy_intp *steps
    cdef cnp.npy_intp *count
    cdef Py_ssize_t left = CASTS_AT_ONCE
    cdef mp_listener listener
    operands[0], operands[1] = <cnp.PyArrayObject *>src, <cnp.PyArrayObject *>dst
    flags[0], flags[1] = cnp.NPY_ITER_READONLY, cnp.NPY_ITER_WRITEONLY
    iterator = cnp.NpyIter_MultiNew(2, operands, cnp.NPY_ITER_EXTERNAL_LOOP | cnp.NPY_ITER_ZEROSIZE_OK,
                                    cnp.NPY_KEEPORDER, cnp.NPY_NO_CASTING, flags, NULL)
    if iterator == NULL:
        raise MemoryError
    advance = get_iter_next(iterator, NULL)
    data = cnp.NpyIter_GetDataPtrArray(iterator)
    steps = cnp.NpyIter_GetInnerStrideArray(iterator)
    count = cnp.NpyIter_GetInnerLoopSizePtr(iterator)
    listen(&listener)
    with nogil:
        while True:
            mp_cast_line(c, data[0], steps[0], data[1], steps[1], count[0])
            left -= count[0]
            if not advance(iterator) or (left < 0 and mp_stopped()):
                break
            left = left if left >= 0 else CASTS_AT_ONCE
    if cnp.NpyIter_Deallocate(iterator) != cnp.NPY_SUCCEED:
        raise MemoryError
    return heard(&listener)


# ---- as operations of a recording

cdef int note_cast(const mp_cast *c, cnp.ndarray src, cnp.ndarray dst, bint is_new=True) except -1:
    """Note a cast or a copy on this thread's tape; return 0 if the caller must run it now, since src is a constant.

    Then dst becomes a constant too, if it is new memory.
    """
    cdef mp_array_cast s
    cdef int axis, axes = cnp.PyArray_NDIM(src)
    cdef Tape tape = recording()
    if not tape.changes(src) and is_new:
        tape.add_constant(dst)
        return 0
    memset(&s, 0, sizeof(s))
    s.cast, s.rows = c[0], cnp.PyArray_DIM(src, 0) if axes else 1
    s.row = c.n // s.rows
    if c.src_format == MP_COPY or not (cnp.PyArray_IS_C_CONTIGUOUS(src) and cnp.PyArray_IS_C_CONTIGUOUS(dst)):
        s.axes, s.shape[0] = max(axes, 1), 1  # an array without axes is a row of one element
        for axis in range(axes):
            s.shape[axis], s.src_stride[axis] = cnp.PyArray_DIM(src, axis), cnp.PyArray_STRIDE(src, axis)
            s.dst_stride[axis] = cnp.PyArray_STRIDE(dst, axis)
        mp_join_cast_axes(&s)
    tape.note(MP_OPERATION_CAST, &s, "copy" if c.src_format == MP_COPY else "cast", dst,
              mp_cost(s.rows, 0, MP_NO_ARITHMETIC, c.n * (c.src_size + c.dst_size)))
    return 1


cdef mp_cast copy_of(cnp.ndarray x, cnp.ndarray out) noexcept:
    """Return the cast that copies elements unchanged."""
    cdef mp_cast c
    memset(&c, 0, sizeof(c))
    c.n, c.src, c.dst = cnp.PyArray_SIZE(x), cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(out)
    c.src_size = c.dst_size = cnp.PyArray_ITEMSIZE(x)
    c.src_format = c.dst_format = MP_COPY
    return c


def copied(cnp.ndarray x not None):
    """Return a C-contiguous copy of an array; a recording notes it."""
    cdef cnp.ndarray result
    cdef mp_cast c
    if mp_recorder()[0] == NULL or cnp.PyArray_SIZE(x) == 0:
        return cnp.PyArray_NewCopy(x, cnp.NPY_CORDER)
    result = np.empty(np.shape(x), x.dtype)
    c = copy_of(x, result)
    if not note_cast(&c, x, result):
        result[...] = x
    return result


def filled(tuple shape not None, object dtype not None, object value):
    """Return an array of equal elements; a recording notes that each run fills it again."""
    cdef bint is_zero = value == 0 and not np.signbit(value)
    cdef cnp.ndarray result = np.zeros(shape, dtype) if is_zero else np.full(shape, value, dtype)
    cdef mp_fill f
    if mp_recorder()[0] != NULL and cnp.PyArray_SIZE(result):
        memset(&f, 0, sizeof(f))
        f.to, f.bytes, f.size = cnp.PyArray_BYTES(result), cnp.PyArray_NBYTES(result), cnp.PyArray_ITEMSIZE(result)
        if f.size > <Py_ssize_t>sizeof(f.element):
            raise UnseenError(f"an array of {result.dtype} cannot be filled by a plan")
        memcpy(f.element, f.to, f.size)
        recording().note(MP_OPERATION_FILL, &f, "fill", result, mp_cost(0, 0, MP_NO_ARITHMETIC, f.bytes))
    return result


cdef class Memory:
    """The base of a read-only array. It exposes neither owner nor buffer, so that no writeable view can be made."""

    cdef object owner


def file_map(array):
    """Return the read-only memory map of a file that contains an array; None if the array is in none."""
    from mmap import mmap  # imported here to keep `import mp_core` fast

    lies_in = array
    while cnp.PyArray_Check(lies_in) or isinstance(lies_in, (memoryview, Memory)):  # false for recorded arrays
        if isinstance(lies_in, Memory):
            lies_in = (<Memory>lies_in).owner
        else:
            lies_in = lies_in.obj if isinstance(lies_in, memoryview) else lies_in.base
    return lies_in if isinstance(lies_in, mmap) and memoryview(lies_in).readonly else None


cpdef read_only(cnp.ndarray array, cnp.dtype dtype):
    """Return a plain read-only ndarray on the memory of `array`; `dtype` is its dtype or an equal one.

    Neither a flag nor its base can make it writeable.
    """
    cdef Memory memory = Memory()
    memory.owner = array
    Py_INCREF(dtype)  # PyArray_NewFromDescr steals this reference
    cdef cnp.ndarray result = PyArray_NewFromDescr(
        <PyTypeObject *>np.ndarray, dtype, cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array),
        cnp.PyArray_STRIDES(array), cnp.PyArray_DATA(array), 0, NULL)
    cnp.set_array_base(result, memory)
    return result


def next_states(variables, arrays, parse):
    """Return the states of variables with new values: (read-only array, {} of derived values, version, stamp).

    `parse` returns mp_core's own instance of a dtype.
    """
    cdef cnp.ndarray array
    states = []
    for variable, array in zip(variables, arrays, strict=True):
        dtype = array.dtype
        array = read_only(array, dtype if dtype is FLOAT32 else parse(dtype))
        states.append((array, {}, variable._state[2] + 1, object()))
    return states


def empty(tuple shape not None, object dtype not None):
    """Return an uninitialized array, whose parts are then written by :func:`copy_into`."""
    cdef cnp.ndarray result = np.empty(shape, dtype)
    if mp_recorder()[0] != NULL and cnp.PyArray_SIZE(result):
        recording().add_buffer(result)
    return result


def copy_into(cnp.ndarray out not None, cnp.ndarray x not None):
    """Copy `x` into a new array, or into a part of an array made by :func:`filled` or :func:`empty`.

    Both have the same shape and dtype, and any strides; `out` may have another byte order.
    """
    cdef mp_cast c
    if mp_recorder()[0] != NULL and cnp.PyArray_SIZE(x):
        c = copy_of(x, out)
        note_cast(&c, x, out, False)
    else:
        out[...] = x
