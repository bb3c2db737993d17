"""Quantization: arguments, results and the short way between them."""

cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memmove

from mp_core.core.arrays cimport apart, may_be_key
from mp_core.core.blocks cimport ASYMMETRIC, POSITIVE, SYMMETRIC, Blocks, run
from mp_core.core.cpu cimport STREAMED, kernels
from mp_core.core.header cimport (
    MP_CODE_E4M3FN, MP_CODE_E5M2, MP_CODE_I8, MP_CODE_U8, MP_FLOATS, MP_STREAM, MP_WITHIN, mp_kernels,
)

cnp.import_array()

# How the elements of a type of codes are stored; int4 and uint4, unpacked, as int8.
CODES = {
    "int8": MP_CODE_I8, "uint8": MP_CODE_U8, "int4": MP_CODE_I8, "uint4": MP_CODE_I8, "float8_e4m3fn": MP_CODE_E4M3FN,
    "float8_e5m2": MP_CODE_E5M2,
}


cdef void place(Blocks *b, int fmt, cnp.ndarray x, cnp.ndarray q, cnp.ndarray scale, cnp.ndarray zero_point):
    """Tell b where numbers, codes and scales are."""
    b.kernels, b.format, b.size, b.x = kernels(), fmt, <int>cnp.PyArray_ITEMSIZE(x), cnp.PyArray_BYTES(x)
    b.q, b.scale = <uint8_t *>cnp.PyArray_BYTES(q), <float *>cnp.PyArray_DATA(scale)
    b.zero_point = NULL if zero_point is None else <int32_t *>cnp.PyArray_DATA(zero_point)
    b.mode = MP_WITHIN if b.how == SYMMETRIC else 0
    if (cnp.PyArray_NBYTES(x) if b.back else cnp.PyArray_NBYTES(q)) >= STREAMED:
        b.mode |= MP_STREAM


cdef class Recipe:
    """What follows from a type of codes, a shape and which of its elements share a scale."""
    cdef Blocks blocks
    cdef readonly tuple shape, axes, scale_shape
    cdef readonly object group_size, dtype
    cdef cnp.npy_intp lengths[64]      # of the shape
    cdef cnp.npy_intp sizes[64]        # ... of the stored codes
    cdef cnp.npy_intp scale_sizes[64]
    cdef int type, how, qmin           # NumPy's number of the stored type; how scales are found; the lowest code then
    cdef bint as_they_are              # the arrays need no copy in another order or without pairs
    cdef bint with_zeros

    def __cinit__(self, tuple shape, tuple stored, cnp.dtype storage, dtype, int code, bint packed, int qmin, int qmax,
                  tuple axes, group_size, tuple scale_shape, blocks, bint as_they_are, bint symmetric):
        cdef Blocks *b = &self.blocks
        cdef int i
        self.shape, self.axes, self.scale_shape = shape, axes, scale_shape
        self.group_size, self.dtype = group_size, dtype
        for i in range(len(shape)):
            self.lengths[i], self.sizes[i], self.scale_sizes[i] = shape[i], stored[i], scale_shape[i]
        self.type, self.as_they_are, self.with_zeros = storage.num, as_they_are, not symmetric
        self.how = ASYMMETRIC if not symmetric else SYMMETRIC if qmin else POSITIVE
        self.qmin = qmin if not symmetric else -qmax if qmin else 0
        b.outer, b.outer_stride, b.rows, b.row_stride, b.cols, b.group, b.groups, b.by_column = blocks
        b.code, b.packed, b.qmin, b.qmax, b.largest = code, packed, qmin, qmax, <float>qmax

    def convert(self, cnp.ndarray x not None, int fmt, cnp.ndarray q not None, cnp.ndarray scale not None,
                cnp.ndarray zero_point, bint given, bint back, bint packed):
        """Write codes `q` (and their scales, unless they are `given`) from `x`, or with `back` `x` from `q`."""
        cdef Blocks b = self.blocks
        in_order(x), in_order(q), in_order(scale)
        if zero_point is not None:
            in_order(zero_point)
        b.packed, b.back = packed, back
        if not given:
            b.how, b.qmin = self.how, self.qmin
        place(&b, fmt, x, q, scale, zero_point)
        run(&b)


# The short way: what it knows of types, how to make a recipe and a result, and the long ways for all it does not serve.
cdef int _types[MP_FLOATS]
cdef dict _numbers = {}
cdef object _new = object.__new__
cdef object _result, _recipe, _long_quantize, _long_dequantize


def install(dict formats not None, result, recipe, long_quantize, long_dequantize):
    """Tell the format by dtype, the class of results and the functions behind :func:`quantize`, :func:`dequantize`."""
    global _result, _recipe, _long_quantize, _long_dequantize
    for dtype, number in formats.items():
        if number < MP_FLOATS:
            _numbers[dtype] = _numbers[dtype.name] = _numbers[dtype.type] = number
            _types[<int>number] = dtype.num
    _result, _recipe, _long_quantize, _long_dequantize = result, recipe, long_quantize, long_dequantize


cdef int format_of(cnp.ndarray x) noexcept:
    """The number of the float type of an array that the kernels can read as it lies, else MP_FLOATS."""
    cdef int fmt = 0, number = cnp.PyArray_TYPE(x)
    while fmt < MP_FLOATS and _types[fmt] != number:
        fmt += 1
    return fmt if cnp.PyArray_ISCARRAY_RO(x) else MP_FLOATS


cdef bint fits(object a, int type_number, int ndim, const cnp.npy_intp *sizes, bint to_write) noexcept:
    """Whether it is a C-contiguous ndarray of that type and shape."""
    cdef cnp.ndarray array
    cdef int i
    if type(a) is not cnp.ndarray:
        return False
    array = a
    if (cnp.PyArray_TYPE(array) != type_number or cnp.PyArray_NDIM(array) != ndim
            or not (cnp.PyArray_ISCARRAY(array) if to_write else cnp.PyArray_ISCARRAY_RO(array))):
        return False
    for i in range(ndim):
        if cnp.PyArray_DIM(array, i) != sizes[i]:
            return False
    return True


cdef bint has_parts(dict q, Recipe r, cnp.ndarray x, bint to_write) except -1:
    """Whether the fields of a result are as the recipe says, and no memory of x."""
    values, scale, zeros = q["values"], q["scale"], q["zero_point"]
    cdef int ndim = <int>len(r.shape)
    return (fits(values, r.type, ndim, r.sizes, to_write)
            and fits(scale, cnp.NPY_FLOAT32, ndim, r.scale_sizes, to_write)
            and (zeros is None or fits(zeros, cnp.NPY_INT32, ndim, r.scale_sizes, to_write))
            and (x is None or (apart(x, values) and apart(x, scale)
                               and (zeros is None or apart(x, zeros)))))


cdef bint is_scale(object scale, Recipe r) except -1:
    """Whether a given scale needs neither broadcasting nor complaint."""
    if type(scale) is float:
        return 1e-30 < <double>scale < 1e30
    return fits(scale, cnp.NPY_FLOAT32, <int>len(r.shape), r.scale_sizes, False) and positive_and_finite(scale)


cdef bint is_zero_point(object zero_point, Recipe r) except -1:
    cdef Py_ssize_t i
    cdef int32_t value
    cdef bint good = r.blocks.code <= MP_CODE_U8
    if type(zero_point) is int:
        return good and r.blocks.qmin <= zero_point <= r.blocks.qmax
    if not fits(zero_point, cnp.NPY_INT32, <int>len(r.shape), r.scale_sizes, False):
        return False
    for i in range(cnp.PyArray_SIZE(zero_point)):
        value = (<const int32_t *>cnp.PyArray_DATA(zero_point))[i]
        good &= r.blocks.qmin <= value <= r.blocks.qmax
    return good


cdef void fill(cnp.ndarray to, object given):
    """Copy what is_scale or is_zero_point accepted."""
    cdef Py_ssize_t i
    cdef float number
    cdef int32_t whole
    if type(given) is cnp.ndarray:
        memmove(cnp.PyArray_DATA(to), cnp.PyArray_DATA(<cnp.ndarray>given), cnp.PyArray_NBYTES(to))
    elif type(given) is float:
        number = given
        for i in range(cnp.PyArray_SIZE(to)):
            (<float *>cnp.PyArray_DATA(to))[i] = number
    else:
        whole = given
        for i in range(cnp.PyArray_SIZE(to)):
            (<int32_t *>cnp.PyArray_DATA(to))[i] = whole


def quantize(x, *, axis=None, dtype="int8", symmetric=True, group_size=None, scale=None, zero_point=None, out=None):
    """Return `x` as codes of 4, 8 or 16 bits: ``q = clamp(round(x / scale) + zero_point)``.

    A true division in float32, rounded to nearest even, clamped before it becomes an integer: the ONNX QuantizeLinear
    formula. (For a float16 or bfloat16 scale ONNX divides in that type: the notes say how to get that.)

    Parameters
    ----------
    x : array-like
        Any shape; float types (float64 is rounded to float32 first) or integers.
    axis : int or sequence of int, optional
        The axes that keep scales of their own: 1 for one scale per column of a matrix, 0 for one per row. None: one.
    dtype : {"int8", "uint8", "int4", "uint4", "int16", "uint16", "float8_e4m3fn", "float8_e5m2"}
        int4 and uint4 codes are packed in pairs; see :class:`QuantizedArray`. int16 and uint16 need a given `scale`.
    symmetric : bool
        Zero point 0 and a range as wide below 0 as above, so that ``scale = max|x| / largest``: 127 for int8, 7 for
        int4, 448 or 57344 for the 8-bit floats. uint8, uint4: the range [0, max x] on 0..255 or 0..15. False, for
        integers only: the range of `x`, widened to hold 0, on all codes: ``scale = (hi - lo) / (qmax - qmin)``,
        ``zero_point = round(qmin - lo / scale)``, the ONNX DynamicQuantizeLinear formula.
    group_size : int, optional
        How many neighbours share a scale along the one axis that `axis` leaves out; the last group may be shorter. For
        a weight (k, n), ``axis=1, group_size=64`` gives scales of shape (ceil(k / 64), n): ONNX' blocked quantization.
    scale, zero_point : array-like, optional
        Given instead of computed; broadcastable against the shape of the scales (length 1 off `axis`) or, with one
        `axis` and no groups, of shape (length,). With a given scale, codes use the full range (int8: -128..127), as
        ONNX says.
    out : QuantizedArray, optional
        Where to put the result: what a call with the same arguments returned. Its arrays are overwritten.

    Returns
    -------
    QuantizedArray
        A new one, or `out`.

    Raises
    ------
    TypeError
        `x` is not numeric, or `dtype` is none of these.
    ValueError
        `axis` is out of range or repeated; `group_size` is not positive, or `axis` does not leave out one axis; `scale`
        is not positive and finite, or missing for 16 bits; `zero_point` without `scale`, or outside the codes; a zero
        point, or ``symmetric=False``, for an 8-bit float; shapes that do not broadcast; an `out` of another kind.

    Notes
    -----
    Infinities go to the end of the range and do not count when a scale is computed; NaN becomes the zero point, in an
    8-bit float +0; a slice without anything to scale (empty, all zero, not finite) gets scale 1. An 8-bit float is
    ``x / scale``, clamped to its finite numbers and rounded once more, to nearest even, by :func:`mp_core.cast`.

    ONNX QuantizeLinear divides in the type of `x` and `scale`. Where both are float16 or bfloat16 the quotient is
    rounded to that type before it is rounded to a code, which moves some codes by one. Those codes are
    ``quantize(x / scale, scale=1.0, zero_point=zero_point)``, with NumPy's quotient of arrays of that type; their scale
    is still `scale`: ``QuantizedArray.from_onnx(codes.values, scale, zero_point)``.

    Examples
    --------
    >>> quantize([-1.0, 0.0, 1.55], symmetric=False, dtype="uint8").values
    array([  0, 100, 255], dtype=uint8)
    >>> import numpy as np
    >>> quantize(np.ones((100, 3)), axis=1, group_size=64, dtype="int4").scale.shape
    (2, 3)
    """
    cdef Blocks b
    cdef Recipe r
    cdef cnp.ndarray source, values, scales, zeros = None
    cdef dict fields
    cdef int ndim, fmt = MP_FLOATS
    cdef bint with_zeros
    # Arguments of the usual types, whose recipe is known, and a contiguous array apart from `out`: then the kernels.
    if (type(x) is cnp.ndarray and may_be_key(dtype) and type(symmetric) is bool
            and (axis is None or type(axis) is int) and (group_size is None or type(group_size) is int)):
        source = x
        fmt = format_of(source)
    if fmt == MP_FLOATS:
        return _long_quantize(x, axis, dtype, symmetric, group_size, scale, zero_point, out)
    r = _recipe(x.shape, axis, dtype, symmetric, group_size)
    ndim, with_zeros = cnp.PyArray_NDIM(source), r.with_zeros if scale is None else zero_point is not None
    if (not r.as_they_are or (scale is not None and not is_scale(scale, r))
            or (zero_point is not None and (scale is None or not is_zero_point(zero_point, r)))):
        return _long_quantize(x, axis, dtype, symmetric, group_size, scale, zero_point, out)
    if out is None:
        values = cnp.PyArray_EMPTY(ndim, r.sizes, r.type, 0)
        scales = cnp.PyArray_EMPTY(ndim, r.scale_sizes, cnp.NPY_FLOAT32, 0)
        if with_zeros:
            zeros = cnp.PyArray_EMPTY(ndim, r.scale_sizes, cnp.NPY_INT32, 0)
        out = _new(_result)
        fields = out.__dict__
        fields["values"], fields["scale"], fields["zero_point"] = values, scales, zeros
        fields["axis"], fields["group_size"], fields["dtype"], fields["shape"] = r.axes, r.group_size, r.dtype, r.shape
    else:
        fields = out.__dict__ if type(out) is _result else None
        if (fields is None or fields["shape"] != r.shape or fields["dtype"] is not r.dtype or fields["axis"] != r.axes
                or fields["group_size"] != r.group_size or (fields["zero_point"] is not None) != with_zeros
                or not has_parts(fields, r, source, True)):
            return _long_quantize(x, axis, dtype, symmetric, group_size, scale, zero_point, out)
        values, scales, zeros = fields["values"], fields["scale"], fields["zero_point"]
    b = r.blocks
    if scale is None:
        b.how, b.qmin = r.how, r.qmin
    else:
        fill(scales, scale)
        if with_zeros:
            fill(zeros, zero_point)
    place(&b, fmt, source, values, scales, zeros)
    run(&b)
    return out


def dequantize(q, dtype="float32", *, out=None):
    """Return ``scale * (q - zero_point)``, computed in float32, rounded once to `dtype`.

    Parameters
    ----------
    q : QuantizedArray
    dtype : dtype or str
        A float type.
    out : ndarray, optional
        Where to put the result: of the shape of `q` and type `dtype`.

    Returns
    -------
    ndarray
        A new array, or `out`.

    Raises
    ------
    TypeError
        `q` is no :class:`QuantizedArray`, `dtype` no float type, or `out` not of that type.
    ValueError
        `out` has another shape than `q`, or is read-only.

    Examples
    --------
    >>> dequantize(quantize([-1.27, 0.5]))
    array([-1.27,  0.5 ], dtype=float32)
    """
    cdef Blocks b
    cdef Recipe r
    cdef cnp.ndarray x
    cdef dict fields
    number = _numbers.get(dtype) if may_be_key(dtype) else None
    if number is None or type(q) is not _result:
        return _long_dequantize(q, dtype, out)
    fields = q.__dict__
    r = _recipe(fields["shape"], fields["axis"], fields["dtype"], True, fields["group_size"])
    if out is None:
        x = cnp.PyArray_EMPTY(<int>len(r.shape), r.lengths, _types[<int>number], 0)
    elif fits(out, _types[<int>number], <int>len(r.shape), r.lengths, True):
        x = out
    else:
        return _long_dequantize(q, dtype, out)
    if not r.as_they_are or not has_parts(fields, r, x, False):
        return _long_dequantize(q, dtype, out)
    b = r.blocks
    b.back = True
    place(&b, number, x, fields["values"], fields["scale"], fields["zero_point"])
    run(&b)
    return x


cdef bint in_order(cnp.ndarray x) except -1:
    """Raise unless the kernels, which know no strides, can read it."""
    if not cnp.PyArray_ISCARRAY_RO(x):
        raise ValueError(f"kernels read aligned C-contiguous arrays only; received strides {(<object>x).strides}")
    return True


cpdef bint positive_and_finite(cnp.ndarray scale) except -1:
    """Whether all of a C-contiguous float32 array is."""
    cdef const float *s = <const float *>cnp.PyArray_DATA(scale)
    cdef Py_ssize_t i
    cdef bint good = True
    for i in range(cnp.PyArray_SIZE(scale)):
        good &= 0 < s[i] < INFINITY
    return good


cdef bint paired(cnp.ndarray codes, cnp.ndarray packed) except -1:
    """Raise unless they are C-contiguous bytes, (rows, n) and (rows, (n + 1) // 2)."""
    if (in_order(codes) and in_order(packed) and cnp.PyArray_NDIM(codes) == cnp.PyArray_NDIM(packed) == 2
            and cnp.PyArray_ITEMSIZE(codes) == cnp.PyArray_ITEMSIZE(packed) == 1
            and codes.shape[0] == packed.shape[0] and packed.shape[1] == (codes.shape[1] + 1) // 2):
        return True
    raise ValueError(f"codes and their pairs must be bytes of shapes (rows, n) and (rows, (n + 1) // 2); received "
                     f"{codes.dtype} {(<object>codes).shape} and {packed.dtype} {(<object>packed).shape}")


def pack_nibbles(cnp.ndarray codes not None, cnp.ndarray packed not None):
    """Put the low halves of 8-bit codes (rows, n) into bytes (rows, (n + 1) // 2), the even ones low."""
    cdef Py_ssize_t n, row
    cdef const mp_kernels *k = kernels()
    paired(codes, packed)
    n = codes.shape[1]
    for row in range(codes.shape[0] if n else 0):
        k.quantizers.pack_nibbles(<uint8_t *>cnp.PyArray_BYTES(codes) + row * n, n,
                       <uint8_t *>cnp.PyArray_BYTES(packed) + row * ((n + 1) // 2))


def unpack_nibbles(cnp.ndarray packed not None, cnp.ndarray codes not None, bint signed):
    """The inverse of :func:`pack_nibbles`; `signed` gives -8 to 7, else 0 to 15."""
    cdef Py_ssize_t n, row
    cdef const mp_kernels *k = kernels()
    paired(codes, packed)
    n = codes.shape[1]
    for row in range(codes.shape[0] if n else 0):
        k.quantizers.unpack_nibbles(<uint8_t *>cnp.PyArray_BYTES(packed) + row * ((n + 1) // 2), n, signed,
                                    <uint8_t *>cnp.PyArray_BYTES(codes) + row * n)
