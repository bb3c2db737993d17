"""The tokenizer of a GGUF file, as the content of ``tokenizer.json``.

Rules are those of ``llama-vocab.cpp``: byte-level BPE (``tokenizer.ggml.model`` is ``gpt2``), whose words are cut by
the patterns of ``tokenizer.ggml.pre``, and SentencePiece with scores (``llama``). Where llama.cpp rewrites a pattern
for its own matcher, the pattern here is the one of the original model.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mp_core.models.settings import choices, unexpected

__all__ = ["ARRAYS", "WORDS", "ends_of", "named_tokens", "tokenizer_of"]

Part = dict[str, Any]

_TOKENS, _TYPES, _SCORES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))
WORDS = _TOKENS, _TYPES
ARRAYS = *WORDS, _SCORES, _MERGES
"""The arrays of the metadata that :func:`tokenizer_of` needs. The other functions need only the first one."""
_NORMAL, _UNKNOWN, _CONTROL, _DEFINED = 1, 2, 3, 4
"""Types of tokens; all but the first are found in a text before it is cut."""
_SPACE = "\u2581"
_LONGEST = 512
"""The most characters of a token whose cuts are searched for merges: several times the longest known one."""

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class _Cuts(NamedTuple):
    """How words are cut before the merges."""

    patterns: tuple[str, ...]  # Applied in turn, each one to what the ones before left.
    whole: bool = False  # Whether a word that is a token is not merged from its letters, and texts have a first token.
    composes: bool = False  # Whether texts are normalized (NFC) first, as the original model does; llama.cpp does not.


_LLAMA3 = _Cuts((rf"{_SHORT}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",), whole=True)
_QWEN2 = _Cuts((rf"{_SHORT}|{_WORDS}|\p{{N}}|{_REST}",), composes=True)
_CUTS = {
    **dict.fromkeys(("default", ""), _Cuts((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo"), _Cuts((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _Cuts((r"\p{N}", _GPT2))),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA3._replace(whole=False)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _Cuts((rf"{_CASES}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",), whole=True),
}
"""``tokenizer.ggml.pre`` -> its cuts."""
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "<|eom_id|>",
)  # fmt: skip
"""Control tokens at which llama.cpp ends a text, besides those that the metadata name."""


def tokenizer_of(file: Path, said: Mapping[str, Any]) -> Part:
    """Return the content of ``tokenizer.json``; `said` are the metadata of a file with the arrays of :data:`ARRAYS`."""
    tokens, types = _tokens(file, said)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ValueError(f"{file}: two of the {len(tokens)} tokens in {_TOKENS} are equal")
    kind = said.get("tokenizer.ggml.model")
    if kind not in _MAKERS:
        raise unexpected(file, "tokenizer.ggml.model", kind, choices(_MAKERS))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return _MAKERS[kind](file, said, vocabulary) | {
        "added_tokens": [
            {"id": index, "content": tokens[index], "special": types[index] == _CONTROL} | flags
            for index, of in enumerate(types)
            if of in (_UNKNOWN, _CONTROL, _DEFINED) and tokens[index]
        ]
    }


def named_tokens(file: Path, said: Mapping[str, Any]) -> Part:
    """Return ``bos_token`` and ``eos_token`` of ``tokenizer_config.json``, if they are control tokens."""
    tokens, types = _tokens(file, said)
    places = {name: said.get(f"tokenizer.ggml.{name}_token_id", -1) for name in ("bos", "eos")}
    return {
        f"{name}_token": tokens[place]
        for name, place in places.items()
        if isinstance(place, int) and 0 <= place < len(tokens) and types[place] == _CONTROL
    }


def ends_of(file: Path, said: Mapping[str, Any]) -> list[int]:
    """Return the tokens that end texts."""
    tokens, types = _tokens(file, said)
    named = (said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    known = (index for index, of in enumerate(types) if of == _CONTROL and tokens[index] in _ENDS)
    return sorted({*(place for place in named if type(place) is int), *known})


def _tokens(file: Path, said: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Return the tokens and their types."""
    tokens: list[str] = _listed(file, said, _TOKENS, str)
    if not tokens:
        raise ValueError(f"{file}: {_TOKENS} has no tokens")
    types: list[int] = _listed(file, said, _TYPES, int) if _TYPES in said else [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(f"{file}: {_TYPES} has {len(types)} values; expected one for each of the {len(tokens)} tokens")
    return tokens, types


def _listed(file: Path, said: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """Return an array of the metadata with values of one kind."""
    found = said.get(name)
    if not isinstance(found, list) or any(type(value) is not kind for value in found[:1]):
        raise ValueError(f"{file}: {name} must be an array of {kind.__name__}")
    return found


def _byte_level(file: Path, said: Mapping[str, Any], vocabulary: Mapping[str, int]) -> Part:
    pre = said.get("tokenizer.ggml.pre", "default")
    if pre not in _CUTS:
        raise unexpected(file, "tokenizer.ggml.pre", pre, choices(_CUTS))
    cuts = _CUTS[pre]
    pairs: list[str] = _listed(file, said, _MERGES, str) if _MERGES in said else []
    merges = [word.partition(" ") if word[:1] != " " else (" ", " ", word[2:]) for word in pairs]
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in cuts.patterns
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "model": _pairs(vocabulary, [(first, second) for first, _, second in merges], ignore_merges=cuts.whole),
        "normalizer": {"type": "NFC"} if cuts.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, bytes_]},
        "post_processor": _framed(file, said, vocabulary, cuts.whole),
        "decoder": bytes_,
    }


def _sentence_piece(file: Path, said: Mapping[str, Any], vocabulary: Mapping[str, int]) -> Part:
    scores: list[float] = _listed(file, said, _SCORES, float)
    if len(scores) != len(vocabulary):
        raise ValueError(
            f"{file}: {_SCORES} has {len(scores)} values; expected one for each of the {len(vocabulary)} tokens"
        )
    longest = max(map(len, vocabulary))
    if longest > _LONGEST:
        raise ValueError(f"{file}: a token has {longest} characters; expected at most {_LONGEST}")
    prefix = said.get("tokenizer.ggml.add_space_prefix", True) is True
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    normal = [{"type": "Prepend", "prepend": _SPACE}, spaces] if prefix else [spaces]
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unknown = _token_at(said, "unknown", 0, vocabulary)
    merges = list(_merges(vocabulary, scores))
    return {
        "model": _pairs(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": None,
        "post_processor": _framed(file, said, vocabulary, True, 1),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
    }


_MAKERS = {"gpt2": _byte_level, "llama": _sentence_piece}
"""``tokenizer.ggml.model`` -> the function that makes the parts of its tokenizer."""


def _pairs(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **settings: Any) -> Part:
    defaults = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", "dropout": None, "vocab": dict(vocabulary), "merges": list(merges)} | defaults | settings


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens whose concatenation is a token, that with the largest score first."""
    found = []
    for word, index in vocabulary.items():
        cuts = ((word[:place], word[place:]) for place in range(1, len(word)))
        pairs = [pair for pair in cuts if pair[0] in vocabulary and pair[1] in vocabulary]
        found += [(-scores[index], index, vocabulary[first], first, second) for first, second in pairs]
    return ((first, second) for *_, first, second in sorted(found))


def _framed(
    file: Path, said: Mapping[str, Any], vocabulary: Mapping[str, int], begins: bool, first: int | None = None
) -> Part | None:
    """Return the post-processor that adds the first and the last token of texts; None if there are none.

    `begins` is the default of ``add_bos_token``, and `first` that of the first token.
    """
    before: list[str] = []
    after: list[str] = []
    for name, default, side, place in (("bos", begins, before, first), ("eos", False, after, None)):
        if said.get(f"tokenizer.ggml.add_{name}_token", default) is True:
            token = _token_at(said, name, place, vocabulary)
            if token is None:
                key = f"tokenizer.ggml.{name}_token_id"
                raise unexpected(file, key, said.get(key), f"an index below {len(vocabulary)}")
            side.append(token)
    if not before and not after:
        return None
    ends = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in before + after}

    def around(*texts: str) -> list[Part]:
        inner = [{"Sequence": {"id": text, "type_id": 0}} for text in texts]
        return [*_special(before), *inner, *_special(after)]

    return {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A") + around("B"),
        "special_tokens": ends,
    }


def _special(tokens: Sequence[str]) -> list[Part]:
    return [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]


def _token_at(said: Mapping[str, Any], name: str, default: int | None, vocabulary: Mapping[str, int]) -> str | None:
    """Return the token whose index the metadata name, or that at `default`; None if there is none."""
    place = said.get(f"tokenizer.ggml.{name}_token_id", default)
    return list(vocabulary)[place] if type(place) is int and 0 <= place < len(vocabulary) else None
