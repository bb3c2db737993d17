"""What layers consist of: their attributes, and the containers, variables and arrays that are among these."""

import sys
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from mp_core.core.changes import Contents
from mp_core.layers.forms import Form
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import DTypePolicy, DTypePolicyMap

__all__ = ["Parts", "contents_of"]

_KNOWN = ("mp_core", "numpy", "ml_dtypes", "builtins")


class Parts:
    """What is found among the attributes of layers, at any depth of lists, dictionaries, sets and tuples.

    Parameters
    ----------
    layers : iterable of Layer
        Each stands for itself, without the layers below it.
    objects : bool
        Whether to look into objects of other classes than those of mp_core, NumPy and Python's library.

    Attributes
    ----------
    attributes : list of dict
        Those of the layers, and what the forms of their matrices consist of. Whoever changes one tells it.
    containers : list of list, dict and set
        All others, which change without a word; the attributes of other objects are among them.
    variables : list of AutoCastVariable
    arrays : list of ndarray
    is_known : bool
        Whether all classes and functions are mp_core's or NumPy's: any other may depend on what is not found here.
    """

    def __init__(self, layers: Iterable[Any], objects: bool = True) -> None:
        self.attributes: list[Any] = []
        self.containers: list[Any] = []
        self.variables: list[AutoCastVariable] = []
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.is_known = True
        self._objects = objects
        seen: dict[int, Any] = {}  # holds what it names, so that nothing else gets its address
        waiting: list[tuple[Any, bool]] = []
        for layer in layers:
            self.is_known &= _is_known(layer)
            self.attributes.append(vars(layer))
            waiting += [(item, False) for item in list(vars(layer).values())]
        while waiting:
            item, is_told = waiting.pop()
            if id(item) not in seen:
                seen[id(item)] = item
                waiting += self._below(item, is_told)

    def _below(self, item: Any, is_told: bool) -> list[tuple[Any, bool]]:
        """Add an item to those of its kind; return what it holds, each with whether its changes are told."""
        if isinstance(item, AutoCastVariable):
            self.variables.append(item)
        elif isinstance(item, np.ndarray):
            self.arrays.append(item)
        elif isinstance(item, tuple):
            return [(part, is_told) for part in item]
        elif isinstance(item, list | dict | set):
            (self.attributes if is_told else self.containers).append(item)
            return [(part, is_told) for part in list(item.values() if isinstance(item, dict) else item)]
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
    """Return what layers consist of now, to be given back to them if a change of them fails."""
    parts = Parts(layers, objects=False)
    return Contents([*parts.attributes, *parts.containers])


def _module(item: Any) -> str:
    """Return the package of a class or function, or of the class of any other object."""
    named = item if isinstance(item, type | FunctionType) else type(item)
    return (named.__module__ or "").partition(".")[0]


def _is_known(item: Any) -> bool:
    if isinstance(item, MethodType):  # of a policy, which does not change, or of an object that may
        return isinstance(item.__self__, DTypePolicy) and _is_known(item.__self__)
    return _module(item) in _KNOWN and not isinstance(item, ModuleType)


def _has_attributes(item: Any) -> bool:
    """Whether an object of a class of the user has attributes that may change."""
    if isinstance(item, type | FunctionType | MethodType | ModuleType) or not hasattr(item, "__dict__"):
        return False
    return isinstance(item, SimpleNamespace) or _module(item) not in sys.stdlib_module_names
