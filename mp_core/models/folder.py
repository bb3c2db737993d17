"""Read the JSON files of a model folder, or those that a GGUF file stands for. Every error names the file."""

import json
import re
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.folder import missing
from mp_core.files.checkpoint.header import refuse_other
from mp_core.files.checkpoint.reading import read_file
from mp_core.models.gguf_settings import derived, is_derived
from mp_core.utilities.system import is_present

__all__ = ["parse_json", "read_list", "read_object", "read_optional", "read_text"]

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped surrogate: half a character, which tokenizers reject
_MOST_PARTS = 1 << 20  # values in a settings file: ten times the largest known one
_MOST = 1 << 24  # bytes of a settings file: some hundred times the largest known one


def read_text(path: Path, most: int = _MOST) -> str:
    """Return the text of a file; errors for a missing file, or one that is not text, say what was found."""
    if not is_present(path):
        raise missing(path)
    content = read_file(path, most)
    refuse_other(content, path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    content: dict[str, Any] | None = derived(path)
    return _read_json(path, dict) if content is None else content


def read_optional(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty dict if the file does not exist."""
    return read_object(path) if is_derived(path) or is_present(path) else {}


def read_list(path: Path) -> list[Any]:
    """Return the JSON array in a file."""
    content: list[Any] = _read_json(path, list)
    return content


def _read_json(path: Path, kind: type) -> Any:
    return parse_json(read_text(path), path, kind)


def parse_json(text: str, path: Path, kind: type, most: int = _MOST_PARTS) -> Any:
    """Parse the text of a JSON file as an object or array (`kind`) of at most `most` values.

    The limit is there because a parsed value may take a hundred times the memory of its text.
    """
    count = sum(map(text.count, ",[{"))
    if count > most:
        raise ValueError(f"{path} has some {count} values; expected at most {most}")
    try:
        content = json.loads(text)
        if _HALF.search(text):
            json.dumps(content, ensure_ascii=False).encode()  # raises if a surrogate has no other half
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; expected a {kind.__name__}")
    return content
