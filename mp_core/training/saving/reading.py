"""``.keras`` files, read without Keras: nothing in them is executed, and nothing is written to disk."""

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
from mp_core.training.saving.translation import TranslatedLayer, build, translated
from mp_core.training.saving.weights import assign
from mp_core.utilities.arguments import path_of
from mp_core.utilities.names import snake_case
from mp_core.utilities.registry import custom_object_scope
from mp_core.utilities.serialization import name_in_configurations
from mp_core.utilities.system import reading_failure
from mp_core.utilities.tree import leaves, numbered

__all__ = ["blaming", "load_keras", "load_model"]

_LENGTHS = (
    "units", "filters", "input_dim", "output_dim", "num_heads", "key_dim", "value_dim", "kernel_size",
    "depth_multiplier",
)  # fmt: skip
"""The arguments of layers that are lengths of their weights."""
_FEW = 1 << 20
"""A length that a layer may have however few weights there are."""
_DAMAGES = (
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What zipfile, its decompressors and json raise for damaged files."""


def load_keras(path: str | PathLike[str], custom_objects: Mapping[str, type[Layer]] | None = None) -> Model:
    """Return the model of a ``.keras`` file of Keras 3, or of :meth:`mp_core.Model.save`, without Keras.

    It is not compiled; :func:`mp_core.load_model` returns it as it was.

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
) -> Model:
    """Return the model of a ``.keras`` file, that of Keras 3 included, as it was compiled.

    Parameters
    ----------
    path : str or os.PathLike
        What ``model.save`` wrote.
    custom_objects : mapping of str to type, optional
        Layers, optimizers, losses and metrics that are neither built in nor registered, by their names.
    compile : bool
        Whether to compile it with the optimizer, the loss and the metrics of the file, if it has such. Variables of the
        optimizer that do not belong to a variable that is trained now, as after ``enable_lora``, ``quantize`` or
        ``trainable = False``, are left out, and a warning lists them.
    safe_mode : bool
        Keras'; it must be on: what a file holds is never executed.

    Returns
    -------
    Sequential or Functional

    Raises
    ------
    FileNotFoundError, NotImplementedError, ValueError
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
        if found.optimizer and found.model.compiled:
            load_optimizer(found.model, found.optimizer, found.names)
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
    names : list of str
        What each of them is; empty if the file does not say.
    """

    model: Model
    entry: Mapping[str, Any]
    optimizer: list[Array]
    names: list[str]


def _opened(path: str | PathLike[str], custom_objects: Mapping[str, Any] | None = None) -> _Opened:
    """Return what a file holds; arguments and errors are those of :func:`load_keras`."""
    path = path_of(path, "path")
    with naming(path), open_regular(path) as file, blaming(f"`path` must be a .keras file; {path}"):
        entry, metadata, weights = read(file)
    try:
        part = translated(entry, custom_objects)
    except NotImplementedError as error:
        raise NotImplementedError(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{CONFIG} of {path}: {error}") from error
    with blaming(f"{CONFIG} of {path}"):
        _check_lengths(part, len(weights))
        _check_version(part, metadata)
        build(part)
    with blaming(f"{WEIGHTS} of {path}"):
        root = hdf5.read(weights)
        assign(part, _Group(root))
        optimizer = [_array(dataset) for dataset in _Group(_member(root, "optimizer"))._datasets()]
    names = metadata.get(OPTIMIZER) if isinstance(metadata, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []
    return _Opened(cast(Model, part.layer), entry, optimizer, names)


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


def _check_version(part: TranslatedLayer, metadata: Any) -> None:
    """Raise for int4 codes of an older Keras, which lie otherwise in their bytes."""
    version = str(metadata.get("keras_version") if isinstance(metadata, dict) else "")
    found = re.match(r"(\d+)\.(\d+)", version)
    old = found is not None and tuple(map(int, found.groups())) < (3, 14)
    names = [each.layer.name for each in part.flatten() if each.layer.quantization_mode == "int4"]
    if old and names:
        raise ValueError(f"int4 weights need a file of Keras 3.14 or newer; this is one of {version}: {names}")


def _check_lengths(part: TranslatedLayer, nbytes: int) -> None:
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
            raise ValueError(f"layer '{each.layer.name}' has a length of {longest}, but {WEIGHTS} only {nbytes} bytes")


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
        if not isinstance(variables, dict):
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

    def named(self) -> dict[str, Array]:
        """Return the variables by their names."""
        group = _member(self._group, "vars")
        return {} if group is None else {str(name): _array(_member(group, name)) for name in group}

    def holds_arrays(self) -> bool:
        """Whether there are variables of this layer, or of layers in it."""
        return _holds_arrays(self._group)

    def beside(self) -> dict[str, Array]:
        """Return what mp_core has written beside the variables."""
        group = _member(self._group, EXTRA_ARRAYS)
        return {} if group is None else {str(name): _array(_member(group, name)) for name in group}

    def member(self, name: str) -> "_Group":
        """Return the weights of a layer in this one, or in this container."""
        return _Group(_member(self._group, name))

    def parts(self, parts: Sequence[TranslatedLayer]) -> "list[_Group]":
        """Return the weights of the layers of a model, which its file calls by their classes and counts."""
        group, names = _member(self._group, "layers"), []
        for part in parts:
            kind = type(part.layer)
            is_renamed = name_in_configurations(kind) != kind.__name__
            names.append(snake_case(kind.__name__ if is_renamed else str(part.entry["class_name"])))
        return [_Group(_member(group, name)) for name in numbered(names)]


def _member(group: Any, name: str) -> Any:
    """Return a member of a group, None if there is none."""
    return group.get(name) if isinstance(group, dict) else None


def _holds_arrays(group: Any) -> bool:
    return any(map(_holds_arrays, group.values())) if isinstance(group, dict) else group is not None


def _array(values: Any) -> Array:
    if not isinstance(values, np.ndarray):
        raise ValueError("a group is where an array is needed")
    return np.array(values)
