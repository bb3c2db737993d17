"""Write the files of the decoder of `peers.py decoder`: a random network, for each contender in each precision."""

import json
from pathlib import Path

import numpy as np
import openvino
import peers_llama
import torch
import transformers
from decoder_contenders import GROUP, SIZES
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from openvino import opset13 as nodes
from safetensors.torch import save_file

WORDS = 256  # words of the vocabulary that texts use: few, because llama.cpp multiplies by their vectors too


class LastToken(torch.nn.Module):
    """The network, and the vector of the last token of one text."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)[0][:, -1].float()


def prepare(
    blocks: int, vocabulary: int, precisions: list[str], texts: list[np.ndarray], folder: Path
) -> list[np.ndarray]:
    """Write the missing files; return the vectors of some texts in float32."""
    if not (folder / "config.json").exists():
        save(blocks, vocabulary, folder)
    module = opened(folder, "float32")
    for precision in precisions:
        if not (folder / f"{precision}.xml").exists():
            save_openvino(module, precision, folder / f"{precision}.xml")
        if precision != "bfloat16":
            save_onnx(module, precision, folder)
        if peers_llama.INSTALLED:
            peers_llama.save(module.network, precision, WORDS, folder / f"{precision}.gguf")
    return [module(torch.from_numpy(ids)).numpy() for ids in texts]


def save(blocks: int, vocabulary: int, folder: Path) -> None:
    """Write a random network for mp_core and torch."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(num_hidden_layers=blocks, vocab_size=vocabulary, **SIZES)
    tensors = transformers.Qwen3Model(config).state_dict()
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    config.save_pretrained(folder)


def opened(folder: Path, precision: str) -> LastToken:
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return LastToken(transformers.Qwen3Model.from_pretrained(folder, dtype=dtype)).eval()


def save_onnx(module: LastToken, precision: str, folder: Path) -> None:
    """Write the network in float32, then in a precision, unless the files exist."""
    path, whole = folder / f"{precision}.onnx", folder / "float32.onnx"
    if not whole.exists():
        axes = {"ids": {0: "texts", 1: "tokens"}}
        ids = torch.zeros((1, 8), dtype=torch.int64)
        torch.onnx.export(module, (ids,), whole, input_names=["ids"], dynamic_axes=axes, dynamo=False)
    if not path.exists() and precision == "int8":
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, use_external_data_format=True)
    elif not path.exists():
        quantizer = MatMulNBitsQuantizer(str(whole), block_size=GROUP, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(path), use_external_data_format=True)


def save_openvino(module: LastToken, precision: str, path: Path) -> None:
    model = openvino.convert_model(module, example_input=torch.zeros((1, 8), dtype=torch.int64))
    if precision in ("int8", "int4"):
        compress(model, precision)
    openvino.save_model(model, path, compress_to_fp16=precision == "bfloat16")


def compress(model: openvino.Model, precision: str) -> None:
    """Replace the weights of linear layers by codes and scales, as NNCF writes them in INT8_SYM and INT4_SYM."""
    largest = 127 if precision == "int8" else 7
    for product in model.get_ops():
        constant = product.input_value(1).get_node() if product.get_type_name() == "MatMul" else product
        if constant.get_type_name() != "Constant" or constant is product:
            continue
        weights = constant.data
        groups = weights.reshape(len(weights), -1, weights.shape[1] if precision == "int8" else GROUP)
        scales = (np.abs(groups).max(-1, keepdims=True) / largest).astype(np.float16)
        codes = np.rint(groups / scales.astype(np.float32)).clip(-largest, largest).astype(np.int8)
        tensor = openvino.Tensor(codes) if precision == "int8" else in_nibbles(codes)
        numbers = nodes.multiply(nodes.convert(nodes.constant(tensor), "f16"), nodes.constant(scales))
        matrix = nodes.reshape(numbers, np.array(weights.shape), special_zero=False)
        product.input(1).replace_source_output(nodes.convert(matrix, "f32").output(0))


def in_nibbles(codes: np.ndarray) -> openvino.Tensor:
    """Return 4-bit codes, two per byte."""
    pairs = codes.reshape(-1, 2).view(np.uint8) & 15
    tensor = openvino.Tensor(openvino.Type.i4, openvino.Shape(codes.shape))
    tensor.data.reshape(-1)[:] = pairs[:, 0] | pairs[:, 1] << 4
    return tensor
