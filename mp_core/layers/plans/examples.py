"""The arguments of plans: examples for recording, and arrays of calls that match them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mp_core.arrays import Array, asarray, cast, imported
from mp_core.arrays.dtypes import is_float, is_integer
from mp_core.utilities.tree import leaves

__all__ = ["as_example", "has_array", "matching", "pairs"]


def as_example(x: Any) -> Any:
    """Return an example as a contiguous copy; None, numbers, strings and functions as they are."""
    if not isinstance(x, np.ndarray) and (x is None or isinstance(x, bool | int | float | str) or callable(x)):
        return x
    return np.array(asarray(imported(x, "inputs"), "inputs"), order="C")


def has_array(tree: Any) -> bool:
    """Return whether a tree of arguments contains an array."""
    return any(isinstance(x, np.ndarray) for x in leaves(tree))


def pairs(example: Any, given: Any) -> Iterator[tuple[Array, Any]]:
    """Yield (example array, given argument) for a tree of examples; raise TypeError if the given tree differs."""
    if isinstance(example, dict):
        if not isinstance(given, dict) or example.keys() != given.keys():
            names = ", ".join(map(str, given)) if isinstance(given, dict) else repr(given)
            raise TypeError(f"the plan was made for arguments named {', '.join(map(str, example))}; received {names}")
        for key, part in example.items():
            yield from pairs(part, given[key])
    elif isinstance(example, tuple | list):
        if not isinstance(given, tuple | list) or len(example) != len(given):
            found = len(given) if isinstance(given, tuple | list) else repr(given)
            raise TypeError(f"the plan takes {len(example)} arguments; received {found}")
        for part, other in zip(example, given, strict=True):
            yield from pairs(part, other)
    elif isinstance(example, np.ndarray):
        yield example, given
    elif given is not example and given != example:
        raise TypeError(f"the plan was made for the argument {example!r}; received {given!r}")


def _integers(x: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    if x.size and not limits.min <= int(x.min()) <= int(x.max()) <= limits.max:
        raise ValueError(f"integers of this plan must fit {dtype}; received {x.min()} to {x.max()}")
    return np.array(x, dtype, order="C")


def matching(x: Any, example: Array, index: int) -> Array:
    """Return `x` in the dtype and layout of its example; raise if the shape differs. `index` numbers it in errors."""
    if type(x) is np.ndarray and x.shape == example.shape and x.dtype is example.dtype and _is_ready(x):
        return x
    array = x if type(x) is np.ndarray else imported(x, f"inputs[{index}]")
    if array.shape != example.shape:
        raise ValueError(f"array {index} of the plan must have shape {example.shape}; received {array.shape}")
    if array.dtype is not example.dtype:
        if is_integer(example.dtype) and array.dtype.kind in "iu":
            return _integers(array, example.dtype)
        if not (is_float(example.dtype) and is_float(asarray(array).dtype)):
            raise TypeError(f"array {index} of the plan must be of {example.dtype}; received {array.dtype}")
        array = cast(array, example.dtype)
    return array if _is_ready(array) else np.require(array, requirements=("C", "A"))


def _is_ready(x: Array) -> bool:
    flags = x.flags
    return bool(flags.c_contiguous and flags.aligned)
