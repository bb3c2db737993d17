"""Tokenize texts by the tokenizer of a folder. Long texts are shortened first, so they cost little more than others."""

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.core.cpu import get_num_threads
from mp_core.models.architectures.static import STATIC
from mp_core.models.modules import Modules
from mp_core.models.pieces import Piece, TooManyTokensError, count_of, decoded, last_tokens, pieces_of
from mp_core.models.settings import unexpected
from mp_core.models.tokenizer_opening import layouts, open_plain, open_tokenizer, refusing
from mp_core.models.tokenizer_steps import Step, steps_of

__all__ = ["Tokenizer"]

_AT_ONCE = 1024
# Characters per needed unit. Shorter texts are not shortened: that would cost more than it saves.
_SHORT = 8

# The characters at which BERT's tokenizers always split: ASCII white space and punctuation, and ideographs.
_GAP = r" \t\n\r"
_SIGN = r"!-/:-@\[-`{-~"
_IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff"

# Digits and letters that never combine with a neighbouring character, and the end of a word that ends in one.
_LETTERS = (
    "0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03f5\u03f7-\u03ff\u0400-\u0481\u048a-\u04ff"
)
_WORD_END = re.compile(f"(?:^|[\x00-\x7f{_LETTERS}])[{_LETTERS}](?= )")

# Types of normalizers that keep words between ASCII spaces separate, and of pre-tokenizers that split at such spaces.
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled", "Strip"}
_ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
_PRE_TOKENIZERS = {"ByteLevel", "WhitespaceSplit", "Whitespace", "Metaspace"}


class Tokenizer:
    """A tokenizer that truncates texts to `max_length` tokens, special tokens included; pairs have `types` token types.

    Raise OSError or ValueError if a file is missing or not as expected, and ImportError without the tokenizers package.
    """

    def __init__(self, modules: Modules) -> None:
        settings, path = modules.settings, modules.network / "tokenizer.json"
        if modules.config.get("model_type") in STATIC.model_types:
            opened = open_plain(path, settings.vocab_size)
        else:
            pads_left = settings.is_relative or not settings.num_hidden_layers  # then left padding changes nothing
            opened = open_tokenizer(modules.network, modules.config, settings.vocab_size, pads_left)
        self._tokenizer, self._named, self._beyond = opened.tokenizer, opened.named, opened.beyond
        longest = settings.max_length
        self.max_length = min(modules.max_length or opened.max_length or longest, longest)
        _mark(self._tokenizer, modules.markers)
        self._special_count = special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if special > self.max_length:  # then the package would not truncate at all
            limit = "max_position_embeddings" if self.max_length == longest else "max_seq_length or model_max_length"
            expected = f"at most {self.max_length}, what {limit} leaves to a text"
            raise unexpected(path, "the number of special tokens of a text", special, expected)
        self._special = modules.special_tokens
        if modules.lower_case:
            _lower_first(self._tokenizer)
        found = next(layouts(self._tokenizer, True), [])
        self._frame = [(place, np.array(ids, np.int32), kind if opened.typed else 0) for place, kind, ids in found]
        self.types = 1 + max((kind for _, _, kind in self._frame), default=0)
        self._left = opened.left
        self._tokenizer.enable_truncation(self.max_length)
        self._shorten = _shortening(self._tokenizer, self.max_length)
        self._shorten_start = _shortening_of_starts(self._tokenizer, self.max_length)

    def cuts_start(self, given: bool | None) -> bool:
        """Return whether texts are truncated at their start: `given`, or by default the files' setting."""
        return self._left if given is None else given

    def special(self, entry: str) -> str | None:
        """Return the special token of an entry such as ``mask_token``."""
        return self._named.get(entry)

    def index_of(self, token: str) -> int | None:
        """Return the index of a token; None if the vocabulary does not have it."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def knows(self, index: int) -> bool:
        """Return whether an index has a token; a network's vocabulary may be longer than the tokenizer's."""
        return self._tokenizer.id_to_token(index) is not None

    @property
    def vocabulary(self) -> dict[str, int]:
        """The index of each token, added ones included."""
        found: dict[str, int] = self._tokenizer.get_vocab()
        return found

    @property
    def named(self) -> Mapping[str, str]:
        """Entry such as ``mask_token`` -> the special token."""
        return self._named

    def __call__(
        self, texts: Sequence[str], special: bool = True, *, from_start: bool | None = None
    ) -> tuple[list[Array], list[int]]:
        """Return the vocabulary indices of each text, with or without special tokens, and which texts were truncated.

        Texts are truncated at their end, or with `from_start` at their start. Default: the files' setting.
        """
        special = special and self._special
        if self.cuts_start(from_start):
            return self._ends(texts, special)
        rows: list[Array] = []
        cut: list[int] = []
        for encoding in self._encoded(texts, special):
            if encoding.overflowing:
                cut.append(len(rows))
            rows.append(np.array(encoding.ids, np.int32))
        return rows, cut

    def _ends(self, texts: Sequence[str], special: bool) -> tuple[list[Array], list[int]]:
        """Return what :meth:`__call__` does for texts truncated at their start."""
        rows: list[Array] = []
        cut: list[int] = []
        room = self.max_length - (self._special_count if special else 0)
        for encoding in self._encoded(texts, special=False, shorten=self._shorten_start):
            last, was_cut = last_tokens(encoding, room)
            if was_cut:
                cut.append(len(rows))
            framed = self._tokenizer.post_process(last, add_special_tokens=special)
            rows.append(np.array(framed.ids, np.int32))
        return rows, cut

    def pieces(self, texts: Sequence[str], special: bool = True, most: int | None = None) -> list[list[Piece]]:
        """Return all tokens of each text with positions; raise TooManyTokensError for more than `most` in all."""
        special = special and self._special
        encodings = self._encode(texts, special, self._tokenizer.encode_batch)
        count = sum(count_of(encoding, self._special_count if special else 0) for encoding in encodings)
        if most is not None and count > most:
            raise TooManyTokensError(count)
        return list(map(pieces_of, texts, encodings))

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
        """Return the texts for rows of vocabulary indices, with or without special tokens."""
        return decoded(self._tokenizer, rows, skip_special)

    def located(self, texts: Sequence[str]) -> tuple[list[Array], list[list[tuple[int, tuple[int, int]]]]]:
        """Return the vocabulary indices of each text, and (index, (start, end)) of each token that is not special.

        The token at `index` covers the characters ``text[start:end]``.
        """
        encodings = self._encode(texts, self._special, self._tokenizer.encode_batch)
        rows, places = [], []
        for encoding in encodings:
            rows.append(np.array(encoding.ids, np.int32))
            special = encoding.special_tokens_mask
            places.append([(token, place) for token, place in enumerate(encoding.offsets) if not special[token]])
        return rows, places

    def pairs(
        self, pairs: Sequence[tuple[str, str]], *, from_start: bool | None = None
    ) -> tuple[list[Array], list[Array], list[int]]:
        """Return for pairs of texts their vocabulary indices, their token types, and the indices of truncated pairs.

        Types are 0 if the tokenizer's class or configuration passes no types to the network. In a pair that is too
        long, the longer text is truncated, then both equally: at the end, or with `from_start` at the start (default:
        the files' setting). Raise ValueError if `max_length` leaves no room for texts, or the tokenizer rejects one.
        """
        special = sum(len(ids) for place, ids, _ in self._frame if place is None)
        room = self.max_length - special
        if not self._frame or room < 1:
            expected = f"room for {special} special tokens and a text" if self._frame else "a tokenizer that joins two"
            raise ValueError(f"pairs of texts need {expected}; texts are cut at max_length={self.max_length}")
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        tokens, lengths = {}, {}
        left = self.cuts_start(from_start)
        shorten = self._shorten_start if left else self._shorten
        whole: dict[str, int] = {}  # the number of tokens of texts that were shortened
        for text, encoding in zip(texts, self._encoded(texts, special=False, shorten=shorten), strict=True):
            kept = last_tokens(encoding, room)[0].ids if left else encoding.ids
            tokens[text], lengths[text] = np.array(kept, np.int32), count_of(encoding, 0)
        rows: list[Array] = []
        types: list[Array] = []
        cut: list[int] = []
        for pair in pairs:
            n, m = (lengths[text] for text in pair)
            if room % 2 and min(n, m) > room:  # the text with more tokens keeps one token more
                for text in pair:
                    if text not in whole:
                        shorter = shorten(text) != text
                        whole[text] = count_of(self._encode([text], special=False)[0], 0) if shorter else lengths[text]
                n, m = (whole[text] for text in pair)
            if n + m > room:
                cut.append(len(rows))
            counts = zip(pair, _longest_first(n, m, room), strict=True)
            both = [_cut(tokens[text], count, left) for text, count in counts]
            parts = [ids if place is None else both[place] for place, ids, _ in self._frame]
            rows.append(np.concatenate(parts))
            kinds = [kind for _, _, kind in self._frame]
            types.append(np.concatenate([np.full(len(part), kind) for part, kind in zip(parts, kinds, strict=True)]))
        return rows, types, cut

    def _encoded(
        self, texts: Sequence[str], special: bool, shorten: Callable[[str], str] | None = None
    ) -> Iterator[Any]:
        """Yield the encodings of texts by the tokenizers package, with or without special tokens."""
        shorten = shorten or self._shorten
        # Each text is a task in the thread pool of the tokenizers package, by default with one thread per CPU. If the
        # caller wants fewer threads, pass that many texts at a time, so that the other threads stay idle.
        threads = get_num_threads()
        at_once = threads if threads < _cpus() else _AT_ONCE
        for start in range(0, len(texts), at_once):
            yield from self._encode([shorten(text) for text in texts[start : start + at_once]], special)

    def _encode(self, texts: Sequence[str], special: bool, how: Callable[..., list[Any]] | None = None) -> list[Any]:
        with refusing("the model's tokenizer cannot take a text"):  # for example a word without a token
            encodings = (how or self._tokenizer.encode_batch_fast)(texts, add_special_tokens=special)
        if self._beyond is not None:
            last = max((index for encoding in encodings for index in encoding.ids), default=0)
            if last >= self._beyond:
                word = self._tokenizer.id_to_token(last)
                raise ValueError(f"the network has no vector for the token {word!r} of a text, {last}")
        return encodings

    def prompt_length(self, prompt: str) -> int:
        """Return the number of tokens that a prompt adds at the start of a text."""
        with refusing("the model's tokenizer cannot take the prompt"):
            encoding = self._tokenizer.encode(prompt)
        length: int = len(encoding.ids) - sum(encoding.special_tokens_mask[-1:])
        return length


def _cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _mark(tokenizer: Any, markers: Sequence[str]) -> None:
    """Make a marker, or its first word, a special token if the vocabulary has it but the tokenizer splits it."""
    if not markers:
        return
    from tokenizers import AddedToken

    for marker in markers:
        parts = (marker, *marker.split(None, 1)[:1])
        known = next((part for part in parts if tokenizer.token_to_id(part) is not None), None)
        with refusing("the model's tokenizer cannot take the marker of a text"):
            cut = known is not None and tokenizer.encode(known, add_special_tokens=False).tokens != [known]
        if cut:
            tokenizer.add_special_tokens([AddedToken(known, normalized=False, special=True)])


def _lower_first(tokenizer: Any) -> None:
    """Lowercase texts first, unless a step of the normalizer is ``Lowercase``, as in sentence-transformers."""
    from tokenizers.normalizers import Lowercase
    from tokenizers.normalizers import Sequence as InTurn

    normalizer = tokenizer.normalizer
    if not any(step["type"] == "Lowercase" for step in _steps(normalizer)):
        tokenizer.normalizer = InTurn([Lowercase(), *([] if normalizer is None else [normalizer])])


def _cut(ids: Array, count: int, from_start: bool) -> Array:
    """Return the first `count` tokens, or with `from_start` the last ones."""
    return ids[len(ids) - count :] if from_start else ids[:count]


def _longest_first(n: int, m: int, room: int) -> tuple[int, int]:
    """Return how many of `n` and `m` tokens two texts keep, by the ``longest_first`` rule of the tokenizers package."""
    short, long = min(n, m), max(n, m)
    if short + long > room:
        long = max(short, room - short)
        if short + long > room:
            short, long = room // 2, room - room // 2
    return (short, long) if n <= m else (long, short)


def _shortening(tokenizer: Any, max_length: int) -> Callable[[str], str]:
    """Return a function that shortens long texts but keeps their first tokens; ``str`` if none is known."""
    if _cuts_at_spaces(tokenizer):
        return partial(_first_words, needed=max_length + 1)
    return _Shortener.of(tokenizer, max_length) or str


def _first_words(text: str, needed: int) -> str:
    """Return the first `needed` words of a text, which have the same first tokens as the text.

    This holds for tokenizers that pass :func:`_cuts_at_spaces`: each of these words has at least one token.
    """
    if len(text) > _SHORT * needed:
        for found, end in enumerate(_WORD_END.finditer(text), 1):
            if found == needed:
                return text[: end.end()]
    return text


def _shortening_of_starts(tokenizer: Any, max_length: int) -> Callable[[str], str]:
    """Return a function that shortens long texts but keeps their last tokens; ``str`` if none is known."""
    if _cuts_at_spaces(tokenizer) or (_Shortener.of(tokenizer, max_length) and not _joins_words(tokenizer, [])):
        return partial(_last_words, needed=max_length + 2)
    return str


def _last_words(text: str, needed: int) -> str:
    """Return the end of a text, after the last but `needed` word end; it has the same last tokens as the text.

    This holds for tokenizers with no token across these word ends: each word has at least one token, and only the first
    word of the result may have other tokens than in the whole text, because a token before it may contain its space.
    """
    if len(text) > _SHORT * needed:
        ends = deque((end.end() for end in _WORD_END.finditer(text)), needed + 1)
        if len(ends) > needed:
            return text[ends[0] :]
    return text


def _joins_words(tokenizer: Any, steps: Sequence[Callable[[str], str]]) -> bool:
    """Return whether an added token, or its output of one of `steps`, has a letter followed by a space."""
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return any(
        re.search(f"[{_LETTERS}] ", text) for token in added for text in (token, *(step(token) for step in steps))
    )


def _cuts_at_spaces(tokenizer: Any) -> bool:
    """Return whether the text up to a word end has the same tokens as within a longer text, at least one per word.

    Sufficient conditions: the normalizer keeps letters and spaces, and looks at no wider context; the pre-tokenizer
    splits at spaces; the model has a token for every character; no added token spans a word end. Byte-level BPE and
    SentencePiece's Unigram satisfy them with Unicode normalization.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    normalizer, model = tokenizer.normalizer, tokenizer.model
    steps, cuts = _steps(normalizer), _steps(tokenizer.pre_tokenizer)
    if not (
        cuts
        and all(cut["type"] in _PRE_TOKENIZERS and cut.get("split", cut.get("use_regex", True)) for cut in cuts)
        and all(step["type"] in _NORMALIZERS or {**step, **_ONE_SPACE} == step for step in steps)
    ):
        return False
    normalized: Callable[[str], str] = str if normalizer is None else normalizer.normalize_str
    letters = [letter for letter in map(chr, range(0x500)) if re.match(f"[{_LETTERS}]", letter)]
    bytewise = cuts[-1]["type"] == "ByteLevel" and all(
        tokenizer.token_to_id(byte) is not None for byte in ByteLevel.alphabet()
    )
    cut: bool = (
        (type(model).__name__ == "Unigram" or model.unk_token is not None or bytewise)
        and normalized("a b") == "a b"
        and all(normalized(letter).strip() for letter in letters)
        and not _joins_words(tokenizer, [normalized])
    )
    return cut


def _steps(part: Any) -> list[Step]:
    """Return the steps of a normalizer or pre-tokenizer; an empty list for None."""
    return [] if part is None else list(steps_of(json.loads(part.__getstate__())))


class _Shortener:
    """Shortens long texts for BERT's tokenizers without changing their first `max_length` tokens.

    A *unit* of a text is an ASCII sign, an ideograph, or a run of other characters without white space. BERT's
    normalizer and pre-tokenizer split the text at both ends of every unit. They keep signs, ideographs, letters and
    digits, and WordPiece gives every word at least one token. So every unit with such a character yields at least one
    token.

    Added tokens are the exception: they are matched first, in the original text, and may span several units. So
    ``(max_length + 1) * (units of the longest added token)`` such units are enough, and the text is cut after them.

    In the remaining text a run of white space becomes one space. A word with more than `longest_word` characters, which
    WordPiece maps to the unknown token, loses its middle, but stays longer than that; its ends stay, since an added
    token may span them.
    """

    def __init__(self, added: list[str], ideographs: bool, longest_word: int, max_length: int) -> None:
        apart = _SIGN + (_IDEOGRAPH if ideographs else "")
        self._units = re.compile(f"[{apart}]|[^{_GAP}{apart}]+")
        self._sign = re.compile(f"[{apart}]|[^\\W_]")
        self._needed = max([1, *(len(self._units.findall(token)) for token in added)]) * (max_length + 1)
        # If an added token contains white space, or may be part of a word, do not change white space and words.
        changes = any(re.search(r"\s", token) or re.fullmatch("[0-9A-Za-z]+", token) for token in added)
        self._kept = None if changes else max([longest_word + 1, *map(len, added)])

    @classmethod
    def of(cls, tokenizer: Any, max_length: int) -> "_Shortener | None":
        """Return the shortener for a tokenizer of BERT's kind; None for any other."""
        from tokenizers import models, pre_tokenizers

        *before, last = _steps(tokenizer.normalizer) or [{}]
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
        """Return a shorter text with the same first tokens; it has more than `max_length` tokens if `text` has."""
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
