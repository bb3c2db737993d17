"""Sentence embedding with all-MiniLM-L6-v2, from token ids to means of vectors: whole models, one thread and two."""

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from timeit import Timer

import torch
from interleaved import Cell, show_rates, show_ratio
from minilm_contenders import FOLDER, OURS, PEERS, contenders, reference
from minilm_inputs import SHAPES, Inputs, inputs, min_cosine

import mp_core as mp
from mp_core.benchmark import Limit

LEAST_COSINE = {"float32": 0.99999, "bfloat16": 0.999, "int8": 0.97}  # lowest allowed cosine
SAMPLE = 50e-3  # seconds
PAUSE = 0.3  # seconds in which threads of the previous contender stop spinning

HEADING = (
    "documents/s (* wrong); below them the least cosine with float64. mp_core: under the policy float32,\n"
    "mixed_bfloat16 or int8; fixed: int8 with scales calibrated on other texts; float16: mixed_float16.\n"
    "Ratio and limit: of mp_core; int8: of fixed. Ratio: to the best peer. Limit: the multiplications and additions\n"
    "of real tokens alone; int8: attention in bfloat16.\n"
    f"{'':22}{''.join(f'{name:>8} ' for name in (*OURS, *PEERS))} {'mp_core to':20}{'limit':>6}"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    everyone = (*OURS[1:], *PEERS)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="DOCUMENTSxTOKENS|news")
    parser.add_argument("--precisions", nargs="+", choices=LEAST_COSINE, default=list(LEAST_COSINE))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--without", nargs="+", choices=everyone, default=[], metavar="CONTENDER", help=str(everyone))
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--pause", type=float, metavar="S", help="seconds before a sample; 0.3 with several threads")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where minilm_models.py has written")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    given = {shape: inputs(shape) for shape in options.shapes}
    expected = {shape: reference()(each) for shape, each in given.items()}
    for threads in options.threads:
        mp.config.set_num_threads(threads)
        torch.set_num_threads(threads)
        pause = options.pause if options.pause is not None else PAUSE * (threads > 1)
        timing = partial(turns, rounds=options.rounds, pause=pause)
        for precision in options.precisions:
            calls = contenders(precision, threads, options.folder, options.without)
            for shape, each in given.items():
                cosines = {name: min_cosine(call(each), expected[shape]) for name, call in calls.items()}
                wrong = {name for name, cosine in cosines.items() if not cosine >= LEAST_COSINE[precision]}
                timers = {name: Timer(partial(call, each)) for name, call in calls.items()}
                key = {"shape": shape, "dtype": precision, "threads": threads, "cosine": cosines}
                ours = tuple(calls)[:1]
                ratios = {"best": (ours, tuple(name for name in PEERS if name in calls))}
                if "float16" in calls:
                    ratios["float16"] = (("float16",), ours)
                limits = limits_of(precision, each)
                yield Cell(key, len(each.rows), timers, ratios, limits, wrong, unit=1.0, one_by_one=True, timing=timing)


def limits_of(precision: str, given: Inputs) -> dict[str, tuple[Timer, float]]:
    """Return the roofline: the dense layers, then attention, which int8 networks compute in bfloat16."""
    peaks = {"linear": (precision, given.linear), "attention": (precision, given.attention)}
    if precision == "int8":
        peaks["attention"] = ("bfloat16", given.attention)
    limits = {name: (Limit.multiply(dtype), work) for name, (dtype, work) in peaks.items()}
    return {name: (limit.timer, work / limit.work) for name, (limit, work) in limits.items()}


def turns(timers: Mapping[str, Timer], rounds: int, pause: float, rest: float = 0) -> dict[str, list[float]]:
    """Time all contenders in each round: a pause, an untimed call unless one call is a sample, then a sample.

    Each round begins with a rest, in which other programs of the machine may use the CPUs.
    """
    time.sleep(rest)
    calls = {name: max(1, math.ceil(SAMPLE / timer.timeit(1))) for name, timer in timers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        time.sleep(rest)
        for name, timer in timers.items():
            time.sleep(pause)
            if calls[name] > 1:
                timer.timeit(1)
            seconds[name].append(timer.timeit(calls[name]) / calls[name])
    return seconds


def unit(dtype: str) -> str:
    return "documents/s"


def line(row: dict) -> str:
    names = (*OURS, *PEERS)
    cosines = "".join(f"{row['cosine'][name]:8.6f} " if name in row["cosine"] else f"{'-':>8} " for name in names)
    ratio, share = show_ratio(row["ratios"]["best"]), row["share_of_limit"]
    head = f"{row['shape']:7}{row['dtype']:9}x {row['threads']}"
    return f"{head:22}{show_rates(row, names)} {ratio}{share:6.0%}\n{'':22}{cosines}"


def summary(rows: list[dict]) -> str:
    """Count the rows in which a peer is faster, or at most a tenth slower; and compare float16 with float32."""
    best = [min(row["ratios"]["best"].values()) for row in rows if row["ratios"]["best"]]
    float16 = [min(row["ratios"]["float16"].values()) for row in rows if "float16" in row["ratios"]]
    text = f"of {len(best)} rows below a peer: {sum(ratio < 1 for ratio in best)}, below 1.1 times the best peer: "
    text += f"{sum(ratio < 1.1 for ratio in best)}"
    return text + (f"; float16 to float32: {min(float16):.2f} to {max(float16):.2f}" if float16 else "")
