"""Arrays in and out: what every operation does first, and the cast, which it may do next."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arguments import boolean
from mp_core.core import convert as _convert
from mp_core.core.convert import cast
from mp_core.core.dlpack import from_dlpack
from mp_core.dtypes import ALLOWED, STORED, foreign_name, is_float, is_integer, name_of, parse

__all__ = [
    "Array",
    "as_float",
    "as_mask",
    "as_vector",
    "asarray",
    "cast",
    "check_out",
    "imported",
    "imported_all",
    "may_overlap",
]

Array = np.ndarray[Any, Any]

FORMATS: dict[np.dtype[Any], int] = {ALLOWED[name]: number for name, number in _convert.FORMATS.items()}
"""Float type -> its number in the kernels, which read them all and write all but float64."""

_CANONICAL = {dtype: dtype for dtype in ALLOWED.values()}
F32, F64 = ALLOWED["float32"], ALLOWED["float64"]
I8, U8, I32 = ALLOWED["int8"], ALLOWED["uint8"], ALLOWED["int32"]


def asarray(x: Any, argument: str = "x") -> Array:
    """Return `x` as an ndarray in native byte order, without a copy where possible.

    Parameters
    ----------
    x : array-like
        ndarray, nested sequence, scalar, or an object with ``__dlpack__`` whose memory is the CPU's. A bfloat16 or
        float8 tensor of another framework comes back as an array of the ml_dtypes type.
    argument : str
        The caller's argument name, for error messages.

    Raises
    ------
    TypeError
        The elements are of none of the types in :data:`mp_core.dtypes.ALLOWED`.
    """
    if type(x) is not np.ndarray:
        x = imported(x, argument)
    canonical = _CANONICAL.get(x.dtype)
    if canonical is x.dtype:
        return x  # type: ignore[no-any-return]
    if canonical is not None:  # equal, but from a pickle: from here on types are compared by identity
        return x.view(canonical)  # type: ignore[no-any-return]
    if x.dtype.name not in ALLOWED:
        raise TypeError(f"`{argument}` must be an array of {', '.join(ALLOWED)}; received dtype {x.dtype}")
    return x.astype(ALLOWED[x.dtype.name])  # type: ignore[no-any-return]


def refuse_masked(x: Any, argument: str) -> None:
    """Raise TypeError for an array of :mod:`numpy.ma`."""
    if issubclass(type(x), np.ma.MaskedArray):
        raise TypeError(f"`{argument}` must not be a masked array: its mask would be lost; fill it first")


def imported(x: Any, argument: str) -> Array:
    """Return `x` as a plain ndarray of whatever type, without a copy where possible; raise TypeError where that fails.

    Plain: what a subclass says about its shape, type or memory is not asked.
    """
    refuse_masked(x, argument)
    array = x if _is_array(x) else _received(x, argument)
    refuse_masked(array, argument)
    return np.asarray(array)


def imported_all(names: tuple[str, ...], *arguments: Any, kept: tuple[type, ...] = ()) -> tuple[Any, ...]:
    """Return arguments as :func:`imported` does, None, Python's numbers and instances of `kept` as they are.

    ``__array__`` and ``__dlpack__`` of one argument may reshape another, or move its memory. So all of them run first;
    then views are taken. A caller reads no shape before, and runs no code of an argument afterwards.
    """
    if _HARMLESS.issuperset(map(type, arguments)):
        return arguments
    as_they_are: tuple[type, ...] = (*_HARMLESS, *kept)
    received = [
        x if issubclass(type(x), as_they_are) else _received(x, name) for name, x in zip(names, arguments, strict=True)
    ]
    return tuple(imported(x, name) if _is_array(x) else x for name, x in zip(names, received, strict=True))


_HARMLESS: frozenset[type] = frozenset((np.ndarray, type(None), float, int))


def _is_array(x: Any) -> bool:
    """Whether `x` is an ndarray; :func:`isinstance` would also ask the object for a ``__class__``."""
    return issubclass(type(x), np.ndarray)


def _received(x: Any, argument: str) -> Array:
    """Return what is no ndarray as one, maybe of a subclass: here, and nowhere else, code of an argument runs."""
    reason: Exception | None = None
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        if hasattr(x, "is_neg") and x.is_neg() is True:  # torch's DLPack leaves that out
            raise TypeError(f"`{argument}` must not be a tensor whose negative bit is set: resolve_neg() it first")
        try:
            device = x.__dlpack_device__()
            on_cpu = int(device[0]) == 1
        except MemoryError:
            raise
        except Exception as error:
            raise TypeError(f"`{argument}` must be an array or a plain tensor: {error}") from error
        if not on_cpu:
            raise TypeError(f"`{argument}` must be in CPU memory; received a tensor on device {device}")
        try:
            return from_dlpack(x, ALLOWED)
        except MemoryError:
            raise
        except Exception as error:
            reason = error
    try:
        array: Array = np.asanyarray(x)
    except MemoryError:
        raise
    except Exception as error:
        kind = "an array or nested sequence of numbers" if reason is None else "an array or a plain tensor"
        raise TypeError(f"`{argument}` must be {kind}: {reason or error}") from (reason or error)
    if reason is not None and array.dtype == object:  # it has no ``__array__``
        raise TypeError(f"`{argument}` must be an array or a plain tensor: {reason}") from reason
    return array


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return `out` as a plain ndarray if it is writeable, of that shape and type; raise otherwise.

    A caller writes into what this returns, and returns `out`: no kernel sees a subclass, whose attributes may say
    anything.
    """
    if not _is_array(out):
        raise TypeError(f"`out` must be a numpy.ndarray; received {type(out).__name__}")
    refuse_masked(out, "out")
    plain: Array = np.asarray(out)
    if plain.shape != shape:
        raise ValueError(f"`out` must have shape {shape}; received {plain.shape}")
    if plain.dtype is not dtype and name_of(plain.dtype) != name_of(dtype):
        raise TypeError(f"`out` must have dtype {dtype}; received {plain.dtype}")
    if not plain.flags.writeable:
        raise ValueError("`out` must be writeable; received a read-only array")
    return plain


def as_float(x: Any, argument: str = "x") -> Array:
    """Return `x` as an array of a float type; integers and booleans become float32."""
    x = asarray(x, argument)
    return x if is_float(x.dtype) else cast(x, F32)


def as_vector(x: ArrayLike, n: int, argument: str, dtype: np.dtype[Any] = F32) -> Array:
    """Return a contiguous vector of n elements of type `dtype`."""
    if type(x) is np.ndarray and x.dtype is dtype and x.shape == (n,) and x.flags.c_contiguous:
        return x
    array = as_float(x, argument)
    if array.shape != (n,):
        raise ValueError(f"`{argument}` must have shape {(n,)}; received {array.shape}")
    return np.ascontiguousarray(array) if array.dtype is dtype else cast(array, dtype)


def as_mask(mask: ArrayLike, argument: str = "mask", kinds: str = "biu") -> Array:
    """Return a mask as booleans: bool already, or numbers of `kinds`, 1 where an element counts and 0 elsewhere."""
    refuse_masked(mask, argument)
    given = np.asarray(mask)
    if given.dtype.kind not in kinds:
        raise TypeError(f"`{argument}` must be bool or integer, true where an element counts; received {given.dtype}")
    keep: Array = given.astype(bool, copy=False)
    if given.dtype != np.bool_ and not np.array_equal(keep, given):
        raise ValueError(
            f"`{argument}` must be 1 (True) where an element counts and 0 elsewhere; "
            f"received numbers from {given.min()} to {given.max()}"
        )
    return keep


def _cast_any(x: ArrayLike, dtype: DTypeLike, out: Array | None, saturate: bool) -> Array:
    """:func:`cast` for all types, layouts and overlaps."""
    saturate = boolean(saturate, "saturate")
    wanted = _stored(dtype) or parse(dtype, any_order=True)
    target = wanted if wanted.isnative else ALLOWED[name_of(wanted)]
    x = imported(x, "x")
    x = x.astype(F32) if name_of(x.dtype) in STORED else asarray(x)
    result = np.empty(x.shape, wanted) if out is None else check_out(out, x.shape, target)
    if not result.dtype.isnative:
        result[...] = cast(x, target, saturate=saturate)
        return result if out is None else out
    if out is not None and may_overlap(x, result):
        x = x.copy()
    source_format, target_format = FORMATS.get(x.dtype), FORMATS.get(target)
    by_numpy = target is F64 or (x.dtype is F64 and target is F32)
    if source_format is not None and target_format is not None and not by_numpy:
        _convert.convert(x, result, source_format, target_format, saturate)
    else:
        # A signaling NaN becomes a quiet one without a word; of NaN as an integer NumPy warns.
        invalid: Any = None if "int" in name_of(target) and not saturate else "ignore"
        with np.errstate(over="ignore", invalid=invalid):
            (_cast_to_stored if name_of(target) in STORED else _cast_by_numpy)(x, result, saturate)
    return result if out is None else out


def _stored(dtype: DTypeLike) -> np.dtype[Any] | None:
    """Return the dtype of :data:`mp_core.dtypes.STORED` that `dtype` names, if any."""
    if isinstance(dtype, str):
        return STORED.get(dtype)
    if isinstance(dtype, np.dtype):
        return STORED.get(name_of(dtype))
    return STORED.get(getattr(dtype, "__name__", foreign_name(dtype)))


def may_overlap(x: Array, out: Array) -> bool:
    """Whether writing `out` could change elements of `x` not yet read; exact coincidence is safe."""
    if not np.may_share_memory(x, out):
        return False
    return _address(x) != _address(out) or x.strides != out.strides or x.itemsize != out.itemsize


def _address(x: Array) -> int:
    address: int = x.__array_interface__["data"][0]  # ctypes, behind x.ctypes, writes to its types without a lock
    return address


def _cast_by_numpy(x: Array, out: Array, saturate: bool) -> None:
    """Casts from or to integers, to float64, from float64 to float32; integers reach narrow floats by a wider one."""
    if is_float(out.dtype) and out.dtype not in (F32, F64):
        wide = x.astype(F32) if x.dtype.itemsize <= 2 else _odd_float64(x)
        _convert.convert(wide, out, FORMATS[wide.dtype], FORMATS[out.dtype], saturate)
        return
    if is_float(x.dtype) and x.dtype is not F64:
        x = cast(x, F32)  # exact, and NumPy's loops from float32 are fast
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
        whole = cast(x, "int64", saturate=saturate)
        limits = ml_dtypes.iinfo(out.dtype)  # type: ignore[no-untyped-call]
        np.copyto(out, (np.clip(whole, limits.min, limits.max) if saturate else whole).astype(out.dtype))
        return
    single = np.empty(x.shape, F32)
    _convert.convert(_odd_float64(x), single, FORMATS[F64], FORMATS[F32], False)  # no kernel rounds this to nearest
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


_convert.install(ALLOWED, _cast_any)
