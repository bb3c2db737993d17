"""The quantized array: codes, scales and zero points, checked once when it is made."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, I8, I32, Array, asarray, cast, imported, out_of_band, refuse_masked
from mp_core.arrays.dtypes import STORED, name_of
from mp_core.arrays.quantization.codes import CODES, Codes, Plan, plan_of, spelled, stored_shape
from mp_core.arrays.quantization.recipe import QuantizedFields, Recipe, pack_nibbles, unpack_nibbles
from mp_core.utilities.arguments import axis_of, integer
from mp_core.utilities.html import html_table

_SHOWN = 64  # repr shows the codes of arrays with at most this many
_NO_ARRAY = "dequantize() returns its values as floats, and `values` has the codes"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class QuantizedArray(QuantizedFields):
    """A quantized array: codes q with the values ``scale * (q - zero_point)``.

    :func:`quantize` makes it. To make one from codes of another tool, pass `scale` and `zero_point` as to
    :func:`quantize`; `values` may be an array of ml_dtypes' int4, uint4 or float4_e2m1fn, and `scale` one of
    float8_e8m0fnu. For ONNX, where `axis` and `block_size` have other meanings, use :meth:`from_onnx`.

    Attributes
    ----------
    values : ndarray
        The codes: int8, uint8, int16, uint16, float8_e4m3fn or float8_e5m2. int4, uint4 and float4_e2m1fn codes are
        stored in uint8, two in a byte along the last axis, the one with the even index in the low half.
    scale : ndarray
        float32 (positive if :func:`quantize` made it), with as many axes as the array, of length 1 where it is shared.
    zero_point : ndarray or None
        int32, the shape of `scale`. None: all are zero (symmetric).
    axis : tuple of int
        The axes along which the scale varies; empty for a single scale.
    group_size : int or None
        The number of neighbours that share a scale along the one axis that is not in `axis`. None: all of them.
        `scale` has ``ceil(length / group_size)`` entries along that axis.
    dtype : dtype
        The type of the codes: the dtype of `values` (default), or ml_dtypes' int4, uint4 or float4_e2m1fn.
    shape : tuple of int
        The shape of the array. Default: the shape of `values`; for 4-bit codes stored in bytes, with twice the
        length of the last axis.

    Examples
    --------
    >>> from mp_core import dequantize, quantize
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
    zero_point: Any
    axis: Any
    group_size: int | None
    dtype: Any
    shape: Any

    def __init__(
        self,
        values: Array,
        scale: ArrayLike,
        zero_point: ArrayLike | None = None,
        axis: int | Sequence[int] = (),
        group_size: int | None = None,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        if isinstance(values, np.ndarray):
            refuse_masked(values, "values")
            values = np.asarray(values)  # a subclass may have a shape of its own
            values, dtype, shape = _in_pairs(values, dtype, shape)
        codes = _codes_of(values, dtype)
        lengths = values.shape if shape is None else _lengths(shape)
        if codes.packed and shape is None and lengths:
            lengths = (*lengths[:-1], 2 * lengths[-1])
        if min(lengths, default=0) < 0 or stored_shape(codes, lengths) != values.shape:
            raise ValueError(
                f"`shape` must be the shape of the {codes.dtype} codes in `values`; received shape={lengths} and "
                f"values of shape {values.shape}"
            )
        plan = plan_of(lengths, axis, group_size)
        if zero_point is not None and codes.is_float:
            raise ValueError(f"`zero_point` must be None for {codes.dtype}; received {zero_point!r}")
        scales = for_scales(scale, plan, "scale")
        check_numbers(scales)
        scales = np.require(scales if scales.dtype is F32 else cast(scales, F32), requirements=("C", "A"))
        zeros = None
        if zero_point is not None:
            zeros = for_scales(zero_point, plan, "zero_point")
            check_zeros(zeros, codes)
            zeros = np.require(zeros, I32, requirements=("C", "A"))
        super().__init__(values, scales, zeros, plan.axes, plan.group_size, codes.dtype, lengths)

    @classmethod
    def from_onnx(
        cls, values: Array, scale: ArrayLike, zero_point: ArrayLike | None = None, axis: int = 1, block_size: int = 0
    ) -> "QuantizedArray":
        """Make a QuantizedArray from the arguments of ONNX' QuantizeLinear and DequantizeLinear.

        Parameters
        ----------
        values : ndarray
            The codes, one in each element: int8, uint8, int16, uint16, a float8 type, or ml_dtypes' int4 or uint4.
        scale : array-like
            One scale (shape () or (1,)); one for each index of `axis`; or, with `block_size`, an array with as many
            axes as `values`.
        zero_point : array-like, optional
            Of the shape of `scale` and the type of `values`. For float8 types it must be zero.
        axis : int
            Without blocks, the axis along which scales vary. With blocks, the axis that is divided into blocks; note
            that `axis` of :class:`QuantizedArray` names the other axes then.
        block_size : int
            The number of neighbours along `axis` that share a scale; 0: no blocks.

        Examples
        --------
        >>> from mp_core import dequantize
        >>> codes = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.uint8)
        >>> dequantize(QuantizedArray.from_onnx(codes, [[1.0, 0.5], [2.0, 1.0]], axis=1, block_size=2))
        array([[ 1. ,  2. ,  1.5,  2. ],
               [10. , 12. ,  7. ,  8. ]], dtype=float32)
        """
        if not isinstance(values, np.ndarray):
            raise TypeError(f"`values` must be an ndarray; received {type(values).__name__}")
        values, scale = imported(values, "values"), imported(scale, "scale")
        if isinstance(block_size, bool) or integer(block_size, "block_size") < 0:
            raise ValueError(f"`block_size` must be an integer of at least 0; received {block_size}")
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
        values, *others = (getattr(self, field.name) for field in fields(self))
        return type(self), (out_of_band(values), *others)  # so unpickling checks the arrays again

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Array:
        """Compute ``np.matmul`` by :func:`mp_core.matmul`; raise TypeError for all other ufuncs."""
        if ufunc is not np.matmul or method != "__call__" or kwargs.keys() - {"out"}:
            raise TypeError(f"numpy.{ufunc.__name__} does not accept a QuantizedArray: {_NO_ARRAY}")
        left, right = inputs
        return _matmul(left, right, kwargs.get("out", (None,))[0])

    def __matmul__(self, other: Any) -> Array:
        return _matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return _matmul(other, self)

    def __repr__(self) -> str:
        short = self.values.size > _SHOWN

        def text(value: Any) -> str:
            return f"<{value.dtype} {value.shape}>" if short and isinstance(value, np.ndarray) else repr(value)

        return f"QuantizedArray({', '.join(f'{part.name}={text(getattr(self, part.name))}' for part in fields(self))})"

    def _repr_html_(self) -> str:
        rows = [["", "dtype", "shape", "kB"]]
        for name in ("values", "scale", "zero_point"):
            if (part := getattr(self, name)) is not None:
                rows.append([name, str(part.dtype), " x ".join(map(str, part.shape)), f"{part.nbytes / 1e3:.1f}"])
        groups = "" if self.group_size is None else f", groups of {self.group_size}"
        share = self.nbytes / max(4 * prod(self.shape), 1)
        caption = f"QuantizedArray {self.shape}, {self.dtype}, scales along {self.axis}{groups}"
        return html_table(rows, f"{caption}: {share:.0%} of the bytes of float32", left=(0, 1, 2))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise TypeError(f"a QuantizedArray cannot be converted to an ndarray: {_NO_ARRAY}")

    @property
    def T(self) -> "QuantizedArray":  # noqa: N802
        """The array with its axes in reverse order: a copy for 4-bit codes, a view for others.

        >>> from mp_core import quantize
        >>> q = quantize([[-1.0, 0.5], [0.0, 2.54]], axis=0)
        >>> q.T.shape, q.T.axis, q.T.values.base is q.values
        ((2, 2), (1,), True)
        """
        check_unchanged(self)
        codes, shape = CODES[name_of(self.dtype)], self.shape[::-1]
        values = self.values.T
        if codes.packed:
            values = np.empty(stored_shape(codes, shape), codes.storage)
            pack_pairs(np.asarray(unpacked_codes(self).T, order="C"), values)
        zero = None if self.zero_point is None else self.zero_point.T
        axis = tuple(len(shape) - 1 - i for i in self.axis)
        return QuantizedArray(values, self.scale.T, zero, axis, self.group_size, codes.dtype, shape)

    @property
    def parts(self) -> tuple[Array, ...]:
        """The arrays that are stored: values, scales and zero points."""
        return tuple(part for part in (self.values, self.scale, self.zero_point) if part is not None)

    @property
    def nbytes(self) -> int:
        """The total bytes of :attr:`parts`."""
        return sum(part.nbytes for part in self.parts)


def _matmul(a: Any, b: Any, out: Any = None) -> Array:
    """Return `a @ b`."""
    # Imported here, because mp_core.arrays.products imports this module.
    from mp_core.arrays.products.matmul import matmul

    return matmul(a, b, out=out)


def _codes_of(values: Any, dtype: DTypeLike | None) -> Codes:
    """Return the type of the codes in `values`; raise TypeError if `values` cannot store it."""
    found = getattr(values, "dtype", None)
    name = spelled(found if dtype is None else dtype)
    codes = CODES.get(name)
    if codes is None or not isinstance(values, np.ndarray) or found != codes.storage:
        raise TypeError(
            f"`values` must be an ndarray of {', '.join(CODES)}, or of uint8 for int4, uint4 and float4_e2m1fn; "
            f"received {type(values).__name__} of {found} for {name}"
        )
    return codes


def _lengths(shape: Any) -> tuple[int, ...]:
    try:
        return tuple(map(index, shape))
    except TypeError:
        raise TypeError(f"`shape` must be a sequence of integers; received {shape!r}") from None


def _in_pairs(values: Array, dtype: DTypeLike | None, shape: Any) -> tuple[Array, DTypeLike | None, Any]:
    """Pack values of ml_dtypes' 4-bit types, which take a byte each, in pairs; return others as they are."""
    codes = CODES.get(name_of(values.dtype))
    if codes is None or not codes.packed or (dtype is not None and spelled(dtype) != codes.dtype.name):
        return values, dtype, shape
    if shape is not None and tuple(shape) != values.shape:
        raise ValueError(
            f"`shape` must be the shape of the {codes.dtype} codes in `values`; received shape={shape} and values of "
            f"shape {values.shape}"
        )
    packed = np.empty(stored_shape(codes, values.shape), codes.storage)
    pack_pairs(np.asarray(values, order="C").view(I8), packed)
    return packed, codes.dtype, values.shape


def for_each_element(part: Array, q: QuantizedArray) -> Array:
    """Return scales or zero points of `q` in a shape that broadcasts against its elements."""
    if q.group_size is None:
        return part
    split = next(i for i in range(len(q.shape)) if i not in q.axis)
    return np.take(part, np.arange(q.shape[split]) // q.group_size, split)


def unpacked_codes(q: QuantizedArray) -> Array:
    """Return the codes of `q`, one in each element; int4 and uint4 codes as int8."""
    check_unchanged(q)
    codes = CODES[name_of(q.dtype)]
    values = unpack_pairs(q.values, q.shape, codes) if codes.packed else q.values
    return (values & 15).view(codes.dtype) if codes.packed and codes.is_float else values


def check_unchanged(q: QuantizedArray) -> None:
    """Raise ValueError if the arrays of `q` no longer have the shapes and types that were checked when it was made."""
    codes, scale_shape = CODES[name_of(q.dtype)], plan_of(q.shape, q.axis, q.group_size).scale_shape
    expected = [(stored_shape(codes, q.shape), codes.storage), (scale_shape, F32), (scale_shape, I32)]
    has = [(part.shape, part.dtype) for part in (q.values, q.scale, q.zero_point) if part is not None]
    if has != expected[: len(has)] or not all(x is None or x.flags.c_contiguous for x in (q.scale, q.zero_point)):
        raise ValueError(
            f"The arrays of a QuantizedArray must keep their shapes and types {expected[: len(has)]}, and scales and "
            f"zero points must stay C-contiguous; received {has}"
        )


def pack_pairs(codes: Array, packed: Array) -> None:
    """Write the low halves of 8-bit `codes` into `packed`, two in each byte along the last axis."""
    rows = prod(codes.shape[:-1])
    pack_nibbles(codes.reshape(rows, codes.shape[-1]), packed.reshape(rows, packed.shape[-1]))


def unpack_pairs(packed: Array, shape: tuple[int, ...], kind: Codes) -> Array:
    """Undo :func:`pack_pairs`: return int8 codes of this shape."""
    codes, rows, packed = np.empty(shape, I8), prod(shape[:-1]), np.asarray(packed, order="C")
    unpack_nibbles(packed.reshape(rows, packed.shape[-1]), codes.reshape(rows, shape[-1]), kind.qmin < 0)
    return codes


def for_scales(value: Any, plan: Plan | Recipe, argument: str) -> Array:
    """Return `value` broadcast to the shape of the scales; raise ValueError if it does not fit."""
    if isinstance(value, np.ndarray) and name_of(value.dtype) in STORED:
        value = value.astype(I8 if argument == "zero_point" else F32)
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


def check_numbers(scales: Array) -> None:
    """Raise TypeError if scales are booleans."""
    if scales.dtype.kind == "b":
        raise TypeError(f"`scale` must be numbers; received dtype {scales.dtype}")


def check_zeros(array: Array, codes: Codes) -> None:
    """Raise TypeError unless zero points are integers, ValueError unless they are in the range of the codes."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"`zero_point` must be integers; received dtype {array.dtype}")
    if array.size and not codes.qmin <= array.min() <= array.max() <= codes.qmax:
        raise ValueError(
            f"`zero_point` must lie in [{codes.qmin}, {codes.qmax}] for {codes.dtype}; received {array.min()} to "
            f"{array.max()}"
        )
