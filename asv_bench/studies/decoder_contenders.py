"""The contenders of `peers.py decoder`: mp_core and the peers, by precision.

A contender is a function of the token ids of one text, (1, tokens), that returns the vector of its last token. Each is
created in a separate process, which imports only its own library. The files are those of decoder_files.py.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import peers_llama
from workers import Call

OURS = {
    "float32": {"mp_core": "float32"},
    "bfloat16": {"mp_core": "bfloat16"},
    "int8": {"mp_core": "int8"},
    "int4": {"mp_core": "int4/dynamic/64", "floats": "int4/64"},
}
PEERS = ("torch", "ORT", "OpenVINO", *(["llama.cpp"] if peers_llama.INSTALLED else []))
SIZES = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1e6,
}  # fmt: skip
GROUP = 64  # weights along the depth that share a scale in int4


def contenders(precision: str, folder: Path, threads: int) -> dict[str, Callable[[], Call]]:
    """Return the functions that create the contenders, mp_core first."""
    ways = {name: partial(by_mp_core, folder, policy, threads) for name, policy in OURS[precision].items()}
    if precision != "int4":
        ways["torch"] = partial(by_torch, folder, precision, threads)
    if precision != "bfloat16":
        ways["ORT"] = partial(by_onnxruntime, folder / f"{precision}.onnx", threads)
    ways["OpenVINO"] = partial(by_openvino, folder / f"{precision}.xml", threads, precision)
    if peers_llama.INSTALLED:
        ways["llama.cpp"] = partial(peers_llama.Embedder, folder / f"{precision}.gguf", threads)
    return ways


def by_mp_core(folder: Path, policy: str, threads: int) -> Call:
    import mp_core as mp
    from mp_core.models import BertEncoder

    mp.config.set_num_threads(threads)
    return BertEncoder.from_folder(folder, policy).embed_tokens


def by_torch(folder: Path, precision: str, threads: int) -> Call:
    """Return the network; in int8 its linear layers use torch's dynamic quantization."""
    import torch
    from decoder_files import opened

    torch.set_num_threads(threads)
    module = opened(folder, precision)
    if precision == "int8":
        module = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    return torch.inference_mode()(lambda ids: module(torch.from_numpy(ids)).numpy())


def by_openvino(path: Path, threads: int, precision: str) -> Call:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32" if precision == "float32" else "bf16",
    }
    if precision in ("int8", "int4"):
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda ids: request.infer([ids], share_inputs=True)[0].copy()


def by_onnxruntime(path: Path, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": ids})[0]
