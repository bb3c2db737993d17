"""Compare libraries behind one server: throughput, latency, memory, and which library holds the interpreter lock.

- ``python bench.py`` starts a server per back end and sends requests to them in turn.
- ``python bench.py lock`` needs no server: it measures the interpreter lock.
- ``python bench.py overload`` sends `mp-core serve` more requests than it can answer. Which ones does it reject, and
  are the other answers right?
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from backends import BACKENDS, FOLDER, encode
from load import Asker, flood, load

from mp_core.cli import demo
from mp_core.models import TextEncoder
from mp_core.serving.models import Served

HERE = Path(__file__).parent
REST = 0.3  # seconds in which threads of the previous server fall asleep


@contextmanager
def server(name: str, options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port and the number of its process."""
    with started(HERE / "backends.py", name, "--folder", options.folder, "--threads", options.threads) as found:
        yield found


@contextmanager
def started(*arguments: object) -> Iterator[tuple[int, int]]:
    """Run Python with arguments of a server and a free port; yield the port and the number of the process."""
    command = [sys.executable, *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline().rpartition(":")[2]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def compare(options: argparse.Namespace) -> Iterator[dict]:
    """Yield a row for each back end: N requests, then twice as many in `rounds` rounds; then one connection alone."""
    texts = demo.documents_and_ratings()[0]
    rows = []
    per_round = 2 * options.requests // options.rounds
    for name in options.backends:
        with server(name, options) as (port, process):  # one at a time: idle threads of peers disturb nothing
            ask = {"seconds": 60.0, "connections": options.connections}
            first = asyncio.run(load(Asker(port, texts), requests=options.requests, **ask))
            memory = [resident(process)]
            busy = []
            for _ in range(options.rounds):
                time.sleep(REST)
                busy.append(asyncio.run(load(Asker(port, texts), requests=per_round, **ask)))
            memory.append(resident(process))
            time.sleep(REST)
            alone = asyncio.run(load(Asker(port, texts), requests=options.requests // 8, seconds=30, connections=1))
        rows.append({"name": name, "first": first, "busy": busy, "alone": alone, "resident": memory})
        yield rows[-1]


def resident(process: int) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024 / 1e6


def line(row: dict) -> str:
    """Return a row of the table."""
    busy, alone, (before, after) = row["busy"], row["alone"]["latency_ms"], row["resident"]
    failed = sum(n for part in (*busy, row["alone"]) for status, n in part["statuses"].items() if status != 200)
    figures = [f"{max(part['texts_per_second'] for part in busy):.1f}"]
    figures += [f"{median(part['latency_ms'][which] for part in busy):.0f}" for which in ("p50", "p99")]
    figures += [f"{alone['p50']:.1f}", f"{alone['p99']:.1f}", f"{before:.0f}", f"{after:.0f}", str(failed)]
    return f"| {row['name']} | {' | '.join(figures)} |"


def overload(options: argparse.Namespace) -> dict:
    """Measure the rate of `mp-core serve`, then send 1.2 times as much; every answer must have the bits of `encode`."""
    folder, texts = options.model or demo.model_folder(), demo.documents_and_ratings()[0]
    expected = TextEncoder.from_folder(folder).encode(texts)
    serve = ["-m", "mp_core", "serve", folder, "--threads", options.threads, "--max-requests", MOST, "--quiet"]
    with started(*serve) as (port, process):
        able = asyncio.run(load(Asker(port, texts, 1, expected), requests=10**6, seconds=10, connections=64))
        rate, memory = OVERLOAD * able["texts_per_second"], [resident(process)]
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(2):
                memory.append(resident(process))

        watcher = threading.Thread(target=watch)
        watcher.start()
        flooded = asyncio.run(flood(Asker(port, texts, 1, expected), rate, seconds=options.seconds))
        stop.set()
        watcher.join()
        after = asyncio.run(load(Asker(port, texts, 1, expected), requests=100, seconds=10, connections=1))
    halves = memory[: len(memory) // 2], memory[len(memory) // 2 :]
    flat = {"first_mb": memory[0], "most_mb_by_half": [max(half, default=0.0) for half in halves]}
    return {"able": able, "asked_per_second": rate, "flooded": flooded, "memory": flat, "after": after}


OVERLOAD = 1.2  # times the rate of the server
MOST = 128  # requests that may wait: so few that the limit is reached within seconds


def lock(options: argparse.Namespace) -> None:
    """Count in Python while another thread embeds; a library that holds the interpreter lock stops the count."""
    texts = demo.documents_and_ratings()[0][:32]
    print(
        "| back end | counting beside it, to counting alone | embedding beside it, to embedding alone |\n|---|---|---|"
    )
    for name in options.backends:
        model = BACKENDS[name](options.folder, 1)
        encode(model, texts)
        alone, both = [], []
        for _ in range(options.rounds):
            alone.append((counted(), running(model, texts, lambda: time.sleep(COUNTING))[1]))
            both.append(running(model, texts, counted))
        shares = [max(x[which] for x in both) / max(x[which] for x in alone) for which in range(2)]
        print(f"| {name} | {shares[0]:.2f} | {shares[1]:.2f} |", flush=True)


COUNTING = 1.0  # seconds


def counted() -> int:
    """Return how far Python counts in one second."""
    count, end = 0, time.perf_counter() + COUNTING
    while time.perf_counter() < end:
        count += 1
    return count


def running(model: Served, texts: list[str], what: Callable[[], object]) -> tuple[object, float]:
    """Call a function while a thread embeds all the time; return its result, and the texts embedded per second."""
    stop, done = threading.Event(), []

    def embed() -> None:
        start = time.perf_counter()
        calls = 0
        while not stop.is_set():
            encode(model, texts)
            calls += 1
        done.append(calls * len(texts) / (time.perf_counter() - start))

    thread = threading.Thread(target=embed)
    thread.start()
    result = what()
    stop.set()
    thread.join()
    return result, done[0]


def main() -> None:
    """Read the command line, measure, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("what", nargs="?", choices=("servers", "lock", "overload"), default="servers")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--requests", type=int, default=400, help="N; memory is read after N and 3 N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, metavar="DIR", help="the folder to overload; default: the demo's")
    parser.add_argument("--seconds", type=float, default=120, help="of overload")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of servers there too")
    options = parser.parse_args()
    if options.what == "lock":
        lock(options)
        return
    if options.what == "overload":
        print(json.dumps(overload(options), indent=1))
        return
    print("| back end | texts/s | p50 ms | p99 ms | alone: p50 ms | p99 ms | MB after N | after 3 N | not answered |")
    print("|---" * 9 + "|")
    rows = []
    for row in compare(options):
        rows.append(row)
        print(line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
