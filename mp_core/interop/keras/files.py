"""``.keras`` files, read without Keras: nothing in them is executed, and nothing is written to disk."""

import io
import json
import lzma
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from mp_core.arrays import Array
from mp_core.checkpoint.output import naming
from mp_core.dtype_policies.lookup import custom_object_scope
from mp_core.interop.keras.translation import Part, build, translated
from mp_core.interop.keras.weights import assign
from mp_core.layers import Layer
from mp_core.layers.building import snake_case
from mp_core.layers.deserialization import check_safe_mode
from mp_core.utilities import hdf5
from mp_core.utilities.arguments import path_of
from mp_core.utilities.extras import needed_by
from mp_core.utilities.system import reading_failure
from mp_core.utilities.tree import leaves

__all__ = ["blaming", "load_keras", "load_model"]

_CONFIG, _WEIGHTS, _METADATA = "config.json", "model.weights.h5", "metadata.json"
_EXPANSION = 100
"""How many times as large as in the file an entry may be in memory: Keras does not compress, users may."""
_LARGEST_TEXT = 1 << 28
"""The bytes that ``config.json`` may have."""
_LENGTHS = (
    "units", "filters", "input_dim", "output_dim", "num_heads", "key_dim", "value_dim", "kernel_size",
    "depth_multiplier",
)  # fmt: skip
"""The arguments of layers that are lengths of their weights."""
_FEW = 1 << 20
"""A length that a layer may have however few weights there are."""
_DAMAGES = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""What zipfile, its decompressors, json and h5py raise for damaged files."""


def load_keras(path: str | PathLike[str], custom_objects: Mapping[str, type[Layer]] | None = None) -> Any:
    """Return the model of a ``.keras`` file of Keras 3, or of :meth:`mp_core.Model.save`, without Keras.

    It is not compiled; :func:`mp_core.load_model` returns it as it was. Files with settings of HDF5 that Keras' own do
    not have need h5py.

    Parameters
    ----------
    path : str or os.PathLike
        What ``model.save`` wrote.
    custom_objects : mapping of str to type, optional
        As for :func:`from_keras`. What a file itself holds is never executed.

    Returns
    -------
    Sequential or Functional
        Models that train: :class:`mp_core.Sequential`, :class:`mp_core.Functional`.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ImportError
        The file needs h5py, which is not installed.
    NotImplementedError
        There are layers that mp_core does not have, or not with these arguments: the error lists them all.
    ValueError
        The file is no such file, or damaged: the error says where.

    Examples
    --------
    >>> load_keras("model.keras")(x)  # doctest: +SKIP
    """
    return _opened(path, custom_objects).model


def load_model(
    path: str | PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> Any:
    """Return the model of a ``.keras`` file, that of Keras 3 included, as it was compiled.

    Parameters
    ----------
    path : str or os.PathLike
        What ``model.save`` wrote.
    custom_objects : mapping of str to type, optional
        Layers, optimizers, losses and metrics that are neither built in nor registered, by their names.
    compile : bool
        Whether to compile it with the optimizer, the loss and the metrics of the file, if it has such.
    safe_mode : bool
        Keras'; it must be on: what a file holds is never executed.

    Returns
    -------
    Sequential or Functional

    Raises
    ------
    FileNotFoundError, ImportError, NotImplementedError, ValueError
        As for :func:`mp_core.interop.keras.load_keras`; the file's optimizer, loss or metrics do not exist here; or
        `safe_mode` is off.

    Examples
    --------
    >>> model = load_model("model.keras")  # doctest: +SKIP
    >>> model.fit(x, y)  # doctest: +SKIP
    """
    check_safe_mode(safe_mode)
    found = _opened(path, custom_objects)
    config = found.entry.get("compile_config") if compile else None
    if not isinstance(config, dict) or not config:  # Keras writes an empty one of a model that is not compiled
        return found.model
    with blaming(f"`compile_config` of {path}"), custom_object_scope(custom_objects):
        found.model.compile_from_config(config)
        if found.optimizer and found.model.trainable_variables:
            found.model.optimizer.build(found.model.trainable_variables)
            found.model.optimizer.load_own_variables({str(i): x for i, x in enumerate(found.optimizer)})
    return found.model


class _Opened(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    model : Sequential or Functional
    entry : dict
        The configuration of the model, and of its training.
    optimizer : list of ndarray
        The variables of its optimizer.
    """

    model: Any
    entry: Mapping[str, Any]
    optimizer: list[Array]


def _opened(path: str | PathLike[str], custom_objects: Mapping[str, Any] | None = None) -> _Opened:
    """Return what a file holds; arguments and errors are those of :func:`load_keras`."""
    path = path_of(path, "path")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"`path` must be a .keras file; {path} is no regular file")
    with naming(path), open(path, "rb") as file, blaming(f"`path` must be a .keras file; {path}"):
        archive = zipfile.ZipFile(file)
        entry = _json(archive, _CONFIG)
        metadata = _json(archive, _METADATA) if _METADATA in archive.namelist() else {}
        weights = _read(archive, _WEIGHTS)
    try:
        part = translated(entry, custom_objects)
    except NotImplementedError as error:
        raise NotImplementedError(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{_CONFIG} of {path}: {error}") from error
    with blaming(f"{_CONFIG} of {path}"):
        _check_lengths(part, len(weights))
        _check_version(part, metadata)
        build(part)
    with blaming(f"{_WEIGHTS} of {path}"), _groups(weights) as root:
        assign(part, _Group(root))
        optimizer = [_array(dataset) for dataset in _Group(_member(root, "optimizer"))._datasets()]
    return _Opened(part.layer, entry, optimizer)


@contextmanager
def _groups(weights: bytes) -> Iterator[Any]:
    """Yield the groups of an HDF5 file: by h5py what only that reads."""
    try:
        root = hdf5.read(weights)
    except hdf5.Unsupported:
        with needed_by("load_keras"):
            import h5py

        with h5py.File(io.BytesIO(weights), "r") as root:
            yield root
    else:
        yield root


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Raise a ValueError that begins with `what` for each error of the libraries that read damaged parts of files."""
    try:
        yield
    except _DAMAGES as error:
        if failure := reading_failure(error):
            raise failure from None
        text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        raise ValueError(f"{what}: {text or type(error).__name__}") from error


def _read(archive: zipfile.ZipFile, name: str, largest: int | None = None) -> bytes:
    if name not in archive.namelist():
        raise ValueError(f"it has no entry {name}; it has {', '.join(archive.namelist()[:10])}")
    info = archive.getinfo(name)
    if info.compress_size > archive.start_dir:  # behind all entries; zipfile asks for as many bytes as are claimed
        raise ValueError(f"{name} would have {info.compress_size} of the {archive.start_dir} bytes in the file")
    if info.file_size > _EXPANSION * max(info.compress_size, 1) or info.file_size > (largest or info.file_size):
        raise ValueError(f"{name} would have {info.file_size} bytes, from {info.compress_size} in the file")
    return archive.read(name)


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return json.loads(_read(archive, name, _LARGEST_TEXT))
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None


def _check_version(part: Part, metadata: Any) -> None:
    """Raise for int4 codes of an older Keras, which lie otherwise in their bytes."""
    version = str(metadata.get("keras_version") if isinstance(metadata, dict) else "")
    found = re.match(r"(\d+)\.(\d+)", version)
    old = found is not None and tuple(map(int, found.groups())) < (3, 14)
    names = [each.layer.name for each in part.flatten() if each.layer.quantization_mode == "int4"]
    if old and names:
        raise ValueError(f"int4 weights need a file of Keras 3.14 or newer; this is one of {version}: {names}")


def _check_lengths(part: Part, nbytes: int) -> None:
    """Raise for a length in the configuration that is larger than all weights together, before memory is asked for.

    The smallest weights are int4 codes, two to a byte. Lengths along which nothing has weights may be large.
    """
    most = max(_FEW, 2 * nbytes)
    for each in part.flatten():
        if each.parts:
            continue
        shapes, config = list(_shapes(each.entry.get("build_config"))), each.entry["config"]
        lengths = [shape[-1] for shape in shapes] + [config.get(name) for name in _LENGTHS]
        lengths += [_elements(shape, _axes_of(each.entry, shape)) for shape in shapes]
        longest = max((n for n in leaves(lengths) if isinstance(n, int)), default=0)
        if longest > most:
            raise ValueError(f"layer '{each.layer.name}' has a length of {longest}, but {_WEIGHTS} only {nbytes} bytes")


def _axes_of(entry: Mapping[str, Any], shape: list[Any]) -> Any:
    """Return the axes of inputs along which a layer has weights, beside the last one."""
    config = entry["config"]
    if entry.get("class_name") == "PReLU":
        shared = config.get("shared_axes") or ()
        return [axis for axis in range(1, len(shape)) if axis not in leaves(shared)]
    return config.get("axis")


def _elements(shape: list[Any], axes: Any) -> int:
    """Return how many elements an array has that has these axes of a shape."""
    known = (shape[axis] for axis in leaves(axes) if isinstance(axis, int) and -len(shape) <= axis < len(shape))
    return math.prod(n for n in known if isinstance(n, int))


def _shapes(config: Any) -> Iterator[Any]:
    """Yield the lists in a configuration that hold no other lists."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    if isinstance(config, list) and config and not any(isinstance(part, list | dict) for part in config):
        yield config
    for part in parts:
        yield from _shapes(part)


class _Group:
    """The weights of a layer, and of those in it, in a file."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def _datasets(self) -> list[Any]:
        variables = _member(self._group, "vars")
        if variables is None:
            return []
        if not hasattr(variables, "keys"):
            raise ValueError("`vars` must be a group of arrays")
        names = sorted(variables, key=lambda name: (len(name), name))  # of numbers from 0 on
        return [_member(variables, name) for name in names]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables."""
        return [getattr(dataset, "shape", None) or () for dataset in self._datasets()]

    def arrays(self) -> Iterator[Array]:
        """Yield the variables."""
        for dataset in self._datasets():
            yield _array(dataset)

    def member(self, name: str) -> "_Group":
        """Return the weights of a layer in this one, or in this container."""
        return _Group(_member(self._group, name))

    def parts(self, parts: Sequence[Part]) -> "list[_Group]":
        """Return the weights of the layers of a model, which its file calls by their classes and counts."""
        group, counts, found = _member(self._group, "layers"), Counter[str](), []
        for part in parts:
            name = snake_case(str(part.entry["class_name"]))
            counts[name] += 1
            numbered = name if counts[name] == 1 else f"{name}_{counts[name] - 1}"
            found.append(_Group(_member(group, numbered)))
        return found


def _member(group: Any, name: str) -> Any:
    """Return a member of a group, None if there is none; links to elsewhere are refused."""
    if isinstance(group, dict | np.ndarray | None):
        return group.get(name) if isinstance(group, dict) else None
    import h5py

    if not isinstance(group, h5py.Group) or name not in group:
        return None
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{group.name}/{name} is a link, which is not followed")
    return group[name]


def _array(dataset: Any) -> Array:
    if isinstance(dataset, np.ndarray):
        return np.array(dataset)
    import h5py

    if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external:
        raise ValueError(f"{getattr(dataset, 'name', dataset)} must be an array in this file")
    if dataset.nbytes > _EXPANSION * dataset.id.get_storage_size():
        raise ValueError(f"{dataset.name} would have {dataset.nbytes} bytes, more than its file can hold")
    values: Array = dataset[()]
    is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16" and values.dtype.itemsize == 2
    return np.asarray(values).view(ml_dtypes.bfloat16) if is_bfloat16 else np.asarray(values)
