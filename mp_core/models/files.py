"""Find and open the tensor files of a module's folder: safetensors, pytorch_model.bin or GGUF."""

from collections.abc import Mapping
from pathlib import Path

from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.loading import open_stored
from mp_core.files.checkpoint.sources import PARTS, open_parts
from mp_core.utilities.system import is_present

__all__ = ["Stored", "gguf_in", "refuse_stretched", "tensors_in"]

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
Stored = tuple[str | None, Mapping[str, str]]
"""(policy of the file, or None if it names none; tensor name -> policy, for tensors with another one)."""


def gguf_in(folder: Path) -> Path | None:
    """Return the only GGUF file of a folder; None if there is none, or the weights are also in another format.

    A GGUF file that is opened as a folder is its own file.
    """
    if folder.suffix == ".gguf" and not folder.is_dir():
        return folder
    if any(is_present(folder / name) for name in (*PARTS, _WEIGHTS, _INDEX)):
        return None
    found = sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise ValueError(f"{folder} has {len(found)} GGUF files; expected one of {names} alone")
    return found[0] if found else None


def tensors_in(folder: Path) -> tuple[Path, dict[str, Array | QuantizedArray], Stored]:
    """Return the file with the tensors of a folder (or the index of several files), the tensors, and their policies.

    ``model.safetensors`` or its index takes precedence over ``pytorch_model.bin``, from which no code is run. Raise
    OSError if there is no such file, and ValueError if it is corrupt or holds something other than tensors.
    """
    index, path = folder / _INDEX, folder / _WEIGHTS
    path = index if is_present(index) else path
    if is_present(path) or not any(is_present(folder / name) for name in PARTS):
        return path, *open_stored(path)
    old, tensors = open_parts(folder)
    refuse_stretched(old, tensors)
    return old, tensors, (None, {})


def refuse_stretched(path: Path, tensors: Mapping[str, Array]) -> None:
    """Raise ValueError for a tensor of ``torch.save`` with more elements than the file stores for it.

    Such a view repeats numbers. No network needs that, and a copy could need far more memory than the file.
    """
    for name, x in tensors.items():
        held = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)) // x.itemsize
        if x.size > max(held, 0):
            raise ValueError(
                f"{path}: tensor {name} has {x.size} elements, but the file stores {held} for it; expected as many"
            )
