"""How layers get their names, their paths and the shapes they are built for, and what a class defines of that."""

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
from mp_core.utilities.names import snake_case
from mp_core.utilities.system import lock_for_forks
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "Built", "are_by_argument", "build_for", "build_shapes_of", "enclosing_path", "example_shape", "handed_training",
    "has_own_build", "note_build_shapes", "passes_on", "placed", "state_forms", "stated_forms", "takes",
    "unique_name",
]  # fmt: skip

enclosing_path: ContextVar[str] = ContextVar("mp_core.layers.path", default="")
"""The path below which layers are built in this thread or task."""

handed_training: ContextVar[Any] = ContextVar("mp_core.layers.training", default=None)
"""The ``training`` of the enclosing call in this thread or task, which the layers that it calls take over."""

stated_forms: ContextVar[dict[str, dict[str, Any]]] = ContextVar("mp_core.layers.forms", default={})  # noqa: B039
"""Path -> the form that a configuration says for the matrix there, below the layers that are built."""

_names: Counter[str] = Counter()
_counting = lock_for_forks(Lock)


def example_shape(shape: Iterable[int | None]) -> list[int]:
    """Return a shape of arrays that layers can be run with: one sample, and lengths of 32 where they are unknown."""
    return [length or (32 if axis else 1) for axis, length in enumerate(shape)]


def unique_name(class_name: str) -> str:
    """Return the class name in snake case, numbered from its second use on."""
    name = snake_case(class_name)
    with _counting[0]:
        count = _names[name]
        _names[name] += 1
    return f"{name}_{count}" if count else name


def forget_names() -> None:
    """Begin to number the names of layers anew."""
    with _counting[0]:
        _names.clear()


def placed(build: Callable[..., None]) -> Callable[..., None]:
    """Give a layer its path, and so its policy, before `build` runs; the layers built meanwhile are below that path.

    If `build` fails, or is interrupted, the layer and those below it are as before. In the child of a fork that came
    while another thread built a layer, half of that layer is there: building it is a RuntimeError.
    """

    @wraps(build)
    def build_placed(self: "Built", *args: Any, **kwargs: Any) -> None:
        if self._path is None:
            undone_if_it_fails(contents_of(self.flatten()), self._build_first, build, args, kwargs)
        elif enclosing_path.get() == self._path:  # super().build(...)
            build(self, *args, **kwargs)
        elif self.built:
            undone_if_it_fails(contents_of(self.flatten()), self._build_once_more, build, args, kwargs)
        else:
            raise RuntimeError(
                f"Another thread is building layer '{self.name}', or was so when this process was forked: "
                "build it once, before"
            )

    return build_placed


class Built(PolicyOwner):
    """The part of a layer that is built for the shapes of a call's arguments."""

    _build_shapes: Any = None
    """What the first :meth:`build` was called with: a shape, or a dictionary of them by the names of its arguments."""
    _builds_nothing: bool = False
    """Whether the layer is built from the start, as in Keras; a subclass with a ``build`` of its own is not."""
    _forms: Mapping[str, dict[str, Any]] = MappingProxyType({})
    """Path below this layer -> the form of the matrix there, which a configuration says."""

    @placed
    def build(self, input_shape: Any) -> None:
        """Create the variables for inputs of this shape; layers without any need not define it."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from inputs that are cast already."""
        raise NotImplementedError(f"{type(self).__name__} does not have a `call` method implemented.")

    @property
    def _around(self) -> str:
        """The path below which the layers in this one are."""
        return str(self.path)

    def _build_first(self, build: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._path = f"{enclosing_path.get()}/{self.name}".lstrip("/")
        self._build_shapes = kwargs or (args[0] if args else None)
        self._apply_policy()
        self._dtype_at_build = self.variable_dtype
        below = {f"{self._around}/{path}".strip("/"): form for path, form in self._forms.items()}
        in_forms = stated_forms, stated_forms.get() | below, call_outside_recordings, (build, self, *args), kwargs
        in_inference = handed_training, None, called_in, in_forms
        called_in(enclosing_path, self._path, called_in, in_inference)
        self._may_add = self._adds_to_loss()
        self.built = True

    def _adds_to_loss(self) -> bool:
        """Whether the layer, or one below it, may add to the loss: of mp_core's, what calls others or regularizes."""
        is_plain = type(self).call.__module__.startswith("mp_core.layers.") and len(list(self.flatten())) == 1
        return not is_plain or "activity_regularizer" in self._penalties

    def _build_once_more(self, build: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the `build` of a built layer, which must leave its variables: new ones would have lost the values."""
        weights = self.weights
        build(self, *args, **kwargs)
        if [*map(id, self.weights)] != [*map(id, weights)]:
            raise ValueError(
                "You cannot add new elements of state (variables or sub-layers) to a layer that is already built: "
                f"`build` of layer '{self.name}' was called before"
            )


def build_shapes_of(layer: Built) -> Any:
    """Return what a layer was built for first: a shape, or a dictionary of them by the names of arguments."""
    return layer._build_shapes


def note_build_shapes(layer: Built, shapes: Any) -> None:
    """Note what a layer was built for, where its ``build`` does not get it: it is built by its first call."""
    layer._build_shapes = shapes


def state_forms(layer: Built, forms: Mapping[str, dict[str, Any]]) -> None:
    """Say the forms of matrices by their paths below a layer that will be built."""
    layer._forms = forms


def build_for(layer: Built, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call ``layer.build`` with the shapes of a call's arguments: of the first one, or ``<argument>_shape`` each."""
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
    """Return the shapes of the arguments of a call by ``<argument>_shape``."""
    arguments = inspect.signature(layer.call).bind_partial(*args, **kwargs).arguments
    return {f"{name}_shape": map_leaves(_shape, value) for name, value in arguments.items()}


def are_by_argument(layer: Built, shapes: Any) -> bool:
    """Whether a layer was built for shapes by ``<argument>_shape``, not for those of its first argument."""
    if not isinstance(shapes, dict) or not all(isinstance(name, str) and name.endswith("_shape") for name in shapes):
        return False
    return all(takes(type(layer).call, name.removesuffix("_shape")) for name in shapes)


def has_own_build(layer: Built) -> bool:
    """Whether a class has a ``build`` of its own; otherwise the first call builds the layers in it."""
    build = type(layer).build
    return build is not next(vars(base)["build"] for base in reversed(type(layer).__mro__) if "build" in vars(base))


def _shape(x: Any) -> Any:
    """Return the shape of an array, symbolic or not, and of a number; None for None."""
    return x.shape if hasattr(x, "shape") else None if x is None else np.shape(x)


@cache
def passes_on(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function may be called with a named argument, also as one of any."""
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(x.kind is x.VAR_KEYWORD for x in parameters.values())


def takes(call: Callable[..., Any], argument: str) -> bool:
    """Whether a layer's ``call`` has an argument, such as ``training``."""
    return argument in inspect.signature(call).parameters
