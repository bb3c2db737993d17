"""MXFP4, MXFP8 and NVFP4 of compressed-tensors and gpt-oss: their codes are read bit for bit and run as they are."""

import json
from functools import partial

import ml_dtypes
import numpy as np
import packed_folders as folders
import pytest
import random_models
from safetensors.numpy import load_file, save_file
from test_checkpoint_foreign import save
from test_checkpoint_packed_networks import forward

import mp_core as mp
from mp_core.checkpoint import convert, inspect, open_tensors, verify
from mp_core.models import TextEncoder

NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
"""The numbers of the 16 codes of float4_e2m1fn, from the specification."""
WIDE = {"hidden_size": 64, "intermediate_size": 96}


def fours(x, rng, group):
    """Return codes, one in each element, and what they stand for without their scales."""
    codes = rng.integers(0, 16, x.shape)
    return codes, np.float32(NUMBERS)[codes]


def pairs(codes):
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def mxfp4(x, rng):
    codes, numbers = fours(x, rng, 32)
    exponents = rng.integers(118, 124, (len(x), x.shape[1] // 32))
    parts = {"weight_packed": pairs(codes), "weight_scale": exponents.astype(np.uint8)}
    return parts, numbers * np.float32(2.0 ** (exponents - 127)).repeat(32, 1)


def nvfp4(x, rng):
    codes, numbers = fours(x, rng, 16)
    scale = rng.uniform(0.5, 400, (len(x), x.shape[1] // 16)).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32([rng.uniform(1000, 9000)])
    parts = {"weight_packed": pairs(codes), "weight_scale": scale, "weight_global_scale": whole}
    return parts, numbers * (scale.astype(np.float32) / whole).repeat(16, 1)


def mxfp8(x, rng):
    codes = (x * 100).astype(ml_dtypes.float8_e4m3fn)
    exponents = rng.integers(118, 122, (len(x), x.shape[1] // 32))
    parts = {"weight": codes, "weight_scale": exponents.astype(np.uint8)}
    return parts, codes.astype(np.float32) * np.float32(2.0 ** (exponents - 127)).repeat(32, 1)


def config(layout, bits, group):
    strategy = "tensor_group" if group == 16 else "group"
    return folders.compressed(layout, bits=bits, group=group, kind="float", strategy=strategy)


FORMATS = {
    "mxfp4": (config("mxfp4-pack-quantized", 4, 32), mxfp4, "mxfp4"),
    "nvfp4": (config("nvfp4-pack-quantized", 4, 16), nvfp4, "nvfp4"),
    "mxfp8": (config("mxfp8-quantized", 8, 32), mxfp8, "float8_e4m3fn/32"),
}


def written(tmp_path, case):
    """Return the folders of a Qwen2 in one of the formats, and of its numbers; the file may hold any type."""
    settings, pack, scheme = FORMATS[case]
    source = random_models.save(random_models.made("qwen2", **WIDE), tmp_path / "source")
    rng, tensors, floats = np.random.default_rng(5), {}, {}
    (tmp_path / "floats").mkdir()
    packed, plain = folders.packed_copies(source, tmp_path / "model", settings, partial(folders.awq, group=None))
    for name, x in load_file(source / "model.safetensors").items():
        if x.ndim != 2 or "embed" in name:
            tensors[name] = floats[name] = x
            continue
        parts, floats[name] = pack(x, rng)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": value for part, value in parts.items()}
    save(packed / "model.safetensors", tensors)
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    return packed, plain, scheme


@pytest.mark.parametrize("case", FORMATS)
def test_the_numbers_are_those_of_the_layout_and_run_as_codes(tmp_path, case):
    packed, plain, scheme = written(tmp_path, case)
    found = open_tensors(packed)
    for name, expected in open_tensors(plain).items():
        value = found[name]
        np.testing.assert_array_equal(value if isinstance(value, np.ndarray) else mp.dequantize(value), expected)
    assert verify(packed, plain)["failed"] == []
    encoder = TextEncoder.from_folder(packed)
    layer = encoder.model.encoder.blocks[0].output
    assert (str(layer.form.policy.scheme), layer.form.name) == (scheme, "codes")
    ids, mask = random_models.ragged(1)
    expected = forward(plain, ids, mask)
    np.testing.assert_allclose(
        encoder.model(ids, mask)[mask > 0], expected[mask > 0], atol=2e-5 * np.abs(expected).max()
    )
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        TextEncoder.from_folder(tmp_path / "saved").model(ids, mask), encoder.model(ids, mask)
    )
    convert(packed, tmp_path / "kept", "float32", keep=["proj"])
    assert verify(tmp_path / "kept", plain)["failed"] == []


@pytest.mark.parametrize("case", FORMATS)
def test_compressed_tensors_reads_the_same_numbers(tmp_path, case):
    pytest.importorskip("compressed_tensors")
    packed, plain, _ = written(tmp_path, case)
    ids, mask = random_models.ragged(1)
    asked = random_models.library().CompressedTensorsConfig(dequantize=True)
    found, expected = forward(packed, ids, mask, quantization_config=asked), forward(plain, ids, mask)
    tolerance = 0.05 if case == "nvfp4" else 0  # that package rounds these numbers to bfloat16
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def gpt_oss(folder, change=lambda tensors: None, **settings):
    """Write experts as gpt-oss has them; return their numbers."""
    rng = np.random.default_rng(0)
    codes, exponents = rng.integers(0, 16, (3, 6, 2, 32)), rng.integers(100, 140, (3, 6, 2))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": pairs(codes), f"{name}_scales": exponents.astype(np.uint8), f"{name}_bias": np.ones(3)}
    change(tensors)
    folder.mkdir()
    save(folder / "model.safetensors", tensors)
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.0.self_attn"]} | settings
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "quantization_config": method}))
    numbers = np.float32(NUMBERS)[codes] * np.float32(2.0 ** (exponents - 127))[..., np.newaxis]
    return numbers.reshape(3, 6, 64)


def test_experts_of_gpt_oss(tmp_path):
    numbers = gpt_oss(tmp_path / "model")
    name = "model.layers.0.mlp.experts.gate_up_proj.weight"
    q = open_tensors(tmp_path / "model")[name]
    assert (q.shape, q.dtype.name, q.group_size) == ((3, 6, 64), "float4_e2m1fn", 32)
    np.testing.assert_array_equal(mp.dequantize(q), numbers)
    assert [row["layout"] for row in inspect(tmp_path / "model")["tensors"]] == ["mxfp4", None]
    for keep in ([], ["gate_up_proj.weight"]):
        convert(tmp_path / "model", tmp_path / "out", "float32", keep=keep, force=True)
        value = open_tensors(tmp_path / "out")[name]
        np.testing.assert_array_equal(mp.dequantize(value) if keep else value, numbers)
    torch = pytest.importorskip("torch")
    random_models.library()
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    stored = load_file(tmp_path / "model" / "model.safetensors")
    parts = (torch.tensor(stored[name.replace(".weight", end)]) for end in ("_blocks", "_scales"))
    theirs = convert_moe_packed_tensors(*parts, dtype=torch.float32).numpy()
    np.testing.assert_array_equal(theirs, numbers.swapaxes(1, 2))  # transformers keeps the transpose


NAME = "model.layers.0.mlp.experts.gate_up_proj"


def put(part, x):
    return lambda tensors: tensors.update({f"{NAME}_{part}": x})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{NAME}_scales"), r"gate_up_proj_scales' is missing"),
        (put("scales", np.zeros((3, 6, 3), np.uint8)), r"of shape \(3, 6, 3\); expected .*\(3, 6, 2\)"),
        (put("scales", np.full((3, 6, 2), 255, np.uint8)), r"scales must be positive and finite"),
        (put("blocks", np.zeros((3, 6, 2, 8), np.uint8)), r"expected \(experts, outputs, blocks"),
        (put("blocks", np.zeros((3, 6, 32), np.uint8)), r"expected \(experts, outputs, blocks"),
        (put("blocks", np.zeros((3, 6, 2, 16), np.int8)), r"is int8 of shape"),
    ],
)
def test_damaged_experts(tmp_path, change, message):
    gpt_oss(tmp_path / "model", change)
    with pytest.raises(ValueError, match=message) as caught:
        open_tensors(tmp_path / "model")
    assert "model.safetensors" in str(caught.value)


def test_damaged_blocks_of_4_bits(tmp_path):
    def refused(change, message, **settings):
        x = np.ones((16, 64), np.float32)
        rng = np.random.default_rng(0)
        tensors = {f"l.{part}": value for part, value in nvfp4(x, rng)[0].items()}
        change(tensors)
        save(tmp_path / "model.safetensors", tensors)
        described = config("nvfp4-pack-quantized", 4, 16)
        described["config_groups"]["group_0"]["weights"] |= settings
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": described}))
        with pytest.raises(ValueError, match=message):
            open_tensors(tmp_path)

    refused(lambda x: x.pop("l.weight_global_scale"), "'l.weight_global_scale' is missing")
    refused(lambda x: x.update({"l.weight_global_scale": np.float32([0])}), "scales must be positive and finite")
    refused(lambda x: x.update({"l.weight_global_scale": np.float32([1, 2])}), r"expected float32 of shape \(1,\)")
    refused(lambda x: x.update({"l.weight_scale": np.ones((16, 4), np.uint8)}), "expected float8_e4m3fn")
    refused(lambda x: x.update({"l.weight_packed": np.ones((16, 31), np.uint8)}), "62 inputs; expected a multiple")
    refused(lambda x: None, "expected groups of 16 for nvfp4-pack-quantized", group_size=32)
    refused(lambda x: None, "num_bits is 8; expected 4", num_bits=8)
    refused(lambda x: None, "symmetric is False; expected True", symmetric=False)
