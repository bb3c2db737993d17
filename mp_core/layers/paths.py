"""Names of layers, and the paths that they form."""

import re
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

__all__ = ["enclosing_path", "placed", "unique_name"]

enclosing_path: ContextVar[str] = ContextVar("mp_core.layers.path", default="")
"""The path below which layers are built in this thread or task."""

_names: Counter[str] = Counter()


def unique_name(class_name: str) -> str:
    """Return the class name in snake case, numbered from its second use on."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    count = _names[name]
    _names[name] += 1
    return f"{name}_{count}" if count else name


def placed(build: Callable[..., None]) -> Callable[..., None]:
    """Give a layer its path, and so its policy, before `build` runs; the layers built meanwhile are below that path."""

    @wraps(build)
    def build_placed(layer: Any, *args: Any, **kwargs: Any) -> None:
        if layer._path is not None:  # super().build(...)
            build(layer, *args, **kwargs)
            return
        layer._path = f"{enclosing_path.get()}/{layer.name}".lstrip("/")
        layer._apply_policy()
        token = enclosing_path.set(layer._path)
        try:
            build(layer, *args, **kwargs)
            layer.built = True
        finally:
            enclosing_path.reset(token)
            if not layer.built:
                layer._path = None

    return build_placed
