"""GGUF files: the numbers and tensor names of the package `gguf`; hostile files run no code."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
import random_models
from gguf_files import NETWORKS, in_gguf, written

from mp_core import dequantize
from mp_core.checkpoint import convert, open_tensors
from mp_core.files.checkpoint.gguf_blocks import KINDS
from mp_core.files.checkpoint.gguf_file import open_gguf
from mp_core.models import BertEncoder
from mp_core.quantization import QuantizedArray

TEXTS = ["a b c", "h g f e d c b a a b", "d"]
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
"""Type -> the bytes of a block at which its float16 begin; of others 0."""


def blocks_of(kind, rows, columns, seed=0):
    """Return random blocks, whose scales are finite."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // kind.length, kind.size), dtype=np.uint8)
    for begin in HALVES.get(kind.name, (0,)):
        scales = np.abs(rng.normal(size=(len(blocks), 1))).astype(np.float16)
        blocks[:, begin : begin + 2] = scales.view(np.uint8)
    if kind.name == "MXFP4":  # exponents of finite numbers
        blocks[:, 0] = rng.integers(0, 250, len(blocks))
    if kind.name == "NVFP4":  # four scales without a sign
        blocks[:, :4] = rng.integers(1, 0x7F, (len(blocks), 4))
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("number", [number for number, kind in KINDS.items() if kind.read is not None])
def test_blocks_are_the_numbers_of_the_package(tmp_path, number):
    gguf = pytest.importorskip("gguf")
    blocks = blocks_of(KINDS[number], 6, 512)
    tensors, said = open_gguf(written(tmp_path / "a.gguf", {"x": (number, blocks), "y": np.ones(3, np.float32)}))
    assert KINDS[number].name == gguf.GGMLQuantizationType(number).name
    assert said["general.architecture"] == "qwen3"
    assert tensors["x"].shape == (6, 512)
    np.testing.assert_array_equal(
        tensors["x"].numbers(), gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number))
    )
    np.testing.assert_array_equal(tensors["y"].numbers(), [1, 1, 1])


def test_plain_numbers_are_read_as_they_are(tmp_path):
    gguf = pytest.importorskip("gguf")
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    half, brain = x.astype(np.float16), gguf.quants.quantize(x, gguf.GGMLQuantizationType.BF16)
    tensors, _ = open_gguf(written(tmp_path / "a.gguf", {"a": x, "b": half, "c": (30, brain)}))
    np.testing.assert_array_equal(tensors["a"].numbers(), x)
    np.testing.assert_array_equal(tensors["b"].numbers(), half)
    assert tensors["c"].numbers().dtype.name == "bfloat16"
    expected = gguf.quants.dequantize(brain, gguf.GGMLQuantizationType.BF16)
    np.testing.assert_array_equal(tensors["c"].numbers().astype(np.float32), expected)


def test_matrices_of_q8_0_are_codes_with_the_same_numbers(tmp_path):
    gguf = pytest.importorskip("gguf")
    x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    x[1, :32] = 0
    blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    negative = blocks.copy()
    negative[0, 1] |= 128
    tensors, _ = open_gguf(written(tmp_path / "a.gguf", {"x": (8, blocks), "y": (8, negative)}))
    codes = tensors["x"].codes()
    assert (codes.dtype.name, codes.axis, codes.group_size) == ("int8", (0,), 32)
    np.testing.assert_array_equal(dequantize(codes), gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    assert tensors["y"].codes() is None  # a scale is negative: numbers only


@pytest.mark.parametrize(("number", "group"), [(39, 32), (40, 16)])
def test_matrices_of_4_bit_floats_are_codes_with_the_same_numbers(tmp_path, number, group):
    gguf = pytest.importorskip("gguf")
    blocks = blocks_of(KINDS[number], 6, 512)
    if group == 32:
        blocks[:, ::17] = np.random.default_rng(1).integers(20, 230, (6, 16))
    empty = np.zeros_like(blocks)  # scales of 0, and codes of 0 and -0
    empty[:, 20:36] = 0x80 if group == 16 else 0
    bad = empty.copy()
    bad[0, 10] = 1 if group == 16 else 0xFF
    bad[0, 0] = 0xFF if group == 32 else 0
    tensors, _ = open_gguf(
        written(tmp_path / "a.gguf", {"x": (number, blocks), "empty": (number, empty), "bad": (number, bad)})
    )
    codes = tensors["x"].codes()
    assert (codes.dtype.name, codes.axis, codes.group_size) == ("float4_e2m1fn", (0,), group)
    np.testing.assert_array_equal(dequantize(codes), gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number)))
    assert not dequantize(tensors["empty"].codes()).any()
    assert tensors["bad"].codes() is None  # a scale is 0 beside another code, or not finite: numbers only


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_folder_with_a_gguf_file_has_the_embeddings_of_the_same_weights(tmp_path, kind):
    network = random_models.made(kind)
    folder = random_models.save(network, tmp_path)
    expected = BertEncoder.from_folder(folder).encode(TEXTS)
    received = BertEncoder.from_folder(in_gguf(network, folder)).encode(TEXTS)
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("kind", "scheme"), [("Q8_0", "int8/weight_only/32"), ("MXFP4", "mxfp4")])
def test_a_folder_of_codes_runs_by_them_and_is_saved_as_safetensors(tmp_path, kind, scheme):
    gguf = pytest.importorskip("gguf")
    (tmp_path / "first").mkdir()
    network = random_models.made("qwen3", hidden_size=64, intermediate_size=96)
    folder = in_gguf(network, random_models.save(network, tmp_path / "first"), gguf.GGMLQuantizationType[kind])
    encoder = BertEncoder.from_folder(folder)
    layer = encoder.model.encoder.blocks[0].attention.query
    assert isinstance(layer.matrix, QuantizedArray)
    assert str(layer.form.policy.scheme) == scheme
    with_floats = BertEncoder.from_folder(folder, "float32").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), with_floats, rtol=0, atol=1e-5 * np.abs(with_floats).max())
    encoder.save(tmp_path / "again")
    assert not list((tmp_path / "again").glob("*.gguf"))
    np.testing.assert_array_equal(BertEncoder.from_folder(tmp_path / "again").encode(TEXTS), encoder.encode(TEXTS))


def test_a_file_is_converted_to_safetensors(tmp_path):
    gguf = pytest.importorskip("gguf")
    kinds = gguf.GGMLQuantizationType
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    q4, q8 = (gguf.quants.quantize(x, kind) for kind in (kinds.Q4_0, kinds.Q8_0))
    written(tmp_path / "a.gguf", {"a": (2, q4), "b": (8, q8), "c": x})
    report = convert(tmp_path / "a.gguf", tmp_path / "a.safetensors", "float32")
    assert [row["name"] for row in report["tensors"]] == ["a", "b", "c"]
    found = open_tensors(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["a"], gguf.quants.dequantize(q4, kinds.Q4_0))
    np.testing.assert_array_equal(found["b"], gguf.quants.dequantize(q8, kinds.Q8_0))
    np.testing.assert_array_equal(found["c"], x)
    assert {path.name for path in tmp_path.iterdir()} == {"a.gguf", "a.safetensors"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"GGUX" + content[4:], "does not begin with GGUF"),
        (lambda content: content[:4] + struct.pack("<I", 1) + content[8:], "the version is 1; expected 2 or 3"),
        (lambda content: content[:8] + struct.pack("<Q", 2**63) + content[16:], "the file ends at byte"),
        (lambda content: content[:16] + struct.pack("<Q", 2**60) + content[24:], "the file ends at byte"),
        (lambda content: content[:-64], "tensor x ends at byte"),
        (lambda content: content[:3], "has 3 bytes"),
        (lambda content: content.replace(b"b.first", b"a.first"), "two values are called a.first"),
        (
            lambda content: content.replace(b"a.alignment123456", b"general.alignment"),
            "general.alignment is 7; expected a power of 2",
        ),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, change, message):
    values = {"a.first": 1, "b.first": 2, "a.alignment123456": 7}
    path = written(tmp_path / "a.gguf", {"x": (8, blocks_of(KINDS[8], 2, 64))}, **values)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"a\.gguf.*({message})"):
        open_gguf(path)


def test_tensors_that_share_bytes_are_refused(tmp_path):
    path = tmp_path / "shared.gguf"
    names = [f"tensor {i}" for i in range(200)]
    described = b"".join(
        struct.pack(f"<Q{len(name)}sIQIQ", len(name), name.encode(), 1, 1 << 20, 0, 0) for name in names
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), 0) + described
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(4 << 20))  # 839 MB, of 4.2 MB
    with pytest.raises(ValueError, match=r"shared\.gguf: tensors tensor 0 and tensor 1 overlap, at byte \d+"):
        open_gguf(path)


def test_mutants_of_files_are_refused_by_their_path_or_read(tmp_path):
    program = [sys.executable, Path(__file__).with_name("hostile_files.py"), tmp_path, "0", "100"]  # 10000: all of them
    result = processes.run(program, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_types_that_are_not_read_are_named(tmp_path):
    path = written(tmp_path / "a.gguf", {"x": (10, np.zeros((2, 84), np.uint8))})
    with pytest.raises(ValueError, match="tensor x has the type 10, which mp_core does not read; expected F32, F16"):
        open_gguf(path)


def test_a_file_of_another_network_is_refused(tmp_path):
    network = random_models.made("qwen3")
    folder = in_gguf(network, random_models.save(network, tmp_path))
    path = folder / "config.json"
    said = json.loads(path.read_text())
    for entries, message in (
        ({"model_type": "qwen2"}, "general.architecture is 'qwen3'; expected 'qwen2', for model_type 'qwen2'"),
        (
            {"model_type": "eurobert", "pad_token_id": 1},
            "does not know the tensors of 'eurobert' in GGUF files; expected 'bert'",
        ),
        ({"num_hidden_layers": 1, "layer_types": None}, r"tensor blk\.1\.\S+ is left over; expected"),
    ):
        path.write_text(json.dumps(said | entries))
        with pytest.raises(ValueError, match=message):
            BertEncoder.from_folder(folder)
