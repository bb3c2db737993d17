"""The server and bad clients: every wrong request is a 4xx with its reason, and memory stays flat."""

import json
import os
import random
import socket
import time

import numpy as np
import pytest
import tiny_bert
from fuzz import folders
from hostile_requests import GOOD, answer, hostile, post
from oracles import assert_same_bits
from servers import LIMIT, Lengths, Server, scorer, serving

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models import BertEncoder
from mp_core.serving import connections
from mp_core.serving.front import create_app
from mp_core.serving.logs import Log


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("hostile") / "encoder")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    parent = tmp_path_factory.mktemp("scorers")
    scorers = scorer(parent / "reranker", 1), scorer(parent / "classifier", 3)
    late = [folders.write(parent / kind, "bert", kind, np.random.default_rng(0)) for kind in ("sparse", "tokens")]
    running = Server(folder, *scorers, *late, log=parent / "log")
    yield running
    running.stop()


def test_good_requests_of_the_fuzzer_are_good(server):
    for path, body in GOOD.items():
        assert answer(server.port, post(path, json.dumps(body).encode()))[0] == 200


def test_every_wrong_request_is_a_4xx_with_a_message(server, folder):
    draw, lines, texts = random.Random(7), len(server.lines()), tiny_bert.TEXTS
    for count in range(400):
        request = hostile(draw)
        status, body = answer(server.port, request)
        assert 400 <= status < 500, (request[:200], body[:200])
        assert len(body) > 20, request[:200]
        if count == 100:
            before = server.resident()
    assert server.resident() - before < 8 << 20
    expected = BertEncoder.from_folder(folder).encode(texts)
    assert_same_bits(np.array(server.get("/embed", {"inputs": texts}), np.float32), expected)
    new = server.lines()[lines:]
    assert 401 <= len(new) <= 440  # two if the body is wrong as HTTP: the request's, and what is wrong
    assert max(map(len, new)) < 600


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/embed", b"", 400, "the body must be JSON"),
        ("/embed", b"[1]", 400, "the body must be a JSON object; received a list"),
        ("/embed", b'{"inputs": "a", "dimensions": NaN}', 400, "the body must be JSON: NaN is not a JSON number"),
        ("/embed", b'{"inputs": "a", "dimensions": 1e400}', 422, "a positive integer below 2^31; received Infinity"),
        ("/embed", b'{"inputs": %b}' % (b"9" * 5000), 400, "value has 5000 digits"),
        ("/embed", {"inputs": []}, 422, "at least one string; received an empty list"),
        ("/embed", {}, 422, '"inputs" is missing'),
        ("/embed", {"inputs": ["a", None]}, 422, '"inputs"[1] must be a string; received null'),
        ("/embed", {"inputs": ["\ud800"]}, 422, '"inputs"[0] has half of a surrogate pair'),
        ("/embed", {"inputs": [[101, 102]]}, 422, "send text"),
        ("/embed", {"inputs": "a", "normalize": "yes"}, 422, 'must be true or false; received the string "yes"'),
        ("/embed", {"inputs": "a", "dimensions": 17}, 422, "at most 16"),
        ("/embed", {"inputs": "a", "dimensions": True}, 422, "a positive integer below 2^31; received true"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, 'must be "left" or "right"; received the str'),
        ("/embed", {"inputs": "a", "precision": "int4"}, 422, '"float32" or "int8" or "uint8" or "binary"'),
        ("/embed", {"inputs": "a", "precision": "int8", "normalize": False}, 422, '"normalize" must be true with "pre'),
        ("/predict", {"inputs": "a", "parameters": {"x": 1}}, 422, 'the field "x" of "parameters" is unknown; known'),
        (
            "/predict",
            {"inputs": "a", "raw_scores": True, "parameters": {"function_to_apply": "none"}},
            422,
            '"raw_scores" and "function_to_apply" of "parameters" exclude each other',
        ),
        (
            "/predict",
            {"inputs": "a", "parameters": {"function_to_apply": "max"}},
            422,
            '"sigmoid" or "softmax" or "none',
        ),
        ("/predict", {"inputs": "a", "parameters": {"top_k": 0}}, 422, '"parameters"."top_k" must be a positive'),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, 422, '"inputs"."source_sentence" is missing'),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [1]}}, 422, '"inputs"."sentences"[0] must be'),
        ("/", {"inputs": {"source_sentence": "a"}}, 422, '"inputs"."sentences" is missing'),
        ("/", {"inputs": "a", "model": "x"}, 404, "there is no model of that name"),
        ("/", [], 400, "the body must be a JSON object"),
        ("/tokenize", {"inputs": "a", "prompt_name": "x"}, 422, '"prompt_name" must be one of'),
        ("/tokenize", {"inputs": "a", "prompt_name": "x", "model": "reranker"}, 422, "must be absent for reranker"),
        ("/tokenize", {"inputs": "a " * 300_000, "add_special_tokens": True}, 413, "at most 300000 tokens"),
        ("/decode", {"ids": [4444]}, 422, "the model's vocabulary has no token 4444"),
        ("/decode", {"ids": [[1], [-1]]}, 422, '"ids"[1][0] must be the number of a token; received -1'),
        ("/decode", {"ids": [[1], 2]}, 422, '"ids"[1] must be a list of at least one token; received 2'),
        ("/decode", {"ids": [[[1]]]}, 422, '"ids"[0] must be a list of at least one token; received a list'),
        ("/decode", {"ids": []}, 422, '"ids" must be a list of at least one token, or of such lists'),
        ("/embed", {"inputs": "a", "texts": []}, 422, 'the field "texts" is unknown; known are "inputs"'),
        ("/embed", {"inputs": "a", "model": "reranker"}, 422, "reranker is of kind reranker, not encoder"),
        ("/embed", {"inputs": "a", "model": "x"}, 404, "those of this kind are encoder"),
        ("/embed", {"inputs": "a" * (1 << 21)}, 413, "at most 2097152 bytes"),
        ("/embed", {"inputs": ["a"] * 2049}, 413, "at most 2048 texts; received 2049"),
        ("/rerank", {"query": "a", "texts": "b"}, 422, '"texts" must be a list of at least one string'),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, '"inputs"[0] must have one string or two; received 3'),
        ("/predict", {"inputs": [["a"], "b"]}, 422, '"inputs"[1] must have one string or two; received the string "b"'),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "b", "x": 1}]}, 400, '"x" of "documents"[0] is unknown'),
        ("/v1/rerank", {"query": "a", "documents": ["a", {}]}, 400, '"documents"[1]."text" is missing'),
        ("/v1/rerank", {"query": "a", "documents": [1]}, 400, '"documents"[0] must be a string; received 1'),
        ("/embeddings", {"input": "a", "odd": 1}, 400, 'the field "odd" is unknown'),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b"], "top_n": 0},
            400,
            "a positive integer below 2^31; received 0",
        ),
        ("/v1/embeddings", {"input": [1, 2]}, 400, "send text"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, '"float" or "base64"'),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(server, path, body, status, words):
    received, _, answer = server.ask(path, body)
    error = answer["error"]
    assert received == status
    assert words in (error["message"] if path.startswith("/v1/") or path == "/embeddings" else error)


def test_a_connection_without_a_whole_head_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    with serving(create_app([Lengths()], log=Log(quiet=True))) as (port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\n")
            assert slow.recv(100) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as steady:
            for _ in range(3):
                steady.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                assert steady.recv(1000)
                time.sleep(0.2)


def test_a_file_of_weights_that_becomes_shorter_does_not_end_the_server(tmp_path):
    """The system ends a process that reads a map behind the end of its file (SIGBUS)."""
    folder, text = tiny_bert.write(tmp_path / "encoder"), {"inputs": tiny_bert.TEXTS}
    running = Server(folder, log=tmp_path / "log")
    try:
        running.get("/embed", text)
        os.truncate(folder / "model.safetensors", 100)
        for _ in range(2):
            assert running.ask("/embed", text)[0] == 500
        assert running.ask("/health")[0] == 503 and running.process.poll() is None
        told = f"and has 100 now: open it again: '{folder / 'model.safetensors'}'"
        assert any(told in line for line in running.lines())
    finally:
        assert running.stop() == 0
