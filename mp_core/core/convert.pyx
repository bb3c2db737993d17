"""Casts of arrays between float formats; library/cast.c does the work."""

cimport numpy as cnp
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport is_recording, kernels, threads_for
from mp_core.core.header cimport MP_SATURATE, MP_STREAM
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

import numpy as np

cnp.import_array()

cdef int contiguous(Cast *c) except -1:
    """All of c's elements, shared out among threads where that pays."""
    cdef int threads
    if c.n < CAST_WORK:  # too short to give the interpreter lock back
        run_cast(c, 1)
        return 0
    threads = threads_for(<double>c.n, CAST_WORK)
    with nogil:
        run_cast(c, threads)
    return 0


include "convert_recorded.pxi"


def convert(cnp.ndarray src not None, cnp.ndarray dst not None, int src_format, int dst_format, bint saturate):
    """Cast `src` into `dst`: same shape, native byte order, any strides, no overlap but exact coincidence.

    Formats are the values of :data:`mp_core.formats.CASTS`; ``float64`` is a source only, and its cast to ``float32``
    rounds to odd.
    """
    cdef Cast c
    c.kernels = kernels()
    c.src, c.dst, c.n = cnp.PyArray_BYTES(src), cnp.PyArray_BYTES(dst), cnp.PyArray_SIZE(src)
    c.src_format, c.dst_format, c.mode = src_format, dst_format, MP_SATURATE if saturate else 0
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(src), cnp.PyArray_ITEMSIZE(dst)
    if c.n == 0:
        return
    if is_recording():
        note_cast(&c, src, dst)
    if cnp.PyArray_IS_C_CONTIGUOUS(src) and cnp.PyArray_IS_C_CONTIGUOUS(dst):
        contiguous(&c)
    else:
        iterate(src, dst, &c)


cdef int iterate(cnp.ndarray src, cnp.ndarray dst, const Cast *c) except -1:
    """Any strides: NumPy's iterator orders and merges the axes, the inner loop is ours."""
    cdef cnp.PyArrayObject *operands[2]
    cdef cnp.npy_uint32 flags[2]
    cdef cnp.NpyIter *iterator
    cdef cnp.NpyIter_IterNextFunc advance
    cdef char **data
    cdef cnp.npy_intp *steps
    cdef cnp.npy_intp *count
    operands[0], operands[1] = <cnp.PyArrayObject *>src, <cnp.PyArrayObject *>dst
    flags[0], flags[1] = cnp.NPY_ITER_READONLY, cnp.NPY_ITER_WRITEONLY
    iterator = cnp.NpyIter_MultiNew(2, operands, cnp.NPY_ITER_EXTERNAL_LOOP | cnp.NPY_ITER_ZEROSIZE_OK,
                                    cnp.NPY_KEEPORDER, cnp.NPY_NO_CASTING, flags, NULL)
    if iterator == NULL:
        raise MemoryError
    advance = cnp.NpyIter_GetIterNext(iterator, NULL)
    data = cnp.NpyIter_GetDataPtrArray(iterator)
    steps = cnp.NpyIter_GetInnerStrideArray(iterator)
    count = cnp.NpyIter_GetInnerLoopSizePtr(iterator)
    with nogil:
        while True:
            cast_line(c, data[0], steps[0], data[1], steps[1], count[0])
            if not advance(iterator):
                break
    if cnp.NpyIter_Deallocate(iterator) != cnp.NPY_SUCCEED:
        raise MemoryError
    return 0
