"""Functions of each element, of one array or of several. Results have the type of the operands."""

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays.recorded import is_recorded
from mp_core.ops.elementwise import rounded
from mp_core.programs.onnx.arguments import cast_to, is_float, value_of
from mp_core.programs.registry import operator

__all__: list[str] = []

for _name, _function in {
    "Abs": ops.abs, "Acos": ops.arccos, "Acosh": ops.arccosh, "Asin": ops.arcsin, "Asinh": ops.arcsinh,
    "Atan": ops.arctan, "Atanh": ops.arctanh, "BitwiseNot": ops.bitwise_not, "Ceil": ops.ceil,
    "Cos": ops.cos, "Cosh": ops.cosh, "Erf": ops.erf, "Exp": ops.exp, "Floor": ops.floor,
    "Log": ops.log, "Neg": ops.negative, "Not": ops.logical_not, "Reciprocal": ops.reciprocal, "Round": ops.round,
    "Sign": ops.sign, "Sin": ops.sin, "Sinh": ops.sinh, "Sqrt": ops.sqrt, "Tan": ops.tan,
    "Add": ops.add, "And": ops.logical_and, "BitwiseAnd": ops.bitwise_and, "BitwiseOr": ops.bitwise_or,
    "BitwiseXor": ops.bitwise_xor, "Mul": ops.multiply, "Or": ops.logical_or, "Sub": ops.subtract,
    "Xor": ops.logical_xor,
}.items():  # fmt: skip
    operator(_name, keeps_type=True)(_function)

for _name, _function in {
    "Equal": ops.equal, "Greater": ops.greater, "GreaterOrEqual": ops.greater_equal, "IsNaN": ops.isnan,
    "Less": ops.less, "LessOrEqual": ops.less_equal, "Where": ops.where,
}.items():  # fmt: skip
    operator(_name)(_function)


@operator("Div", keeps_type=True)
def div(a: Any, b: Any) -> Any:
    """Return the quotient; of integers, rounded towards zero."""
    if is_float(a):
        return ops.divide(a, b)
    if np.dtype(a.dtype).kind == "u":
        return ops.floor_divide(a, b)
    signs = ops.multiply(ops.sign(a), ops.sign(b))
    return ops.multiply(signs, ops.floor_divide(ops.abs(a), ops.abs(b)))


@operator("Mod")
def mod(a: Any, b: Any, *, fmod: Literal[0, 1] = 0) -> Any:
    """Return the remainder, with the sign of `b`; with `fmod`, with that of `a`."""
    return (ops.fmod if fmod else ops.mod)(a, b)


@operator("Pow", keeps_type=True)
def power(x: Any, exponent: Any) -> Any:
    """Return a power in the type of the base; of an integer base, computed in float64."""
    if is_float(x):
        return ops.power(x, cast_to(exponent, x.dtype))
    if is_float(exponent):
        return ops.cast(ops.power(ops.cast(x, "float64"), ops.cast(exponent, "float64")), x.dtype)
    return cast_to(ops.power(x, exponent), x.dtype)


def _of_several(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def combined(first: Any, *others: Any) -> Any:
        return reduce(function, others, first)

    return combined


for _name, _function in {"Max": ops.maximum, "Min": ops.minimum, "Sum": ops.add}.items():
    operator(_name, keeps_type=True)(_of_several(_function))


@operator("Mean")
def mean(first: Any, *others: Any) -> Any:
    """Return the mean of arrays, rounded once."""
    return rounded(lambda *x: reduce(ops.add, x) / len(x), first, *others)


@operator("Clip", keeps_type=True)
def clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """Return the elements, none smaller than `min` or larger than `max`."""
    if not is_recorded(min, max):
        limits = (-np.inf, np.inf) if is_float(x) else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
        low, high = (limit if b is None else value_of(b) for b, limit in zip((min, max), limits, strict=True))
        return cast_to(ops.clip(x, low, high), x.dtype)
    x = x if min is None else ops.maximum(x, min)
    return x if max is None else ops.minimum(x, max)


@operator("IsInf")
def is_inf(x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    """Return where elements are infinities of the signs that are wanted."""
    found = ops.isinf(x)
    if not detect_negative:
        found = ops.logical_and(found, ops.greater(x, 0))
    return found if detect_positive else ops.logical_and(found, ops.less(x, 0))


@operator("BitShift")
def bit_shift(x: Any, bits: Any, *, direction: Literal["LEFT", "RIGHT"]) -> Any:
    """Return the elements, shifted by so many bits."""
    return (ops.left_shift if direction == "LEFT" else ops.right_shift)(x, bits)
