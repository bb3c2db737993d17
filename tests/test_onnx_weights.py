"""The layers of an ONNX BERT: names, policies, calibration, and the error budget of a choice of policies."""

import numpy as np
import onnx_graphs
import pytest

import mp_core as mp
from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel

pytest.importorskip("onnxscript")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
INPUTS = onnx_graphs.texts(7, np.random.default_rng(3))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return read_program(onnx_graphs.export("bert", tmp_path_factory.mktemp("bert") / "model.onnx"))


@pytest.fixture(scope="module")
def exact(program):
    return ProgramModel(program, "float32")(**INPUTS)


def test_layers_have_the_names_of_the_modules_and_share_the_memory_of_the_file(program):
    model = ProgramModel(program, "float32", name="bert")
    names = [f"module.encoder.layer.{i}.{part}" for i in range(2) for part in (
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "intermediate.dense", "output.dense",
    )]  # fmt: skip
    tables = [f"module.embeddings.{part}_embeddings" for part in ("word", "token_type", "position")]
    assert [layer.name for layer in model.layers] == [*tables, *names]
    assert model.layers[3].path == names[0]
    table = program.constants["module.embeddings.word_embeddings.weight"]
    assert np.shares_memory(model.layers[0].embeddings.numpy(), table)


@pytest.mark.parametrize(("scheme", "bound"), [("int8", 0.02), ("int8/weight_only", 0.02), ("int4/32", 0.3)])
def test_a_policy_or_quantize_turns_all_matrices_into_codes(program, exact, scheme, bound):
    model = ProgramModel(program, f"{scheme}_from_float32")
    assert {layer.quantized for layer in model.layers} == {True}
    assert 0 < np.abs(model(**INPUTS) - exact).max() < bound * np.abs(exact).max()
    later = ProgramModel(program, "float32")
    later.quantize(scheme)
    assert 0 < np.abs(later(**INPUTS) - exact).max() < bound * np.abs(exact).max()


def test_a_map_of_policies_selects_layers_by_the_names_of_the_file(program, exact):
    policy = mp.dtype_policies.DTypePolicyMap("float32", {r".*\.query": "int8_from_float32"})
    model = ProgramModel(program, policy)
    assert [layer.name for layer in model.layers if layer.quantized] == [
        f"module.encoder.layer.{i}.attention.self.query" for i in range(2)
    ]
    assert 0 < np.abs(model(**INPUTS) - exact).max() < 0.02 * np.abs(exact).max()


def test_calibration_fixes_the_scales_of_inputs(program, exact):
    fitted = mp.calibrate(ProgramModel(program, "float32"), INPUTS, "int8_from_float32")
    dense = [layer for layer in fitted.layers if isinstance(layer, mp.layers.Dense)]
    assert all(layer.inputs is not None for layer in dense)
    assert np.abs(fitted(**INPUTS) - exact).max() < 0.03 * np.abs(exact).max()


def test_sensitivity_and_the_choice_of_policies_keep_the_error_budget(program, exact):
    model = ProgramModel(program, "float32", name="bert")
    measured = mp.sensitivity(model, INPUTS, ["int8"])
    assert {x.path for x in measured} >= {layer.path for layer in model.layers}
    choice = mp.choose_policy(model, INPUTS, max_error=1e-3)
    chosen = ProgramModel(program, choice.map, name="bert")
    cosine = [a.ravel() @ b.ravel() / np.linalg.norm(a) / np.linalg.norm(b) for a, b in
              zip(chosen(**INPUTS).astype(np.float64), exact.astype(np.float64), strict=True)]  # fmt: skip
    assert 1 - min(cosine) < 2e-3


def test_a_compute_dtype_reaches_every_value(program, exact):
    for policy, bound in (("mixed_bfloat16", 0.03), ("float16", 0.01)):
        y = ProgramModel(program, policy)(**INPUTS)
        assert y.dtype.name == policy.removeprefix("mixed_")
        assert np.abs(y.astype(np.float32) - exact).max() < bound * np.abs(exact).max()
