"""Open a checkpoint: a safetensors file, the index of a model in several files, or a folder with any of these."""

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mp_core.files.checkpoint.foreign import is_code, scale_names
from mp_core.files.checkpoint.header import Header, load_json, read_header
from mp_core.files.checkpoint.packed import Packed, Place, read_place
from mp_core.files.checkpoint.packed_config import method_note, read_quantization
from mp_core.files.checkpoint.packed_layouts import packed_in
from mp_core.files.checkpoint.places import is_plain, leads_out
from mp_core.files.checkpoint.reading import read_file
from mp_core.files.checkpoint.tensors import Tensor, tensors_of
from mp_core.utilities.system import is_present

__all__ = [
    "Checkpoint",
    "Index",
    "Shard",
    "matches",
    "missing",
    "open_checkpoint",
    "refuse_tools",
    "unique_tensors",
]

_LISTED = 5
_INDEX = ".safetensors.index.json"
_STALE = (
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
    "tf_model*.h5",
    "tf_model.h5.index.json",
    "flax_model*.msgpack",
    "flax_model.msgpack.index.json",
    "rust_model.ot",
    "consolidated*.pth",
    "model.ckpt*",
    "*.onnx",
    "*.onnx_data",
    "*.gguf",
    "*.tflite",
    "onnx",
    "openvino",
    "coreml",
)
"""Names of weights in other formats. A conversion does not change them, so a copy of them would be stale."""


def _is_stale(name: str) -> bool:
    """Return whether a file has weights in another format."""
    return any(matches(name, pattern) for pattern in _STALE)


def matches(name: str, pattern: str) -> bool:
    """Return whether a shell pattern matches the end of the path of a file, or of a folder that it is in."""
    path = PurePosixPath(name)
    return any(part.match(pattern) for part in (path, *path.parents) if part.name)


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file."""

    name: str
    """Relative to the checkpoint's folder."""
    path: Path
    header: Header
    tensors: dict[str, Tensor]

    @classmethod
    def open(cls, folder: Path, name: str) -> "Shard":
        """Read the header of a file."""
        path = folder / name
        header = read_header(path)
        return cls(name, path, header, tensors_of(header, path))


@dataclass(frozen=True, slots=True)
class Index:
    """A JSON file that maps each tensor to its shard."""

    name: str
    content: dict[str, Any]
    shards: tuple[str, ...]
    """The names of the shards, relative to the checkpoint's folder, in order of appearance."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All files of a checkpoint."""

    folder: Path
    shards: dict[str, Shard]
    indices: list[Index]
    others: list[str]
    """Files of a folder that have no tensors."""
    left_out: list[str]
    """Files that are excluded, links that are skipped, and weights in other formats."""
    is_file: bool
    """Whether the checkpoint is a single file."""

    @property
    def files(self) -> set[str]:
        """The names of all files of a folder; empty if the checkpoint is a single file."""
        return set() if self.is_file else {*self.shards, *(index.name for index in self.indices), *self.others}

    @property
    def paths(self) -> list[Path]:
        """The paths of all files."""
        names = [*self.shards, *(index.name for index in self.indices), *self.others]
        return [self.folder / name for name in names]

    @property
    def tensors(self) -> Iterator[tuple[Shard, Tensor]]:
        """All tensors with their files."""
        return ((shard, tensor) for shard in self.shards.values() for tensor in shard.tensors.values())


def open_checkpoint(
    path: Path, exclude: Sequence[str] = (), *, skip_links: bool = False, may_be_empty: bool = False
) -> Checkpoint:
    """Read the headers of a checkpoint.

    Files that match a pattern of `exclude` are left out; so are weights in other formats and, with `skip_links`, links
    that lead out of the folder; without it, and in an index, these are errors. Unless `may_be_empty`, a folder must
    have a safetensors file.
    """
    others: list[str] = []
    indices: list[Index] = []
    excluded: list[str] = []
    links: list[str] = []
    if path.is_dir():
        folder, files = path, sorted(_files(path, links if skip_links else None))
        excluded = [name for name in files if any(matches(name, pattern) for pattern in exclude)]
        files = [name for name in files if name not in excluded]
        indices = [_index(folder, name) for name in files if name.endswith(_INDEX)]
        names = [name for name in files if name.endswith(".safetensors")]
        others = [name for name in files if not name.endswith((_INDEX, ".safetensors"))]
        if not names and not may_be_empty:
            raise ValueError(f"{path} has no safetensors file{_other_weights(others)}")
    elif path.name.endswith(_INDEX):
        folder, indices, names = path.parent, [_index(path.parent, path.name)], []
    elif not is_present(path):
        raise missing(path)
    else:
        folder, names = path.parent, [path.name]
    sharded = [name for index in indices for name in index.shards]
    for name in sharded:
        _check_link(folder / name, folder)
    names = list(dict.fromkeys([*sharded, *names]))
    others = [name for name in others if name not in names]  # a shard may have any name
    excluded += [name for name in others if _is_stale(name)]
    others = [name for name in others if name not in excluded]
    shards = {name: Shard.open(folder, name) for name in names}
    for index in indices:
        _check_index(folder, index, shards)
        _find_scales(index, shards)
    _find_packed(shards.values())
    return Checkpoint(folder, shards, indices, others, links + excluded, not indices and folder is not path)


def unique_tensors(checkpoint: Checkpoint) -> dict[str, tuple[Shard, Tensor]]:
    """Return the tensors by name; raise if two files have a tensor of the same name."""
    tensors: dict[str, tuple[Shard, Tensor]] = {}
    for shard, tensor in checkpoint.tensors:
        if tensor.name in tensors:
            raise ValueError(f"tensor {tensor.name!r} is in {tensors[tensor.name][0].path} and in {shard.path}")
        tensors[tensor.name] = shard, tensor
    return tensors


def missing(path: Path) -> FileNotFoundError:
    """Return the error for a missing file; its text says what the folder has instead."""
    if not path.parent.is_dir():
        name = _published(path)
        if name is not None:
            how = f"`hf download {name} --local-dir FOLDER` of the huggingface_hub package gets a published model"
            return FileNotFoundError(
                f"{name} is not a folder here, and mp_core downloads nothing: {how}; then use FOLDER"
            )
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    found = sorted(file.name for file in path.parent.iterdir() if not file.name.startswith("."))
    stale = _other_weights(found) if path.name.endswith((".safetensors", _INDEX)) else ""
    listed = ", ".join(found[:_LISTED]) + (", ..." if len(found) > _LISTED else "")
    there = stale or (f"; the folder has only {listed}" if found else "; the folder is empty")
    return FileNotFoundError(f"{path} is missing{there}")


def _published(path: Path) -> str | None:
    """Return the name of a published model, ``owner/name``, if the path looks like one; else None."""
    parts = path.parts[:-1] if path.suffix in (".json", ".safetensors") else path.parts
    is_name = len(parts) == _NAME and all(re.fullmatch(r"[\w.-]*\w[\w.-]*", part) for part in parts)
    return "/".join(parts) if is_name else None


_NAME = 2  # number of parts of "owner/name"


def _other_weights(files: Sequence[str]) -> str:
    """Return the end of an error text: what to do with weights in another format, if there are any."""
    found = [name for name in files if _is_stale(name)]
    return f"; the folder has {found[0]}: convert it to safetensors first" if found else ""


def _files(folder: Path, skipped: list[str] | None) -> Iterator[str]:
    """Yield all files below a folder except hidden ones.

    A link that leads out of the folder raises ValueError; if `skipped` is a list, it is added to the list instead.
    """

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [*folders, *files]:
            path = Path(parent, name)
            if name.startswith("."):
                continue
            try:
                _check_link(path, folder)
                if name in folders and path.is_symlink():
                    raise ValueError(f"{path} is a link to a folder")
                path.stat()
            except (OSError, ValueError):
                if skipped is None or not path.is_symlink():
                    raise
                skipped.append(path.relative_to(folder).as_posix())
                continue
            if name not in folders:
                if not stat.S_ISREG(path.stat().st_mode):
                    raise ValueError(f"{path} is not a regular file")
                yield path.relative_to(folder).as_posix()


def _check_link(path: Path, folder: Path) -> None:
    """Raise if `path` is a link that leads out of the folder; a snapshot in the Hub's cache may link to its blobs."""
    if path.is_symlink() and leads_out(path, folder):
        raise ValueError(f"{path} is a link that leads out of {folder}")


def _index(folder: Path, name: str) -> Index:
    path = folder / name
    loaded = load_json(read_file(path), f"{path} is not a valid index")
    files = loaded.get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise ValueError(f"{path} is not a valid index: weight_map must map names of tensors to names of files")
    if not isinstance(loaded.setdefault("metadata", {}), dict):
        raise ValueError(f"{path} is not a valid index: metadata must be an object")
    shards = dict.fromkeys(files.values())
    for file in shards:
        if not is_plain(file):
            raise ValueError(f"{path}: the shard {file!r} is not the name of a file beside the index")
    return Index(name, loaded, tuple((Path(name).parent / file).as_posix() for file in shards))


def _check_index(folder: Path, index: Index, shards: dict[str, Shard]) -> None:
    """Check that every tensor is in the shard that the index gives, and in no other."""
    parent = Path(index.name).parent
    for name, file in index.content["weight_map"].items():
        if name not in shards[(parent / file).as_posix()].header.entries:
            raise ValueError(f"{folder / index.name}: tensor {name!r} is not in {file}")
    found: dict[str, str] = {}
    for file in index.shards:
        for name in shards[file].header.entries:
            if name in found:
                raise ValueError(f"{folder / index.name}: tensor {name!r} is in {found[name]} and in {file}")
            found[name] = file


def _find_scales(index: Index, shards: dict[str, Shard]) -> None:
    """Mark the codes of other tools whose scales are in another shard."""
    found = {name: file for file in index.shards for name in shards[file].header.entries}
    for file in index.shards:
        for name, tensor in shards[file].tensors.items():
            elsewhere = [other for other in scale_names(name, found) if found[other] != file]
            if elsewhere and tensor.coding is None and is_code(tensor.values):
                tool = f"a tool that writes {elsewhere[0]} (here into another file)"
                shards[file].tensors[name] = replace(tensor, tool=tool)


def _find_packed(shards: Iterable[Shard]) -> None:
    """Replace the tensors of weights in layouts that a ``config.json`` beside their files describes, by one each."""
    homes: dict[Path, list[Shard]] = {}
    for shard in shards:
        homes.setdefault(shard.path.parent, []).append(shard)
    for home, own in homes.items():
        places = {name: Place(name, shard.path, entry) for shard in own for name, entry in shard.header.entries.items()}
        quantization = read_quantization(home) if any(is_code(place.entry) for place in places.values()) else None
        if quantization is None:
            continue
        found = {
            packed.parts[packed.layout.codes].name: packed for packed in packed_in(places, quantization, read_place)
        }
        parts = {place.name for packed in found.values() for place in packed.parts.values()}
        for shard in own:
            shard.tensors.update(_with_packed(shard, found, parts))


def _with_packed(shard: Shard, found: Mapping[str, Packed], parts: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors of a file, with those that are `parts` of weights of another program as one tensor."""
    before = dict(shard.tensors)
    shard.tensors.clear()
    tensors: dict[str, Tensor] = {}
    for name in shard.header.entries:
        tensor = before.get(name)
        if name in found:
            packed = found[name]
            entries = {place.name: place.entry for place in packed.parts.values()}
            tensor = Tensor(packed.name, entries, packed.coding, packed=packed)
        elif tensor is None or name in parts:
            continue
        if tensor.name in tensors:
            raise ValueError(f"{shard.path}: tensor {tensor.name!r} is there twice: as numbers and as {name!r}")
        tensors[tensor.name] = tensor
    return tensors


def refuse_tools(checkpoint: Checkpoint) -> None:
    """Raise for codes of other tools: without their scales they would be read as plain values."""
    for shard, tensor in checkpoint.tensors:
        if tensor.tool is not None:
            codes = f"is of {tensor.tool}, whose codes mp_core cannot read"
            raise ValueError(f"{shard.path}: tensor {tensor.name!r} {codes}{method_note(shard.path.parent)}")
