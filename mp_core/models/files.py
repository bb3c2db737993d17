"""The tensors of a module of a folder, in any of the forms that they may have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mp_core.arrays import Array
from mp_core.checkpoint import open_tensors, stored_policies
from mp_core.models.folder import read_object
from mp_core.quantization import QuantizedArray

__all__ = ["Stored", "tensors_in"]

Stored = tuple[str | None, Mapping[str, str]]
"""The policy under which a file is stored, if it says so, and those of tensors that have another one."""


def tensors_in(folder: Path) -> tuple[Path, dict[str, Array | QuantizedArray], Stored]:
    """Return the file, or the index of several, that holds the tensors of a folder, these, and their policies.

    ``model.safetensors``, one or several, is read before ``pytorch_model.bin``, of which nothing is run.

    Raises
    ------
    OSError
        There is no such file.
    ValueError
        It is corrupt, or holds something else than tensors.
    """
    index, path = folder / "model.safetensors.index.json", folder / "model.safetensors"
    path = index if index.exists() else path
    old, parts = folder / "pytorch_model.bin", folder / "pytorch_model.bin.index.json"
    if path.exists() or not (old.exists() or parts.exists()):
        return path, open_tensors(path), stored_policies(path)
    from mp_core.checkpoint.torch_file import open_torch  # only old folders need it, and zip archives

    found: dict[str, Any] = {}
    if not parts.exists():
        return old, dict(open_torch(old)), (None, {})
    shards = read_object(parts).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError(f"{parts}: weight_map is {shards!r}; expected an object of names of files")
    for name in dict.fromkeys(shards.values()):
        if Path(name).name != name:
            raise ValueError(f"{parts} names the file {name!r}; expected names in its own folder")
        found |= open_torch(folder / name)
    return parts, found, (None, {})
