"""Rules for the settings in JSON files: a table for each file, and its check."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.places import is_inside
from mp_core.models.folder import read_optional
from mp_core.models.settings import KINDS, choices, shown, unexpected
from mp_core.utilities.arguments import Rule

__all__ = ["ANY", "PLACE", "SWITCH", "TEXT", "Rule", "check", "only", "read_known"]


def only(*allowed: Any) -> Rule:
    """Return the rule that a setting has one of the values `allowed`."""
    return lambda value: value in allowed, choices(allowed)


ANY: Rule = lambda _: True, "anything"
"""The rule that allows any value."""

SWITCH: Rule = KINDS[bool]
"""The rule that a setting is true or false."""

TEXT: Rule = lambda value: isinstance(value, str), "a string"
"""The rule that a setting is a string."""

PLACE: Rule = is_inside, "a path in the folder"
"""The rule that a setting is a path inside the folder of its file."""


def read_known(path: Path, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the checked settings in a file; an empty dict if the file does not exist."""
    settings = read_optional(path)
    check(path, settings, rules)
    return settings


def check(path: Path, settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise ValueError for a setting that is unknown or has a value that its rule does not allow."""
    for name, value in settings.items():
        if name not in rules:
            raise ValueError(f"{path}: setting {shown(name)} is unknown; expected {choices(rules)}")
        fits, expected = rules[name]
        if not fits(value):
            raise unexpected(path, name, value, expected)
