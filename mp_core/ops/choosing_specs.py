"""Shape rules, as in :mod:`mp_core.ops.specs`, of more operations with Keras' names.

They belong to the operations of :mod:`mp_core.ops.choosing` and :mod:`mp_core.ops.creation`, and to some of
:mod:`mp_core.ops.composed` and :mod:`mp_core.ops.logic`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays.dtypes import ALLOWED, floatx, is_float, name_of, parse
from mp_core.ops.specs import (
    Operand,
    Spec,
    broadcast,
    floating,
    kept,
    matrix_product,
    merged,
    product_type,
    reduced_float,
)
from mp_core.utilities.arguments import axis_of, boolean, integer, positive_integer

__all__ = [
    "accumulated", "alike", "check_integers", "classes", "cornered", "counts_of", "dotted", "judged", "largest",
    "normed", "order", "repeated", "rolled", "scattered", "slice_updated", "sliced", "sorted_along", "taken",
    "taken_along", "tiled", "updated",
]  # fmt: skip

_INT32 = ALLOWED["int32"]


def alike(x: Operand, fill_value: Operand, dtype: Any = None) -> Spec:
    """Return the shape of `x`, in its dtype or in `dtype`."""
    return Spec(kept(x).shape, kept(x).dtype if dtype is None else parse(dtype))


def classes(x: Operand, num_classes: int, axis: int = -1, dtype: Any = None) -> Spec:
    """Return the shape of `x` with an additional axis of `num_classes`."""
    shape = kept(x).shape
    check_integers(kept(x).dtype)
    place = axis_of(axis, len(shape) + 1)
    wanted = parse(floatx() if dtype is None else dtype)
    return Spec((*shape[:place], positive_integer(num_classes, "num_classes"), *shape[place:]), wanted)


def check_integers(dtype: np.dtype[Any]) -> None:
    """Raise TypeError unless `dtype` is an integer type."""
    if is_float(dtype) or dtype == np.bool_:
        raise TypeError(f"`x` must have integers; received {name_of(dtype)}")


def sorted_along(x: Operand, axis: int = -1) -> Spec:
    """Check `axis`; return the shape and dtype of `x`."""
    axis_of(axis, len(kept(x).shape))
    return kept(x)


def order(x: Operand, axis: int = -1) -> Spec:
    """Return the shape of `x`, in int32."""
    return Spec(sorted_along(x, axis).shape, _INT32)


def largest(x: Operand, k: int, sorted: bool = True) -> list[Spec]:
    """Return the specs of the `k` largest elements of each row, and of their indices."""
    shape = (*kept(x).shape[:-1], positive_integer(k, "k"))
    return [Spec(shape, kept(x).dtype), Spec(shape, _INT32)]


def taken(x: Operand, indices: Operand, axis: int | None = None) -> Spec:
    """Return the shape with `indices`' shape in place of an axis, or of all axes."""
    shape, places = kept(x).shape, kept(indices).shape
    if axis is None:
        return Spec(places, kept(x).dtype)
    place = axis_of(axis, len(shape))
    return Spec((*shape[:place], *places, *shape[place + 1 :]), kept(x).dtype)


def taken_along(x: Operand, indices: Operand, axis: int | None = None) -> Spec:
    """Return the shape of `indices`, broadcast against `x` except along the axis."""
    shape, places = kept(x).shape, kept(indices).shape
    if axis is None:
        return Spec(places if len(places) == 1 else (_count(places),), kept(x).dtype)
    place = axis_of(axis, len(shape))
    merged(len(shape), len(places))
    return Spec(broadcast((*shape[:place], 1, *shape[place + 1 :]), places), kept(x).dtype)


def _count(shape: Sequence[int | None]) -> int | None:
    return None if None in shape else math.prod(n for n in shape if n is not None)


def updated(inputs: Operand, indices: Operand, updates: Operand, reduction: str | None = None) -> Spec:
    """Return the shape and dtype of `inputs`."""
    return kept(inputs)


def scattered(indices: Operand, values: Operand, shape: Sequence[int]) -> Spec:
    """Return `shape`, in the dtype of `values`."""
    return Spec(tuple(shape), kept(values).dtype)


def sliced(inputs: Operand, start_indices: Operand, shape: Sequence[int]) -> Spec:
    """Return `shape`, in the dtype of `inputs`."""
    return Spec(tuple(shape), kept(inputs).dtype)


def slice_updated(inputs: Operand, start_indices: Operand, updates: Operand) -> Spec:
    """Return the shape and dtype of `inputs`."""
    return kept(inputs)


def repeated(x: Operand, repeats: Any, axis: int | None = None) -> Spec:
    """Return the shape with one longer axis."""
    shape, counts = kept(x).shape, np.ravel(repeats)
    if axis is None:
        shape, axis = (None if None in shape else math.prod(n for n in shape if n is not None),), 0
    place = axis_of(axis, len(shape))
    length = shape[place]
    if counts.size > 1:
        length = merged(length, counts.size) and int(counts.sum())
    elif length is not None:
        length *= int(counts[0])
    return Spec((*shape[:place], length, *shape[place + 1 :]), kept(x).dtype)


def counts_of(repeats: int | Sequence[int]) -> tuple[int, ...]:
    """Return the checked counts of repetitions along the last axes."""
    counts = (repeats,) if isinstance(repeats, int | np.integer) else tuple(repeats)
    if any(integer(count, "repeats") < 0 for count in counts):
        raise ValueError(f"`repeats` must be integers from 0 on; received {repeats}")
    return tuple(map(int, counts))


def tiled(x: Operand, repeats: Any) -> Spec:
    """Return the shape with longer axes, new axes first."""
    shape, counts = kept(x).shape, counts_of(repeats)
    ndim = max(len(shape), len(counts))
    pairs = zip((1,) * (ndim - len(shape)) + shape, (1,) * (ndim - len(counts)) + counts, strict=True)
    return Spec(tuple(None if n is None else n * count for n, count in pairs), kept(x).dtype)


def rolled(x: Operand, shift: int, axis: int | None = None) -> Spec:
    """Check `axis`; return the shape and dtype of `x`."""
    return kept(x) if axis is None else sorted_along(x, axis)


def cornered(x: Operand, k: int = 0) -> Spec:
    """Check that `x` has two axes or more; return its shape and dtype."""
    axis_of(-2, len(kept(x).shape))
    return kept(x)


def accumulated(x: Operand, axis: int | None = None, dtype: Any = None) -> Spec:
    """Return the shape of `x`, or one axis of all elements; booleans give int32."""
    found = kept(x)
    kind = _INT32 if found.dtype == np.bool_ else found.dtype
    kind = kind if dtype is None else parse(dtype)
    if axis is not None:
        return Spec(sorted_along(x, axis).shape, kind)
    return Spec((None if None in found.shape else math.prod(n for n in found.shape if n is not None),), kind)


def judged(x: Operand, axis: Any = None, keepdims: bool = False) -> Spec:
    """Return the shape without the reduced axes, of booleans."""
    return Spec(reduced_float(x, axis, keepdims).shape, ALLOWED["bool"])


def normed(x: Operand, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Spec:
    """Return the shape without the reduced axes, in the dtype of `x`; integers give float32."""
    return reduced_float(x, axis, boolean(keepdims, "keepdims"))


def dotted(x1: Operand, x2: Operand) -> Spec:
    """Return the axes of both operands without the contracted ones."""
    one, two = kept(x1).shape, kept(x2).shape
    if not one or not two:
        return Spec(one or two, product_type(floating(x1).dtype, floating(x2).dtype))
    if len(two) <= 2:
        return matrix_product(x1, x2)
    merged(one[-1], two[-2])
    return Spec((*one[:-1], *two[:-2], two[-1]), product_type(kept(x1).dtype, kept(x2).dtype))
