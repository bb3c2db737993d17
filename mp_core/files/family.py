"""``serialize``, ``deserialize`` and ``get`` for a family of named classes, such as losses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc, signature
from typing import Any

from mp_core.utilities.registry import class_and_config, get_registered_name, known_classes, named_function
from mp_core.utilities.serialization import serialize_keras_object

__all__ = ["Family"]

Function = Callable[..., Any]

_EXAMPLE = """

Examples
--------
>>> from {package} import {module}
>>> {shown}
'{name}'
"""
_SHOWN = {
    "serialize": '{module}.serialize({module}.get("{name}"))["class_name"]',
    "deserialize": 'type({module}.deserialize("{name}")).__name__',
    "get": 'type({module}.get("{name}")).__name__',
}
"""Expression in the example of a function; each evaluates to the class name."""


@dataclass(frozen=True)
class Family:
    """A family of named classes and functions, such as losses; :meth:`functions` makes its module-level functions.

    >>> from mp_core import regularizers
    >>> config = regularizers.serialize(regularizers.L2(0.5))
    >>> config["class_name"], config["config"]
    ('L2', {'l2': 0.5})
    >>> regularizers.deserialize(config).l2, regularizers.get("l1").l1
    (0.5, 0.01)
    """

    kind: Any  # base class
    word: str  # Keras' name of the argument, also used in errors
    classes: Mapping[str, Any]  # name or short name -> class
    named: Mapping[str, Any] = field(default_factory=dict)  # name -> plain function

    def serialize(self, x: Any) -> Any:
        """Return class name and configuration of {a} {word} in Keras' format; for a function, return its name."""
        if isinstance(x, self.kind):
            return serialize_keras_object(x)
        if not callable(x) or not hasattr(x, "__name__"):
            raise TypeError(f"`{self.word}` must be a {self.kind.__name__} or a function; received {x!r}")
        return get_registered_name(x)

    def deserialize(self, config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """Return the {word} of a :func:`serialize` dictionary, or of a name."""
        config = named_function(config)
        if callable(config):
            return config
        objects = {**self.named, **(custom_objects or {})}
        if isinstance(config, str):
            if config in objects:
                return objects[config]
            config = {"class_name": config, "config": {}}
        found, own = class_and_config(config, known_classes(self.kind, self.classes, custom_objects), self.word)
        return found.from_config(own)

    def get(self, identifier: Any) -> Any:
        """Return the {word} of a name, a dictionary or a class; return {a} {word}, a function or None unchanged."""
        found = self.deserialize(identifier) if isinstance(identifier, str | dict) else identifier
        if isinstance(found, type) and issubclass(found, self.kind):
            return found()
        if found is None or isinstance(found, self.kind) or (callable(found) and not isinstance(found, type)):
            return found
        raise ValueError(f"Could not interpret {self.word} identifier: {identifier!r}")

    def functions(self, home: str, argument: str = "config") -> tuple[Function, Function, Function]:
        """Return `serialize`, `deserialize` and `get` as functions of the module `home`.

        Their first arguments have Keras' names: :attr:`word`, `argument` and ``identifier``.
        """
        return (
            self._function(self.serialize, self.word, home),
            self._function(self.deserialize, argument, home),
            self._function(self.get, "identifier", home),
        )

    def _function(self, method: Function, argument: str, home: str) -> Function:
        own = signature(method)
        first, *rest = own.parameters.values()
        own = own.replace(parameters=[first.replace(name=argument), *rest])

        def function(*args: Any, **kwargs: Any) -> Any:
            return method(*own.bind(*args, **kwargs).args)

        function.__module__, function.__name__ = home, method.__name__
        function.__qualname__ = method.__name__
        text = str(method.__doc__).format(word=self.word, a="an" if self.word[0] in "aeiou" else "a")
        function.__doc__ = cleandoc(text) + self._example(method.__name__, home)
        vars(function)["__signature__"] = own
        return function

    def _example(self, function: str, home: str) -> str:
        """Return the example of a function, with the first class of the family, which needs no arguments."""
        package, _, module = home.removesuffix(".registry").rpartition(".")
        name = next(iter(self.classes))
        shown = _SHOWN[function].format(module=module, name=name)
        return _EXAMPLE.format(package=package, module=module, name=name, shown=shown)
