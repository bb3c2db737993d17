"""Rotary positions (RoPE): the rotation angles of queries and keys, for all kinds of scaling in ``config.json``."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.models.settings import LEAST_TOKENS, choices, unexpected

__all__ = ["Rope", "angles", "short_of"]

_NUMBERS: dict[str, dict[str, float | None]] = {
    "default": {},
    "linear": {"factor": None},
    "dynamic": {"factor": None},
    "llama3": dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")),
    "yarn": {
        "factor": None,
        "original_max_position_embeddings": None,
        "attention_factor": 0.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.0,
        "mscale_all_dim": 0.0,
    },
    "ntk": {"factor": None, "mixed_b": 0.0},
    "longrope": {"factor": 0.0, "original_max_position_embeddings": None, "attention_factor": 0.0},
}
"""Type of scaling -> its parameters and their defaults; None: ``config.json`` must have the parameter."""
_FACTORS = "short_factor", "long_factor"
"""The lists of numbers that ``"longrope"`` needs as well."""


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary positions of one block."""

    theta: float  # The base: the larger it is, the slower the rotation.
    # The type of scaling, which reduces angles for texts longer than in training. ``"dynamic"`` changes nothing for
    # texts of up to ``max_position_embeddings`` tokens, and mp_core takes no longer ones.
    scaling: str = "default"
    numbers: tuple[tuple[str, float], ...] = ()  # The parameters of the scaling.
    factors: tuple[float, ...] = ()  # The divisor of each angle, if ``config.json`` lists them.
    few: int = 0  # The longest text, in tokens, to which these angles apply; 0: they apply to all texts.
    long: "Rope | None" = None  # The rotary positions of texts of more than `few` tokens.

    @classmethod
    def of(cls, entries: Mapping[str, Any], theta: Any, path: Any, where: str) -> "Rope":
        """Return the rotary positions that an object of ``config.json`` describes.

        Its entries are ``rope_type`` (``type`` in older files), ``rope_theta``, by default `theta`, and the parameters
        of the type. Errors name the file `path` and the object `where`.
        """
        entries = {"rope_type" if name == "type" else name: value for name, value in entries.items()}
        scaling, theta = entries.pop("rope_type", "default"), entries.pop("rope_theta", theta)
        if entries.get("partial_rotary_factor") == 1:  # heads are rotated as a whole
            del entries["partial_rotary_factor"]
        if not isinstance(scaling, str) or scaling not in _NUMBERS:
            raise unexpected(path, f"the rope_type of {where}", scaling, choices(_NUMBERS))
        needed = _NUMBERS[scaling]
        unknown = [name for name in entries if name not in needed]
        if unknown:
            known = choices(["rope_type", "rope_theta", *needed])
            raise ValueError(f"{path}: {where} has the entry {unknown[0]!r}; expected {known}")
        given = {name: value for name, value in entries.items() if value is not None}
        found: dict[str, Any] = {name: given.get(name, default) for name, default in needed.items()}
        for name, number in {"rope_theta": theta, **found}.items():
            least_allowed = number == needed.get(name) and number is not None
            if type(number) not in (int, float) or not (0 < number < math.inf or least_allowed):
                raise unexpected(path, f"the {name} of {where}", number, "a positive, finite number")
        return cls(float(theta), scaling, tuple((name, float(number)) for name, number in found.items()))

    @classmethod
    def by_length(cls, entries: Mapping[str, Any], theta: Any, path: Any, where: str, sizes: tuple[int, int]) -> "Rope":
        """Return the rotary positions of an object of the type ``"longrope"`` [1]_.

        The length of each text decides which of the two lists applies. In transformers the longest text of a batch
        decides, so its vectors agree with these if each text is computed alone. `sizes`: head size,
        ``max_position_embeddings``.

        .. [1] Y. Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", ICML 2024,
           arXiv:2402.13753.
        """
        size, most = sizes
        base = cls.of({name: value for name, value in entries.items() if name not in _FACTORS}, theta, path, where)
        numbers = dict(base.numbers)
        few = numbers["original_max_position_embeddings"]
        if few % 1 or few < LEAST_TOKENS:
            expected = f"an integer of at least {LEAST_TOKENS}"
            raise unexpected(path, f"the original_max_position_embeddings of {where}", few, expected)
        factor = numbers["factor"] or most / few
        sharper = numbers["attention_factor"] or math.sqrt(1 + math.log(max(factor, 1)) / math.log(few))
        short, long = (
            cls(base.theta, base.scaling, (("attention_factor", sharper),), _factors(entries, name, path, where, size))
            for name in _FACTORS
        )
        return short if most <= few else replace(short, few=int(few), long=long)


def _factors(entries: Mapping[str, Any], name: str, path: Any, where: str, size: int) -> tuple[float, ...]:
    """Return a list of positive, finite numbers, one for each of the ``size // 2`` angles."""
    listed = entries.get(name)
    if (
        not isinstance(listed, list)
        or len(listed) != size // 2
        or any(type(x) not in (int, float) or not 0 < x < math.inf for x in listed)
    ):
        raise unexpected(path, f"the {name} of {where}", listed, f"a list of {size // 2} positive, finite numbers")
    return tuple(map(float, listed))


@lru_cache(maxsize=8)
def angles(rope: Rope, size: int, length: int) -> Array:
    """Return for `length` positions the cosines, then the sines of all angles, float32, shape (length, size).

    With `few`, that many rows for shorter texts come first, then `length` rows for longer ones.
    """
    if rope.long is not None:
        table: Array = np.concatenate(
            [angles(part, size, n) for part, n in ((short_of(rope), rope.few), (rope.long, length))]
        )
        table.flags.writeable = False
        return table
    powers = (rope.theta ** (np.arange(0, size, 2) / size)).astype(F32)
    if rope.factors:
        powers = np.array(rope.factors, F32) * powers
    frequencies, factor = _SCALINGS[rope.scaling](rope.theta, powers, dict(rope.numbers))
    table = np.empty((length, size), F32)
    for begin in range(0, length, _POSITIONS):
        rows = table[begin : begin + _POSITIONS]
        positions = np.arange(begin, begin + len(rows), dtype=F32)[:, np.newaxis]
        radians = (positions * frequencies.astype(F32)).astype(np.float64)
        rows[:, : len(powers)] = np.cos(radians) * factor
        rows[:, len(powers) :] = np.sin(radians) * factor
    table.flags.writeable = False  # so that plans can share it
    return table


_POSITIONS = 2048
"""The number of positions whose float64 angles are in memory at once."""


def short_of(rope: Rope) -> Rope:
    """Return the rotary positions of texts of at most `few` tokens."""
    return replace(rope, few=0, long=None)


def _unscaled(theta: float, powers: Array, numbers: Mapping[str, float]) -> tuple[Array, float]:
    return 1 / powers, 1.0


def _linear(theta: float, powers: Array, numbers: Mapping[str, float]) -> tuple[Array, float]:
    return 1 / powers / F32.type(numbers["factor"]), 1.0


def _llama3(theta: float, powers: Array, numbers: Mapping[str, float]) -> tuple[Array, float]:
    """Keep high frequencies, divide low ones by the factor, and interpolate between them."""
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    frequencies = 1 / powers.astype(np.float64)
    turns = numbers["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (share + (1 - share) / numbers["factor"]), 1.0


def _yarn(theta: float, powers: Array, numbers: Mapping[str, float]) -> tuple[Array, float]:
    """Interpolate linearly over the angles, and scale the scores up: B. Peng et al., "YaRN", arXiv:2309.00071."""
    factor, length, half = numbers["factor"], numbers["original_max_position_embeddings"], len(powers)

    def place(turns: float) -> float:
        return half * math.log(length / (turns * 2 * math.pi)) / math.log(theta)

    first = max(math.floor(place(numbers["beta_fast"])), 0)
    last = min(math.ceil(place(numbers["beta_slow"])), 2 * half - 1)
    share = np.clip((np.arange(half) - first) / (last - first or 0.001), 0, 1)

    def sharpness(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0

    m, of_all = numbers["mscale"], numbers["mscale_all_dim"]
    inferred = sharpness(m) / sharpness(of_all) if m and of_all else sharpness(1.0)
    sharper = numbers["attention_factor"] or inferred
    return (share / factor + (1 - share)) / powers.astype(np.float64), sharper


def _ntk(theta: float, powers: Array, numbers: Mapping[str, float]) -> tuple[Array, float]:
    """Reduce low frequencies by a larger theta: fixed NTK or, with `mixed_b`, mixed NTK of kexue.fm/archives/9706."""
    factor, half, mixed = numbers["factor"], len(powers), numbers["mixed_b"]
    if not mixed:
        wide = (theta * factor) ** (np.arange(half) / half) * factor ** (1 / half)
        return 1 / wide, 1.0
    slower = np.exp(math.log(factor) / half**mixed * np.arange(1, half + 1) ** mixed)
    return 1 / powers.astype(np.float64) / slower, 1.0


def _long(theta: float, powers: Array, numbers: Mapping[str, float]) -> tuple[Array, float]:
    """Use the powers, already multiplied by the listed numbers, and scale the scores up."""
    return 1 / powers, numbers["attention_factor"]


_SCALINGS: dict[str, Callable[[float, Array, Mapping[str, float]], tuple[Array, float]]] = {
    "default": _unscaled,
    "dynamic": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "ntk": _ntk,
    "longrope": _long,
}
"""Type of scaling -> ``(theta, powers, parameters)`` -> the angles of position 1, and a factor of cosine and sine."""
