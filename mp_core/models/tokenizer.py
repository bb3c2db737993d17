"""Texts to tokens, by the tokenizer of a folder, at a cost that long texts do not drive up."""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.checkpoint.header import MAX_JSON
from mp_core.core.cpu import get_num_threads
from mp_core.models.folder import read_object, read_text
from mp_core.models.modules import Modules, token_limit
from mp_core.models.rules import SWITCH, Rule, check, only
from mp_core.models.settings import unexpected
from mp_core.utilities.extras import needed_by

__all__ = ["Tokenizer"]

_AT_ONCE = 1024
# Characters per unit that counts. Texts of fewer are not shortened: that would cost more than it saves.
_SHORT = 8

# Files of other tokenizers, of which transformers makes tokenizer.json.
_OTHERS = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.json")

# The classes of transformers that take the settings of their normalizer from tokenizer_config.json.
_BERT_CLASSES = (None, *(f"{name}Tokenizer{fast}" for name in ("Bert", "DistilBert", "MPNet") for fast in ("", "Fast")))

# Those of them that tell a network the types of tokens, unless tokenizer_config.json says what tokenizers tell it.
_TYPED = (None, "BertTokenizer", "BertTokenizerFast")

# The entries of tokenizer_config.json that matter, except the length limit, and the values they may have.
_RULES: dict[str, Rule] = {
    "truncation_side": only("right"),
    "model_input_names": (lambda value: value is None or isinstance(value, list), "a list or null"),
    "do_lower_case": SWITCH,
    "tokenize_chinese_chars": SWITCH,
    "strip_accents": (lambda value: value is None or isinstance(value, bool), "true, false or null"),
}

# The characters at which BERT's tokenizers always cut: ASCII white space and punctuation, and ideographs.
_GAP = r" \t\n\r"
_SIGN = r"!-/:-@\[-`{-~"
_IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff"

# Digits and letters that no character beside them joins, and the end of a word of them.
_LETTERS = (
    "0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03f5\u03f7-\u03ff\u0400-\u0481\u048a-\u04ff"
)
_WORD_END = re.compile(f"(?:^|[\x00-\x7f{_LETTERS}])[{_LETTERS}](?= )")

# What leaves words between ASCII spaces words, and what cuts at such spaces: types of tokenizers' parts.
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled", "Strip"}
_ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
_PRE_TOKENIZERS = {"ByteLevel", "WhitespaceSplit", "Whitespace", "Metaspace"}


class Tokenizer:
    """A tokenizer that cuts texts at `max_length` tokens.

    Parameters
    ----------
    modules : Modules
        What the folder says.

    Attributes
    ----------
    max_length : int
        The most tokens a text may have, special tokens included.
    types : int
        How many types the tokens of a pair have.

    Raises
    ------
    OSError
        A file is missing or unreadable.
    ValueError
        A file holds something else than expected.
    ImportError
        The tokenizers package is missing.
    """

    def __init__(self, modules: Modules) -> None:
        config_path = modules.network / "tokenizer_config.json"
        config = read_object(config_path) if config_path.exists() else {}
        self._config = config
        sides = only("right", "left") if modules.settings.is_relative else only("right")  # there is no padding here
        rules = _RULES | {"padding_side": sides}
        check(config_path, {name: config[name] for name in rules if name in config}, rules)
        stated = modules.max_length or token_limit(config_path, config, "model_max_length")
        longest = modules.settings.max_length
        self.max_length = min(stated or longest, longest)
        path = modules.network / "tokenizer.json"
        self._tokenizer = _read(path, modules.settings.vocab_size)
        _mark(self._tokenizer, modules.markers)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if special > self.max_length:  # the package would cut nothing
            limit = "max_position_embeddings" if self.max_length == longest else "max_seq_length or model_max_length"
            expected = f"at most {self.max_length}, what {limit} leaves to a text"
            raise unexpected(path, "the number of special tokens of a text", special, expected)
        self._special = modules.special_tokens
        _set_normalizer(self._tokenizer, config, modules.lower_case)
        names = config.get("model_input_names")
        typed = config.get("tokenizer_class") in _TYPED if names is None else "token_type_ids" in names
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._frame = _frame(self._tokenizer, typed)
        self.types = 1 + max((kind for _, _, kind in self._frame), default=0)
        self._tokenizer.enable_truncation(self.max_length)
        self._shorten = _shortening(self._tokenizer, self.max_length)

    def special(self, entry: str) -> str | None:
        """Return the token that ``tokenizer_config.json`` names under an entry, such as ``mask_token``."""
        word = self._config.get(entry)
        word = word.get("content") if isinstance(word, dict) else word
        return word if isinstance(word, str) else None

    def index_of(self, token: str) -> int | None:
        """Return the index of a token of the vocabulary; None if it has none of this name."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def __call__(self, texts: Sequence[str], special: bool = True) -> tuple[list[Array], list[int]]:
        """Return the vocabulary indices of each text, and which texts were cut; maybe without special tokens."""
        rows: list[Array] = []
        cut: list[int] = []
        for encoding in self._encoded(texts, special and self._special):
            if encoding.overflowing:
                cut.append(len(rows))
            rows.append(np.array(encoding.ids, np.int32))
        return rows, cut

    def located(self, texts: Sequence[str]) -> tuple[list[Array], list[list[tuple[int, tuple[int, int]]]]]:
        """Return the vocabulary indices of each text, and of each token but special ones its number and characters."""
        with _refusing("the model's tokenizer cannot take a text"):
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=self._special)
        rows, places = [], []
        for encoding in encodings:
            rows.append(np.array(encoding.ids, np.int32))
            special = encoding.special_tokens_mask
            places.append([(token, place) for token, place in enumerate(encoding.offsets) if not special[token]])
        return rows, places

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[Array], list[Array], list[int]]:
        """Return the vocabulary indices of each pair of texts, the types of its tokens, and which pairs were cut.

        Types are 0 where the tokenizer's class, or its configuration, tells a network none. A pair that is too long
        loses tokens at the end of the longer text, or if both are, of both.

        Raises
        ------
        ValueError
            `max_length` is no more than the special tokens of a pair, or the tokenizer cannot take a text.
        """
        special = sum(len(ids) for place, ids, _ in self._frame if place is None)
        room = self.max_length - special
        if not self._frame or room < 1:
            expected = f"room for {special} special tokens and a text" if self._frame else "a tokenizer that joins two"
            raise ValueError(f"pairs of texts need {expected}; texts are cut at max_length={self.max_length}")
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        tokens, lengths = {}, {}
        for text, encoding in zip(texts, self._encoded(texts, special=False), strict=True):
            tokens[text], lengths[text] = np.array(encoding.ids, np.int32), _length(encoding)
        rows: list[Array] = []
        types: list[Array] = []
        cut: list[int] = []
        for pair in pairs:
            n, m = (lengths[text] for text in pair)
            if room % 2 and min(n, m) > room and any(self._shorten(text) != text for text in pair):
                n, m = (_length(self._encode([text], special=False)[0]) for text in pair)
            if n + m > room:
                cut.append(len(rows))
            kept = [tokens[text][:count] for text, count in zip(pair, _longest_first(n, m, room), strict=True)]
            parts = [ids if place is None else kept[place] for place, ids, _ in self._frame]
            rows.append(np.concatenate(parts))
            kinds = [kind for _, _, kind in self._frame]
            types.append(np.concatenate([np.full(len(part), kind) for part, kind in zip(parts, kinds, strict=True)]))
        return rows, types, cut

    def _encoded(self, texts: Sequence[str], special: bool = True) -> Iterator[Any]:
        """Yield what the tokenizers package makes of texts, without special tokens if these are parts of pairs."""
        # Each text is one task of the tokenizers package's thread pool, which by default has a thread per CPU. If that
        # is more than the caller wants, only as many texts are handed over at once, which keeps the others idle.
        threads = get_num_threads()
        at_once = threads if threads < _cpus() else _AT_ONCE
        for start in range(0, len(texts), at_once):
            yield from self._encode([self._shorten(text) for text in texts[start : start + at_once]], special)

    def _encode(self, texts: Sequence[str], special: bool) -> list[Any]:
        with _refusing("the model's tokenizer cannot take a text"):  # such as a word without a token
            encodings: list[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return encodings

    def prompt_length(self, prompt: str) -> int:
        """Return how many tokens at the start of a text belong to a prompt that stands before it."""
        with _refusing("the model's tokenizer cannot take the prompt"):
            encoding = self._tokenizer.encode(prompt)
        length: int = len(encoding.ids) - sum(encoding.special_tokens_mask[-1:])
        return length


def _cpus() -> int:
    """Return how many CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(path: Path, vocab_size: int) -> Any:
    with needed_by("a sentence encoder"):
        from tokenizers import Tokenizer
    words = next((other for other in map(path.with_name, _OTHERS) if other.exists()), None)
    if words is not None and not path.exists():
        how = "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder) makes it"
        needs = ", with the packages sentencepiece and protobuf" if words.suffix == ".model" else ""
        raise FileNotFoundError(f"{path} is missing; the folder has {words.name}, from which {how}{needs}")
    text = read_text(path, MAX_JSON)
    with _refusing(f"{path} is not a valid tokenizer"):
        tokenizer = Tokenizer.from_str(text)
        around = tokenizer.encode("").ids
    last = max([*tokenizer.get_vocab().values(), *around], default=0)
    if last >= vocab_size:
        raise ValueError(f"{path} has a token {last}; expected tokens below vocab_size, {vocab_size}")
    return tokenizer


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raise ValueError, with these words before it, for an error of the tokenizers package."""
    try:
        yield
    except BaseException as error:  # the package raises Exception, and where its own code panics not even that
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what}: {error}") from error


def _mark(tokenizer: Any, markers: Sequence[str]) -> None:
    """Make special tokens of markers that the vocabulary has, with what follows them or without, but cuts to pieces."""
    if not markers:
        return
    from tokenizers import AddedToken

    for marker in markers:
        parts = (marker, *marker.split(None, 1)[:1])
        known = next((part for part in parts if tokenizer.token_to_id(part) is not None), None)
        with _refusing("the model's tokenizer cannot take the marker of a text"):
            cut = known is not None and tokenizer.encode(known, add_special_tokens=False).tokens != [known]
        if cut:
            tokenizer.add_special_tokens([AddedToken(known, normalized=False, special=True)])


def _set_normalizer(tokenizer: Any, config: dict[str, Any], lower_case: bool) -> None:
    """Do with a normalizer what transformers and sentence-transformers do with it when they load a folder."""
    from tokenizers.normalizers import BertNormalizer, Lowercase
    from tokenizers.normalizers import Sequence as InTurn

    normalizer = tokenizer.normalizer
    if isinstance(normalizer, BertNormalizer) and config.get("tokenizer_class") in _BERT_CLASSES:
        normalizer = BertNormalizer(
            clean_text=True,
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
            strip_accents=config.get("strip_accents"),
            lowercase=config.get("do_lower_case", True),
        )
        tokenizer.normalizer = normalizer
    if lower_case:
        tokenizer.normalizer = InTurn([Lowercase(), *([] if normalizer is None else [normalizer])])


def _frame(tokenizer: Any, typed: bool) -> list[tuple[int | None, Array, int]]:
    """Return the parts of a pair: which text each is or None, the special tokens that stand there, and their type.

    The type is 0 unless tokens are typed. Nothing if the tokenizer does not put two texts side by side.
    """
    for word in itertools.chain(["a"], filter(None, map(tokenizer.id_to_token, range(100)))):
        try:
            with _refusing("no pair"):
                encoding = tokenizer.encode(word, word)
        except ValueError:  # a word that the tokenizer has no token for
            continue
        tokens = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
        parts = [
            (*part, np.array([id for *_, id in run], np.int32))
            for part, run in itertools.groupby(tokens, itemgetter(0, 1))
        ]
        if [place for place, *_ in parts if place is not None] == [0, 1]:
            return [(place, ids, kind if typed else 0) for place, kind, ids in parts]
    return []


def _length(encoding: Any) -> int:
    """Return how many tokens a text has, those that were cut off included."""
    return len(encoding.ids) + sum(len(part.ids) for part in encoding.overflowing)


def _longest_first(n: int, m: int, room: int) -> tuple[int, int]:
    """Return how many tokens two texts of `n` and `m` keep, as the tokenizers package has it."""
    short, long = min(n, m), max(n, m)
    if short + long > room:
        long = max(short, room - short)
        if short + long > room:
            short, long = room // 2, room - room // 2
    return (short, long) if n <= m else (long, short)


def _shortening(tokenizer: Any, max_length: int) -> Callable[[str], str]:
    """Return a function that makes long texts shorter without a change of their first tokens, if there is one."""
    if _cuts_at_spaces(tokenizer):
        return partial(_first_words, needed=max_length + 1)
    return _Shortener.of(tokenizer, max_length) or str


def _first_words(text: str, needed: int) -> str:
    """Return a text with the same first tokens: its first `needed` words, if it has more.

    For tokenizers that :func:`_cuts_at_spaces`, which give each of these words a token of its own at least.
    """
    if len(text) > _SHORT * needed:
        for found, end in enumerate(_WORD_END.finditer(text), 1):
            if found == needed:
                return text[: end.end()]
    return text


def _cuts_at_spaces(tokenizer: Any) -> bool:
    """Whether the words before an ASCII space have the same tokens without it and what follows, at least one each.

    The normalizer must keep letters and spaces and look no further, the pre-tokenizer cut at spaces, the model have a
    token for whatever there is, and no added token lie across such a place. Byte-level BPE and SentencePiece's Unigram
    are so where texts are normalized as Unicode says.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    normalizer, model = tokenizer.normalizer, tokenizer.model
    steps, cuts = _parts(normalizer, "normalizers"), _parts(tokenizer.pre_tokenizer, "pretokenizers")
    if not (
        cuts
        and all(cut["type"] in _PRE_TOKENIZERS and cut.get("split", cut.get("use_regex", True)) for cut in cuts)
        and all(step["type"] in _NORMALIZERS or {**step, **_ONE_SPACE} == step for step in steps)
    ):
        return False
    normalized: Callable[[str], str] = str if normalizer is None else normalizer.normalize_str
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    letters = [letter for letter in map(chr, range(0x500)) if re.match(f"[{_LETTERS}]", letter)]
    bytewise = cuts[-1]["type"] == "ByteLevel" and all(
        tokenizer.token_to_id(byte) is not None for byte in ByteLevel.alphabet()
    )
    cut: bool = (
        (type(model).__name__ == "Unigram" or model.unk_token is not None or bytewise)
        and normalized("a b") == "a b"
        and all(normalized(letter).strip() for letter in letters)
        and not any(re.search(f"[{_LETTERS}] ", text) for token in added for text in (token, normalized(token)))
    )
    return cut


def _parts(part: Any, name: str) -> list[dict[str, Any]]:
    """Return what the steps of a normalizer or pre-tokenizer say of themselves."""
    state = {} if part is None else json.loads(part.__getstate__())
    steps: list[dict[str, Any]] = state.get(name, [state] if state else [])
    return steps


class _Shortener:
    """Makes long texts shorter without a change of their first tokens.

    A *unit* of a text is an ASCII sign, an ideograph, or a run of other characters without white space. BERT's
    normalizer and pre-tokenizer cut the text at both ends of every unit. They keep signs, ideographs, letters and
    digits, and WordPiece gives every word at least one token. So every unit with such a character gives at least one
    token of its own.

    Added tokens are the exception: they are found first, in the text as it is, and one of them may span several units.
    So ``(max_length + 1) * (units of the longest added token)`` such units are enough, and the text is cut after them:
    what follows changes none of the first tokens.

    In the text that is left a run of white space becomes one space. A word so long that WordPiece takes it for unknown
    loses its middle, but stays long enough to be unknown; its ends stay, because an added token may lie across them.

    Parameters
    ----------
    added : list of str
        The added tokens.
    ideographs : bool
        Whether the normalizer cuts at ideographs.
    longest_word : int
        A word of more characters is unknown to WordPiece.
    max_length : int
        How many tokens of a text are used.
    """

    def __init__(self, added: list[str], ideographs: bool, longest_word: int, max_length: int) -> None:
        apart = _SIGN + (_IDEOGRAPH if ideographs else "")
        self._units = re.compile(f"[{apart}]|[^{_GAP}{apart}]+")
        self._sign = re.compile(f"[{apart}]|[^\\W_]")
        self._needed = max([1, *(len(self._units.findall(token)) for token in added)]) * (max_length + 1)
        # If an added token holds white space or may be a part of a word, white space and words must stay as they are.
        changes = any(re.search(r"\s", token) or re.fullmatch("[0-9A-Za-z]+", token) for token in added)
        self._kept = None if changes else max([longest_word + 1, *map(len, added)])

    @classmethod
    def of(cls, tokenizer: Any, max_length: int) -> "_Shortener | None":
        """Return the one for a tokenizer of BERT's kind, None for any other."""
        from tokenizers import models, pre_tokenizers

        normalizer = tokenizer.normalizer
        *before, last = _parts(normalizer, "normalizers") or [{}]
        if not (
            last.get("type") == "BertNormalizer"
            and all(step["type"] == "Lowercase" for step in before)
            and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and isinstance(tokenizer.model, models.WordPiece)
        ):
            return None
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        return cls(added, last["handle_chinese_chars"], tokenizer.model.max_input_chars_per_word, max_length)

    def __call__(self, text: str) -> str:
        """Return a text with the same first tokens, and more of them than `max_length` if `text` has more."""
        if len(text) <= _SHORT * self._needed:
            return text
        found = 0
        for unit in self._units.finditer(text):
            found += self._sign.search(text, *unit.span()) is not None
            if found == self._needed:
                text = text[: unit.end()]
                break
        if self._kept is None:
            return text
        return re.sub("[0-9A-Za-z]+", self._shorter, re.sub(f"[{_GAP}]+", " ", text))

    def _shorter(self, word: re.Match[str]) -> str:
        kept = self._kept
        return word[0] if kept is None or len(word[0]) <= 2 * kept else word[0][:kept] + word[0][-kept:]
