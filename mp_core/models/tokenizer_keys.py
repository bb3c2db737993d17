"""All entries of a tokenizer's files that transformers 5 reads, and how mp_core treats each of them.

docs/models.md shows these tables, and a test compares them with the sources of transformers. An entry of
``tokenizer_config.json`` that is in no table is ignored, as in transformers, with a warning that names it.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mp_core.models.rules import ANY, SWITCH, TEXT, Rule, check, only
from mp_core.models.settings import KINDS, Count
from mp_core.utilities.numerals import integer_of

__all__ = ["FILES", "FLAGS", "NAMES", "Row", "check_config", "check_map", "is_added", "is_token"]

FOLLOWED, REFUSED, NO_EFFECT = "followed", "refused", "without effect"


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a file: how it is treated, and the rule for its values."""

    effect: str
    rule: Rule = ANY


NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The entries of the named special tokens."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""The flags of an added token."""


def is_token(value: Any) -> bool:
    """Return whether a value is a token of ``tokenizer_config.json``: a string, or an object with its content."""
    return isinstance(value, str) or (
        isinstance(value, dict)
        and value.get("__type") == "AddedToken"
        and isinstance(value.get("content"), str)
        and all(isinstance(value.get(flag, False), bool) for flag in FLAGS)
    )


_SIDE, _UNSET = only("right", "left"), only(None)
_MAYBE: Rule = (lambda value: value is None or isinstance(value, bool), "true, false or null")


def is_added(value: Any) -> bool:
    """Return whether a value is an added token of ``tokenizer.json``."""
    return _is_object(value) and type(value.get("id")) is int


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and is_token({**value, "__type": "AddedToken"})


def _is_mapped(value: Any) -> bool:
    """Return whether a value is a token of ``special_tokens_map.json``, whose objects have no ``__type``."""
    return isinstance(value, str) or _is_object(value)


def _are_decoded(value: Any) -> bool:
    is_index = partial(integer_of, least=0, most=2**31 - 1)
    return isinstance(value, dict) and None not in map(is_index, value) and all(map(_is_object, value.values()))


def _all_of(is_one: Callable[[Any], bool], *kinds: type) -> Callable[[Any], bool]:
    """Return the test for null, or a collection of one of `kinds` whose values all pass `is_one`."""

    def fits(value: Any) -> bool:
        parts = value.values() if isinstance(value, dict) else value
        return value is None or (isinstance(value, kinds) and all(map(is_one, parts)))

    return fits


_TOKEN: Rule = (lambda value: value is None or is_token(value), "a token or null")
_LIST: Rule = (_all_of(is_token, list), "a list of tokens or null")
_TOKENS: Rule = (_all_of(is_token, list, dict), "a list or an object of tokens, or null")
_NAMED: Rule = (_all_of(is_token, dict), "an object of tokens or null")
_MAPPED_TOKEN: Rule = (lambda value: value is None or _is_mapped(value), "a token or null")
_MAPPED: Rule = (_all_of(_is_mapped, list, dict), "a list or an object of tokens, or null")


def _rows(effect: str, rule: Rule, *names: str) -> dict[str, Row]:
    return dict.fromkeys(names, Row(effect, rule))


_CONFIG = {
    **_rows(FOLLOWED, _TOKEN, *NAMES),
    **_rows(FOLLOWED, _TOKENS, "additional_special_tokens", "extra_special_tokens"),
    **_rows(FOLLOWED, _NAMED, "model_specific_special_tokens"),
    "added_tokens_decoder": Row(FOLLOWED, (_are_decoded, "an object of indices and objects of tokens")),
    **_rows(FOLLOWED, ANY, "model_max_length", "max_len"),  # :func:`token_limit` checks them
    "model_input_names": Row(FOLLOWED, (lambda value: value is None or isinstance(value, list), "a list or null")),
    "truncation_side": Row(FOLLOWED, _SIDE),
    "padding_side": Row(FOLLOWED, _SIDE),  # "left" only if padding changes nothing in the network
    "tokenizer_class": Row(FOLLOWED, (lambda value: value is None or isinstance(value, str), "a string or null")),
    **_rows(FOLLOWED, SWITCH, "split_special_tokens", "do_lower_case", "tokenize_chinese_chars", "keep_accents"),
    **_rows(FOLLOWED, SWITCH, "split_by_punct", "trim_offsets", "legacy"),
    **_rows(FOLLOWED, _MAYBE, "add_prefix_space", "strip_accents"),
    "unk_id": Row(FOLLOWED, KINDS[Count]),
    "extra_ids": Row(FOLLOWED, (lambda value: type(value) is int and 0 <= value <= 4096, "an integer from 0 to 4096")),
    # transformers 4 follows these entries, transformers 5 the post-processor: refused if the two differ.
    **_rows(REFUSED, _MAYBE, "add_bos_token", "add_eos_token"),
    "fix_mistral_regex": Row(REFUSED, only(None, False)),
    **_rows(REFUSED, only(None, []), "init_inputs"),
    **_rows(
        REFUSED,
        _UNSET,
        *("fast_tokenizer_files", "tokenizer_object", "tokenizer_padding", "tokenizer_truncation", "post_processor"),
        *("gguf_file", "vocab", "merges", "_spm_precompiled_charsmap", "_json_truncation", "_json_padding"),
    ),
    **_rows(
        NO_EFFECT,
        ANY,
        "auto_map",  # no code of a folder is run
        *("chat_template", "response_template", "response_schema", "chat_control_tokens"),
        *("clean_up_tokenization_spaces", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
        *("spaces_between_special_tokens", "errors", "use_default_system_prompt", "max_length", "stride"),
        *("truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "processor_class", "name_or_path"),
        *("verbose", "backend", "files_loaded", "is_local", "local_files_only", "vocab_file", "merges_file"),
        *("tokenizer_file", "special_tokens_map_file", "added_tokens_file", "full_tokenizer_file", "_commit_hash"),
        *("do_basic_tokenize", "never_split", "remove_space", "sp_model_kwargs", "vocab_type", "from_slow"),
        *("use_fast", "trust_remote_code", "transformers_version", "tokenizer_type", "device_map", "use_auth_token"),
        *("do_word_tokenize", "do_subword_tokenize", "word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs"),
        *("spm_file", "tokenizer", "unk_index", "added_tokens"),
    ),
}
_MAP = {
    **_rows(FOLLOWED, _MAPPED_TOKEN, *NAMES),
    "additional_special_tokens": Row(FOLLOWED, _LIST),
    "extra_special_tokens": Row(FOLLOWED, _MAPPED),
}
_TOKENIZER = {
    **_rows(FOLLOWED, ANY, "version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model"),
    **_rows(FOLLOWED, only("Left", "Right"), "truncation.direction", "padding.direction"),
    "padding.pad_token": Row(FOLLOWED, TEXT),
    **_rows(NO_EFFECT, ANY, "truncation.max_length", "truncation.strategy", "truncation.stride"),
    **_rows(NO_EFFECT, ANY, "padding.strategy", "padding.pad_to_multiple_of", "padding.pad_id"),
    **_rows(NO_EFFECT, ANY, "padding.pad_type_id", "decoder"),
    # These settings split words at random.
    **_rows(REFUSED, only(None, 0), "model.dropout"),
    **_rows(REFUSED, only(None), "model.alpha", "model.nbest_size"),
}
FILES: dict[str, dict[str, Row]] = {
    "tokenizer_config.json": _CONFIG,
    "tokenizer.json": _TOKENIZER,
    "special_tokens_map.json": _MAP,
    "added_tokens.json": {"TOKEN": Row(FOLLOWED)},
}
"""File -> entry -> how it is treated. In ``added_tokens.json`` every entry is a token and its index."""


def check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError for a refused entry of ``tokenizer_config.json``; warn of an unknown one."""
    known = {name: value for name, value in config.items() if name in _CONFIG}
    check(path, known, {name: row.rule for name, row in _CONFIG.items()})
    for name, value in config.items():
        if name not in known and not (name.endswith("_token") and is_token(value)):
            warnings.warn(f"{path}: {name!r} is unknown, and ignored as in transformers", stacklevel=2)


def check_map(path: Path, tokens: Mapping[str, Any]) -> None:
    """Raise ValueError for an entry of ``special_tokens_map.json`` that is not a special token."""
    rules = {name: row.rule for name, row in _MAP.items()}
    check(path, tokens, rules | {name: _MAPPED_TOKEN for name in tokens if name.endswith("_token")})
