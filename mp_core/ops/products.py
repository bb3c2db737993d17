"""Products: check, allocate, call the core."""

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays import F32, F64, I8, I32, U8, Array, as_float, as_vector, asarray, cast, check_out, imported_all
from mp_core.core import matmul as _matmul
from mp_core.core import packed as _packed
from mp_core.core.names import PanelName
from mp_core.core.packed import PackedMatrix
from mp_core.dtypes import ALLOWED, WIDE, dtype_of, is_float, name_of, parse, result_type
from mp_core.ops import float64
from mp_core.ops.quantized import (
    has_scale,
    matrix_of,
    multipliable,
    pack_quantized,
    pack_unsigned,
    scales_columns,
    scales_rows,
    unpacked,
)
from mp_core.quantization import QuantizedArray, check_unchanged, dequantize, quantize

__all__ = ["pack"]

_PANELS = {name: dtype_of(name) for name in _packed.FORMATS}  # what a panel may hold
_OUT_TYPES = frozenset(ALLOWED[name] for name in _matmul.OUT_FORMATS)
_NARROW = ("float8_e4m3fn", "float8_e5m2", "int8")


def _result_types() -> dict[tuple[str, str], str]:
    """Return the default type of a product, by the types of its operands: those that multiply without a cast."""
    wide = {(a, b): result_type(ALLOWED[a], ALLOWED[b]).name for a in WIDE for b in WIDE}
    narrow = {(a, b): a for a in WIDE for b in _NARROW}
    alike = {(a, a): a for a in _NARROW[:2]}
    return wide | narrow | alike | {("int8", "int8"): "int32", ("uint8", "int8"): "int32"}


_RESULTS = _result_types()


def pack(b: Any, *, dtype: PanelName | DTypeLike | None = None) -> PackedMatrix:
    """Pack the right operand of products once, so that :func:`matmul` need not do it at every call.

    Parameters
    ----------
    b : array-like or QuantizedArray
        Shape (..., k, n). A :class:`QuantizedArray` is one matrix of any type of codes, with one scale, one per column,
        or one per column and group of k (symmetric, groups of a multiple of 8). uint8 and uint4 are held as int8, uint8
        with another zero point.
    dtype : {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"}, optional
        Cast to this type first. Default: the type of `b`.

    Returns
    -------
    PackedMatrix
        Its `shape` is that of `b`; :meth:`PackedMatrix.unpack` gives the elements back exactly. It holds the bytes of
        `b`, k rounded up to a multiple of 1 (float32, float16), 2 (bfloat16), 4 (float8, int8) or 8 (int4), 64 bytes
        more, 4 bytes a column for int8, and the scales and zero points of a QuantizedArray.

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
        if len(b.shape) != 2 or not scales_columns(b):
            raise ValueError(
                "a quantized `b` must be one matrix with one scale or one per column (axis=1), symmetric if int4 or in "
                f"groups, which have a multiple of 8; received {b.dtype} of shape {b.shape} with scales {b.scale.shape}"
            )
        return pack_quantized(b)
    wanted = None if dtype is None else parse(dtype)
    b = asarray(b, "b")
    if b.ndim < 2:
        raise ValueError(f"`b` must have at least 2 axes (..., k, n); received shape {b.shape}")
    target = b.dtype if wanted is None else wanted
    if name_of(target) not in _PANELS:
        choices = ", ".join((*WIDE, *_NARROW))
        if wanted is None:
            raise TypeError(f"`b` must be of type {choices}; received {target.name}: pass dtype= to cast it")
        raise TypeError(f"`dtype` must be one of {choices}; received {target.name}")
    if b.dtype is not target:
        if target is I8:
            raise TypeError(f"`b` must be int8 to be packed as int8: quantize it first; received {b.dtype.name}")
        b = cast(b, target)
    return _packed.pack(b, target)


def _matmul_any(a: Any, b: Any, out_dtype: Any, out: Array | None, bias: Any, activation: Any, residual: Any) -> Array:
    """Do what :func:`matmul` says for all operands that its fast path does not take."""
    if not isinstance(activation, str | None) or activation not in _matmul.ACTIVATIONS:
        choices = ", ".join(repr(name) for name in _matmul.ACTIVATIONS)
        raise ValueError(f"`activation` must be one of {choices}; received {activation!r}")
    wanted = None if out_dtype is None else parse(out_dtype, "out_dtype")
    a, b, bias, residual = imported_all(
        ("a", "b", "bias", "residual"), a, b, bias, residual, kept=(QuantizedArray, PackedMatrix)
    )
    row_scale = row_zero = default = None
    if isinstance(a, PackedMatrix):
        a = unpacked(a)
    if isinstance(b, QuantizedArray) and len(b.shape) > 2 and scales_columns(b):
        a = a if isinstance(a, QuantizedArray) else asarray(a, "a")
        batch = _broadcast(a.shape[:-2], b.shape[:-2])
        if 0 not in (*batch, *a.shape[-2:-1], *b.shape[-1:]):
            return _matrix_by_matrix(a, b, batch, wanted, out, bias, activation, residual)
    if isinstance(a, QuantizedArray) or isinstance(b, QuantizedArray) or has_scale(b):
        a, b, row_scale, row_zero, default = multipliable(a, b)
    a = asarray(a, "a")
    if not isinstance(b, PackedMatrix):
        b = asarray(b, "b")
    if a.ndim == 0 or len(b.shape) == 0:
        raise ValueError(f"`a` and `b` must have at least 1 axis; received shapes {a.shape} and {b.shape}")
    if isinstance(b, np.ndarray) and b.dtype is U8 and b.ndim > 1 and (a.dtype is U8 or a.dtype is I8):
        b = pack_unsigned(b)
    a, b, promoted = _of_types_that_multiply(a, b)
    target = _out_dtype(wanted, default or promoted, a.dtype)
    if target is I32 and any(part is not None for part in (bias, activation, residual)):
        raise TypeError("`bias`, `activation` and `residual` need a float `out_dtype`; received int32")
    if target is I32 and row_scale is not None and not (np.all(row_scale == 1) and np.all(b.scale == 1)):
        raise TypeError(
            "`out_dtype` must be a float type for quantized operands whose scales are not 1: int32 would leave the "
            "scales out"
        )
    k, n = b.shape[-2:] if len(b.shape) > 1 else (b.shape[0], 1)
    if a.shape[-1] != k:
        raise ValueError(
            f"the last axis of `a` must be as long as the second to last of `b`; received shapes {a.shape} "
            f"and {b.shape}"
        )
    if not is_float(a.dtype):
        _check_depth(a.dtype, k, row_zero is not None, isinstance(b, PackedMatrix) and b.zero_point is not None)
    if bias is not None:
        bias = as_vector(bias, n, "bias", F64 if a.dtype is F64 else F32)
    batch = a.shape[:-2] if len(b.shape) < 3 else _broadcast(a.shape[:-2], b.shape[:-2])
    shape = batch + a.shape[-2:-1] + b.shape[-1:] * (len(b.shape) > 1)
    if residual is not None:
        residual = _residual(residual, shape, a.dtype is F64)
    result = np.empty(shape, target) if out is None else check_out(out, shape, target)
    if result.size == 0:  # NumPy would go through a batch of empty matrices one by one
        return result if out is None else out
    if a.dtype is F64:
        cast(_product_float64(a, b, bias, activation, residual), target, out=result)
        return result if out is None else out

    view = result
    if not _kernel_writes(result, (a, b, bias, residual, row_scale, row_zero), out is not None):
        plain = row_scale is None and bias is None and activation is None and residual is None
        exact = I32 if not is_float(a.dtype) and plain else F32
        view = np.empty(shape, exact if target is F64 else target)
    _multiply(a, b, view, bias, activation, residual, row_scale, row_zero)
    if view is not result:
        np.copyto(result, view, casting="unsafe")
    return result if out is None else out


def _matrix_by_matrix(
    a: Any,
    b: QuantizedArray,
    batch: tuple[int, ...],
    out_dtype: Any,
    out: Array | None,
    bias: Any,
    activation: Any,
    residual: Any,
) -> Array:
    """Return the product with a quantized `b` of more axes, whose matrices each have their scales."""
    check_unchanged(b)
    if isinstance(a, QuantizedArray):
        check_unchanged(a)
        a = a if scales_rows(a) else dequantize(a)
    shape = batch + a.shape[-2:-1] + b.shape[-1:]
    if residual is not None:
        residual = _residual(residual, shape, True)
    products = [
        _matmul_any(
            matrix_of(a, i),
            matrix_of(b, i),
            out_dtype,
            None,
            bias,
            activation,
            None if residual is None else residual[i],
        )
        for i in np.ndindex(batch)
    ]
    result = np.stack(products).reshape(shape)
    if out is None:
        return result
    np.copyto(check_out(out, shape, result.dtype), result)
    return out


def _multiply(
    a: Array,
    b: Array | PackedMatrix,
    out: Array,
    bias: Array | None,
    activation: str | None,
    residual: Array | None,
    row_scale: Array | None,
    row_zero: Array | None,
) -> None:
    """Write the product into `out`: vectors get the axis they lack, a batch beside one matrix is one tall product."""

    def as_matrices(x: Array) -> Array:
        x = x if len(b.shape) > 1 else x[..., np.newaxis]
        return x if a.ndim > 1 else x[..., np.newaxis, :]

    full, added = as_matrices(out), None if residual is None else as_matrices(residual)
    left = a if a.ndim > 1 else a[np.newaxis]
    right = b if isinstance(b, PackedMatrix) or b.ndim > 1 else b[:, np.newaxis]
    (*batch, _, n), k = full.shape, left.shape[-1]
    if len(right.shape) == 2 and batch and left.flags.c_contiguous and full.flags.c_contiguous:
        rows = math.prod(full.shape[:-1])
        left, full = left.reshape(rows, k), full.reshape(rows, n)
        added = None if added is None else added.reshape(rows, n)
    elif batch:
        left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
        if not isinstance(right, PackedMatrix):
            right = np.broadcast_to(right, (*batch, k, n))
    if row_scale is not None and row_scale.size != 1:
        rows_shape = (*out.shape[:-1], 1)
        row_scale, row_zero = _for_each_row(row_scale, rows_shape), _for_each_row(row_zero, rows_shape)
    _matmul.product(left, right, full, bias, activation, added, row_scale, row_zero)


def _for_each_row(x: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if x is None else np.ascontiguousarray(x if x.shape == shape else np.broadcast_to(x, shape))


def _check_depth(a: np.dtype[Any], k: int, a_zero: bool, b_zero: bool) -> None:
    """Raise unless the largest sum of products fits in int32."""
    largest = (255 if a is U8 or a_zero else 128) * (255 if b_zero else 128)
    if k > (2**31 - 1) // largest:
        raise ValueError(f"{a} products need k <= {(2**31 - 1) // largest} to be exact in int32; received k = {k}")


def _of_types_that_multiply(a: Array, b: Array | PackedMatrix) -> tuple[Array, Array | PackedMatrix, np.dtype[Any]]:
    """Return the operands in types that multiply, and the default type of the result."""
    name = name_of(b.dtype)
    known = _RESULTS.get((name_of(a.dtype), "int8" if name == "int4" else name))
    if known is not None:
        return a, b, ALLOWED[known]
    if not (is_float(a.dtype) or is_float(b.dtype)):
        raise TypeError(
            "`a` and `b` must be of float types, or `a` int8 or uint8 and `b` int8 or a matrix of uint8; received "
            f"{a.dtype.name} and {b.dtype.name}"
        )
    promoted = result_type(a.dtype, b.dtype)
    a = a if a.dtype is promoted else cast(a, promoted)
    if (name_of(a.dtype), name) not in _RESULTS and b.dtype is not promoted:
        b = cast(b.unpack() if isinstance(b, PackedMatrix) else b, promoted)
    return a, b, promoted


def _out_dtype(wanted: np.dtype[Any] | None, default: np.dtype[Any], compute: np.dtype[Any]) -> np.dtype[Any]:
    target = default if wanted is None else wanted
    if not is_float(target) and not (target is I32 and (compute is I8 or compute is U8)):
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


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    pairs = list(itertools.zip_longest(reversed(a), reversed(b), fillvalue=1))  # np.broadcast_shapes knows 32 axes
    if any(one != other and 1 not in (one, other) for one, other in pairs):
        raise ValueError(f"the leading axes of `a` and `b` must broadcast; received {a} and {b}")
    return tuple(other if one == 1 else one for one, other in reversed(pairs))


def _product_float64(a: Array, b: Any, bias: Array | None, activation: str | None, residual: Array | None) -> Array:
    result: Array = np.matmul(a, b)
    if bias is not None:
        result = result + bias
    if activation is not None:
        result = float64.ACTIVATIONS[activation](result)
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
    """Do what :func:`dynamic_matmul` and `fixed_matmul` say for all operands that their fast path does not take."""
    wanted = None if out_dtype is None else parse(out_dtype, "out_dtype")
    a, bias, residual = imported_all(("a", "bias", "residual"), a, bias, residual)
    a = as_float(a, "a")
    if a.ndim == 0:
        raise ValueError("`a` must have at least 1 axis; received shape ()")
    if zeros is None:
        rows = quantize(a, axis=tuple(range(a.ndim - 1)) if scale is None else None, scale=scale)
    else:
        codes = quantize(a, axis=-1, scale=scale, zero_point=zeros).values
        rows = QuantizedArray(codes, np.ones((1,) * codes.ndim, np.float32), None, ())
    target = a.dtype if wanted is None else wanted
    return _matmul_any(rows, b, target, out, bias, activation, residual)


_packed.install(_PANELS)
_matmul.install({**ALLOWED, **_PANELS}, _RESULTS, _matmul_any, _dynamic_any)
