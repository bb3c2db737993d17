"""Images and signals of other lengths, interpolated between neighbours."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.limits import allocatable
from mp_core.programs.onnx.arguments import axes_of, cast_to, integers
from mp_core.programs.registry import Static, operator

__all__: list[str] = []

Mode = Literal["nearest", "linear", "cubic"]
Coordinates = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"
]
Nearest = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


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
    factors, wanted = _lengths([x.shape[axis] for axis in along], scales, sizes, keep_aspect_ratio_policy)
    allocatable([dict(zip(along, wanted, strict=True)).get(axis, n) for axis, n in enumerate(x.shape)])
    is_crop = coordinate_transformation_mode == "tf_crop_and_resize"
    changed = [i for i, axis in enumerate(along) if is_crop or factors[i] != 1 or wanted[i] != x.shape[axis]]
    ends = np.reshape(roi, (2, -1)).T.tolist() if is_crop else []
    found = ops.resize(
        x, [wanted[i] for i in changed], [along[i] for i in changed], mode, scales=[factors[i] for i in changed],
        coordinates="half_pixel" if is_crop else coordinate_transformation_mode, nearest=nearest_mode,
        antialias=bool(antialias), exclude_outside=bool(exclude_outside), cubic_coefficient=cubic_coeff_a,
        crop=[tuple(ends[i]) for i in changed] if is_crop else None, extrapolation=extrapolation_value,
    )  # fmt: skip
    return cast_to(found, x.dtype)


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


@operator("Upsample")
def upsample(x: Any, scales: Static, *, mode: Mode = "nearest") -> Any:
    """Return an array with longer axes, whose places begin at the same corner."""
    return resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator("Resize", since=10)
def resize_from_corner(x: Any, scales: Static, *, mode: Mode = "nearest") -> Any:
    """Return an array with other lengths, whose places begin at the same corner."""
    return upsample(x, scales, mode=mode)
