"""Microscaling formats: codes of 4 or 8 bits in blocks of 16 or 32 neighbours, with scales of 8 bits.

The MX formats are those of *OCP Microscaling Formats (MX) Specification*, version 1.0 (2023): a scale is a power of
two, float8_e8m0fnu. In NVFP4 it is a float8_e4m3fn, times a float32 number of the whole array. A QuantizedArray has the
float32 value of these scales.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, Array, as_float, cast, imported
from mp_core.arrays.quantization.codes import int_or_axes, int_or_none, plan_of

__all__ = ["MICROSCALING", "Microscaling", "arguments"]

_LARGEST = 448.0
"""The largest float8_e4m3fn."""


@dataclass(frozen=True, slots=True)
class Microscaling:
    """A microscaling format; its codes are numbers of the type `codes`.

    In an MX format, the scale of a block is ``2 ** max(floor(log2(max|x|)) - exponent, least)``.
    """

    codes: str
    block: int
    """How many neighbours share a scale."""
    exponent: int | None = None
    """``floor(log2(largest code))``; None: the format is NVFP4."""
    least: int = -127
    """The exponent of the smallest scale."""

    def scales(self, largest: Array, whole: float | None = None) -> Array:
        """Return the float32 scales of blocks in which ``max|x|`` over finite elements is `largest`, in float32.

        `whole` is ``max|x|`` of the array; None: these are all blocks of the array. Only NVFP4 depends on it.
        """
        if self.exponent is None:
            return _nvfp4_scales(largest, F32.type(largest.max(initial=0) if whole is None else whole))
        exponents = np.frexp(largest)[1] - (1 + self.exponent)
        one = self.least + 127  # the exponent of the scale that the specification writes as 1
        return np.ldexp(F32.type(1), np.where(largest > 0, np.maximum(exponents, self.least), one))


MICROSCALING = {
    "mxfp4": Microscaling("float4_e2m1fn", 32, 2),
    "mxfp8_e4m3": Microscaling("float8_e4m3fn", 32, 8),
    "mxfp8_e5m2": Microscaling("float8_e5m2", 32, 15),
    "mxint8": Microscaling("int8", 32, 6, least=-133),  # the specification's codes are 2^-6 of these integers
    "nvfp4": Microscaling("float4_e2m1fn", 16),
}
"""Name -> format."""


def _nvfp4_scales(largest: Array, whole: Any) -> Array:
    """Return ``e4m3(max|x| / 6 / g) * g`` with ``g = max|x| of the array / (448 * 6)``, each operation in float32."""
    g = np.maximum(whole / F32.type(6 * _LARGEST), F32.type(2.0**-117)) if whole > 0 else F32.type(1)
    wanted = np.clip(largest / F32.type(6) / g, 2.0**-9, _LARGEST)
    scales = cast(cast(np.where(largest > 0, wanted, 1), "float8_e4m3fn"), F32)
    return np.asarray(scales * g)


def arguments(
    name: str,
    x: Any,
    axis: int | Sequence[int] | None,
    group_size: int | None,
    whole: float | None,
    others: dict[str, tuple[Any, Any]],
) -> tuple[Array, tuple[int, ...], Array]:
    """Return `x` as floats, the axes along which scales vary, and the scales; raise ValueError if they do not fit.

    `whole` is that of :meth:`Microscaling.scales`. `others` has the arguments of :func:`quantize` that must have their
    defaults: name -> (value, default).
    """
    form = MICROSCALING[name]
    x = as_float(imported(x, "x"))
    x = cast(x, F32) if x.dtype is F64 else x
    for argument, (value, default) in others.items():
        if value is not default:
            raise ValueError(f"`{argument}` must be {default} for {name}; received {value!r}")
    if int_or_none(group_size) not in (None, form.block):
        raise ValueError(f"`group_size` must be {form.block} or None for {name}; received {group_size}")
    if x.ndim == 0:
        raise ValueError(f"`x` must have an axis of blocks for {name}; received shape ()")
    axes = plan_of(x.shape, tuple(range(x.ndim - 1)) if axis is None else int_or_axes(axis), form.block).axes
    split = next(i for i in range(x.ndim) if i not in axes)
    if x.shape[split] % form.block:
        raise ValueError(
            f"`x` must have a multiple of {form.block} elements along axis {split} for blocks of {name}; received "
            f"shape {x.shape}"
        )
    blocks = (*x.shape[:split], x.shape[split] // form.block, form.block, *x.shape[split + 1 :])
    magnitudes = np.abs(cast(x, F32)).reshape(blocks)
    np.putmask(magnitudes, ~np.isfinite(magnitudes), 0)
    return x, axes, form.scales(magnitudes.max(axis=split + 1), whole)
