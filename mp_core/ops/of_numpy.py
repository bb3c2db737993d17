"""The tables of NumPy functions and array methods that operations replace while a plan is recorded.

An argument of NumPy's function that the operation lacks raises an error. Within a plan the bits are those of the
operation, outside of plans those of NumPy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays import Array, cast
from mp_core.arrays.dtypes import parse
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.recorded_array import EQUIVALENT_FUNCTIONS, EQUIVALENT_METHODS, Equivalent
from mp_core.ops import (
    activations,
    arrangement,
    choosing,
    composed,
    creation,
    elementary,
    functions,
    logic,
    padding,
    quotients,
    sums,
)
from mp_core.ops.contraction import einsum

__all__: list[str] = []

Operations = dict[Any, Callable[..., Any]]


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Array:
    if a.dtype.name == "bfloat16":
        raise TypeError("numpy.clip gives float32 for bfloat16 with some bounds: use mp_core.ops.clip")
    low, high = (min if a_min is None else a_min), (max if a_max is None else a_max)
    return functions.clip(a, -np.inf if low is None else low, np.inf if high is None else high)


def _astype(x: Array, dtype: DTypeLike, copy: bool = True) -> Array:
    return x if parse(dtype) == x.dtype else cast(x, dtype)


def _copy(x: Array) -> Array:
    return x  # recorded arrays are never written to


def _flatten(x: Array) -> Array:
    return x.reshape(-1)


def _hstack(tup: Sequence[Any]) -> Array:
    arrays = [np.atleast_1d(x) for x in tup]
    return arrangement.concatenate(arrays, 0 if arrays[0].ndim == 1 else 1)


def _vstack(tup: Sequence[Any]) -> Array:
    return arrangement.concatenate([np.atleast_2d(x) for x in tup], 0)


def _power(x: Any, exponent: Any) -> Array:
    if any(type(each) is float for each in (x, exponent)):  # with a Python float, NumPy computes bfloat16 in float32
        x, exponent = (
            each if isinstance(each, int | float) or each.dtype.name != "bfloat16" else cast(each, "float32")
            for each in (x, exponent)
        )
    return functions.power(x, exponent)


def _matmul(a: Any, b: Any) -> Array:
    types = {x.dtype.name for x in (a, b)}
    return matmul(a, b, out_dtype="float32") if types == {"bfloat16"} else matmul(a, b)  # NumPy has no bfloat16 there


def _norm(x: Array, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    if x.dtype.name == "bfloat16":
        raise TypeError("numpy.linalg.norm gives float64 for bfloat16: use mp_core.ops.norm")
    return composed.norm(x, ord, axis, keepdims)


def _pad(array: Array, pad_width: Any, mode: str = "constant", *, constant_values: float | None = None) -> Array:
    pad_width = [pad_width] if np.ndim(pad_width) == 1 else pad_width
    return padding.pad(array, pad_width, constant_values, mode)


def _positive(x: Array) -> Array:
    return x


_UFUNCS: Operations = {
    np.exp: functions.exp, np.log: functions.log,
    np.log1p: functions.log1p, np.tanh: activations.tanh, np.power: functions.power, np.matmul: matmul,
    np.floor_divide: quotients.floor_divide, np.remainder: quotients.mod, np.sign: composed.sign,
    np.floor: composed.floor, np.ceil: composed.ceil, np.rint: composed.round, np.trunc: composed.trunc,
    np.reciprocal: composed.reciprocal,
    np.isnan: logic.isnan, np.isinf: logic.isinf, np.isfinite: logic.isfinite, np.fabs: functions.absolute,
    np.positive: _positive,
    **{getattr(np, name): getattr(elementary, name) for name in (
        "expm1", "exp2", "log2", "log10", "sinh", "cosh", "sin", "cos", "tan", "arctan",
        "arcsin", "arccos", "arcsinh", "arccosh", "arctanh")},
}  # fmt: skip
_LOGIC: Operations = {
    np.logical_and: logic.logical_and, np.logical_or: logic.logical_or, np.logical_xor: logic.logical_xor,
    np.logical_not: logic.logical_not,
}  # fmt: skip
_BITS: Operations = {
    np.bitwise_and: logic.logical_and, np.bitwise_or: logic.logical_or, np.bitwise_xor: logic.logical_xor,
    np.invert: logic.logical_not,
}  # fmt: skip
"""For booleans only, since NumPy refuses floats."""
_FUNCTIONS: Operations = {
    np.sum: sums.sum, np.mean: sums.mean, np.max: functions.max, np.amax: functions.max, np.min: functions.min,
    np.amin: functions.min, np.var: composed.var, np.std: composed.std, np.clip: _clip, np.dot: composed.dot,
    np.stack: arrangement.stack, np.hstack: _hstack, np.vstack: _vstack,
    np.einsum: einsum, np.pad: _pad, np.linalg.norm: _norm, np.cumsum: composed.cumsum,
    np.repeat: choosing.repeat, np.tile: choosing.tile, np.roll: choosing.roll, np.take: choosing.take,
    np.round: composed.round, np.argmax: functions.argmax, np.argmin: functions.argmin, np.sort: choosing.sort,
    np.argsort: choosing.argsort, np.tril: composed.tril, np.triu: composed.triu,
}  # fmt: skip
_TRUTHS: Operations = {np.all: logic.all, np.any: logic.any}
_METHODS: Operations = {
    "sum": sums.sum, "mean": sums.mean, "max": functions.max, "min": functions.min, "var": composed.var,
    "std": composed.std, "clip": _clip, "dot": composed.dot, "cumsum": composed.cumsum, "repeat": choosing.repeat,
    "take": choosing.take, "round": composed.round, "argmax": functions.argmax, "argmin": functions.argmin,
    "argsort": choosing.argsort,
}  # fmt: skip
_OF_ALL_TYPES: Operations = {"astype": _astype, "copy": _copy, "flatten": _flatten, "ravel": _flatten}

EQUIVALENT_FUNCTIONS.update({f: Equivalent(f"numpy.{f.__name__}", own, is_ufunc=True) for f, own in _UFUNCS.items()})
EQUIVALENT_FUNCTIONS.update({f: Equivalent(f"numpy.{f.__name__}", own, takes_all=True) for f, own in _LOGIC.items()})
EQUIVALENT_FUNCTIONS.update({f: Equivalent(f"numpy.{f.__name__}", own) for f, own in _FUNCTIONS.items()})
EQUIVALENT_FUNCTIONS.update(
    {f: Equivalent(f"numpy.{f.__name__}", own, takes_bools=True) for f, own in (_BITS | _TRUTHS).items()}
)
EQUIVALENT_FUNCTIONS[np.concatenate] = Equivalent("numpy.concatenate", arrangement.concatenate, takes_bools=True)
EQUIVALENT_METHODS.update({name: Equivalent(f"ndarray.{name}", own) for name, own in _METHODS.items()})
EQUIVALENT_METHODS.update(
    {name: Equivalent(f"ndarray.{name}", own, takes_all=True) for name, own in _OF_ALL_TYPES.items()}
)
EQUIVALENT_METHODS.update(
    {f.__name__: Equivalent(f"ndarray.{f.__name__}", own, takes_bools=True) for f, own in _TRUTHS.items()}
)
EQUIVALENT_FUNCTIONS[np.power] = Equivalent("numpy.power", functions.power, is_ufunc=True, of_arrays=_power)
EQUIVALENT_FUNCTIONS[np.matmul] = Equivalent("numpy.matmul", matmul, is_ufunc=True, of_arrays=_matmul)
EQUIVALENT_FUNCTIONS[np.copy] = EQUIVALENT_METHODS["copy"]
EQUIVALENT_FUNCTIONS[np.full_like] = Equivalent("numpy.full_like", creation.full_like, takes_all=True)
