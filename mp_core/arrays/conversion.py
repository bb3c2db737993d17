"""The general path of :func:`mp_core.cast`: all types, memory layouts and overlaps that the compiled one leaves."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays.dtypes import ALLOWED, STORED, foreign_name, is_float, is_integer, name_of, parse
from mp_core.arrays.formats import CASTS
from mp_core.arrays.received import (
    F32,
    F64,
    Array,
    asarray,
    check_out,
    imported,
    imported_out,
    in_order_of,
    may_overlap,
    memory_order,
)
from mp_core.arrays.recorded import comes_from_input, recordable, refuse_recorded, with_numbers
from mp_core.core import pairs as _pairs
from mp_core.core.convert import convert
from mp_core.utilities.arguments import boolean

__all__ = ["FORMATS", "STEP_FORMATS", "cast_any", "wide_of"]

FORMATS: dict[np.dtype[Any], int] = {ALLOWED[name]: number for name, number in CASTS.items()}
"""Float type -> its number in the kernels. Kernels read all of them; they write all except float64."""
STEP_FORMATS: dict[np.dtype[Any], int] = FORMATS | _pairs.INTEGERS
"""Type -> its number in elementwise steps (library/elementwise.h)."""


@recordable
@with_numbers
def cast_any(x: ArrayLike, dtype: DTypeLike, out: Array | None, saturate: bool) -> Array:
    """Return what :func:`cast` returns, for all types, memory layouts and overlaps."""
    saturate = boolean(saturate, "saturate")
    wanted = _stored(dtype) or parse(dtype, any_order=True)
    target = wanted if wanted.isnative else ALLOWED[name_of(wanted)]
    held = imported_out(out)
    x = imported(x, "x")
    x = x.astype(F32) if name_of(x.dtype) in STORED else asarray(x)
    result = np.empty(x.shape, wanted) if held is None else check_out(held, x.shape, target)
    if not result.dtype.isnative:
        result[...] = cast_any(x, target, None, saturate)
        return result if out is None else out
    order = memory_order(x) if out is None else None
    if order is not None:
        return in_order_of(order, cast_any(x.transpose(order), wanted, None, saturate))
    if out is not None and may_overlap(x, result):
        x = x.copy()
    source_format, target_format = FORMATS.get(x.dtype), FORMATS.get(target)
    by_numpy = target is F64 or (x.dtype is F64 and target is F32)
    if source_format is not None and target_format is not None and not by_numpy:
        convert(x, result, source_format, target_format, saturate)
    elif x.dtype in STEP_FORMATS and target in STEP_FORMATS and x.size and not saturate and comes_from_input(x):
        shape, wide = x.shape or (1,), wide_of(x.dtype)
        formats = (STEP_FORMATS[x.dtype],)
        out_format = STEP_FORMATS[target]
        _pairs.elementwise("positive", 0, (x.reshape(shape),), formats, result.reshape(shape), out_format, wide)
    else:
        refuse_recorded(x, f"a cast from {x.dtype} to {wanted} by NumPy")
        # No warning when a signaling NaN becomes quiet. NumPy does warn when NaN becomes an integer.
        invalid: Any = None if "int" in name_of(target) and not saturate else "ignore"
        with np.errstate(over="ignore", invalid=invalid):
            (_cast_to_stored if name_of(target) in STORED else _cast_by_numpy)(x, result, saturate)
    return result if out is None else out


def wide_of(dtype: np.dtype[Any]) -> int:
    """Return the number of the type of 64 bits in which steps compute integers, booleans and float64."""
    if is_float(dtype):
        return _pairs.DOUBLE
    return _pairs.UNSIGNED if dtype.kind == "u" and dtype.itemsize == 8 else _pairs.SIGNED


def _stored(dtype: DTypeLike) -> np.dtype[Any] | None:
    """Return the dtype of :data:`mp_core.dtypes.STORED` that `dtype` names; None if it names no such dtype."""
    if isinstance(dtype, str):
        return STORED.get(dtype)
    if isinstance(dtype, np.dtype):
        return STORED.get(name_of(dtype))
    return STORED.get(getattr(dtype, "__name__", foreign_name(dtype)))


def _cast_by_numpy(x: Array, out: Array, saturate: bool) -> None:
    """Cast from or to integers, to float64, or from float64 to float32; integers reach narrow floats by a wider one."""
    if is_float(out.dtype) and out.dtype not in (F32, F64):
        wide = x.astype(F32) if x.dtype.itemsize <= 2 else _odd_float64(x)
        convert(wide, out, FORMATS[wide.dtype], FORMATS[out.dtype], saturate)
        return
    if is_float(x.dtype) and x.dtype is not F64:
        x = cast_any(x, F32, None, False)  # exact, and NumPy's loops from float32 are fast
    if saturate and is_integer(out.dtype):
        _saturate_to_integers(x, out)
        return
    if saturate and is_float(out.dtype) and is_float(x.dtype):  # float32 overflows for no integer
        largest = np.float64(np.finfo(out.dtype).max)
        x = np.clip(x, -largest, largest)
    np.copyto(out, x, casting="unsafe")


def _saturate_to_integers(x: Array, out: Array) -> None:
    """Write `x` into `out`, clamped to the range of its integers; NaN becomes 0."""
    limits = np.iinfo(out.dtype)
    if not is_float(x.dtype):
        own = np.iinfo(x.dtype) if is_integer(x.dtype) else np.iinfo(np.uint8)
        x = x.astype(np.uint8) if x.dtype == np.bool_ else x
        np.copyto(out, np.clip(x, max(limits.min, own.min), min(limits.max, own.max)), casting="unsafe")
        return
    wide = x.astype(F64)
    above = wide >= float(limits.max)  # float(limits.max) rounds up to 2^63 or 2^64 for 64-bit integers
    np.copyto(out, np.where(above | np.isnan(wide), 0.0, np.maximum(wide, float(limits.min))), casting="unsafe")
    np.putmask(out, above, limits.max)


def _cast_to_stored(x: Array, out: Array, saturate: bool) -> None:
    """Cast to a type of STORED by ml_dtypes, from float32 rounded to odd: the result is as if rounded once."""
    if out.dtype.name.endswith("int4"):
        whole = cast_any(x, "int64", None, saturate)
        limits = ml_dtypes.iinfo(out.dtype)  # type: ignore[no-untyped-call]
        np.copyto(out, (np.clip(whole, limits.min, limits.max) if saturate else whole).astype(out.dtype))
        return
    single = np.empty(x.shape, F32)
    convert(_odd_float64(x), single, FORMATS[F64], FORMATS[F32], False)  # the kernel from float64 rounds to odd
    if saturate:
        largest = np.float32(ml_dtypes.finfo(out.dtype).max)  # type: ignore[no-untyped-call]
        single = np.clip(single, -largest, largest)
    if out.dtype.name == "float8_e8m0fnu":  # ml_dtypes 0.6 rounds float32 subnormals wrongly; here ties go up
        tiny = (single > 0) & (single < 2.0**-126)
        single = np.where(tiny, np.where(single >= 1.5 * 2.0**-127, F32.type(2.0**-126), F32.type(2.0**-127)), single)
    np.copyto(out, single.astype(out.dtype))


def _odd_float64(x: Array) -> Array:
    """Return `x` as float64; 64-bit integers that do not fit its 53 bits are rounded to odd."""
    if is_integer(x.dtype) and x.dtype.itemsize == 8:
        inexact = (np.abs(x.astype(F64)) >= 2.0**53) & (x & 0x7FF != 0)
        x = np.where(inexact, (x & ~x.dtype.type(0x7FF)) | x.dtype.type(0x800), x)
    return x.astype(F64)
