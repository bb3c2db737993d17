"""Shared code of the server's tests: small models, `mp-core serve` in a process, and a client of the application."""

import asyncio
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from unittest import mock

import numpy as np
import processes
import tiny_bert
from safetensors.numpy import save_file
from tokenizers import Tokenizer, processors

from mp_core.models.texts import Tokens

try:
    from mp_core.serving import server
    from mp_core.serving.logs import Log
except ImportError:  # without uvicorn the tests that import this are skipped
    server, Log = None, object

LIMIT = 60  # seconds that any answer or end may take


def written(parent):
    """Write an encoder, a reranker and a classifier, and return their folders by kind."""
    return {
        "encoder": tiny_bert.write(parent / "encoder"),
        "reranker": scorer(parent / "reranker", 1),
        "classifier": scorer(parent / "classifier", 3),
    }


def scorer(folder, labels, **config):
    """Write a random BERT with a head: a reranker if there is one label, else a classifier."""
    names = {str(index): f"label {index}" for index in range(labels)}
    tiny_bert.write(folder, architectures=["BertForSequenceClassification"], id2label=names, **config)
    for path in (folder / "modules.json", folder / "1_Pooling" / "config.json"):
        path.unlink()
    (folder / "1_Pooling").rmdir()
    rng, width = np.random.default_rng(3), tiny_bert.WIDTH
    head = {"bert.pooler.dense": (width, width), "classifier": (labels, width)}
    tensors = {f"bert.{name}": tensor for name, tensor in tiny_bert.tensors().items()}
    for name, shape in head.items():
        tensors[f"{name}.weight"] = rng.normal(0, 0.5, shape).astype(np.float32)
        tensors[f"{name}.bias"] = rng.normal(0, 0.5, shape[:1]).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [(word, tiny_bert.WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Server:
    """`mp-core serve` in a process of its own, on a free port of the loopback interface or a Unix socket.

    `code` is Python that runs before the command.
    """

    def __init__(self, *arguments, log, code=""):
        self.log = log
        program = ["-c", f"{code}\nfrom mp_core.__main__ import main; sys.exit(main())"] if code else ["-m", "mp_core"]
        command = [sys.executable, *program, "serve", *map(str, arguments), "--threads", "1"]
        if "--unix-socket" not in arguments:
            command += ["--port", "0"]
        with open(log, "wb") as stream:
            options = {"stdout": subprocess.PIPE, "stderr": stream, "limit": processes.LONG}
            self.process = processes.Process(command, **options)
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        self.address = self.process.stdout.readline().decode().strip() if ready else ""
        if not self.address:
            self.stop(signal.SIGKILL)
            raise AssertionError(f"the server did not start: {log.read_text()}")
        self.port = int(self.address.rpartition(":")[2]) if self.address.startswith("http") else None

    def ask(self, path, body=None, method=None, headers=None):
        """Return the status, the headers and the JSON, or text, of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, content, headers or {})
            response = connection.getresponse()
            text = response.read()
            return response.status, response.headers, json.loads(text) if text[:1] in b"[{" and text else text
        finally:
            connection.close()

    def get(self, path, body=None):
        """Return the JSON of an answer that must be one."""
        status, _, answer = self.ask(path, body)
        assert status == 200, answer
        return answer

    def samples(self):
        """Return the metrics: name with labels -> number."""
        lines = self.ask("/metrics")[2].decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(number) for name, number in pairs}

    def wait_for(self, name, number):
        """Wait until a metric is so large."""
        end = time.monotonic() + LIMIT
        while self.samples().get(name) != number:
            assert time.monotonic() < end
            time.sleep(0.01)

    def connect(self):
        """Return a bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)

    def lines(self, count=0):
        """Return the lines of the log, of which there will be so many."""
        end = time.monotonic() + LIMIT
        while len(lines := self.log.read_text().splitlines()) < count and time.monotonic() < end:
            time.sleep(0.01)
        return lines

    def resident(self):
        """Return the resident memory in bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self, number=signal.SIGTERM):
        """Ask the process to end, unless `number` is None, and return its exit code."""
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(LIMIT)
        finally:
            self.process.kill()
            self.process.stdout.close()


class Lengths:
    """A model that embeds a text as its length, and notes what it is called with."""

    kind, name, prompts, policy, max_length, created, dim = "encoder", "lengths", (), "float32", 512, 0, 1
    is_whole, kinds, tasks = True, ("encoder",), ()

    def __init__(self, gate=None):
        self.calls, self.gate, self.error = [], gate, None

    def tokenize(self, inputs, prompt_name=None):
        return Tokens([np.zeros(max(len(text), 1), np.int32) for text in inputs])

    def compute(self, tokens, options):
        self.calls.append([len(row) for row in tokens.rows])
        if self.gate is not None:
            self.gate.wait(LIMIT)
        if self.error is not None:
            raise self.error
        return np.array([[len(row)] for row in tokens.rows], np.float32)

    def numbers(self, tokens, options):
        return len(tokens)

    def describe(self):
        return {}


@contextmanager
def serving(app, log=None, **options):
    """Serve an application in a thread of this process; yield the port and the server of uvicorn."""
    listener = server.bound("127.0.0.1", 0)
    started, kept = threading.Event(), []
    made = server._Server.__init__

    def keeping(self, *arguments):
        made(self, *arguments)
        kept.append(self)

    options = {"started": started.set, **options}
    with mock.patch.object(server._Server, "__init__", keeping):
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.serve, args=(app, listener, log or Log(quiet=True)), kwargs=options)
        thread.start()
        assert started.wait(LIMIT)
    try:
        yield port, kept[0]
    finally:
        kept[0].should_exit = True
        thread.join(LIMIT)
        assert not thread.is_alive()


class Lines(Log):
    """A log that keeps its lines."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def write(self, level, message, **fields):
        self.kept.append((level, message, fields))


@asynccontextmanager
async def running(app):
    """Run an application between its start and its end; yield a coroutine function that asks it.

    It takes a path, a body, headers and an event at which the client goes away, and returns status, headers and body.
    """
    inbox, outbox = asyncio.Queue(), asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan"}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"

    async def ask(path, body=None, headers=None, gone=None):
        method = "GET" if body is None else "POST"
        pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": b""}
        scope |= {"http_version": "1.1", "scheme": "http", "server": ("a", 1), "client": ("b", 2), "root_path": ""}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        parts, sent = [{"type": "http.request", "body": content or b"", "more_body": False}], []
        gone = gone or asyncio.Event()

        async def receive():
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)
        if not sent:
            return None
        text = b"".join(message.get("body", b"") for message in sent)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, json.loads(text) if text[:1] in (b"[", b"{") else text.decode()

    yield ask
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await life
