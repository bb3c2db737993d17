"""The module ``Router`` of sentence-transformers: separate modules for queries and documents."""

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
"""Names of the class in files: since sentence-transformers 5, and in older versions."""


@dataclass(frozen=True, slots=True)
class Router:
    """The routes of a folder."""

    path: Path  # The file with the routes, for error messages.
    routes: Mapping[str, tuple[tuple[str, Path], ...]]  # Name of a route -> (class, folder) of each of its modules.
    default: str | None  # The route if no task is given.
    # (task, kind of input) -> route. None matches any task or kind.
    mappings: Mapping[tuple[str | None, str | None], str]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The allowed names of tasks."""
        return tuple(dict.fromkeys([*self.routes, *(task for task, _ in self.mappings if task is not None)]))

    def route_of(self, task: str | None) -> str:
        """Return the name of the route for texts of a task; entries are tried in the order of sentence-transformers."""
        for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
            if key in self.mappings:
                return self.mappings[key]
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
    """Read the routes in a folder; raise OSError or ValueError if a file is missing or not as expected."""
    path = folder / "router_config.json"
    path = path if is_present(path) else folder / "config.json"
    content = read_object(path)
    check(path, content, _ROUTER)
    types, structure = content.get("types", {}), content.get("structure", {})
    for name in types:
        check(path, {"types": name}, {"types": PLACE})
    parameters = content.get("parameters", {})
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
    mappings = _mappings(path, parameters.get("route_mappings") or {})
    for route in (*mappings.values(), *([default] if default is not None else [])):
        if route not in routes:
            raise ValueError(f"{path} names the route {route!r}; expected {choices(routes)}")
    return Router(path, routes, default, mappings)


def _mappings(path: Path, entries: Mapping[str, Any]) -> dict[tuple[str | None, str | None], str]:
    """Return (task, kind of input) -> route; the keys in the file are Python tuples written as text."""
    found: dict[tuple[str | None, str | None], str] = {}
    for key, route in entries.items():
        pair = _PAIR.fullmatch(key)
        if pair is None:
            raise ValueError(f"{path}: route_mappings has the entry {key!r}; expected a pair such as ('query', None)")
        task, kind = (None if part == "None" else part.strip("'") for part in pair.groups())
        found[task, kind] = route
    return found
