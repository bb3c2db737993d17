"""What is to become of each tensor."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from mp_core import dtype_policies
from mp_core.arrays import Array, refuse_masked
from mp_core.checkpoint.coding import BOX, MAX_GROUP, Coding, Kind, is_group_size
from mp_core.checkpoint.tensors import Tensor
from mp_core.dtype_policies import Int8WeightOnlyDTypePolicy
from mp_core.dtypes import ALLOWED, is_float
from mp_core.patterns import matcher

__all__ = ["POLICIES", "Granularity", "Planned", "RequestError", "Rules", "stored_as"]


class RequestError(ValueError):
    """What was asked for does not fit the checkpoint; other arguments may."""


@dataclass(frozen=True, slots=True)
class Granularity:
    """Which elements share a scale."""

    kind: str
    group_size: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``channel``, ``tensor`` or ``group:N``; raise ValueError for another text."""
        kind, _, size = text.partition(":")
        if text in ("channel", "tensor"):
            return cls(text)
        group_size = int(size) if size.isdecimal() and len(size) < 6 else 0
        if kind != "group" or not is_group_size(group_size):
            raise ValueError(
                "`granularity` must be 'channel', 'tensor' or 'group:N', N a power of two from 2 to "
                f"{MAX_GROUP}; received {text!r}"
            )
        return cls(kind, group_size)

    def axis(self, ndim: int) -> tuple[int, ...]:
        """Return the axes that keep scales of their own; a Linear layer's weights are (outputs, inputs)."""
        return {"tensor": (), "channel": (0,)}.get(self.kind, tuple(range(ndim - 1)))


_CHANNEL, _GROUP = Granularity("channel"), Granularity("group", 64)
POLICIES: dict[str, tuple[str, Granularity | None]] = {
    "float32": ("float32", None),
    "float16": ("float16", None),
    "bfloat16": ("bfloat16", None),
    "float8_e4m3fn": ("float8_e4m3fn", _GROUP),
    "float8_e5m2": ("float8_e5m2", _GROUP),
    "int8": ("int8", _CHANNEL),  # what exact products of integers need
    "int8_weight_only": ("int8", _GROUP),
    "int4": ("int4", _GROUP),
}
"""Name -> dtype of the values and, where these are codes, which of them share a scale by default."""


def stored_as(policy: str) -> tuple[str, Granularity | None]:
    """Return the dtype of the values of tensors under a policy and, where these are codes, which share a scale.

    Parameters
    ----------
    policy : str
        One of ``POLICIES``, or the name of a dtype policy, whose weights are meant.

    Raises
    ------
    ValueError
        `policy` is neither, or no tensor can be stored under it.

    Examples
    --------
    >>> stored_as("int4/32_from_mixed_bfloat16")
    ('int4', Granularity(kind='group', group_size=32))
    """
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    try:
        if not isinstance(policy, str):
            raise TypeError("a policy's name is a string")
        found = dtype_policies.get(policy)
        if found.quantization_mode is None and found.variable_dtype in POLICIES:
            return POLICIES[found.variable_dtype]
        if isinstance(found, Int8WeightOnlyDTypePolicy):
            return POLICIES["int8_weight_only"]
        if found.quantization_mode == "int4":
            size = getattr(found, "block_size", -1)
            return "int4", _CHANNEL if size == -1 else Granularity.parse(f"group:{size}")
        return {"int8": POLICIES["int8"], "float8": POLICIES["float8_e4m3fn"]}[str(found.quantization_mode)]
    except (KeyError, TypeError, ValueError) as error:
        reason = "" if isinstance(error, KeyError) else f" ({error})" if "_from_" in str(policy) else ""
        raise ValueError(
            f"`policy` must be one of {', '.join(POLICIES)}, or the name of a dtype policy of such weights, as "
            f"int8_from_mixed_bfloat16; received {policy!r}{reason}"
        ) from None


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor and what it becomes: codes of a coding, values of a type, or a copy of its bytes."""

    tensor: Tensor
    dtype: np.dtype[Any] | None = None
    coding: Coding | None = None
    moments: Array | None = None
    """Of the inputs that codes are rounded for."""

    @property
    def is_copy(self) -> bool:
        """Whether the bytes stay as they are."""
        return self.dtype is None and self.coding is None

    @property
    def parts(self) -> dict[str, Kind]:
        """Types and shapes of the tensors in the file, by name."""
        name = self.tensor.name
        if self.coding is not None:
            return self.coding.parts(name, None)
        if self.dtype is not None:
            return {name: (self.dtype, self.tensor.shape)}
        return {part: (entry.dtype, entry.shape) for part, entry in self.tensor.parts.items()}

    @property
    def new_coding(self) -> Coding | None:
        """The coding of the codes in the new file, but of codes that another tool has written."""
        coding = self.tensor.coding if self.is_copy else self.coding
        return None if coding is None or coding.blocks is not None else coding

    @property
    def nbytes(self) -> int:
        """Bytes in the new file, of scales too."""
        return sum(prod(shape) * dtype.itemsize for dtype, shape in self.parts.values())

    @property
    def new_dtype(self) -> str:
        """The name of the new type, of the codes where there are scales."""
        if self.coding is not None:
            return self.coding.dtype
        return self.tensor.dtype if self.dtype is None else self.dtype.name


def strings(value: Any, argument: str) -> list[str]:
    """Return strings as a list; raise for one string, which would be taken for as many as it has letters."""
    items: list[Any] = [None] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not all(isinstance(item, str) for item in items):
        raise ValueError(f"`{argument}` must be a sequence of strings; received {value!r}")
    return items


def _pairs(map: Any) -> list[tuple[str, str]]:
    """Return what maps patterns to policies as pairs of strings."""
    items = map.items() if isinstance(map, Mapping) else map
    pairs: list[Any] = list(items) if isinstance(items, Iterable) else [None]
    for pair in pairs:
        kinds = [isinstance(part, str) for part in pair] if isinstance(pair, Sequence) else []
        if kinds != [True, True] or isinstance(pair, str):
            raise ValueError(f"`map` must be pairs of a pattern and a policy, both strings; received {map!r}")
    return pairs


class _Pattern(NamedTuple):
    """A regular expression, and whether it matches a name somewhere."""

    text: str
    matches: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which policy a tensor gets: that of the first match in `map`, else `policy`; none if `keep` matches its name.

    Patterns may match anywhere in a name.
    """

    policy: str
    map: Sequence[tuple[_Pattern, str]]
    keep: Sequence[_Pattern]
    granularity: Granularity | None
    allow_requantize: bool
    moments: Mapping[str, Array]

    @classmethod
    def parse(
        cls,
        policy: str,
        map: Sequence[tuple[str, str]] | Mapping[str, str],
        keep: Sequence[str],
        granularity: str | None,
        allow_requantize: bool,
        moments: Mapping[str, Array] | None = None,
    ) -> Self:
        """Check the arguments of a conversion."""
        pairs = _pairs(map)
        if granularity is not None and not isinstance(granularity, str):
            raise ValueError(f"`granularity` must be a string such as 'group:64'; received {granularity!r}")
        for name in (policy, *(mapped for _, mapped in pairs)):
            stored_as(name)
        if not isinstance(moments, Mapping | None):
            raise ValueError(f"`moments` must map names to arrays; received {type(moments).__name__}")
        return cls(
            policy,
            [(_pattern(pattern, "map"), mapped) for pattern, mapped in pairs],
            [_pattern(pattern, "keep") for pattern in strings(keep, "keep")],
            None if granularity is None else Granularity.parse(granularity),
            allow_requantize,
            moments or {},
        )

    def plan(self, tensors: Sequence[Tensor]) -> list[Planned]:
        """Return what becomes of each tensor; every pattern must match one."""
        for pattern in (*self.keep, *(pattern for pattern, _ in self.map)):
            if not any(pattern.matches(tensor.name) for tensor in tensors):
                raise RequestError(f"the pattern {pattern.text!r} matches no tensor")
        for name in self.moments:
            if not any(tensor.name == name for tensor in tensors):
                raise RequestError(f"the moments of {name!r} belong to no tensor")
        planned = [self._plan(tensor) for tensor in tensors]
        if self.moments and not any(plan.moments is not None for plan in planned):
            raise RequestError("the moments do not apply: no tensor that has some would be quantized")
        if self.granularity and not any(plan.coding for plan in planned):
            raise RequestError(
                f"the granularity {self.granularity.kind!r} does not apply: no tensor would be quantized"
            )
        return planned

    def _plan(self, tensor: Tensor) -> Planned:
        policy = next((mapped for pattern, mapped in self.map if pattern.matches(tensor.name)), self.policy)
        kept = any(pattern.matches(tensor.name) for pattern in self.keep)
        if kept or not (tensor.coding or is_float(tensor.values.dtype)):
            return Planned(tensor)
        dtype, granularity = stored_as(policy)
        if granularity is None:
            same = tensor.coding is None and tensor.dtype == dtype
            return Planned(tensor) if same else Planned(tensor, ALLOWED[dtype])
        if len(tensor.shape) < 2 or 0 in tensor.shape:
            return Planned(tensor)
        if tensor.coding and not self.allow_requantize:
            raise RequestError(
                f"tensor {tensor.name!r} holds {tensor.dtype} codes already; quantizing them again needs "
                "allow_requantize (--allow-requantize), keeping them keep (--keep)"
            )
        if (granularity.group_size or 0) > tensor.length:
            granularity = _CHANNEL
        granularity = self.granularity or granularity
        axis = granularity.axis(len(tensor.shape))
        coding = Coding(dtype, tensor.shape, axis, granularity.group_size)
        return Planned(tensor, coding=coding, moments=self._moments(tensor))

    def _moments(self, tensor: Tensor) -> Array | None:
        """Return the moments of the inputs of a tensor that is to be quantized, checked."""
        if tensor.name not in self.moments:
            return None
        refuse_masked(self.moments[tensor.name], f"moments[{tensor.name!r}]")
        moments = np.asarray(self.moments[tensor.name])
        if moments.dtype.kind != "f" or moments.shape != (tensor.length,) * 2 or not np.isfinite(moments).all():
            raise RequestError(
                f"the moments of {tensor.name!r} must be finite floats of shape {(tensor.length,) * 2}; "
                f"received {moments.dtype} of shape {moments.shape}"
            )
        if tensor.length > BOX:
            raise RequestError(f"the moments of {tensor.name!r} do not apply: its lines are longer than {BOX}")
        return moments


def _pattern(text: str, argument: str) -> _Pattern:
    try:
        return _Pattern(text, matcher(text, "search"))
    except ValueError as error:
        raise ValueError(f"`{argument}` must hold regular expressions; received {text!r}: {error}") from None
