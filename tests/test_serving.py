"""The server of docs/examples/serve: right answers whoever asks at the same time, clear refusals, an orderly end."""

import asyncio
import base64
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny_bert
from oracles import assert_same_bits

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from batcher import Batcher, BusyError

from mp_core.models import BertEncoder

SERVER = Path(__file__).parents[1] / "docs" / "examples" / "serve" / "server.py"


class Server:
    """The example in a process of its own, on a free port of the loopback interface."""

    def __init__(self, folder, *options):
        command = [sys.executable, SERVER, folder, "--port", "0", "--threads", "1", *options]
        self.process = processes.Process(command, stdout=subprocess.PIPE, text=True, limit=processes.LONG)
        url = self.process.stdout.readline()
        assert url.startswith("http://127.0.0.1:"), "the server did not start"
        self.port = int(url.rpartition(":")[2])

    def ask(self, body, method="POST", path="/embed"):
        """Return the status, the headers and what the answer's JSON says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            return response.status, response.headers, json.loads(text) if text.startswith(b"{") else text
        finally:
            connection.close()

    def embed(self, texts):
        status, _, answer = self.ask({"texts": texts, "form": "base64"})
        assert status == 200, answer
        return np.frombuffer(base64.b64decode(answer["base64"]), "<f4").reshape(answer["shape"])

    def health(self):
        return self.ask(None, "GET", "/health")[2]

    def wait_for(self, condition):
        end = time.monotonic() + 30
        while not condition(self.health()):
            assert time.monotonic() < end
            time.sleep(0.01)

    def stop(self):
        """Ask the process to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("serving") / "model")


@pytest.fixture(scope="module")
def encoder(folder):
    return BertEncoder.from_folder(folder)


@pytest.fixture(scope="module")
def server(folder):
    running = Server(folder, "--wait-ms", "50")
    yield running
    running.stop()


@pytest.fixture
def slow_server(folder):
    """A server in which a single request waits for a second, and no other finds room."""
    running = Server(folder, "--wait-ms", "1000", "--capacity", "1")
    yield running
    if running.process.poll() is None:
        running.stop()


def test_embeddings_have_the_bits_of_encode(server, encoder):
    assert_same_bits(server.embed(tiny_bert.TEXTS), encoder.encode(tiny_bert.TEXTS))


def test_floats_are_the_same_numbers(server, encoder):
    status, _, answer = server.ask({"texts": tiny_bert.TEXTS})
    assert status == 200
    assert_same_bits(np.array(answer["embeddings"], np.float32), encoder.encode(tiny_bert.TEXTS))


def test_concurrent_requests_share_batches_and_get_their_own_embeddings(server, encoder):
    requests = [tiny_bert.TEXTS[index % 5 :][: 1 + index % 3] for index in range(24)]
    before = server.health()
    gate = threading.Barrier(len(requests))

    def ask(texts):
        gate.wait(60)
        return server.embed(texts)

    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(ask, requests))
    for texts, answer in zip(requests, answers, strict=True):
        assert_same_bits(answer, encoder.encode(texts))
    after = server.health()
    assert after["texts"] - before["texts"] == sum(map(len, requests))
    assert after["batches"] - before["batches"] <= len(requests) // 2
    assert after["waiting"] == 0


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"\xff", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        ([], 400, "object"),
        ({}, 400, "texts"),
        ({"texts": "a"}, 400, "list"),
        ({"texts": []}, 400, "1 to"),
        ({"texts": ["a"] * 129}, 400, "128"),
        ({"texts": ["a", 1]}, 400, '"texts"[1]'),
        ({"texts": ["\ud800"]}, 400, "surrogate"),
        ({"texts": ["a"], "form": "csv"}, 400, "form"),
        ({"texts": ["a"], "other": 1}, 400, "texts"),
        ({"texts": ["a" * (1 << 20)]}, 413, "bytes"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(server, encoder, body, status, word):
    received, _, answer = server.ask(body)
    assert received == status
    assert word in answer["error"]
    assert_same_bits(server.embed(["a b"]), encoder.encode(["a b"]))


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/embed", 405), ("GET", "/other", 404)])
def test_other_paths_and_methods_are_refused(server, method, path, status):
    received, _, answer = server.ask(None, method, path)
    assert received == status
    assert "error" in answer


def test_requests_beyond_the_capacity_are_refused_and_told_to_come_back(slow_server):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow_server.embed, ["a"])
        slow_server.wait_for(lambda health: health["waiting"] == 1)
        status, headers, answer = slow_server.ask({"texts": ["b"]})
        assert (status, headers["Retry-After"], answer) == (503, "1", {"error": "the server is busy"})
        assert first.result().shape == (1, tiny_bert.WIDTH)


def test_what_was_received_is_answered_before_the_end(slow_server, encoder):
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(slow_server.embed, ["a b c"])
        slow_server.wait_for(lambda health: health["waiting"] == 1)
        code = slow_server.stop()
        assert_same_bits(answer.result(), encoder.encode(["a b c"]))
    assert code in (0, -signal.SIGTERM)  # uvicorn raises the signal again once it is done
    with pytest.raises(ConnectionError):
        slow_server.health()


class Lengths:
    """Embeds a text as its length, and notes what it is called with; "wrong" is an error."""

    def __init__(self, gate=None):
        self.calls = []
        self.gate = gate

    def __call__(self, texts):
        self.calls.append(texts)
        if self.gate is not None:
            self.gate.wait(60)
        for error in (ValueError, OSError):
            if error.__name__ in texts:
                raise error(texts)
        return np.array([[len(text)] for text in texts], np.float32)


def batched(encode, requests, **limits):
    """Return the answers, or errors, of a batcher to requests that come at once, and close it."""

    async def run():
        batcher = Batcher(encode, **limits)
        batcher.start()
        answers = asyncio.gather(*map(batcher, requests), return_exceptions=True)
        await asyncio.sleep(0)  # the requests are in the queue
        await batcher.close()
        return await answers

    return asyncio.run(run())


def test_batches_are_filled_in_order_and_not_beyond_their_size():
    encode = Lengths()
    requests = [["a"], ["bb", "cc"], ["ddd"] * 3, ["e"] * 9, ["f"]]
    answers = batched(encode, requests, batch_size=4)
    assert [len(texts) for texts in encode.calls] == [3, 3, 9, 1]
    for texts, answer in zip(requests, answers, strict=True):
        assert answer[:, 0].tolist() == [len(text) for text in texts]


def test_a_wrong_text_fails_its_own_request_only():
    answers = batched(Lengths(), [["a"], ["b", "ValueError"], ["cc"]])
    assert isinstance(answers[1], ValueError)
    assert [answers[0].item(), answers[2].item()] == [1, 2]


def test_another_error_fails_its_batch_and_the_next_batch_is_embedded():
    answers = batched(Lengths(), [["a"], ["OSError"], ["cc"]], batch_size=2)
    assert [type(answer) for answer in answers[:2]] == [OSError, OSError]
    assert answers[2].item() == 2


def test_a_request_is_refused_when_full_and_after_the_end():
    async def run():
        gate = threading.Event()
        encode = Lengths(gate)
        batcher = Batcher(encode, batch_size=1, capacity=2)
        with pytest.raises(BusyError):  # not started
            await batcher(["a"])
        batcher.start()
        taken = [asyncio.create_task(batcher(["a"] * 9))]
        while not encode.calls:
            await asyncio.sleep(0.001)
        taken += [asyncio.create_task(batcher(["a"])) for _ in range(2)]
        await asyncio.sleep(0)
        assert batcher.waiting == 2
        with pytest.raises(BusyError):
            await batcher(["a"])
        gate.set()
        assert [len(await task) for task in taken] == [9, 1, 1]
        await batcher.close()
        with pytest.raises(BusyError):
            await batcher(["a"])

    asyncio.run(run())


def test_requests_that_nobody_waits_for_are_not_embedded():
    async def run():
        encode = Lengths()
        batcher = Batcher(encode, wait=60)
        batcher.start()
        tasks = [asyncio.create_task(batcher([text])) for text in "ab"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        await batcher.close()
        assert (await tasks[1]).item() == 1
        assert encode.calls == [["b"]]

    asyncio.run(run())
