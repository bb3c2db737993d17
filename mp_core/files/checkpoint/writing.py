"""Write arrays and codes as a checkpoint: one file, or the folder of a model with its other files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from mp_core.arrays import Array, refuse_masked
from mp_core.arrays.quantization import QuantizedArray, check_unchanged
from mp_core.files.checkpoint.coding import BOX, Coding
from mp_core.files.checkpoint.conversion_plan import RequestError, one_policy
from mp_core.files.checkpoint.folder import Checkpoint, open_checkpoint
from mp_core.files.checkpoint.header import CODES, Entry, Header, write_header
from mp_core.files.checkpoint.mark import copy_files, dtype_of_most, update_config
from mp_core.files.checkpoint.output import OutFile, check_free, check_space, replace, temporary_beside
from mp_core.files.checkpoint.tensors import metadata_of, positive, tensors_of
from mp_core.policies.dtype_policies import DTypePolicy, policy_of
from mp_core.utilities.arguments import path_of

__all__ = ["save_folder", "save_tensors"]

Tensors = Mapping[str, Array | QuantizedArray]
_NONE: Mapping[str, str] = MappingProxyType({})
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


def save_tensors(
    path: str | os.PathLike[str],
    tensors: Tensors,
    *,
    policy: str | DTypePolicy,
    policies: Mapping[str, str | DTypePolicy] = _NONE,
) -> None:
    """Write arrays and codes into one safetensors file; :func:`open_tensors` returns the same bits.

    The file appears only when everything is on the disk. An existing file is replaced; the arrays may be views of it.

    Parameters
    ----------
    path : path
    tensors : mapping of str to ndarray or QuantizedArray
        Arrays of the types that :func:`open_tensors` reads, in any layout and byte order. Codes are int4, int8, uint8
        or float8, with scales per index of the first axes or per group along the last axis. The matrix of a layer is
        (outputs, inputs). If a layer quantizes its inputs by fixed scales, these are ``NAME.inputs_scale`` and, for
        int8, ``NAME.inputs_zero_point``; then the int8 or float8 codes ``NAME`` decode to weights * ``inputs_scale``.
        Names of scales are reserved.
    policy : str or DTypePolicy
        The policy under which layers use the tensors.
    policies : mapping of str to str or DTypePolicy
        Tensor -> policy, for tensors with another policy.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from mp_core import quantize
    >>> from mp_core.checkpoint import open_tensors
    >>> with TemporaryDirectory() as folder:
    ...     codes = quantize([[1.0, -2.0], [3.0, 4.0]], axis=0)
    ...     save_tensors(Path(folder, "m.safetensors"), {"w": codes}, policy="int8_from_float32")
    ...     open_tensors(Path(folder, "m.safetensors"))["w"].values
    array([[  64, -127],
           [  95,  127]], dtype=int8)
    """
    target = Path(os.path.realpath(path_of(path, "path")))
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{target} exists and is not a regular file")
    content = _Content.of(tensors, policy, policies, {})
    check_free(target, set(), [], force=True)
    check_space(target.parent, content.size)
    with temporary_beside(target) as temporary:
        content.write(temporary)
        replace(temporary, target, set(), [], force=True)


def save_folder(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    tensors: Tensors,
    *,
    policy: str | DTypePolicy,
    policies: Mapping[str, str | DTypePolicy] = _NONE,
    force: bool = False,
    home: str | None = None,
) -> None:
    """Write a copy of the folder `source` whose model has other tensors.

    One ``model.safetensors`` (see :func:`save_tensors`) replaces the files of `source` that have tensors with these
    names. Weights in other formats are left out, ``config.json`` gets the policies of the codes and the dtype of the
    numbers, and all other files are copied. `target` appears only when everything is on the disk.

    Parameters
    ----------
    source : path
        A folder of a model.
    target : path
        A folder, not inside `source`.
    tensors, policy, policies
        See :func:`save_tensors`.
    force : bool
        Whether to replace `target`; it is replaced only if this call writes every file in it. A file of `source` is
        never replaced.
    home : str, optional
        The folder inside `source` in which to replace files that have tensors with these names. It may have none, for
        example if its weights are in another format. Default: the uppermost folder with such files.

    Examples
    --------
    >>> import json
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from mp_core.checkpoint import open_tensors
    >>> with TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "model"), Path(folder, "halved")
    ...     source.mkdir()
    ...     _ = (source / "config.json").write_text(json.dumps({"dtype": "float32"}))
    ...     save_tensors(source / "model.safetensors", {"w": np.float32([2, 4])}, policy="float32")
    ...     save_folder(source, target, {"w": np.float32([1, 2])}, policy="float32")
    ...     sorted(path.name for path in target.iterdir()), open_tensors(target)["w"]
    (['config.json', 'model.safetensors'], array([1., 2.], dtype=float32))
    """
    folder, place = path_of(source, "source"), Path(os.path.realpath(path_of(target, "target")))
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    if Path(os.path.realpath(folder)) in place.parents:
        raise RequestError(f"the target {place} is inside the folder {folder}; choose another place")
    checkpoint = open_checkpoint(folder, may_be_empty=home is not None)
    weights_folder, kept, metadata = _replaced_files(checkpoint, tensors, home)
    content = _Content.of(tensors, policy, policies, metadata)
    names = {*kept, (weights_folder / _WEIGHTS).as_posix()}
    check_free(place, names, checkpoint.paths, force=force)
    check_space(place.parent, content.size)
    update = partial(
        update_config,
        policy=content.policy,
        policies=content.policies,
        dtype=content.dtype,
        codes=bool(content.codings),
        decoded=True,
    )
    with temporary_beside(place) as temporary:
        (temporary / weights_folder).mkdir(parents=True, exist_ok=True)
        content.write(temporary / weights_folder / _WEIGHTS)
        copy_files(checkpoint.folder, temporary, kept, {(weights_folder / _CONFIG).as_posix(): update})
        replace(temporary, place, names, checkpoint.paths, force=force)


def _replaced_files(
    checkpoint: Checkpoint, names: Tensors, other: str | None
) -> tuple[Path, list[str], Mapping[str, str]]:
    """Return the folder in which tensors with these names are replaced, the files to copy, and the old metadata.

    The folder is `other` unless that is None.
    """
    holders = [
        shard
        for shard in checkpoint.shards.values()
        if not shard.tensors.keys().isdisjoint(names) and (other is None or Path(shard.name).parent == Path(other))
    ]
    if not holders and other is not None:
        return Path(other), [*checkpoint.shards, *(index.name for index in checkpoint.indices), *checkpoint.others], {}
    if not holders:
        raise RequestError(f"{checkpoint.folder} has none of the tensors to save")
    first = min(holders, key=lambda shard: len(Path(shard.name).parts))
    home = Path(first.name).parent
    # Another module, in another folder, may have a tensor of the same name.
    holders = [shard for shard in holders if Path(shard.name).parent == home]
    gone = {shard.name for shard in holders} | {(home / _WEIGHTS).as_posix()}
    for index in checkpoint.indices:
        if not gone.isdisjoint(index.shards):
            gone |= {index.name, *index.shards}
    files = [*checkpoint.shards, *(index.name for index in checkpoint.indices), *checkpoint.others]
    return home, [name for name in files if name not in gone], first.header.metadata


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a file that will be written."""

    head: bytes
    entries: Mapping[str, Entry]
    arrays: Mapping[str, Array]
    codings: Mapping[str, Coding]
    policy: str
    policies: Mapping[str, str]

    @classmethod
    def of(cls, tensors: Any, policy: Any, policies: Any, metadata: Mapping[str, str]) -> Self:
        """Check tensors and policies, and lay out the file; :func:`open_tensors` will return the same tensors."""
        for argument, value in (("tensors", tensors), ("policies", policies)):
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
                raise TypeError(f"`{argument}` must be a mapping of names; received {type(value).__name__}")
        default = _policy(policy, "policy")
        named = {name: _policy(value, f"policies[{name!r}]") for name, value in policies.items()}
        for name in named:
            if name not in tensors:
                raise RequestError(f"`policies` must be of tensors in `tensors`; received {name!r}")
        named = {name: value for name, value in named.items() if value != default}
        arrays: dict[str, Array] = {}
        codings: dict[str, Coding] = {}
        for name, value in tensors.items():
            parts = {name: value}
            if isinstance(value, QuantizedArray):
                codings[name], parts = _coded(name, value, f"{name}.inputs_scale" in tensors)
            for part, array in parts.items():
                if part in arrays:
                    raise RequestError(f"two tensors would have the name {part!r}")
                arrays[part] = _array(part, array)
        metadata = metadata_of(metadata, codings, default, named)
        head, entries = write_header({name: (x.dtype, x.shape) for name, x in arrays.items()}, metadata)
        for name, tensor in tensors_of(Header(entries, metadata), "`tensors`").items():
            if tensor.tool or (tensor.coding and name not in codings):
                raise RequestError(f"tensor {name!r} would be read as codes of another tool; rename it")
            if name in codings and codings[name].fixed_inputs:
                positive(arrays[f"{name}.inputs_scale"], f"tensor {name!r}: inputs_scale")
        return cls(head, entries, arrays, codings, default, named)

    @property
    def dtype(self) -> str | None:
        """The dtype of most numbers; codes and their scales do not count."""
        coded = {part for name, coding in self.codings.items() for part in coding.parts(name, coding.zeros)}
        return dtype_of_most((x.dtype.name, x.size) for name, x in self.arrays.items() if name not in coded)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.head) + sum(entry.nbytes for entry in self.entries.values())

    def write(self, path: Path) -> None:
        """Write the file."""
        with OutFile(path) as out:
            out.write(self.head, 0)
            for name, array in self.arrays.items():
                start = self.entries[name].start
                for piece in _pieces(array):
                    out.write(piece, start)
                    start += piece.nbytes


def _policy(value: Any, argument: str) -> str:
    """Check a policy or scheme and return its full name."""
    return policy_of(one_policy(value, argument).name, argument).name


def _coded(name: str, q: QuantizedArray, fixed_inputs: bool) -> tuple[Coding, dict[str, Array]]:
    """Return the coding of codes, and the arrays to store for them by name, without the scales of inputs."""
    try:
        check_unchanged(q)
        coding = Coding.of(q, fixed_inputs)
        parts = {name: q.values, f"{name}.scale": positive(q.scale, "scales")}
    except ValueError as error:
        raise ValueError(f"tensor {name!r} cannot be stored: {error}") from None
    zeros = {} if q.zero_point is None else {f"{name}.zero_point": q.zero_point.astype(coding.zeros)}
    return coding, parts | zeros


def _array(name: str, value: Any) -> Array:
    """Return an array; raise unless files can store its type and its name."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"tensor {name!r} must be an ndarray or a QuantizedArray; received {type(value).__name__}")
    refuse_masked(value, f"tensors[{name!r}]")
    if value.dtype.name not in CODES.values():
        raise ValueError(f"tensor {name!r} has dtype {value.dtype}; files can store {', '.join(CODES.values())}")
    if name == "__metadata__" or not _is_text(name):
        raise ValueError(
            f"the name of a tensor must be text that UTF-8 can encode, not '__metadata__'; received {name!r}"
        )
    return np.asarray(value)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pieces(array: Array) -> Iterator[Array]:
    """Yield the elements in C order and native byte order: as one array if they are stored so, else in pieces."""
    if array.flags.c_contiguous and array.dtype.isnative:
        yield array
        return
    native = array.dtype.newbyteorder("=")
    if array.dtype.kind == "V":  # nditer can copy only NumPy's own types
        native = np.dtype(f"u{array.dtype.itemsize}")
        array = array.view(native)
    yield from np.nditer(
        array,
        ["external_loop", "buffered", "zerosize_ok"],
        order="C",
        casting="equiv",
        op_dtypes=native,
        buffersize=BOX,
    )
