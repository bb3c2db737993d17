"""Quantization to 8 and 4 bits: ``x ~ scale * (q - zero_point)``, written here and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, asarray, cast, check_out
from mp_core.core import quantize as _quantize
from mp_core.dtypes import ALLOWED, STORED, is_float, parse

__all__ = ["QuantizedArray", "dequantize", "quantize"]

_I8, _U8, _I32, _I4 = ALLOWED["int8"], ALLOWED["uint8"], ALLOWED["int32"], STORED["int4"]
_HOW = _quantize.HOW


@dataclass(frozen=True)
class _Codes:
    """A type of codes: its number in the kernels, its range, how its elements are stored."""

    dtype: np.dtype[Any]
    number: int
    qmin: int
    qmax: int
    storage: np.dtype[Any]
    packed: bool = False


_CODES = {
    codes.dtype.name: codes
    for codes in (
        _Codes(_I8, 0, -128, 127, _I8),
        _Codes(_U8, 1, 0, 255, _U8),
        _Codes(_I4, 0, -8, 7, _U8, packed=True),
        _Codes(ALLOWED["float8_e4m3fn"], 2, -448, 448, ALLOWED["float8_e4m3fn"]),
        _Codes(ALLOWED["float8_e5m2"], 3, -57344, 57344, ALLOWED["float8_e5m2"]),
    )
}


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """Codes and what they stand for: ``scale * (q - zero_point)``.

    Attributes
    ----------
    values : ndarray
        The codes: int8, uint8, float8_e4m3fn or float8_e5m2. int4 codes lie in uint8, two to a byte along the last
        axis, the one with the even index in the low half.
    scale : ndarray
        float32, positive; as many axes as the array, of length 1 where the scale is shared.
    zero_point : ndarray or None
        int32, the shape of `scale`; None where all are zero (symmetric).
    axis : tuple of int
        The axes along which the scale varies; empty for one scale.
    group_size : int or None
        How many neighbours share a scale along the one axis that is not in `axis`; None: all of them. `scale` has
        ``ceil(length / group_size)`` entries along that axis.
    dtype : dtype
        The type of the codes: that of `values`, or ml_dtypes' int4. By default that of `values`.
    shape : tuple of int
        The shape of the array: that of `values`, but for int4. By default that of `values`, or with the last axis
        twice as long for int4.

    Examples
    --------
    >>> q = quantize([[-1.0, 0.5], [0.0, 2.54]], axis=0)
    >>> q.values
    array([[-127,   64],
           [   0,  127]], dtype=int8)
    >>> q.scale.ravel()
    array([0.00787402, 0.02      ], dtype=float32)
    >>> q = quantize([[1.0, -7.0, 4.0]], dtype="int4")
    >>> q.dtype, q.shape, q.values
    (dtype(int4), (1, 3), array([[145,   4]], dtype=uint8))
    """

    values: Array
    scale: Array
    zero_point: Array | None
    axis: tuple[int, ...]
    group_size: int | None = None
    dtype: np.dtype[Any] = None  # type: ignore[assignment]
    shape: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check what the kernels trust, and bring scale and zero point to their types."""
        codes = self._codes()
        shape = tuple(self.values.shape)
        if codes.packed and self.shape is None:
            shape = (*shape[:-1], 2 * shape[-1]) if shape else shape
        elif self.shape is not None:
            shape = tuple(map(index, self.shape))
        if not _stored_shape(codes, shape) == self.values.shape:
            raise ValueError(
                f"`shape` must be that of `values` as {codes.dtype}; received {shape}, {self.values.shape}"
            )
        axis = _axes(self.axis, len(shape))
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "dtype", codes.dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "group_size", _group_size(self.group_size, axis, shape))
        expected = _scale_shape(shape, axis, self.group_size)
        if self.zero_point is not None and is_float(codes.dtype):
            raise ValueError(f"`zero_point` must be None for {codes.dtype}; received {self.zero_point!r}")
        for name, dtype in (("scale", F32), ("zero_point", _I32)):
            given = getattr(self, name)
            if given is None and name == "zero_point":
                continue
            array = np.asarray(given, dtype=dtype, order="C")
            if array.shape != expected:
                raise ValueError(
                    f"`{name}` must have shape {expected} for shape {shape}, axis {axis} and group_size "
                    f"{self.group_size}; received {array.shape}"
                )
            object.__setattr__(self, name, array)

    def _codes(self) -> _Codes:
        """Return the type of the codes; raise if `values` cannot hold it."""
        found = getattr(self.values, "dtype", None)
        name = _name(found if self.dtype is None else self.dtype)
        codes = _CODES.get(name)
        if codes is None or not isinstance(self.values, np.ndarray) or found != codes.storage:
            raise TypeError(
                f"`values` must be an ndarray of int8, uint8, float8_e4m3fn or float8_e5m2, or of uint8 for int4; "
                f"received {found or type(self.values).__name__} for {name}"
            )
        return codes

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zero points together."""
        return sum(part.nbytes for part in (self.values, self.scale, self.zero_point) if part is not None)


def _trusted(
    values: Array,
    scale: Array,
    zero_point: Array | None,
    axis: tuple[int, ...],
    group_size: int | None,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
) -> QuantizedArray:
    """Return a QuantizedArray of parts that need no check: this is on the way of every int8 layer."""
    made = object.__new__(QuantizedArray)
    vars(made).update(
        values=values, scale=scale, zero_point=zero_point, axis=axis, group_size=group_size, dtype=dtype, shape=shape
    )
    return made


def quantize(
    x: ArrayLike,
    *,
    axis: int | Sequence[int] | None = None,
    dtype: DTypeLike = "int8",
    symmetric: bool = True,
    group_size: int | None = None,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike | None = None,
    out: QuantizedArray | None = None,
) -> QuantizedArray:
    """Return `x` as codes of 8 or 4 bits: ``q = clamp(round(x / scale) + zero_point)``.

    A true division, rounded to nearest even, clamped before it becomes an integer: the ONNX QuantizeLinear formula.

    Parameters
    ----------
    x : array-like
        Any shape; float types (float64 is rounded to float32 first) or integers.
    axis : int or sequence of int, optional
        The axes that keep scales of their own: 1 for one scale per column of a matrix, 0 for one per row. None: one.
    dtype : {"int8", "uint8", "int4", "float8_e4m3fn", "float8_e5m2"}
        int4 codes are packed in pairs; see :class:`QuantizedArray`.
    symmetric : bool
        Zero point 0 and a range as wide below 0 as above, so that ``scale = max|x| / largest``: 127 for int8, 7 for
        int4, 448 or 57344 for the 8-bit floats. uint8: the range [0, max x] on 0..255. False, for integers only: the
        range of `x`, widened to hold 0, on all codes: ``scale = (hi - lo) / (qmax - qmin)``,
        ``zero_point = round(qmin - lo / scale)``, the ONNX DynamicQuantizeLinear formula.
    group_size : int, optional
        How many neighbours share a scale along the one axis that `axis` leaves out; the last group may be shorter. For
        a weight (k, n), ``axis=1, group_size=64`` gives scales of shape (ceil(k / 64), n): ONNX' blocked quantization.
    scale, zero_point : array-like, optional
        Given instead of computed; broadcastable against the shape of the scales (length 1 off `axis`) or, with one
        `axis` and no groups, of shape (length,). With a given scale, codes use the full range (int8: -128..127), as
        ONNX says.
    out : QuantizedArray, optional
        Where to put the result: what a call with the same arguments returned. Its arrays are overwritten.

    Returns
    -------
    QuantizedArray
        A new one, or `out`.

    Raises
    ------
    TypeError
        `x` is not numeric, or `dtype` is none of these.
    ValueError
        `axis` is out of range or repeated; `group_size` is not positive, or `axis` does not leave out one axis; `scale`
        is not positive and finite; `zero_point` without `scale`, or outside the codes; a zero point, or
        ``symmetric=False``, for an 8-bit float; shapes that do not broadcast; an `out` of another kind.

    Notes
    -----
    Infinities go to the end of the range and do not count when a scale is computed; NaN becomes the zero point, in an
    8-bit float +0; a slice without anything to scale (empty, all zero, not finite) gets scale 1. An 8-bit float is
    ``x / scale``, clamped to its finite numbers and rounded once more, to nearest even, by :func:`mp_core.cast`.

    Examples
    --------
    >>> quantize([-1.0, 0.0, 1.55], symmetric=False, dtype="uint8").values
    array([  0, 100, 255], dtype=uint8)
    >>> quantize(np.ones((100, 3)), axis=1, group_size=64, dtype="int4").scale.shape
    (2, 3)
    """
    x = as_float(x)
    codes = _parse_codes(dtype)
    axes = _axes(axis, x.ndim)
    group = _group_size(group_size, axes, x.shape)
    x = cast(x, F32) if x.dtype is F64 else x if x.flags.c_contiguous else np.asarray(x, order="C")
    scale_shape = _scale_shape(x.shape, axes, group)
    floats = is_float(codes.dtype)
    if scale is None and zero_point is not None:
        raise ValueError("`zero_point` must be None unless `scale` is given")
    if floats and (zero_point is not None or not symmetric):
        raise ValueError(f"`zero_point` must be None and `symmetric` True for {codes.dtype}")
    with_zeros = zero_point is not None or (scale is None and not symmetric)
    if out is None:
        zeros = np.empty(scale_shape, _I32) if with_zeros else None
        values = np.empty(_stored_shape(codes, x.shape), codes.storage)
        out = _trusted(values, np.empty(scale_shape, F32), zeros, axes, group, codes.dtype, x.shape)
    else:
        x = _check_quantized_out(out, x, codes, axes, group, with_zeros)
    if scale is not None:
        given = _given(scale, scale_shape, axes, F32, "scale")
        if not (np.all(given > 0) and np.all(np.isfinite(given))):
            raise ValueError("`scale` must be positive and finite")
        if out.zero_point is not None:
            given_zeros = _given(zero_point, scale_shape, axes, _I32, "zero_point")
            if np.any(given_zeros < codes.qmin) or np.any(given_zeros > codes.qmax):
                raise ValueError(f"`zero_point` must lie in [{codes.qmin}, {codes.qmax}] for {codes.dtype}")
            out.zero_point[...] = given_zeros
        out.scale[...] = given
        how, qmin = _HOW["given"], codes.qmin
    elif symmetric:
        how, qmin = _HOW["symmetric" if codes.qmin else "positive"], -codes.qmax if codes.qmin else 0
    else:
        how, qmin = _HOW["asymmetric"], codes.qmin
    _convert(x, out, codes, how, qmin, back=False)
    return out


def dequantize(q: QuantizedArray, dtype: DTypeLike = "float32", *, out: Array | None = None) -> Array:
    """Return ``scale * (q - zero_point)``, computed in float32, rounded once to `dtype`.

    Parameters
    ----------
    q : QuantizedArray
    dtype : dtype or str
        A float type.
    out : ndarray, optional
        Where to put the result: of the shape of `q` and type `dtype`.

    Returns
    -------
    ndarray
        A new array, or `out`.

    Raises
    ------
    TypeError
        `q` is no :class:`QuantizedArray`, `dtype` no float type, or `out` not of that type.
    ValueError
        `out` has another shape than `q`, or is read-only.

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
    direct = target is not F64
    x = np.empty(q.shape, target if direct else F32) if out is None else check_out(out, q.shape, target)
    shared = (part for part in (q.values, q.scale, q.zero_point) if part is not None)
    if out is not None and (
        not direct or not x.dtype.isnative or not x.flags.carray or any(np.may_share_memory(x, part) for part in shared)
    ):
        x[...] = dequantize(q, target)
        return out
    codes = _CODES[q.dtype.name]
    _convert(x, q, codes, _HOW["given"], codes.qmin, back=True)
    return x if direct else cast(x, target)


def _convert(x: Array, q: QuantizedArray, codes: _Codes, how: int, qmin: int, *, back: bool) -> None:
    """Write the codes of `q` from `x`, or `x` from them: both C-contiguous, or about to be."""
    order, blocks, in_pairs = _blocks(q.shape, q.axis, q.group_size)
    values = q.values if q.values.flags.c_contiguous else np.asarray(q.values, order="C")
    direct = order is None and (in_pairs or not codes.packed)
    if not direct and codes.packed:
        values = _unpack(values, q.shape, signed=True) if back else np.empty(q.shape, _I8)
    shuffled = (x, values) if order is None else tuple(np.asarray(a.transpose(order), order="C") for a in (x, values))
    _quantize.convert_blocks(
        shuffled[0], FORMATS[x.dtype], shuffled[1], codes.number, direct and codes.packed, q.scale, q.zero_point,
        blocks, how, qmin, codes.qmax, codes.qmax, back,
    )  # fmt: skip
    if order is not None:
        result = shuffled[0 if back else 1].transpose(np.argsort(order))
        (x if back else values)[...] = result
    if not direct and codes.packed and not back:
        _pack(values, q.values)


def unpacked_codes(q: QuantizedArray) -> Array:
    """Return the codes of `q`, one to an element: int8 for int4."""
    return _unpack(q.values, q.shape, signed=True) if q.dtype is _I4 else q.values


def _pack(codes: Array, packed: Array) -> None:
    """Put the low halves of 8-bit `codes` into bytes, two along the last axis."""
    rows = prod(codes.shape[:-1])
    _quantize.pack_nibbles(codes.reshape(rows, codes.shape[-1]), packed.reshape(rows, packed.shape[-1]))


def _unpack(packed: Array, shape: tuple[int, ...], *, signed: bool) -> Array:
    """Return what :func:`_pack` packed, as int8 or uint8 of that shape."""
    codes, rows = np.empty(shape, _I8 if signed else _U8), prod(shape[:-1])
    _quantize.unpack_nibbles(packed.reshape(rows, packed.shape[-1]), codes.reshape(rows, shape[-1]), signed)
    return codes


def _name(dtype: Any) -> str:
    try:
        return dtype if isinstance(dtype, str) else np.dtype(dtype).name
    except (TypeError, ValueError):
        return str(dtype)


def _parse_codes(dtype: DTypeLike) -> _Codes:
    codes = _CODES.get(_name(dtype)) if dtype is not None else None
    if codes is None:
        raise TypeError(f"`dtype` must be one of {', '.join(_CODES)}; received {_name(dtype)}")
    return codes


def _axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    try:
        wanted = () if axis is None else tuple(map(index, axis)) if isinstance(axis, Iterable) else (index(axis),)
    except TypeError:
        raise TypeError(f"`axis` must be an int, a sequence of int or None; received {axis!r}") from None
    axes = tuple(sorted(i + ndim if i < 0 else i for i in wanted))
    if any(not 0 <= i < ndim for i in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"`axis` must name distinct axes of an array with {ndim}; received {axis!r}")
    return axes


def _group_size(group_size: int | None, axes: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    if group_size is None:
        return None
    try:
        size = 0 if isinstance(group_size, bool) else index(group_size)
    except TypeError:
        raise TypeError(f"`group_size` must be an int or None; received {group_size!r}") from None
    if size < 1:
        raise ValueError(f"`group_size` must be positive; received {group_size!r}")
    if len(axes) != len(shape) - 1:
        raise ValueError(
            f"`axis` must leave out one axis of an array with {len(shape)} for `group_size`; received {axes}"
        )
    return size


def _scale_shape(shape: tuple[int, ...], axes: tuple[int, ...], group: int | None) -> tuple[int, ...]:
    return tuple(length if i in axes else 1 if group is None else -(-length // group) for i, length in enumerate(shape))


def _stored_shape(codes: _Codes, shape: tuple[int, ...]) -> tuple[int, ...]:
    if codes.packed and not shape:
        raise ValueError("`x` must have an axis to be packed as int4; received shape ()")
    return (*shape[:-1], (shape[-1] + 1) // 2) if codes.packed else shape


def _check_quantized_out(
    out: Any, x: Array, codes: _Codes, axes: tuple[int, ...], group: int | None, with_zeros: bool
) -> Array:
    """Return `x`, or a copy if `out` overlaps it; raise if `out` is not what the result would be."""
    if not isinstance(out, QuantizedArray):
        raise TypeError(f"`out` must be a QuantizedArray; received {type(out).__name__}")
    has = (out.shape, out.dtype, out.axis, out.group_size, out.zero_point is not None)
    wanted = (x.shape, codes.dtype, axes, group, with_zeros)
    if has != wanted:
        raise ValueError(f"`out` must have (shape, dtype, axis, group_size, zero points?) {wanted}; received {has}")
    parts = [part for part in (out.values, out.scale, out.zero_point) if part is not None]
    if not all(part.flags.carray for part in parts):
        raise ValueError("`out` must hold writeable C-contiguous arrays")
    return x.copy() if any(np.may_share_memory(x, part) for part in parts) else x


def _blocks(
    shape: tuple[int, ...], axes: tuple[int, ...], group: int | None
) -> tuple[tuple[int, ...] | None, tuple[int, int, int, int, int, int, int, bool], bool]:
    """Return (order, blocks, in_pairs): the array, transposed to `order`, seen as `Blocks` of the kernels' drivers.

    Neighbouring axes of a kind, kept or shared, are one. Four patterns of them need no transposition (order is None):
    shared; kept, shared; [kept,] shared, kept; shared, kept, shared. Others become kept, shared. `in_pairs` says that
    codes with an even and the following odd index never part.
    """
    even = not shape or shape[-1] % 2 == 0
    if group is not None:
        split = next(i for i in range(len(shape)) if i not in axes)
        outer, length, cols = prod(shape[:split]), shape[split], prod(shape[split + 1 :])
        groups, group = -(-length // group), min(group, length)
        if cols == 1:
            return None, (outer, length, 1, length, length, group, groups, False), even and group % 2 == 0
        return None, (outer, length * cols, length, cols, cols, group, groups, True), even
    runs = [
        (kept, prod(n for _, n in run))
        for kept, run in groupby(((i in axes, n) for i, n in enumerate(shape) if n != 1), key=lambda pair: pair[0])
    ]
    order = None
    if len(runs) > 3:
        order = axes + tuple(i for i in range(len(shape)) if i not in axes)
        runs = [(True, prod(shape[i] for i in axes)), (False, prod(n for i, n in enumerate(shape) if i not in axes))]
    kinds = tuple(kept for kept, _ in runs)
    lengths = [n for _, n in runs]
    if kinds in {(), (False,), (True, False)}:
        outer, cols = ([1, 1, *lengths])[-2:] if kinds != () else (1, 1)
        return order, (outer, cols, 1, cols, cols, cols, 1, False), even
    if kinds == (False, True, False):
        rows, outer, cols = lengths
        return order, (outer, cols, rows, outer * cols, cols, rows, 1, False), even
    outer, rows, cols = ([1, 1, *lengths])[-3:]
    return order, (outer, rows * cols, rows, cols, cols, rows, 1, True), even


def _given(value: Any, shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any, argument: str) -> Array:
    array = asarray(value, argument)
    if array.ndim == 1 and len(axes) == 1 and array.size == shape[axes[0]]:
        array = array.reshape([-1 if i in axes else 1 for i in range(len(shape))])
    try:
        array = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"`{argument}` must broadcast to shape {shape}; received {array.shape}") from None
    if dtype is not F32 and is_float(array.dtype):
        raise TypeError(f"`{argument}` must be integers; received dtype {array.dtype}")
    if dtype is not F32 and array.size and not -256 < array.min() <= array.max() < 256:
        raise ValueError(f"`{argument}` must hold codes; received values from {array.min()} to {array.max()}")
    return cast(array, dtype)
