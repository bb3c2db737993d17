"""Value and gradients (forward, backward) of an encoder and of a perceptron, compared with torch, with equal weights.

``python peers_gradients.py NETWORK CONTENDER`` prints the bytes that a step needs in addition to weights and inputs.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from timeit import Timer

import numpy as np
import torch
from interleaved import Cell, show_ratio
from minilm_inputs import inputs
from minilm_torch import SentenceEncoder
from peers_minilm import turns
from peers_training import NETWORKS, SEED, TORCH, allowed, built, gradients_by_torch, initial, shapes, torch_module

import mp_core as mp
from mp_core import ops
from mp_core.cli import demo
from mp_core.models import BertEncoder

DOCUMENTS, LENGTH, SHARPNESS = 32, 128, 20.0  # of pairs; the last is the factor of their cosines
OURS = ("float32", "mixed_bfloat16", "mixed_float16")
WIDE = tuple(name for name in TORCH if "bfloat16" not in name)
NARROW = tuple(name for name in TORCH if "bfloat16" in name)
IN_MEMORY = (*OURS, "torch float32", "torch bfloat16")  # compiled contenders keep the compiler in memory

HEADING = (
    "steps/s and the loss (* not that of torch in float32, within 1e-3 or, with 16 bits, 0.02); ratios of mp_core to\n"
    "torch: float32 to float32, mixed_bfloat16 to bfloat16; forward: how long a step takes, in forward passes of the\n"
    "policy; MB: what a step needs beside weights and inputs, at its peak"
)

Calls = tuple[Callable[[], object], Callable[[], object] | None]
"""A step that returns the loss, and a forward pass."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", choices=MAKERS, default=list(MAKERS), metavar="NAME")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for name in options.networks:
        memory = {label: memory_of(name, label) for label in IN_MEMORY}
        for threads in options.threads:
            mp.config.set_num_threads(threads)
            torch.set_num_threads(threads)
            with torch.inference_mode(False):
                yield cell(name, threads, options.rounds, memory)


def cell(name: str, threads: int, rounds: int, memory: dict[str, float]) -> Cell:
    calls = {label: MAKERS[name](label) for label in (*OURS, *TORCH)}
    losses = {label: float(step()) for label, (step, _) in calls.items()}
    wrong = {label for label, loss in losses.items() if not abs(loss / losses["torch float32"] - 1) <= allowed(label)}
    forward = {f"forward {label}": call for label, (_, call) in calls.items() if call is not None}
    timers = {label: Timer(step) for label, (step, _) in calls.items()}
    timers |= {label: Timer(call) for label, call in forward.items()}
    ratios = {"float32": (OURS[:1], WIDE), "bfloat16": (OURS[1:2], NARROW)}
    ratios |= {label: ((label,), (label.removeprefix("forward "),)) for label in forward}
    key = {"shape": name, "dtype": "", "threads": threads, "loss": losses, "memory": memory}
    pause = 0.1 * (threads > 1)
    return Cell(key, 1, timers, ratios, {}, wrong, unit=1.0, timing=partial(turns, rounds=rounds, pause=pause))


# ---- all-MiniLM-L6-v2 with a contrastive loss: documents 2i and 2i + 1 are a pair


def encoder_of(label: str) -> Calls:
    given = inputs(f"{DOCUMENTS}x{LENGTH}")
    return encoder_by_torch(given, **TORCH[label]) if label in TORCH else encoder_by_mp_core(given, label)


def encoder_by_mp_core(given: object, policy: str) -> Calls:
    model = BertEncoder.from_folder(demo.model_folder(), policy=policy).model
    ids, offsets = np.concatenate(given.rows).astype(np.int32), np.arange(0, DOCUMENTS + 1, dtype=np.int32) * LENGTH
    arrays = ids, model.embeddings.places(ids, offsets), offsets

    def vectors(ids: np.ndarray, places: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return ops.ragged_pool(model(ids, places=places, offsets=offsets), offsets, "mean")

    def loss(*arrays: np.ndarray) -> np.ndarray:
        rows = ops.normalize(vectors(*arrays))
        scores = mp.matmul(rows[0::2], rows[1::2].swapaxes(0, 1)) * SHARPNESS
        return mp.losses.SparseCategoricalCrossentropy(from_logits=True)(np.arange(len(rows) // 2), scores)

    return step_of(loss, model.trainable_variables, arrays), partial(mp.compile(vectors, *arrays), *arrays)


def step_of(loss: Callable, variables: list, arrays: tuple) -> Callable[[], float]:
    both = mp.value_and_grad(loss, variables)
    return lambda: float(both(*arrays)[0])


def encoder_by_torch(given: object, **options: bool) -> Calls:
    labels = torch.arange(DOCUMENTS // 2)

    def loss(vectors: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.normalize(vectors, dim=-1)
        return torch.nn.functional.cross_entropy(rows[0::2] @ rows[1::2].T * SHARPNESS, labels)

    return gradients_by_torch(SentenceEncoder(torch.float32), given.batches[0], loss, **options), None


# ---- a perceptron


def perceptron_of(label: str) -> Calls:
    network, rng = NETWORKS["mlp"], np.random.default_rng(SEED)
    x = rng.standard_normal((network.batch, *network.shape), np.float32)
    y = rng.integers(0, network.units[-1], network.batch).astype(np.int32)
    weights = [array for shape in shapes(network) for array in initial(rng, shape)]
    if label in TORCH:
        return perceptron_by_torch(torch_module(network, weights), x, y, **TORCH[label])
    before = mp.config.dtype_policy()
    mp.config.set_dtype_policy(label)
    try:
        model = mp.Sequential(built(network, mp))
    finally:
        mp.config.set_dtype_policy(before)
    model.set_weights(weights)
    loss = mp.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = step_of(lambda x, y: loss(y, model(x)), model.trainable_variables, (x, y))
    return step, partial(mp.compile(model, x), x)


def perceptron_by_torch(module: torch.nn.Module, x: np.ndarray, y: np.ndarray, **options: bool) -> Calls:
    loss = partial(torch.nn.functional.cross_entropy, target=torch.from_numpy(y).long())
    return gradients_by_torch(module, [x], loss, **options), None


MAKERS: dict[str, Callable[[str], Calls]] = {"minilm": encoder_of, "mlp": perceptron_of}

# ---- memory, in a separate process


def memory_of(name: str, label: str) -> float:
    """Return the peak memory of a step in MB, less the memory before the first step."""
    done = subprocess.run([sys.executable, __file__, name, label], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1e6


def resident(entry: str) -> int:
    """Return an entry of the system's status of this process, in bytes: VmRSS is the present, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(entry))


def needed(name: str, label: str) -> int:
    mp.config.set_num_threads(1)
    torch.set_num_threads(1)
    step, _ = MAKERS[name](label)
    before = resident("VmRSS")
    step()  # makes the plan
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    step()
    return resident("VmHWM") - before


# ---- lines


def unit(dtype: str) -> str:
    return "steps/s"


def line(row: dict) -> str:
    head = f"{row['shape']:7}x {row['threads']}"
    ratios = "".join(f"  {column}: {show_ratio(each)}" for column, each in row["ratios"].items() if "for" not in column)
    rates = "\n".join(
        f"{'':10}{name:24}{rate:10.2f}{'*' if name in row['wrong'] else ' '}{details(row, name)}"
        for name, rate in row["rate"].items()
    )
    return f"{head}{ratios}\n{rates}"


def details(row: dict, name: str) -> str:
    if name not in row["loss"]:
        return ""
    memory = f"{row['memory'][name]:8.0f} MB" if name in row["memory"] else ""
    passes = row["ratios"].get(f"forward {name}", {}).get(name)
    return f"  loss {row['loss'][name]:.5f}{f'{passes:7.2f} forward' if passes else '':15}{memory}"


def summary(rows: list[dict]) -> str:
    pairs = [(row, column) for row in rows for column in ("float32", "bfloat16")]
    slow = [column for row, column in pairs if any(ratio < 1 for ratio in row["ratios"][column].values())]
    return f"{len(pairs)} comparisons, in {len(slow)} of which a contender of torch is faster"


if __name__ == "__main__":
    print(needed(*sys.argv[1:]))
