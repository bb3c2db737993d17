"""Operations on arrays: check, allocate, call the core.

Every function takes ndarrays, array-likes and anything with ``__dlpack__`` on the CPU, of any shape, stride, alignment
and byte order, and returns an ndarray. Storage may be narrow; arithmetic is float32 (int32 for int8 products), and the
result is rounded once. float64 stays float64 throughout, on NumPy's own routines.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, asarray, cast, check_out, may_overlap
from mp_core.core import matmul as _matmul
from mp_core.core import packed as _packed
from mp_core.core import pointwise as _pointwise
from mp_core.core.matmul import dynamic_matmul, fixed_matmul, matmul
from mp_core.core.packed import PackedMatrix
from mp_core.dtypes import ALLOWED, dtype_of, is_float, parse, result_type
from mp_core.quantization import QuantizedArray, dequantize, quantize, unpacked_codes

__all__ = [
    "PackedMatrix",
    "cast",
    "dynamic_matmul",
    "fixed_matmul",
    "gelu",
    "layer_norm",
    "matmul",
    "pack",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]

Activation = Literal["relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]

_I8, _U8, _I32 = ALLOWED["int8"], ALLOWED["uint8"], ALLOWED["int32"]
_PANELS = {name: dtype_of(name) for name in _packed.FORMATS}  # what a panel may hold
_OUT_TYPES = frozenset(ALLOWED[name] for name in _matmul.OUT_FORMATS)
_WIDE = ("float32", "float16", "bfloat16")
_NARROW = ("float8_e4m3fn", "float8_e5m2", "int8")


def _result_types() -> dict[tuple[str, str], str]:
    """Return the default type of a product, by the types of its operands: those that multiply without a cast."""
    wide = {(a, b): result_type(ALLOWED[a], ALLOWED[b]).name for a in _WIDE for b in _WIDE}
    narrow = {(a, b): a for a in _WIDE for b in _NARROW}
    alike = {(a, a): a for a in _NARROW[:2]}
    return wide | narrow | alike | {("int8", "int8"): "int32", ("uint8", "int8"): "int32"}


_RESULTS = _result_types()


# ---- products


def pack(b: Any, *, dtype: DTypeLike | None = None) -> PackedMatrix:
    """Pack the right operand of products once, so that :func:`matmul` need not do it at every call.

    Parameters
    ----------
    b : array-like or QuantizedArray
        Shape (..., k, n). A :class:`QuantizedArray` is one matrix of any type of codes, with one scale, one per column,
        or one per column and group of k (symmetric, groups of a multiple of 8). uint8 is held as int8, with its zero
        point.
    dtype : {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}, optional
        Cast to this type first. Default: the type of `b`.

    Returns
    -------
    PackedMatrix
        Its `shape` is that of `b`; :meth:`PackedMatrix.unpack` gives the elements back exactly. It holds the bytes of
        `b`, k rounded up to a multiple of 1 (float32, float16), 2 (bfloat16), 4 (float8, int8) or 8 (int4), 64 bytes
        more, and 4 bytes a column for int8.

    Raises
    ------
    TypeError
        The type cannot be packed.
    ValueError
        `b` has fewer than two axes, or scales that a product cannot apply.

    Examples
    --------
    >>> pack(np.eye(3, dtype=np.float32), dtype="bfloat16")
    PackedMatrix(shape=(3, 3), dtype=bfloat16)
    """
    if isinstance(b, QuantizedArray):
        if dtype is not None:
            raise TypeError(f"`dtype` must be None for a quantized `b`; received {dtype!r}")
        if not _scales_columns(b):
            raise ValueError(
                "a quantized `b` must be one matrix with one scale or one per column (axis=1), symmetric if int4 or in "
                f"groups, which have a multiple of 8; received {b.dtype} of shape {b.shape} with scales {b.scale.shape}"
            )
        return _pack_quantized(b)
    b = asarray(b, "b")
    if b.ndim < 2:
        raise ValueError(f"`b` must have at least 2 axes (..., k, n); received shape {b.shape}")
    target = b.dtype if dtype is None else parse(dtype)
    if target.name not in _PANELS:
        raise TypeError(f"`dtype` must be one of {', '.join((*_WIDE, *_NARROW))}; received {target.name}")
    if b.dtype is not target:
        if target is _I8:
            raise TypeError(f"`b` must be int8 to be packed as int8: quantize it first; received {b.dtype.name}")
        b = cast(b, target)
    return _packed.pack(b, target)


def _matmul_any(a: Any, b: Any, out_dtype: Any, out: Array | None, bias: Any, activation: Any, residual: Any) -> Array:
    """Do what :func:`matmul` says for all operands that its short way leaves."""
    row_scale = row_zero = default = None
    if isinstance(a, QuantizedArray) or isinstance(b, QuantizedArray) or _has_scale(b):
        a, b, row_scale, row_zero = _quantized_operands(a, b)
        default = F32 if row_scale is not None else None
    a = asarray(a, "a")
    if not isinstance(b, PackedMatrix):
        b = asarray(b, "b")
    if a.ndim == 0 or len(b.shape) == 0:
        raise ValueError(f"`a` and `b` must have at least 1 axis; received shapes {a.shape} and {b.shape}")
    if not isinstance(activation, str | None) or activation not in _matmul.ACTIVATIONS:
        choices = ", ".join(repr(name) for name in _matmul.ACTIVATIONS)
        raise ValueError(f"`activation` must be one of {choices}; received {activation!r}")
    a, b, promoted = _multipliable(a, b)
    target = _out_dtype(out_dtype, default or promoted, a.dtype)
    if target is _I32 and any(part is not None for part in (bias, activation, residual)):
        raise TypeError("`bias`, `activation` and `residual` need a float `out_dtype`; received int32")
    a_matrix = a if a.ndim > 1 else a[np.newaxis]
    b_matrix = b if len(b.shape) > 1 else b[:, np.newaxis]
    k, n = b_matrix.shape[-2:]
    if a.shape[-1] != k:
        raise ValueError(
            f"the last axis of `a` must be as long as the second to last of `b`; received shapes {a.shape} "
            f"and {b.shape}"
        )
    if not is_float(a.dtype):
        _check_depth(a.dtype, k, row_zero is not None, isinstance(b, PackedMatrix) and b.zero_point is not None)
    if bias is not None:
        bias = _vector(bias, n, "bias", F64 if a.dtype is F64 else F32)
    batch = a_matrix.shape[:-2]
    if len(b_matrix.shape) > 2:
        batch = _broadcast(batch, b_matrix.shape[:-2])
    shape = batch + a.shape[-2:-1] + b.shape[-1:] * (len(b.shape) > 1)
    if residual is not None:
        residual = _residual(residual, shape, a.dtype is F64)
    result = np.empty(shape, target) if out is None else check_out(out, shape, target)
    if a.dtype is F64:
        return cast(_product_float64(a, b, bias, activation, residual), target, out=result)

    view = result
    if not _kernel_writes(result, (a, b, bias, residual, row_scale, row_zero), out is not None):
        plain = row_scale is None and bias is None and activation is None and residual is None
        exact = _I32 if not is_float(a.dtype) and plain else F32
        view = np.empty(shape, exact if target is F64 else target)

    def as_matrices(x: Array) -> Array:
        x = x if len(b.shape) > 1 else x[..., np.newaxis]
        return x if a.ndim > 1 else x[..., np.newaxis, :]

    full = as_matrices(view)
    added = None if residual is None else as_matrices(residual)
    if len(b_matrix.shape) == 2 and full.ndim > 2 and a_matrix.flags.c_contiguous and full.flags.c_contiguous:
        rows = math.prod(full.shape[:-1])
        a_matrix, full = a_matrix.reshape(rows, k), full.reshape(rows, n)  # one tall product
        added = None if added is None else added.reshape(rows, n)
    elif batch:
        a_matrix = np.broadcast_to(a_matrix, (*batch, *a_matrix.shape[-2:]))
        if not isinstance(b_matrix, PackedMatrix):
            b_matrix = np.broadcast_to(b_matrix, (*batch, k, n))
    if row_scale is not None and row_scale.size != 1:
        rows_shape = (*shape[:-1], 1)
        row_scale = np.ascontiguousarray(np.broadcast_to(row_scale, rows_shape))
        row_zero = None if row_zero is None else np.ascontiguousarray(np.broadcast_to(row_zero, rows_shape))
    _matmul.product(a_matrix, b_matrix, full, bias, activation, added, row_scale, row_zero)
    if view is not result:
        np.copyto(result, view, casting="unsafe")
    return result


def _check_depth(a: np.dtype[Any], k: int, a_zero: bool, b_zero: bool) -> None:
    """Raise unless the largest sum of products fits in int32."""
    largest = (255 if a is _U8 or a_zero else 128) * (255 if b_zero else 128)
    if k > (2**31 - 1) // largest:
        raise ValueError(f"{a} products need k <= {(2**31 - 1) // largest} to be exact in int32; received k = {k}")


def _has_scale(b: Any) -> bool:
    return isinstance(b, PackedMatrix) and b.scale is not None


def _scales_rows(q: QuantizedArray) -> bool:
    """Whether q, as a left operand, multiplies as integers: its scale can be applied after the product."""
    return q.dtype.name in ("int8", "uint8") and q.group_size is None and len(q.shape) > 0 and q.scale.shape[-1] == 1


def _scales_columns(q: QuantizedArray) -> bool:
    """Whether q, as a right operand, can be packed with its scales: by column, or by groups of k and symmetric."""
    if len(q.shape) != 2 or (q.zero_point is not None and q.dtype.name == "int4"):
        return False
    if q.group_size is None:
        return bool(q.scale.shape[0] == 1)
    return bool(q.axis == (1,) and q.zero_point is None and q.dtype is not _U8 and q.group_size % 8 == 0)


def _pack_quantized(b: QuantizedArray) -> PackedMatrix:
    n = b.shape[1]
    scale = np.array(np.broadcast_to(b.scale, (len(b.scale), n)), np.float32, order="C")  # `b` may change
    values, zero = unpacked_codes(b), None if b.zero_point is None else b.zero_point.reshape(-1)
    if b.dtype is _U8:  # u - zero = (u - 128) - (zero - 128), and u - 128 is int8
        values = (values ^ np.uint8(128)).view(np.int8)
        zero = np.full(1, -128, np.int32) if zero is None else zero - np.int32(128)
    if zero is not None:
        zero = np.array(np.broadcast_to(zero, (n,)), np.int32)
    dtype = _I8 if b.dtype is _U8 else b.dtype
    return _packed.pack(values, dtype, scale if b.group_size else scale[0], zero, b.group_size)


def _quantized_operands(a: Any, b: Any) -> tuple[Any, Any, Array | None, Array | None]:
    """Return (a, b, row_scale, row_zero): what the product reads, where both are integers with their row scales."""
    if isinstance(b, QuantizedArray) and _scales_columns(b):
        b = _pack_quantized(b)
    packed = _has_scale(b)
    if isinstance(a, QuantizedArray) and _scales_rows(a) and packed and b.dtype is _I8 and b.group_size is None:
        return a.values, b, a.scale, a.zero_point
    target = F32
    for x, name in ((a, "a"), (b, "b")):
        if not isinstance(x, QuantizedArray | PackedMatrix):
            dtype = asarray(x, name).dtype
            target = dtype if is_float(dtype) else F32
        elif isinstance(x, PackedMatrix) and x.scale is None and is_float(x.dtype):
            target = x.dtype
    if isinstance(a, QuantizedArray):
        a = dequantize(a, target)
    else:
        a = asarray(a, "a")
        a = a if is_float(a.dtype) else cast(a, F32)
    if isinstance(b, QuantizedArray):
        b = dequantize(b, target)
    elif packed and (b.zero_point is not None or a.dtype is F64 or "float8" in a.dtype.name):
        b = _dequantized(b, F32 if "float8" in target.name else target)
        a = a if a.dtype is b.dtype else cast(a, b.dtype)
    return a, b, None, None


def _dequantized(b: PackedMatrix, dtype: np.dtype[Any]) -> Array:
    """Return a packed quantized matrix as floats."""
    codes = cast(b.unpack(), F32)
    if b.zero_point is not None:
        codes -= b.zero_point
    scale: Array = b.scale  # type: ignore[assignment]
    if b.group_size is not None:
        scale = scale[np.arange(len(codes)) // b.group_size]
    return cast(codes * scale, dtype)


def _multipliable(a: Array, b: Array | PackedMatrix) -> tuple[Array, Array | PackedMatrix, np.dtype[Any]]:
    """Return the operands in types that multiply, and the default type of the result."""
    known = _RESULTS.get((a.dtype.name, "int8" if b.dtype.name == "int4" else b.dtype.name))
    if known is not None:
        return a, b, ALLOWED[known]
    if not (is_float(a.dtype) or is_float(b.dtype)):
        raise TypeError(
            "`a` and `b` must be of float types, or `a` int8 or uint8 and `b` int8; received "
            f"{a.dtype.name} and {b.dtype.name}"
        )
    promoted = result_type(a.dtype, b.dtype)
    a = a if a.dtype is promoted else cast(a, promoted)
    if (a.dtype.name, b.dtype.name) not in _RESULTS and b.dtype is not promoted:
        b = cast(b.unpack() if isinstance(b, PackedMatrix) else b, promoted)
    return a, b, promoted


def _out_dtype(dtype: DTypeLike | None, default: np.dtype[Any], compute: np.dtype[Any]) -> np.dtype[Any]:
    target = default if dtype is None else parse(dtype, "out_dtype")
    if not is_float(target) and not (target is _I32 and (compute is _I8 or compute is _U8)):
        raise TypeError(f"`out_dtype` must be a float type, or int32 for an int8 product; received {target.name}")
    return target


def _residual(residual: Any, shape: tuple[int, ...], keep_float64: bool) -> Array:
    """Return the residual as the kernel reads it: of a float type, native, rows with unit stride."""
    x = as_float(residual, "residual")
    if x.shape != shape:
        raise ValueError(f"`residual` must have the result's shape {shape}; received {x.shape}")
    return np.asarray(x if keep_float64 or x.dtype is not F64 else cast(x, F32), order="C")


def _kernel_writes(out: Array, operands: tuple[Any, ...], given: bool) -> bool:
    """Whether the kernel can write `out` in place: rows with unit stride that overlap nothing it reads."""
    if out.dtype not in _OUT_TYPES:
        return False
    if not given:
        return True
    aligned = all(stride % out.itemsize == 0 for stride in out.strides)
    unit = out.ndim < 1 or out.shape[-1] <= 1 or out.strides[-1] == out.itemsize
    read = [part for x in operands for part in ((x.scale, x.zero_point) if isinstance(x, PackedMatrix) else (x,))]
    overlaps = any(x is not None and np.may_share_memory(x, out) for x in read)
    return aligned and unit and out.dtype.isnative and not overlaps


def _vector(x: ArrayLike, n: int, argument: str, dtype: np.dtype[Any] = F32) -> Array:
    """Return a contiguous vector of n elements of type `dtype`."""
    if type(x) is np.ndarray and x.dtype is dtype and x.shape == (n,) and x.flags.c_contiguous:
        return x
    array = as_float(x, argument)
    if array.shape != (n,):
        raise ValueError(f"`{argument}` must have shape {(n,)}; received {array.shape}")
    return np.ascontiguousarray(array) if array.dtype is dtype else cast(array, dtype)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        raise ValueError(f"the leading axes of `a` and `b` must broadcast; received {a} and {b}") from None


def _product_float64(a: Array, b: Any, bias: Array | None, activation: str | None, residual: Array | None) -> Array:
    result: Array = np.matmul(a, b)
    if bias is not None:
        result = result + bias
    if activation is not None:
        result = _FLOAT64[activation](result)
    return result if residual is None else result + residual


def _dynamic_any(
    a: Any,
    b: PackedMatrix,
    scale: Any,
    zeros: Array | None,
    out_dtype: Any,
    out: Array | None,
    bias: Any,
    activation: Any,
    residual: Any,
) -> Array:
    """Do what :func:`dynamic_matmul` and `fixed_matmul` say for all operands that their short way leaves."""
    a = as_float(a, "a")
    if a.ndim == 0:
        raise ValueError("`a` must have at least 1 axis; received shape ()")
    if zeros is None:
        rows = quantize(a, axis=tuple(range(a.ndim - 1)) if scale is None else None, scale=scale)
    else:
        codes = quantize(a, axis=-1, scale=scale, zero_point=zeros).values
        rows = QuantizedArray(codes, np.ones((1,) * codes.ndim, np.float32), None, ())
    target = a.dtype if out_dtype is None else out_dtype
    return _matmul_any(rows, b, target, out, bias, activation, residual)


_matmul.install({**ALLOWED, **_PANELS}, _RESULTS, _matmul_any, _dynamic_any)


# ---- rows and elements


def softmax(
    x: ArrayLike, *, axis: int = -1, scale: float = 1.0, mask: ArrayLike | None = None, out: Array | None = None
) -> Array:
    """Return ``exp(scale * x)`` divided by its sum along `axis`, computed in float32.

    Parameters
    ----------
    x : array-like
        Float, any shape with at least one axis.
    axis : int
        The axis along which the result sums to 1.
    scale : float
        Multiplies `x` first (in attention ``1 / sqrt(key_dim)``).
    mask : array-like of bool, optional
        Broadcastable against `x`; where False the element counts as the lowest finite value, so that it becomes 0
        beside any greater one. A row without any True gives the uniform distribution, as in Keras.
    out : ndarray, optional
        Where to put the result: the shape and type of `x`. It may be `x` itself.

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric, `mask` not boolean, or `out` of another type.
    ValueError
        `axis` is out of range, or shapes do not fit.

    Examples
    --------
    >>> softmax(np.zeros(4, np.float32), mask=[True, True, False, False])
    array([0.5, 0.5, 0. , 0. ], dtype=float32)
    """
    x = as_float(x)
    axis = _axis(axis, x.ndim)
    keep = None
    if mask is not None:
        keep = np.asarray(mask)
        if keep.dtype != np.bool_:
            raise TypeError(f"`mask` must be boolean; received dtype {keep.dtype}")
        try:
            keep = np.broadcast_to(keep, x.shape)
        except ValueError:
            raise ValueError(f"`mask` must broadcast to shape {x.shape}; received {keep.shape}") from None
    result = np.empty(x.shape, x.dtype) if out is None else check_out(out, x.shape, x.dtype)
    if x.dtype is F64:
        np.copyto(result, _softmax_float64(x, axis, scale, keep))
        return result
    if axis != x.ndim - 1:
        x = np.moveaxis(x, axis, -1)
        keep = None if keep is None else np.moveaxis(keep, axis, -1)
    if keep is not None and (keep.strides[-1] != 1 or (out is not None and np.may_share_memory(keep, out))):
        keep = keep.copy()
    view = np.moveaxis(result, axis, -1) if axis != result.ndim - 1 else result
    x, work = _rows(x, view)
    fmt = FORMATS[x.dtype]
    _pointwise.softmax(x, fmt, work, fmt, scale, keep)
    if work is not view:
        view[...] = work
    return result


def layer_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    epsilon: float = 1e-3,
    residual: ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Return `x` (+ `residual`) normalized over the last axis: ``(x - mean) / sqrt(var + epsilon) * gamma + beta``.

    Parameters
    ----------
    x : array-like
        Float, shape (..., n).
    gamma, beta : array-like, optional
        Shape (n,), float: scale and offset.
    epsilon : float
        Added to the variance, which is the mean of the squared deviations.
    residual : array-like, optional
        The shape of `x`; cast to its type, then added in float32 before anything else.
    out : ndarray, optional
        Where to put the result: the shape and type of `x`. It may be `x` itself.

    Returns
    -------
    ndarray
        The shape and type of `x`; mean and variance are those of float32 sums whatever the type.

    Raises
    ------
    TypeError
        An argument is not numeric, or `out` is of another type than `x`.
    ValueError
        Shapes do not fit.

    Examples
    --------
    >>> layer_norm(np.array([1, 3], np.float16), epsilon=0.0)
    array([-1.,  1.], dtype=float16)
    """
    x = as_float(x)
    if x.ndim == 0:
        raise ValueError("`x` must have at least 1 axis; received shape ()")
    n = x.shape[-1]
    scale = None if gamma is None else _vector(gamma, n, "gamma")
    offset = None if beta is None else _vector(beta, n, "beta")
    other = None
    if residual is not None:
        other = as_float(residual, "residual")
        if other.shape != x.shape:
            raise ValueError(f"`residual` must have shape {x.shape}; received {other.shape}")
        other = np.ascontiguousarray(other if other.dtype is x.dtype else cast(other, x.dtype))
    result = np.empty(x.shape, x.dtype) if out is None else check_out(out, x.shape, x.dtype)
    if x.dtype is F64:
        np.copyto(result, _layer_norm_float64(x if other is None else x + other, gamma, beta, epsilon))
        return result
    if out is not None:
        other, scale, offset = (
            part.copy() if part is not None and np.may_share_memory(part, out) else part
            for part in (other, scale, offset)
        )
    x, work = _rows(x, result)
    fmt = FORMATS[x.dtype]
    _pointwise.layer_norm(x, fmt, work, fmt, epsilon, scale, offset, other)
    if work is not result:
        result[...] = work
    return result


def gelu(x: ArrayLike, approximate: bool = False, *, out: Array | None = None) -> Array:
    """Return ``x * Phi(x)``, Phi the normal distribution, in the type of `x`.

    Parameters
    ----------
    x : array-like
        Float, any shape.
    approximate : bool
        Take ``(1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2`` for ``Phi(x)``, as models trained with that do.
    out : ndarray, optional
        Where to put the result: the shape and type of `x`. It may be `x` itself.

    Examples
    --------
    >>> gelu(np.array([-1.0, 0.0, 1.0], np.float32))
    array([-0.15865527,  0.        ,  0.8413447 ], dtype=float32)
    >>> gelu(np.array([-1.0, 0.0, 1.0], np.float32), approximate=True)
    array([-0.15880801,  0.        ,  0.841192  ], dtype=float32)
    """
    if not isinstance(approximate, bool | np.bool_):
        raise TypeError(f"`approximate` must be True or False; received {approximate!r}")
    return _activate("gelu_tanh" if approximate else "gelu", x, out)


def relu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``max(x, 0)``, in the type of `x`; NaN stays NaN.

    Examples
    --------
    >>> relu(np.array([-1.0, 2.0], np.float32))
    array([0., 2.], dtype=float32)
    """
    return _activate("relu", x, out)


def relu6(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``min(max(x, 0), 6)``, in the type of `x`; NaN stays NaN.

    Examples
    --------
    >>> relu6(np.array([-1.0, 2.0, 7.0], np.float32))
    array([0., 2., 6.], dtype=float32)
    """
    return _activate("relu6", x, out)


def sigmoid(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``1 / (1 + exp(-x))``, in the type of `x`.

    Examples
    --------
    >>> sigmoid(np.array([-100.0, 0.0, 1.0], np.float32))
    array([3.783506e-44, 5.000000e-01, 7.310586e-01], dtype=float32)
    """
    return _activate("sigmoid", x, out)


def silu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``x / (1 + exp(-x))``, in the type of `x`.

    Examples
    --------
    >>> silu(np.array([0.0, 1.0], np.float32))
    array([0.       , 0.7310586], dtype=float32)
    """
    return _activate("silu", x, out)


def tanh(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return the hyperbolic tangent, in the type of `x`.

    Examples
    --------
    >>> tanh(np.array([-1.0, 0.0, 20.0], np.float32))
    array([-0.76159424,  0.        ,  1.        ], dtype=float32)
    """
    return _activate("tanh", x, out)


def _activate(name: str, x: ArrayLike, out: Array | None) -> Array:
    x = as_float(x)
    result = np.empty(x.shape, x.dtype) if out is None else check_out(out, x.shape, x.dtype)
    if x.dtype is F64:
        np.copyto(result, _FLOAT64[name](x))
        return result
    x, work = _rows(x, result)
    fmt = FORMATS[x.dtype]
    _pointwise.activate(x, fmt, work, fmt, _matmul.ACTIVATIONS[name])
    if work is not result:
        result[...] = work
    return result


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"`axis` must lie in [{-ndim}, {ndim}) for an array with {ndim} axes; received {axis}")
    return axis + ndim if axis < 0 else axis


def _rows(x: Array, out: Array) -> tuple[Array, Array]:
    """Return both as C-contiguous native arrays for the row kernels, `out` replaced where they cannot write it."""
    if not out.flags.c_contiguous or not out.dtype.isnative or may_overlap(x, out):
        out = np.empty(x.shape, x.dtype)
    return np.asarray(x, order="C"), out


# ---- float64, on NumPy's own routines


def _softmax_float64(x: Array, axis: int, scale: float, keep: Array | None) -> Array:
    y = x * scale if keep is None else np.where(keep, x * scale, -np.finfo(np.float64).max)
    e: Array = np.exp(y - y.max(axis=axis, keepdims=True, initial=-np.inf))
    e /= e.sum(axis=axis, keepdims=True)
    return e


def _layer_norm_float64(x: Array, gamma: Any, beta: Any, epsilon: float) -> Array:
    if x.size == 0:
        return x
    y: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    y = y if gamma is None else y * cast(gamma, F64)
    return y if beta is None else y + cast(beta, F64)


def _gelu_float64(x: Array) -> Array:
    x = np.asarray(np.maximum(x, -np.finfo(np.float64).max), order="C")  # -Inf times 0 is NaN
    y = np.empty_like(x)
    _pointwise.gelu_float64(x, y)
    return y


def _sigmoid_float64(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    y: Array = np.where(x < 0.0, e, 1.0) / (1.0 + e)
    return y


def _silu_float64(x: Array) -> Array:
    x = np.maximum(x, -np.finfo(np.float64).max)  # -Inf times 0 is NaN
    return x * _sigmoid_float64(x)


def _gelu_tanh_float64(x: Array) -> Array:
    x = np.maximum(x, -np.finfo(np.float64).max)
    with np.errstate(over="ignore"):
        return x * _sigmoid_float64(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x**3))


_FLOAT64: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0.0), 6.0),
    "gelu": _gelu_float64,
    "gelu_tanh": _gelu_tanh_float64,
    "silu": _silu_float64,
    "sigmoid": _sigmoid_float64,
    "tanh": np.tanh,
}
