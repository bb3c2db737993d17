"""Keras' NumPy backend, accelerated in a separate process: outputs, fallbacks, and the state afterwards."""

import json
import sys
import types

import pytest
from conftest import run_with_keras

from mp_core.interop.keras import accelerate, accelerated

BOUNDS = {
    "digits": 1e-5, "digits_mixed_bfloat16": 2.0**-5, "digits_mixed_float16": 2.0**-8, "digits_int8": 2 / 127,
    "mixed_float16_attention": 2.0**-7, "masked": 1e-5,
}  # fmt: skip


@pytest.fixture(scope="module")
def found(keras_folder):
    run_with_keras("keras_accelerated.py", keras_folder, "numpy")
    return json.loads((keras_folder / "accelerated.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_outputs_are_those_of_the_backend_and_of_torch(found, name):
    beside_numpy, beside_torch = found["models"][name]
    assert beside_numpy <= BOUNDS[name]
    assert beside_torch <= BOUNDS[name]


def test_all_functions_are_replaced_without_a_message_and_put_back_exactly(found):
    ends = {"matmul", "dot", "einsum", "add", "softmax", "gelu", "dot_product_attention", "convert_to_tensor"}
    assert ends <= {name.rpartition(".")[2] for name in found["replaced"]}
    assert found["quiet"] == []
    assert found["inner"] and found["undone"] and found["undone after an error"]


def test_blocks_of_several_threads_share_the_replacement(found):
    assert found["threads"]


def test_accelerate_stays_when_a_block_ends(found):
    assert found["for good"]


def test_every_kind_of_argument_gets_the_same_type_and_value(found):
    assert {name: result for name, result in found["values"].items() if result != [True, True]} == {}
    assert len(found["values"]) == 16
    assert found["copies"]
    assert "mismatch in its core dimension" in found["error"]


def test_what_differs_from_the_original_is_not_used(found):
    assert found["a wrong one stays"]
    wrong, gone, raising = found["messages"]
    assert "matmul is not replaced: for float16 the largest difference is" in wrong
    assert gone.endswith("no_such_function is not replaced: it does not exist")
    assert "the self-test raises ZeroDivisionError" in raising


def test_an_unknown_version_of_keras_is_left_alone(found):
    assert found["an unknown version stays"]
    assert found["version"] == ["Keras 4.0.0 is not accelerated: use 3.12 to 3.16"]


def test_other_backends_are_refused(monkeypatch):
    fake = types.SimpleNamespace(config=types.SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", fake)
    with pytest.raises(RuntimeError, match="KERAS_BACKEND=numpy; the backend is torch"):
        accelerate()
    with pytest.raises(RuntimeError, match="the backend is torch"), accelerated():
        pass
