"""Translate Keras' configurations of models into layers of mp_core, and build them; weights are assigned later."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mp_core.core.changes import undone_if_it_fails
from mp_core.core.scopes import called_in
from mp_core.layers import Layer, TimeDistributed, initializers
from mp_core.layers.base.building import enclosing_path, has_argument, has_own_build, note_build_shapes
from mp_core.layers.base.configuration import arguments_of, is_ours, with_policy_as_in_keras
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.penalties import module_of
from mp_core.layers.operation import Operation
from mp_core.layers.registry import layer_classes
from mp_core.ops.registry import OPERATIONS
from mp_core.training.graph import Graph, graph_of
from mp_core.training.models import Functional, Model, further_arguments, rebuilt_by
from mp_core.training.sequential import Sequential
from mp_core.utilities.absent import message_for
from mp_core.utilities.registry import check_depth, class_and_config, custom_object_scope, known_classes

__all__ = ["TranslatedLayer", "build", "translate"]

_MODELS = ("Sequential", "Functional")
_OPERATIONS = "keras.src.ops."
_HOMES = ("keras", "keras.layers", "keras.models", "keras.src.models.functional", "keras.src.models.sequential")
_RANDOM_ARGUMENTS = ("seed", "noise_shape")
"""Arguments for random numbers that some layers of Keras have and mp_core's do not."""
_ERRORS = (TypeError, ValueError, NotImplementedError, KeyError, AttributeError, OverflowError)


@dataclass
class TranslatedLayer:
    """A layer with its configuration, and its inner layers with theirs."""

    layer: Layer
    entry: Mapping[str, Any]
    parts: list["TranslatedLayer"] = field(default_factory=list)
    initializers: Mapping[str, Any] = field(default_factory=dict)
    """Argument -> initializer. The layer is built with zeros, because its weights are assigned later."""
    inner: "TranslatedLayer | None" = None
    """The layer that a TimeDistributed wraps."""

    def flatten(self) -> Iterator["TranslatedLayer"]:
        """Yield this layer and all inner layers."""
        yield self
        for part in self.parts if self.inner is None else (self.inner,):
            yield from part.flatten()


def translate(entry: Any, custom_objects: Mapping[str, Any] | None = None, *, fresh: bool = False) -> TranslatedLayer:
    """Translate a serialized Keras model into an unbuilt model of mp_core.

    `entry` is the result of ``keras.saving.serialize_keras_object(model)``, or the contents of ``config.json``.
    `custom_objects`, name -> layer of mp_core, has the classes that Keras does not have. Weights are created with the
    initializers if `fresh`; otherwise they are zeros, to be assigned later. NotImplementedError lists all layers that
    mp_core does not have, or not with these arguments.
    """
    check_depth(entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str):
        raise ValueError(f"a serialized model must be a dictionary with a `class_name`; received {entry!r:.200}")
    translation = _Translation(custom_objects or {}, fresh)
    with custom_object_scope(custom_objects):
        part = translation.part(entry)
    if translation.refused:
        raise NotImplementedError(
            f"mp_core cannot run {len(translation.refused)} of the layers:\n" + "\n".join(translation.refused)
        )
    if part is None or not (part.parts or isinstance(part.layer, Model)):
        raise ValueError(
            f"the model must be a Sequential, a functional model or a subclass of Model; received a "
            f"{entry['class_name']}"
        )
    return part


class _Translation:
    """Translates one configuration, and collects the layers that are not supported in `refused`."""

    def __init__(self, custom: Mapping[str, Any], fresh: bool) -> None:
        self.custom = custom
        self.fresh = fresh
        self.refused: list[str] = []
        self.shared: dict[Any, TranslatedLayer] = {}

    def part(self, entry: Any) -> TranslatedLayer | None:
        """Translate an entry of ``layers``; return None if it is not supported."""
        if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
            raise ValueError(f"a layer must be a dictionary with `class_name` and `config`; received {entry!r:.200}")
        name = entry.get("name") or entry["config"].get("name")
        try:
            part = self._shared_part(entry) or self._translate(entry)
        except _ERRORS as error:
            self.refused.append(f"- {name!r} ({entry.get('class_name')!r}): {error}")
            return None
        self.shared.setdefault(entry.get("shared_object_id"), part)
        return part

    def _shared_part(self, entry: dict[str, Any]) -> TranslatedLayer | None:
        """Return the translated layer of an earlier entry with the same ``shared_object_id``; None if there is none."""
        shared = entry.get("shared_object_id")
        if shared is None:
            return None
        if not isinstance(shared, int | str):
            raise ValueError(f"`shared_object_id` must be an integer or a string; received {shared!r:.200}")
        first = self.shared.get(shared)
        if first is not None:
            if _class_and_name(first.entry) != _class_and_name(entry):
                raise ValueError(f"`shared_object_id` {shared!r:.200} belongs to {_class_and_name(first.entry)} too")
            _check_calls(first.layer, entry)
        return first

    def _translate(self, entry: dict[str, Any]) -> TranslatedLayer:
        kind, module = entry.get("class_name"), str(entry.get("module"))
        if module.startswith(_OPERATIONS):
            return TranslatedLayer(_operation(entry), entry)
        if kind in _MODELS and module in _HOMES:
            return self._model(entry, Functional if kind == "Functional" else Sequential)
        is_keras = module in _HOMES
        classes = {**(layer_classes(None) if is_keras else {}), **self.custom}
        users = known_classes(Layer, {})  # registered with mp_core.saving
        try:
            found, config = class_and_config(entry, {**users, **classes}, "layer")
        except ValueError:
            why = message_for(str(kind), "layers") if is_keras else ""
            raise NotImplementedError(f"there is no such layer in mp_core (module {module}){why}") from None
        if issubclass(found, Model) and is_ours(found.from_config) and "layers" in config:
            return self._model(entry, found)
        if is_keras:
            config = _without_unused(config, arguments_of(found)[0], self.fresh)
            if isinstance(config.get("activation"), dict) and config["activation"].get("class_name") != "function":
                config = config | {"activation": self._activation(config["activation"])}
        inner = self.part(config.get("layer")) if found is TimeDistributed else None
        if inner is not None:
            config = config | {"layer": inner.layer}
        elif found is TimeDistributed:
            return TranslatedLayer(Sequential(), entry)  # a placeholder: `translate` raises an error in the end
        starts = {key: value for key, value in config.items() if is_keras and key.endswith("_initializer")}
        starts = {} if self.fresh else starts
        layer = found.from_config(config | dict.fromkeys(starts, "zeros"))
        _check_calls(layer, entry)
        return TranslatedLayer(layer, entry, initializers=starts, inner=inner)

    def _activation(self, entry: dict[str, Any]) -> Any:
        """Create an activation that is a layer or an object of a registered class."""
        objects = {**known_classes(object, {}), **layer_classes(None), **self.custom}
        found, config = class_and_config(entry, objects, "activation")
        return found.from_config(config)

    def _model(self, entry: dict[str, Any], cls: type[Model]) -> TranslatedLayer:
        """Translate a Sequential or functional model, or a user's subclass of one."""
        config, entries = entry["config"], _entries(entry["config"])
        is_stack = issubclass(cls, Sequential)
        if not is_stack:
            nodes, inputs, outputs = graph_of(config)
        parts = [self.part(part) for part in entries]
        there = [part for part in parts if part is not None]
        if len(there) < len(parts):
            return TranslatedLayer(Sequential(), entry)  # a placeholder: `translate` raises an error in the end
        layers = [part.layer for part in there]
        own = {key: config[key] for key in ("name", "trainable") if config.get(key) is not None}
        if is_stack:
            policy = {"dtype": config["dtype"]} if isinstance(config.get("dtype"), dict | str) else {}
            stack: Any = cls(**with_policy_as_in_keras(own | policy), **further_arguments(cls, config))
            if stack.layers:
                raise ValueError(f"the constructor of {cls.__name__} adds layers itself: it needs a `get_config`")
            for layer in layers:
                stack.append_unbuilt(layer)  # unbuilt: lengths are checked first
            return TranslatedLayer(stack, entry, [part for part in there if part.layer is not stack.input_layer])
        model = cls.of_graph(Graph(layers, nodes, inputs, outputs), dtype="float32", **own)
        return TranslatedLayer(rebuilt_by(cls, model, config), entry, there)


def _entries(config: dict[str, Any]) -> list[dict[str, Any]]:
    entries = config.get("layers")
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"a model's config must have a list of `layers`; received {entries!r:.200}")
    return list(entries)


def _without_unused(config: dict[str, Any], known: set[str], fresh: bool) -> dict[str, Any]:
    """Return a configuration of Keras without arguments that mp_core does not use; `known` are the layer's arguments.

    Unless `fresh`, unknown initializers are removed too, because the weights are assigned later.
    """
    kept = {}
    for key, value in config.items():
        kind = key.rpartition("_")[2]
        unused = key in _RANDOM_ARGUMENTS and key not in known
        if unused or (kind == "initializer" and not fresh and not _is_known(kind, value)):
            continue
        if kind in ("regularizer", "constraint") and not _is_known(kind, value):
            warnings.warn(
                f"layer '{config.get('name')}' loads without its {key} {value!r:.200}: name it in `custom_objects`, or "
                "register it, before you train the model",
                stacklevel=2,
            )
            continue
        kept[key] = value
    return kept


def _is_known(kind: str, value: Any) -> bool:
    """Whether mp_core has the initializer, regularizer or constraint of a configuration."""
    try:
        (initializers if kind == "initializer" else module_of(kind)).get(value)
    except _ERRORS:
        return False
    return True


def _class_and_name(entry: Mapping[str, Any]) -> str:
    """Return class and name of a layer, for errors."""
    return f"{entry.get('class_name')} {entry['config'].get('name')!r}"


def _check_calls(layer: Layer, entry: Mapping[str, Any]) -> None:
    """Raise ValueError unless the ``call`` of `layer` accepts the keywords of all nodes."""
    for call in entry.get("inbound_nodes") or ():
        given = call.get("kwargs") if isinstance(call, dict) else None
        for name, value in (given or {}).items():
            if value is not None and name != "training" and not has_argument(type(layer).call, name):
                raise ValueError(f"it is called with `{name}`, which mp_core's layer does not accept")


def _operation(entry: dict[str, Any]) -> Layer:
    """Return the layer of an operation such as ``x + 2``."""
    kind = entry["class_name"]
    if kind not in OPERATIONS:
        raise NotImplementedError(f"supported operations of Keras are {', '.join(sorted(OPERATIONS))}")
    options = {name: value for name, value in entry["config"].items() if name not in ("name", "dtype")}
    if "dtype" in OPERATIONS[kind].options:
        options["dtype"] = entry["config"].get("dtype")
    return Operation(kind, options, name=entry.get("name"), dtype="float32")


# ---- building


def build(part: TranslatedLayer) -> None:
    """Build the layers for the shapes in their entries, without running them."""
    layer = part.layer
    if layer.built:
        return
    below = "" if isinstance(layer, Functional) else f"{enclosing_path.get()}/{layer.name}".strip("/")
    shapes = part.entry.get("build_config") or {}
    if not isinstance(shapes, dict):
        raise ValueError(f"`build_config` of layer '{layer.name}' must be a dictionary; received {shapes!r:.200}")
    if part.parts:
        # Keras builds the layers of a functional model before the model itself; this gives the same paths.
        called_in(enclosing_path, below, _build_parts, (part,))
        if all(each.layer.built for each in part.parts):
            layer.build(_shape(shapes.get("input_shape")))
        return
    if part.inner is not None:
        called_in(enclosing_path, below, build, (part.inner,))
    if not shapes:
        _build_stateless(layer)
        return
    try:
        if not isinstance(shapes.get("shapes_dict"), dict):
            layer.build(_shape(shapes.get("input_shape")))
        elif has_own_build(layer):
            layer.build(**_shape(shapes["shapes_dict"]))
        else:
            layer.build(None)
            note_build_shapes(layer, _shape(shapes["shapes_dict"]))
    except (*_ERRORS, MemoryError, IndexError) as error:
        raise ValueError(f"layer '{layer.name}' cannot be built for {shapes}: {error}") from error
    for argument, initializer in part.initializers.items():
        setattr(layer, argument, initializer)


def _build_stateless(layer: Layer) -> None:
    """Build a layer without a known shape if it has no variables; otherwise it was saved unbuilt and stays so."""

    def built() -> None:
        layer.build(None)
        if layer.own_variables():
            raise ValueError

    if not isinstance(layer, Model):
        with suppress(*_ERRORS, IndexError):
            undone_if_it_fails(contents_of([layer]), built)


def _build_parts(part: TranslatedLayer) -> None:
    for each in part.parts:
        build(each)


def _shape(shape: Any) -> Any:
    """Convert a shape, or several shapes, of a configuration to tuples."""
    if isinstance(shape, dict):
        return {name: _shape(part) for name, part in shape.items()}
    if isinstance(shape, list | tuple):
        return tuple(_shape(part) for part in shape)
    if shape is None or (isinstance(shape, int) and not isinstance(shape, bool) and shape >= 0):
        return shape
    raise ValueError(f"a shape must be integers and None; received {shape!r:.200}")
