"""Build the tokenizer of a folder, as ``AutoTokenizer`` of transformers 5 does."""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.header import MAX_JSON
from mp_core.models.folder import parse_json, read_optional, read_text
from mp_core.models.gguf_settings import derived
from mp_core.models.modules import token_limit
from mp_core.models.rules import check
from mp_core.models.settings import unexpected
from mp_core.models.tokenizer_classes import FROM_FILE, RECIPES, REFUSED, Options, Recipe, class_named
from mp_core.models.tokenizer_keys import FILES, check_config
from mp_core.models.tokenizer_steps import check_steps
from mp_core.models.tokenizer_tokens import SpecialTokens, text_of, tokens_of
from mp_core.utilities.extras import needed_by
from mp_core.utilities.system import is_present

__all__ = ["OpenedTokenizer", "layouts", "open_plain", "open_tokenizer", "refusing"]

# Files of other tokenizers, which transformers converts to tokenizer.json.
_OTHERS = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class OpenedTokenizer:
    """A tokenizer of the tokenizers package, and its other settings."""

    tokenizer: Any  # The tokenizer, without padding and truncation.
    max_length: int | None = None  # The most tokens of a text, if a file limits them.
    left: bool = False  # Whether texts are truncated at their start.
    typed: bool = False  # Whether token types are passed to the network.
    named: Mapping[str, str] = field(default_factory=dict)  # Entry such as ``mask_token`` -> the special token.
    # The first index without an embedding in the network, if special tokens that no file names have such indices.
    beyond: int | None = None


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Convert errors of the tokenizers package to ValueError, with `what` before the message."""
    try:
        yield
    except BaseException as error:  # the package raises plain Exception; a panic is not even an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what}: {error}") from error


_MOST_PARTS = 1 << 22
"""The most values in a tokenizer.json: four times the largest known one, Gemma's. They take some 500 MB."""


def open_plain(path: Path, vocab_size: int) -> OpenedTokenizer:
    """Return the tokenizer of static embeddings, with all settings from ``tokenizer.json``, also its truncation."""
    content = _read(path)
    tokenizer = _build(path, content)
    _check_vocabulary(path, content, tokenizer, vocab_size)
    cut = content.get("truncation")
    limit = token_limit(path, cut, "max_length") if isinstance(cut, dict) else None
    return OpenedTokenizer(tokenizer, limit, _is_left("truncation", {}, content))


def open_tokenizer(folder: Path, config: Mapping[str, Any], vocab_size: int, pads_left: bool) -> OpenedTokenizer:
    """Return the tokenizer of a network's folder, which has embeddings of `vocab_size` tokens.

    `pads_left` says whether left padding is allowed, because it would change nothing. Raise OSError or ValueError if a
    file is missing or not as expected, or the class is refused, and ImportError without the tokenizers package.
    """
    at, path = folder / "tokenizer_config.json", folder / "tokenizer.json"
    settings = read_optional(at)
    check_config(at, settings)
    name, is_named = _class_of(settings, config, path)
    if name in REFUSED:
        raise ValueError(f"{at}: tokenizer_class is {name!r}, which {REFUSED[name]}")
    content = _read(path)
    recipe = RECIPES.get(name, FROM_FILE)
    model = content.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    used = recipe
    if recipe.model not in (None, kind):
        if is_named:
            raise unexpected(path, "the type of its model", kind, f"{recipe.model!r}, of which {name} is made")
        used = FROM_FILE  # no file names the class
    tokens = tokens_of(folder, settings, content, used)
    options = _class_settings(settings, used, tokens, content)
    tokenizer = _build(path, content, used, options)
    with refusing(f"{path} and {at.name} do not make a tokenizer"):
        tokenizer.add_tokens(tokens.to_add(tokenizer))
        if name == "Qwen2Tokenizer" and used is recipe:
            tokenizer.add_tokens(tokens.without_flags())
        tokenizer.encode_special_tokens = settings.get("split_special_tokens", False)
        _set_ends(tokenizer, used, options)
    beyond = _check_vocabulary(path, content, tokenizer, vocab_size, tokens.implied)
    _check_flags(at, settings, tokenizer, tokens)
    if _is_left("padding", settings, content, recipe.left) and not pads_left:
        where, entry = (at, "padding_side") if "padding_side" in settings else (path, "padding.direction")
        raise unexpected(where, entry, "left", "'right'")
    names = settings.get("model_input_names")
    return OpenedTokenizer(
        tokenizer,
        _limit(at, settings),
        _is_left("truncation", settings, content),
        recipe.typed if names is None else "token_type_ids" in names,
        {entry: str(token) for entry, token in tokens.named.items() if token is not None},
        beyond,
    )


def _class_of(settings: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> tuple[str, bool]:
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    code = settings.get("auto_map")
    has_code = isinstance(code, list) or (isinstance(code, dict) and code.get("AutoTokenizer") is not None)
    named = named if isinstance(named, str) else None
    is_llama = named is not None and named.removesuffix("Fast") == "LlamaTokenizer"
    in_bytes = is_llama and is_present(path) and '"ByteLevel"' in read_text(path, MAX_JSON)
    return class_named(named, config.get("model_type"), in_bytes, has_code)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of ``tokenizer.json``, checked before the tokenizers package reads it."""
    with needed_by("a sentence encoder"):
        import_module("tokenizers")
    words = next((other for other in map(path.with_name, _OTHERS) if is_present(other)), None)
    if words is not None and not is_present(path):
        how = "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder) makes it"
        needs = ", with the packages sentencepiece and protobuf" if words.suffix == ".model" else ""
        raise FileNotFoundError(f"{path} is missing; the folder has {words.name}, from which {how}{needs}")
    content: dict[str, Any] | None = derived(path)
    if content is None:
        content = dict(parse_json(read_text(path, MAX_JSON), path, dict, _MOST_PARTS))
    check_steps(path, content)
    parts = {name: content.get(name) for name in ("model", "truncation", "padding")}
    check(path, parts, dict.fromkeys(parts, (lambda part: part is None or isinstance(part, dict), "an object or null")))
    settings = {f"{part}.{name}": value for part, entries in parts.items() for name, value in (entries or {}).items()}
    rules = {name: row.rule for name, row in FILES[path.name].items() if "." in name}
    check(path, {name: value for name, value in settings.items() if name in rules}, rules)
    return content


def _build(path: Path, content: Mapping[str, Any], recipe: Recipe = FROM_FILE, options: Options | None = None) -> Any:
    """Return the tokenizer of a file, or of a class with the file's vocabulary, without padding and truncation."""
    from tokenizers import Tokenizer

    given = dict(content) | {"padding": None, "truncation": None}
    with refusing(f"{path} is not a valid tokenizer"):
        if recipe.parts is not None and options is not None:
            model, normalizer, cuts = recipe.parts(options)
            kept = {name: content["model"].get(name) for name in ("vocab", "merges") if name in content["model"]}
            given |= {"normalizer": normalizer, "pre_tokenizer": cuts, "added_tokens": [], "model": model | kept}
        return Tokenizer.from_str(json.dumps(given, ensure_ascii=False))


def _class_settings(
    settings: Mapping[str, Any], recipe: Recipe, tokens: SpecialTokens, content: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a class: those of ``tokenizer_config.json``, else its defaults."""
    options = {name: settings.get(name, default) for name, default in recipe.settings.items()}
    named = {entry: None if token is None else text_of(token) for entry, token in tokens.named.items()}
    return {**options, **named, "_file": content}


def _set_ends(tokenizer: Any, recipe: Recipe, options: Options) -> None:
    """Set the post-processor of the tokenizer's class, or one that adds nothing if there is none at all."""
    from tokenizers.processors import TemplateProcessing

    unknown = options["unk_token"]

    def index(word: str, otherwise: int | None) -> int:
        places = (tokenizer.token_to_id(name) for name in (word, unknown) if name is not None)
        found: int | None = next((place for place in places if place is not None), otherwise)
        if found is None:
            raise ValueError(f"the vocabulary has no token {word!r}")
        return found

    if recipe.ends is not None and (recipe.wins or tokenizer.post_processor is None):
        tokenizer.post_processor = recipe.ends(options, index)
    elif tokenizer.post_processor is None:
        tokenizer.post_processor = TemplateProcessing("$A:0", "$A:0 $B:1", [])


def _check_vocabulary(
    path: Path, content: Mapping[str, Any], tokenizer: Any, size: int, implied: Collection[str] = ()
) -> int | None:
    """Raise ValueError for a token without an embedding in the network, or one that takes unbounded memory.

    Tokens that no file names (`implied`) are allowed as long as no text contains them: return `size` if any exist.
    """
    _check_added(path, tokenizer)
    words = content["model"]["vocab"]  # a dict to indices, or a list; the package would copy it
    largest = max(words.values(), default=0) if isinstance(words, dict) else len(words) - 1
    beyond = {}
    if max([largest, *tokenizer.get_added_tokens_decoder()]) >= size:
        beyond = {word: index for word, index in tokenizer.get_vocab().items() if index >= size}
    with refusing(f"{path} is not a valid tokenizer"):
        around = tokenizer.encode("").ids
    last = max([*(index for word, index in beyond.items() if word not in implied), *around], default=0)
    if last >= size:
        raise ValueError(f"{path} has a token {last}; expected tokens below vocab_size, {size}")
    return size if beyond else None


def _check_added(path: Path, tokenizer: Any) -> None:
    """Raise ValueError for too many special tokens of a text, or an added token that normalizes to the empty text.

    The package would find such a token at every position.
    """
    for texts, is_pair in (("text", False), ("pair", True)):
        special = tokenizer.num_special_tokens_to_add(is_pair=is_pair)
        if special > _MOST_SPECIAL:
            raise unexpected(path, f"the number of special tokens of a {texts}", special, f"at most {_MOST_SPECIAL}")
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.normalized and tokenizer.normalizer and not tokenizer.normalizer.normalize_str(token.content):
            raise ValueError(f"{path}: the added token {token.content!r} is empty after its normalization")


_MOST_SPECIAL = 1 << 16
"""The most special tokens of a text: networks have far fewer positions."""


def _check_flags(path: Path, settings: Mapping[str, Any], tokenizer: Any, tokens: SpecialTokens) -> None:
    """Raise ValueError if ``add_bos_token`` or ``add_eos_token`` contradict the post-processor.

    transformers 5 follows the post-processor. transformers 4, with which most of these models were trained, follows the
    two entries in the classes of :data:`_OBEYED`.
    """
    layout = next(layouts(tokenizer, False), None)
    if layout is None:
        return
    texts = [place for place, (sequence, *_) in enumerate(layout) if sequence is not None]
    obeyed = str(settings.get("tokenizer_class")).removesuffix("Fast") in _OBEYED
    for side, part, end in (("bos", layout[: texts[0]], 0), ("eos", layout[texts[-1] + 1 :], -1)):
        flag, token = settings.get(f"add_{side}_token"), tokens.named[f"{side}_token"]
        ids = [index for *_, found in part for index in found]
        is_added = bool(ids) and token is not None and ids[end] == tokenizer.token_to_id(text_of(token))
        if (flag is True and token and not ids) or (flag is False and obeyed and is_added):
            what = "none" if flag else f"{text_of(token)!r}"
            raise ValueError(
                f"{path}: add_{side}_token is {flag}, but the post_processor of tokenizer.json adds {what}: "
                "transformers 4 obeys the former, transformers 5 the latter. Which one the model was trained with "
                f"decides: delete add_{side}_token to go by tokenizer.json, or change that file"
            )


_OBEYED = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer", "CohereTokenizer")


def layouts(tokenizer: Any, is_pair: bool) -> Iterator[list[tuple[int | None, int, list[int]]]]:
    """Yield the layout of a text or pair as a list of parts: (0 or 1 for a text, else None; token type; indices).

    Each yielded list comes from another probe word. Nothing is yielded if the tokenizer has no token for any of them.
    """
    words = (word for word in map(tokenizer.id_to_token, range(100)) if word and len(word) <= _LONGEST_TRIED)
    for word in itertools.chain(["a"], words):
        try:
            with refusing("no text"):
                encoding = tokenizer.encode(word, word if is_pair else None)
        except ValueError:  # the tokenizer has no token for the word
            continue
        tokens = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
        parts = [(*part, [id for *_, id in run]) for part, run in itertools.groupby(tokens, itemgetter(0, 1))]
        if [place for place, *_ in parts if place is not None] == list(range(1 + is_pair)):
            yield parts


_LONGEST_TRIED = 64  # characters of a probe word: a limit bounds the time that a pattern takes


def _limit(path: Path, settings: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a text by ``tokenizer_config.json``; None if it sets no limit."""
    return token_limit(path, settings, "model_max_length" if "model_max_length" in settings else "max_len")


def _is_left(entry: str, settings: Mapping[str, Any], content: Mapping[str, Any], default: bool = False) -> bool:
    """Return whether truncation or padding (`entry`) is on the left, by tokenizer_config.json, else tokenizer.json."""
    side = settings.get(f"{entry}_side")
    other = content.get(entry)
    if side is None and isinstance(other, dict) and "direction" in other:
        side = str(other["direction"]).lower()
    return default if side is None else side == "left"
