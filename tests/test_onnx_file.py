"""ONNX files: the weights of an exported network by the names of its modules, and of damaged files nothing."""

import warnings

import numpy as np
import pytest
import random_models

from mp_core.checkpoint import convert
from mp_core.checkpoint.onnx_file import open_onnx
from mp_core.models import BertEncoder

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
TEXTS = ["a b c", "h g f e d c b a a b", "d"]


class Exported(torch.nn.Module):
    """A network that returns the vectors of tokens, under a prefix that architectures know."""

    def __init__(self, network):
        super().__init__()
        self.bert = network

    def forward(self, ids, mask):
        return self.bert(input_ids=ids, attention_mask=mask)[0]


def exported(network, path):
    ids = torch.ones(1, 5, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Exported(network), (ids, torch.ones_like(ids)), str(path), dynamo=False)
    return path


@pytest.mark.parametrize("beside", [False, True])
def test_weights_of_an_export_are_those_of_the_network(tmp_path, beside):
    network = random_models.made("bert")
    path = exported(network, tmp_path / "model.onnx")
    if beside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    found = open_onnx(path)
    for name, tensor in network.state_dict().items():
        if "pooler" not in name and "position_ids" not in name:
            np.testing.assert_array_equal(found[f"bert.{name}"], tensor.numpy())


def test_a_folder_gets_its_weights_from_an_export(tmp_path):
    network = random_models.made("bert")
    folder = random_models.save(network, tmp_path)
    expected = BertEncoder.from_folder(folder).encode(TEXTS)
    (folder / "model.safetensors").unlink()
    convert(exported(network, folder / "model.onnx"), folder / "model.safetensors", "float32")
    np.testing.assert_array_equal(BertEncoder.from_folder(folder).encode(TEXTS), expected)


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
        onnx.numpy_helper.from_array(x.astype(np.float64), "double"),
        onnx.numpy_helper.from_array(np.arange(3), "shape"),
    )
    onnx.save(model, tmp_path / "a.onnx")
    found = open_onnx(tmp_path / "a.onnx")
    assert found.keys() == {"floats", "half", "double"}
    for name, expected in (("floats", x), ("half", half), ("double", x.astype(np.float64))):
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == expected.dtype


def test_codes_and_files_elsewhere_are_refused(tmp_path):
    path = tmp_path / "a.onnx"
    onnx.save(made(onnx.numpy_helper.from_array(np.ones((2, 2), np.int8), "w_quantized")), path)
    with pytest.raises(ValueError, match="initializer w_quantized has codes of int8; expected floats"):
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
    with pytest.raises(ValueError, match=r"a\.onnx is no ONNX file, or damaged"):
        open_onnx(path)
