"""Time contenders in interleaved rounds, for all subjects of `peers.py`.

In each round every contender of a cell is timed once, so a ratio compares samples that are milliseconds apart, and
other load of the machine cancels out. The report has the median of these ratios, the best rate of each contender, and
the best rate of mp_core as a share of the roofline.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from timeit import Timer

import ml_dtypes
import numkong
import numpy as np
import onnx
import onnxruntime
import torch

from mp_core.benchmark import Limit, Record, measure

CACHED, MEMORY = 1 << 26, 1 << 30  # bytes: a cell that moves more than CACHED is compared with a copy of MEMORY bytes


@dataclass
class Cell:
    """One row of a table: several ways to do the same `work` (elements or operations per call) on the same numbers."""

    key: dict[str, object]  # identifies the row
    work: float
    contenders: dict[str, Timer]  # mp_core first
    ratios: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]  # column: best of the first / best of the second
    limits: dict[str, tuple[Timer, float]]  # a call takes at least each of these: factor x time of the timer
    wrong: set[str] = field(default_factory=set)
    sample: float = 200e-6  # seconds per contender and round
    unit: float = 1e9  # of rates
    one_by_one: bool = False  # whether the limits apply one after the other, so that their times add up
    timing: Callable[[Mapping[str, Timer]], dict[str, list[float]]] | None = None  # instead of `measure`


def compare(cell: Cell) -> dict[str, object]:
    """Measure a cell and return its row."""
    everyone = cell.contenders | {name: timer for name, (timer, _) in cell.limits.items()}
    seconds = cell.timing(everyone) if cell.timing else measure(everyone, sample=cell.sample)
    taken = {name: seconds[name] for name in cell.contenders}
    least = {name: times * min(seconds[name]) for name, (_, times) in cell.limits.items()}
    limit = sum(least.values()) if cell.one_by_one else max(least.values(), default=0.0)

    def ratios(ours: tuple[str, ...], theirs: tuple[str, ...]) -> dict[str, float]:
        best = min(ours, key=lambda name: median(taken[name]))
        return {name: over(taken[name], taken[best]) for name in theirs}

    return {
        **cell.key,
        "rounds": len(next(iter(taken.values()))),
        "seconds": {name: min(each) for name, each in taken.items()},
        "rate": {name: cell.work / min(each) / cell.unit for name, each in taken.items()},
        "ratios": {column: ratios(*sides) for column, sides in cell.ratios.items()},
        "least": least,
        "limit": cell.work / limit / cell.unit if limit else None,
        "share_of_limit": limit / min(next(iter(taken.values()))),
        "wrong": sorted(cell.wrong),
    }


def records(row: dict, operation: str, unit: str) -> Iterator[Record]:
    """Yield a measured row as records: one per contender."""
    own = {"shape", "dtype", "threads", "rounds", "seconds", "rate", "ratios", "least", "limit", "share_of_limit"}
    for name, rate in row["rate"].items():
        details = {key: value for key, value in row.items() if key not in own | {"wrong"}}
        details = {key: value.get(name) if isinstance(value, dict) else value for key, value in details.items()}
        ratios = {column: each[name] for column, each in row["ratios"].items() if name in each}
        details |= {"ratios": ratios} if ratios else {}
        details |= {"wrong": True} if name in row["wrong"] else {}
        shape, dtype, threads = row["shape"], row["dtype"], row.get("threads", 1)
        yield Record(operation, shape, dtype, threads, name, _short(rate), unit, _short(row["limit"]), _short(details))


def _short(value):
    """Return a value with its floats rounded to six digits; measurements have no more."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def over(theirs, ours) -> float:
    """Return the ratio of the times, as the median over the rounds."""
    return median(their / our for their, our in zip(theirs, ours, strict=True))


def show_ratio(ratios: dict[str, float]) -> str:
    """Return the contender with the lowest ratio, and that ratio, in 20 characters."""
    if not ratios:
        return f"{'-':20}"
    best = min(ratios, key=lambda name: ratios[name])
    return f"{best:12}{ratios[best]:6.2f}{'' if ratios[best] >= 1 else ' <':2}"


def show_rates(row: dict, names: tuple[str, ...]) -> str:
    """Return the rates of the named contenders: `*` marks a wrong result, `-` a missing contender."""

    def show(name: str) -> str:
        return f"{row['rate'][name]:8.2f}{'*' if name in row['wrong'] else ' '}"

    return "".join(show(name) if name in row["rate"] else f"{'-':>8} " for name in names)


def binary(size: int) -> str:
    """Return a size in the largest binary unit that divides it."""
    for shift, unit in ((20, " Mi"), (10, " Ki")):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Return uninitialized memory that is aligned to a cache line, which is best for every contender."""
    raw = np.empty(size * dtype.itemsize + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :][: size * dtype.itemsize].view(dtype)


def as_torch(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))


def as_numkong(x: np.ndarray) -> numkong.Tensor:
    """Return a NumKong tensor: 30 ns faster per call than an ndarray, and NumKong reads no 8-bit floats from NumPy."""
    return numkong.from_pointer(x.ctypes.data, x.shape, x.dtype.name.removesuffix("fn"), owner=x)


def onnx_call(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    constants: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
) -> Callable[[], np.ndarray]:
    """Return a function that runs a graph on one thread into the given arrays, and returns the first of them."""

    def described(arrays: dict[str, np.ndarray]) -> list[onnx.ValueInfoProto]:
        number = onnx.helper.np_dtype_to_tensor_dtype
        return [onnx.helper.make_tensor_value_info(name, number(x.dtype), x.shape) for name, x in arrays.items()]

    weights = [onnx.numpy_helper.from_array(x, name) for name, x in constants.items()]
    graph = onnx.helper.make_graph(nodes, "graph", described(inputs), described(outputs), weights)
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)])
    return session_call(model, inputs, outputs)


def session_call(model: onnx.ModelProto, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, first = session.io_binding(), next(iter(outputs.values()))
    for name, x in inputs.items():
        binding.bind_input(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    for name, x in outputs.items():
        binding.bind_output(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)

    def call(owned: tuple = (inputs, outputs)) -> np.ndarray:  # keep them alive: the session has only their addresses
        session.run_with_iobinding(binding)
        return first

    return call


def copy_limit(nbytes: int) -> dict[str, tuple[Timer, float]]:
    """Return the limit of a cell: a plain copy that moves `nbytes`, half of them read and half written."""
    copy = plain_copy(nbytes if nbytes <= CACHED else MEMORY)
    return {"copy": (copy.timer, nbytes / copy.work)}


plain_copy = cache(Limit.copy)
