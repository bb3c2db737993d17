"""The server and HTTP: pages of other origins, proxies' targets, codings, framing, half-closed clients, its log."""

import gzip
import io
import json
import shlex
import time

import numpy as np
import pytest
import tiny_bert
from oracles import assert_same_bits
from servers import Server

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from mp_core.models import BertEncoder
from mp_core.serving.logs import Log

PAGE = "https://page.example"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("http") / "encoder")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """Start a server that needs a key and lets the pages of two origins ask."""
    parent = tmp_path_factory.mktemp("log")
    (parent / "keys").write_text("a-key\n")
    allowed = "--cors-allow-origin", PAGE, "--cors-allow-origin", "http://localhost:3000"
    running = Server(folder, "--api-key-file", parent / "keys", *allowed, log=parent / "log")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def open_server(folder, tmp_path_factory):
    running = Server(folder, "--cors-allow-origin", "*", log=tmp_path_factory.mktemp("log") / "log")
    yield running
    running.stop()


def post(body, *lines, path="/embed", version="1.1"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/{version}", "Host: a", f"Content-Length: {len(content)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + content


def received(connection):
    """Return the status, the head and the JSON of the answer, once the server has closed the connection."""
    text = connection.makefile("rb").read()
    while text.startswith(b"HTTP/1.1 100"):
        text = text.partition(b"\r\n\r\n")[2]
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


# ---- pages of other origins


def preflight(server, origin, *, wanted="authorization,content-type,x-stainless-os"):
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    return server.ask("/v1/embeddings", method="OPTIONS", headers=asked)


def test_a_preflight_of_an_allowed_page_needs_no_key(server):
    for origin in (PAGE, "http://localhost:3000"):
        status, headers, _ = preflight(server, origin)
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, origin)
        assert headers["Access-Control-Allow-Methods"] == "GET, POST"
        assert headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-stainless-os"
        assert set(headers.get_all("Vary")) == {"Origin", "Access-Control-Request-Headers"}
        assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize("origin", ["https://other.example", f"{PAGE}.other.example", "null", "http://page.example"])
def test_a_preflight_of_another_page_is_refused(server, origin):
    status, headers, answer = preflight(server, origin)
    assert (status, headers["Access-Control-Allow-Origin"], headers["Vary"]) == (403, None, "Origin")
    assert f"pages of {origin} may not send requests" in answer["error"]["message"]


def test_every_answer_says_that_it_depends_on_the_origin(server):
    good = {"Authorization": "Bearer a-key"}
    for more, status in (({}, 200), ({"Origin": PAGE}, 200), ({"Origin": PAGE, "Authorization": "Bearer x"}, 401)):
        found, headers, _ = server.ask("/embed", {"inputs": "a"}, headers=good | more)
        assert (found, headers["Vary"]) == (status, "Origin")
        assert headers["Access-Control-Allow-Origin"] == more.get("Origin")
        assert ("X-Truncated" in headers.get("Access-Control-Expose-Headers", "")) == ("Origin" in more)
    _, headers, _ = server.ask("/embed", {"inputs": "a"}, headers=good | {"Origin": "https://other.example"})
    assert (headers["Vary"], headers["Access-Control-Allow-Origin"]) == ("Origin", None)


def test_all_pages_may_ask_a_server_for_all(open_server):
    status, headers, _ = preflight(open_server, "null")
    assert (status, headers["Access-Control-Allow-Origin"]) == (204, "*")
    assert headers.get_all("Vary") == ["Access-Control-Request-Headers"]
    status, headers, _ = open_server.ask("/embed", {"inputs": "a"}, headers={"Origin": PAGE})
    assert (headers["Access-Control-Allow-Origin"], headers["Vary"]) == ("*", None)
    assert "Access-Control-Allow-Credentials" not in headers


def test_other_questions_by_options_are_refused_as_ever(open_server, server):
    status, headers, _ = open_server.ask("/embed", method="OPTIONS", headers={"Origin": PAGE})
    assert (status, headers["Allow"]) == (405, "POST")
    assert server.ask("/embed", method="OPTIONS", headers={"Origin": PAGE})[0] == 401


# ---- targets, codings and framing


@pytest.mark.parametrize("address", ["http://other.example", "HTTPS://127.0.0.1:9", "http://a%2Fb"])
def test_a_target_is_a_path_or_a_whole_address(open_server, address):
    for path, status in (("/embed?a=b", 200), ("/nowhere", 404), ("", 422)):
        with open_server.connect() as connection:
            connection.sendall(
                post(
                    {"input": "a", "inputs": "a"} if not path else {"inputs": "a"},
                    "Connection: close",
                    path=address + path,
                )
            )
            assert received(connection)[0] == status
    assert open_server.samples()['mp_core_requests_total{route="/embed",status="200"}'] >= 1


@pytest.mark.parametrize("address", ["http://", "http://user:word@other.example", "https://@"])
def test_an_address_without_a_host_or_with_a_user_is_refused(open_server, address):
    with open_server.connect() as connection:
        connection.sendall(f"GET {address}/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_an_address_needs_the_key_of_its_path(server):
    for path, status in (("/metrics", 401), ("/health", 200), ("/health/../metrics", 401)):
        with server.connect() as connection:
            connection.sendall(f"GET http://a{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            assert received(connection)[0] == status


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, identity", "x" * 500])
def test_a_coded_body_is_refused_by_its_coding(open_server, coding):
    body = gzip.compress(json.dumps({"inputs": "a"}).encode())
    for path in ("/embed", "/v1/embeddings"):
        status, headers, answer = open_server.ask(path, body, headers={"Content-Encoding": coding})
        message = answer["error"] if path == "/embed" else answer["error"]["message"]
        assert (status, headers["Accept-Encoding"]) == (415, "identity")
        assert f"a body must have no Content-Encoding; received {coding[:40]}" in message
    assert open_server.ask("/embed", {"inputs": "a"}, headers={"Content-Encoding": "Identity"})[0] == 200


def test_a_body_with_two_lengths_is_refused_and_its_connection_closed(open_server):
    chunked = b'8\r\n{"inputs\r\n8\r\n": "a b"\r\n1\r\n}\r\n0\r\n\r\n'
    with open_server.connect() as connection:
        head = b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"
        connection.sendall(head + chunked + post({"inputs": "a"}))
        status, head, answer = received(connection)
    assert (status, answer["error"]) == (400, "a request must have Content-Length or Transfer-Encoding; received both")
    assert b"connection: close" in head
    with open_server.connect() as connection:
        head = b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        connection.sendall(head + chunked)
        assert received(connection)[0] == 200


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"inputs": "a", "inputs": "b"}', "inputs"),
        (b'{"inputs": "a", "\\u0069nputs": "b"}', "inputs"),
        (b'{"query": "a", "texts": [{"text": 1, "b": 2, "text": 3}]}', "text"),
        (b'{"' + b"x" * 100 + b'": 1, "' + b"x" * 100 + b'": 1}', "x" * 40),
    ],
)
def test_a_key_that_comes_twice_is_named(open_server, body, key):
    status, _, answer = open_server.ask("/embed", body)
    assert (status, answer["error"]) == (400, f'the body has the key "{key}" twice in one object')


def test_many_keys_of_which_one_comes_twice_are_read_at_once(open_server):
    body = "{" + ", ".join(f'"{number}": 1' for number in range(100_000)) + ', "7": 2}'
    start = time.perf_counter()
    assert "twice" in open_server.ask("/embed", body.encode())[2]["error"]
    assert time.perf_counter() - start < 5


# ---- clients that close their half


def test_a_client_that_closes_its_half_gets_its_answers(open_server, folder):
    texts = tiny_bert.TEXTS * 400
    expected = BertEncoder.from_folder(folder).encode(texts)
    with open_server.connect() as connection:
        connection.sendall(post({"inputs": texts}))
        connection.shutdown(1)
        status, _, answer = received(connection)
    assert status == 200
    assert_same_bits(np.array(answer, np.float32), expected)
    with open_server.connect() as connection:  # two requests, one behind the other
        connection.sendall(post({"inputs": texts}) + post({"inputs": "a"}))
        connection.shutdown(1)
        assert connection.makefile("rb").read().count(b"HTTP/1.1 200 OK\r\n") == 2


def test_a_client_that_closes_its_half_too_early_is_gone(open_server):
    for request in (b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{", b"POST /em", b""):
        with open_server.connect() as connection:
            connection.sendall(request)
            connection.shutdown(1)
            assert connection.makefile("rb").read() == b""


def test_a_client_that_left_is_told_from_one_that_closed_its_half(open_server):
    lines = len(open_server.lines())
    body = {"inputs": [" ".join("abcdefgh")] * 2000}
    for _ in range(6):  # more work than is done until the second look
        with open_server.connect() as connection:
            connection.sendall(post(body))
    new = open_server.lines(lines + 6)[lines:]
    assert "whose client went away" in new[-1]
    assert "status=499" in new[-1]


# ---- the log


def test_no_text_of_a_client_looks_like_a_field(open_server):
    lines = len(open_server.lines())
    open_server.ask("/a%20status=200%20texts=7", {"inputs": "a"})
    open_server.ask("/embed", {"inputs": "a", 'x" status=200 y="': 1})
    open_server.ask("/embed", {"inputs": "a", "model": "b status=200\n2026-01-01T00:00:00.000Z error forged"})
    new = open_server.lines(lines + 3)[lines:]
    assert len(new) == 3
    for line, status in zip(new, ("404", "422", "404"), strict=True):
        words = [word.partition("=")[::2] for word in shlex.split(line) if "=" in word]
        assert [value for name, value in words if name == "status"] == [status]
        assert not [name for name, _ in words if name not in {"status", "ms", "error", "client"}]


@pytest.mark.parametrize("value", ["", "a b", "a=b", 'a"b', "a\nb", "a\u2028b", "\x1b[31m"])
def test_values_that_are_no_words_are_quoted(value):
    stream = io.StringIO()
    Log(stream=stream).write("info", "it", name=value, other="plain-word/1:2")
    assert stream.getvalue().endswith(f" info it name={json.dumps(value)} other=plain-word/1:2\n")
