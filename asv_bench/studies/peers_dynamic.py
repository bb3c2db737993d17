"""A dynamic int8 Dense, float32 in and out: quantize the rows, multiply by int8 weights, scale. On one thread."""

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from timeit import Timer

import numpy as np
import onnx
import torch
from interleaved import Cell, session_call, show_rates, show_ratio
from onnxruntime.quantization import QuantType, quantize_dynamic
from peers_products import multiply_limit, numbers, read_limit
from shapes import DYNAMIC_SHAPES

import mp_core as mp

OURS, PEERS = ("Dense", "matmul"), ("ORT", "x86", "onednn")

HEADING = (
    "GOP/s, quantization included (* farther off than two 7-bit operands are). Dense: mp_core.layers under the policy\n"
    "int8; matmul: mp.dynamic_matmul; ORT: DynamicQuantizeMatMul; x86, onednn: torch's engines. Ratio: Dense to the\n"
    "best peer. Limit: of Dense, the slower of multiply-adds alone and a read of the weights.\n"
    f"{'':16}{''.join(f'{name:>8} ' for name in (*OURS, *PEERS))} {'Dense to':20}{'limit':>6}"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=DYNAMIC_SHAPES, metavar="MxKxN")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for shape in options.shapes:
        yield cell(shape)


def cell(shape: str) -> Cell:
    m, k, n = map(int, shape.split("x"))
    x, w = numbers("float32", m, k, seed=1), numbers("float32", k, n, seed=2)
    bias = np.random.default_rng(3).standard_normal(n, np.float32)
    work = 2.0 * m * k * n
    calls = {**by_mp_core(x, w, bias), "ORT": by_onnxruntime(x, w, bias)}
    calls |= {engine: by_torch(x, w, bias, engine) for engine in PEERS[1:]}
    timers = {who: Timer("call()", globals={"call": call}) for who, call in calls.items()}
    multiply, read = multiply_limit("int8", 1), read_limit(k * n, 1)
    limits = {"multiply": (multiply.timer, work / multiply.work), "read": (read.timer, k * n / read.work)}
    return Cell(
        {"shape": shape, "dtype": "int8"}, work, timers, {"best": (OURS[:1], PEERS)}, limits, wrong(calls, x, w, bias)
    )


def by_mp_core(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    layer = mp.layers.Dense(w.shape[1])
    layer.build(x.shape)
    layer.kernel.assign(w)
    layer.bias.assign(bias)
    layer.quantize("int8")
    packed, out = mp.pack(mp.quantize(w, axis=1)), np.empty((x.shape[0], w.shape[1]), np.float32)
    return {"Dense": partial(layer, x), "matmul": partial(mp.dynamic_matmul, x, packed, bias=bias, out=out)}


def by_onnxruntime(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> Callable[[], np.ndarray]:
    out = np.empty((len(x), len(bias)), np.float32)
    real, value = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["p"]), onnx.helper.make_node("Add", ["p", "bias"], ["y"])]
    weights = [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(bias, "bias")]
    graph = onnx.helper.make_graph(nodes, "dense", [value("x", real, x.shape)], [value("y", real, out.shape)], weights)
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)])
    logging.disable()  # a warning that advises to simplify the graph first
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quantized.onnx")
        quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QInt8)
        quantized = onnx.load(path)
    logging.disable(logging.NOTSET)
    return session_call(quantized, {"x": x}, {"y": out})


def by_torch(x: np.ndarray, w: np.ndarray, bias: np.ndarray, engine: str) -> Callable[[], torch.Tensor]:
    linear = torch.nn.Linear(*w.shape)
    linear.weight.copy_(torch.from_numpy(w.T))
    linear.bias.copy_(torch.from_numpy(bias))
    torch.backends.quantized.engine = engine  # decides how the weights are packed, and so which engine multiplies
    with warnings.catch_warnings(action="ignore"):
        model = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(linear), {torch.nn.Linear}, torch.qint8)
    return partial(model, torch.from_numpy(x))


def wrong(calls: dict[str, Callable[[], object]], x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> set[str]:
    """Return the contenders whose error exceeds half a step in each operand, with 63 steps up to the largest value."""
    a, b = np.abs(x).max() / 126, np.abs(w).max(0) / 126
    exact = x.astype(np.float64) @ w + bias
    bound = np.abs(x).sum(1, keepdims=True) * b + a * np.abs(w).sum(0) + w.shape[0] * a * b
    return {who for who, call in calls.items() if not np.all(np.abs(np.asarray(call()) - exact) <= bound)}


def unit(dtype: str) -> str:
    return "GOP/s"


def line(row: dict) -> str:
    rates = show_rates(row, (*OURS, *PEERS))
    return f"{row['shape']:16}{rates} {show_ratio(row['ratios']['best'])}{row['share_of_limit']:6.0%}"


def summary(rows: list[dict]) -> str:
    """Count the rows in which a peer is faster."""
    return f"of {len(rows)} rows below a peer: {sum(min(row['ratios']['best'].values()) < 1 for row in rows)}"
