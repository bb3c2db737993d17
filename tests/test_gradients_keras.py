"""The gradients of every layer, compared with Keras' layer of the same name, on torch's autograd in float32."""

import inspect
import os

import numpy as np
import pytest
from test_gradients_layers import CASES, prepared, step_of
from test_plans_layers import inputs_of

import mp_core as mp
from mp_core.utilities.tree import map_leaves

torch = pytest.importorskip("torch")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("Keras computes with another library in this process", allow_module_level=True)

OTHERS = {
    "Sequential": "layers that are here by themselves",
    "Operation": "Keras has no such layer",
    "gelu_tanh": "Keras has no such activation; test_gradients_torch.py has it",
    "GroupedQueryAttention": "is GroupQueryAttention in Keras; test_grouped_attention.py computes it beside Keras",
    "RandomPosterization": "torch has no gradient of it",
    "SpectralNormalization": "takes a layer of the library; test_spectral_normalization.py trains it beside Keras",
    "TimeDistributed": "takes a layer of the library; test_time_distributed.py trains it beside Keras",
}
"""Layers, and activations, without a case here, and why."""
PEAKED = {"MultiHeadAttention", "Attention"}
"""Layers whose weights are made smaller: softmax of large scores amplifies what float32 rounds in both libraries."""


def has_case(case):
    name, arguments, _ = case
    is_wrong = name == "AveragePooling1D" and arguments.get("padding") == "same"  # on torch: zeros count, by repetition
    return not is_wrong and not {name, arguments.get("activation")} & OTHERS.keys()


def by_torch(layer, inputs, weights):
    """The gradients of the weights and of the inputs that are variables, in this order."""
    tensors = []

    def tensor(x):
        if not isinstance(x, mp.AutoCastVariable):
            return torch.tensor(np.asarray(x))
        tensors.append(torch.tensor(x.numpy(), requires_grad=True))
        return tensors[-1]

    given = map_leaves(tensor, inputs)
    options = {"training": False} if "training" in inspect.signature(layer.call).parameters else {}
    layer(*map_leaves(torch.Tensor.detach, given), **options)
    layer.set_weights(weights)
    result = layer(*given, **options)
    factors = np.random.default_rng(1).uniform(0.5, 1.5, tuple(result.shape)).astype(np.float32)
    torch.sum(result * torch.tensor(factors)).backward()
    return [each.grad.numpy() for each in (*(w.value for w in layer.trainable_weights), *tensors)]


@pytest.mark.parametrize(("name", "arguments", "shapes"), [case for case in CASES if has_case(case)])
def test_gradients_are_those_of_keras(name, arguments, shapes):
    layer, inputs, given = prepared(name, arguments, inputs_of(shapes), "float32")
    if name in PEAKED:
        layer.set_weights([0.2 * w for w in layer.get_weights()])
    expected = by_torch(getattr(keras.layers, name)(**arguments), inputs, layer.get_weights())
    _, step = step_of(layer, inputs, [*layer.trainable_variables, *given])
    largest = max(np.abs(each).max() for each in expected)
    for found, exact in zip(step()[1], expected, strict=True):
        bound = 1e-5 * np.abs(exact).max() + 1e-6 * largest  # some are 0: that of the bias of keys
        np.testing.assert_allclose(found, exact, rtol=0, atol=bound)
