"""Casts that round stochastically, and the keys of counter-based random numbers."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays.conversion import FORMATS, cast_any
from mp_core.arrays.dtypes import ALLOWED, is_float, name_of, parse
from mp_core.arrays.received import F32, Array, asarray, check_out, contiguous, imported_out
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.core.pairs import round_randomly
from mp_core.utilities.arguments import boolean, integer, kind_of

__all__ = ["checked_key", "key_number", "key_of", "round_stochastically", "rounded_stochastically"]

_TARGETS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
_MOST = 2**32 - 1  # the largest seed and draw


@recordable
@with_numbers
def round_stochastically(x: Any, dtype: DTypeLike, key: Array, out: Any, saturate: Any) -> Array:
    """Return what ``cast(x, dtype, rounding="stochastic", seed=key)`` returns."""
    saturate, key = boolean(saturate, "saturate"), checked_key(key, "seed")
    wanted = parse(dtype, any_order=True)
    target = wanted if wanted.isnative else ALLOWED[name_of(wanted)]
    if name_of(target) not in _TARGETS:
        raise ValueError(
            f"`rounding` may be 'stochastic' for `dtype` {', '.join(_TARGETS)}; received {name_of(target)}"
        )
    held = imported_out(out)
    array = asarray(x)
    array = array if is_float(array.dtype) else cast_any(array, F32, None, False)
    result = np.empty(array.shape, wanted) if held is None else check_out(held, array.shape, target)
    direct = result.dtype is target and result.flags.carray and not np.may_share_memory(array, result)
    rounded = rounded_stochastically(array, target, key, saturate=saturate, out=result if direct else None)
    if not direct:
        result[...] = rounded
    return result if out is None else out


def rounded_stochastically(
    x: Array,
    dtype: np.dtype[Any],
    key: Array,
    stream: tuple[int, int, int] = (0, 0, 0),
    saturate: bool = False,
    out: Array | None = None,
) -> Array:
    """Return an array of floats, rounded stochastically to `dtype`.

    Parameters
    ----------
    x : ndarray
        Of a float type, with any strides.
    dtype : dtype
        One of the narrow types that :func:`mp_core.cast` rounds to stochastically.
    key : ndarray
        As :func:`checked_key` returns it.
    stream : tuple of int
        Words 1 to 3 of the counters of Philox: other words for each array that is rounded with one key.
    saturate : bool
    out : ndarray, optional
        C-contiguous, aligned, of type `dtype` and the shape of `x`, without memory of `x`.
    """
    rows = contiguous(x)
    out = np.empty(rows.shape, dtype) if out is None else out
    if out.size:
        source, target = (rows.reshape(1), out.reshape(1)) if rows.ndim == 0 else (rows, out)
        round_randomly(FORMATS[x.dtype], FORMATS[dtype], key, source, target, stream, saturate)
    return out


def key_of(rounding: Any, seed: Any, draw: Any) -> Any:
    """Return the key of a stochastic cast, or None if `rounding` is "nearest".

    Raises
    ------
    TypeError, ValueError
        `rounding` is neither of both, or `seed` and `draw` do not fit it.
    """
    if not isinstance(rounding, str) or rounding not in ("nearest", "stochastic"):
        raise ValueError(f"`rounding` must be 'nearest' or 'stochastic'; received {rounding!r}")
    if rounding == "nearest":
        if seed is not None or draw is not None:
            raise ValueError(
                "`seed` and `draw` need `rounding='stochastic'`: rounding to nearest has no random numbers"
            )
        return None
    if hasattr(seed, "shape") and seed.shape != ():
        if draw is not None:
            raise ValueError("`draw` must be None if `seed` is a key: a key is (seed, draw)")
        return seed
    if seed is None:
        raise ValueError(
            "`rounding='stochastic'` needs a `seed`: an integer, or a key of shape (2,) as ops.dropout takes"
        )
    numbers = key_number(seed, "seed"), 0 if draw is None else key_number(draw, "draw")
    return np.array(numbers, np.uint32)


def key_number(value: Any, argument: str) -> int:
    """Check a seed or draw: an integer of 32 bits."""
    found = integer(value, argument)
    if not 0 <= found <= _MOST:
        raise ValueError(f"`{argument}` must be an integer from 0 to {_MOST}; received {found}")
    return found


def checked_key(key: Any, argument: str = "key") -> Array:
    """Check a key and return it contiguous. In plans keys are int32 with the same bits."""
    if not isinstance(key, np.ndarray) or key.dtype not in (np.uint32, np.int32):
        raise TypeError(f"`{argument}` must be an ndarray of uint32; received {kind_of(key)}")
    if key.shape != (2,):
        raise ValueError(f"`{argument}` must be (seed, draw), of shape (2,); received shape {key.shape}")
    return contiguous(key)
