"""float32 to codes of 8 or 4 bits and back, with given or computed scales. All contenders get the same array."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from timeit import Timer

import ml_dtypes
import numpy as np
import onnx
import torch
from interleaved import Cell, as_torch, copy_limit, onnx_call, show_rates, show_ratio
from shapes import GROUP, LABELS, QUANTIZE_SHAPES, Kind

import mp_core as mp

OURS, PEERS = "mp_core", ("NumPy", "torch", "ORT")
LIMITS = {"int8": (-127, 127), "uint8": (0, 255), "int4": (-7, 7), "float8_e4m3fn": (-448, 448)}
SLOW = 1 << 22  # from so many elements on, onnxruntime takes seconds along axis 1: it quantizes one element at a time

Call = Callable[[], object]

HEADING = (
    "Gelem/s (* other results than those of true quotients); ratio: mp_core to the best peer, to torch; copy: the\n"
    "share of its bandwidth, in GB/s, by the bytes of x (of tensor and axis=1 twice, from 1 Mi on), codes and scales\n"
    f"{'':35}{''.join(f'{name:>8} ' for name in (OURS, *PEERS))} {'best':13}ratio     torch    copy    GB/s"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=QUANTIZE_SHAPES, metavar="MxN")
    parser.add_argument("--kinds", nargs="+", choices=LABELS, default=list(LABELS), metavar="KIND")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for shape in options.shapes:
        m, n = map(int, shape.split("x"))
        x = np.random.default_rng(20261121).standard_normal((m, n), np.float32)
        for label in options.kinds:
            yield cell(x, LABELS[label])


def cell(x: np.ndarray, kind: Kind) -> Cell:
    q = mp.quantize(x, **kind.settings)
    found = {OURS: by_mp_core(x, q, kind), "NumPy": by_numpy(x, q, kind), "torch": by_torch(x, q, kind)}
    calls = {name: call for name, call in (found | {"ORT": by_onnxruntime(x, q, kind)}).items() if call}
    expected = numbers_of(q, kind) if kind.back else packed(codes_of(x, q.scale, q.zero_point, kind), kind)
    wrong = {name for name, call in calls.items() if not np.array_equal(as_array(call()), expected.ravel())}
    nbytes = (1 + kind.twice(x.size)) * x.nbytes + q.nbytes
    timers = {name: Timer("call()", globals={"call": call}) for name, call in calls.items()}
    peers = tuple(name for name in PEERS if name in calls)
    ratios = {"best": ((OURS,), peers), "torch": ((OURS,), ("torch",))}
    return Cell(
        {"shape": "{}x{}".format(*x.shape), "dtype": kind.dtype, "kind": kind.label, "nbytes": nbytes},
        x.size,
        timers,
        ratios,
        copy_limit(nbytes),
        wrong,
    )


def by_mp_core(x: np.ndarray, q: mp.QuantizedArray, kind: Kind) -> Call:
    settings = kind.settings
    if kind.back:
        out = np.empty_like(x)
        return lambda: mp.dequantize(q, out=out)
    if kind.given:
        scale = float(q.scale[0, 0]) if q.scale.size == 1 else q.scale
        return lambda: mp.quantize(x, out=q, scale=scale, **settings).values
    return lambda: mp.quantize(x, out=q, **settings).values


# ---- the definition, computed by NumPy


def grouped(x, kind: Kind):
    """Return a view of `x` and axes, so that each slice along these axes has its own scale."""
    if not kind.group:
        return x, {None: (0, 1), 0: (1,), 1: (0,)}[kind.axis]
    m, n = x.shape
    return (x.reshape(m // GROUP, GROUP, n), (1,)) if kind.axis == 1 else (x.reshape(m, n // GROUP, GROUP), (2,))


def spread(scale, kind: Kind):
    """Return scales (or zero points) that broadcast against the view of `grouped`."""
    return scale if not kind.group else scale[:, None] if kind.axis == 1 else scale[..., None]


def codes_of(x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, kind: Kind) -> np.ndarray:
    quotient = grouped(x, kind)[0] / spread(scale, kind)
    if "float8" in kind.dtype:
        return quotient.astype(ml_dtypes.float8_e4m3fn).reshape(x.shape)
    np.rint(quotient, out=quotient)
    if zero is not None:
        quotient += spread(zero, kind)
    np.clip(quotient, *LIMITS[kind.dtype], out=quotient)
    return quotient.astype(np.uint8 if kind.dtype == "uint8" else np.int8).reshape(x.shape)


def found_scale(x: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray | None]:
    slices, over = grouped(x, kind)
    if kind.dtype == "uint8":
        low, high = np.minimum(slices.min(over), 0), np.maximum(slices.max(over), 0)
        scale = (high - low) / np.float32(255)
        zero = np.clip(np.rint(0 - low / scale), 0, 255).astype(np.int32)
    else:
        scale, zero = np.abs(slices).max(over) / np.float32(LIMITS[kind.dtype][1]), None
    shape = [n // GROUP if kind.group and i != kind.axis else n if i == kind.axis else 1 for i, n in enumerate(x.shape)]
    return scale.reshape(shape), None if zero is None else zero.reshape(shape)


def packed(codes: np.ndarray, kind: Kind) -> np.ndarray:
    if kind.dtype != "int4":
        return codes
    return (codes[:, ::2] & 15 | codes[:, 1::2] << 4).view(np.uint8)


def numbers_of(q: mp.QuantizedArray, kind: Kind) -> np.ndarray:
    codes = q.values
    if kind.dtype == "int4":
        codes = np.empty(q.shape, np.int8)
        np.left_shift(q.values, 4, out=codes[:, ::2].view(np.uint8))
        codes[:, ::2] >>= 4
        np.right_shift(q.values.view(np.int8), 4, out=codes[:, 1::2])
    return (grouped(codes, kind)[0].astype(np.float32) * spread(q.scale, kind)).reshape(q.shape)


def by_numpy(x: np.ndarray, q: mp.QuantizedArray, kind: Kind) -> Call:
    if kind.back:
        return lambda: numbers_of(q, kind)
    if kind.given:
        return lambda: codes_of(x, q.scale, None, kind)
    return lambda: packed(codes_of(x, *found_scale(x, kind), kind), kind)


# ---- the peers


def by_torch(x: np.ndarray, q: mp.QuantizedArray, kind: Kind) -> Call:
    """Use torch's own functions where they exist, else the same expression as with NumPy; int4 codes are not packed."""
    by_expression = kind.group or kind.dtype not in ("int8", "uint8")
    if not kind.back:
        return torch_expression(x, q, kind) if by_expression else torch_function(x, q, kind)
    if not by_expression:
        return torch_function(x, q, replace(kind, back=False, given=True))().dequantize
    slices, wide = grouped(torch.from_numpy(x), kind)[0], spread(torch.from_numpy(q.scale), kind)
    codes = slices.div(wide).round_().to(torch.int8) if kind.dtype == "int4" else grouped(as_torch(q.values), kind)[0]
    return lambda: codes.to(torch.float32).mul_(wide)


def torch_expression(x: np.ndarray, q: mp.QuantizedArray, kind: Kind) -> Call:
    low, high = LIMITS[kind.dtype]
    slices, over = grouped(torch.from_numpy(x), kind)
    wide = spread(torch.from_numpy(q.scale), kind)

    def asymmetric() -> torch.Tensor:
        step, zero = torch_range(slices, over, keepdim=True)
        return slices.div(step).round_().add_(zero).clamp_(low, high).to(torch.uint8)

    if "float8" in kind.dtype:
        over = None if kind.axis is None else over
        return lambda: slices.div(torch_step(slices, over, kind, keepdim=over is not None)).to(torch.float8_e4m3fn)
    if kind.dtype == "uint8":
        return asymmetric
    if kind.given:
        return lambda: slices.div(wide).round_().clamp_(low, high).to(torch.int8)
    return lambda: slices.div(slices.abs().amax(over, True).div_(high)).round_().clamp_(low, high).to(torch.int8)


def torch_function(x: np.ndarray, q: mp.QuantizedArray, kind: Kind) -> Call:
    tensor, axis, over = torch.from_numpy(x), kind.axis, grouped(x, kind)[1]
    code = torch.quint8 if kind.dtype == "uint8" else torch.qint8
    steps = torch.from_numpy(q.scale.reshape(-1))
    step, zeros = float(steps[0]), torch.zeros(steps.numel(), dtype=torch.int32)
    by_tensor, by_channel = torch.quantize_per_tensor, torch.quantize_per_channel
    if kind.dtype == "uint8":
        if axis is None:
            return lambda: torch.quantize_per_tensor_dynamic(tensor, code, False)
        return lambda: by_channel(tensor, *torch_range(tensor, over, keepdim=False), axis, code)
    if axis is None:
        if kind.given:
            return lambda: by_tensor(tensor, step, 0, code)
        return lambda: by_tensor(tensor, float(torch_step(tensor, None, kind, keepdim=False)), 0, code)
    if kind.given:
        return lambda: by_channel(tensor, steps, zeros, axis, code)
    return lambda: by_channel(tensor, torch_step(tensor, over, kind, keepdim=False), zeros, axis, code)


def torch_step(x: torch.Tensor, over: tuple[int, ...] | None, kind: Kind, keepdim: bool) -> torch.Tensor:
    return torch.linalg.vector_norm(x, torch.inf, over, keepdim) / LIMITS[kind.dtype][1]


def torch_range(x: torch.Tensor, over: tuple[int, ...], keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points of uint8."""
    least, most = torch.aminmax(x, dim=over[0], keepdim=keepdim)
    step = (most.clamp_(min=0) - least.clamp_(max=0)).div_(255)
    return step, least.div_(step).neg_().round_().clamp_(0, 255)


def by_onnxruntime(x: np.ndarray, q: mp.QuantizedArray, kind: Kind) -> Call | None:
    """Use QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear; no operator computes the scales of the others."""
    if kind.dtype == "uint8" and kind.axis is None:
        outputs = {"y": q.values, "scale": q.scale[0, 0, ...], "zero": np.empty((), np.uint8)}
        return onnx_call([onnx.helper.make_node("DynamicQuantizeLinear", ["x"], list(outputs))], {"x": x}, {}, outputs)
    slow = kind.axis == 1 and not kind.group and not kind.back and x.size >= SLOW
    if kind.dtype != "int8" or not (kind.given or kind.back) or slow:
        return None
    how = {} if kind.axis is None else {"axis": kind.axis}
    if kind.group:
        how = {"axis": 1 - kind.axis, "block_size": GROUP}
    scale = q.scale if kind.group else q.scale.reshape(() if kind.axis is None else -1)
    constants = {"scale": scale, "zero": np.zeros(scale.shape, np.int8)}
    name, source, result = (
        ("QuantizeLinear", x, q.values) if not kind.back else ("DequantizeLinear", q.values, np.empty_like(x))
    )
    node = onnx.helper.make_node(name, ["x", "scale", "zero"], ["y"], **how)
    return onnx_call([node], {"x": source}, constants, {"y": result})


def as_array(result) -> np.ndarray:
    if isinstance(result, torch.Tensor):
        result = result.int_repr() if result.is_quantized else result
        if result.dtype == torch.float8_e4m3fn:
            return result.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).ravel()
        result = result.numpy()
    return result.ravel()


def unit(dtype: str) -> str:
    return "Gelem/s"


def line(row: dict) -> str:
    rates, best = show_rates(row, (OURS, *PEERS)), show_ratio(row["ratios"]["best"])
    return (
        f"{row['shape']:>9}  {row['kind']:24}{rates} {best}{row['ratios']['torch']['torch']:8.1f}"
        f"{row['share_of_limit']:8.0%}{row['nbytes'] / row['least']['copy'] / 1e9:8.1f}"
    )


def summary(rows: list[dict]) -> str:
    """Name the cells in which a peer is faster."""
    behind = [f"{row['shape']} {row['kind']}" for row in rows if min(row["ratios"]["best"].values()) < 1]
    return f"Behind a peer: {'; '.join(behind) or 'nowhere'}"
