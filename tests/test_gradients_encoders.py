"""The gradients of encoders of every architecture, for each variable.

They are compared with central differences in float64, and in float32 with transformers' networks on torch.
"""

import re

import numpy as np
import pytest
import random_models
from gradients import central_differences

import mp_core as mp
from mp_core.models import BertEncoder
from mp_core.models.network import TextNetwork

KINDS = [
    name for name in random_models.ARCHITECTURES
    if not re.search(" as wide| without types", name)
]  # fmt: skip
WIDE = [name for name in KINDS if not name.startswith("deberta")]  # whose scores of distances are float32 always


def model_of(name, policy):
    """A small network of the architecture, with random weights."""
    transformers = random_models.library()
    start, own = random_models.ARCHITECTURES[name]
    config = getattr(transformers, f"{start}Config")(**random_models.SIZES | own | {"num_hidden_layers": 2})
    model = TextNetwork(config.to_dict(), dtype=policy)
    ids = np.random.default_rng(0).integers(6, 40, (2, 9), np.int32)
    model(ids)
    rng = np.random.default_rng(1)
    model.set_weights([
        0.3 * rng.standard_normal(w.shape) + (w.ndim == 1) * (0.5 if w.size > 1 else 0) for w in model.get_weights()
    ])  # fmt: skip
    return model, ids


def step_of(model, ids, mask):
    def value(ids, mask):
        vectors = model(ids, mask=mask)
        weights = np.random.default_rng(2).uniform(-1, 1, vectors.shape).astype(vectors.dtype)
        return mp.sum(vectors * weights, out_dtype="float32" if vectors.dtype != np.float64 else None)

    return (lambda: value(ids, mask)), mp.value_and_grad(value, model.trainable_variables)


@pytest.mark.parametrize("name", WIDE)
def test_gradients_equal_central_differences(name):
    model, ids = model_of(name, "float64")
    mask = np.arange(9) < np.array([[9], [6]])
    value, step = step_of(model, ids, mask)
    _, found = step(ids, mask)
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        x = variable.numpy().copy()

        def moved(variable=variable, x=x):
            variable.assign(x)
            return float(value())

        for place, quotient in central_differences(moved, x, places=2, h=1e-5).items():
            bound = 1e-6 * max(1, np.abs(gradient).max())
            assert abs(gradient[place] - quotient) <= bound, (variable.name, place)
        variable.assign(x)


@pytest.mark.parametrize("name", KINDS)
def test_plan_is_near_float64(name):
    gradients = []
    for policy in ("float64", "float32"):
        model, ids = model_of(name, policy)
        mask = np.arange(9) < np.array([[9], [6]])
        gradients.append(step_of(model, ids, mask)[1](ids, mask)[1])
    for exact, found in zip(*gradients, strict=True):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4 * np.abs(exact).max() + 1e-6)


@pytest.mark.parametrize("name", random_models.ARCHITECTURES)
def test_gradients_are_those_of_transformers(name, tmp_path):
    torch = pytest.importorskip("torch")
    network = random_models.made(name)
    (tmp_path / "model").mkdir()
    model = BertEncoder.from_folder(random_models.save(network, tmp_path / "model")).model
    ids = np.random.default_rng(0).integers(6, 40, (2, 9), np.int32)
    mask = np.arange(9) < np.array([[9], [6]])
    result = network(input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()).last_hidden_state
    weights = (np.random.default_rng(2).uniform(-1, 1, result.shape) * mask[..., np.newaxis]).astype(np.float32)
    torch.sum(result * torch.tensor(weights)).backward()
    value = mp.grad(lambda ids, mask: mp.sum(model(ids, mask=mask) * weights), model.trainable_variables)
    gradients = value(ids, mask)
    largest = max(np.abs(each).max() for each in gradients)
    for gradient, exact in zip(gradients, random_models.gradients(network, tmp_path), strict=True):
        bound = 1e-5 * np.abs(exact).max() + 1e-6 * largest  # some are 0: that of the bias of keys
        np.testing.assert_allclose(gradient, exact, rtol=0, atol=bound)


def test_gradients_of_a_network_are_those_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((33, 12)).astype(np.float32), rng.integers(0, 5, 33)
    model = mp.layers.Sequential([
        mp.layers.Dense(24, "gelu"), mp.layers.LayerNormalization(epsilon=1e-5), mp.layers.Dense(16, "silu"),
        mp.layers.Dense(5),
    ])  # fmt: skip
    model.build((None, 12))
    model.set_weights([w + 0.2 * rng.standard_normal(w.shape).astype(np.float32) for w in model.get_weights()])
    weights = [torch.tensor(w, requires_grad=True) for w in model.get_weights()]
    kernel, bias, gamma, beta, *others = weights
    hidden = torch.nn.functional.gelu(torch.tensor(x) @ kernel + bias)
    hidden = torch.nn.functional.layer_norm(hidden, (24,), gamma, beta, 1e-5)
    hidden = torch.nn.functional.silu(hidden @ others[0] + others[1])
    expected = torch.nn.functional.cross_entropy(hidden @ others[2] + others[3], torch.tensor(labels))
    expected.backward()

    loss = mp.losses.SparseCategoricalCrossentropy(from_logits=True)
    value, found = mp.value_and_grad(lambda x, y: loss(y, model(x)), model.trainable_variables)(x, labels)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-6)
    for gradient, tensor in zip(found, weights, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=0, atol=1e-5 * float(tensor.grad.abs().max()))
