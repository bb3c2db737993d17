"""Tokens for clients: pieces with their positions, texts of tokens, truncated texts: as in the package tokenizers."""

import random
import time

import pytest
import tiny_bert
from servers import scorer
from tokenizers import Tokenizer

from mp_core.models import BertEncoder, Reranker
from mp_core.models.pieces import TooManyTokensError

DRAW = random.Random(3)
LONG = "a b c d e f g h a b c d e f [SEP] \u00e9 g"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return BertEncoder.from_folder(tiny_bert.write(tmp_path_factory.mktemp("pieces") / "encoder"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return Reranker.from_folder(scorer(tmp_path_factory.mktemp("pieces") / "reranker", 1))


def oracle(model, length=None):
    tokenizer = Tokenizer.from_file(str(model._folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if length is not None:
        tokenizer.enable_truncation(length, direction="left")
    return tokenizer


def words(most):
    return " ".join(DRAW.choices("abcdefgh", k=DRAW.randrange(most)))


def test_a_text_that_loses_its_start_has_the_tokens_of_the_tokenizers_package(encoder):
    expected = oracle(encoder, encoder.max_length)
    texts = [words(40) for _ in range(100)]
    tokens = encoder.tokenize(texts, from_start=True)
    assert [row.tolist() for row in tokens.rows] == [expected.encode(text).ids for text in texts]
    assert tokens.cut == [place for place, text in enumerate(texts) if len(text.split()) > encoder.max_length - 2]


def test_a_pair_that_loses_its_starts_has_the_tokens_of_the_tokenizers_package(reranker):
    expected = oracle(reranker, reranker.max_length)
    pairs = [(f"a {words(20)}", f"b {words(20)}") for _ in range(200)]
    tokens = reranker.tokenize(pairs, from_start=True)
    assert [row.tolist() for row in tokens.rows] == [expected.encode(*pair).ids for pair in pairs]
    assert [kinds.tolist() for kinds in tokens.types] == [expected.encode(*pair).type_ids for pair in pairs]


def test_the_last_tokens_of_a_long_text_take_no_square_of_its_length(encoder, reranker):
    text, start = f"a {'b ' * 150_000}c d", time.perf_counter()
    assert (
        encoder.tokenize(text, from_start=True).rows[0].tolist() == encoder.tokenize("b b b b b b c d").rows[0].tolist()
    )
    assert reranker.tokenize([(text, text)], from_start=True).cut == [0]
    with pytest.raises(TooManyTokensError, match="the texts have 150008 tokens"):
        encoder.pieces([text, "a"], most=150_000)
    assert time.perf_counter() - start < 30


def test_a_start_with_an_unpooled_prompt_is_not_cut(encoder, tmp_path):
    other = BertEncoder.from_folder(encoder._folder)
    other.set_pooling_include_prompt(False)
    assert other.tokenize("a", prompt="b ", from_start=True).skipped == 2
    with pytest.raises(ValueError, match="must not be cut at its start, where its prompt is"):
        other.tokenize(LONG, prompt="b ", from_start=True)


@pytest.mark.parametrize("special", [True, False])
def test_pieces_are_all_tokens_with_their_bytes(encoder, special):
    expected = oracle(encoder).encode(LONG, add_special_tokens=special)
    (pieces,) = encoder.pieces(LONG, special=special)
    assert [piece.id for piece in pieces] == expected.ids
    assert [piece.special for piece in pieces] == [bool(mask) for mask in expected.special_tokens_mask]
    assert len(pieces) > encoder.max_length
    raw = LONG.encode()
    for piece in pieces:
        if piece.special:
            assert (piece.text, piece.start) in {("[CLS]", None), ("[SEP]", None)}
        else:
            assert raw[piece.start : piece.stop].decode() == piece.text
    assert "\u00e9" in [piece.text for piece in pieces]


def test_pieces_begin_with_the_prompt(encoder):
    assert [piece.text for piece in encoder.pieces("c", prompt="a b ")[0]] == ["[CLS]", "a", "b", "c", "[SEP]"]


def test_tokens_become_texts_and_unknown_ones_are_named(tmp_path):
    folder = tiny_bert.write(tmp_path / "encoder")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    encoder = BertEncoder.from_folder(folder)
    rows = [[piece.id for piece in pieces] for pieces in encoder.pieces(["a b c", "d"])]
    assert encoder.decode(rows) == ["a b c", "d"] == tokenizer.decode_batch(rows)
    assert encoder.decode(rows[1:], skip_special=False) == ["[CLS] d [SEP]"]
    with pytest.raises(ValueError, match="has no token 4444"):
        encoder.decode([[4444]])
