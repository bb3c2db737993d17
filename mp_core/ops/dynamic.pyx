"""Products that quantize their left operand to int8 on the fly.

`dynamic_matmul` uses one scale for each row, computed from it, or one given scale. `fixed_matmul` uses the scales of a
calibrated layer, one for each element along k.
"""

from cpython.ref cimport PyObject
cimport numpy as cnp

from mp_core.core.header cimport MP_F4, MP_I4, MP_I8
from mp_core.arrays.products.operands cimport TO_CODES, Call, multiply
from mp_core.arrays.products.panels cimport PackedMatrix

import numpy as np

from mp_core.ops.dynamic_any import dynamic_any
from mp_core.arrays.recorded import call_recorded

cnp.import_array()


def dynamic_matmul(a, b, *, scale=None, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(q(a) @ b + bias) + residual`` for quantized weights; `a` is quantized during the product.

    If `b` is int8 with one scale per column, the bits are those of ``matmul(quantize(a, axis=all axes except the last),
    b)``, or with `scale` of ``matmul(quantize(a, scale=scale), b)``, but no array of codes is stored in between.

    Parameters
    ----------
    a : array-like
        Shape (..., m, k) or (k,), float; integers become float32.
    b : PackedMatrix
        Shape (k, n), packed from a :class:`QuantizedArray`: int8 or int4 with one scale per column or per group along
        k, or float4_e2m1fn with one per group. Zero points are allowed, but not for int8 in groups.
    scale : float, optional
        The scale of the int8 codes of `a`. None: each row has its own scale, ``max|a| / 127``.
    out_dtype, out, bias, activation, residual
        As in :func:`matmul`. The default of `out_dtype` is the type of `a`.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `a` is not numeric, `b` is not such a packed matrix, or `scale` is not a number.
    ValueError
        The shapes do not fit, or `scale` is not positive and finite.

    Notes
    -----
    If `b` is int4, or int8 in groups, the sum of each scale group is exact in int32: ``s_g = sum q(a) (q(b) -
    zero_point_g)``. The group sums are scaled and added in float32, in order: ``c = s_0 scale_0``, then
    ``c = fma(s_g, scale_g, c)``. At the end c is multiplied by the row's scale. (``matmul`` of a quantized `a` and such
    a `b` multiplies floats instead.) The codes of float4_e2m1fn are multiplied as twice their value, and their scales
    are halved.

    Examples
    --------
    >>> from mp_core import pack, quantize
    >>> w = pack(quantize(np.array([[1.0, 0.5], [0.25, 1.0]]), axis=1))
    >>> dynamic_matmul(np.array([[1.0, 2.0]], np.float32), w).round(1)
    array([[1.5, 2.5]], dtype=float32)
    """
    if not isinstance(b, PackedMatrix) or not has_dynamic_products(<PackedMatrix>b):
        found = b if isinstance(b, PackedMatrix) else type(b).__name__
        raise TypeError(f"`b` must be a PackedMatrix of int8 or int4 with scales, or of float4_e2m1fn in scale "
                        f"groups; received {found}")
    if scale is not None:
        if isinstance(scale, bool) or getattr(scale, "dtype", None) == np.bool_:
            raise TypeError(f"`scale` must be a number; received {scale!r}")
        try:
            single = <float>scale
        except OverflowError:
            single = float("inf")
        except TypeError:
            raise TypeError(f"`scale` must be a number; received {scale!r}") from None
        if not 0 < single < float("inf"):
            raise ValueError(f"`scale` must be positive and finite in float32; received {scale}")
        scale = single
    cdef Call call
    call.a, call.b, call.out_dtype, call.out = <PyObject *>a, <PyObject *>b, <PyObject *>out_dtype, <PyObject *>out
    call.bias, call.activation = <PyObject *>bias, <PyObject *>activation
    call.residual, call.left = <PyObject *>residual, TO_CODES
    call.copies = False
    call.scale, call.zeros = <PyObject *>scale, <PyObject *>None
    result = multiply(&call)
    if result is None:
        arguments = {"out_dtype": out_dtype, "out": out, "bias": bias, "activation": activation, "residual": residual}
        result = call_recorded(dynamic_matmul, (a, b), {"scale": scale, **arguments})
    return dynamic_any(a, b, scale, None, out_dtype, out, (bias, activation, residual)) if result is None else result


cdef bint has_dynamic_products(PackedMatrix b):
    """Return whether a kernel multiplies int8 rows by the codes of b."""
    if b.scales is None or len(b.shape) != 2:
        return False
    return b.format == MP_I8 or b.format == MP_I4 or (b.format == MP_F4 and b.group)


cdef bint is_vector(cnp.ndarray x, int type_number, Py_ssize_t length) noexcept:
    """Return whether x is a contiguous vector of this type and length. Attributes of a subclass are not read."""
    return (cnp.PyArray_TYPE(x) == type_number and cnp.PyArray_ISCARRAY_RO(x) and cnp.PyArray_NDIM(x) == 1
            and cnp.PyArray_DIM(x, 0) == length)


def fixed_matmul(a, PackedMatrix b not None, cnp.ndarray scales not None, cnp.ndarray zeros not None, *, bias=None,
                 activation=None):
    """Return ``activation(codes @ b + bias)``, ``codes = quantize(a, axis=-1, scale=scales, zero_point=zeros).values``.

    `scales` and `zeros` have one element for each element of a row of `a`; neither is applied to the product of codes.
    To compute ``a @ matrix``, as a calibrated layer does, quantize and pack ``w = scales[:, None] * matrix`` as `b`,
    and subtract ``zeros @ w`` from `bias`. The result has the type of `a`.

    Parameters
    ----------
    a : array-like
        Shape (..., m, k) or (k,), float; integers become float32.
    b : PackedMatrix
        Shape (k, n).
    scales, zeros : ndarray
        Shape (k,), contiguous, float32 and int32.
    bias, activation
        As in :func:`matmul`.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `a` is not numeric, or `b` is not a packed int8 matrix with one scale per column.
    ValueError
        `scales` or `zeros` has another type or length, or is not contiguous; or the shapes do not fit.

    Examples
    --------
    >>> from mp_core import pack, quantize
    >>> w = pack(quantize(np.array([[1.0, 0.5], [0.25, 1.0]]), axis=1))
    >>> fixed_matmul(np.ones((1, 2), np.float32), w, np.full(2, 0.5, np.float32), np.zeros(2, np.int32)).round(1)
    array([[2.5, 3. ]], dtype=float32)
    """
    if b.format != MP_I8 or b.scales is None or b.group or len(b.shape) != 2:
        raise TypeError(f"`b` must be a PackedMatrix of int8 with scales by column; received {b!r}")
    if not is_vector(scales, cnp.NPY_FLOAT32, b.k) or not is_vector(zeros, cnp.NPY_INT32, b.k):
        raise ValueError(f"`scales` and `zeros` must be contiguous float32 and int32 of length {b.k}; received "
                         f"{scales.dtype} {np.shape(scales)} and {zeros.dtype} {np.shape(zeros)}")
    cdef Call call
    call.a, call.b, call.out_dtype, call.out = <PyObject *>a, <PyObject *>b, <PyObject *>None, <PyObject *>None
    call.bias, call.activation = <PyObject *>bias, <PyObject *>activation
    call.residual, call.left = <PyObject *>None, TO_CODES
    call.copies = False
    call.scale, call.zeros = <PyObject *>scales, <PyObject *>zeros
    result = multiply(&call)
    if result is None:
        result = call_recorded(fixed_matmul, (a, b, scales, zeros), {"bias": bias, "activation": activation})
    return dynamic_any(a, b, scales, zeros, None, None, (bias, activation, None)) if result is None else result
