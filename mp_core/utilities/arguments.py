"""Check and convert arguments of public functions: numbers, axes and paths."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from operator import index
from os import fspath
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "Rule",
    "axes_of",
    "axis_of",
    "axis_or_axes",
    "boolean",
    "finite",
    "float_of",
    "integer",
    "is_number",
    "kind_of",
    "number",
    "path_of",
    "positive",
    "positive_integer",
    "share",
    "state_of",
    "whole",
]

Rule = tuple[Callable[[Any], bool], str]
"""A function that returns whether a value is allowed, and a description of allowed values for errors."""

_SCALARS = (Real, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def is_number(value: Any) -> bool:
    """Return whether `value` is a real number of Python, NumPy or ml_dtypes; arrays are not."""
    return isinstance(value, _SCALARS)


def kind_of(x: Any) -> Any:
    """Return the dtype of an ndarray, or the name of the type of anything else, for the "received ..." of an error."""
    return x.dtype if isinstance(x, np.ndarray) else type(x).__name__


def number(value: Any, argument: str, least: float = -math.inf) -> float:
    """Return `value` as a float; raise ValueError unless it is a number of at least `least`."""
    if type(value) is float and value >= least:  # fast path
        return value
    found = float_of(value)
    if not found >= least:
        bound = f" of at least {least:g}" if least > -math.inf else ""
        raise ValueError(f"`{argument}` must be a number{bound}; received {argument}={value!r}")
    return found


def finite(value: Any, argument: str) -> float:
    """Return `value` as a float; raise ValueError unless it is a finite number of at least 0."""
    found = number(value, argument, 0)
    if math.isinf(found):
        raise ValueError(f"`{argument}` must be finite; received {argument}={value!r}")
    return found


def positive(value: Any, argument: str) -> float:
    """Return `value` as a float; raise ValueError unless it is a finite number above 0."""
    found = float_of(value)
    if not 0 < found < math.inf:
        raise ValueError(f"`{argument}` must be a finite number above 0; received {argument}={value!r}")
    return found


def share(value: Any, argument: str) -> float:
    """Return `value` as a float; raise ValueError unless it is a number from 0 to 1."""
    found = float_of(value)
    if not 0 <= found <= 1:
        raise ValueError(f"`{argument}` must be a number from 0 to 1; received {argument}={value!r}")
    return found


def float_of(value: Any) -> float:
    """Return a number as a float; NaN if it is not a number or exceeds float64."""
    try:
        return float(value) if is_number(value) else math.nan
    except OverflowError:
        return math.nan


def positive_integer(value: Any, argument: str) -> int:
    """Return `value` as a Python integer; raise ValueError unless it is an integer from 1 to ``sys.maxsize``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 < int(value) <= sys.maxsize:
        raise ValueError(f"`{argument}` must be a positive integer; received {argument}={value!r}")
    return int(value)


def integer(value: Any, argument: str) -> int:
    """Return `value` as a Python integer; raise TypeError unless it is one."""
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"`{argument}` must be an integer; received {argument}={value!r}") from None


def boolean(value: Any, argument: str) -> bool:
    """Return `value` as a Python bool; raise TypeError unless it is a bool of Python or NumPy."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{argument}` must be True or False; received {argument}={value!r}")
    return bool(value)


def whole(value: Any) -> Any:
    """Convert a float without a fraction to an integer, as tf.keras does; return everything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def axis_of(axis: Any, ndim: int) -> int:
    """Return `axis` of an array with `ndim` axes, counted from the front."""
    try:
        found = index(axis)
    except TypeError:
        raise TypeError(f"`axis` must be an integer; received {axis!r}") from None
    if not -ndim <= found < ndim:
        raise ValueError(f"`axis` must lie in [{-ndim}, {ndim}) for an array with {ndim} axes; received {axis}")
    return found % ndim


def axes_of(axis: Any, allowed: str = "an int or a sequence of int") -> tuple[int, ...]:
    """Return an axis, or several, as a tuple of Python integers; `allowed` is for the error. Reject bools."""
    try:
        axes = tuple(axis) if isinstance(axis, Iterable) else (axis,)
        if not any(isinstance(each, bool) for each in axes):
            return tuple(map(index, axes))
    except TypeError:
        pass
    raise TypeError(f"`axis` must be {allowed}; received {axis!r}")


def axis_or_axes(axis: Any) -> int | list[int]:
    """Return a layer's argument ``axis`` as a Python integer or a list of them."""
    try:
        return [index(i) for i in axis] if isinstance(axis, Sequence) else index(axis)
    except TypeError:
        raise TypeError(
            f"Expected an int or a list/tuple of ints for the argument 'axis', but received instead: {axis!r}"
        ) from None


def state_of(state: Any, kinds: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the pickled state of `owner`; raise unless it has an entry of the right type for each of `kinds`."""
    if not isinstance(state, dict):
        raise TypeError(f"The state of {owner} must be a dictionary; received {type(state).__name__}")
    for name, kind in kinds.items():
        if name not in state:
            raise ValueError(f"The state of {owner} is damaged: it has no `{name}`")
        if not isinstance(state[name], kind):
            wanted = getattr(kind, "__name__", str(kind))
            raise TypeError(f"The state of {owner} is damaged: `{name}` must be {wanted}; it is {state[name]!r}")
    return state


def path_of(value: Any, argument: str) -> Path:
    """Return a path given as a str or an object with ``__fspath__``; raise TypeError for bytes, ValueError for ""."""
    try:
        text = fspath(value)
        path = Path(text)
    except TypeError:
        raise TypeError(f"`{argument}` must be a path, a str or an os.PathLike of str; received {value!r}") from None
    if not text:  # pathlib would read it as the working directory
        raise ValueError(f"`{argument}` must not be empty; the working directory is '.'")
    return path
