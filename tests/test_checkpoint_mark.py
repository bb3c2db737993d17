"""Conversion of models: how the folder says that it has codes, and which programs open it."""

import json

import ml_dtypes
import numpy as np
import pytest
import tiny_bert
from safetensors.numpy import load_file, save_file
from tensors import normal, raw, safetensors

from mp_core import cli
from mp_core.checkpoint import convert, open_tensors, save_folder
from mp_core.models import BertEncoder

PLAIN = ("float32", "float16", "bfloat16")
CODES = ("int8", "int8/tensor", "int8/weight_only/64", "int4/32", "int4/-1", "float8_e4m3fn", "float8_e5m2/32768")

# ---- the mark in config.json


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A random BERT as transformers writes it, and its outputs."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96,
        max_position_embeddings=16, dtype="float32",
    )  # fmt: skip
    torch.manual_seed(4)
    model = transformers.BertModel(config).eval()
    folder = tmp_path_factory.mktemp("bert") / "model"
    model.save_pretrained(folder)
    return folder, outputs(model)


def outputs(model):
    import torch

    with torch.no_grad():
        return model(torch.arange(12).reshape(2, 6)).last_hidden_state.numpy()


@pytest.mark.parametrize("policy", CODES)
def test_transformers_refuses_codes_and_opens_what_float32_makes_of_them(bert, tmp_path, policy):
    import transformers

    folder, expected = bert
    report = convert(folder, tmp_path / "small", policy)
    before, config = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "small"))
    mark = config.pop("quantization_config")
    assert config == before
    assert report["codes"] == len(json.loads(raw(tmp_path / "small" / "model.safetensors")[1]["mp_core.quantization"]))
    assert mark == {
        "method": "mp_core",
        "policy": f"{policy}_from_mixed_bfloat16",
        "policies": {},
        "scales": "{name}.scale",
        "metadata": "mp_core.quantization",
        "to_numbers": "mp-core convert --policy float32",
    }
    with pytest.raises(ValueError, match="no `quant_method`"):
        transformers.BertModel.from_pretrained(tmp_path / "small")
    assert convert(tmp_path / "small", tmp_path / "back", "float32")["codes"] == 0
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == before
    assert load_file(tmp_path / "back" / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    found = outputs(transformers.BertModel.from_pretrained(tmp_path / "back").eval())
    assert np.abs(found - expected).max() < (1.0 if "int4" in policy else 0.2)
    convert(folder, tmp_path / "same", "float32")
    assert (tmp_path / "same" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_with_a_quant_method_that_it_does_not_know_transformers_takes_codes_for_weights(bert, tmp_path):
    import transformers

    folder, expected = bert
    convert(folder, tmp_path / "small", "int8")
    path = tmp_path / "small" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["quant_method"] = "mp_core"
    path.write_text(json.dumps(config))
    found = outputs(transformers.BertModel.from_pretrained(tmp_path / "small").eval())  # which is why there is none
    assert np.abs(found - expected).max() > 1


def test_the_mark_stays_while_codes_do_and_that_of_another_tool_goes_with_its_codes(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}, "x": "ä"}))
    x = normal(4, 64).astype(ml_dtypes.float8_e4m3fn)
    header = {"a.weight": {"dtype": "F8_E4M3", "shape": [4, 64], "data_offsets": [0, 256]},
              "a.weight_scale_inv": {"dtype": "F32", "shape": [], "data_offsets": [256, 260]}}  # fmt: skip
    (folder / "model.safetensors").write_bytes(safetensors(header, x.tobytes() + np.float32(2).tobytes()))

    def mark(path):
        return json.loads((path / "config.json").read_text()).get("quantization_config")

    convert(folder, tmp_path / "kept", "float32", keep=["a"])
    assert mark(tmp_path / "kept") == {"quant_method": "fp8"}
    convert(folder, tmp_path / "floats", "float32")
    assert (tmp_path / "floats" / "config.json").read_text() == '{\n  "x": "ä"\n}\n'
    convert(tmp_path / "floats", tmp_path / "int8", "int8")
    convert(tmp_path / "int8", tmp_path / "again", "float32", keep=["a"])
    assert (
        mark(tmp_path / "int8")["policy"] == "int8_from_mixed_bfloat16"
        and mark(tmp_path / "again")["method"] == "mp_core"
    )


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff", b'{"x": "\\ud800"}', b"[" * 10**5])
def test_what_is_no_configuration_is_copied(tmp_path, content):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": normal(64, 8)}, folder / "model.safetensors")
    (folder / "config.json").write_bytes(content)
    convert(folder, tmp_path / "out", "int8")
    written = (tmp_path / "out" / "config.json").read_bytes()
    assert written == content or b"mp_core" in written


# ---- the dtype in config.json, by which transformers makes the model


@pytest.mark.parametrize("before", PLAIN)
@pytest.mark.parametrize("policy", PLAIN)
def test_transformers_opens_what_is_written_with_the_bits_of_the_file(bert, tmp_path, before, policy):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(bert[0], dtype=before)
    model.save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "new", policy)
    loaded = transformers.BertModel.from_pretrained(tmp_path / "new")
    assert loaded.dtype is getattr(torch, policy)
    state, written = loaded.state_dict(), load_file(tmp_path / "new" / "model.safetensors")
    assert written
    for name, tensor in written.items():
        assert torch.equal(state[name].float(), torch.from_numpy(tensor.astype(np.float32))), name


def configuration(path):
    return json.loads((path / "config.json").read_text())


def named(dtype):
    """A configuration with dtypes in all places where one may be, and in some where none is."""
    return {
        "dtype": dtype,
        "torch_dtype": dtype,
        "text_config": {"torch_dtype": dtype, "inner": {"dtype": dtype}},
        "vision_config": {"dtype": {"": dtype, "tower": dtype, "depth": None}},
        "quantization_config": {"quant_method": "fp8", "dtype": "float8_e4m3fn"},
        "vocabulary": {"dtype": 3},
        "other": {"dtype": "int64", "torch_dtype": None, "float32": "float32"},
    }


@pytest.mark.parametrize("spelling", ["bfloat16", "float16", "half", "torch.float16", "double", "float8_e4m3fn"])
def test_every_configuration_in_the_configuration_gets_the_new_dtype(tmp_path, spelling):
    (tmp_path / "model").mkdir()
    save_file({"w": normal(4, 8, dtype="float16")}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps(named(spelling)))
    convert(tmp_path / "model", tmp_path / "new", "float32")
    assert configuration(tmp_path / "new") == named("float32")
    save_folder(tmp_path / "model", tmp_path / "saved", {"w": normal(4, 8)}, policy="float32")
    expected = named("float32")
    del expected["quantization_config"]
    assert configuration(tmp_path / "saved") == expected


@pytest.mark.parametrize("spelling", ["float32", "float", "torch.float32"])
def test_a_configuration_that_names_the_dtype_is_copied(tmp_path, spelling):
    (tmp_path / "model").mkdir()
    save_file({"w": normal(4, 8, dtype="float16")}, tmp_path / "model" / "model.safetensors")
    content = json.dumps({"torch_dtype": spelling, "x": 1.50e0})
    (tmp_path / "model" / "config.json").write_text(content)
    convert(tmp_path / "model", tmp_path / "new", "float32")
    assert (tmp_path / "new" / "config.json").read_text() == content


@pytest.mark.parametrize(
    ("policy", "keep", "expected"),
    [
        ("float16", ["large"], "bfloat16"),  # most numbers are bfloat16
        ("float16", ["small"], "float16"),
        ("float32", ["ids"], "float32"),  # integers do not count
        ("int8", [], "float16"),  # nor do codes and their scales
        ("int8", ["norm"], "float16"),
        ("int8", ["large"], "bfloat16"),
    ],
)
def test_the_dtype_is_that_of_most_numbers(tmp_path, policy, keep, expected):
    (tmp_path / "model").mkdir()
    large, small = normal(32, 8, dtype=ml_dtypes.bfloat16), normal(8, 8, dtype=ml_dtypes.bfloat16)
    norm, ids = normal(8, dtype="float16"), np.arange(1000)
    tensors = {"large": large, "small": small, "norm": norm, "ids": ids}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"dtype": "float64"}))
    convert(tmp_path / "model", tmp_path / "new", policy, keep=keep)
    assert configuration(tmp_path / "new")["dtype"] == expected


def test_codes_without_numbers_have_the_dtype_of_their_scales_and_integers_none(tmp_path):
    for name, tensors in (("codes", {"w": normal(8, 8)}), ("integers", {"ids": np.arange(4)})):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text('{"dtype": "bfloat16"}')
        convert(tmp_path / name, tmp_path / f"{name}-new", "int8")
    assert configuration(tmp_path / "codes-new")["dtype"] == "float32"
    assert configuration(tmp_path / "integers-new") == {"dtype": "bfloat16"}


def test_the_dtype_in_an_index_is_that_of_its_shards(tmp_path):
    (tmp_path / "model").mkdir()
    for part in "ab":
        save_file({part: normal(8, 8)}, tmp_path / "model" / f"{part}.safetensors")
    index = {"metadata": {"total_size": 512, "dtype": "float32"}, "weight_map": {x: f"{x}.safetensors" for x in "ab"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(tmp_path / "model", tmp_path / "new", "bfloat16")
    written = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
    assert written["metadata"] == {"total_size": 256, "dtype": "bfloat16"}


@pytest.mark.parametrize("policy", ["float16", "bfloat16", "float32", "mixed_bfloat16", "int8_from_mixed_bfloat16"])
def test_encoders_and_choices_are_saved_with_the_dtype_of_their_weights(tmp_path, capsys, policy):
    folder = tiny_bert.write(tmp_path / "model", dtype="float64", text_config={"torch_dtype": "float64"})
    BertEncoder.from_folder(folder, policy).save(tmp_path / "saved")
    (tmp_path / "texts").write_text("a b c\nd e\n")
    choice = ["choose", folder, "--texts", tmp_path / "texts", "--max-error", "1", "--policies", policy]
    assert cli.main([*map(str, choice), "--output", str(tmp_path / "chosen")]) == 0
    for path in (tmp_path / "saved", tmp_path / "chosen"):
        norm = open_tensors(path / "model.safetensors")["embeddings.LayerNorm.weight"]
        config = configuration(path)
        assert (config["dtype"], config["text_config"]) == (norm.dtype.name, {"torch_dtype": norm.dtype.name})
    capsys.readouterr()


# ---- a model


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("policy", (*PLAIN, *CODES))
def test_a_model_loads_what_is_written(tmp_path, policy, sharded):
    folder = tiny_bert.write(tmp_path / "model")
    if sharded:
        tensors = load_file(folder / "model.safetensors")
        files = {name: f"part{i % 2}.safetensors" for i, name in enumerate(tensors)}
        for file in set(files.values()):
            save_file({name: x for name, x in tensors.items() if files[name] == file}, folder / file)
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    report = convert(folder, tmp_path / "small", policy)
    reference = BertEncoder.from_folder(folder).encode(["a b c", "d e"])
    for compute in ("float32", "mixed_bfloat16", "int8_from_float32"):
        found = BertEncoder.from_folder(tmp_path / "small", compute).encode(["a b c", "d e"])
        cosines = (found * reference).sum(axis=1)
        assert cosines.min() > (0.9 if "int4" in policy else 0.99), compute
    assert report["failed"] == []
