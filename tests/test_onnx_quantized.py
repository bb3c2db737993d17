"""Networks quantized by onnxruntime's own tools: the codes are exact, with one set of bits."""

import logging

import numpy as np
import onnx_graphs
import pytest
from oracles import digest
from test_onnx_graphs import digests, inputs_of

from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", params=["bert", "resnet"])
def network(request, tmp_path_factory):
    """Return the name of a network, and its file."""
    path = tmp_path_factory.mktemp(request.param) / "model.onnx"
    return request.param, onnx_graphs.export(request.param, path, dynamo=request.param == "resnet")


def without_optimizations(path, inputs):
    """Return the outputs of onnxruntime's operators one by one: its fused products of codes saturate on some CPUs."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options).run(None, inputs)[0]


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_static_quantization_gives_the_codes_of_onnxruntime_without_saturation(network, form, per_channel, tmp_path):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Sample(CalibrationDataReader):
        def __init__(self):
            self.batches = iter([inputs_of(network[0], 4)])

        def get_next(self):
            return next(self.batches, None)

    name, path = network
    logging.disable(logging.WARNING)
    quantize_static(path, tmp_path / "q.onnx", Sample(), quant_format=QuantFormat[form], per_channel=per_channel)
    logging.disable(logging.NOTSET)
    model = ProgramModel(read_program(tmp_path / "q.onnx"))
    inputs = inputs_of(name, 32)
    inputs = {key: inputs[key] for key in model.input_names}
    y = model(**inputs)
    wanted = without_optimizations(tmp_path / "q.onnx", inputs)
    assert np.mean(np.abs(y - wanted) > 1e-5 * np.abs(wanted).max()) < 0.01  # a tie may give the next code
    assert digests(model, inputs, y) == {digest([y])}
    assert sum(layer.quantized or hasattr(layer, "codes") for layer in model.layers) >= len(model.layers) // 2
    model.save(tmp_path / "folder")
    np.testing.assert_array_equal(ProgramModel.from_folder(tmp_path / "folder")(**inputs), y)


def test_dynamic_quantization_gives_the_results_of_exact_integers(network, tmp_path):
    from onnx.reference import ReferenceEvaluator
    from onnxruntime.quantization import quantize_dynamic

    name, path = network
    if name != "bert":
        pytest.skip("dynamic quantization is of products of matrices")
    logging.disable(logging.WARNING)
    quantize_dynamic(path, tmp_path / "q.onnx")
    logging.disable(logging.NOTSET)
    file = onnx.load(tmp_path / "q.onnx")
    file.opset_import[0].version = 21  # the reference has no DequantizeLinear of version 17, whose nodes mean the same
    model, inputs = ProgramModel(read_program(tmp_path / "q.onnx")), inputs_of(name, 7)
    wanted = ReferenceEvaluator(file).run(None, inputs)[0]
    y = model(**{key: inputs[key] for key in model.input_names})
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_float16_file_has_its_types_or_those_of_a_policy(tmp_path):
    path = onnx_graphs.export("vit", tmp_path / "half.onnx", half=True)
    inputs = {key: x.astype(np.float16) for key, x in inputs_of("vit", 3).items()}
    wanted = without_optimizations(path, inputs)
    y = ProgramModel(read_program(path))(**inputs)
    assert y.dtype == wanted.dtype == np.float16
    assert np.abs(y.astype(np.float32) - wanted).max() < 0.01 * np.abs(wanted).max()
    wide = ProgramModel(read_program(path), "float32")(**inputs)
    assert wide.dtype == np.float32
    assert np.abs(wide - wanted).max() < 0.01 * np.abs(wanted).max()
