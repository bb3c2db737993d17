"""Rows of operations of integers, of orders, and of elements at indices: NumPy's results are the formula."""

import numpy as np

from fuzz.arrays import shape, values
from fuzz.check import WIDE, Case, wide
from mp_core import ops

__all__ = ["INTEGERS"]

TYPES = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


def whole(rng, lengths, dtype):
    """Return integers of all sizes; many are small."""
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, lengths, dtype, endpoint=True)
    return np.where(rng.random(lengths) < 0.5, x % 7, x).astype(dtype)


def pair(function, formula):
    """Two operands of one type that broadcast against each other."""

    def draw(rng):
        dtype, lengths = str(rng.choice(TYPES)), shape(rng, int(rng.integers(1, 4)))
        x, y = whole(rng, lengths, dtype), whole(rng, lengths[-1:], dtype)
        return Case(function, (x, y), {}, formula(x, y))

    return draw


def along(function, formula):
    """An operation along an axis of integers or floats, with an order of elements."""

    def draw(rng):
        lengths = shape(rng, int(rng.integers(1, 4)), 3_000)
        dtype = str(rng.choice(TYPES + WIDE))
        x = values(rng, lengths, dtype, special=0.3) if dtype in WIDE else whole(rng, lengths, dtype)
        axis = int(rng.integers(len(lengths)))
        exact = formula(wide(x) if dtype in WIDE else x, axis)
        return Case(function, (x,), {"axis": axis}, exact)

    return draw


def product(rng):
    dtype, lengths = str(rng.choice(TYPES)), shape(rng, int(rng.integers(1, 3)))
    x, axis = whole(rng, lengths, dtype), int(rng.integers(len(lengths)))
    kind = np.uint64 if dtype.startswith("u") else np.int64
    return Case(ops.prod, (x,), {"axis": axis}, np.prod(x, axis, kind))


def cumsum(rng):
    dtype, lengths = str(rng.choice(TYPES)), shape(rng, int(rng.integers(1, 3)))
    x, axis = whole(rng, lengths, dtype), int(rng.integers(len(lengths)))
    return Case(ops.cumsum, (x,), {"axis": axis}, np.cumsum(x, axis, x.dtype))


def indexed(rng):
    """An array, indices along an axis of it (which may depend on an input) and that axis."""
    lengths = shape(rng, int(rng.integers(1, 4)), 3_000, empty=0)
    axis, dtype = int(rng.integers(len(lengths))), str(rng.choice(TYPES + WIDE))
    x = values(rng, lengths, dtype) if dtype in WIDE else whole(rng, lengths, dtype)
    count = int(rng.integers(1, 40))
    ids = rng.integers(-lengths[axis], lengths[axis], (*lengths[:axis], count, *lengths[axis + 1 :]))
    return x, ids.astype(rng.choice(["int32", "int64"])), axis


def taken_along(rng):
    x, ids, axis = indexed(rng)
    exact = np.take_along_axis(x, ids, axis)
    return Case(ops.take_along_axis, (x, ids), {"axis": axis}, exact if x.dtype.kind in "iu" else wide(exact))


def taken(rng):
    x, ids, axis = indexed(rng)
    ids = np.moveaxis(ids, axis, 0).reshape(ids.shape[axis], -1)[:, 0]
    exact = np.take(x, ids, axis)
    return Case(ops.take, (x, ids), {"axis": axis}, exact if x.dtype.kind in "iu" else wide(exact))


def put_along(rng):
    x, ids, axis = indexed(rng)
    updates = np.take_along_axis(x, ids, axis)[..., ::-1]
    reduction = [None, "add", "mul", "max", "min"][rng.integers(5)]
    return Case(ops.put_along_axis, (x, ids, updates), {"axis": axis, "reduction": reduction}, None)


INTEGERS = {
    **{name: pair(getattr(ops, name), getattr(np, name)) for name in (
        "floor_divide", "mod", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")},
    "sort": along(ops.sort, lambda x, axis: np.sort(x, axis, stable=True)),
    "argsort": along(ops.argsort, lambda x, axis: np.argsort(x, axis, stable=True)),
    "prod": product, "cumsum": cumsum, "take_along_axis": taken_along, "take": taken, "put_along_axis": put_along,
}  # fmt: skip
