"""Serve with mp_core's server and another library as the encoder, for comparison: ``python backends.py NAME``.

The models of the peers are those of ``make bench-peers SUBJECT=minilm``. The package tokenizers, which mp_core uses
too, truncates and pads the peers' texts.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mp_core as mp
from mp_core.cli import demo
from mp_core.models import TextEncoder
from mp_core.models.texts import Tokens
from mp_core.serving.front import create_app
from mp_core.serving.logs import Log
from mp_core.serving.models import Encoder, Served
from mp_core.serving.server import bound, serve

Network = Callable[[dict[str, np.ndarray]], np.ndarray]
FOLDER = Path("build", "minilm")


class Peer(Served):
    """An encoder whose network another library computes; texts are padded to the longest of a batch."""

    kind, policy, created, prompts = "encoder", "a peer's", 0, ()

    def __init__(self, network: Network) -> None:
        import tokenizers

        self.name, self._network = "model", network
        reader = TextEncoder.from_folder(demo.model_folder())  # the model is not kept: the peer has its own weights
        self.max_length, self.dim = reader.max_length, reader.dim
        self._tokenizer = tokenizers.Tokenizer.from_file(str(demo.model_folder() / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.max_length)

    def tokenize(self, inputs: Sequence[str], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts; there are no prompts."""
        found = self._tokenizer.encode_batch(inputs)
        cut = [place for place, encoding in enumerate(found) if encoding.overflowing]
        return Tokens([np.array(encoding.ids, np.int32) for encoding in found], cut)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> np.ndarray:
        """Return an embedding for each text, 32 at a time."""
        return np.concatenate([self._padded(tokens.rows[start : start + 32]) for start in range(0, len(tokens), 32)])

    def as_tei(self) -> dict[str, Any]:
        """Return the pooling."""
        return {"embedding": {"pooling": "mean"}}

    def _padded(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        mask = np.arange(max(map(len, rows))) < np.array([len(row) for row in rows])[:, np.newaxis]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate(rows)
        means = self._network({"ids": ids, "mask": mask.astype(np.int64)})
        return means / np.linalg.norm(means, axis=1, keepdims=True)


def by_mp_core(folder: Path, policy: str | None, threads: int) -> Encoder:
    """Open a folder under a policy."""
    mp.config.set_num_threads(threads)
    return Encoder("model", TextEncoder.from_folder(folder, policy))


def by_onnxruntime(path: Path, threads: int) -> Peer:
    """Open an ONNX graph of token ids and their mask."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Peer(lambda inputs: session.run(None, inputs)[0])


def by_openvino(path: Path, threads: int, precision: str) -> Peer:
    """Compile a graph for inputs of any shape."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = precision
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return Peer(lambda inputs: request.infer(inputs)[0])


BACKENDS: dict[str, Callable[[Path, int], Served]] = {
    "mp_core float32": lambda folder, threads: by_mp_core(demo.model_folder(), "float32", threads),
    "mp_core bfloat16": lambda folder, threads: by_mp_core(demo.model_folder(), "mixed_bfloat16", threads),
    "mp_core int8": lambda folder, threads: by_mp_core(folder / "fixed", None, threads),
    "onnxruntime float32": lambda folder, threads: by_onnxruntime(folder / "float32.onnx", threads),
    "onnxruntime int8": lambda folder, threads: by_onnxruntime(folder / "int8.onnx", threads),
    "OpenVINO float32": lambda folder, threads: by_openvino(folder / "float32.onnx", threads, "f32"),
    "OpenVINO bfloat16": lambda folder, threads: by_openvino(folder / "float32.onnx", threads, "bf16"),
    "OpenVINO int8": lambda folder, threads: by_openvino(folder / "int8.xml", threads, "bf16"),
}


def encode(model: Served, texts: Sequence[str]) -> np.ndarray:
    """Return the embeddings of texts, without a server."""
    return model.compute(model.tokenize(texts), {})


def main() -> None:
    """Read the command line, open the model, serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("name", choices=BACKENDS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    model = BACKENDS[options.name](options.folder, options.threads)
    encode(model, ["The first call prepares the weights."])
    log = Log(quiet=True)
    with bound("127.0.0.1", options.port) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serve(create_app([model], log=log), listener, log, started=lambda: print(address, flush=True))


if __name__ == "__main__":
    main()
