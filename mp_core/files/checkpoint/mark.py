"""Copy the files beside the tensors, and update ``config.json``.

It gets the dtype of the new tensors and, if there are codes, an entry that keeps other libraries from reading the codes
as values.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.coding import QUANTIZATION
from mp_core.files.checkpoint.header import MAX_JSON
from mp_core.files.checkpoint.output import OutFile
from mp_core.files.checkpoint.tensors import File

__all__ = ["copy_files", "dtype_of_most", "set_dtype", "update_config"]

_KEY, _METHOD = "quantization_config", "mp_core"
_COPIED = 2**20  # bytes that are copied at once
_DTYPES = ("dtype", "torch_dtype")
"""The entries of a configuration with the dtype in which transformers creates a model: new name, old name."""
_MODEL_DTYPES = ("float16", "bfloat16", "float32", "float64")
"""The dtypes that a model of transformers can have. It treats float8 as codes, even if `_DTYPES` say float8."""
_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
"""torch's other names of dtypes -> their names."""


def copy_files(
    source: Path, target: Path, names: Iterable[str], changes: Mapping[str, Callable[[bytes], bytes]]
) -> None:
    """Copy the named files of a folder. Functions in `changes` edit files by name, unless these exceed `MAX_JSON`."""
    for name in names:
        with File(source / name) as file, OutFile(target / name) as out:
            if name in changes and file.size <= MAX_JSON:
                out.write(changes[name](file.bytes(0, file.size).tobytes()), 0)
                continue
            for start in range(0, file.size, _COPIED):
                out.write(file.bytes(start, min(_COPIED, file.size - start)), start)


def dtype_of_most(numbers: Iterable[tuple[str, int]]) -> str | None:
    """Return the most frequent dtype among those of models, or None: transformers creates a model in one dtype.

    `numbers` are pairs (name of a dtype, how many numbers have it).
    """
    counts: Counter[str] = Counter()
    for name, count in numbers:
        if name in _MODEL_DTYPES:
            counts[name] += count
    return max(counts, key=counts.__getitem__, default=None)


def set_dtype(config: dict[str, Any], dtype: str | None) -> bool:
    """Replace the floating-point dtypes in a configuration and in nested ones; return whether anything changed.

    The entry of another quantization tool stays unchanged. If `dtype` is None, nothing changes.
    """
    rest, changed = [] if dtype is None else [(config, False)], False
    while rest:
        entries, are_dtypes = rest.pop()
        for key, value in entries.items():
            if isinstance(value, dict):
                rest += [(value, key in _DTYPES)] if key != _KEY else []
            elif (are_dtypes or key in _DTYPES) and _names_other(value, dtype):
                entries[key], changed = dtype, True
    return changed


def _names_other(value: Any, dtype: str | None) -> bool:
    """Return whether a value is the name of a floating-point dtype other than `dtype`."""
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    name = _ALIASES.get(name, name)
    return re.fullmatch(r"b?float\d+\w*", name) is not None and name != dtype


def update_config(
    content: bytes, policy: str, policies: Mapping[str, str], *, dtype: str | None, codes: bool, decoded: bool
) -> bytes:
    """Return the content of ``config.json``, updated to describe the files beside it. No JSON object is unchanged.

    `dtype` is that of most numbers in the files. With `codes`, an entry describes the codes of mp_core; without, such
    an entry is removed. If codes of another tool were `decoded`, the entry of that tool is removed.
    """
    try:
        config: Any = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(config, dict):
        return content
    before = config.get(_KEY)
    # Without a dtype, the scales are the only numbers: float32.
    retyped = set_dtype(config, "float32" if codes and dtype is None else dtype)
    if codes:
        # Without a `quant_method` transformers refuses the folder. With an unknown one it reads the codes as values,
        # and only warns.
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
    elif not retyped:
        return content
    return json.dumps(config, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
