"""The files beside the tensors: copied, and ``config.json`` marked, so that no other library takes codes for values."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mp_core.checkpoint.coding import QUANTIZATION
from mp_core.checkpoint.header import MAX_JSON
from mp_core.checkpoint.output import OutFile
from mp_core.checkpoint.tensors import File

__all__ = ["copy_files", "marked"]

_KEY, _METHOD = "quantization_config", "mp_core"
_COPIED = 2**20  # bytes at once


def copy_files(
    source: Path, target: Path, names: Iterable[str], changes: Mapping[str, Callable[[bytes], bytes]]
) -> None:
    """Copy the named files of a folder. Those in `changes` are changed by its functions, unless too large for JSON."""
    for name in names:
        with File(source / name) as file, OutFile(target / name) as out:
            if name in changes and file.size <= MAX_JSON:
                out.write(changes[name](file.bytes(0, file.size).tobytes()), 0)
                continue
            for start in range(0, file.size, _COPIED):
                out.write(file.bytes(start, min(_COPIED, file.size - start)), start)


def marked(content: bytes, policy: str, policies: Mapping[str, str], *, codes: bool, decoded: bool) -> bytes:
    """Return ``config.json`` with an entry about codes of mp_core, or without one if there are none.

    `codes` says whether the files beside it hold codes, and `decoded` whether codes of another tool have become
    numbers, so that the entry of that tool is removed. Content that is not a JSON object is returned unchanged.
    """
    try:
        config: Any = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(config, dict):
        return content
    before = config.get(_KEY)
    if codes:
        # Without a `quant_method` transformers refuses the folder; with one that it does not know it takes the codes
        # for values, with no more than a warning.
        config[_KEY] = {
            "method": _METHOD,
            "policy": policy,
            "policies": dict(policies),
            "scales": "{name}.scale",
            "metadata": QUANTIZATION,
            "to_numbers": "mp-core convert --policy float32",
        }
    elif decoded or (isinstance(before, dict) and before.get("method") == _METHOD):
        config.pop(_KEY, None)
    else:
        return content
    return json.dumps(config, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
