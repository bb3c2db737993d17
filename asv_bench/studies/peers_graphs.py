"""Whole graphs from ONNX files and torch modules: float32, bfloat16, float16, by their own sizes of real networks."""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from timeit import Timer

import numpy as np
import torch
from interleaved import Cell, show_rates, show_ratio
from peers_products import multiply_limit

import mp_core as mp

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # has the exporter

import onnx_graphs

BASE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}


def _images(size: int) -> Callable[[int, np.random.Generator], dict[str, np.ndarray]]:
    return onnx_graphs._arrays("pixel_values", 3, size, size)


def _texts(batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids = rng.integers(1, 30000, (batch, 128))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


NETWORKS = {
    "bert": (onnx_graphs._of("BertModel", "BertConfig", **BASE), _texts),
    "modernbert": (onnx_graphs._of("ModernBertModel", "ModernBertConfig", **BASE), _texts),
    "vit": (onnx_graphs._of("ViTModel", "ViTConfig", **BASE), _images(224)),
    "swin": (onnx_graphs._of("SwinModel", "SwinConfig", depths=[2, 2, 2, 2]), _images(224)),
    "resnet": (onnx_graphs._of("ResNetForImageClassification", "ResNetConfig"), _images(224)),
    "mobilenet": (onnx_graphs._of("MobileNetV2ForImageClassification", "MobileNetV2Config"), _images(224)),
    "convnext": (onnx_graphs._of("ConvNextForImageClassification", "ConvNextConfig"), _images(224)),
    "wav2vec2": (onnx_graphs._of("Wav2Vec2Model", "Wav2Vec2Config", **BASE), onnx_graphs._arrays("input_values", 8000)),
}
"""As `onnx_graphs.NETWORKS`, of the sizes in which such networks are used; the defaults are those of transformers."""
OURS, PEERS = ("mp_core",), ("ORT", "OpenVINO", "eager", "inductor")
TYPES = ("float32", "bfloat16", "float16")
HEADING = (
    "Inferences/s of one sample (* farther than 1e-4, 3e-2 in 16 bits, from torch in float32). mp_core: the plan of\n"
    "mp.interop.onnx.load; ORT, OpenVINO: the same file, in float32; eager, inductor: torch. Ratio: to the best peer.\n"
    f"{'':22}{''.join(f'{name:>8} ' for name in (*OURS, *PEERS))} {'to the best':20}{'limit':>6}"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NAME")
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES, metavar="TYPE")
    parser.add_argument("--without", nargs="+", default=(), choices=PEERS, metavar="PEER")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    onnx_graphs.NETWORKS = NETWORKS
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            path = onnx_graphs.export(name, Path(folder, "model.onnx"))
            torch.manual_seed(67)
            module = NETWORKS[name][0]().eval()
            inputs = NETWORKS[name][1](1, np.random.default_rng(3))
            for dtype in options.types:
                yield cell(name, dtype, path, module, inputs, options.without)


def cell(name: str, dtype: str, path: Path, module: torch.nn.Module, inputs: dict, without: tuple[str, ...]) -> Cell:
    calls = {"mp_core": by_mp_core(path, dtype, inputs)}
    if dtype == "float32":
        calls |= {"ORT": partial(by_onnxruntime(path), inputs), "OpenVINO": partial(by_openvino(path), inputs)}
    calls |= by_torch(module, dtype, inputs)
    calls = {who: call for who, call in calls.items() if who not in without}
    expected, most = np.asarray(calls["mp_core"](), np.float32), 1e-4 if dtype == "float32" else 3e-2
    wrong = set()
    for who in {"ORT", "OpenVINO"} & calls.keys():  # the file has other weights of norms than the module
        if np.abs(np.asarray(calls[who]()) - expected).max() > most * np.abs(expected).max():
            wrong.add(who)
    plan = calls["mp_core"].func
    work = sum(step.operations for step in plan.profile(repeat=1))
    multiply = multiply_limit("float32" if dtype == "float16" else dtype, 1)
    timers = {who: Timer("call()", globals={"call": call}) for who, call in calls.items()}
    limits = {"multiply": (multiply.timer, work / multiply.work)}
    peers = tuple(who for who in PEERS if who in calls)
    return Cell({"shape": name, "dtype": dtype}, 1, timers, {"best": (OURS, peers)}, limits, wrong, 0.1, 1)


def by_mp_core(path: Path, dtype: str, inputs: dict) -> partial:
    model = mp.interop.onnx.load(path, None if dtype == "float32" else dtype)
    given = [inputs[name] for name in model.input_names]
    return partial(mp.compile(model, *given), *given)


def by_onnxruntime(path: Path) -> Callable[[dict], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def by_openvino(path: Path) -> Callable[[dict], np.ndarray]:
    import openvino

    properties = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(path, "CPU", properties).create_infer_request()
    return lambda inputs: request.infer(inputs, share_inputs=True)[0]


def by_torch(module: torch.nn.Module, dtype: str, inputs: dict) -> dict[str, Callable[[], object]]:
    import copy

    own = copy.deepcopy(module).to(getattr(torch, dtype))
    given = {key: torch.from_numpy(x) for key, x in inputs.items()}
    given = {key: x.to(getattr(torch, dtype)) if x.is_floating_point() else x for key, x in given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(own)
        compiled(**given)
    return {"eager": partial(own, **given), "inductor": partial(compiled, **given)}


def unit(dtype: str) -> str:
    return "inferences/s"


def line(row: dict) -> str:
    rates = show_rates(row, (*OURS, *PEERS))
    return f"{row['shape']:12}{row['dtype']:10}{rates} {show_ratio(row['ratios']['best'])}{row['share_of_limit']:6.0%}"


def summary(rows: list[dict]) -> str:
    """Return the geometric mean of the ratios to the best peer, for each type."""
    found = {}
    for row in rows:
        found.setdefault(row["dtype"], []).append(min(row["ratios"]["best"].values()))
    return ", ".join(f"{dtype} {np.exp(np.mean(np.log(ratios))):.2f}" for dtype, ratios in found.items())
