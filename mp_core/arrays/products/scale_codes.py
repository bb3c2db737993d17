"""Codes of the scales of packed matrices: a byte each, if all scales of a matrix are such numbers.

Code c is the float32 of the bits ``c << shift``, times one float32 number `unit`: see `mp_scale_codes` in kernels.h.
The codes are in the order of panels: those of the first 64 columns, one scale group after the other, then those of the
next 64 columns.
"""

from typing import Any

import numpy as np

from mp_core.arrays import F32, Array

__all__ = ["decoded", "encoded"]

_PANEL = 64
_POWERS, _SHORT = 23, 20
"""The shifts: codes of 8 bits of exponent; of 5 bits of exponent and 3 of mantissa."""
_LEAST = F32.type(2.0**-125)
_SAMPLE = 64
"""How many scales a unit must fit before it is tried on all scales."""


def encoded(scales: Array) -> tuple[Array, int, float] | None:
    """Return codes, shift and unit of float32 scales of shape (groups, n); None if there are no such codes."""
    if scales.size == 0 or not _LEAST <= scales.min() <= scales.max() < np.inf:
        return None
    bits = scales.view(np.uint32)
    if not (bits & 0x7FFFFF).any():
        return _in_panels((bits >> _POWERS).astype(np.uint8)), _POWERS, 1.0
    sample = scales.reshape(-1)[:: -(-scales.size // _SAMPLE)]
    for unit in _units(float(scales.max())):
        if _codes(sample, unit) is not None and (codes := _codes(scales, unit)) is not None:
            return _in_panels(codes), _SHORT, float(unit)
    return None


def decoded(codes: Array, n: int, shift: int, unit: float) -> Array:
    """Return the float32 scales of shape (groups, n)."""
    groups, whole = codes.size // n, n - n % _PANEL
    panels = codes[: groups * whole].reshape(-1, groups, _PANEL).swapaxes(0, 1).reshape(groups, whole)
    scales = np.concatenate([panels, codes[groups * whole :].reshape(groups, n - whole)], 1)
    found: Array = _numbers(scales, shift) * F32.type(unit)
    return found


def _in_panels(codes: Array) -> Array:
    """Return codes of shape (groups, n) in the order of panels."""
    groups, n = codes.shape
    whole = n - n % _PANEL
    panels = codes[:, :whole].reshape(groups, -1, _PANEL).swapaxes(0, 1)
    return np.concatenate([panels.reshape(-1), codes[:, whole:].reshape(-1)])


def _numbers(codes: Array, shift: int) -> Array:
    return (codes.astype(np.uint32) << np.uint32(shift)).view(F32)


def _units(largest: float) -> list[Any]:
    """Return the units for which `largest` has a code from 248 to 255: the largest exponent and any mantissa.

    The scales are rounded products, so that the neighbours of the quotient are tried too.
    """
    with np.errstate(over="ignore"):
        units = F32.type(largest / _numbers(np.arange(248, 256, dtype=np.uint8), _SHORT).astype(np.float64))
    near = [np.nextafter(units, F32.type(0)), units, np.nextafter(units, F32.type(np.inf))]
    return [unit for unit in np.stack(near, 1).reshape(-1) if _LEAST <= unit < np.inf]


def _codes(scales: Array, unit: Any) -> Array | None:
    """Return codes from which `unit` gives exactly these scales; None if there are none."""
    bits = (scales / unit).view(np.uint32) + np.uint32(1 << (_SHORT - 1)) >> np.uint32(_SHORT)
    if not 8 <= bits.min() <= bits.max() <= 255:
        return None
    codes: Array = bits.astype(np.uint8)
    return codes if np.array_equal(_numbers(codes, _SHORT) * unit, scales) else None
