"""ONNX files: the weights of an exported network by the names of its modules; damaged files are errors."""

import os
import warnings

import ml_dtypes
import numpy as np
import pytest
import random_models

from mp_core.checkpoint import convert
from mp_core.files.checkpoint.onnx_file import open_onnx
from mp_core.models import BertEncoder

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
TEXTS = ["a b c", "h g f e d c b a a b", "d"]


KINDS = ["bert", "roberta", "mpnet", "distilbert", "modernbert", "qwen2", "qwen3", "t5"]


def exported(network, path, *, dynamo=False, result=0, **options):
    """Export a network that returns vectors of tokens only, with axes that may vary."""
    forward, ids = network.forward, torch.full((2, 7), 6)
    network.config.use_cache = False
    network.forward = lambda input_ids, attention_mask: forward(input_ids=input_ids, attention_mask=attention_mask)[
        result
    ]
    names = ["input_ids", "attention_mask"]
    inputs = dict.fromkeys(names, ids) | {"attention_mask": torch.ones_like(ids)}
    vary = {"dynamic_axes": {name: {0: "batch", 1: "tokens"} for name in names}}
    if dynamo:
        pytest.importorskip("onnxscript")
        auto = torch.export.Dim.AUTO
        vary = {"dynamic_shapes": {name: {0: auto, 1: auto} for name in names}, "verbose": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (), str(path), kwargs=inputs, input_names=names, dynamo=dynamo, **vary, **options)
    network.forward = forward
    return path


@pytest.mark.parametrize("beside", [False, True])
def test_weights_of_an_export_are_those_of_the_network(tmp_path, beside):
    network = random_models.made("bert")
    path = exported(network, tmp_path / "model.onnx")
    if beside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    found = open_onnx(path)
    expected = {name: value.numpy() for name, value in network.state_dict().items() if "pooler" not in name}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_a_folder_gets_its_weights_from_an_export(tmp_path, name, dynamo):
    network = random_models.made(name)
    folder = random_models.save(network, tmp_path)
    expected = BertEncoder.from_folder(folder).encode(TEXTS)
    (folder / "model.safetensors").unlink()
    path = exported(network, folder / "model.onnx", dynamo=dynamo)
    convert(path, folder / "model.safetensors", "float32")
    assert BertEncoder.from_folder(folder).encode(TEXTS).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_sum_that_an_exporter_folded_is_an_error_and_another_export_has_the_weight(tmp_path, dynamo):
    network = random_models.made("gemma")
    with pytest.raises(
        ValueError, match=r"5 weights have no name that a module gives them.* of shape \(32,\), read by"
    ):
        open_onnx(exported(network, tmp_path / "folded.onnx", dynamo=dynamo))
    unfolded = {"optimize": False} if dynamo else {"do_constant_folding": False}
    found = open_onnx(exported(network, tmp_path / "model.onnx", dynamo=dynamo, **unfolded))
    expected = network.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy())


@pytest.mark.parametrize("dynamo", [False, True])
def test_parameters_that_are_equal_are_all_found(tmp_path, dynamo):
    network = random_models.made("bert")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(float("LayerNorm.weight" in name))
    found = open_onnx(exported(network, tmp_path / "model.onnx", dynamo=dynamo, result=1))
    expected = network.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy())


def made(*tensors):
    graph = onnx.helper.make_graph([], "g", [], [], list(tensors))
    return onnx.helper.make_model(graph)


def test_types_and_forms_of_initializers_are_read(tmp_path):
    rng, helper, types = np.random.default_rng(0), onnx.helper, onnx.TensorProto
    x = rng.normal(size=(3, 4)).astype(np.float32)
    half = x.astype(np.float16)
    model = made(
        helper.make_tensor("floats", types.FLOAT, x.shape, x.ravel().tolist()),
        onnx.numpy_helper.from_array(half, "half"),
        helper.make_tensor("half listed", types.FLOAT16, x.shape, half.ravel().tolist()),
        helper.make_tensor("bfloat", types.BFLOAT16, x.shape, x.ravel().tolist()),
        onnx.numpy_helper.from_array(x.astype(np.float64), "double"),
        helper.make_tensor("double listed", types.DOUBLE, x.shape, x.ravel().tolist()),
        onnx.numpy_helper.from_array(np.arange(3), "shape"),
    )
    onnx.save(model, tmp_path / "a.onnx")
    found = open_onnx(tmp_path / "a.onnx")
    double, bfloat = x.astype(np.float64), x.astype(ml_dtypes.bfloat16)
    expected = {
        "floats": x,
        "half": half,
        "half listed": half,
        "bfloat": bfloat,
        "double": double,
        "double listed": double,
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype


def test_codes_and_files_elsewhere_are_refused(tmp_path):
    path = tmp_path / "a.onnx"
    onnx.save(made(onnx.numpy_helper.from_array(np.ones((2, 2), np.int8), "w_quantized")), path)
    with pytest.raises(
        ValueError, match=r"initializer w_quantized of shape \(2, 2\) has codes of int8; expected floats"
    ):
        open_onnx(path)
    tensor = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../b"
    path.write_bytes(made(tensor).SerializeToString())
    with pytest.raises(ValueError, match=r"initializer w is in '\.\./b' at '0'; expected a name in its own folder"):
        open_onnx(path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x0f", b"\x3a\x7f", b"hello world"])
def test_other_files_are_refused_by_name(tmp_path, content):
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.onnx is not an ONNX file, or is damaged"):
        open_onnx(path)


def one(path, **fields):
    """Write a graph of one initializer, whose numbers are in another file unless it has others."""
    tensor = onnx.TensorProto(name="a.weight", data_type=1, dims=[2, 2], data_location=1)
    places = fields.pop("places", {} if "raw_data" in fields else {"location": "a.data"})
    for key, value in fields.items():
        tensor.ClearField(key)
        getattr(tensor, key).extend(value) if key == "dims" else setattr(tensor, key, value)
    tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in places.items())
    (path.parent / "a.data").write_bytes(bytes(64))
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor])), path)
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dims": [0, 2**62, 2**62]}, r"initializer a\.weight has the shape \(0, "),
        ({"dims": [-1, 4]}, r"initializer a\.weight has the shape \(-1, 4\)"),
        ({"dims": [1] * 10_000}, r"initializer a\.weight has 10000 axes; expected at most 8$"),
        ({"data_type": 99}, r"initializer a\.weight of shape \(2, 2\) has numbers of the type 99; expected floats"),
        ({"places": {"location": "a.data", "length": "4"}}, r"a\.weight has 4 bytes in a.data; expected 16"),
        ({"places": {"location": "a.data", "offset": "52"}}, r"a\.data ends before the end of a\.weight, 68"),
    ],
)
def test_initializers_of_no_form_that_is_read_are_refused_by_name(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message) as refused:
        open_onnx(one(tmp_path / "model.onnx", **fields))
    assert str(tmp_path) in str(refused.value)


def test_thousands_of_weights_beside_a_file_need_one_descriptor(tmp_path):
    count = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    names = [f"m{place}.weight" for place in range(999)]
    tensors = [onnx.TensorProto(name=name, data_type=1, dims=[2], data_location=1) for name in names]
    for place, tensor in enumerate(tensors):
        values = {"location": "a.data", "offset": str(8 * place), "length": "8"}
        tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in values.items())
    numbers = np.arange(2.0 * len(tensors), dtype=np.float32)
    (tmp_path / "a.data").write_bytes(numbers.tobytes())
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], tensors)), tmp_path / "model.onnx")
    found = open_onnx(tmp_path / "model.onnx")
    assert count is None or len(os.listdir("/proc/self/fd")) <= count + 2  # of the two files
    np.testing.assert_array_equal(np.concatenate([*found.values()]), numbers)
