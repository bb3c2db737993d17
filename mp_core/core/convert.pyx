"""Casts between float formats: array loops around the kernels."""

cimport numpy as cnp
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport STREAMED, is_recording, kernels, parallel_for, threads_for
from mp_core.core.header cimport (
    MP_BF16, MP_F8_E4M3FN, MP_F8_E5M2, MP_F32, MP_SATURATE, MP_STREAM, mp_chunk_floats,
)
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

import numpy as np

cnp.import_array()

# Elements from which a second thread pays: a fraction of a millisecond of memory traffic.
cdef double WORTHWHILE = 1 << 18


cdef void run_contiguous(const Cast *c, const char *src, char *dst, Py_ssize_t n) noexcept nogil:
    """n contiguous elements: straight to or from float32, or through it chunk by chunk (one rounding either way)."""
    cdef mp_chunk_floats buffer
    cdef float *middle = buffer.at
    cdef Py_ssize_t i = 0, count
    if c.src_format == MP_F32:
        c.kernels.casts.narrow[c.dst_format](<const float *>src, dst, n, c.mode)
        return
    if c.dst_format == MP_F32 and c.src_format != F64 and not c.mode & MP_SATURATE:
        c.kernels.casts.widen[c.src_format](src, <float *>dst, n, c.mode)
        return
    if c.dst_format == MP_BF16 and c.src_format in (MP_F8_E4M3FN, MP_F8_E5M2) and not c.mode & MP_SATURATE:
        c.kernels.casts.to_bf16[c.src_format](src, dst, n)
        return
    while i < n:
        count = min(n - i, <Py_ssize_t>CHUNK)
        if c.src_format != F64:
            c.kernels.casts.widen[c.src_format](src + i * c.src_size, middle, count, 0)
        else:
            c.kernels.casts.round_odd(<const double *>(src + i * c.src_size), middle, count)
        c.kernels.casts.narrow[c.dst_format](middle, dst + i * c.dst_size, count, c.mode & MP_SATURATE)
        i += count


cdef void run_strided(const Cast *c, const char *src, Py_ssize_t src_stride, char *dst, Py_ssize_t dst_stride,
                      Py_ssize_t n) noexcept nogil:
    """n elements at any strides: gathered and scattered chunk by chunk where they are not contiguous."""
    cdef char source[CHUNK * 8]
    cdef char result[CHUNK * 8]
    cdef Py_ssize_t i = 0, j, count
    cdef const char *at
    cdef char *to
    if src_stride == c.src_size and dst_stride == c.dst_size:
        run_contiguous(c, src, dst, n)
        return
    while i < n:
        count = min(n - i, <Py_ssize_t>CHUNK)
        at = src + i * src_stride
        to = dst + i * dst_stride
        if src_stride != c.src_size:
            for j in range(count):
                memcpy(source + j * c.src_size, at + j * src_stride, c.src_size)
            at = source
        if dst_stride == c.dst_size:
            run_contiguous(c, at, to, count)
        else:
            run_contiguous(c, at, result, count)
            for j in range(count):
                memcpy(to + j * dst_stride, result + j * c.dst_size, c.dst_size)
        i += count


cdef void run_share(void *context, Py_ssize_t index) noexcept nogil:
    cdef const Cast *c = <const Cast *>context
    cdef Py_ssize_t first = index * c.share
    run_contiguous(c, c.src + first * c.src_size, c.dst + first * c.dst_size, min(c.share, c.n - first))


cdef Py_ssize_t share_out(Cast *c, int threads) noexcept nogil:
    """Share the elements out among threads where that pays; return the number of shares."""
    if c.n < WORTHWHILE:
        threads = 1
    elif c.n * c.dst_size >= STREAMED:
        c.mode |= MP_STREAM
    c.share = (c.n + threads - 1) // threads
    c.share = (c.share + CHUNK - 1) // CHUNK * CHUNK
    return (c.n + c.share - 1) // c.share


cdef int contiguous(Cast *c) except -1:
    """All of c's elements, shared out among threads where that pays."""
    cdef int threads
    cdef Py_ssize_t shares
    if c.n < WORTHWHILE:
        run_contiguous(c, c.src, c.dst, c.n)
        return 0
    threads = threads_for(<double>c.n, WORTHWHILE)
    shares = share_out(c, threads)
    with nogil:
        parallel_for(threads, shares, run_share, c)
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
            run_strided(c, data[0], steps[0], data[1], steps[1], count[0])
            if not advance(iterator):
                break
    if cnp.NpyIter_Deallocate(iterator) != cnp.NPY_SUCCEED:
        raise MemoryError
    return 0
