"""Packed folders of whole networks: beside transformers, and beside compressed-tensors where it is installed."""

import warnings
from functools import partial

import numpy as np
import packed_folders as folders
import pytest
import random_models

from mp_core.models import TextEncoder

ASYMMETRIC = {"symmetric": False}
PACKED = {
    "pack-quantized": (
        folders.compressed("pack-quantized", **ASYMMETRIC), partial(folders.pack_quantized, **ASYMMETRIC)
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 8}, folders.awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 8}, folders.gptq),
}  # fmt: skip
NETWORKS = ["qwen2", "qwen3", "llama", "mistral", "gemma3_text", "roberta", "modernbert"]


def forward(folder, ids, mask, **arguments):
    """Return the vectors of tokens that transformers computes from a folder in float32."""
    transformers = random_models.library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", **arguments).eval()
    return random_models.outputs(network, ids, mask)


@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_its_numbers_say(tmp_path, name, layout):
    source = random_models.save(random_models.made(name), tmp_path / "source")
    packed, floats = folders.packed_copies(source, tmp_path / "model", *PACKED[layout])
    encoder = TextEncoder.from_folder(packed)
    layers = [layer for layer in encoder.model.flatten() if getattr(layer, "quantized", False)]
    assert len(layers) >= 8 and {layer.form.name for layer in layers} == {"codes"}
    ids, mask = random_models.ragged(1)
    expected, found = forward(floats, ids, mask), encoder.model(ids, mask)
    np.testing.assert_allclose(found[mask > 0], expected[mask > 0], atol=2e-5 * np.abs(expected).max())


FORMATS = {
    "pack, 4 bits": (folders.compressed("pack-quantized"), folders.pack_quantized),
    "pack, 4 bits, zero points": PACKED["pack-quantized"],
    "pack, 8 bits, channels": (
        folders.compressed("pack-quantized", bits=8, group=None, **ASYMMETRIC),
        partial(folders.pack_quantized, bits=8, group=None, **ASYMMETRIC),
    ),
    "int8": (folders.compressed("int-quantized", bits=8, group=None), folders.int_quantized),
    "int8, zero points": (
        folders.compressed("int-quantized", bits=8, group=None, **ASYMMETRIC),
        partial(folders.int_quantized, **ASYMMETRIC),
    ),
}


@pytest.mark.parametrize("name", ["qwen2", "bert"])
@pytest.mark.parametrize("case", FORMATS)
def test_compressed_tensors_computes_the_same(tmp_path, name, case):
    pytest.importorskip("compressed_tensors")
    source = random_models.save(random_models.made(name), tmp_path / "source")
    packed, floats = folders.packed_copies(source, tmp_path / "model", *FORMATS[case], keep=["pooler"])
    ids, mask = random_models.ragged(1)
    asked = random_models.library().CompressedTensorsConfig(dequantize=True)
    expected = forward(packed, ids, mask, quantization_config=asked)
    np.testing.assert_array_equal(expected, forward(floats, ids, mask))
    found = TextEncoder.from_folder(packed).model(ids, mask)
    np.testing.assert_allclose(found[mask > 0], expected[mask > 0], atol=2e-5 * np.abs(expected).max())


def test_the_converter_of_compressed_tensors_unpacks_awq_alike():
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert")
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
    parts, numbers = folders.awq(x, np.random.default_rng(1))
    convert = converters.AutoAWQConverter(bits=4, group_size=8)
    found = convert.process({f"l.{part}": torch.tensor(value) for part, value in parts.items()})
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = helpers.unpack_from_int32(found["l.weight_packed"], 4, torch.Size(x.shape)).numpy()
    zero = helpers.unpack_from_int32(found["l.weight_zero_point"], 4, torch.Size((24, 4)), packed_dim=0).numpy()
    scale = found["l.weight_scale"].float().numpy()
    np.testing.assert_array_equal((codes - zero.repeat(8, 1)) * scale.repeat(8, 1), numbers)
