"""Models as ``.keras`` files, which Keras opens too, and their weights as ``.weights.h5`` files."""

import json
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from mp_core.arrays import F32, Array, cast
from mp_core.autocast.variable import as_stored, assign_each
from mp_core.checkpoint.output import naming, new_file
from mp_core.core.cpu import __version__
from mp_core.layers import Functional, InputLayer, Layer, Sequential, TimeDistributed
from mp_core.layers.graph import Source
from mp_core.layers.names_in_files import layers_in
from mp_core.layers.operation import FUNCTIONS, Operation
from mp_core.layers.serialization import serialize_keras_object
from mp_core.layers.symbolic import KerasTensor, traced
from mp_core.utilities import hdf5
from mp_core.utilities.arguments import path_of

__all__ = ["entry_of", "load_weights", "save_model", "save_weights", "storable", "write_tree", "written"]

_KERAS = "3.15.1"
"""The version of Keras whose format the files have."""


@contextmanager
def written(path: Any, suffix: str, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes are the file at `path` if the block ends without an error: whole, and on the disk.

    Raises
    ------
    FileExistsError
        There is such a file, and `overwrite` is False.
    ValueError
        `path` ends in something else than `suffix`.
    """
    path = path_of(path, "path")
    if not path.name.endswith(suffix):
        raise ValueError(f"`path` must end in {suffix}; received {path}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; use overwrite=True to replace it")
    with new_file(path, force=True) as stream:
        yield stream


# ---- configurations


def archived(layer: Layer, shared: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration of a layer as Keras' files have it, with the shapes for which layers were built.

    Entries of one layer that is in several places have one ``shared_object_id``: its place in `shared`, which has the
    first entry of each layer by ``id(layer)``.
    """
    entry: dict[str, Any] = serialize_keras_object(layer)
    first = shared.setdefault(id(layer), entry)
    if first is not entry:
        first["shared_object_id"] = entry["shared_object_id"] = list(shared).index(id(layer)) + 1
    if isinstance(layer, Functional):
        entry["module"], entry["registered_name"] = "keras.src.models.functional", "Functional"
        values, nodes = traced(layer), {part["name"]: part["inbound_nodes"] for part in entry["config"]["layers"]}
        entry["config"]["layers"] = parts = [archived(part, shared) for part in layer.layers]
        for part, own in zip(layer.layers, parts, strict=True):
            own |= {"name": part.name, "inbound_nodes": [_node(part, call, values) for call in nodes[part.name]]}
    elif isinstance(layer, Sequential):
        start = [] if layer.input_layer is None else [layer.input_layer]
        entry["config"]["layers"] = [archived(part, shared) for part in (*start, *layer.layers)]
    elif isinstance(layer, Operation):
        home = FUNCTIONS[layer.operation].home if layer.operation in FUNCTIONS else "numpy"
        entry |= {"module": f"keras.src.ops.{home}", "class_name": layer.operation, "registered_name": layer.operation}
        entry["config"] = {"name": layer.name} | layer.options
    elif isinstance(layer, TimeDistributed):
        entry["config"]["layer"] = archived(layer.layer, shared)
    shapes = layer._build_shapes
    if shapes is not None and not isinstance(layer, InputLayer | Operation):
        key = "shapes_dict" if isinstance(shapes, dict) else "input_shape"
        entry["build_config"] = {key: _without_batch(shapes)}
    return entry


def entry_of(model: Any) -> dict[str, Any]:
    """Return the configuration of a model, and of its training if it is compiled."""
    entry = archived(model, {})
    if model.compiled:
        entry["compile_config"] = serialize_keras_object(model.get_compile_config())
    return entry


def _node(layer: Layer, node: dict[str, Any], values: Mapping[Source, KerasTensor]) -> dict[str, Any]:
    """Return a node of a graph as Keras has it: with the numbers of an operation, and the shapes of arrays."""
    args = node["args"]
    if isinstance(layer, Operation):
        arrays = iter(args)
        args = [next(arrays) if value is None else value for value in layer.constants]
    return {"args": _with_shapes(args, values), "kwargs": _with_shapes(node["kwargs"], values)}


def _with_shapes(part: Any, values: Mapping[Source, KerasTensor]) -> Any:
    if isinstance(part, dict) and part.get("class_name") == "__keras_tensor__":
        history = part["config"]["keras_history"]
        x = values[Source(*history)]
        config = {"shape": list(x.shape), "dtype": x.dtype, "keras_history": history}
        return {"class_name": "__keras_tensor__", "config": config}
    if isinstance(part, dict):
        return {key: _with_shapes(value, values) for key, value in part.items()}
    return [_with_shapes(value, values) for value in part] if isinstance(part, list | tuple) else part


def _without_batch(shapes: Any) -> Any:
    if isinstance(shapes, dict):
        return {name: _without_batch(shape) for name, shape in shapes.items()}
    if shapes and not all(isinstance(n, int | np.integer | None) for n in shapes):
        return [_without_batch(shape) for shape in shapes]
    return shapes if shapes is None or not len(shapes) else [None, *(n if n is None else int(n) for n in shapes[1:])]


# ---- weights


def tree_of(layer: Layer, done: set[int] | None) -> dict[str, Any]:
    """Return the variables of a layer and of those in it, arranged as in Keras' files: each in the first of its places.

    `done` has the ``id(layer)`` of layers already written. It is None below a user's layer, which makes the layers in
    it anew when the file is read: each needs its own weights then.
    """
    if done is not None:
        if id(layer) in done:
            return {}
        done.add(id(layer))
    tree: dict[str, Any] = {}
    own: dict[str, Any] = {}
    layer.save_own_variables(own)
    if own:
        tree["vars"] = {name: storable(x) for name, x in own.items()}
    below = done if isinstance(layer, Functional | Sequential | TimeDistributed) else None
    return tree | map_places(lambda part: tree_of(part, below), layers_in(layer))


def map_places(function: Callable[[Layer], Any], places: dict[str, Any]) -> dict[str, Any]:
    """Return what `layers_in` returns, with `function` applied to each layer."""
    return {
        name: map_places(function, part) if isinstance(part, dict) else function(part) for name, part in places.items()
    }


def storable(x: Any) -> Array:
    """Return an array in a type that HDF5 has: other floats as float32, which holds all of them."""
    array: Array = np.asarray(x, order="C")
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    return array if array.dtype.kind in "iuf" and array.dtype.isbuiltin == 1 else cast(array, F32)


def write_tree(file: Any, tree: Mapping[str, Any]) -> None:
    """Write groups of arrays as HDF5."""
    for part in hdf5.chunks(tree):
        file.write(memoryview(part).cast("B") if isinstance(part, np.ndarray) else part)


# ---- files


def save_model(model: Any, path: Any, overwrite: bool, include_optimizer: bool) -> None:
    """Write a model as a ``.keras`` file: see :meth:`Trainer.save`."""
    _check_built(model)
    entry, tree = entry_of(model), tree_of(model, set())
    if model.compiled and include_optimizer and getattr(model.optimizer, "built", False):
        own: dict[str, Any] = {}
        model.optimizer.save_own_variables(own)
        tree["optimizer"] = {"vars": {name: storable(x) for name, x in own.items()}}
    about = {"keras_version": _KERAS, "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"), "mp_core_version": __version__}

    with written(path, ".keras", overwrite) as file, zipped(file) as archive:
        archive.writestr("metadata.json", json.dumps(about))
        archive.writestr("config.json", json.dumps(entry))
        with archive.open("model.weights.h5", "w", force_zip64=True) as weights:
            write_tree(weights, tree)


@contextmanager
def zipped(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Yield a ZIP archive that is written to a stream; after an error, an interrupt too, nothing more is written.

    ``with ZipFile`` closes the archive after an error, which raises another one if a member is half-written.
    """
    archive = zipfile.ZipFile(file, "w")
    try:
        yield archive
        archive.close()
    except BaseException:
        archive.fp = None  # an archive without a stream counts as closed
        raise


def save_weights(model: Any, path: Any, overwrite: bool) -> None:
    """Write the variables of a model: see :meth:`Trainer.save_weights`."""
    _check_built(model)
    tree = tree_of(model, set())
    with written(path, ".weights.h5", overwrite) as file:
        write_tree(file, tree)


def _check_built(model: Any) -> None:
    if not model.built:
        raise ValueError(f"'{model.name}' has no weights yet: call it once, or give it an Input")


def load_weights(model: Any, path: Any, skip_mismatch: bool) -> None:
    """Assign the variables of a file, all or none: see :meth:`Trainer.load_weights`."""
    _check_built(model)
    path = path_of(path, "path")
    try:
        with naming(path):
            tree = hdf5.read(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"`path` must be a .weights.h5 file; {path}: {error}") from error
    pairs: list[tuple[Any, Array]] = []
    for layer, stored in _matched(model, tree, set()):
        variables, values = layer._saved_variables(), list(_in_order(stored.get("vars", {})))
        wanted, found = [v.shape for v in variables], [np.shape(value) for value in values]
        if wanted != found and skip_mismatch:
            warnings.warn(f"layer '{layer.name}' has weights {wanted}, {path} {found}: skipped", stacklevel=4)
        elif wanted != found:
            raise ValueError(
                f"layer '{layer.name}' needs weights of shapes {wanted}; {path} has {found}: it is of another model"
            )
        else:
            pairs += zip(variables, values, strict=True)
            pairs += ((v, np.zeros(v.shape, v.true_dtype)) for v in layer._cleared_by_loading())
    stored_values = [as_stored(np.array(value), v.true_dtype, v.name, copy=False) for v, value in pairs]
    assign_each([variable for variable, _ in pairs], stored_values)


def _matched(layer: Layer, tree: Any, done: set[int]) -> Iterator[tuple[Layer, Mapping[str, Any]]]:
    """Yield each layer with variables beside its group in a file, which is in the first of its places."""
    if id(layer) in done:
        return
    done.add(id(layer))
    tree = tree if isinstance(tree, Mapping) else {}
    if layer.own_variables():
        yield layer, tree
    yield from _matched_in(layers_in(layer), tree, done)


def _matched_in(places: dict[str, Any], tree: Any, done: set[int]) -> Iterator[tuple[Layer, Mapping[str, Any]]]:
    for name, part in places.items():
        below = tree.get(name) if isinstance(tree, Mapping) else None
        yield from (_matched_in if isinstance(part, dict) else _matched)(part, below, done)


def _in_order(variables: Any) -> Iterator[Array]:
    """Yield arrays that are called by their numbers."""
    names = variables if isinstance(variables, Mapping) else {}
    return (variables[name] for name in sorted(names, key=lambda name: (len(name), name)))
