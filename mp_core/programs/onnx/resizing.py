"""Images and signals of other lengths: each axis is multiplied by a matrix of weights, a constant of the plan."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import F64, Array
from mp_core.ops.elementwise import rounded
from mp_core.programs.onnx.arguments import axes_of, cast_to, integers
from mp_core.programs.registry import Static, operator

__all__: list[str] = []

Mode = Literal["nearest", "linear", "cubic"]
Coordinates = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"
]
Nearest = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


@operator("Resize", since=11)
def resize(
    x: Any,
    roi: Static = None,
    scales: Static = None,
    sizes: Static = None,
    *,
    mode: Mode = "nearest",
    coordinate_transformation_mode: Coordinates = "half_pixel",
    nearest_mode: Nearest = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: Literal[0, 1] = 0,
    extrapolation_value: float = 0.0,
    antialias: Literal[0, 1] = 0,
    axes: tuple[int, ...] | None = None,
    keep_aspect_ratio_policy: Literal["stretch", "not_larger", "not_smaller"] = "stretch",
) -> Any:
    """Return an array with other lengths of some axes, interpolated from its neighbours."""
    along = tuple(range(x.ndim)) if axes is None else axes_of(axes, x.ndim)
    lengths = [x.shape[axis] for axis in along]
    factors, wanted = _lengths(lengths, scales, sizes, keep_aspect_ratio_policy)
    bounds = np.reshape(roi, (2, -1)).T.tolist() if coordinate_transformation_mode == "tf_crop_and_resize" else None

    def computed(x: Any) -> Any:
        outside = np.zeros((1,) * x.ndim, bool)
        for place, (axis, factor, length) in enumerate(zip(along, factors, wanted, strict=True)):
            if factor == 1 and length == x.shape[axis] and bounds is None:
                continue
            ends = None if bounds is None else bounds[place]
            at = _coordinates(coordinate_transformation_mode, x.shape[axis], length, factor, ends)
            if mode == "nearest":
                index = np.clip(_ROUNDED[nearest_mode](at), 0, x.shape[axis] - 1).astype(np.int64)
                x = ops.take(x, index, axis)
            else:
                weights = _weights(
                    mode, at, x.shape[axis], factor, cubic_coeff_a, bool(exclude_outside), bool(antialias)
                )
                x = ops.moveaxis(ops.matmul(ops.moveaxis(x, axis, -1), cast_to(weights.T, x.dtype)), -1, axis)
            if bounds is not None:
                beyond = (at < 0) | (at > lengths[place] - 1)
                outside = outside | beyond.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return ops.where(outside, np.float32(extrapolation_value), x) if outside.any() else x

    return computed(x) if mode == "nearest" and bounds is None else rounded(computed, x)


def _lengths(lengths: Sequence[int], scales: Any, sizes: Any, policy: str) -> tuple[list[float], list[int]]:
    """Return the factor and the wanted length of each axis."""
    if sizes is None or not np.size(sizes):
        factors = np.ravel(scales).astype(np.float64).tolist()
        return factors, [int(np.floor(n * factor)) for n, factor in zip(lengths, factors, strict=True)]
    wanted = list(integers(sizes))
    factors = [m / n for n, m in zip(lengths, wanted, strict=True)]
    if policy == "stretch":
        return factors, wanted
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(lengths), [int(np.floor(n * factor + 0.5)) for n in lengths]


def _coordinates(kind: str, length: int, wanted: int, factor: float, ends: Sequence[float] | None) -> Array:
    """Return the coordinates in the input of each place of the result."""
    places = np.arange(wanted, dtype=F64)
    if kind == "asymmetric":
        return places / factor
    if kind == "align_corners":
        return places * ((length - 1) / (wanted - 1)) if wanted > 1 else places * 0
    if ends is not None:
        first, last = ends
        if wanted == 1:
            return np.array([0.5 * (first + last) * (length - 1)])
        return first * (length - 1) + places * (last - first) * (length - 1) / (wanted - 1)
    if kind == "pytorch_half_pixel" and wanted == 1:
        return places * 0
    found = (places + 0.5) / factor - 0.5
    if kind == "half_pixel_symmetric":  # of an image whose length is not rounded
        found += length / 2 * (1 - wanted / (factor * length))
    return found


def _weights(mode: str, at: Array, length: int, factor: float, slope: float, excludes: bool, is_smooth: bool) -> Array:
    """Return a matrix (results, inputs): how much of each input is in each result."""
    shrink = min(factor, 1.0) if is_smooth else 1.0
    reach = int(np.ceil((2 if mode == "cubic" else 1) / shrink))
    near = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(at[:, None] - near) * shrink
    found = _cubic(distance, slope) if mode == "cubic" else np.maximum(1 - distance, 0)
    if excludes:
        found[(near < 0) | (near >= length)] = 0
    if excludes or is_smooth:
        found /= found.sum(1, keepdims=True)
    weights = np.zeros((len(at), length), F64)
    np.add.at(weights, (np.arange(len(at))[:, None], np.clip(near, 0, length - 1)), found)
    return weights


def _cubic(t: Array, a: float) -> Array:
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, inner, np.where(t < 2, outer, 0.0))


@operator("Upsample")
def upsample(x: Any, scales: Static, *, mode: Mode = "nearest") -> Any:
    """Return an array with longer axes, whose places begin at the same corner."""
    return resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator("Resize", since=10)
def resize_from_corner(x: Any, scales: Static, *, mode: Mode = "nearest") -> Any:
    """Return an array with other lengths, whose places begin at the same corner."""
    return upsample(x, scales, mode=mode)
