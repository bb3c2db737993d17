"""Models as ``.keras`` files, which Keras opens too, and their weights as ``.weights.h5`` files."""

import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from mp_core.arrays import Array
from mp_core.files import archive, hdf5
from mp_core.files.checkpoint.header import open_regular
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.checkpoint.output import naming, new_file
from mp_core.files.hdf5 import storable
from mp_core.layers import InputLayer, Layer, TimeDistributed
from mp_core.layers.base.building import are_by_argument, build_shapes_of
from mp_core.layers.base.configuration import is_ours
from mp_core.layers.base.state import cleared_by_loading, extra_arrays, saved_variables
from mp_core.layers.names_in_files import EXTRA_ARRAYS, layers_in, names_in_list
from mp_core.layers.operation import Operation
from mp_core.layers.symbols import KerasTensor
from mp_core.policies.autocast.variable import as_stored, assign_each, restore_on_failure
from mp_core.training.graph import Source, graph_in
from mp_core.training.optimizer_files import OPTIMIZER, optimizer_variables
from mp_core.training.optimizers.state import COMPENSATION
from mp_core.training.tracing import symbolic_values
from mp_core.utilities.arguments import path_of
from mp_core.utilities.serialization import serialize_keras_object

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = ["entry_of", "load_weights", "output_file", "save_model", "save_weights"]


@contextmanager
def output_file(path: Any, suffix: str, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a stream; if the block ends without an error, its bytes replace the file at `path` in one step."""
    path = path_of(path, "filepath")
    if not path.name.endswith(suffix):
        raise ValueError(f"`filepath` must end in {suffix}; received {path}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; use overwrite=True to replace it")
    with new_file(path, force=True) as stream:
        yield stream


# ---- configurations


def layer_entry(layer: Layer, shared: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration of a layer in the form of Keras' files, with the input shapes of built layers.

    All entries of a layer that occurs several times get one ``shared_object_id``: its position, counted from 1, in
    `shared`, which maps ``id(layer)`` to the layer's first entry.
    """
    entry: dict[str, Any] = serialize_keras_object(layer)
    first = shared.setdefault(id(layer), entry)
    if first is not entry:
        first["shared_object_id"] = entry["shared_object_id"] = list(shared).index(id(layer)) + 1
    graph = graph_in(layer)
    if graph is not None and "layers" in entry["config"]:
        if entry["class_name"] == "Functional":
            entry["module"], entry["registered_name"] = "keras.src.models.functional", "Functional"
        nodes = {part["name"]: part["inbound_nodes"] for part in entry["config"]["layers"]}
        values = symbolic_values(graph)
        entry["config"]["layers"] = parts = [layer_entry(part, shared) for part in graph.layers]
        for part, own in zip(graph.layers, parts, strict=True):
            own |= {"name": part.name, "inbound_nodes": _with_shapes(nodes[part.name], values)}
    elif layer.is_made_of_layers and "layers" in entry["config"]:
        stack: Any = layer
        start = [] if stack.input_layer is None else [stack.input_layer]
        entry["config"]["layers"] = [layer_entry(part, shared) for part in (*start, *stack.layers)]
    elif isinstance(layer, Operation):
        entry |= {
            "module": f"keras.src.ops.{layer.row.home}",
            "class_name": layer.operation,
            "registered_name": layer.operation,
        }
        entry["config"] = {"name": layer.name} | layer.options
    elif isinstance(layer, TimeDistributed):
        entry["config"]["layer"] = layer_entry(layer.layer, shared)
    shapes = build_shapes_of(layer)
    needs_none = layer.built and bool(layer.own_variables())  # such as Embedding: `build()` needs no shape
    if (shapes is not None or needs_none) and not isinstance(layer, InputLayer | Operation):
        key = "shapes_dict" if are_by_argument(layer, shapes) else "input_shape"
        entry["build_config"] = {key: _without_batch_size(shapes)}
    return entry


def entry_of(model: "Model") -> dict[str, Any]:
    """Return the configuration of a model, and the arguments of ``compile`` if it is compiled."""
    entry = layer_entry(model, {})
    if model.compiled:
        entry["compile_config"] = serialize_keras_object(model.get_compile_config())
    return entry


def _with_shapes(part: Any, values: Mapping[Source, KerasTensor]) -> Any:
    """Add shape and dtype to each serialized tensor in the ``inbound_nodes`` of a layer, as Keras does."""
    if isinstance(part, dict) and part.get("class_name") == "__keras_tensor__":
        history = part["config"]["keras_history"]
        x = values[Source(*history)]
        config = {"shape": list(x.shape), "dtype": x.dtype, "keras_history": history}
        return {"class_name": "__keras_tensor__", "config": config}
    if isinstance(part, dict):
        return {key: _with_shapes(value, values) for key, value in part.items()}
    return [_with_shapes(value, values) for value in part] if isinstance(part, list | tuple) else part


def _without_batch_size(shapes: Any) -> Any:
    """Replace the first length of a shape, or of each of several shapes, by None."""
    if isinstance(shapes, dict):
        return {name: _without_batch_size(shape) for name, shape in shapes.items()}
    if shapes and not all(isinstance(n, int | np.integer | None) for n in shapes):
        return [_without_batch_size(shape) for shape in shapes]
    return shapes if shapes is None or not len(shapes) else [None, *(n if n is None else int(n) for n in shapes[1:])]


# ---- weights


def variable_tree(layer: Layer, done: set[int] | None, beside: bool = False) -> dict[str, Any]:
    """Return the variables of a layer and its inner layers, arranged as in Keras' files; shared layers occur once.

    `done` has the ``id`` of the layers already written. It is None inside a user's layer: when the file is read, it
    creates its inner layers again, so that each of them needs its own weights. `beside` adds a group, which Keras
    ignores, with what mp_core needs to continue training.
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
    more = extra_arrays(layer) if beside else {}
    if more:
        tree[EXTRA_ARRAYS] = {name: storable(x) for name, x in more.items()}
    below = done if layer.is_made_of_layers or isinstance(layer, TimeDistributed) else None
    return tree | map_layers(lambda part: variable_tree(part, below, beside), layers_in(layer))


def map_layers(function: Callable[[Layer], Any], places: dict[str, Any]) -> dict[str, Any]:
    """Apply `function` to each layer in a result of `layers_in`, and return the same nesting."""
    return {
        name: map_layers(function, part) if isinstance(part, dict) else function(part) for name, part in places.items()
    }


# ---- files


def save_model(model: "Model", path: Any, overwrite: bool, include_optimizer: bool) -> None:
    """Write a model as a ``.keras`` file: see :meth:`Trainer.save`."""
    if not model.built:
        warnings.warn(f"'{model.name}' is not built: the file has its configuration, but no weights", stacklevel=3)
    entry, tree = entry_of(model), variable_tree(model, set(), beside=include_optimizer)
    metadata: dict[str, Any] = {}
    if model.compiled and include_optimizer and getattr(model.optimizer, "built", False):
        tree["optimizer"], metadata[OPTIMIZER] = _optimizer_groups(*optimizer_variables(model))
    with output_file(path, ".keras", overwrite) as file:
        archive.write(file, entry, tree, metadata)


def _optimizer_groups(values: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the groups of an optimizer's variables in a file, and the names of these variables in this order.

    Keras opens only files in which the group ``vars`` has the variables of its own optimizers. So what compensates
    variables of 16 bits is stored beside them.
    """
    named = list(zip(names or [""] * len(values), values.values(), strict=True))
    beside = [pair for pair in named if f": {COMPENSATION}" in pair[0]]
    pairs = [pair for pair in named if f": {COMPENSATION}" not in pair[0]], beside
    groups = [{str(number): storable(x) for number, (_, x) in enumerate(part)} for part in pairs]
    tree = {"vars": groups[0]} | ({EXTRA_ARRAYS: groups[1]} if beside else {})
    return tree, [name for part in pairs for name, _ in part] if names else []


def save_weights(model: "Model", path: Any, overwrite: bool) -> None:
    """Write the variables of a model to a file: see :meth:`Trainer.save_weights`."""
    _check_built(model)
    tree = variable_tree(model, set())
    with output_file(path, ".weights.h5", overwrite) as file:
        hdf5.write(file, tree)


def _check_built(model: "Model") -> None:
    if not model.built:
        raise ValueError(f"'{model.name}' has no weights yet: call it once, or give it an Input")


def load_weights(model: "Model", path: Any, skip_mismatch: bool) -> None:
    """Assign the variables of a file, all or none: see :meth:`Trainer.load_weights`."""
    _check_built(model)
    path = path_of(path, "filepath")
    try:
        tree = hdf5.read(_weights_in(path))
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"`filepath` must be a .weights.h5 or .keras file; {path}: {error}") from error
    pairs: list[tuple[Any, Array]] = []
    of_users: list[tuple[Layer, Mapping[str, Any]]] = []
    for layer, stored in _layers_and_groups(model, tree, set()):
        if not is_ours(layer.load_own_variables):
            of_users.append((layer, stored.get("vars", {})))
            continue
        variables, values = saved_variables(layer), list(_sorted_by_number(stored.get("vars", {})))
        wanted, found = [v.shape for v in variables], [np.shape(value) for value in values]
        if wanted != found and skip_mismatch:
            warnings.warn(f"layer '{layer.name}' has weights {wanted}, {path} {found}: skipped", stacklevel=4)
        elif wanted != found:
            raise ValueError(
                f"layer '{layer.name}' needs weights of shapes {wanted}; {path} has {found}: it is of another model"
            )
        else:
            pairs += zip(variables, values, strict=True)
            pairs += ((v, np.zeros(v.shape, v.true_dtype)) for v in cleared_by_loading(layer))
    try:
        stored_values = [as_stored(np.array(value), v.true_dtype, v.name, copy=False) for v, value in pairs]
    except TypeError as error:
        raise ValueError(f"`filepath` must be a file of this model; {path}: {error}") from error

    def load() -> None:
        assign_each([variable for variable, _ in pairs], stored_values)
        for layer, store in of_users:
            layer.load_own_variables(store)

    restore_on_failure(model.weights, load)


def _weights_in(path: Path) -> Array | bytes:
    """Return the bytes of a ``.weights.h5`` file, or of the one inside a ``.keras`` file."""
    if path.suffix != ".keras":
        return map_file(path)
    with naming(path), open_regular(path) as file:
        return archive.read_weights(file)


def _layers_and_groups(layer: Layer, tree: Any, done: set[int]) -> Iterator[tuple[Layer, Mapping[str, Any]]]:
    """Yield (layer, its group in the file) for each layer with variables; a shared layer is stored once."""
    if id(layer) in done:
        return
    done.add(id(layer))
    tree = tree if isinstance(tree, Mapping) else {}
    if layer.own_variables() or not is_ours(layer.load_own_variables):
        yield layer, tree
    group = tree.get("layers")
    listed = {key: group.get(name) for key, name in names_in_list(layer).items()} if isinstance(group, Mapping) else {}
    yield from _layers_and_groups_in(layers_in(layer), tree, done, listed)


def _layers_and_groups_in(
    places: dict[str, Any], tree: Any, done: set[int], listed: dict[int, Any]
) -> Iterator[tuple[Layer, Mapping[str, Any]]]:
    for name, part in places.items():
        below = tree.get(name) if isinstance(tree, Mapping) else None
        if isinstance(part, dict):
            yield from _layers_and_groups_in(part, below, done, listed)
        else:
            yield from _layers_and_groups(part, below or listed.get(id(part)), done)


def _sorted_by_number(variables: Any) -> Iterator[Array]:
    """Yield arrays whose names are numbers, in numerical order."""
    names = variables if isinstance(variables, Mapping) else {}
    return (variables[name] for name in sorted(names, key=lambda name: (len(name), name)))
