"""How layers get their names, their paths and the shapes they are built for."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import cache, wraps
from threading import Lock
from typing import Any

import numpy as np

from mp_core.core.changes import undone_if_it_fails
from mp_core.core.scopes import called_in
from mp_core.layers.contents import contents_of
from mp_core.utilities.system import lock_for_forks
from mp_core.utilities.tree import map_leaves

__all__ = [
    "added_losses", "build_for", "enclosing_path", "example_shape", "handed_training", "placed", "snake_case",
    "stated_forms", "takes", "unique_name",
]  # fmt: skip

enclosing_path: ContextVar[str] = ContextVar("mp_core.layers.path", default="")
"""The path below which layers are built in this thread or task."""

handed_training: ContextVar[Any] = ContextVar("mp_core.layers.training", default=None)
"""The ``training`` of the enclosing call in this thread or task, which the layers that it calls take over."""

added_losses: ContextVar[list[Any] | None] = ContextVar("mp_core.layers.losses", default=None)
"""What layers have added to the loss by ``add_loss`` in a step of training or evaluation in this thread or task."""

stated_forms: ContextVar[dict[str, dict[str, Any]]] = ContextVar("mp_core.layers.forms", default={})  # noqa: B039
"""Path -> the form that a configuration says for the matrix there, below the layers that are built."""

_names: Counter[str] = Counter()
_counting = lock_for_forks(Lock)


def example_shape(shape: Iterable[int | None]) -> list[int]:
    """Return a shape of arrays that layers can be run with: one sample, and lengths of 32 where they are unknown."""
    return [length or (32 if axis else 1) for axis, length in enumerate(shape)]


def snake_case(class_name: str) -> str:
    """Return the name of a class as Keras writes it in the names of layers and files."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


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
    def build_placed(layer: Any, *args: Any, **kwargs: Any) -> None:
        if layer._path is None:
            undone_if_it_fails(contents_of(layer.flatten()), _build_first, build, layer, args, kwargs)
        elif enclosing_path.get() == layer._path:  # super().build(...)
            build(layer, *args, **kwargs)
        elif layer.built:
            undone_if_it_fails(contents_of(layer.flatten()), _build_again, build, layer, args, kwargs)
        else:
            raise RuntimeError(
                f"Another thread is building layer '{layer.name}', or was so when this process was forked: "
                "build it once, before"
            )

    return build_placed


def _build_first(build: Callable[..., None], layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    layer._path = f"{enclosing_path.get()}/{layer.name}".lstrip("/")
    layer._build_shapes = kwargs or (args[0] if args else None)
    layer._apply_policy()
    layer._dtype_at_build = layer.variable_dtype
    below = {f"{layer._around}/{path}".strip("/"): form for path, form in layer._forms.items()}
    in_forms = stated_forms, stated_forms.get() | below, build, (layer, *args), kwargs
    in_inference = handed_training, None, called_in, in_forms
    called_in(enclosing_path, layer._path, called_in, in_inference)
    layer.built = True


def _build_again(build: Callable[..., None], layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the `build` of a built layer, which must leave its variables: new ones would have lost the values."""
    weights = layer.weights
    build(layer, *args, **kwargs)
    if [*map(id, layer.weights)] != [*map(id, weights)]:
        raise ValueError(
            "You cannot add new elements of state (variables or sub-layers) to a layer that is already built: "
            f"`build` of layer '{layer.name}' was called before"
        )


def build_for(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call ``layer.build`` with the shapes of a call's arguments: of the first one, or ``<argument>_shape`` each."""
    parameters = inspect.signature(layer.build).parameters
    if len(parameters) == 1:
        layer.build(map_leaves(_shape, args[0] if args else next(iter(kwargs.values()), None)))
        return
    arguments = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    shapes = {f"{name}_shape": map_leaves(_shape, value) for name, value in arguments.items()}
    layer.build(**{name: shape for name, shape in shapes.items() if name in parameters})


def _shape(x: Any) -> tuple[int, ...] | None:
    return None if x is None else np.shape(x)


@cache
def takes(call: Callable[..., Any], argument: str) -> bool:
    """Whether a layer's ``call`` has an argument, such as ``training``."""
    return argument in inspect.signature(call).parameters
