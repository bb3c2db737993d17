"""Random requests that no server should answer with 200: ``python tests/hostile_requests.py PORT COUNT``."""

import json
import random
import socket
import sys
import time

HOST = "127.0.0.1"  # nobody else is asked
SECONDS = 30  # in which every answer must come

GOOD = {
    "/v1/embeddings": {"input": ["a b", "c"]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c d"]},
    "/embed": {"inputs": ["a b", "c"]},
    "/embed_sparse": {"inputs": ["a b", "c"]},
    "/embed_all": {"inputs": ["a b", "c"]},
    "/rerank": {"query": "a", "texts": ["b", "c d"]},
    "/predict": {"inputs": [["a"], ["b", "c"]]},
    "/": {"inputs": ["a b", "c"]},
    "/embeddings": {"input": ["a b", "c"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["a b", "c"]}},
    "/tokenize": {"inputs": ["a b", "c"]},
    "/decode": {"ids": [[4, 5], [6]]},
}
OPTIONS = ("model", "dimensions", "encoding_format", "prompt_name", "truncate", "truncation_direction", "normalize")
OPTIONS += ("precision", "parameters", "add_special_tokens", "skip_special_tokens")
OPTIONS += ("top_n", "return_documents", "raw_scores", "return_text", "user", "odd", "", "__proto__", "\ud800")
WRONG = [{}, [], [[]], [None], [[["a"]]], {"a": 1}, -1, 0.5, 1e308, 10**400, [1, "a"], ["a", {}], ["\udfff"], "\ud800"]
WRONG += [[[1, 2], [3.5]], [True], ["a", None], [["a", "b", "c"]], [["a"], "b"], float("nan"), float("inf")]
HEADS = [
    b"GET\r\n\r\n",
    b"\x00\x01\x02\x03\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /embed HTTP/9.9\r\nHost: a\r\n\r\n",
    b"POST /embed HTTP/1.1\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nBad Header: b\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000,
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /%00%0d%0a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/models/absent HTTP/1.1\r\nHost: a\r\n\r\n",
    b"DELETE /embed HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST http:// HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    b"GET /embed HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]


def hostile(draw: random.Random) -> bytes:
    """Return a request that is wrong in some way."""
    path = draw.choice(list(GOOD))
    return draw.choice([_head, _noise, _no_json, _cut_json, _wrong_field, _wrong_field, _absent, _odd, _deep, _large])(
        draw, path
    )


def post(path: str, body: bytes) -> bytes:
    """Return a request with a body."""
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _head(draw: random.Random, path: str) -> bytes:
    return draw.choice(HEADS)


def _noise(draw: random.Random, path: str) -> bytes:
    return draw.randbytes(draw.randrange(1, 300)) + b"\r\n\r\n"


def _no_json(draw: random.Random, path: str) -> bytes:
    return post(path, draw.choice([b"", b"\xff\xfe", draw.randbytes(draw.randrange(200)) + b"\xff"]))


def _cut_json(draw: random.Random, path: str) -> bytes:
    text = json.dumps(GOOD[path]).encode()
    return post(path, text[: draw.randrange(1, len(text))])


def _wrong_field(draw: random.Random, path: str) -> bytes:
    return post(path, json.dumps(GOOD[path] | {draw.choice(list(GOOD[path])): draw.choice(WRONG)}).encode())


def _absent(draw: random.Random, path: str) -> bytes:
    body = dict(GOOD[path])
    name = draw.choice(list(body))
    body = {key: value for key, value in body.items() if key != name} | draw.choice([{}, {name: None}])
    return post(path, json.dumps(draw.choice([body, [body], None, 1, "a"])).encode())


def _odd(draw: random.Random, path: str) -> bytes:
    wrong = draw.choice([{}, [], [1], 0, -1, 10**400, "\ud800", float("nan")])
    return post(path, json.dumps(GOOD[path] | {draw.choice(OPTIONS): wrong}).encode())


def _deep(draw: random.Random, path: str) -> bytes:
    depth = draw.choice([10, 1_000, 100_000])
    return post(path, draw.choice([b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth]))


def _large(draw: random.Random, path: str) -> bytes:
    many = [["a"] if path == "/predict" else "a"] * 5_000
    if path == "/similarity":
        return post(path, json.dumps({"inputs": GOOD[path]["inputs"] | {"sentences": many}}).encode())
    name = next(name for name, value in GOOD[path].items() if isinstance(value, list))
    return post(path, json.dumps(GOOD[path] | {name: many}).encode())


def answer(port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request over a connection of its own; return the status and the body of the answer, or 0 without one."""
    with socket.create_connection((HOST, port), timeout=SECONDS) as connection:
        connection.sendall(request)
        received = b""
        try:
            while part := connection.recv(1 << 16):
                received += part
                head, _, body = received.partition(b"\r\n\r\n")
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b""
                )
                if length and len(body) >= int(length.partition(b":")[2]):
                    break
        except ConnectionResetError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head.startswith(b"HTTP/1.1 ") else (0, received)


def main() -> None:
    """Send the requests, and print how many answers had each status; fail at one that is none of 4xx."""
    port, count = int(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    statuses: dict[int, int] = {}
    slowest = 0.0
    for number in range(count):
        request, start = hostile(draw), time.perf_counter()
        status, body = answer(port, request)
        slowest = max(slowest, time.perf_counter() - start)
        statuses[status] = statuses.get(status, 0) + 1
        if not (400 <= status < 500 and body):
            sys.exit(f"request {number}: {status} {body[:200]!r} to {request[:200]!r}")
    print(json.dumps({"statuses": statuses, "slowest_seconds": round(slowest, 3)}))


if __name__ == "__main__":
    main()
