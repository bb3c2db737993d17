"""Read the JSON files of a model folder: every error names the file."""

import json
from pathlib import Path
from typing import Any

from mp_core.checkpoint.folder import missing
from mp_core.checkpoint.header import refuse_other
from mp_core.checkpoint.reading import read_file

__all__ = ["read_list", "read_object", "read_text"]

_MOST = 1 << 24  # bytes of a file of settings: some hundred times those of any that is known


def read_text(path: Path, most: int = _MOST) -> str:
    """Return the text of a file; if it is missing, or something else than text, the error says what there is."""
    if not path.exists():
        raise missing(path)
    content = read_file(path, most)
    refuse_other(content, path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    content: dict[str, Any] = _read_json(path, dict)
    return content


def read_list(path: Path) -> list[Any]:
    """Return the JSON array in a file."""
    content: list[Any] = _read_json(path, list)
    return content


def _read_json(path: Path, kind: type) -> Any:
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; expected a {kind.__name__}")
    return content
