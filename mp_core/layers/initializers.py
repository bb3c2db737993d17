"""Initial values of weights, by Keras' names; loaded models replace them before their first use."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import Array
from mp_core.dtype_policies.lookup import named_function
from mp_core.layers.randomness import next_key
from mp_core.ops import random

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
    return _cast(minval + (maxval - minval) * random.uniform(next_key(), shape).astype(np.float64), dtype)


def normal(shape: tuple[int, ...], dtype: np.dtype[Any], mean: float = 0.0, stddev: float = 0.05) -> Array:
    """Return numbers of the normal distribution."""
    return _cast(mean + stddev * random.normal(next_key(), shape).astype(np.float64), dtype)


def truncated_normal(shape: tuple[int, ...], dtype: np.dtype[Any], mean: float = 0.0, stddev: float = 0.05) -> Array:
    """Return numbers of the normal distribution, those beyond two deviations drawn again."""
    drawn = random.normal(next_key(), shape)
    while (far := np.abs(drawn) > 2).any():
        drawn = np.where(far, random.normal(next_key(), shape), drawn)
    return _cast(mean + stddev * drawn.astype(np.float64), dtype)


def _cast(x: Array, dtype: np.dtype[Any]) -> Array:
    if not dtypes.is_float(dtype):
        raise ValueError(f"Weights are drawn in floating-point dtypes only; received dtype {dtype}")
    return np.asarray(x).astype(dtype)


def scaled(shape: tuple[int, ...], dtype: np.dtype[Any], scale: float, mode: str, distribution: str) -> Array:
    """Return numbers with the variance ``scale / fan``, the leading axes of a shape being a window.

    The fan is the number of inputs, of outputs, or the mean of both.
    """
    window = int(np.prod(shape[:-2]))
    fan_in, fan_out = (window * n for n in shape[-2:]) if len(shape) > 1 else (int(np.prod(shape)),) * 2
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    deviation = float(np.sqrt(scale / max(1.0, fan)))
    if distribution == "uniform":
        limit = float(np.sqrt(3.0)) * deviation
        return uniform(shape, dtype, -limit, limit)
    return truncated_normal(shape, dtype, 0.0, deviation / 0.87962566103423978)  # what the truncation takes away


_VARIANCES = {
    "glorot": (1.0, "fan_avg"), "he": (2.0, "fan_in"), "lecun": (1.0, "fan_in"),
}  # fmt: skip
_SETTINGS: dict[Any, tuple[str, ...]] = {
    uniform: ("minval", "maxval"), normal: ("mean", "stddev"), truncated_normal: ("mean", "stddev"),
}  # fmt: skip
"""Initializer -> the settings that a configuration may have."""
_INITIALIZERS: dict[str, Initializer] = {
    "zeros": zeros,
    "Zeros": zeros,
    "ones": ones,
    "Ones": ones,
    "uniform": uniform,
    "random_uniform": uniform,
    "RandomUniform": uniform,
    "normal": normal,
    "random_normal": normal,
    "RandomNormal": normal,
    "truncated_normal": truncated_normal,
    "TruncatedNormal": truncated_normal,
}
for _name, (_scale, _mode) in _VARIANCES.items():
    for _distribution in ("uniform", "normal"):
        _made = partial(scaled, scale=_scale, mode=_mode, distribution=_distribution)
        _INITIALIZERS[f"{_name}_{_distribution}"] = _made
        _INITIALIZERS[f"{_name.title()}{_distribution.title()}"] = _made
_INITIALIZERS |= {"LeCunUniform": _INITIALIZERS["lecun_uniform"], "LeCunNormal": _INITIALIZERS["lecun_normal"]}


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
    if not settings.keys() <= set(_SETTINGS.get(initializer, ())):
        raise ValueError(f"The initializer {name} has no such settings; received {settings}")
    return partial(initializer, **settings) if settings else initializer


def checked(identifier: Any) -> Any:
    """Return what :func:`get` takes, which is what a configuration keeps of it."""
    get(identifier)
    return identifier
