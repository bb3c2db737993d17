"""The contenders of `peers.py minilm`, which embed texts with all-MiniLM-L6-v2: mp_core and the peers, by precision.

A contender is a function of `Inputs` that returns the embeddings in their order. It may prepare anything in the first
call with each shape. The peers get the padded batches one after the other, mp_core gets the rows.
"""

import importlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
import torch
from minilm_inputs import Inputs, in_batches
from minilm_torch import SentenceEncoder

from mp_core.cli import demo
from mp_core.models import BertEncoder
from mp_core.models.texts import pad

Call = Callable[[Inputs], np.ndarray]
Network = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids, mask -> embeddings

OURS = ("mp_core", "fixed", "float16")
PEERS = ("ORT", "OpenVINO", "torch", "compiled", "zentorch")
FOLDER = Path("build", "minilm")


def contenders(precision: str, threads: int, folder: Path, left_out: list[str]) -> dict[str, Call]:
    """Return the contenders, first the one that is compared with the peers. Libraries that are missing are left out."""
    ways: dict[str, dict[str, Callable[[], Call]]] = {
        "float32": {
            "mp_core": partial(by_mp_core, demo.model_folder(), "float32"),
            "float16": partial(by_mp_core, demo.model_folder(), "mixed_float16"),
            "ORT": partial(by_onnxruntime, folder / "float32.onnx", threads),
            "OpenVINO": partial(by_openvino, folder / "float32.onnx", threads, "f32"),
            **by_torch(torch.float32, threads),
        },
        "bfloat16": {
            "mp_core": partial(by_mp_core, demo.model_folder(), "mixed_bfloat16"),
            "OpenVINO": partial(by_openvino, folder / "float32.onnx", threads, "bf16"),
            **by_torch(torch.bfloat16, threads),
        },
        "int8": {
            "fixed": partial(by_mp_core, folder / "fixed", None),
            "mp_core": partial(by_mp_core, demo.model_folder(), demo.INT8),
            "ORT": partial(by_onnxruntime, folder / "int8.onnx", threads),
            "OpenVINO": partial(by_openvino, folder / "int8.xml", threads, "bf16"),
        },
    }
    made = {name: make() for name, make in ways[precision].items() if name not in left_out}
    return {name: call for name, call in made.items() if call is not None}


@cache
def reference() -> Call:
    """Return the network in float64."""
    return over_batches(torch_network(SentenceEncoder(torch.float64)))


@cache
def by_mp_core(folder: Path, policy: str | None) -> Call:
    """Open a model. Calls use the number of threads that is configured at that time."""
    return partial(embed_rows, BertEncoder.from_folder(folder, policy))


def embed_rows(encoder: BertEncoder, inputs: Inputs) -> np.ndarray:
    """Embed documents of any lengths, as `BertEncoder.encode` does after its tokenizer."""
    return np.concatenate([encoder.embed_tokens(*pad(rows)) for rows in in_batches(inputs.rows)])


def over_batches(network: Network) -> Call:
    return lambda inputs: np.concatenate([network(ids, mask) for ids, mask in inputs.batches])


def by_onnxruntime(path: Path, threads: int) -> Call:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return over_batches(lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])


def by_openvino(path: Path, threads: int, precision: str) -> Call:
    """Compile the network for each shape: for a single document that is 5 % faster than one network for all shapes."""
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    core = openvino.Core()

    @cache
    def request(shape: tuple[int, int]) -> openvino.InferRequest:
        model = core.read_model(path)
        model.reshape({"ids": shape, "mask": shape})
        return core.compile_model(model, "CPU", settings).create_infer_request()

    def network(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        found = request(ids.shape).infer({"ids": ids, "mask": mask}, share_inputs=True, share_outputs=True)
        return found[0].copy()

    return over_batches(network)


def by_torch(dtype: torch.dtype, threads: int) -> dict[str, Callable[[], Call | None]]:
    """Return the contenders of torch. Calls use the number of threads that torch has at that time."""
    return {
        "torch": lambda: over_batches(torch_network(torch_module(dtype))),
        "compiled": partial(compiled, dtype, threads, "inductor"),
        "zentorch": partial(compiled, dtype, threads, "zentorch"),
    }


torch_module = cache(SentenceEncoder)


def torch_network(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Network:
    return lambda ids, mask: call(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()


@cache
def compiled(dtype: torch.dtype, threads: int, backend: str) -> Call | None:
    """Compile once for all shapes, with the weights as constants, which the library packs in advance.

    Code for each shape is equally fast (within 5 %) and takes 10 to 15 s per shape to compile (Zen 4, November 2026).
    """
    if backend != "inductor":
        try:
            importlib.import_module(backend)
        except (ImportError, OSError):  # zentorch is for x86-64 only
            return None
    torch._inductor.config.freezing = True
    torch._dynamo.config.recompile_limit = 64  # the default allows at most 8 kinds of inputs
    return over_batches(torch_network(torch.compile(SentenceEncoder(dtype), backend=backend, dynamic=True)))
