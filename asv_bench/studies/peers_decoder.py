"""A decoder that embeds, of the sizes of Qwen3-Embedding-0.6B with random weights: a query and a document."""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from timeit import Timer

import numpy as np
import onnxruntime
import openvino
import peers_llama
import torch
import transformers
from interleaved import MEMORY, Cell, show_rates, show_ratio
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from peers_minilm import turns
from safetensors.torch import save_file

import mp_core as mp
from mp_core.benchmark import Limit
from mp_core.models import BertEncoder

SIZES = {
    "vocab_size": 151669, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1e6,
}  # fmt: skip
OURS = {
    "float32": {"mp_core": "float32"},
    "bfloat16": {"mp_core": "bfloat16"},
    "int8": {"mp_core": "int8"},
    "int4": {"mp_core": "int4/dynamic/64", "floats": "int4/64"},
}
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 1 / 2 + 5 / 64}  # of a weight
LEAST_COSINE = {"float32": 0.9999, "bfloat16": 0.999, "int8": 0.98, "int4": 0.9}  # below it a contender is wrong
PEERS = ("torch", "ORT", "OpenVINO", *(["llama.cpp"] if peers_llama.INSTALLED else []))
WORDS = 256  # of the vocabulary, from which texts are drawn: few, if llama.cpp multiplies by their vectors too
PAUSE = 0.3  # seconds in which the threads of the contender before stop spinning

HEADING = (
    "embeddings/s of one text (* wrong), then its cosine with torch's in float32. mp_core: under the policy float32,\n"
    "bfloat16, int8 or int4/dynamic/64; floats: int4/64. ORT: int8 by quantize_dynamic, int4 by MatMulNBits.\n"
    "llama.cpp: F32, BF16, Q8_0 or Q4_0. Limit: of mp_core; reading the weights and multiplying by them.\n"
    f"{'':22}{''.join(f'{name:>9} ' for name in ('mp_core', 'floats', *PEERS))} mp_core to the best, limit"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=28, metavar="N", help="of the network: 28 are the whole")
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 512], metavar="N", help="of a text")
    parser.add_argument("--precisions", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--without", nargs="+", choices=PEERS, default=[], metavar="PEER")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")


Call = Callable[[np.ndarray], np.ndarray]


class LastToken(torch.nn.Module):
    """The network, and the vector of the last token of one text."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)[0][:, -1].float()


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network = made(options.blocks, folder)
        rng = np.random.default_rng(0)
        texts = {tokens: rng.integers(0, WORDS, (1, tokens)) for tokens in options.tokens}
        expected = {tokens: LastToken(network)(torch.from_numpy(ids)).numpy() for tokens, ids in texts.items()}
        for threads in options.threads:
            mp.config.set_num_threads(threads)
            torch.set_num_threads(threads)
            for precision in options.precisions:
                calls, megabytes = contenders(precision, network, folder, threads, options.without)
                for tokens, ids in texts.items():
                    cosines = {each: cosine(call(ids), expected[tokens]) for each, call in calls.items()}
                    wrong = {each for each, value in cosines.items() if not value >= LEAST_COSINE[precision]}
                    timers = {each: Timer(partial(call, ids)) for each, call in calls.items()}
                    ratios = {"best": (("mp_core",), tuple(each for each in PEERS if each in calls))}
                    key = {"shape": f"1x{tokens}", "dtype": precision, "threads": threads, "cosine": cosines}
                    timing = partial(turns, rounds=options.rounds, pause=PAUSE * (threads > 1))
                    limits = limits_of(precision, options.blocks, tokens)
                    yield Cell(
                        key | {"megabytes": megabytes}, 1, timers, ratios, limits, wrong, unit=1.0, timing=timing
                    )


def limits_of(precision: str, blocks: int, tokens: int) -> dict[str, tuple[Timer, float]]:
    """Return what nobody can beat: multiplying by the matrices of the blocks, and reading these once from memory."""
    heads = (2 * SIZES["num_attention_heads"] + 2 * SIZES["num_key_value_heads"]) * SIZES["head_dim"]
    weights = blocks * SIZES["hidden_size"] * (heads + 3 * SIZES["intermediate_size"])
    multiply, read = Limit.multiply("int8" if precision == "int4" else precision), Limit.read(MEMORY)
    return {
        "multiply": (multiply.timer, 2 * weights * tokens / multiply.work),
        "read": (read.timer, weights * BYTES[precision] / read.work),
    }


def made(blocks: int, folder: Path) -> torch.nn.Module:
    """Return a random network, and save it for mp_core."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(num_hidden_layers=blocks, **SIZES)
    network = transformers.Qwen3Model(config).eval()
    save_file(
        {name: tensor.contiguous() for name, tensor in network.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"model_type": "qwen3"}, default=str))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    return network


def contenders(
    precision: str, network: torch.nn.Module, folder: Path, threads: int, left_out: list[str]
) -> tuple[dict[str, Call], dict[str, float]]:
    """Return who takes part, and the megabytes of the weights of ours and of llama.cpp."""
    calls: dict[str, Call] = {}
    megabytes = {}
    for name, policy in OURS[precision].items():
        encoder = BertEncoder.from_folder(folder, policy)
        calls[name], megabytes[name] = encoder.embed_tokens, encoder.weight_bytes / 1e6
    module = LastToken(network)
    if precision in ("float32", "bfloat16") and "torch" not in left_out:
        narrow = module if precision == "float32" else LastToken(copy_of(network))
        calls["torch"] = lambda ids: narrow(torch.from_numpy(ids)).numpy()
    if precision in ("float32", "bfloat16") and "OpenVINO" not in left_out:
        calls["OpenVINO"] = by_openvino(module, threads, "f32" if precision == "float32" else "bf16")
    if precision != "bfloat16" and "ORT" not in left_out:
        calls["ORT"] = by_onnxruntime(onnx_of(module, folder, precision), threads)
    if "llama.cpp" in PEERS and "llama.cpp" not in left_out:
        path = peers_llama.gguf_of(network, folder, precision, WORDS)
        calls["llama.cpp"], megabytes["llama.cpp"] = peers_llama.Embedder(path, threads), path.stat().st_size / 1e6
    return calls, megabytes


def copy_of(network: torch.nn.Module) -> torch.nn.Module:
    copied = transformers.Qwen3Model(network.config)
    copied.load_state_dict(network.state_dict())
    return copied.to(torch.bfloat16).eval()


def by_openvino(module: torch.nn.Module, threads: int, precision: str) -> Call:
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
    model = openvino.convert_model(module, example_input=torch.zeros((1, 8), dtype=torch.int64))
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return lambda ids: request.infer([ids], share_inputs=True)[0].copy()


def onnx_of(module: torch.nn.Module, folder: Path, precision: str) -> Path:
    """Return the file of the network in a precision, written at the first call."""
    path, whole = folder / f"{precision}.onnx", folder / "float32.onnx"
    if not whole.exists():
        axes = {"ids": {0: "texts", 1: "tokens"}}
        ids = torch.zeros((1, 8), dtype=torch.int64)
        torch.onnx.export(module, (ids,), whole, input_names=["ids"], dynamic_axes=axes, dynamo=False)
    if not path.exists() and precision == "int8":
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, use_external_data_format=True)
    elif not path.exists():
        quantizer = MatMulNBitsQuantizer(str(whole), block_size=64, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(path), use_external_data_format=True)
    return path


def by_onnxruntime(path: Path, threads: int) -> Call:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": ids})[0]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (np.asarray(x, np.float64).ravel() for x in (a, b))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def unit(dtype: str) -> str:
    return "embeddings/s"


def line(row: dict) -> str:
    names = ("mp_core", "floats", *PEERS)
    cosines = "".join(f"{row['cosine'][name]:9.6f} " if name in row["cosine"] else f"{'-':>9} " for name in names)
    head = f"{row['shape']:<6}{row['dtype']:9}x {row['threads']}"
    sizes = ", ".join(f"{name} {size:.0f} MB" for name, size in row["megabytes"].items())
    ratio, share = show_ratio(row["ratios"]["best"]), row["share_of_limit"]
    return f"{head:22}{show_rates(row, names)} {ratio}{share:6.0%}\n{'':22}{cosines}{sizes}"


def summary(rows: list[dict]) -> str:
    best = [min(row["ratios"]["best"].values()) for row in rows if row["ratios"]["best"]]
    return f"of {len(best)} rows below a peer: {sum(ratio < 1 for ratio in best)}"
