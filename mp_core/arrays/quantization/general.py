"""The general path of `quantize` and `dequantize`, for arguments that kernels cannot take as they are.

Each function converts one argument for the compiled path, or raises. :func:`convert` handles arrays that must be
transposed, packed in pairs or converted for the kernels.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, F64, FORMATS, I8, I32, Array, as_float, cast, imported_all
from mp_core.arrays.dtypes import is_float, parse
from mp_core.arrays.quantization.array import (
    QuantizedArray,
    check_numbers,
    check_unchanged,
    check_zeros,
    for_each_element,
    for_scales,
    pack_pairs,
    unpack_pairs,
)
from mp_core.arrays.quantization.codes import Codes, int_or_axes, int_or_none, parse_codes, plan_of, stored_shape
from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.arrays.quantization.recipe import Recipe, positive_and_finite
from mp_core.utilities.arguments import boolean


@lru_cache(1024, typed=True)
def recipe_of(
    shape: tuple[int, ...],
    axis: int | tuple[int, ...] | None,
    dtype: DTypeLike,
    symmetric: bool,
    group_size: int | None,
) -> Recipe:
    """Return the recipe of these arguments; raise ValueError or TypeError if they do not fit each other."""
    codes, plan = parse_codes(dtype, MICROSCALING), plan_of(shape, axis, group_size)
    if codes.is_float and not symmetric:
        raise _no_zero_point(codes)
    return Recipe(shape, codes, stored_shape(codes, shape), plan, symmetric)


def arguments(
    x: ArrayLike,
    axis: int | Sequence[int] | None,
    dtype: DTypeLike,
    symmetric: bool,
    group_size: int | None,
    scale: ArrayLike | None,
    zero_point: ArrayLike | None,
) -> tuple[Any, ...]:
    """Convert the arguments of :func:`quantize` to the types that the compiled path takes."""
    codes, axis, group_size = parse_codes(dtype, MICROSCALING), int_or_axes(axis), int_or_none(group_size)
    symmetric = boolean(symmetric, "symmetric")
    x, scale, zero_point = imported_all(("x", "scale", "zero_point"), x, scale, zero_point)
    x = as_float(x)
    x = np.require(cast(x, F32) if x.dtype is F64 else x, requirements=("C", "A"))
    return x, axis, codes.dtype, symmetric, group_size, scale, zero_point


def _no_zero_point(codes: Codes) -> ValueError:
    return ValueError(
        f"`zero_point` must be None and `symmetric` True for {codes.dtype}, whose codes have no zero point"
    )


def refuse_without_scale(recipe: Recipe, zero_point: Any) -> None:
    """Raise ValueError: without `scale` there can be no zero point and no 16-bit codes."""
    if zero_point is not None:
        raise ValueError("`zero_point` must be None unless `scale` is given")
    raise ValueError(f"`scale` must be given for {recipe.codes.dtype}; received None")


def given_scale(scale: Any, recipe: Recipe) -> Array:
    """Return `scale` as float32 in the shape of the scales; raise ValueError unless all are positive and finite."""
    array = for_scales(scale, recipe, "scale")
    check_numbers(array)
    array = np.asarray(array if array.dtype is F32 else cast(array, F32), order="C")
    if not positive_and_finite(array):
        raise ValueError(f"`scale` must be positive and finite; received {array.min()} to {array.max()}")
    return array


def given_zeros(zero_point: Any, recipe: Recipe) -> Array:
    """Return `zero_point` as int32 in the shape of the scales; raise ValueError unless all are in the codes' range."""
    if recipe.codes.is_float:
        raise _no_zero_point(recipe.codes)
    array = for_scales(zero_point, recipe, "zero_point")
    check_zeros(array, recipe.codes)
    return np.asarray(array, I32, order="C")


def source_for(out: Any, x: Array, recipe: Recipe, with_zeros: bool) -> Array:
    """Return `x`, or a copy if `out` overlaps it; raise TypeError or ValueError if `out` does not fit the result."""
    if not isinstance(out, QuantizedArray):
        raise TypeError(f"`out` must be a QuantizedArray; received {type(out).__name__}")
    has = (out.shape, out.dtype, out.axis, out.group_size, out.zero_point is not None)
    wanted = (x.shape, recipe.codes.dtype, recipe.axes, recipe.group_size, with_zeros)
    if has != wanted:
        raise ValueError(f"`out` must have (shape, dtype, axis, group_size, zero points?) {wanted}; received {has}")
    parts = {"values": out.values, "scale": out.scale} | ({"zero_point": out.zero_point} if with_zeros else {})
    for name, part in parts.items():
        if not part.flags.carray:
            raise ValueError(f"the arrays of `out` must be writeable and C-contiguous; `{name}` is not")
    check_unchanged(out)
    return x.copy() if any(np.may_share_memory(x, part) for part in parts.values()) else x


def float_type(q: Any, dtype: DTypeLike) -> np.dtype[Any]:
    """Return the float type that `dtype` names; raise TypeError if it is none, or `q` is not a QuantizedArray."""
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"`q` must be a QuantizedArray; received {type(q).__name__}")
    target = parse(dtype)
    if not is_float(target):
        raise TypeError(f"`dtype` must be a float type; received {target.name}")
    return target


def convert(recipe: Recipe, x: Array, q: QuantizedArray, given: bool, back: bool) -> None:
    """Quantize the C-contiguous `x` into `q` (also its scales, unless `given`); if `back`, dequantize `q` into `x`."""
    check_unchanged(q)
    codes, plan = recipe.codes, plan_of(q.shape, q.axis, q.group_size)
    if codes.is_wide:
        _convert_wide(x, q, codes, back)
        return
    values = q.values if q.values.flags.c_contiguous else np.asarray(q.values, order="C")
    packed, order = codes.packed and plan.in_pairs and plan.order is None, plan.order
    if codes.packed and not packed:
        values = unpack_pairs(values, q.shape, codes) if back else np.empty(q.shape, I8)
    a, b = (x, values) if order is None else (np.asarray(part.transpose(order), order="C") for part in (x, values))
    recipe.convert(a, FORMATS[x.dtype], b, q, given, back, packed)
    if order is not None:
        (x if back else values)[...] = (a if back else b).transpose(np.argsort(order))
    if codes.packed and not packed and not back:
        pack_pairs(values, q.values)


def _convert_wide(x: Array, q: QuantizedArray, codes: Codes, back: bool) -> None:
    """Do what :func:`convert` does for 16-bit codes with given scales, by NumPy."""
    scale, zero = for_each_element(q.scale, q), 0 if q.zero_point is None else for_each_element(q.zero_point, q)
    with np.errstate(over="ignore", invalid="ignore"):
        if back:
            cast((q.values.astype(I32) - zero).astype(F32) * scale, x.dtype, out=x)
            return
        rounded = np.asarray(np.rint(cast(x, F32) / scale))
    rounded[np.isnan(rounded)] = 0
    q.values[...] = np.clip(rounded + zero, codes.qmin, codes.qmax)
