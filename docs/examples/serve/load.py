"""Ask the server of this machine again and again: ``python load.py 8000 texts.txt``. Bounded in number and time."""

import argparse
import asyncio
import itertools
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np

HOST = "127.0.0.1"  # nobody else is asked


async def load(
    port: int,
    texts: list[str],
    *,
    requests: int = 1000,
    seconds: float = 30,
    connections: int = 32,
    per_request: int = 1,
) -> dict[str, object]:
    """Send requests over some connections at once, each waiting for its answer before the next request.

    Returns
    -------
    dict
        ``seconds``, ``texts_per_second`` and ``latency_ms`` (``p50``, ``p99``) of the answers with status 200, and
        ``statuses``: how many answers came with each.
    """
    bodies = [
        json.dumps({"texts": [texts[(start + k) % len(texts)] for k in range(per_request)], "form": "base64"}).encode()
        for start in range(len(texts))
    ]
    numbers = iter(range(requests))
    taken: list[float] = []
    statuses: Counter[int] = Counter()
    start = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            for number in numbers:
                before = time.perf_counter()
                if before - start > seconds:
                    return
                status = await ask(reader, writer, port, bodies[number % len(bodies)])
                statuses[status] += 1
                if status == 200:
                    taken.append(time.perf_counter() - before)
                else:
                    await asyncio.sleep(0.05)
        finally:
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*itertools.starmap(client, [()] * min(connections, requests)))
    elapsed = time.perf_counter() - start
    p50, p99 = np.percentile(taken, [50, 99]) * 1e3 if taken else (np.nan, np.nan)
    return {
        "seconds": elapsed,
        "texts_per_second": len(taken) * per_request / elapsed,
        "latency_ms": {"p50": float(p50), "p99": float(p99)},
        "statuses": dict(statuses),
    }


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, body: bytes) -> int:
    """Send one request over a connection that stays open, read its answer and return the status."""
    writer.write(f"POST /embed HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in head[1:] if line)
    await reader.readexactly(int(fields["content-length"]))
    return int(head[0].split()[1])


def main() -> None:
    """Read the command line, send the requests, print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("texts", type=Path, help="a file with a text in each line")
    parser.add_argument("--requests", type=int, default=1000, help="the most requests")
    parser.add_argument("--seconds", type=float, default=30, help="after which no request is sent any more")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--per-request", type=int, default=1, metavar="TEXTS")
    options = vars(parser.parse_args())
    lines = options.pop("texts").read_text().splitlines()
    print(json.dumps(asyncio.run(load(options.pop("port"), lines, **options)), indent=1))


if __name__ == "__main__":
    main()
