"""One client does not stop the server: connections, bytes and work are bounded, and end with their client."""

import errno
import http.client
import json
import select
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from servers import LIMIT, Lengths, Lines, Server, serving

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models.texts import Tokens
from mp_core.serving import connections, server
from mp_core.serving.front import create_app
from mp_core.serving.limits import Limits
from mp_core.serving.portions import json_portions, text_portions, tokens_of


def app_of(model, **limits):
    return create_app([model], limits=Limits(**limits), log=Lines())


def client_of(port):
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)


def post(body, path="/embed"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def ask(port, path="/health", body=None):
    """Return the status and the content of an answer on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


HEAD = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"


# ---- connections


def test_an_answer_before_the_end_of_a_body_ends_the_connection(monkeypatch):
    monkeypatch.setattr(connections, "_LINGER_SECONDS", 0.5)
    with serving(app_of(Lengths())) as (port, running), client_of(port) as client:
        client.sendall(HEAD + b"{")
        stream = client.makefile("rb")
        head = [stream.readline().lower() for _ in range(6)]
        assert head[0].startswith(b"http/1.1 413")
        assert b"connection: close\r\n" in head
        client.sendall(b"x")  # by which it once was kept for ever
        assert stream.read().endswith(b"}")  # and then its end
        wait_until(lambda: not running.server_state.connections)


def test_a_client_that_sends_a_refused_body_to_its_end_gets_the_answer():
    with serving(app_of(Lengths())) as (port, _):
        for _ in range(5):
            with client_of(port) as client:
                client.sendall(HEAD)
                time.sleep(0.02)
                client.sendall(b"x" * 9_000_000)
                assert client.makefile("rb").readline().startswith(b"HTTP/1.1 413")


def test_unused_connections_make_room_for_others(monkeypatch):
    monkeypatch.setattr(server, "_UNUSED_SECONDS", 0.05)
    log = Lines()
    with serving(app_of(Lengths()), log, connections=3) as (port, _):
        begun = [client_of(port) for _ in range(5)]
        for client in begun:
            client.sendall(b"GET /health HTTP/1.1\r\n")
        for _ in range(5):
            assert ask(port)[0] == 200
        assert begun[0].recv(1) == b""  # the first one was closed
        for client in begun:
            client.close()
    assert [message for _, message, _ in log.kept] == ["3 connections are open, the most that may be"]


def test_slow_bodies_take_nobody_s_place(monkeypatch):
    monkeypatch.setattr(server, "_SLOW_SECONDS", 0.05)
    with serving(app_of(Lengths(), requests=2), connections=4) as (port, running):
        slow = [client_of(port) for _ in range(4)]
        for client in slow:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        wait_until(lambda: len(running.server_state.tasks) >= 3)  # one may have made room already
        for _ in range(3):
            assert ask(port, "/embed", {"inputs": "abc"}) == (200, b"[[3.0]]")
        closed, _, _ = select.select(slow, [], [], LIMIT)  # which of them is oldest, when all came at once, is open
        assert [client.recv(1) for client in closed] == [b""] * len(closed) != []
        for client in slow:
            client.close()


def test_there_are_no_more_connections_than_descriptors(monkeypatch):
    monkeypatch.setattr(server, "descriptors", lambda: server._SPARE + 2)
    monkeypatch.setattr(server, "_UNUSED_SECONDS", 60)
    with serving(app_of(Lengths())) as (port, running):
        held = [client_of(port) for _ in range(2)]
        wait_until(lambda: len(running.server_state.connections) == 2)
        with client_of(port) as third:
            third.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            time.sleep(0.2)
            assert len(running.server_state.connections) == 2
            held.pop().close()
            assert third.recv(100).startswith(b"HTTP/1.1 200")
        held.pop().close()


def test_descriptors_are_those_that_the_process_may_still_open():
    resource = pytest.importorskip("resource")
    before = server.descriptors()
    assert before < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with socket.socket(), socket.socket():
        assert before - server.descriptors() == 2


def test_where_none_can_be_accepted_the_log_has_one_line(monkeypatch):
    log, fails = Lines(), [30]
    accept = socket.socket.accept

    def failing(self):
        if fails[0]:
            fails[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    monkeypatch.setattr(server, "_PAUSE", 0.01)
    with serving(app_of(Lengths()), log) as (port, _):
        assert ask(port)[0] == 200
    assert [message for _, message, _ in log.kept] == ["no connection can be accepted: Too many open files"]


def test_sixty_clients_do_not_lock_others_out_of_64_descriptors(tmp_path):
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from mp_core.serving import models
from servers import Lengths
models.open_models = lambda *arguments: [Lengths()]
"""
    running = Server(tmp_path, log=tmp_path / "log", code=code)
    try:
        clients = [running.connect() for _ in range(60)]
        for number, client in enumerate(clients):
            client.sendall([HEAD + b"{", b"GET /health HTTP/1.1\r\n", b""][number % 3])
        assert running.ask("/embed", {"inputs": "abc"})[2] == [[3]]
        for client in clients:
            client.close()
        assert len(running.lines()) < 60  # of the refused requests, and one of the connections
    finally:
        running.stop()


# ---- bytes


class Wide(Lengths):
    """A model of embeddings of a million numbers, each of which has 20 characters."""

    dim = 1 << 20

    def compute(self, tokens, options):
        return np.full((len(tokens), self.dim), -0.012345678918063641, np.float32)

    def numbers(self, tokens, options):
        return len(tokens) * self.dim


def test_an_answer_that_nobody_reads_is_counted_until_it_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "_STALL_SECONDS", 1.0)
    with serving(app_of(Wide(), flight_bytes=30 << 20)) as (port, _), client_of(port) as idle:
        idle.sendall(post({"inputs": "a"}))
        assert idle.recv(20).startswith(b"HTTP/1.1 200")
        status, content = ask(port, "/embed", {"inputs": "b"})
        assert status == 429
        assert b"and at most 31457280 may be" in content
        assert ask(port, "/health")[0] == 200
        wait_until(lambda: ask(port, "/embed", {"inputs": "b"})[0] == 200)
        assert b"mp_core_bytes_in_flight 0\n" in ask(port, "/metrics")[1]
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            while idle.recv(1 << 20):
                pass
            raise ConnectionError


def test_a_long_answer_that_is_read_slowly_is_given_up(monkeypatch):
    monkeypatch.setattr(connections, "_LEAST_RATE", 1e9)
    monkeypatch.setattr(connections, "_STALL_SECONDS", 2.0)
    received = 0
    with serving(app_of(Wide())) as (port, _), client_of(port) as client:
        client.sendall(post({"inputs": "a"}))
        try:
            while part := client.recv(1 << 15):
                received += len(part)
                time.sleep(0.01)
        except ConnectionError:
            pass
    assert 0 < received < 20 * Wide.dim


def test_a_request_whose_answer_would_be_too_long_is_refused_before_it_is_computed():
    model = Wide()
    with serving(app_of(model, flight_bytes=30 << 20)) as (port, _):
        status, content = ask(port, "/embed", {"inputs": ["a", "b"]})
    assert status == 413
    assert b"at most 31457280 bytes" in content
    assert model.calls == []


def test_a_long_answer_arrives_whole_and_is_json():
    with serving(app_of(Wide())) as (port, _):
        status, content = ask(port, "/embed", {"inputs": "a"})
    assert status == 200
    assert json.loads(content) == [[float(np.float32(-0.012345678918063641))] * Wide.dim]


def test_answers_in_portions_are_the_json_of_the_whole():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 40_000)).astype(np.float32)
    parts = np.empty(2, object)
    parts[:] = [vectors[:1, :5], vectors[1:, :7]]
    cases = [
        (vectors, vectors.tolist()),
        (parts, [part.tolist() for part in parts]),
        ({"data": [{"index": 0, "embedding": vectors[0]}], "usage": {"n": 1}},
         {"data": [{"index": 0, "embedding": vectors[0].tolist()}], "usage": {"n": 1}}),
        (([{"index": 1}] for _ in range(2)), [[{"index": 1}], [{"index": 1}]]),
        ([], []), ({}, {}), ("a\n", "a\n"), ([[]], [[]]), ((each for each in ()), []), (parts[:0], []),
        (vectors[:, :9000], vectors[:, :9000].tolist()), (vectors[:, :2000], vectors[:, :2000].tolist()),
        (vectors.reshape(6000, 20), vectors.reshape(6000, 20).tolist()), (vectors[:0], []),
        ([*range(4097)], [*range(4097)]), ("x" * 100_000, "x" * 100_000), (["x" * 100_000, "y"], ["x" * 100_000, "y"]),
        ([{"a": "b", "c": [1, 2]}] * 5000, [{"a": "b", "c": [1, 2]}] * 5000),
        (((number for number in range(2)) for _ in range(2)), [[0, 1], [0, 1]]),
    ]  # fmt: skip
    for answer, whole in cases:
        found = [*json_portions(answer)]
        assert b"".join(found) == json.dumps(whole, separators=(",", ":")).encode()
        assert max(map(len, found)) < 2_000_000
    for answer in (np.array([np.nan, 1, -np.inf]), [{"score": np.inf}]):
        with pytest.raises(ValueError, match="not JSON compliant"):
            b"".join(json_portions(answer))


def test_a_body_of_many_small_chunks_is_refused_and_others_are_not():
    chunked = b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    text = json.dumps({"inputs": "x" * 3000}).encode()
    with serving(app_of(Lengths(), tokens=1 << 20)) as (port, _):
        with client_of(port) as client:
            client.sendall(chunked + b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        with client_of(port) as client:
            client.sendall(chunked + b"1\r\nx\r\n" * 20_000)
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        with client_of(port) as client:
            size = 10_000 * 60
            body = b'{"inputs": "' + b"x" * (size - 14) + b'"}'
            parts = [body[start : start + 60] for start in range(0, size, 60)]
            client.sendall(chunked + b"".join(b"3c\r\n%b\r\n" % part for part in parts) + b"0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_head_of_many_fields_is_refused():
    with serving(app_of(Lengths())) as (port, _), client_of(port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n" + b"a:b\r\n" * 40_000 + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")


# ---- work that nobody waits for


class Counting(Lengths):
    """A model that says when it has read a portion of texts, and waits."""

    def __init__(self):
        super().__init__()
        self.read, self.go = [], threading.Event()

    def tokenize(self, inputs, prompt_name=None):
        self.read.append(len(inputs))
        self.go.wait(LIMIT)
        return super().tokenize(inputs, prompt_name)


def test_texts_of_a_client_that_went_away_are_not_read():
    model = Counting()
    with serving(app_of(model)) as (port, _):
        with client_of(port) as client:
            client.sendall(post({"inputs": ["x" * 40_000] * 20}))
            wait_until(lambda: model.read)
        wait_until(lambda: b'status="499"' in ask(port, "/metrics")[1])
        model.go.set()
        assert ask(port, "/embed", {"inputs": "y" * 3000})[0] == 200
    assert model.read == [2, 1]


def test_portions_are_all_texts_in_order_and_read_a_shared_text_twice_at_most():
    texts = ["a" * 30_000, "b", "c" * 90_000, "d"]
    assert [(first, len(part), size) for first, part, size in text_portions(texts)] == [(0, 3, 120_001), (3, 1, 1)]
    query = "q" * 500_000
    pairs = [(query, "d" * 1000) for _ in range(2000)]
    found = [*text_portions(pairs)]
    assert [pair for _, part, _ in found for pair in part] == pairs
    assert sum(size for _, _, size in found) < 2 * 2_500_000
    assert [*text_portions([("a", "b"), "c"])] == [(0, [("a", "b"), "c"], 3)]


def test_errors_of_a_portion_name_the_place_in_the_whole():
    class Refusing:
        def tokenize(self, inputs, prompt_name):
            raise ValueError("`inputs[3]` must have a token; `x[1]` too")

    with pytest.raises(ValueError, match=r"^`inputs\[13\]` must have a token; `x\[1\]` too$"):
        tokens_of(Refusing(), ["a"], None, 10)
    assert isinstance(tokens_of(Lengths(), ["a"], None, 0), Tokens)
