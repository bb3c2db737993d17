"""Numbers, axes and paths among the arguments of public functions: what they must be, said where they are not."""

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
"""A function that says whether a value is allowed, and what is, as a part of a sentence."""

_SCALARS = (Real, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def is_number(value: Any) -> bool:
    """Whether `value` is a real number of Python's, NumPy's or ml_dtypes', which no array is."""
    return isinstance(value, _SCALARS)


def kind_of(x: Any) -> Any:
    """Return the dtype of an ndarray, and of everything else the name of its type: what an error says was received."""
    return x.dtype if isinstance(x, np.ndarray) else type(x).__name__


def number(value: Any, argument: str, least: float = -math.inf) -> float:
    """Return `value` as a float; raise ValueError unless it is a number of at least `least`."""
    if type(value) is float and value >= least:  # in the time of a small operation
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
    """Return a number as a float, NaN for everything else and beyond float64."""
    try:
        return float(value) if is_number(value) else math.nan
    except OverflowError:
        return math.nan


def positive_integer(value: Any, argument: str) -> int:
    """Return a size as a Python integer that NumPy can count to; NumPy's integers are fine, booleans are not."""
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
    """Return a switch as a Python bool; raise TypeError for what is only true or false in a condition."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{argument}` must be True or False; received {argument}={value!r}")
    return bool(value)


def whole(value: Any) -> Any:
    """Return a float without a fraction as an integer, as tf.keras does, and everything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def axis_of(axis: Any, ndim: int) -> int:
    """Return which axis `axis` names, counted from the front, of an array with `ndim`."""
    try:
        found = index(axis)
    except TypeError:
        raise TypeError(f"`axis` must be an integer; received {axis!r}") from None
    if not -ndim <= found < ndim:
        raise ValueError(f"`axis` must lie in [{-ndim}, {ndim}) for an array with {ndim} axes; received {axis}")
    return found % ndim


def axes_of(axis: Any, allowed: str = "an int or a sequence of int") -> tuple[int, ...]:
    """Return an axis, or several, as Python integers; `allowed` is what the error says. True is no axis."""
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
    """Return what a pickle holds of `owner`; raise unless it has all of `kinds`, each of its type.

    Raises
    ------
    TypeError
        `state` is no dictionary, or an entry has another type.
    ValueError
        An entry is missing.
    """
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
    if not text:  # pathlib takes it for the working directory
        raise ValueError(f"`{argument}` must not be empty; the working directory is '.'")
    return path
