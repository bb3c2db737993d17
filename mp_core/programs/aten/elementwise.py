"""Functions of each element, of one array or of several."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import F32
from mp_core.arrays.dtypes import is_float, parse
from mp_core.programs.registry import operator

__all__ = ["cast", "numbers"]


def numbers(*operands: Any) -> tuple[Any, ...]:
    """Return operands, of which those without axes do not decide the type of the result, as in torch."""
    if all(np.ndim(x) == 0 for x in operands):
        return operands
    return tuple(x.item() if type(x) is np.ndarray and x.ndim == 0 else x for x in operands)


def cast(x: Any, dtype: str | None) -> Any:
    """Return an array in another type; itself if it has this type, or `dtype` is None."""
    if dtype is None:
        return x
    array = np.asarray(x) if isinstance(x, bool | int | float) else x
    if array.dtype == parse(dtype):
        return array
    if dtype == "bool":
        return ops.not_equal(array, 0)
    with np.errstate(invalid="ignore"):  # torch does not warn of a NaN that becomes an integer
        return ops.cast(array, dtype)


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def combined(self: Any, other: Any) -> Any:
        return function(*numbers(self, other))

    combined.__doc__ = function.__doc__
    return combined


_OF_ONE: dict[str, Callable[..., Any]] = {
    "relu": ops.relu, "tanh": ops.tanh, "sigmoid": ops.sigmoid, "erf": ops.erf, "silu": ops.silu, "exp": ops.exp,
    "log": ops.log, "log1p": ops.log1p, "expm1": ops.expm1, "log2": ops.log2, "sqrt": ops.sqrt, "rsqrt": ops.rsqrt,
    "sin": ops.sin, "cos": ops.cos, "abs": ops.abs, "neg": ops.negative, "reciprocal": ops.reciprocal,
    "sign": ops.sign, "floor": ops.floor, "ceil": ops.ceil, "round": ops.round, "isnan": ops.isnan,
    "isinf": ops.isinf, "logical_not": ops.logical_not,
}  # fmt: skip
_OF_TWO: dict[str, Callable[..., Any]] = {
    "mul.Tensor": ops.multiply, "mul.Scalar": ops.multiply, "div.Tensor": ops.divide, "div.Scalar": ops.divide,
    "maximum.default": ops.maximum, "minimum.default": ops.minimum, "pow.Tensor_Tensor": ops.power,
    "pow.Scalar": ops.power, "remainder.Tensor": ops.mod, "remainder.Scalar": ops.mod,
    "logical_and.default": ops.logical_and, "logical_or.default": ops.logical_or,
    "logical_xor.default": ops.logical_xor,
    **{f"{name}.{kind}": function for kind in ("Tensor", "Scalar") for name, function in {
        "eq": ops.equal, "ne": ops.not_equal, "lt": ops.less, "le": ops.less_equal, "gt": ops.greater,
        "ge": ops.greater_equal}.items()},
}  # fmt: skip
for _name, _function in _OF_ONE.items():
    operator(f"aten.{_name}.default")(_function)
for _name, _function in _OF_TWO.items():
    operator(f"aten.{_name}")(_of_two(_function))


@operator("aten.add.Tensor", "aten.add.Scalar")
def add(self: Any, other: Any, alpha: Any = 1) -> Any:
    """Return ``self + alpha * other``."""
    return ops.add(*numbers(self, other if alpha == 1 else ops.multiply(other, alpha)))


@operator("aten.sub.Tensor", "aten.sub.Scalar")
def sub(self: Any, other: Any, alpha: Any = 1) -> Any:
    """Return ``self - alpha * other``."""
    return ops.subtract(*numbers(self, other if alpha == 1 else ops.multiply(other, alpha)))


@operator("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(self: Any, other: Any, alpha: Any = 1) -> Any:
    """Return ``other - alpha * self``."""
    return sub(other, self, alpha)


@operator("aten.pow.Tensor_Scalar")
def power(self: Any, exponent: float) -> Any:
    """Return a power; the square by one product."""
    return ops.square(self) if exponent == 2 else ops.power(self, exponent)


@operator("aten.div.Tensor_mode")
def div(self: Any, other: Any, rounding_mode: Literal["floor", "trunc", None] = None) -> Any:
    """Return the quotient, rounded to a whole number if there is a mode."""
    if rounding_mode == "floor":
        return ops.floor_divide(*numbers(self, other))
    quotient = ops.divide(*numbers(self, other))
    return quotient if rounding_mode is None else cast(_truncated(quotient), _type_of(self))


@operator("aten.fmod.Scalar", "aten.fmod.Tensor")
def fmod(self: Any, other: Any) -> Any:
    """Return the remainder that has the sign of `self`."""
    x, y = numbers(self, other)
    return ops.multiply(ops.sign(x), ops.mod(ops.abs(x), abs(y) if isinstance(y, int | float) else ops.abs(y)))


@operator("aten.trunc.default")
def trunc(self: Any) -> Any:
    """Return whole numbers, rounded towards zero."""
    return _truncated(self) if is_float(self.dtype) else self


def _truncated(x: Any) -> Any:
    return ops.where(ops.less(x, 0), ops.ceil(x), ops.floor(x))


def _type_of(x: Any) -> str | None:
    return str(x.dtype.name) if isinstance(x, np.ndarray) else None


@operator("aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar")
def bitwise_and(self: Any, other: Any) -> Any:
    """Return whether both are true, of booleans; the bits that both have, of integers."""
    return self & other


@operator("aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar")
def bitwise_or(self: Any, other: Any) -> Any:
    """Return whether one is true, of booleans; the bits that one has, of integers."""
    return self | other


@operator("aten.bitwise_not.default")
def bitwise_not(self: Any) -> Any:
    """Return whether it is false, of booleans; the bits that are not set, of integers."""
    return ~self


@operator("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(condition: Any, self: Any, other: Any) -> Any:
    """Return the elements of `self` where the condition is true, those of `other` elsewhere."""
    x, y = (x.item() if type(x) is np.ndarray and x.ndim == 0 else x for x in (self, other))
    if not isinstance(x, np.ndarray) and not isinstance(y, np.ndarray):
        is_whole = isinstance(x, int) and isinstance(y, int)
        x = np.asarray(x, np.int64 if is_whole else F32)
    return ops.where(condition, x, y)


@operator("aten.clamp.default", "aten.clamp.Tensor", "aten.clamp_min.default")
def clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    """Return the elements, at least `min` and at most `max`."""
    x = self if min is None else ops.maximum(*numbers(self, min))
    return x if max is None else ops.minimum(*numbers(x, max))


@operator("aten.clamp_max.default")
def clamp_max(self: Any, max: Any) -> Any:
    """Return the elements, at most `max`."""
    return clamp(self, None, max)


@operator("aten.hardtanh.default")
def hardtanh(self: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """Return the elements, at least `min_val` and at most `max_val`."""
    return clamp(self, min_val, max_val)


@operator("aten.gelu.default")
def gelu(self: Any, approximate: Literal["none", "tanh"] = "none") -> Any:
    """Return ``x * Phi(x)``."""
    return ops.gelu(self, approximate == "tanh")


@operator("aten.hardsigmoid.default")
def hardsigmoid(self: Any) -> Any:
    """Return ``relu6(x + 3) / 6``."""
    return ops.divide(ops.relu6(ops.add(self, 3.0)), 6.0)


@operator("aten.hardswish.default")
def hardswish(self: Any) -> Any:
    """Return ``x * relu6(x + 3) / 6``."""
    return ops.multiply(self, hardsigmoid(self))


@operator("aten.leaky_relu.default")
def leaky_relu(self: Any, negative_slope: float = 0.01) -> Any:
    """Return `x` where it is positive, else ``negative_slope * x``."""
    return ops.where(ops.greater(self, 0.0), self, ops.multiply(self, negative_slope))


@operator("aten.elu.default")
def elu(self: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Return ``scale * x`` where it is positive, else ``scale * alpha * (exp(input_scale * x) - 1)``."""
    below = ops.multiply(ops.expm1(ops.multiply(ops.minimum(self, 0.0), input_scale)), alpha * scale)
    return ops.where(ops.greater(self, 0.0), ops.multiply(self, scale), below)


@operator("aten.softplus.default")
def softplus(self: Any, beta: Literal[1] = 1, threshold: float = 20) -> Any:
    """Return ``log(1 + exp(x))``."""
    return ops.softplus(self)


@operator("aten._to_copy.default")
def to_copy(self: Any, dtype: str | None = None) -> Any:
    """Return an array in another type."""
    return cast(self, dtype)


@operator("aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default")
def same(self: Any) -> Any:
    """Return the array: arrays of programs are never written to."""
    return self


def _math(name: str) -> Callable[..., Any]:
    function = getattr(math, name)
    return lambda x: function(x)


for _name in ("floor", "ceil", "trunc", "sqrt"):
    operator(f"aten.python.{_name}")(_math(_name))
