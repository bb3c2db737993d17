"""Keras' functions in small letters: the layers of several inputs, made and called at once."""

from collections.abc import Sequence
from typing import Any

from mp_core.layers.merging import Add, Average, Concatenate, Dot, Maximum, Minimum, Multiply, Subtract

__all__ = ["add", "average", "concatenate", "dot", "maximum", "minimum", "multiply", "subtract"]


def add(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Return what :class:`Add` returns; `kwargs` are its arguments."""
    return Add(**kwargs)(inputs)


def average(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Return what :class:`Average` returns; `kwargs` are its arguments."""
    return Average(**kwargs)(inputs)


def concatenate(inputs: Sequence[Any], axis: int = -1, **kwargs: Any) -> Any:
    """Return what :class:`Concatenate` returns; `axis` and `kwargs` are its arguments."""
    return Concatenate(axis=axis, **kwargs)(inputs)


def dot(inputs: Sequence[Any], axes: Any = -1, **kwargs: Any) -> Any:
    """Return what :class:`Dot` returns; `axes` and `kwargs` are its arguments."""
    return Dot(axes=axes, **kwargs)(inputs)


def maximum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Return what :class:`Maximum` returns; `kwargs` are its arguments."""
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Return what :class:`Minimum` returns; `kwargs` are its arguments."""
    return Minimum(**kwargs)(inputs)


def multiply(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Return what :class:`Multiply` returns; `kwargs` are its arguments."""
    return Multiply(**kwargs)(inputs)


def subtract(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Return what :class:`Subtract` returns; `kwargs` are its arguments."""
    return Subtract(**kwargs)(inputs)
