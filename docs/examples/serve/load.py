"""Send many requests to a server on this machine: ``python load.py 8000 texts.txt``. Number and time are bounded."""

import argparse
import asyncio
import base64
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HOST = "127.0.0.1"  # only this machine
MOST = 2000  # requests that are not answered yet


@dataclass
class Tally:
    """Counts the answers: how many with each status, how many were wrong, and the seconds of those with status 200."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0  # embeddings whose bits differ from the expected ones
    silent: int = 0  # 429 or 503 without Retry-After
    broken: Counter[str] = field(default_factory=Counter)  # the errors of connections without an answer
    taken: list[float] = field(default_factory=list)

    def report(self, seconds: float, per_request: int) -> dict[str, object]:
        """Return the counts as plain values."""
        p50, p99 = np.percentile(self.taken, [50, 99]) * 1e3 if self.taken else (np.nan, np.nan)
        return {
            "seconds": seconds,
            "texts_per_second": len(self.taken) * per_request / seconds,
            "latency_ms": {"p50": float(p50), "p99": float(p99)},
            "statuses": dict(self.statuses),
            "wrong": self.wrong,
            "without_retry_after": self.silent,
            "broken": dict(self.broken),
        }


class Asker:
    """Requests embeddings of texts over connections that stay open.

    Parameters
    ----------
    port : int
    texts : sequence of str
    per_request : int
        Texts per request.
    expected : ndarray, optional
        The embeddings of `texts`, whose bits the answers must have.
    """

    def __init__(
        self, port: int, texts: Sequence[str], per_request: int = 1, expected: np.ndarray | None = None
    ) -> None:
        self.port, self.tally = port, Tally()
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._bodies, self._expected = [], []
        for start in range(len(texts)):
            places = [(start + k) % len(texts) for k in range(per_request)]
            body = {"input": [texts[place] for place in places], "encoding_format": "base64"}
            self._bodies.append(json.dumps(body).encode())
            rows = [] if expected is None else [expected[place].astype("<f4").tobytes() for place in places]
            self._expected.append([base64.b64encode(row).decode() for row in rows])

    async def ask(self, number: int) -> int:
        """Send a request, read its answer, count it, and return the status; 0 if the connection broke."""
        place, start = number % len(self._bodies), time.perf_counter()
        try:
            connection = await self._connection()
            head, content = await self._exchange(*connection, self._bodies[place])
        except (OSError, asyncio.IncompleteReadError) as error:
            self.tally.statuses[0] += 1
            self.tally.broken[repr(error)] += 1
            return 0
        self._free.append(connection)
        status = int(head[0].split()[1])
        self.tally.statuses[status] += 1
        if status == 200:
            self.tally.taken.append(time.perf_counter() - start)
            rows = [row["embedding"] for row in json.loads(content)["data"]] if self._expected[place] else []
            self.tally.wrong += rows != self._expected[place]
        self.tally.silent += status in (429, 503) and not any(line.startswith("retry-after:") for line in head)
        return status

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a free connection or a new one. The server closes those that were idle for long."""
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof() and reader.exception() is None:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(HOST, self.port)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
    ) -> tuple[list[str], bytes]:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        return lines, await reader.readexactly(int(fields["content-length"]))

    async def close(self) -> None:
        """Close all connections."""
        for _, writer in self._free:
            writer.close()
            await writer.wait_closed()


async def load(
    asker: Asker, *, requests: int = 1000, seconds: float = 30, connections: int = 32, per_request: int = 1
) -> dict[str, object]:
    """Send requests over several connections at once; each waits for its answer before the next request.

    Returns
    -------
    dict
        ``seconds``, ``texts_per_second`` and ``latency_ms`` (``p50``, ``p99``) of the answers with status 200, and
        ``statuses``: the number of answers by status, 0 for none; ``wrong`` and ``without_retry_after``, which should
        be 0; and ``broken``: the errors of connections without an answer.
    """
    numbers, start = iter(range(requests)), time.perf_counter()

    async def client() -> None:
        for number in numbers:
            if time.perf_counter() - start > seconds:
                return
            if await asker.ask(number) != 200:
                await asyncio.sleep(0.05)

    await asyncio.gather(*itertools.starmap(client, [()] * min(connections, requests)))
    await asker.close()
    return asker.tally.report(time.perf_counter() - start, per_request)


async def flood(asker: Asker, rate: float, *, seconds: float, per_request: int = 1) -> dict[str, object]:
    """Send `rate` requests a second, whether or not the server keeps up; return the same as :func:`load`."""
    start, waiting = time.perf_counter(), set()
    for number in itertools.count():
        due = start + number / rate
        if due - start > seconds:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if len(waiting) < MOST:
            task = asyncio.create_task(asker.ask(number))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
    await asyncio.gather(*waiting)
    await asker.close()
    return asker.tally.report(time.perf_counter() - start, per_request)


def main() -> None:
    """Read the command line, send the requests, print the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("texts", type=Path, help="a file with a text in each line")
    parser.add_argument("--requests", type=int, default=1000, help="the most requests")
    parser.add_argument("--seconds", type=float, default=30, help="after which no new request is sent")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--per-request", type=int, default=1, metavar="TEXTS")
    options = vars(parser.parse_args())
    lines = options.pop("texts").read_text().splitlines()
    asker = Asker(options.pop("port"), lines, options["per_request"])
    print(json.dumps(asyncio.run(load(asker, **options)), indent=1))


if __name__ == "__main__":
    main()
