"""Casts between float formats: array loops around the kernels."""

cimport numpy as cnp
from libc.string cimport memcpy

from mp_core.core.arrays cimport may_be_key
from mp_core.core.cpu cimport STREAMED, kernels, parallel_for, threads_for
from mp_core.core.header cimport (
    MP_BF16, MP_F8_E4M3FN, MP_F8_E5M2, MP_F16, MP_F32, MP_FLOATS, MP_SATURATE, MP_STREAM, mp_kernels,
)

cnp.import_array()

cdef enum:
    F64 = MP_FLOATS  # source only
    CHUNK = 1024     # elements that pass through float32 scratch at a time

# Elements from which a second thread pays: a fraction of a millisecond of memory traffic.
cdef double WORTHWHILE = 1 << 18

FORMATS = {
    "float32": MP_F32, "float16": MP_F16, "bfloat16": MP_BF16, "float8_e4m3fn": MP_F8_E4M3FN, "float8_e5m2": MP_F8_E5M2,
    "float64": F64,
}

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


cdef int contiguous(Cast *c) except -1:
    """All of c's elements, shared out among threads where that pays."""
    cdef int threads
    if c.n < WORTHWHILE:
        run_contiguous(c, c.src, c.dst, c.n)
        return 0
    if c.n * c.dst_size >= STREAMED:
        c.mode |= MP_STREAM
    threads = threads_for(<double>c.n, WORTHWHILE)
    c.share = (c.n + threads - 1) // threads
    c.share = (c.share + CHUNK - 1) // CHUNK * CHUNK
    with nogil:
        parallel_for(threads, (c.n + c.share - 1) // c.share, run_share, c)
    return 0


def convert(cnp.ndarray src not None, cnp.ndarray dst not None, int src_format, int dst_format, bint saturate):
    """Cast `src` into `dst`: same shape, native byte order, any strides, no overlap but exact coincidence.

    Formats are the values of :data:`FORMATS`; ``float64`` is a source only, and its cast to ``float32`` rounds to odd.
    """
    cdef Cast c
    c.kernels = kernels()
    c.src, c.dst, c.n = cnp.PyArray_BYTES(src), cnp.PyArray_BYTES(dst), cnp.PyArray_SIZE(src)
    c.src_format, c.dst_format, c.mode = src_format, dst_format, MP_SATURATE if saturate else 0
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(src), cnp.PyArray_ITEMSIZE(dst)
    if c.n == 0:
        return
    if cnp.PyArray_IS_C_CONTIGUOUS(src) and cnp.PyArray_IS_C_CONTIGUOUS(dst):
        contiguous(&c)
    else:
        iterate(src, dst, &c)


# The short way of cast: what it knows of types, and the long way for everything that it does not serve.
cdef dict _numbers = {}     # dtype, its name or its scalar type -> format
cdef int _types[F64 + 1]    # format -> NumPy's type number
cdef object _long_way


def install(dict dtypes not None, long_way):
    """Tell :func:`cast` the dtypes by name, and the function ``(x, dtype, out, saturate)`` for all other cases."""
    global _long_way
    _long_way = long_way
    for name, number in FORMATS.items():
        _numbers[name] = _numbers[dtypes[name]] = _numbers[dtypes[name].type] = number
        _types[<int>number] = dtypes[name].num


def cast(x, dtype, *, out=None, saturate=False):
    """Return `x` converted to `dtype`, each element rounded once, to nearest even.

    Parameters
    ----------
    x : array-like
        Any shape and any of the types in :data:`mp_core.dtypes.ALLOWED` and :data:`mp_core.dtypes.STORED`.
    dtype : dtype or str
        The type of the result, one of the same lists, in any byte order.
    out : ndarray, optional
        Where to put the result: same shape, of type `dtype`. It may overlap `x`.
    saturate : bool
        Clamp finite and infinite values to the range of `dtype` instead of overflowing; NaN becomes 0 in integer types.
        Without it overflow follows ml_dtypes: infinity, or NaN for float8_e4m3fn, which has no infinity.

    Returns
    -------
    ndarray
        A new array, or `out`. NaN stays NaN, of the same sign, in float types.

    Raises
    ------
    TypeError
        A type is not in the list, `saturate` no bool, or `out` of another type than `dtype`.
    ValueError
        `out` has another shape than `x`, or is read-only.

    Notes
    -----
    float64 is rounded once too: on its way to a narrow type it is rounded to odd in float32, then to nearest even [1]_.
    To integer types the rule is NumPy's (truncation); int4 and uint4 keep the low four bits.

    References
    ----------
    .. [1] S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
       odd", IEEE Transactions on Computers 57(4), 2008.

    Examples
    --------
    >>> cast([1.0, 1.00390625, 3e38], "bfloat16")
    array([1, 1, 3.00406e+38], dtype=bfloat16)
    >>> cast([500.0, -1e9], "float8_e4m3fn", saturate=True).tolist()
    [448.0, -448.0]
    """
    cdef Cast c
    cdef cnp.ndarray source, result
    cdef int type_number
    # Contiguous arrays of float types, apart from each other: a handful of comparisons, then the kernel.
    target = _numbers.get(dtype) if may_be_key(dtype) else None
    if target is None or type(x) is not cnp.ndarray or type(saturate) is not bool:
        return _long_way(x, dtype, out, saturate)
    source, c.dst_format, c.src_format = x, target, 0
    type_number = cnp.PyArray_TYPE(source)
    while c.src_format <= F64 and _types[c.src_format] != type_number:
        c.src_format += 1
    if (c.src_format > F64 or c.dst_format == F64 or (c.src_format == F64 and c.dst_format == MP_F32)
            or not cnp.PyArray_ISCARRAY_RO(source)):
        return _long_way(x, dtype, out, saturate)
    if out is None:
        result = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(source), cnp.PyArray_DIMS(source), _types[c.dst_format], 0)
    elif (type(out) is not cnp.ndarray or cnp.PyArray_TYPE(<cnp.ndarray>out) != _types[c.dst_format]
            or not cnp.PyArray_ISCARRAY(<cnp.ndarray>out) or not cnp.PyArray_SAMESHAPE(source, <cnp.ndarray>out)):
        return _long_way(x, dtype, out, saturate)
    else:
        result = out
    c.n, c.src, c.dst = cnp.PyArray_SIZE(source), cnp.PyArray_BYTES(source), cnp.PyArray_BYTES(result)
    c.src_size, c.dst_size = cnp.PyArray_ITEMSIZE(source), cnp.PyArray_ITEMSIZE(result)
    if c.src < c.dst + c.n * c.dst_size and c.dst < c.src + c.n * c.src_size:
        return _long_way(x, dtype, out, saturate)
    c.kernels, c.mode = kernels(), MP_SATURATE if saturate else 0
    contiguous(&c)
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
