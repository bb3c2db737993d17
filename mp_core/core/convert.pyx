"""Casts between float formats: array loops around the kernels."""

cimport numpy as cnp
from libc.string cimport memcpy

from mp_core.core.cpu cimport kernels, parallel_for, threads_for
from mp_core.core.header cimport MP_F32, MP_FLOATS, MP_SATURATE, MP_STREAM, mp_kernels

cnp.import_array()

cdef enum:
    F64 = MP_FLOATS  # source only
    CHUNK = 1024     # elements that pass through float32 scratch at a time

# Elements from which a second thread pays: a fraction of a millisecond of memory traffic.
cdef double WORTHWHILE = 1 << 18

# Bytes of a result that no cache holds until it is read again. Past the caches, 2^25 elements of float16 to float32
# took 0.6 of the time, back 0.7 (one Zen 4 core, 32 MiB of third-level cache, November 2026).
cdef Py_ssize_t STREAMED = 1 << 24

FORMATS = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3fn": 3, "float8_e5m2": 4, "float64": F64}

cdef struct Cast:
    const mp_kernels *kernels
    const char *src
    char *dst
    Py_ssize_t n, share
    int src_format, dst_format, src_size, dst_size, mode


cdef void run_contiguous(const Cast *c, const char *src, char *dst, Py_ssize_t n) noexcept nogil:
    """n contiguous elements: straight to or from float32, or through it chunk by chunk (one rounding either way)."""
    cdef float middle[CHUNK]
    cdef Py_ssize_t i = 0, count
    if c.src_format == MP_F32:
        c.kernels.narrow[c.dst_format](<const float *>src, dst, n, c.mode)
        return
    if c.dst_format == MP_F32 and c.src_format != F64 and not c.mode & MP_SATURATE:
        c.kernels.widen[c.src_format](src, <float *>dst, n, c.mode)
        return
    while i < n:
        count = min(n - i, <Py_ssize_t>CHUNK)
        if c.src_format != F64:
            c.kernels.widen[c.src_format](src + i * c.src_size, middle, count, 0)
        else:
            c.kernels.round_odd(<const double *>(src + i * c.src_size), middle, count)
        c.kernels.narrow[c.dst_format](middle, dst + i * c.dst_size, count, c.mode & MP_SATURATE)
        i += count


cdef void run_strided(const Cast *c, const char *src, Py_ssize_t src_step, char *dst, Py_ssize_t dst_step,
                      Py_ssize_t n) noexcept nogil:
    """n elements at any steps: gathered and scattered chunk by chunk where they are not contiguous."""
    cdef char source[CHUNK * 8]
    cdef char result[CHUNK * 8]
    cdef Py_ssize_t i = 0, j, count
    cdef const char *at
    cdef char *to
    if src_step == c.src_size and dst_step == c.dst_size:
        run_contiguous(c, src, dst, n)
        return
    while i < n:
        count = min(n - i, <Py_ssize_t>CHUNK)
        at = src + i * src_step
        to = dst + i * dst_step
        if src_step != c.src_size:
            for j in range(count):
                memcpy(source + j * c.src_size, at + j * src_step, c.src_size)
            at = source
        if dst_step == c.dst_size:
            run_contiguous(c, at, to, count)
        else:
            run_contiguous(c, at, result, count)
            for j in range(count):
                memcpy(to + j * dst_step, result + j * c.dst_size, c.dst_size)
        i += count


cdef void run_share(void *context, Py_ssize_t index) noexcept nogil:
    cdef const Cast *c = <const Cast *>context
    cdef Py_ssize_t first = index * c.share
    run_contiguous(c, c.src + first * c.src_size, c.dst + first * c.dst_size, min(c.share, c.n - first))


def convert(cnp.ndarray src not None, cnp.ndarray dst not None, int src_format, int dst_format, bint saturate):
    """Cast `src` into `dst`: same shape, native byte order, any strides, no overlap but exact coincidence.

    Formats are the values of :data:`FORMATS`; ``float64`` is a source only.
    """
    cdef Cast c
    cdef int threads
    c.kernels = kernels()
    c.src, c.dst, c.n = cnp.PyArray_BYTES(src), cnp.PyArray_BYTES(dst), cnp.PyArray_SIZE(src)
    c.src_format, c.dst_format, c.mode = src_format, dst_format, MP_SATURATE if saturate else 0
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(src), cnp.PyArray_ITEMSIZE(dst)
    if c.n == 0:
        return
    if cnp.PyArray_IS_C_CONTIGUOUS(src) and cnp.PyArray_IS_C_CONTIGUOUS(dst):
        if c.n * c.dst_size >= STREAMED:
            c.mode |= MP_STREAM
        threads = threads_for(<double>c.n, WORTHWHILE)
        c.share = (c.n + threads - 1) // threads
        c.share = (c.share + CHUNK - 1) // CHUNK * CHUNK
        with nogil:
            parallel_for(threads, (c.n + c.share - 1) // c.share, run_share, &c)
        return
    iterate(src, dst, &c)


def convert_small(x, dtype, out, bint saturate, dict formats not None):
    """The short way of :func:`mp_core.cast`, or None where the long one must be gone.

    It serves ndarrays of float types that are C-contiguous, of a size for one thread, apart from each other, and of the
    very dtype objects that are keys of `formats` (format numbers by dtype and by name): a lookup tells it all.
    """
    cdef Cast c
    cdef cnp.ndarray source, result
    cdef object source_format, target_format
    cdef cnp.dtype target
    if type(x) is not cnp.ndarray or not isinstance(dtype, (str, cnp.dtype)):
        return None
    source = x
    source_format, target_format = formats.get(<object>cnp.PyArray_DESCR(source)), formats.get(dtype)
    if source_format is None or target_format is None or target_format == F64:
        return None
    c.n, c.src_format, c.dst_format = cnp.PyArray_SIZE(source), source_format, target_format
    if c.n > WORTHWHILE or (c.src_format == F64 and c.dst_format == MP_F32) or not cnp.PyArray_IS_C_CONTIGUOUS(source):
        return None
    target = <cnp.dtype>formats[target_format, "dtype"]
    if out is None:
        result = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(source), cnp.PyArray_DIMS(source), target.num, 0)
    else:
        if type(out) is not cnp.ndarray:
            return None
        result = out
        if (<object>cnp.PyArray_DESCR(result) is not target
                or not cnp.PyArray_SAMESHAPE(source, result)
                or not cnp.PyArray_IS_C_CONTIGUOUS(result) or not cnp.PyArray_ISWRITEABLE(result)):
            return None
    c.src, c.dst = cnp.PyArray_BYTES(source), cnp.PyArray_BYTES(result)
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(source), cnp.PyArray_ITEMSIZE(result)
    if c.src < c.dst + c.n * c.dst_size and c.dst < c.src + c.n * c.src_size:
        return None
    c.kernels, c.mode = kernels(), MP_SATURATE if saturate else 0
    run_contiguous(&c, c.src, c.dst, c.n)
    return result


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
