"""A decoder that embeds a query and a document: the sizes of Qwen3-Embedding-0.6B, with random weights."""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from decoder_contenders import OURS, PEERS, SIZES, contenders
from decoder_files import WORDS, prepare
from interleaved import MEMORY, Cell, show_rates, show_ratio
from peers_minilm import turns
from workers import Timed, Worker, timed

import mp_core as mp
from mp_core.benchmark import Limit

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 1 / 2 + 5 / 64}  # of a weight
LEAST_COSINE = {"float32": 0.9999, "bfloat16": 0.999, "int8": 0.98, "int4": 0.9}  # lowest allowed cosine
PAUSE = 0.3  # seconds in which threads of the previous contender stop spinning

HEADING = (
    "embeddings/s of one text (* wrong), then its cosine with torch's in float32. mp_core: under the policy float32,\n"
    "bfloat16, int8 or int4/dynamic/64; floats: int4/64. torch and ORT: int8 by quantize_dynamic; ORT: int4 by\n"
    "MatMulNBits. OpenVINO: weights as NNCF compresses them, dynamic quantization. llama.cpp: F32, BF16, Q8_0, Q4_0.\n"
    "Limit: of mp_core; reading the weights or multiplying by them. MB: resident, of each process.\n"
    f"{'':22}{''.join(f'{name:>9} ' for name in ('mp_core', 'floats', *PEERS))} mp_core to the best, limit"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=28, metavar="N", help="of the network: 28 are the whole")
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 512], metavar="N", help="of a text")
    parser.add_argument("--precisions", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    everyone = ("mp_core", "floats", *PEERS)
    parser.add_argument(
        "--contenders", nargs="+", choices=everyone, default=everyone, metavar="NAME", help=str(everyone)
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--vocabulary", type=int, default=151669, metavar="N", help="words of the network")
    parser.add_argument(
        "--folder", type=Path, help="where files are written and found again; a temporary one by default"
    )
    parser.add_argument("--realtime", action="store_true", help="samples at real-time priority (by root)")
    parser.add_argument("--rest", type=float, default=0, metavar="S", help="seconds before a round, for other programs")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        texts = [rng.integers(0, WORDS, (1, tokens)) for tokens in options.tokens]
        expected = prepare(options.blocks, options.vocabulary, options.precisions, texts, folder)
        for threads in options.threads:
            mp.config.set_num_threads(threads)
            for precision in options.precisions:
                ways = contenders(precision, folder, threads)
                workers = {
                    name: Worker(make, options.realtime) for name, make in ways.items() if name in options.contenders
                }
                for ids, vector in zip(texts, expected, strict=True):
                    yield cell_of(workers, precision, threads, ids, vector, options)
                for worker in workers.values():
                    worker.close()


def cell_of(
    workers: dict[str, Worker],
    precision: str,
    threads: int,
    ids: np.ndarray,
    expected: np.ndarray,
    options: argparse.Namespace,
) -> Cell:
    cosines = {name: cosine(worker(ids), expected) for name, worker in workers.items()}
    key = {
        "shape": f"1x{ids.size}",
        "dtype": precision,
        "threads": threads,
        "cosine": cosines,
        "megabytes": {name: worker.megabytes() for name, worker in workers.items()},
    }
    return Cell(
        key,
        1,
        {name: worker.timer(ids) for name, worker in workers.items()},
        {"best": (("mp_core",), tuple(name for name in PEERS if name in workers))} if "mp_core" in workers else {},
        limits_of(precision, options.blocks, ids.size, options.realtime),
        {name for name, value in cosines.items() if not value >= LEAST_COSINE[precision]},
        unit=1.0,
        timing=partial(turns, rounds=options.rounds, pause=PAUSE * (threads > 1), rest=options.rest),
    )


def limits_of(precision: str, blocks: int, tokens: int, realtime: bool) -> dict[str, tuple[Timed, float]]:
    """Return the roofline: multiplying by the matrices of the blocks, and reading these once from memory."""
    heads = (2 * SIZES["num_attention_heads"] + 2 * SIZES["num_key_value_heads"]) * SIZES["head_dim"]
    weights = blocks * SIZES["hidden_size"] * (heads + 3 * SIZES["intermediate_size"])
    multiply, read = Limit.multiply("int8" if precision == "int4" else precision), Limit.read(MEMORY)
    return {
        "multiply": (timed(multiply.timer, realtime), 2 * weights * tokens / multiply.work),
        "read": (timed(read.timer, realtime), weights * BYTES[precision] / read.work),
    }


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (np.asarray(x, np.float64).ravel() for x in (a, b))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def unit(dtype: str) -> str:
    return "embeddings/s"


def line(row: dict) -> str:
    names = ("mp_core", "floats", *PEERS)
    cosines = "".join(f"{row['cosine'][name]:9.6f} " if name in row["cosine"] else f"{'-':>9} " for name in names)
    head = f"{row['shape']:<6}{row['dtype']:9}x {row['threads']}"
    sizes = ", ".join(f"{name} {size:.0f} MB" for name, size in row["megabytes"].items())
    ratio, share = show_ratio(row["ratios"].get("best", {})), row["share_of_limit"]
    return f"{head:22}{show_rates(row, names)} {ratio}{share:6.0%}\n{'':22}{cosines}{sizes}"


def summary(rows: list[dict]) -> str:
    best = [min(row["ratios"]["best"].values()) for row in rows if row["ratios"].get("best")]
    return f"of {len(best)} rows below a peer: {sum(ratio < 1 for ratio in best)}"
