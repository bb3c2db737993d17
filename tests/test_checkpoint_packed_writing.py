"""``convert --to compressed-tensors``: what it writes stands for the same numbers, here and in transformers."""

import json
import shutil

import numpy as np
import pytest
import random_models
import tiny_bert
from safetensors.numpy import load_file, save_file
from test_checkpoint_packed_networks import forward

import mp_core as mp
from mp_core import cli
from mp_core.checkpoint import RequestError, convert, inspect, open_tensors, stored_policies, verify
from mp_core.models import TextEncoder
from mp_core.quantization import QuantizedArray

TO = "compressed-tensors"
# Policy -> the format that describes its codes.
POLICIES = {
    "int4/8_from_float32": "pack-quantized",
    "int4/-1_from_float32": "pack-quantized",
    "int4/dynamic/8_from_float32": "pack-quantized",
    "int8_from_float32": "int-quantized",
    "int8/tensor_from_float32": "int-quantized",
    "int8/weight_only_from_float32": "pack-quantized",
    "int8/weight_only/8_from_float32": "pack-quantized",
    "int8/weight_only/tensor_from_float32": "pack-quantized",
    "float8_e4m3fn_from_float32": "float-quantized",
    "float8_e4m3fn/8_from_float32": "float-quantized",
    "float8_e4m3fn/tensor_from_float32": "float-quantized",
}
MICROSCALING = {
    "mxfp4_from_float32": ("mxfp4-pack-quantized", "mxfp4"),
    "mxfp4/dynamic_from_float32": ("mxfp4-pack-quantized", "mxfp4/dynamic"),
    "mxint8_from_float32": ("pack-quantized", "int8/weight_only/32"),
    "mxfp8_e4m3_from_float32": ("float-quantized", "float8_e4m3fn/32"),
}
"""Policy -> the format, and the scheme of the layers of a folder in it."""
KEEP = ["embeddings"]


@pytest.mark.parametrize("policy", POLICIES)
def test_codes_scales_and_policies_come_back(tmp_path, policy):
    source = tiny_bert.write(tmp_path / "model")
    own, other = tmp_path / "own", tmp_path / "other"
    expected = convert(source, own, policy, keep=KEEP)
    report = convert(source, other, policy, keep=KEEP, to=TO)
    assert [row["sqnr"] for row in report["tensors"]] == [row["sqnr"] for row in expected["tensors"]]
    assert report["new_bytes"] == sum(row["bytes"] for row in inspect(other)["tensors"])
    config = json.loads((other / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["format"]) == (TO, POLICIES[policy])
    codes, found = open_tensors(own), open_tensors(other)
    assert codes.keys() == found.keys()
    for name, value in codes.items():
        if not isinstance(value, QuantizedArray):
            np.testing.assert_array_equal(found[name], value)
            continue
        assert (found[name].dtype, found[name].axis) == (value.dtype, value.axis)
        assert found[name].values.tobytes() == value.values.tobytes()
        np.testing.assert_array_equal(found[name].scale, value.scale)
        np.testing.assert_array_equal(found[name].zero_point, value.zero_point)
    assert stored_policies(other)[0] == policy
    texts = ["a b c", "d e f g"]
    vectors = TextEncoder.from_folder(own).encode(texts)
    np.testing.assert_array_equal(TextEncoder.from_folder(other).encode(texts), vectors)
    convert(other, tmp_path / "floats", "float32")
    assert verify(own, tmp_path / "floats")["failed"] == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["qwen2", "bert"])
def test_transformers_computes_the_same_from_it(tmp_path, name, policy):
    pytest.importorskip("compressed_tensors")
    source = random_models.save(random_models.made(name), tmp_path / "source")
    convert(source, tmp_path / "model", policy, keep=["embed"] if name == "qwen2" else ["embed", "pooler"], to=TO)
    convert(tmp_path / "model", tmp_path / "floats", "float32")
    ids, mask = random_models.ragged(1)
    asked = random_models.library().CompressedTensorsConfig(dequantize=True)
    found = forward(tmp_path / "model", ids, mask, quantization_config=asked)
    np.testing.assert_array_equal(found, forward(tmp_path / "floats", ids, mask))


@pytest.mark.parametrize("policy", MICROSCALING)
def test_microscaling_formats(tmp_path, policy):
    source = random_models.save(random_models.made("qwen2", hidden_size=64, intermediate_size=96), tmp_path / "source")
    convert(source, tmp_path / "own", policy, keep=["embed"])
    convert(source, tmp_path / "other", policy, keep=["embed"], to=TO)
    assert verify(tmp_path / "own", tmp_path / "other")["failed"] == []
    layout, scheme = MICROSCALING[policy]
    assert json.loads((tmp_path / "other" / "config.json").read_text())["quantization_config"]["format"] == layout
    assert stored_policies(tmp_path / "other")[0] == f"{scheme}_from_float32"
    ids, mask = random_models.ragged(1)
    own, other = (TextEncoder.from_folder(tmp_path / name).model(ids, mask) for name in ("own", "other"))
    np.testing.assert_array_equal(own, other)
    pytest.importorskip("compressed_tensors")
    convert(tmp_path / "other", tmp_path / "floats", "float32")
    asked = random_models.library().CompressedTensorsConfig(dequantize=True)
    found = forward(tmp_path / "other", ids, mask, quantization_config=asked)
    np.testing.assert_array_equal(found, forward(tmp_path / "floats", ids, mask))


def test_layers_of_several_schemes_are_told_apart(tmp_path):
    source = tiny_bert.write(tmp_path / "model")
    schemes = {"layer.1.output": "int8", "query|key": "int8/weight_only/8", r"layer\.0\.intermediate": "float8_e4m3fn"}
    policies = {pattern: f"{scheme}_from_float32" for pattern, scheme in schemes.items()}
    for to, target in (("mp_core", "own"), (TO, "other")):
        keep = [*KEEP, "layer.0.attention.output"]
        convert(source, tmp_path / target, "int4/8_from_float32", map=policies, keep=keep, to=to)
    assert verify(tmp_path / "own", tmp_path / "other")["failed"] == []
    config = json.loads((tmp_path / "other" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    targets = {tuple(group["targets"]) for group in config["config_groups"].values()}
    assert (r"re:.*1\.output\.dense$",) in targets and (r"re:.*self\.key$", r"re:.*self\.query$") in targets
    texts = ["a b c", "d e f g"]
    vectors = TextEncoder.from_folder(tmp_path / "own").encode(texts)
    np.testing.assert_array_equal(TextEncoder.from_folder(tmp_path / "other").encode(texts), vectors)


def test_shards_and_their_index(tmp_path):
    source = tiny_bert.write(tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: x for name, x in tensors.items() if files[name] == file}, source / file)
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    report = convert(source, tmp_path / "other", "int4/8", keep=KEEP, to=TO)
    convert(source, tmp_path / "own", "int4/8", keep=KEEP)
    assert verify(tmp_path / "own", tmp_path / "other")["failed"] == []
    index = json.loads((tmp_path / "other" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == report["new_bytes"]
    assert "encoder.layer.0.output.dense.weight_packed" in index["weight_map"]
    TextEncoder.from_folder(tmp_path / "other")


def test_codes_of_one_program_become_those_of_another(tmp_path):
    import packed_folders as folders

    packed, floats = folders.write(tmp_path / "model", {"quant_method": "awq", "group_size": 8}, folders.awq)
    assert cli.main(["convert", str(packed), "-o", str(tmp_path / "out"), "--policy", "int4/8", "--keep", ".",
                     "--to", TO, "--no-progress", "--max-memory", "16GiB"]) == 0  # fmt: skip
    assert verify(tmp_path / "out", floats)["failed"] == []
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "pack-quantized"


@pytest.mark.parametrize(
    ("policy", "keep", "message"),
    [
        ("float8_e5m2", KEEP, "is float8_e5m2 with float inputs; compressed-tensors can hold int4"),
        (
            "nvfp4",
            [*KEEP, r"0\.", r"1\.output", r"1\.inter"],
            "is nvfp4 with float inputs; compressed-tensors can hold int4",
        ),
        ("int8/weight_only/32", KEEP, r"of shape \(16, 24\) in groups of 32"),
    ],
)
def test_what_has_no_place_is_refused_before_anything_is_written(tmp_path, policy, keep, message):
    source = tiny_bert.write(tmp_path / "model")
    if "32" in policy:
        tensors = load_file(source / "model.safetensors")
        name = "encoder.layer.0.output.dense.weight"
        save_file({name: np.resize(tensors[name], (16, 40))}, source / "model.safetensors")
        message = message.replace("24", "40")
    with pytest.raises(RequestError, match=message):
        convert(source, tmp_path / "out", policy, keep=[] if "32" in policy else keep, to=TO)
    assert not (tmp_path / "out").exists()


def test_only_folders_of_networks_can_be_described(tmp_path, capsys):
    source = tiny_bert.write(tmp_path / "model")
    with pytest.raises(RequestError, match="no configuration of a network with a model_type"):
        convert(source / "model.safetensors", tmp_path / "out.safetensors", "int8", to=TO)
    dense = source / "2_Dense"
    dense.mkdir()
    save_file({"linear.weight": np.ones((16, 16), np.float32)}, dense / "model.safetensors")
    (dense / "config.json").write_text("{}")
    with pytest.raises(RequestError, match=r"2_Dense.*keep \(--keep\) the tensors of other modules"):
        convert(source, tmp_path / "out", "int8", to=TO)
    convert(source, tmp_path / "out", "int8", keep=["linear", *KEEP], to=TO)
    with pytest.raises(ValueError, match="`to` must be 'mp_core' or 'compressed-tensors'"):
        convert(source, tmp_path / "out", "int8", to="gptq", force=True)
    shutil.rmtree(tmp_path / "out")
    text = tmp_path / "a.txt"
    text.write_text("a b\n")
    command = ["convert", str(source), "-o", str(tmp_path / "out"), "--policy", "int8", "--to", TO]
    with pytest.raises(SystemExit):
        cli.main([*command, "--calibrate", str(text)])
    assert "argument --to: not allowed with argument --calibrate" in capsys.readouterr().err


@pytest.mark.parametrize("length", [1, 3, 9, 17])
def test_lines_that_do_not_fill_their_words(tmp_path, length):
    x = np.random.default_rng(0).standard_normal((5, length)).astype(np.float32)
    (tmp_path / "in").mkdir()
    save_file({"l.weight": x}, tmp_path / "in" / "model.safetensors")
    (tmp_path / "in" / "config.json").write_text('{"model_type": "bert"}')
    for index, policy in enumerate(("int4/-1", "int8/weight_only")):
        convert(tmp_path / "in", tmp_path / f"own{index}", policy)
        convert(tmp_path / "in", tmp_path / f"other{index}", policy, to=TO)
        own, other = (mp.dequantize(open_tensors(tmp_path / f"{kind}{index}")["l.weight"]) for kind in ("own", "other"))
        np.testing.assert_array_equal(own, other)
