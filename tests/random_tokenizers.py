"""Random folders of tokenizers: every setting that transformers reads, in any combination, from a seed."""

import io
import json
import random
from functools import cache

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

NAMES = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
CLASSES = {
    None: None, "PreTrainedTokenizerFast": None, "TokenizersBackend": None, "Unheard": None,
    "BertTokenizer": "words", "BertTokenizerFast": "words", "DistilBertTokenizer": "words",
    "MPNetTokenizerFast": "words", "ElectraTokenizerFast": "words", "RobertaTokenizer": "bytes",
    "DebertaTokenizerFast": "bytes", "Qwen2Tokenizer": "bytes", "GPT2Tokenizer": "bytes",
    "XLMRobertaTokenizerFast": "pieces", "CamembertTokenizer": "pieces", "AlbertTokenizerFast": "pieces",
    "DebertaV2Tokenizer": "pieces", "T5TokenizerFast": "pieces", "GemmaTokenizer": "pairs",
    "LlamaTokenizerFast": "pairs",
}  # fmt: skip
"""Class -> the kind of tokenizer that it is made of, None for any."""
TYPES = {
    "bert": "words", "distilbert": "words", "electra": "words", "nomic_bert": "words", "mpnet": "words",
    "roberta": "bytes", "qwen2": "bytes", "qwen3": "bytes", "gemma": "pairs", "gemma3_text": "pairs", "llama": "pairs",
    "xlm-roberta": "pieces", "camembert": "pieces", "albert": "pieces", "deberta-v2": "pieces", "t5": "pieces",
    "mt5": "pieces", "umt5": "pieces", "gte": "pieces", "mistral": "pieces", "modernbert": "pieces", "new": "pieces",
    "phi3": "pieces", "eurobert": "pieces",
}  # fmt: skip
"""``model_type`` -> the kind of tokenizer of folders that name no class."""
SPECIAL = [
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]", "<bos>", "<eos>",
    "<|endoftext|>", "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED",
]  # fmt: skip
OTHERS = ["<a b>", "MASK", "<x>", "ab", "hello", "\u00e9t\u00e9", "  ", "<extra_id_0>", "New York", "."]
WORDS = [
    *"abcABe12.,-'st#_<>nNworldhl\u00e9\u4e2d\u6587\u0416\u2581", "ab", "bc", "he", "llo", "hello", "\u2581a",
    "\u2581he", "\u2581h", "\u2581hello", "wor", "ld",
]  # fmt: skip
TEXTS = [
    "", "hello world a b c", "H\u00c9llo  W\u00f6rld\n\tabc", "<s>a</s> <mask>b [MASK] c [CLS]",
    "caf\u00e9 e\u0301t\u00e9 \u4e2d\u6587ab", "  lead", "trail  ", "a,b.c-'s don't", "<a b>x<x>MASK ab MASKS hello",
    "<|endoftext|> <extra_id_0> <bos>  <eos>", "\ufdfa \ufb01 \u2460 \u0130I", "New York New  York", "hello." * 30,
    "a b c d e f g h " * 10, "\u200b\u00ad\u3000x\ufeff", "<unk><pad>[PAD][UNK]<unk>NOTUSED", "\U0001f600 1 22",
    "#_<>",
]  # fmt: skip
PAIRS = [
    ("hello a", "b c"), ("a b c d e f g " * 9, "hello"), ("a", "hello " * 30), ("a b c " * 30, "hello " * 31),
]  # fmt: skip


@cache
def characters():
    """Return the map of characters that SentencePiece gives most of its models."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world a b c"] * 50), model_writer=written, vocab_size=20, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    return sentencepiece_model_pb2.ModelProto.FromString(written.getvalue()).normalizer_spec.precompiled_charsmap


def vocabulary(draw, *words):
    return list(dict.fromkeys([*(word for word in SPECIAL if draw.random() < 0.85), *words]))


def words(draw):
    known = vocabulary(draw, *WORDS, *(f"##{word}" for word in WORDS if len(word) < 3))
    unknown = draw.choice([word for word in known if "unk" in word.lower()] or known)
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(known)}, unk_token=unknown))
    bert = normalizers.BertNormalizer(lowercase=draw.random() < 0.5, strip_accents=draw.choice([None, True, False]))
    if draw.random() < 0.8:
        tokenizer.normalizer = draw.choice([bert, normalizers.Lowercase(), normalizers.NFC()])
    tokenizer.pre_tokenizer = draw.choice([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Whitespace()])
    return tokenizer


def in_bytes(draw):
    joined = ["ab", "he", "ll", "\u0120a", "\u0120h", "llo"]
    known = vocabulary(draw, *sorted(pre_tokenizers.ByteLevel.alphabet()), *joined)
    merges = [("a", "b"), ("h", "e"), ("l", "l"), ("\u0120", "a"), ("\u0120", "h"), ("ll", "o")]
    tokenizer = Tokenizer(models.BPE({word: place for place, word in enumerate(known)}, merges))
    if draw.random() < 0.3:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.5)
    return tokenizer


def pairs(draw):
    known = vocabulary(draw, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS)
    merges = [("a", "b"), ("h", "e"), ("b", "c"), ("\u2581", "a"), ("\u2581", "he")]
    model = models.BPE({word: place for place, word in enumerate(known)}, merges, fuse_unk=True,
                       byte_fallback=draw.random() < 0.8, unk_token=draw.choice([None, known[0]]))  # fmt: skip
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", "\u2581")
    steps = [normalizers.Sequence([]), spaces, normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])]
    tokenizer.normalizer = draw.choice(steps)
    if draw.random() < 0.5:
        scheme = draw.choice(["first", "never", "always"])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False, prepend_scheme=scheme)
    return tokenizer


def pieces(draw):
    known = vocabulary(draw, *WORDS)
    scores = [0.0 if word in SPECIAL and draw.random() < 0.8 else -float(place) for place, word in enumerate(known)]
    tokenizer = Tokenizer(models.Unigram(list(zip(known, scores, strict=True)), unk_id=draw.randrange(5)))
    steps = [normalizers.Precompiled(characters()), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Lowercase()]
    steps = [step for step in steps if draw.random() < 0.4]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps) if draw.random() < 0.7 else steps[0]
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=draw.choice(["always", "never"]))
    cuts = [metaspace, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])]
    tokenizer.pre_tokenizer = draw.choice(cuts)
    return tokenizer


KINDS = {"words": words, "bytes": in_bytes, "pairs": pairs, "pieces": pieces}


def flags(draw):
    return {flag: draw.random() < 0.3 for flag in ("lstrip", "rstrip", "normalized", "single_word")}


def token(draw, known=(*SPECIAL, *OTHERS)):
    word = draw.choice(known)
    whole = {"__type": "AddedToken", "content": word, "special": draw.random() < 0.7, **flags(draw)}
    return whole if draw.random() < 0.4 else word


def made(draw, kind):
    """Return a tokenizer with random ends, added tokens, truncation and padding."""
    tokenizer = KINDS[kind](draw)
    here = sorted({*tokenizer.get_vocab()} & {*SPECIAL}) or ["a"]
    if draw.random() < 0.7:
        first, last = ((word, tokenizer.token_to_id(word)) for word in draw.choices(here, k=2))
        (a, _), (b, _) = first, last
        both = processors.TemplateProcessing(f"{a} $A {b}", f"{a} $A {b} $B:1 {b}:1", [first, last])
        end = processors.TemplateProcessing(f"$A {b}", None, [last])
        tokenizer.post_processor = draw.choice([both, end])
    for word in draw.sample(SPECIAL, draw.randrange(6)):
        tokenizer.add_special_tokens([AddedToken(word, special=True, **flags(draw))])
    for word in draw.sample(OTHERS, draw.randrange(3)):
        tokenizer.add_tokens([AddedToken(word, **flags(draw))])
    if draw.random() < 0.3:
        tokenizer.enable_truncation(draw.choice([5, 512]), direction=draw.choice(["left", "right"]))
    if draw.random() < 0.2:
        tokenizer.enable_padding(pad_token=draw.choice(SPECIAL), direction=draw.choice(["left", "right"]))
    return tokenizer


def settings(draw, tokenizer):
    """Return entries of ``tokenizer_config.json``."""
    found = {name: token(draw, SPECIAL) for name in NAMES if draw.random() < 0.35}
    switches = ("add_prefix_space", "do_lower_case", "tokenize_chinese_chars", "keep_accents", "split_by_punct",
                "trim_offsets", "legacy", "split_special_tokens", "clean_up_tokenization_spaces")  # fmt: skip
    found |= {name: draw.random() < 0.5 for name in switches if draw.random() < 0.2}
    lists = [[token(draw) for _ in range(draw.randrange(4))], None]
    chances = {
        "strip_accents": [None, True, False],
        "extra_ids": [0, 2, 100],
        "truncation_side": ["left", "right"],
        "additional_special_tokens": lists[:1],
        "extra_special_tokens": [*lists, {"x_token": token(draw), "other": token(draw)}],
        "image_token": [token(draw)],
        "model_input_names": [["input_ids"], ["input_ids", "token_type_ids"]],
        "model_max_length": [6, 9, 512, 1e30],
        "max_len": [7],
    }
    found |= {name: draw.choice(values) for name, values in chances.items() if draw.random() < 0.2}
    if draw.random() < 0.35:
        size, listed = tokenizer.get_vocab_size(), {}
        for word in draw.sample(SPECIAL + OTHERS, draw.randrange(8)):
            index = tokenizer.token_to_id(word)
            place = str(size + len(listed) if index is None else index)
            listed[place] = {"content": word, "special": draw.random() < 0.7, **flags(draw)}
        found["added_tokens_decoder"] = listed
    return found


def special_tokens(draw):
    """Return what ``special_tokens_map.json`` holds."""
    found = {}
    for name in NAMES:
        if draw.random() < 0.4:
            word = draw.choice(SPECIAL)
            found[name] = word if draw.random() < 0.6 else {"content": word, **flags(draw)}
    if draw.random() < 0.3:
        found["additional_special_tokens"] = draw.sample(SPECIAL + OTHERS, draw.randrange(4))
    if draw.random() < 0.1:
        found["extra_special_tokens"] = [draw.choice(OTHERS), {"content": draw.choice(OTHERS), **flags(draw)}]
    return found


def write(folder, seed):
    """Write the files of a tokenizer, and return what ``config.json`` says."""
    draw = random.Random(seed)
    name, config = draw.choice(list(CLASSES)), {"model_type": draw.choice(list(TYPES))}
    kind = TYPES[config["model_type"]] if name is None else CLASSES[name] or draw.choice(list(KINDS))
    if config["model_type"] == "qwen2":  # for which transformers takes one class always
        kind = "bytes"
    tokenizer = made(draw, kind)
    said = settings(draw, tokenizer) | ({} if name is None else {"tokenizer_class": name})
    files = {"tokenizer_config.json": said} if name or draw.random() < 0.8 else {}
    if draw.random() < 0.3:
        files["special_tokens_map.json"] = special_tokens(draw)
    if draw.random() < 0.2:
        size, drawn = tokenizer.get_vocab_size(), draw.sample(SPECIAL + OTHERS, draw.randrange(4))
        places = [tokenizer.token_to_id(word) for word in drawn]
        places = [size + number if place is None else place for number, place in enumerate(places)]
        files["added_tokens.json"] = dict(zip(drawn, places, strict=True))
    tokenizer.save(str(folder / "tokenizer.json"))
    for file, content in {"config.json": config, **files}.items():
        (folder / file).write_text(json.dumps(content))
    return config
