"""Whole networks as ONNX files: the results are onnxruntime's, with one set of bits."""

import numpy as np
import onnx_graphs
import pytest
from oracles import digest

import mp_core as mp
from mp_core.core import cpu
from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

OLD = [name for name in onnx_graphs.NETWORKS if name != "patchtst"]  # onnxruntime refuses the file of patchtst


FILES = [(name, False) for name in OLD] + [(name, True) for name in onnx_graphs.NETWORKS]


@pytest.fixture(scope="module", params=FILES)
def exported(request, tmp_path_factory):
    """Return the name of a network, and its file by one of torch's exporters."""
    name, dynamo = request.param
    return name, onnx_graphs.export(name, tmp_path_factory.mktemp(name) / "model.onnx", dynamo)


def inputs_of(name, batch):
    """Return the inputs of a batch; those of a smaller one are its first samples."""
    found = onnx_graphs.NETWORKS[name][1](32, np.random.default_rng(3))
    return {key: x[:batch] for key, x in found.items()}


def of_onnxruntime(path, inputs):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(str(path), options)
    return session.run(None, {x.name: inputs[x.name] for x in session.get_inputs()})[0]


def test_a_network_has_the_outputs_of_onnxruntime_and_one_set_of_bits(exported):
    name, path = exported
    model, inputs = ProgramModel(read_program(path)), inputs_of(name, 32)
    inputs = {key: inputs[key] for key in model.input_names}
    y, wanted = model(**inputs), of_onnxruntime(path, inputs)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert digests(model, inputs, y) == {digest([y])}
    written_out = {"Softmax", "Erf", "Tanh", "Sigmoid", "MatMul", "Gemm", "Conv"}
    assert not written_out & {step.operator for step in model._steps}  # patterns and layers replace all of them


def digests(model, inputs, y):
    """Return the digests of outputs by plans for sets of instructions, numbers of threads and sizes of batches."""
    found, before = set(), cpu.isa()
    try:
        for isa in {"scalar", "avx2"} & {*cpu.available_isas()}:
            cpu.set_isa(isa)
            for batch in (1, 7, 32):
                part = [x[:batch] for x in inputs.values()]
                plan = mp.compile(model, *part)
                for threads in (1, 2):
                    with mp.config.num_threads(threads):
                        found.add(digest([np.concatenate([plan(*part), y[batch:]])]))
    finally:
        cpu.set_isa(before)
    return found
