"""The operations that ``mp-core bench`` measures, in mp_core, NumPy and peers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from timeit import Timer
from typing import Any

import numpy as np

import mp_core as mp
from mp_core.arrays import Array
from mp_core.cli.benchmark.machine import unit_of
from mp_core.cli.benchmark.timing import effort, measure
from mp_core.policies import config
from mp_core.utilities.extras import needed_by

__all__ = ["OPERATIONS", "onnxruntime_product", "run"]


@dataclass(frozen=True, slots=True)
class _Case:
    """One row of the table: each call of a contender does `work` operations, or reads and writes `work` bytes."""

    shape: str
    unit: str
    work: float
    contenders: dict[str, Callable[[], Any]]


_Peer = Callable[[str], Any]  # name -> the module, or None


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _no_peer(name: str) -> None:
    """Return None: no peers take part."""


def _normal(*shape: int, dtype: str = "float32") -> Array:
    x = np.random.default_rng(20261121).standard_normal(shape, np.float32)
    return (8 * x).astype(np.int8) if dtype == "int8" else mp.cast(x, dtype)


def _as_torch(torch: Any, x: Array) -> Any:
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))


def _as_numkong(numkong: Any, x: Array) -> Any:
    return numkong.from_pointer(x.ctypes.data, x.shape, x.dtype.name.removesuffix("fn"), owner=x)


def _casts(peer: _Peer = _optional) -> Iterator[_Case]:
    for narrow in ("bfloat16", "float16", "float8_e4m3fn"):
        for source, target in (("float32", narrow), (narrow, "float32")):
            x, out = _normal(1 << 20, dtype=source), np.empty(1 << 20, mp.dtypes.parse(target))
            yield _Case(f"{source} to {target} 1Mi", "GB/s", x.nbytes + out.nbytes, dict(_casters(x, out, peer)))


def _casters(x: Array, out: Array, peer: _Peer) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "mp_core", lambda: mp.cast(x, out.dtype, out=out)
    yield "numpy", lambda: np.copyto(out, x, casting="unsafe")
    if torch := peer("torch"):
        given, to = _as_torch(torch, x), _as_torch(torch, out)
        yield "torch", lambda: to.copy_(given)
    if numkong := peer("numkong"):
        source, target, name = _as_numkong(numkong, x), _as_numkong(numkong, out), out.dtype.name.removesuffix("fn")
        yield "numkong", lambda: numkong.astype(source, name, out=target)


def _products(peer: _Peer = _optional) -> Iterator[_Case]:
    for dtype in ("float32", "bfloat16", "float16", "int8"):
        for m, k, n in ((1, 1024, 1024), (64, 768, 768), (512, 512, 512)):
            a, b = _normal(m, k, dtype=dtype), _normal(k, n, dtype=dtype)
            yield _Case(f"{dtype} {m}x{k}x{n}", unit_of(dtype), 2.0 * m * k * n, dict(_multipliers(a, b, peer)))


def _multipliers(a: Array, b: Array, peer: _Peer) -> Iterator[tuple[str, Callable[[], Any]]]:
    packed, integers = mp.pack(b), a.dtype == np.int8
    out = mp.matmul(a, packed)
    yield "mp_core", lambda: mp.matmul(a, packed, out=out)
    exact = np.float64 if integers else np.float32  # NumPy's BLAS has no narrower types
    yield "numpy", lambda: (a.astype(exact) @ b.astype(exact)).astype(out.dtype)
    if torch := peer("torch"):
        left, right, multiply = _as_torch(torch, a), _as_torch(torch, b), torch._int_mm if integers else torch.matmul
        yield "torch", lambda: multiply(left, right)
    if a.dtype == np.float32 and peer("onnx") and peer("onnxruntime"):
        yield "onnxruntime", onnxruntime_product(a, b, config.get_num_threads())
    if numkong := peer("numkong"):
        rows, columns = _as_numkong(numkong, a), numkong.dots_pack(_as_numkong(numkong, np.ascontiguousarray(b.T)))
        yield "numkong", lambda: numkong.dots_packed(rows, columns)


def _quantizations(peer: _Peer = _optional) -> Iterator[_Case]:  # only NumPy can do the same
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


def _rows(peer: _Peer = _optional) -> Iterator[_Case]:
    x, gamma = _normal(512, 1024), _normal(1024)
    out = np.empty_like(x)
    contenders: dict[str, dict[str, Callable[[], Any]]] = {
        "softmax": {"mp_core": lambda: mp.softmax(x, out=out), "numpy": lambda: _numpy_softmax(x)},
        "layer_norm": {"mp_core": lambda: mp.layer_norm(x, gamma), "numpy": lambda: _numpy_layer_norm(x, gamma)},
        "silu": {"mp_core": lambda: mp.silu(x), "numpy": lambda: x / (1 + np.exp(-x))},
        "gelu": {"mp_core": lambda: mp.gelu(x)},  # NumPy has no erf
    }
    if torch := peer("torch"):
        given, scale, functions = torch.from_numpy(x), torch.from_numpy(gamma), torch.nn.functional
        contenders["softmax"]["torch"] = lambda: functions.softmax(given, -1)
        contenders["layer_norm"]["torch"] = lambda: functions.layer_norm(given, (1024,), scale)
        contenders["silu"]["torch"] = lambda: functions.silu(given)
        contenders["gelu"]["torch"] = lambda: functions.gelu(given)
    for name, calls in contenders.items():
        yield _Case(f"{name} 512x1024", "GB/s", 2 * x.nbytes, calls)


def _numpy_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = e / e.sum(axis=-1, keepdims=True)
    return result


def _numpy_layer_norm(x: Array, gamma: Array) -> Array:
    d = x - x.mean(axis=-1, keepdims=True)
    result: Array = d / np.sqrt((d * d).mean(axis=-1, keepdims=True) + np.float32(1e-3)) * gamma
    return result


OPERATIONS: dict[str, Callable[..., Iterator[_Case]]] = {
    "cast": _casts,
    "matmul": _products,
    "quantize": _quantizations,
    "rows": _rows,
}


def run(
    operations: Iterable[str] = tuple(OPERATIONS), *, quick: bool = False, peers: bool = True
) -> list[dict[str, Any]]:
    """Measure operations of mp_core, NumPy and installed peers, on the configured number of threads.

    Return a dict for each row: ``operation``, ``shape``, ``unit``, ``rates`` by contender, and ``speedup``: the median
    of (seconds of a contender / seconds of mp_core), for the contender for which it is least.

    Parameters
    ----------
    operations : iterable of str
        Names in :data:`OPERATIONS`.
    quick : bool
        Whether to take only three samples of each.
    peers : bool
        Whether to measure installed peers too, not only NumPy.

    Examples
    --------
    >>> rows = run(["matmul"], quick=True, peers=False)  # doctest: +SKIP
    >>> rows[0]["operation"], rows[0]["unit"]  # doctest: +SKIP
    ('matmul', 'GFLOP/s')
    """
    names = list(operations)
    if unknown := set(names) - set(OPERATIONS):
        raise ValueError(f"`operations` must be of {', '.join(OPERATIONS)}; received {', '.join(sorted(unknown))}")
    peer = _optional if peers else _no_peer
    with _threads_of_torch(peer, config.get_num_threads()):
        return [_row(name, case, quick) for name in names for case in OPERATIONS[name](peer)]


@contextmanager
def _threads_of_torch(peer: _Peer, count: int) -> Iterator[None]:
    if not (torch := peer("torch")):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _row(operation: str, case: _Case, quick: bool) -> dict[str, Any]:
    taken = measure({name: Timer(call) for name, call in case.contenders.items()}, **effort(quick))
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
    """Return a function that multiplies with onnxruntime; it returns the product in the same array at every call.

    Parameters
    ----------
    a, b : ndarray
        C-contiguous arrays of float32, shapes (..., m, k) and (..., k, n). `b` is a weight of the model.
    threads : int
        The number of threads of the session.

    Examples
    --------
    >>> a, b = np.eye(4, dtype=np.float32), np.ones((4, 4), np.float32)
    >>> onnxruntime_product(a, b, threads=1)().sum()  # doctest: +SKIP
    np.float32(16.0)
    """
    with needed_by("onnxruntime_product"):
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

    def multiply(owner: Array = a) -> Array:  # keeps `a` alive: the session has only its address
        session.run_with_iobinding(binding)
        return out

    return multiply
