"""Soak the server of completions: ``python -m fuzz.generating [--seconds N] [--seed N]``, in tests/.

Clients of `mp-core serve --generator` come, go and break off: they read whole answers and streams, close or reset the
connection while they wait or read, and half-close it. Every answer must have the tokens and log-probabilities of a lone
run. At the end all pages must be free, and the resident memory must not have grown: after a warm-up, its median in the
first third is compared with that in the last third. The exit status is 1 if something is wrong.
"""

import argparse
import json
import random
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from generating import PROMPTS, written
from servers import LIMIT, Server

from mp_core.models.generation import Generator

CLIENTS = 12
CACHE = 2048  # tokens: fewer than all clients want, so that some of them wait
SLACK = 4 << 20  # bytes of resident memory that come and go
WARM = 0.2  # the share of the time in which caches fill
STATUSES = {200, 429}


class Soak:
    """The server, the lone answers, and what the clients have found."""

    def __init__(self, folder, server, seed):
        self.server, self.seed, self.found, self.wrong = server, seed, Counter(), []
        self._lone, self._lock = Generator.from_folder(folder), threading.Lock()
        self._answers = {}

    def expected(self, request):
        """Return the text and the log-probabilities of a lone run."""
        key = json.dumps(request, sort_keys=True)
        with self._lock:
            if key not in self._answers:
                how = {"temperature": request["temperature"], "seed": request["seed"], "log_probabilities": 0}
                done = self._lone.generate(request["prompt"], request["max_tokens"], **how)
                self._answers[key] = done.text, [number for number, _ in done.log_probabilities]
            return self._answers[key]

    def client(self, number, end):
        """Send requests until the end."""
        rng = random.Random(self.seed * 1000 + number)
        while time.monotonic() < end:
            temperature = rng.choice([0, 1.5])
            request = {"prompt": rng.choice(PROMPTS) * rng.randint(1, 3), "max_tokens": rng.choice([1, 7, 60, 300])}
            request |= {"temperature": temperature, "seed": rng.randint(0, 3) if temperature else 0, "logprobs": 0}
            act = rng.choice([self.read, self.read, self.read, self.half_close, self.vanish])
            try:
                act(rng, request, rng.random() < 0.5)
                self.found[act.__name__] += 1
            except Exception as error:
                self.wrong.append(f"{act.__name__} {request}: {type(error).__name__}: {error}")

    def _sent(self, request, stream):
        content = json.dumps(request | {"stream": stream}).encode()
        client = self.server.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(content) + content)
        return client

    def read(self, rng, request, stream, half_close=False):
        """Read a whole answer, and compare it."""
        with self._sent(request, stream) as client:
            if half_close:
                client.shutdown(socket.SHUT_WR)
            content = b""
            while part := client.recv(1 << 16):
                content += part
        while content.startswith(b"HTTP/1.1 100"):
            content = content.partition(b"\r\n\r\n")[2]
        head, _, body = content.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        self.found[status] += 1
        if status != 200:
            if status not in STATUSES:
                self.wrong.append(f"status {status}: {body!r}")
            return
        lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")] if stream else [body]
        choices = [json.loads(line)["choices"][0] for line in lines]
        text = "".join(choice["text"] for choice in choices)
        numbers = [number for choice in choices for number in choice["logprobs"]["token_logprobs"]]
        if (text, numbers) != self.expected(request):
            self.wrong.append(f"other bits: {request}")

    def half_close(self, rng, request, stream):
        """Read a whole answer after the end of what is sent."""
        self.read(rng, request, stream, half_close=True)

    def vanish(self, rng, request, stream):
        """Close or reset the connection, after some data or none."""
        with self._sent(request, stream) as client:
            if rng.random() < 0.5:
                client.settimeout(rng.uniform(0.001, 0.2))
                with suppress(TimeoutError):
                    client.recv(rng.choice([1, 1000]))
            if rng.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def is_idle(self):
        """Return whether no request is left, and all pages are free."""
        samples = self.server.samples()
        names = "mp_core_cache_pages_used", "mp_core_generating", "mp_core_queue_tokens", "mp_core_queue_texts"
        return samples["mp_core_requests_in_flight"] == 1 and not any(samples[name] for name in names)


def grown(samples):
    """Return how many bytes the median of the last third of samples is above that of the first third."""
    third = max(1, len(samples) // 3)
    return statistics.median(samples[-third:]) - statistics.median(samples[:third])


def soak(seconds, seed):
    """Run the clients; return the report and what was wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "small"
        folder.mkdir()
        written(folder)
        server = Server(
            "--generator",
            folder,
            "--cache-tokens",
            CACHE,
            "--max-queue-tokens",
            "1000",
            "--quiet",
            log=Path(name) / "log",
        )
        try:
            state, start = Soak(folder, server, seed), time.monotonic()
            threads = [threading.Thread(target=state.client, args=(n, start + seconds)) for n in range(CLIENTS)]
            for thread in threads:
                thread.start()
            samples = []
            while time.monotonic() < start + seconds:
                time.sleep(min(1.0, seconds / 10))
                samples.append((time.monotonic() - start, server.resident()))
            for thread in threads:
                thread.join()
            end = time.monotonic() + LIMIT
            while not state.is_idle() and time.monotonic() < end:
                time.sleep(0.05)
            if not state.is_idle():
                state.wrong.append(f"pages or requests are left: {server.samples()}")
            resident = [size for when, size in samples if when > WARM * seconds]
            more, generated = grown(resident), server.samples().get('mp_core_generated_tokens_total{model="small"}')
            if more > SLACK:
                state.wrong.append(f"resident memory grew by {more} bytes")
            counts = ", ".join(f"{count} {name}" for name, count in sorted(state.found.items(), key=str))
            fifth = max(1, len(resident) // 5)
            parts = [
                statistics.median(resident[start:][:fifth]) / 1e6
                for start in range(0, len(resident) - fifth + 1, fifth)
            ]
            memory = f"MB resident in fifths of the time: {', '.join(f'{part:.1f}' for part in parts)}"
            report = f"{seconds:g} s: {counts}; {generated:.0f} tokens; {memory}"
        finally:
            code = server.stop()
        if code:
            state.wrong.append(f"the server ended with {code}: {server.log.read_text()[-2000:]}")
    return report, state.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report, wrong = soak(arguments.seconds, arguments.seed)
    print(report)
    for line in wrong[:20]:
        print(f"wrong: {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
