"""The same server with another library behind it: ``python backends.py NAME``, for comparison.

Models of the peers are those of ``make bench-peers SUBJECT=minilm``. The peers' texts are cut and padded by the
package tokenizers, which mp_core uses too.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from server import create_app, serve

import mp_core as mp
from mp_core import demo
from mp_core.models import BertEncoder

Encode = Callable[[list[str]], np.ndarray]
FOLDER = Path("build", "minilm")


def by_mp_core(folder: Path, policy: str | None, threads: int) -> Encode:
    """Open a folder under a policy."""
    mp.config.set_num_threads(threads)
    return BertEncoder.from_folder(folder, policy).encode


def by_onnxruntime(path: Path, threads: int) -> Encode:
    """Open an ONNX graph of token ids and their mask."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return tokenized(lambda inputs: session.run(None, inputs)[0])


def by_openvino(path: Path, threads: int, precision: str) -> Encode:
    """Compile a graph for inputs of any shape."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = precision
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return tokenized(lambda inputs: request.infer(inputs)[0])


def tokenized(network: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Encode:
    """Return what embeds texts: tokens, padded to the longest of the batch; the network; length 1."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(demo.model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(BertEncoder.from_folder(demo.model_folder()).max_length)
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> np.ndarray:
        rows = tokenizer.encode_batch(texts)
        ids, mask = (np.array([getattr(row, name) for row in rows], np.int64) for name in ("ids", "attention_mask"))
        means = network({"ids": ids, "mask": mask})
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    return encode


BACKENDS: dict[str, Callable[[Path, int], Encode]] = {
    "mp_core float32": lambda folder, threads: by_mp_core(demo.model_folder(), "float32", threads),
    "mp_core bfloat16": lambda folder, threads: by_mp_core(demo.model_folder(), "mixed_bfloat16", threads),
    "mp_core int8": lambda folder, threads: by_mp_core(folder / "fixed", None, threads),
    "onnxruntime float32": lambda folder, threads: by_onnxruntime(folder / "float32.onnx", threads),
    "onnxruntime int8": lambda folder, threads: by_onnxruntime(folder / "int8.onnx", threads),
    "OpenVINO float32": lambda folder, threads: by_openvino(folder / "float32.onnx", threads, "f32"),
    "OpenVINO bfloat16": lambda folder, threads: by_openvino(folder / "float32.onnx", threads, "bf16"),
    "OpenVINO int8": lambda folder, threads: by_openvino(folder / "int8.xml", threads, "bf16"),
}


def main() -> None:
    """Read the command line, open the model, serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("name", choices=BACKENDS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    encode = BACKENDS[options.name](options.folder, options.threads)
    encode(["The first call prepares the weights."])
    serve(create_app(encode), options.port)


if __name__ == "__main__":
    main()
