"""The plan of a conversion: what each tensor is converted to."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from mp_core.arrays.dtypes import ALLOWED, WIDE
from mp_core.files.checkpoint.coding import Coding, Kind
from mp_core.files.checkpoint.tensors import Tensor
from mp_core.policies.dtype_policies import DTypePolicy, DTypePolicyMap, QuantizedDTypePolicy, Scheme, policy_of
from mp_core.utilities.patterns import matcher

__all__ = ["Planned", "RequestError", "Rules", "one_policy", "plain_name", "stored_as", "strings"]


_ADDED = re.compile(r"(position|token_type)_embeddings\.weight$|relative_attention_bias\.weight$")
"""Names of tables whose rows are added to others: no product reads them, so they are never quantized."""


class RequestError(ValueError):
    """An argument does not fit the checkpoint; another value may.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import mp_core as mp
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.safetensors")
    ...     mp.checkpoint.save_tensors(path, {"w": mp.quantize(np.eye(2), axis=0)}, policy="int8_from_float32")
    ...     try:
    ...         mp.checkpoint.convert(path, Path(folder, "b.safetensors"), policy="int4/64_from_float32")
    ...     except RequestError as error:
    ...         print(error)
    tensor 'w' is quantized already (int8); use allow_requantize (--allow-requantize) to quantize it again, or keep
    (--keep) to copy it
    """


def one_policy(word: str | DTypePolicy, argument: str) -> DTypePolicy:
    """Return :func:`policy_of` of a name, scheme or policy; raise TypeError for a map of policies."""
    found = policy_of(word, argument)
    if isinstance(found, DTypePolicyMap):
        raise TypeError(f"`{argument}` must be one policy; received {word!r}")
    return found


def stored_as(policy: str | DTypePolicy) -> str | Scheme:
    """Return the dtype of the weights under a policy; if it quantizes weights, its scheme.

    Parameters
    ----------
    policy : str or DTypePolicy
        A policy (no map), its name, or the spelling of a scheme: see :func:`mp_core.dtype_policies.policy_of`.

    Examples
    --------
    >>> stored_as("mixed_bfloat16"), str(stored_as("int4/32_from_mixed_bfloat16"))
    ('float32', 'int4/32')
    """
    found = one_policy(policy, "policy")
    if found.scheme is not None:
        found.scheme.check_stored()
        return found.scheme
    if found.quantization_mode is not None or found.variable_dtype not in WIDE:
        raise ValueError(f"`policy` must be one under which files store weights; received {found.name!r}")
    return found.variable_dtype


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor and what it is converted to: codes (`coding`), values (`dtype`), or a copy of its bytes (neither)."""

    tensor: Tensor
    policy: str | None = None
    """The name of the tensor's policy in the new file; None for integers and other tensors without a policy."""
    dtype: np.dtype[Any] | None = None
    coding: Coding | None = None
    scheme: Scheme | None = None
    """The scheme of the codes of `coding`."""

    @property
    def is_copy(self) -> bool:
        """Whether the bytes are copied."""
        return self.dtype is None and self.coding is None

    @property
    def gives_codes(self) -> bool:
        """Whether the new file has codes: of mp_core, or copied ones of another tool."""
        return (self.tensor.coding if self.is_copy else self.coding) is not None

    @property
    def parts(self) -> dict[str, Kind]:
        """The type and shape of each tensor in the file, by name."""
        name = self.tensor.name
        if self.coding is not None:
            symmetric = self.scheme is None or self.scheme.symmetric
            return self.coding.parts(name, None if symmetric else self.coding.zeros)
        if self.dtype is not None:
            return {name: (self.dtype, self.tensor.shape)}
        return self.tensor.kinds

    @property
    def new_coding(self) -> Coding | None:
        """The coding of the codes in the new file; None for numbers and for copied codes of another tool."""
        coding = self.tensor.coding if self.is_copy else self.coding
        return None if coding is None or coding.blocks is not None else coding

    @property
    def nbytes(self) -> int:
        """Bytes in the new file, scales included."""
        return sum(prod(shape) * dtype.itemsize for dtype, shape in self.parts.values())

    @property
    def new_dtype(self) -> str:
        """The name of the new type; for codes, of their type."""
        if self.coding is not None:
            return self.coding.dtype
        return self.tensor.dtype if self.dtype is None else self.dtype.name


def strings(value: Any, argument: str) -> list[str]:
    """Return strings as a list; raise ValueError for anything else, a single string included."""
    items: list[Any] = [None] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not all(isinstance(item, str) for item in items):
        raise ValueError(f"`{argument}` must be a sequence of strings; received {value!r}")
    return items


def _pairs(map: Any) -> list[tuple[str, str]]:
    """Return a mapping or sequence of patterns and policies as pairs of strings."""
    items = map.items() if isinstance(map, Mapping) else map
    pairs: list[Any] = list(items) if isinstance(items, Iterable) else [None]
    for pair in pairs:
        kinds = [isinstance(part, str) for part in pair] if isinstance(pair, Sequence) else []
        if kinds != [True, True] or isinstance(pair, str):
            raise ValueError(f"`map` must be pairs of a pattern and a policy, both strings; received {map!r}")
    return pairs


class _Pattern(NamedTuple):
    """A regular expression, and a function that returns whether it matches anywhere in a name."""

    text: str
    matches: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Rules:
    """The arguments of a conversion that decide what each tensor becomes.

    A tensor whose name `keep` matches is copied. Others get the policy of the first match in `map`, else `policy`.
    Patterns may match anywhere in a name.
    """

    policy: DTypePolicy
    map: Sequence[tuple[_Pattern, DTypePolicy]]
    keep: Sequence[_Pattern]
    allow_requantize: bool

    @classmethod
    def parse(
        cls,
        policy: str,
        map: Sequence[tuple[str, str]] | Mapping[str, str],
        keep: Sequence[str],
        allow_requantize: bool,
    ) -> Self:
        """Check the arguments of a conversion."""
        pairs = [(_pattern(pattern, "map"), _storable(mapped)) for pattern, mapped in _pairs(map)]
        patterns = [_pattern(pattern, "keep") for pattern in strings(keep, "keep")]
        return cls(_storable(policy), pairs, patterns, allow_requantize)

    def plan(self, tensors: Sequence[tuple[Tensor, str | None]]) -> list[Planned]:
        """Plan what each tensor is converted to; a tensor comes with the name of its policy in the source file, if any.

        A pattern that matches no tensor, and codes that would be quantized again, raise RequestError.
        """
        for pattern in (*self.keep, *(pattern for pattern, _ in self.map)):
            if not any(pattern.matches(tensor.name) for tensor, _ in tensors):
                raise RequestError(f"the pattern {pattern.text!r} matches no tensor")
        return [self._plan(tensor, before) for tensor, before in tensors]

    def _plan(self, tensor: Tensor, before: str | None) -> Planned:
        policy = next((mapped for pattern, mapped in self.map if pattern.matches(tensor.name)), self.policy)
        kept = any(pattern.matches(tensor.name) for pattern in self.keep)
        if not tensor.has_numbers:
            return Planned(tensor)
        if kept:
            return Planned(
                tensor, plain_name(self.policy) if tensor.coding is None else before or self._guessed(tensor.coding)
            )
        stored = stored_as(policy)
        if isinstance(stored, str):
            same = tensor.coding is None and tensor.dtype == stored
            return Planned(tensor, policy.name, None if same else ALLOWED[stored])
        if len(tensor.shape) < 2 or 0 in tensor.shape or _ADDED.search(tensor.name):
            return Planned(tensor, policy.name)
        if tensor.coding and not self.allow_requantize:
            raise RequestError(
                f"tensor {tensor.name!r} is quantized already ({tensor.dtype}); use allow_requantize "
                "(--allow-requantize) to quantize it again, or keep (--keep) to copy it"
            )
        if stored.has_whole_blocks and tensor.length % (stored.group_size or 1):
            raise RequestError(
                f"tensor {tensor.name!r} of shape {list(tensor.shape)} does not fit {stored}: its last axis must be a "
                f"multiple of {stored.group_size}; keep (--keep) it, or store it under another policy (--map)"
            )
        coding = Coding(stored.dtype.name, tensor.shape, stored.axis(len(tensor.shape)), stored.group_size)
        return Planned(tensor, policy.name, coding=coding, scheme=stored)

    def _guessed(self, coding: Coding) -> str | None:
        """Return the name of a policy for codes whose file has no policies; None if no scheme describes them."""
        per = "group" if coding.group_size else "channel" if coding.axis else "tensor"
        try:
            scheme = Scheme.of_codes(coding.dtype, "fixed" if coding.fixed_inputs else "float", coding.group_size, per)
        except ValueError:
            return None
        return f"{scheme}_from_{plain_name(self.policy)}"


def plain_name(policy: DTypePolicy) -> str:
    """Return the name of a policy without its scheme."""
    return policy.source_name if isinstance(policy, QuantizedDTypePolicy) else policy.name


def _storable(word: str) -> DTypePolicy:
    """Return a policy by name; raise unless a conversion can store tensors under it."""
    stored = stored_as(word)
    if isinstance(stored, Scheme) and stored.inputs == "fixed":
        raise RequestError(
            f"'{stored}' needs scales of inputs, which come from a sample: calibrate (--calibrate) the model"
        )
    return policy_of(word)


def _pattern(text: str, argument: str) -> _Pattern:
    try:
        return _Pattern(text, matcher(text, "search"))
    except ValueError as error:
        raise ValueError(f"`{argument}` must be regular expressions; received {text!r}: {error}") from None
