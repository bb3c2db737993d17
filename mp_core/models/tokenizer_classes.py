"""The tokenizer classes of transformers 5, and how each one builds a tokenizer.

Most classes read only the vocabulary from ``tokenizer.json``, and rebuild all other parts by their own rules and
``tokenizer_config.json``. A :class:`Recipe` describes such a class. Other classes use all of ``tokenizer.json``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mp_core.models.tokenizer_steps import steps_of

__all__ = ["FROM_FILE", "RECIPES", "REFUSED", "Recipe", "class_named"]

Part = dict[str, Any]
Options = Mapping[str, Any]
"""The settings of a class by name, and the content of tokenizer.json under ``_file``."""
Index = Callable[[str, int | None], int]
"""(token, default index or None) -> its index; raises ValueError if the vocabulary lacks it and there is no default."""

_UNDERSCORE = "\u2581"
_WORDS_OF_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A tokenizer class of transformers."""

    model: str | None = None  # The type of the model in ``tokenizer.json``; None if the class uses all of this file.
    # Settings -> (settings of the model, normalizer, pre-tokenizer), which replace those of the file.
    parts: Callable[[Options], tuple[Part, Part | None, Part | None]] | None = None
    # (settings, function from token to index) -> post-processor; None: keep that of the file.
    ends: Callable[[Options, Index], Any] | None = None
    tokens: Mapping[str, str | None] = field(default_factory=dict)  # The default special tokens.
    # The other entries of ``tokenizer_config.json`` that the class reads, with their defaults.
    settings: Mapping[str, Any] = field(default_factory=dict)
    typed: bool = False  # Whether it passes token types to the network.
    left: bool = False  # Whether it pads on the left.
    wins: bool = True  # Whether `ends` replaces the post-processor of the file; otherwise it is for files without one.
    # Whether a mask token given as a string, without flags, includes the white space before it.
    mask_takes_space: bool = False
    # (settings, ``additional_special_tokens`` of ``special_tokens_map.json`` or None) -> the additional special tokens,
    # if ``tokenizer_config.json`` lists none.
    extra: Callable[[Options, list[Any] | None], list[Any]] | None = None


def _named(words: str, *names: str) -> dict[str, str | None]:
    """Return ``{name}_token`` -> token for each name; `words` has the tokens, separated by spaces, with - for None."""
    found = zip(names, words.split(), strict=True)
    return {f"{name}_token": None if word == "-" else word for name, word in found}


def _word(options: Options, name: str) -> str:
    if options[name] is None:
        raise ValueError(f"{name} is None; expected a token")
    return str(options[name])


def _in_turn(kind: str, *steps: Part) -> Part:
    return {"type": "Sequence", kind: list(steps)}


def _charsmap(options: Options) -> Part | None:
    """Return SentencePiece's character map in the normalizer of the file; None if it has none."""
    steps = steps_of(options["_file"].get("normalizer"))
    return next((step for step in steps if step.get("type") == "Precompiled" and "precompiled_charsmap" in step), None)


def _byte_pairs(**settings: Any) -> Part:
    whole = {"unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    return {"type": "BPE", "dropout": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False} | (
        whole | settings
    )


def _metaspace(scheme: str, split: bool = True) -> Part:
    return {"type": "Metaspace", "replacement": _UNDERSCORE, "prepend_scheme": scheme, "split": split}


def _words(scheme: str) -> Part:
    return _in_turn("pretokenizers", {"type": "WhitespaceSplit"}, _metaspace(scheme))


def _bytes(prefix: bool, use_regex: bool = True) -> Part:
    return {"type": "ByteLevel", "add_prefix_space": bool(prefix), "trim_offsets": True, "use_regex": use_regex}


def _bert(options: Options) -> tuple[Part, Part, Part]:
    model = {
        "type": "WordPiece",
        "unk_token": _word(options, "unk_token"),
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": options["tokenize_chinese_chars"],
        "strip_accents": options["strip_accents"],
        "lowercase": options["do_lower_case"],
    }
    return model, normalizer, {"type": "BertPreTokenizer"}


def _gpt2(options: Options) -> tuple[Part, None, Part]:
    return _byte_pairs(), None, _bytes(options["add_prefix_space"])


def _qwen2(options: Options) -> tuple[Part, Part, Part]:
    split = {"type": "Split", "pattern": {"Regex": _WORDS_OF_QWEN2}, "behavior": "Isolated", "invert": False}
    steps = _in_turn("pretokenizers", split, _bytes(options["add_prefix_space"], use_regex=False))
    return _byte_pairs(), {"type": "NFC"}, steps


def _gemma(options: Options) -> tuple[Part, Part, Part]:
    model = _byte_pairs(fuse_unk=True, byte_fallback=True, unk_token=_word(options, "unk_token"))
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _UNDERSCORE}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return model, spaces, split


def _llama(options: Options) -> tuple[Part, None, Part]:
    prefix = options["add_prefix_space"]
    scheme = "never" if prefix is False else "always" if options["legacy"] else "first"
    model = _byte_pairs(fuse_unk=True, byte_fallback=True)
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    return model, None, _metaspace(scheme, split=False)


def _unigram(place: int) -> Part:
    return {"type": "Unigram", "unk_id": place, "byte_fallback": False}


def _vocabulary(options: Options) -> list[Any]:
    found = options["_file"]["model"].get("vocab")
    return found if isinstance(found, list) else []


def _xlm_roberta(options: Options) -> tuple[Part, Part | None, Part]:
    return _unigram(3), _charsmap(options), _words("always" if options["add_prefix_space"] else "never")


def _camembert(options: Options) -> tuple[Part, Part | None, Part]:
    unknown = _word(options, "unk_token")
    place = next((place for place, piece in enumerate(_vocabulary(options)) if piece and piece[0] == unknown), 0)
    return _unigram(place), *_xlm_roberta(options)[1:]


def _t5(options: Options) -> tuple[Part, Part | None, Part]:
    return _unigram(2), _charsmap(options), _words("always")


def _albert(options: Options) -> tuple[Part, Part, Part]:
    steps: list[Part] = [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]
    steps += [] if options["keep_accents"] else [{"type": "NFKD"}, {"type": "StripAccents"}]
    steps += [{"type": "Lowercase"}] * bool(options["do_lower_case"])
    steps += [found] if (found := _charsmap(options)) else []
    cuts = _words("always" if options["add_prefix_space"] else "never")
    return _unigram(1), _in_turn("normalizers", *steps), cuts


def _deberta_v2(options: Options) -> tuple[Part, Part, Part]:
    unknown = [_word(options, "unk_token"), 0.0]
    place = next((place for place, piece in enumerate(_vocabulary(options)) if piece == unknown), options["unk_id"])
    steps: list[Part] = [{"type": "Lowercase"}] * bool(options["do_lower_case"])
    steps += [
        {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "},
        {"type": "NFC"},
        {"type": "Strip", "strip_left": False, "strip_right": True},
    ]
    cuts: list[Part] = [{"type": "Punctuation", "behavior": "Isolated"}] * bool(options["split_by_punct"])
    cuts += [_metaspace("always" if options["add_prefix_space"] else "first")]
    return _unigram(place), _in_turn("normalizers", *steps), _in_turn("pretokenizers", *cuts)


def _framed_by(first: str, last: str, pair: str, places: tuple[int | None, int | None] = (None, None)) -> Any:
    """Return the `ends` that put one token before and one after a text, by ``TemplateProcessing``."""

    def ends(options: Options, index: Index) -> Any:
        from tokenizers.processors import TemplateProcessing

        a, b = _word(options, first), _word(options, last)
        special = [(word, index(word, place)) for word, place in zip((a, b), places, strict=True)]
        return TemplateProcessing(f"{a} $A {b}", pair.format(a=a, b=b), special)

    return ends


def _roberta_ends(options: Options, index: Index) -> Any:
    from tokenizers.processors import RobertaProcessing

    sep, cls = _word(options, "sep_token"), _word(options, "cls_token")
    trims = options.get("trim_offsets", True)
    return RobertaProcessing((sep, index(sep, 2)), (cls, index(cls, 0)), trims, options.get("add_prefix_space", False))


def _t5_ends(options: Options, index: Index) -> Any:
    from tokenizers.processors import TemplateProcessing

    special = [("</s>", index(_word(options, "eos_token"), None))]
    return TemplateProcessing(["$A", "</s>"], ["$A", "</s>", "$B", "</s>"], special)


def _extra_ids(options: Options, listed: list[Any] | None) -> list[Any]:
    found = [token for token in listed or () if "<extra_id_" in str(token)]
    own = [f"<extra_id_{number}>" for number in range(options["extra_ids"])]
    if found and own and len(own) != len(found):
        raise ValueError(f"extra_ids is {len(own)}; expected {len(found)}, as many as special_tokens_map.json has")
    return [*(listed or ()), *([] if found else own)]


def _not_used(options: Options, listed: list[Any] | None) -> list[Any]:
    return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"] if listed is None else listed


_TYPED_PAIR, _TWICE = "{a}:0 $A:0 {b}:0 $B:1 {b}:1", "{a} $A {b} {b} $B {b}"
_OF_BERT = ("unk", "sep", "pad", "cls", "mask")
_OF_ROBERTA = ("bos", "eos", "sep", "cls", "unk", "pad", "mask")
_OF_ALBERT = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_ROBERTA = _named("<s> </s> </s> <s> <unk> <pad> <mask>", *_OF_ROBERTA)
_LOWER = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
_BERT = Recipe(
    model="WordPiece",
    parts=_bert,
    ends=_framed_by("cls_token", "sep_token", _TYPED_PAIR, (2, 3)),
    tokens=_named("[UNK] [SEP] [PAD] [CLS] [MASK]", *_OF_BERT),
    settings=_LOWER,
    typed=True,
)
_XLM_ROBERTA = Recipe(
    model="Unigram",
    parts=_xlm_roberta,
    ends=_framed_by("bos_token", "eos_token", _TWICE),
    tokens=_ROBERTA,
    settings={"add_prefix_space": True},
)

FROM_FILE = Recipe()
"""The class ``TokenizersBackend``, which uses all of tokenizer.json."""

RECIPES: dict[str, Recipe] = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "LxmertTokenizer", "MobileBertTokenizer"), _BERT),
    "SqueezeBertTokenizer": _BERT,
    "DistilBertTokenizer": replace(_BERT, typed=False),
    "MPNetTokenizer": replace(
        _BERT,
        ends=_roberta_ends,
        tokens=_named("<s> </s> </s> <s> [UNK] <pad> <mask>", *_OF_ROBERTA),
        typed=False,
        mask_takes_space=True,
    ),
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "MvpTokenizer"),
        Recipe(
            model="BPE",
            parts=_gpt2,
            ends=_roberta_ends,
            tokens=_ROBERTA,
            settings={"add_prefix_space": False, "trim_offsets": True},
        ),
    ),
    "XLMRobertaTokenizer": _XLM_ROBERTA,
    "CamembertTokenizer": replace(
        _XLM_ROBERTA,
        parts=_camembert,
        mask_takes_space=True,
        extra=_not_used,
    ),
    "AlbertTokenizer": Recipe(
        model="Unigram",
        parts=_albert,
        ends=_framed_by("cls_token", "sep_token", _TYPED_PAIR),
        tokens=_named("[CLS] [SEP] <unk> [SEP] <pad> [CLS] [MASK]", *_OF_ALBERT),
        settings={"do_lower_case": True, "keep_accents": False, "add_prefix_space": True, "trim_offsets": True},
        wins=False,
    ),
    "DebertaV2Tokenizer": Recipe(
        model="Unigram",
        parts=_deberta_v2,
        ends=_framed_by("cls_token", "sep_token", _TYPED_PAIR, (0, 0)),
        tokens=_named("[CLS] [SEP] [UNK] [SEP] [PAD] [CLS] [MASK]", *_OF_ALBERT),
        settings={"do_lower_case": False, "split_by_punct": False, "add_prefix_space": True, "unk_id": 1},
        typed=True,
    ),
    "DebertaTokenizer": Recipe(
        model="BPE",
        parts=_gpt2,
        ends=_framed_by("cls_token", "sep_token", _TWICE),
        tokens=_named("[CLS] [SEP] [UNK] [SEP] [PAD] [CLS] [MASK]", *_OF_ALBERT),
        settings={"add_prefix_space": False},
        typed=True,
    ),
    "T5Tokenizer": Recipe(
        model="Unigram",
        parts=_t5,
        ends=_t5_ends,
        tokens=_named("</s> <unk> <pad>", "eos", "unk", "pad"),
        settings={"extra_ids": 100},
        extra=_extra_ids,
    ),
    "GPT2Tokenizer": Recipe(
        model="BPE",
        parts=_gpt2,
        tokens=_named("<|endoftext|> <|endoftext|> <|endoftext|> -", "unk", "bos", "eos", "pad"),
        settings={"add_prefix_space": False},
    ),
    "Qwen2Tokenizer": Recipe(
        model="BPE",
        parts=_qwen2,
        tokens=_named("<|endoftext|> - <|endoftext|> <|endoftext|>", "unk", "bos", "eos", "pad"),
        settings={"add_prefix_space": None},
    ),
    "GemmaTokenizer": Recipe(
        model="BPE",
        parts=_gemma,
        tokens=_named("<unk> <bos> <eos> <pad> <mask>", "unk", "bos", "eos", "pad", "mask"),
        left=True,
    ),
    "LlamaTokenizer": Recipe(
        model="BPE",
        parts=_llama,
        tokens=_named("<unk> <s> </s>", "unk", "bos", "eos"),
        settings={"add_prefix_space": None, "legacy": False},
        left=True,
    ),
}
"""The classes that rebuild a tokenizer by rules that mp_core implements too."""

_OWN_RULES = (
    "Barthez BigBird Blenderbot CLIP CodeGen CodeLlama Cohere ConvBert DPRContextEncoder DPRQuestionEncoder DPRReader "
    "Esmc FNet Funnel GPTNeoX Herbert Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke MBart MBart50 MLuke MarkupLM Nllb "
    "Nougat OpenAIGPT Pegasus Qwen3_5 Reformer RemBert RoFormer SeamlessM4T Siglip2 Splinter Tipsv2 Udop VideoPrism "
    "Whisper XGLM XLNet"
)
_IN_PYTHON = (
    "Bartpho BertGeneration Bertweet BioGpt BlenderbotSmall ByT5 CTRL Canine Clvp Cpm CpmAnt Dia Esm FSMT "
    "FastSpeech2Conformer Flaubert GPTNeoXJapanese GPTSw3 M2M100 Marian Mgpstr MyT5 PLBart Perceiver Phobert "
    "ProphetNet RoCBert Siglip Speech2Text SpeechT5 Tapas Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC XLM"
)
REFUSED: dict[str, str] = {
    **{
        f"{name}Tokenizer": "rebuilds the tokenizer by rules of its own that mp_core does not have; if tokenizer.json "
        "is to be run as it is, write TokenizersBackend there"
        for name in _OWN_RULES.split()
    },
    **{f"{name}Tokenizer": "is written in Python and reads no tokenizer.json" for name in _IN_PYTHON.split()},
    "BertJapaneseTokenizer": "cuts texts at words that MeCab, Sudachi or Juman++ find with a dictionary: "
    "tokenizer.json cannot hold that, so mp_core cannot run this model, and no conversion helps",
}
"""The classes of transformers that mp_core refuses, because they give other tokens than tokenizer.json, and why."""

_DEFAULTS = {
    **dict.fromkeys(("bert", "ernie", "distilbert", "electra", "nomic_bert"), "BertTokenizer"),
    "deberta-v2": "DebertaV2Tokenizer",
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("jina_embeddings_v3", "gte", "xlm-roberta"), "XLMRobertaTokenizer"),
    "mpnet": "MPNetTokenizer",
    "albert": "AlbertTokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "camembert": "CamembertTokenizer",
    **dict.fromkeys(("t5", "mt5"), "T5Tokenizer"),
}
"""``model_type`` -> the class of folders that do not name one."""
_ALWAYS = {"qwen2": "Qwen2Tokenizer"} | dict.fromkeys(("modernbert", "phi3", "mistral", "umt5"), "TokenizersBackend")
"""``model_type`` -> the class of all its folders, regardless of the one they name, since many name a wrong one."""


def class_named(named: str | None, kind: Any, is_byte_level: bool, has_code: bool) -> tuple[str, bool]:
    """Return the name of the class that transformers uses for a folder, and whether the folder names it.

    `named` is the class in ``tokenizer_config.json`` or else in ``config.json``, and `kind` the ``model_type``. A
    folder may have its own class in Python (`has_code`), which is not run.
    """
    name = None if named is None else named.removesuffix("Fast")
    if kind in _ALWAYS and not (has_code and name):
        return _ALWAYS[kind], name not in (None, "TokenizersBackend", "PreTrainedTokenizer")
    if name is None:
        return _DEFAULTS.get(kind, "TokenizersBackend"), False
    if name == "LlamaTokenizer" and is_byte_level and not has_code:
        return "TokenizersBackend", True
    return (name if name in RECIPES or name in REFUSED else "TokenizersBackend"), True
