"""Initial values of weights, by Keras' names; loaded models replace them before their first use."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import Array
from mp_core.dtype_policies.lookup import named_function

__all__ = ["checked", "get"]

Initializer = Callable[[tuple[int, ...], np.dtype[Any]], Array]


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros."""
    return np.zeros(shape, dtype)


def ones(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return ones."""
    return np.ones(shape, dtype)


def uniform(shape: tuple[int, ...], dtype: np.dtype[Any], minval: float = -0.05, maxval: float = 0.05) -> Array:
    """Return numbers drawn uniformly from [minval, maxval)."""
    if not dtypes.is_float(dtype):
        raise ValueError(f"Weights are drawn in floating-point dtypes only; received dtype {dtype}")
    return np.random.default_rng().uniform(minval, maxval, shape).astype(dtype)


def glorot_uniform(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return numbers drawn uniformly up to ``sqrt(6 / (fan_in + fan_out))``, the leading axes being a window."""
    window = int(np.prod(shape[:-2]))
    fans = window * sum(shape[-2:]) if len(shape) > 1 else 2 * int(np.prod(shape))
    limit = np.sqrt(6.0 / max(1, fans))
    return uniform(shape, dtype, -limit, limit)


_RANGE = ("minval", "maxval")
_INITIALIZERS: dict[str, Initializer] = {
    "zeros": zeros,
    "Zeros": zeros,
    "ones": ones,
    "Ones": ones,
    "uniform": uniform,
    "random_uniform": uniform,
    "RandomUniform": uniform,
    "glorot_uniform": glorot_uniform,
    "GlorotUniform": glorot_uniform,
}


def get(identifier: Any) -> Initializer:
    """Return the initializer of a name, of Keras' dictionary of one or of a function, or a callable itself.

    Raises
    ------
    ValueError
        `identifier` is none of these, or its ``config`` has settings that the initializer does not have.
    """
    identifier = named_function(identifier)
    if callable(identifier):
        return identifier  # type: ignore[no-any-return]
    name, config = (identifier.get("class_name"), identifier.get("config")) if isinstance(identifier, dict) else (
        identifier, None)  # fmt: skip
    if not isinstance(name, str) or name not in _INITIALIZERS:
        raise ValueError(
            f"Could not interpret initializer: {identifier!r}. Expected a callable or one of {', '.join(_INITIALIZERS)}"
        )
    initializer = _INITIALIZERS[name]
    settings = {key: value for key, value in (config or {}).items() if value is not None}
    if not settings.keys() <= (set(_RANGE) if initializer is uniform else set()):
        raise ValueError(f"The initializer {name} has no such settings; received {settings}")
    return partial(initializer, **settings) if settings else initializer


def checked(identifier: Any) -> Any:
    """Return what :func:`get` takes, which is what a configuration keeps of it."""
    get(identifier)
    return identifier
