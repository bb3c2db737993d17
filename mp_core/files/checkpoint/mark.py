"""The files beside the tensors: copied, and ``config.json`` changed where it would say what is not true any more.

It gets a mark if there are codes, so that no other library takes them for values, and the dtype of the new tensors.
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

__all__ = ["copy_files", "dtype_of_most", "marked", "retype"]

_KEY, _METHOD = "quantization_config", "mp_core"
_COPIED = 2**20  # bytes at once
_DTYPES = ("dtype", "torch_dtype")
"""The entries of a configuration that say in which dtype transformers makes a model: today's name and the older one."""
_MODEL_DTYPES = ("float16", "bfloat16", "float32", "float64")
"""The dtypes that a model of transformers has. It takes float8 for codes, whatever `_DTYPES` say."""
_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
"""What torch calls a dtype besides -> its name."""


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


def dtype_of_most(numbers: Iterable[tuple[str, int]]) -> str | None:
    """Return the dtype of most numbers, among the dtypes of models; None if no number has one of these.

    `numbers` are names of dtypes, and how many numbers have each. transformers makes all of a model in one dtype.
    """
    counts: Counter[str] = Counter()
    for name, count in numbers:
        if name in _MODEL_DTYPES:
            counts[name] += count
    return max(counts, key=counts.__getitem__, default=None)


def retype(config: dict[str, Any], dtype: str | None) -> bool:
    """Let a configuration, and those in it, name this dtype where they name one; return whether that changed anything.

    What is no name of a floating-point dtype stays, and so does what another tool says of its codes. None changes
    nothing.
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
    """Whether a value names a floating-point dtype that is not this one."""
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    name = _ALIASES.get(name, name)
    return re.fullmatch(r"b?float\d+\w*", name) is not None and name != dtype


def marked(
    content: bytes, policy: str, policies: Mapping[str, str], *, dtype: str | None, codes: bool, decoded: bool
) -> bytes:
    """Return ``config.json`` as it describes the files beside it; unchanged if it does so already.

    `dtype` is that of most numbers in these files. If they hold codes of mp_core, `codes`, the configuration gets an
    entry about these, else it has none. `decoded` says whether codes of another tool have become numbers, so that the
    entry of that tool is removed. Content that is not a JSON object is returned unchanged.
    """
    try:
        config: Any = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(config, dict):
        return content
    before = config.get(_KEY)
    retyped = retype(config, "float32" if codes and dtype is None else dtype)  # then the scales are all numbers
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
    elif not retyped:
        return content
    return json.dumps(config, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
