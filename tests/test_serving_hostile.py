"""The server and bad clients: every wrong request is a 4xx that says what is wrong, and memory stays flat."""

import json
import random
import socket
import threading
import time

import numpy as np
import pytest
import tiny_bert
from fuzz import folders
from hostile_requests import GOOD, answer, hostile, post
from oracles import assert_same_bits
from servers import LIMIT, Lengths, Server, scorer

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models import BertEncoder


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
        ("/embed", b"[]", 400, "the body must be a JSON object; received a list"),
        ("/embed", {}, 422, '"inputs" is missing'),
        ("/embed", {"inputs": ["a", None]}, 422, '"inputs"[1] must be a string; received null'),
        ("/embed", {"inputs": ["\ud800"]}, 422, '"inputs"[0] has half of a surrogate pair'),
        ("/embed", {"inputs": [[101, 102]]}, 422, "send text"),
        ("/embed", {"inputs": "a", "normalize": "yes"}, 422, 'must be true or false; received the string "yes"'),
        ("/embed", {"inputs": "a", "dimensions": 17}, 422, "at most 16"),
        ("/embed", {"inputs": "a", "dimensions": True}, 422, "a positive integer below 2^31; received true"),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}, 422, '"right" or "Right"'),
        ("/embed", {"inputs": "a", "texts": []}, 422, 'the field "texts" is unknown; known are "inputs"'),
        ("/embed", {"inputs": "a", "model": "reranker"}, 422, "is no encoder, but of kind reranker"),
        ("/embed", {"inputs": "a", "model": "x"}, 404, "those of this kind are encoder"),
        ("/embed", {"inputs": "a" * (1 << 21)}, 413, "at most 2097152 bytes"),
        ("/embed", {"inputs": ["a"] * 2049}, 413, "at most 2048 texts; received 2049"),
        ("/rerank", {"query": "a", "texts": "b"}, 422, '"texts" must be a list of at least one string'),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, '"inputs"[0] must have one string or two; received 3'),
        ("/predict", {"inputs": [["a"], "b"]}, 422, '"inputs"[1] must have one string or two; received the string "b"'),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, 400, '"documents"[0] must be a string'),
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
    assert words in (error["message"] if path.startswith("/v1/") else error)


def test_a_connection_without_a_whole_head_is_closed(monkeypatch):
    from mp_core.serving import front, server
    from mp_core.serving.logs import Log

    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.05)
    listener = server.bound("127.0.0.1", 0)
    port, started, log = listener.getsockname()[1], threading.Event(), Log(quiet=True)
    app = front.create_app([Lengths()], log=log)
    ends = []

    class Kept(server._Server):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            ends.append(self)

    monkeypatch.setattr(server, "_Server", Kept)
    thread = threading.Thread(target=server.serve, args=(app, listener, log), kwargs={"started": started.set})
    thread.start()
    assert started.wait(LIMIT)
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        assert slow.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as steady:
        for _ in range(3):
            steady.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert steady.recv(1000)
            time.sleep(0.2)
    ends[0].should_exit = True
    thread.join(LIMIT)
    assert not thread.is_alive()
