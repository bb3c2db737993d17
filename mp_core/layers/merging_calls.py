"""Keras' functions ``add``, ``concatenate`` ...: create a merging layer and call it."""

from collections.abc import Sequence
from typing import Any

from mp_core.layers.merging import (
    Add,
    Average,
    Concatenate,
    Dot,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    with_merging_example,
)  # fmt: skip

__all__ = ["add", "average", "concatenate", "dot", "maximum", "minimum", "multiply", "subtract"]


@with_merging_example("4., 9.")
def add(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Add` with `inputs`; `kwargs` are the arguments of the layer."""
    return Add(**kwargs)(inputs)


@with_merging_example("2. , 4.5")
def average(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Average` with `inputs`; `kwargs` are the arguments of the layer."""
    return Average(**kwargs)(inputs)


@with_merging_example("1., 5., 3., 4.")
def concatenate(inputs: Sequence[Any], axis: int = -1, **kwargs: Any) -> Any:
    """Call a new layer :class:`Concatenate` with `inputs`; `axis` and `kwargs` are the arguments of the layer."""
    return Concatenate(axis=axis, **kwargs)(inputs)


@with_merging_example("23.")
def dot(inputs: Sequence[Any], axes: Any = -1, **kwargs: Any) -> Any:
    """Call a new layer :class:`Dot` with `inputs`; `axes` and `kwargs` are the arguments of the layer."""
    return Dot(axes=axes, **kwargs)(inputs)


@with_merging_example("3., 5.")
def maximum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Maximum` with `inputs`; `kwargs` are the arguments of the layer."""
    return Maximum(**kwargs)(inputs)


@with_merging_example("1., 4.")
def minimum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Minimum` with `inputs`; `kwargs` are the arguments of the layer."""
    return Minimum(**kwargs)(inputs)


@with_merging_example(" 3., 20.")
def multiply(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Multiply` with `inputs`; `kwargs` are the arguments of the layer."""
    return Multiply(**kwargs)(inputs)


@with_merging_example("-2.,  1.")
def subtract(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Subtract` with `inputs`; `kwargs` are the arguments of the layer."""
    return Subtract(**kwargs)(inputs)
