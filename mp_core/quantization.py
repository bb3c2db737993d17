"""Quantization to 8 and 4 bits: ``x ~ scale * (q - zero_point)``, written here and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby
from math import prod
from operator import index, itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arguments import axes_of, boolean
from mp_core.arrays import (
    F32,
    F64,
    FORMATS,
    I8,
    I32,
    U8,
    Array,
    as_float,
    asarray,
    cast,
    check_out,
    imported_all,
    refuse_masked,
)
from mp_core.core import quantize as _quantize
from mp_core.core.matmul import matmul
from mp_core.core.quantize import dequantize, quantize
from mp_core.dtypes import ALLOWED, STORED, is_float, name_of, parse

__all__ = ["QuantizedArray", "dequantize", "quantize"]

_I4 = STORED["int4"]


@dataclass(frozen=True)
class _Codes:
    """A type of codes: its range, how its elements are stored."""

    dtype: np.dtype[Any]
    qmin: int
    qmax: int
    storage: np.dtype[Any]
    packed: bool = False
    is_float: bool = False


_CODES = {
    codes.dtype.name: codes
    for codes in (
        _Codes(I8, -128, 127, I8),
        _Codes(U8, 0, 255, U8),
        _Codes(_I4, -8, 7, U8, packed=True),
        _Codes(ALLOWED["float8_e4m3fn"], -448, 448, ALLOWED["float8_e4m3fn"], is_float=True),
        _Codes(ALLOWED["float8_e5m2"], -57344, 57344, ALLOWED["float8_e5m2"], is_float=True),
    )
}


class _Plan(NamedTuple):
    """How the elements of an array, its scales and the kernels' `Blocks` belong together."""

    axes: tuple[int, ...]
    group_size: int | None
    scale_shape: tuple[int, ...]
    order: tuple[int, ...] | None  # the array must be transposed to it first
    blocks: tuple[int, int, int, int, int, int, int, bool]
    in_pairs: bool  # codes with an even and the following odd index never part


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """Codes and what they stand for: ``scale * (q - zero_point)``.

    Attributes
    ----------
    values : ndarray
        The codes: int8, uint8, float8_e4m3fn or float8_e5m2. int4 codes lie in uint8, two to a byte along the last
        axis, the one with the even index in the low half.
    scale : ndarray
        float32, positive where :func:`quantize` made it; as many axes as the array, of length 1 where it is shared.
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
    dtype: Any = None
    shape: Any = None

    def __post_init__(self) -> None:
        """Check what the kernels trust, and bring scale and zero point to their types."""
        if isinstance(self.values, np.ndarray):
            refuse_masked(self.values, "values")
            object.__setattr__(self, "values", np.asarray(self.values))  # a subclass may have a shape of its own
        codes = self._codes()
        shape = tuple(self.values.shape)
        if codes.packed and self.shape is None:
            shape = (*shape[:-1], 2 * shape[-1]) if shape else shape
        elif self.shape is not None:
            shape = tuple(map(index, self.shape))
        if min(shape, default=0) < 0 or _stored_shape(codes, shape) != self.values.shape:
            raise ValueError(
                f"`shape` must be that of `values` as {codes.dtype}; received {shape}, {self.values.shape}"
            )
        plan = _planned(shape, self.axis, self.group_size)
        expected = plan.scale_shape
        for name, value in (
            ("axis", plan.axes),
            ("group_size", plan.group_size),
            ("dtype", codes.dtype),
            ("shape", shape),
        ):
            object.__setattr__(self, name, value)
        if self.zero_point is not None and codes.is_float:
            raise ValueError(f"`zero_point` must be None for {codes.dtype}; received {self.zero_point!r}")
        for name, dtype in (("scale", F32), ("zero_point", I32)):
            given = getattr(self, name)
            if given is None and name == "zero_point":
                continue
            given = asarray(given, name)
            if name == "zero_point":
                _check_zeros(given, codes)
            array = np.require(given if given.dtype is dtype else cast(given, dtype), requirements=("C", "A"))
            if array.shape != expected:
                raise ValueError(
                    f"`{name}` must have shape {expected} for shape {shape}, axis {self.axis} and "
                    f"group_size {self.group_size}; received {array.shape}"
                )
            object.__setattr__(self, name, array)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # what comes back is checked

    __array_ufunc__ = None  # of NumPy's operators only @ knows a quantized array

    def __matmul__(self, other: Any) -> Array:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return matmul(other, self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise TypeError("a QuantizedArray is no array: dequantize() returns what it stands for, `values` has the codes")

    def _codes(self) -> _Codes:
        """Return the type of the codes; raise if `values` cannot hold it."""
        found = getattr(self.values, "dtype", None)
        name = _name(found if self.dtype is None else self.dtype)
        codes = _CODES.get(name)
        if codes is None or not isinstance(self.values, np.ndarray) or found != codes.storage:
            raise TypeError(
                f"`values` must be an ndarray of int8, uint8, float8_e4m3fn or float8_e5m2, or of uint8 for int4; "
                f"received {type(self.values).__name__} of {found} for {name}"
            )
        return codes

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zero points together."""
        return sum(part.nbytes for part in (self.values, self.scale, self.zero_point) if part is not None)


def _quantize_any(
    x: ArrayLike,
    axis: int | Sequence[int] | None,
    dtype: DTypeLike,
    symmetric: bool,
    group_size: int | None,
    scale: ArrayLike | None,
    zero_point: ArrayLike | None,
    out: QuantizedArray | None,
) -> QuantizedArray:
    """:func:`quantize` for all arguments."""
    codes, axis, group_size = _parse_codes(dtype), _int_or_axes(axis), _int_or_none(group_size)
    symmetric = boolean(symmetric, "symmetric")
    x, scale, zero_point = imported_all(("x", "scale", "zero_point"), x, scale, zero_point)
    x = _readable(x)
    plan = _plan(x.shape, axis, group_size)
    if scale is None and zero_point is not None:
        raise ValueError("`zero_point` must be None unless `scale` is given")
    if codes.is_float and (zero_point is not None or not symmetric):
        raise ValueError(f"`zero_point` must be None and `symmetric` True for {codes.dtype}")
    with_zeros = zero_point is not None or (scale is None and not symmetric)
    given = None if scale is None else _given_scale(scale, plan)
    given_zeros = None if zero_point is None else _given_zeros(zero_point, plan, codes)
    if out is None:
        zeros = np.zeros(plan.scale_shape, I32) if with_zeros else None
        values = np.empty(_stored_shape(codes, x.shape), codes.storage)
        scales = np.empty(plan.scale_shape, F32)
        out = QuantizedArray(values, scales, zeros, plan.axes, plan.group_size, codes.dtype, x.shape)
    else:
        x = _check_quantized_out(out, x, codes, plan, with_zeros)
    if given is not None:
        out.scale[...] = given
        if out.zero_point is not None:
            out.zero_point[...] = given_zeros
    _convert(x, out, codes, plan, symmetric, given is not None, False)
    return out


def _dequantize_any(q: QuantizedArray, dtype: DTypeLike, out: Array | None) -> Array:
    """:func:`dequantize` for all arguments."""
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
    _convert(x, q, codes, _plan(q.shape, q.axis, q.group_size), True, True, True)
    if out is not None:
        return out
    return x if direct else cast(x, target)


def _convert(x: Array, q: QuantizedArray, codes: _Codes, plan: _Plan, symmetric: bool, given: bool, back: bool) -> None:
    """Write the codes (and scales, unless `given`) of `q` from the C-contiguous `x`, or `x` from them."""
    check_unchanged(q)
    values = q.values if q.values.flags.c_contiguous else np.asarray(q.values, order="C")
    packed, order = codes.packed and plan.in_pairs and plan.order is None, plan.order
    if codes.packed and not packed:
        values = _unpack(values, q.shape) if back else np.empty(q.shape, I8)
    a, b = (x, values) if order is None else (np.asarray(part.transpose(order), order="C") for part in (x, values))
    recipe = _recipe(q.shape, q.axis, q.dtype, symmetric, q.group_size)
    recipe.convert(a, FORMATS[x.dtype], b, q.scale, q.zero_point, given, back, packed)
    if order is not None:
        (x if back else values)[...] = (a if back else b).transpose(np.argsort(order))
    if codes.packed and not packed and not back:
        _pack(values, q.values)


@lru_cache(1024, typed=True)
def _recipe(
    shape: tuple[int, ...],
    axis: int | tuple[int, ...] | None,
    dtype: DTypeLike,
    symmetric: bool,
    group_size: int | None,
) -> _quantize.Recipe:
    """Return what the short way needs to know; raise for what cannot be."""
    codes, plan = _parse_codes(dtype), _planned(shape, axis, group_size)
    if codes.is_float and not symmetric:
        raise ValueError(f"`zero_point` must be None and `symmetric` True for {codes.dtype}")
    return _quantize.Recipe(
        shape,
        _stored_shape(codes, shape),
        codes.storage,
        codes.dtype,
        _quantize.CODES[codes.dtype.name],
        codes.packed,
        codes.qmin,
        codes.qmax,
        plan.axes,
        plan.group_size,
        plan.scale_shape,
        plan.blocks,
        plan.order is None and (plan.in_pairs or not codes.packed),
        symmetric,
    )


_quantize.install(FORMATS, QuantizedArray, _recipe, _quantize_any, _dequantize_any)


def unpacked_codes(q: QuantizedArray) -> Array:
    """Return the codes of `q`, one to an element: int8 for int4."""
    check_unchanged(q)
    return _unpack(q.values, q.shape) if q.dtype is _I4 else q.values


def check_unchanged(q: QuantizedArray) -> None:
    """Raise if the arrays of `q`, which were checked when it was made, are others to the kernels now."""
    codes, scale_shape = _CODES[name_of(q.dtype)], _planned(q.shape, q.axis, q.group_size).scale_shape
    expected = [(_stored_shape(codes, q.shape), codes.storage), (scale_shape, F32), (scale_shape, I32)]
    has = [(part.shape, part.dtype) for part in (q.values, q.scale, q.zero_point) if part is not None]
    if has != expected[: len(has)] or not all(x is None or x.flags.c_contiguous for x in (q.scale, q.zero_point)):
        raise ValueError(
            f"The arrays of a QuantizedArray must keep their shapes and types {expected[: len(has)]}, and scales their "
            f"order in memory; received {has}"
        )


def _pack(codes: Array, packed: Array) -> None:
    """Put the low halves of 8-bit `codes` into bytes, two along the last axis."""
    rows = prod(codes.shape[:-1])
    _quantize.pack_nibbles(codes.reshape(rows, codes.shape[-1]), packed.reshape(rows, packed.shape[-1]))


def _unpack(packed: Array, shape: tuple[int, ...]) -> Array:
    """Return what :func:`_pack` packed, as int8 of that shape."""
    codes, rows, packed = np.empty(shape, I8), prod(shape[:-1]), np.asarray(packed, order="C")
    _quantize.unpack_nibbles(packed.reshape(rows, packed.shape[-1]), codes.reshape(rows, shape[-1]), True)
    return codes


def _readable(x: ArrayLike) -> Array:
    """Return `x` as a C-contiguous array that the kernels read."""
    x = as_float(x)
    return np.asarray(cast(x, F32) if x.dtype is F64 else x, order="C")


def _name(dtype: Any) -> str:
    try:
        return dtype if isinstance(dtype, str) else name_of(np.dtype(dtype))
    except (TypeError, ValueError):
        return str(dtype)


def _parse_codes(dtype: DTypeLike) -> _Codes:
    codes = _CODES.get(_name(dtype)) if dtype is not None else None
    if codes is None:
        received = "None" if dtype is None else _name(dtype)
        raise TypeError(f"`dtype` must be one of {', '.join(_CODES)}; received {received}")
    return codes


def _planned(shape: tuple[int, ...], axis: int | Sequence[int] | None, group_size: int | None) -> _Plan:
    """Return the plan of these arguments, whatever a caller gave."""
    return _plan(shape, _int_or_axes(axis), _int_or_none(group_size))


def _int_or_axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    return axis if axis is None or type(axis) is int else axes_of(axis, "an int, a sequence of int or None")


def _int_or_none(group_size: int | None) -> int | None:
    try:
        return group_size if group_size is None else 0 if isinstance(group_size, bool) else index(group_size)
    except TypeError:
        raise TypeError(f"`group_size` must be an int or None; received {group_size!r}") from None


def _axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    wanted = () if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = tuple(sorted(i + ndim if i < 0 else i for i in wanted))
    if any(not 0 <= i < ndim for i in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"`axis` must name distinct axes of an array with {ndim} axes; received {axis!r}")
    return axes


def _stored_shape(codes: _Codes, shape: tuple[int, ...]) -> tuple[int, ...]:
    if codes.packed and not shape:
        raise ValueError("`x` must have an axis to be packed as int4; received shape ()")
    return (*shape[:-1], (shape[-1] + 1) // 2) if codes.packed else shape


def _check_quantized_out(out: Any, x: Array, codes: _Codes, plan: _Plan, with_zeros: bool) -> Array:
    """Return `x`, or a copy if `out` overlaps it; raise if `out` is not what the result would be."""
    if not isinstance(out, QuantizedArray):
        raise TypeError(f"`out` must be a QuantizedArray; received {type(out).__name__}")
    has = (out.shape, out.dtype, out.axis, out.group_size, out.zero_point is not None)
    wanted = (x.shape, codes.dtype, plan.axes, plan.group_size, with_zeros)
    if has != wanted:
        raise ValueError(f"`out` must have (shape, dtype, axis, group_size, zero points?) {wanted}; received {has}")
    parts = {"values": out.values, "scale": out.scale} | (
        {} if out.zero_point is None else {"zero_point": out.zero_point}
    )
    for name, part in parts.items():
        if not part.flags.carray:
            raise ValueError(f"`out` must hold writeable C-contiguous arrays; received another as `{name}`")
    return x.copy() if any(np.may_share_memory(x, part) for part in parts.values()) else x


@lru_cache(1024)
def _plan(shape: tuple[int, ...], axis: int | tuple[int, ...] | None, group_size: int | None) -> _Plan:
    """Return the plan; raise for what cannot be.

    Neighbouring axes of a kind, kept or shared, are one. Four patterns of them need no transposition: shared; kept,
    shared; [kept,] shared, kept; shared, kept, shared. Others become kept, shared.
    """
    axes = _axes(axis, len(shape))
    even = not shape or shape[-1] % 2 == 0
    if group_size is not None:
        if group_size < 1:
            raise ValueError(f"`group_size` must be positive; received {group_size}")
        if len(axes) != len(shape) - 1:
            raise ValueError(
                f"`axis` must leave out one axis of an array with {len(shape)} axes for `group_size`; received {axis!r}"
            )
        split = next(i for i in range(len(shape)) if i not in axes)
        outer, length, cols = prod(shape[:split]), shape[split], prod(shape[split + 1 :])
        groups, group = -(-length // group_size), min(group_size, length)
        scales = (*shape[:split], groups, *shape[split + 1 :])
        if cols == 1:
            runs = (outer, length, 1, length, length, group, groups, False)
            return _Plan(axes, group_size, scales, None, runs, even and group % 2 == 0)
        columns = (outer, length * cols, length, cols, cols, group, groups, True)
        return _Plan(axes, group_size, scales, None, columns, even)
    scales, order = tuple(length if i in axes else 1 for i, length in enumerate(shape)), None
    kinds = [(i in axes, n) for i, n in enumerate(shape) if n != 1]
    merged = [(kept, prod(n for _, n in run)) for kept, run in groupby(kinds, key=itemgetter(0))]
    if len(merged) > 3:
        order = axes + tuple(i for i in range(len(shape)) if i not in axes)
        merged = [(kept, prod(n for same, n in kinds if same is kept)) for kept in (True, False)]
    kept = [kind for kind, _ in merged]
    first, second, last = ([1, 1, 1] + [n for _, n in merged])[-3:]
    if not kept or (kept[-1] is False and len(kept) < 3):
        return _Plan(axes, None, scales, order, (second, last, 1, last, last, last, 1, False), even)
    if kept == [False, True, False]:
        return _Plan(axes, None, scales, None, (second, last, first, second * last, last, first, 1, False), even)
    return _Plan(axes, None, scales, None, (first, second * last, second, last, last, second, 1, True), even)


def _given(value: Any, plan: _Plan, argument: str) -> Array:
    """Return `value` in the shape of the scales."""
    array = asarray(value, argument)
    axes, shape = plan.axes, plan.scale_shape
    if array.shape == shape:
        return array
    if array.ndim == 1 and len(axes) == 1 and plan.group_size is None and array.size == shape[axes[0]]:
        array = array.reshape([-1 if i in axes else 1 for i in range(len(shape))])
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"`{argument}` must broadcast to shape {shape}; received {array.shape}") from None


def _given_scale(scale: Any, plan: _Plan) -> Array:
    if type(scale) is float and 1e-30 < scale < 1e30:  # the common case needs no array
        return scale  # type: ignore[return-value]
    array = _given(scale, plan, "scale")
    array = np.asarray(array if array.dtype is F32 else cast(array, F32), order="C")
    if not _quantize.positive_and_finite(array):
        raise ValueError(f"`scale` must be positive and finite; received {array.min()} to {array.max()}")
    return array


def _given_zeros(zero_point: Any, plan: _Plan, codes: _Codes) -> Array | int:
    if type(zero_point) is int and codes.qmin <= zero_point <= codes.qmax:
        return zero_point
    array = _given(zero_point, plan, "zero_point")
    _check_zeros(array, codes)
    return array


def _check_zeros(array: Array, codes: _Codes) -> None:
    if array.dtype.kind not in "iu":
        raise TypeError(f"`zero_point` must be integers; received dtype {array.dtype}")
    if array.size and not codes.qmin <= array.min() <= array.max() <= codes.qmax:
        raise ValueError(
            f"`zero_point` must lie in [{codes.qmin}, {codes.qmax}] for {codes.dtype}; received {array.min()} to "
            f"{array.max()}"
        )
