"""`quantize` and `dequantize`.

Arguments of common types are used as they are. `general.py` converts others to common types, or raises.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memmove

from mp_core.core.arrays cimport may_be_key
from mp_core.core.header cimport MP_CODE_U8, MP_FLOATS
from mp_core.arrays.quantization.recipe cimport QuantizedFields, Recipe, fits, positive_and_finite

import numpy as np

from mp_core.arrays import FORMATS, cast, check_out, imported_out
from mp_core.arrays.dtypes import parse
from mp_core.arrays.quantization import general
from mp_core.arrays.quantization.array import QuantizedArray
from mp_core.arrays.quantization.microscaling import MICROSCALING, arguments as microscaled

cnp.import_array()

cdef object recipe_of = general.recipe_of

# formats: dtype, name and scalar class of a float type -> mp_format. type_numbers: mp_format -> NumPy's type number.
cdef dict formats = {}
cdef int type_numbers[MP_FLOATS]
for _dtype, _format in FORMATS.items():
    if _format < MP_FLOATS:
        formats[_dtype] = formats[_dtype.name] = formats[_dtype.type] = _format
        type_numbers[<int>_format] = _dtype.num


cdef int format_of(cnp.ndarray x) noexcept:
    """Return the format of an array that kernels can read in place (contiguous native floats), else MP_FLOATS."""
    cdef int fmt = 0, number = cnp.PyArray_TYPE(x)
    while fmt < MP_FLOATS and type_numbers[fmt] != number:
        fmt += 1
    return fmt if cnp.PyArray_ISCARRAY_RO(x) else MP_FLOATS


cdef bint is_usual(object given) noexcept:
    """Return whether a scale or zero point has a common type, so that reading it runs no code of a user's class."""
    return given is None or type(given) is float or type(given) is int or type(given) is cnp.ndarray


cdef bint is_scale(object scale, Recipe r) except -1:
    """Return whether a given scale can be used as it is: it needs no broadcasting, and is positive and finite."""
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
    """Copy a scale or zero point that is_scale or is_zero_point accepted into an array."""
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
    """Quantize `x` to codes of 4, 8 or 16 bits: ``q = clamp(round(x / scale) + zero_point)``.

    This is the formula of ONNX QuantizeLinear: a true division in float32, rounded to nearest even, and clamped before
    the conversion to an integer. (For a float16 or bfloat16 scale, ONNX divides in that type; see Notes.)

    Parameters
    ----------
    x : array-like
        Any shape; float types (float64 is rounded to float32 first) or integers.
    axis : int or sequence of int, optional
        The axes along which scales vary: 1 gives one scale per column of a matrix, 0 one per row. None: a single scale.
    dtype : {"int8", "uint8", "int4", "uint4", "int16", "uint16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", \
"mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4"}
        4-bit codes are packed in pairs; see :class:`QuantizedArray`. int16 and uint16 need a given `scale`. The last
        five are microscaling formats, see Notes.
    symmetric : bool
        How scales are computed:

        - True: the zero point is 0, and ``scale = max|x| / largest``, where largest is 127 for int8, 7 for int4, 448 or
          57344 for the 8-bit floats, 6 for float4_e2m1fn. For uint8 and uint4, the range [0, max x] is mapped to 0..255 or 0..15.
        - False, for integers only: the range [lo, hi] of `x`, extended to include 0, is mapped to all codes:
          ``scale = (hi - lo) / (qmax - qmin)``, ``zero_point = round(qmin - lo / scale)``. This is the formula of ONNX
          DynamicQuantizeLinear.
    group_size : int, optional
        The number of neighbours that share a scale along the one axis that `axis` leaves out; the last group may be
        shorter. For a weight (k, n), ``axis=1, group_size=64`` gives scales of shape (ceil(k / 64), n): ONNX' blocked
        quantization.
    scale, zero_point : array-like, optional
        Use these instead of computing them. They must broadcast to the shape of the scales (length 1 along axes not in
        `axis`) or, with one `axis` and no groups, have shape (length,). With a given scale, codes use the full range
        (int8: -128..127), as in ONNX.
    out : QuantizedArray, optional
        Where to put the result: the result of an earlier call with the same arguments. Its arrays are overwritten.

    Returns
    -------
    QuantizedArray
        A new one, or `out`.

    Raises
    ------
    TypeError
        `x` is not numeric, or `dtype` is not one of these types.
    ValueError
        `axis` is out of range or repeated; `group_size` is not positive, or `axis` does not leave out exactly one axis;
        `scale` is not positive and finite, or missing for 16 bits; `zero_point` is given without `scale`, or is out of
        the range of the codes; a zero point or ``symmetric=False`` is given for a float type; shapes do not broadcast;
        `out` does not fit the result; or the blocks of a microscaling format do not divide their axis.

    Notes
    -----
    Infinities become the end of the range and are ignored when scales are computed. NaN becomes the zero point, or +0
    in a float type. If the elements that share a scale are empty, all zero or not finite, the scale is 1. Codes of
    float types are ``x / scale``, clamped to the finite numbers of the type and rounded once more, to nearest even, as
    by :func:`mp_core.cast`.

    ONNX QuantizeLinear divides in the type of `x` and `scale`. If both are float16 or bfloat16, it rounds the quotient
    to that type before it rounds to a code, which changes some codes by one. To get those codes, divide with NumPy in
    that type: ``codes = quantize(x / scale, scale=1.0, zero_point=zero_point)``. Their scale is `scale`, so the array
    is ``QuantizedArray.from_onnx(codes.values, scale, zero_point)``.

    **Microscaling formats** have blocks of neighbours with a scale each, along the one axis that `axis` leaves out (by
    default the last one), whose length must be a multiple of the block. `symmetric`, `scale` and `zero_point` must have
    their defaults.

    =============== ================== ===== =============================================================
    `dtype`         codes              block scale of a block
    =============== ================== ===== =============================================================
    ``mxfp4``       float4_e2m1fn      32    ``2 ** (floor(log2(max|x|)) - 2)``
    ``mxfp8_e4m3``  float8_e4m3fn      32    ``2 ** (floor(log2(max|x|)) - 8)``
    ``mxfp8_e5m2``  float8_e5m2        32    ``2 ** (floor(log2(max|x|)) - 15)``
    ``mxint8``      int8, -127..127    32    ``2 ** (floor(log2(max|x|)) - 6)``
    ``nvfp4``       float4_e2m1fn      16    ``float8_e4m3fn(max|x| / 6 / g) * g``, one ``g`` for the array
    =============== ================== ===== =============================================================

    docs/numerics.md states the limits of these scales. To use scales of your own, name the type of the codes and
    `group_size`.

    Examples
    --------
    >>> quantize([-1.0, 0.0, 1.55], symmetric=False, dtype="uint8").values
    array([  0, 100, 255], dtype=uint8)
    >>> import numpy as np
    >>> quantize(np.ones((100, 3)), axis=1, group_size=64, dtype="int4").scale.shape
    (2, 3)
    >>> q = quantize(np.full(32, 7.0), dtype="mxfp4")
    >>> q.scale, float(dequantize(q)[0])
    (array([1.], dtype=float32), 6.0)
    """
    cdef Recipe r
    cdef QuantizedFields q
    cdef bint with_zeros
    if type(dtype) is str and dtype in MICROSCALING:
        return quantize_blocks(dtype, x, axis, group_size, out, symmetric=(symmetric, True), scale=(scale, None),
                               zero_point=(zero_point, None))
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


def quantize_blocks(name, x, axis=None, group_size=None, out=None, whole=None, **others):
    """Quantize x to a microscaling format. If x is a part of an array, `whole` is ``max|x|`` of that array.

    int8 codes are symmetric: their range is -127..127.
    """
    codes, block = MICROSCALING[name].codes, MICROSCALING[name].block
    x, axis, scale = microscaled(name, x, axis, group_size, whole, others)
    q = quantize(x, axis=axis, dtype=codes, group_size=block, scale=scale, out=out)
    if codes == "int8":
        np.maximum(q.values, -127, out=q.values)
    return q


def dequantize(q, dtype="float32", *, out=None):
    """Return ``scale * (q - zero_point)``, computed in float32 and rounded once to `dtype`.

    Parameters
    ----------
    q : QuantizedArray
    dtype : dtype or str
        A float type.
    out : ndarray or tensor, optional
        Where to put the result: the shape of `q`, of type `dtype`.

    Returns
    -------
    ndarray
        A new array, or `out`.

    Raises
    ------
    TypeError
        `q` is not a :class:`QuantizedArray`, `dtype` is not a float type, or `out` has another type.
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
