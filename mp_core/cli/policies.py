"""Policies on the command line: one spelling for all commands, and maps in files."""

import argparse
from re import escape
from typing import Any

from mp_core import checkpoint, demo, dtype_policies
from mp_core.checkpoint import stored_as
from mp_core.checkpoint.header import load_json
from mp_core.checkpoint.tensors import File
from mp_core.cli.common import printable
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.layers.quantized import MODES
from mp_core.models import BertEncoder
from mp_core.patterns import matcher

__all__ = ["policy", "policy_map", "stored_map", "stored_policy"]

_PLAIN = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
_PAIR = "MODE_from_POLICY such as int8_from_mixed_bfloat16"


def policy(name: str) -> str:
    """Check the name of a policy to compute under; return that of the dtype policy."""
    full = demo.ALIASES.get(name, name)
    try:
        chosen = dtype_policies.get(full)
    except (TypeError, ValueError) as error:
        reason = f" ({error})" if "_from_" in name else ""
        allowed = ", ".join((*_PLAIN, *demo.ALIASES))
        raise argparse.ArgumentTypeError(f"must be {allowed}, or {_PAIR}; received {name!r}{reason}") from error
    compute_dtype = chosen.compute_dtype
    if chosen.quantization_mode not in (None, *MODES):
        raise argparse.ArgumentTypeError(f"must be a policy that layers compute in; {name!r} only names its weights")
    if "float" not in compute_dtype:
        raise argparse.ArgumentTypeError(
            f"must compute in a floating-point dtype; {name!r} computes in {compute_dtype}"
        )
    return full


def stored_policy(name: str) -> str:
    """Check the name of a policy to store tensors under."""
    try:
        stored_as(name)
    except ValueError as error:
        allowed = ", ".join(checkpoint.POLICIES)
        reason = f" ({error})" if "_from_" in name else ""
        raise argparse.ArgumentTypeError(f"must be {allowed}, or {_PAIR}; received {name!r}{reason}") from error
    return name


def policy_map(path: str) -> DTypePolicyMap:
    """Read a map of policies as ``mp-core choose`` writes it, with ``--output`` or ``--json``.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It holds something else.
    """
    with File(path) as file:
        content: dict[str, Any] = load_json(file.bytes(0, file.size).tobytes(), f"{path} is not a map of policies")
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
