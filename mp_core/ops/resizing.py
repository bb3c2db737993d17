"""Resize arrays along axes, by the formulas of ONNX, Keras and torch: each axis by a few gathers and sums."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.recorded import constant
from mp_core.ops.arrangement import array_of, reshape
from mp_core.ops.elementwise import computed, floating
from mp_core.ops.functions import where
from mp_core.ops.lookup import take_rows
from mp_core.utilities.arguments import axes_of, axis_of, boolean, positive, positive_integer

__all__ = ["resize"]


def _aligned(x: Array, length: int, scaled: float) -> Array:
    return x * (length - 1) / (scaled - 1) if scaled != 1 else np.zeros_like(x)


def _half_pixel_of_torch(x: Array, length: int, scaled: float) -> Array:
    return (x + 0.5) * length / scaled - 0.5 if scaled != 1 else np.full_like(x, -0.5)


def _symmetric(x: Array, length: int, scaled: float) -> Array:
    return length / 2 * (1 - len(x) / scaled) + (x + 0.5) * length / scaled - 0.5


_COORDINATES: dict[str, Callable[[Array, int, float], Array]] = {
    "half_pixel": lambda x, length, scaled: (x + 0.5) * length / scaled - 0.5,
    "pytorch_half_pixel": _half_pixel_of_torch,
    "half_pixel_symmetric": _symmetric,
    "asymmetric": lambda x, length, scaled: x * length / scaled,
    "align_corners": _aligned,
}
"""Name -> the places in the input of the places x of the result, for the length of the input and that times the scale,
which may be no integer."""

_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""How a place between two elements is rounded to one of them."""


def _linear(x: Array, a: float) -> Array:
    found: Array = np.maximum(1 - np.abs(x), 0.0)
    return found


def _cubic(x: Array, a: float) -> Array:
    u = np.abs(x)
    near = ((a + 2) * u - (a + 3)) * u * u + 1
    return np.where(u <= 1, near, np.where(u < 2, ((a * u - 5 * a) * u + 8 * a) * u - 4 * a, 0.0))


_FILTERS: dict[str, tuple[int, Callable[[Array, float], Array]]] = {"linear": (1, _linear), "cubic": (2, _cubic)}
"""Interpolation -> how many elements on each side of a place have a weight, and the weight at a distance."""


def resize(
    x: ArrayLike,
    sizes: int | Sequence[int],
    axes: int | Sequence[int],
    interpolation: str = "linear",
    *,
    scales: float | Sequence[float] | None = None,
    coordinates: str = "half_pixel",
    nearest: str = "round_prefer_floor",
    antialias: bool = False,
    exclude_outside: bool = False,
    cubic_coefficient: float = -0.75,
    crop: Sequence[tuple[float, float]] | None = None,
    extrapolation: float = 0.0,
) -> Array:
    """Return `x` with other lengths of some axes, interpolated between neighbours: ONNX's Resize.

    Each place i of the result has a place in the input, by one of the formulas in the notes. Its value is that of the
    nearest element, or a weighted sum of neighbours, added in their order in float32. One axis is resized after the
    other, and the result is rounded once.

    Parameters
    ----------
    x : array-like
        Floats; integers become float32.
    sizes : int or sequence of int
        The new lengths.
    axes : int or sequence of int
        The axes that get them, for instance (1, 2) of images (batch, height, width, channels).
    interpolation : {"nearest", "linear", "cubic"}
    scales : float or sequence of float, optional
        The factors between the lengths, if they are not exactly ``sizes / lengths``.
    coordinates : {"half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners"}
    nearest : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}
        How "nearest" rounds places between two elements.
    antialias : bool
        Whether the weights spread over 1 / scale as many neighbours if an axis becomes shorter.
    exclude_outside : bool
        Whether neighbours outside of the input have no weight. By default they equal the elements at the border.
    cubic_coefficient : float
        The coefficient a of the cubic weights; -0.5 in Keras and Pillow.
    crop : sequence of (float, float), optional
        For each of the axes its first and last place in the result, relative to the input, from 0 to 1: ONNX's
        "tf_crop_and_resize", in place of `coordinates`.
    extrapolation : float
        The elements of the result whose places in `crop` are outside of the input.

    Returns
    -------
    ndarray

    Raises
    ------
    ValueError
        An argument is none of the allowed ones, or an axis that is resized has no elements.

    Notes
    -----
    With s the scale, L the length and S = s L: half_pixel (i + 0.5) / s - 0.5; pytorch_half_pixel the same, but -0.5 if
    S = 1; half_pixel_symmetric the same plus L / 2 (1 - size / S); asymmetric i / s; align_corners
    i (L - 1) / (S - 1).

    Examples
    --------
    >>> resize(np.float32([1, 2, 4]), 6, 0)
    array([1.  , 1.25, 1.75, 2.5 , 3.5 , 4.  ], dtype=float32)
    >>> resize(np.float32([1, 2, 4]), 6, 0, "nearest")
    array([1., 1., 2., 2., 4., 4.], dtype=float32)
    """
    array = floating(array_of(x), F32)
    places = [axis_of(axis, array.ndim) for axis in axes_of(axes)]
    if 0 in [array.shape[place] for place in places] or len(set(places)) < len(places):
        raise ValueError(f"`axes` must name axes with elements, each once; received {axes} for shape {array.shape}")
    counts = [positive_integer(n, "sizes") for n in _each(sizes, "sizes", len(places))]
    factors = [None if scales is None else positive(scale, "scales") for scale in _each(scales, "scales", len(places))]
    spans = [None] * len(places) if crop is None else _each(crop, "crop", len(places))
    taps_of = _taps_of(interpolation, nearest, antialias, exclude_outside, cubic_coefficient)
    found, outside = array, np.zeros((1,) * array.ndim, np.bool_)
    for place, count, factor, span in zip(places, counts, factors, spans, strict=True):
        length = array.shape[place]
        scaled = count if factor is None else factor * length
        origin = _origins(count, length, scaled, coordinates, span)
        found = _along(found, place, *taps_of(origin, length, scaled / length))
        beyond = (origin < 0) | (origin > length - 1)
        outside = outside | beyond.reshape([-1 if axis == place else 1 for axis in range(array.ndim)])
    if crop is not None:
        found = where(constant(outside), float(extrapolation), found)
    return found if found.dtype == array.dtype else cast(found, array.dtype)


def _each(value: Any, argument: str, count: int) -> list[Any]:
    """Return a value for each of `count` axes; a single one is for all."""
    found = list(value) if isinstance(value, Sequence | np.ndarray) else [value] * count
    if len(found) != count:
        raise ValueError(f"`{argument}` must be one for each of {count} axes; received {value!r}")
    return found


def _chosen(table: dict[str, Any], name: str, argument: str) -> Any:
    if name not in table:
        raise ValueError(f"`{argument}` must be one of {', '.join(map(repr, table))}; received {name!r}")
    return table[name]


def _origins(count: int, length: int, scaled: float, coordinates: str, span: Any) -> Array:
    """Return the places in the input of all places of the result."""
    x = np.arange(count, dtype=F64)
    if span is None:
        found: Array = _chosen(_COORDINATES, coordinates, "coordinates")(x, length, scaled)
        return found
    start, end = span
    if scaled == 1:
        return np.full_like(x, 0.5 * (start + end) * (length - 1))
    found = start * (length - 1) + x * (end - start) * (length - 1) / (scaled - 1)
    return found


_SHORT = 4096
"""The longest rows, in elements, whose weights are repeated for each element. With one weight for each row, a product
takes 20 times as long for rows of 32 elements, and four times for 2,048 (Zen 4, November 2026: profiles of plans)."""

Taps = tuple[Array, Array | None]
"""Indices and weights of neighbours, shape (neighbours, places of the result); None: one neighbour of weight 1."""


def _taps_of(
    interpolation: str, nearest: str, antialias: bool, exclude_outside: bool, a: float
) -> Callable[[Array, int, float], Taps]:
    """Return the function that finds the neighbours of places in an axis of some length, resized by a scale."""
    if interpolation == "nearest":
        rounded = _chosen(_NEAREST, nearest, "nearest")
        return lambda origin, length, scale: (_inside(rounded(origin), length)[np.newaxis], None)
    reach, weigh = _chosen({**_FILTERS, "nearest": None}, interpolation, "interpolation")
    spreads, excludes = boolean(antialias, "antialias"), boolean(exclude_outside, "exclude_outside")

    def taps(origin: Array, length: int, scale: float) -> Taps:
        width = min(scale, 1.0) if spreads else 1.0
        half = math.ceil(reach / width)
        index = np.floor(origin) + np.arange(1 - half, half + 1, dtype=F64)[:, np.newaxis]
        weights = weigh((index - origin) * width, a)
        if excludes:
            weights = np.where((index < 0) | (index >= length), 0.0, weights)
        if excludes or spreads:
            total = weights.sum(axis=0)
            weights = weights / np.where(total == 0.0, 1.0, total)
        used = weights.any(axis=1)
        return _inside(index[used], length), weights[used]

    return taps


def _inside(index: Array, length: int) -> Array:
    return np.clip(index, 0, length - 1).astype(np.int64)


def _along(x: Array, axis: int, indices: Array, weights: Array | None) -> Array:
    """Return the sums of elements of an axis times weights, in the order of the neighbours; in float32 or float64."""
    outer, length, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    rows, starts = reshape(x, (outer * length, inner)), length * np.arange(outer)[:, np.newaxis]
    wide = F64 if x.dtype == F64 else F32
    parts = [take_rows(rows, constant((starts + index).ravel()), x.dtype if weights is None else wide)
             for index in indices]  # fmt: skip
    parts = [reshape(part, (outer, indices.shape[1], inner)) for part in parts]
    if weights is not None:
        width = inner if inner <= _SHORT else 1
        factors = [constant(np.repeat(weight.astype(wide)[:, np.newaxis], width, axis=1)) for weight in weights]
        parts = [computed("multiply", part, factor, dtype=wide) for part, factor in zip(parts, factors, strict=True)]
    total = reduce(lambda one, other: computed("add", one, other, dtype=wide), parts)
    return reshape(total, (*x.shape[:axis], indices.shape[1], *x.shape[axis + 1 :]))
