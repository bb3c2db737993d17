"""Quantization to 8-bit integers: ``x ~ scale * (q - zero_point)``, written here and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, asarray, cast
from mp_core.core import quantize as _quantize
from mp_core.dtypes import ALLOWED, is_float, parse

__all__ = ["QuantizedArray", "dequantize", "quantize"]

_LONG_ROW = 1 << 16  # beyond, a row does not stay in a cache between its range and its codes
_I8, _U8, _I32 = ALLOWED["int8"], ALLOWED["uint8"], ALLOWED["int32"]


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """Integers and what they stand for: ``scale * (values - zero_point)``.

    Attributes
    ----------
    values : ndarray
        int8 or uint8.
    scale : ndarray
        float32, positive; as many axes as `values`, of length 1 where the scale is shared.
    zero_point : ndarray or None
        int32, the shape of `scale`; None where all are zero (symmetric).
    axis : tuple of int
        The axes along which the scale varies; empty for one scale.

    Examples
    --------
    >>> q = quantize([[-1.0, 0.5], [0.0, 2.54]], axis=0)
    >>> q.values
    array([[-127,   64],
           [   0,  127]], dtype=int8)
    >>> q.scale.ravel()
    array([0.00787402, 0.02      ], dtype=float32)
    """

    values: Array
    scale: Array
    zero_point: Array | None
    axis: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check what the kernels trust, and bring scale and zero point to their types."""
        if not isinstance(self.values, np.ndarray) or self.values.dtype not in (_I8, _U8):
            found = getattr(self.values, "dtype", type(self.values).__name__)
            raise TypeError(f"`values` must be an ndarray of int8 or uint8; received {found}")
        shape = tuple(n if i in self.axis else 1 for i, n in enumerate(self.values.shape))
        for name, dtype in (("scale", F32), ("zero_point", _I32)):
            given = getattr(self, name)
            if given is None and name == "zero_point":
                continue
            array = np.asarray(given, dtype=dtype, order="C")
            if array.shape != shape:
                raise ValueError(
                    f"`{name}` must have shape {shape} for values {self.values.shape} and axis {self.axis}; "
                    f"received {array.shape}"
                )
            object.__setattr__(self, name, array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        shape: tuple[int, ...] = self.values.shape
        return shape

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zero points together."""
        return sum(part.nbytes for part in (self.values, self.scale, self.zero_point) if part is not None)


def _trusted(values: Array, scale: Array, zero_point: Array | None, axis: tuple[int, ...]) -> QuantizedArray:
    """Return a QuantizedArray of parts that need no check: this is on the way of every int8 layer."""
    made = object.__new__(QuantizedArray)
    vars(made).update(values=values, scale=scale, zero_point=zero_point, axis=axis)
    return made


def quantize(
    x: ArrayLike,
    *,
    axis: int | Sequence[int] | None = None,
    dtype: DTypeLike = "int8",
    symmetric: bool = True,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike | None = None,
) -> QuantizedArray:
    """Return `x` as 8-bit integers: ``q = clamp(round(x / scale) + zero_point)``.

    A true division, rounded to nearest even, clamped before it becomes an integer: the ONNX QuantizeLinear formula.

    Parameters
    ----------
    x : array-like
        Any shape; float types (float64 is rounded to float32 first) or integers.
    axis : int or sequence of int, optional
        The axes that keep scales of their own: 1 for one scale per column of a matrix, 0 for one per row. None: one.
    dtype : {"int8", "uint8"}
    symmetric : bool
        Zero point 0 and range ±127 (int8), so that ``scale = max|x| / 127``. False: the range of `x`, widened to hold
        0, on all codes: ``scale = (hi - lo) / 255``, ``zero_point = round(qmin - lo / scale)``. uint8 symmetric: the
        range [0, max x] on 0..255.
    scale, zero_point : array-like, optional
        Given instead of computed; broadcastable against the shape of the scales (length 1 off `axis`) or, with one
        `axis`, of shape (length,). With a given scale, codes use the full range (int8: -128..127), as ONNX says.

    Returns
    -------
    QuantizedArray

    Raises
    ------
    TypeError
        `x` is not numeric, or `dtype` is neither int8 nor uint8.
    ValueError
        `axis` is out of range or repeated; `scale` is not positive and finite; `zero_point` without `scale`, or outside
        the codes; shapes that do not broadcast.

    Notes
    -----
    Infinities go to the end of the range and do not count when a scale is computed; NaN becomes the zero point; a slice
    without anything to scale (empty, all zero, not finite) gets scale 1.

    Examples
    --------
    >>> quantize([-1.0, 0.0, 1.55], symmetric=False, dtype="uint8").values
    array([  0, 100, 255], dtype=uint8)
    """
    x = as_float(x)
    target = parse(dtype)
    if target is not _I8 and target is not _U8:
        raise TypeError(f"`dtype` must be int8 or uint8; received {target.name}")
    axes = _axes(axis, x.ndim)
    x = cast(x, F32) if x.dtype is F64 else np.asarray(x, order="C")
    shape = tuple(length if i in axes else 1 for i, length in enumerate(x.shape))
    if scale is None and zero_point is not None:
        raise ValueError("`zero_point` must be None unless `scale` is given")

    per_row = x.ndim > 0 and axes == tuple(range(x.ndim - 1)) and x.shape[-1] <= _LONG_ROW
    if scale is None and symmetric and target is _I8 and per_row:
        values, scales = np.empty(x.shape, target), np.empty(shape, F32)
        rows = scales.size
        _quantize.quantize_rows(x, FORMATS[x.dtype], values, scales, rows, x.shape[-1])
        return _trusted(values, scales, None, axes)

    order, (outer, channels, inner) = _blocks(x.shape, axes)
    moved = x if order is None else np.asarray(x.transpose(order), order="C")
    fmt = FORMATS[x.dtype]
    qmin, qmax = (-128, 127) if target is _I8 else (0, 255)
    zeros: Array
    if scale is not None:
        scales = _given(scale, shape, axes, F32, "scale")
        zeros = _given(0 if zero_point is None else zero_point, shape, axes, ALLOWED["int32"], "zero_point")
        if not (np.all(scales > 0) and np.all(np.isfinite(scales))):
            raise ValueError("`scale` must be positive and finite")
        if np.any(zeros < qmin) or np.any(zeros > qmax):
            raise ValueError(f"`zero_point` must lie in [{qmin}, {qmax}] for {target.name}")
    else:
        lo, hi = _quantize.value_range(moved, fmt, outer, channels, inner)
        if symmetric:
            qmin = max(qmin, -qmax)
            scales = _quantize.symmetric_scales(lo if qmin else np.zeros_like(lo), hi, qmax)
            zeros = np.zeros(channels, np.int32)
        else:
            scales, zeros = _asymmetric(lo, hi, qmin, qmax)
    values = np.empty(moved.shape, target)
    _quantize.quantize(moved, fmt, values, scales, zeros, outer, channels, inner, qmin, qmax)
    if order is not None:
        values = np.asarray(values.transpose(np.argsort(order)), order="C")
    kept = zeros.reshape(shape) if (zero_point is not None or (scale is None and not symmetric)) else None
    return QuantizedArray(values, scales.reshape(shape), kept, axes)


def dequantize(q: QuantizedArray, dtype: DTypeLike = "float32") -> Array:
    """Return ``scale * (values - zero_point)``, computed in float32, rounded once to `dtype`.

    Parameters
    ----------
    q : QuantizedArray
    dtype : dtype or str
        A float type.

    Raises
    ------
    TypeError
        `q` is no :class:`QuantizedArray`, or `dtype` no float type.

    Examples
    --------
    >>> dequantize(quantize([-1.27, 0.5]))
    array([-1.27,  0.5 ], dtype=float32)
    """
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"`q` must be a QuantizedArray; received {type(q).__name__}")
    target = parse(dtype)
    if not is_float(target):
        raise TypeError(f"`dtype` must be a float type; received {target.name}")
    order, (outer, channels, inner) = _blocks(q.values.shape, q.axis)
    moved = np.asarray(q.values if order is None else q.values.transpose(order), order="C")
    scales = np.ascontiguousarray(q.scale, dtype=np.float32).reshape(-1)
    zeros = np.zeros(channels, np.int32) if q.zero_point is None else np.ascontiguousarray(q.zero_point, dtype=np.int32)
    x = np.empty(moved.shape, np.float32)
    _quantize.dequantize(moved, x, scales, zeros.reshape(-1), outer, channels, inner, q.values.dtype.name == "int8")
    if order is not None:
        x = np.asarray(x.transpose(np.argsort(order)), order="C")
    return x if target is F32 else cast(x, target)


def _axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    try:
        wanted = () if axis is None else tuple(map(index, axis)) if isinstance(axis, Iterable) else (index(axis),)
    except TypeError:
        raise TypeError(f"`axis` must be an int, a sequence of int or None; received {axis!r}") from None
    axes = tuple(sorted(i + ndim if i < 0 else i for i in wanted))
    if any(not 0 <= i < ndim for i in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"`axis` must name distinct axes of an array with {ndim}; received {axis!r}")
    return axes


def _blocks(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, ...] | None, tuple[int, int, int]]:
    """Return (order, (outer, channels, inner)): the array transposed to `order` is C-contiguous in these three.

    The scales belong to `channels`, which neighbouring `axes` make up; no transposition (None) is needed for those.
    """
    first = axes[0] if axes else 0
    if axes == tuple(range(first, first + len(axes))):
        order = None
    else:  # bring the scaled axes to the front
        order = axes + tuple(i for i in range(len(shape)) if i not in axes)
        shape, first = tuple(shape[i] for i in order), 0
    last = first + len(axes)
    return order, (_size(shape[:first]), _size(shape[first:last]), _size(shape[last:]))


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _given(value: ArrayLike, shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any, argument: str) -> Array:
    array = asarray(value, argument)
    if array.ndim == 1 and len(axes) == 1:
        array = array.reshape([-1 if i in axes else 1 for i in range(len(shape))])
    try:
        array = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"`{argument}` must broadcast to shape {shape}; received {array.shape}") from None
    if dtype is not F32 and is_float(array.dtype):
        raise TypeError(f"`{argument}` must be integers; received dtype {array.dtype}")
    if dtype is not F32 and array.size and not -256 < array.min() <= array.max() < 256:
        raise ValueError(f"`{argument}` must hold codes; received values from {array.min()} to {array.max()}")
    return np.ascontiguousarray(array, dtype=dtype).reshape(-1)


def _asymmetric(lo: Array, hi: Array, qmin: int, qmax: int) -> tuple[Array, Array]:
    """ONNX DynamicQuantizeLinear's rule, in float32: the range holds 0, so that 0 is exact."""
    lo, hi = np.minimum(lo, np.float32(0)), np.maximum(hi, np.float32(0))
    with np.errstate(over="ignore"):
        spread = hi - lo
    # A range wider than float32 can express is scaled by parts.
    scale = np.where(
        np.isfinite(spread),
        spread / np.float32(qmax - qmin),
        hi / np.float32(qmax - qmin) - lo / np.float32(qmax - qmin),
    ).astype(np.float32)
    scale = np.where(spread > 0, np.maximum(scale, np.float32(1.401298464324817e-45)), np.float32(1))
    zeros = np.clip(np.rint(np.float32(qmin) - lo / scale), qmin, qmax).astype(np.int32)
    return scale, zeros
