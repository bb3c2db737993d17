"""Output shapes by formulas: the method `_shape_after` of layers, which makes trial calls unnecessary.

The method gets the shape of the only input; None is an unknown length. It returns the shape of the outputs. It returns
None if a trial call must find the shape, or raise the error for an invalid one.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mp_core.ops.convolution_specs import Padding
from mp_core.utilities.arguments import axes_of

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["Shape", "WithSpecRule", "map_shapes", "same_shape", "same_shape_along", "windowed_shape"]

Shape = tuple[int | None, ...]


class WithSpecRule:
    """A layer with a rule for the shapes and dtypes of its outputs; unlike a formula, it may have several inputs."""

    def specs_after(self, *args: Any, **kwargs: Any) -> Any:
        """Return the spec of each array of a call, whose arguments have a Spec in place of each symbolic array."""
        raise NotImplementedError

    def has_rule(self) -> bool:
        """Return whether the rule belongs to the current ``call``: a subclass may override ``call`` only."""
        order = type(self).__mro__
        rule, call = (next(i for i, c in enumerate(order) if name in vars(c)) for name in ("specs_after", "call"))
        return rule <= call


def same_shape(layer: "Layer", shape: Shape) -> Shape:
    """Return `shape`: outputs of the layer have the shape of its inputs."""
    return shape


class _HasAxis(Protocol):
    axis: int | Sequence[int]


def same_shape_along(layer: _HasAxis, shape: Shape) -> Shape | None:
    """Return `shape`, which outputs have too; None if ``layer.axis`` is out of range."""
    return shape if all(-len(shape) <= axis < len(shape) for axis in axes_of(layer.axis)) else None


def map_shapes(function: Callable[[Any], Any], shapes: Any) -> Any:
    """Apply `function` to a shape, or to each shape in lists, tuples and dicts.

    Examples
    --------
    >>> map_shapes(len, {"a": (2, 3), "b": [(None, 1, 1), [4]]})
    {'a': 2, 'b': [3, 1]}
    """
    if isinstance(shapes, dict):
        return {key: map_shapes(function, part) for key, part in shapes.items()}
    if isinstance(shapes, list | tuple) and any(isinstance(part, list | tuple | dict) for part in shapes):
        return type(shapes)(map_shapes(function, part) for part in shapes)
    return function(shapes)


def windowed_shape(
    shape: Shape,
    spans: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    data_format: str,
    channels: int | None,
) -> Shape | None:
    """Return the output shape of a layer that maps windows to positions; None if no window fits."""
    first = 1 if data_format == "channels_last" else 2
    lengths: Sequence[int | None] = shape[first : first + len(spans)]
    if not isinstance(padding, str):
        lengths = [None if n is None else n + sum(pair) for n, pair in zip(lengths, padding, strict=True)]
        padding = "valid"
    places = [_windows_along(*each, padding) for each in zip(lengths, spans, strides, strict=True)]
    if 0 in places:
        return None
    return (shape[0], *places, channels) if first == 1 else (shape[0], channels, *places)


def _windows_along(length: int | None, span: int, stride: int, padding: str) -> int | None:
    """Return the number of windows along an axis; None if its length is unknown."""
    if length is None:
        return None
    return max((length - span) // stride + 1, 0) if padding == "valid" else -(-length // stride)
