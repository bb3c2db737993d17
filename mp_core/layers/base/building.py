"""Building of layers: their names, their paths, and the shapes for which :meth:`Built.build` is called."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import cache, wraps
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core.arrays.holding import call_outside_recordings
from mp_core.core.changes import undone_if_it_fails
from mp_core.core.scopes import called_in
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.quantization import PolicyOwner
from mp_core.layers.base.state import flat_layers
from mp_core.utilities.names import snake_case
from mp_core.utilities.system import lock_for_forks
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "Built", "accepts_argument", "are_by_argument", "build_for", "build_shapes_of", "configured_forms",
    "enclosing_path", "example_shape", "has_argument", "has_own_build", "inherited_training", "note_build_shapes",
    "set_configured_forms", "unique_name", "with_path",
]  # fmt: skip

enclosing_path: ContextVar[str] = ContextVar("mp_core.layers.path", default="")
"""The path of the layer that is being built in this thread or task; layers built meanwhile are below it."""

inherited_training: ContextVar[Any] = ContextVar("mp_core.layers.training", default=None)
"""The ``training`` of the enclosing call in this thread or task; nested calls use it unless they pass their own."""

configured_forms: ContextVar[dict[str, dict[str, Any]]] = ContextVar("mp_core.layers.forms", default={})  # noqa: B039
"""Matrix path -> form that the saved configuration gives, for layers being built."""

_names: Counter[str] = Counter()
_counting = lock_for_forks(Lock)


def example_shape(shape: Iterable[int | None]) -> list[int]:
    """Return the shape with unknown lengths replaced: 1 for the first axis, 32 for the others."""
    return [length or (32 if axis else 1) for axis, length in enumerate(shape)]


def unique_name(class_name: str) -> str:
    """Return the class name in snake case; from its second use on with a number: ``dense``, ``dense_1``."""
    name = snake_case(class_name)
    with _counting[0]:
        count = _names[name]
        _names[name] += 1
    return f"{name}_{count}" if count else name


def forget_names() -> None:
    """Reset the numbers that :func:`unique_name` appends."""
    with _counting[0]:
        _names.clear()


def with_path(build: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``build``: set the path of the layer, and so its policy, before the function runs.

    Layers that are built meanwhile get paths below this one. If `build` fails or is interrupted, the layer and those
    below it are restored. If the process was forked while another thread built the layer, the child has a layer
    that is half built: building it raises RuntimeError.
    """

    @wraps(build)
    def build_placed(self: "Built", *args: Any, **kwargs: Any) -> None:
        if self._path is None:
            undone_if_it_fails(contents_of(flat_layers(self)), self._build_first, build, args, kwargs)
        elif enclosing_path.get() == self._path:  # super().build(...)
            build(self, *args, **kwargs)
        elif self.built:
            undone_if_it_fails(contents_of(flat_layers(self)), self._build_once_more, build, args, kwargs)
        else:
            raise RuntimeError(
                f"Another thread is building layer '{self.name}', or was building it when this process was forked: "
                "build the layer before you start threads or processes"
            )

    return build_placed


class Built(PolicyOwner):
    """Base of layers: builds the layer for the shapes of a call's arguments."""

    _build_shapes: Any = None
    """The arguments of the first :meth:`build`: a shape, or a dictionary from the argument's name to its shape."""
    _builds_nothing: bool = False
    """Whether the layer counts as built when it is created, as in Keras, unless a subclass defines ``build``."""
    _forms: Mapping[str, dict[str, Any]] = MappingProxyType({})
    """Path below this layer -> form of the matrix there, from the configuration."""

    @with_path
    def build(self, input_shape: Any) -> None:
        """Create the variables for inputs of this shape. Layers without variables need not define this method."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; the inputs are cast before this method is called."""
        raise NotImplementedError(f"{type(self).__name__} does not have a `call` method implemented.")

    @property
    def _children_path(self) -> str:
        """The prefix of the paths of the layers in this one."""
        return str(self.path)

    def _build_first(self, build: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._path = f"{enclosing_path.get()}/{self.name}".lstrip("/")
        self._build_shapes = kwargs or (args[0] if args else None)
        self._apply_policy()
        self._dtype_at_build = self.variable_dtype
        below = {f"{self._children_path}/{path}".strip("/"): form for path, form in self._forms.items()}
        forms, arguments = configured_forms.get() | below, (build, self, *args)
        in_forms = configured_forms, forms, call_outside_recordings, arguments, kwargs
        in_inference = inherited_training, None, called_in, in_forms
        called_in(enclosing_path, self._path, called_in, in_inference)
        self._may_add_loss = self._adds_to_loss()
        self.built = True

    def _adds_to_loss(self) -> bool:
        """Return whether the layer, or one below it, may add to the loss.

        A layer of mp_core does so only if it holds other layers or has an activity regularizer.
        """
        is_plain = type(self).call.__module__.startswith("mp_core.layers.") and len(list(flat_layers(self))) == 1
        return not is_plain or "activity_regularizer" in self._penalties

    def _build_once_more(self, build: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run `build` on a built layer again; raise if it replaces variables, because their values would be lost."""
        weights = self.weights
        build(self, *args, **kwargs)
        if [*map(id, self.weights)] != [*map(id, weights)]:
            raise ValueError(
                "You cannot add new elements of state (variables or sub-layers) to a layer that is already built: "
                f"`build` of layer '{self.name}' was called before"
            )


def build_shapes_of(layer: Built) -> Any:
    """Return the shapes for which a layer was built first: a shape, or a dictionary from argument name to shape."""
    return layer._build_shapes


def note_build_shapes(layer: Built, shapes: Any) -> None:
    """Set the shapes that :func:`build_shapes_of` returns, for layers that their first call builds."""
    layer._build_shapes = shapes


def set_configured_forms(layer: Built, forms: Mapping[str, dict[str, Any]]) -> None:
    """Set the forms that matrices get when the layer is built, by their paths below it."""
    layer._forms = forms


def build_for(layer: Built, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call ``layer.build`` with the shape of the first argument, or with ``<argument>_shape`` for each argument."""
    parameters = inspect.signature(layer.build).parameters
    if len(parameters) == 1:
        layer.build(map_leaves(_shape, args[0] if args else next(iter(kwargs.values()), None)))
        if len(args) + len(kwargs) > 1 and not has_own_build(layer):
            arrays = {name for name, value in kwargs.items() if all(hasattr(x, "shape") for x in leaves(value))}
            layer._build_shapes = _shapes_of_call(layer, args, {name: kwargs[name] for name in arrays})
        return
    shapes = _shapes_of_call(layer, args, kwargs)
    layer.build(**{name: shape for name, shape in shapes.items() if name in parameters})


def _shapes_of_call(layer: Built, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the shapes of a call's arguments under the names ``<argument>_shape``."""
    arguments = inspect.signature(layer.call).bind_partial(*args, **kwargs).arguments
    return {f"{name}_shape": map_leaves(_shape, value) for name, value in arguments.items()}


def are_by_argument(layer: Built, shapes: Any) -> bool:
    """Return whether `shapes` is a dictionary with keys ``<argument>_shape``, not the shapes of the first argument."""
    if not isinstance(shapes, dict) or not all(isinstance(name, str) and name.endswith("_shape") for name in shapes):
        return False
    return all(has_argument(type(layer).call, name.removesuffix("_shape")) for name in shapes)


def has_own_build(layer: Built) -> bool:
    """Return whether the class of a layer defines ``build``; otherwise its first call builds the layers in it."""
    build = type(layer).build
    return build is not next(vars(base)["build"] for base in reversed(type(layer).__mro__) if "build" in vars(base))


def _shape(x: Any) -> Any:
    """Return the shape of an array, a symbolic array or a number; None for None."""
    return x.shape if hasattr(x, "shape") else None if x is None else np.shape(x)


@cache
def accepts_argument(function: Callable[..., Any], argument: str) -> bool:
    """Return whether a function accepts a keyword argument of this name, if only by ``**kwargs``."""
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(x.kind is x.VAR_KEYWORD for x in parameters.values())


def has_argument(call: Callable[..., Any], argument: str) -> bool:
    """Return whether a layer's ``call`` names an argument, such as ``training``."""
    return argument in inspect.signature(call).parameters
