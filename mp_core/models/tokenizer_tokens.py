"""The special tokens of a folder, and the tokens that its files add to the vocabulary."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mp_core.models.folder import read_optional
from mp_core.models.rules import check
from mp_core.models.settings import KINDS, Count, unexpected
from mp_core.models.tokenizer_classes import Recipe
from mp_core.models.tokenizer_keys import FLAGS, NAMES, check_map, is_added, is_token

__all__ = ["SpecialTokens", "text_of", "tokens_of"]

_LISTS = _EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"


@dataclass(slots=True)
class SpecialTokens:
    """The special tokens of a folder, and the tokens that its files add to the vocabulary."""

    # Entry such as ``mask_token`` -> a string, an ``AddedToken`` or None.
    named: dict[str, Any] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)  # Further special tokens.
    # The added tokens that files list. The indices determine their order, not their final indices.
    added: dict[int, Any] = field(default_factory=dict)
    # The special tokens that come from the defaults of the class instead of a file.
    implied: set[str] = field(default_factory=set)

    def to_add(self, tokenizer: Any) -> list[Any]:
        """Return the tokens to add to a tokenizer, like ``TokenizersBackend``."""
        from tokenizers import AddedToken

        found = [token for _, token in sorted(self.added.items(), key=lambda item: item[0])]
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | set(map(text_of, found))
        for token in filter(None, (*self.named.values(), *self.extra)):
            if text_of(token) not in known and token not in found:
                found.append(token)
        names = {text_of(token) for token in self.named.values() if token}
        found = [AddedToken(token, special=True) if isinstance(token, str) else token for token in found]
        for token in found:
            token.special = token.special or token.content in names
        return found

    def without_flags(self) -> list[Any]:
        """Return all special tokens without their flags: Qwen2Tokenizer adds them again in this form."""
        from tokenizers import AddedToken

        words = dict.fromkeys(text_of(token) for token in (*self.named.values(), *self.extra) if token)
        return [AddedToken(word, special=True) for word in words]


def tokens_of(folder: Path, config: Mapping[str, Any], content: Mapping[str, Any], recipe: Recipe) -> SpecialTokens:
    """Read the tokens of a folder; `config` and `content` are ``tokenizer_config.json`` and ``tokenizer.json``."""
    found = SpecialTokens()
    given = {
        entry: _token(value) for entry, value in config.items() if entry.endswith("_token") and _is_named(entry, value)
    }
    lists = {entry: config[entry] for entry in _LISTS if entry in config}
    if _ADDITIONAL in lists and not lists.get(_EXTRA):
        lists[_EXTRA] = lists.pop(_ADDITIONAL)
    by_name: dict[str, Any] = dict(config.get("model_specific_special_tokens") or {})
    by_name |= _pop_named(lists)
    if "added_tokens_decoder" in config:
        found.added = {int(index): _added(token) for index, token in config["added_tokens_decoder"].items()}
    else:
        words = {entry: value for entry, value in config.items() if entry in NAMES and isinstance(value, str)}
        words |= _merge_map(folder / "special_tokens_map.json", given, lists)
        by_name |= _pop_named(lists)
        special = {*words.values(), *(text_of(_token(token)) for token in lists.get(_EXTRA) or ())}
        found.added = _from_added_tokens(folder / "added_tokens.json", special) | _from_tokenizer(
            folder / "tokenizer.json", content
        )
    if recipe.extra is not None:
        lists[_ADDITIONAL] = recipe.extra({**recipe.settings, **config}, lists.get(_ADDITIONAL))
    extra = lists.get(_EXTRA, lists.get(_ADDITIONAL))
    found.extra = [_token(token) for token in extra or ()]
    _set_named(found, given, content, recipe)
    found.named |= {entry: _token(token) for entry, token in by_name.items()}
    return found


def _pop_named(lists: dict[str, Any]) -> dict[str, Any]:
    """Remove the special tokens that are given as an object, by name, from `lists`, and return them."""
    found: dict[str, Any] = lists.pop(_EXTRA) if isinstance(lists.get(_EXTRA), dict) else {}
    return found


def _is_named(entry: str, value: Any) -> bool:
    """Return whether an entry gives a special token, or null for a standard one."""
    return is_token(value) or (entry in NAMES and value is None)


def _set_named(found: SpecialTokens, given: dict[str, Any], content: Mapping[str, Any], recipe: Recipe) -> None:
    """Set ``found.named``: tokens of the files, else defaults of the class, with the flags of the added tokens."""
    from tokenizers import AddedToken

    known = {token.content: token for token in found.added.values()}
    given = {
        entry: known.get(text_of(token), token) if entry in NAMES and token else token for entry, token in given.items()
    }
    padding = content.get("padding")
    if isinstance(padding, dict) and "pad_token" not in given and "pad_token" not in recipe.tokens:
        given["pad_token"] = padding.get("pad_token")
    found.named = {entry: given.get(entry, recipe.tokens.get(entry)) for entry in NAMES}
    found.implied = {text_of(token) for entry, token in found.named.items() if token and entry not in given}
    mask = found.named["mask_token"]
    if recipe.mask_takes_space and isinstance(mask, str):
        found.named["mask_token"] = AddedToken(mask, lstrip=True, special=True)
    found.named |= {entry: token for entry, token in given.items() if entry not in NAMES}


def _merge_map(path: Path, given: dict[str, Any], lists: dict[str, Any]) -> dict[str, str]:
    """Add ``special_tokens_map.json``, if it exists, to `given` and `lists`; return its standard tokens as text."""
    mapped = read_optional(path)
    check_map(path, mapped)
    words: dict[str, str] = {}
    for entry, value in mapped.items():
        if entry.endswith("_token"):
            given[entry] = None if value is None else _special(value)
            words |= {entry: text_of(given[entry] or "")} if entry in NAMES else {}
        elif entry == _EXTRA and isinstance(value, list):
            lists[entry] = [*(lists.get(entry) or ())]
            lists[entry] += [token for token in map(_special, value) if token not in lists[entry]]
        elif isinstance(value, dict):
            lists[entry] = {name: _special(token) for name, token in value.items()}
        else:
            lists[entry] = value
    return words


def _token(value: Any) -> Any:
    """Return a token for the tokenizers package: a string unchanged, an object as an ``AddedToken``."""
    return _added(value) if isinstance(value, dict) else value


def _added(value: Mapping[str, Any], **flags: bool) -> Any:
    from tokenizers import AddedToken

    given = {flag: value[flag] for flag in FLAGS if isinstance(value.get(flag), bool)}
    return AddedToken(value["content"], **given | flags)


def _special(value: Any) -> Any:
    """Return a token of ``special_tokens_map.json``, in which objects are special tokens."""
    return _added(value, special=True) if isinstance(value, dict) else value


def text_of(token: Any) -> str:
    """Return the text of a token."""
    return token if isinstance(token, str) else str(token.content)


def _from_added_tokens(path: Path, special: Collection[str]) -> dict[int, Any]:
    """Return index -> token of ``added_tokens.json``; an empty dict without this file."""
    from tokenizers import AddedToken

    words = read_optional(path)
    check(path, words, dict.fromkeys(words, KINDS[Count]))
    return {
        index: AddedToken(word, normalized=word not in special, special=word in special)
        for word, index in words.items()
    }


def _from_tokenizer(path: Path, content: Mapping[str, Any]) -> dict[int, Any]:
    """Return index -> added token of ``tokenizer.json``."""
    listed = content.get("added_tokens") or []
    if not isinstance(listed, list) or not all(map(is_added, listed)):
        raise unexpected(path, "added_tokens", listed, "a list of objects, each with the content and id of a token")
    return {token["id"]: _added(token) for token in listed}
