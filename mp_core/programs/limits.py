"""How much memory constants that a program computes may take: a short file can ask for arrays of any size."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from mp_core.files.program import Node
from mp_core.utilities.tree import leaves

__all__ = ["Budget", "allocatable"]

_TIMES, _SPARE = 8, 1 << 28
"""Computed constants may take `_TIMES` times the bytes of those in the file + `_SPARE`: masks, tables of positions."""
_MOST_ELEMENTS = 1 << 31

_most: ContextVar[int] = ContextVar("elements", default=_MOST_ELEMENTS)


def allocatable(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape that a file asks for; raise ValueError if an array of it would have too many elements."""
    most = _most.get()
    if min(shape, default=0) < 0 or math.prod(shape) > most:
        raise ValueError(f"an array would have the shape {tuple(shape)}; expected at most {most} elements")
    return tuple(shape)


class Budget:
    """The memory that is left for computed constants, for a program with these constants."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.most = self.left = _TIMES * sum(x.nbytes for x in constants.values()) + _SPARE

    @contextmanager
    def allowing(self, node: Node, arguments: Sequence[Any]) -> Iterator[None]:
        """Run a block that computes a node; raise ValueError before if its result would not fit."""
        estimate = _ESTIMATES.get(node.operator, _broadcast)
        token = _most.set(min(self.left, _MOST_ELEMENTS))  # an element has a byte at least
        try:
            allocatable((estimate(node, [x for x in arguments if hasattr(x, "shape")]),))
            yield
        finally:
            _most.reset(token)

    def take(self, results: Any, arguments: Sequence[Any]) -> None:
        """Count the memory of results, except of views of arguments; raise ValueError if it is too much."""
        given = [x for x in arguments if isinstance(x, np.ndarray)]
        new = [x for x in leaves(results) if isinstance(x, np.ndarray)]
        self.left -= sum(x.nbytes for x in new if not any(np.may_share_memory(x, other) for other in given))
        if self.left < 0:
            raise ValueError(f"the constants that the program computes take more than {self.most} bytes")


def _shapes(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in x.shape) for x in arrays]


def _broadcast(node: Node, arrays: Sequence[Any]) -> int:
    """Return the number of elements of arrays that are broadcast; if they cannot be, of the largest."""
    shapes = _shapes(arrays)
    try:
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        return max(map(math.prod, shapes))


def _product(node: Node, arrays: Sequence[Any]) -> int:
    """Return the number of elements of a product of matrices, of which either may be transposed, at most."""
    a, b = _shapes(arrays[:2])
    if min(len(a), len(b)) < 2:
        return max(math.prod(a), math.prod(b))
    return math.prod(np.broadcast_shapes(a[:-2], b[:-2])) * max(a[-2:]) * max(b[-2:])


def _summed(node: Node, arrays: Sequence[Any]) -> int:
    """Return the number of elements of an Einsum at most."""
    terms, _, result = str(node.options.get("equation", "")).replace(" ", "").partition("->")
    lengths: dict[str, int] = {}
    others = 1  # of the axes of ellipses, in all arrays
    for term, shape in zip(terms.split(","), _shapes(arrays), strict=False):
        before, dots, after = term.partition("...")
        named = [*zip(before, shape, strict=False), *zip(reversed(after), reversed(shape), strict=False)]
        lengths |= dict(named)
        others *= math.prod(shape[len(before) : len(shape) - len(after)]) if dots else 1
    return math.prod(lengths.get(label, 1) for label in result.replace(".", "")) * others


def _convolved(node: Node, arrays: Sequence[Any]) -> int:
    """Return how many elements a convolution, or the padded array, has at most."""
    x, w = _shapes(arrays[:2])
    pads = _numbers(node, "pads", 2 * len(x[2:]), 0)
    places = (n + sum(pads[axis :: len(x[2:])]) for axis, n in enumerate(x[2:]))
    return x[0] * max(x[1], w[0]) * math.prod(max(n, 0) for n in places)


def _transposed(node: Node, arrays: Sequence[Any]) -> int:
    """Return how many elements a transposed convolution, or the products that it sums, has at most."""
    x, w = _shapes(arrays[:2])
    steps, rates = (_numbers(node, name, len(x[2:]), 1) for name in ("strides", "dilations"))
    lengths = zip(x[2:], steps, rates, w[2:], strict=True)
    places = math.prod((n + 1) * step + rate * size for n, step, rate, size in lengths)
    return x[0] * w[1] * int(node.options.get("group", 1)) * max(places, math.prod(x[2:]) * math.prod(w[2:]))


def _numbers(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    found = node.options.get(name)
    return tuple(found) if isinstance(found, list | tuple) and len(found) == count else (default,) * count


def _joined(node: Node, arrays: Sequence[Any]) -> int:
    return sum(map(math.prod, _shapes(arrays)))


def _found(node: Node, arrays: Sequence[Any]) -> int:
    """Return the bytes of the indices of all elements."""
    (x,) = _shapes(arrays[:1])
    return 8 * len(x) * math.prod(x)


def _gathered(node: Node, arrays: Sequence[Any]) -> int:
    """Return the number of elements of slices at indices."""
    x, indices = _shapes(arrays[:2])
    axis: int = node.options.get("axis", 0)
    return math.prod(indices) * math.prod(x) // max(x[axis], 1)


def _gathered_by_lists(node: Node, arrays: Sequence[Any]) -> int:
    """Return the number of elements of slices at lists of indices."""
    x, indices = _shapes(arrays[:2])
    first: int = node.options.get("batch_dims", 0) + indices[-1]
    return math.prod(indices[:-1]) * math.prod(x[first:])


_ESTIMATES: dict[str, Callable[[Node, Sequence[Any]], int]] = {
    "Concat": _joined, "Conv": _convolved, "ConvInteger": _convolved, "ConvTranspose": _transposed, "Einsum": _summed,
    "Gather": _gathered, "GatherND": _gathered_by_lists, "Gemm": _product, "MatMul": _product,
    "MatMulInteger": _product, "NonZero": _found,
}  # fmt: skip
"""Operator -> function of node and arrays that returns how many elements its result has at most.

Others have as many as their arrays, broadcast, or check the shape that a constant states by :func:`allocatable`.
"""
