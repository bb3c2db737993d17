"""Tokenizers: long texts of every kind at a bounded cost, pairs truncated as in the package tokenizers."""

import json

import numpy as np
import pytest
import random_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from mp_core.models import BertEncoder
from mp_core.models import tokenizer as module
from mp_core.models.tokenizer import _cuts_at_spaces, _first_words, _last_words, _shortening_of_starts

LIMIT = 6
NEEDED = LIMIT + 1
PIECES = ["a", "b", "ab", " a", "b ", " ", "  ", "\n", "\t ", "\u00a0", "\u3000", "'s ", "'", "1 ", "12", ".", "<m>"]
PIECES += [
    "\u0301",
    "e\u0301 ",
    "\u00e9 ",
    "\u0416 ",
    "\u4e2d",
    "\u0600a ",
    "\u200b",
    "\x1c",
    "\x00",
    "\u03a3 ",
    "\ufb01 ",
]
PIECES += ["a" * 40 + " ", "\u4e2d" * 40, " " * 30, "a b " * 20, "A ", "_ ", "\u0130 ", "\uac00 ", "\u1100", "\r\n"]


def byte_level(normalizer=None, added=(), prefix=False):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: place for place, letter in enumerate([*alphabet, "ab", "\u0120a", "aa", "<m>"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "b"), ("\u0120", "a"), ("a", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return finished(tokenizer, normalizer, added)


def unigram(normalizer=None, added=(), pre_tokenizer=None):
    pieces = ["<unk>", "<m>", "\u2581", "a", "b", "ab", "\u2581a", "\u0416", "\u4e2d", "1", "e"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(place)) for place, piece in enumerate(pieces)], unk_id=0))
    spaces = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Sequence(spaces)
    return finished(tokenizer, normalizer, added)


def finished(tokenizer, normalizer, added):
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens(list(added))
    tokenizer.enable_truncation(LIMIT)
    return tokenizer


ONE_SPACE = normalizers.Replace(Regex(" {2,}"), " ")
MASK = AddedToken("<m>", lstrip=True, rstrip=True)
SPACES = [AddedToken(" " * n, normalized=True) for n in (2, 3, 24)]  # as ModernBERT's tokenizer has
KINDS = {
    "byte-level BPE": byte_level(),
    "byte-level BPE with added tokens": byte_level(normalizers.NFC(), [MASK, *SPACES], prefix=True),
    "Unigram": unigram(),
    "Unigram normalized": unigram(normalizers.Sequence([normalizers.NFKC(), ONE_SPACE]), [MASK]),
    "Unigram of Metaspace": unigram(normalizers.Lowercase(), pre_tokenizer=pre_tokenizers.Metaspace()),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=5, max_size=80))
def test_the_first_words_have_the_same_first_tokens(kind, pieces):
    tokenizer, text = KINDS[kind], "".join(pieces)
    shorter = _first_words(text, NEEDED)
    expected, received = tokenizer.encode(text), tokenizer.encode(shorter)
    assert received.ids == expected.ids
    assert bool(received.overflowing) == bool(expected.overflowing)


def word_piece(added=(), **options):
    tokenizer = bert_like()
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    return finished(tokenizer, None, added)


BERTS = {
    "BERT": word_piece,
    "BERT of cased words": lambda: word_piece(lowercase=False, strip_accents=False, handle_chinese_chars=False),
    "BERT with added tokens": lambda: word_piece(
        [MASK, AddedToken("1.", normalized=False), AddedToken("b", rstrip=True)]
    ),
}


@pytest.mark.parametrize("kind", [*KINDS, *BERTS])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=5, max_size=80))
def test_the_last_words_have_the_same_last_tokens(kind, pieces):
    tokenizer, text = KINDS[kind] if kind in KINDS else BERTS[kind](), "".join(pieces)
    shorten = _shortening_of_starts(tokenizer, LIMIT)
    assert shorten is not str
    tokenizer.no_truncation()
    expected, received = (tokenizer.encode(each, add_special_tokens=False).ids for each in (text, shorten(text)))
    assert received[-LIMIT:] == expected[-LIMIT:]
    assert (len(received) > LIMIT) == (len(expected) > LIMIT)
    if kind in KINDS:
        tokenizer.enable_truncation(LIMIT)


def test_tokens_across_words_leave_starts_alone():
    assert _shortening_of_starts(word_piece([AddedToken("a b"), AddedToken("b a")]), LIMIT) is str
    for make in OTHERS.values():
        assert _shortening_of_starts(make(), LIMIT) is str


@pytest.mark.parametrize("kind", KINDS)
def test_these_tokenizers_cut_at_spaces(kind):
    assert _cuts_at_spaces(KINDS[kind])


def without(letter):
    state = json.loads(byte_level().to_str())
    state["model"]["vocab"]["spare"] = state["model"]["vocab"].pop(letter)
    return Tokenizer.from_str(json.dumps(state))


OTHERS = {
    "no pre-tokenizer": lambda: unigram(pre_tokenizer=pre_tokenizers.Sequence([])),
    "pre-tokenizer that keeps words together": lambda: unigram(pre_tokenizer=pre_tokenizers.Metaspace(split=False)),
    "another pre-tokenizer": lambda: unigram(pre_tokenizer=pre_tokenizers.CharDelimiterSplit("-")),
    "normalizer that drops letters": lambda: unigram(normalizers.Replace("\u0416", "")),
    "normalizer that drops spaces": lambda: unigram(normalizers.Replace(" ", "")),
    "normalizer that looks ahead": lambda: unigram(normalizers.Replace(Regex("a(?= )"), "b")),
    "added token across a space": lambda: unigram(added=[AddedToken("a b")]),
    "added token across a normalized space": lambda: unigram(normalizers.NFKC(), [AddedToken("a\u00a0b")]),
    "byte without a token": lambda: without("c"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_others_do_not_and_are_left_alone(kind):
    assert not _cuts_at_spaces(OTHERS[kind]())


@pytest.mark.parametrize("piece", ["a ", "word, word ", "\u0416\u0416 ", "a\n b ", "1 "])
def test_of_a_long_text_the_tokenizer_sees_little(piece):
    for shorten in (_first_words, _last_words):
        assert len(shorten(piece * (10**6 // len(piece)), NEEDED)) < 100


# ---- pairs


class Modules:
    """What a folder says, for a tokenizer."""

    max_length, lower_case, special_tokens, markers = LIMIT, False, True, ()

    def __init__(self, network, vocab_size):
        self.network = network
        sizes = {"max_length": 100, "vocab_size": vocab_size, "is_relative": False, "num_hidden_layers": 1}
        self.settings, self.config = type("Settings", (), sizes), {"model_type": "new"}


def loaded(folder, tokenizer, limit):
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"model_input_names": ["input_ids", "token_type_ids"]}')
    modules = Modules(folder, tokenizer.get_vocab_size() + 1)
    modules.max_length = limit
    return module.Tokenizer(modules)


def bert_like(template="[CLS] $A [SEP] $B:1 [SEP]:1"):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh", "##a"]
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    ends = [(word, words.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", template, ends)
    return tokenizer


TEXTS = ["", "a", "a b c", "b " * 9, "c d " * 40, "e " * 39 + "aaa " * 60, "f" * 90, "g, h. " * 30]
TOKENIZERS = {
    "BERT": bert_like,
    "BERT with an even number of special tokens": lambda: bert_like("[CLS] $A [SEP] [SEP]:1 $B:1 [SEP]:1"),
    "BPE": byte_level,
}


@pytest.mark.parametrize("limit", [8, 9, 20])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pairs_are_cut_as_the_package_cuts_them(tmp_path, kind, limit):
    tokenizer = loaded(tmp_path, TOKENIZERS[kind](), limit)
    package = TOKENIZERS[kind]()
    package.enable_truncation(limit)
    pairs = [(a, b) for a in TEXTS for b in TEXTS]
    rows, types, cut = tokenizer.pairs(pairs)
    assert cut == [place for place, pair in enumerate(pairs) if package.encode(*pair).overflowing]
    for pair, row, kinds in zip(pairs, rows, types, strict=True):
        expected = package.encode(*pair)
        np.testing.assert_array_equal(row, expected.ids, err_msg=str(pair))
        np.testing.assert_array_equal(kinds, expected.type_ids, err_msg=str(pair))


def test_of_a_pair_with_one_long_text_the_package_sees_little(tmp_path, monkeypatch):
    tokenizer = loaded(tmp_path, bert_like(), 9)
    inner, seen = tokenizer._tokenizer, []

    class Watched:
        def encode_batch_fast(self, texts, **options):
            seen.extend(map(len, texts))
            return inner.encode_batch_fast(texts, **options)

    monkeypatch.setattr(tokenizer, "_tokenizer", Watched())
    tokenizer.pairs([("a b", "a " * 10**5), ("c d " * 10**5, "")])
    assert len(seen) == 4
    assert max(seen) < 1000


def test_each_text_of_pairs_is_tokenized_once_whole(tmp_path, monkeypatch):
    tokenizer = loaded(tmp_path, bert_like(), 10)
    inner, seen = tokenizer._tokenizer, []

    class Watched:
        def encode_batch_fast(self, texts, **options):
            seen.extend(texts)
            return inner.encode_batch_fast(texts, **options)

    monkeypatch.setattr(tokenizer, "_tokenizer", Watched())
    query, documents = "a " * 100, ["b " * number for number in (99, 100, 101, 102)]
    rows, _, _ = tokenizer.pairs([(query, document) for document in documents])
    assert [row.tolist() for row in rows] == [inner.encode(query, document).ids for document in documents]
    assert seen.count(query) == 1
    assert all(seen.count(document) == 1 for document in documents)


SENTENCES = [
    "the cat sat on the mat",
    "a dog ran to the park",
    "cats and dogs like the sun",
    "it rains in the north",
] * 20


@pytest.mark.parametrize("name", ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.json"])
def test_a_folder_with_another_tokenizer_names_the_line_that_makes_it(tmp_path, name):
    folder = random_models.save(random_models.made("bert"), tmp_path)
    (folder / "tokenizer.json").rename(folder / name)
    with pytest.raises(FileNotFoundError, match=rf"has {name}, from which transformers' AutoTokenizer") as refusal:
        BertEncoder.from_folder(folder)
    assert ("sentencepiece and protobuf" in str(refusal.value)) == name.endswith(".model")


def test_that_line_makes_a_tokenizer_with_the_pieces_of_sentencepiece(tmp_path):
    pieces = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    folder = random_models.save(random_models.made("t5", vocab_size=220), tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "sentences.txt").write_text("\n".join(SENTENCES))
    pieces.SentencePieceTrainer.train(input=str(folder / "sentences.txt"), model_prefix=str(folder / "spiece"),
        vocab_size=32, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)  # fmt: skip
    random_models.library().AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    processor = pieces.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    rows = BertEncoder.from_folder(folder).tokenize(SENTENCES[:4]).rows
    assert [row.tolist() for row in rows] == [[*processor.encode(text), 1] for text in SENTENCES[:4]]
