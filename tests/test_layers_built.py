"""Layers that are built before they are called."""

import numpy as np
import pytest

from mp_core import layers
from mp_core.dtype_policies import DTypePolicy, DTypePolicyMap


@pytest.mark.parametrize(
    ("make", "is_built"),
    [
        (layers.ReLU, True), (layers.LeakyReLU, True), (layers.ELU, True), (layers.Softmax, True),
        (lambda: layers.Activation("relu"), True), (layers.Identity, True), (layers.Masking, True),
        (lambda: layers.Dropout(0.5), True), (lambda: layers.SpatialDropout1D(0.5), True),
        (lambda: layers.GaussianNoise(0.5), True), (layers.ActivityRegularization, True),
        (layers.MaxPooling1D, True), (layers.GlobalAveragePooling2D, True), (layers.UnitNormalization, True),
        (layers.Flatten, False), (layers.Add, False), (lambda: layers.Dense(1), False),
    ],
)  # fmt: skip
def test_layers_that_build_nothing_are_built_from_the_start_as_in_keras(make, is_built):
    layer = make()
    assert layer.built is is_built
    assert layer.path is None
    outer = layers.Sequential([make(), layer], name="outer")
    assert not outer.built


def test_layers_that_are_built_from_the_start_get_their_path_and_policy_from_what_holds_them():
    policies = DTypePolicyMap(policy_map={"outer/first": DTypePolicy("bfloat16")})
    layer = layers.ReLU(name="first", dtype=policies)
    model = layers.Sequential([layer], name="outer")
    x = np.ones((2, 3), np.float32)
    assert layer.compute_output_shape((2, 3)) == (2, 3)
    assert model(x).dtype == "bfloat16"
    assert layer.path == "outer/first"


def test_a_subclass_of_them_with_a_build_is_not_built():
    class Shifted(layers.ReLU):
        def build(self, input_shape):
            self.shift = self.add_weight((), "ones")

        def call(self, inputs):
            return super().call(inputs) + self.shift

    layer = Shifted()
    assert not layer.built
    assert layer(np.float32([-1.0])).tolist() == [1.0]
    assert layer.built


def test_the_build_of_a_class_beside_layer_counts():
    class Scaling:
        def build(self, input_shape):
            self.scale = self.add_weight(input_shape[-1:], "ones", name="scale")

    class Scaled(Scaling, layers.Layer):
        def call(self, inputs):
            return inputs * self.scale

    layer = Scaled(name="scaled")
    assert layer(np.ones((2, 3), np.float32)).sum() == 6 and layer.path == "scaled" and len(layer.weights) == 1
