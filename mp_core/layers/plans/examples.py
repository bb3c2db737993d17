"""What a plan is called with: arrays that are like its examples."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mp_core.arrays import Array, asarray, cast, imported
from mp_core.arrays.dtypes import is_float
from mp_core.utilities.tree import leaves

__all__ = ["as_example", "has_array", "like", "pairs"]


def as_example(x: Any) -> Any:
    """Return an example as a contiguous array that nobody else has; what is no array as it is."""
    if not isinstance(x, np.ndarray) and (x is None or isinstance(x, bool | int | float | str) or callable(x)):
        return x
    array = imported(x, "inputs")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
        return _int32(array)
    return np.array(asarray(array, "inputs"), order="C")


def has_array(tree: Any) -> bool:
    """Whether there is an array in a tree of arguments."""
    return any(isinstance(x, np.ndarray) for x in leaves(tree))


def pairs(example: Any, given: Any) -> Iterator[tuple[Array, Any]]:
    """Yield each array of a tree of examples with what is given in its place; raise TypeError for another tree."""
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


def _int32(x: Array) -> Array:
    if x.size and not -(2**31) <= int(x.min()) <= int(x.max()) < 2**31:
        raise ValueError(f"integers of a plan must fit int32; received {x.min()} to {x.max()}")
    return np.array(x, np.int32, order="C")


def like(x: Any, example: Array, index: int) -> Array:
    """Return an array as the steps read it, which were recorded for an example like it."""
    if type(x) is np.ndarray and x.shape == example.shape and x.dtype is example.dtype and _lies_ready(x):
        return x
    array = x if type(x) is np.ndarray else imported(x, f"inputs[{index}]")
    if array.shape != example.shape:
        raise ValueError(f"array {index} of the plan must have shape {example.shape}; received {array.shape}")
    if array.dtype is not example.dtype:
        if example.dtype == np.int32 and array.dtype.kind in "iu":
            return _int32(array)
        if not (is_float(example.dtype) and is_float(asarray(array).dtype)):
            raise TypeError(f"array {index} of the plan must be of {example.dtype}; received {array.dtype}")
        array = cast(array, example.dtype)
    return array if _lies_ready(array) else np.require(array, requirements=("C", "A"))


def _lies_ready(x: Array) -> bool:
    flags = x.flags
    return bool(flags.c_contiguous and flags.aligned)
