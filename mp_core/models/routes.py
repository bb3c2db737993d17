"""The module ``Router`` of sentence-transformers: queries and documents go through modules of their own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mp_core.models.folder import read_object
from mp_core.models.rules import PLACE, SWITCH, Rule, check
from mp_core.models.settings import choices
from mp_core.utilities.system import is_present

__all__ = ["ROUTERS", "Router", "read_router"]

ROUTERS = "Router", "Asym"
"""Names of its class in files: since sentence-transformers 5, and in older versions."""


@dataclass(frozen=True, slots=True)
class Router:
    """What a folder says of its routes.

    Attributes
    ----------
    path : Path
        The file, for messages.
    routes : mapping of str to tuple of (str, Path)
        Name -> the class of each module, and its folder.
    default : str or None
        The route where nobody names a task.
    meant : mapping of (str or None, str or None) to str
        A task, or None for any, and a kind of inputs, or None for any -> the route.
    """

    path: Path
    routes: Mapping[str, tuple[tuple[str, Path], ...]]
    default: str | None
    meant: Mapping[tuple[str | None, str | None], str]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names that may be given for a task."""
        return tuple(dict.fromkeys([*self.routes, *(task for task, _ in self.meant if task is not None)]))

    def route_of(self, task: str | None) -> str:
        """Return the name of the route of texts for a task, in the order of sentence-transformers.

        Raises
        ------
        ValueError
            There is none for it.
        """
        for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
            if key in self.meant:
                return self.meant[key]
        for name in (task, "text"):
            if name in self.routes:
                return str(name)
        if task is not None or self.default is None:
            raise ValueError(f"`task` must be {choices(self.tasks)}, as {self.path} says; received {task!r}")
        return self.default


_WORDS: Rule = (
    lambda value: isinstance(value, dict) and all(isinstance(word, str) for word in value.values()),
    "an object of strings",
)
_LISTS: Rule = (
    lambda value: (
        isinstance(value, dict)
        and len(value) > 0
        and all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value.values())
    ),
    "an object of lists of names in types",
)
_OBJECT: Rule = lambda value: isinstance(value, dict), "an object"
_ROUTER: dict[str, Rule] = {"types": _WORDS, "structure": _LISTS, "parameters": _OBJECT}
_PARAMETERS: dict[str, Rule] = {
    "default_route": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "allow_empty_key": SWITCH,
    "route_mappings": _WORDS,
}
_PAIR = re.compile(r"\((None|'[^']*'), (None|'[^']*'|\([^()]*\))\)")


def read_router(folder: Path) -> Router:
    """Return the routes in a folder.

    Raises
    ------
    OSError
        A file is missing or unreadable.
    ValueError
        It holds something else than expected.
    """
    path = folder / "router_config.json"
    path = path if is_present(path) else folder / "config.json"
    said = read_object(path)
    check(path, said, _ROUTER)
    types, structure = said.get("types", {}), said.get("structure", {})
    for name in types:
        check(path, {"types": name}, {"types": PLACE})
    parameters = said.get("parameters", {})
    check(path, parameters, _PARAMETERS)
    routes = {name: tuple((types.get(part, ""), folder / part) for part in parts) for name, parts in structure.items()}
    for name, parts in structure.items():
        if not parts or not all(part in types for part in parts):
            raise ValueError(f"{path}: the route {name} is {parts!r}; expected some of {choices(types)}")
    if not structure:
        raise ValueError(f"{path} has no structure; expected an object of routes")
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(routes))
    meant = _meant(path, parameters.get("route_mappings") or {})
    for route in (*meant.values(), *([default] if default is not None else [])):
        if route not in routes:
            raise ValueError(f"{path} names the route {route!r}; expected {choices(routes)}")
    return Router(path, routes, default, meant)


def _meant(path: Path, mappings: Mapping[str, Any]) -> dict[tuple[str | None, str | None], str]:
    """Return the routes of texts by task and kind of inputs, which the file writes as Python writes a tuple."""
    found: dict[tuple[str | None, str | None], str] = {}
    for key, route in mappings.items():
        pair = _PAIR.fullmatch(key)
        if pair is None:
            raise ValueError(f"{path}: route_mappings has the entry {key!r}; expected a pair such as ('query', None)")
        task, kind = (None if part == "None" else part.strip("'") for part in pair.groups())
        found[task, kind] = route
    return found
