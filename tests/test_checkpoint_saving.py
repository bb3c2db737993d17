"""Arrays and codes written as files and folders: bits and policies are read back, and nothing is half written."""

import errno
import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
import tiny_bert
from safetensors import safe_open
from safetensors.numpy import save_file
from tensors import LINE, normal, raw

import mp_core as mp
from mp_core.checkpoint import (
    RequestError,
    convert,
    inspect,
    open_tensors,
    save_folder,
    save_tensors,
    stored_policies,
    verify,
)
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.dtypes import dtype_of
from mp_core.files.checkpoint import writing
from mp_core.files.checkpoint.header import CODES
from mp_core.models import BertEncoder

KINDS = {
    "int8": mp.quantize(normal(7, 40), axis=0),
    "int8 tensor": mp.quantize(normal(7, 40)),
    "int8 groups": mp.quantize(normal(7, 40), axis=0, group_size=16),
    "uint8 zeros": mp.quantize(normal(7, 40) + 2, axis=0, dtype="uint8", symmetric=False),
    "int8 zeros": mp.quantize(normal(7, 40) + 2, axis=0, symmetric=False),
    "int4": mp.quantize(normal(7, 41), axis=0, dtype="int4"),
    "int4 zeros": mp.quantize(normal(7, 40), axis=0, dtype="int4", group_size=8, symmetric=False),
    "float8": mp.quantize(normal(7, 40), axis=0, dtype="float8_e4m3fn"),
    "float8 groups": mp.quantize(normal(7, 40), axis=0, dtype="float8_e5m2", group_size=64),
    "convolution": mp.quantize(normal(4, 3, 5, 2), axis=0),
    "lines": mp.quantize(normal(4, 3, 64), axis=(0, 1), dtype="int4", group_size=32),
    "empty": mp.quantize(normal(0, 64), axis=0),
    "by column": mp.QuantizedArray(np.asfortranarray(normal(7, 40).astype(np.int8)), np.ones(7), None, 0),
}


def bits(value):
    """All that a tensor consists of."""
    if isinstance(value, mp.QuantizedArray):
        parts = (value.values, value.scale, value.zero_point)
        return value.axis, value.group_size, value.dtype, value.shape, *(None if p is None else bits(p) for p in parts)
    return value.dtype, value.shape, value.tobytes()


# ---- what comes back


def test_codes_and_arrays_come_back_bit_for_bit(tmp_path):
    arrays = {
        f"array {name}": np.zeros((2, 3), "c8" if name == "complex64" else dtype_of(name)) for name in CODES.values()
    }
    save_tensors(tmp_path / "m", KINDS | arrays, policy="int8")
    opened = open_tensors(tmp_path / "m")
    assert list(opened) == [*KINDS, *arrays]
    for name, value in (KINDS | arrays).items():
        assert bits(opened[name]) == bits(value), name
    save_tensors(tmp_path / "again", opened, policy="int8")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e5m2", "int16", "bool", "complex64"])
def test_any_layout_and_byte_order_is_written_in_order(tmp_path, dtype):
    x = normal(300, 5, 130).astype(getattr(ml_dtypes, dtype, dtype))
    layouts = {
        "reversed": x[::-1, :, ::-2],
        "transposed": x.T,
        "fortran": np.asfortranarray(x),
        "broadcast": np.broadcast_to(x[:1], x.shape),
        "point": x[0, 0, 0:1].reshape(()),
        "none": x[:0, ::2],
    }
    if x.dtype.kind != "V":
        layouts["other order"] = x[:, ::2].astype(x.dtype.newbyteorder())
    save_tensors(tmp_path / "m", layouts, policy="float32")
    for name, found in open_tensors(tmp_path / "m").items():
        expected = np.ascontiguousarray(layouts[name]).reshape(layouts[name].shape)
        assert bits(found) == bits(expected.astype(found.dtype.newbyteorder("="))), name


def test_a_file_may_be_replaced_by_what_is_mapped_from_it(tmp_path):
    path = tmp_path / "m"
    save_tensors(path, KINDS | {"w": normal(5, LINE)}, policy="int8")
    opened = open_tensors(path)
    before = {name: bits(value) for name, value in opened.items()}
    save_tensors(path, {name: opened[name] for name in reversed(opened)}, policy="float32")
    assert {name: bits(value) for name, value in open_tensors(path).items()} == before
    assert {name: bits(value) for name, value in opened.items()} == before
    assert os.listdir(tmp_path) == ["m"]


def test_the_safetensors_library_reads_the_file(tmp_path):
    save_tensors(tmp_path / "m", {"w": KINDS["int4 zeros"], "b": normal(3)}, policy="int4/8")
    with safe_open(tmp_path / "m", framework="numpy") as file:
        assert set(file.keys()) == {"w", "w.scale", "w.zero_point", "b"}
        assert file.get_tensor("w.zero_point").dtype == np.int8
        np.testing.assert_array_equal(file.get_tensor("w.zero_point"), KINDS["int4 zeros"].zero_point)


# ---- inputs with fixed scales


def with_inputs(dtype="int8", **changes):
    """Codes of a matrix whose columns are multiplied by the scales of its inputs, and the matrix."""
    weights = normal(6, 100)
    scale = np.exp(normal(100)) if dtype == "int8" else np.float32(0.25)
    parts = {"w": mp.quantize(weights * scale, axis=0, dtype=dtype), "w.inputs_scale": np.asarray(scale)}
    if dtype == "int8":
        parts["w.inputs_zero_point"] = np.arange(100).astype(np.int8)
    return {name: part for name, part in (parts | changes).items() if part is not None}, weights


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_codes_with_fixed_inputs_become_the_weights_again(tmp_path, dtype):
    tensors, weights = with_inputs(dtype)
    save_tensors(tmp_path / "m", tensors, policy=f"{dtype}/fixed/tensor")
    assert json.loads(raw(tmp_path / "m")[1]["mp_core.quantization"])["w"]["inputs"] == "fixed"
    opened = open_tensors(tmp_path / "m")
    assert {name: bits(x) for name, x in opened.items()} == {name: bits(x) for name, x in tensors.items()}
    exact = mp.dequantize(tensors["w"]) / tensors["w.inputs_scale"]
    report = convert(tmp_path / "m", tmp_path / "floats", "float32")
    assert [row["bytes"] for row in report["tensors"]] == [sum(x.nbytes for x in tensors.values())]
    floats = open_tensors(tmp_path / "floats")
    np.testing.assert_array_equal(floats["w"], exact)
    assert list(floats) == ["w"]
    save_file({"w": weights}, tmp_path / "exact")
    assert inspect(tmp_path / "m")["tensors"][0]["max_abs"] == np.abs(exact).max()
    assert not verify(tmp_path / "exact", tmp_path / "m", rtol=0.2)["failed"]
    convert(tmp_path / "m", tmp_path / "kept", "float32", keep=["w"])
    kept = open_tensors(tmp_path / "kept")
    assert {name: bits(x) for name, x in kept.items()} == {name: bits(x) for name, x in tensors.items()}


def test_scales_of_inputs_are_divided_by_in_every_box(tmp_path):
    scale = np.exp(normal(LINE + 70))
    tensors = {"w": mp.quantize(normal(3, LINE + 70) * scale, axis=0), "w.inputs_scale": scale}
    tensors["w.inputs_zero_point"] = np.zeros(LINE + 70, np.int8)
    save_tensors(tmp_path / "m", tensors, policy="int8/fixed")
    convert(tmp_path / "m", tmp_path / "floats", "float32")
    np.testing.assert_array_equal(open_tensors(tmp_path / "floats")["w"], mp.dequantize(tensors["w"]) / scale)


ONES = np.ones(100, np.float32)
BROKEN = {
    "no scale": ("int8", {"w.inputs_scale": None}),
    "no zero point": ("int8", {"w.inputs_zero_point": None}),
    "a scale too few": ("int8", {"w.inputs_scale": ONES[1:]}),
    "one scale": ("int8", {"w.inputs_scale": np.array(1, np.float32)}),
    "a wide scale": ("int8", {"w.inputs_scale": ONES.astype(np.float64)}),
    "a wide zero point": ("int8", {"w.inputs_zero_point": np.zeros(100, np.int32)}),
    "a zero point too many": ("int8", {"w.inputs_zero_point": np.zeros(101, np.int8)}),
    "a NaN scale": ("int8", {"w.inputs_scale": np.where(np.arange(100) == 7, np.nan, ONES)}),
    "an infinite scale": ("int8", {"w.inputs_scale": np.where(np.arange(100) == 7, np.inf, ONES)}),
    "a negative scale": ("int8", {"w.inputs_scale": -ONES}),
    "many scales of float8": ("float8_e4m3fn", {"w.inputs_scale": ONES}),
    "a zero point of float8": ("float8_e4m3fn", {"w.inputs_zero_point": np.zeros(100, np.int8)}),
    "zero scale of float8": ("float8_e4m3fn", {"w.inputs_scale": np.zeros((), np.float32)}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_scales_of_inputs_that_do_not_fit_are_named(tmp_path, case):
    dtype, changes = BROKEN[case]
    tensors, _ = with_inputs(dtype, **changes)
    with pytest.raises(ValueError, match=r"'w"):
        save_tensors(tmp_path / "m", tensors, policy="int8")
    q = tensors.pop("w")
    entry = {"dtype": dtype, "shape": [6, 100], "axis": [0], "group_size": None, "inputs": "fixed"}
    metadata = {"mp_core.quantization": json.dumps({"w": entry})}
    save_file(tensors | {"w": q.values, "w.scale": q.scale}, tmp_path / "m", metadata=metadata)
    with pytest.raises(ValueError, match=rf"{tmp_path}/m: .*'w"):
        open_tensors(tmp_path / "m")
    for read in (inspect, lambda path: verify(path, path), lambda path: convert(path, tmp_path / "x", "float32")):
        with pytest.raises(ValueError, match=rf"{tmp_path}/m: .*'w"):
            read(tmp_path / "m")
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"'w\.inputs_scale'; codes of this kind do not have it"),
        ({"inputs": "dynamic"}, "inputs must be 'fixed'"),
        ({"inputs": True}, "inputs must be 'fixed'"),
        ({"inputs": "fixed", "dtype": "int4", "shape": [6, 200]}, "inputs must be 'fixed', for int8 or float8 codes"),
    ],
)
def test_an_entry_says_whether_inputs_are_fixed(tmp_path, entry, message):
    tensors, _ = with_inputs()
    q = tensors.pop("w")
    entry = {"dtype": "int8", "shape": [6, 100], "axis": [0], "group_size": None} | entry
    metadata = {"mp_core.quantization": json.dumps({"w": entry})}
    save_file(tensors | {"w": q.values, "w.scale": q.scale}, tmp_path / "m", metadata=metadata)
    with pytest.raises(ValueError, match=message):
        open_tensors(tmp_path / "m")


# ---- policies


def test_policies_are_stored_by_name(tmp_path):
    tensors = dict.fromkeys("abc", normal(2, 2))
    save_tensors(tmp_path / "m", tensors, policy="int8", policies={"a": "float16", "b": "int8_from_mixed_bfloat16"})
    assert raw(tmp_path / "m")[1] == {
        "mp_core.policy": "int8_from_mixed_bfloat16",
        "mp_core.policies": '{"a":"float16"}',
    }
    assert stored_policies(tmp_path / "m") == ("int8_from_mixed_bfloat16", {"a": "float16"})
    save_file(tensors, tmp_path / "plain")
    assert stored_policies(tmp_path / "plain") == (None, {})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"mp_core.policy": "int7"}, "m: metadata mp_core.policy: .*received 'int7'"),
        ({"mp_core.policies": '{"w": "int7"}'}, "m: metadata mp_core.policies: 'w': .*received 'int7'"),
        ({"mp_core.policies": '{"w": 8}'}, "'w': a policy must be a string; received 8"),
        ({"mp_core.policies": '{"v": "int8"}'}, "there is no tensor 'v'"),
        ({"mp_core.policies": '{"w": "int8", "w": "int8"}'}, "'w' occurs twice"),
        ({"mp_core.policies": "["}, "m: metadata mp_core.policies"),
        ({"mp_core.policies": '{"\\ud800": "int8"}'}, "m: metadata mp_core.policies"),
    ],
)
def test_policies_that_a_file_only_claims_are_refused(tmp_path, metadata, message):
    save_file({"w": normal(2, 2)}, tmp_path / "m", metadata=metadata)
    with pytest.raises(ValueError, match=message):
        stored_policies(tmp_path / "m")


def test_the_files_of_a_model_have_one_policy(tmp_path):
    for name, policy in (("a", "int8"), ("b", "int8"), ("c", "float16")):
        save_tensors(tmp_path / f"{name}.safetensors", {name: normal(2)}, policy=policy, policies={name: "float32"})
    with pytest.raises(ValueError, match=r"a\.safetensors and .*c\.safetensors have the policies"):
        stored_policies(tmp_path)
    (tmp_path / "c.safetensors").unlink()
    assert stored_policies(tmp_path) == ("int8_from_mixed_bfloat16", {"a": "float32", "b": "float32"})


# ---- what is refused


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"w": mp.quantize(normal(8, 8), axis=1)}, ValueError, r"'w' cannot be stored: axis must be \[\], \[0\]"),
        ({"w": mp.quantize(normal(8, 8), axis=0, group_size=3)}, ValueError, "'w' cannot be stored: group_size must"),
        ({"w": mp.quantize(normal(8, 8), dtype="uint4")}, ValueError, "'w' cannot be stored: dtype must be one of"),
        ({"w": mp.quantize(normal(8), axis=0)}, ValueError, "'w' cannot be stored: axis must be"),
        ({"w": mp.quantize(np.float32(1))}, ValueError, "'w' cannot be stored: shape must be"),
        ({"w": mp.QuantizedArray(np.ones((2, 2), np.int8), 0.0)}, ValueError, "'w' cannot be stored: scales must be"),
        ({"w": [1.0]}, TypeError, "'w' must be an ndarray or a QuantizedArray; received list"),
        ({"w": np.ones(2, np.longdouble)}, ValueError, "'w' has dtype .*; files can store float64"),
        ({"w": np.ones(2, ml_dtypes.int4)}, ValueError, "'w' has dtype int4"),
        ({"w": np.array(["a"])}, ValueError, "'w' has dtype"),
        ({"w": np.ma.masked_array(normal(2), [1, 0])}, TypeError, "masked"),
        ({"__metadata__": normal(2)}, ValueError, "the name of a tensor must .*received '__metadata__'"),
        ({"\ud800": normal(2)}, ValueError, r"the name of a tensor must .*received '\\ud800'"),
        ({3: normal(2)}, TypeError, "`tensors` must be a mapping of names"),
        ([normal(2)], TypeError, "`tensors` must be a mapping of names; received list"),
        ({"w": KINDS["int8"], "w.scale": normal(2)}, RequestError, r"two tensors would have the name 'w\.scale'"),
        ({"w.scale": normal(2), "w": KINDS["int8"]}, RequestError, r"two tensors would have the name 'w\.scale'"),
        ({"w": KINDS["int8"], "w.zero_point": normal(2)}, ValueError, r"w\.zero_point"),
        (
            {"w.weight": normal(4, 4).astype(ml_dtypes.float8_e4m3fn), "w.weight_scale": np.ones(1, np.float32)},
            RequestError,
            r"'w\.weight' would be read as codes of another tool",
        ),
        ({"w": np.ones((2, 2), np.int8), "w.scale": normal(2)}, RequestError, "'w' would be read as codes"),
    ],
)
def test_what_would_not_come_back_is_refused_by_name(tmp_path, tensors, error, message):
    with pytest.raises(error, match=message):
        save_tensors(tmp_path / "m", tensors, policy="float32")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "int7"}, ValueError, "`policy` must be one of .*received 'int7'"),
        ({"policy": None}, TypeError, "`policy` must be a policy or its name; received None"),
        ({"policy": DTypePolicyMap()}, TypeError, "`policy` must be one policy"),
        ({"policies": {"w": "int7"}}, ValueError, r"`policies\['w'\]` must be one of"),
        ({"policies": {"v": "int8"}}, RequestError, "`policies` must be of tensors in `tensors`; received 'v'"),
        ({"policies": ["w"]}, TypeError, "`policies` must be a mapping of names; received list"),
    ],
)
def test_policies_that_are_none_are_named(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        save_tensors(tmp_path / "m", {"w": normal(2)}, **{"policy": "float32"} | options)


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_text("mine")
    (tmp_path / "link").symlink_to("m")
    with pytest.raises(FileExistsError, match="is not a regular file"):
        save_tensors(tmp_path, {"w": normal(2)}, policy="float32")
    with pytest.raises(FileNotFoundError, match="absent"):
        save_tensors(tmp_path / "absent" / "m", {"w": normal(2)}, policy="float32")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
        with pytest.raises(OSError, match="bytes are needed"):
            save_tensors(path, {"w": normal(2)}, policy="float32")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="No space") as caught:
            save_tensors(path, {"w": normal(2)}, policy="float32")
    assert caught.value.filename == str(path)
    assert path.read_text() == "mine" and sorted(os.listdir(tmp_path)) == ["link", "m"]
    save_tensors(tmp_path / "link", {"w": normal(2)}, policy="float32")
    assert (tmp_path / "link").is_symlink() and list(open_tensors(path)) == ["w"]


# ---- folders


@pytest.fixture
def model(tmp_path):
    return tiny_bert.write(tmp_path / "model")


def quantized_of(tensors):
    return {name: mp.quantize(x, axis=0) if x.ndim == 2 else np.array(x) for name, x in tensors.items()}


def quantized(folder):
    """The tensors of a model with every matrix as codes."""
    return quantized_of(open_tensors(folder / "model.safetensors"))


def test_a_folder_keeps_its_other_files_and_says_what_its_codes_are(tmp_path, model):
    for name in ("pytorch_model.bin", "onnx/model.onnx", ".git/x", "model.fp16.safetensors", "2_Dense/notes.txt"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(b"x")
    shutil.copy(model / "model.safetensors", model / "model.fp16.safetensors")
    save_file({"linear.weight": normal(3, 3)}, model / "2_Dense" / "model.safetensors")
    tensors = quantized(model)
    kernel = "encoder.layer.0.output.dense.weight"
    save_folder(model, tmp_path / "out", tensors, policy="int8", policies={kernel: "int8/weight_only"})
    out = tmp_path / "out"
    files = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    stale = {"pytorch_model.bin", "onnx/model.onnx", ".git/x", "model.fp16.safetensors"}
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == files - stale
    for name in files - stale - {"config.json", "model.safetensors"}:
        assert (out / name).read_bytes() == (model / name).read_bytes(), name
    config = json.loads((out / "config.json").read_text())
    assert config.pop("quantization_config") == {
        "method": "mp_core",
        "policy": "int8_from_mixed_bfloat16",
        "policies": {kernel: "int8/weight_only_from_mixed_bfloat16"},
        "scales": "{name}.scale",
        "metadata": "mp_core.quantization",
        "to_numbers": "mp-core convert --policy float32",
    }
    assert config == json.loads((model / "config.json").read_text())
    opened = open_tensors(out / "model.safetensors")
    assert {name: bits(x) for name, x in opened.items()} == {name: bits(x) for name, x in tensors.items()}
    assert stored_policies(out / "model.safetensors")[1] == {kernel: "int8/weight_only_from_mixed_bfloat16"}
    BertEncoder.from_folder(out, "float32")


def test_floats_leave_no_mark(tmp_path, model):
    save_folder(model, tmp_path / "int8", quantized(model), policy="int8")
    save_folder(tmp_path / "int8", tmp_path / "float", open_tensors(model / "model.safetensors"), policy="float16")
    assert json.loads((tmp_path / "float" / "config.json").read_text()) == json.loads(
        (model / "config.json").read_text()
    )
    assert stored_policies(tmp_path / "float") == ("float16", {})


def test_the_weights_may_lie_in_a_folder_below_and_in_several_files(tmp_path, model):
    tensors = open_tensors(model / "model.safetensors")
    (model / "0_Transformer").mkdir()
    shutil.move(model / "config.json", model / "0_Transformer")
    files = {name: f"part{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: np.asarray(x) for name, x in tensors.items() if files[name] == file}
        save_file(part | {f"unused.{file}": normal(1)}, model / "0_Transformer" / file, metadata={"format": "pt"})
        files[f"unused.{file}"] = file
    (model / "0_Transformer" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (model / "model.safetensors").unlink()
    save_folder(model, tmp_path / "out", quantized_of(tensors), policy="int8")
    below = tmp_path / "out" / "0_Transformer"
    assert sorted(os.listdir(below)) == ["config.json", "model.safetensors"]
    assert not list((tmp_path / "out").glob("*.safetensors"))
    assert json.loads((below / "config.json").read_text())["quantization_config"]["method"] == "mp_core"
    assert raw(below / "model.safetensors")[1]["format"] == "pt"


def test_a_folder_is_never_lost(tmp_path, model, monkeypatch):
    tensors, out = quantized(model), tmp_path / "out"
    save_folder(model, out, tensors, policy="int8")
    with pytest.raises(FileExistsError, match="force"):
        save_folder(model, out, tensors, policy="int8")
    save_folder(model, out, tensors, policy="float16", force=True)
    assert stored_policies(out)[0] == "float16"
    for force in (False, True):
        with pytest.raises(FileExistsError, match="is the input"):
            save_folder(model, model, tensors, policy="int8", force=force)
        with pytest.raises(RequestError, match="is inside the folder"):
            save_folder(model, model / "out", tensors, policy="int8", force=force)
    (out / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"'mine\.txt'"):
        save_folder(model, out, tensors, policy="int8", force=True)
    with pytest.raises(RequestError, match="has none of the tensors"):
        save_folder(model, tmp_path / "x", {"w": normal(2)}, policy="int8")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        save_folder(model / "config.json", tmp_path / "x", tensors, policy="int8")
    (model / "link").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="leads out of"):
        save_folder(model, tmp_path / "x", tensors, policy="int8")
    (model / "link").unlink()

    def fail(*_):
        raise OSError("disk")

    monkeypatch.setattr(writing, "copy_files", fail)
    with pytest.raises(OSError, match="disk"):
        save_folder(model, tmp_path / "x", tensors, policy="int8")
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]


def test_transformers_refuses_a_folder_of_codes(tmp_path, model):
    transformers = pytest.importorskip("transformers")
    save_folder(model, tmp_path / "out", quantized(model), policy="int8")
    with pytest.raises(ValueError, match="no `quant_method`"):
        transformers.BertModel.from_pretrained(tmp_path / "out")
