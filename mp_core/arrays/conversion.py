"""Casts of all types, layouts and overlaps: the general path behind the compiled :func:`mp_core.cast`."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays.dtypes import ALLOWED, STORED, foreign_name, is_float, is_integer, name_of, parse
from mp_core.arrays.formats import CASTS
from mp_core.arrays.received import F32, F64, Array, asarray, check_out, imported, imported_out, may_overlap
from mp_core.arrays.recorded import comes_from_input, recordable, refuse_recorded, with_numbers
from mp_core.core import pairs as _pairs
from mp_core.core.convert import convert
from mp_core.utilities.arguments import boolean

__all__ = ["FORMATS", "cast_any"]

FORMATS: dict[np.dtype[Any], int] = {ALLOWED[name]: number for name, number in CASTS.items()}
"""Float type -> its number in the kernels, which read them all and write all but float64."""


@recordable
@with_numbers
def cast_any(x: ArrayLike, dtype: DTypeLike, out: Array | None, saturate: bool) -> Array:
    """:func:`cast` for all types, layouts and overlaps."""
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
    if out is not None and may_overlap(x, result):
        x = x.copy()
    source_format, target_format = FORMATS.get(x.dtype), FORMATS.get(target)
    by_numpy = target is F64 or (x.dtype is F64 and target is F32)
    if source_format is not None and target_format is not None and not by_numpy:
        convert(x, result, source_format, target_format, saturate)
    elif _has_step(x, target) and not saturate and comes_from_input(x):
        _cast_by_step(x, result)
    else:
        refuse_recorded(x, f"a cast from {x.dtype} to {wanted} by NumPy")
        # A signaling NaN becomes a quiet one without a word; of NaN as an integer NumPy warns.
        invalid: Any = None if "int" in name_of(target) and not saturate else "ignore"
        with np.errstate(over="ignore", invalid=invalid):
            (_cast_to_stored if name_of(target) in STORED else _cast_by_numpy)(x, result, saturate)
    return result if out is None else out


def _has_step(x: Array, target: np.dtype[Any]) -> bool:
    """Whether plans can cast integers or booleans to a float: by float32, and rounded once."""
    exact = target is F32 or (x.dtype.itemsize == 1 and target in FORMATS and target is not F64)
    return x.dtype in _pairs.INTEGERS and x.size > 0 and exact


def _cast_by_step(x: Array, out: Array) -> None:
    shape = x.shape or (1,)
    formats = (_pairs.INTEGERS[x.dtype],)
    _pairs.elementwise("positive", 0, (x.reshape(shape),), formats, out.reshape(shape), FORMATS[out.dtype])


def _stored(dtype: DTypeLike) -> np.dtype[Any] | None:
    """Return the dtype of :data:`mp_core.dtypes.STORED` that `dtype` names, if any."""
    if isinstance(dtype, str):
        return STORED.get(dtype)
    if isinstance(dtype, np.dtype):
        return STORED.get(name_of(dtype))
    return STORED.get(getattr(dtype, "__name__", foreign_name(dtype)))


def _cast_by_numpy(x: Array, out: Array, saturate: bool) -> None:
    """Casts from or to integers, to float64, from float64 to float32; integers reach narrow floats by a wider one."""
    if is_float(out.dtype) and out.dtype not in (F32, F64):
        wide = x.astype(F32) if x.dtype.itemsize <= 2 else _odd_float64(x)
        convert(wide, out, FORMATS[wide.dtype], FORMATS[out.dtype], saturate)
        return
    if is_float(x.dtype) and x.dtype is not F64:
        x = cast_any(x, F32, None, False)  # exact, and NumPy's loops from float32 are fast
    if saturate and is_integer(out.dtype):
        _saturate_to_integers(x, out)
        return
    if saturate and is_float(out.dtype) and is_float(x.dtype):  # no integer is beyond float32
        largest = np.float64(np.finfo(out.dtype).max)
        x = np.clip(x, -largest, largest)
    np.copyto(out, x, casting="unsafe")


def _saturate_to_integers(x: Array, out: Array) -> None:
    """Clamp to the integers of `out`, NaN to 0."""
    limits = np.iinfo(out.dtype)
    if not is_float(x.dtype):
        own = np.iinfo(x.dtype) if is_integer(x.dtype) else np.iinfo(np.uint8)
        x = x.astype(np.uint8) if x.dtype == np.bool_ else x
        np.copyto(out, np.clip(x, max(limits.min, own.min), min(limits.max, own.max)), casting="unsafe")
        return
    wide = x.astype(F64)
    above = wide >= float(limits.max)  # 2^63 and 2^64 are floats, the integers below them are not
    np.copyto(out, np.where(above | np.isnan(wide), 0.0, np.maximum(wide, float(limits.min))), casting="unsafe")
    np.putmask(out, above, limits.max)


def _cast_to_stored(x: Array, out: Array, saturate: bool) -> None:
    """Casts to the types of STORED, the last step by ml_dtypes: floats from float32 rounded to odd, so only once."""
    if out.dtype.name.endswith("int4"):
        whole = cast_any(x, "int64", None, saturate)
        limits = ml_dtypes.iinfo(out.dtype)  # type: ignore[no-untyped-call]
        np.copyto(out, (np.clip(whole, limits.min, limits.max) if saturate else whole).astype(out.dtype))
        return
    single = np.empty(x.shape, F32)
    convert(_odd_float64(x), single, FORMATS[F64], FORMATS[F32], False)  # no kernel rounds this to nearest
    if saturate:
        largest = np.float32(ml_dtypes.finfo(out.dtype).max)  # type: ignore[no-untyped-call]
        single = np.clip(single, -largest, largest)
    if out.dtype.name == "float8_e8m0fnu":  # ml_dtypes 0.6 misrounds what is subnormal in float32; ties go up
        tiny = (single > 0) & (single < 2.0**-126)
        single = np.where(tiny, np.where(single >= 1.5 * 2.0**-127, F32.type(2.0**-126), F32.type(2.0**-127)), single)
    np.copyto(out, single.astype(out.dtype))


def _odd_float64(x: Array) -> Array:
    """Return `x` as float64: exactly, or rounded to odd where 64-bit integers do not fit its 53 bits."""
    if is_integer(x.dtype) and x.dtype.itemsize == 8:
        inexact = (np.abs(x.astype(F64)) >= 2.0**53) & (x & 0x7FF != 0)
        x = np.where(inexact, (x & ~x.dtype.type(0x7FF)) | x.dtype.type(0x800), x)
    return x.astype(F64)
