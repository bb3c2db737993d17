"""float32 to int8, symmetric, by scales that are given or found. Everyone gets the same array and the same scales."""

import argparse
from collections.abc import Callable, Iterator
from timeit import Timer

import numpy as np
import torch
from interleaved import Cell, copy_limit, show_rates, show_ratio

import mp_core as mp

SHAPES = ((64, 64), (1024, 1024), (4096, 8192))
GROUP = 64
OURS, PEERS = "mp_core", ("NumPy", "torch")

# Arguments of mp.quantize; whether x is read twice: its range must be known before its first code.
KINDS = {
    "tensor": ({}, True),
    "axis=1": ({"axis": 1}, True),
    "axis=0": ({"axis": 0}, False),
    "axis=1, group": ({"axis": 1, "group_size": GROUP}, False),
    "axis=0, group": ({"axis": 0, "group_size": GROUP}, False),
}
GIVEN = {"tensor": "tensor, given", "axis=1": "axis=1, given", "axis=0": "axis=0, given"}

HEADING = (
    "Gelem/s (* other codes than true quotients give); ratio: mp_core to the best peer, to torch; copy: the share\n"
    "of its bandwidth, in GB/s, by the bytes of x (of tensor and axis=1 twice, from 1 Mi on), codes and scales\n"
    f"{'':30}{''.join(f'{name:>8} ' for name in (OURS, *PEERS))} {'best':13}ratio     torch    copy    GB/s"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=["x".join(map(str, shape)) for shape in SHAPES], metavar="MxN")
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, *GIVEN.values()), default=(*KINDS, *GIVEN.values()))


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for shape in options.shapes:
        m, n = map(int, shape.split("x"))
        x = np.random.default_rng(20261121).standard_normal((m, n), np.float32)
        for kind, (settings, twice) in KINDS.items():
            for given in (False, True):
                label = GIVEN.get(kind, "") if given else kind
                if label in options.kinds:
                    yield cell(x, label, settings, given, twice and not given and x.size > 1 << 16)


def cell(x: np.ndarray, label: str, settings: dict, given: bool, twice: bool) -> Cell:
    q = mp.quantize(x, **settings)
    scale = q.scale if given else None
    ours = dict(settings, scale=float(scale[0, 0]) if scale is not None and scale.size == 1 else scale)
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: mp.quantize(x, out=q, **ours).values,
        "NumPy": lambda: by_numpy(x, scale, settings),
        "torch": by_torch(x, scale, settings),
    }
    wide = q.scale if "group_size" not in settings else mp.dequantize(ones_like(q))
    expected = np.clip(np.rint(x / wide), -127, 127).astype(np.int8)
    wrong = {name for name, call in calls.items() if not np.array_equal(codes(call()), expected)}
    nbytes = (1 + twice) * x.nbytes + q.nbytes
    timers = {name: Timer("call()", globals={"call": call}) for name, call in calls.items()}
    ratios = {"best": ((OURS,), PEERS), "torch": ((OURS,), ("torch",))}
    return Cell({"size": x.size, "kind": label, "nbytes": nbytes}, x.size, timers, ratios, copy_limit(nbytes), wrong)


def ones_like(q: mp.QuantizedArray) -> mp.QuantizedArray:
    """Return what stands for the scale of every element."""
    return mp.QuantizedArray(np.ones_like(q.values), q.scale, None, q.axis, q.group_size)


def by_numpy(x: np.ndarray, scale: np.ndarray | None, settings: dict) -> np.ndarray:
    slices, over_axis = grouped(x, settings)
    if scale is None:
        scale = np.abs(slices).max(over_axis, keepdims=True) / np.float32(127)
    quotient = slices / scale
    np.rint(quotient, out=quotient)
    return np.clip(quotient, -127, 127, out=quotient).astype(np.int8).reshape(x.shape)


def by_torch(x: np.ndarray, scale: np.ndarray | None, settings: dict) -> Callable[[], torch.Tensor]:
    tensor, axis = torch.from_numpy(x), settings.get("axis")
    slices, over_axis = grouped(tensor, settings)
    steps = None if scale is None else torch.from_numpy(scale.reshape(-1))
    zeros = torch.zeros(1 if axis is None else x.shape[axis], dtype=torch.int32)
    per_tensor, per_channel, int8 = torch.quantize_per_tensor, torch.quantize_per_channel, torch.qint8
    if "group_size" in settings:

        def call() -> torch.Tensor:
            found = slices.abs().amax(over_axis, keepdim=True) / 127
            return torch.div(slices, found).round_().clamp_(-127, 127).to(torch.int8)

        return call
    if axis is None:
        if steps is not None:
            step = float(steps[0])
            return lambda: per_tensor(tensor, step, 0, int8)
        return lambda: per_tensor(tensor, float(torch.linalg.vector_norm(tensor, torch.inf)) / 127, 0, int8)
    if steps is not None:
        return lambda: per_channel(tensor, steps, zeros, axis, int8)
    return lambda: per_channel(tensor, torch.linalg.vector_norm(tensor, torch.inf, 1 - axis) / 127, zeros, axis, int8)


def grouped(x, settings: dict):
    """Return `x`, a view, so that each slice along the returned axes has a scale of its own."""
    if "group_size" not in settings:
        return x, {None: (0, 1), 0: (1,), 1: (0,)}[settings.get("axis")]
    m, n = x.shape
    return (x.reshape(m // GROUP, GROUP, n), (1,)) if settings["axis"] == 1 else (x.reshape(m, n // GROUP, GROUP), (2,))


def codes(result) -> np.ndarray:
    if isinstance(result, torch.Tensor):
        result = (result.int_repr() if result.is_quantized else result).numpy()
    return result.reshape(-1, result.shape[-1]) if result.ndim == 2 else result.reshape(-1)


def binary(size: int) -> str:
    return f"{size >> 20} Mi" if size % (1 << 20) == 0 else f"{size >> 10} Ki"


def line(row: dict) -> str:
    rates, best = show_rates(row, (OURS, *PEERS)), show_ratio(row["ratios"]["best"])
    return (
        f"{binary(row['size']):>6}  {row['kind']:22}{rates} {best}{row['ratios']['torch']['torch']:8.1f}"
        f"{row['share_of_limit']:8.0%}{row['nbytes'] / row['least']['copy'] / 1e9:8.1f}"
    )


def summary(rows: list[dict]) -> str:
    """Name the cells in which a peer is faster."""
    behind = [f"{binary(row['size'])} {row['kind']}" for row in rows if min(row["ratios"]["best"].values()) < 1]
    return f"Behind a peer: {', '.join(behind) or 'nowhere'}"
