"""Encoders written as folders: the file has the layers' values unchanged, and reading it gives the same bits."""

import json
import re
import sys

import numpy as np
import processes
import pytest
import tiny_bert

from mp_core import calibrate, checkpoint, dequantize, ops
from mp_core.checkpoint import open_tensors, stored_policies
from mp_core.cli import demo
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.dtypes import name_of
from mp_core.models import BertEncoder
from mp_core.quantization import QuantizedArray

TEXTS = ["a b c", "d", "a b c d e f g h", "h g f e"]
SCHEMES = [
    "int8", "int8/tensor", "int8/weight_only", "int8/weight_only/8", "int4/8", "int4/-1", "float8_e4m3fn",
    "float8_e4m3fn/8",
]  # fmt: skip
MAP = {
    "embeddings/word": "int4/8_from_float32",
    "encoder/layer_0/attention/query": "int8_from_mixed_bfloat16",
    "encoder/layer_0/attention_norm": "bfloat16",
    "encoder/layer_1/.*": "float16",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("saved") / "model")


def quantized(mode):
    def make(folder):
        encoder = BertEncoder.from_folder(folder, "mixed_bfloat16")
        encoder.model.quantize(mode)
        return encoder

    return make


def changed(folder):
    encoder = BertEncoder.from_folder(folder)
    encoder.model.set_weights([1.5 * weight for weight in encoder.model.get_weights()])
    return encoder


ENCODERS = {
    **{
        policy: lambda folder, policy=policy: BertEncoder.from_folder(folder, policy)
        for policy in (*SCHEMES, "float32", "bfloat16", "mixed_bfloat16", "mixed_float16", "float8_from_mixed_bfloat16")
    },
    **{
        f"calibrated {policy}": lambda folder, policy=policy: calibrate(BertEncoder.from_folder(folder), TEXTS, policy)
        for policy in ("int8", "int4/8", "int8/weight_only", "float8_e4m3fn/fixed/tensor")
    },
    **{f"quantize {mode}": quantized(mode) for mode in ("int8", "int8/weight_only", "int4", "int4/8", "int4/-1")},
    "a map": lambda folder: BertEncoder.from_folder(folder, DTypePolicyMap("mixed_bfloat16", MAP)),
    "other weights": changed,
}


@pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS)
def test_a_folder_gives_the_bits_of_the_encoder_that_it_was_saved_from(folder, tmp_path, make):
    encoder = make(folder)
    encoder.save(tmp_path / "saved")
    read = BertEncoder.from_folder(tmp_path / "saved")
    np.testing.assert_array_equal(read.encode(TEXTS), encoder.encode(TEXTS))
    read.save(tmp_path / "again")
    before, after = (open_tensors(tmp_path / name / "model.safetensors") for name in ("saved", "again"))
    assert list(before) == list(after)
    for name, tensor in before.items():
        parts = ("values", "scale", "zero_point") if isinstance(tensor, QuantizedArray) else ("view",)
        for part in parts:
            ours, theirs = getattr(tensor, part), getattr(after[name], part)
            if part == "view":
                ours, theirs = ours(), theirs()
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_converted_folder_and_one_opened_under_the_scheme_have_the_same_bits(folder, tmp_path, scheme):
    checkpoint.convert(folder, tmp_path / "small", scheme)
    read = BertEncoder.from_folder(tmp_path / "small")
    np.testing.assert_array_equal(read.encode(TEXTS), BertEncoder.from_folder(folder, scheme).encode(TEXTS))


@pytest.mark.parametrize("scheme", [*SCHEMES, "calibrated"])
def test_the_packed_codes_are_those_of_the_file(folder, tmp_path, scheme, monkeypatch):
    if scheme == "calibrated":
        calibrate(BertEncoder.from_folder(folder), TEXTS, "int8").save(tmp_path / "small")
    else:
        checkpoint.convert(folder, tmp_path / "small", scheme)
    encoder, packed = BertEncoder.from_folder(tmp_path / "small"), []
    pack = ops.pack
    monkeypatch.setattr(ops, "pack", lambda b, **kwargs: packed.append((b, pack(b, **kwargs))) or packed[-1][1])
    encoder.encode(TEXTS)
    filed = open_tensors(tmp_path / "small" / "model.safetensors")
    kernels = [filed[name] for name in encoder.kernel_names.values()]
    columns = np.concatenate([matrix.unpack().T.astype(np.float32).reshape(-1) for _, matrix in packed])
    assert all(name_of(matrix.dtype) == name_of(kernels[0].dtype) for _, matrix in packed)
    assert len(kernels) == 12  # query, key and value of a block may be one packed matrix
    assert columns.size == sum(q.shape[0] * q.shape[1] for q in kernels)
    for q in kernels:
        codes = QuantizedArray(q.values, np.ones_like(q.scale), None, q.axis, q.group_size, q.dtype, q.shape)
        steps = dequantize(codes).reshape(-1)
        places = np.flatnonzero(columns[: columns.size - steps.size + 1] == steps[0])
        assert any(np.array_equal(columns[place : place + steps.size], steps) for place in places)
    word = encoder.model.embeddings.word
    np.testing.assert_array_equal(word.codes.numpy(), filed["embeddings.word_embeddings.weight"].values)
    assert np.shares_memory(word.codes.numpy(), np.asarray(word.matrix.values))


def test_the_file_and_the_configuration_say_what_is_stored(folder, tmp_path):
    BertEncoder.from_folder(folder, DTypePolicyMap("int8_from_mixed_bfloat16", MAP)).save(tmp_path / "saved")
    default, others = stored_policies(tmp_path / "saved" / "model.safetensors")
    said = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert default == said["policy"]
    for name, policy in {
        "embeddings.word_embeddings.weight": "int4/8_from_float32",
        "encoder.layer.0.attention.self.query.weight": "int8_from_mixed_bfloat16",
        "encoder.layer.1.output.dense.weight": "float16",
    }.items():
        assert others.get(name, default) == policy
        assert said["policies"].get(name, said["policy"]) == policy
    assert "quant_method" not in said


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("gptq/4/128_from_float32", r"do not compute under .*'gptq/4/128_from_float32'"),
        ("uint8", "do not compute under .*'uint8'"),
        ("int4/8_from_float32", r"query.weight is codes of int8, axis=\(0,\); expected 'int4/8'"),
        ("int8/fixed_from_float32", "query.weight: .*'int8/fixed' without scales of its inputs"),
    ],
)
def test_policies_that_do_not_fit_the_tensors_of_a_file_are_refused_in_a_line_that_names_both(
    folder, tmp_path, policy, message
):
    name = "encoder.layer.0.attention.self.query.weight"
    checkpoint.convert(folder, tmp_path / "small", "int8")
    path = tmp_path / "small" / "model.safetensors"
    checkpoint.save_tensors(path, open_tensors(path), policy="int8", policies={name: policy})
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}") as caught:
        BertEncoder.from_folder(tmp_path / "small")
    assert "\n" not in str(caught.value)
    assert np.isfinite(BertEncoder.from_folder(tmp_path / "small", "float32").encode(TEXTS)).all()


def test_weights_beyond_float32_are_infinite_without_a_warning(folder, tmp_path):
    calibrate(BertEncoder.from_folder(folder), TEXTS, "int8").save(tmp_path / "fixed")
    path = tmp_path / "fixed" / "model.safetensors"
    name, tensors = "encoder.layer.0.attention.self.query.weight", open_tensors(path)
    smallest = np.full_like(tensors[f"{name}.inputs_scale"], 1e-45)
    policies = stored_policies(path)
    checkpoint.save_tensors(
        path, tensors | {f"{name}.inputs_scale": smallest}, policy=policies[0], policies=policies[1]
    )
    query = BertEncoder.from_folder(tmp_path / "fixed", "float32").model.encoder.blocks[0].attention.query
    assert np.isinf(query.kernel.numpy()).any()


def test_an_explicit_policy_converts_what_the_file_holds(folder, tmp_path):
    checkpoint.convert(folder, tmp_path / "small", "int8")
    held = BertEncoder.from_folder(tmp_path / "small")
    floats = BertEncoder.from_folder(tmp_path / "small", "float32")
    assert not any(layer.quantized for layer in floats.flatten())
    weight_only = BertEncoder.from_folder(tmp_path / "small", "int8/weight_only")
    query = "encoder/layer_0/attention/query"
    codes = [next(part for part in e.flatten() if part.path == query).codes.numpy() for e in (held, weight_only)]
    np.testing.assert_array_equal(*codes)
    np.testing.assert_allclose(floats.encode(TEXTS), held.encode(TEXTS), atol=0.1)


def test_the_other_files_and_tensors_of_a_folder_stay(tmp_path):
    source = tiny_bert.write(tmp_path / "model")
    (source / "README.md").write_text("words")
    (source / "pytorch_model.bin").write_bytes(b"stale")
    BertEncoder.from_folder(source, "int8").save(tmp_path / "saved")
    assert (tmp_path / "saved" / "README.md").read_text() == "words"
    assert not (tmp_path / "saved" / "pytorch_model.bin").exists()
    assert open_tensors(tmp_path / "saved" / "model.safetensors").keys() == tiny_bert.tensors().keys()


@pytest.mark.parametrize("write", [
    lambda folder, served: checkpoint.convert(folder, served, "int4/8", force=True),
    lambda folder, served: BertEncoder.from_folder(folder).save(served, force=True),
    lambda folder, served: checkpoint.save_tensors(
        served / "model.safetensors", {"x": np.ones(1, np.float32)}, policy="float32"
    ),
], ids=["convert", "save", "save_tensors"])  # fmt: skip
def test_an_open_model_keeps_the_files_that_are_replaced(write, folder, tmp_path):
    """A write into them would change its weights, and a shorter file end the process."""
    served = tmp_path / "served"
    checkpoint.convert(folder, served, "float32")
    encoder = BertEncoder.from_folder(served)
    write(folder, served)
    np.testing.assert_array_equal(encoder.encode(TEXTS), BertEncoder.from_folder(folder).encode(TEXTS))


@pytest.mark.parametrize(
    "change",
    [lambda blocks: blocks.pop(), lambda blocks: blocks.reverse(), lambda blocks: blocks.append(blocks[0])],
    ids=["out", "moved", "added"],
)
def test_blocks_that_are_not_those_of_the_configuration_are_not_saved(folder, tmp_path, change):
    encoder = BertEncoder.from_folder(folder)
    change(encoder.model.encoder.blocks)
    with pytest.raises(ValueError, match=r"`encoder.blocks` must be layer_0 to layer_\d, .*; received \['layer_"):
        encoder.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_folder_is_not_replaced_by_accident_and_never_by_itself(tmp_path):
    source = tiny_bert.write(tmp_path / "model")
    encoder = BertEncoder.from_folder(source, "int8")
    expected = encoder.encode(TEXTS)
    encoder.save(tmp_path / "saved")
    with pytest.raises(FileExistsError, match="force"):
        encoder.save(tmp_path / "saved")
    encoder.save(tmp_path / "saved", force=True)
    for target in (source, source / "inside"):
        with pytest.raises((FileExistsError, ValueError), match=re.escape(str(source))):
            encoder.save(target, force=True)
    np.testing.assert_array_equal(BertEncoder.from_folder(source, "int8").encode(TEXTS), expected)


_GROWTH = """
import sys
from pathlib import Path
from mp_core.models import BertEncoder
from mp_core.models.modules import read_modules
from mp_core.models.tokenizer import Tokenizer

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

tiny, model = sys.argv[1:]
BertEncoder.from_folder(tiny).encode(["a b"])
tokenizer = Tokenizer(read_modules(Path(model)))  # 17 MB of its own, of which some are free again for the model
tokenizer(["one text"])
before = peak()
encoder = BertEncoder.from_folder(model)
encoder.encode(["one text", "and another one"])
print(peak() - before, encoder.weight_bytes)
"""


def test_opening_int8_minilm_takes_little_more_memory_than_its_file(folder, tmp_path):
    try:
        source = demo.model_folder()
    except ImportError:
        pytest.skip("the model of the demonstration is not installed")
    checkpoint.convert(source, tmp_path / "small", "int8")
    output = processes.run(
        [sys.executable, "-c", _GROWTH, str(folder), str(tmp_path / "small")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    growth, weights = map(int, output.split())
    file = (tmp_path / "small" / "model.safetensors").stat().st_size
    assert growth <= 1.2 * file  # packed kernels, and the pages of the file that were read
    assert weights <= 24e6
