"""Quantization to 4, 8 and 16 bits: ``x ~ scale * (q - zero_point)``, written here and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arguments import axis_of, boolean, integer
from mp_core.arrays import (
    F32,
    F64,
    FORMATS,
    I8,
    I32,
    Array,
    as_float,
    asarray,
    cast,
    check_out,
    imported,
    imported_all,
    refuse_masked,
)
from mp_core.codes import CODES, Codes, Plan, int_or_axes, int_or_none, parse_codes, plan_of, spelled, stored_shape
from mp_core.core import quantize as _quantize
from mp_core.core.quantize import dequantize, quantize
from mp_core.dtypes import is_float, name_of, parse
from mp_core.products.matmul import matmul
from mp_core.products.quantized import Quantized

__all__ = ["QuantizedArray", "dequantize", "quantize"]


@dataclass(frozen=True, eq=False)
class QuantizedArray(Quantized):
    """Codes and what they stand for: ``scale * (q - zero_point)``.

    Made by :func:`quantize`, or of codes that another tool made: `scale` and `zero_point` may then be given as
    :func:`quantize` takes them, and `values` as an array of ml_dtypes' int4 or uint4. What comes from ONNX, where
    `axis` and `block_size` mean something else, is taken by :meth:`from_onnx`.

    Attributes
    ----------
    values : ndarray
        The codes: int8, uint8, int16, uint16, float8_e4m3fn or float8_e5m2. int4 and uint4 codes lie in uint8, two to a
        byte along the last axis, the one with the even index in the low half.
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
        The type of the codes: that of `values`, or ml_dtypes' int4 or uint4. By default that of `values`.
    shape : tuple of int
        The shape of the array: that of `values`, but for int4 and uint4. By default that of `values`, or with the last
        axis twice as long where `dtype` says that bytes are int4 or uint4.

    Raises
    ------
    TypeError
        `values` is no ndarray of these types, `scale` is not numeric, or `zero_point` not of integers.
    ValueError
        Shapes do not fit; `axis` or `group_size` is none of this shape; a zero point is outside the codes, or given for
        an 8-bit float.

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
    >>> dequantize(QuantizedArray(np.array([[1, 2], [3, 4]], np.int8), [1.0, 0.5], axis=1))
    array([[1., 1.],
           [3., 2.]], dtype=float32)
    """

    values: Array
    scale: Any
    zero_point: Any = None
    axis: Any = ()
    group_size: int | None = None
    dtype: Any = None
    shape: Any = None

    def __post_init__(self) -> None:
        """Check what the kernels trust, and bring scale and zero point to their types."""
        if isinstance(self.values, np.ndarray):
            refuse_masked(self.values, "values")
            self._set(values=np.asarray(self.values))  # a subclass may have a shape of its own
            self._pack_nibbles()
        codes = self._codes()
        shape = tuple(self.values.shape)
        if codes.packed and self.shape is None:
            shape = (*shape[:-1], 2 * shape[-1]) if shape else shape
        elif self.shape is not None:
            shape = tuple(map(index, self.shape))
        if min(shape, default=0) < 0 or stored_shape(codes, shape) != self.values.shape:
            raise ValueError(
                f"`shape` must be that of `values` as {codes.dtype}; received {shape}, {self.values.shape}"
            )
        plan = plan_of(shape, self.axis, self.group_size)
        self._set(axis=plan.axes, group_size=plan.group_size, dtype=codes.dtype, shape=shape)
        if self.zero_point is not None and codes.is_float:
            raise ValueError(f"`zero_point` must be None for {codes.dtype}; received {self.zero_point!r}")
        scale = _given(self.scale, plan, "scale")
        self._set(scale=np.require(scale if scale.dtype is F32 else cast(scale, F32), requirements=("C", "A")))
        if self.zero_point is not None:
            zeros = _given(self.zero_point, plan, "zero_point")
            _check_zeros(zeros, codes)
            self._set(zero_point=np.require(zeros, I32, requirements=("C", "A")))

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _pack_nibbles(self) -> None:
        """Pack values of ml_dtypes' int4 or uint4, which take a byte each, two to a byte."""
        codes = CODES.get(name_of(self.values.dtype))
        if codes is None or not codes.packed or (self.dtype is not None and spelled(self.dtype) != codes.dtype.name):
            return
        shape = self.values.shape
        if self.shape is not None and tuple(self.shape) != shape:
            raise ValueError(f"`shape` must be that of `values` of {codes.dtype}; received {self.shape}, {shape}")
        packed = np.empty(stored_shape(codes, shape), codes.storage)
        _pack(np.asarray(self.values, order="C").view(I8), packed)
        self._set(values=packed, dtype=codes.dtype, shape=shape)

    @classmethod
    def from_onnx(
        cls, values: Array, scale: ArrayLike, zero_point: ArrayLike | None = None, axis: int = 1, block_size: int = 0
    ) -> "QuantizedArray":
        """Return the codes and scales of ONNX' QuantizeLinear and DequantizeLinear.

        Parameters
        ----------
        values : ndarray
            The codes, one to an element: int8, uint8, int16, uint16, a float8 type, or ml_dtypes' int4 or uint4.
        scale : array-like
            One scale (shape () or (1,)); one for each index of `axis`; or, with a `block_size`, as many axes as
            `values`.
        zero_point : array-like, optional
            Of the shape of `scale`, and of the type of `values`; of a float8 type, it must be zero.
        axis : int
            The axis that has scales of its own, or that blocks divide. :class:`QuantizedArray` names the axes that
            blocks do not divide instead.
        block_size : int
            How many neighbours along `axis` share a scale; 0: there are no blocks.

        Raises
        ------
        TypeError, ValueError
            As for :class:`QuantizedArray`.

        Examples
        --------
        >>> codes = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.uint8)
        >>> dequantize(QuantizedArray.from_onnx(codes, [[1.0, 0.5], [2.0, 1.0]], axis=1, block_size=2))
        array([[ 1. ,  2. ,  1.5,  2. ],
               [10. , 12. ,  7. ,  8. ]], dtype=float32)
        """
        if not isinstance(values, np.ndarray):
            raise TypeError(f"`values` must be an ndarray; received {type(values).__name__}")
        values, scale = imported(values, "values"), imported(scale, "scale")
        block_size = integer(block_size, "block_size")
        if block_size < 0:
            raise ValueError(f"`block_size` must not be negative; received {block_size}")
        axes: tuple[int, ...] = ()
        if block_size:
            split = axis_of(axis, values.ndim)
            axes = tuple(i for i in range(values.ndim) if i != split)
        elif scale.size != 1:
            axes = (axis_of(axis, values.ndim),)
        if zero_point is not None and "float8" in name_of(values.dtype):
            if np.any(np.asarray(zero_point, np.float32) != 0):
                raise ValueError(f"`zero_point` must be zero for {values.dtype}; received {zero_point!r}")
            zero_point = None
        return cls(values, scale, zero_point, axes, block_size or None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # what comes back is checked

    __array_ufunc__ = None  # of NumPy's operators only @ knows a quantized array

    def __matmul__(self, other: Any) -> Array:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return matmul(other, self)

    def _check(self) -> None:
        check_unchanged(self)

    def _elements(self) -> Array:
        return unpacked_codes(self)

    def _numbers(self, dtype: np.dtype[Any]) -> Array:
        return dequantize(self, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise TypeError("a QuantizedArray is no array: dequantize() returns what it stands for, `values` has the codes")

    def _codes(self) -> Codes:
        """Return the type of the codes; raise if `values` cannot hold it."""
        found = getattr(self.values, "dtype", None)
        name = spelled(found if self.dtype is None else self.dtype)
        codes = CODES.get(name)
        if codes is None or not isinstance(self.values, np.ndarray) or found != codes.storage:
            raise TypeError(
                f"`values` must be an ndarray of {', '.join(CODES)}, or of uint8 for int4 and uint4; received "
                f"{type(self.values).__name__} of {found} for {name}"
            )
        return codes

    @property
    def T(self) -> "QuantizedArray":  # noqa: N802
        """The array with its axes in reverse order; of 4-bit codes a copy, of others a view.

        Examples
        --------
        >>> q = quantize([[-1.0, 0.5], [0.0, 2.54]], axis=0)
        >>> q.T.shape, q.T.axis, q.T.values.base is q.values
        ((2, 2), (1,), True)
        """
        codes, shape = CODES[name_of(self.dtype)], self.shape[::-1]
        values = self.values.T
        if codes.packed:
            values = np.empty(stored_shape(codes, shape), codes.storage)
            _pack(np.asarray(unpacked_codes(self).T, order="C"), values)
        zero = None if self.zero_point is None else self.zero_point.T
        axis = tuple(len(shape) - 1 - i for i in self.axis)
        return QuantizedArray(values, self.scale.T, zero, axis, self.group_size, codes.dtype, shape)

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
    codes, axis, group_size = parse_codes(dtype), int_or_axes(axis), int_or_none(group_size)
    symmetric = boolean(symmetric, "symmetric")
    x, scale, zero_point = imported_all(("x", "scale", "zero_point"), x, scale, zero_point)
    x = _readable(x)
    plan = plan_of(x.shape, axis, group_size)
    if scale is None and zero_point is not None:
        raise ValueError("`zero_point` must be None unless `scale` is given")
    if codes.is_float and (zero_point is not None or not symmetric):
        raise ValueError(f"`zero_point` must be None and `symmetric` True for {codes.dtype}")
    if codes.is_wide and scale is None:
        raise ValueError(f"`scale` must be given for {codes.dtype}; received None")
    with_zeros = zero_point is not None or (scale is None and not symmetric)
    given = None if scale is None else _given_scale(scale, plan)
    given_zeros = None if zero_point is None else _given_zeros(zero_point, plan, codes)
    if out is None:
        zeros = np.zeros(plan.scale_shape, I32) if with_zeros else None
        values = np.empty(stored_shape(codes, x.shape), codes.storage)
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
    codes = CODES[q.dtype.name]
    _convert(x, q, codes, plan_of(q.shape, q.axis, q.group_size), True, True, True)
    if out is not None:
        return out
    return x if direct else cast(x, target)


def _convert(x: Array, q: QuantizedArray, codes: Codes, plan: Plan, symmetric: bool, given: bool, back: bool) -> None:
    """Write the codes (and scales, unless `given`) of `q` from the C-contiguous `x`, or `x` from them."""
    check_unchanged(q)
    if codes.is_wide:
        _convert_wide(x, q, codes, back)
        return
    values = q.values if q.values.flags.c_contiguous else np.asarray(q.values, order="C")
    packed, order = codes.packed and plan.in_pairs and plan.order is None, plan.order
    if codes.packed and not packed:
        values = _unpack(values, q.shape, codes) if back else np.empty(q.shape, I8)
    a, b = (x, values) if order is None else (np.asarray(part.transpose(order), order="C") for part in (x, values))
    recipe = _recipe(q.shape, q.axis, q.dtype, symmetric, q.group_size)
    recipe.convert(a, FORMATS[x.dtype], b, q.scale, q.zero_point, given, back, packed)
    if order is not None:
        (x if back else values)[...] = (a if back else b).transpose(np.argsort(order))
    if codes.packed and not packed and not back:
        _pack(values, q.values)


def _convert_wide(x: Array, q: QuantizedArray, codes: Codes, back: bool) -> None:
    """:func:`_convert` for codes of 16 bits, whose scales are given, by NumPy."""
    scale, zero = for_each_element(q.scale, q), 0 if q.zero_point is None else for_each_element(q.zero_point, q)
    with np.errstate(over="ignore", invalid="ignore"):
        if back:
            cast((q.values.astype(I32) - zero).astype(F32) * scale, x.dtype, out=x)
            return
        steps = np.rint(cast(x, F32) / scale)
    steps[np.isnan(steps)] = 0
    q.values[...] = np.clip(steps + zero, codes.qmin, codes.qmax)


def for_each_element(part: Array, q: QuantizedArray) -> Array:
    """Return scales or zero points of `q` in a shape that broadcasts against the elements."""
    if q.group_size is None:
        return part
    split = next(i for i in range(len(q.shape)) if i not in q.axis)
    return np.take(part, np.arange(q.shape[split]) // q.group_size, split)


@lru_cache(1024, typed=True)
def _recipe(
    shape: tuple[int, ...],
    axis: int | tuple[int, ...] | None,
    dtype: DTypeLike,
    symmetric: bool,
    group_size: int | None,
) -> _quantize.Recipe:
    """Return what the fast path needs to know; raise for arguments that do not fit each other."""
    codes, plan = parse_codes(dtype), plan_of(shape, axis, group_size)
    if codes.is_float and not symmetric:
        raise ValueError(f"`zero_point` must be None and `symmetric` True for {codes.dtype}")
    return _quantize.Recipe(
        shape,
        stored_shape(codes, shape),
        codes.storage,
        codes.dtype,
        0 if codes.is_wide else _quantize.CODES[codes.dtype.name],
        codes.packed,
        codes.qmin,
        codes.qmax,
        plan.axes,
        plan.group_size,
        plan.scale_shape,
        plan.blocks,
        plan.order is None and (plan.in_pairs or not codes.packed) and not codes.is_wide,
        symmetric,
    )


_quantize.install(FORMATS, QuantizedArray, _recipe, _quantize_any, _dequantize_any)


def unpacked_codes(q: QuantizedArray) -> Array:
    """Return the codes of `q`, one to an element: int8 for int4 and uint4."""
    check_unchanged(q)
    codes = CODES[name_of(q.dtype)]
    return _unpack(q.values, q.shape, codes) if codes.packed else q.values


def check_unchanged(q: QuantizedArray) -> None:
    """Raise if the arrays of `q`, which were checked when it was made, are others to the kernels now."""
    codes, scale_shape = CODES[name_of(q.dtype)], plan_of(q.shape, q.axis, q.group_size).scale_shape
    expected = [(stored_shape(codes, q.shape), codes.storage), (scale_shape, F32), (scale_shape, I32)]
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


def _unpack(packed: Array, shape: tuple[int, ...], kind: Codes) -> Array:
    """Return what :func:`_pack` packed, as int8 of that shape."""
    codes, rows, packed = np.empty(shape, I8), prod(shape[:-1]), np.asarray(packed, order="C")
    _quantize.unpack_nibbles(packed.reshape(rows, packed.shape[-1]), codes.reshape(rows, shape[-1]), kind.qmin < 0)
    return codes


def _readable(x: ArrayLike) -> Array:
    """Return `x` as a C-contiguous array that the kernels read."""
    x = as_float(x)
    return np.asarray(cast(x, F32) if x.dtype is F64 else x, order="C")


def _check_quantized_out(out: Any, x: Array, codes: Codes, plan: Plan, with_zeros: bool) -> Array:
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


def _given(value: Any, plan: Plan, argument: str) -> Array:
    """Return `value` in the shape of the scales."""
    if isinstance(value, np.ndarray) and name_of(value.dtype) in ("int4", "uint4"):
        value = value.astype(I8)
    array = asarray(value, argument)
    axes, shape = plan.axes, plan.scale_shape
    if array.shape == shape:
        return array
    if array.ndim == 1 and len(axes) == 1 and plan.group_size is None and array.size == shape[axes[0]]:
        array = array.reshape([-1 if i in axes else 1 for i in range(len(shape))])
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        raise ValueError(f"`{argument}` must broadcast to shape {shape}; received shape {array.shape}") from None


def _given_scale(scale: Any, plan: Plan) -> Array:
    if type(scale) is float and 1e-30 < scale < 1e30:  # the common case needs no array
        return scale  # type: ignore[return-value]
    array = _given(scale, plan, "scale")
    array = np.asarray(array if array.dtype is F32 else cast(array, F32), order="C")
    if not _quantize.positive_and_finite(array):
        raise ValueError(f"`scale` must be positive and finite; received {array.min()} to {array.max()}")
    return array


def _given_zeros(zero_point: Any, plan: Plan, codes: Codes) -> Array | int:
    if type(zero_point) is int and codes.qmin <= zero_point <= codes.qmax:
        return zero_point
    array = _given(zero_point, plan, "zero_point")
    _check_zeros(array, codes)
    return array


def _check_zeros(array: Array, codes: Codes) -> None:
    if array.dtype.kind not in "iu":
        raise TypeError(f"`zero_point` must be integers; received dtype {array.dtype}")
    if array.size and not codes.qmin <= array.min() <= array.max() <= codes.qmax:
        raise ValueError(
            f"`zero_point` must lie in [{codes.qmin}, {codes.qmax}] for {codes.dtype}; received {array.min()} to "
            f"{array.max()}"
        )
