"""Arguments received as arrays, and `out` checked: what every operation does first."""

from typing import Any

import numpy as np

from mp_core.arrays.dtypes import ALLOWED, STORED, name_of
from mp_core.arrays.recorded import SymbolicError, UnseenError
from mp_core.arrays.recorded_array import address_of
from mp_core.core.dlpack import from_dlpack

__all__ = ["Array", "asarray", "check_out", "imported", "imported_all", "imported_out", "may_overlap", "refuse_masked"]

Array = np.ndarray[Any, Any]

_CANONICAL = {dtype: dtype for dtype in ALLOWED.values()}
F32, F64 = ALLOWED["float32"], ALLOWED["float64"]
_EXCHANGED = ALLOWED | STORED
# The types as which NumPy's files give back those of ml_dtypes, whose names they do not hold.
_NAMELESS = {
    np.dtype(kind): f". If it was saved as {name}, the file has lost that: use `.view(ml_dtypes.{name})`"
    for kind, name in (("V2", "bfloat16"), ("V1", "float8_e4m3fn"))
}
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
        hint = _NAMELESS.get(x.dtype, "")
        raise TypeError(f"`{argument}` must be an array of {', '.join(ALLOWED)}; received dtype {x.dtype}{hint}")
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
    if _exports(x, argument):
        try:
            return from_dlpack(x, _EXCHANGED)
        except MemoryError:
            raise
        except Exception as error:
            reason = error
    try:
        array: Array = np.asanyarray(x)
    except (MemoryError, UnseenError, SymbolicError):
        raise
    except Exception as error:
        kind = "an array or nested sequence of numbers" if reason is None else "an array or a plain tensor"
        raise TypeError(f"`{argument}` must be {kind}: {reason or error}") from (reason or error)
    if reason is not None and array.dtype == object:  # it has no ``__array__``
        raise TypeError(f"`{argument}` must be an array or a plain tensor: {reason}") from reason
    return array


def _exports(x: Any, argument: str) -> bool:
    """Whether an object exports memory of the CPU through DLPack; raise TypeError for other memory."""
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        return False
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
    return True


def imported_out(out: Any) -> Array | None:
    """Return `out` as an ndarray on its memory, which :func:`check_out` will check; None stays None.

    A tensor runs code here. So a caller does this before it takes views of its other arguments, and returns `out`
    itself in the end.
    """
    if out is None or _is_array(out):
        return out  # type: ignore[no-any-return]
    if not _exports(out, "out"):
        raise TypeError(f"`out` must be a numpy.ndarray or a tensor in CPU memory; received {type(out).__name__}")
    try:
        array = from_dlpack(out, _EXCHANGED)
    except MemoryError:
        raise
    except Exception as error:
        raise TypeError(f"`out` must be an array or a plain tensor: {error}") from error
    if not array.flags.writeable:
        raise ValueError("`out` must be writeable, as DLPack of version 1 can say; received a tensor that does not")
    return array


def check_out(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return `out` as a plain ndarray if it is writeable, of that shape and type; raise otherwise.

    A caller writes into what this returns, and returns `out`: no kernel sees a subclass, whose attributes may say
    anything.
    """
    refuse_masked(out, "out")
    plain: Array = np.asarray(out)
    if plain.shape != shape:
        raise ValueError(f"`out` must have shape {shape}; received {plain.shape}")
    if plain.dtype is not dtype and name_of(plain.dtype) != name_of(dtype):
        raise TypeError(f"`out` must have dtype {dtype}; received {plain.dtype}")
    if not plain.flags.writeable:
        raise ValueError("`out` must be writeable; received a read-only array")
    return plain


def may_overlap(x: Array, out: Array) -> bool:
    """Whether writing `out` could change elements of `x` not yet read; exact coincidence is safe."""
    if not np.may_share_memory(x, out):
        return False
    return address_of(x) != address_of(out) or x.strides != out.strides or x.itemsize != out.itemsize
