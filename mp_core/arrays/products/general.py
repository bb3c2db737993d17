"""The general path of products: convert operands to ones that kernels take, then call the fast path."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import (
    F32,
    F64,
    I8,
    I32,
    U8,
    Array,
    as_float,
    as_vector,
    asarray,
    cast,
    check_out,
    contiguous,
    imported_all,
    imported_out,
)
from mp_core.arrays.dtypes import ALLOWED, is_float, name_of, parse, result_type
from mp_core.arrays.formats import PRODUCTS, RESULT_DTYPES
from mp_core.arrays.products import float64
from mp_core.arrays.products.operands import ACTIVATIONS, most_exact_k, multiply_normal
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.products.quantized import (
    Factors,
    has_scale,
    matrix_of,
    multipliable,
    pack_unsigned,
    scales_columns,
    scales_rows,
    unpacked,
)
from mp_core.arrays.quantization import QuantizedArray, check_unchanged, dequantize
from mp_core.arrays.recorded import takes_symbols

__all__ = ["activation_named", "check_depth", "factors_of", "multiply_any", "product_type"]

_NAMES = {name: name for name in ACTIVATIONS}  # a look-up replaces an instance of a subclass of str by a plain str


class _Epilogue(NamedTuple):
    """The bias, activation and residual of a call; each may be None."""

    bias: Any
    activation: str | None
    residual: Any


@takes_symbols
def multiply_any(a: Any, b: Any, out_dtype: Any, out: Any, bias: Any, activation: Any, residual: Any) -> Array:
    """Return what ``matmul`` returns, for operands that the fast path does not take.

    `a` may be :class:`Factors`, if its rows have been quantized; they contain `b` too.
    """
    name = activation_named(activation)
    wanted = None if out_dtype is None else parse(out_dtype, "out_dtype")
    held = imported_out(out)
    a, b, bias, residual = imported_all(
        ("a", "b", "bias", "residual"), a, b, bias, residual, kept=(QuantizedArray, PackedMatrix, Factors)
    )
    result = _multiply(a, b, wanted, held, _Epilogue(bias, name, residual))
    return result if out is None else out


def activation_named(activation: Any) -> str | None:
    """Return the name of an activation of products, or None; raise ValueError for any other."""
    if not isinstance(activation, str | None) or activation not in _NAMES:
        choices = ", ".join(repr(name) for name in _NAMES)
        raise ValueError(f"`activation` must be one of {choices}; received {activation!r}")
    return _NAMES[activation]


def _multiply(a: Any, b: Any, wanted: np.dtype[Any] | None, out: Any, epilogue: _Epilogue) -> Array:
    """Multiply operands that are plain arrays, numbers, quantized or packed."""
    if isinstance(a, PackedMatrix):
        a = unpacked(a)
    if isinstance(b, QuantizedArray) and len(b.shape) > 2 and scales_columns(b):
        a = a if isinstance(a, QuantizedArray) else asarray(a, "a")
        batch = _broadcast(a.shape[:-2], b.shape[:-2])
        if 0 not in (*batch, *a.shape[-2:-1], *b.shape[-1:]):
            return _matrix_by_matrix(a, b, batch, wanted, out, epilogue)
    factors = a if isinstance(a, Factors) else factors_of(a, b)
    target = _out_dtype(factors, wanted, epilogue)
    a, b = factors.a, factors.b
    shape = _shape(factors)
    bias, activation, residual = epilogue
    if bias is not None:
        bias = as_vector(bias, shape[-1] if len(b.shape) > 1 else 1, "bias", F64 if a.dtype is F64 else F32)
    if residual is not None:
        residual = _residual(residual, shape, a.dtype is F64)
    epilogue = _Epilogue(bias, activation, residual)
    plain = None if out is None else check_out(out, shape, target)
    if 0 in shape:
        return np.empty(shape, target) if out is None else out
    if a.dtype is F64:
        result = cast(_product_float64(a, b, epilogue), target, out=plain)
    else:
        result = _by_kernels(factors, target, plain, shape, epilogue)
    return result if out is None else out


def _by_kernels(
    factors: Factors, target: np.dtype[Any], out: Array | None, shape: tuple[int, ...], epilogue: _Epilogue
) -> Array:
    """Multiply operands of types that kernels multiply, into `out`; if kernels cannot write to it, copy the result."""
    a, b, scale, zero, _ = factors
    if scale is not None and scale.size != 1:
        rows = (*shape[: len(shape) - (len(b.shape) > 1)], 1)
        scale, zero = _for_each_row(scale, rows), _for_each_row(zero, rows)
    exact = target
    if target not in RESULT_DTYPES:  # float64
        plain = scale is None and all(part is None for part in epilogue)
        exact = I32 if not is_float(a.dtype) and plain else F32
    result = multiply_normal(a, b, exact, out if exact is target else None, tuple(epilogue), (scale, zero))
    if result is out or (out is None and exact is target):
        return result
    out = np.empty(shape, target) if out is None else out
    np.copyto(out, result, casting="unsafe")
    return out


def _for_each_row(x: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if x is None else np.ascontiguousarray(x if x.shape == shape else np.broadcast_to(x, shape))


def _matrix_by_matrix(
    a: Any, b: QuantizedArray, batch: tuple[int, ...], wanted: np.dtype[Any] | None, out: Any, epilogue: _Epilogue
) -> Array:
    """Multiply by a quantized `b` with batch axes, one matrix at a time, since each has scales of its own."""
    check_unchanged(b)
    if isinstance(a, QuantizedArray):
        check_unchanged(a)
        a = a if scales_rows(a) else dequantize(a, F32)
    shape = batch + a.shape[-2:-1] + b.shape[-1:]
    residual = None if epilogue.residual is None else _residual(epilogue.residual, shape, True)
    products = [
        _multiply(
            matrix_of(a, i),
            matrix_of(b, i),
            wanted,
            None,
            epilogue._replace(residual=None if residual is None else residual[i]),
        )
        for i in np.ndindex(batch)
    ]
    result = np.stack(products).reshape(shape)
    if out is None:
        return result
    np.copyto(check_out(out, shape, result.dtype), result)
    return out  # type: ignore[no-any-return]


def factors_of(a: Any, b: Any) -> Factors:
    """Return the operands as arrays or a PackedMatrix, in types that multiply, with the scales of codes."""
    scale = zero = default = None
    if isinstance(a, QuantizedArray) or isinstance(b, QuantizedArray) or has_scale(b):
        a, b, scale, zero, default = multipliable(a, b)
    a = asarray(a, "a")
    if not isinstance(b, PackedMatrix):
        b = asarray(b, "b")
    if a.ndim == 0 or len(b.shape) == 0:
        raise ValueError(f"`a` and `b` must have at least 1 axis; received shapes {a.shape} and {b.shape}")
    if isinstance(b, np.ndarray) and b.dtype is U8 and b.ndim > 1 and (a.dtype is U8 or a.dtype is I8):
        b, scale = pack_unsigned(b), np.ones(1, np.float32)
    a, b, promoted = _of_types_that_multiply(a, b)
    return Factors(a, b, scale, zero, default or promoted)


def _shape(factors: Factors) -> tuple[int, ...]:
    """Return the shape of the result; raise ValueError if shapes do not fit, or k is too large for an exact sum."""
    a, b, _, zero, _ = factors
    k = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != k:
        raise ValueError(
            f"the last axis of `a` must be as long as the second to last of `b`; received shapes {a.shape} "
            f"and {b.shape}"
        )
    check_depth(a.dtype, k, b, zero)
    batch = a.shape[:-2] if len(b.shape) < 3 else _broadcast(a.shape[:-2], b.shape[:-2])
    shape: tuple[int, ...] = batch + a.shape[-2:-1] + (b.shape[-1:] if len(b.shape) > 1 else ())
    return shape


def check_depth(dtype: np.dtype[Any], k: int, b: Any, zero: Array | None) -> None:
    """Raise ValueError if sums of k products of integers may exceed int32. `zero`: the zero points of `a`, or None."""
    if is_float(dtype):
        return
    shifted = isinstance(b, PackedMatrix) and b.zero_point is not None and b.dtype is I8
    most = most_exact_k(dtype is U8 or zero is not None, shifted)
    if k > most:
        raise ValueError(
            f"{dtype} products need k <= {most} to be exact in int32; received k = {k}, the last axis of `a`"
        )


def _of_types_that_multiply(a: Array, b: Array | PackedMatrix) -> tuple[Array, Array | PackedMatrix, np.dtype[Any]]:
    """Return the operands in types that multiply, and the default type of the result."""
    name = name_of(b.dtype)
    promoted = product_type(a.dtype, b.dtype)
    if (name_of(a.dtype), name) in PRODUCTS:
        return a, b, promoted
    if not (is_float(a.dtype) or is_float(b.dtype)):
        raise TypeError(
            "`a` and `b` must be of float types, or `a` int8 or uint8 and `b` int8 or a matrix of uint8; received "
            f"{a.dtype.name} and {b.dtype.name}"
        )
    a = a if a.dtype is promoted else cast(a, promoted)
    if (name_of(a.dtype), name) not in PRODUCTS and b.dtype is not promoted:
        b = cast(b.unpack() if isinstance(b, PackedMatrix) else b, promoted)
    return a, b, promoted


def product_type(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the default type of a product of operands without scales."""
    known = PRODUCTS.get((name_of(a), name_of(b)))
    return result_type(a, b) if known is None else ALLOWED[known]


def _out_dtype(factors: Factors, wanted: np.dtype[Any] | None, epilogue: _Epilogue) -> np.dtype[Any]:
    """Return the type of the result; raise TypeError if the product cannot have the type `wanted`."""
    a, b, scale, _, default = factors
    target = default if wanted is None else wanted
    integers = (a.dtype is I8 or a.dtype is U8) and name_of(b.dtype) != "int4"
    if not is_float(target) and not (target is I32 and integers):
        raise TypeError(f"`out_dtype` must be a float type, or int32 for an int8 product; received {target.name}")
    if target is I32 and any(part is not None for part in epilogue):
        raise TypeError("`bias`, `activation` and `residual` need a float `out_dtype`; received int32")
    if target is I32 and scale is not None and not (np.all(scale == 1) and np.all(b.scale == 1)):
        raise TypeError(
            "`out_dtype` must be a float type for quantized operands whose scales are not 1: int32 would ignore the "
            "scales"
        )
    return target


def _residual(residual: Any, shape: tuple[int, ...], keep_float64: bool) -> Array:
    """Return the residual as kernels read it: of a native float type, C-contiguous and aligned."""
    x = as_float(residual, "residual")
    if x.shape != shape:
        raise ValueError(f"`residual` must have the result's shape {shape}; received {x.shape}")
    return np.require(contiguous(x if keep_float64 or x.dtype is not F64 else cast(x, F32)), requirements="A")


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    pairs = list(itertools.zip_longest(reversed(a), reversed(b), fillvalue=1))  # np.broadcast_shapes: at most 32 axes
    if any(one != other and 1 not in (one, other) for one, other in pairs):
        raise ValueError(f"the leading axes of `a` and `b` must broadcast; received {a} and {b}")
    return tuple(other if one == 1 else one for one, other in reversed(pairs))


def _product_float64(a: Array, b: Any, epilogue: _Epilogue) -> Array:
    result: Array = np.matmul(a, b)
    if epilogue.bias is not None:
        result = result + epilogue.bias.reshape(epilogue.bias.shape if result.ndim else ())
    if epilogue.activation is not None:
        result = float64.ACTIVATIONS[epilogue.activation](result)
    return result if epilogue.residual is None else result + epilogue.residual
