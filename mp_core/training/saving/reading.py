"""Read ``.keras`` files without Keras. Nothing in them is executed, and nothing is written to disk."""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, NamedTuple, cast

import numpy as np

from mp_core.arrays import Array
from mp_core.files import hdf5
from mp_core.files.archive import CONFIG, WEIGHTS, read
from mp_core.files.checkpoint.header import open_regular
from mp_core.files.checkpoint.output import naming
from mp_core.files.deserialization import check_safe_mode
from mp_core.layers import Layer
from mp_core.layers.names_in_files import EXTRA_ARRAYS
from mp_core.training.models import Model
from mp_core.training.optimizer_files import OPTIMIZER, load_optimizer
from mp_core.training.saving.translation import TranslatedLayer, build, translate
from mp_core.training.saving.weights import assign
from mp_core.utilities.arguments import path_of
from mp_core.utilities.names import snake_case
from mp_core.utilities.registry import custom_object_scope
from mp_core.utilities.serialization import name_in_configurations
from mp_core.utilities.system import reading_failure
from mp_core.utilities.tree import leaves, numbered

__all__ = ["explaining_damage", "load_keras", "load_model"]

_LENGTHS = (
    "units", "filters", "input_dim", "output_dim", "num_heads", "key_dim", "value_dim", "kernel_size",
    "depth_multiplier",
)  # fmt: skip
"""Arguments of layers that are lengths of their weights."""
_SMALL_LENGTH = 1 << 20
"""Lengths up to this one are accepted however small the file is."""
_DAMAGE_ERRORS = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors that zipfile, its decompressors and json raise for damaged files."""


def load_keras(path: str | PathLike[str], custom_objects: Mapping[str, type[Layer]] | None = None) -> Model:
    """Load the model of a ``.keras`` file, written by Keras 3 or :meth:`mp_core.Model.save`, without Keras.

    The result is a :class:`mp_core.Sequential` or :class:`mp_core.Functional` that can be trained. It is not compiled;
    :func:`mp_core.load_model` compiles it too. NotImplementedError lists the layers that mp_core does not have, or not
    with these arguments. A damaged file raises ValueError.

    Parameters
    ----------
    path : str or os.PathLike
    custom_objects : mapping of str to type, optional
        As for :func:`from_keras`. Code in a file is never executed.

    Examples
    --------
    >>> load_keras("model.keras")(x)  # doctest: +SKIP
    """
    return _open(path, custom_objects).model


def load_model(
    path: str | PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> Model:
    """Load the model of a ``.keras`` file, written by mp_core or Keras 3, and compile it as it was.

    The model and the errors are those of :func:`mp_core.interop.keras.load_keras`.

    Parameters
    ----------
    path : str or os.PathLike
    custom_objects : mapping of str to type, optional
        Name -> class of layers, optimizers, losses and metrics that are neither built in nor registered.
    compile : bool
        Whether to compile the model with the optimizer, loss and metrics of the file, if it has them. Optimizer
        variables whose weight is not trained now (after ``enable_lora``, ``quantize`` or ``trainable = False``) are
        ignored, and a warning lists them.
    safe_mode : bool
        Must be True: code in a file is never executed.

    Examples
    --------
    >>> model = load_model("model.keras")  # doctest: +SKIP
    >>> model.fit(x, y)  # doctest: +SKIP
    """
    check_safe_mode(safe_mode)
    found = _open(path, custom_objects)
    config = found.entry.get("compile_config") if compile else None
    if not isinstance(config, dict) or not config:  # Keras writes an empty one if the model is not compiled
        return found.model
    with explaining_damage(f"`compile_config` of {path}"), custom_object_scope(custom_objects):
        found.model.compile_from_config(config)
        if found.optimizer and found.model.compiled:
            load_optimizer(found.model, found.optimizer, found.names)
    return found.model


class _OpenedFile(NamedTuple):
    """The contents of a file."""

    model: Model
    entry: Mapping[str, Any]  # the configuration of the model and of ``compile``
    optimizer: list[Array]  # the variables of the optimizer
    names: list[str]  # their names; empty if the file has no names


def _open(path: str | PathLike[str], custom_objects: Mapping[str, Any] | None = None) -> _OpenedFile:
    """Return the contents of a file; arguments and errors as for :func:`load_keras`."""
    path = path_of(path, "path")
    with naming(path), open_regular(path) as file, explaining_damage(f"`path` must be a .keras file; {path}"):
        entry, metadata, weights = read(file)
    try:
        part = translate(entry, custom_objects)
    except NotImplementedError as error:
        raise NotImplementedError(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{CONFIG} of {path}: {error}") from error
    with explaining_damage(f"{CONFIG} of {path}"):
        _check_lengths(part, len(weights))
        _check_version(part, metadata)
        build(part)
    with explaining_damage(f"{WEIGHTS} of {path}"):
        root = hdf5.read(weights)
        assign(part, _Group(root))
        stored = _Group(_member(root, "optimizer"))
        optimizer = [_array(dataset) for name in ("vars", EXTRA_ARRAYS) for dataset in stored._datasets(name)]
    names = metadata.get(OPTIMIZER) if isinstance(metadata, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []
    return _OpenedFile(cast(Model, part.layer), entry, optimizer, names)


@contextmanager
def explaining_damage(what: str) -> Iterator[None]:
    """Turn errors of the libraries that read damaged files into ValueErrors that begin with `what`."""
    try:
        yield
    except _DAMAGE_ERRORS as error:
        if failure := reading_failure(error):
            raise failure from None
        text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        raise ValueError(f"{what}: {text or type(error).__name__}") from error


def _check_version(part: TranslatedLayer, metadata: Any) -> None:
    """Raise ValueError for int4 codes of a Keras before 3.14, which packed them into bytes in another order."""
    version = str(metadata.get("keras_version") if isinstance(metadata, dict) else "")
    found = re.match(r"(\d+)\.(\d+)", version)
    old = found is not None and tuple(map(int, found.groups())) < (3, 14)
    names = [each.layer.name for each in part.flatten() if each.layer.quantization_mode == "int4"]
    if old and names:
        raise ValueError(f"int4 weights need a file of Keras 3.14 or newer; this file is of {version}: {names}")


def _check_lengths(part: TranslatedLayer, nbytes: int) -> None:
    """Raise ValueError if a length in the configuration exceeds the number of weights in the file.

    This happens before memory is allocated. The smallest weights are int4 codes, two per byte. Lengths without weights
    may be larger.
    """
    most = max(_SMALL_LENGTH, 2 * nbytes)
    for each in part.flatten():
        if each.parts:
            continue
        shapes, config = list(_shapes(each.entry.get("build_config"))), each.entry["config"]
        lengths = [shape[-1] for shape in shapes] + [config.get(name) for name in _LENGTHS]
        lengths += [_elements(shape, _axes_of(each.entry, shape)) for shape in shapes]
        longest = max((n for n in leaves(lengths) if isinstance(n, int)), default=0)
        if longest > most:
            raise ValueError(f"layer '{each.layer.name}' has a length of {longest}, but {WEIGHTS} only {nbytes} bytes")


def _axes_of(entry: Mapping[str, Any], shape: list[Any]) -> Any:
    """Return the axes of inputs, except the last one, along which a layer has weights."""
    config = entry["config"]
    if entry.get("class_name") == "PReLU":
        shared = config.get("shared_axes") or ()
        return [axis for axis in range(1, len(shape)) if axis not in leaves(shared)]
    return config.get("axis")


def _elements(shape: list[Any], axes: Any) -> int:
    """Return the product of the lengths of `axes` in a shape."""
    known = (shape[axis] for axis in leaves(axes) if isinstance(axis, int) and -len(shape) <= axis < len(shape))
    return math.prod(n for n in known if isinstance(n, int))


def _shapes(config: Any) -> Iterator[Any]:
    """Yield the innermost lists of a configuration."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    if isinstance(config, list) and config and not any(isinstance(part, list | dict) for part in config):
        yield config
    for part in parts:
        yield from _shapes(part)


class _Group:
    """The weights of a layer and its inner layers in a file; implements :class:`WeightSource`."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def _datasets(self, group: str = "vars") -> list[Any]:
        variables = _member(self._group, group)
        if variables is None:
            return []
        if not isinstance(variables, dict):
            raise ValueError(f"`{group}` must be a group of arrays")
        names = sorted(variables, key=lambda name: (len(name), name))  # names are numbers from 0 on
        return [_member(variables, name) for name in names]

    def shapes(self) -> list[tuple[int, ...]]:
        return [getattr(dataset, "shape", None) or () for dataset in self._datasets()]

    def arrays(self) -> Iterator[Array]:
        for dataset in self._datasets():
            yield _array(dataset)

    def named(self) -> dict[str, Array]:
        group = _member(self._group, "vars")
        return {} if group is None else {str(name): _array(_member(group, name)) for name in group}

    def holds_arrays(self) -> bool:
        return _holds_arrays(self._group)

    def beside(self) -> dict[str, Array]:
        group = _member(self._group, EXTRA_ARRAYS)
        return {} if group is None else {str(name): _array(_member(group, name)) for name in group}

    def member(self, name: str) -> "_Group":
        return _Group(_member(self._group, name))

    def parts(self, parts: Sequence[TranslatedLayer]) -> "list[_Group]":
        """Return the weights of the layers of a model; their names in the file are class names with numbers."""
        group, names = _member(self._group, "layers"), []
        for part in parts:
            kind = type(part.layer)
            is_renamed = name_in_configurations(kind) != kind.__name__
            names.append(snake_case(kind.__name__ if is_renamed else str(part.entry["class_name"])))
        return [_Group(_member(group, name)) for name in numbered(names)]


def _member(group: Any, name: str) -> Any:
    """Return a member of a group; None if it does not exist."""
    return group.get(name) if isinstance(group, dict) else None


def _holds_arrays(group: Any) -> bool:
    return any(map(_holds_arrays, group.values())) if isinstance(group, dict) else group is not None


def _array(values: Any) -> Array:
    if not isinstance(values, np.ndarray):
        raise ValueError("expected an array; found a group")
    return np.array(values)
