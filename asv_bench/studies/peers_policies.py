"""all-MiniLM-L6-v2 under every policy and in every precision of the peers: speed, megabytes, accuracy."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from timeit import Timer

import torch
from interleaved import Cell
from minilm_contenders import (
    FOLDER,
    Call,
    by_mp_core,
    by_onnxruntime,
    by_openvino,
    over_batches,
    reference,
    torch_module,
    torch_network,
)
from minilm_inputs import NEWS, inputs, min_cosine
from minilm_models import CALIBRATED, calibrated_folder
from peers_minilm import turns

import mp_core as mp
from mp_core.cli import demo

POLICIES = (
    *("float32", "mixed_float16", "mixed_bfloat16"),
    *("int8", "int8/fixed", "int8/weight_only", "int8/weight_only/64", "float8_e4m3fn", "int4/32", "int4/64"),
)

HEADING = (
    "The news items at their natural lengths (peers: padded to the longest of a batch). documents/s, megabytes of the\n"
    "weights, the least cosine of any document with float64. mp_core under its policies; those with a + are calibrated."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where minilm_models.py has written")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    given = inputs(NEWS)
    expected = reference()(given)
    for threads in options.threads:
        mp.config.set_num_threads(threads)
        torch.set_num_threads(threads)
        calls, sizes = {}, {}
        for name, make in contenders(threads, options.folder).items():
            calls[name], nbytes = make()
            sizes[name] = nbytes / 1e6
        cosines = {name: min_cosine(call(given), expected) for name, call in calls.items()}
        timers = {name: Timer(partial(call, given)) for name, call in calls.items()}
        key = {"shape": NEWS, "dtype": "", "threads": threads, "cosine": cosines, "MB": sizes}
        timing = partial(turns, rounds=options.rounds, pause=0.3 * (threads > 1))
        yield Cell(key, len(given.rows), timers, {}, {}, unit=1.0, timing=timing)


def contenders(threads: int, folder: Path) -> dict[str, Callable[[], tuple[Call, int]]]:
    """Return the contenders: functions that return a call and the bytes of the weights."""
    found: dict[str, Callable[[], tuple[Call, int]]] = {}
    for policy in POLICIES:
        fitted = policy in CALIBRATED
        where = calibrated_folder(folder, policy) if fitted else demo.model_folder()
        found[policy + "+" * fitted] = partial(opened, where, None if fitted else policy)
    plain, int8 = (folder / name for name in ("float32.onnx", "int8.xml"))
    found["ORT float32"] = lambda: (by_onnxruntime(plain, threads), plain.stat().st_size)
    found["ORT int8"] = lambda: (by_onnxruntime(folder / "int8.onnx", threads), (folder / "int8.onnx").stat().st_size)
    found["OpenVINO float32"] = lambda: (by_openvino(plain, threads, "f32"), plain.stat().st_size)
    found["OpenVINO int8"] = lambda: (by_openvino(int8, threads, "bf16"), int8.with_suffix(".bin").stat().st_size)
    for dtype in (torch.float32, torch.bfloat16):
        found[f"torch {str(dtype).removeprefix('torch.')}"] = partial(by_torch, dtype)
    return found


def opened(folder: Path, policy: str | None) -> tuple[Call, int]:
    call = by_mp_core(folder, policy)
    encoder = call.args[0]
    return call, encoder.weight_bytes


def by_torch(dtype: torch.dtype) -> tuple[Call, int]:
    module = torch_module(dtype)
    return over_batches(torch_network(module)), sum(each.nbytes for each in module.parameters())


def unit(dtype: str) -> str:
    return "documents/s"


def line(row: dict) -> str:
    return "\n".join(
        f"{name:22}x {row['threads']}{rate:10.2f}{row['MB'][name]:8.1f}{row['cosine'][name]:10.6f}"
        for name, rate in row["rate"].items()
    )


def summary(rows: list[dict]) -> str:
    return f"{len(rows[0]['rate'])} ways in turn"
