"""The mutable state of layers: attributes, and the containers, variables and arrays reachable from them."""

import sys
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from mp_core.core.changes import Contents
from mp_core.layers.forms import Form
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import DTypePolicy, DTypePolicyMap

__all__ = ["LayerContents", "contents_of"]

_KNOWN = ("mp_core", "numpy", "ml_dtypes", "builtins")


class LayerContents:
    """Everything reachable from the attributes of layers through lists, dictionaries, sets and tuples.

    Layers below the given ones are not followed; objects of classes other than those of mp_core, NumPy and Python's
    library only if `objects`. We are notified of every change of `attributes`, those of layers and of the forms of
    their matrices, and of none of `containers`, which include the attributes of other objects. `is_known`: all classes
    and functions are mp_core's, NumPy's or builtins; others may depend on hidden state.
    """

    def __init__(self, layers: Iterable[Any], objects: bool = True) -> None:
        self.attributes: list[Any] = []
        self.containers: list[Any] = []
        self.variables: list[AutoCastVariable] = []
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.is_known = True
        self._objects = objects
        seen: dict[int, Any] = {}  # keeps the objects alive, so that no new object reuses an address
        waiting: list[tuple[Any, bool]] = []
        for layer in layers:
            self.is_known &= _is_known(layer)
            self.attributes.append(vars(layer))
            waiting += [(item, False) for item in list(vars(layer).values())]
        while waiting:
            item, notifies = waiting.pop()
            if id(item) not in seen:
                seen[id(item)] = item
                waiting += self._below(item, notifies)

    def _below(self, item: Any, notifies: bool) -> list[tuple[Any, bool]]:
        """Add an item to the list of its kind; return its contents, each with whether changes notify us."""
        if isinstance(item, AutoCastVariable):
            self.variables.append(item)
        elif isinstance(item, np.ndarray):
            self.arrays.append(item)
        elif isinstance(item, tuple):
            return [(part, notifies) for part in item]
        elif isinstance(item, list | dict | set):
            (self.attributes if notifies else self.containers).append(item)
            return [(part, notifies) for part in list(item.values() if isinstance(item, dict) else item)]
        elif isinstance(item, Form):
            return [(vars(item), True)]
        elif isinstance(item, DTypePolicyMap):
            return [(part, True) for part in item.entries()]
        elif not _is_known(item):
            self.is_known = False
            if self._objects and _has_attributes(item):
                return [(vars(item), False)]
        return []


def contents_of(layers: Iterable[Any]) -> Contents:
    """Return a snapshot of the attributes of layers, from which they are restored if a change fails."""
    parts = LayerContents(layers, objects=False)
    return Contents([*parts.attributes, *parts.containers])


def _module(item: Any) -> str:
    """Return the top-level package of a class or function, or of the class of any other object."""
    named = item if isinstance(item, type | FunctionType) else type(item)
    return (named.__module__ or "").partition(".")[0]


def _is_known(item: Any) -> bool:
    if isinstance(item, MethodType):  # policies are immutable; other objects may change
        return isinstance(item.__self__, DTypePolicy) and _is_known(item.__self__)
    return _module(item) in _KNOWN and not isinstance(item, ModuleType)


def _has_attributes(item: Any) -> bool:
    """Return whether an object is of a user's class and has attributes that may change."""
    if isinstance(item, type | FunctionType | MethodType | ModuleType) or not hasattr(item, "__dict__"):
        return False
    return isinstance(item, SimpleNamespace) or _module(item) not in sys.stdlib_module_names
