"""What the settings in JSON files may be: a table of rules for each file, and its check."""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mp_core.models.folder import read_object
from mp_core.models.settings import choices

__all__ = ["ANY", "PLACE", "SWITCH", "TEXT", "Rule", "check", "only", "read_known"]

Rule = tuple[Callable[[Any], bool], str]
"""The function that says whether a setting may have a value, and the allowed values, as a part of a sentence."""


def only(*allowed: Any) -> Rule:
    """Return the rule that a setting is one of these."""
    return lambda value: value in allowed, choices(allowed)


ANY: Rule = lambda _: True, "anything"
"""The rule that a setting may be whatever it is."""

SWITCH: Rule = lambda value: isinstance(value, bool), "true or false"
"""The rule that a setting is on or off."""

TEXT: Rule = lambda value: isinstance(value, str), "a string"
"""The rule that a setting is a string."""

PLACE: Rule = (
    lambda value: (
        isinstance(value, str) and not PurePosixPath(value).is_absolute() and ".." not in PurePosixPath(value).parts
    ),
    "a path in the folder",
)
"""The rule that a setting leads to somewhere in the folder of its file."""


def read_known(path: Path, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the settings in a file that may be missing, all of them known."""
    settings = read_object(path) if path.exists() else {}
    check(path, settings, rules)
    return settings


def check(path: Path, settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise ValueError unless all settings of a file are known and may have their values."""
    for name, value in settings.items():
        if name not in rules:
            raise ValueError(f"{path}: setting {name!r} is unknown; expected {choices(rules)}")
        fits, expected = rules[name]
        if not fits(value):
            raise ValueError(f"{path}: {name} is {value!r}; expected {expected}")
