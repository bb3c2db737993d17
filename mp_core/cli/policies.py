"""Policies on the command line: one spelling for all commands, and maps in files."""

import argparse
from collections.abc import Callable
from re import escape
from typing import Any, TypeVar

from mp_core import dtype_policies
from mp_core.checkpoint import stored_as
from mp_core.checkpoint.header import load_json
from mp_core.checkpoint.reading import read_file
from mp_core.cli.common import printable
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.models import BertEncoder
from mp_core.patterns import matcher

__all__ = ["policy", "policy_map", "stored_map", "stored_policy"]

T = TypeVar("T")


def policy(word: str) -> str:
    """Check the word for a policy to compute under; return the name of the policy."""
    chosen = _meant(dtype_policies.policy_of, word)
    compute_dtype = chosen.compute_dtype
    if chosen.scheme is None and chosen.quantization_mode not in (None, "float8"):
        raise argparse.ArgumentTypeError(f"must be a policy that layers compute in; {word!r} only names its weights")
    if "float" not in compute_dtype:
        raise argparse.ArgumentTypeError(
            f"must compute in a floating-point dtype; {word!r} computes in {compute_dtype}"
        )
    return str(chosen)


def stored_policy(word: str) -> str:
    """Check the word for a policy to store tensors under."""
    _meant(stored_as, word)
    return word


def _meant(read: Callable[[str], T], word: str) -> T:
    """Return what `read` makes of a word; what it says against one says what would do."""
    try:
        return read(word)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("`policy` ")) from error


def policy_map(path: str) -> DTypePolicyMap:
    """Read a map of policies as ``mp-core choose`` writes it, with ``--output`` or ``--json``.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It holds something else.
    """
    content: dict[str, Any] = load_json(read_file(path), f"{path} is not a map of policies")
    try:
        found = dtype_policies.deserialize(content.get("map", content))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a map of policies: {error}") from error
    if not isinstance(found, DTypePolicyMap):
        raise ValueError(f"{path} is not a map of policies: it holds the policy {found.name!r}")
    return found


def stored_map(path: str, folder: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a map of the layers of the encoder in a folder as the default and the policies of its tensors, by pattern.

    Raises
    ------
    OSError, ValueError
        As :func:`policy_map`, and where the folder holds no encoder.
    """
    policies = policy_map(path)
    tensors = BertEncoder.from_folder(folder).tensor_names
    for key in policies:
        if not any(map(matcher(key, "search"), tensors)):
            raise ValueError(f"{path}: no layer of the model in {folder} is called {printable(key)}")
    names = {f"^{escape(start)}": policies[layer].name for layer, start in tensors.items()}
    return policies.default_policy.name, list(names.items())
