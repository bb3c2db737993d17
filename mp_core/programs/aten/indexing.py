"""Elements at indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.files.program import Node
from mp_core.programs.registry import operator
from mp_core.programs.weights import Call, Constant, embedding, is_matrix, weighted
from mp_core.utilities.arguments import axis_of

__all__ = ["flat_places"]


@operator("aten.embedding.default")
def embedding_rows(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """Return the rows of a table at indices."""
    return ops.take(weight, indices, 0)


@weighted("aten.embedding.default")
def embedding_of_table(node: Node, constant: Constant, **options: Any) -> Call | None:
    """Return the call of an Embedding for a constant table."""
    weight, indices = node.arguments[:2]
    table = constant(weight)
    return Call(embedding(table, **options), (indices,)) if table is not None and is_matrix(table) else None


@operator("aten.index_select.default")
def index_select(self: Any, dim: int, index: Any) -> Any:
    """Return the parts at indices of an axis."""
    return ops.take(self, index, dim)


@operator("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(self: Any, indices: Sequence[Any]) -> Any:
    """Return the elements at indices of several axes, which broadcast against each other; None: all of an axis."""
    given = [x for x in indices if x is not None]
    if all(type(x) is np.ndarray for x in (self, *given)):
        return self[tuple(slice(None) if x is None else x for x in indices)]
    if any(x.dtype == np.bool_ for x in given):
        raise ValueError("indices that are booleans of an input give a result whose shape depends on elements")
    _, flat, places, axis = flat_places(self, indices)
    return ops.take(flat, places, axis)


def flat_places(self: Any, indices: Sequence[Any]) -> tuple[list[int], Any, Any, int]:
    """Return an array in which the axes that have indices are one, the places along this axis, and the axis.

    The first result is the order of the axes in it. As in NumPy, axes with indices come first if they are not side by
    side.
    """
    given = [axis for axis, x in enumerate(indices) if x is not None]
    first = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    rest = [axis for axis in range(self.ndim) if axis not in given]
    order = [*rest[:first], *given, *rest[first:]]
    x = self if order == sorted(order) else ops.transpose(self, tuple(order))
    lengths = [self.shape[axis] for axis in given]
    flat = ops.reshape(x, (*x.shape[:first], int(np.prod(lengths)), *x.shape[first + len(given) :]))
    place: Any = 0
    for axis, length in zip(given, lengths, strict=True):
        found = indices[axis]
        found = ops.where(ops.less(found, 0), ops.add(found, length), found) if len(given) > 1 else found
        place = found if axis == given[0] else ops.add(ops.multiply(place, length), found)
    return order, flat, place, first


@operator("aten.gather.default")
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Return ``self[index[i][j][k]][j][k]`` for the first of three axes, and likewise for others."""
    axis = axis_of(dim, self.ndim)
    part = self[tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(index.shape))]
    return ops.take_along_axis(part, index, axis)
