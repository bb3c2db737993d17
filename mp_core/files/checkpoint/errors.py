"""Measure the differences between two tensors."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import inf, isnan, log10, nan, sqrt
from typing import Any, Self

import numpy as np

from mp_core.arrays import F64, Array, cast
from mp_core.utilities.numerals import number_of

__all__ = ["Sums", "Threshold", "as_float64", "count", "failures"]

_LOST = 1e-290  # a smaller sum of squares has lost digits to underflow, or is 0


def as_float64(x: Array) -> Array:
    """Return `x` as float64; `x` itself if it has this type."""
    return x if x.dtype == F64 else cast(x, F64)


def count(mask: Array) -> int:
    """Return how many elements are true."""
    return int(np.count_nonzero(mask))


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over parts of two tensors ``x`` and ``y``, in float64; ``+`` adds two parts.

    `noise` is the sum of (x - y)^2; `xx`, `yy` and `xy` are sums of products. Equal elements differ by 0, also NaN and
    NaN. Any other NaN or infinity differs by infinity and does not count in `xx`, `yy` and `xy`. `elements` counts
    those of ``x``.
    """

    max_abs_error: float = 0.0
    overflow: int = 0
    flushed: int = 0
    nan: int = 0
    noise: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    elements: int = 0

    @classmethod
    def of(cls, x: Array, y: Array, overflow: int = 0) -> Self:
        """Return the sums of one part, in which `overflow` elements were clamped."""
        x, y = (as_float64(part).reshape(-1) for part in (x, y))
        elements = x.size
        flushed = count((y == 0) & (x != 0))
        with np.errstate(over="ignore", invalid="ignore"):
            difference = np.abs(x - y)
            noise = _dot(difference, difference)
        nans = 0
        if not noise < inf:
            nans = count(np.isnan(x) | np.isnan(y))
            overflow += count(np.isfinite(x) & np.isinf(y))
            difference[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
            difference[np.isnan(difference)] = inf
            finite = np.isfinite(x) & np.isfinite(y)
            x, y = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
        with np.errstate(over="ignore"):
            sums = _dot(difference, difference), _dot(x, x), _dot(y, y), _dot(x, y)
        return cls(float(difference.max(initial=0.0)), overflow, flushed, nans, *sums, elements)

    def __add__(self, other: "Sums") -> "Sums":
        largest, *sums = zip(astuple(self), astuple(other), strict=True)
        return Sums(max(largest), *map(sum, sums))

    def metrics(self) -> dict[str, Any]:
        """Return the measures: `rel_rmse` is relative to the RMS of ``x``, `sqnr` is in decibels.

        For a single element `cosine` would always be 1 or -1; it is 1 - rel_rmse^2 / 2 instead, the cosine of two
        vectors of equal length whose relative difference is `rel_rmse`.
        """
        rel_rmse, cosine = 0.0, 1.0
        underflow = self.noise < _LOST or 0 < self.xx < _LOST
        if self.max_abs_error and (underflow or (self.max_abs_error < inf and inf in (self.noise, self.xx, self.yy))):
            rel_rmse = cosine = nan  # the squares overflow or underflow
        elif self.noise:
            rel_rmse = _ratio(self.noise, self.xx) ** 0.5
            cosine = self.xy / sqrt(self.xx) / sqrt(self.yy) if self.xx and self.yy else 0.0
            if self.elements == 1 and cosine:
                cosine = max(1 - rel_rmse**2 / 2, -1.0)
        return {
            "max_abs_error": self.max_abs_error,
            "rel_rmse": rel_rmse,
            "sqnr": -20 * log10(rel_rmse) if 0 < rel_rmse < inf else inf if rel_rmse == 0 else -rel_rmse,
            "cosine": cosine,
            "overflow": self.overflow,
            "flushed": self.flushed,
            "nan": self.nan,
        }


def _dot(x: Array, y: Array) -> float:
    """Return the sum of products, without BLAS: its threads would compete with ours."""
    return float(np.einsum("i,i->", x, y))


def _ratio(noise: float, signal: float) -> float:
    """Return noise / signal, or NaN if the sum of squares overflowed."""
    return nan if signal == inf else noise / signal if signal else inf


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition under which a tensor fails, such as ``sqnr<30``.

    >>> threshold = Threshold.parse("sqnr<30")
    >>> threshold.fails({"sqnr": 25.0}), threshold.fails({"sqnr": 40.0}), threshold.fails({"sqnr": nan})
    (True, False, True)
    """

    measure: str
    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a condition; raise ValueError if the text is not one."""
        measures = tuple(Sums().metrics())
        found = re.fullmatch(r"\s*(\w+)\s*(<=|>=|<|>)\s*(\S+)\s*", text)
        try:
            bound = number_of(found[3]) if found and found[1] in measures else nan
        except ValueError:
            bound = nan
        if found is None or isnan(bound):
            raise ValueError(
                f"`fail_if` must be one of {', '.join(measures)}, then <, <=, > or >=, and a number; received {text!r}"
            )
        return cls(found[1], found[2], bound)

    def fails(self, row: Mapping[str, Any]) -> bool:
        """Return whether the measure of a tensor meets the condition or is NaN."""
        value = row[self.measure]
        return isnan(value) or _COMPARE[self.comparison](value, self.bound)

    def __str__(self) -> str:
        return f"{self.measure} {self.comparison} {self.bound:g}"


def failures(rows: Sequence[Mapping[str, Any]], thresholds: Sequence[Threshold]) -> list[str]:
    """Return a line for each measure of a tensor that meets a condition."""
    return [
        f"{row['name']}: {threshold.measure} is {row[threshold.measure]:.6g}, which is {threshold}"
        for row in rows
        for threshold in thresholds
        if threshold.fails(row)
    ]
