"""Chat templates: the Jinja templates of a folder, which turn messages into a prompt as transformers does."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mp_core.models.folder import read_optional, read_text
from mp_core.models.settings import choices
from mp_core.utilities.extras import needed_by
from mp_core.utilities.system import is_present

__all__ = ["ChatTemplates", "Messages"]

Messages = Sequence[Mapping[str, Any]]
"""Messages: mappings with ``"role"`` and usually ``"content"``."""

_MOST = 1 << 18
"""The most characters of a template: ten times the longest known one."""
_REASONING = "reasoning_content", "thinking", "reasoning"
"""The fields for the reasoning of a model. Templates read the first one."""


class ChatTemplates:
    """The templates of a folder, by name; they are compiled at their first use.

    Parameters
    ----------
    folder : Path
    special : mapping of str to str
        Entry such as ``bos_token`` -> the special token. Templates may use these names.
    """

    def __init__(self, folder: Path, special: Mapping[str, str]) -> None:
        self._name, self._special = folder.name, special
        self._texts = _texts_of(folder)
        self._compiled: dict[str, Any] = {}

    def text(
        self, messages: Messages, template: str | None, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str:
        """Return messages as one text; see :meth:`Generator.apply_template`."""
        source = self._chosen(template, variables)
        given = {"tools": None, "documents": None, **self._special, **_plain(variables)}
        given |= {"messages": _checked(messages), "add_generation_prompt": add_generation_prompt}
        with needed_by("a chat template"):
            # It needs jinja2, which is checked here.
            from mp_core.models.generation import sandbox
        try:
            if source not in self._compiled:
                self._compiled = {source: sandbox.compiled(source)}
            return sandbox.rendered(self._compiled[source], given)
        except ValueError as error:
            raise ValueError(f"the chat template of {self._name}: {error}") from None

    def _chosen(self, template: str | None, variables: Mapping[str, Any]) -> str:
        """Return the text of a template: the one of that name, the given text itself, or the default."""
        if template is not None and not isinstance(template, str):
            raise TypeError(f"`template` must be a str or None; received {type(template).__name__}")
        if template is None and not self._texts:
            raise ValueError(f"{self._name} has no chat template: give `template`")
        default = "tool_use" if variables.get("tools") is not None and "tool_use" in self._texts else "default"
        if template is None and default not in self._texts:
            raise ValueError(f"`template` must be {choices(self._texts)}, the chat templates of {self._name}")
        found = self._texts.get(template or default, template) or ""
        if len(found) > _MOST:
            raise ValueError(f"a chat template of {len(found)} characters is too long; at most {_MOST} are allowed")
        return found


def _texts_of(folder: Path) -> dict[str, str]:
    """Return name -> template: those of files if there are any, else those of ``tokenizer_config.json``."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    found = {name: read_text(path, 4 * _MOST) for name, path in files.items() if is_present(path)}
    given = {} if found else read_optional(folder / "tokenizer_config.json").get("chat_template") or {}
    if isinstance(given, str):
        return {"default": given}
    try:
        listed = [(each["name"], each["template"]) for each in given] if isinstance(given, list) else [*given.items()]
    except (AttributeError, KeyError, TypeError):
        listed = [(None, None)]
    if not all(isinstance(word, str) for pair in listed for word in pair):
        expected = 'a string, or a list of objects with strings "name" and "template"'
        raise ValueError(f"{folder / 'tokenizer_config.json'}: chat_template is {str(given)[:80]}; expected {expected}")
    return found | dict(listed)


def _checked(messages: Messages) -> list[dict[str, Any]]:
    """Return a copy of messages made of plain values, as transformers does: without keys whose value is None."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(f"`messages` must be a list of mappings; received {type(messages).__name__}")
    if not messages:
        raise ValueError("`messages` must have at least one message")
    found = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"`messages[{place}]` must be a mapping; received {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ValueError(
                f'`messages[{place}]` must have a "role", which is a str; received {message.get("role")!r}'
            )
        plain = _plain({name: value for name, value in message.items() if value is not None})
        thought = next((plain[name] for name in _REASONING if name in plain), None)
        found.append(plain if thought is None else {"thinking": thought, **plain, _REASONING[0]: thought})
    return found


_PLAIN: Mapping[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
"""Type -> the function that returns a value of a subclass, such as an enumeration, as one of the type."""


def _plain(value: Any) -> Any:
    """Return a copy of a value of JSON's types; other objects have methods that the sandbox does not know."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind, as_plain in _PLAIN.items():
        if isinstance(value, kind):
            return as_plain(value)
    raise TypeError(f"messages and variables must have values of JSON's types; received {type(value).__name__}")
