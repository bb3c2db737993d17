"""Convert checkpoints in other formats: first write them as temporary safetensors files."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.conversion_plan import RequestError
from mp_core.files.checkpoint.folder import matches, open_checkpoint
from mp_core.files.checkpoint.header import load_json
from mp_core.files.checkpoint.loading import most_and_others
from mp_core.files.checkpoint.output import temporary_beside
from mp_core.files.checkpoint.places import path_in
from mp_core.files.checkpoint.reading import read_file
from mp_core.files.checkpoint.writing import save_tensors
from mp_core.policies.dtype_policies import Scheme
from mp_core.utilities.system import is_present

__all__ = ["PARTS", "as_safetensors", "open_parts"]

_NAME = "model.safetensors"
PARTS = _OLD, _PARTS = "pytorch_model.bin", "pytorch_model.bin.index.json"
"""The names of files of ``torch.save``, and of their index."""


def _torch(path: Path) -> dict[str, Any]:
    from mp_core.files.checkpoint.torch_file import open_torch  # seldom needed, like the other readers

    return dict(open_torch(path))


def _gguf(path: Path) -> dict[str, Any]:
    from mp_core.files.checkpoint.gguf_file import open_gguf  # seldom needed

    tensors, _ = open_gguf(path)
    return {name: tensor.codes() or tensor.numbers() for name, tensor in tensors.items()}


def _onnx(path: Path) -> dict[str, Any]:
    from mp_core.files.checkpoint.onnx_file import open_onnx  # seldom needed

    return dict(open_onnx(path))


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **dict.fromkeys((".bin", ".pt", ".pth"), _torch),
    ".gguf": _gguf,
    ".onnx": _onnx,
}
"""Suffix of files in other formats -> function that reads their tensors by name."""


@contextmanager
def as_safetensors(source: Path, target: Path, exclude: Sequence[str] = ()) -> Iterator[Path]:
    """Yield `source`, or a temporary copy beside `target`, the target of the conversion, whose weights are safetensors.

    A folder is copied if it, or a folder in it, has ``pytorch_model.bin`` and no safetensors. Of files that match a
    pattern of `exclude`, which are not read, the copy has empty ones.
    """
    names, empty, olds = _files_of(source, exclude) if source.is_dir() else ([], [], [])
    reader = _READERS.get(source.suffix) if source.is_file() else None
    if not olds and reader is None:
        yield source
        return
    if source.resolve() in (target, *target.parents):
        raise RequestError(f"the target {target} is {source}, or is inside it; choose another place")
    with temporary_beside(target) as room:
        room.mkdir(mode=0o700)
        if reader is not None:
            path = room / f"{source.stem}.safetensors"
            _save(path, reader(source))
            yield path
            return
        for name in (*names, *empty):
            (room / name).parent.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(source / name, room / name)
        for name in empty:
            (room / name).touch()
        for folder in olds:
            (room / folder).mkdir(parents=True, exist_ok=True)
            _save(room / folder / _NAME, open_parts(source / folder)[1])
        yield room


def _files_of(source: Path, exclude: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the files of a folder to copy, the excluded files, and the folders whose weights are ``torch.save``'s."""
    checkpoint = open_checkpoint(source, exclude, may_be_empty=True)
    homes = {Path(name).parent for name in checkpoint.shards}
    excluded = [name for name in checkpoint.left_out if any(matches(name, pattern) for pattern in exclude)]
    weights = [Path(name) for name in checkpoint.left_out if name not in excluded and Path(name).name in PARTS]
    olds = dict.fromkeys(path.parent.as_posix() for path in weights if path.parent not in homes)
    return list(checkpoint.files), excluded, list(olds)


def open_parts(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the tensors of ``pytorch_model.bin``, or of its index if there are several files."""
    from mp_core.files.checkpoint.torch_file import open_torch  # seldom needed; imports zipfile

    old, parts = folder / _OLD, folder / _PARTS
    if not is_present(parts):
        return old, dict(open_torch(old))
    shards = load_json(read_file(parts), f"{parts} is not a valid index").get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError(f"{parts}: weight_map is {shards!r}; expected an object of names of files")
    found: dict[str, Any] = {}
    for name in dict.fromkeys(shards.values()):
        found |= open_torch(path_in(folder, name, str(parts)))
    return parts, found


def _save(path: Path, tensors: dict[str, Any]) -> None:
    codes = {name: q for name, q in tensors.items() if isinstance(q, QuantizedArray)}
    policy, policies = most_and_others({name: f"{Scheme.of(q)}_from_float32" for name, q in codes.items()})
    save_tensors(path, tensors, policy=policy or "float32", policies=policies)
