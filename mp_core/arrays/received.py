"""Convert the arguments of operations to ndarrays, and check `out`."""

from typing import Any

import numpy as np

from mp_core.arrays.dtypes import ALLOWED, STORED, name_of
from mp_core.arrays.recorded import SymbolicError, UnseenError
from mp_core.arrays.recorded_array import address_of
from mp_core.core.convert import copied
from mp_core.core.dlpack import from_dlpack

__all__ = [
    "Array", "asarray", "check_out", "contiguous", "imported", "imported_all", "imported_out", "may_overlap",
    "refuse_masked",
]  # fmt: skip

Array = np.ndarray[Any, Any]

_CANONICAL = {dtype: dtype for dtype in ALLOWED.values()}
F32, F64 = ALLOWED["float32"], ALLOWED["float64"]
_EXCHANGED = ALLOWED | STORED
# .npy files do not store the names of ml_dtypes types: such arrays load with these void types.
_NAMELESS = {
    np.dtype(kind): f". If it was saved as {name}, the file has lost that: use `.view(ml_dtypes.{name})`"
    for kind, name in (("V2", "bfloat16"), ("V1", "float8_e4m3fn"))
}
I8, U8, I32 = ALLOWED["int8"], ALLOWED["uint8"], ALLOWED["int32"]


def asarray(x: Any, argument: str = "x") -> Array:
    """Return `x` as an ndarray in native byte order, without a copy where possible; errors call it `argument`.

    It is an ndarray, nested sequence, scalar, or an object with ``__dlpack__`` in CPU memory. A bfloat16 or float8
    tensor of another framework becomes an array of the ml_dtypes type. All dtypes are in
    :data:`mp_core.dtypes.ALLOWED`.
    """
    if type(x) is not np.ndarray:
        x = imported(x, argument)
    canonical = _CANONICAL.get(x.dtype)
    if canonical is x.dtype:
        return x  # type: ignore[no-any-return]
    if canonical is not None:  # an equal dtype from a pickle; mp_core compares dtypes by identity
        return x.view(canonical)  # type: ignore[no-any-return]
    if x.dtype.name not in ALLOWED:
        hint = _NAMELESS.get(x.dtype, "")
        raise TypeError(f"`{argument}` must be an array of {', '.join(ALLOWED)}; received dtype {x.dtype}{hint}")
    return x.astype(ALLOWED[x.dtype.name])  # type: ignore[no-any-return]


def refuse_masked(x: Any, argument: str) -> None:
    """Raise TypeError if `x` is a :mod:`numpy.ma` array."""
    if issubclass(type(x), np.ma.MaskedArray):
        raise TypeError(f"`{argument}` must not be a masked array: its mask would be lost; fill it first")


def imported(x: Any, argument: str) -> Array:
    """Return `x` as an ndarray of any dtype, without a copy where possible; raise TypeError if that is impossible.

    A subclass becomes a plain ndarray, so its overridden attributes are never read.
    """
    refuse_masked(x, argument)
    array = x if _is_array(x) else _received(x, argument)
    refuse_masked(array, argument)
    return np.asarray(array)


def imported_all(names: tuple[str, ...], *arguments: Any, kept: tuple[type, ...] = ()) -> tuple[Any, ...]:
    """Return all arguments as :func:`imported` does; None, Python numbers and instances of `kept` stay as they are.

    ``__array__`` or ``__dlpack__`` of one argument may reshape another one, or move its memory. So all of these methods
    run first; then views are taken. Callers must not read a shape before this call, nor run code of an argument after
    it.
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
    """Return whether `x` is an ndarray. :func:`isinstance` would also read ``__class__`` of the object."""
    return issubclass(type(x), np.ndarray)


def _received(x: Any, argument: str) -> Array:
    """Convert any object to an ndarray or a subclass. This is the only place that runs code of an argument."""
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
    """Return whether an object exports CPU memory by DLPack; raise TypeError if it exports other memory."""
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        return False
    if hasattr(x, "is_neg") and x.is_neg() is True:  # torch's DLPack export ignores the negative bit
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
    """Return an ndarray on the memory of `out`, to be checked by :func:`check_out`; None stays None.

    This may run code of a tensor, so call it before you take views of other arguments. The operation returns `out`
    itself.
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
        raise ValueError(
            "`out` must be writeable; received a tensor whose DLPack is read-only, or of a version before 1, which "
            "cannot say that it is writeable: pass a numpy.ndarray"
        )
    return array


def check_out(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return `out` as a plain ndarray; raise unless it is writeable and has this shape and dtype.

    The caller writes into the returned array and returns `out`. So no kernel depends on attributes that a subclass
    overrides.
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
    """Return whether a write to `out` could change elements of `x` that are not yet read.

    The same address, strides and item size are safe.
    """
    if not np.may_share_memory(x, out):
        return False
    return address_of(x) != address_of(out) or x.strides != out.strides or x.itemsize != out.itemsize


def memory_order(x: Array) -> tuple[int, ...] | None:
    """Return the axes of `x` in the order of memory, the largest stride first; None if that is their own order.

    Axes of length 1 keep their places. The order of an array with repeated elements is its own.

    Operations compute in this order, so that a permuted view is not copied: images in channels-first notation stay
    channels-last in memory.

    Examples
    --------
    >>> memory_order(np.zeros((2, 5, 6, 3)).transpose(0, 3, 1, 2))
    (0, 2, 3, 1)
    """
    if x.flags.c_contiguous:
        return None
    long = [axis for axis, length in enumerate(x.shape) if length > 1]
    ordered = sorted(long, key=lambda axis: -abs(x.strides[axis]))
    if ordered == long or x.strides[ordered[-1]] == 0:
        return None
    places = dict(zip(long, ordered, strict=True))
    return tuple(places.get(axis, axis) for axis in range(x.ndim))


def in_order_of(order: tuple[int, ...], x: Array) -> Array:
    """Return the view whose axes, permuted by `order`, are those of `x`: the inverse of ``transpose(order)``."""
    return x.transpose([order.index(axis) for axis in range(x.ndim)])


def contiguous(x: Array) -> Array:
    """Return `x` if it is C-contiguous, otherwise a copy that is. A recording notes the copy."""
    copy: Array = x if x.flags.c_contiguous else copied(x)
    return copy
