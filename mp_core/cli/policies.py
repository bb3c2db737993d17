"""Policies on the command line: read their names, read maps from files, print the table of policies."""

import argparse
from collections.abc import Callable
from re import escape, match
from typing import Any, TypeVar

from mp_core.cli.common import printable
from mp_core.files.checkpoint import stored_as
from mp_core.files.checkpoint.header import load_json
from mp_core.files.checkpoint.reading import read_file
from mp_core.models import TextEncoder
from mp_core.policies import dtype_policies
from mp_core.policies.dtype_policies import SPELLINGS, DTypePolicyMap
from mp_core.policies.dtype_policies.registry import PLAIN
from mp_core.policies.dtype_policies.schemes import Scheme
from mp_core.utilities.patterns import matcher
from mp_core.utilities.suggest import refusal
from mp_core.utilities.tables import aligned

__all__ = ["WORDS", "policy", "policy_map", "stored_map", "stored_policy", "table_of_policies"]

T = TypeVar("T")

WORDS = (*PLAIN, *(spelling.replace("N", "64") for spelling in SPELLINGS))
"""The names of policies, for help and completion; groups have 64 weights."""

_SHARED = {"channel": "channel", "tensor": "matrix", "group": "64 weights"}
_INPUTS = {"float": "floats", "dynamic": "quantized row by row", "fixed": "quantized, fixed scales"}


_END = """\
Groups can have other lengths than 64. A scheme alone (int8 and the rows below)
means SCHEME_from_mixed_bfloat16. `fixed` needs sample texts:
mp-core convert --calibrate."""


def table_of_policies() -> str:
    """Return a table of the policies: type of the weights, the weights that share a scale, inputs of products."""
    rows = [["policy", "weights", "a scale for", "inputs of products"]]
    for name in PLAIN:
        chosen = dtype_policies.policy_of(name)
        rows.append([name, chosen.variable_dtype, "", chosen.compute_dtype])
    for name in WORDS[len(PLAIN) :]:
        scheme = Scheme.parse(name)
        rows.append([name, scheme.codes, _SHARED[scheme.per], _INPUTS[scheme.inputs]])
    return f"{aligned(rows, left=range(4))}\n\n{_END}"


def policy(word: str) -> str:
    """Check that a word is a policy that folders of weights can hold; return the full name of the policy."""
    chosen = _read(dtype_policies.policy_of, word)
    compute_dtype = chosen.compute_dtype
    if chosen.scheme is None and chosen.quantization_mode not in (None, "float8"):
        raise argparse.ArgumentTypeError(f"must be a policy that folders can hold; {word!r} has no scheme")
    if "float" not in compute_dtype:
        raise argparse.ArgumentTypeError(
            f"must compute in a floating-point dtype; {word!r} computes in {compute_dtype}"
        )
    return str(chosen)


def stored_policy(word: str) -> str:
    """Check that a word is a policy that tensors can be stored in."""
    _read(stored_as, word)
    return word


def _read(read: Callable[[str], T], word: str) -> T:
    """Return ``read(word)``; turn its error into one that suggests a similar name and lists the choices."""
    try:
        return read(word)
    except (TypeError, ValueError) as error:
        allowed, came, rest = str(error).removeprefix("`policy` ").partition(f"; received {word!r}")
        other = match(r"; did you mean (\S+)\?", rest)
        reason = rest if other is None else rest[other.end() :]
        message = f"{refusal(word, allowed, None if other is None else other[1])}{reason}" if came else allowed
        raise argparse.ArgumentTypeError(message) from error


def policy_map(path: str) -> DTypePolicyMap:
    """Read a map of policies that ``mp-core choose`` wrote with ``--output`` or ``--json``."""
    content: dict[str, Any] = load_json(read_file(path), f"{path} is not a map of policies")
    try:
        found = dtype_policies.deserialize(content.get("map", content))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a map of policies: {error}") from error
    if not isinstance(found, DTypePolicyMap):
        raise ValueError(f"{path} is not a map of policies: it is the policy {found.name!r}")
    return found


def stored_map(path: str, folder: str) -> tuple[str, list[tuple[str, str]]]:
    """Read a map of policies by layer; return the default policy and (pattern for names of tensors, policy) pairs."""
    policies = policy_map(path)
    tensors = TextEncoder.from_folder(folder).tensor_names
    for key in policies:
        if not any(map(matcher(key, "search"), tensors)):
            raise ValueError(f"{path}: the model in {folder} has no layer that matches {printable(key)}")
    names = {f"^{escape(start)}": policies[layer].name for layer, start in tensors.items()}
    return policies.default_policy.name, list(names.items())
