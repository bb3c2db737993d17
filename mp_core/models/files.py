"""The tensors of a module of a folder, in any of the forms that they may have."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, Array
from mp_core.checkpoint import open_tensors, stored_policies
from mp_core.checkpoint.sources import PARTS, open_parts
from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["Stored", "gguf_in", "refuse_stretched", "static_tensors", "tensors_in"]

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
Stored = tuple[str | None, Mapping[str, str]]
"""The policy under which a file is stored, if it says so, and those of tensors that have another one."""


def gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder, if it has one and no weights in another form.

    Raises
    ------
    ValueError
        There are several, of which one could be meant.
    """
    if any((folder / name).exists() for name in (*PARTS, _WEIGHTS, _INDEX)):
        return None
    found = sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise ValueError(f"{folder} has {len(found)} GGUF files; expected one of {names} alone")
    return found[0] if found else None


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
    index, path = folder / _INDEX, folder / _WEIGHTS
    path = index if index.exists() else path
    if path.exists() or not any((folder / name).exists() for name in PARTS):
        return path, open_tensors(path), stored_policies(path)
    old, tensors = open_parts(folder)
    refuse_stretched(old, tensors)
    return old, tensors, (None, {})


def refuse_stretched(path: Path, tensors: Mapping[str, Array]) -> None:
    """Raise ValueError for a tensor of ``torch.save`` that has more elements than the file holds for it.

    Such a view repeats numbers. No network needs one, and its copy may take far more memory than the file.
    """
    for name, x in tensors.items():
        held = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)) // x.itemsize
        if x.size > max(held, 0):
            raise ValueError(f"{path}: tensor {name} has {x.size} elements of {held} in the file; expected as many")


def static_tensors(folder: Path) -> tuple[Path, dict[str, Array | QuantizedArray], Stored]:
    """Return what :func:`tensors_in` does of static embeddings: one table, whose rows are those of the tokens.

    Files of model2vec may hold each vector once: ``mapping`` says which one a token has, and ``weights`` by what it is
    multiplied.
    """
    path, tensors, stored = tensors_in(folder)
    names = tensors.keys()
    if not {"embeddings"} < names <= {"embeddings", "mapping", "weights"}:
        return path, tensors, stored
    table = tensors["embeddings"]
    rows = dequantize(table) if isinstance(table, QuantizedArray) else table
    mapping, weights = (np.asarray(tensors.get(name, ())) for name in ("mapping", "weights"))
    if rows.ndim == 2 and "mapping" in names:
        is_row = mapping.ndim == 1 and mapping.dtype.kind in "iu" and mapping.size * rows.shape[1] <= _MOST_NUMBERS
        if not (is_row and (not mapping.size or 0 <= mapping.min() <= mapping.max() < len(rows))):
            raise ValueError(f"{path}: tensor mapping is {_told(mapping)}; expected a row below {len(rows)} per token")
        rows = rows[mapping]
    if rows.ndim == 2 and "weights" in names:
        if weights.shape != rows.shape[:1] or not dtypes.is_float(weights.dtype):
            raise ValueError(f"{path}: tensor weights is {_told(weights)}; expected {len(rows)} floating-point numbers")
        rows = ops.cast(rows, F32) * ops.cast(weights, F32)[:, np.newaxis]
    return path, {"embeddings": rows}, stored


def _told(x: Array) -> str:
    return f"{x.dtype} of shape {x.shape}" + (f", {x.min()} to {x.max()}" if x.size and x.dtype.kind in "iu" else "")


_MOST_NUMBERS = 1 << 30  # of the table of all tokens: eight times those of the largest that is known
