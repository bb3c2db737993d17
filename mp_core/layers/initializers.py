"""Initial values of weights, by Keras' names; loaded models replace them before their first use."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays import Array

__all__ = ["get"]

Initializer = Callable[[tuple[int, ...], np.dtype[Any]], Array]


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros."""
    return np.zeros(shape, dtype)


def ones(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return ones."""
    return np.ones(shape, dtype)


def uniform(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return numbers drawn uniformly from [-0.05, 0.05)."""
    return np.random.default_rng().uniform(-0.05, 0.05, shape).astype(dtype)


def glorot_uniform(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return numbers drawn uniformly up to ``sqrt(6 / (fan_in + fan_out))``, the leading axes being a window."""
    window = int(np.prod(shape[:-2]))
    fans = window * sum(shape[-2:]) if len(shape) > 1 else 2 * int(np.prod(shape))
    limit = np.sqrt(6.0 / max(1, fans))
    return np.random.default_rng().uniform(-limit, limit, shape).astype(dtype)


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
    """Return the initializer of a name, of a Keras config dict (its ``class_name``), or a callable itself.

    Raises
    ------
    ValueError
        `identifier` is none of these.
    """
    if callable(identifier):
        return identifier  # type: ignore[no-any-return]
    name = identifier.get("class_name") if isinstance(identifier, dict) else identifier
    if name not in _INITIALIZERS:
        raise ValueError(
            f"Could not interpret initializer: {identifier!r}. Expected a callable or one of {', '.join(_INITIALIZERS)}"
        )
    return _INITIALIZERS[name]
