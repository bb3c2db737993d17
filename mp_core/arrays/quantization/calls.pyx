"""`quantize` and `dequantize`: a call is one path, on which `general.py` replaces what kernels cannot take as it is.

An argument of a usual type is used as it is. Any other becomes one of a usual type first, or is refused.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memmove

from mp_core.core.arrays cimport may_be_key
from mp_core.core.header cimport MP_CODE_U8, MP_FLOATS
from mp_core.arrays.quantization.recipe cimport QuantizedFields, Recipe, fits, positive_and_finite

from mp_core.arrays import FORMATS, cast, check_out, imported_out
from mp_core.arrays.dtypes import parse
from mp_core.arrays.quantization import general
from mp_core.arrays.quantization.array import QuantizedArray

cnp.import_array()

cdef object recipe_of = general.recipe_of

# The format (mp_format) of a float type by its dtype, its name and its class; and NumPy's type number by format.
cdef dict formats = {}
cdef int type_numbers[MP_FLOATS]
for _dtype, _format in FORMATS.items():
    if _format < MP_FLOATS:
        formats[_dtype] = formats[_dtype.name] = formats[_dtype.type] = _format
        type_numbers[<int>_format] = _dtype.num


cdef int format_of(cnp.ndarray x) noexcept:
    """The format of an array that kernels can read where it lies (contiguous native floats), else MP_FLOATS."""
    cdef int fmt = 0, number = cnp.PyArray_TYPE(x)
    while fmt < MP_FLOATS and type_numbers[fmt] != number:
        fmt += 1
    return fmt if cnp.PyArray_ISCARRAY_RO(x) else MP_FLOATS


cdef bint is_usual(object given) noexcept:
    """Whether a scale or zero point is of a usual type: reading it runs no code of a class of the caller's."""
    return given is None or type(given) is float or type(given) is int or type(given) is cnp.ndarray


cdef bint is_scale(object scale, Recipe r) except -1:
    """Whether a given scale can be used as it is: it needs no broadcasting and is positive and finite."""
    if type(scale) is float:
        return 1e-30 < <double>scale < 1e30
    return fits(scale, cnp.NPY_FLOAT32, <int>len(r.shape), r.scale_sizes, False) and positive_and_finite(scale)


cdef bint is_zero_point(object zero_point, Recipe r) except -1:
    cdef Py_ssize_t i
    cdef int32_t value
    cdef bint good = r.prepared.codes.kind <= MP_CODE_U8
    if type(zero_point) is int:
        return good and r.prepared.codes.qmin <= zero_point <= r.prepared.codes.qmax
    if not fits(zero_point, cnp.NPY_INT32, <int>len(r.shape), r.scale_sizes, False):
        return False
    for i in range(cnp.PyArray_SIZE(zero_point)):
        value = (<const int32_t *>cnp.PyArray_DATA(zero_point))[i]
        good &= r.prepared.codes.qmin <= value <= r.prepared.codes.qmax
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
    cdef Recipe r
    cdef QuantizedFields q
    cdef bint with_zeros
    if not (type(x) is cnp.ndarray and format_of(x) < MP_FLOATS and may_be_key(dtype) and type(symmetric) is bool
            and (axis is None or type(axis) is int) and (group_size is None or type(group_size) is int)
            and is_usual(scale) and is_usual(zero_point)):
        x, axis, dtype, symmetric, group_size, scale, zero_point = general.arguments(
            x, axis, dtype, symmetric, group_size, scale, zero_point)
    r = recipe_of((<object>x).shape, axis, dtype, symmetric, group_size)
    with_zeros = r.with_zeros if scale is None else zero_point is not None
    if scale is None:
        if zero_point is not None or r.wide:
            general.refuse_without_scale(r, zero_point)
    else:
        if zero_point is not None and not is_zero_point(zero_point, r):
            zero_point = general.given_zeros(zero_point, r)
        if not is_scale(scale, r):
            scale = general.given_scale(scale, r)
    if out is None:
        q = r.new(QuantizedArray, with_zeros)
    else:
        if not (type(out) is QuantizedArray and r.agrees(out)
                and ((<QuantizedFields>out).zero_point is not None) == with_zeros and r.holds(out, x, True)):
            x = general.source_for(out, x, r, with_zeros)
        q = out
    if scale is not None:
        fill(q.scale, scale)
        if with_zeros:
            fill(q.zero_point, zero_point)
    if r.as_they_are:
        r.run(x, format_of(x), q, scale is not None, False)
    else:
        general.convert(r, x, q, scale is not None, False)
    return q


def dequantize(q, dtype="float32", *, out=None):
    """Return ``scale * (q - zero_point)``, computed in float32, rounded once to `dtype`.

    Parameters
    ----------
    q : QuantizedArray
    dtype : dtype or str
        A float type.
    out : ndarray or tensor, optional
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
    cdef Recipe r
    cdef QuantizedFields parts
    cdef cnp.ndarray x = None
    cdef bint held
    number = formats.get(dtype) if may_be_key(dtype) else None
    if number is None or type(q) is not QuantizedArray:
        dtype = general.float_type(q, dtype)
        number = formats.get(dtype, MP_FLOATS)  # float64
    parts = q
    r = recipe_of(parts.shape, parts.axis, parts.dtype, True, parts.group_size)
    if number < MP_FLOATS:
        if out is None:
            x = cnp.PyArray_EMPTY(<int>len(r.shape), r.lengths, type_numbers[<int>number], 0)
        elif fits(out, type_numbers[<int>number], <int>len(r.shape), r.lengths, True):
            x = out
    held = x is not None and r.holds(parts, x, False)
    if held and r.as_they_are:
        r.run(x, number, parts, True, True)
    elif out is not None and not held:
        plain = check_out(imported_out(out), parts.shape, parse(dtype))
        plain[...] = dequantize(q, dtype)
        return out
    elif x is None:
        return cast(dequantize(q), dtype)
    else:
        general.convert(r, x, q, True, True)
    return x
