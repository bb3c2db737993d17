"""Marks ``config.json`` beside codes, so that other libraries do not take the codes for values."""

import json
from collections.abc import Collection
from typing import Any

from mp_core.checkpoint.tensors import QUANTIZATION, Scheme

__all__ = ["marked"]

_KEY, _METHOD = "quantization_config", "mp_core"


def marked(content: bytes, policy: str, schemes: Collection[Scheme], decoded: bool) -> bytes:
    """Return ``config.json`` with an entry about the codes of these schemes, or without one if there are none.

    `decoded` says that codes of another tool have become numbers, so that its entry is removed. Content that is not a
    JSON object is returned unchanged.
    """
    try:
        config: Any = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(config, dict):
        return content
    before = config.get(_KEY)
    if schemes:
        # Without a `quant_method` transformers refuses the folder; with one that it does not know it takes the codes
        # for values, with no more than a warning.
        config[_KEY] = {
            "method": _METHOD,
            "policy": policy,
            "dtypes": sorted({scheme.dtype for scheme in schemes}),
            "granularity": sorted({scheme.granularity for scheme in schemes}),
            "scales": "{name}.scale",
            "metadata": QUANTIZATION,
            "to_numbers": "mp-core convert --policy float32",
        }
    elif decoded or (isinstance(before, dict) and before.get("method") == _METHOD):
        config.pop(_KEY, None)
    else:
        return content
    return json.dumps(config, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
