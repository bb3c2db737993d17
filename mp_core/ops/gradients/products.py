"""Gradient rules of products, einsum, casts and copies.

``dA = dY B^T`` and ``dB = A^T dY`` are products of strided views; a gradient to add to is passed as the residual.
While calls are noted, a product with an activation is split into two operations, product and activation, so that the
derivative uses the float32 argument of the activation. The bits of the result are those of the fused operation.
"""

import functools
import inspect
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.conversion import cast_any
from mp_core.arrays.dtypes import is_float, result_type
from mp_core.arrays.dtypes import parse as parse_dtype
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.arrays.recorded import current_recording, with_numbers
from mp_core.arrays.stochastic import round_stochastically
from mp_core.core.convert import copied
from mp_core.ops import PackedMatrix, dynamic_matmul, fixed_matmul, matmul
from mp_core.ops.activations import activate
from mp_core.ops.contraction import einsum, parse
from mp_core.ops.convolution import convolve, convolve_channels
from mp_core.ops.elementwise import computed
from mp_core.ops.gradients.elementwise import FROM_RESULT, activation_gradient
from mp_core.ops.gradients.registry import Addable, RowSum, gradient_of, wide_type
from mp_core.ops.gradients.sums import BLOCK, blocks_of, summed_rows

__all__ = ["REPLACEMENTS", "inner_gradient", "product_gradients", "transposed_operand"]


# ---- casts and copies


@gradient_of(cast_any)
def _(d: Any, result: Any, x: Any, dtype: Any, saturate: Any = False) -> dict[str, Any]:
    return {"x": d}


@gradient_of(round_stochastically)
def _(d: Any, result: Any, x: Any, dtype: Any, key: Any, saturate: Any) -> dict[str, Any]:
    return {"x": d}


with_numbers(copied)  # for the sum of two numbers: its operands have equal gradients, and one gets a copy


@gradient_of(copied)
def _(d: Any, result: Any, x: Any) -> dict[str, Any]:
    return {"x": d}


# ---- products


@gradient_of(matmul, dynamic_matmul)  # only dynamic_matmul has a scale
def _(
    d: Any, result: Any, a: Any, b: Any, *,
    scale: Any = None, out_dtype: Any = None, bias: Any = None, activation: Any = None, residual: Any = None,
) -> dict[str, Any]:  # fmt: skip
    inner = inner_gradient(d, result, activation)
    return product_gradients(inner, a, b) | {"bias": _bias(inner), "residual": d}


@gradient_of(fixed_matmul)
def _(
    d: Any, result: Any, a: Any, b: Any, scales: Any, zeros: Any, *, bias: Any = None, activation: Any = None
) -> dict[str, Any]:  # fmt: skip
    if activation is None:
        inner = d
    elif activation in FROM_RESULT:
        inner = inner_gradient(d, result, activation)
    else:  # compute the argument of the activation again, rounded as the product rounds it
        inner = activation_gradient(activation, d, fixed_matmul(a, b, scales, zeros, bias=bias), d.dtype)

    def of_rows(dtype: Any) -> Any:
        """Return the gradient of `a`; `b` is the matrix times `scales`, so divide by them."""
        return computed("divide", matmul(inner, transposed_operand(b, inner.dtype), out_dtype=F32), scales, dtype=dtype)

    return {"a": of_rows, "bias": _bias(inner)}


def inner_gradient(d: Any, result: Any, activation: Any) -> Any:
    """Return the gradient of the argument of a product's activation, computed from the result."""
    return d if activation is None else activation_gradient(activation, d, result, d.dtype)


def _bias(d: Any) -> RowSum | None:
    return summed_rows(d, d.shape[-1:]) if d.shape else None  # the product of two vectors is a number, without bias


def product_gradients(d: Any, a: Any, b: Any) -> dict[str, Any]:
    """Return the gradients of the operands of ``a @ b``. `d` is rounded to the type in which the operands multiply."""
    left = a.reshape(1, -1) if len(a.shape) == 1 else a
    batch = d.shape[: len(d.shape) - (len(a.shape) > 1) - (len(b.shape) > 1)]
    columns = 1 if len(b.shape) == 1 else b.shape[-1]

    @functools.cache
    def rows() -> Any:
        common = _type_of(a, b)
        whole = d.reshape(*batch, left.shape[-2], columns)
        return whole if d.dtype.itemsize <= common.itemsize else cast(whole, common)

    def of_left(dtype: Any, other: Any) -> Any:
        return matmul(rows(), transposed_operand(b, rows().dtype), out_dtype=dtype, residual=other)

    @functools.cache
    def both() -> Any:
        return (left, rows()) if len(b.shape) > 2 else (a.reshape(-1, a.shape[-1]), rows().reshape(-1, columns))

    def of_right(dtype: Any, other: Any) -> Any:
        x, y = both()
        if x.ndim > 2 or dtype == F64 or not _pays_transposed(x.shape[0], x.shape[1], y.shape[-1]):
            return matmul(x.swapaxes(-1, -2), y, out_dtype=dtype, residual=other)
        return matmul(y.T, x, out_dtype=dtype, residual=None if other is None else other.T).T

    right_shape = (b.shape[0], 1) if len(b.shape) == 1 else b.shape
    has_rows_of_both = len(b.shape) <= 2 or b.shape[:-2] == batch
    return {
        "a": _as_operand(of_left, a, left.shape, left.shape[:-2] == batch),
        "b": _as_operand(of_right, b, right_shape, has_rows_of_both, lambda: _sum_of_products(both(), b.shape)),
    }


def _sum_of_products(operands: tuple[Any, Any], shape: tuple[int, ...]) -> RowSum:
    """Return ``x^T y``, reshaped, as a sum over rows. The running sum is the residual of the product of each block."""
    x, y = operands
    is_in_pairs = x.dtype.name == "bfloat16" and y.dtype.name not in ("float32", "float16")
    block = 2 * BLOCK if is_in_pairs or "float8" in x.dtype.name else BLOCK

    def product(rows: slice, total: Any = None) -> Any:
        wide = wide_type(x.dtype)
        return matmul(x[..., rows, :].swapaxes(-1, -2), y[..., rows, :], out_dtype=wide, residual=total)

    def after(before: Any) -> Any:
        if before is None:
            return product(slice(None)).reshape(shape)
        total = before.reshape(*x.shape[:-2], x.shape[-1], y.shape[-1])
        for rows in blocks_of(x.shape[-2], block):
            total = product(rows, total)
        return total.reshape(shape)

    return RowSum(x.shape[-2], block, after, lambda rows: product(rows).reshape(shape))


def _pays_transposed(rows: int, features: int, columns: int) -> bool:
    """Return whether ``(y^T x)^T`` is faster than ``x^T y``. The order of sums, and so the bits, are the same.

    A product copies its transposed left operand. If x is wider than y, ``y^T x`` copies fewer elements; but its result
    must be transposed, which takes about four times as long per element.
    """
    return rows * (features - columns) >= 4 * features * columns


def _as_operand(make: Any, x: Any, shape: tuple[int, ...], is_whole: bool, summed: Any = None) -> Any:
    """Return the gradient of an operand that `make` computes in the shape `shape`.

    If `is_whole`, this is the gradient itself, and another gradient can be its residual. Otherwise the operand was
    broadcast over a batch, and the walk sums over the batch.
    """
    if not is_whole:
        return lambda dtype: make(dtype, None) if len(x.shape) > 1 else make(dtype, None).reshape(-1, *x.shape)
    return Addable(
        lambda dtype, other: make(dtype, None if other is None else other.reshape(shape)).reshape(x.shape), summed
    )


def transposed_operand(b: Any, dtype: np.dtype[Any]) -> Any:
    """Return the right operand with its last two axes exchanged.

    A packed or quantized operand becomes packed floats, which take more memory than the codes. So they are cached, and
    the plans of one training step share the cache.
    """
    if not isinstance(b, PackedMatrix | QuantizedArray):
        return b.reshape(1, -1) if b.ndim == 1 else b.swapaxes(-1, -2)
    recording = current_recording()
    kept = {} if recording is None else recording.packed_transposes
    found = kept.get((id(b), dtype))
    if found is None or found[0] is not b:
        found = kept[id(b), dtype] = b, _packed_floats(b, dtype)  # keep `b`, so that no other operand gets its id
    return found[1]


def _packed_floats(b: Any, dtype: np.dtype[Any]) -> Any:
    """Return the values of a packed or quantized operand as packed floats, with the last two axes exchanged."""
    wide = wide_type(dtype)
    floats = _unpacked(b, wide) if isinstance(b, PackedMatrix) else dequantize(b, wide)
    floats = floats.swapaxes(-1, -2)
    return floats if dtype == F64 else ops.pack(floats, dtype=dtype)


def _unpacked(b: PackedMatrix, dtype: np.dtype[Any]) -> Array:
    """Return the values of a packed matrix: ``scale * (q - zero_point)``."""
    codes, scale, zero = cast(b.unpack(), dtype), b.scale, b.zero_point
    if b.group_size:
        group_of = np.arange(codes.shape[-2]) // b.group_size
        scale, zero = (None if x is None else x[group_of] for x in (scale, zero))
    if zero is not None:
        codes = codes - cast(zero, dtype)
    if scale is None:
        return codes
    elements: Array = codes * cast(scale, dtype)
    return elements


# ---- einsum

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ONE = "the only axis"  # a label that no equation can have


@gradient_of(einsum)
def _(d: Any, result: Any, equation: str, a: Any, b: Any, *, out_dtype: Any = None) -> dict[str, Any]:
    of_a, of_b, of_out = parse(equation, len(a.shape), len(b.shape))
    if not of_out:  # einsum takes no arrays without axes, so give the gradient of a number one axis
        d, of_out = d.reshape(1), (_ONE,)
    letters = dict(zip(dict.fromkeys((*of_a, *of_b, _ONE)), _LETTERS, strict=False))

    def gradient(mine: Any, x: Any, labels: Any, other: Any, other_labels: Any) -> Any:
        kept = tuple(label for label in labels if label in of_out or label in other_labels)
        terms = ("".join(letters[label] for label in each) for each in (of_out, other_labels, kept))
        product = einsum("{},{}->{}".format(*terms), d, other, out_dtype=mine)
        lengths = dict(zip(of_out, d.shape, strict=True)) | dict(zip(labels, x.shape, strict=True))
        if kept == labels:
            return product
        places = tuple(slice(None) if label in kept else np.newaxis for label in labels)
        return np.broadcast_to(product[places], tuple(
            n if label in kept else lengths[label] for label, n in zip(labels, product[places].shape, strict=True)
        ))  # fmt: skip

    return {
        "a": lambda dtype: gradient(dtype, a, of_a, b, of_b),
        "b": lambda dtype: gradient(dtype, b, of_b, a, of_a),
    }


# ---- products with an activation, split in two

_BY_ROUNDED_RESULT = {"relu", "relu6"}
"""The activations whose derivative can be computed from a result that was rounded to 16 bits."""


def _split(function: Any, a: Any, b: Any, activation: Any, residual: Any, out_dtype: Any, arguments: Any) -> Any:
    """Compute a product and its activation as two operations; return None if the derivative needs only the result."""
    dtype = np.dtype(parse_dtype(out_dtype)) if out_dtype is not None else _type_of(a, b)
    wide = wide_type(dtype)
    by_result = FROM_RESULT if dtype == wide else _BY_ROUNDED_RESULT
    if activation is None or (activation in by_result and residual is None):
        return None
    inner = function(a, b, out_dtype=wide, **arguments)
    result = activate(activation, inner)
    if residual is not None:
        result = ops.add(result, residual)
    return result if result.dtype == dtype else cast(result, dtype)


def _type_of(a: Any, b: Any) -> np.dtype[Any]:
    """Return the default type of a product: the common type of its float operands with 16 bits or more."""
    wide = [x.dtype for x in (a, b) if getattr(x, "scale", None) is None and x.dtype.itemsize > 1 and is_float(x.dtype)]
    return functools.reduce(result_type, wide)


def _matmul(
    a: Any, b: Any, *, out_dtype: Any = None, out: Any = None, bias: Any = None, activation: Any = None,
    residual: Any = None,
) -> Any:  # fmt: skip
    return _split(matmul, a, b, activation, residual, out_dtype, {"bias": bias})


def _dynamic_matmul(
    a: Any, b: Any, *, scale: Any = None, out_dtype: Any = None, out: Any = None, bias: Any = None,
    activation: Any = None, residual: Any = None,
) -> Any:  # fmt: skip
    return _split(dynamic_matmul, a, b, activation, residual, out_dtype, {"bias": bias, "scale": scale})


def _convolution(function: Any) -> Any:
    def split(
        a: Any, b: Any, *, windows: Any, out_dtype: Any = None, bias: Any = None, activation: Any = None
    ) -> Any:  # fmt: skip
        return _split(function, a, b, activation, None, out_dtype, {"bias": bias, "windows": windows})

    return split


_CONVOLUTIONS = (convolve, convolve_channels)
REPLACEMENTS = {
    matmul: _matmul,
    dynamic_matmul: _dynamic_matmul,
    **{inspect.unwrap(function): _convolution(function) for function in _CONVOLUTIONS},
}
"""Operation -> function called in its place while calls are noted; if it returns None, the operation is called."""
