"""What operations cost on this machine in this moment, beside NumPy and the peers that are there, and what bounds them.

Contenders take turns, so that noise of the machine hits all alike. Peers that can be imported (PyTorch, NumKong,
onnxruntime with onnx) take part; mp_core needs none of them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import Any

import numpy as np

import mp_core as mp
from mp_core import config
from mp_core.core import limits as _limits
from mp_core.core.matmul import aligned_empty

__all__ = ["OPERATIONS", "Limit", "limits", "measure", "onnxruntime_product", "run", "table"]

Array = np.ndarray[Any, Any]
_SAMPLE = 200e-6  # seconds: as many calls as take that long are one sample
_SLOW = 0.5


def measure(timers: Mapping[str, Timer], *, budget: float = 1.0, rounds: int = 15) -> dict[str, list[float]]:
    """Time everyone in turn, round by round, and return the seconds per call of each: one entry a round.

    Parameters
    ----------
    timers : mapping of str to timeit.Timer
        Who takes part. Each sample is of as many calls as take 200 us, after an untimed one.
    budget : float
        Seconds to spend, unless fewer than `rounds` rounds fit in them.
    rounds : int
        The least number of rounds; there are at most 301. Whoever takes more than half a second is timed once only,
        and that counts in every round.

    Examples
    --------
    >>> from timeit import Timer
    >>> taken = measure({"add": Timer("1 + 1"), "pass": Timer()}, budget=0, rounds=3)
    >>> {name: len(seconds) for name, seconds in taken.items()}
    {'add': 3, 'pass': 3}
    """
    calls, slow = {}, {}
    for name, timer in timers.items():
        calls[name] = 1
        while (taken := timer.timeit(calls[name])) < _SAMPLE:
            calls[name] = max(2 * calls[name], int(1.2 * _SAMPLE / taken * calls[name]))
        if calls[name] == 1 and taken > _SLOW:
            slow[name] = taken
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget
    for done in range(301):
        if done >= rounds and time.perf_counter() > end:
            break
        for name, timer in timers.items():
            if name in slow:
                seconds[name].append(slow[name])
                continue
            timer.timeit(1)  # the caches as this contender leaves them, not the one before
            seconds[name].append(timer.timeit(calls[name]) / calls[name])
    return seconds


# ---- limits


@dataclass(frozen=True, slots=True)
class Limit:
    """Work that no operation does faster: a call of `timer` does `work` operations or moves as many bytes.

    Made for, and timed on, as many threads as the configuration says.

    Examples
    --------
    >>> limit = Limit.multiply("int8")
    >>> limit.unit, limit.work > 1e6
    ('GOP/s', True)
    """

    name: str
    unit: str
    work: float
    timer: Timer

    @classmethod
    def multiply(cls, dtype: str, setup: str | Callable[[], Any] = "pass") -> "Limit":
        """Multiply and add in registers, as a product of that dtype does in the instruction set in use."""
        rounds = int(4e7 / _limits.multiply(dtype, 1))  # some 100 us
        timer = Timer(lambda: _limits.multiply(dtype, rounds), setup)
        return cls(f"{dtype} multiply-add", _unit(dtype), _limits.multiply(dtype, rounds), timer)

    @classmethod
    def read(cls, nbytes: int, name: str = "", setup: str | Callable[[], Any] = "pass") -> "Limit":
        """Read so many bytes (a multiple of 256) again and again: from the cache that holds them."""
        x = _filled(nbytes)
        rounds = max(1, (1 << 24) // nbytes)
        read = Timer(lambda: _limits.read(x, rounds), setup)
        return cls(name or f"read of {nbytes} bytes", "GB/s", nbytes * rounds, read)

    @classmethod
    def copy(cls, nbytes: int, name: str = "") -> "Limit":
        """Copy by one thread: so many bytes, half of them read and half written."""
        x, out = (_filled(nbytes // 2) for _ in range(2))
        code = "out[all] = x"  # of memoryviews: memcpy
        names = {"x": memoryview(x), "out": memoryview(out), "all": slice(None)}
        return cls(name or f"copy of {nbytes} bytes", "GB/s", nbytes, Timer(code, globals=names))


def _unit(dtype: str) -> str:
    return "GOP/s" if dtype == "int8" else "GFLOP/s"


def _filled(nbytes: int) -> Array:
    """Return written memory: what was never written to is one page of zeros."""
    x: Array = aligned_empty(nbytes)
    x.fill(1)
    return x


def _cache_bytes(index: int, default: int) -> int:
    """Return the size of the second (2) or third (3) level cache; Linux counts two of the first level before them."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text()
        return int(text.strip().removesuffix("K")) * 1024 or default
    except (OSError, ValueError):
        return default


def limits(*, quick: bool = False) -> list[dict[str, Any]]:
    """Measure what bounds every operation: multiply-adds, reads, copies, on one thread and on all.

    Parameters
    ----------
    quick : bool
        Whether to take three samples of each only.

    Returns
    -------
    list of dict
        A dict for each limit: ``limit``, ``unit`` and ``rates``, by number of threads (a string). A copy is of one
        thread.
    """
    rows: dict[str, dict[str, Any]] = {}
    for threads in dict.fromkeys((1, config.get_num_threads())):
        with config.num_threads(threads):
            present = _present_limits()
            taken = measure({limit.name: limit.timer for limit in present}, **_effort(quick))
        for limit in present:
            row = rows.setdefault(limit.name, {"limit": limit.name, "unit": limit.unit, "rates": {}})
            row["rates"][str(threads)] = limit.work / min(taken[limit.name]) / 1e9
    return list(rows.values())


def _present_limits() -> list[Limit]:
    """Return the limits of as many threads as are set; half a cache is surely in it."""
    second, third = _cache_bytes(2, 1 << 20), _cache_bytes(3, 1 << 25)
    memory = max(1 << 28, 4 * third)
    found = [Limit.multiply(dtype) for dtype in ("float32", "float16", "bfloat16", "int8")]
    found += [
        Limit.read(second // 512 * 256, "read, second-level cache"),
        Limit.read(third // 512 * 256, "read, third-level cache"),
        Limit.read(memory, "read, memory"),
    ]
    return found + [Limit.copy(memory, "copy, memory, read + written")] * (config.get_num_threads() == 1)


def _effort(quick: bool) -> dict[str, Any]:
    return {"budget": 0.0, "rounds": 3} if quick else {"budget": 0.5}


# ---- operations


@dataclass(frozen=True, slots=True)
class _Case:
    """One row: `contenders` do `work` (operations, or bytes read and written) a call."""

    shape: str
    unit: str
    work: float
    contenders: dict[str, Callable[[], Any]]


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _normal(*shape: int, dtype: str = "float32") -> Array:
    x = np.random.default_rng(20261121).standard_normal(shape, np.float32)
    return (8 * x).astype(np.int8) if dtype == "int8" else mp.cast(x, dtype)


def _as_torch(torch: Any, x: Array) -> Any:
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))


def _as_numkong(numkong: Any, x: Array) -> Any:
    return numkong.from_pointer(x.ctypes.data, x.shape, x.dtype.name.removesuffix("fn"), owner=x)


def _casts() -> Iterator[_Case]:
    for narrow in ("bfloat16", "float16", "float8_e4m3fn"):
        for source, target in (("float32", narrow), (narrow, "float32")):
            x, out = _normal(1 << 20, dtype=source), np.empty(1 << 20, mp.dtypes.parse(target))
            yield _Case(f"{source} to {target} 1Mi", "GB/s", x.nbytes + out.nbytes, dict(_casters(x, out)))


def _casters(x: Array, out: Array) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "mp_core", lambda: mp.cast(x, out.dtype, out=out)
    yield "numpy", lambda: np.copyto(out, x, casting="unsafe")
    if torch := _optional("torch"):
        given, to = _as_torch(torch, x), _as_torch(torch, out)
        yield "torch", lambda: to.copy_(given)
    if numkong := _optional("numkong"):
        source, target, name = _as_numkong(numkong, x), _as_numkong(numkong, out), out.dtype.name.removesuffix("fn")
        yield "numkong", lambda: numkong.astype(source, name, out=target)


def _products() -> Iterator[_Case]:
    for dtype in ("float32", "bfloat16", "float16", "int8"):
        for m, k, n in ((1, 1024, 1024), (64, 768, 768), (512, 512, 512)):
            a, b = _normal(m, k, dtype=dtype), _normal(k, n, dtype=dtype)
            yield _Case(f"{dtype} {m}x{k}x{n}", _unit(dtype), 2.0 * m * k * n, dict(_multipliers(a, b)))


def _multipliers(a: Array, b: Array) -> Iterator[tuple[str, Callable[[], Any]]]:
    packed, integers = mp.pack(b), a.dtype == np.int8
    out = mp.matmul(a, packed)
    yield "mp_core", lambda: mp.matmul(a, packed, out=out)
    exact = np.float64 if integers else np.float32  # NumPy's BLAS multiplies no narrower type
    yield "numpy", lambda: (a.astype(exact) @ b.astype(exact)).astype(out.dtype)
    if torch := _optional("torch"):
        left, right, multiply = _as_torch(torch, a), _as_torch(torch, b), torch._int_mm if integers else torch.matmul
        yield "torch", lambda: multiply(left, right)
    if a.dtype == np.float32 and _optional("onnx") and _optional("onnxruntime"):
        yield "onnxruntime", onnxruntime_product(a, b, config.get_num_threads())
    if numkong := _optional("numkong"):
        rows, columns = _as_numkong(numkong, a), numkong.dots_pack(_as_numkong(numkong, np.ascontiguousarray(b.T)))
        yield "numkong", lambda: numkong.dots_packed(rows, columns)


def _quantizations() -> Iterator[_Case]:
    x = _normal(1024, 1024)
    yield _Case("per tensor 1024x1024", "GB/s", 5 * x.size, {
        "mp_core": lambda: mp.quantize(x),
        "numpy": lambda: _numpy_quantize(x, None),
    })  # fmt: skip
    yield _Case("per row 1024x1024", "GB/s", 5 * x.size, {
        "mp_core": lambda: mp.quantize(x, axis=0),
        "numpy": lambda: _numpy_quantize(x, 1),
    })  # fmt: skip


def _numpy_quantize(x: Array, axis: int | None) -> Array:
    codes: Array = np.rint(x / (np.abs(x).max(axis=axis, keepdims=True) / np.float32(127))).astype(np.int8)
    return codes


def _rows() -> Iterator[_Case]:
    x, gamma = _normal(512, 1024), _normal(1024)
    out = np.empty_like(x)
    contenders: dict[str, dict[str, Callable[[], Any]]] = {
        "softmax": {"mp_core": lambda: mp.softmax(x, out=out), "numpy": lambda: _numpy_softmax(x)},
        "layer_norm": {"mp_core": lambda: mp.layer_norm(x, gamma), "numpy": lambda: _numpy_layer_norm(x, gamma)},
        "silu": {"mp_core": lambda: mp.silu(x), "numpy": lambda: x / (1 + np.exp(-x))},
        "gelu": {"mp_core": lambda: mp.gelu(x)},  # NumPy has no erf
    }
    if torch := _optional("torch"):
        given, scale, functions = torch.from_numpy(x), torch.from_numpy(gamma), torch.nn.functional
        contenders["softmax"]["torch"] = lambda: functions.softmax(given, -1)
        contenders["layer_norm"]["torch"] = lambda: functions.layer_norm(given, (1024,), scale)
        contenders["silu"]["torch"] = lambda: functions.silu(given)
        contenders["gelu"]["torch"] = lambda: functions.gelu(given)
    for name, them in contenders.items():
        yield _Case(f"{name} 512x1024", "GB/s", 2 * x.nbytes, them)


def _numpy_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = e / e.sum(axis=-1, keepdims=True)
    return result


def _numpy_layer_norm(x: Array, gamma: Array) -> Array:
    d = x - x.mean(axis=-1, keepdims=True)
    result: Array = d / np.sqrt((d * d).mean(axis=-1, keepdims=True) + np.float32(1e-3)) * gamma
    return result


OPERATIONS: dict[str, Callable[[], Iterator[_Case]]] = {
    "cast": _casts,
    "matmul": _products,
    "quantize": _quantizations,
    "rows": _rows,
}


def run(operations: Iterable[str] = tuple(OPERATIONS), *, quick: bool = False) -> list[dict[str, Any]]:
    """Measure operations beside NumPy and the peers that are there, on as many threads as the configuration says.

    Parameters
    ----------
    operations : iterable of str
        Names in :data:`OPERATIONS`.
    quick : bool
        Whether to take three samples of each only.

    Returns
    -------
    list of dict
        A dict for each row: ``operation``, ``shape``, ``unit``, ``rates`` by contender, and ``speedup``: the median
        ratio to the fastest of the others.

    Raises
    ------
    ValueError
        An operation is unknown.
    """
    names = list(operations)
    if unknown := set(names) - set(OPERATIONS):
        raise ValueError(f"`operations` must be of {', '.join(OPERATIONS)}; received {', '.join(sorted(unknown))}")
    with _threads_of_torch(config.get_num_threads()):
        return [_row(name, case, quick) for name in names for case in OPERATIONS[name]()]


@contextmanager
def _threads_of_torch(count: int) -> Iterator[None]:
    if not (torch := _optional("torch")):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _row(operation: str, case: _Case, quick: bool) -> dict[str, Any]:
    taken = measure({name: Timer(call) for name, call in case.contenders.items()}, **_effort(quick))
    ours = taken["mp_core"]
    ratios = [
        median(their / our for their, our in zip(theirs, ours, strict=True))
        for name, theirs in taken.items()
        if name != "mp_core"
    ]
    rates = {name: case.work / min(each) / 1e9 for name, each in taken.items()}
    speedup = min(ratios, default=None)
    return {"operation": operation, "shape": case.shape, "unit": case.unit, "rates": rates, "speedup": speedup}


def onnxruntime_product(a: Array, b: Array, threads: int) -> Callable[[], Array]:
    """Return what multiplies float32 `a` and `b` by onnxruntime, `b` being a weight of the model.

    Parameters
    ----------
    a, b : ndarray
        C-contiguous, of shapes (..., m, k) and (..., k, n).
    threads : int
        How many the session has.

    Returns
    -------
    callable
        Takes nothing and returns the product, in the same array at every call.

    Raises
    ------
    ImportError
        onnxruntime or onnx is missing.
    """
    onnx, onnxruntime = import_module("onnx"), import_module("onnxruntime")
    shape = (*a.shape[:-1], b.shape[-1])
    real, value = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [value("a", real, a.shape)],
        [value("c", real, shape)], [onnx.numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, out = session.io_binding(), np.empty(shape, np.float32)
    binding.bind_input("a", "cpu", 0, np.float32, a.shape, a.ctypes.data)
    binding.bind_output("c", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def multiply(owner: Array = a) -> Array:  # the session holds a's address only
        session.run_with_iobinding(binding)
        return out

    return multiply


# ---- text


def table(rows: list[dict[str, Any]]) -> str:
    """Return what :func:`limits` or :func:`run` measured as an aligned text table.

    Examples
    --------
    >>> print(table([{"limit": "read, memory", "unit": "GB/s", "rates": {"1": 34.5}}]))
    limit         unit     1
    ------------------------
    read, memory  GB/s  34.5
    """
    heads = [head for head in rows[0] if head not in ("rates", "speedup")]
    contenders = list(dict.fromkeys(name for row in rows for name in row["rates"]))
    lines = [heads + contenders + ["speedup"] * ("speedup" in rows[0])]
    for row in rows:
        cells = [row[head] for head in heads] + [_number(row["rates"].get(name), ".1f") for name in contenders]
        lines.append(cells + [_number(row.get("speedup"), ".2f")] * ("speedup" in row))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) if i < len(heads) else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
