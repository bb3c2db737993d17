"""Layers that rearrange the elements of their inputs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import Shape, WithSpecRule
from mp_core.ops.spatial import data_format_of
from mp_core.ops.specs import Spec
from mp_core.utilities.arguments import integer, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["Flatten", "Permute", "RepeatVector", "Reshape"]


@shown("{}()(np.ones((2, 3, 4), np.float32)).shape", "(2, 12)")
class Flatten(Layer):
    """Join all axes after the batch axis to one.

    Parameters
    ----------
    data_format : {"channels_last", "channels_first"}, optional
        Position of the channels axis in the inputs; default: last. Channels vary fastest in the outputs.
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _options = ("data_format",)

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = data_format_of(data_format)

    def call(self, inputs: Array) -> Array:
        """Return the inputs in the shape (batch, elements)."""
        if self.data_format == "channels_first" and inputs.ndim > 1:
            inputs = np.moveaxis(inputs, 1, -1)
        flat: Array = inputs.reshape(*inputs.shape[:1], math.prod(inputs.shape[1:]))
        return flat

    def _shape_after(self, shape: Shape) -> Shape | None:
        return (*shape[:1], _elements(shape[1:]))


@shown("{}((2, 1))(np.ones((2, 3, 4), np.float32)).shape", "(2, 4, 3)")
class Permute(Layer):
    """Permute the axes after the batch axis.

    Parameters
    ----------
    dims : sequence of int
        The axes in their new order. Axis 1 is the first after the batch axis.
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _options = _repr_arguments = ("dims",)

    def __init__(self, dims: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(dims, Sequence):
            raise TypeError(f"`dims` must be a sequence of integers; received {dims!r}")
        self.dims = tuple(integer(n, "dims") for n in dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(f"`dims` must be all integers from 1 to their number; received {dims!r}")

    def call(self, inputs: Array) -> Array:
        """Return a view of the inputs."""
        if inputs.ndim != len(self.dims) + 1:
            raise ValueError(f"`inputs` of '{self.name}' must have {len(self.dims) + 1} axes; received {inputs.shape}")
        return inputs.transpose(0, *self.dims)

    def _shape_after(self, shape: Shape) -> Shape | None:
        return (shape[0], *(shape[axis] for axis in self.dims)) if len(shape) == len(self.dims) + 1 else None


@shown("{}(3)(np.ones((2, 4), np.float32)).shape", "(2, 3, 4)")
class RepeatVector(Layer):
    """Repeat each row `n` times: (batch, features) becomes (batch, n, features).

    Parameters
    ----------
    n : int
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _options = _repr_arguments = ("n",)

    def __init__(self, n: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = positive_integer(n, "n")

    def call(self, inputs: Array) -> Array:
        """Return a read-only view of the inputs."""
        if inputs.ndim != 2:
            raise ValueError(f"`inputs` of '{self.name}' must have 2 axes; received {inputs.shape}")
        return np.broadcast_to(inputs[:, np.newaxis], (len(inputs), self.n, inputs.shape[1]))

    def _shape_after(self, shape: Shape) -> Shape | None:
        return (shape[0], self.n, shape[1]) if len(shape) == 2 else None


@shown("{}((-1, 2))(np.ones((2, 3, 4), np.float32)).shape", "(2, 6, 2)")
class Reshape(WithSpecRule, Layer):
    """Reshape all axes after the batch axis.

    Parameters
    ----------
    target_shape : sequence of int
        Without the batch axis. One length may be -1: it is computed from the number of elements.
    **kwargs : those of :class:`Layer`
    """

    _builds_nothing = True
    _sample_independence = "always"
    _arrays = ("inputs",)
    _options = _repr_arguments = ("target_shape",)

    def __init__(self, target_shape: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(target_shape, Sequence):
            raise TypeError(f"`target_shape` must be a sequence of integers; received {target_shape!r}")
        self.target_shape = tuple(integer(n, "target_shape") for n in target_shape)
        if self.target_shape.count(-1) > 1 or any(n < -1 for n in self.target_shape):
            raise ValueError(f"`target_shape` must be lengths, at most one of them -1; received {target_shape!r}")

    def call(self, inputs: Array) -> Array:
        """Return the inputs in the shape ``(batch, *target_shape)``."""
        elements, known = math.prod(inputs.shape[1:]), math.prod(n for n in self.target_shape if n != -1)
        rest = elements // known if known else 0
        shape = [rest if n == -1 else n for n in self.target_shape]
        if math.prod(shape) != elements:
            raise self._shape_error(inputs.shape)
        outputs: Array = inputs.reshape(*inputs.shape[:1], *shape)
        return outputs

    def specs_after(self, inputs: Spec) -> Spec:
        """Return the spec of the outputs; lengths of the inputs may be unknown."""
        shape = self._shape_after(inputs.shape)
        if shape is None:
            raise self._shape_error(inputs.shape)
        return Spec(shape, self._compute if self.autocast and dtypes.is_float(inputs.dtype) else inputs.dtype)

    def _shape_error(self, shape: Shape) -> ValueError:
        return ValueError(
            f"The inputs of layer '{self.name}' must have as many elements after the batch axis as "
            f"{self.target_shape}; received shape {shape}"
        )

    def _shape_after(self, shape: Shape) -> Shape | None:
        elements, known = _elements(shape[1:]), math.prod(n for n in self.target_shape if n != -1)
        if elements is None:
            return (*shape[:1], *(None if n == -1 else n for n in self.target_shape))
        rest = elements // known if known else 0
        found = [rest if n == -1 else n for n in self.target_shape]
        return (*shape[:1], *found) if math.prod(found) == elements else None


def _elements(lengths: Shape) -> int | None:
    """Return the product of the lengths; None if one is unknown."""
    return None if None in lengths else math.prod(n for n in lengths if n is not None)
