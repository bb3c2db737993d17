"""Operations on arrays: check, allocate, call the core.

Every function takes ndarrays, array-likes and anything with ``__dlpack__`` on the CPU, of any shape, stride, alignment
and byte order, and returns an ndarray. Storage may be narrow; arithmetic is float32 (int32 for int8 products), and the
result is rounded once. float64 stays float64 throughout, on NumPy's own routines.
"""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import BF16, F32, F64, FORMATS, Array, as_float, asarray, cast, check_out, may_overlap
from mp_core.core import matmul as _matmul
from mp_core.core import pointwise as _pointwise
from mp_core.core.matmul import PackedMatrix
from mp_core.dtypes import ALLOWED, is_float, parse, result_type
from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["PackedMatrix", "cast", "gelu", "layer_norm", "matmul", "pack", "relu", "silu", "softmax"]

Activation = Literal["relu", "gelu", "silu"]

_KINDS = {ALLOWED[name]: kind for name, kind in _matmul.KINDS.items()}
_OUT_FORMATS = {ALLOWED[name]: number for name, number in _matmul.OUT_FORMATS.items()}
_SAME = frozenset(ALLOWED[name] for name in ("float32", "float16", "bfloat16", "float64"))  # multiply without a cast
_I8, _U8, _I32 = ALLOWED["int8"], ALLOWED["uint8"], ALLOWED["int32"]
_PACKABLE = ("float32", "float16", "bfloat16", "int8")
_DEPTH = {ALLOWED["int8"]: 131071, ALLOWED["uint8"]: 65793}  # by type of a: the largest k with 128 |a| k < 2^31


# ---- products


def pack(b: Any, *, dtype: DTypeLike | None = None) -> PackedMatrix:
    """Pack the right operand of products once, so that :func:`matmul` need not do it at every call.

    Parameters
    ----------
    b : array-like or QuantizedArray
        Shape (..., k, n). A :class:`QuantizedArray`: one int8 matrix, symmetric, with one scale or one per column.
    dtype : {"float32", "float16", "bfloat16", "int8"}, optional
        Cast to this type first. Default: the type of `b`; float8 becomes bfloat16, which holds it exactly.

    Returns
    -------
    PackedMatrix
        Its `shape` is that of `b`; :meth:`PackedMatrix.unpack` gives the elements back exactly.

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
    scale = None
    if isinstance(b, QuantizedArray):
        if dtype is not None:
            raise TypeError(f"`dtype` must be None for a quantized `b`; received {dtype!r}")
        if not _multiplies_as_integers(b, -2):
            raise ValueError(
                "a quantized `b` must be one int8 matrix, symmetric, with one scale or one per column "
                f"(axis=1); received {b.values.dtype} of shape {b.shape} with scales {b.scale.shape}"
            )
        scale = np.ascontiguousarray(np.broadcast_to(b.scale.reshape(-1), (b.shape[-1],)), dtype=np.float32)
        b = b.values
    b = asarray(b, "b")
    if b.ndim < 2:
        raise ValueError(f"`b` must have at least 2 axes (..., k, n); received shape {b.shape}")
    target = b.dtype if dtype is None else parse(dtype)
    if dtype is None and "float8" in target.name:
        target = BF16
    if target.name not in _PACKABLE:
        raise TypeError(f"`dtype` must be one of {', '.join(_PACKABLE)}; received {target.name}")
    if target is _I8:
        _check_depth(_I8, b.shape[-2])
    if b.dtype is not target:
        if target is _I8:
            raise TypeError(f"`b` must be int8 to be packed as int8: quantize it first; received {b.dtype.name}")
        b = cast(b, target)
    return _matmul.pack(b, scale)


def matmul(
    a: Any,
    b: Any,
    *,
    out_dtype: DTypeLike | None = None,
    out: Array | None = None,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
) -> Array:
    """Return ``activation(a @ b + bias)``, accumulated in float32 (int8: exactly, in int32) and rounded once.

    Parameters
    ----------
    a : array-like or QuantizedArray
        Shape (..., m, k) or (k,).
    b : array-like, PackedMatrix or QuantizedArray
        Shape (..., k, n) or (k,). Leading axes broadcast as in :func:`numpy.matmul`.
    out_dtype : dtype, optional
        Type of the result: a float type, or int32 for int8 products. Default: the promoted type of the operands
        (bfloat16 @ bfloat16 gives bfloat16), int32 for int8, float32 for two quantized operands.
    out : ndarray, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.
    bias : array-like, optional
        Shape (n,), float; added in float32.
    activation : {"relu", "gelu", "silu"}, optional
        Applied in float32 before the rounding; gelu is the exact one, by erf.

    Returns
    -------
    ndarray
        The same bits for every instruction set, thread count, batch size, packing and stride.

    Raises
    ------
    TypeError
        An operand's type has no product: the float types, int8 @ int8 and uint8 @ int8 have.
    ValueError
        The shapes do not fit, or an integer product is too deep to be exact (int8: k > 131071, uint8: k > 65793).

    Notes
    -----
    Operands of different float types are promoted first (float16 with bfloat16: float32). Two quantized operands,
    `a` with one scale or one per row, `b` with one or one per column, multiply as integers and are rescaled:
    ``float(sum) * row_scale * col_scale``. Any other quantized operand is dequantized, to the other one's type.
    The numerics page states the order of operations and proves an error bound, at most ``gamma_k |A| |B|``.

    Examples
    --------
    >>> a = cast([[1, 2], [3, 4]], "float16")
    >>> matmul(a, a)
    array([[ 7., 10.],
           [15., 22.]], dtype=float16)
    """
    row_scale, default = None, None
    if isinstance(a, QuantizedArray) or isinstance(b, QuantizedArray) or _is_quantized(b):
        a, b, row_scale = _quantized_operands(a, b)
        default = F32 if row_scale is not None else None
    a = asarray(a, "a")
    if not isinstance(b, PackedMatrix):
        b = asarray(b, "b")
    if a.ndim == 0 or len(b.shape) == 0:
        raise ValueError(f"`a` and `b` must have at least 1 axis; received shapes {a.shape} and {b.shape}")
    if not isinstance(activation, str | None) or activation not in _matmul.ACTIVATIONS:
        raise ValueError(f"`activation` must be None, 'relu', 'gelu' or 'silu'; received {activation!r}")
    a, b, promoted = _common_type(a, b)
    target = _out_dtype(out_dtype, default or promoted, a.dtype)
    if target is _I32 and (bias is not None or activation is not None):
        raise TypeError("`bias` and `activation` need a float `out_dtype`; received int32")
    a_matrix = a if a.ndim > 1 else a[np.newaxis]
    b_matrix = b if len(b.shape) > 1 else b[:, np.newaxis]
    k, n = b_matrix.shape[-2:]
    if a.shape[-1] != k:
        raise ValueError(
            f"the last axis of `a` must be as long as the second to last of `b`; received shapes {a.shape} "
            f"and {b.shape}"
        )
    if a.dtype in _DEPTH:
        _check_depth(a.dtype, k)
    if bias is not None:
        bias = _vector(bias, n, "bias", F64 if a.dtype is F64 else F32)
    batch = a_matrix.shape[:-2]
    if len(b_matrix.shape) > 2:
        batch = _broadcast(batch, b_matrix.shape[:-2])
    shape = batch + a.shape[-2:-1] + b.shape[-1:] * (len(b.shape) > 1)
    result = np.empty(shape, target) if out is None else check_out(out, shape, target)
    if a.dtype is F64:
        return cast(_product_float64(a, b, bias, activation), target, out=result)

    view = result
    if not _kernel_writes(result, (a, b, bias, row_scale), out is not None):
        plain = row_scale is None and bias is None and activation is None
        exact = _I32 if a.dtype in _DEPTH and plain else F32
        view = np.empty(shape, exact if target is F64 else target)
    full = view if len(b.shape) > 1 else view[..., np.newaxis]
    full = full if a.ndim > 1 else full[..., np.newaxis, :]
    if len(b_matrix.shape) == 2 and full.ndim > 2 and a_matrix.flags.c_contiguous and full.flags.c_contiguous:
        rows = math.prod(full.shape[:-1])
        a_matrix, full = a_matrix.reshape(rows, k), full.reshape(rows, n)  # one tall product
    elif batch:
        a_matrix = np.broadcast_to(a_matrix, (*batch, *a_matrix.shape[-2:]))
        if not isinstance(b_matrix, PackedMatrix):
            b_matrix = np.broadcast_to(b_matrix, (*batch, k, n))
    if row_scale is not None:
        row_scale = np.ascontiguousarray(np.broadcast_to(row_scale, (*shape[:-1], 1)))
    kind, code, chosen = _KINDS[a.dtype], _OUT_FORMATS[full.dtype], _matmul.ACTIVATIONS[activation]
    _matmul.product(a_matrix, b_matrix, full, kind, a.dtype is _I8, code, chosen, row_scale, bias)
    if view is not result:
        np.copyto(result, view, casting="unsafe")
    return result


def _check_depth(dtype: np.dtype[Any], k: int) -> None:
    if k > _DEPTH[dtype]:
        raise ValueError(f"{dtype} products need k <= {_DEPTH[dtype]} to be exact in int32; received k = {k}")


def _is_quantized(b: Any) -> bool:
    return isinstance(b, PackedMatrix) and b.scale is not None


def _multiplies_as_integers(q: QuantizedArray, shared: int) -> bool:
    """Whether the scale of q can be applied after an integer product over axis `shared`."""
    return (
        q.dtype is _I8
        and q.group_size is None
        and q.zero_point is None
        and (q.values.ndim == 2 or (shared == -1 and q.values.ndim > 0))
        and q.scale.shape[shared] == 1
    )


def _quantized_operands(a: Any, b: Any) -> tuple[Any, Any, Array | None]:
    """Return (a, b, row_scale): integers and their row scales, or, where that is impossible, floats and None."""
    if isinstance(a, QuantizedArray) and _multiplies_as_integers(a, -1):
        if _is_quantized(b):
            return a.values, b, a.scale
        if isinstance(b, QuantizedArray) and _multiplies_as_integers(b, -2):
            return a.values, pack(b), a.scale
    if _is_quantized(b):
        b = QuantizedArray(b.unpack(), b.scale[np.newaxis], None, (1,))
    target = F32
    for x, name in ((a, "a"), (b, "b")):
        if not isinstance(x, QuantizedArray):
            dtype = x.dtype if isinstance(x, PackedMatrix) else asarray(x, name).dtype
            target = dtype if is_float(dtype) else F32
    a = dequantize(a, target) if isinstance(a, QuantizedArray) else a
    b = dequantize(b, target) if isinstance(b, QuantizedArray) else b
    return a, b, None


def _common_type(a: Array, b: Array | PackedMatrix) -> tuple[Array, Array | PackedMatrix, np.dtype[Any]]:
    """Return the operands in the type that the product reads, and the default type of its result."""
    if a.dtype is b.dtype and a.dtype in _SAME:
        return a, b, a.dtype
    if b.dtype is _I8 and (a.dtype is _I8 or a.dtype is _U8):
        return a, b, _I32
    if not (is_float(a.dtype) or is_float(b.dtype)):
        raise TypeError(
            "`a` and `b` must be of float types, or `a` int8 or uint8 and `b` int8; received "
            f"{a.dtype.name} and {b.dtype.name}"
        )
    if isinstance(b, PackedMatrix) and b.dtype is BF16 and "float8" in a.dtype.name:
        promoted = BF16
    else:
        promoted = result_type(a.dtype, b.dtype)
    reads = BF16 if "float8" in promoted.name else promoted
    a = a if a.dtype is reads else cast(a, reads)
    if b.dtype is not reads:
        b = cast(b.unpack() if isinstance(b, PackedMatrix) else b, reads)
    return a, b, promoted


def _out_dtype(dtype: DTypeLike | None, default: np.dtype[Any], compute: np.dtype[Any]) -> np.dtype[Any]:
    target = default if dtype is None else parse(dtype, "out_dtype")
    if not is_float(target) and not (target is _I32 and (compute is _I8 or compute is _U8)):
        raise TypeError(f"`out_dtype` must be a float type, or int32 for an int8 product; received {target.name}")
    return target


def _kernel_writes(out: Array, operands: tuple[Any, ...], given: bool) -> bool:
    """Whether the kernel can write `out` in place: rows with unit stride that overlap nothing it reads."""
    if out.dtype not in _OUT_FORMATS:
        return False
    if not given:
        return True
    aligned = all(stride % out.itemsize == 0 for stride in out.strides)
    unit = out.ndim < 1 or out.shape[-1] <= 1 or out.strides[-1] == out.itemsize
    read = (x.scale if isinstance(x, PackedMatrix) else x for x in operands)
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


def _product_float64(a: Array, b: Any, bias: Array | None, activation: str | None) -> Array:
    result: Array = np.matmul(a, b)
    if bias is not None:
        result = result + bias
    return result if activation is None else _FLOAT64[activation](result)


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


def gelu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``x * Phi(x)``, Phi the normal distribution (the exact GELU, by erf), in the type of `x`.

    Examples
    --------
    >>> gelu(np.array([-1.0, 0.0, 1.0], np.float32))
    array([-0.15865526,  0.        ,  0.8413447 ], dtype=float32)
    """
    return _activate("gelu", x, out)


def relu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``max(x, 0)``, in the type of `x`; NaN stays NaN.

    Examples
    --------
    >>> relu(np.array([-1.0, 2.0], np.float32))
    array([0., 2.], dtype=float32)
    """
    return _activate("relu", x, out)


def silu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``x / (1 + exp(-x))``, in the type of `x`.

    Examples
    --------
    >>> silu(np.array([0.0, 1.0], np.float32))
    array([0.       , 0.7310586], dtype=float32)
    """
    return _activate("silu", x, out)


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


def _silu_float64(x: Array) -> Array:
    x = np.maximum(x, -np.finfo(np.float64).max)
    with np.errstate(over="ignore"):
        y: Array = x / (1.0 + np.exp(-x))
    return y


_FLOAT64 = {"relu": lambda x: np.maximum(x, 0.0), "gelu": _gelu_float64, "silu": _silu_float64}
