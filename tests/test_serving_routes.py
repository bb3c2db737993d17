"""The routes of text-embeddings-inference beside /embed: the answers for its clients, with the bits of the models."""

import base64

import numpy as np
import pytest
import tiny_bert
from oracles import assert_same_bits
from servers import Server, written
from tokenizers import Tokenizer

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models import BertEncoder, Reranker
from mp_core.models.precision import unit_codes

TEXTS = tiny_bert.TEXTS
LONG = " ".join("abcdefgh" * 2 + "hgfedcba")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return written(tmp_path_factory.mktemp("routes"))


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    running = Server(*folders.values(), log=tmp_path_factory.mktemp("log") / "log")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def encoder(folders):
    return BertEncoder.from_folder(folders["encoder"])


def test_the_root_answers_by_the_kind_of_the_model(server):
    embed = {"inputs": TEXTS, "truncation_direction": "Left"}
    assert server.get("/", embed) == server.get("/embed", embed)
    rerank = {"query": "a b", "texts": TEXTS, "model": "reranker"}
    assert server.get("/", rerank) == server.get("/rerank", rerank)
    predict = {"inputs": ["a", "b"], "model": "classifier"}
    assert server.get("/", predict) == server.get("/predict", predict)
    assert server.ask("/", predict | {"normalize": True})[0] == 422


@pytest.mark.parametrize("name", ["reranker", "classifier"])
def test_the_root_of_a_server_of_one_model_needs_no_name(folders, tmp_path, name):
    running = Server(folders[name], log=tmp_path / "log")
    path, body = (
        ("/rerank", {"query": "a", "texts": ["b", "c"]}) if name == "reranker" else ("/predict", {"inputs": "a"})
    )
    assert running.get("/", body) == running.get(path, body)
    assert running.ask("/", method="GET")[0] == 405
    running.stop()


def test_embeddings_is_the_route_of_openai(server):
    body = {"input": TEXTS, "encoding_format": "base64"}
    assert server.get("/embeddings", body) == server.get("/v1/embeddings", body)
    status, _, answer = server.ask("/embeddings", {"input": 1})
    assert (status, answer["error"]["type"], answer["error"]["param"]) == (400, "invalid_request_error", "input")


def test_similarities_are_cosines(server, encoder):
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    vectors = encoder.encode(TEXTS, normalize=True).astype(np.float64)
    for path in ("/similarity", "/"):
        np.testing.assert_allclose(server.get(path, body), vectors[1:] @ vectors[0], atol=1e-6)
    asked = body | {"parameters": {"prompt_name": "query"}}
    vectors = encoder.encode(TEXTS, normalize=True, prompt_name="query").astype(np.float64)
    np.testing.assert_allclose(server.get("/similarity", asked), vectors[1:] @ vectors[0], atol=1e-6)
    status, _, answer = server.ask("/similarity", body | {"parameters": {"truncate": False}})
    assert (status, answer["error_type"]) == (422, "Tokenizer")


@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_the_tokenizer(server, folders, special):
    tokenizer = Tokenizer.from_file(str(folders["encoder"] / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = [*TEXTS, LONG, "\u00e9 a"]
    answer = server.get("/tokenize", {"inputs": texts, "add_special_tokens": special})
    for text, row in zip(texts, answer, strict=True):
        expected = tokenizer.encode(text, add_special_tokens=special)
        assert [token["id"] for token in row] == expected.ids
        assert [token["special"] for token in row] == [bool(mask) for mask in expected.special_tokens_mask]
        for token in row:
            place = slice(token["start"], token["stop"])
            assert token["text"] == (
                ("[CLS]", "[SEP]")[token["id"] - 2] if token["special"] else text.encode()[place].decode()
            )
    assert answer[-1][special]["stop"] == 2  # in bytes
    assert server.get("/tokenize", {"inputs": TEXTS[0], "add_special_tokens": special}) == answer[:1]


def test_prompts_are_tokens_too_and_every_model_has_tokens(server, encoder):
    (row,) = server.get("/tokenize", {"inputs": "c", "prompt_name": "query"})
    assert [token["id"] for token in row] == encoder.tokenize("c", prompt_name="query").rows[0].tolist()
    for name in ("reranker", "classifier"):
        assert [token["text"] for token in server.get("/tokenize", {"inputs": "a", "model": name})[0]][1] == "a"


def test_tokens_are_decoded(server, encoder):
    rows = [row.tolist() for row in encoder.tokenize(TEXTS[:2]).rows]
    assert server.get("/decode", {"ids": rows}) == encoder.decode(rows)
    assert server.get("/decode", {"ids": rows[0], "skip_special_tokens": False}) == encoder.decode(rows[:1])
    _, headers, _ = server.ask("/decode", {"ids": rows})
    assert headers["X-Compute-Tokens"] == str(sum(map(len, rows)))


def test_tokens_are_bytes_of_answers_under_way(folders, tmp_path):
    running = Server(folders["encoder"], "--max-flight-bytes", "1000000", log=tmp_path / "log")
    assert len(running.get("/tokenize", {"inputs": "a " * 1500})[0]) == 1502
    assert len(running.get("/decode", {"ids": [4] * 5000})[0].split()) == 5000
    for path, body in (("/tokenize", {"inputs": "a " * 3000}), ("/decode", {"ids": [4] * 20_000})):
        status, _, answer = running.ask(path, body)
        assert (status, "may have at most 1000000 bytes; these would have" in answer["error"]) == (413, True)
    running.stop()


@pytest.mark.parametrize("direction", ["left", "Left"])
def test_texts_lose_their_starts(server, encoder, folders, direction):
    cut = {"truncation_direction": direction}
    tail = " ".join(LONG.split()[-encoder.max_length + 2 :])
    status, headers, answer = server.ask("/embed", {"inputs": [LONG, "a"], **cut})
    assert (status, headers["X-Truncated"]) == (200, "1")
    assert_same_bits(np.array(answer, np.float32), encoder.encode([tail, "a"], normalize=True))
    assert answer != server.get("/embed", {"inputs": [LONG, "a"]})
    assert server.ask("/embed", {"inputs": LONG, "truncate": False, **cut})[0] == 422
    reranker = Reranker.from_folder(folders["reranker"])
    expected = reranker.predict_tokens(reranker.tokenize([("a b", LONG)], from_start=True), activation="linear")
    body = {"query": "a b", "texts": [LONG], "raw_scores": True, "model": "reranker"}
    assert server.get("/rerank", body | cut)[0]["score"] == float(expected[0])
    assert server.get("/rerank", body)[0]["score"] != float(expected[0])
    body = {"inputs": LONG, "model": "classifier"}
    assert server.get("/predict", body | cut) == server.get("/predict", body | {"inputs": tail})


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_embeddings_have_fewer_bits(server, encoder, precision):
    expected = unit_codes(encoder.encode(TEXTS, normalize=True), precision)
    answer = server.get("/embed", {"inputs": TEXTS, "precision": precision})
    assert answer == expected.tolist()
    assert answer[2:3] == server.get("/embed", {"inputs": TEXTS[2], "precision": precision})
    data = server.get("/v1/embeddings", {"input": TEXTS, "encoding_format": precision})["data"]
    assert [row["embedding"] for row in data] == expected.tolist()
    short = unit_codes(encoder.encode(TEXTS, truncate_dim=9, normalize=True), precision)
    data = server.get("/v1/embeddings", {"input": TEXTS, "encoding_format": precision, "dimensions": 9})["data"]
    assert [row["embedding"] for row in data] == short.tolist()


def test_bits_are_those_of_quantize_embeddings(server, encoder):
    util = pytest.importorskip("sentence_transformers.util")
    answer = server.get("/embed", {"inputs": TEXTS, "precision": "ubinary"})
    np.testing.assert_array_equal(answer, util.quantize_embeddings(encoder.encode(TEXTS, normalize=True), "ubinary"))
    row = server.get("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})["data"][0]["embedding"]
    assert_same_bits(np.frombuffer(base64.b64decode(row), "<f4"), encoder.encode(TEXTS[0]))


def test_predictions_with_parameters_are_a_list_for_each_text(server):
    flat = server.get("/predict", {"inputs": "a b", "model": "classifier"})
    body = {"inputs": "a b", "model": "classifier", "parameters": {}}
    assert server.get("/predict", body) == [flat]
    assert server.get("/predict", body | {"parameters": {"top_k": 2}}) == [flat[:2]]
    several = server.get("/predict", body | {"inputs": [["a b"], ["c"]], "parameters": {"top_k": 1}})
    assert (several[0], [len(row) for row in several]) == (flat[:1], [1, 1])
