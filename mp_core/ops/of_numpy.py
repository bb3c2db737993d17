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
    indexing,
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


def _alike(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays in the common type that NumPy gives them."""
    given = [x if hasattr(x, "dtype") else np.asarray(x) for x in arrays]
    kind = np.concatenate([np.empty(0, x.dtype) for x in given]).dtype
    return [x if x.dtype == kind else cast(x, kind) for x in given]


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Array:
    return arrangement.concatenate(_alike(arrays), axis)


def _stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    return arrangement.stack(_alike(arrays), axis)


def _hstack(tup: Sequence[Any]) -> Array:
    arrays = _alike([np.atleast_1d(x) for x in tup])
    return arrangement.concatenate(arrays, 0 if arrays[0].ndim == 1 else 1)


def _vstack(tup: Sequence[Any]) -> Array:
    return arrangement.concatenate(_alike([np.atleast_2d(x) for x in tup]), 0)


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


def _cumsum(a: Array, axis: int | None = None, dtype: DTypeLike | None = None) -> Array:
    wider = {"i": "int64", "u": "uint64"}.get(a.dtype.kind)  # NumPy adds integers in 64 bits
    return composed.cumsum(a, axis, wider if dtype is None else dtype)


def _prod(a: Array, axis: Any = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Array:
    return composed.prod(a, axis, keepdims, dtype)


def _argmax(a: Array, axis: int | None = None, *, keepdims: bool = False) -> Array:
    return cast(functions.argmax(a, axis, keepdims), "int64")


def _argmin(a: Array, axis: int | None = None, *, keepdims: bool = False) -> Array:
    return cast(functions.argmin(a, axis, keepdims), "int64")


def _argsort(a: Array, axis: int = -1) -> Array:
    return cast(choosing.argsort(a, axis), "int64")


_UFUNCS: Operations = {
    np.exp: functions.exp, np.log: functions.log,
    np.log1p: functions.log1p, np.tanh: activations.tanh, np.power: functions.power, np.matmul: matmul,
    np.floor: composed.floor, np.ceil: composed.ceil, np.rint: composed.round, np.trunc: composed.trunc,
    np.reciprocal: composed.reciprocal,
    np.isnan: logic.isnan, np.isinf: logic.isinf, np.isfinite: logic.isfinite, np.fabs: functions.absolute,
    np.positive: _positive,
    **{getattr(np, name): getattr(elementary, name) for name in (
        "expm1", "exp2", "log2", "log10", "sinh", "cosh", "sin", "cos", "tan", "arctan",
        "arcsin", "arccos", "arcsinh", "arccosh", "arctanh")},
}  # fmt: skip
_OF_INTEGERS_TOO: Operations = {
    np.floor_divide: quotients.floor_divide,
    np.remainder: quotients.mod,
    np.sign: composed.sign,
}
_LOGIC: Operations = {
    np.logical_and: logic.logical_and, np.logical_or: logic.logical_or, np.logical_xor: logic.logical_xor,
    np.logical_not: logic.logical_not,
}  # fmt: skip
_FUNCTIONS: Operations = {
    np.mean: sums.mean, np.var: composed.var, np.std: composed.std, np.dot: composed.dot, np.einsum: einsum,
    np.linalg.norm: _norm,
}  # fmt: skip
_KEEPING_INTEGERS: Operations = {
    np.sum: sums.sum, np.max: functions.max, np.amax: functions.max, np.min: functions.min, np.amin: functions.min,
    np.clip: _clip, np.cumsum: _cumsum, np.round: composed.round, np.argmax: _argmax, np.argmin: _argmin,
    np.sort: choosing.sort, np.argsort: _argsort, np.prod: _prod,
}  # fmt: skip
_JOINING: Operations = {np.stack: _stack, np.hstack: _hstack, np.vstack: _vstack, np.concatenate: _concatenate}
_ARRANGING: Operations = {
    np.pad: _pad, np.repeat: choosing.repeat, np.tile: choosing.tile, np.roll: choosing.roll, np.take: indexing.take,
    np.take_along_axis: indexing.take_along_axis,
    np.tril: composed.tril, np.triu: composed.triu, np.all: logic.all, np.any: logic.any,
    np.full_like: creation.full_like,
}  # fmt: skip
_METHODS: Operations = {"mean": sums.mean, "var": composed.var, "std": composed.std, "dot": composed.dot}
_METHODS_KEEPING_INTEGERS: Operations = {
    "sum": sums.sum, "max": functions.max, "min": functions.min, "clip": _clip, "cumsum": _cumsum,
    "round": composed.round, "argmax": _argmax, "argmin": _argmin, "argsort": _argsort,
    "prod": _prod,
}  # fmt: skip
_METHODS_ARRANGING: Operations = {
    "astype": _astype, "copy": _copy, "flatten": _flatten, "ravel": _flatten, "repeat": choosing.repeat,
    "take": indexing.take, "all": logic.all, "any": logic.any,
}  # fmt: skip

for _table, _others in ((_UFUNCS, ""), (_OF_INTEGERS_TOO, "iu"), (_LOGIC, "biu")):
    EQUIVALENT_FUNCTIONS.update(
        {f: Equivalent(f"numpy.{f.__name__}", own, is_ufunc=True, others=_others) for f, own in _table.items()}
    )
for _table, _others in ((_FUNCTIONS, ""), (_KEEPING_INTEGERS, "iu"), (_JOINING, "biuVf"), (_ARRANGING, "biuV")):
    EQUIVALENT_FUNCTIONS.update(
        {f: Equivalent(f"numpy.{f.__name__}", own, others=_others) for f, own in _table.items()}
    )
for _methods, _others in ((_METHODS, ""), (_METHODS_KEEPING_INTEGERS, "iu"), (_METHODS_ARRANGING, "biuV")):
    EQUIVALENT_METHODS.update(
        {name: Equivalent(f"ndarray.{name}", own, others=_others) for name, own in _methods.items()}
    )
EQUIVALENT_FUNCTIONS[np.power] = Equivalent("numpy.power", functions.power, is_ufunc=True, of_arrays=_power)
EQUIVALENT_FUNCTIONS[np.matmul] = Equivalent("numpy.matmul", matmul, is_ufunc=True, of_arrays=_matmul)
EQUIVALENT_FUNCTIONS[np.copy] = EQUIVALENT_METHODS["copy"]
