"""`compute_output_spec`, and the `compute_output_shape` of users' layers."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp

CASES = {
    "Dense": (lambda k: k.layers.Dense(5, dtype="mixed_float16"), [(None, 7, 3)]),
    "Embedding": (lambda k: k.layers.Embedding(10, 4, dtype="mixed_bfloat16"), [(None, 6)]),
    "Reshape of any length": (lambda k: k.layers.Reshape((3, 5)), [(2, None)]),
    "MultiHeadAttention": (lambda k: k.layers.MultiHeadAttention(2, 4), [(None, 5, 8), (None, 6, 8)]),
    "LSTM with states": (lambda k: k.layers.LSTM(4, return_state=True), [(2, None, 3)]),
}


@pytest.mark.parametrize("make, shapes", CASES.values(), ids=CASES)
def test_specs_of_outputs_are_those_of_keras_and_build_nothing(make, shapes):
    layer = make(mp)
    found = mp.utilities.tree.leaves(layer.compute_output_spec(*(mp.Input(batch_shape=shape) for shape in shapes)))
    expected = make(keras).compute_output_spec(*(keras.KerasTensor(shape) for shape in shapes))
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in keras.tree.flatten(expected)]
    assert not layer.is_placed and not layer.weights


def test_specs_are_no_inputs_of_models():
    x = mp.Input((3,))
    with pytest.raises(ValueError, match="needs the input"):
        mp.Model(x, mp.layers.Dense(2).compute_output_spec(x))


def test_the_stated_shape_of_a_users_layer_counts_and_its_call_is_not_tried():
    class Stated(mp.layers.Layer):
        def compute_output_shape(self, input_shape):
            return {"a": input_shape, "b": (input_shape, [(*input_shape, 7)])}

        def call(self, inputs):
            raise RuntimeError("is called with arrays only")

    for found in (Stated()(mp.Input((3,))), Stated(dtype="float16").compute_output_spec(mp.Input((3,)))):
        assert found["a"].shape == (None, 3) and isinstance(found["b"], tuple) and isinstance(found["b"][1], list)
        assert found["b"][1][0].shape == (None, 3, 7)
    assert Stated(dtype="float16")(mp.Input((3,)))["a"].dtype == "float16"


def test_layers_inside_of_a_layer_with_a_stated_shape_are_built():
    class Around(mp.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = mp.layers.Dense(4)

        def compute_output_shape(self, input_shape):
            return (*input_shape[:-1], 4)

        def call(self, inputs):
            return self.dense(inputs)

    x, layer = mp.Input((3,)), Around()
    model = mp.Model(x, layer(x))
    assert layer.dense.built and model(np.ones((2, 3), np.float32)).shape == (2, 4)


def test_shapes_may_be_none_and_come_by_name():
    layer = mp.layers.MultiHeadAttention(2, 4)
    assert layer.compute_output_shape((2, 3, 8), (2, 5, 8), None) == (2, 3, 8)
    assert mp.layers.Attention().compute_output_shape(input_shape=[(2, 3, 4), (2, 5, 4)]) == (2, 3, 4)
